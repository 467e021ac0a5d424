package testenv

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/ebb-dev/ebb/internal/testenv/need"
)

// MariaDB is a server that one test has for itself. It writes a binary log that a changefeed can read.
type MariaDB struct {
	// Address is where it listens, host:port. It stays the same over restarts.
	Address string
	// User may do everything, with Password, from anywhere.
	User, Password string
	// Data is its data directory.
	Data string

	t       testing.TB
	args    []string
	cmd     *exec.Cmd
	exit    chan struct{}
	changed bool              // it was ended, or started with other arguments: no other test gets it
	was     map[string]string // its settings when it was new
}

// What every server is started with; a test's own arguments come after it and win.
var mariaDBArgs = []string{
	"--bind-address=127.0.0.1",
	"--skip-name-resolve",
	"--log-bin=binlog",
	"--server-id=1",
	"--binlog-format=ROW",
	"--binlog-row-metadata=FULL",
	"--binlog-row-image=FULL",
	// The process may be killed, the machine is not: what the kernel has is safe, and no disk is waited for.
	"--innodb-flush-log-at-trx-commit=2",
	"--innodb-flush-method=nosync",
	"--sync-frm=OFF",
	"--innodb-buffer-pool-size=64M",
	"--innodb-log-file-size=32M",
	"--innodb-data-file-path=ibdata1:4M:autoextend",
	"--key-buffer-size=1M",
	"--aria-pagecache-buffer-size=1M",
	"--performance-schema=OFF",
	"--max-connections=300",
	"--table-open-cache=2000",
	"--loose-innodb-buffer-pool-dump-at-shutdown=OFF",
	"--loose-innodb-buffer-pool-load-at-startup=OFF",
}

// StartMariaDB is a server on an empty database, with a binary log that begins anew. Arguments are those of mariadbd, for instance
// "--server-id=7"; a server with arguments ends with the test, others are handed from test to test (see pool).
// Without mariadbd the test is skipped, on CI it fails.
func StartMariaDB(t testing.TB, args ...string) *MariaDB {
	t.Helper()
	need.Programs(t, "mariadbd")
	if len(args) == 0 {
		return servers.take(t)
	}
	m := newMariaDB(t, t.TempDir(), args)
	t.Cleanup(m.Kill)
	return m
}

// newMariaDB starts a server with its data below a directory.
func newMariaDB(t testing.TB, dir string, args []string) *MariaDB {
	t.Helper()
	template, err := mariaDBTemplate()
	if err != nil {
		t.Fatal(err)
	}
	m := &MariaDB{User: "admin", Password: "admin", Data: filepath.Join(dir, "data"), t: t, args: args}
	if out, err := exec.Command("cp", "-a", "--reflink=auto", template, m.Data).CombinedOutput(); err != nil {
		t.Fatalf("copy the empty database: %v\n%s", err, out)
	}
	m.start()
	return m
}

// mariaDBTemplate makes the data directory of an empty database once for all tests of a checkout.
var mariaDBTemplate = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(root(), "bin", "test")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "mariadb.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	template := filepath.Join(dir, "mariadb")
	if _, err := os.Stat(template); err == nil {
		return template, nil
	}
	return template, installMariaDB(dir, template)
})

func installMariaDB(dir, template string) error {
	work, err := os.MkdirTemp(dir, "mariadb-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	grants := filepath.Join(work, "grants.sql")
	if err := os.WriteFile(grants, []byte("FLUSH PRIVILEGES;\nCREATE USER admin@'%' IDENTIFIED BY 'admin';\nGRANT ALL ON *.* TO admin@'%' WITH GRANT OPTION;\n"), 0o600); err != nil {
		return err
	}
	data := filepath.Join(work, "data")
	args := []string{"--no-defaults", "--datadir=" + data, "--auth-root-authentication-method=normal", "--skip-test-db", "--extra-file=" + grants,
		"--innodb-log-file-size=32M", "--innodb-data-file-path=ibdata1:4M:autoextend"}
	if os.Getuid() == 0 {
		args = append(args, "--user=root")
	}
	if out, err := exec.Command("mariadb-install-db", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("mariadb-install-db: %w\n%s", err, out)
	}
	return os.Rename(data, template)
}

// Start starts the server after Stop or Kill, on the same data and port, with more arguments if there are any.
func (m *MariaDB) Start(args ...string) {
	m.t.Helper()
	m.changed = true
	m.args = append(m.args, args...)
	m.start()
}

func (m *MariaDB) start() {
	m.t.Helper()
	for attempt := 0; ; attempt++ {
		err := m.launch()
		if err == nil {
			return
		}
		// The port was free a moment ago; somebody else may have been given it.
		if attempt == 2 {
			m.t.Fatal(err)
		}
	}
}

func (m *MariaDB) launch() error {
	fresh := m.Address == ""
	if fresh {
		address, err := freeAddress()
		if err != nil {
			return err
		}
		m.Address = address
	}
	_, port, _ := net.SplitHostPort(m.Address)
	// The socket's path is relative to the data directory, since the name of a socket must be short.
	// A server that starts removes the temporary files of others from a directory that it shares with them.
	tmp := m.Data + ".tmp"
	if err := os.MkdirAll(tmp, 0o700); err != nil {
		return err
	}
	args := []string{"--no-defaults", "--datadir=" + m.Data, "--tmpdir=" + tmp, "--socket=sock", "--pid-file=pid", "--port=" + port, "--log-error=" + m.logFile()}
	if os.Getuid() == 0 {
		args = append(args, "--user=root")
	}
	m.cmd = exec.Command("mariadbd", append(append(args, mariaDBArgs...), m.args...)...)
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.cmd.Start(); err != nil {
		return fmt.Errorf("start mariadbd: %w", err)
	}
	m.exit = make(chan struct{})
	go func(cmd *exec.Cmd, exit chan struct{}) { _ = cmd.Wait(); close(exit) }(m.cmd, m.exit)
	err := m.awaitReady()
	if err != nil && fresh {
		m.Address = "" // another one may be free; after a restart only this one will do
	}
	return err
}

// freeAddress is one that nobody uses now. It is below the ports that the kernel gives to outgoing connections, so that none of those has the
// port while the server is down, and below those of Ebb itself.
func freeAddress() (string, error) {
	const first, ports = 10000, 10000
	var last error
	for range 100 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", first+rand.IntN(ports)))
		if err == nil {
			defer l.Close()
			return l.Addr().String(), nil
		}
		last = err
	}
	return "", last
}

func (m *MariaDB) awaitReady() error {
	db := m.Open("")
	defer db.Close()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	for {
		err := db.PingContext(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-m.exit:
			log, _ := os.ReadFile(m.logFile())
			return fmt.Errorf("mariadbd ended while starting:\n%s", log)
		case <-ctx.Done():
			return fmt.Errorf("mariadbd at %s does not answer: %w", m.Address, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (m *MariaDB) logFile() string { return m.Data + ".log" }

// Stop ends the server in order.
func (m *MariaDB) Stop() { m.end(syscall.SIGTERM) }

// Kill ends the server as a crash does.
func (m *MariaDB) Kill() { m.end(syscall.SIGKILL) }

func (m *MariaDB) end(signal syscall.Signal) {
	m.changed = true
	if m.cmd == nil || m.cmd.Process == nil {
		return
	}
	if err := m.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		m.t.Errorf("mariadbd: %v", err)
	}
	<-m.exit
}

// Restart ends the server in order and starts it again, with more arguments if there are any.
func (m *MariaDB) Restart(args ...string) {
	m.t.Helper()
	m.Stop()
	m.Start(args...)
}

// Port is the port of Address.
func (m *MariaDB) Port() int {
	_, text, _ := net.SplitHostPort(m.Address)
	port, _ := strconv.Atoi(text)
	return port
}

// DSN is the name of the server for database/sql with a default schema, which may be empty.
func (m *MariaDB) DSN(schema string) string {
	cfg := mysql.NewConfig()
	cfg.Net, cfg.Addr, cfg.User, cfg.Passwd, cfg.DBName = "tcp", m.Address, m.User, m.Password, schema
	cfg.MultiStatements, cfg.Logger = true, &mysql.NopLogger{}
	return cfg.FormatDSN()
}

// Open is a pool of connections; the caller closes it.
func (m *MariaDB) Open(schema string) *sql.DB {
	m.t.Helper()
	cfg, err := mysql.ParseDSN(m.DSN(schema))
	if err != nil {
		m.t.Fatal(err)
	}
	// A server that is being started or killed makes the driver complain; the test decides what matters.
	cfg.Logger = &mysql.NopLogger{}
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		m.t.Fatal(err)
	}
	return sql.OpenDB(connector)
}

// Exec runs statements, each of which may hold several, in one session.
func (m *MariaDB) Exec(statements ...string) {
	m.t.Helper()
	db := m.Open("")
	defer db.Close()
	db.SetMaxOpenConns(1)
	for _, s := range statements {
		if _, err := db.Exec(s); err != nil {
			m.t.Fatalf("%s: %v", s, err)
		}
	}
}

// Value is what a query for one value answers, "NULL" for NULL.
func (m *MariaDB) Value(query string) string {
	m.t.Helper()
	db := m.Open("")
	defer db.Close()
	var value sql.NullString
	if err := db.QueryRow(query).Scan(&value); err != nil {
		m.t.Fatalf("%s: %v", query, err)
	}
	if !value.Valid {
		return "NULL"
	}
	return value.String
}
