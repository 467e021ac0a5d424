package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestPrepareGivesADirectoryToAUserAndCanBeRepeated(t *testing.T) {
	uid := os.Getuid()
	if uid == 0 {
		uid = 65532
	}
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := prepare(dir, uid); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	if owner := info.Sys().(*syscall.Stat_t); int(owner.Uid) != uid || os.Getuid() == 0 && info.Mode().Perm() != 0o700 {
		t.Errorf("the directory belongs to %d with mode %s", owner.Uid, info.Mode())
	}
	if code := run(t.Context(), []string{"prepare", "--data-dir", dir, "--uid", "0"}); code != 1 {
		t.Errorf("a directory for root: exit %d", code)
	}
}
