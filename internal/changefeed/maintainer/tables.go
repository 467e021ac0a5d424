package maintainer

import (
	"cmp"
	"slices"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// TablePhase is where a table stands with its maintainer.
type TablePhase int

// The phases.
const (
	// TableAbsent: no dispatcher runs.
	TableAbsent TablePhase = iota
	// TableBusy: an order about it is under way.
	TableBusy
	// TableRunning: its dispatcher runs.
	TableRunning
)

// TableState is what a maintainer knows of a table.
type TableState struct {
	Table stream.Table
	Phase TablePhase
	// Node on which its dispatcher runs.
	Node string
}

// TableWorld is what decisions about dispatchers rest on.
type TableWorld struct {
	Tables []TableState
	// Schedulable are the nodes that may get dispatchers; Gone says which nodes are over.
	Schedulable []string
	Gone        func(node string) bool
	// Self is the maintainer's own node, and Draining the node in the drain's slot, if any.
	Self, Draining string
	// Moves is how many tables may be on their way at once.
	Moves int
	// Settled says that no drain has run for a while.
	Settled bool
}

// TableMove is one order about a table: to run on To, and to stop on From first if that is not empty.
type TableMove struct {
	Table    stream.Table
	From, To string
}

// balanceTables bounds the moves that only balance, and balanceSlack is the share by which loads may differ.
const (
	balanceTables = 8
	balanceSlack  = 0.1
)

// PlaceTables says which tables must be placed or moved now. A maintainer on the draining node places what runs nowhere and
// moves nothing: its successor does that.
func PlaceTables(w TableWorld) []TableMove {
	loads := map[string]int{}
	for _, name := range w.Schedulable {
		loads[name] = 0
	}
	busy := 0
	for _, t := range w.Tables {
		if _, ok := loads[t.Node]; ok && t.Phase != TableAbsent {
			loads[t.Node]++
		}
		if t.Phase == TableBusy {
			busy++
		}
	}
	room := w.Moves - busy
	var moves []TableMove
	order := func(t TableState, from string) bool {
		to := LeastLoaded(loads)
		if to == "" || room <= 0 {
			return false
		}
		loads[to]++
		room--
		moves = append(moves, TableMove{Table: t.Table, From: from, To: to})
		return true
	}
	// There may be very many tables, and most of the time none of them is to be placed.
	var absent, leaving []TableState
	for _, t := range w.Tables {
		switch {
		case t.Phase == TableAbsent || t.Phase == TableRunning && w.Gone(t.Node):
			absent = append(absent, t)
		case w.Draining != "" && w.Self != w.Draining && t.Phase == TableRunning && t.Node == w.Draining:
			leaving = append(leaving, t)
		}
	}
	for _, t := range inOrder(absent, room) {
		order(t, "")
	}
	for _, t := range inOrder(leaving, room) {
		order(t, t.Node)
	}
	if w.Draining == "" && len(moves) == 0 && busy == 0 && w.Settled {
		moves = balanceOf(w.Tables, loads)
	}
	return moves
}

// LeastLoaded is the node with the lowest load, the first by name among equals; empty if there is none.
func LeastLoaded(loads map[string]int) string {
	best := ""
	for name, load := range loads {
		if best == "" || load < loads[best] || load == loads[best] && name < best {
			best = name
		}
	}
	return best
}

// inOrder sorts tables by name, unless there is no room for any.
func inOrder(tables []TableState, room int) []TableState {
	if room <= 0 {
		return nil
	}
	slices.SortFunc(tables, func(a, b TableState) int { return compareTables(a.Table, b.Table) })
	return tables[:min(room, len(tables))]
}

func compareTables(a, b stream.Table) int {
	return cmp.Or(cmp.Compare(a.Schema, b.Schema), cmp.Compare(a.Name, b.Name))
}

// balanceOf moves a few tables from the most to the least loaded node.
func balanceOf(tables []TableState, loads map[string]int) []TableMove {
	var moves []TableMove
	for range balanceTables {
		low, high := LeastLoaded(loads), ""
		for name, load := range loads {
			if high == "" || load > loads[high] || load == loads[high] && name < high {
				high = name
			}
		}
		if low == "" || float64(loads[high]-loads[low]) < max(2, balanceSlack*float64(loads[high])) {
			break
		}
		var first *stream.Table
		for i := range tables {
			t := &tables[i]
			if t.Phase == TableRunning && t.Node == high && (first == nil || compareTables(t.Table, *first) < 0) &&
				!slices.ContainsFunc(moves, func(m TableMove) bool { return m.Table == t.Table }) {
				first = &t.Table
			}
		}
		if first == nil {
			break
		}
		moves = append(moves, TableMove{Table: *first, From: high, To: low})
		loads[high]--
		loads[low]++
	}
	return moves
}
