package sqlhistory

import (
	"fmt"
	"slices"
	"strings"
)

// createTable is CREATE TABLE with columns.
func (g *Generator) createTable() {
	schema, name := g.newName()
	t := &table{schema: schema, name: name}
	items := g.columnsAndKeys(t)
	head := "CREATE TABLE "
	switch {
	case g.maybe(8, "create: or replace"):
		head = "CREATE OR REPLACE TABLE "
		if old := g.one(g.unrelated); old != nil {
			t.schema, t.name = old.schema, old.name
		}
	case g.maybe(8, "create: if not exists"):
		head = "CREATE TABLE IF NOT EXISTS "
	}
	options := g.tableOptions(t)
	g.ddl(head+g.ref(t)+" ("+strings.Join(items, ", ")+")"+options, g.add(t))
}

// freshTable is a new table without anything special, for productions that need one.
func (g *Generator) freshTable(partitioned bool) *table {
	schema, name := g.newName()
	t := &table{schema: schema, name: name, key: []string{"id"}}
	t.columns = []*column{{name: "id", is: columnType{decl: "INT"}, small: true}}
	c := g.newColumn(t)
	t.columns = append(t.columns, c)
	sql := "CREATE TABLE " + g.ref(t) + " (id INT NOT NULL, " + g.declare(c) + ", PRIMARY KEY (id))"
	if partitioned {
		sql += g.rangePartitions(t)
	}
	g.say(sql, g.add(t))
	return t
}

// columnsAndKeys are the columns of a new table and its keys.
func (g *Generator) columnsAndKeys(t *table) []string {
	id := &column{name: "id", is: columnType{decl: "INT"}, small: true}
	t.columns = []*column{id}
	items := []string{"id INT NOT NULL"}
	switch {
	case g.maybe(6, "key: none"):
		items[0], id.null = "id INT", true
	case g.maybe(6, "key: composite"):
		t.columns = append(t.columns, &column{name: "part", is: columnType{decl: "VARCHAR(10)", values: []string{"'a'", "'A'", "'b'", "''"}}})
		t.key = []string{"part", "id"}
		items = append(items, "part VARCHAR(10) NOT NULL", "PRIMARY KEY (part, id)")
	case g.maybe(8, "key: of another type"):
		items = append(items, g.otherKey(t)...)
	case g.maybe(8, "key: unique not null"):
		items = append(items, "UNIQUE KEY only (id)")
	case g.maybe(8, "key: unique nullable"):
		items[0], id.null = "id INT", true
		items = append(items, "UNIQUE (id)")
	case g.maybe(6, "key: auto increment"):
		id.auto, t.key = true, []string{"id"}
		items[0] = pick(g.r, []string{"id INT AUTO_INCREMENT PRIMARY KEY", "id SERIAL, PRIMARY KEY (id)"})
	default:
		g.use("key: primary")
		t.key = []string{"id"}
		items[0] = "id INT PRIMARY KEY"
	}
	for range 1 + g.r.IntN(7) {
		c := g.newColumn(t)
		t.columns = append(t.columns, c)
		items = append(items, g.declare(c))
	}
	if g.maybe(30, "table: wide") {
		for range 70 {
			c := &column{name: fmt.Sprintf("w%d", g.next()), is: g.typeOf(func(t columnType) bool { return !t.blob && !strings.Contains(t.decl, "00)") }), null: true}
			t.columns = append(t.columns, c)
			items = append(items, quoteName(c.name)+" "+c.is.decl)
		}
	}
	if g.maybe(6, "index: unique alone") {
		t.columns = append(t.columns, uniqueNumbers())
		items = append(items, uniqueColumn+" INT UNIQUE")
	}
	if g.maybe(6, "column: generated virtual") {
		items = append(items, fmt.Sprintf("v%d INT GENERATED ALWAYS AS (id + 1) VIRTUAL", g.next()))
		t.columns = append(t.columns, &column{name: fmt.Sprintf("v%d", g.number), generated: true, is: columnType{decl: "INT"}})
	}
	if g.maybe(6, "column: generated stored") {
		items = append(items, fmt.Sprintf("p%d VARCHAR(30) AS (CONCAT(id, '-', id)) PERSISTENT", g.next()))
		t.columns = append(t.columns, &column{name: fmt.Sprintf("p%d", g.number), generated: true, is: columnType{decl: "VARCHAR(30)"}})
	}
	if g.maybe(6, "column: generated of a timestamp") {
		n := g.next()
		items = append(items, fmt.Sprintf("ts%d TIMESTAMP NULL", n), fmt.Sprintf("h%d INT AS (HOUR(ts%d)) STORED", n, n))
		t.columns = append(t.columns, &column{name: fmt.Sprintf("ts%d", n), null: true, is: columnType{decl: "TIMESTAMP NULL", values: []string{"'2026-01-01 12:00:00'", "'2026-06-01 00:00:01'"}}},
			&column{name: fmt.Sprintf("h%d", n), generated: true, is: columnType{decl: "INT"}})
	}
	if g.maybe(6, "column: generated of a time") { // by the day of its session
		n := g.next()
		items = append(items, fmt.Sprintf("tm%d TIME", n), fmt.Sprintf("dt%d DATETIME AS (CAST(tm%d AS DATETIME)) STORED", n, n))
		t.columns = append(t.columns, &column{name: fmt.Sprintf("tm%d", n), null: true, is: columnType{decl: "TIME", values: []string{"'12:00:00'", "'23:59:59'"}}},
			&column{name: fmt.Sprintf("dt%d", n), generated: true, is: columnType{decl: "DATETIME"}})
	}
	if g.maybe(5, "index: in create") {
		if index := g.index(t); index != "" {
			items = append(items, index)
		}
	}
	if g.maybe(8, "index: spatial") {
		c := &column{name: fmt.Sprintf("g%d", g.next()), is: columnType{decl: "POINT", values: []string{"POINT(0, 0)", "POINT(-1.5, 1e300)"}, spatial: true}}
		t.columns = append(t.columns, c)
		items = append(items, c.name+" POINT NOT NULL", "SPATIAL INDEX ("+c.name+")")
	}
	if g.maybe(8, "constraint: check") {
		name := fmt.Sprintf("ck%d", g.next())
		t.checks = append(t.checks, name)
		items = append(items, "CONSTRAINT "+name+" CHECK (id <> -77)")
	}
	// The key need not be first.
	if g.r.IntN(4) == 0 && !strings.Contains(items[0], "SERIAL") {
		shuffled := slices.Clone(items)
		g.r.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		return shuffled
	}
	return items
}

// uniqueColumn has few values, and a unique key of its own besides the one that identifies rows.
const uniqueColumn = "uni"

func uniqueNumbers() *column {
	return &column{name: uniqueColumn, null: true, unique: true, is: columnType{decl: "INT", values: []string{"1", "2", "3", "4", "5", "6", "7", "8", "9"}}}
}

// otherKey is a primary key of any type that can be one. The column id is no part of it.
func (g *Generator) otherKey(t *table) []string {
	is := g.typeOf(func(t columnType) bool { return t.key || t.blob })
	is.decl = strings.TrimSuffix(is.decl, " NULL")
	c := &column{name: fmt.Sprintf("key%d", g.next()), is: is, keyed: true}
	t.columns = append(t.columns, c)
	t.key = []string{c.name}
	part := c.name
	if is.blob {
		part += "(5)"
	}
	return []string{c.name + " " + is.decl + " NOT NULL", "PRIMARY KEY (" + part + ")"}
}

// newColumn draws a column that a table does not have.
func (g *Generator) newColumn(t *table) *column {
	name := fmt.Sprintf("c%d", g.next())
	if g.maybe(10, "name: quoted column") {
		name = pick(g.r, []string{"a column", "order", "tick`", "ö", "dot.ted"})
		if slices.ContainsFunc(t.columns, func(c *column) bool { return c.name == name }) {
			name = fmt.Sprintf("c%d", g.number)
		}
	}
	return &column{name: name, is: g.typeOf(func(columnType) bool { return true }), null: true}
}

// declare writes a column with attributes.
func (g *Generator) declare(c *column) string {
	text := quoteName(c.name) + " " + c.is.decl
	simple := !c.is.blob && !c.is.spatial && !strings.Contains(c.is.decl, "COMPRESSED")
	switch {
	case strings.HasPrefix(c.is.decl, "TIMESTAMP") || strings.HasPrefix(c.is.decl, "DATETIME"):
		fraction := ""
		if open := strings.Index(c.is.decl, "("); open > 0 {
			fraction = c.is.decl[open : open+3]
		}
		if g.maybe(3, "column: default now") {
			text += " DEFAULT CURRENT_TIMESTAMP" + fraction
			if g.maybe(2, "column: on update now") {
				text += " ON UPDATE CURRENT_TIMESTAMP" + fraction
			}
		}
	case simple && g.maybe(4, "column: not null"):
		c.null = false
		text += " NOT NULL"
		if g.maybe(2, "column: default") {
			text += " DEFAULT " + g.literalDefault(c)
		}
	case simple && g.maybe(5, "column: default"):
		text += " DEFAULT " + g.literalDefault(c)
	case !c.is.spatial && g.maybe(10, "column: default expression"):
		text += " DEFAULT (" + g.value(c.is) + ")"
	}
	if g.maybe(12, "column: comment") {
		text += pick(g.r, []string{" COMMENT 'it''s; a, (comment'", " COMMENT 'RENAME TO x'", " COMMENT 'ü'"})
	}
	if c.null && g.maybe(12, "column: invisible") {
		text += " INVISIBLE"
	}
	return text
}

// literalDefault is a default that needs no brackets.
func (g *Generator) literalDefault(c *column) string {
	v := g.value(c.is)
	if strings.Contains(v, "(") {
		return "NULL"
	}
	return v
}

// index is an index in a new table or in an ALTER, or nothing.
func (g *Generator) index(t *table) string {
	name := fmt.Sprintf("k%d", g.next())
	list := t.columnsThat(func(c *column) bool { return !c.generated && !c.is.spatial })
	c := pick(g.r, list)
	if blobs := t.columnsThat(func(c *column) bool { return c.is.blob }); len(blobs) > 0 && g.often["index: unique hash"] {
		c = blobs[0]
	} else if words := t.columnsThat(func(c *column) bool { return strings.HasPrefix(c.is.decl, "VARCHAR") }); len(words) > 0 && g.r.IntN(2) == 0 {
		c = words[0]
	}
	var text string
	switch {
	case c.is.blob && !g.hides(c) && g.maybe(3, "index: unique hash"):
		text = "UNIQUE KEY " + name + " (" + quoteName(c.name) + ") USING HASH"
	case c.is.blob && g.use("index: prefix"):
		text = "KEY " + name + " (" + quoteName(c.name) + "(10))"
	case c.is.blob || strings.Contains(c.is.decl, "COMPRESSED"):
		return ""
	case strings.HasPrefix(c.is.decl, "VARCHAR") && g.maybe(1, "index: fulltext"):
		text = "FULLTEXT INDEX " + name + " (" + quoteName(c.name) + ")"
	case g.maybe(3, "index: descending"):
		text = "INDEX " + name + " (" + quoteName(c.name) + " DESC, id)"
	case g.maybe(3, "index: ignored"):
		text = "KEY " + name + " (" + quoteName(c.name) + ") IGNORED"
	case !g.hides(c) && g.maybe(3, "index: unique"):
		text = "UNIQUE KEY " + name + " (" + quoteName(c.name) + ", id)"
	default:
		text = "KEY " + name + " USING BTREE (" + quoteName(c.name) + ") COMMENT 'an index'"
	}
	t.indexes = append(t.indexes, name)
	return text
}

// tableOptions are what comes after the columns.
func (g *Generator) tableOptions(t *table) string {
	text := ""
	switch {
	case g.maybe(12, "engine: MyISAM"):
		t.engine, text = "MyISAM", " ENGINE=MyISAM"
	case g.maybe(12, "engine: Aria"):
		t.engine, text = "Aria", " ENGINE=Aria TRANSACTIONAL=0"
	case g.maybe(12, "engine: MEMORY"):
		if t.columnsThat(func(c *column) bool { return c.is.blob || c.is.spatial }) == nil {
			t.engine, text = "MEMORY", " ENGINE=MEMORY"
		}
	case g.maybe(6, "option: engine InnoDB"):
		text = " ENGINE = InnoDB"
	}
	if g.maybe(5, "option: charset") {
		text += pick(g.r, []string{" DEFAULT CHARSET=latin1", " CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci", " DEFAULT CHARACTER SET = cp1251"})
	}
	if !strings.Contains(text, "CHAR") && g.maybe(8, "option: wide charset") {
		text += pick(g.r, []string{" COLLATE=ucs2_general_ci", " CHARSET=utf16", " CHARSET=utf32"})
	}
	if g.maybe(8, "option: comment") {
		text += " COMMENT='a; table''s comment'"
	}
	if t.engine == "" && g.maybe(8, "option: row format") {
		text += " ROW_FORMAT=" + pick(g.r, []string{"DYNAMIC", "COMPACT", "REDUNDANT", "COMPRESSED"})
	}
	if g.maybe(8, "option: auto increment") {
		text += " AUTO_INCREMENT=100"
	}
	if t.engine == "" && g.maybe(10, "option: page compressed") {
		text += " PAGE_COMPRESSED=1"
	}
	if t.engine == "" && g.maybe(8, "versioned: create") {
		t.versioned = true
		text += " WITH SYSTEM VERSIONING"
	} else if t.engine == "" && slices.Equal(t.key, []string{"id"}) && !t.columns[0].auto && len(t.indexes) == 0 && t.columnsThat(func(c *column) bool { return c.is.spatial }) == nil {
		text += g.partitionOptions(t)
	}
	return text
}

// partitionOptions make a new table one with partitions, sometimes.
func (g *Generator) partitionOptions(t *table) string {
	switch {
	case g.maybe(6, "partition: by range"):
		return g.rangePartitions(t)
	case g.maybe(8, "partition: by list"):
		t.partitions = &partitions{kind: "list", names: []string{"p0", "p1"}}
		return " PARTITION BY LIST (id % 2) (PARTITION p0 VALUES IN (0), PARTITION p1 VALUES IN (1, -1))"
	case g.maybe(8, "partition: by hash"):
		t.partitions = &partitions{kind: "hash"}
		return pick(g.r, []string{" PARTITION BY HASH (id) PARTITIONS 3", " PARTITION BY LINEAR HASH (id) PARTITIONS 4"})
	case g.maybe(5, "partition: by key"):
		t.partitions = &partitions{kind: "hash"}
		return " PARTITION BY KEY () PARTITIONS 3"
	case g.maybe(4, "partition: by range columns"):
		t.partitions = &partitions{kind: "columns"}
		return " PARTITION BY RANGE COLUMNS (id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (MAXVALUE))"
	case g.maybe(4, "partition: subpartitions"):
		t.partitions = &partitions{kind: "columns"}
		return " PARTITION BY RANGE (id) SUBPARTITION BY HASH (id) SUBPARTITIONS 2 (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN MAXVALUE)"
	}
	return ""
}

func (g *Generator) rangePartitions(t *table) string {
	t.partitions = &partitions{kind: "range", names: []string{"p0", "p1", "p2"}, next: 60}
	return " PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20), PARTITION p2 VALUES LESS THAN (60))"
}

// createLike is CREATE TABLE … LIKE.
func (g *Generator) createLike() {
	t := g.one(func(t *table) bool { return t.engine == "" })
	if t == nil {
		return
	}
	schema, name := g.newName()
	c := t.copy(schema, name)
	if g.maybe(2, "create: like after alter") {
		col := g.newColumn(t)
		sql := "ALTER TABLE " + g.ref(t) + " ADD COLUMN " + g.declare(col)
		again := *col
		c.columns = append(c.columns, &again)
		g.ddl(sql, func() { t.columns = append(t.columns, col) })
	}
	sql := "CREATE TABLE " + g.ref(c) + " LIKE " + g.ref(t)
	if g.maybe(4, "create: or replace like") {
		if old := g.one(func(old *table) bool { return old != t && g.unrelated(old) }); old != nil {
			c.schema, c.name = old.schema, old.name
		}
		sql = "CREATE OR REPLACE TABLE " + g.ref(c) + " LIKE " + g.ref(t)
	} else if g.r.IntN(4) == 0 {
		sql = "CREATE TABLE IF NOT EXISTS " + g.ref(c) + " (LIKE " + g.ref(t) + ")"
	}
	g.ddl(sql, g.add(c))
	g.mark()
	g.insertInto(c)
}

// createSelect is CREATE TABLE … AS SELECT.
func (g *Generator) createSelect() {
	from := g.one(anyTable)
	if from == nil {
		return
	}
	schema, name := g.newName()
	t := &table{schema: schema, name: name}
	head := "CREATE TABLE "
	switch {
	case g.maybe(4, "create: or replace as select"):
		head = "CREATE OR REPLACE TABLE "
		if old := g.one(func(t *table) bool { return t != from && g.unrelated(t) }); old != nil {
			t.schema, t.name = old.schema, old.name
		}
	case g.maybe(3, "create: if not exists as select"):
		head = "CREATE TABLE IF NOT EXISTS "
	}
	var sql string
	switch g.r.IntN(3) {
	case 0:
		t.columns = from.copy("", "").columnsThat(func(c *column) bool { return !c.generated })
		sql = " AS SELECT * FROM " + g.ref(from)
	case 1:
		t.columns = []*column{{name: "id", is: columnType{decl: "INT"}, small: true}, {name: "extra", null: true, is: columnType{decl: "VARCHAR(9)", values: []string{"'e'"}}}}
		sql = " (id INT, extra VARCHAR(9) DEFAULT 'd') SELECT id FROM " + g.ref(from)
	default:
		t.columns, t.key = []*column{{name: "id", is: columnType{decl: "INT"}, small: true}, {name: "n", null: true, is: columnType{decl: "BIGINT", values: []string{"1"}}}}, []string{"id"}
		// With IGNORE and duplicates MariaDB 10.11 logs rows that it then does not store.
		sql = " (PRIMARY KEY (id)) SELECT DISTINCT id, 1 + id AS n FROM " + g.ref(from) + " WHERE id IS NOT NULL"
	}
	g.ddl(head+g.ref(t)+sql, g.add(t))
	g.mark()
	g.insertInto(t)
}

// createForeign makes a table that refers to another.
func (g *Generator) createForeign() {
	parent := g.one(func(t *table) bool {
		return plain(t) && t.engine == "" && slices.Equal(t.key, []string{"id"}) && !t.columns[0].auto
	})
	if parent == nil {
		parent = g.freshTable(false)
	}
	schema, name := g.nameBeside(parent)
	constraint := fmt.Sprintf("fk%d", g.next())
	t := &table{schema: schema, name: name, key: []string{"id"}, parent: parent, foreign: []string{constraint}}
	t.columns = []*column{{name: "id", is: columnType{decl: "INT"}, small: true}, {name: "parent", is: columnType{decl: "INT"}, null: true, refers: true}}
	c := g.newColumn(t)
	t.columns = append(t.columns, c)
	sql := "CREATE TABLE " + g.ref(t) + " (id INT PRIMARY KEY, parent INT, " + g.declare(c) +
		", CONSTRAINT " + constraint + " FOREIGN KEY (parent) REFERENCES " + g.ref(parent) + " (id)"
	sql += g.actions()
	if g.maybe(4, "foreign key: of the table itself") {
		sql += fmt.Sprintf(", of_itself INT, CONSTRAINT self%d FOREIGN KEY (of_itself) REFERENCES ", g.next()) + t.schema + "." + quoteName(t.name) + " (id)" + g.actions()
		t.columns = append(t.columns, &column{name: "of_itself", is: columnType{decl: "INT"}, null: true, refers: true})
	}
	sql += ")"
	g.insertInto(parent)
	g.insertInto(parent)
	g.ddl(sql, g.add(t))
	g.mark()
	for range 3 {
		g.insertInto(t)
	}
}

// actions of a foreign key.
func (g *Generator) actions() string {
	text := ""
	switch {
	case g.maybe(3, "foreign key: on delete cascade"):
		text = " ON DELETE CASCADE"
	case g.maybe(3, "foreign key: on delete set null"):
		text = " ON DELETE SET NULL"
	case g.maybe(3, "foreign key: restrict"):
		text = pick(g.r, []string{" ON DELETE RESTRICT", " ON DELETE NO ACTION"})
	}
	switch {
	case g.maybe(3, "foreign key: on update cascade"):
		text += " ON UPDATE CASCADE"
	case g.maybe(4, "foreign key: on update set null"):
		text += " ON UPDATE SET NULL"
	}
	return text
}
