package deployment_test

import (
	"time"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/deployment"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/lease"
)

// process is a node in one epoch.
type process struct {
	*machine
	epoch   int64
	alive   bool // false once the gate is closed
	leaving bool
	cache   cache
	units   map[string]*unit
	inside  map[string]bool // what was there when the gate closed, for the referee
}

// unit looks after one object on one node: it decides, does that in steps between which anything may happen, and decides anew.
type unit struct {
	*process
	name     string
	admitted bool
	changing bool
	until    int    // the pause before the next start ends
	next     func() // the rest of what was decided
	flight   func() // a write that was sent
	told     v1alpha1.InstanceState
}

// inDoubt says that the process can no longer count on its lease. It stops everything and begins anew when that is done.
func (p *process) inDoubt() bool { return p.sim.now >= p.deadline-deadAfter+doubtAfter }

// close closes the gate for the rest of the epoch.
func (p *process) close() {
	if !p.alive {
		return
	}
	p.alive = false
	for _, name := range p.sim.names {
		p.inside[name] = p.units[name].admitted
	}
}

// act is a few things that a process does.
func (p *process) act() {
	switch p.sim.draw(8) {
	case 0, 1, 2, 3:
		if !p.cut && p.sim.draw(3) != 2 {
			p.cache.see(p.sim.draw)
		}
		for _, name := range p.sim.names {
			p.units[name].step()
			p.units[name].tell()
		}
	case 4:
		p.units[p.sim.someName()].step()
	case 5, 6:
		p.publish()
		p.claim()
	case 7:
		p.end()
	}
}

// publish says how the node is.
func (p *process) publish() {
	liveness := v1alpha1.Alive
	switch {
	case p.leaving:
		liveness = v1alpha1.Stopping
	case !p.alive:
		liveness = v1alpha1.Draining
	}
	s := last(p.sim.nodes[p.name]).Status
	if p.cut || p.inDoubt() || s.Epoch == p.epoch && s.Liveness == liveness {
		return
	}
	p.sim.editNode(p.name, func(n *v1alpha1.Node) {
		n.Status.Epoch, n.Status.Liveness, n.Status.ClaimPolicy, n.Status.TrustedCommands = p.epoch, liveness, p.policy, p.trust.String()
	})
}

// claim writes the address of what the assignment gives this node, by what it knows.
func (p *process) claim() {
	if p.cut || p.leaving || p.inDoubt() {
		return
	}
	w := p.cache.world()
	w.Waited = func(node string) bool { return p.sim.now-p.sim.released[node] >= returnAfter }
	if p.sim.broken.noneClaims && w.Nodes[p.name] != nil {
		w.Nodes[p.name] = w.Nodes[p.name].DeepCopy()
		w.Nodes[p.name].Status.ClaimPolicy = v1alpha1.ClaimByCount
	}
	var list []*v1alpha1.Deployment
	for _, name := range p.sim.names {
		if d := p.cache.object(name); d != nil {
			list = append(list, d)
		}
	}
	plan := deployment.Assign(w, list)
	for _, d := range list {
		if plan[d] != p.name {
			continue
		}
		next := d.DeepCopy()
		next.Spec.Address = p.name
		if p.sim.swapSpec(next) {
			p.sim.claims(p.machine, d.Name)
			p.units[d.Name].wrote()
		} else {
			p.sim.count("claim lost")
		}
	}
}

// end ends an epoch when nothing runs any more: in order, or because its lease is in doubt.
func (p *process) end() {
	if !p.leaving && !p.inDoubt() || len(p.programs) > 0 {
		return
	}
	rec := p.sim.record(p.name)
	switch {
	case p.inDoubt():
		if p.sim.now < p.deadline || p.cut {
			return
		}
		p.sim.count("began anew")
		p.machine.process = nil
		p.sim.over(p.machine)
		p.machine.join()
	case !p.cut && rec.Epoch == p.epoch && rec.Held() && (!p.holds() || p.sim.draw(8) == 7):
		rec.Holder = ""
		p.sim.over(p.machine)
		p.sim.setLease(rec)
		p.sim.released[p.name] = p.sim.now
		p.sim.count("left")
		p.sim.hear("%s leaves", p.name)
		p.machine.process = nil
	}
}

// holds says whether some object still has the node down for running it.
func (p *process) holds() bool {
	for _, name := range p.sim.names {
		if d := p.cache.object(name); d != nil && (d.Holder().Node == p.name || d.Instance(p.name) != nil) {
			return true
		}
	}
	return false
}

// wrote takes note of what was written: a process never looks behind its own writes.
func (u *unit) wrote() { u.cache.objects[u.name] = len(u.sim.objects[u.name]) }

// facts are what the next decision rests on.
func (u *unit) facts() deployment.Facts {
	d, w := u.cache.object(u.name), u.cache.world()
	f := deployment.Facts{
		Object: d, Node: u.machine.name, Epoch: u.epoch, Trust: u.trust, Alive: u.alive || u.sim.broken.gateOpen,
		Leaving: u.leaving || u.inDoubt(), Admitted: u.admitted, Turn: u.alive || u.sim.draw(3) != 2, Wait: time.Duration(max(0, u.until-u.sim.now)),
	}
	if n := w.Nodes[u.machine.name]; n != nil {
		f.Labels = n.Labels
	}
	if p := u.programs[u.name]; p != nil && !(u.sim.broken.unattached && p.epoch < u.epoch) {
		f.Phase, f.UID, f.Revision = deployment.Present, p.uid, p.revision
		if p.ending {
			f.Phase = deployment.Ending
		}
	}
	if d != nil {
		f.Occupied = u.occupied(d, w)
		f.MayRestart = w.MayRestart(d, u.machine.name) || u.sim.broken.restartsAtOnce
	}
	return f
}

// occupied is who may still run an object, unless a rule is broken.
func (u *unit) occupied(d *v1alpha1.Deployment, w deployment.World) string {
	switch {
	case u.sim.broken.takesOccupied:
		return ""
	case u.sim.broken.epochIsOver:
		d = d.DeepCopy()
		if h := d.Status.Holder; h != nil && w.Leases[h.Node].Over(h.NodeEpoch) {
			h.Node = ""
		}
		nodes := d.Status.Nodes
		d.Status.Nodes = nil
		for _, i := range nodes {
			if !w.Leases[i.Node].Over(i.NodeEpoch) {
				d.Status.Nodes = append(d.Status.Nodes, i)
			}
		}
	}
	return w.Occupied(d, u.machine.name)
}

// step goes on with what was decided, or decides.
func (u *unit) step() {
	if next := u.next; next != nil {
		u.next, u.flight = nil, nil
		next()
		return
	}
	f := u.facts()
	step := deployment.Next(f)
	u.sim.count("next " + string(step.Do))
	u.do(f, step)
	for u.next != nil && u.sim.draw(4) != 3 {
		next := u.next
		u.next, u.flight = nil, nil
		next()
	}
}

// then is what comes next, if the process lives to do it.
func (u *unit) then(do func()) { u.next = do }

// send is a write that comes next, and may arrive though the process has died.
func (u *unit) send(write func() bool, stored func()) {
	if u.cut || u.inDoubt() {
		return
	}
	u.flight = func() { write() }
	u.then(func() {
		if u.cut {
			return
		}
		if !write() {
			u.sim.count("conflict")
			u.cache.objects[u.name] = len(u.sim.objects[u.name])
			return
		}
		u.wrote()
		stored()
	})
}

func (u *unit) do(f deployment.Facts, step deployment.Step) {
	d := f.Object
	switch step.Do {
	case deployment.Take:
		u.then(func() { u.take(d) })
	case deployment.Start:
		seen := u.cache.objects[u.name]
		u.then(func() {
			again := u.facts()
			if d.Spec.Type == v1alpha1.TypeDeployment && len(d.Status.Nodes) > 1 {
				if u.cut {
					return
				}
				again.Occupied = u.occupied(d, u.sim.live()) // others are down for it, and the cache may not know that they live
			}
			if deployment.Next(again).Do == deployment.Start && again.Object == d {
				u.then(func() { u.start(u, d, seen) })
			}
		})
	case deployment.Stop:
		u.stop(step.Why == "changed")
	case deployment.Restart:
		next := d.DeepCopy()
		next.Instance(u.machine.name).State = v1alpha1.InstanceRestarting
		u.told = v1alpha1.InstanceRestarting
		u.send(func() bool {
			ok := u.sim.swapStatus(next)
			if ok {
				u.sim.takesDown(u.machine, d)
			}
			return ok
		}, func() { u.then(func() { u.stop(true) }) })
	case deployment.Release:
		u.release(d)
	case deployment.Forget:
		u.admitted = false
	case deployment.Idle:
		u.sim.count("wait " + step.Why)
	}
}

func (u *unit) stop(changing bool) {
	p := u.programs[u.name]
	if p == nil {
		return // it has ended by itself
	}
	u.sim.hear("%s/%d stops %s", u.machine.name, u.epoch, u.name)
	p.ending, u.changing = true, changing
	if d := u.cache.object(u.name); u.sim.broken.releasesEarly && d != nil && !changing {
		u.release(d)
	}
}

func (u *unit) release(d *v1alpha1.Deployment) {
	if u.sim.broken.neverReleases {
		return
	}
	next := deployment.Released(d, u.machine.name, nil)
	u.send(func() bool {
		ok := u.sim.swapStatus(next)
		if ok {
			u.sim.hear("%s/%d releases %s: %s", u.machine.name, u.epoch, u.name, text(u.sim.object(u.name)))
			u.sim.count("released")
			delete(u.sim.restarts[u.name], u.machine.name)
		}
		return ok
	}, func() { u.admitted, u.until, u.told = false, 0, "" })
}

// take goes through the gate, reads live what it rests on, and writes.
func (u *unit) take(d *v1alpha1.Deployment) {
	if !u.alive && !u.admitted && !u.sim.broken.gateOpen {
		u.sim.count("refused by the gate")
		return
	}
	u.admitted = true
	if u.sim.broken.startsUntaken && u.programs[u.name] == nil {
		u.then(func() { u.start(u, d, u.cache.objects[u.name]) })
		return
	}
	u.then(func() {
		if u.cut {
			return
		}
		w := u.sim.live()
		if u.sim.broken.cachedLeases {
			w = u.cache.world()
		}
		if d.Spec.Type == v1alpha1.TypeDeployment && u.occupied(d, w) != "" {
			u.sim.count("occupied after all")
			return
		}
		u.writeTake(d, w.Leases)
	})
}

func (u *unit) writeTake(d *v1alpha1.Deployment, leases map[string]lease.Record) {
	state := v1alpha1.InstanceStarting
	if u.programs[u.name] != nil {
		state = v1alpha1.InstanceRunning
	}
	next := deployment.Taken(d, deployment.World{Fleet: fleet.Fleet{Leases: leases}}, u.machine.name, u.epoch, v1alpha1.DeploymentInstance{State: state})
	u.told = state
	u.send(func() bool {
		ok := u.sim.swapStatus(next)
		if ok {
			u.sim.taken(u.machine, next)
		}
		return ok
	}, func() {})
}

// tell keeps the node's own entry true.
func (u *unit) tell() {
	d := u.cache.object(u.name)
	if u.next != nil || d == nil || u.cut || u.leaving || u.inDoubt() {
		return
	}
	i := d.Instance(u.machine.name)
	if i == nil || i.NodeEpoch != u.epoch || d.Spec.Type == v1alpha1.TypeDeployment && d.Holder().Node != u.machine.name {
		return
	}
	state := u.state()
	if state == u.told {
		return
	}
	u.told = state
	entry := v1alpha1.DeploymentInstance{Node: u.machine.name, NodeEpoch: u.epoch, State: state}
	u.sim.apply(u.name, entry)
	u.sim.told(u.machine, u.name, entry)
}

func (u *unit) state() v1alpha1.InstanceState {
	switch p := u.programs[u.name]; {
	case p == nil && u.until > u.sim.now:
		return v1alpha1.InstanceBackoff
	case p == nil:
		return v1alpha1.InstanceStarting
	case !p.ending:
		return v1alpha1.InstanceRunning
	case u.changing:
		return v1alpha1.InstanceRestarting
	}
	return v1alpha1.InstanceStopping
}
