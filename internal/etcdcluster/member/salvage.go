package member

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/snap"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/protobuf/proto"

	"github.com/ebb-dev/ebb/internal/etcdcluster/snapshot"
)

// Salvage makes a child turn the data of a stopped member into a snapshot. It works on a copy of the data.
//
// A member that lost its quorum does not know which of the last entries in its log a quorum had: the leader acknowledges a write as soon as it
// knows, and tells the others with its next message. So all of them count: an entry that was never acknowledged does no harm, one that was must
// not be lost.
type Salvage struct {
	// Work is a directory for the copy, which the child creates and deletes.
	Work string `json:"work"`
	// Output is the file of the snapshot.
	Output string `json:"output"`
}

// LogEnd is how far a member's log goes.
type LogEnd struct {
	// Term and Index of the last entry, and the index up to which the member knew that a quorum has it.
	Term, Index, Commit uint64
}

// ReadLogEnd reads how far the log of a stopped member goes. It writes nothing.
func ReadLogEnd(dir string) (end LogEnd, err error) {
	return logEnd(Data(dir), func(path string, at *walpb.Snapshot) (*wal.WAL, error) { return wal.OpenForRead(quiet(), path, at) }, nil)
}

// quiet is a logger for etcd's libraries that panics where they would end the process.
func quiet() *zap.Logger {
	return zap.New(zapcore.NewNopCore(), zap.WithFatalHook(zapcore.WriteThenPanic))
}

// logEnd reads the log in a data directory, and then calls then with the log, if it is not nil.
func logEnd(data string, open func(string, *walpb.Snapshot) (*wal.WAL, error), then func(*wal.WAL, *raftpb.HardState, LogEnd) error) (end LogEnd, err error) {
	defer func() { // etcd's libraries panic on damaged files
		if r := recover(); r != nil {
			err = fmt.Errorf("the member's log: %v", r)
		}
	}()
	walDir := filepath.Join(data, "member", "wal")
	snapshots, err := wal.ValidSnapshotEntries(quiet(), walDir)
	if err != nil {
		return end, fmt.Errorf("the member's log: %w", err)
	}
	at := &walpb.Snapshot{}
	newest, err := snap.New(quiet(), filepath.Join(data, "member", "snap")).LoadNewestAvailable(snapshots)
	switch {
	case errors.Is(err, snap.ErrNoSnapshot):
	case err != nil:
		return end, fmt.Errorf("the member's log: %w", err)
	default:
		end.Term, end.Index = newest.Metadata.GetTerm(), newest.Metadata.GetIndex()
		at.Term, at.Index = proto.Uint64(end.Term), proto.Uint64(end.Index)
	}
	w, err := open(walDir, at)
	if err != nil {
		return end, fmt.Errorf("the member's log: %w", err)
	}
	defer w.Close()
	_, state, entries, err := w.ReadAll()
	if err != nil {
		return end, fmt.Errorf("the member's log: %w", err)
	}
	if n := len(entries); n > 0 {
		end.Term, end.Index = entries[n-1].GetTerm(), entries[n-1].GetIndex()
	}
	end.Commit = state.GetCommit()
	if then != nil {
		return end, then(w, state, end)
	}
	return end, nil
}

// commitAll records in a log that all its entries are committed.
func commitAll(data string) error {
	repaired := false
	open := func(path string, at *walpb.Snapshot) (*wal.WAL, error) { return wal.Open(quiet(), path, at) }
	for {
		_, err := logEnd(data, open, func(w *wal.WAL, state *raftpb.HardState, end LogEnd) error {
			return w.Save(&raftpb.HardState{Term: proto.Uint64(max(state.GetTerm(), end.Term)), Vote: proto.Uint64(state.GetVote()), Commit: proto.Uint64(max(end.Index, end.Commit))}, nil)
		})
		// The process may have died in the middle of an entry, which nobody counted on.
		if repaired || !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		if repaired = true; !wal.Repair(quiet(), filepath.Join(data, "member", "wal")) {
			return err
		}
	}
}

// salvage makes the snapshot.
func (s *server) salvage(ctx context.Context) (err error) {
	job := s.config.Salvage
	s.report(func(r *Report) { r.State = Starting })
	if s.lock, err = TryLock(s.config.Dir); err != nil {
		return err
	}
	if err := os.RemoveAll(job.Work); err != nil {
		return err
	}
	defer os.RemoveAll(job.Work)
	tell := s.tellSalvage()
	if err := copyTree(ctx, Data(s.config.Dir), Data(job.Work), snapshot.NewMeter(tell, snapshot.Copying, DataBytes(s.config.Dir))); err != nil {
		return fmt.Errorf("copy the member's data: %w", err)
	}
	if err := commitAll(Data(job.Work)); err != nil {
		return err
	}
	if s.dir, err = os.Open(job.Work); err != nil {
		return err
	}
	defer s.dir.Close()
	if err := s.startAlone(ctx); err != nil {
		return err
	}
	defer s.etcd.Close()
	cli, err := Dial(job.Work)
	if err != nil {
		return err
	}
	defer cli.Close()
	facts, err := snapshot.Take(ctx, cli, job.Output, 0, tell)
	if err != nil {
		return err
	}
	s.report(func(r *Report) { r.State, r.Facts = Salvaged, &facts })
	return nil
}

// salvageTold is how often the parent is told how far the snapshot is.
const salvageTold = time.Second

// tellSalvage returns what the snapshot tells how far it is.
func (s *server) tellSalvage() snapshot.Progress {
	var told time.Time
	var last snapshot.Step
	return func(step snapshot.Step, done, total int64) {
		if step == last && time.Since(told) < salvageTold {
			return
		}
		told, last = time.Now(), step
		s.report(func(r *Report) { r.Progress = &Progress{Step: step, Done: done, Total: total} })
	}
}

// startAlone starts a server from the copy as the only member of its cluster. Nobody but this process reaches it.
func (s *server) startAlone(ctx context.Context) (err error) {
	nowhere := url.URL{Scheme: "http", Host: "127.0.0.1:1"}
	s.config.Sealed = true
	s.seal = newSeal(s.config)
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir = s.config.Name, Data(s.config.Salvage.Work)
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{{Scheme: "unix", Host: s.socketURL("peer.sock").Path}}, []url.URL{nowhere}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{s.socketURL(socketName)}, []url.URL{nowhere}
	cfg.ListenClientHttpUrls = []url.URL{s.socketURL(httpName)}
	cfg.InitialCluster, cfg.ClusterState, cfg.ForceNewCluster = s.config.Name+"="+nowhere.String(), embed.ClusterStateFlagNew, true
	cfg.EnableGRPCGateway = false
	cfg.QuotaBackendBytes = 64 << 30
	cfg.GRPCAdditionalServerOptions = s.seal.options()
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(zapcore.NewNopCore()))
	if s.etcd, err = embed.StartEtcd(cfg); err != nil {
		return fmt.Errorf("start from the member's data: %w", err)
	}
	s.trustOwn()
	select {
	case <-s.etcd.Server.ReadyNotify(): // it has applied an entry of its own, which follows all others
		return nil
	case err = <-s.etcd.Err():
	case <-s.etcd.Server.StoppingNotify():
		err = errors.New("the member had been removed from its cluster")
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	s.etcd.Server.HardStop()
	s.etcd.Close()
	return fmt.Errorf("start from the member's data: %w", err)
}

// copyTree copies a directory with its files.
func copyTree(ctx context.Context, from, to string, m *snapshot.Meter) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		case d.Type().IsRegular():
			return copyFile(ctx, path, filepath.Join(to, rel), m)
		}
		return nil
	})
}

// DataBytes returns the size of a member's data, which is below its directory.
func DataBytes(dir string) (total int64) {
	_ = filepath.WalkDir(Data(dir), func(_ string, d fs.DirEntry, err error) error { // files that are deleted meanwhile do not count
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				total += info.Size()
			}
		}
		return nil
	})
	return total
}

func copyFile(ctx context.Context, from, to string, m *snapshot.Meter) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	if _, err := io.Copy(io.MultiWriter(out, m), stoppable{ctx, in}); err != nil {
		return err
	}
	return out.Close()
}

// stoppable is a reader that ends with a context: a file of many gigabytes must not outlive it.
type stoppable struct {
	ctx context.Context
	io.Reader
}

// Read implements io.Reader.
func (r stoppable) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.Reader.Read(p)
}
