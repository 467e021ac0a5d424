package node

import "time"

// guardLinger is how long a node keeps its guard after the last work that needs one has left: a guard takes seconds to start.
const guardLinger = 30 * time.Second

// cordonedLinger is the same on a cordoned node, which somebody waits for: as long as work takes to be started again after the process was.
const cordonedLinger = 2 * time.Second

// holds reports whether work of a kind is admitted only while there is a guard.
func (s *guardState) holds(kind string) bool { return s.needed && !s.exempt[kind] }

// running reports whether a guard runs that is not being given up. A guard that the node does not ask for may be removed at any time.
func (s *guardState) running() bool { return !s.givingUp && s.seen[0] && s.seen[1] }

// want records that work of a kind is here or asks to be taken.
func (s *guardState) want(kind string) {
	switch {
	case !s.holds(kind):
	case s.givingUp:
		s.asked = true
	default:
		s.wanted, s.quiet = true, time.Time{}
	}
}

// NeedGuard makes the gate admit work only while the node is guarded.
func (g *Gate) NeedGuard() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.guard.needed = true
}

// WithoutGuard names kinds that are admitted without a guard: nothing of them has to leave before the node may.
func (g *Gate) WithoutGuard(kinds ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.guard.exempt == nil {
		g.guard.exempt = map[string]bool{}
	}
	for _, kind := range kinds {
		g.guard.exempt[kind] = true
	}
}

// SetGuarded says what the node's object says: that the node asks for a guard, and that the guard runs. Every epoch begins without one.
func (g *Gate) SetGuarded(wanted, running bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := &g.guard
	s.seen = [2]bool{wanted, running}
	if s.givingUp && !wanted && !running { // the coordinator has seen that the guard is given up
		s.givingUp, s.wanted, s.asked, s.quiet = false, s.asked, false, time.Time{}
	}
}

// NeedsGuard reports whether the gate needs guards at all. If so, it also reports whether the node wants one; before says whether its object
// asks for one, which only ReleaseGuard takes back, and held whether the node holds something that did not come through the gate.
func (g *Gate) NeedsGuard(before, held bool) (needed, wanted bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := &g.guard
	s.wanted = s.wanted || s.needed && !s.givingUp && (before || held)
	return s.needed, s.wanted && !s.givingUp
}

// ReleaseGuard gives the guard up if nothing has needed it since linger. counts returns what the node holds by kind; it is called without
// the lock, and after the gate has stopped to admit work that needs a guard.
func (g *Gate) ReleaseGuard(now time.Time, linger time.Duration, counts func() map[string]int64) {
	if !g.guardIdle(now, linger, counts()) {
		return
	}
	g.mu.Lock()
	g.guard.givingUp = true
	g.mu.Unlock()
	if held := counts(); g.holdsAny(held) {
		g.mu.Lock()
		defer g.mu.Unlock()
		// Nothing was published in between: who calls this publishes.
		g.guard.givingUp, g.guard.asked, g.guard.quiet = false, false, time.Time{}
	}
}

// guardIdle reports whether the node has a guard that nothing has needed since linger.
func (g *Gate) guardIdle(now time.Time, linger time.Duration, held map[string]int64) bool {
	busy := g.holdsAny(held)
	g.mu.Lock()
	defer g.mu.Unlock()
	s := &g.guard
	switch {
	case !s.needed || !s.wanted || s.givingUp:
		return false
	case busy:
		s.quiet = time.Time{}
		return false
	case s.quiet.IsZero():
		s.quiet = now
	}
	return now.Sub(s.quiet) >= linger
}

// holdsAny reports whether something that needs a guard is inside, or is held without a pass.
func (g *Gate) holdsAny(held map[string]int64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for kind, count := range g.counts {
		if !g.guard.exempt[kind] && count > g.guard.unknown[kind] {
			return true
		}
	}
	for kind, count := range held {
		if !g.guard.exempt[kind] && count > int64(g.guard.unknown[kind]) {
			return true
		}
	}
	return false
}
