package atomicfile_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/ebb-dev/ebb/internal/atomicfile"
)

func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return strings.Join(all, " ")
}

func content(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestAFileIsWrittenWholeOrNotAtAll(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "token")
	if err := atomicfile.WriteSecret(path, []byte("one")); err != nil {
		t.Fatal(err)
	}
	// Someone made it readable; a new one is not.
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	old, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if err := atomicfile.WriteSecret(path, []byte("two")); err != nil {
		t.Fatal(err)
	}
	was := make([]byte, 3)
	if _, err := old.Read(was); err != nil || string(was) != "one" {
		t.Errorf("who had it open reads %q, %v", was, err)
	}
	if got := content(t, path); got != "two" {
		t.Errorf("it says %q", got)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if err := atomicfile.WriteSecret(filepath.Join(dir, "missing", "token"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("into a directory that is not there: %v", err)
	}
	if got := names(t, dir); got != "token" {
		t.Errorf("left behind: %s", got)
	}
}

func TestAWriteThatFailsLeavesTheDirectoryAsItWas(t *testing.T) {
	dir := t.TempDir()
	taken := filepath.Join(dir, "taken")
	if err := os.MkdirAll(filepath.Join(taken, "child"), 0o700); err != nil {
		t.Fatal(err)
	}
	err := atomicfile.Write(taken, []byte("x"), 0o644)
	if err == nil || !strings.HasPrefix(err.Error(), "write "+taken+": ") {
		t.Errorf("a file in the place of a directory: %v", err)
	}
	if got := names(t, dir); got != "taken" {
		t.Errorf("left behind: %s", got)
	}
}

func TestASymbolicLinkIsReplacedNotFollowed(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(t.TempDir(), "target"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(target, []byte("kept"), 0o600), os.Symlink(target, link)); err != nil {
		t.Fatal(err)
	}
	if err := atomicfile.Write(link, []byte("new"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := content(t, target); got != "kept" {
		t.Errorf("the target says %q", got)
	}
	if info, err := os.Lstat(link); err != nil || info.Mode() != 0o644 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

func TestWritersAtOnceLeaveOneWholeFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "state")
	var writers sync.WaitGroup
	for i := range 8 {
		writers.Go(func() {
			if err := atomicfile.Write(path, []byte(strings.Repeat(fmt.Sprint(i), 4096)), 0o600); err != nil {
				t.Error(err)
			}
		})
	}
	writers.Wait()
	if got := content(t, path); got != strings.Repeat(got[:1], 4096) {
		t.Error("it is mixed")
	}
	if got := names(t, dir); got != "state" {
		t.Errorf("left behind: %s", got)
	}
}

func TestAWriteBelowARootStaysThere(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "table"), 0o700); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	for _, name := range []string{"top", "table/owner"} {
		if err := atomicfile.WriteIn(root, name, []byte(name), 0o640); err != nil {
			t.Fatal(err)
		}
		if got := content(t, filepath.Join(dir, name)); got != name {
			t.Errorf("%s says %q", name, got)
		}
	}
	if err := atomicfile.WriteIn(root, "../outside", nil, 0o640); err == nil {
		t.Error("it left the root")
	}
	if got := names(t, dir) + " " + names(t, filepath.Join(dir, "table")); got != "table top owner" {
		t.Errorf("left behind: %s", got)
	}
}

func TestRenameReplaces(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	if err := errors.Join(os.WriteFile(from, []byte("new"), 0o600), os.WriteFile(to, []byte("old"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := atomicfile.Rename(from, to); err != nil {
		t.Fatal(err)
	}
	if got := names(t, dir) + " " + content(t, to); got != "to new" {
		t.Error(got)
	}
	if err := atomicfile.Rename(from, to); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	if err := atomicfile.Sync(filepath.Join(dir, "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("sync of nothing: %v", err)
	}
}

func TestReadJSONTellsAMissingFileFromABadOne(t *testing.T) {
	path := filepath.Join(t.TempDir(), "value.json")
	if value, err := atomicfile.ReadJSON[map[string]int](os.ReadFile, path); value != nil || err != nil {
		t.Errorf("a missing file: %v, %v", value, err)
	}
	for text, want := range map[string]string{`{"a":1}`: "", `{"a"`: path + ": unexpected end of JSON input"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		value, err := atomicfile.ReadJSON[map[string]int](os.ReadFile, path)
		if want == "" && (err != nil || (*value)["a"] != 1) || want != "" && (err == nil || err.Error() != want) {
			t.Errorf("%s: %v, %v", text, value, err)
		}
	}
	if _, err := atomicfile.ReadJSON[int](os.ReadFile, t.TempDir()); err == nil {
		t.Error("a directory was read")
	}
}
