package sqlhistory

import "fmt"

// temporaryTable uses a table that only its session sees, sometimes with the name of another.
func (g *Generator) temporaryTable() {
	t := g.one(anyTable)
	name := fmt.Sprintf("%s.tmp%d", First, g.next())
	hides := t.parent == nil && t.schema == First && g.maybe(2, "temporary: hides a table")
	if hides {
		name = First + "." + quoteName(t.name)
	}
	g.say("CREATE TEMPORARY TABLE "+name+" (id INT PRIMARY KEY, tmp INT)", nil)
	g.say("INSERT INTO "+name+" (id) VALUES (11), (12)", nil)
	g.say(pick(g.r, []string{"ALTER TABLE " + name + " ADD more INT", "TRUNCATE TABLE " + name, "UPDATE " + name + " SET tmp = 1"}), nil)
	if !hides {
		g.say("INSERT IGNORE INTO "+g.ref(t)+" (id) SELECT id FROM "+name, nil)
	}
	g.say(pick(g.r, []string{"DROP TEMPORARY TABLE ", "DROP TABLE ", "DROP TEMPORARY TABLE IF EXISTS "})+name, nil)
}

// temporaryInTransaction makes and drops a table that only its session sees, between changes of one transaction.
func (g *Generator) temporaryInTransaction() {
	name := fmt.Sprintf("%s.tmp%d", First, g.next())
	g.say("BEGIN", func() { g.open = true })
	g.changes(2)
	g.say("CREATE TEMPORARY TABLE "+name+pick(g.r, []string{" (id INT PRIMARY KEY)", " AS SELECT 1 AS id"}), nil)
	g.mark()
	g.changes(2)
	g.say(pick(g.r, []string{"DROP TEMPORARY TABLE ", "DROP TEMPORARY TABLE IF EXISTS "})+name, nil)
	g.changes(1)
	g.say("COMMIT", func() { g.open = false })
}
