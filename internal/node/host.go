package node

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/backoff"
)

// restartRuntime is the delay before a runtime that ended unexpectedly is started again.
const restartRuntime = time.Second

// host runs runtimes and residents and knows when all of them have stopped.
type host struct {
	hosted []Hosted
	peers  *peerServer // nil without a listener
	log    *slog.Logger
}

// counts asks every runtime what it holds and what stays.
func (h *host) counts() (held, staying map[string]int64) {
	for _, r := range h.hosted {
		if held == nil {
			held = map[string]int64{}
		}
		held[r.Runtime.Name()] = int64(r.Runtime.Held())
		if s, ok := r.Runtime.(Stayer); ok {
			if staying == nil {
				staying = map[string]int64{}
			}
			staying[r.Runtime.Name()] = int64(s.Staying())
		}
	}
	return held, staying
}

// report lets every Reporter add to the node's status.
func (h *host) report(status *v1alpha1.NodeStatus) {
	for _, r := range h.hosted {
		if reporter, ok := r.Runtime.(Reporter); ok {
			reporter.Report(status)
		}
	}
}

// end stops what goes on without an epoch.
func (h *host) end() {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	var all sync.WaitGroup
	for _, r := range h.hosted {
		if ender, ok := r.Runtime.(Ender); ok {
			all.Go(func() { ender.End(ctx) })
		}
	}
	all.Wait()
}

// group is a set of things that run together and are stopped together.
type group struct {
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	running map[string]struct{} // names of what has not ended
}

// start runs every function until the group is stopped; one that ends early is started again.
func (h *host) start(names []string, runs []func(context.Context) error) *group {
	ctx, cancel := context.WithCancel(context.Background())
	g := &group{cancel: cancel, done: make(chan struct{}), running: map[string]struct{}{}}
	for _, name := range names {
		g.running[name] = struct{}{}
	}
	var wg sync.WaitGroup
	for i, run := range runs {
		wg.Go(func() {
			h.keep(ctx, names[i], run)
			g.ended(names[i])
		})
	}
	go func() {
		wg.Wait()
		close(g.done)
	}()
	return g
}

func (h *host) keep(ctx context.Context, name string, run func(context.Context) error) {
	for {
		err := run(ctx)
		if ctx.Err() != nil {
			if err != nil && !errors.Is(err, ctx.Err()) {
				h.log.Warn("a part of the node stopped with an error", "part", name, "error", err)
			}
			return
		}
		h.log.Error("a part of the node ended unexpectedly; restarting it", "part", name, "error", err)
		if backoff.Sleep(ctx, restartRuntime) != nil {
			return
		}
	}
}

// runtimes starts the runtimes that declared the given OnLeaseDoubt; those that stop get the epoch. The server for other nodes
// is kept in doubt too.
func (h *host) runtimes(on OnLeaseDoubt, e *Epoch) *group {
	var names []string
	var runs []func(context.Context) error
	if on == KeepOnDoubt && h.peers != nil {
		names, runs = append(names, "peers"), append(runs, h.peers.run)
	}
	for _, r := range h.hosted {
		if r.OnLeaseDoubt == on {
			names, runs = append(names, r.Runtime.Name()), append(runs, func(ctx context.Context) error { return r.Runtime.Run(ctx, e) })
		}
	}
	return h.start(names, runs)
}

// residents starts what runs in every epoch.
func (h *host) residents(e *Epoch, list []Resident) *group {
	var names []string
	var runs []func(context.Context) error
	for _, r := range list {
		names = append(names, r.Name())
		runs = append(runs, func(ctx context.Context) error { return r.Run(ctx, e) })
	}
	return h.start(names, runs)
}

func (g *group) ended(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.running, name)
}

// left returns the names of what has not ended, sorted.
func (g *group) left() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Sorted(maps.Keys(g.running))
}

// stopped reports whether everything in the group has ended.
func (g *group) stopped() bool {
	select {
	case <-g.done:
		return true
	default:
		return false
	}
}

// stop asks the group to end and waits until it has, or until late fires.
func (g *group) stop(late <-chan struct{}) (stopped bool) {
	g.cancel()
	select {
	case <-g.done:
		return true
	case <-late:
		return g.stopped()
	}
}
