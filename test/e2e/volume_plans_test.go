package e2e

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// quartet are the nodes of the clusters in which volumes are drained: three replicas, and room for one more.
var quartet = []string{"n1", "n2", "n3", "n4"}

// volumePlans is a cluster with the chronicle of its volumes.
type volumePlans struct {
	*cluster
	told *chronicle
}

// planStep is one plan, with its client on one of the nodes.
type planStep struct {
	name string
	run  func(*volumePlans)
}

// runVolumePlans runs steps one after another in one cluster.
func runVolumePlans(t *testing.T, steps []planStep) {
	beside(t, heavy)
	p := &volumePlans{cluster: newCluster(t, testenv.Ebb(t)).calm()}
	startNodes(t, p.cluster, len(quartet))
	p.told = keepVolumeChronicle(t, p.client)
	for _, step := range steps {
		if !t.Run(step.name, func(t *testing.T) {
			p.t = t
			began := time.Now()
			step.run(p)
			t.Logf("took %.1f s", time.Since(began).Seconds())
		}) {
			break
		}
	}
	p.t = t
}

// target is a node with a replica of every volume that can be drained: it does not coordinate.
func (p *volumePlans) target(volumes ...*testVolume) string {
	p.t.Helper()
	leader := p.awaitLeader("")
	for _, name := range others(quartet, leader) {
		if !slices.ContainsFunc(volumes, func(v *testVolume) bool { return v.replicas()[name] == nil }) {
			return name
		}
	}
	p.t.Fatalf("no node but %s has replicas of all volumes", leader)
	return ""
}

// beside is a node that is neither the target nor the coordinator.
func (p *volumePlans) beside(target string) string {
	p.t.Helper()
	return others(others(quartet, p.awaitLeader("")), target)[0]
}

// begin attaches a volume and begins to write.
func (p *volumePlans) begin(v *testVolume, node string) *volumeLoad {
	p.t.Helper()
	v.attach(node)
	return v.load()
}

// finish ends the writing and compares everything.
func (p *volumePlans) finish(v *testVolume, l *volumeLoad) {
	p.t.Helper()
	l.check()
	v.sameCopies()
	v.remove()
}

// pace lets a replica be built in some seconds, during which things happen. With clients on the node that is drained it takes longer: they are
// disconnected meanwhile.
func (p *volumePlans) pace(clientThere bool) {
	p.t.Helper()
	rate := "4Mi"
	if clientThere {
		rate = "1Mi"
	}
	p.volumeSettings(fmt.Sprintf(`{"volumes":{"rebuildBytesPerSecond":%q},"drain":{"clientGrace":"1h"}}`, rate))
}

// awaitClientsGone waits until the drain of a node says that clients are connected there, ends their grace, and waits until the volumes are
// detached.
func (p *volumePlans) awaitClientsGone(node string, volumes ...*testVolume) {
	p.t.Helper()
	for _, v := range volumes {
		until(p.t, "the drain to wait for clients of volume "+v.name, func() bool {
			for _, d := range latest[*v1alpha1.Drain](p.told) {
				if d.Spec.NodeName == node && !d.Status.Phase.Final() && slices.ContainsFunc(d.Status.Blockers, func(b v1alpha1.Blocker) bool {
					return b.Kind == "Volume" && strings.HasSuffix(b.Name, v.name) && b.Reason == "ClientConnected"
				}) {
					return true
				}
			}
			return false
		})
		if at := v.get().Status.AttachedTo; at != node {
			p.t.Errorf("volume %s is attached to %q while its clients may stay", v.name, at)
		}
	}
	p.volumeSettings(`{"drain":{"clientGrace":"0s"}}`)
	for _, v := range volumes {
		until(p.t, "volume "+v.name+" to be detached", func() bool { return v.get().Status.AttachedTo == "" })
	}
}

// drainWith drains a node with a command, while something else is done, and waits until it is done.
func (p *volumePlans) drainWith(target string, meanwhile func()) {
	p.t.Helper()
	drain := p.start("drain", target, "--wait", "--kubeconfig", p.dir.Kubeconfig())
	meanwhile()
	if code := drain.awaitExit(p.t); code != 0 {
		p.t.Fatalf("ebb drain %s: exit %d\n%s", target, code, drain.out)
	}
}

// wantNeverDegraded looks at every version of a volume since a revision.
func (p *volumePlans) wantNeverDegraded(v *testVolume, since int64) {
	p.t.Helper()
	if bad := v.degradedSince(p.told, since); len(bad) > 0 {
		p.t.Errorf("volume %s was degraded:\n%s", v.name, strings.Join(bad, "\n"))
	}
}

// wantAutoEvicting looks whether a node was seen to be evicting since a revision, and waits until it is not any more.
func (p *volumePlans) wantAutoEvicting(node string, since int64) {
	p.t.Helper()
	until(p.t, "node "+node+" to end evicting", func() bool { return !p.node(node).Status.AutoEvicting })
	if !slices.ContainsFunc(versions(p.t, p.told, p.node(node), since), func(n *v1alpha1.Node) bool { return n.Status.AutoEvicting }) {
		p.t.Errorf("node %s was never seen with status.autoEvicting", node)
	}
}

// wasRequested reports whether a replica was seen with evictionRequested since a revision. Its last version may be that of its deletion.
func (p *volumePlans) wasRequested(name string, since int64) bool {
	return slices.ContainsFunc(p.told.sorted(), func(e edition) bool {
		r, ok := e.object.(*v1alpha1.Replica)
		return ok && e.revision > since && r.Name == name && r.Spec.EvictionRequested
	})
}

func (p *volumePlans) wantNoRequests(v *testVolume) {
	p.t.Helper()
	for node, r := range v.replicas() {
		if r.Spec.EvictionRequested {
			p.t.Errorf("replica %s on node %s is still to leave", r.Name, node)
		}
	}
}

func (p *volumePlans) wantEvents(r *v1alpha1.Replica, want ...string) {
	p.t.Helper()
	var got []string
	untilSo(p.t, func() string {
		return "events " + strings.Join(want, ", ") + " of " + r.Name + "; there are " + strings.Join(got, ", ")
	}, func() bool {
		got = p.evictionEvents(r)
		return slices.Equal(got, want)
	})
}

// TestVolumesAreEvicted is the seed's first and third plan: with policy block-for-eviction.
func TestVolumesAreEvicted(t *testing.T) {
	runVolumePlans(t, []planStep{
		{"plan 1, client on another node", func(p *volumePlans) { p.evict(false) }},
		{"plan 1, client on the draining node", func(p *volumePlans) { p.evict(true) }},
		{"plan 3, with a cordon", func(p *volumePlans) { p.unschedulableCordon() }},
		{"plan 3, with a drain, client on another node", func(p *volumePlans) { p.unschedulableDrain(false) }},
		{"plan 3, with a drain, client on the draining node", func(p *volumePlans) { p.unschedulableDrain(true) }},
	})
}

// TestLastReplicasAreEvicted is the seed's second plan: with policy block-for-eviction-if-contains-last-replica.
func TestLastReplicasAreEvicted(t *testing.T) {
	runVolumePlans(t, []planStep{
		{"plan 2, clients on another node", func(p *volumePlans) { p.evictLast(false) }},
		{"plan 2, clients on the draining node", func(p *volumePlans) { p.evictLast(true) }},
		{"an eviction is cancelled when a peer is protected again", func(p *volumePlans) { p.evictionCanceled() }},
	})
}

// evict is plan 1.
func (p *volumePlans) evict(clientThere bool) {
	t := p.t
	p.drainPolicy(v1alpha1.BlockForEviction)
	p.pace(clientThere)
	v := p.createVolume("evicted", 3)
	target := p.target(v)
	old := v.replicas()[target]
	from, at := p.revision(), p.beside(target)
	if clientThere {
		at = target
	}
	l := p.begin(v, at)
	since := p.revision()
	l.longestPause()
	p.drainWith(target, func() {
		if clientThere {
			p.awaitClientsGone(target, v)
		} else {
			l.goesOn()
		}
	})
	if !clientThere {
		l.goesOn()
		t.Logf("the longest pause of I/O during the drain was %s", l.longestPause())
	}
	if !p.wasRequested(old.Name, since) {
		t.Errorf("replica %s was never seen with spec.evictionRequested", old.Name)
	}
	p.wantBlocker(target, since, "Replica", "AwaitingEviction")
	p.back(target)
	v.settle()
	l.goesOn() // where it was attached before, if that was on the node
	if got := v.get(); got.Status.AttachedTo != at {
		t.Errorf("the volume is attached to %q, and should be to %s", got.Status.AttachedTo, at)
	}
	if nodes := v.nodes(); slices.Contains(nodes, target) || len(nodes) != 3 {
		t.Errorf("after the drain of %s there are replicas on %v", target, nodes)
	}
	p.wantAutoEvicting(target, since)
	p.wantNoRequests(v)
	p.wantEvents(old, v1alpha1.EventEvictionAutomatic)
	p.wantNeverDegraded(v, from)
	p.finish(v, l)
}

// wantBlocker looks whether a drain of a node said why it waited.
func (p *volumePlans) wantBlocker(node string, since int64, kind, reason string) {
	p.t.Helper()
	var seen []string
	for _, e := range p.told.sorted() {
		d, ok := e.object.(*v1alpha1.Drain)
		if !ok || e.revision <= since || d.Spec.NodeName != node {
			continue
		}
		for _, b := range d.Status.Blockers {
			if b.Kind == kind && b.Reason == reason {
				return
			}
			seen = append(seen, b.Kind+" "+b.Reason)
		}
	}
	slices.Sort(seen)
	p.t.Errorf("the drain of %s never had a blocker %s with reason %s, but %v", node, kind, reason, slices.Compact(seen))
}

// createOn creates a volume whose only replica is on a node.
func (p *volumePlans) createOn(name, node string) *testVolume {
	p.t.Helper()
	for _, other := range others(quartet, node) {
		p.must("cordon", other)
	}
	v := p.createVolume(name, 1)
	for _, other := range others(quartet, node) {
		p.must("uncordon", other)
	}
	if nodes := v.nodes(); !slices.Equal(nodes, []string{node}) {
		p.t.Fatalf("the replica of volume %s is on %v", name, nodes)
	}
	return v
}

// evictLast is plan 2. Only the volume with one replica gets EvictionAutomatic: the replica of the other one always has a protected peer, so
// that nothing is requested for it and nothing cancelled.
func (p *volumePlans) evictLast(clientsThere bool) {
	t := p.t
	p.drainPolicy(v1alpha1.BlockIfContainsLastReplica) // while nodes are cordoned to place replicas
	three := p.createVolume("three", 3)
	target := p.target(three)
	single := p.createOn("single", target)
	p.drainPolicy(v1alpha1.BlockForEvictionIfContainsLastReplica)
	p.pace(clientsThere)
	oldSingle, oldThree := single.replicas()[target], three.replicas()[target]
	from, elsewhere := p.revision(), p.beside(target)
	at := elsewhere
	if clientsThere {
		at = target
	}
	ls, lt := p.begin(single, at), p.begin(three, at)
	since := p.revision()
	p.drainWith(target, func() {
		if clientsThere {
			// Their clients were disconnected, and go on where the volumes are attached next.
			// One of them goes to the very node that builds its replica.
			p.awaitClientsGone(target, single, three)
			p.must("volume", "attach", three.name, elsewhere)
			builds := ""
			until(t, "a node to build the replica of volume single", func() bool {
				builds = single.get().Status.RebuildOn
				return builds != "" || single.replicas()[target] == nil
			})
			t.Logf("volume single is attached to %q, which builds its replica", builds)
			p.must("volume", "attach", single.name, cmp.Or(builds, elsewhere))
		}
		ls.goesOn()
		lt.goesOn()
	})
	ls.goesOn()
	lt.goesOn()
	until(t, "volume three to be degraded", func() bool { return three.get().Status.Robustness == v1alpha1.VolumeDegraded })
	if !p.wasRequested(oldSingle.Name, since) || p.wasRequested(oldThree.Name, since) {
		t.Errorf("spec.evictionRequested was seen on %s: %t, and on %s: %t", oldSingle.Name, p.wasRequested(oldSingle.Name, since), oldThree.Name, p.wasRequested(oldThree.Name, since))
	}
	p.back(target)
	single.settle()
	three.settle()
	if nodes := single.nodes(); slices.Contains(nodes, target) {
		t.Errorf("the replica of volume single is on %v after the drain of %s", nodes, target)
	}
	if now := three.replicas()[target]; now == nil || now.UID != oldThree.UID {
		t.Errorf("the replica of volume three on %s is %v, and was %s", target, now, oldThree.Name)
	}
	p.wantAutoEvicting(target, since)
	p.wantNoRequests(single)
	p.wantNoRequests(three)
	p.wantEvents(oldSingle, v1alpha1.EventEvictionAutomatic)
	p.wantEvents(oldThree)
	p.wantNeverDegraded(single, from)
	p.finish(single, ls)
	p.finish(three, lt)
}

// evictionCanceled cordons both nodes of a volume, so that neither replica protects the other, and uncordons one of them while replacements
// are being built.
func (p *volumePlans) evictionCanceled() {
	t := p.t
	p.drainPolicy(v1alpha1.BlockForEvictionIfContainsLastReplica)
	p.volumeSettings(`{"volumes":{"rebuildBytesPerSecond":"64Ki"}}`) // some minutes for what is filled
	v := p.createVolume("pair", 2)
	from := p.revision()
	nodes := v.nodes()
	first, second := v.replicas()[nodes[0]], v.replicas()[nodes[1]]
	l := p.begin(v, nodes[0])
	since := p.revision()
	p.must("cordon", nodes[0])
	l.goesOn()
	alone := p.revision()
	p.must("cordon", nodes[1])
	p.wantEvents(first, v1alpha1.EventEvictionAutomatic)
	p.wantEvents(second, v1alpha1.EventEvictionAutomatic)
	until(t, "replacements to be created", func() bool { return len(v.nodes()) == 4 })
	until(t, "nodes to be evicting", func() bool { return p.node(nodes[0]).Status.AutoEvicting && p.node(nodes[1]).Status.AutoEvicting })
	p.must("uncordon", nodes[1])
	p.wantEvents(first, v1alpha1.EventEvictionAutomatic, v1alpha1.EventEvictionCanceled)
	p.wantEvents(second, v1alpha1.EventEvictionAutomatic, v1alpha1.EventEvictionCanceled)
	l.goesOn()
	for _, n := range nodes {
		p.wantAutoEvicting(n, since)
		if r := v.replicas()[n]; r == nil || r.Spec.EvictionRequested {
			t.Errorf("the replica on node %s is %+v", n, r)
		}
	}
	if got := len(v.nodes()); got != 4 {
		t.Errorf("there are replicas on %d nodes: a rebuild that began should go on", got)
	}
	p.volumeSettings(`{"volumes":{"rebuildBytesPerSecond":"4Mi"}}`)
	p.must("uncordon", nodes[0])
	for _, e := range p.told.sorted() {
		if r, ok := e.object.(*v1alpha1.Replica); ok && r.Name == first.Name && e.revision > since && e.revision <= alone && r.Spec.EvictionRequested {
			t.Errorf("replica %s was to leave though %s protected it", first.Name, second.Name)
		}
	}
	p.wantNeverDegraded(v, from)
	for _, o := range versions(t, p.told, v.get(), since) {
		if o.Status.AttachedTo != nodes[0] {
			t.Errorf("version %s: a cordon detached the volume: it is attached to %q", o.ResourceVersion, o.Status.AttachedTo)
		}
	}
	p.finish(v, l)
}

// unschedulable makes a volume with a replica on every node: there is no place for another one.
func (p *volumePlans) unschedulable() (*testVolume, string, *v1alpha1.Replica) {
	p.t.Helper()
	p.drainPolicy(v1alpha1.BlockForEviction)
	v := p.createVolume("everywhere", len(quartet))
	target := p.target(v)
	return v, target, v.replicas()[target]
}

// awaitStuck waits until a replica's condition says that nothing can take its replacement, and names the disks that were tried.
func (p *volumePlans) awaitStuck(v *testVolume, target string) {
	p.t.Helper()
	var message string
	untilSo(p.t, func() string { return "replica on " + target + " to be unschedulable; its condition says " + message }, func() bool {
		r := v.replicas()[target]
		if r == nil || !r.Spec.EvictionRequested {
			return false
		}
		c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ReplicaEvicting)
		if c == nil {
			return false
		}
		message = c.Message
		if c.Reason != v1alpha1.ReasonNoReplacement {
			return false
		}
		for _, node := range others(quartet, target) {
			if !strings.Contains(message, "node "+node+": has replica") {
				return false
			}
		}
		return true
	})
	until(p.t, "node "+target+" to be evicting", func() bool { return p.node(target).Status.AutoEvicting })
}

// unstuck is after a cordon or a drain was taken back.
func (p *volumePlans) unstuck(v *testVolume, l *volumeLoad, target string, old *v1alpha1.Replica, from, since int64) {
	t := p.t
	v.settle()
	l.goesOn()
	if now := v.replicas()[target]; now == nil || now.UID != old.UID {
		t.Errorf("the replica on %s is %v, and was %s", target, now, old.Name)
	}
	p.wantAutoEvicting(target, since)
	p.wantNoRequests(v)
	p.wantEvents(old, v1alpha1.EventEvictionAutomatic, v1alpha1.EventEvictionCanceled)
	p.wantNeverDegraded(v, from)
	p.finish(v, l)
}

// unschedulableCordon is plan 3 with a cordon, which has no end to wait for and never detaches.
func (p *volumePlans) unschedulableCordon() {
	v, target, old := p.unschedulable()
	from := p.revision()
	l := p.begin(v, target)
	since := p.revision()
	p.must("cordon", target)
	p.awaitStuck(v, target)
	l.goesOn()
	p.awaitStuck(v, target) // still
	p.must("uncordon", target)
	for _, o := range versions(p.t, p.told, v.get(), since) {
		if o.Status.AttachedTo != target {
			p.t.Errorf("version %s: a cordon detached the volume: it is attached to %q", o.ResourceVersion, o.Status.AttachedTo)
		}
	}
	p.unstuck(v, l, target, old, from, since)
}

// unschedulableDrain is plan 3 with a drain that is cancelled.
func (p *volumePlans) unschedulableDrain(clientThere bool) {
	t := p.t
	p.pace(clientThere)
	v, target, old := p.unschedulable()
	from, at := p.revision(), p.beside(target)
	if clientThere {
		at = target
	}
	l := p.begin(v, at)
	since := p.revision()
	p.must("drain", target)
	p.awaitStuck(v, target)
	if clientThere {
		p.awaitClientsGone(target, v)
	} else {
		l.goesOn()
	}
	d := &v1alpha1.Drain{}
	until(t, "the drain to say that nothing can take the replica", func() bool {
		for _, o := range latest[*v1alpha1.Drain](p.told) {
			if o.Spec.NodeName == target && !o.Status.Phase.Final() {
				d = o
			}
		}
		return len(d.Status.Blockers) == 1 && d.Status.Blockers[0].Reason == v1alpha1.ReasonNoReplacement
	})
	for _, part := range []string{"volume everywhere", "replica " + old.Name, "node " + others(quartet, target)[0] + ": has replica", "Add a node or a disk"} {
		if !strings.Contains(d.Status.Blockers[0].Remedy, part) {
			t.Errorf("the blocker does not say %q: %s", part, d.Status.Blockers[0].Remedy)
		}
	}
	p.must("drain", target, "--cancel", "--wait")
	p.awaitReady(target, 1)
	for _, e := range p.told.sorted() {
		if o, ok := e.object.(*v1alpha1.Drain); ok && o.Name == d.Name && (o.Status.Phase == v1alpha1.DrainStopping || o.Status.Phase == v1alpha1.DrainComplete) {
			t.Errorf("the drain was %s though the replica could not leave", o.Status.Phase)
		}
	}
	p.unstuck(v, l, target, old, from, since)
	if got := p.node(target); got.Status.Liveness != v1alpha1.Alive {
		t.Errorf("node %s is %s after its drain was cancelled", target, got.Status.Liveness)
	}
}
