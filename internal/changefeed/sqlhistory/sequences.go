package sqlhistory

import (
	"fmt"
	"slices"
	"strings"
)

// sequence makes a sequence and uses it.
func (g *Generator) sequence() {
	if len(g.sequences) == 0 {
		name := fmt.Sprintf("%s.seq%d", First, g.next())
		g.ddl("CREATE "+pick(g.r, []string{"", "OR REPLACE "})+"SEQUENCE "+name+pick(g.r, []string{"", " START WITH 10 INCREMENT BY 5 CACHE 10", " MINVALUE -5 CYCLE"}), func() { g.sequences = append(g.sequences, name) })
		g.mark()
		g.say("DO NEXTVAL("+name+")", nil)
		return
	}
	name := pick(g.r, g.sequences)
	switch g.r.IntN(6) {
	case 0:
		g.ddl("DROP SEQUENCE "+name, func() { g.sequences = slices.DeleteFunc(g.sequences, func(x string) bool { return x == name }) })
	case 1:
		g.ddl("ALTER SEQUENCE "+name+" RESTART WITH 500", nil)
	case 2:
		g.say("DO SETVAL("+name+", 3000)", nil)
	case 3:
		to := fmt.Sprintf("%s.seq%d", First, g.next())
		g.ddl("RENAME TABLE "+name+" TO "+to, func() {
			g.sequences = append(slices.DeleteFunc(g.sequences, func(x string) bool { return x == name }), to)
		})
	default:
		g.say("DO NEXTVAL("+name+"), NEXTVAL("+name+")", nil)
	}
}

func (g *Generator) sequenceDefault() {
	sequence := fmt.Sprintf("%s.seq%d", First, g.next())
	g.say("CREATE SEQUENCE "+sequence, func() { g.sequences = append(g.sequences, sequence) })
	name := fmt.Sprintf("numbered%d", g.next())
	t := &table{schema: First, name: name, columns: []*column{{name: "id", is: columnType{decl: "INT"}, small: true}}}
	key := pick(g.r, []string{"", " PRIMARY KEY"})
	if key != "" {
		t.key = []string{"id"}
	}
	g.ddl("CREATE TABLE "+First+"."+name+" (id INT"+key+", n BIGINT DEFAULT (NEXT VALUE FOR "+sequence+"))", g.add(t))
	g.mark()
	g.insertInto(t)
}

// defaultOfSequence gives a column a default from a sequence that was just made.
func (g *Generator) defaultOfSequence() {
	sequence := fmt.Sprintf("%s.seq%d", First, g.next())
	schema, name := g.newName()
	t := &table{schema: schema, name: name, columns: []*column{{name: "id", is: columnType{decl: "INT"}, small: true}}}
	g.say("CREATE TABLE "+g.ref(t)+" (id INT, n BIGINT)", g.add(t))
	g.insertInto(t)
	g.say("CREATE SEQUENCE "+sequence, func() { g.sequences = append(g.sequences, sequence) })
	g.ddl("ALTER TABLE "+g.ref(t)+" ALTER n SET DEFAULT NEXTVAL("+sequence+")", nil)
	g.mark()
	g.insertInto(t)
	g.say("ALTER TABLE "+g.ref(t)+" ALTER n DROP DEFAULT", nil)
}

// dropSequences drops a sequence by a statement that names a table, too, which stays, and sometimes one outside the filter.
func (g *Generator) dropSequences() {
	t, sequence := g.one(anyTable), fmt.Sprintf("%s.seq%d", First, g.next())
	g.say("CREATE SEQUENCE "+sequence, nil)
	list := []string{g.ref(t), sequence}
	if g.r.IntN(2) == 0 {
		list = append(list, pick(g.r, Kept))
	}
	g.ddl("DROP SEQUENCE IF EXISTS "+strings.Join(list, ", "), nil)
	g.mark()
	g.insertInto(t)
}
