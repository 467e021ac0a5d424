package maintainer

import (
	"slices"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// TablePhase is the phase of a table's dispatcher, as its maintainer knows it.
type TablePhase int

// The phases.
const (
	// TableAbsent: no dispatcher runs.
	TableAbsent TablePhase = iota
	// TableBusy: an order about it has been sent and not been answered.
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

// TableWorld is the input of PlaceTables.
type TableWorld struct {
	Tables []TableState
	// Schedulable are the nodes that may get dispatchers; Gone reports whether nobody holds the lease of a node.
	Schedulable []string
	Gone        func(node string) bool
	// Self is the maintainer's own node, and Draining the node in the drain's slot, if any.
	Self, Draining string
	// Moves is how many tables may be placed or moved at the same time.
	Moves int
	// Settled is whether no drain has run for so long that tables may be balanced.
	Settled bool
}

// TableMove moves a table to To. From is empty for one that runs nowhere.
type TableMove struct {
	Table    stream.Table
	From, To string
}

// balanceMoves bounds the moves that only balance, and balanceSlack is the share by which loads may differ.
const (
	balanceMoves = 8
	balanceSlack = 0.1
)

// PlaceTables returns which tables to place or move now. A maintainer on the draining node places tables that run nowhere, and
// moves none: its successor does that.
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
	// There may be very many tables, and usually none has to be placed: only those that have are sorted.
	var absent, leaving []TableState
	for _, t := range w.Tables {
		switch {
		case t.Phase == TableAbsent || t.Phase == TableRunning && w.Gone(t.Node):
			absent = append(absent, t)
		case w.Draining != "" && w.Self != w.Draining && t.Phase == TableRunning && t.Node == w.Draining:
			leaving = append(leaving, t)
		}
	}
	for _, t := range firstByName(absent, room) {
		order(t, "")
	}
	for _, t := range firstByName(leaving, room) {
		order(t, t.Node)
	}
	if w.Draining == "" && len(moves) == 0 && busy == 0 && w.Settled {
		moves = balanceTables(w.Tables, loads)
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

// firstByName are as many tables as there is room for, sorted by name.
func firstByName(tables []TableState, room int) []TableState {
	if room <= 0 {
		return nil
	}
	slices.SortFunc(tables, func(a, b TableState) int { return stream.CompareTables(a.Table, b.Table) })
	return tables[:min(room, len(tables))]
}

// balanceTables moves a few tables from the most to the least loaded node.
func balanceTables(tables []TableState, loads map[string]int) []TableMove {
	var moves []TableMove
	for range balanceMoves {
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
			if t.Phase == TableRunning && t.Node == high && (first == nil || stream.CompareTables(t.Table, *first) < 0) &&
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
