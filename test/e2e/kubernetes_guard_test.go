package e2e

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kube"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/manifests"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// unguarded waits until a node has no guard.
func (k *installation) unguarded(node string) {
	k.t.Helper()
	until(k.t, "the guard of "+node+" to be gone", func() bool {
		pods, budgets := k.guard(node)
		return pods == 0 && budgets == 0
	})
}

// emptiedNode: a guard goes with the last work, and what kubectl drain waited for on a live node lets it pass.
func emptiedNode(t *testing.T, k *installation) {
	v := k.createVolume("disk", 1)
	node := k.home(v)
	k.awaitGuard(node)
	v.remove()
	k.unguarded(node) // nobody has cordoned it

	k.must("settings", "set", "onCordon=Hold")
	v = k.createVolume("disk", 1)
	node = k.home(v)
	k.awaitGuard(node)
	p := k.kubectlDrain(node)
	k.holds(p, node, "EbbHolds", "it holds 1 replica")
	v.remove()
	if code := p.awaitExit(t); code != 0 {
		t.Fatalf("kubectl drain of an empty node: exit %d\n%s", code, p.out)
	}
	if n := k.node(node); n.Status.Liveness != v1alpha1.Alive || !k.record(node).Held() {
		t.Errorf("the node is %+v", n.Status)
	}
	k.must("settings", "set", "onCordon=Drain")
	k.awaitParked(node) // the cordon begins a drain now
	k.returns(node, k.record(node).Epoch)
}

// forbiddenGuard: a guard that cannot be created keeps work waiting, says why, and is created when it can be.
func forbiddenGuard(t *testing.T, k *installation) {
	for _, node := range kubeNodes {
		k.unguarded(node)
	}
	k.kubectl("-n", manifests.Namespace, "create", "quota", "none", "--hard=pods=0")
	until(t, "the quota to be in force", func() bool {
		return strings.Contains(k.kubectl("-n", manifests.Namespace, "get", "quota", "none", "-o", "jsonpath={.status.hard.pods}"), "0")
	})
	k.must("volume", "create", "disk", "--size", strconv.Itoa(volumeSize), "--replicas", "1")
	v := &testVolume{cluster: k.cluster, name: "disk"}
	out := ""
	untilSo(t, func() string { return "an event about the guard:\n" + out }, func() bool {
		out = k.kubectl("get", "events", "--field-selector=reason=EbbNoGuard,involvedObject.kind=Node")
		return strings.Contains(out, "takes no work that must leave before the node does. The guard could not be created; trying again: ") && strings.Contains(out, "exceeded quota")
	})
	node := v.nodes()[0]
	if explained := k.must("explain", node); !strings.Contains(explained, "exceeded quota") {
		t.Errorf("explain: %s", explained)
	}
	k.kubectl("-n", manifests.Namespace, "delete", "quota", "none")
	until(t, "the volume to run", func() bool { return v.get().Status.Robustness == v1alpha1.VolumeHealthy })
	k.awaitGuard(node)
	v.remove()
}

// quarantine cordons a node by a health event that asks for no drain.
func (k *installation) quarantine(name, node string) {
	k.t.Helper()
	e := &v1alpha1.HealthEvent{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.HealthEventSpec{
		NodeName: node, CheckName: "Xid", IsFatal: true, DrainOverrides: &v1alpha1.Overrides{Skip: true},
	}}
	if err := k.client.Create(context.Background(), e); err != nil {
		k.t.Fatal(err)
	}
	until(k.t, "node "+node+" to be quarantined", func() bool {
		core := &corev1.Node{}
		return k.client.Get(context.Background(), client.ObjectKey{Name: node}, core) == nil && core.Spec.Unschedulable &&
			slices.Contains(v1alpha1.CordonOwners(core), string(e.UID)) && k.node(node).Spec.Cordoned
	})
}

// closed waits until a health event keeps its node in quarantine no longer.
func (k *installation) closed(name string) {
	k.t.Helper()
	e := &v1alpha1.HealthEvent{}
	untilSo(k.t, func() string { return fmt.Sprintf("event %s to be closed: %+v", name, e.Status) }, func() bool {
		return k.client.Get(context.Background(), client.ObjectKey{Name: name}, e) == nil && e.Status.ClosedAt != nil
	})
}

// sensor counts the sensors of a node that nobody has evicted.
func (k *installation) sensor(node string) int {
	k.t.Helper()
	var pods corev1.PodList
	if err := k.client.List(context.Background(), &pods, client.InNamespace(manifests.Namespace), client.MatchingLabels{kube.SensorLabel: node}); err != nil {
		k.t.Fatal(err)
	}
	return len(slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil || p.Status.Phase != corev1.PodRunning }))
}

// quarantinedNode: kubectl drain of a node that Ebb has cordoned moves its work too, and an uncordon of it ends the quarantine.
func quarantinedNode(t *testing.T, k *installation) {
	k.drainPolicy(v1alpha1.BlockForEviction)
	v := k.createVolume("disk", 1)
	node := k.home(v)
	epoch := k.record(node).Epoch
	k.awaitGuard(node)
	k.quarantine("sick-1", node)
	until(t, "a sensor", func() bool { return k.sensor(node) == 1 })
	p := k.kubectlDrain(node)
	k.passes(p, node)
	if slices.Contains(v.nodes(), node) {
		t.Errorf("the replicas are on %v", v.nodes())
	}
	k.closed("sick-1")
	core := &corev1.Node{}
	if err := k.client.Get(context.Background(), client.ObjectKey{Name: node}, core); err != nil || !core.Spec.Unschedulable || len(v1alpha1.CordonOwners(core)) > 0 {
		t.Errorf("the core Node is cordoned: %t, by %v; %v", core.Spec.Unschedulable, v1alpha1.CordonOwners(core), err)
	}
	k.returns(node, epoch)

	node = k.home(v)
	k.awaitGuard(node)
	k.quarantine("sick-2", node)
	k.kubectl("uncordon", node)
	k.closed("sick-2")
	until(t, "nothing to be left of the quarantine", func() bool {
		err := k.client.Get(context.Background(), client.ObjectKey{Name: node}, core)
		return err == nil && !core.Spec.Unschedulable && len(core.Annotations[v1alpha1.CordonOwnersAnnotation]) == 0 && !k.node(node).Spec.Cordoned && k.sensor(node) == 0
	})
	v.remove()
	k.drainPolicy(v1alpha1.BlockIfContainsLastReplica)
}

// cancelledDrain: a drain that somebody cancelled is not begun again, until somebody begins kubectl drain anew.
func cancelledDrain(t *testing.T, k *installation) {
	v := k.createVolume("disk", 1) // its last replica blocks the drain
	node := k.home(v)
	epoch := k.record(node).Epoch
	k.awaitGuard(node)
	k.kubectl("cordon", node)
	drains := func() int {
		var list v1alpha1.DrainList
		if err := k.client.List(context.Background(), &list); err != nil {
			t.Fatal(err)
		}
		return len(slices.DeleteFunc(list.Items, func(d v1alpha1.Drain) bool {
			return d.Spec.NodeName != node || d.Status.Phase.Final() || d.Status.StartedAt == nil
		}))
	}
	until(t, "the drain to begin", func() bool { return drains() == 1 })
	k.must("drain", node, "--cancel")
	until(t, "a sensor", func() bool { return k.sensor(node) == 1 && drains() == 0 })
	p := k.kubectlDrain(node)
	until(t, "another drain", func() bool { return drains() == 1 })
	k.holds(p, node, "EbbHolds", "is Draining, 1 replica left.")
	v.remove()
	k.passes(p, node)
	k.returns(node, epoch)
}

// uncordonedInQueue: a node whose drain waits for another one is uncordoned, and its drain never begins.
func uncordonedInQueue(t *testing.T, k *installation) {
	v := k.createVolume("disk", 1)
	first := k.home(v)
	second := others(k.followers(), first)[0]
	epochs := map[string]int64{first: k.record(first).Epoch, second: k.record(second).Epoch}
	k.kubectl("cordon", first)
	of := func(node string, is func(v1alpha1.Drain) bool) bool {
		var list v1alpha1.DrainList
		return k.client.List(context.Background(), &list) == nil && slices.ContainsFunc(list.Items, func(d v1alpha1.Drain) bool { return d.Spec.NodeName == node && is(d) })
	}
	until(t, "the first drain to begin", func() bool {
		return of(first, func(d v1alpha1.Drain) bool { return d.Status.Phase == v1alpha1.DrainDraining })
	})
	k.kubectl("cordon", second)
	queued := func(d v1alpha1.Drain) bool {
		return d.Status.Phase == v1alpha1.DrainPending && d.Status.Conditions[0].Reason == v1alpha1.ReasonQueued
	}
	until(t, "the second drain to wait", func() bool { return of(second, queued) })
	// Two drains of one node at once are one.
	if _, errs, code := k.run("drain", first, "--wait"); code == 0 || !strings.Contains(errs, "in progress") {
		t.Errorf("a second drain of %s: exit %d, %s", first, code, errs)
	}
	k.kubectl("uncordon", second)
	until(t, "the second drain to be withdrawn", func() bool {
		return !of(second, queued) && of(second, func(d v1alpha1.Drain) bool {
			return d.Status.Phase == v1alpha1.DrainCancelled && d.Status.Conditions[0].Reason == v1alpha1.ReasonWithdrawn
		})
	})
	if n, rec := k.node(second), k.record(second); n.Status.Liveness != v1alpha1.Alive || rec.Epoch != epochs[second] || !rec.Held() {
		t.Errorf("the second node is %+v, %+v", n.Status, rec)
	}
	v.remove()
	k.awaitParked(first)
	k.returns(first, epochs[first])
}

// reviver returns a function that starts every node again that was killed.
func (k *installation) reviver() func() {
	last := map[string]*process{}
	return func() {
		for _, name := range kubeNodes {
			if p := last[name]; p != nil {
				select {
				case <-p.done:
				default:
					continue
				}
			} else if alive(k.pid(name)) {
				continue
			}
			last[name] = k.startNode(name)
		}
	}
}

// The coordinator is killed with SIGKILL after every action about cordons, guards and sensors. Work never leaves a node unguarded, kubectl
// drain passes when it should, and nothing is left.
func TestTheCoordinatorIsKilledAtEveryStepOnKubernetes(t *testing.T) {
	beside(t, light)
	k := startKubernetesWith(t, testenv.EbbFailpoints(t), kubeNodes...)
	k.points = t.TempDir()
	k.install(time.Hour)
	revive := k.reviver()
	awaiting := func(what string, holds func() bool) {
		t.Helper()
		until(t, what, func() bool { revive(); return holds() })
	}
	guarded := func(node string, want int) func() bool {
		return func() bool {
			pods, budgets := k.guard(node)
			return pods == want && budgets == want
		}
	}
	k.drainPolicy(v1alpha1.BlockForEviction)
	// What is stored after an action is what is stored before the next one. Two controllers act at the same time: "after" an action might never be
	// reached, because the other controller's point kills the process while the action is being written.
	for _, action := range []string{kube.CreateGuard, kube.CreateBudget, kube.MarkGuarded} {
		k.arm("before-"+action, "")
	}
	k.must("volume", "create", "disk", "--size", strconv.Itoa(volumeSize), "--replicas", "1")
	v := &testVolume{cluster: k.cluster, name: "disk"}
	awaiting("the volume to run", func() bool { return v.get().Status.Robustness == v1alpha1.VolumeHealthy })
	node := v.nodes()[0]
	awaiting("the guard", guarded(node, 1))

	// A quarantined node is drained with kubectl.
	for _, action := range []string{kube.CreateSensor, kube.TakeCordon, kube.DeleteSensor, kube.Project, kube.CreateDrain, kube.NoteDrain, kube.OpenGuard} {
		k.arm("before-"+action, "")
	}
	e := &v1alpha1.HealthEvent{ObjectMeta: metav1.ObjectMeta{Name: "sick"}, Spec: v1alpha1.HealthEventSpec{
		NodeName: node, CheckName: "Xid", IsFatal: true, DrainOverrides: &v1alpha1.Overrides{Skip: true},
	}}
	if err := k.client.Create(context.Background(), e); err != nil {
		t.Fatal(err)
	}
	awaiting("a sensor", func() bool { return k.sensor(node) == 1 })
	p := k.kubectlDrain(node)
	awaiting("kubectl drain to pass", func() bool {
		select {
		case <-p.done:
			return true
		default:
			return false
		}
	})
	k.passes(p, node)
	if slices.Contains(v.nodes(), node) {
		t.Errorf("the replicas are on %v", v.nodes())
	}
	var drains v1alpha1.DrainList
	if err := k.client.List(context.Background(), &drains); err != nil {
		t.Fatal(err)
	}
	if done := slices.DeleteFunc(drains.Items, func(d v1alpha1.Drain) bool { return d.Status.Phase != v1alpha1.DrainComplete }); len(done) != 1 {
		t.Errorf("%d drains are complete", len(done))
	}

	// A guard is given up. The core Node of a parked node is deleted.
	k.arm("after-"+kube.DeleteGuard, "")
	k.arm("after-"+kube.DeleteNode, "")
	home := v.nodes()[0]
	awaiting("the guard", guarded(home, 1))
	v.remove()
	awaiting("the guard to be gone", guarded(home, 0))
	k.kubectl("delete", "node", node)
	until(t, "Ebb's Node to be deleted", func() bool {
		return kubeclient.IsMissing(k.client.Get(context.Background(), client.ObjectKey{Name: node}, &v1alpha1.Node{}))
	})
	untilSo(t, func() string { return fmt.Sprintf("a coordinator to die at %v", k.armed()) }, func() bool { return len(k.armed()) == 0 })
}
