package pod

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	fakekube "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	kubetesting "k8s.io/client-go/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/cordon"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/drainconfig"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/worker"
)

// newController is a controller with one turn, on an API that has the core Node n1 and a drain of it with the slot.
func newController(d *v1alpha1.Drain) *Controller {
	settings := &v1alpha1.Settings{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SettingsName}}
	settings.Status.ActiveDrain = &v1alpha1.ActiveDrain{Name: d.Name, UID: string(d.UID), Node: "n1"}
	api := fake.NewClientBuilder().WithScheme(kubeclient.NewScheme()).WithStatusSubresource(&v1alpha1.Drain{}).
		WithObjects(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, settings, d).Build()
	return &Controller{
		CheckTerm: func(context.Context) error { return nil }, Log: slog.New(slog.DiscardHandler),
		client: api, cached: api, live: api, turns: newTurns(1), clock: kubeclient.NewServerClock(),
	}
}

func drainOf(node string) *v1alpha1.Drain {
	return &v1alpha1.Drain{ObjectMeta: metav1.ObjectMeta{Name: "d", UID: "uid-d"}, Spec: v1alpha1.DrainSpec{NodeName: node}}
}

// read reads a drain as the API has it.
func read(t *testing.T, c *Controller) *v1alpha1.Drain {
	t.Helper()
	d := &v1alpha1.Drain{}
	if err := c.live.Get(t.Context(), client.ObjectKey{Name: "d"}, d); err != nil {
		t.Fatal(err)
	}
	return d
}

func cordoned(t *testing.T, c *Controller) bool {
	t.Helper()
	n := &corev1.Node{}
	if err := c.live.Get(t.Context(), client.ObjectKey{Name: "n1"}, n); err != nil {
		t.Fatal(err)
	}
	return cordon.Is(n)
}

func TestADrainThatEndsWhileItWaitsForItsTurnCordonsNothing(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *Controller, *v1alpha1.Drain) error{
		"deleted": func(t *testing.T, c *Controller, d *v1alpha1.Drain) error { return c.client.Delete(t.Context(), d) },
		"cancelled": func(t *testing.T, c *Controller, d *v1alpha1.Drain) error {
			d.Spec.Cancelled = true
			return c.client.Update(t.Context(), d)
		},
	} {
		for _, held := range []bool{false, true} { // that of a health event has its finalizer from the start
			name := fmt.Sprintf("%s, held %t", name, held)
			t.Run(name, func(t *testing.T) {
				d := drainOf("n1")
				d.Status.Phase = v1alpha1.DrainPending
				if held {
					d.Finalizers = []string{v1alpha1.DrainFinalizer}
				}
				endsWhileItWaits(t, d, end)
			})
		}
	}
}

// endsWhileItWaits ends a drain while it waits for its turn.
func endsWhileItWaits(t *testing.T, d *v1alpha1.Drain, end func(*testing.T, *Controller, *v1alpha1.Drain) error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := newController(d)
		w := newNodeWorker(c, read(t, c))
		other := c.turns.ask(time.Time{}, func() {})
		w.look(t.Context()) // it waits for its turn
		if err := end(t, c, read(t, c)); err != nil {
			t.Fatal(err)
		}
		other.end()
		for range 4 {
			if next := w.look(t.Context()); next.Done || next.Err != nil {
				break
			}
		}
		if !w.turn.come() || cordoned(t, c) {
			t.Errorf("it had its turn: %t; the node is cordoned: %t", w.turn.come(), cordoned(t, c))
		}
		w.endTurn()
	})
}

// Hundreds of drains may wait for their turn, while the API server is what bounds them.
func TestADrainIsNotReadAgainAfterItsTurnIfItIsWrittenFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := drainOf("n1")
		d.Status.Phase = v1alpha1.DrainPending
		c := newController(d)
		w := newNodeWorker(c, read(t, c))
		reads, api := 0, c.live
		c.live = interceptor.NewClient(api.(client.WithWatch), interceptor.Funcs{Get: func(ctx context.Context, of client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if _, ok := o.(*v1alpha1.Drain); ok {
				reads++
			}
			return of.Get(ctx, key, o, opts...)
		}})
		other := c.turns.ask(time.Time{}, func() {})
		w.look(t.Context()) // it waits for its turn
		other.end()
		w.look(t.Context())
		w.look(t.Context())
		c.live = api
		if !controllerutil.ContainsFinalizer(read(t, c), v1alpha1.DrainFinalizer) || reads > 0 {
			t.Errorf("the drain was read %d times; it is %+v", reads, read(t, c).ObjectMeta)
		}
		w.endTurn()
	})
}

func TestADrainThatWaitsForItsTurnSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := drainOf("n1")
		d.Status.Phase = v1alpha1.DrainPending
		c := newController(d)
		w := newNodeWorker(c, read(t, c))
		c.turns = newTurns(0)
		for _, want := range []time.Duration{turnNotice, worker.Forever} {
			next := w.look(t.Context())
			if next.Err != nil || next.Done || next.In != want {
				t.Fatalf("%+v", next)
			}
			time.Sleep(turnNotice)
		}
		pods := read(t, c).Status.Pods
		if pods == nil || len(pods.Blockers) != 1 || pods.Blockers[0].Reason != WaitsBegin || time.Since(pods.Blockers[0].Since.Time) < 2*turnNotice {
			t.Errorf("the drain says %+v", pods)
		}
		d = read(t, c)
		d.Spec.Cancelled = true
		if err := c.client.Update(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		w.See(d)
		if next := w.look(t.Context()); next.Err != nil || w.turn.come() || cordoned(t, c) {
			t.Errorf("a cancelled drain does not end before its turn: %+v", next)
		}
	})
}

// A drain of Ebb's own work that is queued can be deleted at any time: only its finalizer lets the coordinator lift its cordon then.
func TestADrainIsHeldBeforeItCordons(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := drainOf("n1")
		d.Status.Phase, d.Status.StartedAt = v1alpha1.DrainPending, nil
		c := newController(d)
		w := newNodeWorker(c, read(t, c))
		for _, want := range []struct{ held, cordoned bool }{{true, false}, {true, true}} {
			if next := w.look(t.Context()); next.Err != nil {
				t.Fatal(next.Err)
			}
			if held := len(read(t, c).Finalizers) > 0; held != want.held || cordoned(t, c) != want.cordoned {
				t.Errorf("held %t, cordoned %t, want %+v", held, cordoned(t, c), want)
			}
		}
		w.endTurn()
	})
}

func TestACancelledDrainEndsByTheClockByWhichItBegan(t *testing.T) {
	d := drainOf("n1")
	server := time.Date(2031, 1, 2, 3, 4, 5, 0, time.UTC)
	began := metav1.NewTime(server.Add(-time.Minute))
	d.Finalizers = []string{v1alpha1.DrainFinalizer}
	d.Spec.Cancelled, d.Status.Phase, d.Status.Scope, d.Status.StartedAt = true, v1alpha1.DrainDraining, v1alpha1.ScopePods, &began
	c := newController(d)
	c.clock.See(server, time.Now())
	if next := newNodeWorker(c, read(t, c)).look(t.Context()); next.Err != nil {
		t.Fatal(next.Err)
	}
	got := read(t, c)
	if at := got.Status.FinishedAt; got.Status.Phase != v1alpha1.DrainCancelled || at == nil || at.Time.Before(server) || at.Time.After(server.Add(time.Hour)) {
		t.Errorf("the drain is %s and ended at %v, want about %s", got.Status.Phase, at, server)
	}
}

// The names of evicted pods are bounded, and every pod counts once.
func TestManyEvictedPodsAreCountedOnce(t *testing.T) {
	d := drainOf("n1")
	d.Status.Pods = &v1alpha1.PodsStatus{}
	now := time.Now()
	var sent []Action
	plan := Plan{}
	for i := range 3 * maxNamed {
		p := &Pod{Namespace: "default", Name: fmt.Sprintf("p%d", i), UID: types.UID(fmt.Sprint(i)), Deleted: now, Evicted: true}
		sent = append(sent, Action{Verb: Evict, Pod: p})
		plan.Actions = append(plan.Actions, Action{Verb: Wait, Pod: p})
	}
	observe(d, Snapshot{Now: now}, plan, sent, now)
	for range 3 {
		observe(d, Snapshot{Now: now}, plan, nil, now)
	}
	if st := d.Status.Pods; st.Evicted != 3*maxNamed || len(st.EvictedPods) != maxNamed {
		t.Errorf("%d evicted, %d named", st.Evicted, len(st.EvictedPods))
	}
}

// A person who uncordons a node wants it back, also before the pods were listed: they may never be, because the coordinator has no right to.
func TestANodeThatIsUncordonedBeforeItsPodsAreListedIsNotCordonedAgain(t *testing.T) {
	for name, alone := range map[string]bool{"pods alone": true, "queued for the slot": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := drainOf("n1")
				c := newController(d)
				if alone {
					releaseSlot(t, c)
				} else {
					d = read(t, c)
					d.Status.Phase = v1alpha1.DrainPending
					if err := c.client.Status().Update(t.Context(), d); err != nil {
						t.Fatal(err)
					}
				}
				w := newNodeWorker(c, read(t, c))
				for range 2 { // it is held, then its node is cordoned
					if next := w.look(t.Context()); next.Err != nil {
						t.Fatal(next.Err)
					}
				}
				if !cordoned(t, c) {
					t.Fatal("the node is not cordoned")
				}
				changeNode(t, c, func(n *corev1.Node) { // and the coordinator has removed the owners
					cordon.Set(n, false)
					v1alpha1.SetCordonOwners(n, nil)
				})
				if next := w.look(t.Context()); next.Err != nil || cordoned(t, c) {
					t.Errorf("%+v; the node is cordoned: %t", next, cordoned(t, c))
				}
				if got := read(t, c).Status.Phase; alone && got != v1alpha1.DrainCancelled {
					t.Errorf("the drain is %q", got)
				}
				w.endTurn()
			})
		})
	}
}

func TestADrainThatMayNotCordonItsNodeSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newController(drainOf("n1"))
		releaseSlot(t, c)
		refused, api := true, c.client.(client.WithWatch)
		c.client = interceptor.NewClient(api, interceptor.Funcs{Update: func(ctx context.Context, to client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			if _, node := o.(*corev1.Node); node && refused {
				return apierrors.NewForbidden(corev1.Resource("nodes"), "n1", errors.New("a webhook says no"))
			}
			return to.Update(ctx, o, opts...)
		}})
		w := newNodeWorker(c, read(t, c))
		for range 3 {
			w.look(t.Context())
			time.Sleep(2 * writeEvery)
		}
		st := read(t, c).Status
		if st.Pods == nil || len(st.Pods.Blockers) != 1 || st.Pods.Blockers[0].Reason != WaitsCordon || len(st.Blockers) != 1 || !strings.Contains(st.Pods.Blockers[0].Message, "a webhook says no") {
			t.Errorf("the status is %+v", st)
		}
		refused = false
		if next := w.look(t.Context()); next.Err != nil || !cordoned(t, c) {
			t.Errorf("%+v; the node is cordoned: %t", next, cordoned(t, c))
		}
		w.endTurn()
	})
}

// The node of a drain is quarantined, or another drain of it has just been cancelled: its cordon would be lifted under the drain.
func TestADrainBecomesAnOwnerOfACordonThatEbbWouldLift(t *testing.T) {
	for name, c := range map[string]struct {
		owners []string
		event  string
		want   []string
	}{
		"cordoned by Ebb":              {[]string{"uid-e"}, "", []string{"uid-d", "uid-e"}},
		"cordoned by a person":         {nil, "", nil},
		"quarantined by its own event": {[]string{"uid-e"}, "uid-e", []string{"uid-e"}},
		"cordoned by Ebb and a person": {[]string{v1alpha1.CordonPerson, "uid-e"}, "", []string{v1alpha1.CordonPerson, "uid-d", "uid-e"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := drainOf("n1")
				d.Annotations = map[string]string{v1alpha1.HealthEventAnnotation: c.event}
				api := newController(d)
				releaseSlot(t, api)
				changeNode(t, api, func(n *corev1.Node) {
					cordon.Set(n, true)
					v1alpha1.SetCordonOwners(n, c.owners)
				})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				w := newNodeWorker(api, read(t, api))
				w.kube, w.budgets, w.term, w.ctx = fakekube.NewClientset(), &budgetWatch{kube: fakekube.NewClientset(), changed: func(string) {}}, ctx, ctx
				for range 3 {
					if next := w.look(ctx); next.Err != nil {
						t.Fatal(next.Err)
					}
				}
				n := &corev1.Node{}
				if err := api.live.Get(ctx, client.ObjectKey{Name: "n1"}, n); err != nil {
					t.Fatal(err)
				}
				if got := v1alpha1.CordonOwners(n); !cordon.Is(n) || !slices.Equal(got, c.want) {
					t.Errorf("cordoned %t by %q, want %q", cordon.Is(n), got, c.want)
				}
				w.endTurn()
				cancel()
				synctest.Wait()
			})
		})
	}
}

// A new coordinator may list core Nodes from a cache of the API server that is older than the drain.
func TestAnOldCacheDoesNotCancelADrain(t *testing.T) {
	began := metav1.Now()
	d := drainOf("n1")
	d.Finalizers = []string{v1alpha1.DrainFinalizer}
	d.Status.Phase, d.Status.Scope, d.Status.StartedAt = v1alpha1.DrainDraining, v1alpha1.ScopePods, &began
	d.Status.Pods = &v1alpha1.PodsStatus{StartedAt: &metav1.MicroTime{Time: began.Time}}
	c := newController(d)
	c.cached = newController(d).client
	changeNode(t, c, func(n *corev1.Node) { cordon.Add(n, "uid-d") })
	if next := newNodeWorker(c, read(t, c)).look(t.Context()); next.Err != nil {
		t.Fatal(next.Err)
	}
	if got := read(t, c).Status.Phase; got != v1alpha1.DrainDraining {
		t.Errorf("the drain is %s", got)
	}
}

// Evictions that wait for a free place when the drain is cancelled are not sent.
func TestNothingIsSentAfterACancellation(t *testing.T) {
	d := drainOf("n1")
	d.Spec.Cancelled, d.Status.Phase = true, v1alpha1.DrainDraining
	c := newController(d)
	requests := c.serve(t, func(http.ResponseWriter, *http.Request) {})
	c.places = make(chan struct{}, 1)
	c.places <- struct{}{} // another drain's
	w := newNodeWorker(c, read(t, c))
	w.underway = 1
	w.running.Add(1)
	over := make(chan struct{})
	go func() {
		defer close(over)
		w.request(t.Context(), Action{Verb: Evict, Pod: &Pod{Namespace: "default", Name: "a", UID: "uid-a"}})
	}()
	if next := w.look(t.Context()); next.Err != nil || next.Done {
		t.Fatalf("%+v", next)
	}
	<-c.places
	<-over
	if n := requests.Load(); n > 0 || w.busy() || w.sentAny() {
		t.Errorf("%d requests were sent; busy: %t", n, w.busy())
	}
}

// The pods of a budget are listed at most every two seconds. A budget that changed in between is explained after that, whether it changes again or
// not.
func TestAnExplanationThatIsOutOfDateIsRenewed(t *testing.T) {
	c := newController(drainOf("n1"))
	requests := c.serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"kind":"PodList","apiVersion":"v1","items":[{"metadata":{"namespace":"default","name":"b"}}]}`)
	})
	w := newNodeWorker(c, read(t, c))
	s := w.now()
	s.Pods = []*Pod{{Namespace: "default", Name: "a", UID: "uid-a", Phase: corev1.PodRunning, Ready: true}}
	s.Budgets = []*Budget{{Namespace: "default", Name: "x", Version: "2", Selects: labels.Everything(), Observed: true, Healthy: 1, Desired: 1, Expected: 2}}
	w.unready["default/x"] = explanation{version: "1", at: s.Now.Add(-time.Second)}
	s.Unready = map[string][]string{}
	if w.explain(t.Context(), &s); requests.Load() > 0 || !w.explains.Equal(s.Now.Add(explainEvery-time.Second)) {
		t.Errorf("%d requests; renewed at %s, now it is %s", requests.Load(), w.explains, s.Now)
	}
	s.Now = w.explains
	if w.explain(t.Context(), &s); requests.Load() != 1 || !w.explains.IsZero() || !slices.Equal(s.Unready["default/x"], []string{"b"}) {
		t.Errorf("%d requests; renewed at %s, %v", requests.Load(), w.explains, s.Unready)
	}
}

// The coordinator ends a drain of Ebb's own work while an eviction of it is on its way.
func TestADrainThatWasEndedElsewhereStillSaysWhatItEvicted(t *testing.T) {
	d := drainOf("n1")
	d.Status.Phase, d.Status.Pods = v1alpha1.DrainCancelled, &v1alpha1.PodsStatus{Evicted: 1, EvictedPods: []string{"default/a"}}
	c := newController(d)
	w := newNodeWorker(c, read(t, c))
	w.underway = 1
	if next := w.look(t.Context()); next.Err != nil || next.Done {
		t.Fatalf("it does not wait for its request: %+v", next)
	}
	w.underway, w.sent = 0, []Action{{Verb: Evict, Pod: &Pod{Namespace: "default", Name: "b", UID: "uid-b"}}}
	if next := w.look(t.Context()); next.Err != nil || !next.Done {
		t.Fatalf("%+v", next)
	}
	if st := read(t, c).Status.Pods; st.Evicted != 2 || !slices.Equal(st.EvictedPods, []string{"default/a", "default/b"}) {
		t.Errorf("the status is %+v", st)
	}
}

// A pod may be gone before the answer to its eviction is.
func TestADrainCountsTheEvictionsThatAreUnderWayWhenItsPodsAreGone(t *testing.T) {
	w, d := finishing(t, nil)
	w.underway = 1
	if next, err := w.finish(t.Context(), d, true, w.now()); err != nil || next.Done {
		t.Fatalf("%+v, %v", next, err)
	}
	if got := read(t, w.Controller); got.Status.Phase != v1alpha1.DrainDraining {
		t.Fatalf("the drain is %s", got.Status.Phase)
	}
	w.underway, w.sent = 0, []Action{{Verb: Evict, Pod: &Pod{Namespace: "default", Name: "b", UID: "uid-b"}}}
	if _, err := w.finish(t.Context(), d, true, w.now()); err != nil {
		t.Fatal(err)
	}
	if got := read(t, w.Controller); got.Status.Phase != v1alpha1.DrainComplete || got.Status.Pods.Evicted != 1 {
		t.Errorf("the drain is %+v", got.Status)
	}
}

func TestADrainThatWouldCompleteReadsTheNodeFromTheServer(t *testing.T) {
	for name, c := range map[string]struct {
		gone   bool
		change func(*corev1.Node)
		reason string
		phase  v1alpha1.DrainPhase
	}{
		"it was uncordoned": {false, func(n *corev1.Node) { cordon.Set(n, false) }, v1alpha1.ReasonUncordoned, v1alpha1.DrainCancelled},
		"another one has its name": {false, func(n *corev1.Node) {
			cordon.Set(n, false)
			n.CreationTimestamp = metav1.NewTime(time.Now().Add(time.Hour))
		}, v1alpha1.ReasonNodeReplaced, v1alpha1.DrainCancelled},
		"it is there, and was not noticed": {true, func(*corev1.Node) {}, v1alpha1.ReasonDrained, v1alpha1.DrainComplete},
	} {
		t.Run(name, func(t *testing.T) {
			w, d := finishing(t, nil)
			changeNode(t, w.Controller, c.change)
			s := w.now()
			s.NodeGone = c.gone
			if _, err := w.finish(t.Context(), d, true, s); err != nil {
				t.Fatal(err)
			}
			got := read(t, w.Controller)
			if end := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.DrainFinished); got.Status.Phase != c.phase || end.Reason != c.reason {
				t.Errorf("the drain is %+v", got.Status)
			}
		})
	}
}

// The right to list pods was taken away while the drain ran: its watch shows that none is left, and that may be old.
func TestADrainThatMayNotListPodsAtItsEndSaysSo(t *testing.T) {
	w, d := finishing(t, nil)
	kube := fakekube.NewClientset()
	refused := true
	kube.PrependReactor("list", "pods", func(kubetesting.Action) (bool, runtime.Object, error) {
		if !refused {
			return false, nil, nil
		}
		return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("no such right"))
	})
	w.kube = kube
	if _, err := w.finish(t.Context(), d, true, w.now()); err == nil {
		t.Error("it ended")
	}
	st := read(t, w.Controller).Status
	if st.Phase != v1alpha1.DrainDraining || len(st.Blockers) != 1 || st.Blockers[0].Reason != WaitsList || !strings.Contains(st.Blockers[0].Remedy, "grant the coordinator the permission to list and watch pods") {
		t.Errorf("the status is %+v", st)
	}
	refused = false
	if _, err := w.finish(t.Context(), read(t, w.Controller), true, w.now()); err != nil || read(t, w.Controller).Status.Phase != v1alpha1.DrainComplete {
		t.Errorf("%v, %+v", err, read(t, w.Controller).Status)
	}
}

func TestADrainOfPodsAloneCompletesOnlyIfTheServerHasNoWorkOfEbbOnItsNode(t *testing.T) {
	w, d := finishing(t, func(c *Controller) {
		server := c.live
		c.Tenants = func(r client.Reader) []drain.Tenant { return []drain.Tenant{placed(r == server)} }
	})
	if err := w.client.Create(t.Context(), &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}); err != nil {
		t.Fatal(err)
	}
	w.cached = struct{ client.Reader }{w.live} // another reader of the same objects
	if _, err := w.finish(t.Context(), d, true, w.now()); err != nil {
		t.Fatal(err)
	}
	if got := read(t, w.Controller); got.Status.Phase != v1alpha1.DrainDraining || len(got.Status.Blockers) != 1 || got.Status.Blockers[0].Reason != WaitsWork {
		t.Errorf("the drain is %+v", got.Status)
	}
}

// placed is a kind of work of which there may be one piece on every node.
type placed bool

func (placed) Work() drain.Work { return drain.Work{Name: "toys"} }

func (p placed) Remaining(context.Context, string) (drain.Remaining, error) {
	if p {
		return drain.Remaining{Count: 1}, nil
	}
	return drain.Remaining{}, nil
}

// A drain whose finalizer somebody removed by hand, and another one of the same name.
func TestADrainOfTheSameNameEndsTheWorkerOfTheOneBefore(t *testing.T) {
	d := drainOf("n1")
	d.UID, d.Status.Phase = "uid-2", v1alpha1.DrainFailed
	c := newController(d)
	old := newNodeWorker(c, drainOf("n1"))
	c.workers = map[types.UID]*nodeWorker{"uid-d": old}
	if _, err := c.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: "d"}}); err != nil {
		t.Fatal(err)
	}
	if _, deleted := old.Newest(); !deleted {
		t.Error("it goes on")
	}
}

// finishing is the worker of a drain of pods alone, on whose node no pod is left.
func finishing(t *testing.T, change func(*Controller)) (*nodeWorker, *v1alpha1.Drain) {
	t.Helper()
	began := metav1.Now()
	d := drainOf("n1")
	d.Finalizers = []string{v1alpha1.DrainFinalizer}
	d.Status.Phase, d.Status.Scope, d.Status.StartedAt = v1alpha1.DrainDraining, v1alpha1.ScopePods, &began
	d.Status.Pods = &v1alpha1.PodsStatus{StartedAt: &metav1.MicroTime{Time: began.Time}, Remaining: 1, Initial: 1}
	c := newController(d)
	releaseSlot(t, c)
	changeNode(t, c, func(n *corev1.Node) { cordon.Add(n, "uid-d") })
	c.serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"kind":"PodList","apiVersion":"v1","items":[]}`)
	})
	if change != nil {
		change(c)
	}
	return newNodeWorker(c, read(t, c)), read(t, c)
}

// now is a snapshot without pods.
func (w *nodeWorker) now() Snapshot {
	return Snapshot{Now: time.Now(), Node: w.node, Config: drainconfig.Default(), TerminatingFor: time.Minute}
}

// serve makes a server answer the requests about pods, and counts them.
func (c *Controller) serve(t *testing.T, answer http.HandlerFunc) *atomic.Int64 {
	t.Helper()
	var requests atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		answer(w, r)
	}))
	t.Cleanup(server.Close)
	var err error
	cfg := &rest.Config{Host: server.URL}
	cfg.Wrap(c.clock.Watch)
	if c.kube, err = kubernetes.NewForConfig(cfg); err != nil {
		t.Fatal(err)
	}
	c.Metrics = NewMetrics(prometheus.NewRegistry())
	return &requests
}

// releaseSlot takes the slot from the drain.
func releaseSlot(t *testing.T, c *Controller) {
	t.Helper()
	settings := &v1alpha1.Settings{}
	if err := c.live.Get(t.Context(), client.ObjectKey{Name: v1alpha1.SettingsName}, settings); err != nil {
		t.Fatal(err)
	}
	settings.Status.ActiveDrain = nil
	if err := c.client.Update(t.Context(), settings); err != nil {
		t.Fatal(err)
	}
}

// changeNode changes the core Node n1.
func changeNode(t *testing.T, c *Controller, change func(*corev1.Node)) {
	t.Helper()
	n := &corev1.Node{}
	if err := c.live.Get(t.Context(), client.ObjectKey{Name: "n1"}, n); err != nil {
		t.Fatal(err)
	}
	change(n)
	if err := c.client.Update(t.Context(), n); err != nil {
		t.Fatal(err)
	}
}

// Its pods were never listed.
func TestACancelledDrainThatHadOnlyABlockerHasNotBegun(t *testing.T) {
	d := drainOf("n1")
	d.Finalizers, d.Spec.Cancelled = []string{v1alpha1.DrainFinalizer}, true
	d.Status.Pods = &v1alpha1.PodsStatus{Blockers: []v1alpha1.PodBlocker{notCordoned("n1", errors.New("no"))}}
	c := newController(d)
	releaseSlot(t, c)
	if next := newNodeWorker(c, read(t, c)).look(t.Context()); next.Err != nil {
		t.Fatal(next.Err)
	}
	if got := read(t, c).Status; got.Phase != v1alpha1.DrainCancelled || got.Pods.StartedAt != nil {
		t.Errorf("the drain is %s, and its pods were listed at %v", got.Phase, got.Pods.StartedAt)
	}
}

func TestADrainThatFailsAtItsDeadlineCountsTheEvictionsThatAreUnderWay(t *testing.T) {
	w, d := finishing(t, nil)
	w.term, w.ctx, w.Config, w.underway = t.Context(), t.Context(), drainconfig.Default(), 1
	d.Spec.Deadline = &metav1.Duration{Duration: time.Nanosecond}
	if err := w.client.Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	w.See(d)
	w.kube = fakekube.NewClientset(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", UID: "uid-a"}, Spec: corev1.PodSpec{NodeName: "n1"}})
	w.budgets = &budgetWatch{kube: w.kube, changed: func(string) {}}
	for range 100 {
		if next := w.look(t.Context()); next.Err != nil || next.Done {
			t.Fatalf("it does not wait for its request: %+v", next)
		}
		if read(t, w.Controller).Status.Phase == v1alpha1.DrainFailed {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	w.underway, w.sent = 0, []Action{{Verb: Evict, Pod: &Pod{Namespace: "default", Name: "b", UID: "uid-b"}}}
	if next := w.look(t.Context()); next.Err != nil || !next.Done {
		t.Fatalf("%+v", next)
	}
	if got := read(t, w.Controller).Status; got.Phase != v1alpha1.DrainFailed || got.Pods.Evicted != 1 {
		t.Errorf("the drain is %+v", got)
	}
}

// The API refuses the cordon, lists nothing, or other drains begin first: the deadline runs all the same, by the clock of the API server.
func TestADrainOfPodsAloneThatCannotBeginFailsAtItsDeadline(t *testing.T) {
	for name, c := range map[string]struct {
		waits    func(context.Context, *Controller)
		reason   string
		cordoned bool
	}{
		"the cordon is refused": {func(_ context.Context, c *Controller) {
			c.client = interceptor.NewClient(c.client.(client.WithWatch), interceptor.Funcs{Update: func(ctx context.Context, to client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
				if _, node := o.(*corev1.Node); node {
					return apierrors.NewForbidden(corev1.Resource("nodes"), "n1", errors.New("a webhook says no"))
				}
				return to.Update(ctx, o, opts...)
			}})
		}, WaitsCordon, false},
		"the pods are not listed": {func(ctx context.Context, c *Controller) {
			kube := fakekube.NewClientset()
			kube.PrependReactor("list", "pods", func(kubetesting.Action) (bool, runtime.Object, error) {
				<-ctx.Done()
				return false, nil, nil
			})
			c.kube = kube
		}, WaitsList, true},
		"others begin first": {func(_ context.Context, c *Controller) { c.turns = newTurns(0) }, WaitsBegin, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				server := time.Date(2031, 1, 2, 3, 4, 5, 0, time.UTC) // the coordinator's clock is wrong by years
				d := drainOf("n1")
				d.CreationTimestamp, d.Spec.Deadline = metav1.NewTime(server), &metav1.Duration{Duration: time.Minute}
				api := newController(d)
				releaseSlot(t, api)
				api.clock.See(server, time.Now())
				api.kube = fakekube.NewClientset()
				c.waits(ctx, api)
				api.term, api.budgets = ctx, &budgetWatch{kube: fakekube.NewClientset(), changed: func(string) {}}
				w, began, over := newNodeWorker(api, read(t, api)), time.Now(), make(chan struct{})
				go func() {
					defer close(over)
					w.run(ctx)
				}()
				time.Sleep(time.Minute - time.Second)
				synctest.Wait()
				if got := read(t, api).Status; got.Phase.Final() || len(got.Blockers) != 1 || got.Blockers[0].Reason != c.reason {
					t.Errorf("before its deadline the status is %+v", got)
				}
				<-over
				got := read(t, api).Status
				end := meta.FindStatusCondition(got.Conditions, v1alpha1.DrainFinished)
				if took := time.Since(began); got.Phase != v1alpha1.DrainFailed || end.Reason != v1alpha1.ReasonDeadlineExceeded || took > time.Minute+6*time.Second {
					t.Errorf("after %s the drain is %s: %+v", took, got.Phase, end)
				}
				if len(got.Blockers) != 1 || got.Blockers[0].Reason != c.reason || got.Pods.StartedAt != nil || cordoned(t, api) != c.cordoned {
					t.Errorf("it keeps %+v and %+v; the node is cordoned: %t", got.Blockers, got.Pods, cordoned(t, api))
				}
				if !strings.HasPrefix(end.Message, "The drain of node n1 could not begin within 1m0s: ") || strings.Contains(end.Message, "It stays cordoned") != c.cordoned {
					t.Errorf("it says %q", end.Message)
				}
				cancel()
				synctest.Wait()
			})
		})
	}
}

// Before a drain has cordoned its node nothing was asked of the API server that shows its clock.
func TestADeadlineAsksTheAPIServerForItsClock(t *testing.T) {
	d := drainOf("n1")
	d.CreationTimestamp, d.Spec.Deadline = metav1.NewTime(time.Now().Add(-time.Hour)), &metav1.Duration{Duration: time.Minute}
	c := newController(d)
	releaseSlot(t, c)
	requests := c.serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	if next := newNodeWorker(c, read(t, c)).look(t.Context()); next.Err != nil || requests.Load() != 1 {
		t.Fatalf("%+v after %d requests", next, requests.Load())
	}
	if got := read(t, c).Status.Phase; got != v1alpha1.DrainFailed {
		t.Errorf("the drain is %q", got)
	}
}

// The coordinator before evicted a pod, and its term ended before it could write that down.
func TestTheNextCoordinatorCountsPodsThatAreTerminatingBecauseTheyWereEvicted(t *testing.T) {
	evicted := `{"metadata":{"namespace":"default","name":"a","uid":"uid-a","deletionTimestamp":"2031-01-02T03:04:05Z"},"spec":{"nodeName":"n1"},
		"status":{"conditions":[{"type":"DisruptionTarget","status":"True","reason":"EvictionByEvictionAPI"}]}}`
	deleted := `{"metadata":{"namespace":"default","name":"b","uid":"uid-b","deletionTimestamp":"2031-01-02T03:04:05Z"},"spec":{"nodeName":"n1"}}`
	for name, known := range map[string][]string{"not written down": nil, "written down": {"default/a"}} {
		t.Run(name, func(t *testing.T) {
			w, d := finishing(t, nil)
			w.Config = drainconfig.Default()
			w.serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprintf(w, `{"kind":"PodList","apiVersion":"v1","items":[%s,%s]}`, evicted, deleted)
			})
			d.Status.Pods.EvictedPods, d.Status.Pods.Evicted = known, int64(len(known))
			if err := w.client.Status().Update(t.Context(), d); err != nil {
				t.Fatal(err)
			}
			d.Spec.Cancelled = true
			if err := w.client.Update(t.Context(), d); err != nil {
				t.Fatal(err)
			}
			w.See(d)
			if next := w.look(t.Context()); next.Err != nil {
				t.Fatal(next.Err)
			}
			got := read(t, w.Controller).Status
			end := meta.FindStatusCondition(got.Conditions, v1alpha1.DrainFinished)
			if got.Phase != v1alpha1.DrainCancelled || got.Pods.Evicted != 1 || !slices.Equal(got.Pods.EvictedPods, []string{"default/a"}) || !strings.Contains(end.Message, "1 pod was evicted before: default/a.") {
				t.Errorf("the drain is %+v: %+v", got, got.Pods)
			}
		})
	}
}

// The coordinator before evicted pods in the last moment of its term and wrote none of them down, and they are gone when the next one lists pods.
func TestTheNextCoordinatorCountsPodsThatWereEvictedAndAreGone(t *testing.T) {
	for name, end := range map[string]struct {
		cancelled bool
		phase     v1alpha1.DrainPhase
	}{"it goes on": {false, v1alpha1.DrainComplete}, "it was cancelled meanwhile": {true, v1alpha1.DrainCancelled}} {
		t.Run(name, func(t *testing.T) {
			w, d := finishing(t, nil)
			w.term, w.ctx, w.Config = t.Context(), t.Context(), drainconfig.Default()
			d.Status.Pods.LeavingPods, d.Status.Pods.EvictedPods, d.Status.Pods.Evicted = []string{"default/a", "default/b"}, []string{"default/b", "default/c"}, 2
			if err := w.client.Status().Update(t.Context(), d); err != nil {
				t.Fatal(err)
			}
			d.Spec.Cancelled = end.cancelled
			if err := w.client.Update(t.Context(), d); err != nil {
				t.Fatal(err)
			}
			w.See(d)
			w.kube = fakekube.NewClientset()
			w.budgets = &budgetWatch{kube: w.kube, changed: func(string) {}}
			for range 200 {
				if next := w.look(t.Context()); next.Err != nil || next.Done {
					t.Fatalf("%+v", next)
				}
				if read(t, w.Controller).Status.Phase.Final() {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			got := read(t, w.Controller).Status
			if got.Phase != end.phase || got.Pods.Evicted != 3 || !slices.Equal(got.Pods.EvictedPods, []string{"default/a", "default/b", "default/c"}) || len(got.Pods.LeavingPods) > 0 {
				t.Errorf("the drain is %+v: %+v", got, got.Pods)
			}
		})
	}
}

// What may be evicted before the next write is in the write before it; a pod that nobody will evict is not.
func TestADrainWritesDownWhichPodsMayLeave(t *testing.T) {
	config, err := drainconfig.Parse("drain.toml", []byte("[[userNamespaces]]\nname = \"*\"\nmode = \"Immediate\"\n[[userNamespaces]]\nname = \"jobs\"\nmode = \"AllowCompletion\"\n"))
	if err != nil {
		t.Fatal(err)
	}
	pod := func(namespace, name string) *Pod {
		return &Pod{Namespace: namespace, Name: name, UID: types.UID(name), Phase: corev1.PodRunning, Ready: true, Labels: map[string]string{"app": name}}
	}
	terminating, back := pod("default", "terminating"), pod("default", "back")
	terminating.Deleted, back.Tolerates = time.Now().Add(time.Minute), true
	s := Snapshot{
		Now: time.Now(), Node: "n1", Config: config, TerminatingFor: time.Minute, Arrived: map[types.UID]bool{"back": true},
		Attempts: map[types.UID]Attempt{"underway": {Accepted: true}},
		Pods:     []*Pod{pod("default", "now"), pod("default", "underway"), pod("default", "busy"), pod("default", "never"), pod("jobs", "job"), pod("kube-system", "dns"), terminating, back},
		Budgets: []*Budget{
			{Namespace: "default", Name: "full", Version: "1", Selects: labels.SelectorFromSet(labels.Set{"app": "busy"}), Observed: true, Healthy: 1, Desired: 1, Expected: 2},
			{Namespace: "default", Name: "never", Version: "1", Selects: labels.SelectorFromSet(labels.Set{"app": "never"}), Observed: true, Never: true},
		},
	}
	d := drainOf("n1")
	observe(d, s, Evaluate(s), nil, time.Time{})
	if got, want := d.Status.Pods.LeavingPods, []string{"default/busy", "default/now", "default/underway"}; !slices.Equal(got, want) {
		t.Errorf("%q may leave, want %q", got, want)
	}
	observe(d, s, Evaluate(s), []Action{{Verb: Evict, Pod: s.Pods[0]}}, time.Now())
	if got, want := d.Status.Pods.LeavingPods, []string{"default/busy", "default/underway"}; !slices.Equal(got, want) {
		t.Errorf("after an eviction %q may leave, want %q", got, want)
	}
}
