package route_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/ebb-dev/ebb/internal/changefeed/route"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

func table(text string) stream.Table {
	schema, name, _ := strings.Cut(text, ".")
	return stream.Table{Schema: schema, Name: name}
}

// parse makes a map of lines "MATCH SCHEMA TABLE", with - for the same name.
func parse(t interface{ Fatal(...any) }, lines ...string) *route.Map {
	m, err := route.Parse(rules(lines...))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func rules(lines ...string) (list []route.Rule) {
	for _, line := range lines {
		f := strings.Fields(strings.ReplaceAll(line, " -", " \x00"))
		for i := range f {
			f[i] = strings.Trim(f[i], "\x00")
		}
		list = append(list, route.Rule{Match: f[0], Schema: f[1], Table: f[2]})
	}
	return list
}

func TestTheFirstRouteThatMatchesNamesATable(t *testing.T) {
	m := parse(t, "shop.orders crm sales", "shop.* crm_{schema} -", "*.log - {table}_of_all", "a.* b -", "b.* a -")
	for from, want := range map[string]string{
		"shop.orders": "crm.sales", "shop.items": "crm_shop.items", "shop.log": "crm_shop.log", "web.log": "web.log_of_all",
		"web.pages": "web.pages", "a.x": "b.x", "b.x": "a.x",
	} {
		if got := m.Target(table(from)); got != table(want) {
			t.Errorf("%s becomes %s, not %s", from, got, want)
		}
		if got, ok := m.Source(table(want), stream.Filter{from}); !ok || got != table(from) {
			t.Errorf("%s comes from %s (%v), not %s", want, got, ok, from)
		}
	}
}

func TestARouteThatCouldGiveTwoTablesOneNameIsRefused(t *testing.T) {
	for line, want := range map[string]string{
		"shop.* - sales":            `route 1 (shop.*): table "sales" would be the name for every table that matches "*"; use {table} in it, or match one table`,
		"s?.t all -":                `route 1 (s?.t): schema "all" would be the name for every schema that matches "s?"; use {schema} in it, or match one schema`,
		"shop.* - -":                `route 1 (shop.*): it changes nothing: set schema or table, or remove the route`,
		"!shop.* crm -":             `route 1 (!shop.*): a route matches tables, and does not exclude them; use the filter for that`,
		"shop crm -":                `route 1 (shop): filter "shop" is not of the form schema.table`,
		"shop.* crm {schema}":       `route 1 (shop.*): table "{schema}": only {table} may be in braces, once`,
		"shop.* {schema}{schema} -": `route 1 (shop.*): schema "{schema}{schema}": only {schema} may be in braces, once`,
		"shop.* a/b -":              `route 1 (shop.*): schema "a/b" is not a name`,
	} {
		if _, err := route.Parse(rules(line)); err == nil || err.Error() != want {
			t.Errorf("%s: %v\nwant %s", line, err, want)
		}
	}
}

func TestTwoTablesInsideTheFilterCannotHaveOneName(t *testing.T) {
	for _, c := range []struct {
		name   string
		filter stream.Filter
		routes []string
		table  string
		want   string
	}{
		{"alone", stream.Filter{"shop.*"}, []string{"shop.* crm -"}, "shop.a", ""},
		{"the schema there may be replicated, too", nil, []string{"shop.* crm -"}, "shop.a", "routing: tables shop.a and crm.a would both be crm.a at the sink; exclude one of them by the filter, or give them different names"},
		{"and the other way round", nil, []string{"shop.* crm -"}, "crm.a", "routing: tables crm.a and shop.a would both be crm.a at the sink; exclude one of them by the filter, or give them different names"},
		{"exchanged", nil, []string{"shop.* crm -", "crm.* shop -"}, "shop.a", ""},
		{"two rules", stream.Filter{"s.a", "s.b"}, []string{"s.a t x", "s.b t x"}, "s.b", "routing: tables s.b and s.a would both be t.x at the sink; exclude one of them by the filter, or give them different names"},
		{"two rules, one of them outside", stream.Filter{"s.b"}, []string{"s.a t x", "s.b t x"}, "s.b", ""},
		{"the sink's own schema", stream.Filter{"s.*"}, []string{"s.* EBB -"}, "s.a", "routing: table s.a would be EBB.a at the sink, and that schema is not for tables of changefeeds; choose another"},
		{"too long", stream.Filter{"s.*"}, []string{"s.* - {table}" + strings.Repeat("x", 64)}, "s.a", "routing: table s.a would be s.a" + strings.Repeat("x", 64) + " at the sink, and names have at most 64 characters"},
	} {
		err := parse(t, c.routes...).Check(table(c.table), c.filter)
		switch {
		case c.want == "" && err != nil, c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want) || !errors.Is(err, stream.ErrUnusable)):
			t.Errorf("%s: %v\nwant %s", c.name, err, c.want)
		}
	}
}

// Whatever the routes, a table that is admitted is the only one that its name at the sink leads back to.
func TestEveryNameLeadsBack(t *testing.T) {
	part := rapid.SampledFrom([]string{"a", "b", "ab", "ba", "aa", "abab"})
	rapid.Check(t, func(t *rapid.T) {
		var list []route.Rule
		for range rapid.IntRange(1, 4).Draw(t, "routes") {
			r := route.Rule{
				Match:  rapid.SampledFrom([]string{"*", "a", "a*", "?b", "ab"}).Draw(t, "schemas") + "." + rapid.SampledFrom([]string{"*", "b", "*a", "b?"}).Draw(t, "tables"),
				Schema: rapid.SampledFrom([]string{"", "a", "{schema}b", "a{schema}"}).Draw(t, "schema"), Table: rapid.SampledFrom([]string{"", "b", "{table}a", "b{table}a"}).Draw(t, "table"),
			}
			if _, err := route.Parse([]route.Rule{r}); err == nil {
				list = append(list, r)
			}
		}
		m, err := route.Parse(list)
		if err != nil {
			t.Fatal(err)
		}
		f := stream.Filter{rapid.SampledFrom([]string{"*.*", "a.*", "a*.*", "*.b"}).Draw(t, "filter")}
		names := map[stream.Table]stream.Table{}
		for range 20 {
			s := stream.Table{Schema: part.Draw(t, "s"), Name: part.Draw(t, "t")}
			if !slices.Contains(m.Sources(m.Target(s)), s) {
				t.Fatalf("%s becomes %s, which does not lead back", s, m.Target(s))
			}
			if !f.Allows(s) || m.Check(s, f) != nil {
				continue
			}
			if other, ok := names[m.Target(s)]; ok && other != s {
				t.Fatalf("%s and %s are both %s", s, other, m.Target(s))
			}
			names[m.Target(s)] = s
			if back, ok := m.Source(m.Target(s), f); !ok || back != s {
				t.Fatalf("%s becomes %s, which leads to %s, %v", s, m.Target(s), back, ok)
			}
		}
	})
}

func TestOfASchemaThatIsDroppedOnlyItsOwnTablesGo(t *testing.T) {
	f := stream.Filter{"shop.*", "web.*", "!shop.secret"}
	d := &stream.DDL{Kind: stream.DropSchema, Schema: "shop", Statement: "DROP DATABASE shop", Filter: f}
	to, err := parse(t, "shop.a all shop_a", "shop.* crm -", "web.* all web_{table}").DDL(d, f)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(to.DropSchemas(), " "); got != "all crm" {
		t.Errorf("it is in the schemas %s", got)
	}
	for name, want := range map[string]bool{"all.shop_a": true, "all.web_a": false, "all.shop_b": false, "crm.b": true, "crm.a": false, "crm.secret": false, "shop.a": false} {
		if to.DropsTable(table(name)) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
	if to.DropsWhole("all") || to.DropsWhole("crm") || to.DropsWhole("shop") {
		t.Error("a schema is dropped, though it may have tables of others, or shop tables outside the filter")
	}
	d.Filter = stream.Filter{"shop.*"}
	if to, _ = parse(t, "shop.* crm -").DDL(d, d.Filter); !to.DropsWhole("crm") || to.DropsWhole("shop") {
		t.Error("the schema that has all tables, and no others, stays")
	}
}
