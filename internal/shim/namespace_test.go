package shim

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func newNamespaceFixture(t *testing.T) *fixture {
	if !inNamespaces {
		t.Skip("this test runs in the round with PID namespaces")
	}
	return newFixture(t)
}

// A process that left its session, group, parent and environment behind ends with the shim all the same.
func TestEverythingEndsWithAKilledShim(t *testing.T) {
	f := newNamespaceFixture(t)
	h := f.start(f.helper("daemonize", f.beats, "again"))
	f.beating(f.beats)
	st := f.status(h)
	if err := syscall.Kill(st.Shim.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	f.eventually("the program's init ends", func() bool { return !st.Init.same() })
	beats := len(readBeats(f.beats))
	time.Sleep(50 * time.Millisecond) // no synchronisation: a survivor would beat twenty times
	if more := len(readBeats(f.beats)) - beats; more > 1 {
		t.Errorf("it beat %d times after its shim and its init had ended", more)
	}
	if exit := f.wait(h); exit.Reason != ReasonShimLost {
		t.Errorf("%+v", exit)
	}
}

func TestAProgramSeesItsOwnProcessesOnly(t *testing.T) {
	f := newNamespaceFixture(t)
	out := filepath.Join(filepath.Dir(f.dir), "seen")
	f.wait(f.start(f.shell(fmt.Sprintf("id -u > %s; for p in /proc/[0-9]*; do echo $p >> %[1]s; done", out))))
	data, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(string(data))
	if len(lines) != 3 || lines[0] != strconv.Itoa(os.Geteuid()) || lines[1] != "/proc/1" {
		t.Errorf("it saw %q", lines)
	}
}

func TestAProgramMayNotControlItsOwnShim(t *testing.T) {
	f := newFixture(t)
	out := filepath.Join(filepath.Dir(f.dir), "answer")
	h := f.start(f.helper("extend", f.dir, out))
	f.wait(h)
	data, err := os.ReadFile(out)
	if err != nil || !strings.Contains(string(data), ErrUnreachable.Error()) {
		t.Errorf("the program asked for a later deadline and got %q, %v", data, err)
	}
}

// Signals to the init reach the program.
func TestAnInitForwardsSignals(t *testing.T) {
	f := newNamespaceFixture(t)
	h := f.start(f.helper("beat", f.beats, "polite"))
	f.beating(f.beats)
	if err := syscall.Kill(f.status(h).Init.PID, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if exit := f.wait(h); exit.Reason != ReasonExited || exit.Code != 0 {
		t.Errorf("%+v", exit)
	}
}

// A user that is not root gets namespaces too.
func TestNamespacesWithoutRoot(t *testing.T) {
	f := newNamespaceFixture(t)
	if os.Geteuid() != 0 {
		return // every other test is this one
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Fatal(err)
	}
	uid, _ := strconv.Atoi(nobody.Uid)
	gid, _ := strconv.Atoi(nobody.Gid)
	exe := f.exe
	dir, err := os.MkdirTemp("/tmp", "ebb-nobody-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	copied := filepath.Join(dir, "shim.test")
	data, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(copied, data, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, copied} {
		if err := os.Chown(path, uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(dir, "seen")
	pid, err := syscall.ForkExec(copied, []string{copied, "helper", "unprivileged", filepath.Join(dir, "instance"), out}, &syscall.ProcAttr{
		Dir: dir, Files: []uintptr{0, 1, 2},
		Sys: &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil || status.ExitStatus() != 0 {
		t.Fatalf("%v, status %d", err, status.ExitStatus())
	}
	seen, _ := os.ReadFile(out)
	if lines := strings.Fields(string(seen)); len(lines) != 4 || lines[0] != nobody.Uid || lines[1] != "0000000000000000" || lines[2] != "/proc/1" {
		t.Errorf("it saw %q", lines)
	}
}

// The mounts of the machine are safe from whoever runs an init by hand.
func TestOnlyAShimStartsAnInit(t *testing.T) {
	f := newFixture(t)
	before, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(f.exe, "shim", probeFlag).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "only a shim starts an init") {
		t.Errorf("%v: %s", err, out)
	}
	if os.Geteuid() == 0 { // the first process of a PID namespace, but with the mounts of everyone
		cmd := exec.Command(f.exe, "shim", probeFlag)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
		cmd.Env = initEnv()
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "only a shim starts an init") {
			t.Errorf("%v: %s", err, out)
		}
	}
	if after, _ := os.ReadFile("/proc/self/mountinfo"); string(after) != string(before) {
		t.Errorf("the mounts were\n%s\nand are\n%s", before, after)
	}
}
