package mariadb

import (
	"slices"
	"strings"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// savepoint handles the statements about savepoints, which are logged when a transaction also changed tables that cannot
// roll back.
func (g *group) savepoint(st *statement) bool {
	switch {
	case st.accept("SAVEPOINT"):
		name, _ := st.identifier()
		mark := map[stream.Table]int{}
		for table, rows := range g.byTable {
			mark[table] = len(rows.Changes)
		}
		if g.marks == nil {
			g.marks = map[string]map[stream.Table]int{}
		}
		g.marks[strings.ToLower(name)] = mark
	case st.accept("ROLLBACK"):
		st.accept("WORK")
		st.accept("TO")
		st.accept("SAVEPOINT")
		name, _ := st.identifier()
		mark := g.marks[strings.ToLower(name)]
		g.rollsBack = true
		g.last = stream.Table{} // what follows is a run of its own: the last one may be gone
		for table, rows := range g.byTable {
			rows.Changes = rows.Changes[:min(mark[table], len(rows.Changes))]
			rows.Runs = slices.DeleteFunc(rows.Runs, func(r stream.Run) bool { return r.First > 0 && r.First >= len(rows.Changes) })
		}
	case st.accept("RELEASE"):
	default:
		return false
	}
	return true
}
