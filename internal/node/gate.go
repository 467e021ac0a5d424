package node

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrRefused is behind every refusal of the gate.
var ErrRefused = errors.New("the node takes no new work")

// Reasons for which the gate refuses.
const (
	RefusedStarting = "Starting"     // no epoch yet
	RefusedInDoubt  = "LeaseInDoubt" // the lease may have expired; the next epoch opens the gate
	RefusedDraining = "NodeDraining" // the node is being emptied
	RefusedStopping = "NodeStopping" // the node is leaving
	RefusedNoGuard  = "NoGuard"      // the guard that keeps Kubernetes from taking the node away does not run yet
)

// ErrNoGuard is behind the refusals of a node whose guard does not run yet. It is made when work asks for it: try again soon.
var ErrNoGuard = fmt.Errorf("%w: %s", ErrRefused, RefusedNoGuard)

// Gate admits all work of the node and counts it under one lock. Once it is closed, the counts can only fall: a count of zero taken
// after Close stays zero.
type Gate struct {
	// onRefusal is called at every refusal.
	onRefusal func(kind, reason string)

	mu     sync.Mutex
	epoch  int64
	closed string // why, or empty
	counts map[string]int

	guard guardState
}

// guardState is what the gate knows of the guard of its node. A node asks for a guard when work comes, and gives it up when nothing needs
// it any more. Giving it up is a handshake, because the coordinator deletes a guard that is not needed:
//
//	not wanted ──work comes──▶ wanted ──published and Guarded──▶ guarded ──nothing inside──▶ givingUp ──published, no longer Guarded──▶ not wanted
//
// While it gives the guard up, the gate admits nothing that needs one, and what it reads of an older guard does not count.
type guardState struct {
	needed   bool            // work is admitted only while the node is guarded
	wanted   bool            // work was refused for want of a guard, or is inside
	seen     [2]bool         // what the node's object says in this epoch: that the node asks for a guard, and that the guard runs
	givingUp bool            // the node asks to have its guard removed
	asked    bool            // work came while the guard was being given up
	exempt   map[string]bool // kinds that need no guard: nothing of them has to leave before the node may
	unknown  map[string]int  // pieces by kind of which it is not known yet whether they need a guard
	quiet    time.Time       // since when nothing inside has needed a guard; zero until that is seen
}

// NewGate makes a gate that stays closed until the first epoch.
func NewGate(onRefusal func(kind, reason string)) *Gate {
	return &Gate{onRefusal: onRefusal, closed: RefusedStarting, counts: map[string]int{}}
}

// Pass is one admitted piece of work. It counts until it leaves.
type Pass struct {
	gate *Gate
	kind string
	left bool
	// unknown says that the work was found running, and that its kind is a guess.
	unknown bool
}

// Leave ends the pass: the work and everything that belonged to it have left this node. A second call does nothing.
func (p *Pass) Leave() {
	p.gate.mu.Lock()
	defer p.gate.mu.Unlock()
	if !p.left {
		p.left = true
		p.gate.counts[p.kind]--
		p.learn()
	}
}

// Become counts the work under another kind, or under the same one for good.
func (p *Pass) Become(kind string) {
	p.gate.mu.Lock()
	defer p.gate.mu.Unlock()
	if !p.left {
		p.gate.counts[p.kind]--
		p.gate.counts[kind]++
		p.learn()
		p.gate.guard.want(kind)
	}
	p.kind = kind
}

// learn ends the guess about the kind of the work.
func (p *Pass) learn() {
	if p.unknown {
		p.unknown = false
		p.gate.guard.unknown[p.kind]--
	}
}

// Kind under which the work counts.
func (p *Pass) Kind() string {
	p.gate.mu.Lock()
	defer p.gate.mu.Unlock()
	return p.kind
}

// Enter admits one piece of work of a kind, or fails with an error that wraps ErrRefused and gives the reason.
func (g *Gate) Enter(kind string) (*Pass, error) {
	g.mu.Lock()
	reason := g.closed
	if reason == "" && g.guard.holds(kind) {
		g.guard.want(kind)
		if !g.guard.running() {
			reason = RefusedNoGuard
		}
	}
	if reason == "" {
		g.counts[kind]++
	}
	g.mu.Unlock()
	if reason != "" {
		g.onRefusal(kind, reason)
		if reason == RefusedNoGuard {
			return nil, fmt.Errorf("%s: %w", kind, ErrNoGuard)
		}
		return nil, fmt.Errorf("%s: %w: %s", kind, ErrRefused, reason)
	}
	return &Pass{gate: g, kind: kind}, nil
}

// Adopt counts a piece of work that is already here, whether the gate is closed or not: what an earlier process of this
// node started and this one found running.
func (g *Gate) Adopt(kind string) *Pass {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.counts[kind]++
	g.guard.want(kind)
	return &Pass{gate: g, kind: kind}
}

// Find is Adopt for work whose kind is not known yet. It counts under a kind, and asks for no guard until Become says what it is.
func (g *Gate) Find(kind string) *Pass {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.counts[kind]++
	if g.guard.unknown == nil {
		g.guard.unknown = map[string]int{}
	}
	g.guard.unknown[kind]++
	return &Pass{gate: g, kind: kind, unknown: true}
}

// Open begins an epoch. Nothing but a newer epoch opens a closed gate.
func (g *Gate) Open(epoch int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if epoch > g.epoch {
		g.epoch, g.closed, g.guard.seen = epoch, "", [2]bool{}
	}
}

// Close closes the gate for the rest of an epoch. The latest reason is the one reported.
func (g *Gate) Close(epoch int64, reason string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if epoch >= g.epoch {
		g.epoch, g.closed = epoch, reason
	}
}

// Count is how many pieces of a kind are inside.
func (g *Gate) Count(kind string) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.counts[kind]
}

// Closed returns why the gate refuses; empty while it admits.
func (g *Gate) Closed() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed
}
