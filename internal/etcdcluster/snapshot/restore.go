package snapshot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/ebb-dev/ebb/internal/atomicfile"
)

// revisionBump is how far the revision is moved ahead if writes after the snapshot are possible: more than any cluster writes between
// two snapshots.
const revisionBump = 1_000_000_000

// Target is what a snapshot becomes: the data of the only member of a new cluster.
type Target struct {
	// Data is the data directory, which must not exist yet.
	Data string
	// Name and PeerURL of the member.
	Name, PeerURL string
	// Token of the new cluster.
	Token string
	// Exact: no write was acknowledged after the snapshot, and revisions continue where it ends. Otherwise the revision is moved ahead
	// and marked compacted, so that no watcher sees it go backwards.
	Exact bool
}

// Restore verifies a file and writes the data of a new cluster from it. The data directory is complete or does not exist.
func Restore(path string, size int64, sum string, t Target) (err error) {
	if err := Verify(path, size, sum); err != nil {
		return err
	}
	if _, err := os.Lstat(t.Data); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("restore to %s: %w", t.Data, errors.Join(fs.ErrExist, err))
	}
	work := t.Data + ".new"
	if err := os.RemoveAll(work); err != nil {
		return err
	}
	defer os.RemoveAll(work)
	defer func() { // etcd's libraries panic when a disk is full
		if r := recover(); r != nil {
			err = fmt.Errorf("restore to %s: %v", t.Data, r)
		}
	}()
	config := snapshot.RestoreConfig{
		SnapshotPath: path, Name: t.Name, OutputDataDir: work, PeerURLs: []string{t.PeerURL},
		InitialCluster: t.Name + "=" + t.PeerURL, InitialClusterToken: t.Token,
	}
	if !t.Exact {
		config.RevisionBump, config.MarkCompacted = revisionBump, true
	}
	log := zap.New(zapcore.NewNopCore(), zap.WithFatalHook(zapcore.WriteThenPanic))
	if err := snapshot.NewV3(log).Restore(config); err != nil {
		return fmt.Errorf("restore to %s: %w", t.Data, err)
	}
	if err := syncTree(work); err != nil {
		return err
	}
	return atomicfile.Rename(work, t.Data)
}

// syncTree makes sure that everything below a directory survives a crash.
func syncTree(root string) error {
	return filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return atomicfile.Sync(path)
	})
}
