package snapshot_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"google.golang.org/protobuf/proto"

	"github.com/ebb-dev/ebb/internal/etcdcluster/snapshot"
)

const (
	largeFile   = 192 << 20
	largeBudget = 48 << 20 // of memory that is not the file itself
)

// A file that is several times as large as the memory that may be used is hashed, verified and received, and tells how far it is all the time.
func TestALargeFileTakesLittleMemoryAndTellsHowFarItIs(t *testing.T) {
	path := largeSnapshot(t)
	debug.FreeOSMemory() // what it took to write the file
	before := anonymous(t)
	peak, stop := watchMemory(t)
	told, last := 0, [2]int64{}
	f, err := snapshot.Inspect(path, func(step snapshot.Step, done, total int64) {
		told++
		if step != snapshot.Hashing || done > total || total < last[1]/2 || total == last[1] && done < last[0] {
			t.Errorf("%s %d of %d after %v", step, done, total, last)
		}
		last = [2]int64{done, total}
	})
	must(t, err)
	if last[0] != last[1] || last[1]%f.Size != 0 || told < 1000 {
		t.Errorf("told %d times, at last %d of %d, of a file of %d bytes", told, last[0], last[1], f.Size)
	}
	must(t, snapshot.Verify(path, f.Size, f.SHA256))
	receive(t, path, f)
	stop()
	grown := *peak - before
	t.Logf("a file of %d MiB took %d MiB of memory, and told %d times how far it is", f.Size>>20, grown>>20, told)
	if f.Size < 3*largeBudget || grown > largeBudget {
		t.Errorf("a file of %d MiB took %d MiB of memory", f.Size>>20, grown>>20)
	}
}

// receive copies a file as a node does that gets it in pieces.
func receive(t *testing.T, path string, f snapshot.Facts) {
	t.Helper()
	in, err := os.Open(path)
	must(t, err)
	defer in.Close()
	temp := filepath.Join(t.TempDir(), "copy")
	must(t, os.WriteFile(temp, nil, 0o600))
	r, err := snapshot.Receive(temp, f.Size, f.SHA256)
	must(t, err)
	_, err = io.CopyBuffer(struct{ io.Writer }{r}, in, make([]byte, 1<<20))
	must(t, err)
	must(t, r.Finish())
	must(t, r.Close())
}

// largeSnapshot writes a snapshot as etcd would, with values of a MiB of which half are compacted.
func largeSnapshot(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "large.db")
	db, err := bolt.Open(path, 0o600, &bolt.Options{NoSync: true, NoFreelistSync: true})
	must(t, err)
	const keys = largeFile >> 20
	value := bytes.Repeat([]byte("x"), 1<<20)
	for i := 0; i < keys; i += 16 { // a transaction is held in memory
		must(t, db.Update(func(tx *bolt.Tx) error {
			bucket, err := tx.CreateBucketIfNotExists(schema.Key.Name())
			must(t, err)
			bucket.FillPercent = 1
			meta, err := tx.CreateBucketIfNotExists(schema.Meta.Name())
			must(t, err)
			must(t, meta.Put(schema.FinishedCompactKeyName, mvcc.RevToBytes(mvcc.Revision{Main: keys / 2}, mvcc.NewRevBytes())))
			for j := i; j < i+16; j++ {
				kv, err := proto.Marshal(&mvccpb.KeyValue{Key: fmt.Appendf(nil, "key-%d", j%100), Value: value, ModRevision: int64(j + 2)})
				must(t, err)
				must(t, bucket.Put(mvcc.RevToBytes(mvcc.Revision{Main: int64(j + 2)}, mvcc.NewRevBytes()), kv))
			}
			return nil
		}))
	}
	must(t, db.Close())
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer file.Close()
	h := sha256.New()
	_, err = io.Copy(h, file)
	must(t, err)
	_, err = file.Write(h.Sum(nil))
	must(t, err)
	return path
}

// watchMemory looks again and again how much memory the process has, until stop is called.
func watchMemory(t *testing.T) (peak *int64, stop func()) {
	t.Helper()
	peak, end, ended := new(int64), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			*peak = max(*peak, anonymous(t))
			select {
			case <-end:
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	}()
	return peak, func() { close(end); <-ended }
}

// anonymous is how much memory the process has that no file backs.
func anonymous(t *testing.T) int64 {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Error(err)
		return 0
	}
	for line := range strings.Lines(string(text)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "RssAnon: %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	t.Error("the kernel does not say how much memory the process has")
	return 0
}
