package node_test

import (
	"context"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/node"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// patient is a timing whose deadlines no test waits for: what ends before them was ended by something else.
func patient() lease.Timing {
	return lease.Timing{Renew: time.Second, Timeout: time.Second, Fence: 3 * time.Minute, Dead: 5 * time.Minute, Lost: 6 * time.Minute}
}

// working is a node with one piece of work that stops when the lease is in doubt.
func working(t *testing.T, api *testenv.API, name string, change ...func(*node.Options)) (*machine, *worker) {
	w := &worker{name: "work"}
	m := newMachine(t, api, name, append(change, func(o *node.Options) {
		w.gate, o.Timing = o.Gate, patient()
		o.Runtimes = []node.Hosted{{Runtime: w, OnLeaseDoubt: node.StopOnDoubt}}
	})...)
	m.start().awaitReady(1)
	until(t, "the work to run", func() bool { running, _, _ := w.state(); return running })
	return m, w
}

func overEndsAtOnce(t *testing.T, api *testenv.API) {
	m, w := working(t, api, "over")
	held := m.node.Epoch().Held
	fence, _ := held.Deadline()
	mark(t, m)
	until(t, "the work to run in the next epoch", func() bool { _, starts, _ := w.state(); return starts == 2 })
	_, _, stopped := w.state()
	if stopped >= fence {
		t.Errorf("the work of an epoch that was fenced went on until its old deadline")
	}
	if _, dead := held.Deadline(); !held.Revoked() || dead > stopped {
		t.Errorf("programs of the fenced epoch have grace until %s after the work was stopped (revoked: %v)", dead.Sub(stopped), held.Revoked())
	}
}

func pausedMachine(t *testing.T, api *testenv.API) {
	var ahead atomic.Int64
	m, w := working(t, api, "paused", func(o *node.Options) {
		o.WallAhead = func() time.Duration { return time.Hour + time.Duration(ahead.Load()) }
	})
	held := m.node.Epoch().Held
	ahead.Store(int64(-time.Hour)) // somebody sets the clock back: no time was missed
	renewed := m.record().Version
	until(t, "a renewal", func() bool { return m.record().Version != renewed })
	if !m.node.Epoch().Holding() {
		t.Fatal("a clock that was set back ended the epoch")
	}
	ahead.Store(int64(time.Hour)) // the machine was paused, and its clock was set right
	m.awaitReady(2)
	until(t, "the work to run in the next epoch", func() bool { _, starts, _ := w.state(); return starts == 2 })
	if !held.Revoked() {
		t.Error("programs keep their grace, though nobody knows how long the machine was paused")
	}
}

// An object that a finalizer of somebody's holds can be deleted while the node is down, and vanishes when the finalizer goes.
func nodeVanishes(t *testing.T, api *testenv.API) {
	ctx := context.Background()
	m := newMachine(t, api, "vanishing", func(o *node.Options) { o.Labels = map[string]string{"zone": "a"} }).start()
	m.awaitReady(1)
	m.update(func(n *v1alpha1.Node) { n.Finalizers = []string{"example.com/inventory"} })
	m.stop()
	if err := m.admin.Delete(ctx, m.object()); err != nil {
		t.Fatal(err)
	}
	m.start().awaitReady(2)
	before := m.object()
	m.update(func(n *v1alpha1.Node) { n.Finalizers = nil })
	until(t, "the node to be back", func() bool {
		n := m.object()
		return n.UID != "" && n.UID != before.UID && n.IsReady()
	})
	if n := m.object(); n.Status.Liveness != v1alpha1.Alive || n.Labels["zone"] != "a" || n.DeletionTimestamp != nil {
		t.Errorf("it came back as %+v", n)
	}
	// It has no mark, as if the store went back to before the first. A new epoch finds out what the store has, and deletions count again.
	awaitTrust(t, m, 3)
}

func laterEpochWritten(t *testing.T, api *testenv.API) {
	m := newMachine(t, api, "edited-node").start()
	m.awaitReady(1)
	until(t, "the edit", func() bool {
		n := m.object()
		n.Status.Epoch = 7
		return m.admin.Status().Update(t.Context(), n) == nil
	})
	m.awaitReady(8)
	if r := m.record(); r.Epoch != 8 || !r.Held() {
		t.Errorf("lease: %+v", r)
	}
}

// A runtime that keeps data of another object has a new mark written. The node may not take that for the one that the epoch began with.
func storeWentBack(t *testing.T, api *testenv.API) {
	m := newMachine(t, api, "back").start()
	m.awaitReady(1)
	e, first := m.node.Epoch(), m.object().Annotations[v1alpha1.StoreMarkAnnotation]
	if err := e.History.Cover(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.update(func(n *v1alpha1.Node) { n.Annotations[v1alpha1.StoreMarkAnnotation] = first })
	if err := e.History.Cover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e.History.Generation() == e.Generation {
		t.Fatal("the node did not notice that the store went back")
	}
	awaitTrust(t, m, e.Number+1)
}

// awaitTrust waits until the node is in an epoch or a later one that began in the generation in which the store is.
func awaitTrust(t *testing.T, m *machine, number int64) {
	t.Helper()
	until(t, "an epoch in the generation of the store", func() bool {
		e := m.node.Epoch()
		return e != nil && e.Number >= number && e.History.Check(t.Context(), e.Generation) == nil
	})
}

// A disk that is full fails the write of the file as this does: before anything of the file is changed.
func fullDisk(t *testing.T, api *testenv.API) {
	m := newMachine(t, api, "full")
	n, err := node.New(m.opts)
	if err != nil {
		t.Fatal(err)
	}
	block := func() {
		if err := os.Remove(m.opts.Dir.Holder()); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(m.opts.Dir.Holder()+"/in the way", 0o700); err != nil {
			t.Fatal(err)
		}
	}
	block()
	ctx, cancel := context.WithCancel(context.Background())
	m.node, m.cancel, m.ended = n, cancel, make(chan error, 1)
	go func() { m.ended <- n.Run(ctx) }()
	t.Cleanup(m.stop)
	until(t, "the node to say why it does not join", func() bool {
		err := n.Ready()
		return err != nil && strings.Contains(err.Error(), "epoch 1 of node full: the epoch was not taken because it could not be recorded")
	})
	key := types.NamespacedName{Namespace: lease.Namespace, Name: lease.NameOf(m.name)}
	if err := m.admin.Get(ctx, key, &coordinationv1.Lease{}); !kubeclient.IsMissing(err) {
		t.Fatalf("it took a lease that it cannot live in: %v", err)
	}
	if err := os.RemoveAll(m.opts.Dir.Holder()); err != nil {
		t.Fatal(err)
	}
	m.awaitReady(1)
}

func directoryRemembers(t *testing.T, api *testenv.API) {
	m := newMachine(t, api, "remembered")
	if err := os.WriteFile(m.opts.Dir.Holder(), []byte(`{"bootID":"another","holders":["remembered/x"],"epoch":7}`), 0o600); err != nil {
		t.Fatal(err)
	}
	m.start().awaitReady(8)
	m.stop()
	m.start().awaitReady(9)
}

// These need the cluster's one slot for themselves.
func TestTheSlotOfANodeThatNobodyWantsDrained(t *testing.T) {
	api := testenv.StartAPI(t)
	begin := func(t *testing.T, m *machine, epoch int64) *v1alpha1.Drain {
		t.Helper()
		d := &v1alpha1.Drain{Spec: v1alpha1.DrainSpec{NodeName: m.name}}
		d.Name = "drain-" + m.name
		if err := m.admin.Create(context.Background(), d); err != nil {
			t.Fatal(err)
		}
		setSlot(t, m, &v1alpha1.ActiveDrain{Name: d.Name, UID: string(d.UID), Node: m.name, NodeEpoch: epoch})
		t.Cleanup(func() { setSlot(t, m, nil) })
		return d
	}
	cancelled := func(t *testing.T, m *machine, d *v1alpha1.Drain) {
		t.Helper()
		d.Status.Phase = v1alpha1.DrainCancelled
		if err := m.admin.Status().Update(context.Background(), d); err != nil {
			t.Fatal(err)
		}
	}
	alive := func(t *testing.T, m *machine, epoch int64) {
		t.Helper()
		m.awaitReady(epoch)
		if s := m.object().Status; s.Liveness != v1alpha1.Alive || s.ObservedDrain != "" {
			t.Errorf("it came back as %+v", s)
		}
	}
	t.Run("a Draining node whose drain is cancelled comes back Alive in the next epoch", func(t *testing.T) {
		m := newMachine(t, api, "draining").start()
		m.awaitReady(1)
		d := begin(t, m, 1)
		m.update(func(n *v1alpha1.Node) {
			n.Spec.Desired = &v1alpha1.DesiredLiveness{Liveness: v1alpha1.Draining, Epoch: 1, DrainUID: string(d.UID)}
		})
		until(t, "Draining", func() bool { return m.object().Status.Liveness == v1alpha1.Draining })
		cancelled(t, m, d)
		alive(t, m, 2)
	})
	t.Run("a node that had not heard of its drain begins anew too, so that the slot is free", func(t *testing.T) {
		m := newMachine(t, api, "unaware").start()
		m.awaitReady(1)
		cancelled(t, m, begin(t, m, 1))
		alive(t, m, 2)
	})
	t.Run("a node whose failed drain is deleted comes back", func(t *testing.T) {
		m := newMachine(t, api, "failed").start()
		m.awaitReady(1)
		d := begin(t, m, 1)
		d.Status.Phase = v1alpha1.DrainFailed
		if err := m.admin.Status().Update(context.Background(), d); err != nil {
			t.Fatal(err)
		}
		m.update(func(n *v1alpha1.Node) {
			n.Spec.Desired = &v1alpha1.DesiredLiveness{Liveness: v1alpha1.Draining, Epoch: 1, DrainUID: string(d.UID)}
		})
		until(t, "Draining", func() bool { return m.object().Status.Liveness == v1alpha1.Draining })
		if err := m.admin.Delete(context.Background(), d); err != nil {
			t.Fatal(err)
		}
		alive(t, m, 2)
	})
	t.Run("a new machine of a name that the slot knows goes on after that epoch", func(t *testing.T) {
		m := newMachine(t, api, "known")
		begin(t, m, 5)
		m.start().awaitReady(6)
		if got := m.object().Status.Liveness; got != v1alpha1.Draining {
			t.Errorf("it is %s", got)
		}
	})
}
