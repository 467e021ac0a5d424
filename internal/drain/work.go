package drain

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Work describes one kind of work to drains. The package itself knows no kind by name.
type Work struct {
	// Name in the plural: the key of the counts.
	Name string
	// One and Many are the singular and plural for people, if they differ from the name.
	One, Many string
	// Stage is the stage of a drain while work of this kind is left and everything of a lower order has moved. Kinds without a stage
	// move at the same time, and the stage is the list of their names.
	Stage string
	// Order of the stage.
	Order int
	// Shown is the name of the count in /api/v2 and in the metrics that includes this kind; empty for none.
	Shown string
}

// Works are all kinds of work.
type Works []Work

// Counted returns a count in words, such as "1 etcd member"; name is the key of the count.
func (ws Works) Counted(n int64, name string) string {
	one, many := strings.TrimSuffix(name, "s"), name
	if at := slices.IndexFunc(ws, func(w Work) bool { return w.Name == name }); at >= 0 {
		one, many = cmp.Or(ws[at].One, one), cmp.Or(ws[at].Many, many)
	}
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// Listed returns counts in words, without zeros and sorted by kind; "nothing" if all are zero.
func (ws Works) Listed(counts map[string]int64) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		if n := counts[name]; n > 0 {
			parts = append(parts, ws.Counted(n, name))
		}
	}
	if len(parts) == 0 {
		return nothing
	}
	return strings.Join(parts, ", ")
}

const nothing = "nothing"

// Summary returns what is left, in words.
func (ws Works) Summary(counts map[string]int64) string {
	if list := ws.Listed(counts); list != nothing {
		return list + " left"
	}
	return nothing + " is left"
}

// Stage returns the stage of a drain with these counts.
func (ws Works) Stage(counts map[string]int64) string {
	staged := slices.DeleteFunc(slices.Clone(ws), func(w Work) bool { return w.Stage == "" || counts[w.Name] == 0 })
	if len(staged) > 0 {
		return slices.MinFunc(staged, func(a, b Work) int { return cmp.Compare(a.Order, b.Order) }).Stage
	}
	var names []string
	for name, count := range counts {
		if count > 0 {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ",")
}

// Shown sums up counts by the names under which /api/v2 and the metrics show them.
func (ws Works) Shown(counts map[string]int64) map[string]int64 {
	shown := map[string]int64{}
	for _, w := range ws {
		if w.Shown != "" {
			shown[w.Shown] += counts[w.Name]
		}
	}
	return shown
}
