package sqlhistory

import (
	"fmt"
	"strconv"
	"strings"
)

// LeftOut reports whether a column is one that a changefeed may leave out: a third of those that the generator names by a number.
func LeftOut(column string) bool {
	digits, ok := strings.CutPrefix(column, "c")
	n, err := strconv.Atoi(digits)
	return ok && err == nil && n%3 == 1
}

// LeftOutColumns are the names of such columns.
func LeftOutColumns() (names []string) {
	for n := 1; len(names) < 100; n += 3 {
		names = append(names, fmt.Sprintf("c%d", n))
	}
	return names
}

// LeftOutRows is a condition for rows that a changefeed may leave out: on the column that is the key of most tables.
const LeftOutRows = "id IN (2, 3, 5, 8) OR id < 0"

// LeavesOut makes statements likely that a changefeed executes which leaves out these columns.
func (g *Generator) LeavesOut() { g.leavesOut = true }

// hides reports whether a column is left out.
func (g *Generator) hides(c *column) bool { return g.leavesOut && LeftOut(c.name) }

// nextLike is the name of a new column, which is left out if another is.
func (g *Generator) nextLike(column string) string {
	for {
		name := fmt.Sprintf("c%d", g.next())
		if !g.leavesOut || LeftOut(name) == LeftOut(column) {
			return name
		}
	}
}
