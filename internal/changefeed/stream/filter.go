package stream

import (
	"fmt"
	"path"
	"strings"
)

// Filter decides which tables flow.
type Filter []string

// ParseFilter checks patterns: schema.table with * and ?, one that begins with ! leaves tables out.
func ParseFilter(patterns []string) (Filter, error) {
	for _, p := range patterns {
		text := strings.TrimPrefix(p, "!")
		schema, table, ok := strings.Cut(text, ".")
		if !ok || schema == "" || table == "" {
			return nil, fmt.Errorf("filter %q is not schema.table", p)
		}
		if strings.ContainsAny(text, `[]\`) {
			return nil, fmt.Errorf("filter %q: only * and ? are understood", p)
		}
	}
	return patterns, nil
}

// Allows says whether a table flows: the last pattern that matches decides. If none does, it flows unless some pattern
// names what should.
func (f Filter) Allows(t Table) bool {
	allowed := true
	for _, p := range f {
		if !strings.HasPrefix(p, "!") {
			allowed = false
		}
	}
	for _, p := range f {
		text, out := strings.CutPrefix(p, "!")
		schema, table, _ := strings.Cut(text, ".")
		if glob(schema, t.Schema) && glob(table, t.Name) {
			allowed = !out
		}
	}
	return allowed
}

// glob matches with * and ?. Names of schemas and tables may hold a slash, which path.Match would not let * match.
func glob(pattern, name string) bool {
	ok, err := path.Match(strings.ReplaceAll(pattern, "/", "\x00"), strings.ReplaceAll(name, "/", "\x00"))
	return err == nil && ok
}
