package lease_test

import (
	"time"

	"github.com/ebb-dev/ebb/internal/lease"
)

// process is one node process. It decides with the real Tenure, Vigil, Take, Renew, Release and Fence.
type process struct {
	w    *world
	slot *slot
	id   string
	dead []string

	alive   bool
	frozen  bool
	waiting []func() // what comes once it is thawed

	tenure   *lease.Tenure // nil: out, wants in
	epoch    int64         // of the last tenure
	truly    lease.Instant // when the renewal it counts on was sent: kept for the referee
	vigil    *lease.Vigil
	believed lease.Instant // up to when the vigil was told of renewals: for those who tell it of some that never were
	door     *lease.Vigil  // of its own name, while it is out
	stopping bool          // the work of this tenure is being stopped
	stopped  bool          // and none is left
	leaving  bool
	releases int
	marking  bool
	attached bool // it has looked for what the process before it left running

	attempt // the renewal or take that is under way
}

// step is a place in the middle of a step, where a freeze hurts most.
type step int

const (
	beforeSend step = iota // decided, not yet sent
	afterSend              // the answer is on its way
	beforeShim             // the answer was counted, the shim does not know yet
	beforeMark             // the mark was decided on the live Lease, not yet sent
)

// do runs something in the process: at once, when it is thawed, or never.
func (p *process) do(f func()) {
	switch {
	case p == nil || !p.alive:
	case p.frozen:
		p.waiting = append(p.waiting, f)
	default:
		f()
	}
}

// timer does f after d on the machine's clock.
func (p *process) timer(d time.Duration, f func()) {
	p.w.after(p.slot.machine.lasts(d), func() { p.do(f) })
}

// step goes on with f after a moment in which the process may be frozen.
func (p *process) step(where step, f func()) {
	if d, ok := p.slot.ambush[where]; ok {
		delete(p.slot.ambush, where)
		p.freeze(d)
	}
	p.w.after(p.w.upTo(2*time.Millisecond), func() { p.do(f) })
}

func (p *process) freeze(d time.Duration) {
	if p.frozen || !p.alive || p.w.healed {
		return
	}
	p.frozen = true
	p.w.after(d, p.thaw)
}

// thaw goes on with everything that came meanwhile, timers and messages in any order.
func (p *process) thaw() {
	if !p.frozen {
		return
	}
	p.frozen = false
	waiting := p.waiting
	p.waiting = nil
	p.w.noise.Shuffle(len(waiting), func(i, j int) { waiting[i], waiting[j] = waiting[j], waiting[i] })
	for _, f := range waiting {
		p.do(f)
	}
}

func (p *process) clock() lease.Instant { return p.slot.machine.clock() }

func (p *process) holding() bool { return p.tenure != nil && p.tenure.At(p.clock()) == lease.Holding }

// beat is the loop of a process.
func (p *process) beat() {
	p.timer(beat, p.beat)
	if p.tenure != nil && !p.holding() {
		p.fence()
	}
	if !p.trying && p.clock() >= p.next && !p.stopping && !p.leaving {
		p.try()
	}
	if p.w.broken.ownFailures || p.w.broken.keptVigil && p.tenure == nil {
		p.believe(p.clock())
	}
	p.observe()
}

// fence stops the work of a tenure that is in doubt and, when it is dead, lets the process rejoin.
func (p *process) fence() {
	t := p.tenure
	if !p.stopping {
		p.stopping = true
		if !p.w.broken.keptVigil {
			p.vigil = nil
		}
		p.timer(p.w.upTo(timing.Dead-timing.Fence), func() { p.stopWork(t) })
	}
	if p.stopped || t.At(p.clock()) == lease.Over || p.w.broken.earlyRejoin {
		p.out()
	}
}

// stopWork stops what the process runs. It comes after out when the process was frozen in between; then the shim has
// done it already.
func (p *process) stopWork(t *lease.Tenure) {
	if p.tenure != t {
		return
	}
	p.slot.shim.stop()
	p.stopped = true
}

// out ends a tenure whose work is dead.
func (p *process) out() {
	p.w.referee.count("tenure over")
	epoch := p.tenure.Epoch()
	p.tenure, p.last, p.stopping, p.stopped, p.trying = nil, nil, false, false, false
	p.knock()
	if p.leaving {
		p.release(epoch)
	}
}

// knock begins to wait for the next epoch.
func (p *process) knock() {
	p.next = p.clock()
	p.door = lease.NewVigil(timing, p.next)
}

// leave ends the epoch in order: first the work, then the lease, then the process.
func (p *process) leave() {
	if p.tenure == nil || p.leaving {
		return
	}
	p.leaving = true
	if p.w.broken.earlyRelease {
		p.release(p.tenure.Epoch())
	}
	p.tenure.Doubt()
}

// tell passes the deadline of a renewal that was counted on to the shim. The gate is what the process has in memory:
// nothing starts in a tenure that is being stopped. The clock is the shim's business.
func (p *process) tell(t *lease.Tenure) {
	_, deadline := t.Deadline()
	left := deadline.Sub(p.clock())
	p.step(beforeShim, func() {
		if p.tenure != t || p.stopping {
			return
		}
		if p.w.broken.relativeDeadline {
			deadline = p.clock().Add(left)
		}
		// The first tenure of a process finds what the process before it left running.
		shim, first := p.slot.shim, !p.attached
		p.attached = true
		if shim.mayRun() && (first || shim.epoch == t.Epoch()) {
			if first {
				p.w.referee.count("re-attached")
			}
			shim.tell(t.Epoch(), deadline)
			return
		}
		p.slot.begin(t.Epoch(), deadline)
	})
}
