package maintainer

import (
	"fmt"
	"slices"
	"testing"

	"github.com/ebb-dev/ebb/internal/changefeed/sqlsink"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// DROP SEQUENCE IF EXISTS leaves tables alone, and is logged with their names.
func TestATableThatADropOfSequencesNamesStays(t *testing.T) {
	b := testenv.StartMariaDB(t)
	b.Exec("CREATE DATABASE w", "CREATE TABLE w.t (id INT)", "INSERT INTO w.t VALUES (1)", "CREATE SEQUENCE w.s")
	sink, err := sqlsink.Open(sqlsink.Options{Address: b.Address, User: b.User, Password: b.Password, Changefeed: "default/drops/1"})
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
	name := func(text string) stream.Table { return stream.Table{Schema: "w", Name: text} }
	for _, table := range []string{"t", "s"} {
		if _, _, err := sink.Acquire(t.Context(), name(table).Since(0), stream.Epoch{Placement: 1, Counter: 1}, 5); err != nil {
			t.Fatal(err)
		}
	}
	drop := &stream.DDL{Kind: stream.DropTable, Sequences: true, IfExists: true, Schema: "w", Tables: []stream.Table{name("t"), name("s"), name("none")}, Statement: "DROP SEQUENCE IF EXISTS t, s, none"}
	for _, again := range []string{"first", "after a crash of whoever has executed it"} {
		tx, err := withoutTables(t.Context(), sink, &stream.Transaction{Position: 10, DDL: drop})
		if err != nil || fmt.Sprint(tx.DDL.Tables, tx.DDL.Reads, tx.DDL.After()) != "[w.s w.none] [w.t] [w.t]" {
			t.Fatalf("%s: %v %v %v", again, tx.DDL.Tables, tx.DDL.Reads, err)
		}
		if err := sink.ExecuteDDL(t.Context(), 10, tx.DDL, stream.Epoch{Placement: 1}); err != nil {
			t.Fatal(err)
		}
		b.Exec("UPDATE ebb.ddl SET done = FALSE")
	}
	if len(drop.Tables) != 3 {
		t.Error("the DDL was changed, which dispatchers use")
	}
	if got := b.Value("SELECT GROUP_CONCAT(table_name) FROM information_schema.tables WHERE table_schema = 'w'"); got != "t" {
		t.Errorf("the sink has %s", got)
	}
	if got := b.Value("SELECT GROUP_CONCAT(CONCAT_WS(' ', table_name, placement, position) ORDER BY table_name) FROM ebb.progress WHERE table_name <> ''"); got != "s -2 10,t 1 10" {
		t.Errorf("the rows of the progress are %s", got)
	}
	for _, other := range []*stream.DDL{{Kind: stream.DropTable, IfExists: true, Tables: drop.Tables}, {Kind: stream.DropTable, Sequences: true, Tables: drop.Tables}} {
		tx := &stream.Transaction{Position: 11, DDL: other}
		if same, err := withoutTables(t.Context(), sink, tx); same != tx || err != nil {
			t.Errorf("%+v: %v", other, err)
		}
	}
	if !slices.Equal(drop.Names(), drop.Tables) {
		t.Error(drop.Names())
	}
}
