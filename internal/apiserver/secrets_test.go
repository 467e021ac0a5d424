package apiserver_test

import (
	"encoding/hex"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/ebb-dev/ebb/internal/testenv/need"
)

func TestAServerKeepsItsSecretsToItself(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	p := launch(t, dir)
	if err := p.dir.IssueNode(p.dir.Node("n1"), "n1", []string{"127.0.0.1"}); err != nil {
		t.Fatal(err)
	}
	t.Run("directories are 0700 and files 0600 but for what everyone may know", func(t *testing.T) { checkModes(t, dir) })
	t.Run("another user reaches neither credentials nor store", func(t *testing.T) { checkOtherUser(t, dir) })
	t.Run("it listens on loopback and nowhere else", func(t *testing.T) { checkListeners(t, p) })
}

// public are the files that hold no secret, by their names.
func public(name string) bool {
	return strings.HasSuffix(name, ".crt") || strings.HasSuffix(name, ".pid")
}

func checkModes(t *testing.T, dir string) {
	seen := map[string]bool{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		seen[d.Name()] = true
		want := fs.FileMode(0o600)
		switch {
		case d.IsDir():
			want = 0o700
		case d.Type() == fs.ModeSocket: // what counts is its directory
			return nil
		case public(d.Name()):
			want = 0o644
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s is %o, want %o", path, got, want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kubeconfig", "viewer.kubeconfig", "token", "ca.key", "db", "client.sock", "node.kubeconfig", "coordinator.kubeconfig", "tls.key"} {
		if !seen[name] {
			t.Errorf("no file %s was looked at", name)
		}
	}
}

func checkOtherUser(t *testing.T, dir string) {
	need.Root(t, "try as another user")
	as := func(path string) error {
		cmd := exec.CommandContext(t.Context(), "stat", path)
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		return cmd.Run()
	}
	// The directories above belong to the test, and would keep everyone out by themselves.
	for above := filepath.Dir(dir); above != filepath.Clean(os.TempDir()); above = filepath.Dir(above) {
		if err := os.Chmod(above, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := as(dir); err != nil {
		t.Fatalf("another user does not reach the data directory itself: %v", err)
	}
	for _, file := range []string{"kubeconfig", "token", "pki/ca.key", "apiserver/etcd/client.sock", "apiserver/etcd/data/member/snap/db"} {
		if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if as(filepath.Join(dir, file)) == nil {
			t.Errorf("another user reaches %s", file)
		}
	}
}

func checkListeners(t *testing.T, p *process) {
	var got []string
	for _, file := range []string{"tcp", "tcp6"} {
		got = append(got, listening(t, p.cmd.Process.Pid, file)...)
	}
	if want := []string{strings.TrimPrefix(p.url, "https://")}; !slices.Equal(got, want) {
		t.Errorf("listens on %v, want %v", got, want)
	}
}

// listening are the addresses on which a process accepts connections, as the kernel tells.
func listening(t *testing.T, pid int, family string) []string {
	t.Helper()
	own := map[string]bool{}
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && strings.HasPrefix(target, "socket:[") {
			own[strings.TrimSuffix(strings.TrimPrefix(target, "socket:["), "]")] = true
		}
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, family))
	if err != nil {
		t.Fatal(err)
	}
	const listen = "0A"
	var all []string
	for _, line := range strings.Split(string(data), "\n") {
		if f := strings.Fields(line); len(f) > 9 && f[3] == listen && own[f[9]] {
			all = append(all, kernelAddress(t, f[1]))
		}
	}
	return all
}

// kernelAddress decodes an address of /proc/net/tcp: words of four bytes in the machine's order, here little-endian.
func kernelAddress(t *testing.T, text string) string {
	t.Helper()
	host, port, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(host)
	if err != nil {
		t.Fatal(err)
	}
	for word := range slices.Chunk(raw, 4) {
		slices.Reverse(word)
	}
	number, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort(net.IP(raw).String(), strconv.FormatUint(number, 10))
}
