package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/cordon"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/manifests"
	"github.com/ebb-dev/ebb/internal/pod"
	"github.com/ebb-dev/ebb/internal/testenv"
	"github.com/ebb-dev/ebb/internal/testlength"
)

// podModes gives namespaces of each mode: now-… , later-…, and all others run to completion.
const podModes = `systemNamespaces = "^(kube-system|sys)"
deleteAfterTimeoutMinutes = 1
[[userNamespaces]]
name = "now-*"
mode = "Immediate"
[[userNamespaces]]
name = "later-*"
mode = "DeleteAfterTimeout"
[quarantine]
maxShare = "90%"
`

const (
	// terminatingAfter is how long after its grace a pod is waited for: long enough for a busy coordinator to see the wait.
	terminatingAfter = 20 * time.Second
	// untilDeleted is when a pod in the mode DeleteAfterTimeout is deleted: a busy coordinator has begun long before.
	untilDeleted = 40 * time.Second
)

// steadyLeases outlast a busy machine. A coordinator that loses its lease has no record of what it evicted last, nor of pods that came back:
// the next one goes on, but does not say the same.
var steadyLeases = lease.Timing{Renew: 2 * time.Second, Timeout: 2 * time.Second, Fence: 12 * time.Second, Dead: 13 * time.Second, Lost: 14 * time.Second}

// podsOnNode are the pods of one core Node, each test its own, in a namespace of its own.
type podsOnNode struct {
	*cluster
	k         *installation
	node      string
	namespace string
}

// on makes a core Node without a process of Ebb, and a namespace.
func (k *installation) on(t *testing.T, node, namespace string) *podsOnNode {
	t.Helper()
	p := &podsOnNode{cluster: k.of(t), k: k, node: node, namespace: namespace}
	p.create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{corev1.LabelHostname: node}}})
	p.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	return p
}

func (p *podsOnNode) create(o client.Object) {
	p.t.Helper()
	until(p.t, "an object to be created", func() bool { // a new namespace has no service account at first
		err := p.client.Create(context.Background(), o)
		return err == nil || apierrors.IsAlreadyExists(err)
	})
}

// pod runs a pod on the node, and waits until it is Ready.
func (p *podsOnNode) pod(name string, change ...func(*corev1.Pod)) {
	p.t.Helper()
	o := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: name, Labels: map[string]string{"app": name[:1]}},
		Spec:       corev1.PodSpec{NodeName: p.node, TerminationGracePeriodSeconds: new(int64(1)), Containers: []corev1.Container{{Name: "c", Image: "x"}}},
	}
	for _, f := range change {
		f(o)
	}
	p.create(o)
	until(p.t, "pod "+name+" to run", func() bool { return p.ready(o.Namespace, name) })
}

func (p *podsOnNode) get(namespace, name string) *corev1.Pod {
	o := &corev1.Pod{}
	if err := p.client.Get(context.Background(), types.NamespacedName{Namespace: namespace, Name: name}, o); err != nil {
		return nil
	}
	return o
}

func (p *podsOnNode) ready(namespace, name string) bool {
	o := p.get(namespace, name)
	return o != nil && slices.ContainsFunc(o.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// setStatus changes the status of a pod.
func (p *podsOnNode) setStatus(name string, change func(*corev1.PodStatus)) {
	p.t.Helper()
	until(p.t, "the status of a pod", func() bool {
		o := p.get(p.namespace, name)
		if o == nil {
			return false
		}
		change(&o.Status)
		return p.client.Status().Update(context.Background(), o) == nil
	})
}

// setReady changes the condition Ready of a pod.
func (p *podsOnNode) setReady(name string, ready corev1.ConditionStatus) {
	p.t.Helper()
	p.setStatus(name, func(st *corev1.PodStatus) {
		for i := range st.Conditions {
			if st.Conditions[i].Type == corev1.PodReady {
				st.Conditions[i].Status = ready
			}
		}
	})
}

// elsewhere is another node.
func elsewhere(o *corev1.Pod) { o.Spec.NodeName = "rest" }

func graceOf(seconds int64) func(*corev1.Pod) {
	return func(o *corev1.Pod) { o.Spec.TerminationGracePeriodSeconds = &seconds }
}

// budget of the pods whose names begin with a letter, and waits until so many of them were counted and found healthy: the controller of
// budgets may know them later than this test.
func (p *podsOnNode) budget(name string, available int, healthy, expected int32) {
	p.t.Helper()
	p.create(&policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: name},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromInt32(int32(available))), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name[:1]}}},
	})
	until(p.t, "the budget to be counted", func() bool {
		b := &policyv1.PodDisruptionBudget{}
		err := p.client.Get(context.Background(), types.NamespacedName{Namespace: p.namespace, Name: name}, b)
		return err == nil && b.Status.ObservedGeneration == b.Generation && b.Status.ExpectedPods == expected && b.Status.CurrentHealthy == healthy
	})
}

// drain asks for a drain of the node.
func (p *podsOnNode) drain(change ...func(*v1alpha1.Drain)) { p.ask("of-"+p.node, p.node, change...) }

func (p *podsOnNode) status() *v1alpha1.Drain {
	d := &v1alpha1.Drain{}
	if err := p.client.Get(context.Background(), types.NamespacedName{Name: "of-" + p.node}, d); err != nil {
		return &v1alpha1.Drain{}
	}
	return d
}

// blocked waits until the drain names a reason, and until `ebb explain` says it in these words: counts and names may follow the reason.
func (p *podsOnNode) blocked(reason string, words ...string) {
	p.t.Helper()
	untilSo(p.t, func() string {
		return fmt.Sprintf("the drain of %s to be blocked by %s: %+v", p.node, reason, p.status().Status.Pods)
	}, func() bool {
		st := p.status().Status.Pods
		return st != nil && slices.ContainsFunc(st.Blockers, func(b v1alpha1.PodBlocker) bool { return b.Reason == reason })
	})
	out := ""
	untilSo(p.t, func() string { return fmt.Sprintf("ebb explain %s to say %q:\n%s", p.node, words, out) }, func() bool {
		out = p.must("explain", p.node)
		return !slices.ContainsFunc(words, func(text string) bool { return !strings.Contains(out, text) })
	})
}

// history watches the drain from before it is requested, for what passes before anybody can ask for it.
func (p *podsOnNode) history() *drainHistory {
	p.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p.t.Cleanup(cancel)
	w, err := p.client.Watch(ctx, &v1alpha1.DrainList{}, client.MatchingFields{"metadata.name": "of-" + p.node})
	if err != nil {
		p.t.Fatal(err)
	}
	h := &drainHistory{}
	go func() {
		for e := range w.ResultChan() {
			if d, ok := e.Object.(*v1alpha1.Drain); ok && d.Status.Pods != nil {
				h.see(d.Status.Pods)
			}
		}
	}()
	return h
}

// drainHistory is what a drain has waited for.
type drainHistory struct {
	mu    sync.Mutex
	said  []string             // reasons with their sentences
	began *v1alpha1.PodsStatus // when the pods began to be moved
}

func (h *drainHistory) see(pods *v1alpha1.PodsStatus) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.began == nil && pods.StartedAt != nil {
		h.began = pods
	}
	for _, b := range pods.Blockers {
		h.said = append(h.said, b.Reason+": "+pod.Sentence(b, time.Now()))
	}
}

// wants waits until the drain has waited for a reason, in these words.
func (h *drainHistory) wants(t *testing.T, reason, words string) {
	t.Helper()
	untilSo(t, func() string { return fmt.Sprintf("the drain to wait for %s: %s", reason, words) }, func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return slices.ContainsFunc(h.said, func(s string) bool { return strings.HasPrefix(s, reason+": ") && strings.Contains(s, words) })
	})
}

// completes waits until the drain is Complete, without a slot, and wants the node to be cordoned and its message to have these words.
func (p *podsOnNode) completes(reason string, words ...string) *v1alpha1.Drain {
	p.t.Helper()
	d := p.status()
	untilSo(p.t, func() string { return fmt.Sprintf("the drain of %s to end: %+v", p.node, p.status().Status) }, func() bool { d = p.status(); return d.Status.Phase.Final() })
	end := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DrainFinished)
	if d.Status.Phase != v1alpha1.DrainComplete || end.Reason != reason || d.Status.Scope != v1alpha1.ScopePods || d.Status.NodeEpoch != 0 {
		p.t.Fatalf("the drain of %s is %+v", p.node, d.Status)
	}
	for _, text := range words {
		if !strings.Contains(end.Message, text) {
			p.t.Errorf("it does not say %q: %s", text, end.Message)
		}
	}
	if reason == v1alpha1.ReasonNodeGone {
		return d
	}
	if n := p.core(); !cordon.Is(n) || !cordon.Owns(n, string(d.UID)) {
		p.t.Errorf("node %s is not cordoned by its drain: %v", p.node, n.Annotations)
	}
	return d
}

func (p *podsOnNode) core() *corev1.Node {
	p.t.Helper()
	n := &corev1.Node{}
	until(p.t, "node "+p.node+" to be read", func() bool {
		return p.client.Get(context.Background(), types.NamespacedName{Name: p.node}, n) == nil
	})
	return n
}

// cancels cancels the drain, and waits until the node is uncordoned.
func (p *podsOnNode) cancels(words string) {
	p.t.Helper()
	if out := p.must("drain", p.node, "--cancel", "--wait"); !strings.Contains(out, words) {
		p.t.Errorf("it does not say %q:\n%s", words, out)
	}
	until(p.t, "node "+p.node+" to be uncordoned", func() bool { n := p.core(); return !cordon.Is(n) && len(v1alpha1.CordonOwners(n)) == 0 })
}

func TestPodsAreEvicted(t *testing.T) {
	beside(t, light)
	k := startKubernetesWith(t, testenv.EbbFailpoints(t), append([]string{"rest"}, kubeNodes...)...)
	k.points, k.timing = t.TempDir(), steadyLeases
	file := filepath.Join(t.TempDir(), "drain.toml")
	if err := os.WriteFile(file, []byte(podModes), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--drain-config", file, "--terminating-pods-after", terminatingAfter.String()}
	k.install(time.Hour, args...)
	if !t.Run("beside each other", func(t *testing.T) {
		for name, run := range map[string]func(*testing.T, *installation){
			"at once, within a budget":                podsWithinBudget,
			"a budget that forbids":                   podsForbidden,
			"a budget that can never allow":           podsNeverAllowed,
			"budgets that Kubernetes cannot count":    podsNotCounted,
			"deleted after the time, past the budget": podsDeletedLater,
			"run to completion":                       podsComplete,
			"a finalizer":                             podsWithFinalizer,
			"a long grace, and a cancellation":        podsLongGrace,
			"two budgets on one pod":                  podsTwoBudgets,
			"a node that is deleted":                  podsNodeGone,
			"a pod that comes back":                   podsComeBack,
			"an uncordoned node":                      podsUncordoned,
			"a deadline":                              podsDeadline,
			"without pods":                            podsLeftAlone,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				run(t, k)
			})
		}
	}) {
		return
	}
	for _, step := range []struct {
		name string
		run  func(*testing.T, *installation, []string)
	}{
		{"pods that may not be listed", podsForbiddenToList}, {"while the drain waits in the queue", podsWhileQueued},
		{"a drain of Ebb's own work that leaves pods alone", podsLeftAloneByEbb},
		{"a sick node that Ebb does not know", podsOfASickNode}, {"the API server is away", podsWhileTheAPIIsAway},
		{"the coordinator is killed at every step", podsWhileTheCoordinatorDies},
	} {
		if !t.Run(step.name, func(t *testing.T) {
			k.t = t
			step.run(t, k, args)
		}) {
			break
		}
	}
	k.t = t
}

func podsWithinBudget(t *testing.T, k *installation) {
	p := k.on(t, "w-allow", "now-allow")
	p.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "sys-allow"}})
	for i := range 3 {
		p.pod(fmt.Sprintf("a%d", i), graceOf(int64(i))) // one without a grace, and all of them use it to the end
		p.pod(fmt.Sprintf("a%d-else", i), elsewhere)
	}
	p.pod("b", func(o *corev1.Pod) { o.Namespace = "sys-allow" })
	p.budget("a", 3, 6, 6)
	out := p.must("drain", p.node, "--wait")
	if !strings.Contains(out, "No pod is left on node w-allow that has to leave: 3 pods evicted") || !strings.Contains(out, "1 of system namespaces") {
		t.Errorf("it said:\n%s", out)
	}
	if p.get("sys-allow", "b") == nil || p.get(p.namespace, "a0-else") == nil {
		t.Error("pods are gone that should stay")
	}
	p.must("uncordon", p.node)
	until(t, "the owners of the cordon to be removed", func() bool { return len(v1alpha1.CordonOwners(p.core())) == 0 })
}

func podsDeletedLater(t *testing.T, k *installation) {
	p := k.on(t, "w-later", "later-never")
	p.pod("a1", graceOf(3600))
	p.pod("b1") // without a budget it is evicted long before
	p.budget("a", 1, 1, 1)
	seen := p.history()
	deadline := time.Now().Add(untilDeleted).Truncate(time.Second)
	p.drain(func(d *v1alpha1.Drain) { d.Spec.RequestedAt = new(metav1.NewTime(deadline.Add(-time.Minute))) })
	seen.wants(t, "BudgetNeverAllows", "it is deleted anyway (DeleteAfterTimeout)")
	until(t, "the pod to be deleted", func() bool { o := p.get(p.namespace, "a1"); return o != nil && o.DeletionTimestamp != nil })
	if o := p.get(p.namespace, "a1"); time.Now().Before(deadline) || o == nil || *o.DeletionGracePeriodSeconds != 3600 {
		t.Errorf("at %s, deadline %s: the pod is %+v", time.Now(), deadline, o)
	}
	p.kubectl("delete", "pod", "-n", p.namespace, "a1", "--force", "--grace-period=0")
	d := p.completes(v1alpha1.ReasonDrained, "1 pod evicted, 1 deleted")
	if st := d.Status.Pods; st.Evicted != 1 || st.Deleted != 1 || !slices.Equal(st.EvictedPods, []string{"later-never/a1", "later-never/b1"}) {
		t.Errorf("the status is %+v", st)
	}
}

func podsComplete(t *testing.T, k *installation) {
	p := k.on(t, "w-complete", "jobs")
	p.pod("a1")
	p.drain()
	p.blocked("RunsToCompletion", "pod jobs/a1 runs until it ends by itself: namespace jobs has the mode AllowCompletion")
	p.setStatus("a1", func(st *corev1.PodStatus) { st.Phase = corev1.PodSucceeded })
	p.completes(v1alpha1.ReasonDrained, "0 pods evicted", "1 finished")
	if o := p.get(p.namespace, "a1"); o == nil || o.DeletionTimestamp != nil {
		t.Error("the finished pod was deleted")
	}
}

func podsWithFinalizer(t *testing.T, k *installation) {
	p := k.on(t, "w-finalizer", "now-finalizer")
	p.pod("a1", func(o *corev1.Pod) { o.Finalizers = []string{"example.com/hold"} })
	seen := p.history()
	p.drain()
	seen.wants(t, "StillTerminating", "pod now-finalizer/a1 is still terminating after its grace period: finalizers keep it: example.com/hold")
	p.completes(v1alpha1.ReasonDrained, "1 pod evicted", "1 that do not terminate") // it is left, and said so
	p.kubectl("patch", "pod", "-n", p.namespace, "a1", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
}

func podsLongGrace(t *testing.T, k *installation) {
	p := k.on(t, "w-grace", "now-grace")
	p.pod("a1", graceOf(3600))
	p.drain()
	p.blocked("PodsTerminating", "1 pod is terminating", "1 of 1 pod left, 1 terminating; 1 evicted")
	p.cancels("1 pod was evicted before: now-grace/a1.")
	p.pod("b1") // nothing is evicted after the cancellation
	if !p.ready(p.namespace, "b1") {
		t.Error("a pod was evicted after the cancellation")
	}
	if st := p.status().Status.Pods; !slices.Contains(st.EvictedPods, "now-grace/a1") {
		t.Errorf("the status is %+v", st)
	}
	p.kubectl("delete", "pod", "-n", p.namespace, "a1", "--force", "--grace-period=0")
}

func podsNodeGone(t *testing.T, k *installation) {
	p := k.on(t, "w-gone", "now-gone")
	p.pod("a1")
	p.pod("b1", graceOf(3600))
	p.budget("a", 1, 1, 1)
	seen := p.history()
	p.drain()
	p.blocked("BudgetNeverAllows", "; 1 evicted") // b1 has no budget
	p.kubectl("delete", "node", p.node)
	seen.wants(t, "NodeDeleted", "node w-gone was deleted, and ")
	p.kubectl("delete", "pod", "-n", p.namespace, "a1", "b1", "--force", "--grace-period=0", "--ignore-not-found") // as Kubernetes does after a while
	p.completes(v1alpha1.ReasonNodeGone, "Node w-gone was deleted and no pod of it is left. 1 pod was evicted before: now-gone/b1.")
}

func podsComeBack(t *testing.T, k *installation) {
	p := k.on(t, "w-back", "now-back")
	p.pod("a1")
	p.budget("a", 1, 1, 1)
	p.drain()
	p.blocked("BudgetNeverAllows")
	p.pod("b1", func(o *corev1.Pod) { o.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} })
	p.blocked("CameBack", "pod now-back/b1 came back to the node after it was cordoned, because it tolerates the cordon: remove its toleration of node.kubernetes.io/unschedulable, or scale it down")
	p.kubectl("delete", "pod", "-n", p.namespace, "b1", "--wait=false")
	p.kubectl("delete", "pdb", "-n", p.namespace, "a")
	p.completes(v1alpha1.ReasonDrained, "1 pod evicted")
}

func podsUncordoned(t *testing.T, k *installation) {
	p := k.on(t, "w-uncordon", "now-uncordon")
	p.pod("a1")
	p.budget("a", 1, 1, 1)
	p.drain()
	p.blocked("BudgetNeverAllows")
	p.kubectl("uncordon", p.node)
	d := p.awaitFinal()
	if end := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DrainFinished); d.Status.Phase != v1alpha1.DrainCancelled || end.Reason != v1alpha1.ReasonUncordoned {
		t.Errorf("the drain is %+v", d.Status)
	}
	if cordon.Is(p.core()) {
		t.Error("the node is cordoned")
	}
}

func (p *podsOnNode) awaitFinal() *v1alpha1.Drain {
	p.t.Helper()
	d := p.status()
	untilSo(p.t, func() string { return fmt.Sprintf("the drain of %s to end: %+v", p.node, d.Status) }, func() bool { d = p.status(); return d.Status.Phase.Final() })
	return d
}

func podsDeadline(t *testing.T, k *installation) {
	p := k.on(t, "w-deadline", "now-deadline")
	p.pod("a1")
	p.budget("a", 1, 1, 1)
	out, errs, code := p.run("drain", p.node, "--wait", "--deadline", "15s")
	if code != 2 || !strings.Contains(errs, "Node w-deadline was not drained within 15s: 1 of 1 pod left. It stays cordoned; a new Drain of it continues where this one ended.") {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
	if !cordon.Is(p.core()) {
		t.Error("the node is not cordoned")
	}
	p.kubectl("delete", "pdb", "-n", p.namespace, "a")
	p.must("drain", p.node, "--wait")
}

func podsLeftAlone(t *testing.T, k *installation) {
	p := k.on(t, "w-alone", "now-alone")
	p.pod("a1")
	if out, errs, code := p.run("drain", p.node, "--wait", "--pods=false"); code != 1 || !strings.Contains(errs, "capture not found") {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
	if !p.ready(p.namespace, "a1") || cordon.Is(p.core()) {
		t.Error("the node was touched")
	}
}

// podsForbiddenToList: a drain whose pods may not be listed says so, with the remedy, and goes on when they may.
func podsForbiddenToList(t *testing.T, k *installation, _ []string) {
	p := k.on(t, "w-list", "now-list")
	p.pod("a1")
	roles := k.typed.RbacV1().ClusterRoles()
	ctx := context.Background()
	role, err := roles.Get(ctx, "ebb-node", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	without := role.DeepCopy()
	without.Rules = slices.DeleteFunc(without.Rules, func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, "pods") })
	if without, err = roles.Update(ctx, without, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		without.Rules = role.Rules
		if _, err := roles.Update(ctx, without, metav1.UpdateOptions{}); err != nil && !apierrors.IsConflict(err) {
			t.Error(err)
		}
	}()
	k.awaitAccess("pods", false)
	p.drain()
	p.blocked("PodsNotListed", "the pods of node w-list are not listed yet: ", "grant the coordinator the permission to list and watch pods and poddisruptionbudgets in all namespaces")
	if out := p.must("status"); !strings.Contains(out, "the pods of node w-list are not listed yet: ") {
		t.Errorf("ebb status:\n%s", out)
	}
	if st := p.status().Status.Pods; st.StartedAt != nil || st.Evicted > 0 || !p.ready(p.namespace, "a1") {
		t.Errorf("it has begun: %+v", st)
	}
	without.Rules = role.Rules
	if without, err = roles.Update(ctx, without, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.completes(v1alpha1.ReasonDrained, "1 pod evicted")
}

// awaitAccess waits until the API server lets the nodes list a resource, or does not: it learns of a changed role a little later.
func (k *installation) awaitAccess(resource string, allowed bool) {
	k.t.Helper()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User:               "system:serviceaccount:" + manifests.Namespace + ":ebb-node",
		Groups:             []string{"system:serviceaccounts", "system:authenticated"},
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "list", Resource: resource},
	}}
	until(k.t, fmt.Sprintf("access to %s to be %t", resource, allowed), func() bool {
		answer, err := k.typed.AuthorizationV1().SubjectAccessReviews().Create(context.Background(), review, metav1.CreateOptions{})
		return err == nil && answer.Status.Allowed == allowed
	})
}

// podsOfASickNode: a health event about a core Node without a process of Ebb quarantines it and moves its pods, and a healthy one ends that.
func podsOfASickNode(t *testing.T, k *installation, _ []string) {
	p := k.on(t, "w-sick", "now-sick")
	p.pod("a1")
	p.report("sick1", false)
	p.awaitEvicted("sick1", v1alpha1.EvictionSucceeded)
	if !cordon.Is(p.core()) || p.get(p.namespace, "a1") != nil {
		t.Error("the node is not cordoned, or its pod is there")
	}
	p.recovers("sick1", "well1")
}

// report makes a health event about the node.
func (p *podsOnNode) report(name string, healthy bool) {
	p.t.Helper()
	p.create(&v1alpha1.HealthEvent{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.HealthEventSpec{NodeName: p.node, CheckName: "Xid", IsFatal: !healthy, IsHealthy: healthy}})
}

func (p *podsOnNode) event(name string) v1alpha1.HealthEventStatus {
	e := &v1alpha1.HealthEvent{}
	if err := p.client.Get(context.Background(), types.NamespacedName{Name: name}, e); err != nil {
		return v1alpha1.HealthEventStatus{}
	}
	return e.Status
}

// awaitEvicted waits until an event says how far the drain of the node is.
func (p *podsOnNode) awaitEvicted(event string, want v1alpha1.EvictionState) {
	p.t.Helper()
	untilSo(p.t, func() string { return fmt.Sprintf("the drain of event %s to be %s: %+v", event, want, p.event(event)) }, func() bool {
		s := p.event(event).UserPodsEvictionStatus
		return s != nil && s.Status == want
	})
}

// recovers reports that the node is healthy again, and waits until its quarantine by an earlier event is lifted.
func (p *podsOnNode) recovers(sick, well string) {
	p.t.Helper()
	p.report(well, true)
	until(p.t, "the quarantine to be lifted", func() bool {
		n := p.core()
		return p.event(sick).NodeQuarantined == v1alpha1.UnQuarantined && !cordon.Is(n) && len(v1alpha1.CordonOwners(n)) == 0
	})
}

// podsWhileTheAPIIsAway: evictions go on from the objects when the API server is back. In the short form it answers nobody for a while that ends
// before the nodes fence themselves; in the long form it restarts, and they do.
func podsWhileTheAPIIsAway(t *testing.T, k *installation, args []string) {
	p := k.on(t, "w-away", "now-away")
	for i := range 4 {
		p.pod(fmt.Sprintf("a%d", i), graceOf(2))
	}
	p.pod("a-else", elsewhere)
	p.budget("a", 4, 5, 5) // one after the other
	p.drain()
	until(t, "the first eviction", func() bool { st := p.status().Status.Pods; return st != nil && st.Evicted+st.Terminating > 0 })
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	away := func() error { return k.kube.FreezeAPI(func() { time.Sleep(steadyLeases.Fence / 3) }) }
	if testlength.Long() {
		away = func() error { return k.kube.WithoutAPI(ctx, func() {}) }
	}
	if err := away(); err != nil {
		t.Fatal(err)
	}
	if d := p.status(); d.Status.Phase.Final() {
		t.Fatalf("it ended too early: %+v", d.Status)
	}
	// The budget needs as many pods as there were, less one. Others take the place of those that left.
	for i := range 3 {
		p.pod(fmt.Sprintf("a-more%d", i), elsewhere)
	}
	p.completes(v1alpha1.ReasonDrained)
	for i := range 4 {
		if p.get(p.namespace, fmt.Sprintf("a%d", i)) != nil {
			t.Errorf("pod a%d is there", i)
		}
	}
	k.revive(args)
}

// revive starts nodes that ended.
func (k *installation) revive(args []string) {
	for _, name := range kubeNodes {
		if syscall.Kill(k.pid(name), 0) == nil {
			continue
		}
		started := k.startNode(name, args...)
		until(k.t, "node "+name+" to run", func() bool {
			select {
			case <-started.done: // it may have won the election and died already
				return true
			default:
				return k.pid(name) == started.cmd.Process.Pid
			}
		})
	}
}

// podsWhileQueued: pods leave a node while its drain waits for the slot, also those of a sick node, and a drain with the slot waits for its pods.
func podsWhileQueued(t *testing.T, k *installation, _ []string) {
	followers := k.followers()
	first, second, sick := k.on(t, followers[0], "now-first"), k.on(t, followers[1], "now-second"), k.on(t, followers[2], "now-third")
	first.pod("a1")
	first.budget("a", 1, 1, 1)
	second.pod("b1")
	sick.pod("c1")
	first.drain()
	first.blocked("BudgetNeverAllows")
	until(t, "the first drain to have the slot", func() bool { return first.status().Status.StartedAt != nil })
	second.drain(func(d *v1alpha1.Drain) { d.Spec.WhenBusy = v1alpha1.Queue })
	until(t, "the pods to have left", func() bool { st := second.status().Status.Pods; return st != nil && st.FinishedAt != nil })
	if d := second.status(); d.Status.Phase != v1alpha1.DrainPending || d.Status.Scope != "" || d.Status.Pods.Evicted != 1 {
		t.Errorf("the second drain is %+v", d.Status)
	}
	sick.report("sick-queued", false)
	until(t, "the pods of the sick node to have left", func() bool { return sick.get(sick.namespace, "c1") == nil })
	sick.awaitEvicted("sick-queued", v1alpha1.EvictionInProgress) // its own work waits for the slot
	untilSo(t, func() string { return fmt.Sprintf("the first drain to count its pod: %+v", first.status().Status) }, func() bool {
		d := first.status()
		return d.Status.Remaining["pods"] == 1 && len(d.Status.Blockers) > 0
	})
	k.kubectl("delete", "pdb", "-n", "now-first", "a")
	k.awaitEnd("of-"+followers[0], v1alpha1.DrainComplete, v1alpha1.ReasonDrained)
	k.awaitEnd("of-"+followers[1], v1alpha1.DrainComplete, v1alpha1.ReasonDrained)
	sick.awaitEvicted("sick-queued", v1alpha1.EvictionSucceeded)
	k.back(followers[0])
	k.back(followers[1])
	sick.recovers("sick-queued", "well-queued")
	until(t, "the sick node to be back", func() bool {
		n := k.node(sick.node)
		return n.IsReady() && n.Status.Liveness == v1alpha1.Alive
	})
}

// podsLeftAloneByEbb: a drain of Ebb's own work leaves the pods of its node alone if it is told to.
func podsLeftAloneByEbb(t *testing.T, k *installation, _ []string) {
	p := k.on(t, k.followers()[0], "now-alone-ebb")
	p.pod("a1")
	if out := p.must("drain", p.node, "--wait", "--pods=false"); !strings.Contains(out, p.node) {
		t.Errorf("it says\n%s", out)
	}
	if !p.ready(p.namespace, "a1") {
		t.Error("its pod has gone")
	}
	list := &v1alpha1.DrainList{}
	if err := p.client.List(context.Background(), list); err != nil {
		t.Fatal(err)
	}
	for _, d := range list.Items {
		if d.Spec.NodeName == p.node && !d.WantsPods() && (d.Status.Phase != v1alpha1.DrainComplete || d.Status.Pods != nil) {
			t.Errorf("the drain is %+v", d.Status)
		}
	}
	p.kubectl("delete", "pod", "-n", p.namespace, "a1", "--force", "--grace-period=0")
	k.back(p.node)
}

// podsWhileTheCoordinatorDies: every coordinator dies at the next step, and the one after it goes on from the objects.
func podsWhileTheCoordinatorDies(t *testing.T, k *installation, args []string) {
	p := k.on(t, "w-crash", "now-crash")
	for i := range 4 {
		p.pod(fmt.Sprintf("a%d", i), graceOf(2))
		p.pod(fmt.Sprintf("a%d-else", i), elsewhere)
	}
	// With a budget that is just large enough this takes two minutes more: for that long Kubernetes counts a pod as disrupted whose eviction was
	// broken off.
	p.budget("a", 1, 8, 8)
	// Every death takes a lease, so that the short form has three of them.
	steps := []string{"after-pods-cordon", "after-pods-evict", "before-pods-complete"}
	if testlength.Long() {
		steps = append(steps, "after-pods-hold", "after-pods-begin", "before-pods-progress")
	}
	die := func(p *podsOnNode, steps []string, ask func()) *v1alpha1.Drain {
		for _, point := range steps {
			k.arm(point, "")
		}
		ask()
		began := time.Now()
		d := p.status()
		for ; !d.Status.Phase.Final(); d = p.status() {
			k.revive(args)
			if time.Since(began) > 3*patience {
				t.Fatalf("the drain is %+v", d.Status)
			}
			pollAgain(began)
		}
		for _, point := range steps {
			if !k.fired(point) {
				t.Errorf("no coordinator died at %s", point)
			}
		}
		k.revive(args)
		return d
	}
	if testlength.Long() { // how a drain ends that does not complete
		c := k.on(t, "w-crash-cancel", "now-crash-cancel")
		c.pod("a1", graceOf(3600))
		c.drain()
		c.blocked("PodsTerminating")
		if d := die(c, []string{"before-pods-cancel", "after-pods-cancel"}, func() { c.must("drain", c.node, "--cancel") }); d.Status.Phase != v1alpha1.DrainCancelled || d.Status.Pods.Evicted != 1 {
			t.Errorf("the cancelled drain is %+v", d.Status)
		}
		until(t, "the node of the cancelled drain to be uncordoned", func() bool { n := c.core(); return !cordon.Is(n) && len(v1alpha1.CordonOwners(n)) == 0 })
		f := k.on(t, "w-crash-fail", "now-crash-fail")
		f.pod("a1", graceOf(3600))
		if d := die(f, []string{"before-pods-fail", "after-pods-fail"}, func() {
			f.drain(func(d *v1alpha1.Drain) { d.Spec.Deadline = &metav1.Duration{Duration: 5 * time.Second} })
		}); d.Status.Phase != v1alpha1.DrainFailed || d.Status.Pods.Evicted != 1 {
			t.Errorf("the drain with a deadline is %+v", d.Status)
		}
	}
	die(p, steps, func() { p.drain() })
	p.completes(v1alpha1.ReasonDrained)
	for i := range 4 {
		if p.get(p.namespace, fmt.Sprintf("a%d", i)) != nil || !p.ready(p.namespace, fmt.Sprintf("a%d-else", i)) {
			t.Errorf("pod a%d is there, or its like elsewhere is not", i)
		}
	}
}
