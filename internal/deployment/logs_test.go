package deployment_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/ebb-dev/ebb/internal/deployment"
)

var hello = types.NamespacedName{Namespace: "default", Name: "hello"}

// output is a program's output on disk, rotated as a shim does it.
type output struct {
	t    testing.TB
	logs deployment.Logs
	path string
	file *os.File
}

const olderFiles = 3

func newOutput(t testing.TB) *output {
	t.Helper()
	o := &output{t: t, logs: deployment.Logs{Dir: t.TempDir()}}
	o.path = filepath.Join(o.logs.Dir, "default", "hello", "out.log")
	if err := os.MkdirAll(filepath.Dir(o.path), 0o700); err != nil {
		t.Fatal(err)
	}
	o.create()
	t.Cleanup(func() { o.file.Close() })
	return o
}

func (o *output) create() {
	o.t.Helper()
	var err error
	if o.file, err = os.OpenFile(o.path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600); err != nil {
		o.t.Error(err)
	}
}

func (o *output) write(text string) {
	o.t.Helper()
	if _, err := o.file.WriteString(text); err != nil {
		o.t.Error(err)
	}
}

func (o *output) rotate() {
	o.t.Helper()
	o.shift()
	o.create()
}

// shift is a rotation up to the moment before the new file is made.
func (o *output) shift() {
	o.t.Helper()
	for i := olderFiles; i > 1; i-- {
		_ = os.Rename(o.older(i-1), o.older(i)) // often not there yet
	}
	if err := os.Rename(o.path, o.older(1)); err != nil {
		o.t.Error(err)
	}
	o.file.Close()
}

func (o *output) older(i int) string { return fmt.Sprintf("%s.%d", o.path, i) }

func (o *output) open(lines int) *deployment.Log {
	o.t.Helper()
	log, err := o.logs.Open(hello, lines)
	if err != nil {
		o.t.Fatal(err)
	}
	o.t.Cleanup(log.Close)
	return log
}

func (o *output) last(lines int) string {
	o.t.Helper()
	log := o.open(lines)
	defer log.Close()
	var b bytes.Buffer
	if err := log.Copy(&b); err != nil {
		o.t.Fatal(err)
	}
	return b.String()
}

// reader collects what a follower passes on.
type reader struct {
	mu   sync.Mutex
	text bytes.Buffer
	// slow is held by a test to keep the reader from going on.
	slow sync.Mutex
	// seen is told of every piece.
	seen chan struct{}
}

func (r *reader) Write(p []byte) (int, error) {
	r.slow.Lock()
	defer r.slow.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case r.seen <- struct{}{}:
	default:
	}
	return r.text.Write(p)
}

func (r *reader) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

// awaits waits until the reader has got to a text.
func (r *reader) awaits(t testing.TB, suffix string) {
	t.Helper()
	limit := time.After(patience)
	for !strings.HasSuffix(r.String(), suffix) {
		select {
		case <-r.seen:
		case <-limit:
			got := r.String()
			t.Fatalf("the reader has %q, want it to get to %q", got[max(0, len(got)-200):], suffix)
		}
	}
}

// follow follows a log until the end of the test, or until stop is called; ended tells how it ended.
func (o *output) follow(lines int) (r *reader, stop func(), ended chan error) {
	o.t.Helper()
	log := o.open(lines)
	ctx, cancel := context.WithCancel(context.Background())
	r, ended = &reader{seen: make(chan struct{}, 1)}, make(chan error, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ended <- log.Follow(ctx, r)
	}()
	stop = func() { cancel(); <-done }
	o.t.Cleanup(stop)
	return r, stop, ended
}

func TestTheLastLinesOfALog(t *testing.T) {
	for _, c := range []struct {
		name  string
		files []string // oldest first
		lines int
		want  string
	}{
		{"all", []string{"a\nb\n", "c\n"}, deployment.AllLines, "a\nb\nc\n"},
		{"none", []string{"a\nb\n", "c\n"}, 0, ""},
		{"none of a line without an end", []string{"a\nb"}, 0, ""},
		{"one", []string{"a\nb\n", "c\n"}, 1, "c\n"},
		{"one that has no end yet", []string{"a\nb"}, 1, "b"},
		{"across a rotation", []string{"a\nb\n", "c\n"}, 2, "b\nc\n"},
		{"across files without a line", []string{"a\nb\n", "", "c\n"}, 2, "b\nc\n"},
		{"a line that is cut by a rotation", []string{"a\nlo", "ng\nc\n"}, 2, "long\nc\n"},
		{"just as many as there are", []string{"a\nb\n", "c\n"}, 3, "a\nb\nc\n"},
		{"more than there are", []string{"a\nb\n", "c\n"}, 9, "a\nb\nc\n"},
		{"empty lines are lines", []string{"a\n\n\n"}, 2, "\n\n"},
		{"of an empty log", []string{""}, 5, ""},
		{"of four files", []string{"a\n", "b\n", "c\n", "d\n"}, 4, "a\nb\nc\nd\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := newOutput(t)
			for i, text := range c.files {
				if i > 0 {
					o.rotate()
				}
				o.write(text)
			}
			if got := o.last(c.lines); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestTheLastLinesAreTheEndOfTheLog(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		o := newOutput(t)
		var all strings.Builder
		for i := range rapid.IntRange(1, 4).Draw(r, "files") {
			if i > 0 {
				o.rotate()
			}
			text := strings.Repeat(rapid.StringMatching(`[a\n]{0,20}`).Draw(r, "text"), rapid.SampledFrom([]int{1, 1, 7000}).Draw(r, "times"))
			o.write(text)
			all.WriteString(text)
		}
		lines := rapid.IntRange(0, 9).Draw(r, "lines")
		whole := strings.SplitAfter(all.String(), "\n")
		if whole[len(whole)-1] == "" {
			whole = whole[:len(whole)-1]
		}
		want := strings.Join(whole[max(0, len(whole)-lines):], "")
		if got := o.last(lines); got != want {
			r.Fatalf("the last %d lines are %q, want %q", lines, got, want)
		}
	})
}

func TestAProgramThatWroteNothingHereHasNoLog(t *testing.T) {
	_, err := deployment.Logs{Dir: t.TempDir()}.Open(hello, deployment.AllLines)
	if !errors.Is(err, deployment.ErrNoLog) || err.Error() != "log of default/hello: no log" {
		t.Errorf("got %v", err)
	}
}

func TestWhatIsWrittenAfterALogWasOpenedIsNotCopied(t *testing.T) {
	o := newOutput(t)
	o.write("before\n")
	log := o.open(deployment.AllLines)
	o.write("after\n")
	var b bytes.Buffer
	if err := log.Copy(&b); err != nil || b.String() != "before\n" {
		t.Errorf("got %q, %v", b.String(), err)
	}
}

func TestALogThatIsRotatedWhileItIsCopiedIsCopiedWhole(t *testing.T) {
	o := newOutput(t)
	o.write("1\n")
	o.rotate()
	o.write("2\n")
	log := o.open(deployment.AllLines)
	for range 9 { // both are gone from the disk
		o.rotate()
	}
	var b bytes.Buffer
	if err := log.Copy(&b); err != nil || b.String() != "1\n2\n" {
		t.Errorf("got %q, %v", b.String(), err)
	}
}

func TestAFollowerGetsWhatComes(t *testing.T) {
	o := newOutput(t)
	o.write("1\n2\n")
	r, stop, ended := o.follow(1)
	r.awaits(t, "2\n")
	o.write("3")
	r.awaits(t, "3")
	o.write("\n4\n")
	r.awaits(t, "4\n")
	stop()
	if err := <-ended; err != nil || r.String() != "2\n3\n4\n" {
		t.Errorf("got %q, %v", r.String(), err)
	}
}

func TestAFollowerGoesOnWhenTheNewFileIsMadeLate(t *testing.T) {
	o := newOutput(t)
	o.write("1\n")
	r, _, _ := o.follow(deployment.AllLines)
	r.awaits(t, "1\n")
	o.write("2\n")
	o.shift()
	r.awaits(t, "2\n")
	o.create()
	o.write("3\n")
	r.awaits(t, "3\n")
	if got := r.String(); got != "1\n2\n3\n" {
		t.Errorf("got %q", got)
	}
}

func TestALogThatIsOpenedInTheMiddleOfARotationIsFollowed(t *testing.T) {
	o := newOutput(t)
	o.write("1\n")
	o.shift()
	r, _, _ := o.follow(deployment.AllLines)
	r.awaits(t, "1\n")
	o.create()
	o.write("2\n")
	r.awaits(t, "2\n")
	if got := r.String(); got != "1\n2\n" {
		t.Errorf("got %q", got)
	}
}

// However fast the output comes and is rotated, a follower that keeps up gets every line once. The writer waits for it
// where it would otherwise be left behind by more files than are kept.
func TestAFollowerLosesAndDoublesNothingWhileFilesAreRotated(t *testing.T) {
	o := newOutput(t)
	r, _, _ := o.follow(deployment.AllLines)
	var want strings.Builder
	for file := range 90 {
		for line := range file % 7 {
			text := fmt.Sprintf("line %d of file %d\n", line, file)
			want.WriteString(text)
			o.write(text)
		}
		if file%olderFiles == olderFiles-1 {
			text := fmt.Sprintf("end of file %d\n", file)
			want.WriteString(text)
			o.write(text)
			r.awaits(t, text)
		}
		o.rotate()
	}
	o.write("end\n")
	r.awaits(t, "\nend\n")
	if got := r.String(); got != want.String()+"end\n" {
		t.Errorf("got %d bytes, want %d", len(got), want.Len()+4)
	}
}

// Readers come and go while the log is written and rotated: each gets an unbroken piece of it.
func TestWhoeverOpensALogDuringRotationsGetsConsecutiveLines(t *testing.T) {
	o := newOutput(t)
	o.write("0\n")
	stop, stopped := make(chan struct{}), make(chan struct{})
	defer func() { close(stop); <-stopped }()
	go func() {
		defer close(stopped)
		for i := 1; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			o.write(fmt.Sprintf("%d\n", i))
			if i%50 == 0 {
				o.rotate()
			}
		}
	}()
	for range 300 {
		lines := strings.Fields(o.last(120))
		for i, line := range lines {
			if i > 0 && fmt.Sprint(atoi(t, lines[i-1])+1) != line {
				t.Fatalf("line %s comes after %s", line, lines[i-1])
			}
		}
	}
}

func atoi(t *testing.T, text string) (n int) {
	t.Helper()
	if _, err := fmt.Sscan(text, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestAFollowerThatWasLeftBehindIsToldSo(t *testing.T) {
	o := newOutput(t)
	o.write("1\n")
	r, _, _ := o.follow(deployment.AllLines)
	r.awaits(t, "1\n")
	r.slow.Lock()
	o.write("2")
	for i := range olderFiles + 2 {
		o.rotate()
		o.write(fmt.Sprintf("file %d\n", i))
	}
	r.slow.Unlock()
	r.awaits(t, "file 4\n")
	want := "1\n2\n[ebb: lines are missing here: the log was rotated before they were read]\nfile 1\nfile 2\nfile 3\nfile 4\n"
	if got := r.String(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestAFollowerEndsWhenTheLogIsRemoved(t *testing.T) {
	o := newOutput(t)
	o.write("1\n")
	o.rotate()
	o.write("2\n")
	r, _, ended := o.follow(deployment.AllLines)
	r.awaits(t, "2\n")
	if err := os.RemoveAll(filepath.Dir(o.path)); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil || r.String() != "1\n2\n" {
			t.Errorf("got %q, %v", r.String(), err)
		}
	case <-time.After(patience):
		t.Fatal("it is still followed")
	}
}

func TestAFollowerEndsWhenItsReaderIsGone(t *testing.T) {
	o := newOutput(t)
	o.write("1\n")
	gone := errors.New("gone")
	if err := o.open(deployment.AllLines).Follow(context.Background(), failing{gone}); !errors.Is(err, gone) {
		t.Errorf("got %v", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }
