package shim

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

// readLogs returns the log files from the oldest to the current one.
func readLogs(t *testing.T, path string, files int) []string {
	t.Helper()
	var logs []string
	for i := files; i >= 0; i-- {
		name := path
		if i > 0 {
			name = fmt.Sprintf("%s.%d", path, i)
		}
		info, err := os.Stat(name)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, %v", name, info.Mode(), err)
		}
		data, _ := os.ReadFile(name)
		logs = append(logs, string(data))
	}
	return logs
}

func TestOutputIsLoggedInOrderAndRotatedBetweenLines(t *testing.T) {
	f := newFixture(t)
	s := f.shell(`i=0; while [ $i -lt 2000 ]; do echo "line $i of the program"; echo "error $i" >&2; i=$((i+1)); done; printf end`)
	s.Log = LogSpec{MaxBytes: 16 << 10, MaxFiles: 2}
	f.wait(f.start(s))
	path := filepath.Join(f.dir, DefaultLogPath)
	logs := readLogs(t, path, 9)
	if len(logs) != 3 {
		t.Fatalf("%d files, want 3", len(logs))
	}
	for i, log := range logs {
		if len(log) > 16<<10 || i < 2 && !strings.HasSuffix(log, "\n") {
			t.Errorf("file %d has %d bytes and ends %q", i, len(log), log[max(0, len(log)-9):])
		}
	}
	var want strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&want, "line %d of the program\nerror %d\n", i, i)
	}
	if all := strings.Join(logs, ""); !strings.HasSuffix(want.String()+"end", all) {
		t.Error("the files are not the end of the output")
	}
	// The next run begins on a line of its own.
	f.wait(f.start(f.shell("echo next")))
	if data, _ := os.ReadFile(path); !strings.HasSuffix(string(data), "error 1999\nend\nnext\n") {
		t.Errorf("ends %q", data[max(0, len(data)-30):])
	}
}

func TestFullDiskCostsOutputAndNotTheProgram(t *testing.T) {
	f := newFixture(t)
	s := f.shell(`i=0; while [ $i -lt 4000 ]; do echo "0123456789012345678901234567890123456789012345678"; i=$((i+1)); done; exit 5`)
	s.Log.Path = "/dev/full"
	if exit := f.wait(f.start(s)); exit.Code != 5 {
		t.Errorf("exit = %+v", exit)
	}
	if st, _ := ReadState(f.dir); st.LogDropped != 4000*50 {
		t.Errorf("%d bytes dropped, want %d", st.LogDropped, 4000*50)
	}
}

func TestDroppedOutputIsMentionedWhereItIsMissing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	var dropped atomic.Int64
	l, err := openLog(LogSpec{Path: path, MaxBytes: 1 << 20, MaxFiles: 1}, &dropped)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	good := l.file
	l.write([]byte("one\ntw"))
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	l.file = full
	l.write([]byte("o\nthree\n"))
	l.file = good
	l.write([]byte("four\n"))
	const want = "one\ntw\n[ebb shim: 8 bytes of output dropped here: the log could not be written]\nfour\n"
	if data, _ := os.ReadFile(path); string(data) != want || dropped.Load() != 8 {
		t.Errorf("log = %q, dropped %d", data, dropped.Load())
	}
}

func TestLogThatCannotBeRotatedStaysWithinItsSize(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "log")
	if err := os.MkdirAll(path+".1/in the way", 0o700); err != nil {
		t.Fatal(err)
	}
	var dropped atomic.Int64
	l, err := openLog(LogSpec{Path: path, MaxBytes: 4096, MaxFiles: 1}, &dropped)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	line := []byte(strings.Repeat("x", 99) + "\n")
	for range 100 {
		l.write(line)
	}
	info, _ := os.Stat(path)
	if info.Size() > 4096 || info.Size()+dropped.Load() != 100*100 {
		t.Errorf("%d bytes written, %d dropped", info.Size(), dropped.Load())
	}
}

func TestLongLinesAreKeptWholeWithinReason(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	var dropped atomic.Int64
	l, err := openLog(LogSpec{Path: path, MaxBytes: 4096, MaxFiles: 9}, &dropped)
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	long, endless := strings.Repeat("a", 10_000)+"\n", strings.Repeat("b", 200_000)+"\n"
	text := "short\n" + long + "short\n" + endless + "short\n"
	for i := 0; i < len(text); i += 1000 {
		l.write([]byte(text[i:min(len(text), i+1000)]))
	}
	logs := readLogs(t, path, 9)
	if strings.Join(logs, "") != text {
		t.Error("output was lost or changed")
	}
	for i, log := range logs {
		if len(log) > 4096+longLine {
			t.Errorf("file %d has %d bytes", i, len(log))
		}
	}
	if !slices.ContainsFunc(logs, func(log string) bool { return strings.Contains(log, "\n"+long) }) {
		t.Error("a line longer than a file, but not too long, was cut")
	}
}
