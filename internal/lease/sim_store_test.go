package lease_test

import (
	"errors"
	"math/rand/v2"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/simtest"
)

var (
	errConflict = errors.New("conflict")
	errDown     = errors.New("store is down")
)

// store is the API server: compare-and-swap by resourceVersion, and a watch that may be late and out of order.
type store struct {
	simtest.Revisions
	w       *world
	leases  map[string]*coordinationv1.Lease // by node
	history simtest.Versions[lease.Record]   // all that was ever stored, for those who see the past

	downUntil time.Duration
	refuses   bool // while down: answers with an error at once, rather than not at all
}

func newStore(w *world) *store {
	return &store{w: w, leases: map[string]*coordinationv1.Lease{}, history: simtest.Versions[lease.Record]{}}
}

func (s *store) down() bool { return s.w.now < s.downUntil }

func (s *store) read(node string) (*coordinationv1.Lease, error) {
	return s.leases[node].DeepCopy(), nil
}

// write stores a Lease if it was made from the stored one; blindly, whatever is stored.
func (s *store) write(l *coordinationv1.Lease, blindly bool) (*coordinationv1.Lease, error) {
	node, _ := lease.NodeOf(l)
	current := s.leases[node]
	if !blindly && version(current) != l.ResourceVersion {
		s.w.referee.Count("conflict")
		return nil, errConflict
	}
	l = l.DeepCopy()
	s.Stamp(l)
	s.leases[node] = l
	r := must(lease.Read(l))
	s.history.Add(node, r)
	s.w.referee.stored(r)
	for _, slot := range s.w.slots {
		slot.notify(r)
	}
	return l.DeepCopy(), nil
}

// edit is a person who writes another duration into a Lease.
func (s *store) edit(node string, seconds int32) {
	if l := s.leases[node].DeepCopy(); l != nil {
		l.Spec.LeaseDurationSeconds = &seconds
		_ = must(s.write(l, false))
		s.w.referee.Count("edited")
	}
}

func version(l *coordinationv1.Lease) string {
	if l == nil {
		return ""
	}
	return l.ResourceVersion
}

// past is what somebody sees who lists node's Lease: the newest, or from a stale cache one of the last few.
func (s *store) past(node string) (lease.Record, bool) {
	stored := len(s.history[node])
	if stored == 0 {
		return lease.Record{}, false
	}
	back := 0
	if s.w.plan.Rough && !s.w.healed && s.w.chance(15) {
		back = s.w.noise.IntN(min(stored, 4))
	}
	return s.history.At(node, stored-back), true
}

type reply func(*coordinationv1.Lease, error)

// call sends a request and hands its answer to the process, if both arrive. Nothing tells the store that a client has
// given up: a request that is under way will be carried out.
func (s *slot) call(do func() (*coordinationv1.Lease, error), answer reply) {
	w, p := s.w, s.process
	m := w.network.Message()
	if s.cut() || m.Lost {
		return
	}
	delay := m.Takes + s.lateness()
	var arrive func()
	arrive = func() {
		switch {
		case !w.store.down():
			s.answer(p, answer)(do())
		case w.store.refuses:
			s.answer(p, answer)(nil, errDown)
		case w.chance(30): // somewhere on the way it is kept and sent again
			w.at(w.store.downUntil+w.network.Message().Takes, arrive)
		}
	}
	w.after(delay, arrive)
}

func (s *slot) answer(p *process, answer reply) reply {
	return func(l *coordinationv1.Lease, err error) {
		m := s.w.network.Message()
		if s.cut() || m.Lost || s.losesAnswer() {
			return
		}
		s.w.after(m.Takes, func() { p.do(func() { answer(l, err) }) })
	}
}

// lateness delays the one request that a fault has chosen.
func (s *slot) lateness() time.Duration {
	late := s.late
	s.late = 0
	return late
}

func (s *slot) losesAnswer() bool {
	if s.loseAnswers == 0 {
		return false
	}
	s.loseAnswers--
	return true
}

// newNetwork is the network of a plan. On a rough one a message now and then takes longer than a timeout, a fence, or a lost.
func newNetwork(p plan, random *rand.Rand) *simtest.Network {
	usual := simtest.Span{From: time.Millisecond, To: 41 * time.Millisecond}
	if p.Slow {
		usual.To += timing.Timeout/4 - 50*time.Millisecond
	}
	if !p.Rough {
		return simtest.NewNetwork(random, usual, simtest.Faults{})
	}
	return simtest.NewNetwork(random, usual, simtest.Faults{Lost: 0.04, Late: []simtest.Late{{Share: 0.12, UpTo: timing.Timeout}, {Share: 0.03, UpTo: 14 * time.Second}}})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
