package node_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/datadir"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/node"
	"github.com/ebb-dev/ebb/internal/testenv"
)

func TestNode(t *testing.T) {
	api := testenv.StartAPI(t)
	for name, test := range map[string]func(*testing.T, *testenv.API){
		"joins and leaves in order":                                                        joinsAndLeaves,
		"a second process of the same directory is refused":                                secondProcess,
		"obeys wishes for its own epoch only":                                              obeysItsEpoch,
		"starts Draining while a drain holds it, and begins anew when none does":           startsDraining,
		"a marked epoch is never renewed, the node rejoins with the next":                  markedWhileAlive,
		"an epoch that is known to be over ends at once, without its grace":                overEndsAtOnce,
		"a jump of the wall clock ends the epoch, and one back does not":                   pausedMachine,
		"a Node object that vanishes under it is made again":                               nodeVanishes,
		"begins anew when somebody wrote a later epoch into its Node":                      laterEpochWritten,
		"begins anew when the store went back, though it has covered an object since":      storeWentBack,
		"an epoch that cannot be written down is not taken":                                fullDisk,
		"epochs go on from what the node's directory remembers":                            directoryRemembers,
		"waits while another machine holds its name":                                       waitsForAnother,
		"takes a name that it has itself seen unchanged for its duration":                  takesTheUnchanged,
		"goes on when somebody else edits its lease":                                       leaseEdited,
		"publishes what it holds in the end, however that changes meanwhile":               publishesTheLastCount,
		"publishes what it holds":                                                          publishesHeld,
		"what does not stop in time takes the process with it":                             diesWithTheStubborn,
		"an epoch that is over cannot speak for itself, even with a fresh resourceVersion": staleStatusRefused,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, api)
		})
	}
}

func joinsAndLeaves(t *testing.T, api *testenv.API) {
	m := newMachine(t, api, "orderly", func(o *node.Options) { o.Labels = map[string]string{"zone": "a"} })
	w, err := m.admin.Watch(context.Background(), &v1alpha1.NodeList{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	m.start().awaitReady(1)
	n := m.object()
	if n.Status.Liveness != v1alpha1.Alive || n.Labels["zone"] != "a" || n.Status.HTTPAddress == "" || n.Status.Version != "test" {
		t.Errorf("node: %+v", n)
	}
	if err := m.node.Ready(); err != nil {
		t.Errorf("not ready: %v", err)
	}
	if r := m.record(); !r.Held() || r.Epoch != 1 {
		t.Errorf("lease: %+v", r)
	}
	m.stop()
	if r := m.record(); r.Held() || r.Fenced != 0 {
		t.Errorf("lease after leaving: %+v", r)
	}
	n = m.object()
	if c := meta.FindStatusCondition(n.Status.Conditions, v1alpha1.NodeReady); n.Status.Liveness != v1alpha1.Stopping || c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonLeft {
		t.Errorf("node after leaving: %+v", n.Status)
	}
	var reasons []string
	for len(reasons) == 0 || reasons[len(reasons)-1] != "Left" {
		e := <-w.ResultChan()
		n, ok := e.Object.(*v1alpha1.Node)
		if !ok || n.Name != m.name {
			continue
		}
		if c := meta.FindStatusCondition(n.Status.Conditions, v1alpha1.NodeReady); c != nil && (len(reasons) == 0 || reasons[len(reasons)-1] != c.Reason) {
			reasons = append(reasons, c.Reason)
		}
	}
	if got := strings.Join(reasons, " "); got != "Starting Serving Stopping Left" {
		t.Errorf("went through %q", got)
	}
	m.start().awaitReady(2)
	if got := m.object().Status.Liveness; got != v1alpha1.Alive {
		t.Errorf("liveness in the next epoch: %s", got)
	}
}

func secondProcess(t *testing.T, api *testenv.API) {
	m := newMachine(t, api, "twice").start()
	m.awaitReady(1)
	if _, err := node.New(m.opts); !errors.Is(err, node.ErrRunning) {
		t.Errorf("second start: %v", err)
	}
}

// obeysItsEpoch has a cluster of its own: its node drains without a slot, which it notices whenever Settings change.
func obeysItsEpoch(t *testing.T, _ *testenv.API) {
	m := newMachine(t, testenv.StartAPI(t), "obedient").start()
	m.awaitReady(1)
	m.update(func(n *v1alpha1.Node) {
		n.Spec.Desired = &v1alpha1.DesiredLiveness{Liveness: v1alpha1.Stopping, Epoch: 2, DrainUID: "other"}
	})
	m.update(func(n *v1alpha1.Node) {
		n.Spec.Desired = &v1alpha1.DesiredLiveness{Liveness: v1alpha1.Draining, Epoch: 1, DrainUID: "d1"}
	})
	until(t, "Draining", func() bool {
		s := m.object().Status
		return s.Liveness == v1alpha1.Draining && s.ObservedDrain == "d1"
	})
	if _, err := m.opts.Gate.Enter("work"); !errors.Is(err, node.ErrRefused) {
		t.Errorf("a draining node took new work: %v", err)
	}
	// Another drain takes the node up.
	m.update(func(n *v1alpha1.Node) { n.Spec.Desired.DrainUID = "d2" })
	until(t, "the second drain to be observed", func() bool { return m.object().Status.ObservedDrain == "d2" })
	m.update(func(n *v1alpha1.Node) { n.Spec.Desired.Liveness = v1alpha1.Stopping })
	m.awaitEnd()
	if r := m.record(); r.Held() {
		t.Errorf("lease after the drain: %+v", r)
	}
}

func startsDraining(t *testing.T, api *testenv.API) {
	m := newMachine(t, api, "drained")
	d := &v1alpha1.Drain{Spec: v1alpha1.DrainSpec{NodeName: "drained"}}
	d.Name = "d"
	if err := m.admin.Create(context.Background(), d); err != nil {
		t.Fatal(err)
	}
	setSlot(t, m, &v1alpha1.ActiveDrain{Name: "d", UID: string(d.UID), Node: "drained", NodeEpoch: 1})
	m.start().awaitReady(2) // the slot knows that it had epoch 1
	if s := m.object().Status; s.Liveness != v1alpha1.Draining || s.ObservedDrain != string(d.UID) {
		t.Errorf("status: %+v", s)
	}
	if got := m.opts.Gate.Closed(); got != node.RefusedDraining {
		t.Errorf("gate: %q", got)
	}
	// The slot is freed: nobody wants the node drained any more. Attempts to join may have taken epochs before.
	drained := m.object().Status.Epoch
	setSlot(t, m, nil)
	m.awaitReady(drained + 1)
	if s := m.object().Status; s.Liveness != v1alpha1.Alive || s.ObservedDrain != "" {
		t.Errorf("status after the slot was freed: %+v", s)
	}
	// A drain that is complete and has not released the slot yet holds nobody.
	m.stop()
	d.Status.Phase = v1alpha1.DrainComplete
	if err := m.admin.Status().Update(context.Background(), d); err != nil {
		t.Fatal(err)
	}
	setSlot(t, m, &v1alpha1.ActiveDrain{Name: "d", UID: string(d.UID), Node: "drained", NodeEpoch: 1})
	defer setSlot(t, m, nil)
	left := m.object().Status.Epoch
	m.start().awaitReady(left + 1)
	if s := m.object().Status; s.Liveness != v1alpha1.Alive {
		t.Errorf("status under a complete drain: %+v", s)
	}
}

func setSlot(t *testing.T, m *machine, slot *v1alpha1.ActiveDrain) {
	t.Helper()
	until(t, "the slot to be set", func() bool {
		s := &v1alpha1.Settings{}
		if err := m.admin.Get(context.Background(), types.NamespacedName{Name: v1alpha1.SettingsName}, s); err != nil {
			t.Fatal(err)
		}
		s.Status.ActiveDrain = slot
		return m.admin.Status().Update(context.Background(), s) == nil
	})
}

// mark calls the node's epoch lost, as a coordinator would.
func mark(t *testing.T, m *machine) {
	t.Helper()
	until(t, "the mark to be written", func() bool {
		l := m.lease()
		marked, err := lease.Fence(l, m.record())
		return err == nil && m.admin.Update(context.Background(), marked) == nil
	})
}

func markedWhileAlive(t *testing.T, api *testenv.API) {
	w := &worker{name: "work"}
	m := newMachine(t, api, "marked", func(o *node.Options) {
		w.gate = o.Gate
		o.Runtimes = []node.Hosted{{Runtime: w, OnLeaseDoubt: node.StopOnDoubt}}
	}).start()
	m.awaitReady(1)
	mark(t, m)
	m.awaitReady(2)
	if r := m.record(); r.Fenced != 1 || r.Epoch != 2 || !r.Held() {
		t.Errorf("lease: %+v", r)
	}
	until(t, "the work to run again", func() bool { _, starts, _ := w.state(); return starts == 2 })
}

func waitsForAnother(t *testing.T, api *testenv.API) {
	m := newMachine(t, api, "elsewhere")
	other := newMachine(t, api, "elsewhere", func(o *node.Options) { o.Dir = otherDir(t, m) })
	other.start().awaitReady(1)
	m.start()
	until(t, "the second machine to wait", func() bool { return m.node.Ready() != nil })
	for range 5 { // it waits for as long as the other renews
		before := m.record()
		until(t, "a renewal", func() bool { return m.record().Version != before.Version })
		if r := m.record(); r.Epoch != 1 {
			t.Fatalf("lease: %+v", r)
		}
	}
	other.stop()
	m.awaitReady(2)
}

// otherDir is the data directory of another machine with the same node's credentials.
func otherDir(t *testing.T, m *machine) datadir.NodeDir {
	t.Helper()
	dir := datadir.NodeDir(t.TempDir())
	if err := m.api.Dir.IssueNode(dir, m.name, []string{"127.0.0.1"}); err != nil {
		t.Fatal(err)
	}
	return dir
}

func takesTheUnchanged(t *testing.T, api *testenv.API) {
	m := newMachine(t, api, "powercut")
	// A process of an earlier boot held it and nobody is left to mark it.
	l, _, err := lease.Take(nil, lease.Claimant{Node: m.name, Holder: "powercut/gone"}, fast(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	created := node.BootTime()
	if err := m.admin.Create(context.Background(), l); err != nil {
		t.Fatal(err)
	}
	m.start().awaitReady(2)
	if took := node.BootTime().Sub(created); took < fast().Lost {
		t.Errorf("taken after %s, but the lease lasts %s", took, fast().Lost)
	}
}

func leaseEdited(t *testing.T, api *testenv.API) {
	m := newMachine(t, api, "edited").start()
	m.awaitReady(1)
	for range 5 {
		until(t, "an edit", func() bool {
			l := m.lease()
			if l.Labels == nil {
				l.Labels = map[string]string{}
			}
			l.Labels["edit"] = "v" + l.ResourceVersion
			return m.admin.Update(context.Background(), l) == nil
		})
		edited := m.record()
		until(t, "a renewal after the edit", func() bool { return m.record().Version != edited.Version })
	}
	if r := m.record(); r.Epoch != 1 || m.lease().Labels["edit"] == "" {
		t.Errorf("lease: %+v", m.lease())
	}
}

// unsteady is a runtime whose count changes from one look to the next, until it is settled.
type unsteady struct {
	worker
	settled atomic.Int64 // negative until then
}

func (u *unsteady) Held() int {
	if n := u.settled.Load(); n >= 0 {
		return int(n)
	}
	return rand.IntN(3)
}

func publishesTheLastCount(t *testing.T, api *testenv.API) {
	u := &unsteady{worker: worker{name: "toys"}}
	m := newMachine(t, api, "unsteady", func(o *node.Options) {
		o.Runtimes = []node.Hosted{{Runtime: u, OnLeaseDoubt: node.StopOnDoubt}}
	}).start()
	m.awaitReady(1)
	for round := range 10 {
		u.settled.Store(-1)
		before := m.object().ResourceVersion
		until(t, "the count to change", func() bool { return m.object().ResourceVersion != before })
		u.settled.Store(int64(round % 3))
		until(t, "the last count to be published", func() bool { return m.object().Status.Held["toys"] == int64(round%3) })
	}
	u.settled.Store(0)
}

func publishesHeld(t *testing.T, api *testenv.API) {
	w := &worker{name: "work"}
	m := newMachine(t, api, "holding", func(o *node.Options) {
		w.gate = o.Gate
		o.Runtimes = []node.Hosted{{Runtime: w, OnLeaseDoubt: node.KeepOnDoubt}}
	}).start()
	m.awaitReady(1)
	if held, ok := m.object().Status.Held["work"]; held != 0 || !ok {
		t.Errorf("held: %v", m.object().Status.Held)
	}
	p, err := m.opts.Gate.Enter("work")
	if err != nil {
		t.Fatal(err)
	}
	until(t, "one to be held", func() bool { return m.object().Status.Held["work"] == 1 })
	p.Leave()
	until(t, "none to be held", func() bool { return m.object().Status.Held["work"] == 0 })
}

func diesWithTheStubborn(t *testing.T, api *testenv.API) {
	w := &worker{name: "work", stubborn: make(chan struct{})}
	m := newMachine(t, api, "stubborn", func(o *node.Options) {
		w.gate = o.Gate
		o.Runtimes = []node.Hosted{{Runtime: w, OnLeaseDoubt: node.StopOnDoubt}}
	}).start()
	m.awaitReady(1)
	mark(t, m)
	until(t, "the process to die", func() bool { return m.died.Load() != nil })
	want := "node stubborn: work of epoch 1 did not stop before its lease expired: work"
	if got := *m.died.Load(); got != want {
		t.Errorf("died of %q, want %q", got, want)
	}
	close(w.stubborn) // only a test can go on after that
}

func staleStatusRefused(t *testing.T, api *testenv.API) {
	m := newMachine(t, api, "stale").start()
	m.awaitReady(1)
	as := api.Client(m.opts.Dir.Kubeconfig())
	m.stop()
	n := m.object()
	n.Status.HTTPAddress = "https://127.0.0.1:666"
	err := as.Status().Update(context.Background(), n)
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "node stale may not write for epoch 1: its lease is in epoch 1, fenced up to 0") {
		t.Errorf("a node that left wrote its status: %v", err)
	}
}
