package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kube"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/manifests"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// kubectlDrain runs stock `kubectl drain` beside the test, without --force and without --delete-emptydir-data.
func (k *installation) kubectlDrain(node string) *process {
	k.t.Helper()
	return k.launch(testenv.Kubectl(k.t), "--kubeconfig", k.dir.Kubeconfig(), "drain", node, "--ignore-daemonsets")
}

// passes waits until a kubectl drain has succeeded, and wants the node to be drained by then: parked, and without its budget.
func (k *installation) passes(p *process, node string) {
	k.t.Helper()
	if code := p.awaitExit(k.t); code != 0 {
		k.t.Fatalf("kubectl drain %s: exit %d\n%s", node, code, p.out)
	}
	if n := k.node(node); !n.IsParked() || k.record(node).Held() {
		k.t.Errorf("kubectl drain %s has passed, and the node is %+v", node, n.Status)
	}
	if pods, budgets := k.guard(node); pods != 0 || budgets != 0 {
		k.t.Errorf("kubectl drain %s has passed, and there are %d guards and %d budgets", node, pods, budgets)
	}
}

// holds wants a kubectl drain to wait for the guard, and events to say why, on the core Node and on the guard.
func (k *installation) holds(p *process, node string, why ...string) {
	k.t.Helper()
	said := func(out string) bool {
		return !slices.ContainsFunc(why, func(text string) bool { return !strings.Contains(out, text) })
	}
	until(k.t, "kubectl drain to be refused by the budget", func() bool {
		return strings.Contains(p.out.String(), "Cannot evict pod as it would violate the pod's disruption budget")
	})
	for _, about := range [][]string{
		{"get", "events", "-A", "--field-selector=involvedObject.kind=Node,involvedObject.name=" + node},
		{"get", "events", "-n", manifests.Namespace, "--field-selector=involvedObject.kind=Pod,involvedObject.name=ebb-guard-" + node},
		{"describe", "node", node},
		{"describe", "pod", "-n", manifests.Namespace, "ebb-guard-" + node},
	} {
		out := ""
		untilSo(k.t, func() string { return fmt.Sprintf("kubectl %q to say %q:\n%s", about, why, out) }, func() bool {
			out = k.kubectl(about...)
			return said(out)
		})
	}
	select {
	case <-p.done:
		k.t.Errorf("kubectl drain %s ended:\n%s", node, p.out)
	default:
	}
	if pods, budgets := k.guard(node); pods != 1 || budgets != 1 {
		k.t.Errorf("there are %d guards and %d budgets", pods, budgets)
	}
}

// guard counts the guards and budgets of a node.
func (k *installation) guard(node string) (pods, budgets int) {
	k.t.Helper()
	var p corev1.PodList
	var b policyv1.PodDisruptionBudgetList
	for _, list := range []client.ObjectList{&p, &b} {
		if err := k.client.List(context.Background(), list, client.InNamespace(manifests.Namespace), client.MatchingLabels{kube.GuardLabel: node}); err != nil {
			k.t.Fatal(err)
		}
	}
	return len(p.Items), len(b.Items)
}

// awaitGuard waits until a node is guarded.
func (k *installation) awaitGuard(node string) {
	k.t.Helper()
	until(k.t, "node "+node+" to be guarded", func() bool {
		pods, budgets := k.guard(node)
		return pods == 1 && budgets == 1
	})
}

// returns uncordons a node with kubectl and waits until it is Alive in a later epoch, with nothing left of its drain.
func (k *installation) returns(node string, epoch int64) {
	k.t.Helper()
	k.kubectl("uncordon", node)
	until(k.t, "node "+node+" to be back", func() bool {
		n := k.node(node)
		return n.IsReady() && n.Status.Liveness == v1alpha1.Alive && n.Status.Epoch > epoch && n.Status.Parked == nil && !n.Spec.Cordoned && n.Annotations[kube.CordonDrainAnnotation] == ""
	})
}

// home is a node that a volume of one replica is on, and that does not lead.
func (k *installation) home(v *testVolume) string {
	k.t.Helper()
	node := v.nodes()[0]
	if k.awaitLeader("") == node {
		k.must("resign")
		k.awaitLeader(node)
	}
	return node
}

// Stock kubectl drain, in one installation.
func TestKubectlDrain(t *testing.T) {
	beside(t, light)
	k := startKubernetes(t, kubeNodes...)
	// `kubectl drain` evicts the pod of the signer, with whose token the process of this test goes on: no certificate is renewed after that.
	k.install(time.Hour)
	for _, step := range []struct {
		name string
		run  func(*testing.T, *installation)
	}{
		{"under each of the five policies for volumes", drainPolicies},
		{"uncordoned before it is over", uncordonedBefore},
		{"two nodes at once, with programs", twoAtOnce},
		{"the coordinator", drainedCoordinator},
		{"one node after the other, to the last", lastNode},
		{"a taint of an autoscaler", taintedNode},
		{"a setting that only holds", heldNode},
		{"a node that holds nothing any more", emptiedNode},
		{"a guard that cannot be created", forbiddenGuard},
		{"a quarantined node", quarantinedNode},
		{"a drain that was cancelled", cancelledDrain},
		{"uncordoned before it begins", uncordonedInQueue},
		{"access to core objects", coreAccess},
		{"a core Node is deleted", deletedCoreNode},
	} {
		if !t.Run(step.name, func(t *testing.T) {
			k.t = t
			began := time.Now()
			step.run(t, k)
			t.Logf("took %.1f s", time.Since(began).Seconds())
		}) {
			break
		}
	}
	k.t = t
}

func drainPolicies(t *testing.T, k *installation) {
	for _, c := range []struct {
		policy      v1alpha1.NodeDrainPolicy
		held, stays bool
	}{
		{v1alpha1.BlockIfContainsLastReplica, true, false},
		{v1alpha1.AllowIfReplicaIsStopped, false, true},
		{v1alpha1.AlwaysAllow, false, true},
		{v1alpha1.BlockForEviction, false, false},
		{v1alpha1.BlockForEvictionIfContainsLastReplica, false, false},
	} {
		if !t.Run(string(c.policy), func(t *testing.T) {
			k.t = t
			k.drainPolicy(c.policy)
			v := k.createVolume("disk", 1)
			node := k.home(v)
			epoch := k.record(node).Epoch
			k.awaitGuard(node)
			p := k.kubectlDrain(node)
			if c.held {
				k.holds(p, node, "EbbHolds", "Ebb holds node "+node+": drain cordon-"+node+"-", " is Draining, 1 replica left.", "Replica disk-r1: LastHealthyReplica: volume disk, replica disk-r1 on node "+node+": it is the last copy of the volume; ")
				v.remove()
			}
			k.passes(p, node)
			if !c.held && (slices.Contains(v.nodes(), node) != c.stays) {
				t.Errorf("the replicas are on %v", v.nodes())
			}
			k.returns(node, epoch)
			if !c.held {
				v.remove()
			}
		}) {
			return
		}
	}
	k.t = t
	k.drainPolicy(v1alpha1.BlockIfContainsLastReplica)
}

func uncordonedBefore(_ *testing.T, k *installation) {
	v := k.createVolume("disk", 1)
	node := k.home(v)
	epoch := k.record(node).Epoch
	p := k.kubectlDrain(node)
	k.holds(p, node, "EbbHolds")
	_ = p.cmd.Process.Kill() // a person gives up
	<-p.done
	k.returns(node, epoch)
	k.awaitGuard(node)
	if got := v.nodes(); !slices.Equal(got, []string{node}) {
		k.t.Errorf("the replica went from %s to %v", node, got)
	}
	var drains v1alpha1.DrainList
	if err := k.client.List(context.Background(), &drains); err != nil {
		k.t.Fatal(err)
	}
	if !slices.ContainsFunc(drains.Items, func(d v1alpha1.Drain) bool {
		return d.Spec.NodeName == node && d.Status.Phase == v1alpha1.DrainCancelled && d.Status.Conditions[0].Reason == v1alpha1.ReasonUncordoned
	}) {
		k.t.Errorf("no drain of %s was cancelled", node)
	}
	v.remove()
}

func twoAtOnce(t *testing.T, k *installation) {
	f := &fleetOfPrograms{cluster: k.cluster, dir: t.TempDir()}
	for _, name := range []string{"p1", "p2", "p3", "p4"} {
		f.create(f.program(name, v1alpha1.TypeDeployment))
	}
	f.allRun(kubeNodes...)
	// Only a node with work is guarded.
	var pair []string
	until(t, "two followers with programs", func() bool {
		shares := f.shares()
		pair = slices.DeleteFunc(k.followers(), func(node string) bool { return shares[node] == 0 })
		return len(pair) >= 2
	})
	pair = pair[:2]
	epochs := map[string]int64{}
	drains := map[string]*process{}
	for _, node := range pair {
		epochs[node], drains[node] = k.record(node).Epoch, k.kubectlDrain(node)
	}
	for _, node := range pair {
		k.passes(drains[node], node)
	}
	f.allRun(others(others(kubeNodes, pair[0]), pair[1])...)
	f.neverTwice()
	for _, node := range pair {
		k.returns(node, epochs[node])
	}
	k.kubectl("delete", "deployments.ebb.dev", "--all")
	f.neverTwice()
}

func drainedCoordinator(_ *testing.T, k *installation) {
	leader := k.awaitLeader("")
	epoch := k.record(leader).Epoch
	k.kubectl("cordon", leader)
	k.awaitLeader(leader)
	k.awaitParked(leader)
	k.returns(leader, epoch)
}

// lastNode: every node of the fleet is drained. The last one has nobody to move its work to, and goes when the work is gone.
func lastNode(t *testing.T, k *installation) {
	v := k.createVolume("disk", 1)
	last := v.nodes()[0]
	epochs := map[string]int64{}
	for _, node := range others(kubeNodes, last) {
		epochs[node] = k.record(node).Epoch
		if p := k.kubectlDrain(node); p.awaitExit(t) != 0 {
			t.Fatalf("kubectl drain %s:\n%s", node, p.out)
		}
		k.awaitParked(node) // nothing on it held the drain
	}
	k.awaitGuard(last)
	p := k.kubectlDrain(last)
	k.holds(p, last, "EbbHolds", "1 replica")
	v.remove()
	if code := p.awaitExit(t); code != 0 {
		t.Fatalf("kubectl drain of the last node: exit %d\n%s", code, p.out)
	}
	k.kubectl("uncordon", last)
	for node, epoch := range epochs {
		k.returns(node, epoch)
	}
}

func taintedNode(_ *testing.T, k *installation) {
	node := k.followers()[0]
	epoch := k.record(node).Epoch
	k.kubectl("taint", "node", node, "karpenter.sh/disrupted:NoSchedule")
	k.awaitParked(node)
	k.kubectl("taint", "node", node, "karpenter.sh/disrupted:NoSchedule-")
	k.awaitReady(node, epoch+1)
}

func heldNode(t *testing.T, k *installation) {
	k.must("settings", "set", "onCordon=Hold")
	v := k.createVolume("disk", 1)
	node := k.home(v)
	epoch := k.record(node).Epoch
	k.awaitGuard(node)
	p := k.kubectlDrain(node)
	k.holds(p, node, "EbbHolds", "Ebb holds node "+node+": it holds 1 replica, and no drain of it is running. `ebb drain "+node+"` moves the work away.")
	if n := k.node(node); n.Status.Liveness != v1alpha1.Alive || n.Annotations[kube.CordonDrainAnnotation] != "" {
		t.Errorf("the node is %+v", n)
	}
	v.remove()
	k.must("drain", node, "--wait")
	k.passes(p, node)
	k.must("settings", "set", "onCordon=Drain")
	k.returns(node, epoch)
}

// coreAccess: only the coordinator writes core Nodes, guards and budgets, and only what it has to.
func coreAccess(t *testing.T, k *installation) {
	a := k.actors()
	core := func(change func(*corev1.Node)) attempt {
		return update(a, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: a.follower}}, change, whole)
	}
	pod := func(name string, change func(*corev1.Pod)) attempt {
		return func(ctx context.Context, c client.Client) error {
			p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: manifests.Namespace, Name: name}, Spec: corev1.PodSpec{
				NodeName: a.follower, AutomountServiceAccountToken: new(false), SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: new(true)},
				Containers: []corev1.Container{{Name: "guard", Image: "ebb", SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				}}},
			}}
			change(p)
			return c.Create(ctx, p)
		}
	}
	bare := func(namespace string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "bare"},
			Spec:       corev1.PodSpec{NodeName: a.follower, TerminationGracePeriodSeconds: new(int64(0)), Containers: []corev1.Container{{Name: "c", Image: "x"}}},
		}
	}
	evict := func(namespace string, deletes bool) attempt {
		return func(ctx context.Context, c client.Client) error {
			p := bare(namespace)
			if err := client.IgnoreAlreadyExists(k.client.Create(ctx, p)); err != nil {
				return err
			}
			if deletes {
				return c.Delete(ctx, p)
			}
			return c.SubResource("eviction").Create(ctx, p, &policyv1.Eviction{})
		}
	}
	hostPath := func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "root", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}}}
	}
	a.try(t, []accessRow{
		may("cordon a core Node", core(func(n *corev1.Node) { n.Spec.Unschedulable = true }), []string{"coordinator"}),
		may("taint a core Node", core(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "a", Effect: corev1.TaintEffectNoSchedule}} }), nil),
		may("annotate a core Node with what is Ebb's", core(func(n *corev1.Node) { metav1.SetMetaDataAnnotation(&n.ObjectMeta, "ebb.dev/a", "b") }), []string{"coordinator"}),
		may("annotate a core Node with what is not", core(func(n *corev1.Node) { metav1.SetMetaDataAnnotation(&n.ObjectMeta, "a", "b") }), nil),
		may("label a core Node", core(func(n *corev1.Node) { n.Labels["a"] = "b" }), nil),
		may("delete a core Node", func(ctx context.Context, c client.Client) error {
			return c.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: a.follower}})
		}, nil),
		may("create a guard", pod("ebb-guard-x", func(*corev1.Pod) {}), []string{"coordinator"}),
		may("create a pod of another name", pod("x", func(*corev1.Pod) {}), nil),
		may("create a guard with a directory of the host", pod("ebb-guard-x", hostPath), nil),
		may("create a guard with the host's network", pod("ebb-guard-x", func(p *corev1.Pod) { p.Spec.HostNetwork = true }), nil),
		may("create a privileged guard", pod("ebb-guard-x", func(p *corev1.Pod) { p.Spec.Containers[0].SecurityContext.AllowPrivilegeEscalation = new(true) }), nil),
		may("evict a pod", evict("default", false), []string{"coordinator"}),
		may("delete a pod", evict("default", true), []string{"coordinator"}),
		may("evict a pod of a system namespace", evict("kube-system", false), nil),
		may("delete a pod of a system namespace", evict("kube-system", true), nil),
		may("create a pod in another namespace", func(ctx context.Context, c client.Client) error { return c.Create(ctx, bare("default")) }, nil),
		may("delete a pod of the DaemonSet", func(ctx context.Context, c client.Client) error {
			return c.Delete(ctx, k.pod("node", a.follower))
		}, nil),
	})
}

func deletedCoreNode(t *testing.T, k *installation) {
	node := k.followers()[0]
	k.kubectl("cordon", node)
	k.awaitParked(node)
	pid := k.pid(node)
	k.kubectl("delete", "node", node)
	until(t, "Ebb's Node to be deleted", func() bool {
		return kubeclient.IsMissing(k.client.Get(context.Background(), client.ObjectKey{Name: node}, &v1alpha1.Node{}))
	})
	until(t, "the process of the parked node to end", func() bool { return syscall.Kill(pid, 0) != nil })
	// A live node outlives its core Node.
	other := others(k.followers(), node)[0]
	epoch := k.record(other).Epoch
	k.kubectl("delete", "node", other)
	cmd := exec.Command(testenv.Kubectl(t), "--kubeconfig", k.dir.Kubeconfig(), "create", "-f", "-")
	cmd.Stdin, cmd.Stderr = strings.NewReader(fmt.Sprintf(`{"apiVersion":"v1","kind":"Node","metadata":{"name":%q,"labels":{"kubernetes.io/os":"linux"}}}`, other)), os.Stderr
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	core := &corev1.Node{}
	if err := k.client.Get(context.Background(), client.ObjectKey{Name: other}, core); err != nil {
		t.Fatal(err)
	}
	until(t, "Ebb's Node to carry the new UID", func() bool { return k.node(other).Annotations[kube.CoreUIDAnnotation] == string(core.UID) })
	if got := k.record(other); !got.Held() || got.Epoch != epoch {
		t.Errorf("the lease of a live node whose core Node was replaced: %+v", got)
	}
}
