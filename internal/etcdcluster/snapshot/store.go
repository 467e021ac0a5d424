package snapshot

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/ebb-dev/ebb/internal/atomicfile"
)

// Store is a directory of snapshots:
//
//	<root>/<dir>/<cluster UID>/<name>.db        a snapshot
//	<root>/<dir>/<cluster UID>/.<name>.db.*     one that is being written
type Store struct{ Root string }

// Key names a snapshot in a store.
type Key struct {
	// Dir is a directory below the root, as the cluster's policy names it; it may be empty.
	Dir string
	// ClusterUID is the UID of the EtcdCluster.
	ClusterUID string
	// Name of the EtcdSnapshot.
	Name string
}

const suffix = ".db"

// local returns whether a name is that of one file or directory, and not one that the store uses itself.
func local(name string) bool {
	return name != "" && !strings.HasPrefix(name, ".") && filepath.IsLocal(name) && filepath.Base(name) == name
}

func (k Key) validate() error {
	if k.Dir != "" && !local(k.Dir) || !local(k.ClusterUID) || !local(k.Name) {
		return fmt.Errorf("%q, %q, %q does not name a snapshot", k.Dir, k.ClusterUID, k.Name)
	}
	return nil
}

// Path of a snapshot.
func (s Store) Path(k Key) (string, error) {
	if err := k.validate(); err != nil {
		return "", err
	}
	return filepath.Join(s.Root, k.Dir, k.ClusterUID, k.Name+suffix), nil
}

// Temp creates the directory of a snapshot, and returns the path of a temporary file in it.
func (s Store) Temp(k Key) (string, error) {
	path, err := s.Path(k)
	if err != nil {
		return "", err
	}
	dir := filepath.Dir(path)
	for {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return "", err
		}
		f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*")
		if errors.Is(err, fs.ErrNotExist) {
			continue // a snapshot was deleted meanwhile, and its directory was empty
		}
		if err != nil {
			return "", err
		}
		return f.Name(), f.Close()
	}
}

// Discard removes a temporary file if it is still there, and directories that are empty without it.
func (s Store) Discard(temp string) {
	_ = os.Remove(temp) // the next start sweeps it
	s.tidy(filepath.Dir(temp))
}

func (s Store) tidy(dir string) {
	for dir != filepath.Clean(s.Root) && os.Remove(dir) == nil {
		dir = filepath.Dir(dir)
	}
}

// ErrNoRoom: the file system has too little room left for a snapshot.
var ErrNoRoom = errors.New("too little room")

// What has to be free besides a snapshot: what else is on the disk, logs of etcd above all, grows while the snapshot is written, and so does the database
// until it is taken.
const (
	spareLeast = 256 << 20
	spareShare = 10 // a tenth of the snapshot
)

// Reserve finds out whether there is room for a snapshot of a size, and for its file. Nothing of it stays. It reserves room only where some is left
// besides: for a moment others on the same disk have only that.
func (s Store) Reserve(k Key, size int64) (err error) {
	temp, err := s.Temp(k)
	if err != nil {
		return err
	}
	defer s.Discard(temp)
	f, err := os.OpenFile(temp, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	free, err := freeBytes(f)
	if err != nil {
		return err
	}
	if err := checkRoom(s.Root, free, size); err != nil {
		return err
	}
	for err = syscall.EINTR; errors.Is(err, syscall.EINTR); {
		err = syscall.Fallocate(int(f.Fd()), 0, 0, size)
	}
	if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) {
		_, err = f.Write([]byte{0}) // the file system cannot reserve room, and can be written
	}
	if err != nil {
		return fmt.Errorf("reserve %d MiB in %s, where %d MiB are free: %w", mebibytes(size), s.Root, free>>20, err)
	}
	return nil
}

// checkRoom compares the size of a snapshot with the bytes that are free for it.
func checkRoom(dir string, free, size int64) error {
	if spare := max(spareLeast, size/spareShare); free-spare < size {
		return fmt.Errorf("%w in %s: %d MiB are free, and %d MiB are needed (%d MiB for the copy, %d MiB to spare)",
			ErrNoRoom, dir, free>>20, mebibytes(size+spare), mebibytes(size), mebibytes(spare))
	}
	return nil
}

func mebibytes(n int64) int64 { return (n + 1<<20 - 1) >> 20 }

// freeBytes returns how much room the file system of a file has left for this process.
func freeBytes(f *os.File) (int64, error) {
	var fs syscall.Statfs_t
	if err := syscall.Fstatfs(int(f.Fd()), &fs); err != nil {
		return 0, fmt.Errorf("free room of %s: %w", f.Name(), err)
	}
	return int64(fs.Bavail) * fs.Bsize, nil
}

// Keep renames a verified temporary file to the snapshot's name.
func (s Store) Keep(k Key, temp string) error {
	path, err := s.Path(k)
	if err != nil {
		return err
	}
	return atomicfile.Rename(temp, path)
}

// Has returns whether a snapshot has a file. It does not verify it.
func (s Store) Has(k Key) (bool, error) {
	path, err := s.Path(k)
	if err != nil {
		return false, err
	}
	_, err = os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Delete removes a snapshot, and directories that are empty without it.
func (s Store) Delete(k Key) error {
	path, err := s.Path(k)
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	dir := filepath.Dir(path)
	if err := atomicfile.Sync(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	s.tidy(dir)
	return nil
}

// Open verifies a snapshot and opens it.
func (s Store) Open(k Key, size int64, sum string) (*os.File, error) {
	path, err := s.Path(k)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := verify(f, size, sum); err != nil {
		f.Close()
		return nil, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Found is a file in a store.
type Found struct {
	Key     Key
	Path    string
	Written time.Time
	// Temp: it is one that was being written.
	Temp bool
}

// List finds all files.
func (s Store) List() ([]Found, error) {
	var all []Found
	err := filepath.WalkDir(s.Root, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(s.Root, path)
		if err != nil {
			return err
		}
		parts := strings.Split(rel, string(filepath.Separator))
		if len(parts) < 2 || len(parts) > 3 {
			return nil
		}
		f := Found{Path: path, Temp: strings.HasPrefix(d.Name(), ".") && strings.Contains(d.Name(), suffix+".")}
		name, ok := strings.CutSuffix(d.Name(), suffix)
		f.Key = Key{ClusterUID: parts[len(parts)-2], Name: name}
		if len(parts) == 3 {
			f.Key.Dir = parts[0]
		}
		if !f.Temp && (!ok || f.Key.validate() != nil) {
			return nil // not ours
		}
		info, err := d.Info()
		if err != nil {
			return nil // it was deleted meanwhile
		}
		f.Written = info.ModTime()
		all = append(all, f)
		return nil
	})
	return all, err
}

// Sweep removes the temporary files that an earlier process of this node left.
func (s Store) Sweep() error {
	all, err := s.List()
	if err != nil {
		return err
	}
	for _, f := range all {
		if f.Temp {
			err = errors.Join(err, os.Remove(f.Path))
		}
	}
	return err
}

// Receiver writes a copy that arrives in pieces and verifies it.
type Receiver struct {
	file *os.File
	hash hash.Hash
	size int64
	got  int64
	sum  string
}

// Receive begins to write a copy to a temporary file.
func Receive(temp string, size int64, sum string) (*Receiver, error) {
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	return &Receiver{file: f, hash: sha256.New(), size: size, sum: sum}, nil
}

// Write implements io.Writer. More than what was recorded is refused.
func (r *Receiver) Write(p []byte) (int, error) {
	if r.got+int64(len(p)) > r.size {
		return 0, fmt.Errorf("%w: more than %d bytes arrived", ErrTampered, r.size)
	}
	n, err := r.file.Write(p)
	r.got += int64(n)
	r.hash.Write(p[:n])
	return n, err
}

// Finish verifies the copy and makes sure that it survives a crash.
func (r *Receiver) Finish() error {
	if r.got != r.size {
		return fmt.Errorf("%w: %d bytes arrived, not %d", ErrTampered, r.got, r.size)
	}
	if got := hex.EncodeToString(r.hash.Sum(nil)); got != r.sum {
		return fmt.Errorf("%w: the sha256 of what arrived is %s, not %s", ErrTampered, got, r.sum)
	}
	return r.file.Sync()
}

// Close closes the file.
func (r *Receiver) Close() error { return r.file.Close() }
