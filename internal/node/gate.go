package node

import (
	"errors"
	"fmt"
	"sync"
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

	needsGuard bool            // work is admitted only while the node is guarded
	guarded    bool            // the guard runs, as far as the node knows in this epoch
	wanted     bool            // work was refused for want of a guard, or is inside
	unguarded  map[string]bool // kinds that need no guard: nothing of them has to leave before the node may
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
}

// Leave ends the pass: the work and everything that belonged to it have left this node. A second call does nothing.
func (p *Pass) Leave() {
	p.gate.mu.Lock()
	defer p.gate.mu.Unlock()
	if !p.left {
		p.left = true
		p.gate.counts[p.kind]--
	}
}

// Become counts the work under another kind.
func (p *Pass) Become(kind string) {
	p.gate.mu.Lock()
	defer p.gate.mu.Unlock()
	if !p.left {
		p.gate.counts[p.kind]--
		p.gate.counts[kind]++
	}
	p.kind = kind
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
	if holds := g.needsGuard && !g.unguarded[kind]; reason == "" && holds {
		g.wanted = true
		if !g.guarded {
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
	g.wanted = g.wanted || g.needsGuard && !g.unguarded[kind]
	return &Pass{gate: g, kind: kind}
}

// NeedGuard makes the gate admit work only while the node is guarded.
func (g *Gate) NeedGuard() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.needsGuard = true
}

// WithoutGuard names kinds that are admitted without a guard: nothing of them has to leave before the node may.
func (g *Gate) WithoutGuard(kinds ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.unguarded == nil {
		g.unguarded = map[string]bool{}
	}
	for _, kind := range kinds {
		g.unguarded[kind] = true
	}
}

// SetGuarded says whether the guard of the node runs. Every epoch begins without one.
func (g *Gate) SetGuarded(guarded bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.guarded = guarded
}

// WantsGuard reports whether the gate needs a guard at all, and whether work has asked for it.
func (g *Gate) WantsGuard() (needed, wanted bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.needsGuard, g.wanted
}

// Open begins an epoch. Nothing but a newer epoch opens a closed gate.
func (g *Gate) Open(epoch int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if epoch > g.epoch {
		g.epoch, g.closed, g.guarded = epoch, "", false
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
