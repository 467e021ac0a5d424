package mariadb

import (
	"fmt"
	"maps"
	"slices"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// A transaction that is larger than Options.LargeBytes is read twice: first to its end, to know that it was committed and how many changes
// of each table it has, keeping nothing; then again, to visit it in parts. The log of the source is on a disk already, so that nothing has
// to be copied to one here.

// largeTransaction is a committed transaction that has to be read in parts. As an error it ends the first reading.
type largeTransaction struct {
	id     gtid
	totals map[stream.Table]int
}

func (l *largeTransaction) Error() string {
	return fmt.Sprintf("GTID %s is too large to be read at once", l.id)
}

// of is the large transaction if it has a GTID.
func (l *largeTransaction) of(id gtid) *largeTransaction {
	if l == nil || l.id != id {
		return nil
	}
	return l
}

// account counts the changes that an event has added to a table, and forgets rows that are not to be kept.
func (g *group) account(rows *stream.Rows, changes, bytes, limit int) {
	g.bytes += rows.Bytes - bytes
	if g.large != nil {
		return
	}
	g.count(rows.Table, len(rows.Changes)-changes)
	if g.counting = g.counting || g.bytes > limit; g.counting {
		g.tx.Rows, g.byTable, g.marks = nil, nil, nil
	}
}

func (g *group) count(table stream.Table, changes int) {
	if g.counted == nil {
		g.counted = map[stream.Table]int{}
	}
	g.counted[table] += changes
}

// nextPart takes a part off a transaction that is visited in parts.
func (g *group) nextPart(more bool) *stream.Transaction {
	part := g.tx
	part.More, part.Earlier = more, maps.Clone(g.before)
	for _, rows := range part.Rows {
		if rows.DDL != nil {
			g.spoiled = append(g.spoiled, rows.Table)
			continue
		}
		rows.Before, rows.Total, rows.More = g.before[rows.Table], g.large.totals[rows.Table], more
		if g.before == nil {
			g.before = map[stream.Table]int{}
		}
		g.before[rows.Table] += len(rows.Changes)
	}
	// Tables that were skipped before must not be taken up in a later part.
	g.tx = &stream.Transaction{Position: part.Position, ID: part.ID, At: part.At, Skipped: slices.Clone(part.Skipped)}
	g.byTable, g.bytes = nil, 0
	return part
}

// tables that changes were counted of.
func (g *group) countedTables() []stream.Table {
	return slices.SortedFunc(maps.Keys(g.counted), func(a, b stream.Table) int {
		if a.String() < b.String() {
			return -1
		}
		return 1
	})
}
