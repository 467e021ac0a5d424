package deployment_test

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	workers map[string]*programWorker
	inside  map[string]bool // what was there when the gate closed, for the referee
}

// programWorker looks after one object on one node: it decides, does that in steps between which anything may happen, and decides anew.
type programWorker struct {
	*process
	name     string
	admitted bool
	changing bool
	until    int    // the pause before the next start ends
	next     func() // the rest of what was decided
	flight   func() // a write that was sent
	told     string
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
		p.inside[name] = p.workers[name].admitted
	}
}

// act is a few things that a process does.
func (p *process) act() {
	switch p.sim.Draw(8) {
	case 0, 1, 2, 3:
		if !p.cut && p.sim.Draw(3) != 2 {
			p.cache.see(p.sim.Draw)
		}
		for _, name := range p.sim.names {
			p.workers[name].step()
			p.workers[name].tell()
		}
	case 4:
		p.workers[p.sim.someName()].step()
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
	s := p.sim.nodes.Newest(p.name).Status
	if p.cut || p.inDoubt() || s.Epoch == p.epoch && s.Liveness == liveness {
		return
	}
	p.sim.editNode(p.name, func(n *v1alpha1.Node) {
		n.Status.Conditions = []metav1.Condition{{Type: v1alpha1.NodeReady, Status: metav1.ConditionTrue}}
		if !p.older {
			n.Status.Conditions = append(n.Status.Conditions, metav1.Condition{Type: v1alpha1.NodeProgramsIsolated, Status: metav1.ConditionTrue})
		}
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
			p.workers[d.Name].wrote()
		} else {
			p.sim.Count("claim lost")
		}
	}
}

// end ends an epoch when nothing runs any more: in order, or because its lease is in doubt.
func (p *process) end() {
	if !p.leaving && !p.inDoubt() || p.lingers() {
		return
	}
	rec := p.sim.record(p.name)
	switch {
	case p.inDoubt():
		if p.sim.now < p.deadline || p.cut {
			return
		}
		p.sim.Count("began anew")
		p.machine.process = nil
		p.sim.over(p.machine)
		p.machine.join()
	case !p.cut && rec.Epoch == p.epoch && rec.Held() && (!p.holds() || p.sim.Draw(8) == 7):
		rec.Holder = ""
		p.sim.over(p.machine)
		p.sim.setLease(rec)
		p.sim.released[p.name] = p.sim.now
		p.sim.Count("left")
		p.sim.Hear("%s leaves", p.name)
		p.machine.process = nil
	}
}

// lingers says whether something runs that has to end before the epoch may. What goes on without a lease stays for the next, unless the node leaves.
func (p *process) lingers() bool {
	for _, name := range p.sim.names {
		if s := p.programs[name]; s != nil && (p.leaving || !s.free) || p.spawned[name] != nil && !p.sim.broken.unspawned {
			return true
		}
	}
	return false
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
func (pw *programWorker) wrote() { pw.cache.objects[pw.name] = len(pw.sim.objects[pw.name]) }

// facts are what the next decision rests on.
func (pw *programWorker) facts() deployment.Facts {
	d, w := pw.cache.object(pw.name), pw.cache.world()
	f := deployment.Facts{
		Object: d, Node: pw.machine.name, Epoch: pw.epoch, Trust: pw.trust, Alive: pw.alive || pw.sim.broken.gateOpen,
		Leaving: pw.leaving || pw.inDoubt(), Stopping: pw.leaving, Admitted: pw.admitted, Turn: pw.alive || pw.sim.Draw(3) != 2, Wait: time.Duration(max(0, pw.until-pw.sim.now)),
	}
	if n := w.Nodes[pw.machine.name]; n != nil {
		f.Labels = n.Labels
	}
	p := pw.programs[pw.name]
	if p != nil && !(pw.sim.broken.unattached && p.epoch < pw.epoch) {
		f.Phase, f.UID, f.Revision, f.Free = deployment.Present, p.uid, p.revision, p.free
		if p.ending {
			f.Phase = deployment.Ending
		}
	} else if pw.mayRun(pw.name) && p == nil {
		f.Phase = deployment.Ending // its shim has only begun to start it
	}
	if d != nil {
		f.Undecided = w.Undecided(d) && !pw.sim.broken.undecided
		if failed := pw.failed[pw.name]; failed.revision == revision(d) && !pw.sim.broken.keepsFailing {
			f.Failing = deployment.Failing(d, failed.times) && w.Current()
		}
		f.Elsewhere = w.Elsewhere(d, pw.machine.name)
		f.Occupied = pw.occupied(d, w)
		f.MayRestart = w.MayRestart(d, pw.machine.name) || pw.sim.broken.restartsAtOnce
	}
	return f
}

// occupied is who may still run an object, unless a rule is broken.
func (pw *programWorker) occupied(d *v1alpha1.Deployment, w deployment.World) string {
	switch {
	case pw.sim.broken.takesOccupied:
		return ""
	case pw.sim.broken.epochIsOver:
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
	return w.Occupied(d, pw.machine.name)
}

// step goes on with what was decided, or decides.
func (pw *programWorker) step() {
	if next := pw.next; next != nil {
		pw.next, pw.flight = nil, nil
		next()
		return
	}
	f := pw.facts()
	step := deployment.Next(f)
	pw.sim.Count("next " + string(step.Do))
	pw.do(f, step)
	for pw.next != nil && pw.sim.Draw(4) != 3 {
		next := pw.next
		pw.next, pw.flight = nil, nil
		next()
	}
}

// then is what comes next, if the process lives to do it.
func (pw *programWorker) then(do func()) { pw.next = do }

// send is a write that comes next, and may arrive though the process has died.
func (pw *programWorker) send(write func() bool, stored func()) {
	if pw.cut || pw.inDoubt() {
		return
	}
	pw.flight = func() { write() }
	pw.then(func() {
		if pw.cut {
			return
		}
		if !write() {
			pw.sim.Count("conflict")
			pw.cache.objects[pw.name] = len(pw.sim.objects[pw.name])
			return
		}
		pw.wrote()
		stored()
	})
}

func (pw *programWorker) do(f deployment.Facts, step deployment.Step) {
	d := f.Object
	switch step.Do {
	case deployment.Take:
		pw.then(func() { pw.take(d) })
	case deployment.Start:
		seen := pw.cache.objects[pw.name]
		pw.then(func() {
			again := pw.facts()
			if d.Spec.Type == v1alpha1.TypeDeployment && len(d.Status.Nodes)+len(d.Status.MayRunOn) > 1 {
				if pw.cut {
					return
				}
				again.Occupied = pw.occupied(d, pw.sim.live()) // others are down for it, and the cache may not know that they live
			}
			if deployment.Next(again).Do == deployment.Start && again.Object == d {
				pw.then(func() { pw.start(pw, d, seen) })
			}
		})
	case deployment.Stop:
		pw.stop(step.Why == "changed")
	case deployment.Restart:
		next := d.DeepCopy()
		next.Instance(pw.machine.name).State = v1alpha1.InstanceRestarting
		pw.told = ""
		pw.send(func() bool {
			ok := pw.sim.swapStatus(next)
			if ok {
				pw.sim.takesDown(pw.machine, d)
			}
			return ok
		}, func() { pw.then(func() { pw.stop(true) }) })
	case deployment.Release:
		pw.release(d)
	case deployment.GiveUp:
		pw.giveUp(d)
	case deployment.Forget:
		pw.admitted = false
	case deployment.Detach:
		pw.sim.Count("detached")
	case deployment.Idle:
		pw.sim.Count("wait " + step.Why)
		if p := pw.programs[pw.name]; step.Why == "" && f.Phase == deployment.Present && !p.free && d.Spec.GoesOn() && pw.isMarked(d) {
			p.free = true
			pw.sim.Count("freed")
		}
	}
}

// mark is the revision of this node's instance.
func (pw *programWorker) mark(d *v1alpha1.Deployment) string {
	p := pw.programs[pw.name]
	if (d.Spec.GoesOn() || p != nil && p.free) && !pw.sim.broken.unmarked {
		return keepMark
	}
	return ""
}

func (pw *programWorker) stop(changing bool) {
	p := pw.programs[pw.name]
	if p == nil {
		return // it has ended by itself
	}
	pw.sim.Hear("%s/%d stops %s", pw.machine.name, pw.epoch, pw.name)
	if changing {
		pw.sim.changes(pw.machine, pw.name, p)
	}
	p.ending, pw.changing = true, changing
	if d := pw.cache.object(pw.name); pw.sim.broken.releasesEarly && d != nil && !changing {
		pw.release(d)
	}
}

func (pw *programWorker) release(d *v1alpha1.Deployment) {
	if pw.sim.broken.neverReleases {
		return
	}
	next := deployment.Released(d, pw.machine.name, nil)
	pw.send(func() bool {
		ok := pw.sim.swapStatus(next)
		if ok {
			pw.sim.Hear("%s/%d releases %s: %s", pw.machine.name, pw.epoch, pw.name, text(pw.sim.object(pw.name)))
			pw.sim.Count("released")
			delete(pw.sim.restarts[pw.name], pw.machine.name)
		}
		return ok
	}, func() {
		pw.admitted, pw.until, pw.told = false, 0, ""
		if !pw.leaving {
			pw.forgetFailures()
		}
	})
}

func (pw *programWorker) forgetFailures() { delete(pw.failed, pw.name) }

func (pw *programWorker) giveUp(d *v1alpha1.Deployment) {
	next := deployment.GivenUp(d, pw.machine.name, "It failed.", time.Unix(int64(pw.sim.now), 0))
	pw.send(func() bool {
		ok := pw.sim.swapStatus(next)
		if ok {
			pw.sim.Hear("%s/%d gives %s up: %s", pw.machine.name, pw.epoch, pw.name, text(pw.sim.object(pw.name)))
			pw.sim.Count("given up")
		}
		return ok
	}, func() { pw.forgetFailures(); pw.admitted, pw.until, pw.told = false, 0, "" })
}

// take goes through the gate, reads live what it rests on, and writes.
func (pw *programWorker) take(d *v1alpha1.Deployment) {
	if !pw.alive && !pw.admitted && !pw.sim.broken.gateOpen {
		pw.sim.Count("refused by the gate")
		return
	}
	pw.admitted = true
	if pw.sim.broken.startsUntaken && pw.programs[pw.name] == nil {
		pw.then(func() { pw.start(pw, d, pw.cache.objects[pw.name]) })
		return
	}
	pw.then(func() {
		if pw.cut {
			return
		}
		w := pw.sim.live()
		if pw.sim.broken.cachedLeases {
			w = pw.cache.world()
		}
		others := pw.occupied
		if pw.programs[pw.name] != nil && d.Holder().Node == pw.machine.name && !pw.sim.broken.takesOccupied {
			others = func(d *v1alpha1.Deployment, w deployment.World) string { return w.Claimed(d, pw.machine.name) }
		}
		if d.Spec.Type == v1alpha1.TypeDeployment && others(d, w) != "" {
			pw.sim.Count("occupied after all")
			return
		}
		pw.writeTake(d, w.Leases)
	})
}

func (pw *programWorker) writeTake(d *v1alpha1.Deployment, leases map[string]lease.Record) {
	state := v1alpha1.InstanceStarting
	if pw.programs[pw.name] != nil {
		state = v1alpha1.InstanceRunning
	}
	next := deployment.Taken(d, deployment.World{Fleet: fleet.Fleet{Leases: leases}}, pw.machine.name, pw.epoch, v1alpha1.DeploymentInstance{State: state, Revision: pw.mark(d)})
	pw.told = ""
	pw.send(func() bool {
		ok := pw.sim.swapStatus(next)
		if ok {
			pw.sim.taken(pw.machine, next)
		}
		return ok
	}, func() {})
}

// tell keeps the node's own entry true.
func (pw *programWorker) tell() {
	d := pw.cache.object(pw.name)
	if pw.next != nil || d == nil || pw.cut || pw.leaving || pw.inDoubt() {
		return
	}
	i := d.Instance(pw.machine.name)
	if i == nil || i.NodeEpoch != pw.epoch || d.Spec.Type == v1alpha1.TypeDeployment && d.Holder().Node != pw.machine.name {
		return
	}
	entry := v1alpha1.DeploymentInstance{Node: pw.machine.name, NodeEpoch: pw.epoch, State: pw.state(), Revision: pw.mark(d)}
	if text := string(entry.State) + entry.Revision; text != pw.told {
		pw.told = text
	} else {
		return
	}
	pw.sim.apply(pw.name, entry)
	pw.sim.told(pw.machine, pw.name, entry)
}

func (pw *programWorker) state() v1alpha1.InstanceState {
	switch p := pw.programs[pw.name]; {
	case p == nil && pw.until > pw.sim.now:
		return v1alpha1.InstanceBackoff
	case p == nil:
		return v1alpha1.InstanceStarting
	case !p.ending:
		return v1alpha1.InstanceRunning
	case pw.changing:
		return v1alpha1.InstanceRestarting
	}
	return v1alpha1.InstanceStopping
}
