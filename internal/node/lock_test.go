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
	first, err := takeSeat(dir, "n1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := takeSeat(dir, "n1"); !errors.Is(err, ErrRunning) {
		t.Fatalf("second start: %v", err)
	}
	first.leave()
	second, err := takeSeat(dir, "n1")
	if err != nil {
		t.Fatalf("after the first ended: %v", err)
	}
	defer second.leave()
	if !slices.Contains(second.dead, first.holder) {
		t.Errorf("the second does not know that the first (%s) is dead: %v", first.holder, second.dead)
	}
}

func TestHoldersOfThisBootAreRememberedUntilTheLeaseIsTaken(t *testing.T) {
	dir := datadir.NodeDir(t.TempDir())
	var all []string
	for range 3 { // processes that died before they got the lease
		s, err := takeSeat(dir, "n1")
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(s.dead, all) {
			t.Errorf("dead: %v, want %v", s.dead, all)
		}
		all = append(all, s.holder)
		s.leave()
	}
	s, err := takeSeat(dir, "n1")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.took(1); err != nil {
		t.Fatal(err)
	}
	s.leave()
	last, err := takeSeat(dir, "n1")
	if err != nil {
		t.Fatal(err)
	}
	defer last.leave()
	if !slices.Equal(last.dead, []string{s.holder}) {
		t.Errorf("dead: %v, want only %s", last.dead, s.holder)
	}
}

func TestAfterARebootNobodyIsKnownToBeDead(t *testing.T) {
	dir := datadir.NodeDir(t.TempDir())
	if err := os.WriteFile(dir.Holder(), []byte(`{"bootID":"another","holders":["n1/x"]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := takeSeat(dir, "n1")
	if err != nil {
		t.Fatal(err)
	}
	defer s.leave()
	if len(s.dead) != 0 {
		t.Errorf("dead after a reboot: %v", s.dead)
	}
}
