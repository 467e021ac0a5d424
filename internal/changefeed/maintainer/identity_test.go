package maintainer

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed/sqlsink"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/changefeed/wire"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// A maintainer that begins at an older checkpoint reads DDL again that was executed already. The sink says which table has a name by now.
func TestDDLThatIsReadAgainDoesNotBringBackATableThatIsOver(t *testing.T) {
	b := testenv.StartMariaDB(t)
	b.Exec("CREATE DATABASE w", "CREATE TABLE w.t (id INT PRIMARY KEY)")
	sink, err := sqlsink.Open(sqlsink.Options{Address: b.Address, User: b.User, Password: b.Password, Changefeed: "default/again/1"})
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	incarnation, err := sink.Incarnation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := sink.AdoptCheckpoint(t.Context(), nil, stream.Checkpoint{Incarnation: incarnation}); err != nil {
		t.Fatal(err)
	}
	name, other := stream.Table{Schema: "w", Name: "t"}, stream.Table{Schema: "w", Name: "u"}
	if _, _, err := sink.Acquire(t.Context(), name.Since(0), stream.Epoch{Placement: 1, Counter: 1}, 5); err != nil {
		t.Fatal(err)
	}
	log := []*stream.Transaction{
		{Position: 10, DDL: &stream.DDL{Kind: stream.RenameTable, Schema: "w", Tables: []stream.Table{name}, Becomes: []stream.Table{other}, Statement: "RENAME TABLE t TO u"}},
		{Position: 20, DDL: &stream.DDL{Kind: stream.CreateTable, Schema: "w", Tables: []stream.Table{name}, Statement: "CREATE TABLE t (id INT PRIMARY KEY)"}},
		{Position: 30, DDL: &stream.DDL{Kind: stream.DropTable, Schema: "w", Tables: []stream.Table{other}, Statement: "DROP TABLE u"}},
	}
	for _, tx := range log {
		if err := sink.ExecuteDDL(t.Context(), tx.Position, tx.DDL, stream.Epoch{Placement: 1}); err != nil {
			t.Fatal(err)
		}
	}
	m := New(Options{Log: slog.New(slog.DiscardHandler)}, &v1alpha1.Changefeed{})
	m.missing = map[stream.Table]bool{}
	held, err := holders(t.Context(), sink)
	if err != nil {
		t.Fatal(err)
	}
	m.tables[name] = newTable(held[name].Since, 5)
	for _, tx := range log {
		before := m.tablesBefore(tx)
		after, err := holdersAfter(t.Context(), sink, tx.DDL.After(), tx, true, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, leader := range before {
			m.forget(leader)
		}
		if err := m.enterAfter(tx.Position, tx.DDL, nil, after, nil, nil); err != nil {
			t.Fatal(err)
		}
		if e := m.tables[name]; len(m.tables) != 1 || e == nil || !e.is(name.Since(20)) {
			t.Errorf("after the DDL at %d: %+v", tx.Position, m.tables)
		}
	}
	// A version that knew only names has executed the DDL, and the table has been written since. It is not written again.
	b.Exec("UPDATE ebb.progress SET since = 0, position = 50 WHERE table_name = 't'")
	after, err := holdersAfter(t.Context(), sink, []stream.Table{name}, log[1], true, nil)
	if err != nil {
		t.Fatal(err)
	}
	m.forget(name)
	if err := m.enterAfter(20, log[1].DDL, nil, after, nil, nil); err != nil {
		t.Fatal(err)
	}
	e := m.tables[name]
	if _, at, err := sink.Acquire(t.Context(), e.identity(name), stream.Epoch{Placement: 1, Counter: 2}, e.floor); at != 50 || err != nil {
		t.Errorf("it begins at %d: %v", at, err)
	}
}

// DDL that is not executed at the sink is not recorded there. What it gives a name is another table all the same, and what it leaves is the same.
func TestNamesThatAreGivenByDDLThatIsNotExecuted(t *testing.T) {
	table := func(name string) stream.Table { return stream.Table{Schema: "s", Name: name} }
	tx := &stream.Transaction{Position: 40, DDL: &stream.DDL{Kind: stream.RenameTable, Tables: []stream.Table{table("a")}, Becomes: []stream.Table{table("b")}}}
	held, err := holdersAfter(t.Context(), nil, []stream.Table{table("b")}, tx, false, nil)
	if held != nil || err != nil {
		t.Errorf("a sink that knows names only: %v %v", held, err)
	}
	sink, err := sqlsink.Open(sqlsink.Options{Address: "127.0.0.1:1", User: "u", Changefeed: "default/copy/1"}) // it does not connect
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	held, err = holdersAfter(t.Context(), sink, []stream.Table{table("b"), table("kept")}, tx, false, map[stream.Table]stream.Holder{table("kept"): {Since: 9}, table("b"): {Since: 3}})
	if got := fmt.Sprint(held); err != nil || got != "map[s.b:{40 false} s.kept:{9 false}]" {
		t.Errorf("%s %v", got, err)
	}
}

// Of a group, every member is a table of its own. The sink may have a member that is not known.
func TestOrdersOfAGroupNameEveryMember(t *testing.T) {
	table := func(name string) stream.Table { return stream.Table{Schema: "s", Name: name} }
	m := New(Options{Log: slog.New(slog.DiscardHandler)}, &v1alpha1.Changefeed{})
	keys := []stream.ForeignKey{
		{Name: "k", Child: table("child"), Parent: table("parent"), OnDelete: true}, {Name: "l", Child: table("gone"), Parent: table("parent"), OnDelete: true},
	}
	if err := m.enter(map[stream.Table]*entry{table("child"): newTable(7, 5), table("parent"): newTable(0, 5)}, keys, nil); err != nil {
		t.Fatal(err)
	}
	for leader, e := range m.tables {
		o := m.newOrders(map[stream.Table]*entry{leader: e})[leader]
		want := []string{"s\x00child\x007", "s\x00gone", "s\x00parent\x000"}
		if len(m.tables) != 1 || fmt.Sprint(o.Members) != fmt.Sprint(want) || o.Table != want[0] || o.Begins != 7 {
			t.Errorf("%q begins at %d and has %q", o.Table, o.Begins, o.Members)
		}
		if id, _ := wire.ParseTable(o.Table); m.reported(id) != e || m.reported(leader.Since(0)) != nil {
			t.Errorf("reports about %+v", id)
		}
	}
}

type entry = table
