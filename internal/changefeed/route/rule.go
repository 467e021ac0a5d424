package route

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// Rule names the tables that match a pattern at the sink.
type Rule struct {
	// Match is schema.table with the wildcards * and ?.
	Match string
	// Schema and Table are the names at the sink, in which {schema} and {table} stand for those at the source; empty for the same.
	Schema, Table string
}

// Map are rules, of which the first that matches a table decides. A table that none matches has the same name at the sink.
type Map struct{ rules []rule }

// rule is a Rule that was parsed.
type rule struct {
	match         stream.Filter // one pattern
	schemaPattern string
	tablePattern  string
	schema, table template
}

// template is a name with or without a part that stands for another name.
type template struct {
	before, after string
	keeps         bool
}

// longestName is how many characters a name may have at a server.
const longestName = 64

// Parse parses rules. It refuses those that could give two tables one name: what a pattern leaves open must be in the name.
func Parse(rules []Rule) (*Map, error) {
	m := &Map{}
	for i, r := range rules {
		parsed, err := r.parse()
		if err != nil {
			return nil, fmt.Errorf("route %d (%s): %w", i+1, r.Match, err)
		}
		m.rules = append(m.rules, parsed)
	}
	return m, nil
}

func (r Rule) parse() (p rule, err error) {
	if strings.HasPrefix(r.Match, "!") {
		return p, fmt.Errorf("a route matches tables, and does not exclude them; use the filter for that")
	}
	if p.match, err = stream.ParseFilter([]string{r.Match}); err != nil {
		return p, err
	}
	if r.Schema == "" && r.Table == "" {
		return p, fmt.Errorf("it changes nothing: set schema or table, or remove the route")
	}
	p.schemaPattern, p.tablePattern, _ = strings.Cut(r.Match, ".")
	if p.schema, err = parseTemplate("schema", r.Schema, p.schemaPattern); err != nil {
		return p, err
	}
	p.table, err = parseTemplate("table", r.Table, p.tablePattern)
	return p, err
}

func parseTemplate(what, text, pattern string) (template, error) {
	mark := "{" + what + "}"
	if text == "" {
		text = mark
	}
	before, after, keeps := strings.Cut(text, mark)
	switch {
	case strings.ContainsAny(before+after, "{}"):
		return template{}, fmt.Errorf("%s %q: only %s may be in braces, once", what, text, mark)
	case !keeps && strings.ContainsAny(pattern, "*?"):
		return template{}, fmt.Errorf("%s %q would be the name for every %s that matches %q; use %s in it, or match one %s", what, text, what, pattern, mark, what)
	case strings.ContainsAny(before+after, "/\\\x00") || strings.HasSuffix(after, " "):
		return template{}, fmt.Errorf("%s %q is not a name", what, text)
	}
	return template{before: before, after: after, keeps: keeps}, nil
}

// of is the name for another.
func (t template) of(name string) string {
	if !t.keeps {
		return t.before
	}
	return t.before + name + t.after
}

// from is the name that another was made of. A template without a part that stands for a name was made of the whole pattern.
func (t template) from(name, pattern string) (string, bool) {
	if !t.keeps {
		return pattern, name == t.before
	}
	rest, ok := strings.CutPrefix(name, t.before)
	if !ok {
		return "", false
	}
	return strings.CutSuffix(rest, t.after)
}

// Target is the name of a table at the sink.
func (m *Map) Target(t stream.Table) stream.Table {
	for i := range m.rules {
		if r := &m.rules[i]; r.match.Allows(t) {
			return stream.Table{Schema: r.schema.of(t.Schema), Name: r.table.of(t.Name)}
		}
	}
	return t
}

// Targets are the names of tables at the sink.
func (m *Map) Targets(tables []stream.Table) []stream.Table {
	if tables == nil {
		return nil
	}
	list := make([]stream.Table, len(tables))
	for i, t := range tables {
		list[i] = m.Target(t)
	}
	return list
}

// Sources are all names that a table at the source may have whose name at the sink is t, whether there is one or not.
func (m *Map) Sources(t stream.Table) []stream.Table {
	var list []stream.Table
	add := func(s stream.Table) {
		if m.Target(s) == t && !slices.Contains(list, s) {
			list = append(list, s)
		}
	}
	add(t)
	for i := range m.rules {
		r := &m.rules[i]
		schema, ok1 := r.schema.from(t.Schema, r.schemaPattern)
		name, ok2 := r.table.from(t.Name, r.tablePattern)
		if ok1 && ok2 {
			add(stream.Table{Schema: schema, Name: name})
		}
	}
	return list
}

// Source is the table inside a filter whose name at the sink is t; ok is false if there can be none, or several.
func (m *Map) Source(t stream.Table, f stream.Filter) (s stream.Table, ok bool) {
	for _, each := range m.Sources(t) {
		if !f.Allows(each) {
			continue
		}
		if ok {
			return stream.Table{}, false
		}
		s, ok = each, true
	}
	return s, ok
}

// reserved are the schemas that no table may be routed to.
var reserved = []string{"mysql", "sys", "information_schema", "performance_schema", "ebb"}

// Check returns ErrUnusable if a table inside a filter cannot have the name at the sink that it is given: another table inside the filter
// would have the same name if it existed, or no table can have it.
func (m *Map) Check(t stream.Table, f stream.Filter) error {
	to := m.Target(t)
	for _, other := range m.Sources(to) {
		if other != t && f.Allows(other) {
			return fmt.Errorf("routing: tables %s and %s would both be %s at the sink; exclude one of them by the filter, or give them different names: %w", t, other, to, stream.ErrUnusable)
		}
	}
	if to == t {
		return nil
	}
	switch {
	case slices.ContainsFunc(reserved, func(name string) bool { return strings.EqualFold(name, to.Schema) }):
		return fmt.Errorf("routing: table %s would be %s at the sink, and that schema is not for tables of changefeeds; choose another: %w", t, to, stream.ErrUnusable)
	case len([]rune(to.Schema)) > longestName || len([]rune(to.Name)) > longestName:
		return fmt.Errorf("routing: table %s would be %s at the sink, and names have at most %d characters: %w", t, to, longestName, stream.ErrUnusable)
	}
	return nil
}

// Folded returns ErrUnusable if a name of a rule has upper case, for servers that compare the names of tables in lower case.
func (m *Map) Folded() error {
	for i := range m.rules {
		r := &m.rules[i]
		if text := r.match[0] + r.schema.before + r.schema.after + r.table.before + r.table.after; text != strings.ToLower(text) {
			return fmt.Errorf("routing: route %d (%s) has upper case, and the servers have names of tables in lower case (lower_case_table_names): write it in lower case: %w", i+1, r.match[0], stream.ErrUnusable)
		}
	}
	return nil
}

// schemas are the schemas at the sink that tables of a schema may have.
func (m *Map) schemas(schema string) []string {
	var list []string
	add := func(name string) {
		if !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	for i := range m.rules {
		r := &m.rules[i]
		if !stream.Glob(r.schemaPattern, schema) {
			continue
		}
		add(r.schema.of(schema))
		if r.tablePattern == "*" {
			return list
		}
	}
	add(schema)
	return list
}

// shared reports whether a schema at the sink may have tables of another schema of the source than one, inside a filter.
func (m *Map) shared(to, schema string, f stream.Filter) bool {
	from := []string{to}
	for i := range m.rules {
		if name, ok := m.rules[i].schema.from(to, m.rules[i].schemaPattern); ok {
			from = append(from, name)
		}
	}
	return slices.ContainsFunc(from, func(name string) bool {
		return name != schema && f.TouchesSchema(name) && slices.Contains(m.schemas(name), to)
	})
}
