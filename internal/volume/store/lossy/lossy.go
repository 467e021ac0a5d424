// Package lossy is a file system for tests that loses what was not synced. It keeps real files, which always have the newest content, as a
// page cache does. Crash puts them into a state in which a power failure could have left them:
//   - Each sector of 512 bytes that was written since the last sync of its file has the content of any of these writes, or the one before
//     them. A sector is never torn.
//   - Of the changes to the names in a directory since it was last synced, the last ones are undone, any number of them.
//
// A sync that is made to fail drops what it should have written: a later sync that succeeds does not make that durable, as on Linux.
package lossy

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/ebb-dev/ebb/internal/volume/store"
)

const (
	sectorSize = 512
	blockSize  = 4096
	unlimited  = -1
	never      = -1
)

// ErrCrashed is what every call returns after the machine crashed, or the process was killed.
var ErrCrashed = errors.New("crashed")

// Kind of an operation.
type Kind string

// The kinds of operations. Those after Read change something.
const (
	Read     Kind = "read"
	Write    Kind = "write"
	Sync     Kind = "sync"
	Allocate Kind = "allocate"
	Truncate Kind = "truncate"
	Create   Kind = "create"
	Mkdir    Kind = "mkdir"
	Rename   Kind = "rename"
	Remove   Kind = "remove"
	SyncDir  Kind = "syncdir"
)

// Op is one operation.
type Op struct {
	Kind Kind
	// Path of the file or directory.
	Path string
	// Off and Length of a read, a write or an allocation.
	Off, Length int64
}

// FS loses what was not synced. It implements store.FS.
type FS struct {
	trash string

	mu     sync.Mutex
	rng    *rand.Rand
	hook   func(Op) error
	free   int64
	nth    int // the operation from now that crashes
	down   bool
	epoch  int // of the process
	seq    uint64
	trashN int
	inodes map[string]*inode
	names  map[string][]change // that were not synced, by directory
	locks  []io.Closer
}

var _ store.FS = (*FS)(nil)

// New makes a file system for directories below root, which exists. Removed files are kept in root until they are durably gone. Close it.
func New(root string, seed uint64) (*FS, error) {
	trash := filepath.Join(root, ".lossy-trash")
	if err := os.MkdirAll(trash, 0o700); err != nil {
		return nil, err
	}
	return &FS{
		trash: trash, rng: rand.New(rand.NewPCG(seed, 0)), free: unlimited, nth: never,
		inodes: map[string]*inode{}, names: map[string][]change{},
	}, nil
}

// inode is a file, under whatever name.
type inode struct {
	real    *os.File
	sectors map[int64]*sector
	// sizes since the last sync, the durable one first.
	sizes []int64
	// allocated blocks.
	allocated map[int64]bool
}

// sector has versions that were not synced.
type sector struct {
	versions []version // the durable one first
	dropped  bool      // a sync failed: the next one does not write it
}

type version struct {
	seq     uint64
	content []byte
}

// change of a name in a directory.
type change struct {
	kind  Kind // Create, Mkdir, Rename or Remove
	name  string
	from  string // the name before a Rename
	trash string // where a removed file is
}

// Inject calls a function before every operation; an error of it is the operation's. It may wait: a sync covers what was written before the
// function was called. Nil ends it.
func (f *FS) Inject(hook func(Op) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hook = hook
}

// SetFree says how many bytes can still be allocated; blocks that are allocated already can be written for nothing. A negative number is no
// limit.
func (f *FS) SetFree(bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.free = max(bytes, unlimited)
}

// CrashAfter makes the n-th operation from now that changes something, counted from 0, and all after it fail with ErrCrashed; that
// operation may or may not take effect. Call Crash or Kill then. A negative number takes it back.
func (f *FS) CrashAfter(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nth = max(n, never)
}

// Crash is a power failure: open files are gone, unsynced writes are lost or not.
func (f *FS) Crash() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kill()
	for _, path := range sorted(f.inodes) {
		if err := f.inodes[path].settle(f.rng); err != nil {
			return err
		}
	}
	dirs := sorted(f.names)
	// What is in a directory is settled before its own name. What was removed comes first, since it may be put back.
	slices.SortStableFunc(dirs, func(a, b string) int { return f.depth(b) - f.depth(a) })
	for _, dir := range dirs {
		changes := f.names[dir]
		delete(f.names, dir)
		keep := f.rng.IntN(len(changes) + 1)
		for _, c := range slices.Backward(changes[keep:]) {
			if err := f.undo(dir, c); err != nil {
				return err
			}
		}
		if err := f.forget(changes[:keep]); err != nil {
			return err
		}
	}
	return nil
}

// Kill is the end of the process: open files are gone, everything that was written stays.
func (f *FS) Kill() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kill()
}

func (f *FS) kill() {
	f.epoch++
	f.down, f.nth = false, never
	for _, l := range f.locks {
		_ = l.Close() // some are closed already
	}
	f.locks = nil
}

// Close closes the real files.
func (f *FS) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.kill()
	for _, n := range f.inodes {
		_ = n.real.Close() // only tests have them
	}
	clear(f.inodes)
}

func sorted[V any](m map[string]V) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func (f *FS) depth(dir string) int {
	n := strings.Count(dir, string(filepath.Separator))
	if strings.HasPrefix(dir, f.trash) {
		n += 1000
	}
	return n
}

// settle gives a file one of the contents that it may have after a power failure.
func (n *inode) settle(rng *rand.Rand) error {
	size := n.sizes[rng.IntN(len(n.sizes))]
	if err := n.real.Truncate(size); err != nil {
		return err
	}
	n.sizes = []int64{size}
	var indexes []int64
	for i := range n.sectors {
		indexes = append(indexes, i)
	}
	slices.Sort(indexes)
	for _, i := range indexes {
		s := n.sectors[i]
		content := s.versions[rng.IntN(len(s.versions))].content
		if i*sectorSize >= size {
			continue
		}
		content = content[:min(int64(len(content)), size-i*sectorSize)]
		if _, err := n.real.WriteAt(content, i*sectorSize); err != nil {
			return err
		}
	}
	clear(n.sectors)
	return nil
}

// undo takes a change of a name back.
func (f *FS) undo(dir string, c change) error {
	path := filepath.Join(dir, c.name)
	switch c.kind {
	case Create, Mkdir:
		return f.purge(path)
	case Rename:
		return f.move(path, filepath.Join(dir, c.from))
	case Remove:
		if err := f.move(c.trash, path); err != nil {
			return err
		}
		return f.purgeSome(path)
	}
	return nil
}

// purgeSome removes some of the files in a directory: when it was removed with everything in it, that happened one by one.
func (f *FS) purgeSome(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil // no directory
	}
	for _, e := range entries {
		if f.rng.IntN(2) == 0 {
			if err := f.purge(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// forget deletes what was removed by changes that are durable.
func (f *FS) forget(changes []change) error {
	for _, c := range changes {
		if c.kind != Remove {
			continue
		}
		if err := f.purge(c.trash); err != nil {
			return err
		}
	}
	return nil
}

// purge removes files from the real file system.
func (f *FS) purge(path string) error {
	for _, p := range sorted(f.inodes) {
		if within(p, path) {
			_ = f.inodes[p].real.Close() // nobody needs its content
			delete(f.inodes, p)
		}
	}
	for _, d := range sorted(f.names) {
		if within(d, path) {
			changes := f.names[d]
			delete(f.names, d)
			if err := f.forget(changes); err != nil {
				return err
			}
		}
	}
	return os.RemoveAll(path)
}

// move renames, with everything that is known of what is below.
func (f *FS) move(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	rekey(f.inodes, from, to)
	rekey(f.names, from, to)
	return nil
}

func rekey[V any](m map[string]V, from, to string) {
	for _, p := range sorted(m) {
		if within(p, from) {
			v := m[p]
			delete(m, p)
			m[to+strings.TrimPrefix(p, from)] = v
		}
	}
}

func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, dir+string(filepath.Separator))
}

// begin calls the hook; it locks the file system unless it fails.
func (f *FS) begin(op Op, epoch int) error {
	f.mu.Lock()
	hook := f.hook
	f.mu.Unlock()
	var err error
	if hook != nil {
		err = hook(op)
	}
	f.mu.Lock()
	if epoch != f.epoch || f.down {
		err = ErrCrashed
	}
	if err != nil {
		f.mu.Unlock()
		return &fs.PathError{Op: string(op.Kind), Path: op.Path, Err: err}
	}
	f.seq++
	return nil
}

// now is the epoch of the process.
func (f *FS) now() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.epoch
}

// Mkdir implements store.FS.
func (f *FS) Mkdir(path string, perm fs.FileMode) error {
	return f.change(Op{Kind: Mkdir, Path: path}, func() error {
		if err := os.Mkdir(path, perm); err != nil {
			return err
		}
		f.note(path, change{kind: Mkdir})
		return nil
	})
}

// note remembers a change of a name.
func (f *FS) note(path string, c change) {
	c.name = filepath.Base(path)
	dir := filepath.Dir(path)
	f.names[dir] = append(f.names[dir], c)
}

// Rename implements store.FS.
func (f *FS) Rename(from, to string) error {
	return f.change(Op{Kind: Rename, Path: from}, func() error {
		if filepath.Dir(from) != filepath.Dir(to) {
			return errors.ErrUnsupported
		}
		if _, err := os.Lstat(to); err == nil {
			return fs.ErrExist
		}
		if err := f.move(from, to); err != nil {
			return err
		}
		f.note(to, change{kind: Rename, from: filepath.Base(from)})
		return nil
	})
}

// RemoveAll implements store.FS.
func (f *FS) RemoveAll(path string) error {
	return f.change(Op{Kind: Remove, Path: path}, func() error {
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		f.trashN++
		trash := filepath.Join(f.trash, strconv.Itoa(f.trashN))
		if err := f.move(path, trash); err != nil {
			return err
		}
		f.note(path, change{kind: Remove, trash: trash})
		return nil
	})
}

// Stat implements store.FS.
func (f *FS) Stat(path string) (fs.FileInfo, error) {
	if err := f.begin(Op{Kind: Read, Path: path}, f.now()); err != nil {
		return nil, err
	}
	defer f.mu.Unlock()
	return os.Lstat(path)
}

// SyncDir implements store.FS.
func (f *FS) SyncDir(path string) error {
	return f.change(Op{Kind: SyncDir, Path: path}, func() error {
		if _, err := os.Stat(path); err != nil {
			return err
		}
		changes := f.names[path]
		delete(f.names, path)
		return f.forget(changes)
	})
}

// Lock implements store.FS.
func (f *FS) Lock(path string) (io.Closer, error) {
	var lock io.Closer
	err := f.change(Op{Kind: Create, Path: path}, func() (err error) {
		_, missing := os.Lstat(path)
		if lock, err = (store.OS{}).Lock(path); err != nil {
			return err
		}
		f.locks = append(f.locks, lock)
		if missing != nil {
			f.note(path, change{kind: Create})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return lock, nil
}

// OpenFile implements store.FS.
func (f *FS) OpenFile(path string, flag int, perm fs.FileMode) (store.File, error) {
	var opened *file
	open := func() error {
		n, err := f.inode(path, flag, perm)
		if err != nil {
			return err
		}
		opened = &file{fs: f, inode: n, path: path, epoch: f.epoch, readOnly: flag&(os.O_WRONLY|os.O_RDWR) == 0}
		return nil
	}
	var err error
	if flag&os.O_CREATE != 0 {
		err = f.change(Op{Kind: Create, Path: path}, open)
	} else if err = f.begin(Op{Kind: Read, Path: path}, f.now()); err == nil {
		err = open()
		f.mu.Unlock()
	}
	if err != nil {
		return nil, err
	}
	return opened, nil
}

// inode finds or makes a file.
func (f *FS) inode(path string, flag int, perm fs.FileMode) (*inode, error) {
	_, missing := os.Lstat(path)
	if n, ok := f.inodes[path]; ok && missing == nil && flag&os.O_EXCL == 0 {
		return n, nil
	}
	real, err := os.OpenFile(path, flag&(os.O_CREATE|os.O_EXCL)|os.O_RDWR, perm)
	if err != nil {
		return nil, err
	}
	n := &inode{real: real, sectors: map[int64]*sector{}, allocated: map[int64]bool{}}
	size, err := n.size()
	if err != nil {
		return nil, err
	}
	n.sizes = []int64{size}
	if err := n.findBlocks(size); err != nil {
		return nil, err
	}
	f.inodes[path] = n
	if missing != nil {
		f.note(path, change{kind: Create})
	}
	return n, nil
}

// findBlocks learns which blocks of a file are allocated already.
func (n *inode) findBlocks(size int64) error {
	for off := int64(0); off < size; {
		data, err := n.real.Seek(off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil
		}
		if err != nil {
			return err
		}
		hole, err := n.real.Seek(data, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		for b := data / blockSize; b*blockSize < hole; b++ {
			n.allocated[b] = true
		}
		off = hole
	}
	return nil
}

func (n *inode) size() (int64, error) {
	info, err := n.real.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// change runs an operation that changes something.
func (f *FS) change(op Op, work func() error) error { return f.changeIn(op, f.now(), work) }

// changeIn runs an operation of a process.
func (f *FS) changeIn(op Op, epoch int, work func() error) error {
	if err := f.begin(op, epoch); err != nil {
		return err
	}
	defer f.mu.Unlock()
	if f.nth == never {
		return work()
	}
	f.nth--
	if f.nth != never {
		return work()
	}
	f.down = true
	if f.rng.IntN(2) == 0 {
		_ = work() // nobody hears of it
	}
	return &fs.PathError{Op: string(op.Kind), Path: op.Path, Err: ErrCrashed}
}

// file is an open file.
type file struct {
	fs       *FS
	inode    *inode
	path     string
	epoch    int
	readOnly bool
}

// ReadAt implements store.File.
func (h *file) ReadAt(p []byte, off int64) (int, error) {
	if err := h.fs.begin(Op{Kind: Read, Path: h.path, Off: off, Length: int64(len(p))}, h.epoch); err != nil {
		return 0, err
	}
	defer h.fs.mu.Unlock()
	return h.inode.real.ReadAt(p, off)
}

// WriteAt implements store.File.
func (h *file) WriteAt(p []byte, off int64) (n int, err error) {
	err = h.change(Op{Kind: Write, Off: off, Length: int64(len(p))}, func() error {
		fit := h.fs.charge(h.inode, off, int64(len(p)))
		err := h.inode.record(h.fs.seq, off, fit, func() error {
			_, err := h.inode.real.WriteAt(p[:fit], off)
			return err
		})
		if err != nil {
			return err
		}
		n = int(fit)
		if n < len(p) {
			return unix.ENOSPC
		}
		return nil
	})
	return n, err
}

// change runs an operation on the file.
func (h *file) change(op Op, work func() error) error {
	op.Path = h.path
	return h.fs.changeIn(op, h.epoch, func() error {
		if h.readOnly {
			return &fs.PathError{Op: string(op.Kind), Path: op.Path, Err: unix.EBADF}
		}
		if err := work(); err != nil {
			return &fs.PathError{Op: string(op.Kind), Path: op.Path, Err: err}
		}
		return nil
	})
}

// charge allocates the blocks of a range and returns how many bytes of it fit.
func (f *FS) charge(n *inode, off, length int64) int64 {
	for b := off / blockSize; b*blockSize < off+length; b++ {
		if n.allocated[b] {
			continue
		}
		if f.free != unlimited {
			if f.free < blockSize {
				return max(0, b*blockSize-off)
			}
			f.free -= blockSize
		}
		n.allocated[b] = true
	}
	return length
}

// record keeps the sectors of a range as they are before and after a change.
func (n *inode) record(seq uint64, off, length int64, work func() error) error {
	if length == 0 {
		return nil
	}
	first, last := off/sectorSize, (off+length-1)/sectorSize
	before, err := n.read(first, last)
	if err != nil {
		return err
	}
	if err := work(); err != nil {
		return err
	}
	after, err := n.read(first, last)
	if err != nil {
		return err
	}
	for i := first; i <= last; i++ {
		s := n.sectors[i]
		if s == nil {
			s = &sector{versions: []version{{content: cut(before, i-first)}}}
			n.sectors[i] = s
		}
		s.versions = append(s.versions, version{seq: seq, content: cut(after, i-first)})
		s.dropped = false
	}
	size, err := n.size()
	if err != nil {
		return err
	}
	n.noteSize(size)
	return nil
}

// read reads whole sectors; what is beyond the end is zero.
func (n *inode) read(first, last int64) ([]byte, error) {
	b := make([]byte, (last-first+1)*sectorSize)
	if _, err := n.real.ReadAt(b, first*sectorSize); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return b, nil
}

var zeros = make([]byte, sectorSize)

func cut(b []byte, i int64) []byte {
	if s := b[i*sectorSize : (i+1)*sectorSize]; !bytes.Equal(s, zeros) {
		return bytes.Clone(s)
	}
	return zeros
}

func (n *inode) noteSize(size int64) {
	if n.sizes[len(n.sizes)-1] != size {
		n.sizes = append(n.sizes, size)
	}
}

// Datasync implements store.File.
func (h *file) Datasync() error {
	h.fs.mu.Lock()
	until := h.fs.seq
	h.fs.mu.Unlock()
	err := h.change(Op{Kind: Sync}, func() error {
		h.inode.synced(until)
		return nil
	})
	if err != nil && !errors.Is(err, ErrCrashed) {
		h.fs.mu.Lock()
		defer h.fs.mu.Unlock()
		h.inode.drop(until)
	}
	return err
}

// synced makes what was written until then durable.
func (n *inode) synced(until uint64) {
	for i, s := range n.sectors {
		if s.dropped {
			continue
		}
		for len(s.versions) > 1 && s.versions[1].seq <= until {
			s.versions = s.versions[1:]
		}
		if len(s.versions) == 1 {
			delete(n.sectors, i)
		}
	}
	n.sizes = n.sizes[len(n.sizes)-1:]
}

// drop makes what was written until then never durable unless it is written again.
func (n *inode) drop(until uint64) {
	for _, s := range n.sectors {
		if s.versions[len(s.versions)-1].seq <= until {
			s.dropped = true
		}
	}
}

// Size implements store.File.
func (h *file) Size() (int64, error) {
	if err := h.fs.begin(Op{Kind: Read, Path: h.path}, h.epoch); err != nil {
		return 0, err
	}
	defer h.fs.mu.Unlock()
	return h.inode.size()
}

// Truncate implements store.File. It only makes files larger.
func (h *file) Truncate(size int64) error {
	return h.change(Op{Kind: Truncate, Length: size}, func() error { return h.inode.grow(size) })
}

func (n *inode) grow(size int64) error {
	if before, err := n.size(); err != nil || before > size {
		return errors.Join(err, errors.ErrUnsupported)
	}
	n.noteSize(size)
	return n.real.Truncate(size)
}

// Allocate implements store.File.
func (h *file) Allocate(mode uint32, off, length int64) error {
	return h.change(Op{Kind: Allocate, Off: off, Length: length}, func() error {
		switch mode {
		case 0:
			return h.allocate(off, length)
		case unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE:
			if h.fs.charge(h.inode, off, length) < length {
				return unix.ENOSPC
			}
		case unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE:
			h.fs.release(h.inode, off, length)
		default:
			return unix.EOPNOTSUPP
		}
		return h.inode.record(h.fs.seq, off, length, func() error {
			return unix.Fallocate(int(h.inode.real.Fd()), mode, off, length)
		})
	})
}

// allocate allocates the blocks of a range; the file grows if need be.
func (h *file) allocate(off, length int64) error {
	if h.fs.charge(h.inode, off, length) < length {
		return unix.ENOSPC
	}
	size, err := h.inode.size()
	if err != nil {
		return err
	}
	return h.inode.grow(max(size, off+length))
}

// release frees the blocks that lie wholly in a range.
func (f *FS) release(n *inode, off, length int64) {
	for b := (off + blockSize - 1) / blockSize; (b+1)*blockSize <= off+length; b++ {
		if n.allocated[b] && f.free != unlimited {
			f.free += blockSize
		}
		delete(n.allocated, b)
	}
}

// Seek implements store.File.
func (h *file) Seek(off int64, whence int) (int64, error) {
	if err := h.fs.begin(Op{Kind: Read, Path: h.path, Off: off}, h.epoch); err != nil {
		return 0, err
	}
	defer h.fs.mu.Unlock()
	return h.inode.real.Seek(off, whence)
}

// Close implements store.File. The real file stays open.
func (h *file) Close() error { return nil }
