package node

import (
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/ebb-dev/ebb/internal/datadir"
)

func TestTheSameNameTwiceOnOneMachineIsRefused(t *testing.T) {
	dir := datadir.NodeDir(t.TempDir())
	first, err := takeDirLock(dir, "n1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := takeDirLock(dir, "n1"); !errors.Is(err, ErrRunning) {
		t.Fatalf("second start: %v", err)
	}
	first.release()
	second, err := takeDirLock(dir, "n1")
	if err != nil {
		t.Fatalf("after the first ended: %v", err)
	}
	defer second.release()
	if !slices.Contains(second.dead, first.holder) {
		t.Errorf("the second does not know that the first (%s) is dead: %v", first.holder, second.dead)
	}
}

func TestHoldersOfThisBootAreRememberedUntilTheLeaseIsTaken(t *testing.T) {
	dir := datadir.NodeDir(t.TempDir())
	var all []string
	for range 3 { // processes that died before they got the lease
		l, err := takeDirLock(dir, "n1")
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(l.dead, all) {
			t.Errorf("dead: %v, want %v", l.dead, all)
		}
		all = append(all, l.holder)
		l.release()
	}
	l, err := takeDirLock(dir, "n1")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.took(1); err != nil {
		t.Fatal(err)
	}
	l.release()
	last, err := takeDirLock(dir, "n1")
	if err != nil {
		t.Fatal(err)
	}
	defer last.release()
	if !slices.Equal(last.dead, []string{l.holder}) {
		t.Errorf("dead: %v, want only %s", last.dead, l.holder)
	}
}

func TestAfterARebootNobodyIsKnownToBeDead(t *testing.T) {
	dir := datadir.NodeDir(t.TempDir())
	if err := os.WriteFile(dir.Holder(), []byte(`{"bootID":"another","holders":["n1/x"]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := takeDirLock(dir, "n1")
	if err != nil {
		t.Fatal(err)
	}
	defer l.release()
	if len(l.dead) != 0 {
		t.Errorf("dead after a reboot: %v", l.dead)
	}
}
