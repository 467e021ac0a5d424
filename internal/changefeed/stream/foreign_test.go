package stream_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

func tableNamed(n int) stream.Table { return stream.Table{Schema: "s", Name: fmt.Sprintf("t%d", n)} }

func TestWhichTablesAreWrittenTogether(t *testing.T) {
	key := func(child, parent int, cascades bool, columns ...string) stream.ForeignKey {
		return stream.ForeignKey{Child: tableNamed(child), Parent: tableNamed(parent), Columns: columns, Referenced: []string{"id"}, OnDelete: cascades}
	}
	updates := func(k stream.ForeignKey) stream.ForeignKey { k.OnUpdate = true; return k }
	for _, c := range []struct {
		name string
		keys []stream.ForeignKey
		want string
	}{
		{"no key", nil, "[]"},
		{"a key that does not cascade joins nothing", []stream.ForeignKey{key(1, 2, false, "a")}, "[]"},
		{"one that cascades does", []stream.ForeignKey{key(2, 1, true, "a")}, "[[s.t1 s.t2]]"},
		{"also a table with itself", []stream.ForeignKey{key(1, 1, true, "a")}, "[[s.t1]]"},
		{"a table that keeps a row of the group from being deleted is checked", []stream.ForeignKey{key(2, 1, true, "a"), key(3, 2, false, "b")}, "[[s.t1 s.t2 s.t3]]"},
		{"a table that the group refers to is not", []stream.ForeignKey{key(2, 1, true, "a"), key(2, 3, false, "b"), key(1, 4, false, "b")}, "[[s.t1 s.t2]]"},
		{"unless an update of its key cascades", []stream.ForeignKey{updates(key(2, 1, true, "a")), key(1, 4, false, "b")}, "[[s.t1 s.t2 s.t4]]"},
		{"unless a cascade changes the same column", []stream.ForeignKey{key(2, 1, true, "a"), key(2, 3, false, "x", "a")}, "[[s.t1 s.t2 s.t3]]"},
		{"a third key joins two groups", []stream.ForeignKey{key(2, 1, true, "a"), key(4, 3, true, "a"), key(4, 1, false, "b")}, "[[s.t1 s.t2 s.t3 s.t4]]"},
	} {
		if got := fmt.Sprint(stream.CascadeGroups(c.keys)); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// Groups are the connected components of the cascading keys and of the keys that these may check, in whatever order the keys come.
func TestGroupsAreConnectedComponents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var keys []stream.ForeignKey
		for range rapid.IntRange(0, 12).Draw(t, "keys") {
			keys = append(keys, stream.ForeignKey{
				Child: tableNamed(rapid.IntRange(0, 9).Draw(t, "child")), Parent: tableNamed(rapid.IntRange(0, 9).Draw(t, "parent")), Columns: []string{rapid.SampledFrom([]string{"a", "b"}).Draw(t, "column")},
				OnDelete: rapid.Bool().Draw(t, "delete"), OnUpdate: rapid.Bool().Draw(t, "update"),
			})
		}
		groups := stream.CascadeGroups(keys)
		shuffled := slices.Clone(keys)
		slices.Reverse(shuffled)
		if again := stream.CascadeGroups(shuffled); fmt.Sprint(again) != fmt.Sprint(groups) {
			t.Fatalf("%v, and in another order %v", groups, again)
		}
		of := map[stream.Table]int{}
		for i, g := range groups {
			for _, name := range g {
				if _, twice := of[name]; twice {
					t.Fatalf("%v is in two groups of %v", name, groups)
				}
				of[name] = i
			}
		}
		in := func(name stream.Table) bool { _, ok := of[name]; return ok }
		for _, k := range keys {
			switch {
			case k.Cascades() && (!in(k.Child) || !in(k.Parent) || of[k.Child] != of[k.Parent]):
				t.Fatalf("%v cascades, and its tables are not together in %v", k, groups)
			case in(k.Parent) && slices.ContainsFunc(keys, func(o stream.ForeignKey) bool { return o.Cascades() && (o.Child == k.Parent || o.Parent == k.Parent) }) && of[k.Child] != of[k.Parent]:
				t.Fatalf("%v is checked, and its tables are not together in %v", k, groups)
			}
		}
		for _, g := range groups {
			if !slices.ContainsFunc(keys, func(k stream.ForeignKey) bool { return k.Cascades() && slices.Contains(g, k.Child) }) {
				t.Fatalf("nothing cascades in %v", g)
			}
		}
	})
}

// However a transaction over several tables is split into parts, and wherever a writer continues, every change of the group is written
// once and in the order of the source.
func TestMergedRowsKeepTheOrderOfTheSource(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type change struct{ table, id int }
		var all []change
		for id := range rapid.IntRange(1, 40).Draw(t, "changes") {
			all = append(all, change{rapid.IntRange(0, 3).Draw(t, "table"), id})
		}
		group := []stream.Table{tableNamed(0), tableNamed(1), tableNamed(2)} // and not the last
		var want []int
		for _, c := range all {
			if c.table < 3 {
				want = append(want, c.id)
			}
		}
		earlier := map[stream.Table]int{}
		var parts []*stream.Rows
		for rest, order := all, 0; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "part")
			tx := &stream.Transaction{Position: 5, More: n < len(rest), Earlier: map[stream.Table]int{}}
			for name, count := range earlier {
				tx.Earlier[name] = count
			}
			byTable, last := map[int]*stream.Rows{}, -1
			for _, c := range rest[:n] {
				rows := byTable[c.table]
				if rows == nil {
					rows = &stream.Rows{Position: 5, Table: tableNamed(c.table), Before: earlier[tableNamed(c.table)], More: tx.More}
					byTable[c.table], tx.Rows = rows, append(tx.Rows, rows)
				}
				if last != c.table {
					order++
					rows.Runs = append(rows.Runs, stream.Run{First: len(rows.Changes), Order: order})
					last = c.table
				}
				rows.Changes = append(rows.Changes, stream.Change{Kind: stream.Insert, After: []any{c.id, c.table}})
				earlier[tableNamed(c.table)]++
			}
			if merged := tx.Merge(group[0], group); merged != nil {
				parts = append(parts, merged)
			}
			rest = rest[n:]
		}
		written := rapid.IntRange(0, len(want)).Draw(t, "written")
		left, err := stream.Unwritten(parts, 4, written)
		if err != nil {
			t.Fatal(err)
		}
		var got []int
		for _, rows := range left {
			if err := rows.EachRun(func(run *stream.Run, changes []stream.Change) error {
				for _, c := range changes {
					if run.Table != tableNamed(c.After[1].(int)) {
						return fmt.Errorf("change %v is of %v", c.After, run.Table)
					}
					got = append(got, c.After[0].(int))
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(got, want[written:]) {
			t.Fatalf("%v, want %v", got, want[written:])
		}
	})
}

func TestACascadingKeyThatTheSinkLacksIsFound(t *testing.T) {
	key := stream.ForeignKey{Name: "k", Child: tableNamed(1), Parent: tableNamed(2), Columns: []string{"p"}, Referenced: []string{"id"}, OnDelete: true}
	with := func(change func(*stream.ForeignKey)) []stream.ForeignKey {
		k := key
		change(&k)
		return []stream.ForeignKey{k}
	}
	for name, c := range map[string]struct {
		source, sink []stream.ForeignKey
		filter       stream.Filter
		lacking      int
	}{
		"none":                {with(func(*stream.ForeignKey) {}), nil, nil, 1},
		"the same":            {with(func(*stream.ForeignKey) {}), with(func(k *stream.ForeignKey) { k.Name, k.Columns = "other", []string{"P"} }), nil, 0},
		"of another column":   {with(func(*stream.ForeignKey) {}), with(func(k *stream.ForeignKey) { k.Columns = []string{"q"} }), nil, 1},
		"of another parent":   {with(func(*stream.ForeignKey) {}), with(func(k *stream.ForeignKey) { k.Parent = tableNamed(3) }), nil, 1},
		"that is checked":     {with(func(*stream.ForeignKey) {}), with(func(k *stream.ForeignKey) { k.OnDelete = false }), nil, 1},
		"that does more":      {with(func(*stream.ForeignKey) {}), with(func(k *stream.ForeignKey) { k.OnUpdate = true }), nil, 0},
		"that does less":      {with(func(k *stream.ForeignKey) { k.OnUpdate = true }), with(func(*stream.ForeignKey) {}), nil, 1},
		"it does not cascade": {with(func(k *stream.ForeignKey) { k.OnDelete = false }), nil, nil, 0},
		"it is outside":       {with(func(*stream.ForeignKey) {}), nil, stream.Filter{"other.*"}, 0},
	} {
		if got := c.filter.LackingCascades(c.source, c.sink); len(got) != c.lacking {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestATableDoesNotLeaveTheFilterWithoutThoseThatItCascadesTo(t *testing.T) {
	keys := []stream.ForeignKey{
		{Name: "k", Child: tableNamed(1), Parent: tableNamed(2), OnDelete: true}, {Name: "tree", Child: tableNamed(3), Parent: tableNamed(3), OnDelete: true}, {Name: "checked", Child: tableNamed(4), Parent: tableNamed(3)},
	}
	for _, c := range []struct {
		leave   []stream.Table
		refused bool
	}{
		{[]stream.Table{tableNamed(1)}, true}, {[]stream.Table{tableNamed(2)}, true}, {[]stream.Table{tableNamed(2), tableNamed(1)}, false}, {[]stream.Table{tableNamed(3)}, false}, {[]stream.Table{tableNamed(4)}, false},
	} {
		d := &stream.DDL{Kind: stream.RenameTable, Statement: "RENAME …"}
		if err := d.ReleasedCascade(c.leave, keys); errors.Is(err, stream.ErrUnusable) != c.refused || err != nil && !strings.Contains(err.Error(), d.Statement) {
			t.Errorf("%v leave: %v", c.leave, err)
		}
	}
}
