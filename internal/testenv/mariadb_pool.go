package testenv

import (
	"database/sql"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// pool hands the servers of a package from test to test. A test has its server for itself and gets it as if it were new: without
// schemas and users of others, with the settings and the binary log of a first start. One that cannot be brought there is ended.
type pool struct {
	mu    sync.Mutex
	free  []*MariaDB
	dir   string         // of all of them
	made  int            // how many there have been
	alive io.WriteCloser // while it is open, the directory stays
}

var servers pool

// take gives a test a server until its end.
func (p *pool) take(t testing.TB) *MariaDB {
	t.Helper()
	m := p.next()
	if m == nil {
		m = newMariaDB(t, p.place(t), nil)
		settings, err := m.settings()
		if err != nil {
			t.Fatal(err)
		}
		m.was = settings
	}
	m.t = t
	t.Cleanup(func() { p.give(m) })
	return m
}

func (p *pool) next() *MariaDB {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		m := p.free[n-1]
		p.free = p.free[:n-1]
		return m
	}
	return nil
}

// place is a directory for one more server.
func (p *pool) place(t testing.TB) string {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dir == "" {
		if err := p.open(); err != nil {
			t.Fatal(err)
		}
	}
	p.made++
	dir := filepath.Join(p.dir, fmt.Sprint(p.made))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// sweep waits until the process that started it has ended, in whatever way, and then removes a directory in which a server may still be
// dying.
const sweep = `read -r _; for _ in 1 2 3 4 5 6 7 8 9 10; do rm -rf "$1" 2>/dev/null && exit; sleep 0.5; done`

// open makes the directory, and sees that it goes with this process.
func (p *pool) open() error {
	dir, err := os.MkdirTemp("", "ebb-mariadb-")
	if err != nil {
		return err
	}
	cmd := exec.Command("/bin/sh", "-c", sweep, "sweep", dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C is not for it
	if p.alive, err = cmd.StdinPipe(); err != nil {
		return err
	}
	p.dir = dir
	return cmd.Start()
}

// give takes a server back.
func (p *pool) give(m *MariaDB) {
	if m.changed || m.renew() != nil {
		m.Kill()
		_ = os.RemoveAll(filepath.Dir(m.Data)) // or it goes with the process
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, m)
}

// EndMariaDB ends the servers that no test has any more. Where a package looks for what is left running it calls this first.
func EndMariaDB() {
	servers.mu.Lock()
	defer servers.mu.Unlock()
	for _, m := range servers.free {
		m.Kill()
	}
	servers.free = nil
}

// passing are settings that tell of what the server did.
var passing = []string{"gtid_binlog_pos", "gtid_binlog_state", "gtid_current_pos"}

// settings of the server.
func (m *MariaDB) settings() (map[string]string, error) {
	db := m.Open("")
	defer db.Close()
	rows, err := db.Query("SHOW GLOBAL VARIABLES")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	settings := map[string]string{}
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return nil, err
		}
		if !slices.Contains(passing, name) {
			settings[name] = value
		}
	}
	return settings, rows.Err()
}

// What a test may have left, as statements that remove it. Sessions are first: they hold locks and read the log.
var leftovers = []string{
	"SELECT CONCAT('KILL ', id) FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND user <> 'system user'",
	"SELECT CONCAT('DROP DATABASE `', REPLACE(schema_name, '`', '``'), '`') FROM information_schema.schemata WHERE schema_name NOT IN ('information_schema', 'mysql', 'performance_schema', 'sys')",
	"SELECT CONCAT('DROP USER ', QUOTE(user), '@', QUOTE(host)) FROM mysql.global_priv WHERE user NOT IN ('admin', 'root', 'mariadb.sys', 'PUBLIC', '')",
}

// renew brings the server to where it was when it was new, or says why it cannot.
func (m *MariaDB) renew() error {
	db := m.Open("")
	defer db.Close()
	db.SetMaxOpenConns(1)
	for _, query := range leftovers {
		if err := remove(db, query); err != nil {
			return err
		}
	}
	if _, err := db.Exec("RESET MASTER"); err != nil {
		return err
	}
	now, err := m.settings()
	if err != nil {
		return err
	}
	if !maps.Equal(now, m.was) {
		return fmt.Errorf("its settings were changed")
	}
	return nil
}

// remove runs the statements that a query answers.
func remove(db *sql.DB, query string) error {
	rows, err := db.Query(query)
	if err != nil {
		return err
	}
	defer rows.Close()
	var statements []string
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return err
		}
		statements = append(statements, s)
	}
	if err := rows.Close(); err != nil {
		return err
	}
	for _, s := range statements {
		if _, err := db.Exec(s); err != nil && !strings.HasPrefix(s, "KILL ") { // a session may have ended by itself
			return err
		}
	}
	return nil
}
