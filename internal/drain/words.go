package drain

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// noun is what people call the pieces of one kind.
type noun struct{ one, many string }

// nouns are the kinds whose count has another name than people use. A kind that is not here is called by its key, a plural.
var nouns = map[string]noun{
	"etcdmembers": {"etcd member", "etcd members"},
	"etcddata":    {"only copy of etcd data", "only copies of etcd data"},
}

// Counted is a number of pieces of one kind in words, such as "1 etcd member"; kind is the key of the count.
func Counted(n int64, kind string) string {
	name, ok := nouns[kind]
	if !ok {
		name = noun{one: strings.TrimSuffix(kind, "s"), many: kind}
	}
	if n == 1 {
		return "1 " + name.one
	}
	return fmt.Sprintf("%d %s", n, name.many)
}

// Listed is what is counted in words, without zeros and sorted by kind; "nothing" if there is nothing.
func Listed(counts map[string]int64) string {
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		if n := counts[kind]; n > 0 {
			parts = append(parts, Counted(n, kind))
		}
	}
	if len(parts) == 0 {
		return nothing
	}
	return strings.Join(parts, ", ")
}
