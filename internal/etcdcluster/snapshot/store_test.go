package snapshot_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/ebb-dev/ebb/internal/etcdcluster/snapshot"
)

func TestNamesDoNotLeadOutOfAStore(t *testing.T) {
	s := snapshot.Store{Root: t.TempDir()}
	for _, k := range []snapshot.Key{
		{ClusterUID: "u", Name: ""}, {ClusterUID: "", Name: "n"}, {ClusterUID: "..", Name: "n"}, {ClusterUID: "u", Name: "../n"},
		{ClusterUID: "u", Name: ".n"}, {Dir: "..", ClusterUID: "u", Name: "n"}, {Dir: "a/b", ClusterUID: "u", Name: "n"}, {ClusterUID: "/u", Name: "n"},
	} {
		if path, err := s.Path(k); err == nil {
			t.Errorf("%+v is %s", k, path)
		}
	}
}

func fill(t *testing.T, s snapshot.Store, k snapshot.Key, data string) {
	t.Helper()
	temp, err := s.Temp(k)
	must(t, err)
	must(t, os.WriteFile(temp, []byte(data), 0o600))
	must(t, s.Keep(k, temp))
}

func TestRoomIsReservedAndGivenBack(t *testing.T) {
	s := snapshot.Store{Root: t.TempDir()}
	k := snapshot.Key{Dir: "d", ClusterUID: "u", Name: "n"}
	must(t, s.Reserve(k, 1<<20))
	if err := s.Reserve(k, 1<<60); err == nil {
		t.Error("there is room for 1 EiB")
	}
	if left, err := os.ReadDir(s.Root); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestAStoreKeepsListsAndDeletes(t *testing.T) {
	s := snapshot.Store{Root: t.TempDir()}
	a, b := snapshot.Key{ClusterUID: "u", Name: "a"}, snapshot.Key{Dir: "d", ClusterUID: "u", Name: "b"}
	fill(t, s, a, "a")
	fill(t, s, b, "b")
	temp, err := s.Temp(b)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(s.Root, "u", "foreign.txt"), nil, 0o600))
	list, err := s.List()
	must(t, err)
	found := map[snapshot.Key]bool{}
	temps := 0
	for _, f := range list {
		if f.Temp {
			temps++
		} else {
			found[f.Key] = true
		}
	}
	if len(found) != 2 || !found[a] || !found[b] || temps != 1 {
		t.Errorf("found %+v", list)
	}
	must(t, s.Sweep())
	if _, err := os.Stat(temp); err == nil {
		t.Error("what was being written is still there")
	}
	must(t, s.Delete(b))
	must(t, s.Delete(b)) // twice is once
	if there, err := s.Has(b); there || err != nil {
		t.Errorf("b: %v, %v", there, err)
	}
	if _, err := os.Stat(filepath.Join(s.Root, "d")); err == nil {
		t.Error("an empty directory is left")
	}
	if there, err := s.Has(a); !there || err != nil {
		t.Errorf("a: %v, %v", there, err)
	}
}

func TestAFileIsOpenedOnlyIfItIsWhatWasRecorded(t *testing.T) {
	s, k := snapshot.Store{Root: t.TempDir()}, snapshot.Key{ClusterUID: "u", Name: "a"}
	fill(t, s, k, "data")
	sum := sha256.Sum256([]byte("data"))
	f, err := s.Open(k, 4, hex.EncodeToString(sum[:]))
	must(t, err)
	defer f.Close()
	if data, err := io.ReadAll(f); err != nil || string(data) != "data" {
		t.Errorf("%q, %v", data, err)
	}
	other := sha256.Sum256([]byte("date"))
	if _, err := s.Open(k, 4, hex.EncodeToString(other[:])); !errors.Is(err, snapshot.ErrTampered) {
		t.Errorf("another sum: %v", err)
	}
	if _, err := s.Open(k, 5, hex.EncodeToString(sum[:])); !errors.Is(err, snapshot.ErrTampered) {
		t.Errorf("another size: %v", err)
	}
}

func TestWhatComesIsWhatWasRecordedOrRefused(t *testing.T) {
	sum := sha256.Sum256([]byte("data"))
	for name, pieces := range map[string][]string{"good": {"da", "ta"}, "more": {"da", "ta!"}, "less": {"da", "t"}, "other": {"da", "te"}} {
		temp := filepath.Join(t.TempDir(), "temp")
		must(t, os.WriteFile(temp, nil, 0o600))
		r, err := snapshot.Receive(temp, 4, hex.EncodeToString(sum[:]))
		must(t, err)
		for _, p := range pieces {
			if _, err = r.Write([]byte(p)); err != nil {
				break
			}
		}
		if err == nil {
			err = r.Finish()
		}
		if (name == "good") != (err == nil) || err != nil && !errors.Is(err, snapshot.ErrTampered) {
			t.Errorf("%s: %v", name, err)
		}
		must(t, r.Close())
	}
}
