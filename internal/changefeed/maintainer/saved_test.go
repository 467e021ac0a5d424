package maintainer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed/mariadb"
	"github.com/ebb-dev/ebb/internal/changefeed/sqlsink"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// An anchor far behind the checkpoint is purged long before the checkpoint is.
func TestTheAnchorStaysCloseToTheCheckpoint(t *testing.T) {
	sink, err := sqlsink.Open(sqlsink.Options{Address: "127.0.0.1:1", User: "u", Changefeed: "default/copy/1"}) // it does not connect
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	m := New(Options{Log: slog.New(slog.DiscardHandler)}, &v1alpha1.Changefeed{})
	m.saver.sink = sink
	const behind = 100_000
	read := stream.Position(0)
	upTo := func(to stream.Position) {
		for ; read < to; read++ {
			m.passAnchor(read+1, fmt.Sprint(read+1))
			if len(m.saver.ahead) > anchors {
				t.Fatalf("%d anchors are kept", len(m.saver.ahead))
			}
		}
	}
	anchorAt := func() (at stream.Position) {
		_, _ = fmt.Sscan(m.saver.anchor, &at)
		return at
	}
	upTo(behind) // the checkpoint stays where it is
	for m.checkpoint = 5_000; m.checkpoint < behind; m.checkpoint += 5_000 {
		upTo(read + 1)
		if at := anchorAt(); at > m.checkpoint || m.checkpoint-at > behind/(anchors/4) {
			t.Errorf("at the checkpoint %d the anchor is %d", m.checkpoint, at)
		}
	}
	// Once the checkpoint has caught up, every transaction is one.
	m.checkpoint = read
	upTo(read + 50)
	m.checkpoint = read - 10
	upTo(read + 1)
	if at := anchorAt(); at != m.checkpoint {
		t.Errorf("the checkpoint has caught up to %d, the anchor is %d", m.checkpoint, at)
	}
}

func TestACheckpointThatCannotBeRecordedIsAProblem(t *testing.T) {
	sink, err := sqlsink.Open(sqlsink.Options{Address: "127.0.0.1:1", User: "u", Changefeed: "default/copy/1"}) // nobody listens there
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	m := New(Options{Log: slog.New(slog.DiscardHandler)}, &v1alpha1.Changefeed{})
	m.saver.sink, m.saver.saving = sink, true
	m.save(t.Context(), 7, time.Minute)
	if !strings.HasPrefix(m.problem, "record checkpoint 7 at the sink: sink 127.0.0.1:1: ") || m.saver.saving || m.saver.saved != 0 {
		t.Errorf("the problem is %q, saved is %d", m.problem, m.saver.saved)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	m.problem = ""
	if m.save(ended, 7, time.Minute); m.problem != "" {
		t.Errorf("a maintainer that ends has the problem %q", m.problem)
	}
}

func TestAPurgedAnchorDoesNotStopAChangefeed(t *testing.T) {
	m := testenv.StartMariaDB(t)
	source, err := mariadb.Open(mariadb.Options{Address: m.Address, User: m.User, Password: m.Password})
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	m.Exec("CREATE DATABASE d", "CREATE TABLE d.a (id INT)")
	old := m.Value("SELECT @@gtid_binlog_pos")
	m.Exec("INSERT INTO d.a VALUES (1)", "FLUSH BINARY LOGS", "INSERT INTO d.a VALUES (2)")
	for deadline := time.Now().Add(time.Minute); ; {
		m.Exec("PURGE BINARY LOGS TO 'binlog.000002'") // the server keeps a log that is in use
		err := source.HasTransaction(t.Context(), old)
		if errors.Is(err, stream.ErrPurged) {
			break
		}
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("transaction %s is not purged: %v", old, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err := checkAnchor(t.Context(), source, old); err != nil {
		t.Error(err)
	}
	if err := checkAnchor(t.Context(), source, m.Value("SELECT CONCAT('0-77-', SUBSTRING_INDEX(@@gtid_binlog_pos, '-', -1))")); !errors.Is(err, stream.ErrUnusable) {
		t.Errorf("another history: %v", err)
	}
}
