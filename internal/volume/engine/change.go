package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ebb-dev/ebb/internal/volume/block"
)

// tickEvery is how often the engine looks for what is due though nobody woke it.
const tickEvery = 500 * time.Millisecond

// manage changes the membership, one change at a time, until ctx or the engine ends.
func (e *Engine) manage(ctx context.Context) {
	tick := time.NewTicker(tickEvery)
	defer tick.Stop()
	for {
		e.coarse.Store(int64(e.opts.Clock()))
		e.giveUpStuck()
		e.giveUpFailed(ctx)
		e.letGo(ctx)
		e.startRebuilds(ctx)
		select {
		case <-ctx.Done():
			return
		case <-e.ended:
			return
		case <-e.wake:
		case <-tick.C:
		case t := <-e.tasks:
			t.done <- t.do(ctx)
		}
	}
}

// ask lets the goroutine that changes the membership do something, and waits for it.
func (e *Engine) ask(ctx context.Context, do func(context.Context) error) error {
	t := task{do: do, done: make(chan error, 1)}
	select {
	case e.tasks <- t:
		return <-t.done
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-e.ended:
		return block.ErrClosed
	}
}

// giveUpFailed records a membership without those that failed. If none would be left, it reaches for them again instead.
func (e *Engine) giveUpFailed(ctx context.Context) {
	v := e.view.Load()
	good := slices.DeleteFunc(slices.Clone(v.members), func(m *member) bool { return m.failed.Load() })
	switch {
	case len(good) == len(v.members):
	case len(good) == 0:
		e.reachAgain(ctx, v)
	default:
		e.log(e.record(ctx, change{members: good, departed: without(names(v.members), names(good))}))
	}
}

// letGo records a membership without those that should leave, if all that stay answer. The last good copy stays.
func (e *Engine) letGo(ctx context.Context) {
	v, leave := e.view.Load(), e.wanted().Leave
	stay := slices.DeleteFunc(slices.Clone(v.members), func(m *member) bool { _, leaves := leave[m.name]; return leaves })
	if len(stay) == len(v.members) || len(stay) == 0 {
		return
	}
	if !e.allAnswer(ctx, v, stay) {
		return
	}
	c := change{members: stay, leaving: without(names(v.members), names(stay))}
	for _, name := range c.leaving {
		if leave[name] {
			c.departed = append(c.departed, name)
		}
	}
	if err := e.record(ctx, c); !errors.Is(err, ErrNotReleased) {
		e.log(err)
	}
}

// allAnswer reports whether some members answer now. The others are given up.
func (e *Engine) allAnswer(ctx context.Context, v *view, members []*member) bool {
	limited, cancel := context.WithTimeout(ctx, e.opts.Timing.Unanswered)
	defer cancel()
	all := true
	for i, err := range each(members, func(m *member) error { return m.Ping(limited, v.generation) }) {
		if err == nil {
			continue
		}
		all = false
		if ctx.Err() == nil && !errors.Is(err, block.ErrStale) { // a stale engine learns that when it writes
			e.giveUp(members[i], err)
		}
	}
	return all
}

// change is a new membership.
type change struct {
	members []*member
	// departed are those that may come back: what they miss is marked from now on.
	departed []string
	// leaving are those that leave only because they were released.
	leaving []string
}

// record makes a change: in the Volume, then on the members. I/O is held until it stands. Members that cannot record it are given up as well.
func (e *Engine) record(ctx context.Context, c change) error {
	before := e.hold()
	generation, members, departed := before.generation, c.members, c.departed
	for {
		e.setWaiting("the API to record generation %d with members %v", generation+1, names(members))
		if err := e.persist(ctx, Record{From: generation, Generation: generation + 1, Members: names(members), Leaving: c.leaving}); err != nil {
			if errors.Is(err, block.ErrStale) {
				e.end(fmt.Errorf("volume %s: another engine took over: %w", e.opts.Volume, err))
			}
			if errors.Is(err, ErrNotReleased) {
				e.release(before)
			}
			return err
		}
		generation++
		failed, err := e.commit(ctx, generation, members, departed)
		if err != nil {
			return err
		}
		if len(failed) == 0 || len(failed) == len(members) {
			break // if all failed, all of them are reached for again
		}
		members = slices.DeleteFunc(slices.Clone(members), func(m *member) bool { return slices.Contains(failed, m) })
		departed = append(slices.Clone(departed), names(failed)...)
	}
	e.install(ctx, before, generation, members)
	return nil
}

// hold lets calls of clients wait, until install.
func (e *Engine) hold() *view {
	v := e.view.Load()
	if v.held != nil {
		return v
	}
	next := *v
	next.held = make(chan struct{})
	e.view.Store(&next)
	e.changed()
	return &next
}

// release lets calls of clients go on with the membership as it was.
func (e *Engine) release(held *view) {
	next := *held
	next.held = nil
	e.mu.Lock()
	e.waiting = ""
	e.mu.Unlock()
	e.view.Store(&next)
	close(held.held)
	e.changed()
}

// install lets calls of clients go on with a membership. While the engine opens they still wait.
func (e *Engine) install(ctx context.Context, before *view, generation int64, members []*member) {
	next := &view{generation: generation, members: members, targets: e.raise(ctx, before, generation, members), read: pickRead(members)}
	e.mu.Lock()
	opening := !e.serving
	if !opening {
		e.waiting = ""
	}
	e.mu.Unlock()
	if opening {
		next.held = before.held
	}
	e.view.Store(next)
	for _, m := range before.members {
		if !slices.Contains(members, m) {
			e.dismiss(m)
		}
	}
	if !opening {
		e.beat(ctx)
		close(before.held)
	}
	e.opts.Log.Info("volume: membership recorded", "volume", e.opts.Volume, "generation", generation, "members", names(members))
	e.changed()
}

// dismiss lets go of a connection that is not used any more.
func (e *Engine) dismiss(m *member) {
	if m.stop != nil {
		m.stop()
	}
	_ = m.Close() // it is no member any more
	close(m.gone)
}

func (e *Engine) startHeartbeat(ctx context.Context, m *member) {
	var beating context.Context
	beating, m.stop = context.WithCancel(ctx)
	if !m.local {
		e.group.Go(func() { e.heartbeat(beating, m) })
	}
}

// commit records a membership on its members, and returns those that could not.
func (e *Engine) commit(ctx context.Context, generation int64, members []*member, departed []string) ([]*member, error) {
	limited, cancel := context.WithTimeout(ctx, e.opts.Timing.FenceWait)
	defer cancel()
	sent := e.opts.Clock()
	away := func(m *member) []string { return newest(union(without(m.away, names(members)), departed)) }
	errs := each(members, func(m *member) error {
		return m.Commit(limited, block.Membership{Generation: generation, Members: names(members), Away: away(m)})
	})
	var failed []*member
	for i, m := range members {
		switch err := errs[i]; {
		case err == nil:
			m.away = away(m)
			m.heard.Store(int64(sent))
		case errors.Is(err, block.ErrStale):
			e.end(fmt.Errorf("volume %s: replica %s: %w", e.opts.Volume, m.name, err))
			return nil, err
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		default:
			e.giveUp(m, err)
			failed = append(failed, m)
		}
	}
	return failed, nil
}

// commitAll is commit for an engine that opens: whoever fails there is given up right after.
func (e *Engine) commitAll(ctx context.Context, generation int64, members []*member) error {
	failed, err := e.commit(ctx, generation, members, nil)
	if err != nil || len(failed) == 0 {
		return err
	}
	if len(failed) == len(members) {
		return fmt.Errorf("volume %s: no member could record generation %d: %w", e.opts.Volume, generation, failed[0].why())
	}
	good := slices.DeleteFunc(slices.Clone(members), func(m *member) bool { return slices.Contains(failed, m) })
	return e.record(ctx, change{members: good, departed: names(failed)})
}

// maxAway is how many replicas a member is told are away. What older ones missed it has forgotten by then, and most of them never come back.
const maxAway = 16

// newest are the names at the end of a list, which are those that were added last.
func newest(list []string) []string { return list[max(0, len(list)-maxAway):] }

func union(a, b []string) []string {
	return append(slices.Clone(a), without(b, a)...)
}

// reachAgain reaches for members of which none answers any more. The first that is back carries on alone; the others are resynced when they
// come. One whose machine was restarted may have lost acknowledged writes: others are preferred for a while.
func (e *Engine) reachAgain(ctx context.Context, v *view) {
	held := e.hold()
	e.setWaiting("a member to answer: %v", v.members[0].why())
	for _, m := range v.members {
		o, err := e.tryOpen(ctx, m.name, v.generation)
		switch {
		case errors.Is(err, block.ErrStale):
			e.end(fmt.Errorf("volume %s: %w", e.opts.Volume, err))
			return
		case err != nil:
			e.setWaiting("a member to answer: %v", err)
			continue
		}
		rebooted := o.restarted()
		if rebooted && len(v.members) > 1 && e.opts.Clock()-time.Duration(m.heard.Load()) < e.opts.Timing.Unanswered+e.opts.Timing.MemberWait {
			_ = o.member.Close() // another one may have everything
			continue
		}
		if rebooted {
			e.lost.Store(true)
			e.opts.Log.Error("volume: acknowledged writes that were not flushed may be lost: the machine of the last replica was restarted", "volume", e.opts.Volume, "replica", m.name)
			for _, t := range v.targets {
				t.live(errLostWrites) // it has them, and must not become a member with them
			}
		}
		o.member.away = m.away
		others := without(names(v.members), []string{m.name})
		if len(others) == 0 {
			if _, err := e.commit(ctx, v.generation, []*member{o.member}, nil); err != nil {
				return
			}
			e.install(ctx, held, v.generation, []*member{o.member})
			return
		}
		e.log(e.record(ctx, change{members: []*member{o.member}, departed: others}))
		return
	}
}

// awaitChange waits until a change of the membership that is under way is over. If there was none since v, with whose generation a replica
// refused a call, the replica knows of another engine, and this one ends.
func (e *Engine) awaitChange(ctx context.Context, v *view) error {
	return e.ask(ctx, func(context.Context) error {
		if e.view.Load().generation == v.generation {
			e.end(fmt.Errorf("volume %s: %w", e.opts.Volume, block.ErrStale))
			return block.ErrClosed
		}
		return nil
	})
}

func (e *Engine) log(err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		e.opts.Log.Error("volume: the membership could not be changed", "volume", e.opts.Volume, "error", err)
	}
}
