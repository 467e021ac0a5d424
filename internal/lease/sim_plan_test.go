package lease_test

import (
	"fmt"
	"time"

	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/simtest"
)

// plan is all that is chosen about a run: the faults, and the seed of everything small (delays, clocks, order).
type plan struct {
	Seed   uint64
	Rough  bool // messages are slow, late and lost now and then, faults or not
	Slow   bool // every message takes long, but a renewal with all its messages is in time
	Drift  bool // clocks run at rates between 0.9 and 1.1
	Faults []fault
}

// fault befalls one slot, or the store, at a true time and lasts For.
type fault struct {
	At   time.Duration
	Kind kind
	Slot int
	For  time.Duration
}

func (f fault) String() string {
	return fmt.Sprintf("%s %s slot %d for %s", f.At, f.Kind, f.Slot, f.For)
}

type kind int

const (
	freeze           kind = iota // SIGSTOP, SIGCONT after For
	freezeBeforeSend             // the same, the next time it gets there
	freezeAfterSend
	freezeBeforeShim
	freezeBeforeMark
	partition   // from the store
	kill        // and start again after For
	reboot      // of the machine, start again after For
	powerCut    // reboot of all machines, all start again after For
	leave       // in order, and start again after For
	refusing    // outage of the store: errors at once
	silent      // outage of the store: no answers, and requests that come through afterwards
	stall       // of the watch
	lateRequest // the next request arrives later by For
	lostAnswers // the next two answers
	edit        // of the duration in the Lease, by a person, and sometimes a partition right then
	kinds
)

func (k kind) String() string {
	return [...]string{"freeze", "freezeBeforeSend", "freezeAfterSend", "freezeBeforeShim", "freezeBeforeMark", "partition", "kill",
		"reboot", "powerCut", "leave", "refusing", "silent", "stall", "lateRequest", "lostAnswers", "edit"}[k]
}

// The course of a run: faults begin until calm, all is healed at healing, and by end all must be well.
const (
	settled = 5 * time.Second
	calm    = 45 * time.Second
	healing = 65 * time.Second
	end     = 95 * time.Second
)

// draw returns a number below n, from rapid or from a seed.
type draw func(what string, n int) int

// newPlan draws a plan. Most of what goes wrong needs two faults on one node, close together, that last about as long
// as one of the durations of the timing: so it draws those often.
func newPlan(d draw) plan {
	p := plan{Seed: uint64(d("seed", 1<<20)), Rough: d("rough", 3) == 1, Drift: d("drift", 3) == 1}
	from, slot := settled, d("first", len(places))
	for range 1 + d("faults", 8) {
		if d("elsewhere", 5) < 2 {
			slot = d("slot", len(places))
		}
		f := fault{At: from, Kind: kind(d("kind", int(kinds))), Slot: slot, For: newLength(d)}
		p.Faults = append(p.Faults, f)
		if d("caught", 3) == 1 {
			p.Faults = append(p.Faults, newCaught(d, f)...)
		}
		if from = newStart(d, f); from > calm {
			break
		}
	}
	return p
}

// newCaught are faults that catch a node in the middle of a renewal, for about half of its fence, and then keep it from
// being heard of until it is lost.
func newCaught(d draw, after fault) []fault {
	from := after.At + after.For + time.Duration(d("soon", 41))*100*time.Millisecond
	f := fault{At: from, Kind: freezeBeforeSend + kind(d("where", 3)), Slot: after.Slot, For: near(d, timing.Fence/2)}
	how := []kind{partition, freezeBeforeSend}[d("how", 2)]
	return []fault{f, {At: middle(f), Kind: how, Slot: f.Slot, For: timing.Lost + timing.Dead}}
}

// middle of a fault, even if it had to wait for the next renewal.
func middle(f fault) time.Duration { return f.At + f.For/2 + timing.Renew/2 }

// newLength is about one of the durations that matter.
func newLength(d draw) time.Duration {
	about := []time.Duration{timing.Renew, timing.Fence, timing.Dead, timing.Lost, timing.Lost + timing.Dead, timing.Fence / 2}
	return near(d, about[d("about", len(about))])
}

// near is a duration up to a second shorter or longer.
func near(d draw, about time.Duration) time.Duration {
	return about - time.Second + time.Duration(d("near", 41))*50*time.Millisecond
}

// newStart is when the fault after f begins: with it, in the middle of it, right after it, or some time later.
func newStart(d draw, f fault) time.Duration {
	switch d("next", 5) {
	case 0:
		return f.At
	case 1:
		return middle(f)
	case 2, 3:
		return f.At + f.For + time.Duration(d("soon", 41))*50*time.Millisecond
	default:
		return f.At + time.Duration(d("later", 21))*time.Second
	}
}

func (w *world) strike(f fault) {
	s := w.slots[f.Slot]
	until := w.now + f.For
	switch f.Kind {
	case freeze:
		s.process.freeze(f.For)
	case freezeBeforeSend, freezeAfterSend, freezeBeforeShim, freezeBeforeMark:
		s.ambush[step(f.Kind-freezeBeforeSend)] = f.For
	case partition:
		s.cutUntil = until
	case kill:
		s.kill()
		w.at(until, s.start)
	case reboot:
		s.machine.reboot()
		w.at(until, s.start)
	case powerCut:
		for _, m := range w.machines {
			m.reboot()
		}
		for _, s := range w.slots {
			w.at(until, s.start)
		}
	case leave:
		s.process.do(s.process.leave)
		w.at(until, s.start)
	case refusing, silent:
		w.store.downUntil, w.store.refuses = until, f.Kind == refusing
	case stall:
		s.stallUntil = until
	case lateRequest:
		s.late = f.For
	case lostAnswers:
		s.loseAnswers = 2
	case edit:
		w.store.edit(s.node, []int32{1, 20}[w.noise.IntN(2)])
		if w.chance(50) {
			s.cutUntil = until
		}
	}
}

// heal ends every fault and starts every process that is not running.
func (w *world) heal() {
	w.healed = true
	w.network.Calm()
	w.store.downUntil = 0
	for _, s := range w.slots {
		s.cutUntil, s.stallUntil, s.late, s.loseAnswers = 0, 0, 0, 0
		s.process.thaw()
		s.start()
		w.after(timing.Dead+timing.Timeout, s.start) // a process that is leaving is gone by then
	}
}

// play runs a plan by the rules, or with some of them broken.
func play(p plan, b broken) *referee {
	w := newWorld(p, b)
	w.bound = simtest.Start("lease", encode(replayed{Plan: &p}), limits)
	defer w.bound.End()
	w.at(healing, w.heal)
	w.run(end)
	w.referee.well()
	return w.referee
}

// broken are the rules that a run does not keep. Only by breaking each do we know that the referee would see it.
type broken struct {
	deadlineFromAnswer bool // the holder counts from when the answer arrived
	relativeDeadline   bool // the shim is told how long, not until when
	worksUntilLost     bool // the holder keeps working until others may call it lost
	noFence            bool // the holder keeps working until it sees that it was called lost
	lateAnswer         bool // a renewal whose answer came late brings the epoch back
	reuse              bool // a process rejoins in the epoch it had
	earlyRejoin        bool // a process rejoins while its old work is being stopped
	earlyRelease       bool // the lease is given back while the work is being stopped
	takeAtOnce         bool // a process takes the Lease of its name from whoever holds it
	blindMark          bool // the mark is written whatever the Lease has become
	unwatchedMark      bool // the mark is written on the Lease as it is, not as it was watched
	ownFailures        bool // an observer believes that its own renewals always succeed
	keptDetector       bool // an observer that was out goes on with its old counts, and believes that it renewed meanwhile
	believesEdits      bool // an observer waits for no longer than a Lease says, whoever wrote that
	unseenGap          bool // an observer that was frozen believes that it renewed meanwhile
}

// observes is the timing that an observer goes by.
func (b broken) observes() lease.Timing {
	t := timing
	if b.believesEdits {
		t.Lost = 0
	}
	return t
}

// timing that the holder lives by.
func (b broken) timing() lease.Timing {
	t := timing
	switch {
	case b.worksUntilLost:
		t.Fence, t.Dead = t.Lost-time.Second, t.Lost
	case b.noFence:
		t.Fence, t.Dead = time.Hour, time.Hour
	}
	return t
}
