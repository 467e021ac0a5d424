package main

import (
	"strings"
	"testing"
)

func TestWhatIsPrintedAsJSON(t *testing.T) {
	for _, c := range []struct {
		what   string
		object any
		want   string
	}{
		{"an object", map[string]int{"b": 2, "a": 1}, "{\n  \"a\": 1,\n  \"b\": 2\n}\n"},
		{"a list", []string{"a"}, "[\n  \"a\"\n]\n"},
		{"an empty list", []string{}, "[]\n"},
		{"a list that was never made", []string(nil), "[]\n"},
	} {
		var b strings.Builder
		out := output("json")
		if err := out.print(&b, c.object, nil); err != nil || b.String() != c.want {
			t.Errorf("%s: %q, %v, want %q", c.what, b.String(), err, c.want)
		}
	}
}
