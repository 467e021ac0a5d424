package deployment_test

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/deployment"
)

// machine is where one node's process and its programs run. The programs are under shims: they go on without the process
// until the deadline that it last told them.
type machine struct {
	sim    *sim
	name   string
	policy v1alpha1.ClaimPolicy
	trust  deployment.Trust

	older  bool               // its version knows nothing of users of programs
	fails  map[string]bool    // programs that always fail here
	failed map[string]failure // how often they have, on its disk

	process     *process // nil while it is down
	frozen, cut bool     // it does nothing; it reaches nobody
	deadline    int
	programs    map[string]*shimmed
	spawned     map[string]*shimmed // shims that have only begun to start their programs
}

// failure is how often a revision of a program has failed in a row.
type failure struct {
	revision string
	times    int
}

// shimmed is a program under its shim.
type shimmed struct {
	uid      types.UID
	revision string
	args     []string // as people wanted them
	epoch    int64    // in which it was started or found
	ending   bool
	free     bool // it has no deadline
	orphan   bool // its object went while its node was lost
	starts   func()
}

// keepMark is at the end of the revision of an instance whose program may go on without a lease.
const keepMark = "+keep"

// isMarked says whether everybody can know that a program may go on here without a lease.
func (m *machine) isMarked(d *v1alpha1.Deployment) bool {
	i := d.Instance(m.name)
	return i != nil && (i.Revision == keepMark || m.sim.broken.unmarked)
}

func revision(d *v1alpha1.Deployment) string { return deployment.Revision(d) }

// join begins the next epoch. What runs already is found, and counted, before anything else.
func (m *machine) join() {
	if m.process != nil {
		return
	}
	rec := m.sim.record(m.name)
	rec.Node, rec.Holder, rec.Epoch = m.name, "process", max(rec.Epoch, rec.Fenced)+1
	m.sim.setLease(rec)
	m.sim.renewed[m.name] = m.sim.now
	m.deadline = m.sim.now + deadAfter
	p := &process{machine: m, epoch: rec.Epoch, alive: true, cache: m.sim.fresh(), workers: map[string]*programWorker{}, inside: map[string]bool{}}
	if m.sim.broken.cachedLeases {
		p.cache.late = 12 // it happens more often than it would
	}
	for _, name := range m.sim.names {
		p.workers[name] = &programWorker{process: p, name: name, admitted: m.mayRun(name)}
		if m.mayRun(name) {
			m.sim.Count("re-attached")
		}
	}
	m.process = p
	m.sim.Hear("%s joins in epoch %d with %q", m.name, p.epoch, slices.Sorted(maps.Keys(m.programs)))
}

// kill ends the process and nothing else. A write on its way may still arrive.
func (m *machine) kill() {
	if m.process == nil {
		return
	}
	m.sim.Hear("%s is killed", m.name)
	m.sim.Count("killed")
	for _, name := range m.sim.names {
		if pw := m.process.workers[name]; pw.flight != nil && m.sim.Draw(2) == 0 {
			m.sim.flying = append(m.sim.flying, pw.flight)
		}
	}
	m.process, m.frozen = nil, false
}

// tick renews the lease, and ends programs whose time is up.
func (m *machine) tick() {
	if p := m.process; p != nil && !m.frozen && !m.cut && !p.inDoubt() && m.sim.record(m.name).Epoch == p.epoch && m.sim.record(m.name).Held() {
		m.sim.renewed[m.name] = m.sim.now
		m.deadline = m.sim.now + deadAfter
	}
	slow := 2
	if m.sim.broken.unspawned {
		slow = 8 // it happens more often than it would
	}
	for _, name := range m.sim.names {
		if m.spawned[name] != nil && (m.process == nil || m.frozen || m.process.workers[name].next == nil) && m.sim.Draw(slow) == 0 {
			m.hatch(name) // the process that spawned it has died
		}
		if p := m.programs[name]; p != nil && !p.free && m.sim.now >= m.deadline && !m.sim.broken.immortal {
			m.sim.Hear("the shim of %s ends %s", m.name, name)
			m.sim.Count("ended by the deadline")
			delete(m.programs, name)
		}
	}
}

// mayRun says whether processes of a program may be left, as far as a process that begins can see.
func (m *machine) mayRun(name string) bool {
	return m.programs[name] != nil || m.spawned[name] != nil && !m.sim.broken.unspawned
}

// start spawns a shim. Whatever becomes of the process, the shim starts the program in its own time.
func (m *machine) start(pw *programWorker, d *v1alpha1.Deployment, seen int) {
	if m.spawned[pw.name] != nil {
		return // it has the lock
	}
	p := &shimmed{uid: d.UID, revision: revision(d), args: d.Spec.Args, epoch: pw.epoch, free: d.Spec.GoesOn() && m.isMarked(d)}
	p.starts = func() { m.sim.starts(m, pw, d, seen, p) }
	m.spawned[pw.name] = p
	pw.then(func() { m.hatch(pw.name) })
}

// hatch is the shim's part of a start: it refuses what would be past its deadline.
func (m *machine) hatch(name string) {
	p := m.spawned[name]
	delete(m.spawned, name)
	if p == nil {
		return
	}
	if m.sim.now >= m.deadline && !p.free && !m.sim.broken.lateStart {
		m.sim.Count("refused by the shim")
		return
	}
	p.starts()
	m.programs[name] = p
}

// ends is a program that ends: one that was asked to, or, now and then, another.
func (m *machine) ends() {
	name := m.sim.someName()
	p := m.programs[name]
	if p == nil || !p.ending && !m.fails[name] && m.sim.Draw(4) != 3 {
		return
	}
	m.end(name)
}

// end ends a program. One that was not asked to has failed.
func (m *machine) end(name string) {
	p := m.programs[name]
	delete(m.programs, name)
	m.sim.Hear("%s on %s ends, asked: %t", name, m.name, p.ending)
	m.sim.Count("ended")
	if m.process != nil && !p.ending {
		m.process.workers[name].until = m.sim.now + 2
		f := m.failed[name]
		if f.revision != p.revision {
			f = failure{revision: p.revision}
		}
		f.times++
		m.failed[name] = f
	}
}

// act is one thing that a machine does.
func (m *machine) act() {
	if m.sim.Draw(8) == 7 {
		m.ends()
		return
	}
	switch {
	case (m.frozen || m.cut) && m.sim.Draw(24) == 23:
		m.heal()
	case m.frozen:
	case m.process == nil:
		if m.sim.Draw(3) == 2 && !m.cut {
			m.join()
		}
	default:
		m.process.act()
	}
}

// works does all that a machine can do when all is well.
func (m *machine) works() {
	m.join()
	p := m.process
	if !p.alive {
		p.leaving = true
		m.sim.over(m)
	}
	for range 4 {
		for _, name := range m.sim.names {
			p.cache.see(m.sim.Draw)
			p.publish()
			p.workers[name].step()
			if s := m.programs[name]; s != nil && (s.ending || m.fails[name]) {
				m.end(name)
			}
			p.workers[name].tell()
		}
		p.claim()
		p.end()
		if m.process != p {
			return
		}
	}
}

// fault is what goes wrong: a process dies, freezes, is cut off; or one is drained, or leaves.
func (s *sim) fault() {
	m := s.someMachine()
	if m.older { // whose lease nothing ends: while it has none, the others take the cluster for upgraded
		if s.Draw(3) == 2 {
			m.upgrade()
		}
		return
	}
	switch s.Draw(9) {
	case 8:
		m.kill()
		clear(m.programs)
		clear(m.spawned)
		s.Count("machine died")
	case 0, 1:
		m.kill()
	case 2:
		m.frozen = m.process != nil
		s.Hear("%s is frozen: %t", m.name, m.frozen)
	case 3:
		m.heal()
	case 4:
		m.cut = true
		s.Hear("%s is cut off", m.name)
	case 5:
		m.drain()
	case 6:
		if p := m.process; p != nil {
			p.leaving = true
			p.close()
			s.over(m)
			s.Hear("%s is told to leave", m.name)
		}
	case 7:
		s.nap()
	}
}

// nap freezes a process for a while, in the middle of something if one is.
func (s *sim) nap() {
	m := s.someMachine()
	for _, other := range s.machines {
		if other.busy() {
			m = other
		}
	}
	if m.older {
		return
	}
	m.frozen = m.process != nil
	s.Hear("%s naps", m.name)
	for range 2 + s.Draw(deadAfter) {
		s.tick()
	}
	m.heal()
}

// busy says whether a process has begun something that it has not finished.
func (m *machine) busy() bool {
	if m.process == nil {
		return false
	}
	for _, pw := range m.process.workers {
		if pw.next != nil {
			return true
		}
	}
	return false
}

func (m *machine) heal() {
	m.frozen, m.cut = false, false
	m.sim.Hear("%s is well", m.name)
}

// upgrade gives a machine this version: it leaves in order, and comes back.
func (m *machine) upgrade() {
	if p := m.process; m.older && p != nil {
		m.older = false
		p.leaving = true
		p.close()
		m.sim.over(m)
		m.sim.Hear("%s is upgraded", m.name)
		m.sim.Count("upgraded")
	}
}

// drain closes a node's gate. At most one node drains at a time.
func (m *machine) drain() {
	for _, other := range m.sim.machines {
		if other.process != nil && !other.process.alive {
			return
		}
	}
	if m.process != nil {
		m.sim.Hear("%s drains", m.name)
		m.sim.Count("drained")
		m.process.close()
	}
}

// coordinate marks who is lost, lets deleted objects go, and delivers what was on its way.
func (s *sim) coordinate() {
	switch s.Draw(4) {
	case 3:
		s.observe(s.someName())
	case 0:
		s.markLost()
	case 1:
		s.reap(s.someName())
	case 2:
		if n := len(s.flying); n > 0 {
			i := s.Draw(n)
			write := s.flying[i]
			s.flying = slices.Delete(s.flying, i, i+1)
			s.Count("arrived late")
			write()
		}
	}
}

// observe writes what follows of an object from nodes and leases.
func (s *sim) observe(name string) {
	d := s.object(name)
	if d == nil || !d.DeletionTimestamp.IsZero() {
		return
	}
	next := d.DeepCopy()
	if w := s.live(); d.Spec.User != d.RunsAs() && w.Current() {
		next.Spec.User = d.RunsAs()
		s.swapSpec(next)
		s.Count("kept its user")
		return
	}
	next.Status, _ = deployment.Observe(s.live(), d, time.Unix(int64(s.now), 0))
	if !equality.Semantic.DeepEqual(next.Status, d.Status) {
		s.swapStatus(next)
	}
}

// markLost marks every lease that was not renewed for long enough.
func (s *sim) markLost() {
	after := lostAfter
	if s.broken.marksEarly {
		after = 3
	}
	for _, m := range s.machines {
		rec := s.record(m.name)
		if rec.Held() && s.now-s.renewed[m.name] >= after {
			rec.Holder, rec.Fenced = "", rec.Epoch
			s.over(m)
			s.setLease(rec)
			s.Count("marked")
			s.Hear("%s/%d is marked", m.name, rec.Epoch)
		}
	}
}

// reap lets a deleted object go once nobody may run it.
func (s *sim) reap(name string) {
	d := s.object(name)
	if d == nil || d.DeletionTimestamp.IsZero() || !s.live().Vacated(d) && !s.broken.reapsEarly {
		return
	}
	for _, m := range s.machines {
		for _, p := range []*shimmed{m.programs[name], m.spawned[name]} {
			if p != nil && !s.record(m.name).Held() {
				p.orphan = true
			}
		}
	}
	s.objects[name] = append(s.objects[name], nil)
	s.Count("deleted")
	s.Hear("%s is gone", name)
}

// administer is what people do to objects and nodes.
func (s *sim) administer() {
	name, m := s.someName(), s.someMachine()
	edit := func(what string, change func(*v1alpha1.Deployment)) {
		if d := s.object(name); d != nil && d.DeletionTimestamp.IsZero() && s.edit(name, change) {
			s.Count(what)
			s.Hear("people: %s of %s: %s", what, name, text(s.object(name)))
		}
	}
	switch s.Draw(11) {
	case 9, 10:
		for _, m := range s.machines { // rather while a node is away on which one goes on
			for _, running := range s.names {
				if p := m.programs[running]; p != nil && p.free && (m.cut || m.frozen || m.process == nil) {
					name = running
				}
			}
		}
		edit("when disconnected", func(d *v1alpha1.Deployment) {
			if d.Spec.WhenDisconnected == v1alpha1.KeepDisconnected {
				d.Spec.WhenDisconnected = v1alpha1.StopDisconnected
			} else {
				keeps(d)
			}
		})
		if d := s.object(name); d != nil {
			s.retypedTo(d)
		}
	case 0, 8:
		s.revive(name)
	case 1, 2:
		to := append([]string{"", "n9"}, m.name, m.name)[s.Draw(4)]
		edit("address", addressed(to))
	case 3:
		edit("disabled", disabled)
		s.unwanted(name)
	case 4, 5:
		edit("change", func(d *v1alpha1.Deployment) { d.Spec.Args = []string{fmt.Sprint(s.Last())} })
	case 6:
		if s.Draw(2) == 1 {
			edit("deletion", deleted)
			return
		}
		m.fails[name] = !m.fails[name]
		s.Hear("%s fails on %s: %t", name, m.name, m.fails[name])
	case 7:
		s.editNode(m.name, func(n *v1alpha1.Node) {
			if s.Draw(2) == 0 {
				n.Spec.Cordoned = !n.Spec.Cordoned
				return
			}
			n.Labels = map[string]string{"disk": map[string]string{"fast": "slow", "slow": "fast"}[n.Labels["disk"]]}
		})
	}
}

// revive makes an object that is gone, or enables one that is not.
func (s *sim) revive(name string) {
	switch d := s.object(name); {
	case d == nil:
		s.create(name)
	case d.DeletionTimestamp.IsZero() && !d.IsEnabled():
		s.edit(name, func(d *v1alpha1.Deployment) { d.Spec.Enabled = nil })
		s.Count("enabled")
		s.Hear("people: enabled %s", name)
	}
}

// retype turns a deployment into a daemon or back.
func (s *sim) retype() {
	d := s.object(s.someName())
	if d == nil || !d.DeletionTimestamp.IsZero() {
		return
	}
	s.edit(d.Name, func(d *v1alpha1.Deployment) {
		if d.Spec.Type == v1alpha1.TypeDaemon {
			typed(v1alpha1.TypeDeployment)(d)
			return
		}
		daemon(d)
	})
	s.Count("retyped")
	s.retypedTo(s.object(d.Name))
	s.Hear("people: type of %s: %s", d.Name, text(s.object(d.Name)))
}
