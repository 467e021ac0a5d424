package member

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestALogIsBounded(t *testing.T) {
	dir := t.TempDir()
	also, err := os.Create(filepath.Join(dir, "also"))
	if err != nil {
		t.Fatal(err)
	}
	defer also.Close()
	l, err := openLog(filepath.Join(dir, LogName), int(also.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	line := append(bytes.Repeat([]byte("x"), 64<<10), '\n')
	for range 3 * logLimit / len(line) {
		if _, err := l.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := also.WriteString("a panic\n"); err != nil {
		t.Fatal(err)
	}
	var total int64
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		total += info.Size()
	}
	if total > 2*logLimit+int64(len(line)) {
		t.Errorf("the log has %d bytes", total)
	}
	data, err := os.ReadFile(filepath.Join(dir, LogName))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasSuffix(data, []byte("a panic\n")) {
		t.Error("what the process said itself is not in the log")
	}
}
