package sqlhistory

import (
	"fmt"
	"slices"
	"strings"
)

// cell is a value for a column in an INSERT or UPDATE.
func (g *Generator) cell(c *column) string {
	switch {
	case c.small:
		return fmt.Sprint(g.r.IntN(30))
	case c.refers:
		return pick(g.r, []string{"NULL", fmt.Sprint(g.r.IntN(30))})
	case c.null && g.r.IntN(5) == 0:
		return "NULL"
	case len(c.is.values) == 0:
		return "1"
	case g.r.IntN(12) == 0 && c.null:
		return "DEFAULT"
	}
	return g.value(c.is)
}

// writable are the columns that an INSERT names.
func (g *Generator) writable(t *table) []*column {
	return t.columnsThat(func(c *column) bool { return !c.generated && !(c.auto && g.r.IntN(3) > 0) })
}

func nameList(columns []*column) string {
	var list []string
	for _, c := range columns {
		list = append(list, quoteName(c.name))
	}
	return strings.Join(list, ", ")
}

func (g *Generator) row(columns []*column) string {
	var list []string
	for _, c := range columns {
		list = append(list, g.cell(c))
	}
	return "(" + strings.Join(list, ", ") + ")"
}

// insertInto inserts rows. Where a row refers to a parent it is one that is there.
func (g *Generator) insertInto(t *table) {
	columns := g.writable(t)
	if t.parent != nil {
		var list []string
		for _, c := range columns {
			if c.refers {
				list = append(list, "id")
			} else {
				list = append(list, strings.Replace(g.cell(c), "DEFAULT", "NULL", 1))
			}
		}
		g.say("INSERT IGNORE INTO "+g.ref(t)+" ("+nameList(columns)+") SELECT "+strings.Join(list, ", ")+" FROM "+g.ref(t.parent)+" ORDER BY RAND() LIMIT 1", nil)
		return
	}
	head := "INSERT INTO "
	if g.r.IntN(2) == 0 {
		head = "INSERT IGNORE INTO "
	}
	var rows []string
	for range 1 + g.r.IntN(4) {
		rows = append(rows, g.row(columns))
	}
	g.say(head+g.ref(t)+" ("+nameList(columns)+") VALUES "+strings.Join(rows, ", "), nil)
}

func (g *Generator) insert() { g.insertInto(g.one(anyTable)) }

func (g *Generator) insertSet() {
	t := g.one(anyTable)
	g.say("INSERT IGNORE INTO "+g.ref(t)+" SET "+g.assignments(g.writable(t), ""), nil)
}

// assignments set some columns to new values.
func (g *Generator) assignments(columns []*column, prefix string) string {
	var list []string
	for _, c := range columns {
		if c.refers {
			continue
		}
		list = append(list, prefix+quoteName(c.name)+" = "+g.cell(c))
	}
	return strings.Join(list, ", ")
}

// changed are some columns of a table that an UPDATE sets.
func (g *Generator) changed(t *table) []*column {
	list := t.columnsThat(func(c *column) bool {
		return !c.generated && !c.auto && !c.refers && !c.small && !slices.Contains(t.key, c.name)
	})
	g.r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list[:min(len(list), 1+g.r.IntN(3))]
}

// where selects some rows.
func (g *Generator) where(prefix string) string {
	n := g.r.IntN(30)
	return pick(g.r, []string{
		fmt.Sprintf(" WHERE %sid = %d", prefix, n), fmt.Sprintf(" WHERE %sid BETWEEN %d AND %d", prefix, n, n+8),
		fmt.Sprintf(" WHERE %sid %% 3 = 1", prefix),
	})
}

func (g *Generator) update() {
	t := g.one(anyTable)
	set := g.assignments(g.changed(t), "")
	if set == "" {
		return
	}
	tail := ""
	if g.maybe(4, "update: order and limit") {
		tail = " ORDER BY id DESC LIMIT 2"
	}
	g.say("UPDATE "+g.ref(t)+" SET "+set+g.where("")+tail, nil)
}

func (g *Generator) updateKey() {
	t := g.one(func(t *table) bool { return t.partitions == nil && !t.columns[0].auto })
	if t == nil || t.columns[0].name != "id" {
		return
	}
	g.say(pick(g.r, []string{
		"UPDATE IGNORE " + g.ref(t) + " SET id = id + 7" + g.where(""),
		"UPDATE " + g.ref(t) + " SET id = id + 1 ORDER BY id DESC",
		"UPDATE " + g.ref(t) + " SET id = -id" + g.where(""),
		"UPDATE IGNORE " + g.ref(t) + " SET id = IF(id = 1, 2, 1) WHERE id IN (1, 2)",
	}), nil)
}

// updateOtherKey changes keys that are not numbers.
func (g *Generator) updateOtherKey() {
	t := g.one(func(t *table) bool { return slices.ContainsFunc(t.columns, func(c *column) bool { return c.keyed }) })
	if t == nil {
		schema, name := g.newName()
		t = &table{schema: schema, name: name, columns: []*column{{name: "id", is: columnType{decl: "INT"}, small: true}}}
		g.ddl("CREATE TABLE "+g.ref(t)+" (id INT, "+strings.Join(g.otherKey(t), ", ")+")", g.add(t))
		g.insertInto(t)
		g.insertInto(t)
	}
	c := t.columnsThat(func(c *column) bool { return c.keyed })[0]
	g.say("UPDATE IGNORE "+g.ref(t)+" SET "+c.name+" = "+g.value(c.is)+g.where(""), nil)
	g.mark()
	g.say("DELETE FROM "+g.ref(t)+" WHERE "+c.name+" = "+g.value(c.is), nil)
}

// updateUnique exchanges values that must be unique, in one transaction.
func (g *Generator) updateUnique() {
	t := g.one(func(t *table) bool {
		return slices.ContainsFunc(t.columns, func(c *column) bool { return c.unique }) && t.columns[0].name == "id"
	})
	if t == nil {
		schema, name := g.newName()
		t = &table{schema: schema, name: name, key: []string{"id"}, columns: []*column{{name: "id", is: columnType{decl: "INT"}, small: true}, uniqueNumbers()}}
		g.ddl("CREATE TABLE "+g.ref(t)+" (id INT PRIMARY KEY, "+uniqueColumn+" INT UNIQUE)", g.add(t))
	}
	ref := g.ref(t)
	g.say("INSERT IGNORE INTO "+ref+" (id, "+uniqueColumn+") VALUES (1, 1), (2, 2), (3, 3), (4, NULL)", nil)
	g.say("BEGIN", func() { g.open = true })
	g.say("UPDATE "+ref+" SET "+uniqueColumn+" = NULL WHERE id = 1", nil)
	g.say("UPDATE IGNORE "+ref+" SET "+uniqueColumn+" = 1 WHERE id = 2", nil)
	g.say("UPDATE IGNORE "+ref+" SET "+uniqueColumn+" = 2 WHERE id = 1", nil)
	g.mark()
	g.say("REPLACE INTO "+ref+" (id, "+uniqueColumn+") VALUES (3, 2), (5, 1)", nil)
	g.say("COMMIT", func() { g.open = false })
}

// hugeRow has a value of several million bytes.
func (g *Generator) hugeRow() {
	t := &table{schema: First, name: fmt.Sprintf("huge%d", g.next()), columns: []*column{{name: "id", is: columnType{decl: "INT"}, small: true}}}
	key, char := " PRIMARY KEY", pick(g.r, []string{`"'"`, "'x'", `'\\'`})
	if g.r.IntN(2) == 0 { // an update has the row twice, which must fit into a packet
		key, char = "", "'x'"
	}
	g.say("CREATE TABLE "+g.ref(t)+" (id INT"+key+", b "+pick(g.r, []string{"LONGBLOB", "LONGTEXT CHARACTER SET latin1", "LONGTEXT CHARACTER SET utf8mb4"})+")", g.add(t))
	g.say("INSERT INTO "+g.ref(t)+" VALUES (1, REPEAT("+char+", 6000000)), (2, 'small')", nil)
	g.mark()
	g.say("UPDATE "+g.ref(t)+" SET b = REPEAT('y', 7000000) WHERE id = 1", nil)
}

// zeroAsKey stores 0 in a column that numbers rows.
func (g *Generator) zeroAsKey() {
	t := &table{schema: First, name: fmt.Sprintf("zeroth%d", g.next()), key: []string{"id"}, columns: []*column{{name: "id", is: columnType{decl: "INT"}, small: true, auto: true}}}
	g.say("SET SESSION sql_mode = 'NO_AUTO_VALUE_ON_ZERO'", nil)
	g.ddl("CREATE TABLE "+g.ref(t)+" (id INT AUTO_INCREMENT PRIMARY KEY, n INT)", g.add(t))
	g.say("INSERT INTO "+g.ref(t)+" VALUES (0, 1), (-5, 2), (7, 3)", nil)
	g.mark()
	g.say("UPDATE "+g.ref(t)+" SET n = n + 1 WHERE id <= 0", nil)
	g.say("SET SESSION sql_mode = DEFAULT", nil)
}

func (g *Generator) updateMany() {
	a, b := g.one(anyTable), g.one(anyTable)
	set, also := g.assignments(g.changed(a), "x."), g.assignments(g.changed(b), "y.")
	if a == b || set == "" || also == "" {
		return
	}
	g.say("UPDATE "+g.ref(a)+" x JOIN "+g.ref(b)+" y ON x.id = y.id SET "+set+", "+also, nil)
}

func (g *Generator) delete() {
	t := g.one(anyTable)
	tail := g.where("")
	if g.maybe(4, "delete: limit") {
		tail = " ORDER BY id LIMIT 1"
	}
	if g.maybe(5, "delete: returning") {
		tail += " RETURNING id"
	}
	g.say("DELETE FROM "+g.ref(t)+tail, nil)
}

func (g *Generator) deleteAll() { g.say("DELETE FROM "+g.ref(g.one(anyTable)), nil) }

func (g *Generator) deleteMany() {
	a, b := g.one(anyTable), g.one(anyTable)
	if a == b {
		return
	}
	// With an alias the server wants a default schema.
	x, y := a.schema+"."+quoteName(a.name), b.schema+"."+quoteName(b.name)
	g.say("DELETE "+x+", "+y+" FROM "+x+" LEFT JOIN "+y+" ON "+x+".id = "+y+".id"+g.where(x+"."), nil)
}

func (g *Generator) replace() {
	t := g.one(func(t *table) bool { return t.parent == nil })
	if t == nil {
		return
	}
	columns := g.writable(t)
	g.say("REPLACE INTO "+g.ref(t)+" ("+nameList(columns)+") VALUES "+g.row(columns)+", "+g.row(columns), nil)
}

func (g *Generator) onDuplicate() {
	t := g.one(func(t *table) bool { return t.parent == nil })
	if t == nil {
		return
	}
	columns, set := g.writable(t), g.changed(t)
	if len(set) == 0 {
		return
	}
	c := quoteName(set[0].name)
	g.say("INSERT INTO "+g.ref(t)+" ("+nameList(columns)+") VALUES "+g.row(columns)+", "+g.row(columns)+" ON DUPLICATE KEY UPDATE "+c+" = VALUES("+c+")", nil)
}

func (g *Generator) insertSelect() {
	t, from := g.one(anyTable), g.one(anyTable)
	if t.parent != nil || len(t.key) != 1 || t.columns[0].name != "id" {
		return
	}
	g.say("INSERT IGNORE INTO "+g.ref(t)+" (id) SELECT id + 31 FROM "+g.ref(from), nil)
}

// large changes many rows in one transaction.
func (g *Generator) large() {
	t := g.one(func(t *table) bool {
		return t.parent == nil && t.partitions == nil && t.columns[0].name == "id" && g.unrelated(t)
	})
	if t == nil {
		return
	}
	g.say("INSERT IGNORE INTO "+g.ref(t)+" (id) SELECT seq FROM "+First+".seq_1000_to_7000", nil)
	g.mark()
	if g.r.IntN(2) == 0 {
		g.say("UPDATE "+g.ref(t)+" SET id = id + 100000 WHERE id >= 1000 ORDER BY id DESC", nil)
	}
	g.say("DELETE FROM "+g.ref(t)+" WHERE id > 1200", nil)
}

// transaction opens one, and makes some changes in it.
func (g *Generator) transaction() {
	g.begin("COMMIT")
}

func (g *Generator) rollback() { g.begin("ROLLBACK") }

func (g *Generator) begin(end string) {
	g.say(pick(g.r, []string{"BEGIN", "START TRANSACTION"}), func() { g.open = true })
	g.changes(2 + g.r.IntN(4))
	if g.maybe(3, "transaction: savepoint") {
		g.say("SAVEPOINT s1", nil)
		g.changes(2)
		g.say(pick(g.r, []string{"ROLLBACK TO SAVEPOINT s1", "RELEASE SAVEPOINT s1", "ROLLBACK TO s1"}), nil)
		g.changes(1)
	}
	g.say(end, func() { g.open = false })
}

// changes makes some changes of rows.
func (g *Generator) changes(n int) {
	for range n {
		pick(g.r, []func(*Generator){(*Generator).insert, (*Generator).update, (*Generator).delete, (*Generator).replace, (*Generator).onDuplicate, (*Generator).updateKey})(g)
	}
}

func (g *Generator) xaOnePhase() {
	id := fmt.Sprintf("'%s%d'", First, g.next())
	g.say("XA START "+id, nil)
	g.changes(3)
	g.say("XA END "+id, nil)
	g.say("XA COMMIT "+id+" ONE PHASE", nil)
}

func (g *Generator) xaPrepared() {
	id := fmt.Sprintf("'%s%d'", First, g.next())
	g.say("XA START "+id, nil)
	g.changes(3)
	g.say("XA END "+id, nil)
	g.say("XA PREPARE "+id, nil)
	g.say(pick(g.r, []string{"XA COMMIT ", "XA ROLLBACK "})+id, nil)
}

// autocommitOff is autocommit off, with DDL that commits.
func (g *Generator) autocommitOff() {
	g.say("SET autocommit = 0", nil)
	g.changes(2)
	t := g.one(func(t *table) bool { return t.partitions == nil })
	if t != nil {
		clause, apply := addColumn(g, t)
		g.alter(t, clause, apply)
		g.changes(2)
	}
	g.say("SET autocommit = 1", nil)
}

// lockTables changes rows under LOCK TABLES.
func (g *Generator) lockTables() {
	t := g.one(func(t *table) bool { return t.parent == nil && g.unrelated(t) })
	if t == nil {
		return
	}
	g.say("LOCK TABLES "+t.schema+"."+quoteName(t.name)+" WRITE", nil)
	g.say("INSERT IGNORE INTO "+t.schema+"."+quoteName(t.name)+" (id) VALUES (3), (4)", nil)
	g.say("UNLOCK TABLES", nil)
}

func (g *Generator) deleteHistory() {
	t := g.one(func(t *table) bool { return t.versioned })
	if t == nil {
		t = g.freshTable(false)
		g.insertInto(t)
		g.say("ALTER TABLE "+g.ref(t)+" ADD SYSTEM VERSIONING", func() { t.versioned = true })
		g.say("UPDATE "+g.ref(t)+" SET id = id + 1 ORDER BY id DESC", nil)
	}
	g.say("DELETE HISTORY FROM "+g.ref(t), nil)
}
