package maintainer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/ebb-dev/ebb/internal/changefeed/mariadb"
	"github.com/ebb-dev/ebb/internal/changefeed/sqlkeys"
	"github.com/ebb-dev/ebb/internal/changefeed/sqlsink"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// keyDDL is a random statement that may add or drop foreign keys, of tables with few names. Many of them fail.
func keyDDL(r *rand.Rand, n int) string {
	name := func() string { return []string{"g.t1", "g.t2", "g.t3", "t4", "h.t5", "g.`t 6`"}[r.IntN(6)] }
	action := func() string {
		return []string{"", " ON DELETE CASCADE", " ON UPDATE CASCADE", " ON DELETE SET NULL ON UPDATE CASCADE", " ON DELETE RESTRICT", " ON UPDATE NO ACTION ON DELETE CASCADE", " ON DELETE SET DEFAULT", " MATCH SIMPLE ON DELETE CASCADE"}[r.IntN(8)]
	}
	columns := "id INT PRIMARY KEY, a INT, b INT, KEY (a), KEY (b)"
	key := func() string {
		return fmt.Sprintf("CONSTRAINT k%d FOREIGN KEY (%s) REFERENCES %s (id)%s", n, []string{"a", "b"}[r.IntN(2)], name(), action())
	}
	switch r.IntN(14) {
	case 0:
		return "CREATE TABLE " + name() + " (" + columns + ")"
	case 1, 2:
		return "CREATE TABLE " + name() + " (" + columns + ", " + key() + ")"
	case 3:
		return "CREATE OR REPLACE TABLE " + name() + " (" + columns + ", c INT /* REFERENCES t9 (id) */ COMMENT 'REFERENCES t8' REFERENCES " + name() + " (id)" + action() + ")"
	case 4:
		return "CREATE TABLE IF NOT EXISTS " + name() + " LIKE " + name()
	case 5, 6, 7:
		return "ALTER TABLE " + name() + " ADD " + key()
	case 8:
		return fmt.Sprintf("ALTER TABLE %s ADD COLUMN c%d INT REFERENCES %s (id)%s, COMMENT='x'", name(), n, name(), action())
	case 9:
		return fmt.Sprintf("ALTER TABLE %s DROP %s k%d", name(), []string{"FOREIGN KEY", "CONSTRAINT", "FOREIGN KEY IF EXISTS"}[r.IntN(3)], r.IntN(n+1))
	case 10:
		return "RENAME TABLE " + name() + " TO " + name()
	case 11:
		return "DROP TABLE IF EXISTS " + name() + ", " + name()
	case 12:
		return "ALTER TABLE " + name() + " ADD " + key() + ", RENAME TO " + name()
	}
	return "TRUNCATE " + name()
}

// groupsOf are the groups that a maintainer has, and all tables that it knows.
func groupsOf(m *Maintainer) (groups, known []string) {
	for name, t := range m.tables {
		if len(t.members) > 0 {
			groups = append(groups, fmt.Sprint(t.members))
		}
		for _, each := range t.names(name) {
			if t.exists(each) {
				known = append(known, each.String())
			}
		}
	}
	slices.Sort(groups)
	slices.Sort(known)
	return groups, known
}

// Whatever DDL adds or drops foreign keys, the groups after it, of which only those that it concerns are made again, are those that all
// keys of the source give.
func TestGroupsFollowEveryDDLThatChangesForeignKeys(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	source, err := mariadb.Open(mariadb.Options{Address: a.Address, User: a.User, Password: a.Password})
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	sink, err := sqlsink.Open(sqlsink.Options{Address: b.Address, User: b.User, Password: b.Password, Changefeed: "default/keys/1"})
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
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	a.Exec("CREATE DATABASE g", "CREATE DATABASE h")
	db := a.Open("g")
	defer db.Close()
	db.SetMaxOpenConns(1)
	m := &Maintainer{tables: map[stream.Table]*table{}, grouped: map[stream.Table]stream.Table{}, keyed: map[stream.Table][]stream.Table{}, missing: map[stream.Table]bool{}}
	at := stream.Position(0)
	executed := 0
	for n := 0; executed < 40 && n < 400; n++ {
		statement := keyDDL(r, n)
		if _, err := db.Exec(fmt.Sprintf("SET foreign_key_checks=%d", r.IntN(2))); err != nil {
			t.Fatal(err)
		}
		if _, err := db.Exec(statement); err != nil {
			continue
		}
		executed++
		head, err := source.Head(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if head > at {
			at = follow(t, m, source, sink, at, head)
		}
		keys, err := sqlkeys.Read(t.Context(), db)
		if err != nil {
			t.Fatal(err)
		}
		present := presentAt(t, sink)
		var want []string
		for _, group := range stream.CascadeGroups(keys) {
			if slices.ContainsFunc(group, func(name stream.Table) bool { return present[name] }) {
				want = append(want, fmt.Sprint(group))
			}
		}
		slices.Sort(want)
		got, known := groupsOf(m)
		if !slices.Equal(got, want) {
			t.Fatalf("after %s\ngroups %v\nkeys give %v", statement, got, want)
		}
		var exist []string
		for name := range maps.Keys(present) {
			exist = append(exist, name.String())
		}
		slices.Sort(exist)
		if !slices.Equal(known, exist) {
			t.Fatalf("after %s\nknown  %v\nexist  %v", statement, known, exist)
		}
		held, err := holders(t.Context(), sink)
		if err != nil {
			t.Fatal(err)
		}
		for name := range present {
			if _, e := m.find(name); e.identity(name).Since != held[name].Since || held[name].Over {
				t.Fatalf("after %s\ntable %s is %+v, and the sink has %+v", statement, name, e, held[name])
			}
		}
	}
}

// follow executes DDL at a sink as the table trigger does.
func follow(t *testing.T, m *Maintainer, source stream.Source, sink *sqlsink.Sink, after, to stream.Position) stream.Position {
	t.Helper()
	done := errors.New("done")
	err := source.Read(t.Context(), after, func(tx *stream.Transaction) error {
		switch d := tx.DDL; {
		case d == nil:
		case d.Alone():
			if err := sink.ExecuteDDL(t.Context(), tx.Position, d, stream.Epoch{Placement: 1}); err != nil {
				return err
			}
		default:
			before := m.tablesBefore(tx)
			kept, grouped := m.keptOf(before, d)
			if err := sink.ExecuteDDL(t.Context(), tx.Position, d, stream.Epoch{Placement: 1}); err != nil {
				return err
			}
			var keys []stream.ForeignKey
			if grouped || len(d.References) > 0 {
				var err error
				if keys, err = foreignKeys(context.Background(), sink); err != nil {
					return err
				}
			}
			held, err := holdersOf(t.Context(), sink, slices.Concat(d.After(), kept))
			if err != nil {
				return err
			}
			for _, leader := range before {
				m.forget(leader)
			}
			if err := m.enterAfter(tx.Position, d, kept, held, keys, nil); err != nil {
				return err
			}
		}
		if tx.Position >= to {
			return done
		}
		return nil
	})
	if !errors.Is(err, done) {
		t.Fatal(err)
	}
	return to
}

func presentAt(t *testing.T, sink *sqlsink.Sink) map[stream.Table]bool {
	t.Helper()
	list, err := sink.Present(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	present := map[stream.Table]bool{}
	for _, name := range list {
		if name.Schema == "g" || name.Schema == "h" {
			present[name] = true
		}
	}
	return present
}
