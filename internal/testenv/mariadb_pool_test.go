package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/testenv/need"
)

// What a test leaves at a server, the next one does not find.
func TestAServerIsHandedOnAsIfItWereNew(t *testing.T) {
	address := ""
	for range 2 {
		t.Run("leaves things behind", func(t *testing.T) {
			m := StartMariaDB(t)
			if address != "" && m.Address != address {
				t.Errorf("a server at %s instead of the one at %s", m.Address, address)
			}
			address = m.Address
			if got := m.Value("SELECT @@gtid_binlog_pos"); got != "" {
				t.Errorf("the log goes on at %s", got)
			}
			m.Exec("CREATE DATABASE `od``d`", "CREATE TABLE `od``d`.t (id INT PRIMARY KEY)", "INSERT INTO `od``d`.t VALUES (1)", "CREATE USER poor@'10.%' IDENTIFIED BY 'p'")
			if got := m.Value("SELECT @@gtid_binlog_pos"); got != "0-1-4" {
				t.Errorf("the log is at %s after four statements", got)
			}
			db := m.Open("od`d")
			t.Cleanup(func() { db.Close() })
			conn, err := db.Conn(t.Context()) // a session that holds a lock to the end, and is not closed before it
			if err != nil {
				t.Fatal(err)
			}
			if _, err := conn.ExecContext(t.Context(), "LOCK TABLES t WRITE"); err != nil {
				t.Fatal(err)
			}
		})
	}
	for name, change := range map[string]func(*MariaDB){
		"settings": func(m *MariaDB) { m.Exec("SET GLOBAL binlog_row_image=MINIMAL") },
		"killed":   func(m *MariaDB) { m.Kill(); m.Start() },
	} {
		var before *MariaDB
		t.Run(name, func(t *testing.T) {
			before = StartMariaDB(t)
			change(before)
		})
		t.Run("after "+name, func(t *testing.T) {
			if StartMariaDB(t) == before {
				t.Error("a server that was changed is handed on")
			}
		})
		if _, err := os.Stat(before.Data); !os.IsNotExist(err) {
			t.Errorf("its data was left: %v", err)
		}
	}
}

func TestTwoServersAtOnceAreTwo(t *testing.T) {
	if a, b := StartMariaDB(t), StartMariaDB(t); a == b || a.Address == b.Address {
		t.Errorf("%s and %s are the same", a.Address, b.Address)
	}
}

// diesEnv makes TestDiesWithAServer do something.
const diesEnv = "EBB_TESTENV_DIES"

func TestDiesWithAServer(t *testing.T) {
	if os.Getenv(diesEnv) == "" {
		t.Skip("a part of TestServersGoWithTheProcessThatPanics")
	}
	StartMariaDB(t)
	go func() { panic("on purpose") }()
	select {}
}

func TestServersGoWithTheProcessThatPanics(t *testing.T) {
	need.Programs(t, "mariadbd")
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run", "^TestDiesWithAServer$")
	cmd.Env = append(os.Environ(), diesEnv+"=1", "TMPDIR="+dir)
	if out, err := cmd.CombinedOutput(); err == nil {
		t.Fatalf("it did not panic:\n%s", out)
	}
	for deadline := time.Now().Add(Patience); ; time.Sleep(20 * time.Millisecond) {
		left, err := filepath.Glob(filepath.Join(dir, "ebb-mariadb-*"))
		if err != nil {
			t.Fatal(err)
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("left behind: %v", left)
		}
	}
}
