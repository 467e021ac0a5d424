package rowevent_test

import (
	"encoding/base64"
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
	"pgregory.net/rapid"

	"github.com/ebb-dev/ebb/internal/changefeed/rowevent"
)

// pairs is a table s.NAME of two columns, INT and VARCHAR(20).
func pairs(t testing.TB, name string) *rowevent.Table {
	t.Helper()
	body := append([]byte{1 | 0x40, 0, 1, 's', 0, byte(len(name))}, name...)
	body = append(body, 0, 2, mysql.MYSQL_TYPE_LONG, mysql.MYSQL_TYPE_VARCHAR, 2, 20, 0, 2)
	body = append(body, 1, 1, 0) // what only readers need
	table, err := rowevent.NewTable([]rowevent.Column{{Name: "n", Type: mysql.MYSQL_TYPE_LONG}, {Name: "v", Type: mysql.MYSQL_TYPE_VARCHAR, Meta: 20, Nullable: true}}, []int{0}, body)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// image is a row of pairs; v may be missing.
func image(n int32, v *string) []byte {
	if v == nil {
		return binary.LittleEndian.AppendUint32([]byte{2}, uint32(n))
	}
	return append(append(binary.LittleEndian.AppendUint32([]byte{0}, uint32(n)), byte(len(*v))), *v...)
}

// change is a row that is written, updated or deleted.
type change struct {
	typ  byte
	n    int32
	null bool
	v    string
}

func (c change) images() []byte {
	v := &c.v
	if c.null {
		v = nil
	}
	if c.typ == rowevent.UpdateRows {
		return append(image(c.n, v), image(c.n+1, v)...)
	}
	return image(c.n, v)
}

func event(t testing.TB, table *rowevent.Table, changes ...change) rowevent.Event {
	t.Helper()
	body := []byte{2, 3}
	if changes[0].typ == rowevent.UpdateRows {
		body = append(body, 3)
	}
	for _, c := range changes {
		body = append(body, c.images()...)
	}
	e, err := table.Parse(changes[0].typ, body)
	if err != nil {
		t.Fatal(err)
	}
	if e.Changes != len(changes) {
		t.Fatalf("counted %d changes of %d", e.Changes, len(changes))
	}
	return e
}

// applied is what a server would do with a statement: the changes of each table, by name. It fails the test at whatever a server would
// ignore in silence.
func applied(t testing.TB, statement string) map[string][]change {
	t.Helper()
	text, ok := strings.CutPrefix(statement, "BINLOG '")
	text, end := strings.CutSuffix(text, "'")
	data, err := base64.StdEncoding.DecodeString(text)
	if !ok || !end || err != nil {
		t.Fatalf("%q: %v", statement, err)
	}
	parser := replication.NewBinlogParser()
	parser.SetFlavor("mariadb")
	result, open, first := map[string][]change{}, "", true
	for len(data) > 0 {
		size := int(binary.LittleEndian.Uint32(data[9:]))
		e, err := parser.Parse(data[:size])
		if err != nil {
			t.Fatal(err)
		}
		data = data[size:]
		if e.Header.LogPos != 0 {
			t.Error("an event has a position")
		}
		switch event := e.Event.(type) {
		case *replication.FormatDescriptionEvent:
			if !first || event.CreateTimestamp != 0 || event.ChecksumAlgorithm != replication.BINLOG_CHECKSUM_ALG_OFF {
				t.Errorf("format %+v", event)
			}
		case *replication.TableMapEvent:
			if open != "" {
				t.Errorf("table %s is described before the statement of table %s ends", event.Table, open)
			}
			if result[string(event.Table)] != nil || event.Flags != 1 {
				t.Errorf("table %s is described twice, or with the flags %d", event.Table, event.Flags)
			}
			open = string(event.Table)
		case *replication.RowsEvent:
			if open == "" || string(event.Table.Table) != open {
				t.Errorf("rows of table %s, and the table described is %q", event.Table.Table, open)
			}
			if event.Flags&^1 != 2|128 {
				t.Errorf("flags are %d", event.Flags)
			}
			result[open] = append(result[open], changesOf(byte(e.Header.EventType), event.Rows)...)
			if event.Flags&1 != 0 {
				open = ""
			}
		}
		first = false
	}
	if open != "" {
		t.Errorf("the statement of table %s does not end", open)
	}
	return result
}

func changesOf(typ byte, rows [][]any) (list []change) {
	step := 1
	if typ == rowevent.UpdateRows {
		step = 2
	}
	for i := 0; i < len(rows); i += step {
		v, text := rows[i][1].(string)
		list = append(list, change{typ, rows[i][0].(int32), !text, v})
	}
	return list
}

// Whatever events there are, a server applies every change of every table once, in order.
func TestAStatementLeavesNothingOut(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		var groups []rowevent.Group
		want := map[string][]change{}
		for i := range rapid.IntRange(1, 5).Draw(r, "tables") {
			name := "t" + string(rune('a'+i))
			g := rowevent.Group{Table: pairs(t, name), At: time.Unix(1700000000, 0)}
			for range rapid.IntRange(0, 4).Draw(r, "events") {
				typ := rapid.SampledFrom([]byte{rowevent.WriteRows, rowevent.UpdateRows, rowevent.DeleteRows}).Draw(r, "type")
				var changes []change
				for range rapid.IntRange(1, 5).Draw(r, "changes") {
					c := change{typ: typ, n: rapid.Int32Max(1<<30).Draw(r, "n"), null: rapid.Bool().Draw(r, "null")}
					if !c.null {
						c.v = rapid.StringMatching("[a-z]{0,20}").Draw(r, "v")
					}
					changes = append(changes, c)
				}
				g.Events = append(g.Events, event(t, g.Table, changes...))
				want[name] = append(want[name], changes...)
			}
			groups = append(groups, g)
		}
		var text strings.Builder
		rowevent.WriteStatement(&text, groups)
		statement := text.String()
		if len(want) == 0 {
			if statement != "" {
				t.Fatal("nothing was forwarded by a statement")
			}
			return
		}
		if len(statement) > rowevent.StatementLength(groups) {
			t.Errorf("a statement of %d bytes was to have at most %d", len(statement), rowevent.StatementLength(groups))
		}
		got := applied(t, statement)
		if len(got) != len(want) {
			t.Fatalf("%d tables, want %d", len(got), len(want))
		}
		for name, changes := range want {
			if len(got[name]) != len(changes) {
				t.Fatalf("table %s: %v, want %v", name, got[name], changes)
			}
			for i := range changes {
				if got[name][i] != changes[i] {
					t.Fatalf("table %s: %v, want %v", name, got[name], changes)
				}
			}
		}
	})
}

func TestADamagedEventIsNotCounted(t *testing.T) {
	table := pairs(t, "t")
	whole := append([]byte{2, 3}, change{typ: rowevent.WriteRows, n: 7, v: "seven"}.images()...)
	for cut := 1; cut < len(whole); cut++ {
		if e, err := table.Parse(rowevent.WriteRows, whole[:cut]); err == nil && e.Changes > 0 {
			t.Errorf("%d of %d bytes count as %d changes", cut, len(whole), e.Changes)
		}
	}
	if _, err := table.Parse(rowevent.WriteRows, append([]byte{2, 1}, whole[2:]...)); err != rowevent.ErrPartial {
		t.Errorf("a row without all columns: %v", err)
	}
	if _, err := table.Parse(rowevent.WriteRows, append([]byte{3, 7}, whole[2:]...)); err == nil {
		t.Error("a row has more columns than its table")
	}
}
