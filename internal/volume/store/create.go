package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/ebb-dev/ebb/internal/volume/block"
)

// The names in a replica's directory.
const (
	dataName = "data"
	metaName = "meta"
	lockName = "lock"
)

// What a directory is called, beside its name, while it is made and while it is removed.
const (
	creatingSuffix = ".creating"
	removedSuffix  = ".removed"
)

// IsLeftover reports whether a name beside replicas' directories is what a crash left of one that was being made or removed. The next
// Create or Remove of that directory clears it up.
func IsLeftover(name string) bool {
	return strings.HasPrefix(name, ".") && (strings.HasSuffix(name, creatingSuffix) || strings.HasSuffix(name, removedSuffix))
}

// beside is the name of a directory while it is made or removed.
func beside(dir, suffix string) string {
	return filepath.Join(filepath.Dir(dir), "."+filepath.Base(dir)+suffix)
}

// BootID of the machine. It changes with every boot.
func BootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(b)), nil
}

// Create makes the directory of a replica, empty and with generation 0, and the directories above it. The directory gets its name when
// everything in it is durable, so a crash leaves none, and Create can be called again. If the directory exists, Create does nothing if it
// holds the same replica and nobody has used it yet; otherwise it fails with fs.ErrExist or block.ErrForeign.
func Create(fsys FS, dir string, id Identity, bootID string) error {
	dir = filepath.Clean(dir)
	if err := create(fsys, dir, id, bootID); err != nil {
		return fmt.Errorf("create replica %s in %s: %w", id.Replica, dir, noSpace(err))
	}
	return nil
}

func create(fsys FS, dir string, id Identity, bootID string) error {
	if id.Size <= 0 || id.Size%sectorSize != 0 {
		return fmt.Errorf("size of %d bytes is no multiple of %d", id.Size, sectorSize)
	}
	parent := filepath.Dir(dir)
	if err := mkdirs(fsys, parent); err != nil {
		return err
	}
	switch _, err := fsys.Stat(dir); {
	case err == nil:
		if err := unused(fsys, dir, id); err != nil {
			return err
		}
		return fsys.SyncDir(parent) // the rename may be all that was left to do
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	temp := beside(dir, creatingSuffix)
	if err := fsys.RemoveAll(temp); err != nil {
		return err
	}
	if err := fsys.Mkdir(temp, 0o700); err != nil {
		return err
	}
	lock, err := fsys.Lock(filepath.Join(temp, lockName))
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := fill(fsys, temp, id, bootID); err != nil {
		_ = fsys.RemoveAll(temp) // the error that is returned matters more
		return err
	}
	if err := fsys.Rename(temp, dir); err != nil {
		return err
	}
	return fsys.SyncDir(parent)
}

// mkdirs makes a directory and those above it, durably.
func mkdirs(fsys FS, dir string) error {
	info, err := fsys.Stat(dir)
	if err == nil && !info.IsDir() && info.Mode()&fs.ModeSymlink == 0 {
		return fmt.Errorf("%s is no directory", dir)
	}
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	parent := filepath.Dir(dir)
	if err := mkdirs(fsys, parent); err != nil {
		return err
	}
	if err := fsys.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return fsys.SyncDir(parent)
}

// unused fails if a directory is anything but the same replica as Create left it.
func unused(fsys FS, dir string, id Identity) error {
	in, err := Inspect(fsys, dir)
	if err != nil {
		return err
	}
	if err := id.matches(in.Identity); err != nil {
		return err
	}
	if in.Used {
		return fmt.Errorf("%w, and has been in use", fs.ErrExist)
	}
	return nil
}

// matches fails with ErrForeign if a directory is another's.
func (id Identity) matches(found Identity) error {
	if id == found {
		return nil
	}
	return fmt.Errorf("%w: it holds replica %s of volume %s (UID %s, %d bytes), not replica %s of volume %s (UID %s, %d bytes)", block.ErrForeign,
		found.Replica, found.Volume, found.VolumeUID, found.Size, id.Replica, id.Volume, id.VolumeUID, id.Size)
}

// fill makes the files of a replica, durably.
func fill(fsys FS, dir string, id Identity, bootID string) error {
	head, err := seal(headerMagic, 0, header{Version: version, Identity: id, ChunkSize: block.ChunkSize, Created: bootID}, headerSize)
	if err != nil {
		return err
	}
	state, err := seal(stateMagic, 1, record{BootID: bootID, Clean: true}, stateSize)
	if err != nil {
		return err
	}
	err = makeFile(fsys, filepath.Join(dir, metaName), func(f File) error {
		if err := preallocate(f, metaSize(id.Size)); err != nil {
			return err
		}
		if _, err := f.WriteAt(state, stateAt(1)); err != nil {
			return err
		}
		_, err := f.WriteAt(head, headerOffset)
		return err
	})
	if err != nil {
		return err
	}
	err = makeFile(fsys, filepath.Join(dir, dataName), func(f File) error { return f.Truncate(id.Size) })
	if err != nil {
		return err
	}
	return fsys.SyncDir(dir)
}

// makeFile makes a file durably, but for its name.
func makeFile(fsys FS, path string, fill func(File) error) (err error) {
	f, err := fsys.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := fill(f); err != nil {
		return err
	}
	return f.Datasync()
}

// preallocate makes a file of zeros. The zeros are written, not only allocated, so that a later sync has data to write and nothing to
// journal.
func preallocate(f File, size int64) error {
	if err := f.Allocate(0, 0, size); err != nil && !unsupported(err) {
		return err
	}
	return writeZeros(f, 0, size)
}

// Inspection is what can be told of a replica without opening it.
type Inspection struct {
	Identity Identity
	// State as it was last written; without CurrentBootID.
	State block.State
	// Used says that anything was done with the replica since it was made.
	Used bool
	// Allocated is how many bytes of its data hold anything but holes.
	Allocated int64
}

// Inspect reads what a directory holds, and changes nothing, even while the replica is open. It fails as Open does.
func Inspect(fsys FS, dir string) (Inspection, error) {
	in, err := inspect(fsys, filepath.Clean(dir))
	if err != nil {
		return in, fmt.Errorf("inspect replica in %s: %w", dir, err)
	}
	return in, nil
}

func inspect(fsys FS, dir string) (Inspection, error) {
	var in Inspection
	f, err := openFiles(fsys, dir, os.O_RDONLY)
	if err != nil {
		return in, err
	}
	defer func() { _ = f.close() }() // it was only read
	h, err := readHeader(f.meta)
	if err != nil {
		return in, err
	}
	in.Identity = h.Identity
	r, seq, err := readState(f.meta)
	if err != nil {
		return in, err
	}
	in.State, in.Used = r.state(""), seq > 1
	list, err := extents(f.data, 0, h.Identity.Size)
	for _, e := range list {
		if !e.Hole {
			in.Allocated += e.Length
		}
	}
	return in, err
}

// Present fails with block.ErrMissing if the directory or a file of a replica is not there under its name. A replica that is open does not notice that by
// itself: its files exist until it is closed.
func Present(fsys FS, dir string) error {
	for _, name := range []string{metaName, dataName} {
		if _, err := fsys.Stat(filepath.Join(dir, name)); errors.Is(err, fs.ErrNotExist) {
			return missing(err)
		}
	}
	return nil
}

// Remove removes a directory and everything in it, whatever it holds, and what a crash left of an earlier Create or Remove. It fails with
// ErrLocked while the replica is open. No directory is no error. After a crash the directory is there as it was, or not under its name.
func Remove(fsys FS, dir string) error {
	dir = filepath.Clean(dir)
	if err := remove(fsys, dir); err != nil {
		return fmt.Errorf("remove replica in %s: %w", dir, err)
	}
	return nil
}

func remove(fsys FS, dir string) error {
	parent := filepath.Dir(dir)
	if _, err := fsys.Stat(parent); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, suffix := range []string{creatingSuffix, removedSuffix} {
		if err := fsys.RemoveAll(beside(dir, suffix)); err != nil {
			return err
		}
	}
	if _, err := fsys.Stat(dir); err == nil {
		lock, err := fsys.Lock(filepath.Join(dir, lockName))
		if err != nil {
			return err
		}
		defer lock.Close()
		if err := fsys.Rename(dir, beside(dir, removedSuffix)); err != nil {
			return err
		}
		if err := fsys.SyncDir(parent); err != nil {
			return err
		}
		if err := fsys.RemoveAll(beside(dir, removedSuffix)); err != nil {
			return err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return fsys.SyncDir(parent)
}

// files are the open files of a replica.
type files struct {
	data, meta File
	lock       io.Closer
}

func (f *files) close() error {
	var errs []error
	for _, c := range []io.Closer{f.data, f.meta, f.lock} {
		if c != nil {
			errs = append(errs, c.Close())
		}
	}
	return errors.Join(errs...)
}

// openFiles opens the files of a replica, and locks it unless it is only read. A file that is not there is ErrMissing.
func openFiles(fsys FS, dir string, flag int) (*files, error) {
	f := &files{}
	if err := f.open(fsys, dir, flag); err != nil {
		_ = f.close() // nothing was written
		return nil, missing(err)
	}
	return f, nil
}

// open locks before it opens, so that what it opens is what the lock is for, but leaves no lock file where there is no replica.
func (f *files) open(fsys FS, dir string, flag int) (err error) {
	if _, err := fsys.Stat(filepath.Join(dir, metaName)); err != nil {
		return err
	}
	if flag != os.O_RDONLY {
		lock, err := fsys.Lock(filepath.Join(dir, lockName))
		if err != nil {
			return err
		}
		f.lock = lock
	}
	if f.meta, err = open(fsys, filepath.Join(dir, metaName), flag); err != nil {
		return err
	}
	f.data, err = open(fsys, filepath.Join(dir, dataName), flag)
	return err
}

// open returns a nil interface with an error.
func open(fsys FS, path string, flag int) (File, error) {
	f, err := fsys.OpenFile(path, flag, 0)
	if err != nil {
		return nil, err
	}
	return f, nil
}

func missing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", block.ErrMissing, err)
	}
	return err
}
