// Package store keeps one replica of a volume in a directory: its data in a sparse file, and beside it who the members are, which
// generation is the newest, and which chunks may differ between replicas.
//
// What is durable when:
//   - Generation and membership, when Open and Commit return.
//   - The mark of a chunk, before its data is touched.
//   - Data, when Flush returns, or the call that wrote it with FUA.
//
// A sync that fails makes the store refuse every later write and flush with block.ErrDamaged: what the kernel dropped from its cache is not
// known. The marks say what has to be copied again after the replica was closed and opened.
package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/ebb-dev/ebb/internal/volume/block"
)

// Store is one replica that is open.
type Store struct {
	dir   string
	id    Identity
	boot  string
	files *files
	bits  bits

	// gate is held for reading by I/O, and for writing by whoever changes the generation or the members: after it has the gate, no call of an
	// older generation is under way.
	gate sync.RWMutex
	// generation is state.Generation. It changes under the gate; Ping reads it without, so that a slow sync does not look like a dead replica.
	generation atomic.Int64
	closed     atomic.Bool
	// marks says that chunks are marked before they are written; changed under the gate.
	marks bool

	// stateMu guards the state and its slots. The generation and members in it change only under the gate as well.
	stateMu sync.Mutex
	state   record
	seq     uint64
	// written says that the state is durably not clean, and has the current boot ID.
	written atomic.Bool

	// users is held by calls of connections for reading, and for writing by a connection that opens the replica, which then is its user.
	users sync.RWMutex
	user  atomic.Pointer[connection]

	syncs    group
	metaSync sync.Mutex
	// failure is why data can no longer be written; metaFailure why metadata cannot.
	failure     atomic.Pointer[error]
	metaFailure atomic.Pointer[error]
}

var _ block.Replica = (*Store)(nil)

// Open opens the replica in a directory. It fails with block.ErrMissing if the directory or a file is not there, block.ErrForeign if it
// holds another replica, block.ErrDamaged if it cannot be read, and ErrLocked if it is open already.
func Open(fsys FS, dir string, id Identity, bootID string) (*Store, error) {
	s := &Store{dir: dir, id: id, boot: bootID}
	if err := s.open(fsys); err != nil {
		return nil, fmt.Errorf("open replica %s in %s: %w", id.Replica, dir, err)
	}
	return s, nil
}

func (s *Store) open(fsys FS) (err error) {
	f, err := openFiles(fsys, s.dir, os.O_RDWR)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.close() // nothing was written
		}
	}()
	h, err := readHeader(f.meta)
	if err != nil {
		return err
	}
	if err := s.id.matches(h.Identity); err != nil {
		return err
	}
	if err := checkSizes(f, s.id.Size); err != nil {
		return err
	}
	if s.state, s.seq, err = readState(f.meta); err != nil {
		return err
	}
	s.files = f
	s.bits = bits{meta: f.meta, size: s.id.Size, sync: s.syncMeta}
	if err := s.bits.load(s.state.slots()); err != nil {
		return fmt.Errorf("%w: read the bitmaps: %w", block.ErrDamaged, err)
	}
	s.adopt()
	return s.rewrite()
}

// rewrite makes durable what was read. It may have come from the kernel's cache alone, if the process was killed before a sync, or if the
// sync failed. A replica as Create left it is durable.
func (s *Store) rewrite() error {
	if s.seq == 1 {
		return nil
	}
	for _, slot := range append([]int{0}, s.bits.slots...) {
		if err := s.bits.writeAll(slot); err != nil {
			return s.failMeta(err)
		}
	}
	if err := s.syncMeta(); err != nil {
		return err
	}
	s.stateMu.Lock()
	defer s.stateMu.Unlock()
	return s.persist(s.state)
}

func checkSizes(f *files, size int64) error {
	for _, c := range []struct {
		file File
		name string
		want int64
	}{{f.data, dataName, size}, {f.meta, metaName, metaSize(size)}} {
		got, err := c.file.Size()
		if err != nil {
			return err
		}
		if got != c.want {
			return fmt.Errorf("%w: the file %s has %d bytes instead of %d", block.ErrDamaged, c.name, got, c.want)
		}
	}
	return nil
}

// adopt makes the rest of the store follow the state. There is no I/O meanwhile.
func (s *Store) adopt() {
	s.generation.Store(s.state.Generation)
	s.marks = s.state.marks(s.id.Replica)
	s.bits.setAway(s.state.slots())
}

// Identity is which replica it is.
func (s *Store) Identity() Identity { return s.id }

// State is what the replica knows of itself.
func (s *Store) State() block.State {
	s.stateMu.Lock()
	defer s.stateMu.Unlock()
	return s.state.state(s.boot)
}

// Failure is why the replica refuses writes until it is closed and opened again; nil if it does not.
func (s *Store) Failure() error {
	if p := s.failure.Load(); p != nil {
		return *p
	}
	return nil
}

// Open implements block.Replica.
func (s *Store) Open(ctx context.Context, generation int64) (block.State, error) {
	if err := ctx.Err(); err != nil {
		return block.State{}, err
	}
	s.gate.Lock()
	defer s.gate.Unlock()
	if err := s.check(generation); err != nil {
		return block.State{}, err
	}
	before := s.State()
	if generation == before.Generation {
		return before, nil
	}
	s.stateMu.Lock()
	defer s.stateMu.Unlock()
	next := s.state
	next.Generation = generation
	if err := s.persist(next); err != nil {
		return block.State{}, err
	}
	s.adopt()
	return before, nil
}

// check refuses what is older than the replica.
func (s *Store) check(generation int64) error {
	if s.closed.Load() {
		return fmt.Errorf("replica %s: %w: %w", s.id.Replica, block.ErrUnreachable, os.ErrClosed)
	}
	if known := s.generation.Load(); generation < known {
		return fmt.Errorf("replica %s: generation %d: %w: %d", s.id.Replica, generation, block.ErrStale, known)
	}
	return nil
}

// enter lets I/O in; the caller leaves through s.gate.RUnlock. An engine that has not opened the replica with its generation may not pass:
// an older one could still be at work, and the members may be others.
func (s *Store) enter(ctx context.Context, generation int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.gate.RLock()
	err := s.check(generation)
	if known := s.generation.Load(); err == nil && generation > known {
		err = fmt.Errorf("replica %s: generation %d was not opened here, only %d", s.id.Replica, generation, known)
	}
	if err != nil {
		s.gate.RUnlock()
	}
	return err
}

// Commit implements block.Replica. If more than 8 replicas are away, it forgets what the oldest misses. It does not know what a replica
// misses that was no member before, or that left while this one was being built. Such replicas stay unknown until Away leaves them out.
func (s *Store) Commit(ctx context.Context, m block.Membership) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if max(len(m.Members), len(m.Away)) > maxNames {
		return fmt.Errorf("replica %s: %d members and %d that are away: more than %d", s.id.Replica, len(m.Members), len(m.Away), maxNames)
	}
	s.gate.Lock()
	defer s.gate.Unlock()
	if err := s.check(m.Generation); err != nil {
		return err
	}
	next, added := s.state.after(m)
	if slices.Contains(m.Members, s.id.Replica) || s.state.Syncing && !m.Syncing {
		next.MemberAt = m.Generation
	}
	if !s.marks && !s.state.Clean && (next.marks(s.id.Replica) || len(added) > 0) {
		// Nobody else had a copy, so chunks were not marked. Whoever gets one now must not have anything that this replica can still lose.
		if err := s.syncData(); err != nil {
			return err
		}
	}
	s.stateMu.Lock()
	defer s.stateMu.Unlock()
	if err := s.startAway(&next, added); err != nil {
		return err
	}
	if err := s.persist(next); err != nil {
		return err
	}
	s.adopt()
	return nil
}

// after returns the state with another membership, and the replicas for which a bitmap is to be started.
func (r record) after(m block.Membership) (next record, added []string) {
	next = r
	next.Generation, next.Members, next.Syncing = m.Generation, slices.Clone(m.Members), m.Syncing
	next.Away, next.Unknown = nil, nil
	for _, a := range r.Away {
		if slices.Contains(m.Away, a.Replica) {
			next.Away = append(next.Away, a)
		}
	}
	for _, name := range m.Away {
		switch {
		case next.isAway(name) || slices.Contains(added, name) || slices.Contains(next.Unknown, name):
		case slices.Contains(r.Unknown, name) || r.Syncing || m.Syncing || !r.wasMember(name):
			next.Unknown = append(next.Unknown, name)
		default:
			added = append(added, name)
		}
	}
	for ; len(next.Away)+len(added) > maxAway && len(next.Away) > 0; next.Away = next.Away[1:] {
		next.Unknown = append(next.Unknown, next.Away[0].Replica)
	}
	excess := max(0, len(added)-maxAway)
	next.Unknown = append(next.Unknown, added[:excess]...)
	return next, added[excess:]
}

// wasMember reports whether a replica had everything but for the chunks of the intent bitmap. Before the first write everybody has.
func (r record) wasMember(replica string) bool {
	return slices.Contains(r.Members, replica) || (len(r.Members) == 0 && !r.Written)
}

// startAway begins the bitmaps of replicas that went away. The state that is durable must not name a bitmap that is begun anew.
func (s *Store) startAway(next *record, added []string) error {
	if len(added) == 0 {
		return nil
	}
	if len(next.Away) < len(s.state.Away) {
		forget := s.state
		forget.Away, forget.Unknown = next.Away, next.Unknown
		if err := s.persist(forget); err != nil {
			return err
		}
		s.adopt()
	}
	next.Away = slices.Clone(next.Away)
	for _, name := range added {
		slot := freeSlot(next.Away)
		if err := s.bits.start(slot); err != nil {
			return s.failMeta(err)
		}
		next.Away = append(next.Away, awayRecord{Replica: name, Slot: slot, Since: next.Generation})
	}
	return s.syncMeta()
}

func freeSlot(away []awayRecord) int {
	slot := 1
	for slices.ContainsFunc(away, func(a awayRecord) bool { return a.Slot == slot }) {
		slot++
	}
	return slot
}

// persist makes a state durable, in the slot of the older one, and adopts it. The caller has stateMu.
func (s *Store) persist(next record) error {
	if err := s.metaFailed(); err != nil {
		return err
	}
	b, err := seal(stateMagic, s.seq+1, next, stateSize)
	if err != nil {
		return fmt.Errorf("replica %s: %w", s.id.Replica, err)
	}
	if _, err := s.files.meta.WriteAt(b, stateAt(s.seq+1)); err != nil {
		return s.failMeta(err)
	}
	if err := s.syncMeta(); err != nil {
		return err
	}
	s.state, s.seq = next, s.seq+1
	return nil
}

// syncMeta makes metadata durable. Syncs follow each other: the kernel reports an error to one of several callers.
func (s *Store) syncMeta() error {
	s.metaSync.Lock()
	defer s.metaSync.Unlock()
	if err := s.metaFailed(); err != nil {
		return err
	}
	if err := s.files.meta.Datasync(); err != nil {
		return s.failMeta(err)
	}
	return nil
}

// syncData makes every write durable that ended before the call. Concurrent calls share a sync.
func (s *Store) syncData() error {
	return s.syncs.do(func() error {
		if err := s.Failure(); err != nil {
			return err
		}
		if err := s.files.data.Datasync(); err != nil {
			err = s.fail(err)
			s.forgetBoot()
			return err
		}
		return nil
	})
}

// forgetBoot makes the replica look like one that another boot has left, because writes that were acknowledged may be gone. It is done as
// far as the disk lets it.
func (s *Store) forgetBoot() {
	s.stateMu.Lock()
	defer s.stateMu.Unlock()
	next := s.state
	next.BootID, next.Clean = "", false
	_ = s.persist(next) // the sync that failed is reported
}

// fail ends writing.
func (s *Store) fail(cause error) error {
	err := fmt.Errorf("replica %s: %w: %w", s.id.Replica, block.ErrDamaged, cause)
	s.failure.CompareAndSwap(nil, &err)
	return s.Failure()
}

// failMeta ends writing, of metadata too: what is on the disk is not known.
func (s *Store) failMeta(cause error) error {
	err := s.fail(fmt.Errorf("metadata: %w", cause))
	s.metaFailure.CompareAndSwap(nil, &err)
	return err
}

func (s *Store) metaFailed() error {
	if p := s.metaFailure.Load(); p != nil {
		return *p
	}
	return nil
}

// prepare makes durable what must be before data is written: that the replica is not clean, and the marks of the chunks.
func (s *Store) prepare(off, length int64) error {
	if err := s.inside(off, length); err != nil {
		return err
	}
	if err := s.Failure(); err != nil {
		return err
	}
	if !s.written.Load() {
		if err := s.noteWritten(); err != nil {
			return err
		}
	}
	if !s.marks || length == 0 {
		return nil
	}
	if r := chunksOf(off, length); !s.bits.areMarked(r) {
		if err := s.bits.mark(r); err != nil {
			return s.failMeta(err)
		}
	}
	return nil
}

// inside refuses a range that is not within the volume.
func (s *Store) inside(off, length int64) error {
	if off < 0 || length < 0 || off > s.id.Size-length {
		return fmt.Errorf("replica %s: range %d+%d is outside of %d bytes", s.id.Replica, off, length, s.id.Size)
	}
	return nil
}

// noteWritten makes durable that the replica is not clean.
func (s *Store) noteWritten() error {
	s.stateMu.Lock()
	defer s.stateMu.Unlock()
	if s.written.Load() {
		return nil
	}
	if s.state.Clean || s.state.BootID != s.boot {
		next := s.state
		next.Clean, next.BootID, next.Written = false, s.boot, true
		if err := s.persist(next); err != nil {
			return err
		}
	}
	s.written.Store(true)
	return nil
}

// ReadAt implements block.Replica.
func (s *Store) ReadAt(ctx context.Context, generation int64, p []byte, off int64) error {
	if err := s.enter(ctx, generation); err != nil {
		return err
	}
	defer s.gate.RUnlock()
	if err := s.inside(off, int64(len(p))); err != nil {
		return err
	}
	if _, err := s.files.data.ReadAt(p, off); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return s.failed("read", off, len(p), err)
	}
	return nil
}

// WriteAt implements block.Replica.
func (s *Store) WriteAt(ctx context.Context, generation int64, p []byte, off int64, fua bool) error {
	if err := s.enter(ctx, generation); err != nil {
		return err
	}
	defer s.gate.RUnlock()
	if err := s.prepare(off, int64(len(p))); err != nil {
		return err
	}
	if _, err := s.files.data.WriteAt(p, off); err != nil {
		return s.failed("write", off, len(p), err)
	}
	if fua {
		return s.syncData()
	}
	return nil
}

// Zero implements block.Replica. Where the file system cannot do it, zeros are written.
func (s *Store) Zero(ctx context.Context, generation int64, off, length int64, z block.Zero) error {
	if err := s.enter(ctx, generation); err != nil {
		return err
	}
	defer s.gate.RUnlock()
	if err := s.prepare(off, length); err != nil {
		return err
	}
	if length > 0 {
		if err := zero(s.files.data, off, length, z.Hole); err != nil {
			return s.failed("zero", off, int(length), err)
		}
	}
	if z.FUA {
		return s.syncData()
	}
	return nil
}

func zero(f File, off, length int64, hole bool) error {
	mode := uint32(unix.FALLOC_FL_ZERO_RANGE)
	if hole {
		mode = unix.FALLOC_FL_PUNCH_HOLE
	}
	err := f.Allocate(mode|unix.FALLOC_FL_KEEP_SIZE, off, length)
	if unsupported(err) {
		return writeZeros(f, off, length)
	}
	return err
}

// writeZeros writes zeros in pieces.
func writeZeros(f File, off, length int64) error {
	buf := make([]byte, min(length, 256<<10))
	for length > 0 {
		n, err := f.WriteAt(buf[:min(length, int64(len(buf)))], off)
		if err != nil {
			return err
		}
		off, length = off+int64(n), length-int64(n)
	}
	return nil
}

// unsupported reports whether the file system lacks an operation.
func unsupported(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS)
}

// Flush implements block.Replica.
func (s *Store) Flush(ctx context.Context, generation int64) error {
	if err := s.enter(ctx, generation); err != nil {
		return err
	}
	defer s.gate.RUnlock()
	return s.syncData()
}

// Extents implements block.Replica. A range that was zeroed and stays allocated may be reported as a hole.
func (s *Store) Extents(ctx context.Context, generation int64, off, length int64) ([]block.Extent, error) {
	if err := s.enter(ctx, generation); err != nil {
		return nil, err
	}
	defer s.gate.RUnlock()
	if err := s.inside(off, length); err != nil {
		return nil, err
	}
	list, err := extents(s.files.data, off, length)
	if err != nil {
		return nil, s.failed("list the extents of", off, int(length), err)
	}
	return list, nil
}

// extents asks the file system where data is. If it does not know, everything is data.
func extents(f File, off, length int64) ([]block.Extent, error) {
	var list []block.Extent
	add := func(n int64, hole bool) {
		if last := len(list) - 1; n > 0 && last >= 0 && list[last].Hole == hole {
			list[last].Length += n
		} else if n > 0 {
			list = append(list, block.Extent{Length: n, Hole: hole})
		}
	}
	for end := off + length; off < end; {
		data, err := f.Seek(off, unix.SEEK_DATA)
		switch {
		case errors.Is(err, unix.ENXIO): // no data from here on
			data = end
		case errors.Is(err, unix.EINVAL) || unsupported(err):
			data = off
		case err != nil:
			return nil, err
		}
		data = min(data, end)
		add(data-off, true)
		if data == end {
			break
		}
		hole, err := f.Seek(data, unix.SEEK_HOLE)
		switch {
		case errors.Is(err, unix.EINVAL) || unsupported(err) || errors.Is(err, unix.ENXIO):
			hole = end
		case err != nil:
			return nil, err
		}
		hole = min(hole, end)
		add(hole-data, false)
		off = hole
	}
	return list, nil
}

// failed names what failed.
func (s *Store) failed(what string, off int64, length int, err error) error {
	return fmt.Errorf("replica %s: %s %d+%d: %w", s.id.Replica, what, off, length, noSpace(err))
}

// noSpace translates the errors of full disks.
func noSpace(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w: %w", block.ErrNoSpace, err)
	}
	return err
}

// Intent implements block.Replica.
func (s *Store) Intent(ctx context.Context, generation int64) (block.Bitmap, error) {
	if err := s.enter(ctx, generation); err != nil {
		return nil, err
	}
	defer s.gate.RUnlock()
	return s.bits.get(0), nil
}

// Missed implements block.Replica.
func (s *Store) Missed(ctx context.Context, generation int64, replica string, memberAt int64) (block.Bitmap, bool, error) {
	if err := s.enter(ctx, generation); err != nil {
		return nil, false, err
	}
	defer s.gate.RUnlock()
	s.stateMu.Lock()
	i := slices.IndexFunc(s.state.Away, func(a awayRecord) bool { return a.Replica == replica })
	var away awayRecord
	if i >= 0 {
		away = s.state.Away[i]
	}
	s.stateMu.Unlock()
	if i < 0 || away.Since > 0 && memberAt >= away.Since {
		return nil, false, nil
	}
	return s.bits.get(away.Slot), true, nil
}

// Clear implements block.Replica. No write to the chunks may be under way. After a sync failed nothing is cleared.
func (s *Store) Clear(ctx context.Context, generation int64, chunks block.Bitmap) error {
	if err := s.enter(ctx, generation); err != nil {
		return err
	}
	defer s.gate.RUnlock()
	if err := s.Failure(); err != nil {
		return err
	}
	if err := s.bits.clear(chunks); err != nil {
		return s.failMeta(err)
	}
	return nil
}

// Ping implements block.Replica. It never waits for the disk.
func (s *Store) Ping(ctx context.Context, generation int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.check(generation)
}

// Close flushes the replica, notes that it is clean, and lets its directory go. If that fails, or if a sync has failed before, it lets the
// directory go all the same, not clean, and says why.
func (s *Store) Close() error {
	s.gate.Lock()
	defer s.gate.Unlock()
	if s.closed.Swap(true) {
		return nil
	}
	return errors.Join(s.clean(), s.files.close())
}

// clean makes everything durable and notes it. A replica that nobody wrote to since another boot left it unclean stays unclean: what was
// lost then is still lost.
func (s *Store) clean() error {
	if err := s.syncData(); err != nil {
		return err
	}
	s.stateMu.Lock()
	defer s.stateMu.Unlock()
	if s.state.Clean || (!s.written.Load() && s.state.BootID != s.boot) {
		return nil
	}
	next := s.state
	next.Clean, next.BootID = true, s.boot
	return s.persist(next)
}
