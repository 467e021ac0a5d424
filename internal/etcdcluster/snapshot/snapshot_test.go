package snapshot_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/ebb-dev/ebb/internal/etcdcluster/snapshot"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const peerURL = "http://127.0.0.1:1"

// etcd is a real server on a unix socket.
type etcd struct {
	t      testing.TB
	server *embed.Etcd
	*clientv3.Client
}

func start(t testing.TB, data string) *etcd {
	t.Helper()
	sockets, err := os.MkdirTemp("", "etcd")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(sockets) })
	socket := url.URL{Scheme: "unix", Path: filepath.Join(sockets, "s")}
	peer, err := url.Parse(peerURL)
	must(t, err)
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir = "m", data
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{socket}, []url.URL{socket}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = nil, []url.URL{*peer}
	cfg.InitialCluster = "m=" + peerURL
	cfg.TickMs, cfg.ElectionMs, cfg.UnsafeNoFsync = 10, 100, true
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	server, err := embed.StartEtcd(cfg)
	must(t, err)
	<-server.Server.ReadyNotify()
	cli, err := clientv3.New(clientv3.Config{Endpoints: []string{socket.String()}, Logger: zap.NewNop()})
	must(t, err)
	e := &etcd{t: t, server: server, Client: cli}
	t.Cleanup(e.stop)
	return e
}

func (e *etcd) stop() {
	if e.server != nil {
		e.Close()
		e.server.Close()
		e.server = nil
	}
}

func (e *etcd) put(key, value string) int64 {
	e.t.Helper()
	r, err := e.Put(soon(e.t), key, value)
	must(e.t, err)
	return r.Header.Revision
}

// hash of the newest revision. For one up to which it compacted, etcd remembers the hash from before.
func (e *etcd) hash() uint32 {
	e.t.Helper()
	r, err := e.HashKV(soon(e.t), e.Endpoints()[0], 0)
	must(e.t, err)
	return r.Hash
}

func (e *etcd) take() (string, snapshot.Facts) {
	e.t.Helper()
	path := filepath.Join(e.t.TempDir(), "s.db")
	f, err := snapshot.Take(soon(e.t), e.Client, path, 0, nil)
	must(e.t, err)
	return path, f
}

func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestAnEmptyEtcdHasASnapshot(t *testing.T) {
	_, f := start(t, t.TempDir()).take()
	if f.Revision != 1 || f.TotalKeys != 0 {
		t.Errorf("facts %+v", f)
	}
}

// Take asks etcd for its own hash, so every snapshot that it takes is a test of the hash computed offline.
func TestTheHashOfAFileIsThatOfEtcdWhateverWasWritten(t *testing.T) {
	e := start(t, t.TempDir())
	chance := rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano())))
	key := func() string { return fmt.Sprintf("k%d", chance.IntN(12)) }
	var newest, compacted int64 = 1, 0
	for round := range 25 {
		undo := snapshot.HoldKeys(1 + chance.IntN(20)) // so that some databases are read several times
		t.Cleanup(undo)
		for range chance.IntN(30) {
			switch chance.IntN(4) {
			case 0:
				r, err := e.Delete(soon(t), key())
				must(t, err)
				newest = r.Header.Revision
			case 1:
				r, err := e.Txn(soon(t)).Then(clientv3.OpPut("a"+key(), "1"), clientv3.OpPut("b"+key(), "2"), clientv3.OpDelete("c"+key())).Commit()
				must(t, err)
				newest = r.Header.Revision
			default:
				newest = e.put(key(), fmt.Sprint(round))
			}
		}
		if chance.IntN(2) == 0 && newest > compacted+1 {
			compacted += 1 + chance.Int64N(newest-compacted)
			_, err := e.Compact(soon(t), compacted, clientv3.WithCompactPhysical())
			must(t, err)
		}
		if chance.IntN(8) == 0 { // all keys gone
			_, err := e.Delete(soon(t), "", clientv3.WithPrefix())
			must(t, err)
			r, err := e.Get(soon(t), "k")
			must(t, err)
			newest = r.Header.Revision
		}
		_, f := e.take()
		if f.Revision != newest || f.Compacted != compacted || f.Hash != e.hash() {
			t.Fatalf("round %d: facts %+v, and etcd is at %d, compacted at %d, with hash %d", round, f, newest, compacted, e.hash())
		}
	}
}

func TestASnapshotIsTakenAndVerifiedWhileOthersWrite(t *testing.T) {
	e := start(t, t.TempDir())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ctx.Err() == nil; i++ {
			_, _ = e.Put(ctx, fmt.Sprint(i%100), "value") // how it went does not matter
		}
	}()
	defer func() { cancel(); <-done }()
	for range 10 {
		e.take()
	}
}

func TestAnotherRevisionIsRefusedAndLeavesNothing(t *testing.T) {
	e := start(t, t.TempDir())
	revision := e.put("a", "1")
	path := filepath.Join(t.TempDir(), "s.db")
	if _, err := snapshot.Take(soon(t), e.Client, path, revision+1, nil); !errors.Is(err, snapshot.ErrRevision) {
		t.Errorf("taken with %v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its file: %v", err)
	}
	_, err := snapshot.Take(soon(t), e.Client, path, revision, nil)
	must(t, err)
}

func TestAFileThatWasChangedIsRefusedWhereverItWas(t *testing.T) {
	e := start(t, t.TempDir())
	for i := range 100 {
		e.put(fmt.Sprint(i), "value")
	}
	path, f := e.take()
	good, err := os.ReadFile(path)
	must(t, err)
	must(t, snapshot.Verify(path, f.Size, f.SHA256))
	refused := func(name string, data []byte) {
		t.Helper()
		must(t, os.WriteFile(path, data, 0o600))
		if _, err := snapshot.Inspect(path, nil); !errors.Is(err, snapshot.ErrDamaged) {
			t.Errorf("%s: Inspect says %v", name, err)
		}
		if err := snapshot.Verify(path, f.Size, f.SHA256); !errors.Is(err, snapshot.ErrTampered) {
			t.Errorf("%s: Verify says %v", name, err)
		}
		target := snapshot.Target{Data: filepath.Join(t.TempDir(), "data"), Name: "m", PeerURL: peerURL, Token: "t"}
		if err := snapshot.Restore(path, f.Size, f.SHA256, target); !errors.Is(err, snapshot.ErrTampered) {
			t.Errorf("%s: Restore says %v", name, err)
		}
		if _, err := os.Stat(target.Data); err == nil {
			t.Errorf("%s: there is data of it", name)
		}
	}
	for _, at := range []int{0, 100, len(good) / 2, len(good) - 40, len(good) - 1} {
		data := append([]byte{}, good...)
		data[at] ^= 0x10
		refused(fmt.Sprintf("byte %d", at), data)
	}
	refused("cut", good[:len(good)-512])
	refused("without its end", good[:len(good)-32])
	refused("longer", append(append([]byte{}, good...), make([]byte, 512)...))
	refused("empty", nil)

	// Whoever can compute etcd's checksum anew still does not have the recorded one.
	data := append([]byte{}, good[:len(good)-32]...)
	data[len(data)/2] ^= 1
	sum := sha256.Sum256(data)
	must(t, os.WriteFile(path, append(data, sum[:]...), 0o600))
	if err := snapshot.Verify(path, f.Size, f.SHA256); !errors.Is(err, snapshot.ErrTampered) {
		t.Errorf("a forged checksum: %v", err)
	}
	garbage := make([]byte, 4096)
	sum = sha256.Sum256(garbage)
	must(t, os.WriteFile(path, append(garbage, sum[:]...), 0o600))
	if _, err := snapshot.Inspect(path, nil); !errors.Is(err, snapshot.ErrDamaged) {
		t.Errorf("no database: %v", err)
	}
}

func TestAnExactRestoreGoesOnWhereTheSnapshotEnds(t *testing.T) {
	e := start(t, t.TempDir())
	for i := range 100 {
		e.put(fmt.Sprint(i%30), fmt.Sprint(i))
	}
	_, err := e.Compact(soon(t), 50)
	must(t, err)
	_, err = e.Delete(soon(t), "3")
	must(t, err)
	path, f := e.take()
	hash := e.hash()
	e.stop()
	data := filepath.Join(t.TempDir(), "data")
	must(t, snapshot.Restore(path, f.Size, f.SHA256, snapshot.Target{Data: data, Name: "m", PeerURL: peerURL, Token: "t", Exact: true}))
	again := start(t, data)
	if got := again.hash(); got != hash {
		t.Errorf("hash %d before, %d after", hash, got)
	}
	got, err := again.Get(soon(t), "1", clientv3.WithRev(f.Revision-20))
	must(t, err)
	if len(got.Kvs) != 1 {
		t.Error("the history is gone")
	}
	if revision := again.put("new", "1"); revision != f.Revision+1 {
		t.Errorf("the next revision is %d after %d", revision, f.Revision)
	}
	if err := snapshot.Restore(path, f.Size, f.SHA256, snapshot.Target{Data: data, Name: "m", PeerURL: peerURL, Token: "t"}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a restore over data: %v", err)
	}
}

func TestAnyOtherRestoreMovesTheRevisionAhead(t *testing.T) {
	e := start(t, t.TempDir())
	for i := range 50 {
		e.put(fmt.Sprint(i), fmt.Sprint(i))
	}
	path, f := e.take()
	for i := range 20 {
		e.put(fmt.Sprint(i), "later")
	}
	e.stop()
	data := filepath.Join(t.TempDir(), "data")
	must(t, snapshot.Restore(path, f.Size, f.SHA256, snapshot.Target{Data: data, Name: "m", PeerURL: peerURL, Token: "t"}))
	again := start(t, data)
	got, err := again.Get(soon(t), "", clientv3.WithPrefix())
	must(t, err)
	if got.Header.Revision < f.Revision+1_000_000 || got.Count != 50 {
		t.Errorf("revision %d after %d, %d keys", got.Header.Revision, f.Revision, got.Count)
	}
	if w := <-again.Watch(soon(t), "x", clientv3.WithRev(f.Revision+10)); w.CompactRevision == 0 {
		t.Errorf("a watcher that goes on got %+v", w)
	}
	again.put("new", "1")
	again.take() // its hash too is that of etcd
	_, err = again.Compact(soon(t), got.Header.Revision+1, clientv3.WithCompactPhysical())
	must(t, err)
	again.take()
}
