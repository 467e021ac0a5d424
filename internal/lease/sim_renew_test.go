package lease_test

import (
	"errors"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/ebb-dev/ebb/internal/lease"
)

// attempt is one renewal, or one take: read the Lease unless it is known, decide, write. One timeout covers it all.
type attempt struct {
	trying bool
	sentAt lease.Instant         // when it began
	number int                   // answers to another attempt than this are ignored
	next   lease.Instant         // when the next one is due
	last   *coordinationv1.Lease // as it was last stored by us; nil when we do not know
}

// try makes an attempt. Its time is taken first of all: whatever it writes is written later than that.
func (p *process) try() {
	p.trying = true
	p.number++
	number, sentAt, h := p.number, p.clock(), p.held
	p.sentAt, p.next = sentAt, timing.NextRenewal(sentAt, sentAt, true)
	p.timer(timing.Timeout, func() { p.fail(number) })
	p.step(beforeSend, func() {
		if h != nil && p.last != nil {
			p.put(number, sentAt, h, p.last)
			return
		}
		p.slot.call(func() (*coordinationv1.Lease, error) { return p.w.store.read(p.slot.node) }, func(l *coordinationv1.Lease, err error) {
			switch {
			case !p.current(number, h):
			case err != nil:
				p.fail(number)
			default:
				p.put(number, sentAt, h, l)
			}
		})
	})
}

// current reports whether an attempt is still waited for.
func (p *process) current(number int, h *lease.HeldEpoch) bool {
	return p.trying && p.number == number && p.held == h
}

// fail gives an attempt up: it took too long, was refused, or the store is down.
func (p *process) fail(number int) {
	if !p.trying || p.number != number {
		return
	}
	p.trying, p.last, p.next = false, nil, timing.NextRenewal(p.sentAt, p.clock(), false)
	p.w.referee.failed(p)
	switch {
	case p.w.broken.ownFailures:
	case p.held == nil:
		p.next = p.clock().Add(timing.Renew / 4)
		p.door.Failed(p.clock())
	case p.detector != nil:
		p.detector.Failed(p.clock())
	}
}

// put decides on the Lease as it was read, and sends the result.
func (p *process) put(number int, sentAt lease.Instant, h *lease.HeldEpoch, l *coordinationv1.Lease) {
	next, epoch, err := p.decide(sentAt, h, l)
	switch {
	case errors.Is(err, lease.ErrHeld):
		p.w.referee.Count("held by another")
		p.trying, p.next = false, p.clock().Add(timing.Renew/4)
		return
	case errors.Is(err, lease.ErrNotOurs):
		p.w.referee.Count("no longer ours")
		p.trying = false
		h.MarkInDoubt()
		return
	}
	p.step(beforeSend, func() {
		write := func() (*coordinationv1.Lease, error) {
			stored, err := p.w.store.write(next, false)
			if err == nil && h == nil {
				p.w.referee.taken(p, epoch)
			}
			return stored, err
		}
		p.slot.call(write, func(l *coordinationv1.Lease, err error) { p.answered(number, sentAt, h, epoch, l, err) })
		p.step(afterSend, func() {})
	})
}

func (p *process) decide(sentAt lease.Instant, h *lease.HeldEpoch, l *coordinationv1.Lease) (*coordinationv1.Lease, int64, error) {
	if h != nil {
		next, err := lease.Renew(l, p.id, h.Number(), timing, wall)
		return next, h.Number(), err
	}
	c := lease.Claimant{Node: p.slot.node, Holder: p.id, Dead: p.knownDead(sentAt, l)}
	next, epoch, err := lease.Take(l, c, timing, wall)
	if err == nil && p.w.broken.reuse && p.epoch != 0 {
		epoch = p.epoch
		next.Annotations[lease.EpochAnnotation] = decimal(epoch)
	}
	return next, epoch, err
}

// knownDead are the holders from whom the process may take the Lease: those before it on this data directory, and one
// whose Lease it has itself read unchanged for long enough, or else nobody could begin where every holder died at once.
func (p *process) knownDead(sentAt lease.Instant, l *coordinationv1.Lease) []string {
	if l == nil {
		return p.dead
	}
	r := must(lease.Read(l))
	p.door.Renewed(sentAt)
	p.door.Saw(r, p.clock())
	if len(p.door.Lost(p.clock())) > 0 || p.w.broken.takeAtOnce {
		return append(p.dead[:len(p.dead):len(p.dead)], r.Holder)
	}
	return p.dead
}

// answered is the store's answer to a write.
func (p *process) answered(number int, sentAt lease.Instant, h *lease.HeldEpoch, epoch int64, l *coordinationv1.Lease, err error) {
	if !p.current(number, h) {
		return
	}
	if err != nil {
		p.fail(number)
		return
	}
	p.trying, p.last = false, l
	if h == nil {
		p.begin(epoch, sentAt)
		return
	}
	p.renewed(h, sentAt)
}

// begin starts a held epoch. When the answer took too long it is in doubt from the start.
func (p *process) begin(epoch int64, sentAt lease.Instant) {
	p.held = lease.NewHeldEpoch(epoch, p.w.broken.timing(), p.counts(sentAt))
	p.epoch = epoch
	p.w.referee.counted(p, sentAt)
	if p.detector == nil {
		p.detector, p.believed = lease.NewLossDetector(p.w.broken.observes(), sentAt), sentAt
	}
	p.watched(sentAt)
	if p.holding() {
		p.tell(p.held)
	}
}

// counts is when a holder's count begins that was answered now.
func (p *process) counts(sentAt lease.Instant) lease.Instant {
	if p.w.broken.deadlineFromAnswer {
		return p.clock()
	}
	return sentAt
}

func (p *process) renewed(h *lease.HeldEpoch, sentAt lease.Instant) {
	goesOn := h.Renewed(p.counts(sentAt), p.clock())
	if !goesOn && p.w.broken.lateAnswer && !p.leaving {
		h = lease.NewHeldEpoch(h.Number(), timing, sentAt)
		p.held, p.stopping, p.stopped, goesOn = h, false, false, true
	}
	if !goesOn {
		p.w.referee.Count("late answer")
		return
	}
	p.w.referee.goesOn(p, sentAt)
	if p.detector != nil {
		p.watched(sentAt)
	}
	p.tell(h)
}

// watched reports a renewal to the loss detector.
func (p *process) watched(sentAt lease.Instant) {
	if p.w.broken.unseenGap {
		p.believe(sentAt)
	}
	p.detector.Renewed(sentAt)
	p.believed = max(p.believed, sentAt)
}

// believe breaks a rule: it reports renewals that never were to the loss detector, one every Renew up to now.
func (p *process) believe(now lease.Instant) {
	if p.detector == nil {
		return
	}
	for next := p.believed; next < now; next = next.Add(timing.Renew) {
		p.detector.Renewed(next)
	}
	p.detector.Renewed(now)
	p.believed = max(p.believed, now)
}

// release gives the lease back and ends the process, whether that could be stored or not.
func (p *process) release(epoch int64) {
	if p.releases++; p.releases > 1 {
		return
	}
	p.timer(timing.Timeout, p.slot.kill)
	p.slot.call(func() (*coordinationv1.Lease, error) { return p.w.store.read(p.slot.node) }, func(l *coordinationv1.Lease, err error) {
		if err != nil {
			return
		}
		next, err := lease.Release(l, p.id, epoch)
		if err != nil {
			return
		}
		p.step(beforeSend, func() {
			p.slot.call(func() (*coordinationv1.Lease, error) { return p.w.store.write(next, false) },
				func(*coordinationv1.Lease, error) { p.slot.kill() })
		})
	})
}
