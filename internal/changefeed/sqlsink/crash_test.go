package sqlsink_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// Both servers are killed repeatedly while rows are changed and DDL is executed at the source; nothing is lost or applied twice.
func TestKilledServersLoseAndDoubleNothing(t *testing.T) { eachForm(t, killServers) }

func killServers(t *testing.T, forward bool) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	makeWorkloadTables(a)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	w := newWorkload(t, a, seed)
	source, sink := openSourceAs(t, a, forward), openSinkAs(t, b, forward)

	ctx, cancel := context.WithCancel(t.Context())
	copied := make(chan error, 1)
	go func() {
		copied <- newPipe(source, sink, stream.Epoch{Placement: 1}, 5).copy(ctx, 0, ^stream.Position(0))
	}()
	loaded := make(chan int, 1)
	go func() {
		n := 0
		for i := 0; ctx.Err() == nil; i++ {
			if i%200 == 199 { // an error is a server that is down
				w.db.Exec(fmt.Sprintf("ALTER TABLE one ADD COLUMN c%d INT DEFAULT %d", i, i))
				w.db.Exec(fmt.Sprintf("CREATE TABLE made%d (id INT PRIMARY KEY) SELECT id FROM one", i))
			}
			if w.transaction() == nil {
				n++
			}
		}
		loaded <- n
	}()
	for round := range 3 {
		time.Sleep(400 * time.Millisecond)
		victim := []*testenv.MariaDB{b, a, b}[round]
		victim.Kill()
		time.Sleep(100 * time.Millisecond)
		victim.Start()
	}
	time.Sleep(400 * time.Millisecond)
	cancel()
	if err := <-copied; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	t.Logf("%d transactions", <-loaded)
	newPipe(source, sink, stream.Epoch{Placement: 2}, 50).sync(t)
	equal(t, a, b)
	wasForwarded(t, sink, forward)
}

// A server that ends connections at random is no reason to lose anything.
func TestKilledConnectionsLoseAndDoubleNothing(t *testing.T) { eachForm(t, endConnections) }

func endConnections(t *testing.T, forward bool) {
	a, b := testenv.StartMariaDB(t), testenv.StartMariaDB(t)
	makeWorkloadTables(a)
	w := newWorkload(t, a, 7)
	w.run(t, 300)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
				killConnections(b)
				killConnections(a)
			}
		}
	}()
	sink := openSinkAs(t, b, forward)
	newPipe(openSourceAs(t, a, forward), sink, stream.Epoch{Placement: 1}, 3).sync(t)
	close(stop)
	<-stopped
	equal(t, a, b)
	wasForwarded(t, sink, forward)
}

// killConnections ends all others, as far as they still exist.
func killConnections(server *testenv.MariaDB) {
	db := server.Open("")
	defer db.Close()
	db.SetMaxOpenConns(1)
	rows, err := db.Query("SELECT ID FROM information_schema.PROCESSLIST WHERE USER = 'admin' AND ID <> CONNECTION_ID()")
	if err != nil {
		return
	}
	var ids []int
	for rows.Next() {
		var id int
		rows.Scan(&id)
		ids = append(ids, id)
	}
	for _, id := range ids {
		db.Exec(fmt.Sprintf("KILL %d", id))
	}
}
