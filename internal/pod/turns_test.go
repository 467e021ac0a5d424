package pod_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/ebb-dev/ebb/internal/drainconfig"
	"github.com/ebb-dev/ebb/internal/pod"
)

// theAPI has the pods of a node, their likes elsewhere and their budgets, and decides about evictions as Kubernetes does. What the coordinator sees
// of it is a little older.
type theAPI struct {
	t       *rapid.T
	now     time.Time
	pods    map[string]*pod.Pod // of the node
	ready   map[string]int32    // pods elsewhere that are Ready, by budget
	making  map[string]int32    // those that are being made
	budgets map[string]*pod.Budget
	// asked is which budget, in which version, refused which pod, and evicted how many pods the API has accepted.
	asked     map[string]bool
	evicted   int
	uids      int
	stateful  bool // some pods are made again with the same name
	requested time.Time
}

// count is the controller of budgets.
func (a *theAPI) count(b *pod.Budget) {
	healthy := a.ready[b.Key()]
	for _, p := range a.pods {
		if b.Namespace == p.Namespace && p.Ready && p.Deleted.IsZero() {
			healthy++
		}
	}
	next := *b
	next.Healthy, next.Allowed, next.Observed = healthy, max(0, healthy-b.Desired), true
	if next.Healthy != b.Healthy || next.Allowed != b.Allowed || !b.Observed {
		a.replace(&next)
	}
}

func (a *theAPI) replace(b *pod.Budget) {
	version, _ := strconv.Atoi(b.Version)
	b.Version = strconv.Itoa(version + 1)
	a.budgets[b.Key()] = b
}

// elapse lets time pass: pods end after their grace, and others are made in their place.
func (a *theAPI) elapse(d time.Duration) {
	a.now = a.now.Add(d)
	for key, p := range a.pods {
		if p.Deleted.IsZero() || a.now.Before(p.Deleted) {
			continue
		}
		delete(a.pods, key)
		if a.stateful && rapid.IntRange(0, 4).Draw(a.t, "here again") == 0 {
			a.add(p.Namespace, p.Name, true) // with the same name, on the same node
			continue
		}
		a.making[p.Namespace+"/b"]++
	}
	for key, n := range a.making {
		done := int32(rapid.IntRange(0, int(n)).Draw(a.t, "made"))
		a.making[key] -= done
		a.ready[key] += done
	}
}

func (a *theAPI) add(namespace, name string, tolerates bool) {
	a.uids++
	uid := types.UID(fmt.Sprintf("%s-%d", name, a.uids))
	a.pods[namespace+"/"+name] = running(namespace+"/"+name, func(p *pod.Pod) {
		p.UID, p.Tolerates, p.Grace = uid, tolerates, int64(rapid.IntRange(1, 20).Draw(a.t, "grace"))
		p.Ready = rapid.IntRange(0, 5).Draw(a.t, "ready") > 0
	})
}

// answer is the API's to one request.
func (a *theAPI) answer(act pod.Action) error {
	p := a.pods[act.Pod.Key()]
	resource := schema.GroupResource{Resource: "pods"}
	switch {
	case p == nil:
		return apierrors.NewNotFound(resource, act.Pod.Name)
	case p.UID != act.Pod.UID:
		return apierrors.NewConflict(resource, act.Pod.Name, errors.New("the UID in the precondition does not match"))
	case rapid.IntRange(0, 19).Draw(a.t, "trouble") == 0:
		return apierrors.NewInternalError(errors.New("trouble"))
	case !p.Deleted.IsZero():
		return nil
	}
	if act.Verb == pod.Delete {
		if a.now.Before(a.requested.Add(10 * time.Minute)) {
			a.t.Fatalf("%s is deleted past its budget %s after the request", p.Key(), a.now.Sub(a.requested))
		}
		a.end(p, act.Grace)
		return nil
	}
	b := a.budgets[p.Namespace+"/b"]
	if b == nil || !p.Ready && (b.AlwaysUnready || b.Observed && b.Desired > 0 && b.Healthy >= b.Desired) {
		a.end(p, p.Grace)
		return nil
	}
	if !b.Observed || b.Allowed < 1 {
		refused := fmt.Sprintf("%s %s %s", p.UID, b.Version, "refused")
		if a.asked[refused] {
			a.t.Fatalf("%s is asked of version %s of its budget again, which had refused it", p.Key(), b.Version)
		}
		a.asked[refused] = true
		err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
		err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: "no"})
		return err
	}
	taken := *b
	taken.Allowed--
	a.replace(&taken)
	a.end(p, p.Grace)
	return nil
}

func (a *theAPI) end(p *pod.Pod, grace int64) {
	ends := *p
	ends.Deleted, ends.Ready = a.now.Add(time.Duration(grace)*time.Second), false
	a.pods[p.Key()] = &ends
	a.evicted++
}

// Turn after turn, with what is seen a little late: a drain asks no version of a budget twice about one pod, deletes nothing past a budget before
// the deadline, touches no pod but those that it has seen, and ends if the budgets let it.
func TestNoTurnsBreakTheRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := &theAPI{
			t: t, now: now, requested: now, pods: map[string]*pod.Pod{}, ready: map[string]int32{}, making: map[string]int32{}, budgets: map[string]*pod.Budget{}, asked: map[string]bool{},
			stateful: rapid.Bool().Draw(t, "stateful"),
		}
		never := false
		for _, space := range []string{"now", "nowhere", "later"} {
			count := rapid.IntRange(0, 4).Draw(t, "pods")
			for i := range count {
				a.add(space, fmt.Sprintf("b%d", i), false)
			}
			if rapid.IntRange(0, 3).Draw(t, "budget") == 0 {
				continue
			}
			others := int32(rapid.IntRange(0, 3).Draw(t, "others"))
			a.ready[space+"/b"] = others
			b := budget(space+"/b", 0)
			b.Expected = int32(count) + others
			b.Desired = int32(rapid.IntRange(0, int(b.Expected)).Draw(t, "desired"))
			b.AlwaysUnready, b.Counts, b.Observed = rapid.Bool().Draw(t, "always"), rapid.Bool().Draw(t, "counts"), false
			a.budgets[b.Key()] = b
			// A pod of the node counts as long as it is there, so that the others must be enough without the last of them.
			never = never || space != "later" && b.Desired >= b.Expected && count > 0
		}
		attempts, failures := map[types.UID]pod.Attempt{}, map[types.UID]int64{}
		seen, listed := slices.Collect(maps.Values(a.pods)), map[types.UID]bool{}
		for _, p := range seen {
			listed[p.UID] = true
		}
		known := slices.Collect(maps.Values(a.budgets))
		for turn := 0; len(a.pods) > 0; turn++ {
			if turn > 3000 {
				if never {
					return
				}
				for _, p := range a.pods {
					if !p.Tolerates && p.Ready && !(a.budgets[p.Namespace+"/b"] != nil && a.budgets[p.Namespace+"/b"].Allowed == 0) {
						t.Fatalf("after %s pod %s is still there", a.now.Sub(now), p.Key())
					}
				}
				return
			}
			if turn > 200 || rapid.Bool().Draw(t, "watch") {
				seen = slices.Collect(maps.Values(a.pods))
			}
			if turn > 200 || rapid.Bool().Draw(t, "watch of budgets") {
				known = slices.Collect(maps.Values(a.budgets))
			}
			s := snapshot(seen, known...)
			s.Now, s.Server, s.Requested, s.Attempts = a.now.Add(time.Hour), a.now, a.requested, attempts
			s.Config.UserNamespaces = []drainconfig.UserNamespace{{Name: "now*", Mode: drainconfig.Immediate}, {Name: "later", Mode: drainconfig.DeleteAfterTimeout}}
			for _, p := range seen {
				s.Arrived[p.UID] = !listed[p.UID]
			}
			for _, act := range pod.Evaluate(s).Actions {
				if act.Verb != pod.Evict && act.Verb != pod.Delete {
					continue
				}
				uid := act.Pod.UID
				if !slices.ContainsFunc(seen, func(p *pod.Pod) bool { return p.UID == uid }) {
					t.Fatalf("pod %s was not seen", uid)
				}
				attempt, _ := pod.Judge(a.answer(act), act, failures[uid], s.Now)
				if attempt.Failed != "" {
					failures[uid]++
				} else {
					failures[uid] = 0
				}
				attempts[uid] = attempt
			}
			a.elapse(time.Duration(rapid.IntRange(0, 3).Draw(t, "elapses")) * time.Second)
			for _, key := range slices.Sorted(maps.Keys(a.budgets)) {
				if turn > 200 || rapid.Bool().Draw(t, "count") {
					a.count(a.budgets[key])
				}
			}
		}
	})
}
