package logfile_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ebb-dev/ebb/internal/logfile"
)

// dump returns the files of a directory and what is in them.
func dump(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e.Name()+"="+string(data))
	}
	return strings.Join(all, " ")
}

func open(t *testing.T, path string, older int, opened func(*os.File) error) *logfile.File {
	t.Helper()
	f, err := logfile.Open(path, older, opened)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func write(t *testing.T, f *logfile.File, text string) {
	t.Helper()
	if n, err := f.Write([]byte(text)); err != nil || n != len(text) {
		t.Fatalf("wrote %d, %v", n, err)
	}
}

func TestFilesMoveToHigherNumbersAndTheOldestGoes(t *testing.T) {
	dir := t.TempDir()
	f := open(t, filepath.Join(dir, "log"), 2, nil)
	for i, want := range []string{"log=0", "log=1 log.1=0", "log=2 log.1=1 log.2=0", "log=3 log.1=2 log.2=1", "log=4 log.1=3 log.2=2"} {
		if i > 0 {
			if err := f.Rotate(); err != nil {
				t.Fatal(err)
			}
		}
		write(t, f, fmt.Sprint(i))
		if got := dump(t, dir); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestALogIsAppendedToWhenItIsOpenedAgain(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "log")
	write(t, open(t, path, 1, nil), "one ")
	f := open(t, path, 1, nil)
	if f.Size() != 4 {
		t.Errorf("it has %d bytes", f.Size())
	}
	write(t, f, "two")
	if got := dump(t, dir); got != "log=one two" || f.Size() != 7 {
		t.Errorf("%s, %d bytes", got, f.Size())
	}
	if err := f.Rotate(); err != nil || f.Size() != 0 {
		t.Errorf("a new file has %d bytes, %v", f.Size(), err)
	}
}

func TestEveryFileIsShownBeforeItIsWrittenTo(t *testing.T) {
	dir := t.TempDir()
	var shown int
	f := open(t, filepath.Join(dir, "log"), 1, func(file *os.File) error {
		shown++
		info, err := file.Stat()
		if err == nil && info.Size() != 0 {
			t.Errorf("it has %d bytes", info.Size())
		}
		return err
	})
	write(t, f, "x")
	if err := f.Rotate(); err != nil || shown != 2 {
		t.Errorf("%d files were shown, %v", shown, err)
	}
	refuse := errors.New("refused")
	complaining, err := logfile.Open(filepath.Join(dir, "other"), 1, func(file *os.File) error {
		_, _ = file.WriteString("first, ")
		return refuse
	})
	if !errors.Is(err, refuse) || complaining.Size() != 7 {
		t.Errorf("opened: %v, %d bytes", err, complaining.Size())
	}
	write(t, complaining, "second")
	if got := dump(t, dir); got != "log= log.1=x other=first, second" {
		t.Error(got)
	}
	_ = complaining.Close()
}

func TestALogThatCannotBeMovedIsWrittenOn(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "log")
	f := open(t, path, 1, nil)
	write(t, f, "one ")
	if err := os.MkdirAll(filepath.Join(path+".1", "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := f.Rotate(); err == nil {
		t.Fatal("it was rotated")
	}
	write(t, f, "two")
	if data, err := os.ReadFile(path); err != nil || string(data) != "one two" || f.Size() != 7 {
		t.Errorf("%q, %v, %d bytes", data, err, f.Size())
	}
}

func TestALogComesBackWhenItCanBeOpenedAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	f := open(t, filepath.Join(dir, "log"), 1, nil)
	write(t, f, "lost")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := f.Rotate(); err == nil {
		t.Fatal("it was rotated")
	}
	if _, err := f.Write([]byte("x")); err == nil {
		t.Error("it was written to")
	}
	if err := errors.Join(f.Sync(), f.Close(), os.Mkdir(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	write(t, f, "back")
	if got := dump(t, dir); got != "log=back" {
		t.Error(got)
	}
}
