package deployment_test

import (
	"slices"
	"strconv"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/simtest"
)

// rule is a property of the whole cluster, by what really runs and not by what anybody believes.
type rule string

const (
	// oneRunsIt: never two programs of a deployment. Those of a daemon that became one count from when it is first taken,
	// and nobody who knows of the change starts one beside them.
	oneRunsIt rule = "a deployment runs once"
	// oneEach: never two programs of one object on one node.
	oneEach rule = "a node runs an object once"
	// fewRestart: no more daemons are down for a new revision than the rollout allows.
	fewRestart rule = "few restart at once"
	// takesNothing: a draining node starts nothing that was not there.
	takesNothing rule = "a draining node takes no new work"
	// noneWrites: a node with the policy none writes no address.
	noneWrites rule = "a node that claims nothing writes no address"
	// deadInTime: nothing starts, or runs, past its deadline.
	deadInTime rule = "programs end with the lease"
	// notForNothing: a program is started anew only for what people changed.
	notForNothing rule = "nothing restarts for nothing"
	// runsInTheEnd: when all is healthy, everything runs where it should.
	runsInTheEnd rule = "what should run does"
)

// referee sees everything and writes down the first breach of each rule.
type referee struct {
	*simtest.Referee[rule]
	sim *sim

	exclusive map[string]bool            // objects that may run but once
	retyped   map[string]int             // the version at which each object became a deployment
	restarts  map[string]map[string]bool // by object, nodes that said they take it down
}

func newReferee(s *sim) *referee {
	return &referee{
		Referee: simtest.NewReferee[rule](func() string { return strconv.Itoa(s.now) }), sim: s,
		exclusive: map[string]bool{}, retyped: map[string]int{}, restarts: map[string]map[string]bool{},
	}
}

// created takes note of a new object, or of a new type of one.
func (r *referee) created(d *v1alpha1.Deployment) {
	r.Hear("created %s: %s", d.Name, text(d))
	r.exclusive[d.Name] = !d.Spec.GoesOn()
	r.retyped[d.Name] = len(r.sim.objects[d.Name])
	r.restarts[d.Name] = map[string]bool{}
}

func (r *referee) retypedTo(d *v1alpha1.Deployment) {
	r.exclusive[d.Name] = false
	r.retyped[d.Name] = len(r.sim.objects[d.Name])
	r.unwanted(d.Name)
}

// unwanted takes note that people want no daemon: what is down from here on is down for that.
func (r *referee) unwanted(name string) { r.restarts[name] = map[string]bool{} }

// taken takes note of a take that was stored.
func (r *referee) taken(m *machine, d *v1alpha1.Deployment) {
	r.Count("taken")
	r.Hear("%s took %s: %s", m.name, d.Name, text(r.sim.object(d.Name)))
	if now := r.sim.object(d.Name); !now.Spec.GoesOn() && !d.Spec.GoesOn() {
		r.exclusive[d.Name] = true
	}
	r.says(m, d.Name, *d.Instance(m.name))
}

// takesDown takes note of a restart that was stored, and what it was decided on. A program that was not yet said to run was
// down before.
func (r *referee) takesDown(m *machine, d *v1alpha1.Deployment) {
	r.Count("restarted")
	r.Hear("%s restarts %s: %s", m.name, d.Name, text(r.sim.object(d.Name)))
	if d.Instance(m.name).State == v1alpha1.InstanceRunning {
		r.restarts[d.Name][m.name] = true
	}
}

// changes looks at a program that is asked to end because it changed.
func (r *referee) changes(m *machine, name string, p *shimmed) {
	d := r.sim.object(name)
	if d != nil && d.UID == p.uid && slices.Equal(d.Spec.Args, p.args) && !p.free {
		r.Breach(notForNothing, "%s restarts %s, which nobody changed: %s", m.name, name, text(d))
	}
}

// told takes note of what a node said of its program.
func (r *referee) told(m *machine, name string, i v1alpha1.DeploymentInstance) {
	r.Hear("%s/%d says %s is %s", m.name, i.NodeEpoch, name, i.State)
	r.says(m, name, i)
}

func (r *referee) says(m *machine, name string, i v1alpha1.DeploymentInstance) {
	if i.State == v1alpha1.InstanceRunning {
		delete(r.restarts[name], m.name)
	}
}

// starts looks at a program that is about to run. seen is how many versions of the object its node knows.
func (r *referee) starts(m *machine, pw *programWorker, d *v1alpha1.Deployment, seen int, p *shimmed) {
	r.Count("started")
	r.Hear("%s/%d starts %s: %s", m.name, pw.epoch, d.Name, text(d))
	delete(r.restarts[d.Name], m.name)
	if m.programs[d.Name] != nil {
		r.Breach(oneEach, "%s starts %s, which runs there", m.name, d.Name)
	}
	if r.sim.now >= m.deadline && !p.free {
		r.Breach(deadInTime, "%s starts %s past its deadline", m.name, d.Name)
	}
	if !pw.alive && !pw.inside[d.Name] {
		r.Breach(takesNothing, "%s drains and starts %s", m.name, d.Name)
	}
	for _, other := range r.sim.machines {
		if !d.Spec.GoesOn() && seen >= r.retyped[d.Name] && other != m && other.programs[d.Name].counts() {
			r.Breach(oneRunsIt, "%s starts %s, which runs on %s: %s", m.name, d.Name, other.name, text(d))
		}
	}
}

// claims looks at an address that is written.
func (r *referee) claims(m *machine, name string) {
	r.Count("claimed")
	r.Hear("%s claims %s", m.name, name)
	if m.policy == v1alpha1.ClaimNone {
		r.Breach(noneWrites, "%s claims %s", m.name, name)
	}
}

// look looks at what runs now.
func (r *referee) look() {
	for _, name := range r.sim.names {
		r.lookAt(name)
	}
}

func (r *referee) lookAt(name string) {
	d := r.sim.object(name)
	var on []string
	down := int32(0)
	for _, m := range r.sim.machines {
		p := m.programs[name]
		if p != nil {
			if p.counts() {
				on = append(on, m.name)
			}
			if r.sim.now > m.deadline && !p.free {
				r.Breach(deadInTime, "%s runs on %s past its deadline", name, m.name)
			}
		}
		if r.restarts[name][m.name] && (p == nil || p.ending) && r.wanted(d, m) {
			down++
		}
	}
	if r.exclusive[name] && len(on) > 1 {
		r.Breach(oneRunsIt, "%s runs on %q: %s", name, on, text(d))
	}
	if d != nil && down > d.Spec.Rollout.MaxUnavailable {
		r.Breach(fewRestart, "%d of %s are down for a new revision: %s", down, name, text(d))
	}
}

// wanted says whether a node should run a daemon. One that is gone, or leaves, or was told to stop it, is down for that.
func (r *referee) wanted(d *v1alpha1.Deployment, m *machine) bool {
	return d != nil && d.IsEnabled() && d.Spec.Type == v1alpha1.TypeDaemon && r.sim.matches(d, m.name) &&
		r.sim.record(m.name).Held() && (m.process == nil || !m.process.leaving)
}

// counts says whether a program counts as one of its object. One that goes on on a lost node while its object goes is named when that does.
func (p *shimmed) counts() bool { return p != nil && !(p.free && p.orphan) }

// over takes note that an epoch ends, or is about to: what was down for a new revision is down for that now.
func (r *referee) over(m *machine) {
	for _, nodes := range r.restarts {
		delete(nodes, m.name)
	}
}
