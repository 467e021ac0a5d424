package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/volume/block"
)

// resync makes the members equal where they may differ: writes were under way when the last engine ended.
func (e *Engine) resync(ctx context.Context, opened []opening) error {
	v := e.view.Load()
	if len(v.members) == 1 {
		return nil
	}
	differ := block.NewBitmap(block.Chunks(e.opts.Size))
	for _, m := range v.members {
		marked, err := e.countedMember(m).Intent(ctx, v.generation)
		if err != nil {
			return fmt.Errorf("replica %s: %w", m.name, err)
		}
		differ.Add(marked)
	}
	source := bestSource(v, opened)
	count := int64(0)
	for c := range block.Chunks(e.opts.Size) {
		if !differ.Has(c) {
			continue
		}
		count++
		e.setWaiting("chunks that were being written when the last engine ended to be equal on all members: %d so far", count)
		off := c * block.ChunkSize
		for _, m := range v.members {
			if m == source {
				continue
			}
			if _, err := copyRange(ctx, e.countedMember(source), e.countedMember(m), v.generation, off, min(block.ChunkSize, e.opts.Size-off), true); err != nil {
				return e.resyncWithout(ctx, opened, source, m, err)
			}
		}
	}
	if count == 0 {
		return nil
	}
	if err := first(each(v.members, func(m *member) error { return e.countedMember(m).Flush(ctx, v.generation) })); err != nil {
		return err
	}
	e.opts.Log.Info("volume: members made equal", "volume", e.opts.Volume, "chunks", count, "source", source.name)
	return e.clear(ctx, v, differ)
}

// resyncWithout goes on without the member at fault when one could not be made equal to another.
func (e *Engine) resyncWithout(ctx context.Context, opened []opening, source, m *member, cause error) error {
	var unread sourceError
	cause = fmt.Errorf("make replica %s equal to %s: %w", m.name, source.name, cause)
	if ctx.Err() != nil || errors.Is(cause, block.ErrStale) {
		return cause
	}
	if errors.As(cause, &unread) {
		m = source
	}
	e.giveUp(m, cause)
	left := slices.DeleteFunc(slices.Clone(e.view.Load().members), func(o *member) bool { return o == m })
	if err := e.record(ctx, change{members: left, departed: []string{m.name}}); err != nil {
		return err
	}
	e.beat(ctx)
	return e.resync(ctx, opened)
}

// restarted reports whether the member may have lost acknowledged writes that were not flushed.
func (o opening) restarted() bool { return !o.state.Clean && o.state.BootID != o.state.CurrentBootID }

// behind returns the members that may have lost acknowledged writes with the memory of their machines, while another one has them. They leave
// before anything is written to them: once it is, nobody can tell them from a member that has everything.
func (e *Engine) behind(ctx context.Context, opened []opening, generation int64) []string {
	ctx, cancel := context.WithTimeout(ctx, e.opts.Timing.MemberWait)
	defer cancel()
	var behind []string
	good := 0
	for _, o := range opened {
		if !o.restarted() {
			good++
			continue
		}
		if marked, err := o.member.Intent(ctx, generation); err != nil || slices.ContainsFunc(marked, func(word uint64) bool { return word != 0 }) {
			behind = append(behind, o.member.name)
		}
	}
	if good == 0 {
		return nil
	}
	return behind
}

// bestSource prefers a member whose machine was not restarted: it has every acknowledged write, flushed or not.
func bestSource(v *view, opened []opening) *member {
	for _, m := range append([]*member{v.read}, v.members...) {
		for _, o := range opened {
			if o.member == m && !o.restarted() {
				return m
			}
		}
	}
	return v.read
}

// clear clears the intent of chunks on all members.
func (e *Engine) clear(ctx context.Context, v *view, chunks block.Bitmap) error {
	return first(each(v.members, func(m *member) error { return e.countedMember(m).Clear(ctx, v.generation, chunks) }))
}

// clearLoop clears the intent of chunks that were not written for a while, so that little has to be made equal after a crash.
func (e *Engine) clearLoop(ctx context.Context) {
	for backoff.Sleep(ctx, e.opts.Timing.ClearAfter/2) == nil {
		if err := e.clearIdle(ctx); err != nil && ctx.Err() == nil {
			e.opts.Log.Debug("volume: intent not cleared", "volume", e.opts.Volume, "error", err)
		}
	}
}

// clearIdle flushes, and clears chunks that were not written since.
func (e *Engine) clearIdle(ctx context.Context) error {
	v, err := e.current(ctx)
	if err != nil || len(v.members) == 1 {
		return err
	}
	idle := e.idle(e.opts.Clock() - e.opts.Timing.ClearAfter)
	if len(idle) == 0 {
		return nil
	}
	// Nobody waits for this flush. It is not counted, because a disk may take long for all that clients never flushed.
	if err := first(each(v.members, func(m *member) error { return m.Flush(ctx, v.generation) })); err != nil {
		return err
	}
	e.gate.Lock()
	defer e.gate.Unlock()
	if e.view.Load() != v {
		return nil // the membership changed: later
	}
	chunks := block.NewBitmap(block.Chunks(e.opts.Size))
	for c, at := range idle {
		if e.lastWrite[c].CompareAndSwap(-at, 0) {
			chunks.Set(c)
		}
	}
	return e.clear(ctx, v, chunks)
}

// idle returns the chunks that were last written before a time, with that time, which it makes negative: a write from now on is seen even if the
// coarse clock has not gone on.
func (e *Engine) idle(before time.Duration) map[int64]int64 {
	idle := map[int64]int64{}
	for c := range e.lastWrite {
		found := e.lastWrite[c].Load()
		at := max(found, -found)
		if at == 0 || at >= int64(before) || e.suspect.has(int64(c)) {
			continue
		}
		if found < 0 || e.lastWrite[c].CompareAndSwap(at, -at) {
			idle[int64(c)] = at
		}
	}
	return idle
}

// suspects are chunks in which a write failed on every member, so that they may differ. Their intent stays until the next engine makes them
// equal.
type suspects struct {
	mu     sync.Mutex
	chunks map[int64]bool
}

func (s *suspects) add(off, length int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.chunks == nil {
		s.chunks = map[int64]bool{}
	}
	for c := off / block.ChunkSize; c <= (off+length-1)/block.ChunkSize; c++ {
		s.chunks[c] = true
	}
}

func (s *suspects) has(c int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.chunks[c]
}
