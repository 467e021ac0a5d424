package stream

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Filter selects the tables that are replicated.
type Filter []string

// ParseFilter parses patterns: schema.table with * and ?. A pattern that begins with ! excludes tables.
func ParseFilter(patterns []string) (Filter, error) {
	for _, p := range patterns {
		text := strings.TrimPrefix(p, "!")
		schema, table, ok := strings.Cut(text, ".")
		if !ok || schema == "" || table == "" {
			return nil, fmt.Errorf("filter %q is not of the form schema.table", p)
		}
		if strings.ContainsAny(text, `[]\`) {
			return nil, fmt.Errorf("filter %q: only the wildcards * and ? are supported", p)
		}
		if strings.TrimSpace(text) != text {
			return nil, fmt.Errorf("filter %q: remove the spaces around it, because no table would match; write ? for a space that is in a name", p)
		}
		if severalPatterns(text) {
			return nil, fmt.Errorf("filter %q: give each pattern by itself, because no table would match; write ? for a comma that is in a name", p)
		}
	}
	return patterns, nil
}

// severalPatterns reports whether a pattern is a list of patterns with commas.
func severalPatterns(text string) bool {
	parts := strings.Split(text, ",")
	return len(parts) > 1 && !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(p, ".") })
}

// Folded returns ErrUnusable if a pattern has upper case, for servers that have the names of tables in lower case.
func (f Filter) Folded() error {
	for _, p := range f {
		if p != strings.ToLower(p) {
			return fmt.Errorf("filter %q has upper case, and the servers have names of tables in lower case (lower_case_table_names), so that none would match: write it in lower case: %w", p, ErrUnusable)
		}
	}
	return nil
}

// OwnSchema and ownTables are what sinks keep their state in. A server may be the sink of one changefeed and the source of another, which
// must not write this state over that of its own sink.
const OwnSchema = "ebb"

var ownTables = []string{"progress", "ddl", "incarnation", "snapshot"}

// Allows reports whether a table is replicated: the last pattern that matches decides. If none does, it is replicated unless there
// is a pattern that includes tables. The tables of sinks are never replicated.
func (f Filter) Allows(t Table) bool {
	if t.Schema == OwnSchema && slices.Contains(ownTables, t.Name) {
		return false
	}
	allowed := f.allowsByDefault()
	for _, p := range f {
		text, out := strings.CutPrefix(p, "!")
		schema, table, _ := strings.Cut(text, ".")
		if Glob(schema, t.Schema) && Glob(table, t.Name) {
			allowed = !out
		}
	}
	return allowed
}

// allowsByDefault reports whether tables that no pattern matches are replicated: no pattern includes tables.
func (f Filter) allowsByDefault() bool {
	return !slices.ContainsFunc(f, func(p string) bool { return !strings.HasPrefix(p, "!") })
}

// Glob matches with * and ?. Names of schemas and tables may contain a slash, which * does not match in path.Match.
func Glob(pattern, name string) bool {
	ok, err := path.Match(strings.ReplaceAll(pattern, "/", "\x00"), strings.ReplaceAll(name, "/", "\x00"))
	return err == nil && ok
}
