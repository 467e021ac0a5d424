package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

func TestWhatIsLeftOutIsWrittenOnTheCommandLine(t *testing.T) {
	got, err := parseLeaveOut([]string{"shop.users.password", "shop.*.note", "shop.users.pin", "shop.a.b.c"}, []string{"shop.orders=region = 7", "shop.*=a IS NULL OR b='='"})
	want := []v1alpha1.ChangefeedLeaveOut{
		{Match: "shop.users", Columns: []string{"password", "pin"}}, {Match: "shop.*", Columns: []string{"note"}}, {Match: "shop.a.b", Columns: []string{"c"}},
		{Match: "shop.orders", Rows: "region = 7"}, {Match: "shop.*", Rows: "a IS NULL OR b='='"},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	for _, c := range []struct{ column, rows, want string }{
		{"users.password", "", `--leave-out-column "users.password": use MATCH.COLUMN, for instance 'shop.users.password'`},
		{"shop.users.", "", `--leave-out-column "shop.users.": use MATCH.COLUMN, for instance 'shop.users.password'`},
		{"", "shop.orders", `--leave-out-rows "shop.orders": use MATCH=EXPRESSION, for instance 'shop.orders=region = 7'`},
		{"", "shop.orders= ", `--leave-out-rows "shop.orders= ": use MATCH=EXPRESSION, for instance 'shop.orders=region = 7'`},
	} {
		var columns, rows []string
		if c.column != "" {
			columns = []string{c.column}
		}
		if c.rows != "" {
			rows = []string{c.rows}
		}
		if _, err := parseLeaveOut(columns, rows); err == nil || err.Error() != c.want {
			t.Errorf("got %v\nwant %s", err, c.want)
		}
	}
}
