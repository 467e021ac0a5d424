package mariadb

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// The beginnings of files that are retained still list a domain that was deleted. The server gives their domains in any order.
func TestADomainThatWasDeletedDoesNotCount(t *testing.T) {
	for name, c := range map[string]struct {
		domain uint32
		other  int // so many transactions in another domain
		server int // of the last transactions
	}{
		"a low number": {1, 2, 1}, "a high number": {1, 200, 1}, "a low domain": {0, 50, 1}, "another server": {1, 2, 7},
	} {
		t.Run(name, func(t *testing.T) {
			m := testenv.StartMariaDB(t)
			m.Exec("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY)")
			own := 1 - c.domain
			statements := []string{fmt.Sprintf("SET GLOBAL gtid_domain_id=%d", own), fmt.Sprintf("SET gtid_domain_id=%d", c.domain)}
			for i := range c.other {
				statements = append(statements, fmt.Sprintf("INSERT INTO d.t VALUES (%d)", 1000+i))
			}
			statements = append(statements, fmt.Sprintf("SET gtid_domain_id=%d", own))
			for i := range 90 {
				statements = append(statements, fmt.Sprintf("INSERT INTO d.t VALUES (%d)", i))
				if i%30 == 29 {
					statements = append(statements, "FLUSH BINARY LOGS")
				}
			}
			statements = append(statements, fmt.Sprintf("SET server_id=%d", c.server), "INSERT INTO d.t VALUES (91)", "INSERT INTO d.t VALUES (92)", "FLUSH BINARY LOGS", "INSERT INTO d.t VALUES (93)")
			m.Exec(statements...)
			s := open(t, m)
			purgeTo(t, m, s, "binlog.000002")
			m.Exec(fmt.Sprintf("FLUSH BINARY LOGS DELETE_DOMAIN_ID=(%d)", c.domain), "INSERT INTO d.t VALUES (94)", fmt.Sprintf("SET GLOBAL gtid_domain_id=%d", 0))
			head, err := s.Head(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, back := range []stream.Position{1, 3, 4, 30, 60} {
				if all := collect(t, s, head-back); len(all) != int(back) {
					t.Errorf("%d transactions after position %d, and the head is %d", len(all), head-back, head)
				}
			}
			err = s.Read(t.Context(), head-80, func(*stream.Transaction) error { return errEnough })
			if !errors.Is(err, stream.ErrPurged) {
				t.Errorf("a position that is purged: %v", err)
			}
		})
	}
}

// purgeTo purges files of the log before one. The server keeps those that it may need after a crash until its engine has written.
func purgeTo(t *testing.T, m *testenv.MariaDB, s *Source, file string) {
	t.Helper()
	for end := time.Now().Add(testenv.Patience); ; time.Sleep(10 * time.Millisecond) {
		m.Exec("PURGE BINARY LOGS TO '" + file + "'")
		files, err := s.logFiles(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if files[0] == file {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the log still has %v", files)
		}
	}
}
