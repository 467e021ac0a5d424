package filesink_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/changefeed/filesink"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

var (
	orders    = stream.Table{Schema: "shop", Name: "orders"}
	committed = time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)
	schema    = &stream.Schema{Columns: []stream.Column{{Name: "id"}, {Name: "note"}}, Key: []int{0}}
)

func epoch(counter int64) stream.Epoch { return stream.Epoch{Placement: 1, Counter: counter} }

// inserts is a transaction of some rows.
func inserts(p stream.Position, n int) *stream.Rows {
	r := &stream.Rows{Position: p, At: committed, Table: orders, Schema: schema}
	for i := range n {
		r.Changes = append(r.Changes, stream.Change{Kind: stream.Insert, After: []any{int64(p)*10 + int64(i), "x"}})
	}
	return r
}

// text is how a row of such a transaction is written.
func text(p stream.Position, change, changes int) string {
	return fmt.Sprintf(`{"position":%d,"committed":"2026-03-01T12:00:00.123456Z","schema":"shop","table":"orders","kind":"insert","change":%d,"changes":%d,"after":{"id":%d,"note":"x"}}`+"\n",
		p, change, changes, int(p)*10+change-1)
}

type site struct {
	*testing.T
	dir  string
	sink *filesink.Sink
}

func newSite(t *testing.T, changes ...func(*filesink.Options)) *site {
	t.Helper()
	o := filesink.Options{Directory: filepath.Join(t.TempDir(), "out"), Changefeed: "default/demo/1"}
	for _, c := range changes {
		c(&o)
	}
	s := &site{t, o.Directory, filesink.Open(o)}
	t.Cleanup(func() { s.sink.Close() })
	return s
}

func (s *site) acquire(e stream.Epoch, want stream.Position) stream.Writer {
	s.Helper()
	w, at, err := s.sink.Acquire(s.Context(), orders.Since(0), e, 3)
	if err != nil || at != want {
		s.Fatalf("acquired at %d: %v, want %d", at, err, want)
	}
	return w
}

func (s *site) write(w stream.Writer, to stream.Position, rows ...*stream.Rows) {
	s.Helper()
	if err := w.Write(s.Context(), rows, to); err != nil {
		s.Fatal(err)
	}
}

// files are the contents of a directory's files, by name.
func (s *site) files(dir string) map[string]string {
	s.Helper()
	all := map[string]string{}
	names, err := filepath.Glob(filepath.Join(s.dir, dir, "*.jsonl"))
	if err != nil {
		s.Fatal(err)
	}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			s.Fatal(err)
		}
		all[filepath.Base(name)] = string(data)
	}
	return all
}

func (s *site) want(dir string, want map[string]string) {
	s.Helper()
	got := s.files(dir)
	if len(got) != len(want) {
		s.Errorf("%d files, want %d: %v", len(got), len(want), got)
	}
	for name, content := range want {
		if got[name] != content {
			s.Errorf("%s is\n%s\nnot\n%s", name, got[name], content)
		}
	}
}

func TestChangesAreLinesAndASuccessorGoesOnAfterThem(t *testing.T) {
	s := newSite(t)
	w := s.acquire(epoch(1), 3)
	s.write(w, 5, inserts(4, 1), inserts(5, 2))
	s.write(w, 5, inserts(4, 1), inserts(5, 2)) // it is there
	s.write(w, 6, inserts(6, 1))
	first := text(4, 1, 1) + text(5, 1, 2) + text(5, 2, 2) + text(6, 1, 1)
	s.want("shop.orders", map[string]string{"000001.jsonl": first})
	w = s.acquire(epoch(2), 6)
	s.write(w, 9, inserts(8, 1))
	s.want("shop.orders", map[string]string{
		"000001.jsonl": first,
		"000002.jsonl": text(8, 1, 1) + `{"position":9,"schema":"shop","table":"orders","kind":"position","change":1,"changes":1}` + "\n",
	})
	s.acquire(epoch(3), 9)
}

func TestValuesAreExact(t *testing.T) {
	s := newSite(t)
	values := []any{nil, int64(math.MinInt64), uint64(math.MaxUint64), "a\"<\n\u2028é", "\xff", []byte{0, 255}, float32(0.1), 1e300, "12345678901234567890.123"}
	columns := make([]stream.Column, len(values))
	for i := range columns {
		columns[i].Name = string(rune('a' + i))
	}
	columns[0].Name = "a \"b\""
	row := &stream.Rows{Position: 4, At: committed, Table: orders, Schema: &stream.Schema{Columns: columns}, Changes: []stream.Change{
		{Kind: stream.Update, Before: values, After: values}, {Kind: stream.Delete, Before: values},
	}}
	s.write(s.acquire(epoch(1), 3), 4, row)
	object := `{"a \"b\"":null,"b":-9223372036854775808,"c":18446744073709551615,"d":"a\"<\n\u2028é","e":{"base64":"/w=="},"f":{"base64":"AP8="},"g":0.1,"h":1e+300,"i":"12345678901234567890.123"}`
	head := `{"position":4,"committed":"2026-03-01T12:00:00.123456Z","schema":"shop","table":"orders","kind":`
	s.want("shop.orders", map[string]string{"000001.jsonl": head + `"update","change":1,"changes":2,"before":` + object + `,"after":` + object + "}\n" +
		head + `"delete","change":2,"changes":2,"before":` + object + "}\n"})
	bad := inserts(5, 1)
	bad.Changes[0].After[1] = math.NaN()
	w := s.acquire(epoch(1), 4)
	if err := w.Write(t.Context(), []*stream.Rows{bad}, 5); !errors.Is(err, stream.ErrUnusable) {
		t.Errorf("a value that JSON has not: %v", err)
	}
}

// A crash leaves any beginning of what was being written. Whatever is there of the last transaction is cut off.
func TestACrashInTheMiddle(t *testing.T) {
	before, last := text(4, 1, 1), text(5, 1, 3)+text(5, 2, 3)+text(5, 3, 3)
	s := newSite(t)
	s.write(s.acquire(epoch(1), 3), 5, inserts(4, 1), inserts(5, 3))
	name := filepath.Join(s.dir, "shop.orders", "000001.jsonl")
	var w stream.Writer
	for n := range len(last) {
		if err := os.WriteFile(name, []byte(before+last[:n]), 0o600); err != nil {
			t.Fatal(err)
		}
		w = s.acquire(epoch(1), 4)
		s.want("shop.orders", map[string]string{"000001.jsonl": before})
	}
	s.write(w, 5, inserts(5, 3))
	s.want("shop.orders", map[string]string{"000001.jsonl": before, "000002.jsonl": last})
}

func TestACrashInTheFirstTransactionOfAFile(t *testing.T) {
	s := newSite(t)
	s.write(s.acquire(epoch(1), 3), 4, inserts(4, 1))
	s.write(s.acquire(epoch(2), 4), 5, inserts(5, 2))
	if err := os.Truncate(filepath.Join(s.dir, "shop.orders", "000002.jsonl"), int64(len(text(5, 1, 2)))); err != nil {
		t.Fatal(err)
	}
	s.write(s.acquire(epoch(3), 4), 5, inserts(5, 2))
	s.want("shop.orders", map[string]string{"000001.jsonl": text(4, 1, 1), "000002.jsonl": "", "000003.jsonl": text(5, 1, 2) + text(5, 2, 2)})
	s.acquire(epoch(4), 5)
}

// What a failed attempt left is not followed by the next one's lines.
func TestATornWriteIsCutOffBeforeTheNext(t *testing.T) {
	s := newSite(t)
	w := s.acquire(epoch(1), 3)
	s.write(w, 4, inserts(4, 1))
	f, err := os.OpenFile(filepath.Join(s.dir, "shop.orders", "000001.jsonl"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(text(5, 1, 1)[:20]); err != nil {
		t.Fatal(err)
	}
	f.Close()
	s.write(w, 5, inserts(5, 1))
	s.want("shop.orders", map[string]string{"000001.jsonl": text(4, 1, 1) + text(5, 1, 1)})
}

// The end of a file is looked for from its end, and may be longer than the first look.
func TestALongTransactionThatIsTorn(t *testing.T) {
	s := newSite(t)
	s.write(s.acquire(epoch(1), 3), 5, inserts(4, 1), inserts(5, 5000))
	name := filepath.Join(s.dir, "shop.orders", "000001.jsonl")
	info, err := os.Stat(name)
	if err != nil || info.Size() < 500_000 {
		t.Fatalf("%v, %v", info.Size(), err)
	}
	s.acquire(epoch(2), 5)
	if err := os.Truncate(name, info.Size()-1); err != nil {
		t.Fatal(err)
	}
	s.acquire(epoch(3), 4)
	s.want("shop.orders", map[string]string{"000001.jsonl": text(4, 1, 1)})
}

func TestFilesRotate(t *testing.T) {
	s := newSite(t, func(o *filesink.Options) { o.MaxBytes = 1024 })
	w := s.acquire(epoch(1), 3)
	var rows []*stream.Rows
	var all string
	for p := stream.Position(10); p < 40; p++ {
		rows = append(rows, inserts(p, 1))
		all += text(p, 1, 1)
	}
	s.write(w, 29, rows[:20]...)
	for i, r := range rows[20:] {
		s.write(w, stream.Position(30+i), r)
	}
	files, got := s.files("shop.orders"), ""
	for i := range len(files) {
		content := files[fmt.Sprintf("%06d.jsonl", i+1)]
		if len(content) > 1024 || len(content) < 1024-2*len(text(10, 1, 1)) && i < len(files)-1 {
			t.Errorf("file %d has %d bytes", i+1, len(content))
		}
		got += content
	}
	if got != all {
		t.Errorf("the files have\n%s", got)
	}
	s.acquire(epoch(2), 39)
}

func TestATransactionIsNotSplit(t *testing.T) {
	s := newSite(t, func(o *filesink.Options) { o.MaxBytes = 1024 })
	s.write(s.acquire(epoch(1), 3), 6, inserts(4, 1), inserts(5, 20), inserts(6, 1))
	files := s.files("shop.orders")
	if len(files) != 3 || strings.Count(files["000002.jsonl"], "\n") != 20 {
		t.Errorf("%v", files)
	}
}

func TestTwoOwners(t *testing.T) {
	s := newSite(t)
	old := s.acquire(epoch(1), 3)
	s.write(old, 4, inserts(4, 1))
	young := s.acquire(epoch(2), 4)
	if err := old.Write(t.Context(), []*stream.Rows{inserts(5, 1)}, 5); !errors.Is(err, stream.ErrNotOwner) {
		t.Errorf("the old owner: %v", err)
	}
	s.write(young, 5, inserts(5, 1))
	if _, _, err := s.sink.Acquire(t.Context(), orders.Since(0), epoch(1), 3); !errors.Is(err, stream.ErrNotOwner) {
		t.Errorf("the old epoch: %v", err)
	}
	s.want("shop.orders", map[string]string{"000001.jsonl": text(4, 1, 1), "000002.jsonl": text(5, 1, 1)})
}

func TestADirectoryBelongsToOneChangefeed(t *testing.T) {
	s := newSite(t)
	s.acquire(epoch(1), 3)
	other := newSite(t, func(o *filesink.Options) { o.Directory, o.Changefeed = s.dir, "default/other/2" })
	_, _, err := other.sink.Acquire(t.Context(), orders.Since(0), epoch(9), 3)
	want := "sink " + s.dir + ": directory shop.orders belongs to changefeed default/demo/1: use another directory for each changefeed: misconfigured; retrying will not help"
	if !errors.Is(err, stream.ErrUnusable) || err.Error() != want {
		t.Errorf("%v", err)
	}
	if known, err := other.sink.Known(t.Context()); len(known) != 0 || err != nil {
		t.Errorf("%v, %v", known, err)
	}
}

func TestNothingIsWrittenWhileTheLeaseIsInDoubt(t *testing.T) {
	may := true
	s := newSite(t, func(o *filesink.Options) { o.May = func() bool { return may } })
	w := s.acquire(epoch(1), 3)
	s.write(w, 4, inserts(4, 1))
	may = false
	want := "sink " + s.dir + ": the node's lease is in doubt: no files are written until it is renewed"
	drop := &stream.DDL{Kind: stream.DropTable, Schema: "shop", Statement: "DROP TABLE orders", Tables: []stream.Table{orders}}
	_, _, acquired := s.sink.Acquire(t.Context(), orders.Since(0), epoch(2), 3)
	for what, err := range map[string]error{
		"write": w.Write(t.Context(), []*stream.Rows{inserts(5, 1)}, 5), "acquire": acquired, "execute DDL": s.sink.ExecuteDDL(t.Context(), 6, drop, epoch(0)),
	} {
		if err == nil || err.Error() != want || errors.Is(err, stream.ErrNotOwner) || errors.Is(err, stream.ErrUnusable) {
			t.Errorf("%s: %v", what, err)
		}
	}
	s.want("shop.orders", map[string]string{"000001.jsonl": text(4, 1, 1)})
	may = true
	s.write(w, 5, inserts(5, 1))
	s.want("shop.orders", map[string]string{"000001.jsonl": text(4, 1, 1) + text(5, 1, 1)})
}

func TestNamesWithOddCharacters(t *testing.T) {
	s := newSite(t)
	long := strings.Repeat("ü", 64)
	tables := []stream.Table{
		{Schema: "a.b", Name: "c"}, {Schema: "a", Name: "b.c"}, {Schema: "..", Name: ".."}, {Schema: "/", Name: "../x"}, {Schema: "a%2Eb", Name: "c"},
		{Schema: "ddl", Name: "ddl"}, {Schema: "a b", Name: "\n\"'\\*?"}, {Schema: long, Name: long}, {Schema: long, Name: long[:len(long)-2] + "ö"}, {Schema: "s", Name: "~x"},
	}
	for i, table := range tables {
		w, _, err := s.sink.Acquire(t.Context(), table.Since(0), epoch(1), 0)
		if err != nil {
			t.Fatalf("%q: %v", table, err)
		}
		row := inserts(stream.Position(i+1), 1)
		row.Table = table
		s.write(w, row.Position, row)
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil || len(entries) != len(tables) {
		t.Errorf("%d directories for %d tables: %v", len(entries), len(tables), err)
	}
	if outside, _ := os.ReadDir(filepath.Dir(s.dir)); len(outside) != 1 {
		t.Errorf("something is beside the directory: %v", outside)
	}
	known, err := s.sink.Known(t.Context())
	for i, table := range tables {
		if !slices.Contains(known, table) || err != nil {
			t.Errorf("%q is not known: %v", table, err)
		}
		if _, at, err := s.sink.Acquire(t.Context(), table.Since(0), epoch(2), 0); err != nil || at != stream.Position(i+1) {
			t.Errorf("%q is at %d: %v", table, at, err)
		}
	}
}

func TestDDL(t *testing.T) {
	s := newSite(t)
	s.write(s.acquire(epoch(1), 3), 4, inserts(4, 1))
	execute := func(p stream.Position, d *stream.DDL, e stream.Epoch) {
		t.Helper()
		for range 2 {
			if err := s.sink.ExecuteDDL(context.Background(), p, d, e); err != nil {
				t.Fatal(err)
			}
		}
	}
	known := func(want ...stream.Table) {
		t.Helper()
		if got, err := s.sink.Known(t.Context()); err != nil || !slices.Equal(got, want) {
			t.Errorf("known are %v, %v", got, err)
		}
	}
	sales := stream.Table{Schema: "shop", Name: "sales"}
	alter := &stream.DDL{Kind: stream.AlterTable, Schema: "shop", Statement: "ALTER TABLE orders ADD x INT", Tables: []stream.Table{orders}}
	execute(5, alter, epoch(1))
	w := s.acquire(epoch(1), 5)
	s.write(w, 6, inserts(6, 1))
	execute(5, alter, epoch(1)) // it is asked for again after a crash
	s.want("shop.orders", map[string]string{
		"000001.jsonl": text(4, 1, 1),
		"000002.jsonl": `{"position":5,"schema":"shop","table":"orders","kind":"ddl","change":1,"changes":1,"definition":"alter","tables":[{"schema":"shop","name":"orders"}],"statement":"ALTER TABLE orders ADD x INT"}` + "\n",
		"000003.jsonl": text(6, 1, 1),
	})
	known(orders)
	rename := &stream.DDL{Kind: stream.RenameTable, Schema: "shop", Statement: "RENAME TABLE orders TO sales", Tables: []stream.Table{orders}, Becomes: []stream.Table{sales}}
	create := &stream.DDL{Kind: stream.CreateTable, Schema: "shop", Statement: "CREATE TABLE orders (id INT)", Tables: []stream.Table{orders}}
	defined := func(p stream.Position, want bool) {
		t.Helper()
		if got, err := s.sink.DDLExecuted(t.Context(), p); err != nil || got != want {
			t.Errorf("executed at %d: %v, %v", p, got, err)
		}
	}
	defined(7, false)
	execute(7, rename, epoch(0))
	defined(7, true)
	defined(8, false)
	known()
	if _, _, err := s.sink.Acquire(t.Context(), sales.Since(0), epoch(2), 7); err != nil {
		t.Fatal(err)
	}
	known(sales)
	execute(8, create, epoch(0))
	known(orders, sales)
	execute(7, rename, stream.Epoch{Placement: 2}) // another maintainer goes through them again
	execute(8, create, stream.Epoch{Placement: 2})
	known(orders, sales)
	execute(9, &stream.DDL{Kind: stream.OtherDDL, Statement: "CREATE USER a IDENTIFIED BY 'secret'"}, stream.Epoch{Placement: 2})
	execute(10, &stream.DDL{Kind: stream.SetSchema, Schema: "new", Statement: "create database new"}, stream.Epoch{Placement: 2})
	if err := s.sink.ExecuteDDL(t.Context(), 11, create, epoch(0)); !errors.Is(err, stream.ErrNotOwner) {
		t.Errorf("the old maintainer: %v", err)
	}
	got := s.files("ddl")
	want := `{"position":7,"schema":"shop","kind":"ddl","change":1,"changes":1,"definition":"rename","tables":[{"schema":"shop","name":"orders"}],"becomes":[{"schema":"shop","name":"sales"}],"statement":"RENAME TABLE orders TO sales"}` + "\n" +
		`{"position":8,"schema":"shop","kind":"ddl","change":1,"changes":1,"definition":"create","tables":[{"schema":"shop","name":"orders"}],"statement":"CREATE TABLE orders (id INT)"}` + "\n" +
		`{"position":10,"schema":"new","kind":"ddl","change":1,"changes":1,"definition":"other","statement":"create database new"}` + "\n"
	if all := got["000001.jsonl"] + got["000002.jsonl"] + got["000003.jsonl"]; all != want {
		t.Errorf("the DDL is\n%s", all)
	}
}

// A table that was renamed, and created again, is another one. Who writes the first late, or is to begin with it, is not the owner.
func TestAnOwnerOfAnEarlierTableOfTheNameWritesNothing(t *testing.T) {
	s := newSite(t)
	old := s.acquire(epoch(1), 3)
	s.write(old, 4, inserts(4, 1))
	sales := stream.Table{Schema: "shop", Name: "sales"}
	execute := func(p stream.Position, d stream.DDL) {
		t.Helper()
		if err := s.sink.ExecuteDDL(t.Context(), p, &d, epoch(0)); err != nil {
			t.Fatal(err)
		}
	}
	held := func(want stream.Holder) {
		t.Helper()
		all, err := s.sink.Holders(t.Context())
		one, failed := s.sink.HoldersOf(t.Context(), []stream.Table{orders})
		if err != nil || failed != nil || all[orders] != want || one[orders] != want || len(one) != 1 {
			t.Errorf("the name is that of %+v, %+v, want %+v: %v %v", all[orders], one[orders], want, err, failed)
		}
	}
	late := func(what string, earlier ...stream.Identity) {
		t.Helper()
		for _, table := range earlier {
			if _, _, err := s.sink.Acquire(t.Context(), table, epoch(9), 3); !errors.Is(err, stream.ErrNotOwner) {
				t.Errorf("%s: the one since %d is acquired: %v", what, table.Since, err)
			}
		}
	}
	rename := stream.DDL{Kind: stream.RenameTable, Schema: "shop", Statement: "RENAME TABLE orders TO sales", Tables: []stream.Table{orders}, Becomes: []stream.Table{sales}}
	create := stream.DDL{Kind: stream.CreateTable, Schema: "shop", Statement: "CREATE TABLE orders (id INT)", Tables: []stream.Table{orders}}
	drop := stream.DDL{Kind: stream.DropTable, Schema: "shop", Statement: "DROP TABLE orders", Tables: []stream.Table{orders}}
	held(stream.Holder{})
	execute(7, rename)
	held(stream.Holder{Since: 7, Over: true})
	late("renamed", orders.Since(0), orders.Since(6))
	execute(8, create)
	held(stream.Holder{Since: 8})
	late("created again", orders.Since(0), orders.Since(7))
	if err := old.Write(t.Context(), []*stream.Rows{inserts(8, 1)}, 8); !errors.Is(err, stream.ErrNotOwner) {
		t.Errorf("the owner of the first writes: %v", err)
	}
	execute(7, rename) // another maintainer goes through them again
	held(stream.Holder{Since: 8})
	w, _, err := s.sink.Acquire(t.Context(), orders.Since(8), epoch(2), 7)
	if err != nil {
		t.Fatal(err)
	}
	s.write(w, 9, inserts(9, 1))
	execute(10, drop)
	execute(8, create)
	held(stream.Holder{Since: 10, Over: true})
	late("dropped", orders.Since(0), orders.Since(8))
	if _, _, err := s.sink.Acquire(t.Context(), orders.Since(10), epoch(3), 10); err != nil {
		t.Errorf("one that got the name unnoticed: %v", err)
	}
}

func TestParse(t *testing.T) {
	for text, want := range map[string]string{
		"file:///data/out":                 "",
		"file:///data/out?maxBytes=1024":   "",
		"file://data/out":                  `sink "file://data/out": use the absolute path of a directory, as in file:///directory`,
		"file:///":                         `sink "file:///": use the absolute path of a directory, as in file:///directory`,
		"file:":                            `sink "file:": use the absolute path of a directory, as in file:///directory`,
		"file:///data?size=1":              `sink "file:///data?size=1": unknown parameter "size": the only one is maxBytes`,
		"file:///data?maxBytes=1023":       `sink "file:///data?maxBytes=1023": maxBytes=1023 must be a number of bytes, at least 1024`,
		"file:///data?maxBytes=many":       `sink "file:///data?maxBytes=many": maxBytes=many must be a number of bytes, at least 1024`,
		"file:///data?maxBytes=67108864#x": `sink "file:///data?maxBytes=67108864#x": use the absolute path of a directory, as in file:///directory`,
	} {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if _, err := filesink.Parse(u); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %q", text, got)
		}
	}
}
