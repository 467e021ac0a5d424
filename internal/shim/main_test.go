package shim

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ebb-dev/ebb/internal/testenv/need"
)

// killLatency is how long after KillAt a program may still be seen to run, on a machine that is busy.
const killLatency = 500 * time.Millisecond

// bound is how long anything may take that has to happen but has no deadline of its own.
const bound = 60 * time.Second

// TestMain makes the test binary the shim, the node and the programs too: all are real processes.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 {
		switch os.Args[1] {
		case "shim":
			// Not os.Exit, which in a race build sleeps for a second; reports are in shim.log by then.
			syscall.Exit(Main(os.Args[2:]))
		case "helper":
			os.Exit(helper(os.Args[2], os.Args[3:]))
		}
	}
	goleak.VerifyTestMain(bothWays{m})
}

// inNamespaces says whether programs get PID namespaces now.
var inNamespaces bool

// bothWays runs every test without PID namespaces, as on a machine that has none, and with them.
type bothWays struct{ *testing.M }

func (b bothWays) Run() int {
	if code := b.M.Run(); code != 0 {
		return code
	}
	self, _ := os.Executable()
	if err := ProbeNamespaces(context.Background(), self); err != nil {
		fmt.Println("programs can have no PID namespaces here:", err)
		if need.OnCI() {
			return 1
		}
		return 0
	}
	inNamespaces = true
	return b.M.Run()
}

func helper(name string, args []string) int {
	switch name {
	case "beat":
		return beat(args[0], args[1])
	case "daemonize":
		return daemonize(args[0], args[1])
	case "node":
		return node(args[0])
	case "extend":
		return extendMyself(args[0], args[1])
	case "unprivileged":
		return unprivileged(args[0], args[1])
	}
	fmt.Fprintln(os.Stderr, "no helper", name)
	return 2
}

// beat writes "beat NS" every few milliseconds, and "term NS" when it is told to end. A stubborn one goes on.
func beat(file, manner string) int {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return 1
	}
	terms := make(chan os.Signal, 1)
	signal.Notify(terms, syscall.SIGTERM)
	ticks := time.NewTicker(2 * time.Millisecond)
	for {
		select {
		case <-terms:
			fmt.Fprintf(f, "term %d\n", Now())
			if manner == "polite" {
				return 0
			}
		case <-ticks.C:
			fmt.Fprintf(f, "beat %d\n", Now())
		}
	}
}

// daemonize leaves a stubborn beat in a session of its own, without the marker and without a parent, and stays or goes.
func daemonize(file, then string) int {
	self, _ := os.Executable()
	cmd := exec.Command(self, "helper", "beat", file, "stubborn")
	if then == "again" {
		cmd = exec.Command(self, "helper", "daemonize", file, "go")
	}
	cmd.Env = []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return 1
	}
	for then == "again" {
		time.Sleep(time.Hour)
	}
	for len(readBeats(file)) == 0 { // a parent that goes before its child could be confused with one that fails
		time.Sleep(time.Millisecond)
	}
	return 0
}

// extendMyself asks its own shim for a later deadline, and writes the answer to a file.
func extendMyself(dir, file string) int {
	h, err := openHandle(dir)
	if err != nil {
		return 1
	}
	answer := fmt.Sprint(h.Extend(context.Background(), within(2*time.Hour, 2*time.Hour)))
	return exitCode(os.WriteFile(file, []byte(answer), 0o600))
}

// unprivileged runs a program that writes its user, its capabilities and the processes that it sees to a file.
func unprivileged(dir, file string) int {
	self, _ := os.Executable()
	if err := ProbeNamespaces(context.Background(), self); err != nil {
		fmt.Println(err)
		return 1
	}
	script := fmt.Sprintf("id -u > %s; awk '/CapEff/ {print $2}' /proc/self/status >> %[1]s; for p in /proc/[0-9]*; do echo $p >> %[1]s; done", file)
	h, err := Start(context.Background(), self, dir, Spec{
		Command: "sh", Args: []string{"-c", script}, Env: []string{"PATH=" + DefaultPath}, Namespace: true, Deadline: within(time.Hour, time.Hour),
	})
	if err == nil {
		_, err = h.Wait(context.Background())
	}
	return exitCode(err)
}

func exitCode(err error) int {
	if err == nil {
		return 0
	}
	fmt.Println(err)
	return 1
}

// nodeOrder is what the node helper is asked to do.
type nodeOrder struct {
	Dir  string
	Spec Spec
	Term time.Duration // from each renewal
	Kill time.Duration
}

// node starts a program and renews its deadline for ever, as a node does.
func node(order string) int {
	var o nodeOrder
	if err := json.Unmarshal([]byte(order), &o); err != nil {
		return 2
	}
	ctx := context.Background()
	self, _ := os.Executable()
	o.Spec.Deadline = within(o.Term, o.Kill)
	h, err := Start(ctx, self, o.Dir, o.Spec)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("started")
	for {
		if err := h.Extend(ctx, within(o.Term, o.Kill)); err != nil {
			return 1
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func within(term, kill time.Duration) Deadline {
	now := Now()
	return Deadline{TermAt: now.Add(term), KillAt: now.Add(kill)}
}

// A fixture is an instance directory and what a test may want of it.
type fixture struct {
	*testing.T
	dir   string
	beats string
	exe   string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	base := t.TempDir()
	f := &fixture{T: t, dir: filepath.Join(base, "instance"), beats: filepath.Join(base, "beats"), exe: exe}
	t.Cleanup(f.checkShimLog)
	return f
}

// checkShimLog finds data races and panics of the shim itself.
func (f *fixture) checkShimLog() {
	text, _ := os.ReadFile(filepath.Join(f.dir, shimLogName))
	if strings.Contains(string(text), "DATA RACE") || strings.Contains(string(text), "goroutine ") {
		f.Errorf("the shim wrote:\n%s", text)
	}
}

func (f *fixture) helper(args ...string) Spec {
	return Spec{
		Instance: newInstance(),
		Command:  f.exe, Args: append([]string{"helper"}, args...),
		Env: []string{"PATH=" + DefaultPath}, Namespace: inNamespaces,
		Deadline: within(time.Hour, time.Hour),
	}
}

func (f *fixture) shell(script string) Spec {
	s := f.helper()
	s.Command, s.Args = "sh", []string{"-c", script}
	return s
}

func (f *fixture) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	f.Cleanup(cancel)
	return ctx
}

// start starts a program and sees to it that nothing of it outlives the test.
func (f *fixture) start(s Spec) *Handle {
	f.Helper()
	h, err := Start(f.ctx(), f.exe, f.dir, s)
	if err != nil {
		f.Fatal(err)
	}
	f.endWithTest(h)
	return h
}

func (f *fixture) endWithTest(h *Handle) {
	f.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), bound)
		defer cancel()
		if h.Stop(ctx, 0) == nil {
			_, _ = h.Wait(ctx)
		}
		h.Close()
	})
}

func (f *fixture) wait(h *Handle) Exit {
	f.Helper()
	exit, err := h.Wait(f.ctx())
	if err != nil {
		f.Fatal(err)
	}
	return exit
}

func (f *fixture) status(h *Handle) Status {
	f.Helper()
	st, err := h.Status(f.ctx())
	if err != nil {
		f.Fatal(err)
	}
	return st
}

// eventually polls a condition that must come true.
func (f *fixture) eventually(what string, ok func() bool) {
	f.Helper()
	for end := time.Now().Add(bound); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			f.Fatalf("did not happen within %v: %s", bound, what)
		}
	}
}

func (f *fixture) beating(file string) {
	f.Helper()
	before := len(readBeats(file))
	f.eventually("the program beats", func() bool { return len(readBeats(file)) > before+2 })
}

// gone asserts, by other means than the code under test, that no process carries the marker.
func (f *fixture) gone(instance string) {
	f.Helper()
	paths, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range paths {
		env, _ := os.ReadFile(path)
		if strings.Contains(string(env), instance) {
			cmdline, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
			f.Errorf("%s is left: %q", filepath.Dir(path), cmdline)
		}
	}
}

func (f *fixture) pidGone(p Process) {
	f.Helper()
	if p.same() {
		f.Errorf("process %d is left", p.PID)
	}
}

type beatLine struct {
	kind string
	at   BootTime
}

func readBeats(file string) []beatLine {
	f, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer f.Close()
	var beats []beatLine
	for lines := bufio.NewScanner(f); lines.Scan(); {
		kind, ns, _ := strings.Cut(lines.Text(), " ")
		if at, err := strconv.ParseInt(ns, 10, 64); err == nil {
			beats = append(beats, beatLine{kind, BootTime(at)})
		}
	}
	return beats
}

// diedBy asserts the safety side: nothing was told to end before TermAt, and nothing ran after KillAt.
func (f *fixture) diedBy(file string, d Deadline) {
	f.Helper()
	beats := readBeats(file)
	if len(beats) == 0 {
		f.Fatal("the program never ran")
	}
	for _, b := range beats {
		if b.kind == "term" && b.at < d.TermAt {
			f.Errorf("told to end %v before TermAt", d.TermAt.Sub(b.at))
		}
	}
	late := beats[len(beats)-1].at.Sub(d.KillAt)
	if late > killLatency {
		f.Errorf("ran %v past KillAt, more than %v", late, killLatency)
	}
	f.Logf("last beat %v from KillAt", late)
}
