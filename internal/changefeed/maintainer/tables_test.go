package maintainer_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ebb-dev/ebb/internal/changefeed/maintainer"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

type tchange func(*maintainer.TableWorld)

// tableWorld has a maintainer on n1 and nodes n1, n2 and n3 that may get tables.
func tableWorld(tables []maintainer.TableState, changes ...tchange) maintainer.TableWorld {
	w := maintainer.TableWorld{
		Tables: tables, Schedulable: []string{"n1", "n2", "n3"}, Gone: func(string) bool { return false }, Self: "n1", Moves: 100, Settled: true,
	}
	for _, c := range changes {
		c(&w)
	}
	return w
}

func table(name string) stream.Table { return stream.Table{Schema: "s", Name: name} }

func absent(name string) maintainer.TableState {
	return maintainer.TableState{Table: table(name), Phase: maintainer.TableAbsent}
}

func flows(name, node string) maintainer.TableState {
	return maintainer.TableState{Table: table(name), Phase: maintainer.TableRunning, Node: node}
}

func busy(name, node string) maintainer.TableState {
	return maintainer.TableState{Table: table(name), Phase: maintainer.TableBusy, Node: node}
}

func tables(list ...maintainer.TableState) []maintainer.TableState { return list }

// several are tables t00, t01… that flow on a node.
func several(n int, node string) []maintainer.TableState {
	var list []maintainer.TableState
	for i := range n {
		list = append(list, flows(fmt.Sprintf("%s-%03d", node, i), node))
	}
	return list
}

func without(names ...string) tchange {
	return func(w *maintainer.TableWorld) {
		w.Schedulable = slices.DeleteFunc(w.Schedulable, func(name string) bool { return slices.Contains(names, name) })
	}
}

func gone(names ...string) tchange {
	return func(w *maintainer.TableWorld) {
		without(names...)(w)
		w.Gone = func(name string) bool { return slices.Contains(names, name) }
	}
}

func drains(name string) tchange {
	return func(w *maintainer.TableWorld) {
		without(name)(w)
		w.Draining = name
	}
}

func atOnce(n int) tchange { return func(w *maintainer.TableWorld) { w.Moves = n } }

func self(name string) tchange { return func(w *maintainer.TableWorld) { w.Self = name } }

func unsettled(w *maintainer.TableWorld) { w.Settled = false }

func describeMoves(moves []maintainer.TableMove) []string {
	var list []string
	for _, m := range moves {
		list = append(list, fmt.Sprintf("%s: %s>%s", m.Table.Name, m.From, m.To))
	}
	return list
}

func TestWhereTablesArePlaced(t *testing.T) {
	for _, c := range []struct {
		name string
		w    maintainer.TableWorld
		want []string
	}{
		{"absent ones are spread, counting as they are assigned", tableWorld(tables(absent("a"), absent("b"), absent("c"), absent("d"))), []string{"a: >n1", "b: >n2", "c: >n3", "d: >n1"}},
		{"the least loaded first", tableWorld(tables(flows("x", "n1"), flows("y", "n2"), absent("a"), absent("b"))), []string{"a: >n3", "b: >n1"}},
		{"one that is moving counts on its destination", tableWorld(tables(busy("x", "n1"), absent("a"))), []string{"a: >n2"}},
		{"in the order of their names", tableWorld(tables(absent("c"), absent("a"), absent("b"))), []string{"a: >n1", "b: >n2", "c: >n3"}},
		{"not on a node that may get none", tableWorld(tables(absent("a"), absent("b")), without("n1", "n3")), []string{"a: >n2", "b: >n2"}},
		{"nowhere without a node", tableWorld(tables(absent("a")), without("n1", "n2", "n3")), nil},
		{"what runs stays", tableWorld(tables(flows("a", "n1"), flows("b", "n2"))), nil},
		{"what runs on a cordoned node stays", tableWorld(tables(flows("a", "n2")), without("n2")), nil},
		{"what ran on a node that is gone is placed again, without stopping it", tableWorld(tables(flows("a", "n2")), gone("n2")), []string{"a: >n1"}},
		{"what is moving is left alone", tableWorld(tables(busy("a", "n2")), gone("n2")), nil},

		{"a drain moves them", tableWorld(tables(flows("a", "n2"), flows("b", "n2"), flows("c", "n1")), drains("n2")), []string{"a: n2>n3", "b: n2>n1"}},
		{"a maintainer on the draining node moves nothing", tableWorld(tables(flows("a", "n2"), flows("b", "n2")), drains("n2"), self("n2")), nil},
		{"but places what runs nowhere", tableWorld(tables(flows("a", "n2"), absent("b")), drains("n2"), self("n2")), []string{"b: >n1"}},
		{"absent ones come before moves", tableWorld(tables(flows("a", "n2"), absent("b")), drains("n2"), atOnce(1)), []string{"b: >n1"}},
		{"a drain with no other node waits", tableWorld(tables(flows("a", "n2")), drains("n2"), without("n1", "n3")), nil},
		{"the draining node is gone", tableWorld(tables(flows("a", "n2")), drains("n2"), gone("n2")), []string{"a: >n1"}},
		{"what is moving off the draining node is left alone", tableWorld(tables(busy("a", "n2")), drains("n2")), nil},

		{"as many at once as may be", tableWorld(several(10, "n2"), drains("n2"), atOnce(3)), []string{"n2-000: n2>n1", "n2-001: n2>n3", "n2-002: n2>n1"}},
		{"those that are moving count", tableWorld(append(several(10, "n2"), busy("x", "n2"), busy("y", "n2")), drains("n2"), atOnce(3)), []string{"n2-000: n2>n1"}},
		{"none if there are enough", tableWorld(append(several(10, "n2"), busy("x", "n2"), busy("y", "n2")), drains("n2"), atOnce(2)), nil},
		{"none if there are too many", tableWorld(append(several(10, "n2"), busy("x", "n2"), busy("y", "n2")), drains("n2"), atOnce(1)), nil},

		{"uneven ones are balanced", tableWorld(several(4, "n1")), []string{"n1-000: n1>n2", "n1-001: n1>n3"}},
		{"a little uneven is good enough", tableWorld(append(several(2, "n1"), append(several(1, "n2"), several(1, "n3")...)...)), nil},
		{"a tenth is good enough", tableWorld(append(several(100, "n1"), append(several(91, "n2"), several(91, "n3")...)...)), nil},
		{"no balance during a drain", tableWorld(several(40, "n1"), drains("n2")), nil},
		{"no balance just after one", tableWorld(several(40, "n1"), unsettled), nil},
		{"no balance while something is moving", tableWorld(append(several(40, "n1"), busy("x", "n2"))), nil},
		{"no balance while something is placed", tableWorld(append(several(40, "n1"), absent("x"))), []string{"x: >n2"}},
		{"no balance onto a node that may get none", tableWorld(several(4, "n1"), without("n2", "n3")), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, describeMoves(maintainer.PlaceTables(c.w))); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

func TestBalancingTablesMovesFewAtATimeAndEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var list []maintainer.TableState
		for _, name := range []string{"n1", "n2", "n3"} {
			list = append(list, several(rapid.IntRange(0, 120).Draw(t, name), name)...)
		}
		for range 100 {
			moves := maintainer.PlaceTables(tableWorld(list))
			if len(moves) == 0 {
				load := map[string]int{}
				for _, s := range list {
					load[s.Node]++
				}
				most, fewest := max(load["n1"], load["n2"], load["n3"]), min(load["n1"], load["n2"], load["n3"])
				if most-fewest >= 2 && 10*(most-fewest) >= most {
					t.Fatalf("it ended with %v", load)
				}
				return
			}
			if len(moves) > 8 {
				t.Fatalf("%d moves at once", len(moves))
			}
			for _, m := range moves {
				i := slices.IndexFunc(list, func(s maintainer.TableState) bool { return s.Table == m.Table })
				if list[i].Node != m.From {
					t.Fatalf("%v is on %s, or moved twice", m, list[i].Node)
				}
				list[i].Node = m.To
			}
		}
		t.Fatal("it does not end")
	})
}

func TestEveryPlanOfTablesKeepsTheRules(t *testing.T) {
	names := []string{"n1", "n2", "n3", "n4"}
	rapid.Check(t, func(t *rapid.T) {
		w := maintainer.TableWorld{
			Self: rapid.SampledFrom(names).Draw(t, "self"), Moves: rapid.IntRange(0, 10).Draw(t, "at once"), Settled: rapid.Bool().Draw(t, "settled"),
		}
		over := map[string]bool{}
		for _, name := range names {
			switch rapid.IntRange(0, 3).Draw(t, name) {
			case 0:
				over[name] = true
			case 1:
			default:
				w.Schedulable = append(w.Schedulable, name)
			}
		}
		w.Gone = func(name string) bool { return over[name] }
		if rapid.Bool().Draw(t, "a drain") {
			w.Draining = rapid.SampledFrom(names).Draw(t, "slot")
			without(w.Draining)(&w)
		}
		was, busyOnes := map[stream.Table]maintainer.TableState{}, 0
		for i := range rapid.IntRange(0, 30).Draw(t, "tables") {
			s := maintainer.TableState{Table: table(fmt.Sprintf("t%02d", i)), Phase: maintainer.TablePhase(rapid.IntRange(0, 2).Draw(t, "phase"))}
			if s.Phase != maintainer.TableAbsent {
				s.Node = rapid.SampledFrom(names).Draw(t, "on")
			}
			if s.Phase == maintainer.TableBusy {
				busyOnes++
			}
			was[s.Table] = s
			w.Tables = append(w.Tables, s)
		}
		before := slices.Clone(w.Tables)
		moves := maintainer.PlaceTables(w)
		if diff := cmp.Diff(before, w.Tables); diff != "" {
			t.Fatalf("the plan changed what it was given:\n%s", diff)
		}
		if len(moves) > max(w.Moves-busyOnes, 0) && (w.Draining != "" || len(moves) > 8) {
			t.Fatalf("%d moves with %d moving, of %d", len(moves), busyOnes, w.Moves)
		}
		seen := map[stream.Table]bool{}
		for _, m := range moves {
			s := was[m.Table]
			switch {
			case seen[m.Table]:
				t.Fatalf("%v is ordered twice", m)
			case !slices.Contains(w.Schedulable, m.To):
				t.Fatalf("%v goes where nothing may", m)
			case s.Phase == maintainer.TableBusy:
				t.Fatalf("%v is moving", m)
			case m.From != "" && (s.Phase != maintainer.TableRunning || s.Node != m.From || over[m.From] || m.From == m.To):
				t.Fatalf("%v is not there: %v", m, s)
			case m.From == "" && s.Phase == maintainer.TableRunning && !over[s.Node]:
				t.Fatalf("%v runs and is placed again: %v", m, s)
			case m.From != "" && w.Draining != "" && (m.From != w.Draining || w.Self == w.Draining):
				t.Fatalf("%v moves during a drain of %s by %s", m, w.Draining, w.Self)
			case m.From != "" && w.Draining == "" && !w.Settled:
				t.Fatalf("%v balances too soon", m)
			}
			seen[m.Table] = true
		}
	})
}
