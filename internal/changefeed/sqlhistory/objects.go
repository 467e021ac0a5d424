package sqlhistory

import (
	"fmt"
	"slices"
	"strings"
)

func (g *Generator) rename() {
	t := g.one(anyTable)
	var schema, name string
	if g.Has("rename: other schema") && g.r.IntN(3) == 0 {
		if !g.second {
			g.createDatabase()
		}
		schema, name = Second, fmt.Sprintf("n%d", g.next())
		if t.schema == Second {
			schema = First
		}
		g.use("rename: other schema")
	} else if schema, name = g.newName(); schema != t.schema {
		return
	}
	head := pick(g.r, []string{"RENAME TABLE ", "RENAME TABLES "})
	if g.maybe(6, "rename: if exists") {
		head = "RENAME TABLE IF EXISTS "
	}
	wait := ""
	if g.maybe(6, "rename: wait") {
		wait = pick(g.r, []string{" WAIT 5", " NOWAIT"})
	}
	g.ddl(head+g.ref(t)+wait+" TO "+g.refTo(schema, name), func() { t.schema, t.name = schema, name })
	g.mark()
	g.insertInto(&table{schema: schema, name: name, columns: t.columns, parent: t.parent, key: t.key})
}

// swap exchanges the names of two tables.
func (g *Generator) swap() {
	a, b := g.one(g.unrelated), g.one(g.unrelated)
	if a == nil || a == b {
		return
	}
	between := g.refTo(a.schema, fmt.Sprintf("swap%d", g.next()))
	g.ddl("RENAME TABLE "+g.ref(a)+" TO "+between+", "+g.ref(b)+" TO "+g.ref(a)+", "+between+" TO "+g.ref(b), func() {
		a.schema, b.schema, a.name, b.name = b.schema, a.schema, b.name, a.name
	})
	g.mark()
	g.insertInto(&table{schema: a.schema, name: a.name, columns: b.columns, key: b.key})
	g.insertInto(&table{schema: b.schema, name: b.name, columns: a.columns, key: a.key})
}

// chain renames two tables in one statement, one to the name that the other had.
func (g *Generator) chain() {
	a, b := g.one(g.unrelated), g.one(g.unrelated)
	if a == nil || a == b {
		return
	}
	name := fmt.Sprintf("old%d", g.next())
	g.ddl("RENAME TABLE "+g.ref(a)+" TO "+g.refTo(a.schema, name)+", "+g.ref(b)+" TO "+g.ref(a), func() {
		b.schema, b.name = a.schema, a.name
		a.name = name
	})
	g.mark()
	g.insertInto(&table{schema: a.schema, name: a.name, columns: b.columns, key: b.key})
}

// circle renames three tables in a circle.
func (g *Generator) circle() {
	list := g.having(g.unrelated)
	if len(list) < 3 {
		return
	}
	g.r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	a, b, c := list[0], list[1], list[2]
	between := g.refTo(a.schema, fmt.Sprintf("circle%d", g.next()))
	g.ddl("RENAME TABLE "+g.ref(a)+" TO "+between+", "+g.ref(b)+" TO "+g.ref(a)+", "+g.ref(c)+" TO "+g.ref(b)+", "+between+" TO "+g.ref(c), func() {
		a.schema, a.name, b.schema, b.name, c.schema, c.name = c.schema, c.name, a.schema, a.name, b.schema, b.name
	})
	g.mark()
	g.insertInto(&table{schema: a.schema, name: a.name, columns: b.columns, key: b.key})
	g.insertInto(&table{schema: b.schema, name: b.name, columns: c.columns, key: c.key})
	g.insertInto(&table{schema: c.schema, name: c.name, columns: a.columns, key: a.key})
}

// rotate makes a table, fills it and renames it, several times, as programs do with logs.
func (g *Generator) rotate() {
	name := "rotated"
	for range 2 + g.r.IntN(4) {
		t := &table{schema: First, name: name, key: []string{"id"}, columns: []*column{{name: "id", is: columnType{decl: "INT"}, small: true}, {name: "s", null: true, is: columnType{decl: "TEXT", values: []string{"'a'"}}}}}
		old := fmt.Sprintf("rotated%d", g.next())
		g.say("CREATE TABLE "+First+"."+name+" (id INT PRIMARY KEY, s TEXT)", g.add(t))
		g.say(fmt.Sprintf("INSERT INTO %s.%s VALUES (1, 'a'), (2, 'b'), (%d, 'c')", First, name, 3+g.r.IntN(20)), nil)
		g.say("RENAME TABLE "+First+"."+name+" TO "+First+"."+old, func() { t.name = old })
	}
}

// shadow replaces a table by a changed copy, as tools for online changes do.
func (g *Generator) shadow() {
	t := g.one(func(t *table) bool { return g.unrelated(t) && t.engine == "" })
	if t == nil {
		return
	}
	ghost, old := t.copy(t.schema, fmt.Sprintf("_ghost%d", g.next())), fmt.Sprintf("_old%d", g.next())
	name := t.name
	g.say("CREATE TABLE "+g.ref(ghost)+" LIKE "+g.ref(t), g.add(ghost))
	if clause, apply := addColumn(g, ghost); ghost.partitions == nil {
		g.say("ALTER TABLE "+g.ref(ghost)+" "+clause, apply)
	}
	g.say("INSERT IGNORE INTO "+g.ref(ghost)+" (id) SELECT id FROM "+g.ref(t), nil)
	g.ddl("RENAME TABLE "+g.ref(t)+" TO "+g.refTo(t.schema, old)+", "+g.ref(ghost)+" TO "+g.ref(t), func() { t.name, ghost.name = old, name })
	g.mark()
	g.say("DROP TABLE "+g.refTo(t.schema, old), func() { t.gone = true })
	g.insertInto(&table{schema: ghost.schema, name: name, columns: t.columns, key: t.key})
}

// renameOut renames a table out of the filter.
func (g *Generator) renameOut() {
	t := g.one(g.unrelated)
	if t == nil {
		return
	}
	schema, name := Outside, fmt.Sprintf("out%d", g.next())
	if g.r.IntN(2) == 0 {
		schema, name = First, fmt.Sprintf("%sout%d", Skipped, g.next())
	}
	left := t.schema + "." + t.name
	g.ddl("RENAME TABLE "+g.ref(t)+" TO "+g.refTo(schema, name), func() { t.schema, t.name, g.left[left] = schema, name, true })
}

// renameIn renames a table into the filter.
func (g *Generator) renameIn() {
	name, to := fmt.Sprintf("in%d", g.next()), fmt.Sprintf("was_outside%d", g.next())
	t := &table{schema: First, name: to, key: []string{"id"}, columns: []*column{{name: "id", is: columnType{decl: "INT"}, small: true}}}
	g.say("CREATE TABLE "+Outside+"."+name+" (id INT PRIMARY KEY)", nil)
	g.say("INSERT INTO "+Outside+"."+name+" VALUES (1), (2)", nil)
	g.ddl("RENAME TABLE "+Outside+"."+name+" TO "+g.refTo(First, to), g.add(t))
}

// likeOutside makes a table like one outside the filter.
func (g *Generator) likeOutside() {
	name, to := fmt.Sprintf("in%d", g.next()), fmt.Sprintf("like_outside%d", g.next())
	t := &table{schema: First, name: to, key: []string{"id"}, columns: []*column{{name: "id", is: columnType{decl: "INT"}, small: true}}}
	g.say("CREATE TABLE "+Outside+"."+name+" (id INT PRIMARY KEY)", nil)
	g.ddl("CREATE TABLE "+g.ref(t)+" LIKE "+Outside+"."+name, g.add(t))
	g.mark()
	g.insertInto(t)
}

func (g *Generator) drop() {
	t := g.one(g.unrelated)
	if t == nil {
		return
	}
	head := "DROP TABLE "
	if g.maybe(4, "drop: if exists") {
		head = "DROP TABLE IF EXISTS "
	}
	list, tail := []string{g.ref(t)}, ""
	gone := []*table{t}
	if u := g.one(g.unrelated); u != t && g.maybe(2, "drop: several") {
		list, gone = append(list, g.ref(u)), append(gone, u)
	}
	if head != "DROP TABLE " && g.r.IntN(2) == 0 {
		list = append(list, First+".never_was")
	}
	switch {
	case g.maybe(6, "drop: wait"):
		tail = pick(g.r, []string{" WAIT 5", " NOWAIT"})
	case g.maybe(3, "drop: restrict or cascade"):
		tail = pick(g.r, []string{" RESTRICT", " CASCADE"})
	}
	g.ddl(head+strings.Join(list, ", ")+tail, func() {
		for _, t := range gone {
			t.gone = true
		}
	})
}

// dropAlsoOutside drops a table and one outside the filter.
func (g *Generator) dropAlsoOutside() {
	t := g.one(g.unrelated)
	if t == nil {
		return
	}
	name := pick(g.r, Kept)
	list := []string{g.ref(t), name}
	if g.r.IntN(2) == 0 {
		slices.Reverse(list)
	}
	g.say("CREATE TABLE IF NOT EXISTS "+name+" (id INT PRIMARY KEY)", nil)
	g.ddl("DROP TABLE "+strings.Join(list, ", "), func() { t.gone = true })
}

// dropAgain drops a table and makes another of its name.
func (g *Generator) dropAgain() {
	t := g.one(g.unrelated)
	if t == nil {
		return
	}
	g.ddl("DROP TABLE "+g.ref(t), func() { t.gone = true })
	again := &table{schema: t.schema, name: t.name, key: []string{"id"}, columns: []*column{{name: "id", is: columnType{decl: "INT"}, small: true}}}
	c := g.newColumn(again)
	again.columns = append(again.columns, c)
	g.ddl("CREATE TABLE "+g.ref(again)+" (id INT PRIMARY KEY, "+g.declare(c)+")", g.add(again))
	g.mark()
	g.insertInto(again)
}

func (g *Generator) truncate() {
	t := g.one(anyTable)
	head, tail := "TRUNCATE TABLE ", ""
	switch {
	case g.maybe(4, "truncate: without TABLE"):
		head = "TRUNCATE "
	case g.maybe(3, "truncate: wait"):
		tail = pick(g.r, []string{" WAIT 5", " NOWAIT"})
	}
	g.ddl(head+g.ref(t)+tail, nil)
	g.mark()
	g.insertInto(t)
}

func (g *Generator) tend() {
	g.say(pick(g.r, []string{"OPTIMIZE TABLE ", "ANALYZE TABLE ", "REPAIR TABLE ", "CHECK TABLE ", "FLUSH TABLES ", "ANALYZE LOCAL TABLE "})+g.ref(g.one(anyTable)), nil)
}

// schemaDDL queues DDL of a schema, sometimes in another way of writing it.
func (g *Generator) schemaDDL(sql string, apply func()) {
	if g.maybe(2, "database: written otherwise") {
		g.ddl(sql, apply)
		return
	}
	g.say(sql, func() {
		g.open = false
		if apply != nil {
			apply()
		}
	})
}

func (g *Generator) createDatabase() {
	if g.second {
		g.schemaDDL(pick(g.r, []string{"ALTER DATABASE " + Second + " CHARACTER SET latin1", "ALTER SCHEMA " + Second + " COLLATE utf8mb4_bin", "CREATE DATABASE IF NOT EXISTS " + Second}), nil)
		return
	}
	g.schemaDDL(pick(g.r, []string{"CREATE DATABASE ", "CREATE SCHEMA ", "CREATE DATABASE IF NOT EXISTS "})+Second+
		pick(g.r, []string{"", " CHARACTER SET utf8mb4", " DEFAULT CHARACTER SET = ucs2 COMMENT 'of the second'"}), func() { g.second = true })
	t := &table{schema: Second, name: "t1", key: []string{"id"}, columns: []*column{{name: "id", is: columnType{decl: "INT"}, small: true}, {name: "s", null: true, is: columnType{decl: "VARCHAR(20)", values: []string{"'s'"}}}}}
	g.mark()
	g.say("CREATE TABLE "+Second+".t1 (id INT PRIMARY KEY, s VARCHAR(20))", g.add(t))
	g.insertInto(t)
}

// alterFirst changes the defaults of the schema that both sides have from the beginning, and makes a table with them.
func (g *Generator) alterFirst() {
	g.schemaDDL("ALTER DATABASE "+First+pick(g.r, []string{" CHARACTER SET latin1", " COLLATE utf8mb4_bin", " CHARACTER SET ucs2", " CHARACTER SET = utf8mb4"}), nil)
	g.mark()
	t := &table{schema: First, name: fmt.Sprintf("defaults%d", g.next()), key: []string{"id"}, columns: []*column{{name: "id", is: columnType{decl: "INT"}, small: true}, {name: "s", null: true, is: columnType{decl: "VARCHAR(20)", values: []string{"'s'"}}}}}
	g.say("CREATE TABLE "+g.ref(t)+" (id INT PRIMARY KEY, s VARCHAR(20))", g.add(t))
	g.insertInto(t)
}

// prepared executes DDL of prepared statements.
func (g *Generator) prepared() {
	t := g.one(func(t *table) bool { return t.partitions == nil })
	if t == nil {
		return
	}
	c := &column{name: fmt.Sprintf("c%d", g.next()), null: true, is: columnType{decl: "INT", values: []string{"-5", "5"}}}
	sql := "ALTER TABLE " + t.schema + "." + quoteName(t.name) + " ADD COLUMN " + c.name + " INT DEFAULT 3"
	added := func() { t.columns, g.open = append(t.columns, c), false }
	if g.r.IntN(2) == 0 {
		g.say("EXECUTE IMMEDIATE '"+sql+"'", added)
		return
	}
	g.say("PREPARE stmt FROM '"+sql+"'", nil)
	g.say("EXECUTE stmt", added)
	g.mark()
	g.insertInto(t)
}

func (g *Generator) alone(schema string) bool {
	return !slices.ContainsFunc(g.live(), func(t *table) bool {
		return t.parent != nil && t.schema != t.parent.schema && (t.schema == schema || t.parent.schema == schema)
	})
}

func (g *Generator) dropDatabase() {
	if !g.second {
		g.createDatabase()
	}
	if !g.alone(Second) {
		return
	}
	g.schemaDDL(pick(g.r, []string{"DROP DATABASE ", "DROP SCHEMA ", "DROP DATABASE IF EXISTS "})+Second, func() { g.goneSchema(Second) })
	g.mark()
	if g.r.IntN(2) == 0 {
		g.createAgain(Second)
	}
}

// dropFirst drops the schema with tables outside the filter in it.
func (g *Generator) dropFirst() {
	if !g.alone(First) {
		return
	}
	g.schemaDDL("DROP DATABASE "+First, func() { g.goneSchema(First) })
	g.mark()
	g.createAgain(First)
}

func (g *Generator) replaceDatabase() {
	if !g.second {
		g.createDatabase()
	}
	if !g.alone(Second) {
		return
	}
	g.schemaDDL("CREATE OR REPLACE DATABASE "+Second, func() { g.goneSchema(Second); g.second = true })
	g.mark()
	t := &table{schema: Second, name: "t1", key: []string{"id"}, columns: []*column{{name: "id", is: columnType{decl: "INT"}, small: true}}}
	g.say("CREATE TABLE "+Second+".t1 (id INT PRIMARY KEY)", g.add(t))
	g.insertInto(t)
}

func (g *Generator) goneSchema(schema string) {
	for _, t := range g.tables {
		t.gone = t.gone || t.schema == schema
	}
	gone := func(name string) bool { return strings.HasPrefix(name, schema+".") }
	g.views, g.sequences = slices.DeleteFunc(g.views, gone), slices.DeleteFunc(g.sequences, gone)
	g.triggers = slices.DeleteFunc(g.triggers, gone)
	if schema == Second {
		g.second = false
	}
	if g.in == schema {
		g.in = ""
	}
}

func (g *Generator) createAgain(schema string) {
	t := &table{schema: schema, name: "t1", key: []string{"id"}, columns: []*column{{name: "id", is: columnType{decl: "INT"}, small: true}}}
	g.say("CREATE DATABASE "+schema, func() { g.second = g.second || schema == Second })
	g.say("CREATE TABLE "+schema+".t1 (id INT PRIMARY KEY)", g.add(t))
	g.insertInto(t)
}

func (g *Generator) useSchema() {
	schema := First
	if g.second && g.r.IntN(3) == 0 {
		schema = Second
	}
	g.say("USE "+schema, func() { g.in = schema })
}

// view makes a view, changes rows through it, or drops one.
func (g *Generator) view() {
	if len(g.views) > 0 && g.r.IntN(2) == 0 {
		name := g.views[0]
		g.ddl(pick(g.r, []string{"DROP VIEW ", "DROP VIEW IF EXISTS "})+name, func() { g.views = g.views[1:] })
		return
	}
	t := g.one(anyTable)
	name := fmt.Sprintf("%s.v%d", First, g.next())
	g.ddl("CREATE "+pick(g.r, []string{"", "OR REPLACE ", "ALGORITHM=MERGE ", "SQL SECURITY INVOKER "})+"VIEW "+name+" AS SELECT * FROM "+t.schema+"."+quoteName(t.name), func() { g.views = append(g.views, name) })
	g.mark()
	g.say("DELETE FROM "+name+" WHERE id = 2", nil)
	if g.maybe(3, "view: rename") {
		to := fmt.Sprintf("%s.v%d", First, g.next())
		g.say("RENAME TABLE "+name+" TO "+to, func() { g.views[len(g.views)-1] = to })
	}
}

// trigger makes a trigger at the source, whose changes are in the log.
func (g *Generator) trigger() {
	if len(g.triggers) > 0 && g.r.IntN(3) == 0 {
		name := g.triggers[0]
		g.ddl("DROP TRIGGER IF EXISTS "+name, func() { g.triggers = g.triggers[1:] })
		return
	}
	t, u := g.one(anyTable), g.one(anyTable)
	if t == u || t.columns[0].name != "id" || u.columns[0].name != "id" {
		return
	}
	name := fmt.Sprintf("%s.tr%d", t.schema, g.next())
	g.ddl("CREATE TRIGGER "+name+" "+pick(g.r, []string{"AFTER", "BEFORE"})+" "+pick(g.r, []string{"INSERT", "DELETE", "UPDATE"})+" ON "+t.schema+"."+quoteName(t.name)+
		" FOR EACH ROW INSERT IGNORE INTO "+u.schema+"."+quoteName(u.name)+" (id) VALUES (FLOOR(RAND() * 50))", func() { g.triggers = append(g.triggers, name) })
	g.mark()
	g.insertInto(t)
	g.say("DELETE FROM "+g.ref(t)+g.where(""), nil)
}

func (g *Generator) procedure() {
	t := g.one(anyTable)
	name := fmt.Sprintf("%s.proc%d", First, g.next())
	g.ddl("CREATE PROCEDURE "+name+"() BEGIN INSERT IGNORE INTO "+t.schema+"."+quoteName(t.name)+" (id) VALUES (8), (9); DELETE FROM "+t.schema+"."+quoteName(t.name)+" WHERE id = 9; END", nil)
	g.mark()
	g.say("CALL "+name+"()", nil)
	if g.r.IntN(2) == 0 {
		g.say("DROP PROCEDURE "+name, nil)
	}
}

// procedureWithDDL calls a procedure that creates and drops tables.
func (g *Generator) procedureWithDDL() {
	name, made := fmt.Sprintf("%s.proc%d", First, g.next()), fmt.Sprintf("made%d", g.next())
	t := &table{schema: First, name: made, key: []string{"id"}, columns: []*column{{name: "id", is: columnType{decl: "INT"}, small: true}}}
	g.say("CREATE PROCEDURE "+name+"() BEGIN CREATE TABLE "+made+" (id INT PRIMARY KEY); INSERT INTO "+made+" VALUES (1); ALTER TABLE "+made+" ADD n INT DEFAULT 5; END", nil)
	g.say("CALL "+name+"()", g.add(t))
}

func (g *Generator) function() {
	name := fmt.Sprintf("%s.f%d", First, g.next())
	g.ddl("CREATE FUNCTION "+name+"() RETURNS INT DETERMINISTIC RETURN 5", nil)
}

func (g *Generator) event() {
	g.ddl(fmt.Sprintf("CREATE EVENT %s.e%d ON SCHEDULE AT '2037-01-01 00:00:00' DO DELETE FROM %s.t1", First, g.next(), First), nil)
}

// user is DDL about privileges.
func (g *Generator) user() {
	name := fmt.Sprintf("'%s%d'@'localhost'", First, g.next())
	g.say("CREATE USER "+name, nil)
	g.say("GRANT SELECT ON "+First+".* TO "+name, nil)
	g.say("SET PASSWORD FOR "+name+" = PASSWORD('x')", nil)
	g.say("DROP USER "+name, nil)
}

// session changes a setting of the session until a later statement sets it back.
func session(set, reset string) func(*Generator) {
	return func(g *Generator) {
		g.say("SET SESSION "+set, func() { g.resets = append(g.resets, "SET SESSION "+reset) })
	}
}

// outside changes what is outside the filter.
func (g *Generator) outside() {
	name := fmt.Sprintf("%s.away%d", Outside, g.next())
	g.say("CREATE TABLE "+name+" (id INT PRIMARY KEY, s TEXT)", nil)
	g.say("INSERT INTO "+name+" VALUES (1, 'a')", nil)
	g.say("ALTER TABLE "+name+" ADD c INT", nil)
	g.say(pick(g.r, []string{"TRUNCATE " + name, "RENAME TABLE " + name + " TO " + name + "x", "DROP TABLE " + name}), nil)
}

// period is a table with a period of time, parts of which are deleted and updated.
func (g *Generator) period() {
	t := &table{schema: First, name: fmt.Sprintf("period%d", g.next()), columns: []*column{{name: "id", is: columnType{decl: "INT"}, small: true},
		{name: "s", is: columnType{decl: "DATE", values: []string{"'2020-01-01'"}}}, {name: "e", is: columnType{decl: "DATE", values: []string{"'2021-01-01'"}}}}}
	g.ddl("CREATE TABLE "+g.ref(t)+" (id INT, s DATE, e DATE, PERIOD FOR p (s, e)"+pick(g.r, []string{"", ", UNIQUE (id, p WITHOUT OVERLAPS)"})+")", g.add(t))
	g.insertInto(t)
	g.say("DELETE FROM "+g.ref(t)+" FOR PORTION OF p FROM '2020-03-01' TO '2020-04-01'", nil)
	g.say("UPDATE "+g.ref(t)+" FOR PORTION OF p FROM '2020-06-01' TO '2020-07-01' SET id = id + 1", nil)
}

// zeroDates stores dates that a strict server refuses.
func (g *Generator) zeroDates() {
	t := &table{schema: First, name: fmt.Sprintf("zero%d", g.next()), key: []string{"id"}, columns: []*column{{name: "id", is: columnType{decl: "INT"}, small: true}}}
	g.say("SET SESSION sql_mode = ''", nil)
	g.ddl("CREATE TABLE "+g.ref(t)+" (id INT PRIMARY KEY, d DATE, dt DATETIME, ts TIMESTAMP NULL, n TINYINT, e ENUM('a'))", g.add(t))
	g.say("INSERT INTO "+g.ref(t)+" VALUES (1, '0000-00-00', '2026-00-00 01:00:00', '0000-00-00 00:00:00', 300, 'wrong'), (2, '2026-02-00', '0000-00-00', NULL, NULL, '')", nil)
	g.mark()
	g.say("SET SESSION sql_mode = DEFAULT", nil)
}

// otherCharset is DDL whose text is in another character set.
func (g *Generator) otherCharset() {
	t := &table{schema: First, name: fmt.Sprintf("names%d", g.next()), key: []string{"id"}, columns: []*column{{name: "id", is: columnType{decl: "INT"}, small: true}, {name: "s", null: true, is: columnType{decl: "VARCHAR(20)", values: []string{"'é'"}}}}}
	g.say("SET NAMES "+pick(g.r, []string{"latin1", "cp1251", "utf8mb4 COLLATE utf8mb4_bin", "binary"}), nil)
	g.say("CREATE TABLE "+g.ref(t)+" (id INT PRIMARY KEY, s VARCHAR(20) DEFAULT 'é' COMMENT 'ü')", g.add(t))
	g.insertInto(t)
	g.mark()
	g.say("SET NAMES utf8mb4", nil)
}

// sinkTrigger makes a trigger at the sink.
func (g *Generator) sinkTrigger() {
	t := g.one(anyTable)
	g.queue = append(g.queue, Statement{Place: Wait}, Statement{Place: AtSink, SQL: fmt.Sprintf("CREATE TRIGGER %s.at_sink%d BEFORE DELETE ON %s.%s FOR EACH ROW SET @x = 1", t.schema, g.next(), t.schema, quoteName(t.name))})
	g.mark()
	g.insertInto(t)
}

// pause pauses the changefeed for some statements.
func (g *Generator) pause() {
	g.queue = append(g.queue, Statement{Place: Pause})
	g.changes(2)
	if t := g.one(g.unrelated); t != nil && g.r.IntN(2) == 0 {
		name := fmt.Sprintf("moved%d", g.next())
		g.say("RENAME TABLE "+g.ref(t)+" TO "+g.refTo(t.schema, name), func() { t.name = name })
	}
	g.queue = append(g.queue, Statement{Place: Resume})
}

// alterPaused changes rows and then the types of their columns while the changefeed is paused: what it reads later is described by a server
// that has moved on.
func (g *Generator) alterPaused() {
	t := g.one(func(t *table) bool { return t.partitions == nil && t.parent == nil && g.unrelated(t) })
	if t == nil {
		return
	}
	g.queue = append(g.queue, Statement{Place: Pause})
	g.insertInto(t)
	if clause, apply := modifyColumn(g, t); clause != "" {
		g.alter(t, clause, apply)
		g.mark()
		g.insertInto(t)
	}
	if g.r.IntN(2) == 0 {
		g.say("DROP TABLE "+g.ref(t), func() { t.gone = true })
		again := &table{schema: t.schema, name: t.name, columns: []*column{{name: "id", is: columnType{decl: "INT"}, small: true, null: true}}}
		g.say("CREATE TABLE "+g.ref(again)+" (id INT)", g.add(again))
		g.insertInto(again)
	}
	g.queue = append(g.queue, Statement{Place: Resume})
}

// renameMissing renames tables some of which do not exist.
func (g *Generator) renameMissing() {
	t := g.one(g.unrelated)
	if t == nil {
		return
	}
	name, missing := fmt.Sprintf("n%d", g.next()), fmt.Sprintf("missing%d", g.next())
	steps := []string{g.refTo(t.schema, missing) + " TO " + g.refTo(t.schema, missing+"x"), g.ref(t) + " TO " + g.refTo(t.schema, name), g.refTo(t.schema, missing+"y") + " TO " + g.ref(t)}
	g.ddl("RENAME TABLE IF EXISTS "+strings.Join(steps, ", "), func() { t.name = name })
	g.mark()
	g.insertInto(&table{schema: t.schema, name: name, columns: t.columns, key: t.key})
}

// replaceFails drops a table by a CREATE OR REPLACE whose query fails.
func (g *Generator) replaceFails() {
	t := g.one(g.unrelated)
	if t == nil {
		return
	}
	name, ref := fmt.Sprintf("%s.proc%d", First, g.next()), t.schema+"."+quoteName(t.name)
	tail := pick(g.r, []string{" (PRIMARY KEY (id)) SELECT 1 AS id UNION ALL SELECT 1", " (id INT, FOREIGN KEY (id) REFERENCES missing (id))"})
	g.say("CREATE PROCEDURE "+name+"() BEGIN DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END; CREATE OR REPLACE TABLE "+ref+tail+"; END", nil)
	g.say("CALL "+name+"()", func() { t.gone, g.open = true, false })
}

// charsetOfSchema gives a table the character set that its schema has just got.
func (g *Generator) charsetOfSchema() {
	t := g.one(func(t *table) bool { return t.partitions == nil && t.schema == First })
	if t == nil {
		return
	}
	g.say("ALTER DATABASE "+First+pick(g.r, []string{" CHARACTER SET utf8mb4", " COLLATE utf8mb4_bin", " COLLATE utf8mb4_unicode_ci"}), nil)
	g.alter(t, pick(g.r, []string{"CONVERT TO CHARACTER SET DEFAULT", "DEFAULT CHARACTER SET = DEFAULT", "CHARSET DEFAULT, COMMENT 'of the schema'"}), nil)
	g.mark()
	g.say("ALTER DATABASE "+First+pick(g.r, []string{" CHARACTER SET latin1", " COLLATE utf8mb4_general_ci"}), nil)
}
