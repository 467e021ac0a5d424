package sqlhistory

import (
	"fmt"
	"slices"
	"strings"
)

// alter is ALTER TABLE with a clause, and its model.
func (g *Generator) alter(t *table, clause string, apply func()) {
	head := "ALTER TABLE "
	switch {
	case g.maybe(12, "alter: online"):
		head = "ALTER ONLINE TABLE "
	case g.maybe(12, "alter: ignore"):
		head = "ALTER IGNORE TABLE "
	case g.maybe(10, "alter: if exists"):
		head = "ALTER TABLE IF EXISTS "
	}
	// A change of partitions that is refused because of a lock leaves the source half changed, and what was changed is not in its log: afterwards there
	// can be other partitions, or a temporary one that makes the next change fail.
	wait := " "
	switch {
	case g.maybe(10, "alter: wait"):
		wait = " WAIT 20 "
	case !strings.Contains(clause, "PARTITION") && g.maybe(10, "alter: nowait"):
		wait = " NOWAIT "
	}
	if g.maybe(10, "alter: algorithm and lock") && !strings.Contains(clause, "PARTITION") {
		clause = pick(g.r, []string{"ALGORITHM=COPY, ", "LOCK=DEFAULT, ", "ALGORITHM=DEFAULT, LOCK=SHARED, "}) + clause
	}
	g.ddl(head+g.ref(t)+wait+clause, apply)
}

// alteration is a clause for a table, and what it does to the model.
type alteration func(*Generator, *table) (clause string, apply func())

// altering makes a production of an alteration.
func altering(fits func(*table) bool, a alteration) func(*Generator) {
	return func(g *Generator) {
		if t := g.one(fits); t != nil {
			g.alterBy(t, a)
		}
	}
}

// alteringRanges is the same for a table with partitions by ranges, which is made if there is none.
func alteringRanges(a alteration) func(*Generator) {
	return func(g *Generator) {
		t := g.one(hasRanges)
		if t == nil {
			t = g.freshTable(true)
			g.insertInto(t)
		}
		g.alterBy(t, a)
	}
}

// alteringIndex is the same for a table with an index.
func alteringIndex(a alteration) func(*Generator) {
	return func(g *Generator) {
		t := g.one(func(t *table) bool { return len(t.indexes) > 0 })
		if t == nil {
			t = g.freshTable(false)
			t.indexes = []string{fmt.Sprintf("k%d", g.next())}
			g.say("CREATE INDEX "+t.indexes[0]+" ON "+g.ref(t)+" (id)", nil)
		}
		g.alterBy(t, a)
	}
}

// alterBy queues an ALTER, sometimes with one more clause or with rows after it.
func (g *Generator) alterBy(t *table, a alteration) {
	clause, apply := a(g, t)
	if clause == "" {
		return
	}
	if again, also := addColumn(g, t); g.r.IntN(8) == 0 && t.partitions == nil && !strings.Contains(clause, "PARTITION") && g.use("alter: several clauses") {
		both := apply
		clause, apply = clause+", "+again, func() {
			if both != nil {
				both()
			}
			also()
		}
	}
	g.alter(t, clause, apply)
	g.mark()
	if g.r.IntN(2) == 0 {
		g.insertInto(t)
	}
}

func addColumn(g *Generator, t *table) (string, func()) {
	c := g.newColumn(t)
	clause := "ADD COLUMN "
	if g.maybe(5, "alter: add column if not exists") {
		clause = "ADD COLUMN IF NOT EXISTS "
	}
	clause += g.declare(c)
	switch {
	case g.maybe(4, "alter: add column first"):
		clause += " FIRST"
	case g.maybe(4, "alter: add column after"):
		clause += " AFTER id"
	}
	return clause, func() { t.columns = append(t.columns, c) }
}

func dropColumn(g *Generator, t *table) (string, func()) {
	list := t.free()
	if len(list) < 2 {
		return "", nil
	}
	c := pick(g.r, list)
	clause := "DROP COLUMN " + quoteName(c.name)
	if g.maybe(4, "alter: drop column if exists") {
		clause = "DROP COLUMN IF EXISTS " + quoteName(c.name)
	}
	return clause, func() { t.columns = slices.DeleteFunc(t.columns, func(x *column) bool { return x == c }) }
}

func modifyColumn(g *Generator, t *table) (string, func()) {
	list := slices.DeleteFunc(t.free(), func(c *column) bool { return c.generated })
	if len(list) == 0 {
		return "", nil
	}
	c := pick(g.r, list)
	to := *c
	// Most changes of a type fail on the rows that are there; to text they do not.
	to.is = columnType{decl: pick(g.r, []string{"LONGTEXT", "LONGBLOB", "VARCHAR(3000)"}), values: []string{"'changed'", "''"}, blob: true}
	if g.r.IntN(3) == 0 {
		to.is = g.typeOf(func(columnType) bool { return true })
	}
	to.null = true
	clause := "MODIFY COLUMN " + g.declare(&to)
	if g.maybe(4, "alter: move column") {
		clause += pick(g.r, []string{" FIRST", " AFTER id"})
	}
	return clause, func() { *c = to }
}

// swapColumns exchanges the names of two columns.
func swapColumns(g *Generator, t *table) (string, func()) {
	list := slices.DeleteFunc(t.free(), func(c *column) bool { return c.generated })
	if len(list) < 2 {
		return "", nil
	}
	i := g.r.IntN(len(list) - 1)
	a, b := list[i], list[i+1]
	if g.hides(a) != g.hides(b) {
		return "", nil
	}
	return "RENAME COLUMN " + quoteName(a.name) + " TO " + quoteName(b.name) + ", RENAME COLUMN " + quoteName(b.name) + " TO " + quoteName(a.name), func() { a.name, b.name = b.name, a.name }
}

// addColumns adds several columns in brackets.
func addColumns(g *Generator, t *table) (string, func()) {
	a, b := g.newColumn(t), &column{name: g.nextLike("id"), null: true, is: columnType{decl: "INT", values: []string{"-5", "5"}}}
	if g.hides(a) {
		a.name = g.nextLike("id")
	}
	return "ADD COLUMN (" + g.declare(a) + ", " + b.name + " INT DEFAULT 7)", func() { t.columns = append(t.columns, a, b) }
}

func changeColumn(g *Generator, t *table) (string, func()) {
	list := slices.DeleteFunc(t.free(), func(c *column) bool { return c.generated })
	if len(list) == 0 {
		return "", nil
	}
	c := pick(g.r, list)
	to := *c
	to.name, to.null = g.nextLike(c.name), true
	return "CHANGE COLUMN " + quoteName(c.name) + " " + quoteName(to.name) + " " + c.is.decl, func() { *c = to }
}

func renameColumn(g *Generator, t *table) (string, func()) {
	list := t.free()
	if len(list) == 0 {
		return "", nil
	}
	c := pick(g.r, list)
	name := g.nextLike(c.name)
	return "RENAME COLUMN " + quoteName(c.name) + " TO " + name, func() { c.name = name }
}

func alterDefault(g *Generator, t *table) (string, func()) {
	list := slices.DeleteFunc(t.free(), func(c *column) bool { return c.generated || c.is.blob || c.is.spatial })
	if len(list) == 0 {
		return "", nil
	}
	c := pick(g.r, list)
	if g.r.IntN(2) == 0 {
		return "ALTER COLUMN " + quoteName(c.name) + " DROP DEFAULT", func() { c.null = false }
	}
	return "ALTER COLUMN " + quoteName(c.name) + " SET DEFAULT " + g.literalDefault(c), nil
}

func addIndex(g *Generator, t *table) (string, func()) {
	before := t.indexes
	text := g.index(t)
	after := t.indexes
	t.indexes = before
	if text == "" {
		return "", nil
	}
	return "ADD " + text, func() { t.indexes = after }
}

func dropIndex(g *Generator, t *table) (string, func()) {
	if len(t.indexes) == 0 {
		return "", nil
	}
	name := pick(g.r, t.indexes)
	clause := "DROP INDEX " + name
	if g.r.IntN(3) == 0 {
		clause = "DROP KEY IF EXISTS " + name
	}
	return clause, func() { t.indexes = slices.DeleteFunc(t.indexes, func(x string) bool { return x == name }) }
}

func renameIndex(g *Generator, t *table) (string, func()) {
	if len(t.indexes) == 0 {
		return "", nil
	}
	i, to := g.r.IntN(len(t.indexes)), fmt.Sprintf("k%d", g.next())
	return "RENAME INDEX " + t.indexes[i] + " TO " + to, func() { t.indexes[i] = to }
}

// alteringKeyless is the same for a table without a key.
func alteringKeyless(a alteration) func(*Generator) {
	return func(g *Generator) {
		t := g.one(func(t *table) bool {
			return len(t.key) == 0 && t.partitions == nil && !slices.ContainsFunc(t.columns, func(c *column) bool { return c.auto })
		})
		if t == nil {
			schema, name := g.newName()
			t = &table{schema: schema, name: name, columns: []*column{{name: "id", is: columnType{decl: "INT"}, small: true, null: true}}}
			g.say("CREATE TABLE "+g.ref(t)+" (id INT)", g.add(t))
			g.insertInto(t)
		}
		g.alterBy(t, a)
	}
}

func addPrimary(g *Generator, t *table) (string, func()) {
	if len(t.key) > 0 {
		return "", nil
	}
	name := fmt.Sprintf("pk%d", g.next())
	return "ADD COLUMN " + name + " INT AUTO_INCREMENT PRIMARY KEY", func() {
		t.columns = append(t.columns, &column{name: name, auto: true, is: columnType{decl: "INT"}})
		t.key = []string{name}
	}
}

func dropPrimary(_ *Generator, t *table) (string, func()) {
	if len(t.key) == 0 || slices.ContainsFunc(t.columns, func(c *column) bool { return c.auto }) {
		return "", nil
	}
	return "DROP PRIMARY KEY", func() { t.key = nil }
}

func changeCheck(g *Generator, t *table) (string, func()) {
	if len(t.checks) > 0 {
		name := t.checks[0]
		return "DROP CONSTRAINT " + name, func() { t.checks = t.checks[1:] }
	}
	name := fmt.Sprintf("ck%d", g.next())
	return "ADD CONSTRAINT " + name + " CHECK (id <> -78)", func() { t.checks = append(t.checks, name) }
}

func changeForeign(g *Generator, t *table) (string, func()) {
	if len(t.foreign) > 0 {
		return "DROP FOREIGN KEY " + t.foreign[0], func() { t.foreign, t.parent = nil, nil }
	}
	parent := g.one(func(p *table) bool {
		return p != t && plain(p) && p.engine == "" && slices.Equal(p.key, []string{"id"}) && g.unrelated(p)
	})
	if !g.unrelated(t) {
		return "", nil
	}
	if parent == nil {
		parent = g.freshTable(false)
		g.insertInto(parent)
	}
	name, c := fmt.Sprintf("fk%d", g.next()), &column{name: fmt.Sprintf("parent%d", g.next()), null: true, refers: true, is: columnType{decl: "INT"}}
	return "ADD COLUMN " + c.name + " INT, ADD CONSTRAINT " + name + " FOREIGN KEY (" + c.name + ") REFERENCES " + g.ref(parent) + " (id)" + g.actions(),
		func() { t.columns, t.foreign, t.parent = append(t.columns, c), []string{name}, parent }
}

// oneOf is an alteration with one of a few clauses and no model.
func oneOf(clauses ...string) alteration {
	return func(g *Generator, _ *table) (string, func()) { return pick(g.r, clauses), nil }
}

func toEngine(engines ...string) alteration {
	return func(g *Generator, t *table) (string, func()) {
		to := pick(g.r, engines)
		return "ENGINE=" + to, func() {
			if t.engine = to; to == "InnoDB" {
				t.engine = ""
			}
		}
	}
}

func changeVersioning(_ *Generator, t *table) (string, func()) {
	if t.versioned {
		return "DROP SYSTEM VERSIONING", func() { t.versioned = false }
	}
	return "ADD SYSTEM VERSIONING", func() { t.versioned = true }
}

func alterRename(g *Generator, t *table) (string, func()) {
	schema, name := g.newName()
	clause := pick(g.r, []string{"RENAME TO ", "RENAME AS ", "RENAME "}) + g.refTo(schema, name)
	if schema != t.schema && !g.use("rename: other schema") {
		return "", nil
	}
	return clause, func() { t.schema, t.name = schema, name }
}

// Alterations of partitions.

func hasRanges(t *table) bool {
	return t.partitions != nil && t.partitions.kind == "range" && len(t.partitions.names) > 0
}

func addPartition(g *Generator, t *table) (string, func()) {
	p := t.partitions
	name, next := fmt.Sprintf("p%d", 10+g.next()), p.next+10
	return fmt.Sprintf("ADD PARTITION (PARTITION %s VALUES LESS THAN (%d))", name, next), func() {
		p.names, p.next = append(p.names, name), next
	}
}

func dropPartition(g *Generator, t *table) (string, func()) {
	p := t.partitions
	if len(p.names) < 2 {
		return "", nil
	}
	name := pick(g.r, p.names)
	return "DROP PARTITION " + name, func() { p.names = slices.DeleteFunc(p.names, func(x string) bool { return x == name }) }
}

func truncatePartition(g *Generator, t *table) (string, func()) {
	return "TRUNCATE PARTITION " + pick(g.r, append([]string{"ALL"}, t.partitions.names...)), nil
}

func reorganizePartition(g *Generator, t *table) (string, func()) {
	p := t.partitions
	last, name := p.names[len(p.names)-1], fmt.Sprintf("p%d", 10+g.next())
	return fmt.Sprintf("REORGANIZE PARTITION %s INTO (PARTITION %s VALUES LESS THAN (%d))", last, name, p.next+5), func() {
		p.names[len(p.names)-1], p.next = name, p.next+5
	}
}

func tendPartition(g *Generator, t *table) (string, func()) {
	return pick(g.r, []string{"REBUILD", "OPTIMIZE", "ANALYZE", "CHECK", "REPAIR"}) + " PARTITION " + pick(g.r, t.partitions.names), nil
}

func removePartitioning(_ *Generator, t *table) (string, func()) {
	return "REMOVE PARTITIONING", func() { t.partitions = nil }
}

func partitionBy(_ *Generator, t *table) (string, func()) {
	return "PARTITION BY HASH (id) PARTITIONS 2", func() { t.partitions = &partitions{kind: "hash"} }
}

// coalesce changes the number of partitions of a table by hash.
func (g *Generator) coalesce() {
	t := g.one(func(t *table) bool { return t.partitions != nil && t.partitions.kind == "hash" })
	if t == nil {
		t = g.freshTable(false)
		g.say("ALTER TABLE "+g.ref(t)+" PARTITION BY HASH (id) PARTITIONS 3", func() { t.partitions = &partitions{kind: "hash"} })
		g.insertInto(t)
	}
	g.alter(t, pick(g.r, []string{"COALESCE PARTITION 1", "ADD PARTITION PARTITIONS 2"}), nil)
}

// exchange makes a table like another and exchanges it with a partition.
func (g *Generator) exchange() {
	t := g.one(hasRanges)
	if t == nil {
		t = g.freshTable(true)
	}
	g.insertInto(t)
	schema, name := g.nameBeside(t)
	u := t.copy(schema, name)
	u.partitions = nil
	g.say("CREATE TABLE "+g.ref(u)+" LIKE "+g.ref(t), g.add(u))
	g.say("ALTER TABLE "+g.ref(u)+" REMOVE PARTITIONING", nil)
	part := pick(g.r, t.partitions.names)
	if low, ok := map[string]int{"p0": 1, "p1": 11, "p2": 21}[part]; ok { // rows that belong there
		g.say(fmt.Sprintf("INSERT IGNORE INTO %s (id) VALUES (%d), (%d)", g.ref(u), low, low+3), nil)
	}
	g.ddl("ALTER TABLE "+g.ref(t)+" EXCHANGE PARTITION "+part+" WITH TABLE "+g.ref(u), nil)
}

// convertOut makes a table of a partition.
func (g *Generator) convertOut() {
	t := g.one(func(t *table) bool { return hasRanges(t) && len(t.partitions.names) > 1 })
	if t == nil {
		t = g.freshTable(true)
	}
	for range 3 {
		g.insertInto(t)
	}
	schema, name := g.nameBeside(t)
	u, part := t.copy(schema, name), t.partitions.names[0]
	u.partitions = nil
	g.ddl("ALTER TABLE "+g.ref(t)+" CONVERT PARTITION "+part+" TO TABLE "+g.ref(u), func() {
		t.partitions.names = slices.DeleteFunc(t.partitions.names, func(x string) bool { return x == part })
		g.add(u)()
	})
}

// convertIn makes a partition of a table.
func (g *Generator) convertIn() {
	t := g.one(hasRanges)
	if t == nil {
		t = g.freshTable(true)
	}
	schema, name := g.nameBeside(t)
	u := t.copy(schema, name)
	g.say("CREATE TABLE "+g.ref(u)+" LIKE "+g.ref(t), g.add(u))
	g.say("ALTER TABLE "+g.ref(u)+" REMOVE PARTITIONING", func() { u.partitions = nil })
	p := t.partitions
	part, next := fmt.Sprintf("p%d", 10+g.next()), p.next+10
	g.say(fmt.Sprintf("INSERT INTO %s (id) VALUES (%d)", g.ref(u), p.next+1), nil)
	g.ddl(fmt.Sprintf("ALTER TABLE %s CONVERT TABLE %s TO PARTITION %s VALUES LESS THAN (%d)", g.ref(t), g.ref(u), part, next), func() {
		p.names, p.next, u.gone = append(p.names, part), next, true
	})
}

// createIndex is CREATE INDEX and DROP INDEX.
func (g *Generator) createIndex() {
	t := g.one(anyTable)
	c := pick(g.r, t.columns)
	if c.is.blob || c.is.spatial || strings.Contains(c.is.decl, "COMPRESSED") {
		return
	}
	name := fmt.Sprintf("k%d", g.next())
	head := pick(g.r, []string{"CREATE INDEX ", "CREATE OR REPLACE INDEX ", "CREATE INDEX IF NOT EXISTS "})
	wait := pick(g.r, []string{"", " WAIT 9", " NOWAIT"})
	if wait != "" && !g.use("index: wait") {
		wait = ""
	}
	g.ddl(head+name+" ON "+g.ref(t)+" ("+quoteName(c.name)+")"+wait, func() { t.indexes = append(t.indexes, name) })
}

func (g *Generator) dropIndexOn() {
	t := g.one(func(t *table) bool { return len(t.indexes) > 0 })
	if t == nil {
		t = g.freshTable(false)
		t.indexes = []string{fmt.Sprintf("k%d", g.next())}
		g.say("CREATE INDEX "+t.indexes[0]+" ON "+g.ref(t)+" (id)", nil)
	}
	name := pick(g.r, t.indexes)
	g.ddl(pick(g.r, []string{"DROP INDEX ", "DROP INDEX IF EXISTS "})+name+" ON "+g.ref(t), func() {
		t.indexes = slices.DeleteFunc(t.indexes, func(x string) bool { return x == name })
	})
}
