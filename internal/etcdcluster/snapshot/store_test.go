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
	if err := s.Reserve(k, 1<<60); !errors.Is(err, snapshot.ErrNoRoom) { // the file system was not even asked to reserve it
		t.Errorf("1 EiB: %v", err)
	}
	if left, err := os.ReadDir(s.Root); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// A trial must not fill the disk that it looks at: logs of etcd may be on it.
func TestRoomIsReservedOnlyIfSomeIsLeftBesides(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		name       string
		free, size int64
		says       string // empty if there is room
	}{
		{"plenty", 1000 * mib, 10 * mib, ""},
		{"just enough", 266 * mib, 10 * mib, ""},
		{"one byte too few", 266*mib - 1, 10 * mib, "too little room in /snapshots: 265 MiB are free, and 266 MiB are needed (10 MiB for the copy, 256 MiB to spare)"},
		{"it would fit and leave nothing", 100 * mib, 100 * mib, "too little room in /snapshots: 100 MiB are free, and 356 MiB are needed (100 MiB for the copy, 256 MiB to spare)"},
		{"a large one leaves a tenth of it", 10500 * mib, 10000 * mib, "too little room in /snapshots: 10500 MiB are free, and 11000 MiB are needed (10000 MiB for the copy, 1000 MiB to spare)"},
		{"more than any disk has", 100 * mib, 1 << 62, "too little room in /snapshots: 100 MiB are free, and 4837851162215 MiB are needed (4398046511104 MiB for the copy, 439804651111 MiB to spare)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := snapshot.CheckRoom("/snapshots", c.free, c.size)
			switch {
			case c.says == "" && err != nil:
				t.Errorf("%v", err)
			case c.says != "" && (!errors.Is(err, snapshot.ErrNoRoom) || err.Error() != c.says):
				t.Errorf("%v, want %s", err, c.says)
			}
		})
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
