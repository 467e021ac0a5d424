package dispatch

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

const (
	// groupsAtOnce bounds the readers beside a hub. Each reads and decodes the whole log: with one for every table that is behind,
	// none might ever catch up.
	groupsAtOnce = 4
	// near is how many transactions a dispatcher may be ahead of or behind a group to be added to it: it waits for the group, or
	// the group goes back for it.
	near = 10_000
)

// group is a reader beside the hub, with the dispatchers that catch up through it. A dispatcher that is ahead of it gets nothing
// until the group has reached its position; for one that is behind, the group goes back.
type group struct {
	hub  *hub
	at   atomic.Uint64 // everything up to here was delivered
	when atomic.Int64  // when the source committed it, in microseconds

	mu       sync.Mutex // after the hub's
	members  map[stream.Table][]*dispatcher
	watchers map[stream.Table][]*dispatcher
	count    int
	cancel   context.CancelFunc // of the current read
}

// join subscribes dispatchers that are at the hub's position or ahead of it. The others catch up first.
func (h *hub) join(list []*dispatcher) {
	// Those furthest behind first: the others are added to groups that have not reached their position yet.
	slices.SortFunc(list, func(a, b *dispatcher) int {
		switch x, y := a.position(), b.position(); {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return 0
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range list {
		if at := d.position(); h.count == 0 || at >= h.position {
			h.add(d, at)
		} else if g := h.nearest(at); g != nil {
			g.add(d, at)
		} else if g := newGroup(h, at); !h.closed && g.add(d, at) {
			h.groups = append(h.groups, g)
			h.readers.Go(func() { g.run(h.ctx) })
		}
	}
}

// nearest is the group to catch up with from a position, or nil if a new one should be made. The caller holds the lock.
func (h *hub) nearest(at stream.Position) *group {
	var best *group
	var least uint64
	for _, g := range h.groups {
		apart := max(g.at.Load(), uint64(at)) - min(g.at.Load(), uint64(at))
		if best == nil || apart < least {
			best, least = g, apart
		}
	}
	if best != nil && least > near && len(h.groups) < groupsAtOnce {
		return nil
	}
	return best
}

func newGroup(h *hub, at stream.Position) *group {
	g := &group{hub: h, members: map[stream.Table][]*dispatcher{}, watchers: map[stream.Table][]*dispatcher{}}
	g.at.Store(uint64(at))
	return g
}

// add adds a dispatcher, unless that has stopped meanwhile. The caller holds the hub's lock.
func (g *group) add(d *dispatcher, at stream.Position) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	// The group goes back before the dispatcher follows it: its position counts for those that follow.
	if was := g.at.Load(); uint64(at) < was {
		for _, list := range g.members {
			for _, member := range list {
				member.passed(g, stream.Position(was), time.UnixMicro(g.when.Load()))
			}
		}
		g.at.Store(uint64(at))
		if g.cancel != nil {
			g.cancel()
		}
	}
	if !d.follow(g) {
		return false
	}
	for _, name := range d.names() {
		g.members[name] = append(g.members[name], d)
	}
	for _, name := range d.watches {
		g.watchers[name] = append(g.watchers[name], d)
	}
	g.count++
	return true
}

// leave ends the delivery to a dispatcher. The reader ends with its last one.
func (g *group) leave(d *dispatcher) {
	g.mu.Lock()
	defer g.mu.Unlock()
	found := false
	for _, name := range d.names() {
		found = leave(g.members, name, d) || found
	}
	if !found {
		return
	}
	for _, name := range d.watches {
		leave(g.watchers, name, d)
	}
	if g.count--; g.count == 0 && g.cancel != nil {
		g.cancel()
	}
}

// errMet: all dispatchers of the group have caught up.
var errMet = errors.New("caught up")

// run reads until all dispatchers have caught up, or left.
func (g *group) run(ctx context.Context) {
	pauses, troubled := backoff.New(retries), false
	for {
		read, cancel := context.WithCancel(ctx)
		g.mu.Lock()
		g.cancel = cancel
		from := stream.Position(g.at.Load())
		g.mu.Unlock()
		err := stream.ReadOf(read, g.hub.source, from, g.wants, func(t *stream.Transaction) error {
			if !g.hub.budget.wait(read) {
				return read.Err()
			}
			if err := g.deliver(read, t); err != nil {
				return err
			}
			pauses.Reset()
			if troubled {
				g.trouble(nil)
				troubled = false
			}
			if !t.More && uint64(t.Position) >= g.hub.reached.Load() && g.disband(read) {
				return errMet
			}
			return nil
		})
		ended := read.Err() != nil // a dispatcher further behind was added, or the last one has left
		cancel()
		if errors.Is(err, errMet) || ctx.Err() != nil || g.disband(read) {
			return
		}
		if ended || errors.Is(err, errWanted) {
			continue
		}
		g.trouble(err)
		troubled = true
		if Hopeless(err) {
			pauses.Exhaust()
		}
		_ = backoff.Sleep(ctx, pauses.Next()) // the loop ends with ctx
	}
}

// wants reports whether a table has a dispatcher in the group.
func (g *group) wants(t stream.Table) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.members[t]) > 0
}

// deliver delivers a transaction to the members. It fails if the group has gone back meanwhile.
func (g *group) deliver(read context.Context, t *stream.Transaction) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if read.Err() != nil {
		return read.Err()
	}
	if t.Idle {
		return nil
	}
	if err := spread(t, g.members, g.watchers, g); err != nil {
		return err
	}
	if !t.More {
		g.when.Store(t.At.UnixMicro())
		g.at.Store(uint64(t.Position))
	}
	return nil
}

// disband ends the group if it has no members, or if the hub is not ahead of it: then its members join the hub.
func (g *group) disband(read context.Context) bool {
	h := g.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	at := stream.Position(g.at.Load())
	if g.count > 0 && (read.Err() != nil || h.count > 0 && at < h.position) {
		return false
	}
	for _, list := range g.members {
		for _, d := range list {
			h.add(d, at)
		}
	}
	g.members, g.watchers, g.count = nil, nil, 0
	h.groups = slices.DeleteFunc(h.groups, func(each *group) bool { return each == g })
	return true
}

func (g *group) trouble(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, list := range g.members {
		for _, d := range list {
			d.trouble(err)
		}
	}
}
