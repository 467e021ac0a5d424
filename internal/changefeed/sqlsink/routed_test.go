package sqlsink_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/ebb-dev/ebb/internal/changefeed/route"
	"github.com/ebb-dev/ebb/internal/changefeed/snapshot"
	"github.com/ebb-dev/ebb/internal/changefeed/sqlsink"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// affix is what the names of schemas and tables at the sink have more than those at the source.
const affix = "_routed"

// everyName gives everything another name.
var everyName = []route.Rule{{Match: "*.*", Schema: "{schema}" + affix, Table: "{table}" + affix}}

// routedSink opens a sink with routes.
func routedSink(t testing.TB, server *testenv.MariaDB, filter stream.Filter, rules ...route.Rule) stream.Sink {
	t.Helper()
	m, err := route.Parse(rules)
	if err != nil {
		t.Fatal(err)
	}
	return sqlsink.Route(openSinkAs(t, server, true), m, nil, filter)
}

// equalUnderOtherNames compares all tables of a source with those at a sink that have the affix in their names.
func equalUnderOtherNames(t *testing.T, source, sink *testenv.MariaDB) {
	t.Helper()
	a, b := source.Open(""), sink.Open("")
	defer a.Close()
	defer b.Close()
	tables := list(t, a)
	var other []string
	for _, name := range tables {
		other = append(other, strings.Replace(name, ".", affix+".", 1)+affix)
	}
	if found := list(t, b); strings.Join(found, " ") != strings.Join(other, " ") {
		t.Fatalf("the sink has tables\n%v\nand should have\n%v", found, other)
	}
	for i, table := range tables {
		x, y := tableContent(t, a, quoted(table)), strings.ReplaceAll(tableContent(t, b, quoted(other[i])), affix, "")
		if x != y {
			t.Errorf("table %s is\n%s\nat the source and\n%s\nat the sink", table, x, y)
		}
	}
}

func TestTablesArriveUnderOtherNames(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t, "--character-set-server=utf8mb4", "--sql-mode=")
	a.Exec(statements...)
	a.Exec("CREATE DATABASE f", "USE f", "CREATE SEQUENCE own", "USE d", "CREATE SEQUENCE own",
		"CREATE TABLE f.t (id INT DEFAULT NEXTVAL(own) PRIMARY KEY, p INT DEFAULT (NEXT VALUE FOR f.own))", // the one of the session
		"CREATE TABLE f.parent (id INT PRIMARY KEY)", "CREATE TABLE f.child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES parent (id))",
		"INSERT INTO f.parent VALUES (1)", "INSERT INTO f.child VALUES (1, 1)", "ALTER TABLE f.child ADD CONSTRAINT named FOREIGN KEY (id) REFERENCES f.parent (id)", "ALTER TABLE f.child DROP FOREIGN KEY named")
	p := newPipe(openSourceAs(t, a, true), routedSink(t, b, nil, everyName...), stream.Epoch{Placement: 1}, 10)
	p.sync(t)
	equalUnderOtherNames(t, a, b)
	if n := b.Value("SELECT COUNT(*) FROM ebb.progress WHERE table_name <> '' AND table_name NOT LIKE '%" + affix + "'"); n != "0" {
		t.Errorf("the progress of %s tables has names of the source", n)
	}
	again := newPipe(openSourceAs(t, a, true), routedSink(t, b, nil, everyName...), stream.Epoch{Placement: 2}, 10)
	again.sync(t)
	equalUnderOtherNames(t, a, b)
}

func TestTypesAreCopiedUnderOtherNames(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	a.Exec(everyType...)
	a.Exec("CREATE DATABASE e", "CREATE SEQUENCE e.numbers", "CREATE TABLE e.parent (id INT PRIMARY KEY)",
		"CREATE TABLE d.child (id INT DEFAULT NEXTVAL(e.numbers) PRIMARY KEY, p INT, q INT, FOREIGN KEY (p) REFERENCES e.parent (id), FOREIGN KEY (q) REFERENCES d.child (id))", "INSERT INTO e.parent VALUES (1)", "INSERT INTO d.child (p) VALUES (1)")
	source, sink := openSource(t, a), routedSink(t, b, nil, everyName...)
	plan := planned(t, source, sink.(snapshot.Sink))
	for _, d := range plan.Tables {
		w, _, err := sink.Acquire(t.Context(), d.Table.Since(0), stream.Epoch{Placement: 1}, plan.Position)
		if err != nil {
			t.Fatal(err)
		}
		s, err := source.OpenSnapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		l, _, err := s.Describe(t.Context(), d.Table)
		if err != nil {
			t.Fatal(err)
		}
		for to := w.(snapshot.Writer); to.Snapshot() != nil; {
			copyChunk(t, s, l, to, 2)
		}
		s.Close()
	}
	equalUnderOtherNames(t, a, b)
	again := routedSink(t, b, nil, everyName...).(snapshot.Sink)
	if err := again.MakeSnapshotTables(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if p, err := again.SnapshotProgress(t.Context()); err != nil || p.TablesDone != int64(len(plan.Tables)) {
		t.Fatalf("%+v, %v", p, err)
	}
}

func TestCascadesAreMadeUnderOtherNames(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	source, sink := openSource(t, a), routedSink(t, b, stream.Filter{"w.*"}, everyName...)
	a.Exec(append([]string{"CREATE DATABASE w CHARACTER SET utf8mb4"}, family...)...)
	p := newPipe(source, sink, stream.Epoch{Placement: 1}, 10)
	p.sync(t)
	keys, err := sink.(stream.GroupSink).ForeignKeys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	have, err := source.ForeignKeys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if lacking := (stream.Filter{"w.*"}).LackingCascades(have, keys); len(lacking) > 0 || len(keys) != len(have) {
		t.Fatalf("the sink lacks %v", lacking)
	}
	start := p.at
	db := a.Open("w")
	defer db.Close()
	db.SetMaxOpenConns(1)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r, epoch := rand.New(rand.NewPCG(seed, 2)), stream.Epoch{Placement: 1}
	for range 3 {
		changeFamily(t, r, db)
		head, err := source.Head(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, group := range stream.CascadeGroups(keys) {
			for stops := true; ; stops = r.IntN(3) != 0 {
				epoch.Counter++
				err := copyGroup(t.Context(), r, source, sink.(stream.GroupSink), group, epoch, start, head, stops)
				if err == nil {
					break
				}
				if !errors.Is(err, errStopped) {
					t.Fatal(err)
				}
			}
		}
		equalUnderOtherNames(t, a, b)
	}
	b.Exec("CREATE DATABASE own", "CREATE TABLE own.t (id INT PRIMARY KEY, r INT, FOREIGN KEY (r) REFERENCES w_routed.root_routed (id) ON DELETE CASCADE)")
	_, err = sink.(stream.GroupSink).ForeignKeys(t.Context())
	refused(t, err, "foreign key t_ibfk_1 of table own.t changes rows by cascade, and refers to table w_routed.root_routed, and only one of them is a table of this changefeed")
}

func TestRowsOfATableWithAnotherNameAreText(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	for _, m := range []*testenv.MariaDB{a, b} {
		m.Exec("CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY)", "CREATE TABLE d.b LIKE d.a", "CREATE TABLE d.c LIKE d.a")
	}
	source, plain := openSourceAs(t, a, true), openSinkAs(t, b, true)
	m, err := route.Parse([]route.Rule{{Match: "d.a", Table: "c"}})
	if err != nil {
		t.Fatal(err)
	}
	p := newPipe(source, sqlsink.Route(plain, m, nil, stream.Filter{"d.a", "d.b"}), stream.Epoch{Placement: 1}, 1)
	if p.at, err = source.Head(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.Exec("INSERT INTO d.a VALUES (1), (2)", "INSERT INTO d.b VALUES (3)")
	p.sync(t)
	if got := b.Value("SELECT CONCAT_WS(' ', (SELECT COUNT(*) FROM d.a), (SELECT COUNT(*) FROM d.b), (SELECT COUNT(*) FROM d.c))"); got != "0 1 2" {
		t.Fatalf("d.a, d.b and d.c have %s rows", got)
	}
	if n := plain.Forwarded(); n != 1 {
		t.Errorf("%d changes were forwarded, and only that of d.b can be", n)
	}
}

func TestOneNameForTwoTablesIsRefused(t *testing.T) {
	b := testenv.StartMariaDB(t)
	sink := routedSink(t, b, stream.Filter{"d.*"}, route.Rule{Match: "d.a", Table: "c"})
	_, _, err := sink.Acquire(t.Context(), stream.Table{Schema: "d", Name: "a"}.Since(0), stream.Epoch{Placement: 1}, 0)
	refused(t, err, "routing: tables d.a and d.c would both be d.c at the sink; exclude one of them by the filter, or give them different names")
	ddl := &stream.DDL{Kind: stream.CreateTable, Schema: "d", Statement: "CREATE TABLE c (id INT)", Tables: []stream.Table{{Schema: "d", Name: "c"}}}
	refused(t, sink.ExecuteDDL(t.Context(), 5, ddl, stream.Epoch{Placement: 1}), "position 5: routing: tables d.c and d.a would both be d.c at the sink")
}

func TestAStatementThatCannotBeRewrittenForCertainIsNotExecuted(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	a.Exec("CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY, n INT)", "ALTER TABLE d.a ADD CHECK (a.n > 0)")
	p := newPipe(openSource(t, a), routedSink(t, b, nil, everyName...), stream.Epoch{Placement: 1}, 10)
	head, err := p.source.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	refused(t, p.copy(context.Background(), 0, head), `statement "ALTER TABLE d.a ADD CHECK (a.n > 0)": tables have other names at the sink, and it names a.n, which may depend on the name of a schema or a table`)
}

func TestASinkAdvancesPastWhatIsLeftOut(t *testing.T) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	for _, m := range []*testenv.MariaDB{a, b} {
		m.Exec("CREATE DATABASE d", "CREATE TABLE d.a (id INT PRIMARY KEY)", "CREATE TABLE d.b (id INT PRIMARY KEY)")
	}
	source, sink := openSource(t, a), openNewSink(t, b, forwardAll)
	start, err := source.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	incarnation, err := sink.Incarnation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := sink.AdoptCheckpoint(t.Context(), nil, stream.Checkpoint{Position: start, Incarnation: incarnation}); err != nil {
		t.Fatal(err)
	}
	p := newPipe(source, sink, stream.Epoch{Placement: 1}, 1)
	p.at = start
	a.Exec("INSERT INTO d.a VALUES (1)", "INSERT INTO d.b VALUES (1)")
	p.sync(t)
	a.Exec("INSERT INTO d.a VALUES (2)", "INSERT INTO d.b VALUES (2)")
	left, err := source.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := sink.AdvanceTo(t.Context(), left, "0-1-2"); err != nil {
		t.Fatal(err)
	}
	if c, err := sink.Checkpoint(t.Context()); err != nil || c.Position != left || c.Transaction != "0-1-2" {
		t.Fatalf("the checkpoint is %+v, %v", c, err)
	}
	a.Exec("INSERT INTO d.a VALUES (3)")
	head, err := source.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.copy(t.Context(), p.at, head); !errors.Is(err, stream.ErrNotOwner) {
		t.Fatalf("an owner that knows nothing of it writes: %v", err)
	}
	next := newPipe(source, sink, stream.Epoch{Placement: 2}, 1)
	if err := next.copy(t.Context(), start, head); err != nil {
		t.Fatal(err)
	}
	if got := b.Value("SELECT CONCAT((SELECT GROUP_CONCAT(id) FROM d.a), ' ', (SELECT GROUP_CONCAT(id) FROM d.b))"); got != "1,3 1" {
		t.Fatalf("the sink has %s", got)
	}
}
