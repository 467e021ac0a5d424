package sqlsink_test

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/changefeed/sqlhistory"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// notInPipe are forms that the pipe of these tests has no part for: tables that foreign keys join are written by a group, and triggers at
// a sink are found by a new owner.
var notInPipe = map[sqlhistory.Form]bool{
	"foreign key: on delete cascade": true, "foreign key: on delete set null": true, "foreign key: on update cascade": true, "foreign key: on update set null": true,
	"trigger: at the sink": true,
}

// twins are two sinks of one source, of which the second gets rows as they were logged.
type twins struct {
	source *testenv.MariaDB
	sinks  [2]*testenv.MariaDB
	sent   int64 // row changes that were forwarded
	refuse int   // histories that ended with an error
}

// Whatever a history does, a sink that rows are forwarded to ends like one that gets text, or with the same error.
func TestForwardingEndsAsTextDoes(t *testing.T) {
	w := &twins{source: testenv.StartMariaDB(t), sinks: [2]*testenv.MariaDB{testenv.StartMariaDB(t), testenv.StartMariaDB(t)}}
	from, to := uint64(1), uint64(6)
	if text := os.Getenv("EBB_HISTORIES"); text != "" {
		if _, err := fmt.Sscanf(text, "%d-%d", &from, &to); err != nil {
			t.Fatalf("EBB_HISTORIES=%s: %v", text, err)
		}
	}
	for seed := from; seed <= to; seed++ {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { w.play(t, seed) })
	}
	t.Logf("%d row changes were forwarded, %d histories ended with an error", w.sent, w.refuse)
	if w.sent == 0 {
		t.Error("nothing was forwarded")
	}
}

// play plays one history, and compares both sinks.
func (w *twins) play(t *testing.T, seed uint64) {
	name := fmt.Sprintf("h%d", seed)
	for _, m := range []*testenv.MariaDB{w.source, w.sinks[0], w.sinks[1]} {
		m.Exec("SET sql_log_bin=0", sqlhistory.In("CREATE DATABASE "+sqlhistory.First, name), sqlhistory.In("CREATE DATABASE "+sqlhistory.Outside, name))
	}
	defer func() {
		for _, m := range []*testenv.MariaDB{w.source, w.sinks[0], w.sinks[1]} {
			m.Exec("SET sql_log_bin=0", "SET foreign_key_checks=0", "DROP DATABASE IF EXISTS "+name+"_a", "DROP DATABASE IF EXISTS "+name+"_b", "DROP DATABASE IF EXISTS "+name+"_x")
		}
	}()
	source := openSourceAs(t, w.source, false)
	start, err := source.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var pipes [2]*pipe
	sink := openSinkAs(t, w.sinks[1], true)
	pipes[0] = newPipe(source, openSinkAs(t, w.sinks[0], false), stream.Epoch{Placement: 1}, 1+int(seed%7))
	pipes[1] = newPipe(openSourceAs(t, w.source, true), sink, stream.Epoch{Placement: 1}, 1+int(seed%7))
	pipes[0].at, pipes[1].at = start, start
	text := w.write(t, seed, name)
	head, err := source.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]string
	for i, p := range pipes {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		if err := p.copy(ctx, p.at, head); err != nil {
			if !errors.Is(err, stream.ErrUnusable) {
				t.Errorf("%v\n%s", err, text)
			}
			ends[i] = fmt.Sprintf("at %d: %s", p.at, strings.ReplaceAll(err.Error(), w.sinks[i].Address, "SINK"))
		}
		cancel()
	}
	w.sent += sink.Forwarded()
	if ends[0] != "" {
		w.refuse++
	}
	if ends[0] != ends[1] {
		t.Errorf("text ends with     %q\nforwarded it ends with %q", ends[0], ends[1])
	}
	here, there := content(t, w.sinks[0], name), content(t, w.sinks[1], name)
	for table := range here {
		if there[table] != here[table] {
			t.Errorf("table %s differs\ntext:\n%s\nforwarded:\n%s", table, here[table], there[table])
		}
	}
	if len(here) != len(there) {
		t.Errorf("there are %d tables, and %d where rows are forwarded", len(here), len(there))
	}
	if t.Failed() {
		t.Log(text)
	}
}

// content is how every table of a history was made, and its rows.
func content(t *testing.T, server *testenv.MariaDB, name string) map[string]string {
	t.Helper()
	db := server.Open("")
	defer db.Close()
	db.SetMaxOpenConns(1)
	if _, err := db.Exec("SET character_set_results = NULL"); err != nil { // bytes as they are stored
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, table := range strings.Split(server.Value("SELECT COALESCE(GROUP_CONCAT(DISTINCT HEX(CONCAT(TABLE_SCHEMA, '.', TABLE_NAME)) SEPARATOR ','), '') FROM information_schema.TABLES WHERE TABLE_TYPE <> 'VIEW' AND TABLE_SCHEMA LIKE '"+name+"\\_%'"), ",") {
		text, err := hex.DecodeString(table)
		if err != nil {
			t.Fatal(err)
		}
		if len(text) > 0 {
			all[string(text)] = tableContent(t, db, quoted(string(text)))
		}
	}
	return all
}

var autoIncrement = regexp.MustCompile(` AUTO_INCREMENT=\d+`)

func tableContent(t *testing.T, db *sql.DB, table string) string {
	t.Helper()
	var ignored, create string
	if err := db.QueryRow("SHOW CREATE TABLE "+table).Scan(&ignored, &create); err != nil {
		return err.Error()
	}
	names := regexp.MustCompile("(?m)^  (`(?:[^`]|``)+`) ").FindAllStringSubmatch(create, -1)
	columns := make([]string, len(names))
	for i, n := range names {
		columns[i] = n[1]
	}
	if len(columns) == 0 { // a sequence
		columns = []string{"*"}
	}
	rows, err := db.Query("SELECT " + strings.Join(columns, ", ") + " FROM " + table)
	if err != nil {
		t.Fatalf("%s: %v", create, err)
	}
	defer rows.Close()
	var lines []string
	for rows.Next() {
		types, _ := rows.Columns()
		values := make([]sql.RawBytes, len(types))
		pointers := make([]any, len(types))
		for i := range values {
			pointers[i] = &values[i]
		}
		if err := rows.Scan(pointers...); err != nil {
			t.Fatal(err)
		}
		line := ""
		for _, v := range values {
			if v == nil {
				line += "NULL "
			} else {
				line += fmt.Sprintf("%q ", v)
			}
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return autoIncrement.ReplaceAllString(create, "") + "\n" + strings.Join(lines, "\n")
}

// write executes a history at the source, and returns it as text.
func (w *twins) write(t *testing.T, seed uint64, name string) string {
	t.Helper()
	g := sqlhistory.New(seed, notInPipe)
	db := w.source.Open("")
	defer db.Close()
	db.SetMaxOpenConns(1)
	if _, err := db.Exec("SET SESSION lock_wait_timeout = 10, innodb_lock_wait_timeout = 10"); err != nil {
		t.Fatal(err)
	}
	var done []sqlhistory.Statement
	for range 2 * g.Length() {
		s := g.Next()
		if s.Place != sqlhistory.AtSource {
			continue
		}
		if _, err := db.Exec(sqlhistory.In(s.SQL, name)); err == nil { // what the source refuses is no part of the history
			g.Done(s)
			done = append(done, s)
		}
	}
	return sqlhistory.Script(done, name)
}
