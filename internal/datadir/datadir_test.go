package datadir_test

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/ebb-dev/ebb/internal/datadir"
)

const lockEnv = "DATADIR_TEST_LOCK"

// TestMain turns the test's own program into one that holds a lock until it is killed.
func TestMain(m *testing.M) {
	if path := os.Getenv(lockEnv); path != "" {
		if _, err := datadir.Lock(path); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("locked")
		select {}
	}
	os.Exit(m.Run())
}

func TestALockIsHeldOnceAndEndsWithItsProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	holder := exec.CommandContext(t.Context(), os.Args[0])
	holder.Env = append(os.Environ(), lockEnv+"="+path)
	out, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "locked\n" {
		t.Fatalf("the other process says %q, %v", line, err)
	}
	_, err = datadir.Lock(path)
	if !errors.Is(err, datadir.ErrLocked) || err.Error() != "lock "+path+": another process holds the lock" {
		t.Errorf("while another process holds it: %v", err)
	}
	if err := holder.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = holder.Wait()
	unlock, err := datadir.Lock(path)
	if err != nil {
		t.Fatalf("after the other process was killed: %v", err)
	}
	if _, err := datadir.Lock(path); !errors.Is(err, datadir.ErrLocked) {
		t.Errorf("twice in one process: %v", err)
	}
	unlock()
	unlock, err = datadir.Lock(path)
	if err != nil {
		t.Fatalf("after it was let go: %v", err)
	}
	unlock()
	if _, err := datadir.Lock(filepath.Join(path, "x")); err == nil || errors.Is(err, datadir.ErrLocked) {
		t.Errorf("where no file can be: %v", err)
	}
}

func TestADataDirectoryBelongsToItsOwnerAlone(t *testing.T) {
	dir := datadir.Dir(filepath.Join(t.TempDir(), "a", "b"))
	for range 2 {
		if err := dir.Create(); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{string(dir), filepath.Dir(dir.PIDFile("x")), filepath.Dir(dir.LogFile("x"))} {
		if info, err := os.Stat(path); err != nil || info.Mode() != fs.ModeDir|0o700 {
			t.Errorf("%s: %v, %v", path, info, err)
		}
	}
}

func TestAPIDFileIsRemovedOnlyByItsProcess(t *testing.T) {
	dir := datadir.Dir(t.TempDir())
	if err := dir.Create(); err != nil {
		t.Fatal(err)
	}
	remove, err := dir.WritePID("n1")
	if err != nil {
		t.Fatal(err)
	}
	if got := string(read(t, dir.PIDFile("n1"))); got != strconv.Itoa(os.Getpid())+"\n" {
		t.Errorf("it says %q", got)
	}
	if err := os.WriteFile(dir.PIDFile("n1"), []byte("1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	remove()
	if got := string(read(t, dir.PIDFile("n1"))); got != "1\n" {
		t.Errorf("another process's file says %q", got)
	}
	if remove, err = dir.WritePID("n1"); err != nil {
		t.Fatal(err)
	}
	remove()
	if _, err := os.Stat(dir.PIDFile("n1")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its own file is still there: %v", err)
	}
}

func TestFilesThatAreNotEbbsAreNotReplaced(t *testing.T) {
	for _, c := range []struct {
		what  string
		files []string
		given string // below the directory
		want  string // of the error, after the directory; empty for none
	}{
		{what: "nothing"},
		{what: "files under other names", files: []string{"notes", "run.log"}},
		{what: "a kubeconfig of a person", files: []string{"kubeconfig"}, want: "Ebb did not write kubeconfig there"},
		{what: "a certificate and a token", files: []string{"token", "ca.crt", "kubeconfig"}, want: "Ebb did not write ca.crt, kubeconfig there"},
		{what: "tokens that are to be used", files: []string{"token", "health-token"}},
		{what: "the kubeconfig that the cluster is to use", files: []string{"kubeconfig"}, given: "kubeconfig"},
		{what: "another kubeconfig than the one that is to be used", files: []string{"kubeconfig", "mine"}, given: "mine", want: "Ebb did not write kubeconfig there"},
		{what: "a directory of Ebb", files: []string{"kubeconfig", "token", "ca.crt", "pki/ca.crt"}},
		{what: "a directory of Ebb whose authority is made anew", files: []string{"kubeconfig", "pki/"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			dir := datadir.Dir(filepath.Join(t.TempDir(), "data"))
			for _, name := range c.files {
				path := filepath.Join(string(dir), name)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if !strings.HasSuffix(name, "/") {
					if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
						t.Fatal(err)
					}
				} else if err := os.MkdirAll(path, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			given := ""
			if c.given != "" {
				given = filepath.Join(string(dir), c.given)
			}
			got := ""
			if err := dir.CheckNobodyElses(given); err != nil {
				got = err.Error()
			}
			want := ""
			if c.want != "" {
				want = "data directory " + string(dir) + ": " + c.want + " and would replace it: set another directory with --data-dir, or move it away"
			}
			if got != want {
				t.Errorf("%q, want %q", got, want)
			}
		})
	}
}
