package lease_test

import (
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/ebb-dev/ebb/internal/lease"
)

// saw is what the watch delivers: perhaps late, perhaps older than what was seen before.
func (p *process) saw(r lease.Record) {
	if p.detector != nil {
		p.detector.Saw(r, p.clock())
	}
}

// list looks at all Leases at once, now and then, as a cache does that was cut off. It may be a stale list.
func (p *process) list() {
	if p.slot.cut() || p.w.store.down() || p.w.now < p.slot.stallUntil {
		return
	}
	for node := range nodes() {
		if r, ok := p.w.store.past(node); ok {
			p.saw(r)
		}
	}
}

// observe nominates and, one at a time, marks.
func (p *process) observe() {
	if p.detector == nil || !p.holding() || p.leaving {
		return
	}
	if p.w.chance(20) {
		p.list()
	}
	if lost := p.detector.Lost(p.clock()); len(lost) > 0 && !p.marking {
		p.w.referee.Count("nominated")
		p.mark(lost[p.w.noise.IntN(len(lost))])
	}
}

// mark reads the Lease live, decides on that and writes by its resourceVersion.
func (p *process) mark(watched lease.Record) {
	p.marking = true
	p.timer(timing.Timeout, func() { p.marking = false })
	p.slot.call(func() (*coordinationv1.Lease, error) { return p.w.store.read(watched.Node) }, func(l *coordinationv1.Lease, err error) {
		if err != nil {
			return
		}
		if p.w.broken.unwatchedMark {
			watched = must(lease.Read(l))
		}
		next, err := lease.Fence(l, watched)
		if err != nil {
			p.w.referee.Count("changed since")
			return
		}
		p.step(beforeMark, func() {
			p.slot.call(func() (*coordinationv1.Lease, error) { return p.w.store.write(next, p.w.broken.blindMark) },
				func(*coordinationv1.Lease, error) {})
		})
	})
}

// nodes are the names in the world, in order.
func nodes() func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for i, place := range places {
			if i > 0 && places[i-1].node == place.node {
				continue
			}
			if !yield(place.node) {
				return
			}
		}
	}
}
