package store_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ebb-dev/ebb/internal/testlength"
	"github.com/ebb-dev/ebb/internal/volume/block"
	"github.com/ebb-dev/ebb/internal/volume/store"
	"github.com/ebb-dev/ebb/internal/volume/store/lossy"
)

const sector = 512

// breakage is a way in which a store can be wrong; the property test must notice each.
type breakage string

const (
	sound            breakage = ""
	dataNotSynced    breakage = "data is not synced"
	metaNotSynced    breakage = "metadata is not synced"
	marksAfterData   breakage = "chunks are marked after their data was written"
	marksNotSynced   breakage = "marks are not synced"
	stateNotSynced   breakage = "the state is not synced"
	holesNotPunched  breakage = "ranges are not zeroed"
	awayNotCopied    breakage = "a bitmap of a replica that is away begins empty"
	clearsTooMuch    breakage = "clearing one chunk clears others"
	sectorsTorn      breakage = "half a sector is written"
	openingNotSynced breakage = "what is read at opening is not made durable"
	bitmapsAt                 = 128 << 10 // where bitmaps begin in the metadata
	bitmapLengthHere          = 4096      // of the volumes in this test
)

// brokenFS breaks the promises of a file system as a faulty store would.
type brokenFS struct {
	store.FS
	how breakage
	// held are the writes of marks that wait for the next write of data.
	held []func() error
	// opening says that a replica is being opened.
	opening bool
}

func (b *brokenFS) OpenFile(path string, flag int, perm fs.FileMode) (store.File, error) {
	f, err := b.FS.OpenFile(path, flag, perm)
	if err != nil {
		return nil, err
	}
	b.held = nil
	return &brokenFile{File: f, fs: b, data: filepath.Base(path) == "data"}, nil
}

type brokenFile struct {
	store.File
	fs    *brokenFS
	data  bool
	marks atomic.Bool // the last write was one of marks
}

func (f *brokenFile) Datasync() error {
	switch {
	case f.fs.how == dataNotSynced && f.data, f.fs.how == metaNotSynced && !f.data:
		return nil
	case f.fs.how == openingNotSynced && f.fs.opening:
		return nil
	case f.fs.how == marksNotSynced && !f.data && f.marks.Load(), f.fs.how == stateNotSynced && !f.data && !f.marks.Load():
		return nil
	case f.fs.how == marksAfterData && !f.data && len(f.fs.held) > 0:
		f.fs.held = append(f.fs.held, f.File.Datasync)
		return nil
	}
	return f.File.Datasync()
}

func (f *brokenFile) WriteAt(p []byte, off int64) (int, error) {
	marks := !f.data && off >= bitmapsAt
	f.marks.Store(marks)
	switch {
	case f.fs.how == marksAfterData && marks:
		f.fs.held = append(f.fs.held, func() error { _, err := f.File.WriteAt(p, off); return err })
		return len(p), nil
	case f.fs.how == awayNotCopied && marks && off >= bitmapsAt+bitmapLengthHere && len(p) == bitmapLengthHere:
		p = make([]byte, len(p))
	case f.fs.how == clearsTooMuch && marks && off == bitmapsAt:
		p = slices.Clone(p)
		p[0] &^= 1
	case f.fs.how == sectorsTorn && f.data && len(p) > 100:
		return len(p), errors.Join(second(f.File.WriteAt(p[:len(p)-100], off)), nil)
	}
	n, err := f.File.WriteAt(p, off)
	if f.data {
		err = errors.Join(err, f.release())
	}
	return n, err
}

func (f *brokenFile) Allocate(mode uint32, off, length int64) error {
	if f.fs.how == holesNotPunched && f.data {
		return nil
	}
	err := f.File.Allocate(mode, off, length)
	if f.data {
		err = errors.Join(err, f.release())
	}
	return err
}

func (f *brokenFile) release() error {
	if f.fs.how != marksAfterData {
		return nil
	}
	held := f.fs.held
	f.fs.held = nil
	for _, h := range held {
		if err := h(); err != nil {
			return err
		}
	}
	return nil
}

func second[A any](_ A, err error) error { return err }

// write is what a sector may contain.
type write struct {
	tag    uint64
	marked bool // it was made while chunks were marked
}

// cell is what the model knows of a sector.
type cell struct {
	durable uint64
	later   []write // that may be lost
}

func (c *cell) latest() uint64 {
	if len(c.later) == 0 {
		return c.durable
	}
	return c.later[len(c.later)-1].tag
}

// bounds of a bitmap: it has all that it must, and nothing but what it may.
type bounds struct{ must, may map[int64]bool }

func newBounds() *bounds { return &bounds{must: map[int64]bool{}, may: map[int64]bool{}} }

func (b *bounds) clone() *bounds { return &bounds{must: maps.Clone(b.must), may: maps.Clone(b.may)} }

func (b *bounds) check(what string, got block.Bitmap, chunks int64) error {
	for i := range chunks {
		if b.must[i] && !got.Has(i) {
			return fmt.Errorf("%s lacks chunk %d", what, i)
		}
		if !b.may[i] && got.Has(i) {
			return fmt.Errorf("%s has chunk %d, which nobody wrote", what, i)
		}
	}
	return nil
}

// others are the other replicas of the volume.
var others = []string{"b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"}

// world is a store beside a model of it.
type world struct {
	ctx  context.Context
	rng  *rand.Rand
	fs   *lossy.FS
	fsys *brokenFS
	how  breakage
	dir  string
	id   store.Identity
	boot int
	s    *store.Store

	tag    uint64
	cells  map[int64]*cell
	intent *bounds
	away   map[string]*bounds
	// lacks is what each other replica does not have, if it has what members have.
	lacks map[string]map[int64]bool
	// state is what was acknowledged; pending are states that an operation that crashed may have left.
	state   block.State
	pending []block.State
	// committing are the replicas that are away in the membership that is being committed; unknown those that the replica kept nothing for.
	committing []string
	unknown    map[string]bool
	// tried are the boots of the last write that was acknowledged and of those that were tried since.
	tried map[string]bool
	// dropped says that a sync failed, and what it should have written was not written again yet.
	dropped bool
}

func newWorld(dir string, seed uint64, how breakage) (*world, error) {
	fsys, err := lossy.New(dir, seed)
	if err != nil {
		return nil, err
	}
	w := &world{
		ctx: context.Background(), rng: rand.New(rand.NewPCG(seed, 1)), fs: fsys, fsys: &brokenFS{FS: fsys, how: how}, how: how, dir: filepath.Join(dir, "replicas", "v", "r"),
		id:    store.Identity{Volume: "ns/v", VolumeUID: "uid", Replica: "r", Size: 6*block.ChunkSize + 4096},
		cells: map[int64]*cell{}, intent: newBounds(), away: map[string]*bounds{}, tried: map[string]bool{}, lacks: map[string]map[int64]bool{},
	}
	if err := store.Create(w.fs, w.dir, w.id, w.bootID()); err != nil {
		return nil, err
	}
	for _, name := range others {
		w.lacks[name] = map[int64]bool{}
	}
	w.state.Clean = true
	return w, w.reopen()
}

func (w *world) bootID() string { return fmt.Sprintf("boot-%d", w.boot) }

func (w *world) marks() bool { return len(w.state.Members) != 1 || len(w.state.Away) > 0 }

func (w *world) cell(i int64) *cell {
	if w.cells[i] == nil {
		w.cells[i] = &cell{}
	}
	return w.cells[i]
}

// span picks sectors, near the borders of chunks more often than not.
func (w *world) span() (first, n int64) {
	n = 1 + w.rng.Int64N(12)
	total := w.id.Size / sector
	first = w.rng.Int64N(7)*(block.ChunkSize/sector) + w.rng.Int64N(16) - 8
	return min(max(first, 0), total-n), n
}

// step does one operation and tells the model.
func (w *world) step() error {
	gen := w.state.Generation
	switch w.rng.IntN(15) {
	case 0, 1, 2, 3, 4:
		return w.write(w.rng.IntN(3) == 0)
	case 5:
		return w.zero()
	case 6, 7:
		if err := w.s.Flush(w.ctx, gen); err != nil {
			return err
		}
		w.flushed()
		return nil
	case 8:
		return w.open(gen + w.rng.Int64N(3))
	case 9, 10:
		return w.commit()
	case 11:
		return w.clear()
	case 12:
		if w.rng.IntN(2) == 0 && w.how == sound {
			return w.failFlush()
		}
		return w.verify(false)
	default:
		return w.verify(false)
	}
}

func (w *world) flushed() {
	for _, c := range w.cells {
		c.durable, c.later = c.latest(), nil
	}
}

// touch tells the model of a write before it is made.
func (w *world) touch(first, n int64, tag uint64) {
	w.tried[w.bootID()] = true
	for i := first; i < first+n; i++ {
		c := w.cell(i)
		c.later = append(c.later, write{tag: tag, marked: w.marks()})
		if !w.marks() {
			continue
		}
		for _, b := range w.bitmaps() {
			b.may[i*sector/block.ChunkSize] = true
		}
	}
}

func (w *world) bitmaps() []*bounds {
	all := []*bounds{w.intent}
	for _, name := range slices.Sorted(maps.Keys(w.away)) {
		all = append(all, w.away[name])
	}
	return all
}

// wroteAll tells the model that a write was acknowledged.
func (w *world) wroteAll(first, n int64, durable bool) {
	w.state.Clean, w.tried = false, map[string]bool{w.bootID(): true}
	for i := first; i < first+n; i++ {
		if c := w.cell(i); durable {
			c.durable, c.later = c.latest(), nil
		}
		for _, name := range others {
			if len(w.state.Members) > 0 && !slices.Contains(w.state.Members, name) {
				w.lacks[name][i*sector/block.ChunkSize] = true
			}
		}
		if !w.marks() {
			continue
		}
		for _, b := range w.bitmaps() {
			b.must[i*sector/block.ChunkSize] = true
		}
	}
}

func (w *world) write(fua bool) error {
	first, n := w.span()
	w.tag++
	return w.writeTag(first, n, w.tag, fua)
}

func (w *world) writeTag(first, n int64, tag uint64, fua bool) error {
	p := make([]byte, n*sector)
	for i := range len(p) / 8 {
		binary.LittleEndian.PutUint64(p[8*i:], tag)
	}
	w.touch(first, n, tag)
	if err := w.s.WriteAt(w.ctx, w.state.Generation, p, first*sector, fua); err != nil {
		return err
	}
	w.wroteAll(first, n, fua)
	return nil
}

func (w *world) zero() error {
	first, n := w.span()
	z := block.Zero{Hole: w.rng.IntN(2) == 0, FUA: w.rng.IntN(3) == 0}
	w.touch(first, n, 0)
	if err := w.s.Zero(w.ctx, w.state.Generation, first*sector, n*sector, z); err != nil {
		return err
	}
	w.wroteAll(first, n, z.FUA)
	return nil
}

func (w *world) open(generation int64) error {
	next := w.state
	next.Generation = generation
	w.pending = []block.State{next}
	got, err := w.s.Open(w.ctx, generation)
	if err != nil {
		return err
	}
	if err := same(got, w.state); err != nil {
		return fmt.Errorf("opening returned another state than before: %w", err)
	}
	w.state, w.pending = next, nil
	return w.stale()
}

// stale checks that older generations are refused.
func (w *world) stale() error {
	if w.state.Generation == 0 {
		return nil
	}
	old := w.state.Generation - 1
	for what, err := range map[string]error{
		"a read":  w.s.ReadAt(w.ctx, old, make([]byte, sector), 0),
		"a write": w.s.WriteAt(w.ctx, old, make([]byte, sector), 0, false),
		"a zero":  w.s.Zero(w.ctx, old, 0, sector, block.Zero{}),
		"a flush": w.s.Flush(w.ctx, old), "a ping": w.s.Ping(w.ctx, old),
		"a commit": w.s.Commit(w.ctx, block.Membership{Generation: old}),
		"a clear":  w.s.Clear(w.ctx, old, nil),
		"an open":  second(w.s.Open(w.ctx, old)),
	} {
		if !errors.Is(err, block.ErrStale) {
			return fmt.Errorf("%s of an older generation: %w", what, err)
		}
	}
	return nil
}

func (w *world) commit() error {
	m := block.Membership{Generation: w.state.Generation + w.rng.Int64N(2), Syncing: w.rng.IntN(6) == 0, Members: []string{"r"}}
	in, out := w.rng.IntN(4), w.rng.IntN(4)
	for _, name := range others {
		switch {
		case w.rng.IntN(4) < in:
			m.Members = append(m.Members, name)
		case w.rng.IntN(4) < out:
			m.Away = append(m.Away, name)
		}
	}
	next, interim := w.state, w.state
	next.Generation, next.Members, next.Syncing, next.MemberAt = m.Generation, m.Members, m.Syncing, m.Generation
	next.Away = nil // which of m.Away the replica keeps is up to it, as long as it knows what they lack
	w.pending = []block.State{interim, next}
	w.committing = m.Away
	if err := w.s.Commit(w.ctx, m); err != nil {
		return err
	}
	got := w.s.State()
	if err := w.plausible(got, w.state, m); err != nil {
		return err
	}
	if next.Away = got.Away; !w.marks() && (len(next.Members) != 1 || len(next.Away) > 0) {
		w.flushed() // others have a copy now of what was not marked
	}
	w.adopt(next, false)
	return nil
}

// plausible checks which replicas are away after a membership was committed: those that were, and those that were members until now, unless
// there are too many.
func (w *world) plausible(got, before block.State, m block.Membership) error {
	for _, name := range got.Away {
		if !slices.Contains(m.Away, name) {
			return fmt.Errorf("%s is away, but should have been forgotten", name)
		}
	}
	for _, name := range m.Away {
		left := slices.Contains(before.Members, name) && !before.Syncing && !m.Syncing && !w.unknown[name]
		if (left || slices.Contains(before.Away, name)) && !slices.Contains(got.Away, name) && len(got.Away) < 8 {
			return fmt.Errorf("%s was forgotten: %v are away", name, got.Away)
		}
	}
	return nil
}

// adopt makes a state the one that counts.
func (w *world) adopt(state block.State, crashed bool) {
	for _, name := range others {
		left := slices.Contains(w.state.Members, name) && !slices.Contains(state.Members, name)
		if slices.Contains(state.Members, name) {
			clear(w.lacks[name])
		} else if left {
			w.lacks[name] = maps.Clone(w.intent.must)
		}
	}
	away := map[string]*bounds{}
	for _, name := range state.Away {
		if away[name] = w.away[name]; away[name] == nil {
			away[name] = w.intent.clone()
		}
	}
	if w.committing != nil {
		unknown := map[string]bool{}
		for _, name := range w.committing {
			unknown[name] = !slices.Contains(state.Away, name)
		}
		if crashed { // it may not have come to that
			maps.DeleteFunc(w.unknown, func(name string, is bool) bool { return !is })
			maps.Copy(unknown, w.unknown)
		}
		w.unknown = unknown
	}
	w.away, w.state, w.pending, w.committing = away, state, nil, nil
}

func (w *world) clear() error {
	if err := w.s.Flush(w.ctx, w.state.Generation); err != nil {
		return err
	}
	w.flushed()
	chunks := block.NewBitmap(7)
	for i := range int64(7) {
		if w.rng.IntN(3) == 0 {
			chunks.Set(i)
			delete(w.intent.must, i)
		}
	}
	if err := w.s.Clear(w.ctx, w.state.Generation, chunks); err != nil {
		return err
	}
	for i := range int64(7) {
		if chunks.Has(i) {
			delete(w.intent.may, i)
		}
	}
	return nil
}

// failFlush makes a sync of the data fail. What was not flushed is lost at the next power failure, even if it is flushed once more, unless it
// is written again; the replica says where.
func (w *world) failFlush() error {
	w.failSyncs("data")
	err := w.s.Flush(w.ctx, w.state.Generation)
	w.fs.Inject(nil)
	if errors.Is(err, lossy.ErrCrashed) {
		return err
	}
	if !errors.Is(err, block.ErrDamaged) {
		return fmt.Errorf("a flush whose sync failed: %w", err)
	}
	w.tried[""], w.dropped = true, true
	if err := w.s.WriteAt(w.ctx, w.state.Generation, make([]byte, sector), 0, false); !errors.Is(err, block.ErrDamaged) {
		return fmt.Errorf("a write after a sync failed: %w", err)
	}
	if err := w.s.Flush(w.ctx, w.state.Generation); !errors.Is(err, block.ErrDamaged) {
		return fmt.Errorf("a flush after a sync failed: %w", err)
	}
	if err := w.s.Close(); !errors.Is(err, block.ErrDamaged) {
		return fmt.Errorf("a close after a sync failed: %w", err)
	}
	if err := w.reopen(); err != nil {
		return err
	}
	if got := w.s.State(); got.Clean || got.BootID != "" {
		return fmt.Errorf("after a sync failed the replica looks as if nothing was lost: %+v", got)
	}
	return w.writeAgain()
}

// failSyncs makes syncs of a file fail.
func (w *world) failSyncs(base string) {
	w.fs.Inject(func(op lossy.Op) error {
		if op.Kind == lossy.Sync && filepath.Base(op.Path) == base {
			return map[string]error{"data": unix.EIO, "meta": errMeta}[base]
		}
		return nil
	})
}

var errMeta = errors.New("metadata was not synced")

// writeAgain copies what is marked from another replica, which has it.
func (w *world) writeAgain() error {
	intent, err := w.s.Intent(w.ctx, w.state.Generation)
	if err != nil {
		return err
	}
	for _, i := range slices.Sorted(maps.Keys(w.cells)) {
		c := w.cells[i]
		if len(c.later) == 0 {
			continue
		}
		if c.later[len(c.later)-1].marked && !intent.Has(i*sector/block.ChunkSize) {
			return fmt.Errorf("sector %d was lost by a failed sync, and is not marked", i)
		}
		if err := w.writeTag(i, 1, c.latest(), false); err != nil {
			return err
		}
	}
	w.dropped = false
	return nil
}

// reopen opens the replica and checks what it knows.
func (w *world) reopen() error {
	w.fsys.opening = true
	s, err := store.Open(w.fsys, w.dir, w.id, w.bootID())
	w.fsys.opening = false
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	w.s = s
	got := s.State()
	candidates := append([]block.State{w.state}, w.pending...)
	for _, c := range candidates {
		if got.Clean && !w.state.Clean {
			return errors.New("the replica says that it is clean, and was not closed since it was written to")
		}
		c.Clean = got.Clean // the first write may have crashed before it said so
		if w.committing != nil && !slices.ContainsFunc(got.Away, func(n string) bool { return !slices.Contains(append(w.committing, w.state.Away...), n) }) {
			c.Away = got.Away
		}
		if same(got, c) == nil {
			w.adopt(c, true)
			if !got.Clean && !w.tried[got.BootID] {
				return fmt.Errorf("boot ID %s, but it was last written in one of %v", got.BootID, w.tried)
			}
			return nil
		}
	}
	return fmt.Errorf("state %+v is none of %+v", got, candidates)
}

// same compares but for the boot IDs.
func same(a, b block.State) error {
	a.BootID, b.BootID, a.CurrentBootID, b.CurrentBootID = "", "", "", ""
	if x, y := fmt.Sprintf("%+v", a), fmt.Sprintf("%+v", b); x != y {
		return fmt.Errorf("%s, not %s", x, y)
	}
	return nil
}

// verify reads everything that the model knows. After a crash any write that was not flushed may be lost.
func (w *world) verify(crashed bool) error {
	gen := w.state.Generation
	intent, err := w.s.Intent(w.ctx, gen)
	if err != nil {
		return err
	}
	for _, i := range slices.Sorted(maps.Keys(w.cells)) {
		c := w.cells[i]
		tag, err := w.read(i)
		if err != nil {
			return err
		}
		chunk := i * sector / block.ChunkSize
		at := slices.IndexFunc(c.later, func(l write) bool { return l.tag == tag })
		switch {
		case tag == c.latest():
		case !crashed:
			return fmt.Errorf("sector %d has %d, but %d was written last", i, tag, c.latest())
		case tag != c.durable && at < 0:
			return fmt.Errorf("sector %d has %d, but may only have %d or one of %v", i, tag, c.durable, c.later)
		}
		if crashed && tag != c.durable && w.state.Clean {
			return fmt.Errorf("sector %d changed from %d to %d, but the replica says that it is clean", i, c.durable, tag)
		}
		if crashed && tag != c.durable && at >= 0 && c.later[at].marked && !intent.Has(chunk) {
			return fmt.Errorf("sector %d changed from %d to %d, but chunk %d is not marked", i, c.durable, tag, chunk)
		}
	}
	if err := w.intent.check("the intent bitmap", intent, 7); err != nil {
		return err
	}
	for _, name := range w.state.Away {
		missed, ok, err := w.s.Missed(w.ctx, gen, name, 0)
		if err != nil || !ok {
			return fmt.Errorf("what %s missed: known %v: %w", name, ok, err)
		}
		if err := w.away[name].check("the bitmap of "+name, missed, 7); err != nil {
			return err
		}
		for chunk := range w.lacks[name] {
			if !missed.Has(chunk) {
				return fmt.Errorf("%s lacks chunk %d, but only %v is said to be missed", name, chunk, missed)
			}
		}
	}
	if _, ok, err := w.s.Missed(w.ctx, gen, "nobody", 0); ok || err != nil {
		return fmt.Errorf("what a stranger missed: known %v: %w", ok, err)
	}
	return nil
}

func (w *world) read(i int64) (uint64, error) {
	p := make([]byte, sector)
	if err := w.s.ReadAt(w.ctx, w.state.Generation, p, i*sector); err != nil {
		return 0, err
	}
	tag := binary.LittleEndian.Uint64(p)
	for j := range sector / 8 {
		if got := binary.LittleEndian.Uint64(p[8*j:]); got != tag {
			return 0, fmt.Errorf("sector %d is torn: %d and %d", i, tag, got)
		}
	}
	return tag, nil
}

// settle makes the model follow what is there.
func (w *world) settle(durable bool) error {
	for i, c := range w.cells {
		tag, err := w.read(i)
		if err != nil {
			return err
		}
		if durable {
			c.durable, c.later = tag, nil
			continue
		}
		for len(c.later) > 0 && c.latest() != tag { // the last write did not come that far
			c.later = c.later[:len(c.later)-1]
		}
		if !slices.ContainsFunc(c.later, func(l write) bool { return l.tag != c.durable }) { // zeros over zeros, which may not have been written
			c.later = nil
		}
	}
	return nil
}

// restart ends the process, or the machine, and opens the replica again.
func (w *world) restart(midway bool) error {
	how := w.rng.IntN(4)
	if how == 3 && !midway {
		if err := w.s.Close(); err != nil {
			return err
		}
		w.state.Clean = true
		w.flushed()
		return w.reopen()
	}
	crashed := how < 2
	for again := true; again; {
		if crashed {
			if err := w.fs.Crash(); err != nil {
				return err
			}
			w.boot++
		} else {
			w.fs.Kill()
		}
		if w.rng.IntN(3) == 0 {
			w.fs.CrashAfter(w.rng.IntN(5))
		}
		err := w.reopen()
		if again = errors.Is(err, lossy.ErrCrashed); err != nil && !again {
			return err
		}
		crashed = crashed || again && w.rng.IntN(2) == 0
	}
	w.fs.CrashAfter(-1)
	if err := w.verify(crashed || midway); err != nil {
		return fmt.Errorf("after a restart (power failure: %v): %w", crashed, err)
	}
	if err := w.settle(crashed); err != nil || crashed || !w.dropped {
		w.dropped = w.dropped && !crashed
		return err
	}
	return w.writeAgain()
}

// run does random operations with random crashes; an error is a broken promise.
func run(dir string, seed uint64, how breakage) (err error) {
	w, err := newWorld(dir, seed, how)
	if err != nil {
		return err
	}
	defer w.fs.Close()
	for i := range 80 {
		if w.rng.IntN(6) == 0 {
			w.fs.CrashAfter(w.rng.IntN(8))
		}
		if w.rng.IntN(15) == 0 {
			w.failSyncs("meta")
		}
		err := w.step()
		w.fs.Inject(nil)
		midway := errors.Is(err, lossy.ErrCrashed) || errors.Is(err, errMeta)
		if err != nil && !midway {
			return fmt.Errorf("seed %d, step %d: %w", seed, i, err)
		}
		if midway || w.rng.IntN(8) == 0 {
			if !midway {
				w.fs.CrashAfter(-1)
			}
			if err := w.restart(midway); err != nil {
				return fmt.Errorf("seed %d, restart after step %d: %w", seed, i, err)
			}
		}
	}
	return nil
}

func TestWhatIsPromisedSurvivesCrashes(t *testing.T) {
	for seed := range testlength.Seeds(60, 3000) {
		if err := run(t.TempDir(), seed, sound); err != nil {
			t.Fatal(err)
		}
	}
}

func TestThePropertyTestNoticesBrokenStores(t *testing.T) {
	for _, how := range []breakage{
		dataNotSynced, metaNotSynced, marksAfterData, marksNotSynced, stateNotSynced, holesNotPunched, awayNotCopied, clearsTooMuch, sectorsTorn,
		openingNotSynced,
	} {
		t.Run(strings.ReplaceAll(string(how), " ", "_"), func(t *testing.T) {
			for seed := range uint64(300) {
				if err := run(t.TempDir(), seed, how); err != nil {
					t.Logf("noticed: %v", err)
					return
				}
			}
			t.Errorf("nobody noticed that %s", how)
		})
	}
}
