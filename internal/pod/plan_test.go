package pod_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/ebb-dev/ebb/internal/drainconfig"
	"github.com/ebb-dev/ebb/internal/pod"
)

var now = time.Date(2026, 11, 16, 12, 0, 0, 0, time.UTC)

// config has a namespace of each mode: `now`, `later` and everything else.
func config() *drainconfig.Config {
	c := drainconfig.Default()
	c.UserNamespaces = []drainconfig.UserNamespace{{Name: "now*", Mode: drainconfig.Immediate}, {Name: "later", Mode: drainconfig.DeleteAfterTimeout}}
	c.DeleteAfterTimeout = 10 * time.Minute
	return c
}

// running is a pod that runs and is Ready; its name has the namespace.
func running(name string, change ...func(*pod.Pod)) *pod.Pod {
	namespace, name, _ := strings.Cut(name, "/")
	p := &pod.Pod{
		Namespace: namespace, Name: name, UID: types.UID(namespace + "-" + name + "-uid"), Labels: map[string]string{"app": name[:1]}, Phase: corev1.PodRunning, Ready: true,
		Owner: "ReplicaSet rs", Grace: 30,
	}
	for _, f := range change {
		f(p)
	}
	return p
}

// budget of the pods whose names begin with a letter.
func budget(name string, allowed int32, change ...func(*pod.Budget)) *pod.Budget {
	namespace, name, _ := strings.Cut(name, "/")
	b := &pod.Budget{
		Namespace: namespace, Name: name, Version: "1", Selects: labels.SelectorFromSet(labels.Set{"app": name[:1]}), Observed: true,
		Allowed: allowed, Healthy: 2 + allowed, Desired: 2, Expected: 3, Since: now.Add(-4 * time.Minute),
	}
	for _, f := range change {
		f(b)
	}
	return b
}

func snapshot(pods []*pod.Pod, budgets ...*pod.Budget) pod.Snapshot {
	return pod.Snapshot{
		Now: now, Server: now, Node: "n1", Pods: pods, Budgets: budgets, Config: config(), Requested: now.Add(-time.Minute), TerminatingFor: 5 * time.Minute,
		Attempts: map[types.UID]pod.Attempt{}, Arrived: map[types.UID]bool{}, Unready: map[string][]string{},
	}
}

// told is a plan as text: one line for each pod, with the blocker of waits.
func told(s pod.Snapshot) string {
	plan := pod.Evaluate(s)
	var b strings.Builder
	for _, a := range plan.Actions {
		fmt.Fprintf(&b, "%s %s", a.Verb, a.Pod.Key())
		if a.Reason != "" {
			fmt.Fprintf(&b, " %s", a.Reason)
		}
		if a.Grace != 0 {
			fmt.Fprintf(&b, " grace %d", a.Grace)
		}
		b.WriteString("\n")
	}
	for _, x := range pod.Blockers(s, plan, nil) {
		fmt.Fprintf(&b, "%s\n", pod.Sentence(x, s.Now))
	}
	if !plan.Again.IsZero() {
		fmt.Fprintf(&b, "again in %s\n", plan.Again.Sub(s.Now))
	}
	return b.String()
}

func TestWhatHappensToPods(t *testing.T) {
	unready := func(p *pod.Pod) { p.Ready = false }
	never := func(b *pod.Budget) { b.Desired = b.Expected }
	past := func(s *pod.Snapshot) { s.Requested = now.Add(-10 * time.Minute) }
	terminating := func(ago time.Duration, finalizers ...string) func(*pod.Pod) {
		return func(p *pod.Pod) { p.Deleted, p.Finalizers = now.Add(-ago), finalizers }
	}
	tried := func(a pod.Attempt) func(*pod.Snapshot) {
		return func(s *pod.Snapshot) { s.Attempts[s.Pods[0].UID] = a }
	}
	for name, tc := range map[string]struct {
		pods    []*pod.Pod
		budgets []*pod.Budget
		change  func(*pod.Snapshot)
		want    string
	}{
		"immediately, without a budget": {pods: []*pod.Pod{running("now/a1")}, want: "evict now/a1\n"},
		"immediately, with a budget that allows one": {
			pods: []*pod.Pod{running("now/a1"), running("now/a2")}, budgets: []*pod.Budget{budget("now/a", 1)},
			want: "evict now/a1\nwait now/a2 BudgetAllowsFew\nbudget now/a needs 2 of 3 pods; 1 allowed at once: the next pod is evicted when its status changes\n",
		},
		"immediately, with a budget that forbids": {
			pods: []*pod.Pod{running("now/a1")}, budgets: []*pod.Budget{budget("now/a", 0, func(b *pod.Budget) { b.Desired, b.Expected = 3, 4 })},
			change: func(s *pod.Snapshot) { s.Unready["now/a"] = []string{"a3"} },
			want:   "wait now/a1 BudgetAllowsNone\nbudget now/a needs 3 of 4 pods; 0 disruptions allowed since 4m; a3 is not Ready: check its pods, or change the budget\n",
		},
		"immediately, with a budget that can never allow": {
			pods: []*pod.Pod{running("now/a1")}, budgets: []*pod.Budget{budget("now/a", 0, never)},
			want: "wait now/a1 BudgetNeverAllows\nbudget now/a needs 3 of 3 pods and can never allow an eviction: set maxUnavailable to 1 or more, add a replica, or delete the budget\n",
		},
		"a budget by its spec that can never allow": {
			pods: []*pod.Pod{running("now/a1")}, budgets: []*pod.Budget{budget("now/a", 0, func(b *pod.Budget) { b.Never, b.Observed = true, false })},
			want: "wait now/a1 BudgetNeverAllows\nbudget now/a needs 2 of 3 pods and can never allow an eviction: set maxUnavailable to 1 or more, add a replica, or delete the budget\n",
		},
		"a budget that counts the pods there are, one of which was just evicted": {
			pods: []*pod.Pod{running("now/a1")}, budgets: []*pod.Budget{budget("now/a", 0, func(b *pod.Budget) { b.Counts, b.Expected, b.Since = true, 2, now.Add(-3*time.Second) })},
			want: "wait now/a1 BudgetAllowsNone\nbudget now/a needs 2 of 2 pods; 0 disruptions allowed since 3s: check its pods, or change the budget\nagain in 7s\n",
		},
		"a budget that counts the pods there are, for a while": {
			pods: []*pod.Pod{running("now/a1")}, budgets: []*pod.Budget{budget("now/a", 0, never, func(b *pod.Budget) { b.Counts = true })},
			want: "wait now/a1 BudgetNeverAllows\nbudget now/a needs 3 of 3 pods and can never allow an eviction: set maxUnavailable to 1 or more, add a replica, or delete the budget\n",
		},
		"a budget that is not counted yet": {
			pods: []*pod.Pod{running("now/a1")}, budgets: []*pod.Budget{budget("now/a", 1, func(b *pod.Budget) { b.Observed = false })},
			want: "wait now/a1 BudgetNotCounted\nbudget now/a was changed, and Kubernetes has not updated its status yet: if this lasts, check kube-controller-manager\n",
		},
		"a budget whose pods Kubernetes cannot count": {
			pods: []*pod.Pod{running("now/a1")}, budgets: []*pod.Budget{budget("now/a", 0, never, func(b *pod.Budget) { b.Observed, b.Trouble = false, "found no controllers for pod \"a1\"" })},
			want: "wait now/a1 BudgetNotCounted\nKubernetes cannot count the pods of budget now/a, which allows no eviction until then: found no controllers for pod \"a1\": " +
				"give its pods a controller with a scale, set minAvailable to a number, or delete the budget\n",
		},
		"a budget that was counted before, and is not any more": {
			pods: []*pod.Pod{running("now/a1"), running("now/a2", unready)}, budgets: []*pod.Budget{budget("now/a", 0, func(b *pod.Budget) { b.Trouble = "widgets.example.com does not implement the scale subresource" })},
			want: "wait now/a1 BudgetNotCounted\nevict now/a2\nKubernetes cannot count the pods of budget now/a, which allows no eviction until then: widgets.example.com does not implement the scale subresource: " +
				"give its pods a controller with a scale, set minAvailable to a number, or delete the budget\n",
		},
		"a budget that counts pods with a controller only, and has none": {
			pods:    []*pod.Pod{running("now/a1", func(p *pod.Pod) { p.Owner = "" })},
			budgets: []*pod.Budget{budget("now/a", 0, func(b *pod.Budget) { b.Desired, b.Expected, b.Healthy = 0, 0, 1 })},
			want: "wait now/a1 BudgetNeverAllows\nbudget now/a counts only pods that have a controller, and these have none, so it can never allow an eviction: " +
				"set minAvailable to a number, or delete the budget\n",
		},
		"a budget that has not seen its first pods": {
			pods: []*pod.Pod{running("now/a1")}, budgets: []*pod.Budget{budget("now/a", 0, func(b *pod.Budget) { b.Desired, b.Expected, b.Healthy = 0, 0, 0 })},
			want: "wait now/a1 BudgetAllowsNone\nbudget now/a needs 0 of 0 pods; 0 disruptions allowed since 4m: check its pods, or change the budget\n",
		},
		"later, with a budget that allows": {pods: []*pod.Pod{running("later/a1")}, budgets: []*pod.Budget{budget("later/a", 1)}, want: "evict later/a1\n"},
		"later, with a budget that can never allow, before the deadline": {
			pods: []*pod.Pod{running("later/a1")}, budgets: []*pod.Budget{budget("later/a", 0, never)},
			want: "wait later/a1 BudgetNeverAllows\nbudget later/a needs 3 of 3 pods and can never allow an eviction: set maxUnavailable to 1 or more, add a replica, or delete the budget; " +
				"at 2026-11-16T12:09:00Z it is deleted anyway (DeleteAfterTimeout)\nagain in 9m0s\n",
		},
		"later, at the deadline":                    {pods: []*pod.Pod{running("later/a1")}, budgets: []*pod.Budget{budget("later/a", 0, never)}, change: past, want: "delete later/a1 grace 30\n"},
		"later, at the deadline, without a grace":   {pods: []*pod.Pod{running("later/a1", func(p *pod.Pod) { p.Grace = 0 })}, change: past, want: "delete later/a1 grace 1\n"},
		"to completion, whatever the budget allows": {pods: []*pod.Pod{running("else/a1")}, budgets: []*pod.Budget{budget("else/a", 1)}, change: past, want: "wait else/a1 RunsToCompletion\npod else/a1 runs until it ends by itself: namespace else has the mode AllowCompletion: wait for it, delete it yourself, or give the namespace another mode (docs/pods.md)\n"},
		"by mode, then by name": {
			pods: []*pod.Pod{running("else/a1", func(p *pod.Pod) { p.DaemonSet = true }), running("later/a1"), running("now/b1"), running("now/a1")},
			want: "evict now/a1\nevict now/b1\nevict later/a1\nstay else/a1 DaemonSet\n",
		},
		"two budgets on one pod": {
			pods: []*pod.Pod{running("now/a1")}, budgets: []*pod.Budget{budget("now/a", 1), budget("now/ab", 1)},
			want: "wait now/a1 SeveralBudgets\npod now/a1 has several budgets, now/a and now/ab, and the Eviction API supports one: change the selectors so that one budget selects the pod\n",
		},
		"two budgets on one pod, at the deadline": {pods: []*pod.Pod{running("later/a1")}, budgets: []*pod.Budget{budget("later/a", 1), budget("later/ab", 1)}, change: past, want: "delete later/a1 grace 30\n"},
		"what stays": {
			pods: []*pod.Pod{
				running("kube-system/a1"), running("ebb-system/a1"), running("now/a1", func(p *pod.Pod) { p.DaemonSet = true }), running("now/b1", func(p *pod.Pod) { p.Static = true }),
				running("now/c1", func(p *pod.Pod) { p.Phase = corev1.PodSucceeded }), running("now/d1", terminating(5*time.Minute, "x/y")),
			},
			want: "stay now/a1 DaemonSet\nstay now/b1 Static\nstay now/c1 Finished\nstay now/d1 TerminatingForLong\nstay ebb-system/a1 Ebb\nstay kube-system/a1 SystemNamespace\n",
		},
		"a long grace": {pods: []*pod.Pod{running("now/a1", terminating(-time.Hour)), running("now/b1", terminating(-time.Minute))}, want: "wait now/a1 PodsTerminating\nwait now/b1 PodsTerminating\n2 pods are terminating\nagain in 1m0s\n"},
		"a finalizer":  {pods: []*pod.Pod{running("now/a1", terminating(time.Minute, "x/y"))}, want: "wait now/a1 StillTerminating\npod now/a1 is still terminating after its grace period: finalizers keep it: x/y: check the pod; the drain gives up waiting for it 5m after its grace period\nagain in 4m0s\n"},
		"a kubelet that is away": {
			pods: []*pod.Pod{running("now/a1", terminating(time.Second))},
			want: "wait now/a1 StillTerminating\npod now/a1 is still terminating after its grace period: its kubelet has not removed it: check the pod; the drain gives up waiting for it 5m after its grace period\nagain in 4m59s\n",
		},
		"the node was deleted": {
			pods: []*pod.Pod{running("now/a1"), running("now/b1", terminating(time.Second))}, change: func(s *pod.Snapshot) { s.NodeGone = true },
			want: "wait now/a1 NodeDeleted\nwait now/b1 NodeDeleted\nnode n1 was deleted, and 2 pods of it are still there: Kubernetes deletes the pods of a deleted node within about a minute\nagain in 4m59s\n",
		},
		"it came back": {
			pods:   []*pod.Pod{running("now/a1", func(p *pod.Pod) { p.Tolerates = true }), running("now/b1")},
			change: func(s *pod.Snapshot) { s.Arrived["now-a1-uid"], s.Arrived["now-b1-uid"] = true, true },
			want:   "wait now/a1 CameBack\nevict now/b1\npod now/a1 came back to the node after it was cordoned, because it tolerates the cordon: remove the toleration of node.kubernetes.io/unschedulable from ReplicaSet rs, or scale that down\n",
		},
		"it tolerates the cordon and was there before": {pods: []*pod.Pod{running("now/a1", func(p *pod.Pod) { p.Tolerates = true })}, want: "evict now/a1\n"},
		"refused by a budget":                          {pods: []*pod.Pod{running("now/a1")}, budgets: []*pod.Budget{budget("now/a", 1)}, change: tried(pod.Attempt{Refused: true, Budget: "1"}), want: "wait now/a1 BudgetAllowsFew\nbudget now/a needs 2 of 3 pods; 1 allowed at once: the next pod is evicted when its status changes\n"},
		"refused by a budget that has changed since":   {pods: []*pod.Pod{running("now/a1")}, budgets: []*pod.Budget{budget("now/a", 1)}, change: tried(pod.Attempt{Refused: true, Budget: "0"}), want: "evict now/a1\n"},
		"accepted, and not counted by the budget yet": {
			pods: []*pod.Pod{running("now/a1"), running("now/a2")}, budgets: []*pod.Budget{budget("now/a", 1)}, change: tried(pod.Attempt{Accepted: true, Budget: "1"}),
			want: "wait now/a1 PodsTerminating\nwait now/a2 BudgetAllowsFew\n1 pod is terminating\nbudget now/a needs 2 of 3 pods; 1 allowed at once: the next pod is evicted when its status changes\n",
		},
		"failed":                 {pods: []*pod.Pod{running("now/a1")}, change: tried(pod.Attempt{Failed: "no", Again: now.Add(time.Second)}), want: "wait now/a1 EvictionFailed\nthe API refused to evict pod now/a1: no: the coordinator tries again\nagain in 1s\n"},
		"failed some time ago":   {pods: []*pod.Pod{running("now/a1")}, change: tried(pod.Attempt{Failed: "no", Again: now}), want: "evict now/a1\n"},
		"pending":                {pods: []*pod.Pod{running("now/a1", unready, func(p *pod.Pod) { p.Phase = corev1.PodPending })}, budgets: []*pod.Budget{budget("now/a", 0)}, want: "evict now/a1\n"},
		"unready, healthy":       {pods: []*pod.Pod{running("now/a1", unready)}, budgets: []*pod.Budget{budget("now/a", 0)}, want: "evict now/a1\n"},
		"unready, always":        {pods: []*pod.Pod{running("now/a1", unready)}, budgets: []*pod.Budget{budget("now/a", 0, never, func(b *pod.Budget) { b.AlwaysUnready, b.Healthy = true, 0 })}, want: "evict now/a1\n"},
		"of another namespace":   {pods: []*pod.Pod{running("now/a1")}, budgets: []*pod.Budget{budget("nowhere/a", 0)}, want: "evict now/a1\n"},
		"nothing is on the node": {want: ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := snapshot(tc.pods, tc.budgets...)
			if tc.change != nil {
				tc.change(&s)
			}
			if diff := cmp.Diff(tc.want, told(s)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Whatever the pods, budgets, modes and earlier attempts are: no pod of a system namespace is touched, no budget is passed before the
// deadline, and every action names a pod exactly as it was seen.
func TestNoPlanBreaksTheRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSnapshot(t)
		before := fmt.Sprint(s)
		plan := pod.Evaluate(s)
		if fmt.Sprint(s) != before {
			t.Fatal("the snapshot was changed")
		}
		if broken := referee(s, plan); broken != "" {
			t.Fatal(broken)
		}
	})
}

// referee returns which rule a plan breaks.
func referee(s pod.Snapshot, plan pod.Plan) string {
	seen := map[types.UID]*pod.Pod{}
	for _, p := range s.Pods {
		seen[p.UID] = p
	}
	if len(plan.Actions) != len(s.Pods) {
		return fmt.Sprintf("%d actions for %d pods", len(plan.Actions), len(s.Pods))
	}
	taken := map[string]int32{}
	for _, p := range s.Pods {
		for _, b := range s.Budgets { // what the API has accepted counts, until the budget has another version
			if a := s.Attempts[p.UID]; a.Accepted && p.Deleted.IsZero() && a.Budget == b.Version && b.Namespace == p.Namespace && b.Selects.Matches(labels.Set(p.Labels)) {
				taken[b.Key()]++
			}
		}
	}
	evicts := map[string]bool{}
	for _, a := range plan.Actions {
		p := a.Pod
		if seen[p.UID] != p {
			return "an action names a pod that was not seen: " + p.Key()
		}
		delete(seen, p.UID)
		touches := a.Verb == pod.Evict || a.Verb == pod.Delete
		mode, _ := s.Config.ModeOf(p.Namespace)
		switch {
		case !touches:
			if a.Reason == "" {
				return "nobody knows why " + p.Key() + " is not moved"
			}
			if a.Reason == pod.StaysStuck && (s.Server.IsZero() || s.Server.Before(p.Deleted.Add(s.TerminatingFor))) {
				return "a pod is left behind before its time: " + p.Key()
			}
			continue
		case s.Config.SystemNamespaces.MatchString(p.Namespace) || p.Namespace == "ebb-system":
			return "a pod of the system is moved: " + p.Key()
		case p.DaemonSet || p.Static || !p.Deleted.IsZero() || p.Phase == corev1.PodSucceeded || s.Attempts[p.UID].Accepted:
			return "a pod is moved that stays, or leaves already: " + p.Key()
		case mode == drainconfig.AllowCompletion:
			return "a pod is moved that may complete: " + p.Key()
		}
		expired := mode == drainconfig.DeleteAfterTimeout && !s.Server.IsZero() && !s.Server.Before(s.Requested.Add(s.Config.DeleteAfterTimeout))
		if a.Verb == pod.Delete && (!expired || a.Grace < 1 || a.Grace < p.Grace) {
			return fmt.Sprintf("%s is deleted, expired %t, with grace %d of %d", p.Key(), expired, a.Grace, p.Grace)
		}
		if a.Verb == pod.Delete || p.Phase == corev1.PodPending {
			continue
		}
		matching := 0
		for _, b := range s.Budgets {
			if b.Namespace != p.Namespace || !b.Selects.Matches(labels.Set(p.Labels)) {
				continue
			}
			matching++
			if p.Ready || !(b.AlwaysUnready || b.Observed && b.Desired > 0 && b.Healthy >= b.Desired) {
				taken[b.Key()]++
				evicts[b.Key()] = true
			}
		}
		if matching > 1 {
			return "a pod with two budgets is evicted: " + p.Key()
		}
	}
	for _, b := range s.Budgets {
		if n := taken[b.Key()]; evicts[b.Key()] && (n > b.Allowed || !b.Observed) {
			return fmt.Sprintf("%d pods are evicted past budget %s", n, b.Key())
		}
	}
	return ""
}

func drawSnapshot(t *rapid.T) pod.Snapshot {
	spaces := []string{"kube-system", "ebb-system", "gpu-operator-x", "now", "nowhere", "later", "else"}
	s := snapshot(nil)
	s.Config.SystemNamespaces = rapid.SampledFrom([]*regexp.Regexp{s.Config.SystemNamespaces, regexp.MustCompile("^now$")}).Draw(t, "system")
	s.Requested = now.Add(-time.Duration(rapid.IntRange(0, 20).Draw(t, "requested")) * time.Minute)
	s.NodeGone = rapid.IntRange(0, 9).Draw(t, "gone") == 0
	// The coordinator's clock may be wrong by hours, and that of the API server may be unknown.
	s.Now = now.Add(time.Duration(rapid.IntRange(-180, 180).Draw(t, "skew")) * time.Minute)
	if rapid.IntRange(0, 5).Draw(t, "unknown") == 0 {
		s.Server = time.Time{}
	}
	for i := range rapid.IntRange(0, 12).Draw(t, "pods") {
		name := rapid.SampledFrom(spaces).Draw(t, "space") + "/" + rapid.SampledFrom([]string{"a", "b"}).Draw(t, "app") + fmt.Sprint(i)
		p := running(name)
		p.Ready, p.DaemonSet = rapid.Bool().Draw(t, "ready"), rapid.IntRange(0, 5).Draw(t, "daemon") == 0
		p.Static, p.Tolerates = rapid.IntRange(0, 5).Draw(t, "static") == 0, rapid.Bool().Draw(t, "tolerates")
		p.Phase = rapid.SampledFrom([]corev1.PodPhase{corev1.PodRunning, corev1.PodRunning, corev1.PodPending, corev1.PodSucceeded}).Draw(t, "phase")
		p.Grace = int64(rapid.IntRange(0, 60).Draw(t, "grace"))
		if rapid.IntRange(0, 4).Draw(t, "deleted") == 0 {
			p.Deleted = now.Add(time.Duration(rapid.IntRange(-600, 60).Draw(t, "ago")) * time.Second)
		}
		if rapid.IntRange(0, 3).Draw(t, "tried") == 0 {
			s.Attempts[p.UID] = pod.Attempt{Accepted: rapid.Bool().Draw(t, "accepted"), Refused: rapid.Bool().Draw(t, "refused"), Budget: rapid.SampledFrom([]string{"0", "1"}).Draw(t, "version")}
		}
		s.Arrived[p.UID] = rapid.Bool().Draw(t, "arrived")
		s.Pods = append(s.Pods, p)
	}
	for i := range rapid.IntRange(0, 5).Draw(t, "budgets") {
		b := budget(rapid.SampledFrom(spaces).Draw(t, "space")+"/"+rapid.SampledFrom([]string{"a", "b"}).Draw(t, "app")+fmt.Sprint(i), int32(rapid.IntRange(0, 3).Draw(t, "allowed")))
		b.Healthy, b.Observed = int32(rapid.IntRange(0, 5).Draw(t, "healthy")), rapid.IntRange(0, 5).Draw(t, "observed") > 0
		b.AlwaysUnready, b.Desired = rapid.Bool().Draw(t, "always"), int32(rapid.IntRange(0, 3).Draw(t, "desired"))
		b.Counts = rapid.Bool().Draw(t, "counts")
		if rapid.IntRange(0, 5).Draw(t, "trouble") == 0 {
			b.Trouble, b.Allowed = "no scale", 0
		}
		s.Budgets = append(s.Budgets, b)
	}
	return s
}

func TestTheRefereeSeesABrokenRule(t *testing.T) {
	a := running("now/a1")
	act := func(verb pod.Verb, p *pod.Pod, grace int64) pod.Plan {
		return pod.Plan{Actions: []pod.Action{{Verb: verb, Pod: p, Grace: grace}}}
	}
	for name, tc := range map[string]struct {
		s    pod.Snapshot
		plan pod.Plan
	}{
		"a system namespace":  {snapshot([]*pod.Pod{running("kube-system/a1")}), pod.Plan{}},
		"another UID":         {snapshot([]*pod.Pod{a}), act(pod.Evict, running("now/a1", func(p *pod.Pod) { p.UID = "other" }), 0)},
		"past a budget":       {snapshot([]*pod.Pod{a}, budget("now/a", 0)), act(pod.Evict, a, 0)},
		"before the deadline": {snapshot([]*pod.Pod{a}), act(pod.Delete, a, 30)},
		"no reason":           {snapshot([]*pod.Pod{a}), act(pod.Wait, a, 0)},
		"past a budget with what was evicted before": {
			func() pod.Snapshot {
				s := snapshot([]*pod.Pod{a, running("now/a2")}, budget("now/a", 1))
				s.Attempts["now-a2-uid"] = pod.Attempt{Accepted: true, Budget: "1"}
				return s
			}(), pod.Plan{Actions: []pod.Action{{Verb: pod.Evict, Pod: a}, {Verb: pod.Wait, Pod: a, Reason: pod.WaitsEnd}}},
		},
		"unready, and the budget is not counted": {snapshot([]*pod.Pod{running("now/a1", func(p *pod.Pod) { p.Ready = false })}, budget("now/a", 0, func(b *pod.Budget) { b.Observed = false })), pod.Plan{}},
	} {
		plan := tc.plan
		if len(plan.Actions) == 0 {
			plan = act(pod.Evict, tc.s.Pods[0], 0)
		}
		if referee(tc.s, plan) == "" {
			t.Errorf("%s: the referee sees nothing", name)
		}
	}
}

// Each mode against budgets that allow, forbid and can never allow, and two budgets on one pod.
func TestEachModeAgainstEachBudget(t *testing.T) {
	never := func(b *pod.Budget) { b.Desired = b.Expected }
	budgets := map[string][]*pod.Budget{
		"none": nil, "allows": {budget("X/a", 1)}, "forbids": {budget("X/a", 0)}, "never": {budget("X/a", 0, never)}, "two": {budget("X/a", 1), budget("X/ab", 1)},
	}
	modes := map[string]struct {
		namespace string
		requested time.Duration
	}{"Immediate": {"now", time.Hour}, "DeleteAfterTimeout": {"later", time.Minute}, "DeleteAfterTimeout, after it": {"later", 10 * time.Minute}, "AllowCompletion": {"else", time.Hour}}
	waits := map[string]string{"none": "evict", "allows": "evict", "forbids": pod.WaitsBudget, "never": pod.WaitsNever, "two": pod.WaitsTwoBudgets}
	for mode, m := range modes {
		for name, list := range budgets {
			p := running(m.namespace + "/a1")
			var of []*pod.Budget
			for _, b := range list {
				copied := *b
				copied.Namespace = m.namespace
				of = append(of, &copied)
			}
			s := snapshot([]*pod.Pod{p}, of...)
			s.Requested = now.Add(-m.requested)
			want := waits[name]
			switch mode {
			case "DeleteAfterTimeout, after it":
				want = "delete"
			case "AllowCompletion":
				want = pod.WaitsCompletion
			}
			a := pod.Evaluate(s).Actions[0]
			got := string(a.Verb)
			if a.Verb == pod.Wait {
				got = a.Reason
			}
			if got != want || a.Verb == pod.Delete && a.Grace != p.Grace {
				t.Errorf("%s, budget %s: %s with grace %d, want %s", mode, name, got, a.Grace, want)
			}
		}
	}
}
