package wire_test

import (
	"slices"
	"testing"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/changefeed/wire"
)

// A table is its name and since when it has it. A node of an earlier version says only the name, and takes a name with a position for that of a
// table that there is not.
func TestATableOnTheWireIsItsNameAndSinceWhenItHasIt(t *testing.T) {
	odd := stream.Table{Schema: "a.b", Name: "c d"}
	for text, want := range map[string]stream.Identity{
		"a.b\x00c d\x000":                    odd.Since(0),
		"a.b\x00c d\x00140":                  odd.Since(140),
		"a.b\x00c d\x0018446744073709551614": odd.Since(stream.AnySince - 1),
		"a.b\x00c d":                         odd.Since(stream.AnySince),
	} {
		if got, ok := wire.ParseTable(text); !ok || got != want || wire.TableName(want) != text {
			t.Errorf("%q is %+v, %v, and %+v is %q", text, got, ok, want, wire.TableName(want))
		}
	}
	for _, text := range []string{"", "a", "\x00b", "a\x00", "a\x00\x001", "a\x00b\x00", "a\x00b\x00x", "a\x00b\x00-1", "a\x00b\x001\x002"} {
		if got, ok := wire.ParseTable(text); ok {
			t.Errorf("%q is %+v", text, got)
		}
	}
	list := []stream.Identity{odd.Since(1), odd.Since(stream.AnySince)}
	if got, ok := wire.ParseTables(wire.TableNames(list)); !ok || !slices.Equal(got, list) {
		t.Errorf("%+v", got)
	}
	if got, ok := wire.ParseNames(wire.Names([]stream.Table{odd})); !ok || !slices.Equal(got, []stream.Table{odd}) {
		t.Errorf("%+v", got)
	}
}
