package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/ebb-dev/ebb/internal/volume/block"
)

// errLostWrites: the machine of the last member was restarted, and writes that were acknowledged but not flushed are gone.
var errLostWrites = errors.New("writes that were not flushed were lost: the machine of the last replica was restarted")

// ReadAt implements block.Device.
func (e *Engine) ReadAt(ctx context.Context, p []byte, off int64) error {
	return e.read(ctx, func(m *member, generation int64) error { return m.ReadAt(ctx, generation, p, off) })
}

// Extents implements block.Device.
func (e *Engine) Extents(ctx context.Context, off, length int64) ([]block.Extent, error) {
	var list []block.Extent
	err := e.read(ctx, func(m *member, generation int64) (err error) {
		list, err = m.Extents(ctx, generation, off, length)
		return err
	})
	return list, err
}

// WriteAt implements block.Device.
func (e *Engine) WriteAt(ctx context.Context, p []byte, off int64, fua bool) error {
	sum := sync.OnceValue(func() uint32 { return block.Checksum(p) }) // which all replicas on other nodes need
	return e.write(ctx, off, int64(len(p)), operation{
		do: func(ctx context.Context, r block.Replica, generation int64) error {
			return r.WriteAt(ctx, generation, p, off, fua)
		},
		start: func(r block.Starter, generation int64) block.Pending {
			return r.StartWriteAt(generation, p, off, fua, sum())
		},
	})
}

// zeroAtOnce is how much is zeroed in one call to a replica. Where the file system cannot do it zeros are written, and a disk that is busy with
// gigabytes of them would be taken for one that hangs.
const zeroAtOnce = 64 << 20

// Zero implements block.Device. A long range is zeroed in pieces, one after the other.
func (e *Engine) Zero(ctx context.Context, off, length int64, z block.Zero) error {
	for length > 0 {
		from, n := off, min(length, zeroAtOnce)
		err := e.write(ctx, from, n, operation{do: func(ctx context.Context, r block.Replica, generation int64) error {
			return r.Zero(ctx, generation, from, n, z)
		}})
		if err != nil {
			return err
		}
		off, length = off+n, length-n
	}
	return nil
}

// Flush implements block.Device.
func (e *Engine) Flush(ctx context.Context) error {
	e.gate.RLock()
	defer e.gate.RUnlock()
	flush := operation{do: func(ctx context.Context, r block.Replica, generation int64) error { return r.Flush(ctx, generation) }}
	if err := e.apply(ctx, flush, false); err != nil {
		return err
	}
	if e.lost.CompareAndSwap(true, false) {
		return errLostWrites
	}
	return nil
}

// read asks one member, and the next one if that fails. It does not enter the gate: one that waits for a disk that hangs would hold up all writes.
func (e *Engine) read(ctx context.Context, ask func(m *member, generation int64) error) error {
	for {
		v, err := e.current(ctx)
		if err != nil {
			return err
		}
		m := v.read
		switch err := e.counts(v, m, func() error { return ask(m, v.generation) }); {
		case err == nil && e.unanswered(v) == nil:
			return nil
		case err == nil: // another engine may have written since: wait until the membership is known again
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, block.ErrStale):
			if err := e.awaitChange(ctx, v); err != nil {
				return err
			}
		case len(v.members) == 1 && !errors.Is(err, block.ErrUnreachable):
			return err
		default:
			e.giveUp(m, err)
			if err := e.await(ctx, m.gone); err != nil {
				return err
			}
		}
	}
}

// counts counts a call of a member that is not the only one as under way.
func (e *Engine) counts(v *view, m *member, call func() error) error {
	if len(v.members) == 1 {
		return call()
	}
	period := e.period.Load()
	m.calls.begin(period)
	defer m.calls.end(period)
	return call()
}

// write writes to all members and to the replicas that are being built.
func (e *Engine) write(ctx context.Context, off, length int64, do operation) error {
	if length == 0 {
		return nil
	}
	ctx = context.WithoutCancel(ctx) // a write that began is ended on all members, whatever becomes of its client
	e.gate.RLock()
	defer e.gate.RUnlock()
	s, err := e.ranges.lock(ctx, off, length)
	if err != nil {
		return err
	}
	defer e.ranges.unlock(s)
	e.touch(off, length)
	defer e.touch(off, length)
	err = e.apply(ctx, do, true)
	if err != nil {
		e.suspect.add(off, length) // the members may differ there
		for _, t := range e.view.Load().targets {
			t.copyAgain(e.opts.Size, off, length)
		}
	}
	return err
}

// operation is something that is done on all members.
type operation struct {
	do func(ctx context.Context, r block.Replica, generation int64) error
	// start begins it on a replica that can do so; nil if there is no such way.
	start func(r block.Starter, generation int64) block.Pending
}

// begin begins it on a replica. The result waits until it is done.
func (o operation) begin(ctx context.Context, r block.Replica, generation int64, calls *underWay, period int64) func() error {
	calls.begin(period)
	if s, ok := r.(block.Starter); ok && o.start != nil {
		pending := o.start(s, generation)
		return func() error {
			defer calls.end(period)
			return pending.Wait()
		}
	}
	done := make(chan error, 1)
	go func() {
		defer calls.end(period)
		done <- o.do(ctx, r, generation)
	}()
	return func() error { return <-done }
}

// apply does something on all members, and on the replicas that are being built if they need it too. Members on which it fails while it
// succeeds on others are given up; it is done when that is recorded.
func (e *Engine) apply(ctx context.Context, o operation, targetsToo bool) error {
	for {
		v, err := e.current(ctx)
		if err != nil {
			return err
		}
		errs, late := e.applyOnce(ctx, o, v, targetsToo)
		switch {
		case first(errs) != nil:
			// A target that was in the next generation has not got it, goes on, and would become a member without it: then it is done once more.
			if done, err := e.settle(ctx, v, errs); done && !late || err != nil {
				return err
			}
		case late:
			if err := e.awaitChange(ctx, v); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

// applyOnce does something on all of a view. It returns the errors of the members, and whether a target was already in the next generation.
func (e *Engine) applyOnce(ctx context.Context, o operation, v *view, targetsToo bool) (errs []error, late bool) {
	errs = make([]error, len(v.members))
	if len(v.members) == 1 && len(v.targets) == 0 {
		errs[0] = o.do(ctx, v.members[0].waitFor(), v.generation)
		return errs, false
	}
	building := v.targets
	if !targetsToo {
		building = nil
	}
	var room [8]func() error
	waits, period := room[:0], e.period.Load()
	for _, t := range building {
		waits = append(waits, o.begin(ctx, t.Replica, v.generation, &t.calls, period))
	}
	for _, m := range v.members {
		waits = append(waits, o.begin(ctx, m.Replica, v.generation, &m.calls, period))
	}
	for i, t := range building {
		if err := waits[i](); errors.Is(err, block.ErrStale) {
			late = true
		} else {
			t.live(err)
		}
	}
	for i, wait := range waits[len(building):] {
		errs[i] = wait()
	}
	return errs, late
}

// settle deals with members on which something failed. It returns whether that is done; otherwise it has to be done again, on the members that
// there are then.
func (e *Engine) settle(ctx context.Context, v *view, errs []error) (bool, error) {
	if ctx.Err() != nil {
		return true, context.Cause(ctx)
	}
	if slices.ContainsFunc(errs, func(err error) bool { return errors.Is(err, block.ErrStale) }) {
		return false, e.awaitChange(ctx, v)
	}
	well := slices.Contains(errs, nil)
	answered := slices.ContainsFunc(errs, func(err error) bool { return !errors.Is(err, block.ErrUnreachable) })
	var succeeded, gone []*member
	for i, m := range v.members {
		switch {
		case errs[i] == nil:
			succeeded = append(succeeded, m)
		case well || errors.Is(errs[i], block.ErrUnreachable):
			e.giveUp(m, errs[i])
			gone = append(gone, m)
		}
	}
	if !well && answered && len(gone) == 0 {
		return true, failure(errs)
	}
	for _, m := range gone {
		if err := e.await(ctx, m.gone); err != nil {
			return true, err
		}
	}
	after, err := e.current(ctx)
	if err != nil {
		return true, err
	}
	return well && !slices.ContainsFunc(after.members, func(m *member) bool { return !slices.Contains(succeeded, m) }), nil
}

// failure is what a client is told when something failed on every member.
func failure(errs []error) error {
	for _, err := range errs {
		if !errors.Is(err, block.ErrNoSpace) {
			return err
		}
	}
	return errs[0]
}

// current returns the membership, when calls need not wait.
func (e *Engine) current(ctx context.Context) (*view, error) {
	for {
		v := e.view.Load()
		select {
		case <-e.ended:
			return nil, block.ErrClosed
		default:
		}
		if v.held != nil {
			if err := e.await(ctx, v.held); err != nil {
				return nil, err
			}
			continue
		}
		m := e.unanswered(v)
		if m == nil {
			return v, nil
		}
		e.giveUp(m, fmt.Errorf("%w: no answer for %s", block.ErrUnreachable, e.opts.Timing.Unanswered))
		if err := e.await(ctx, m.gone); err != nil {
			return nil, err
		}
	}
}

// unanswered returns a member that has not answered for too long, or nil. A lone member checks the generation of every call itself.
func (e *Engine) unanswered(v *view) *member {
	if len(v.members) == 1 {
		return nil
	}
	now := e.opts.Clock()
	for _, m := range v.members {
		if !m.answers(now, e.opts.Timing.Unanswered) {
			return m
		}
	}
	return nil
}

// await waits until a channel is closed.
func (e *Engine) await(ctx context.Context, c <-chan struct{}) error {
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-e.ended:
		return block.ErrClosed
	}
}

// giveUp asks for a member to be given up. It returns at once; member.gone is closed when that is recorded.
func (e *Engine) giveUp(m *member, cause error) {
	if m.fail(cause) {
		e.opts.Log.Warn("volume: a member failed", "volume", e.opts.Volume, "replica", m.name, "error", cause)
		e.wakeUp()
	}
}

// touch notes that chunks are being written.
func (e *Engine) touch(off, length int64) {
	now := e.coarse.Load()
	for c := off / block.ChunkSize; c <= (off+length-1)/block.ChunkSize; c++ {
		e.lastWrite[c].Store(now)
	}
}
