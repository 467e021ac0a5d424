package stream

import (
	"fmt"
	"testing"
)

func TestPartsThatWereWrittenAreLeftOut(t *testing.T) {
	part := func(p Position, before, n int, more bool) *Rows {
		return &Rows{Position: p, Before: before, Changes: make([]Change, n), More: more, Total: 30}
	}
	whole := func(p Position, n int) *Rows { return &Rows{Position: p, Changes: make([]Change, n)} }
	for _, c := range []struct {
		name string
		at   Position
		part int
		rows []*Rows
		want string
	}{
		{"nothing written", 4, 0, []*Rows{whole(5, 3), whole(7, 2)}, "5:0+3 7:0+2"},
		{"up to a position", 5, 0, []*Rows{whole(5, 3), whole(7, 2)}, "7:0+2"},
		{"a part", 4, 10, []*Rows{part(5, 0, 10, true), part(5, 10, 10, true), part(5, 20, 10, false)}, "5:10+10 5:20+10"},
		{"within a part", 4, 12, []*Rows{part(5, 0, 10, true), part(5, 10, 10, true), part(5, 20, 10, false)}, "5:12+8 5:20+10"},
		{"all parts", 4, 30, []*Rows{part(5, 0, 10, true), part(5, 10, 20, false), whole(7, 1)}, "7:0+1"},
		{"parts come twice", 4, 0, []*Rows{part(5, 0, 10, true), part(5, 0, 10, true), part(5, 10, 20, false)}, "5:0+10 5:10+20"},
		{"of another transaction", 4, 10, []*Rows{part(6, 0, 10, true)}, "6:0+10"},
		{"a gap", 4, 5, []*Rows{part(5, 10, 10, true)}, "table .: the changes of the transaction at position 5 begin with number 11, but only 5 are written"},
		{"an empty part", 4, 0, []*Rows{part(5, 0, 0, false)}, "5:0+0"},
	} {
		left, err := Unwritten(c.rows, c.at, c.part)
		got := ""
		for i, r := range left {
			if i > 0 {
				got += " "
			}
			got += fmt.Sprintf("%d:%d+%d", r.Position, r.Before, len(r.Changes))
		}
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
