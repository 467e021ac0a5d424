package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/volume/block"
)

// window is how much is copied under one lock. Writes of clients to it wait meanwhile.
const window = 4 * block.ChunkSize

// copiesAtOnce is how many windows of one replica are copied at a time, and piecesAtOnce how many writes of one window.
const (
	copiesAtOnce = 4
	piecesAtOnce = 16
)

// Rebuild is how far the building of a replica is.
type Rebuild struct {
	Replica   string
	Done      int64
	Total     int64
	Delta     bool
	StartedAt time.Time
	Error     string
}

// target is a replica that is being built: it gets every write, and is no member.
type target struct {
	name string
	block.Replica
	local  bool
	calls  underWay
	failed chan struct{}
	// memberAt is the generation in which it was last a member.
	memberAt int64

	mu    sync.Mutex
	err   error
	again block.Bitmap // chunks to copy once more: a write failed on the members there, so that the target may have what they have not
}

// copyAgain notes that a range is to be copied once more.
func (t *target) copyAgain(size, off, length int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.again == nil {
		t.again = block.NewBitmap(block.Chunks(size))
	}
	for c := off / block.ChunkSize; c <= (off+length-1)/block.ChunkSize; c++ {
		t.again.Set(c)
	}
}

// takeAgain returns what is to be copied once more, and forgets it; nil if there is nothing.
func (t *target) takeAgain() block.Bitmap {
	t.mu.Lock()
	defer t.mu.Unlock()
	again := t.again
	t.again = nil
	return again
}

// live takes the result of a write of a client.
func (t *target) live(err error) {
	if err == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil {
		t.err = err
		close(t.failed)
	}
}

func (t *target) why() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// rebuild is one attempt to build a replica.
type rebuild struct {
	replica     string
	delta       bool
	startedAt   time.Time
	done, total atomic.Int64
	cancel      context.CancelFunc
	limit       *rate.Limiter // nil for none

	mu  sync.Mutex
	err error
}

func (r *rebuild) progress() Rebuild {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := Rebuild{Replica: r.replica, Done: r.done.Load(), Total: r.total.Load(), Delta: r.delta, StartedAt: r.startedAt}
	if r.err != nil {
		p.Error = r.err.Error()
	}
	return p
}

// pause is how long to wait before a replica is built again.
type pause struct {
	backoff.Backoff
	until time.Duration
}

// startRebuilds starts to build the replicas that should be members, and ends what is not wanted any more.
func (e *Engine) startRebuilds(ctx context.Context) {
	want, v := e.wanted().Build, e.view.Load()
	if v.held != nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for name, r := range e.rebuilds {
		if !slices.Contains(want, name) {
			r.cancel()
			if r.err != nil {
				delete(e.rebuilds, name)
			}
		}
	}
	for _, name := range want {
		if slices.Contains(names(v.members), name) || (e.rebuilds[name] != nil && e.rebuilds[name].err == nil) {
			continue
		}
		if p := e.retry[name]; p != nil && e.opts.Clock() < p.until {
			continue
		}
		building, cancel := context.WithCancel(ctx)
		r := &rebuild{replica: name, startedAt: time.Now(), cancel: cancel}
		e.rebuilds[name] = r
		e.group.Go(func() { e.rebuild(building, r) })
	}
}

// rebuild builds a replica and makes it a member.
func (e *Engine) rebuild(ctx context.Context, r *rebuild) {
	defer r.cancel()
	e.changed()
	err := e.build(ctx, r)
	e.mu.Lock()
	switch {
	case err == nil:
		delete(e.rebuilds, r.replica)
		delete(e.retry, r.replica)
	case ctx.Err() != nil:
		delete(e.rebuilds, r.replica)
	default:
		p := e.retry[r.replica]
		if p == nil {
			p = &pause{Backoff: backoff.New(backoff.Policy{First: 200 * time.Millisecond, Longest: 10 * time.Second})}
			e.retry[r.replica] = p
		}
		p.until = e.opts.Clock() + p.Next()
		r.mu.Lock()
		r.err = err
		r.mu.Unlock()
	}
	e.mu.Unlock()
	if err != nil && ctx.Err() == nil {
		e.opts.Log.Warn("volume: building a replica failed", "volume", e.opts.Volume, "replica", r.replica, "error", err)
	}
	e.changed()
	e.wakeUp()
}

func (e *Engine) build(ctx context.Context, r *rebuild) error {
	dialing, cancel := context.WithTimeout(ctx, e.opts.Timing.MemberWait)
	defer cancel()
	conn, local, err := e.dial(dialing, r.replica)
	if err != nil {
		return err
	}
	t := &target{name: r.replica, Replica: conn, local: local, failed: make(chan struct{})}
	joined := false
	defer func() {
		if !joined {
			_ = e.ask(context.WithoutCancel(ctx), func(context.Context) error { e.removeTarget(t); return nil }) // fails if the engine ends
			_ = conn.Close()                                                                                     // it is no member
		}
	}()
	if err := e.ask(ctx, func(ctx context.Context) error { return e.addTarget(ctx, t, r) }); err != nil {
		return err
	}
	beating, stop := context.WithCancel(ctx)
	defer stop()
	if !local {
		e.group.Go(func() { e.heartbeatOfTarget(beating, t) })
	}
	e.gate.Lock()   // writes that began before the target got any have marked what it misses when this returns
	e.gate.Unlock() //nolint:staticcheck // the empty section is meant: whoever had the gate before has left it now
	todo, err := e.todo(ctx, t, r)
	if err != nil {
		return err
	}
	if e.opts.Limit != nil {
		r.limit = e.opts.Limit()
	}
	e.opts.Log.Info("volume: building a replica", "volume", e.opts.Volume, "replica", r.replica, "delta", r.delta, "bytes", r.total.Load())
	for todo != nil {
		if err := e.copyAll(ctx, t, r, todo); err != nil {
			return err
		}
		if err := t.Flush(ctx, e.view.Load().generation); err != nil && !errors.Is(err, block.ErrStale) {
			return err
		}
		e.gate.Lock()
		if todo = t.takeAgain(); todo != nil {
			e.gate.Unlock()
			r.count(todo, e.opts.Size)
		}
	}
	defer e.gate.Unlock()
	if err := e.ask(ctx, func(ctx context.Context) error { return e.join(ctx, t) }); err != nil {
		return err
	}
	joined = true
	return nil
}

// heartbeatOfTarget pings a replica that is being built until ctx ends. Clients wait for what they write to it, so they must not wait for one that
// does not answer.
func (e *Engine) heartbeatOfTarget(ctx context.Context, t *target) {
	for backoff.Sleep(ctx, e.opts.Timing.Heartbeat) == nil {
		limited, cancel := context.WithTimeout(ctx, e.opts.Timing.Unanswered)
		err := t.Ping(limited, e.view.Load().generation)
		cancel()
		if err != nil && ctx.Err() == nil && !errors.Is(err, block.ErrStale) { // it may be in the next generation already
			t.live(err)
			_ = t.Close() // ends the calls that wait for it
			return
		}
	}
}

// addTarget opens a replica and lets it get every write from now on.
func (e *Engine) addTarget(ctx context.Context, t *target, r *rebuild) error {
	ctx, cancel := context.WithTimeout(ctx, e.opts.Timing.FenceWait) // nothing else is done meanwhile
	defer cancel()
	v := e.view.Load()
	state, err := t.Open(ctx, v.generation)
	if errors.Is(err, block.ErrStale) {
		return fmt.Errorf("replica %s knows a newer generation than the Volume and is not written over: %v", t.name, err) //nolint:errorlint // the engine itself is not stale
	}
	if err != nil {
		return err
	}
	t.memberAt = state.MemberAt
	delta := false
	if !state.Syncing && state.Generation > 0 {
		if delta, err = e.knowsMissed(ctx, v, t); err != nil {
			return err
		}
	}
	if err := t.Commit(ctx, block.Membership{Generation: v.generation, Members: names(v.members), Away: state.Away, Syncing: !delta}); err != nil {
		return err
	}
	r.mu.Lock()
	r.delta = delta
	r.mu.Unlock()
	next := *v
	next.targets = append(slices.Clone(v.targets), t)
	e.view.Store(&next)
	return nil
}

// knowsMissed reports whether a member knows what a replica missed since it left.
func (e *Engine) knowsMissed(ctx context.Context, v *view, t *target) (bool, error) {
	_, ok, err := missed(ctx, v, t)
	return ok, err
}

func missed(ctx context.Context, v *view, t *target) (block.Bitmap, bool, error) {
	for _, m := range v.members {
		if chunks, ok, err := m.Missed(ctx, v.generation, t.name, t.memberAt); ok || err != nil {
			return chunks, ok, err
		}
	}
	return nil, false, nil
}

// todo returns what has to be copied: what was written since the replica left and what was under way there when it did, or everything.
func (e *Engine) todo(ctx context.Context, t *target, r *rebuild) (block.Bitmap, error) {
	todo := allChunks(e.opts.Size)
	if r.delta {
		v, err := e.current(ctx)
		if err != nil {
			return nil, err
		}
		chunks, ok, err := missed(ctx, v, t)
		if err != nil || !ok {
			return nil, fmt.Errorf("it is no longer known what replica %s missed: %w", t.name, err)
		}
		own, err := t.Intent(ctx, v.generation)
		if err != nil {
			return nil, err
		}
		todo = block.NewBitmap(block.Chunks(e.opts.Size))
		todo.Add(chunks)
		todo.Add(own)
	}
	r.count(todo, e.opts.Size)
	return todo, nil
}

// count adds chunks to what is to be copied.
func (r *rebuild) count(todo block.Bitmap, size int64) {
	for c := range block.Chunks(size) {
		if todo.Has(c) {
			r.total.Add(min(block.ChunkSize, size-c*block.ChunkSize))
		}
	}
}

func (e *Engine) removeTarget(t *target) {
	v := e.view.Load()
	next := *v
	next.targets = slices.DeleteFunc(slices.Clone(v.targets), func(o *target) bool { return o == t })
	e.view.Store(&next)
}

// raise brings the replicas that are being built to a new generation, and drops those that cannot follow.
func (e *Engine) raise(ctx context.Context, v *view, generation int64, members []*member) []*target {
	var kept []*target
	for _, t := range v.targets {
		if slices.ContainsFunc(members, func(m *member) bool { return m.name == t.name }) {
			continue // it became a member
		}
		limited, cancel := context.WithTimeout(ctx, e.opts.Timing.Unanswered)
		_, err := t.Open(limited, generation)
		cancel()
		if err != nil {
			t.live(err)
			continue
		}
		kept = append(kept, t)
	}
	return kept
}

// join makes a replica that has everything a member. No call of a client is under way.
func (e *Engine) join(ctx context.Context, t *target) error {
	v := e.view.Load()
	syncing, cancel := context.WithTimeout(ctx, e.opts.Timing.Stuck) // nothing else is done meanwhile
	defer cancel()
	if err := t.why(); err != nil {
		return err
	}
	if slices.ContainsFunc(v.members, func(m *member) bool { return m.failed.Load() }) {
		return errors.New("a member failed meanwhile")
	}
	if err := t.Flush(syncing, v.generation); err != nil {
		return err
	}
	for i, err := range each(v.members, func(m *member) error { return m.Flush(syncing, v.generation) }) {
		if err != nil {
			e.giveUp(v.members[i], err)
			return err
		}
	}
	if err := t.Commit(syncing, block.Membership{Generation: v.generation, Members: names(v.members)}); err != nil {
		return err
	}
	m := newMember(t.name, t.Replica, t.local, nil)
	m.heard.Store(int64(e.opts.Clock()))
	if err := e.record(ctx, change{members: append(slices.Clone(v.members), m)}); err != nil {
		return err
	}
	if !slices.Contains(e.view.Load().members, m) {
		return fmt.Errorf("it did not record that it is a member: %w", m.why())
	}
	return nil
}

// copyAll copies chunks to a replica, several windows at a time.
func (e *Engine) copyAll(ctx context.Context, t *target, r *rebuild, todo block.Bitmap) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-t.failed:
			cancel(t.why())
		case <-ctx.Done():
		}
	}()
	slots := make(chan struct{}, copiesAtOnce)
	var group sync.WaitGroup
	defer group.Wait()
	for from := int64(0); from < e.opts.Size; from += window {
		to := min(from+window, e.opts.Size)
		if !anyChunk(todo, from, to) {
			continue
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		group.Go(func() {
			defer func() { <-slots }()
			if err := e.copyWindow(ctx, t, r, todo, from, to); err != nil {
				cancel(err)
			}
		})
	}
	group.Wait()
	return context.Cause(ctx)
}

func anyChunk(b block.Bitmap, from, to int64) bool {
	for c := from / block.ChunkSize; c*block.ChunkSize < to; c++ {
		if b.Has(c) {
			return true
		}
	}
	return false
}

// copyWindow copies the chunks of a range that are still to do.
func (e *Engine) copyWindow(ctx context.Context, t *target, r *rebuild, todo block.Bitmap, from, to int64) error {
	for off := from; off < to; off += block.ChunkSize {
		if !todo.Has(off / block.ChunkSize) {
			continue
		}
		length := min(block.ChunkSize, to-off)
		copied, err := e.copyChunk(ctx, t, off, length)
		if err != nil {
			return err
		}
		if r.limit != nil {
			if err := r.limit.WaitN(ctx, int(copied)); err != nil {
				return err
			}
		}
		r.done.Add(length)
	}
	return nil
}

// copyChunk copies a range while clients do not write to it, and returns how many bytes were no holes. A change of the membership in the middle
// begins it anew.
func (e *Engine) copyChunk(ctx context.Context, t *target, off, length int64) (int64, error) {
	s, err := e.ranges.lock(ctx, off, length)
	if err != nil {
		return 0, err
	}
	defer e.ranges.unlock(s)
	var unread sourceError
	for {
		v, err := e.current(ctx)
		if err != nil {
			return 0, err
		}
		copied, err := copyRange(ctx, e.countedMember(v.read), e.countedTarget(t), v.generation, off, length, false)
		switch {
		case err == nil:
			return copied, nil
		case errors.Is(err, block.ErrStale):
			if err := e.awaitChange(ctx, v); err != nil {
				return 0, err
			}
		case t.why() != nil:
			return 0, t.why()
		case ctx.Err() == nil && errors.As(err, &unread) && len(v.members) > 1: // another member can be read
			e.giveUp(v.read, err)
			if err := e.await(ctx, v.read.gone); err != nil {
				return 0, err
			}
		default:
			return 0, err
		}
	}
}

// sourceError is why a range could not be read from the replica that it is copied from.
type sourceError struct{ error }

// Unwrap returns the error of the replica.
func (e sourceError) Unwrap() error { return e.error }

// buffers for the data of chunks.
var buffers = sync.Pool{New: func() any { b := make([]byte, block.ChunkSize); return &b }}

// copyRange copies a range from one replica to another, and returns how many bytes were no holes. Holes stay holes. If the other one is a member,
// what is the same on both is there at every moment, because the copy may never be finished.
func copyRange(ctx context.Context, from, to block.Replica, generation, off, length int64, member bool) (int64, error) {
	extents, err := from.Extents(ctx, generation, off, length)
	if err != nil {
		return 0, sourceError{err}
	}
	full := int64(0)
	for _, x := range extents {
		if !x.Hole {
			full += x.Length
		}
	}
	if full == 0 || full < length && !member {
		if err := to.Zero(ctx, generation, off, length, block.Zero{Hole: true}); err != nil || full == 0 {
			return 0, err
		}
	}
	buffer := buffers.Get().(*[]byte)
	defer buffers.Put(buffer)
	data := (*buffer)[:length]
	if err := from.ReadAt(ctx, generation, data, off); err != nil {
		return 0, sourceError{err}
	}
	return full, writePieces(ctx, to, generation, data, off, extents, member)
}

// writePieces writes the parts of a range that are no holes, several at a time, and makes the holes if asked to.
func writePieces(ctx context.Context, to block.Replica, generation int64, data []byte, off int64, extents []block.Extent, holes bool) error {
	slots := make(chan struct{}, piecesAtOnce)
	var group sync.WaitGroup
	var mu sync.Mutex
	var failed error
	at := int64(0)
	for _, x := range extents {
		piece := data[at : at+x.Length]
		start := off + at
		at += x.Length
		if x.Hole && !holes {
			continue
		}
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			write := func() error { return to.WriteAt(ctx, generation, piece, start, false) }
			if x.Hole {
				write = func() error { return to.Zero(ctx, generation, start, x.Length, block.Zero{Hole: true}) }
			}
			if err := write(); err != nil {
				mu.Lock()
				failed = err
				mu.Unlock()
			}
		})
	}
	group.Wait()
	return failed
}
