package deployment_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/deployment"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/lease"
)

// cluster is a World set up by hand: every node is Alive and Ready in epoch 1 and claims by count.
type cluster struct{ deployment.World }

func newCluster(names ...string) cluster {
	c := cluster{deployment.World{Fleet: fleet.New()}}
	for _, name := range names {
		c.join(name)
	}
	return c
}

func (c cluster) join(name string) {
	c.Leases[name] = lease.Record{Node: name, Holder: "process-of-" + name, Epoch: 1}
	c.Nodes[name] = &v1alpha1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: v1alpha1.NodeStatus{
			Liveness: v1alpha1.Alive, Epoch: 1, ClaimPolicy: v1alpha1.ClaimByCount,
			Conditions: []metav1.Condition{{Type: v1alpha1.NodeReady, Status: metav1.ConditionTrue}, {Type: v1alpha1.NodeProgramsIsolated, Status: metav1.ConditionTrue}},
		},
	}
}

// leaves ends a node's epoch in order, dies by the mark; restarts begins the next before the node has said so.
func (c cluster) leaves(name string) {
	rec := c.Leases[name]
	rec.Holder = ""
	c.Leases[name] = rec
}

func (c cluster) dies(name string) {
	rec := c.Leases[name]
	rec.Holder, rec.Fenced = "", rec.Epoch
	c.Leases[name] = rec
}

func (c cluster) restarts(name string) {
	rec := c.Leases[name]
	rec.Holder, rec.Epoch = "next-process-of-"+name, rec.Epoch+1
	c.Leases[name] = rec
}

func (c cluster) drains(name string) { c.Nodes[name].Status.Liveness = v1alpha1.Draining }

func (c cluster) trusts(name, expression string) { c.Nodes[name].Status.TrustedCommands = expression }

func (c cluster) claims(name string, p v1alpha1.ClaimPolicy) { c.Nodes[name].Status.ClaimPolicy = p }

func (c cluster) label(name, key, value string) { c.Nodes[name].Labels = map[string]string{key: value} }

// use says what a node last said of its load.
func (c cluster) use(name string, score, deployments int32) {
	c.Nodes[name].Status.Usage = &v1alpha1.NodeUsage{Score: score, Deployments: deployments}
}

// obstacles are all that keep a node from claiming a deployment which selects disk=fast and runs /opt/app.
var obstacles = []struct {
	why   string
	raise func(c cluster, node string)
}{
	{"no lease", cluster.leaves},
	{"no lease", cluster.dies},
	{"no lease", cluster.restarts},
	{"no lease", func(c cluster, node string) { delete(c.Leases, node) }},
	{"no lease", func(c cluster, node string) { delete(c.Nodes, node) }},
	{"not alive", cluster.drains},
	{"not alive", func(c cluster, node string) { c.Nodes[node].Status.Liveness = v1alpha1.Stopping }},
	{"not alive", func(c cluster, node string) { c.Nodes[node].Status.Liveness = "" }},
	{"not ready", func(c cluster, node string) { c.Nodes[node].Status.Conditions[0].Status = metav1.ConditionFalse }},
	{"not ready", func(c cluster, node string) { c.Nodes[node].Status.Conditions = nil }},
	{"cordoned", func(c cluster, node string) { c.Nodes[node].Spec.Cordoned = true }},
	{"claim policy none", func(c cluster, node string) { c.claims(node, v1alpha1.ClaimNone) }},
	{"claim policy none", func(c cluster, node string) { c.claims(node, "") }},
	{"claim policy none", func(c cluster, node string) { c.claims(node, "None") }},
	{"labels do not match", func(c cluster, node string) { c.Nodes[node].Labels = nil }},
	{"labels do not match", func(c cluster, node string) { c.label(node, "disk", "slow") }},
	{"command not trusted", func(c cluster, node string) { c.trusts(node, "^/usr/") }},
	{"command not trusted", func(c cluster, node string) { c.trusts(node, "(") }},
}

// change is one thing that is different about a program.
type change func(*v1alpha1.Deployment)

// program is an enabled deployment that nobody has.
func program(name string, changes ...change) *v1alpha1.Deployment {
	d := &v1alpha1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
		Spec:       v1alpha1.DeploymentSpec{Type: v1alpha1.TypeDeployment, Command: "/opt/app"},
	}
	for _, c := range changes {
		c(d)
	}
	return d
}

func daemon(d *v1alpha1.Deployment) { d.Spec.Type = v1alpha1.TypeDaemon }

func disabled(d *v1alpha1.Deployment) { d.Spec.Enabled = new(bool) }

func deleted(d *v1alpha1.Deployment) { d.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }

func fastDisk(d *v1alpha1.Deployment) {
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"disk": "fast"}}
}

func badSelector(d *v1alpha1.Deployment) {
	d.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "disk", Operator: "Like"}}}
}

func typed(t v1alpha1.DeploymentType) change {
	return func(d *v1alpha1.Deployment) { d.Spec.Type = t }
}

func addressed(node string) change {
	return func(d *v1alpha1.Deployment) { d.Spec.Address = node }
}

func unavailable(n int32) change {
	return func(d *v1alpha1.Deployment) {
		d.Spec.Rollout.MaxUnavailable, d.Spec.Rollout.MinReady = n, lasting(time.Second)
	}
}

func holder(node string, nodeEpoch, epoch int64) change {
	return func(d *v1alpha1.Deployment) {
		d.Status.Holder = &v1alpha1.DeploymentHolder{Node: node, NodeEpoch: nodeEpoch, Epoch: epoch}
	}
}

func on(node string, epoch int64, s v1alpha1.InstanceState) change {
	return func(d *v1alpha1.Deployment) {
		d.Status.Nodes = append(d.Status.Nodes, v1alpha1.DeploymentInstance{Node: node, NodeEpoch: epoch, State: s})
	}
}

// wentOn says of a node's instance that its program goes on without a lease.
func wentOn(node string) change {
	return func(d *v1alpha1.Deployment) { d.Instance(node).Revision = keepMark }
}

func mayRunOn(nodes ...string) change {
	return func(d *v1alpha1.Deployment) { d.Status.MayRunOn = nodes }
}

// running is a deployment's holder with its instance, or a daemon's instance.
func running(node string, epoch int64) change {
	return func(d *v1alpha1.Deployment) {
		if d.Spec.Type == v1alpha1.TypeDeployment {
			holder(node, epoch, 1)(d)
		}
		on(node, epoch, v1alpha1.InstanceRunning)(d)
	}
}

func TestWhatIsWrongWithASpecIsSaid(t *testing.T) {
	for _, c := range []struct {
		name          string
		d             *v1alpha1.Deployment
		code, message string
	}{
		{"a deployment", program("d"), "", ""},
		{"a deployment with an address and a selector", program("d", addressed("n1"), fastDisk), "", ""},
		{"a daemon", program("d", daemon), "", ""},
		{"no type", program("d", typed("")), v1alpha1.ErrInvalidType,
			`type "" is neither daemon nor deployment: no node runs it until the type is corrected`},
		{"another type", program("d", typed("Daemon"), addressed("n1")), v1alpha1.ErrInvalidType,
			`type "Daemon" is neither daemon nor deployment: no node runs it until the type is corrected`},
		{"a daemon with an address", program("d", daemon, addressed("n1")), v1alpha1.ErrDaemonAddressSet,
			`address "n1" is ignored because a daemon runs on every matching node: remove the address`},
		{"a selector that cannot be read", program("d", badSelector), v1alpha1.ReasonInvalidSelector,
			`the selector matches no node: "Like" is not a valid label selector operator`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if code, message := deployment.Check(c.d); code != c.code || message != c.message {
				t.Errorf("%s: %s\nwant %s: %s", code, message, c.code, c.message)
			}
		})
	}
}

func TestTheStateOfARecord(t *testing.T) {
	for _, c := range []struct {
		name string
		d    *v1alpha1.Deployment
		want v1alpha1.DeploymentState
	}{
		{"nobody has it", program("d"), v1alpha1.StateUnassigned},
		{"a node with a lease has it", program("d", addressed("n1")), v1alpha1.StateAssigned},
		{"a node in a new epoch has it", program("d", addressed("restarted")), v1alpha1.StateAssigned},
		{"a draining node has it", program("d", addressed("draining")), v1alpha1.StateAssigned},
		{"its node is marked", program("d", addressed("dead")), v1alpha1.StateLost},
		{"its node left", program("d", addressed("left")), v1alpha1.StateLost},
		{"its node never was", program("d", addressed("n9")), v1alpha1.StateLost},
		{"its node left, but another still holds it", program("d", addressed("left"), running("n1", 1)), v1alpha1.StateLost},
		{"disabled", program("d", disabled), v1alpha1.StateDisabled},
		{"disabled, and its node is marked", program("d", disabled, addressed("dead")), v1alpha1.StateDisabled},
		{"being deleted", program("d", deleted, addressed("n1")), v1alpha1.StateDisabled},
		{"a daemon", program("d", daemon), v1alpha1.StateEnabled},
		{"a daemon with an address", program("d", daemon, addressed("dead")), v1alpha1.StateEnabled},
		{"a disabled daemon", program("d", daemon, disabled), v1alpha1.StateDisabled},
		{"no type", program("d", typed("")), ""},
		{"no type, and disabled", program("d", typed("x"), disabled), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newCluster("n1", "restarted", "draining", "dead", "left")
			w.restarts("restarted")
			w.drains("draining")
			w.dies("dead")
			w.leaves("left")
			if got := w.State(c.d); got != c.want {
				t.Errorf("the state is %q, want %q", got, c.want)
			}
		})
	}
}

func TestWhatMayBeClaimed(t *testing.T) {
	for _, c := range []struct {
		name string
		d    *v1alpha1.Deployment
		want bool
	}{
		{"without an address", program("d"), true},
		{"without an address, though somebody holds it", program("d", running("n1", 1)), true},
		{"with an address that lives", program("d", addressed("n1")), false},
		{"with an address that lives and runs it", program("d", addressed("n1"), running("n1", 1)), false},
		{"with an address in a new epoch", program("d", addressed("restarted"), running("restarted", 1)), false},
		{"with an address that drains", program("d", addressed("draining"), running("draining", 1)), true},
		{"with an address whose last epoch drained", program("d", addressed("undrained")), false},
		{"with an address that is marked", program("d", addressed("dead"), running("dead", 1)), true},
		{"with an address that never was", program("d", addressed("n9")), true},
		{"with an address that left long ago", program("d", addressed("left")), true},
		{"with an address that left just now", program("d", addressed("leaving")), false},
		{"with an address whose labels do not match", program("d", addressed("n1"), fastDisk), true},
		{"with an address whose labels do not match, held by another", program("d", addressed("n1"), fastDisk, running("n2", 1)), true},
		{"with an address whose labels no longer match", program("d", addressed("n1"), fastDisk, running("n1", 1)), false},
		{"with an address that does not trust it", program("d", addressed("picky")), true},
		{"with an address that lives and has no Node yet", program("d", addressed("nodeless")), false},
		{"with an address that is cordoned", program("d", addressed("cordoned")), false},
		{"disabled", program("d", disabled), false},
		{"being deleted", program("d", deleted), false},
		{"a daemon", program("d", daemon), false},
		{"a daemon with an address that is marked", program("d", daemon, addressed("dead")), false},
		{"without a type", program("d", typed("")), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newCluster("n1", "n2", "restarted", "draining", "undrained", "dead", "left", "leaving", "picky", "nodeless", "cordoned")
			w.restarts("restarted")
			w.drains("draining")
			w.drains("undrained")
			w.restarts("undrained")
			w.dies("dead")
			w.leaves("left")
			w.leaves("leaving")
			w.trusts("picky", "^/usr/")
			delete(w.Nodes, "nodeless")
			w.Nodes["cordoned"].Spec.Cordoned = true
			w.Waited = func(node string) bool { return node == "left" }
			if got := w.Claimable(c.d); got != c.want {
				t.Errorf("claimable is %t, want %t", got, c.want)
			}
		})
	}
}

func TestAProgramThatMayCompleteStaysOnItsDrainingNodeUntilItEnds(t *testing.T) {
	for state, stays := range map[v1alpha1.InstanceState]bool{
		v1alpha1.InstanceStarting: true, v1alpha1.InstanceRunning: true, v1alpha1.InstanceRestarting: true,
		v1alpha1.InstanceBackoff: false, v1alpha1.InstanceCrashLoop: false, v1alpha1.InstanceFailed: false,
	} {
		w := newCluster("n1", "n2")
		w.drains("n1")
		w.Completes = func(namespace string) bool { return namespace == "jobs" }
		d := program("d", addressed("n1"), holder("n1", 1, 1), on("n1", 1, state))
		if !w.Claimable(d) {
			t.Errorf("%s, in another namespace: it stays", state)
		}
		d.Namespace = "jobs"
		if w.Claimable(d) == stays {
			t.Errorf("%s: it stays %t, want %t", state, !stays, stays)
		}
		left := w.Left(map[types.UID]*v1alpha1.Deployment{"d": d}, "n1")
		if named := left.Blockers[0].Reason == deployment.BlockedRunning; named != stays {
			t.Errorf("%s: the blocker is %+v", state, left.Blockers[0])
		}
	}
}

func TestNobodyIsWaitedForWithoutAWait(t *testing.T) {
	w := newCluster("n1")
	w.leaves("n1")
	if !w.Claimable(program("d", addressed("n1"))) {
		t.Error("a deployment of a node that left cannot be claimed")
	}
}

func TestWhyANodeMayNotClaim(t *testing.T) {
	d := program("d", fastDisk)
	w := newCluster("n1")
	w.label("n1", "disk", "fast")
	for _, p := range []v1alpha1.ClaimPolicy{v1alpha1.ClaimByCount, v1alpha1.ClaimByUsage} {
		w.claims("n1", p)
		if why := w.IneligibleReason(d, "n1"); why != "" {
			t.Errorf("a node with policy %s may not claim: %s", p, why)
		}
	}
	if why := w.IneligibleReason(d, "n9"); why != "no lease" {
		t.Errorf("a node that never was may not claim: %q", why)
	}
	for i, o := range obstacles {
		w := newCluster("n1")
		w.label("n1", "disk", "fast")
		o.raise(w, "n1")
		if why := w.IneligibleReason(d, "n1"); why != o.why {
			t.Errorf("obstacle %d: %q, want %q", i, why, o.why)
		}
	}
}

func TestWhyADeploymentGoesNowhere(t *testing.T) {
	for _, c := range []struct {
		name  string
		nodes []string
		raise func(cluster)
		want  string
	}{
		{"some node may claim it", []string{"n1", "n2", "n3"}, func(c cluster) { c.drains("n2") }, ""},
		{"there is but one", []string{"n1"}, func(cluster) {}, "no other node has a lease"},
		{"the others are gone", []string{"n1", "n2", "n3"}, func(c cluster) { c.dies("n2"); c.leaves("n3") }, "no other node has a lease"},
		{"one is gone", []string{"n1", "n2", "n3"}, func(c cluster) { c.dies("n2"); c.drains("n3") }, "n3: not alive"},
		{"each has a reason of its own", []string{"n1", "n5", "n4", "n3", "n2"}, func(c cluster) {
			c.claims("n5", v1alpha1.ClaimNone)
			c.trusts("n4", "^/usr/")
			c.Nodes["n3"].Spec.Cordoned = true
			c.label("n2", "disk", "slow")
		}, "n2: labels do not match, n3: cordoned, n4: command not trusted, n5: claim policy none"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newCluster(c.nodes...)
			for _, name := range c.nodes {
				w.label(name, "disk", "fast")
			}
			c.raise(w)
			if got := w.Nowhere(program("d", fastDisk), "n1"); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func TestWhoMayStillRunADeployment(t *testing.T) {
	for _, c := range []struct {
		name string
		d    *v1alpha1.Deployment
		want string
	}{
		{"nobody", program("d"), ""},
		{"nobody any more", program("d", holder("", 0, 7)), ""},
		{"the node itself", program("d", running("n1", 1)), ""},
		{"the node itself in another epoch", program("d", running("n1", 7)), ""},
		{"another that lives", program("d", running("n2", 1)), "n2"},
		{"another that holds it and has not written its instance", program("d", holder("n2", 1, 1)), "n2"},
		{"another in an older epoch, which lives in a newer", program("d", holder("restarted", 1, 1)), "restarted"},
		{"an instance of an older epoch of a node that lives", program("d", on("restarted", 1, v1alpha1.InstanceRunning)), "restarted"},
		{"another that is marked", program("d", running("dead", 1)), ""},
		{"another that left", program("d", running("left", 1)), ""},
		{"another that never was", program("d", running("n9", 1)), ""},
		{"another that drains", program("d", running("draining", 1)), "draining"},
		{"an instance beside an empty holder", program("d", holder("", 0, 3), on("n2", 1, v1alpha1.InstanceStopping)), "n2"},
		{"an instance beside one's own", program("d", running("n1", 1), on("n2", 1, v1alpha1.InstanceRunning)), "n2"},
		{"an instance that has failed", program("d", on("n2", 1, v1alpha1.InstanceFailed)), "n2"},
		{"the holder before the instances", program("d", holder("draining", 1, 1), on("n2", 1, v1alpha1.InstanceRunning)), "draining"},
		{"another that is marked, on which it goes on", program("d", on("dead", 1, v1alpha1.InstanceRunning), wentOn("dead")), "dead"},
		{"another that left, on which it went on", program("d", on("left", 1, v1alpha1.InstanceRunning), wentOn("left")), ""},
		{"another that is marked, of a program that rather runs twice", program("d", keeps, on("dead", 1, v1alpha1.InstanceRunning), wentOn("dead")), ""},
		{"another that is named", program("d", mayRunOn("dead")), "dead"},
		{"the node itself, which is named", program("d", mayRunOn("n1")), ""},
		{"another that is named, of a program that rather runs twice", program("d", keeps, mayRunOn("dead")), ""},
		{"one of many instances", program("d", on("dead", 1, ""), on("n1", 1, ""), on("left", 1, ""), on("n2", 1, "")), "n2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newCluster("n1", "n2", "restarted", "draining", "dead", "left")
			w.restarts("restarted")
			w.drains("draining")
			w.dies("dead")
			w.leaves("left")
			if got := w.Occupied(c.d, "n1"); got != c.want {
				t.Errorf("%q may still run it, want %q", got, c.want)
			}
			lives := c.want
			if lives == "dead" { // what goes on there keeps no other node from going on with what it runs
				lives = ""
			}
			if got := w.Claimed(c.d, "n1"); got != lives {
				t.Errorf("%q lives and may still run it, want %q", got, lives)
			}
		})
	}
}

func TestWhoMayTakeADaemonDownForANewRevision(t *testing.T) {
	up := func(nodes ...string) change {
		return func(d *v1alpha1.Deployment) {
			for _, n := range nodes {
				on(n, 1, v1alpha1.InstanceRunning)(d)
			}
		}
	}
	down := func(s v1alpha1.InstanceState, nodes ...string) change {
		return func(d *v1alpha1.Deployment) {
			for _, n := range nodes {
				on(n, 1, s)(d)
			}
		}
	}
	for _, c := range []struct {
		name  string
		d     *v1alpha1.Deployment
		raise func(cluster)
		want  bool
	}{
		{"all others run", program("d", daemon, up("n1", "n2", "n3")), nil, true},
		{"another restarts", program("d", daemon, up("n1", "n2"), down(v1alpha1.InstanceRestarting, "n3")), nil, false},
		{"another has just started", program("d", daemon, up("n1", "n2"), down(v1alpha1.InstanceStarting, "n3")), nil, false},
		{"another never started", program("d", daemon, up("n1", "n2")), nil, false},
		{"another has failed", program("d", daemon, up("n1", "n2"), down(v1alpha1.InstanceFailed, "n3")), nil, false},
		{"another restarts, and two may", program("d", daemon, unavailable(2), up("n1", "n2"), down(v1alpha1.InstanceRestarting, "n3")), nil, true},
		{"two others restart, and two may", program("d", daemon, unavailable(2), up("n1"), down(v1alpha1.InstanceRestarting, "n2", "n3")), nil, false},
		{"its own is down already", program("d", daemon, down(v1alpha1.InstanceBackoff, "n1", "n2", "n3")), nil, true},
		{"its own never started", program("d", daemon), nil, true},
		{"another is dead", program("d", daemon, up("n1", "n2")), func(c cluster) { c.dies("n3") }, true},
		{"another left", program("d", daemon, up("n1", "n2")), func(c cluster) { c.leaves("n3") }, true},
		{"another is dead and was restarting", program("d", daemon, up("n1", "n2"), down(v1alpha1.InstanceRestarting, "n3")), func(c cluster) { c.dies("n3") }, true},
		{"another began an epoch that its Node does not show yet", program("d", daemon, up("n1", "n2"), down(v1alpha1.InstanceRestarting, "n3")), func(c cluster) { c.restarts("n3") }, false},
		{"another ran in an earlier epoch", program("d", daemon, up("n1", "n2", "n3")), func(c cluster) {
			c.restarts("n3")
			c.Nodes["n3"].Status.Epoch = 2
		}, false},
		{"another restarts in an epoch whose lease is not seen yet", program("d", daemon, up("n1", "n2"), on("n3", 2, v1alpha1.InstanceRestarting)), func(c cluster) { c.leaves("n3") }, false},
		{"another runs in an epoch whose lease is not seen yet", program("d", daemon, up("n1", "n2"), on("n3", 2, v1alpha1.InstanceRunning)), func(c cluster) { c.leaves("n3") }, true},
		{"its own lease is not seen yet", program("d", daemon, on("n1", 2, v1alpha1.InstanceRunning), down(v1alpha1.InstanceRestarting, "n2", "n3")), nil, false},
		{"another leaves", program("d", daemon, up("n1", "n2")), func(c cluster) { c.Nodes["n3"].Status.Liveness = v1alpha1.Stopping }, true},
		{"another drains without it", program("d", daemon, up("n1", "n2"), down(v1alpha1.InstanceBackoff, "n3")), func(c cluster) { c.drains("n3") }, false},
		{"another does not match", program("d", daemon, fastDisk, up("n1", "n2")), func(c cluster) { c.label("n3", "disk", "slow") }, true},
		{"another does not trust it", program("d", daemon, up("n1", "n2")), func(c cluster) { c.trusts("n3", "^/usr/") }, true},
		{"another is cordoned and claims nothing", program("d", daemon, up("n1", "n2")), func(c cluster) {
			c.Nodes["n3"].Spec.Cordoned = true
			c.claims("n3", v1alpha1.ClaimNone)
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newCluster("n1", "n2", "n3")
			for name := range w.Nodes {
				w.label(name, "disk", "fast")
			}
			if c.raise != nil {
				c.raise(w)
			}
			if got := w.MayRestart(c.d, "n1"); got != c.want {
				t.Errorf("n1 may restart: %t, want %t", got, c.want)
			}
		})
	}
}
