package lease_test

import (
	"fmt"
	"time"

	"github.com/ebb-dev/ebb/internal/lease"
)

// slot is one data directory: a node's name on a machine. It outlives its processes, and so does the shim under it.
type slot struct {
	w       *world
	node    string
	machine *machine
	process *process
	starts  int

	past []string // identities that held the lock on this data directory since the machine booted: they are dead
	shim *work

	cutUntil    time.Duration // partition between this slot and the store
	stallUntil  time.Duration // its watch delivers nothing before
	late        time.Duration // lateness of the next request
	loseAnswers int           // how many of the next answers are lost
	ambush      map[step]time.Duration
}

func (s *slot) cut() bool { return s.w.now < s.cutUntil }

func (s *slot) running() bool { return s.process != nil && s.process.alive }

// start begins a process, unless one is running: the lock on the data directory sees to that.
func (s *slot) start() {
	if s.running() {
		return
	}
	s.starts++
	id := fmt.Sprintf("%s-%d-%d", s.node, s.index(), s.starts)
	s.process = &process{slot: s, w: s.w, id: id, dead: s.past, alive: true}
	s.past = append(s.past[:len(s.past):len(s.past)], id)
	s.w.referee.slots[id] = s
	s.process.knock()
	s.process.beat()
}

func (s *slot) index() int {
	for i := range s.w.slots {
		if s.w.slots[i] == s {
			return i
		}
	}
	return -1
}

func (s *slot) kill() {
	if s.process != nil {
		s.process.alive = false
	}
}

// reboot kills all that runs on a machine, shims included, and starts its clock anew. What a data directory says about
// processes of the last boot does not count in this one.
func (m *machine) reboot() {
	m.boot()
	for _, s := range m.w.slots {
		if s.machine == m {
			s.kill()
			s.past = nil
			s.shim.stop()
		}
	}
}

// notify lets the slot's watch see a change, late if it stalls, and in any order.
func (s *slot) notify(r lease.Record) {
	if s.cut() || s.w.store.down() {
		return
	}
	delay := max(s.w.network.Message().Takes, s.stallUntil-s.w.now)
	s.w.after(delay, func() {
		p := s.process
		p.do(func() { p.saw(r) })
	})
}

// work is what runs under a shim. It may be running until the deadline that the shim was last told, by the machine's
// clock, whatever becomes of the process, unless somebody stopped it.
type work struct {
	slot     *slot
	epoch    int64
	deadline lease.Instant
	stopped  bool
}

func (k *work) mayRun() bool {
	return k != nil && !k.stopped && k.slot.machine.clock() < k.deadline
}

func (k *work) stop() {
	if k != nil {
		k.stopped = true
	}
}

// tell gives the shim a deadline. A shim that already killed its work starts nothing again.
func (k *work) tell(epoch int64, deadline lease.Instant) {
	if k.mayRun() {
		k.epoch, k.deadline = epoch, deadline
	}
}

// begin starts work under a new shim.
func (s *slot) begin(epoch int64, deadline lease.Instant) {
	s.shim = &work{slot: s, epoch: epoch, deadline: deadline}
	s.w.referee.watch(s.shim)
}
