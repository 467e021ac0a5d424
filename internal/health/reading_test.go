package health

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/drainconfig"
	"github.com/ebb-dev/ebb/internal/events"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
)

// sickNode is an event that keeps a node in quarantine, and its Drain.
func sickNode(name string) (*v1alpha1.HealthEvent, *v1alpha1.Drain) {
	d := &v1alpha1.Drain{ObjectMeta: metav1.ObjectMeta{Name: "health-" + name, UID: types.UID("drain-of-" + name)}, Spec: v1alpha1.DrainSpec{NodeName: name}}
	e := &v1alpha1.HealthEvent{ObjectMeta: metav1.ObjectMeta{Name: "e-" + name}, Spec: v1alpha1.HealthEventSpec{NodeName: name, CheckName: "c"}}
	e.Status.NodeQuarantined = v1alpha1.Quarantined
	e.Status.UserPodsEvictionStatus = &v1alpha1.EvictionStatus{Status: v1alpha1.EvictionInProgress}
	e.Status.Drain = &v1alpha1.HealthDrain{Name: d.Name, UID: string(d.UID), Number: 1}
	return e, d
}

// The next step of a turn rests on what the server has then of the node, and lists nothing again.
func TestTheNextStepSeesWhatHasChangedOnItsNode(t *testing.T) {
	settings := &v1alpha1.Settings{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SettingsName}}
	node, core := &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	only, gone := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w1"}}, &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}
	e1, d1 := sickNode("n1")
	e2, d2 := sickNode("n2")
	e3, d3 := sickNode("w1")
	held, _, err := lease.Take(nil, lease.Claimant{Node: "n1", Holder: "process", Floor: 2}, lease.DefaultTiming(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	store := fake.NewClientBuilder().WithScheme(kubeclient.NewScheme()).
		WithObjects(settings, node, core, only, gone, e1, e2, e3, d1, d2, d3).WithStatusSubresource(settings, d1).Build()
	api := &counting{Reader: store}
	c := &Controller{cached: store, live: api, Config: drainconfig.Default(), Core: true, Pods: true}
	ctx := t.Context()
	w, read, err := c.gather(ctx, true, nil, nil)
	if err != nil || w.Nodes["n1"] == nil || w.Nodes["n1"].Spec.Cordoned || !w.CoreOnly["w1"] || len(w.Drains) != 3 || w.Slot != nil || w.Live("n1") {
		t.Fatalf("%+v, %v", w, err)
	}
	if api.lists != 4 { // events, drains, nodes and leases
		t.Errorf("%d lists were read first", api.lists)
	}

	only.Spec.Unschedulable, node.Spec.Cordoned = true, true
	d1.Status.Phase = v1alpha1.DrainComplete
	settings.Status.ActiveDrain = &v1alpha1.ActiveDrain{Name: d1.Name, Node: "n1"}
	for _, err := range []error{
		store.Update(ctx, only), store.Update(ctx, node), store.Status().Update(ctx, d1), store.Delete(ctx, d2), store.Delete(ctx, gone), store.Status().Update(ctx, settings), store.Create(ctx, held),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	api.lists = 0
	w, again, err := c.gather(ctx, true, w.Events, read)
	switch {
	case err != nil:
		t.Fatal(err)
	case api.lists != 0:
		t.Errorf("%d lists were read again", api.lists)
	case !w.Nodes["n1"].Spec.Cordoned || !w.Nodes["w1"].Spec.Cordoned || w.Nodes["n2"] != nil:
		t.Errorf("the nodes are %+v", w.Nodes)
	case w.Slot == nil || w.Slot.Name != d1.Name || !w.Live("n1") || w.Leases["n1"].Epoch != 3:
		t.Errorf("slot %+v, leases %+v", w.Slot, w.Leases)
	case len(w.Drains) != 2 || w.drainByUID(string(d1.UID)).Status.Phase != v1alpha1.DrainComplete:
		t.Errorf("the drains are %+v", w.Drains)
	}
	if n := read.fleet.Nodes["n1"]; n.Spec.Cordoned || read.fleet.Nodes["n2"] == nil || len(read.drains) != 3 {
		t.Error("what was read before has changed")
	}

	again.at = again.at.Add(-2 * readFor)
	if _, _, err := c.gather(ctx, true, w.Events, again); err != nil || api.lists != 3 {
		t.Errorf("after a while %d lists were read, %v", api.lists, err)
	}
}

// If many nodes are concerned, lists cost less than their objects one by one.
func TestManyNodesAreListed(t *testing.T) {
	settings := &v1alpha1.Settings{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SettingsName}}
	objects := []client.Object{settings}
	for i := range readFew + 1 {
		e, _ := sickNode(fmt.Sprintf("n%d", i))
		objects = append(objects, e)
	}
	api := &counting{Reader: fake.NewClientBuilder().WithScheme(kubeclient.NewScheme()).WithObjects(objects...).Build()}
	c := &Controller{cached: api, live: api, Config: drainconfig.Default()}
	w, read, err := c.gather(t.Context(), true, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	api.gets, api.lists = 0, 0
	if _, _, err := c.gather(t.Context(), true, w.Events, read); err != nil || api.lists != 3 || api.gets != 1 {
		t.Errorf("%d lists and %d objects were read, %v", api.lists, api.gets, err)
	}
}

// Work of Ebb on a node matters when the pods have left: nobody asks for it while they leave.
func TestWorkIsNotCountedBeforeThePodsHaveLeft(t *testing.T) {
	core := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "w1"}}
	store := fake.NewClientBuilder().WithScheme(kubeclient.NewScheme()).WithObjects(core).Build()
	asked := 0
	c := &Controller{cached: store, live: store, Config: drainconfig.Default(), Tenants: func(client.Reader) []drain.Tenant {
		asked++
		return nil
	}}
	e, _ := sickNode("w1")
	for _, tc := range []struct {
		name  string
		pods  bool
		core  bool
		drain *v1alpha1.HealthDrain
		asks  bool
	}{
		{"its Drain is not named", true, true, nil, false},
		{"its Drain is running", true, true, &v1alpha1.HealthDrain{Name: "d", UID: "u", Number: 1}, false},
		{"its Drain is complete", true, true, &v1alpha1.HealthDrain{Name: "d", UID: "u", Number: 1, Phase: v1alpha1.DrainComplete}, true},
		{"it has no pods", true, false, nil, true},
		{"others move the pods", false, true, nil, true},
	} {
		asked = 0
		e.Status.Drain = tc.drain
		w := World{Now: time.Now(), Pods: tc.pods, Events: []*v1alpha1.HealthEvent{e}, Core: map[string]bool{"w1": tc.core}, Work: map[string]string{}}
		if c.gatherWork(t.Context(), store, &w); (asked > 0) != tc.asks {
			t.Errorf("%s: asked %d times", tc.name, asked)
		}
	}
}

// Ebb's Node shows a cordon of the core Node a moment later. Until then nothing can be decided about it, and the change begins a turn.
func TestACordonThatDoesNotShowYetIsWaitedFor(t *testing.T) {
	e := &v1alpha1.HealthEvent{
		ObjectMeta: metav1.ObjectMeta{Name: "e1", UID: "u1", Finalizers: []string{v1alpha1.HealthEventFinalizer}, CreationTimestamp: metav1.Now()},
		Spec:       v1alpha1.HealthEventSpec{NodeName: "n1", CheckName: "c", IsFatal: true},
	}
	core := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{Unschedulable: true}}
	v1alpha1.SetCordonOwners(core, []string{"u1"})
	node, settings := &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, &v1alpha1.Settings{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SettingsName}}
	store := fake.NewClientBuilder().WithScheme(kubeclient.NewScheme()).WithObjects(settings, node, core, e).WithStatusSubresource(e).Build()
	c := &Controller{
		client: store, cached: store, live: store, Config: drainconfig.Default(), Rules: &Rules{}, Core: true, Leader: "n2",
		CheckTerm: func(context.Context) error { return nil }, Log: slog.New(slog.DiscardHandler), record: events.Recorder{Client: store},
	}
	if again, err := c.Reconcile(t.Context(), ctrl.Request{}); err != nil || again.RequeueAfter != tryAgain {
		t.Errorf("the next turn is in %s, %v", again.RequeueAfter, err)
	}
	node.Spec.Cordoned = true
	v1alpha1.SetCordonOwners(node, []string{"u1"})
	if err := store.Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Reconcile(t.Context(), ctrl.Request{}); err != nil {
		t.Fatal(err)
	}
	if err := store.Get(t.Context(), client.ObjectKeyFromObject(e), e); err != nil || e.Status.NodeQuarantined != v1alpha1.Quarantined {
		t.Errorf("quarantined: %q, %v", e.Status.NodeQuarantined, err)
	}
}
