package signer

import (
	"bytes"
	"os"
	"testing"

	"github.com/ebb-dev/ebb/internal/datadir"
)

func TestARequestIsKeptUntilItIsSettled(t *testing.T) {
	f := Files{Node: "n1", Hosts: []string{"10.0.0.1"}, Dir: datadir.NodeDir(t.TempDir())}
	pending := func(f Files) pendingRequest {
		t.Helper()
		p, err := f.pending()
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	first := pending(f)
	info, err := os.Stat(f.Dir.TLSRequest())
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key is stored with mode %v: %v", info.Mode(), err)
	}
	if again := pending(f); again.name("n1") != first.name("n1") || !bytes.Equal(again.Key, first.Key) {
		t.Error("a node that restarts makes another request")
	}
	moved := f
	moved.Hosts = []string{"10.0.0.2"}
	if other := pending(moved); other.name("n1") == first.name("n1") || bytes.Equal(other.Key, first.Key) {
		t.Error("a node with another address uses the request for the one before")
	}
	if err := os.WriteFile(f.Dir.TLSRequest(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	broken := pending(f)
	if err := f.forget(); err != nil {
		t.Fatal(err)
	}
	if next := pending(f); bytes.Equal(next.Key, broken.Key) {
		t.Error("the key of a settled request is used again")
	}
	if err := f.forget(); err != nil {
		t.Fatal(err)
	}
	if err := f.forget(); err != nil {
		t.Errorf("nothing to forget: %v", err)
	}
}
