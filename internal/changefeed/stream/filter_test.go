package stream_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

func TestWhichTablesAFilterAllows(t *testing.T) {
	for _, c := range []struct {
		filter string
		yes    string
		no     string
	}{
		{"", "a.b shop.orders", ""},
		{"shop.*", "shop.orders shop.x", "other.orders shopx.orders"},
		{"shop.orders", "shop.orders", "shop.order shop.orders2 Shop.orders"},
		{"sh?p.*", "shop.a ship.b", "shp.a shoop.a"},
		{"*.audit_*", "a.audit_1 b.audit_", "a.audits"},
		{"!shop.secret", "shop.orders a.b", "shop.secret"},
		{"shop.* !shop.secret", "shop.orders", "shop.secret a.b"},
		{"!shop.secret shop.*", "shop.orders shop.secret", "a.b"},
		{"shop.* !shop.tmp_* shop.tmp_keep", "shop.a shop.tmp_keep", "shop.tmp_1"},
		{"*.*", "a.b a/b.c/d ebb.orders", "ebb.progress ebb.ddl ebb.incarnation ebb.snapshot"},
		{"ebb.* ebb.progress", "ebb.orders", "ebb.progress"},
		{"a.b.c", "a.b.c", "a.b"},
		{"a*.*", "a/b.c a.c/d", "b/a.c"},
		{"a.b,c", "a.b,c", "a.b a.c"},
	} {
		t.Run(c.filter, func(t *testing.T) {
			f, err := stream.ParseFilter(strings.Fields(c.filter))
			if err != nil {
				t.Fatal(err)
			}
			for text, want := range map[string]bool{c.yes: true, c.no: false} {
				for _, name := range strings.Fields(text) {
					schema, table, _ := strings.Cut(name, ".")
					if f.Allows(stream.Table{Schema: schema, Name: table}) != want {
						t.Errorf("%s is allowed: %v", name, !want)
					}
				}
			}
		})
	}
}

func TestAnInvalidFilterIsRefused(t *testing.T) {
	for pattern, want := range map[string]string{
		"orders":      `filter "orders" is not of the form schema.table`,
		".orders":     `filter ".orders" is not of the form schema.table`,
		"shop.":       `filter "shop." is not of the form schema.table`,
		"!":           `filter "!" is not of the form schema.table`,
		"!shop":       `filter "!shop" is not of the form schema.table`,
		"":            `filter "" is not of the form schema.table`,
		"shop.[ab]":   `filter "shop.[ab]": only the wildcards * and ? are supported`,
		`shop.a\*b`:   `filter "shop.a\\*b": only the wildcards * and ? are supported`,
		"!shop.[^ab]": `filter "!shop.[^ab]": only the wildcards * and ? are supported`,
		"a.*,b.*":     `filter "a.*,b.*": give each pattern by itself, because no table would match; write ? for a comma that is in a name`,
		"a.*, !b.c":   `filter "a.*, !b.c": give each pattern by itself, because no table would match; write ? for a comma that is in a name`,
		" a.*":        `filter " a.*": remove the spaces around it, because no table would match; write ? for a space that is in a name`,
		"! a.b":       `filter "! a.b": remove the spaces around it, because no table would match; write ? for a space that is in a name`,
		"a.b ":        `filter "a.b ": remove the spaces around it, because no table would match; write ? for a space that is in a name`,
	} {
		if _, err := stream.ParseFilter([]string{"a.b", pattern}); fmt.Sprint(err) != want {
			t.Errorf("got  %s\nwant %s", fmt.Sprint(err), want)
		}
	}
}

func TestAFilterThatMatchesNoNameInLowerCaseIsRefused(t *testing.T) {
	if err := (stream.Filter{"shop.*", "!shop.ä_?"}).Folded(); err != nil {
		t.Error(err)
	}
	err := (stream.Filter{"shop.*", "!shop.Audit"}).Folded()
	want := `filter "!shop.Audit" has upper case, and the servers have names of tables in lower case (lower_case_table_names), so that none would match: write it in lower case`
	if !errors.Is(err, stream.ErrUnusable) || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestParsePosition(t *testing.T) {
	for text, want := range map[string]stream.Position{"": 0, "0": 0, "17": 17, "0-1-100": 100, "5-4294967295-9223372036854775807": 1<<63 - 1} {
		if p, err := stream.ParsePosition(text); err != nil || p != want {
			t.Errorf("%q is %d, %v", text, p, err)
		}
	}
	for _, text := range []string{"x", "0-1-", "0-1-x", "1.5", "18446744073709551616", "9223372036854775808", "+5", " 5", "-5", "0-5", "now-5", "a-b-7", "1-2-3-4", "0-1-100,1-1-50", "0-1--5"} {
		if p, err := stream.ParsePosition(text); err == nil {
			t.Errorf("%q was taken for %d", text, p)
		} else if want := `start position "` + text + `" is neither a GTID such as 0-1-100 nor the sequence number of one`; err.Error() != want {
			t.Errorf("got  %s\nwant %s", err, want)
		}
	}
}
