package node

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/events"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// watcher is a coordinator that has watched one node's Lease, with a clock that the test sets.
type watcher struct {
	t          *testing.T
	client     client.Client
	node       string
	now        lease.Instant
	controller *Controller
	asked      int          // how often the term was asked whether it stands
	stands     func() error // its answer
}

var errTermOver = errors.New("the term is over")

func newWatcher(t *testing.T, c client.Client, node string) *watcher {
	t.Helper()
	w := &watcher{t: t, client: c, node: node, stands: func() error { return nil }}
	timing := lease.DefaultTiming()
	w.controller = &Controller{
		Epoch:     &Epoch{Node: "c1", Number: 1, LossDetector: lease.NewLossDetector(timing, 0), clock: func() lease.Instant { return w.now }},
		CheckTerm: func(context.Context) error { w.asked++; return w.stands() },
		Log:       slog.New(slog.DiscardHandler), client: c, live: c, record: events.Recorder{Client: c, Controller: "nodes", Instance: "c1"},
	}
	l, _, err := lease.Take(nil, lease.Claimant{Node: node, Holder: node + "/x"}, timing, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []client.Object{&v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, l} {
		if err := c.Create(context.Background(), o); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func (w *watcher) lease() *coordinationv1.Lease {
	w.t.Helper()
	l := &coordinationv1.Lease{}
	if err := w.client.Get(context.Background(), types.NamespacedName{Namespace: lease.Namespace, Name: lease.NameOf(w.node)}, l); err != nil {
		w.t.Fatal(err)
	}
	return l
}

func (w *watcher) record() lease.Record {
	w.t.Helper()
	r, err := lease.Read(w.lease())
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// renew is the node, alive, whatever its clock shows.
func (w *watcher) renew(clock time.Time) {
	w.t.Helper()
	next, err := lease.Renew(w.lease(), w.node+"/x", 1, lease.DefaultTiming(), clock)
	if err != nil {
		w.t.Fatal(err)
	}
	w.write(next)
}

func (w *watcher) write(l *coordinationv1.Lease) {
	w.t.Helper()
	if err := w.client.Update(context.Background(), l); err != nil {
		w.t.Fatal(err)
	}
}

// watch sees the Lease once and then nothing for its whole duration, while the own renewals succeed.
func (w *watcher) watch() {
	detector := w.controller.Epoch.LossDetector
	detector.Saw(w.record(), w.now)
	for end := w.now.Add(lease.DefaultTiming().Lost); w.now < end; {
		w.now = w.now.Add(time.Second)
		detector.Renewed(w.now)
	}
}

// nominated is the one that the loss detector calls lost.
func (w *watcher) nominated() lease.Record {
	w.t.Helper()
	lost := w.controller.Epoch.LossDetector.Lost(w.now)
	if len(lost) != 1 || lost[0].Node != w.node {
		w.t.Fatalf("the loss detector nominates %v", lost)
	}
	return lost[0]
}

func (w *watcher) events() int {
	w.t.Helper()
	var list eventsv1.EventList
	if err := w.client.List(context.Background(), &list); err != nil {
		w.t.Fatal(err)
	}
	n := 0
	for _, e := range list.Items {
		if e.Regarding.Name == w.node {
			n++
		}
	}
	return n
}

func TestTheCoordinatorMarksTheLost(t *testing.T) {
	c := testenv.StartAPI(t).Admin()
	for name, test := range map[string]func(*testing.T, client.Client){
		"a Lease that stayed unchanged is marked, once":            marksTheUnchanged,
		"a stalled watch decides nothing":                          stalledWatch,
		"a clock that stepped decides nothing":                     steppedClock,
		"a term that does not stand marks nobody":                  termOver,
		"a renewal between the last look and the mark wins":        renewedInTime,
		"a node that left or was marked is not marked again":       alreadyOver,
		"a Lease that is gone is not made again by marking it":     leaseGone,
		"the loop goes on after a node that it could not mark yet": loopGoesOn,
	} {
		t.Run(name, func(t *testing.T) { test(t, c) })
	}
}

func marksTheUnchanged(t *testing.T, c client.Client) {
	w := newWatcher(t, c, "unchanged")
	w.watch()
	lost := w.nominated()
	if err := w.controller.mark(context.Background(), lost); err != nil {
		t.Fatal(err)
	}
	if r := w.record(); r.Fenced != 1 || r.Held() || w.asked != 1 || w.events() != 1 {
		t.Errorf("lease %+v, the term was asked %d times, %d events", r, w.asked, w.events())
	}
	version := w.record().Version
	if err := w.controller.mark(context.Background(), lost); !errors.Is(err, lease.ErrChanged) {
		t.Errorf("marking it again: %v", err)
	}
	if w.record().Version != version {
		t.Error("it was written again")
	}
}

// nothingDecided: the node renewed and the watch did not report it.
func (w *watcher) nothingDecided() {
	w.t.Helper()
	version := w.record().Version
	if err := w.controller.mark(context.Background(), w.nominated()); !errors.Is(err, lease.ErrChanged) {
		w.t.Errorf("marking a live node: %v", err)
	}
	if r := w.record(); r.Version != version || !r.Held() || w.asked != 0 || w.events() != 0 {
		w.t.Errorf("something was written: %+v, %d events", r, w.events())
	}
	if lost := w.controller.Epoch.LossDetector.Lost(w.now); len(lost) != 0 {
		w.t.Errorf("the loss detector still nominates %v", lost)
	}
}

func stalledWatch(t *testing.T, c client.Client) {
	w := newWatcher(t, c, "stalled")
	w.watch()
	w.renew(time.Now())
	w.nothingDecided()
	// From what it saw then, the count is a whole one again.
	w.watch()
	if err := w.controller.mark(context.Background(), w.nominated()); err != nil || w.record().Fenced != 1 {
		t.Errorf("the node fell silent: %v, %+v", err, w.record())
	}
}

func steppedClock(t *testing.T, c client.Client) {
	for name, clock := range map[string]time.Time{"to-the-past": time.Unix(0, 0), "to-the-future": time.Now().AddDate(100, 0, 0)} {
		w := newWatcher(t, c, name)
		w.renew(clock)
		w.controller.Epoch.LossDetector.Saw(w.record(), w.now)
		if lost := w.controller.Epoch.LossDetector.Lost(w.now); len(lost) != 0 {
			t.Errorf("%s: nominated at once", name)
		}
		w.watch() // no longer and no shorter than any other
		w.renew(clock.Add(time.Second))
		w.nothingDecided()
	}
}

func termOver(t *testing.T, c client.Client) {
	w := newWatcher(t, c, "undecided")
	w.watch()
	w.stands = func() error { return errTermOver }
	version := w.record().Version
	if err := w.controller.mark(context.Background(), w.nominated()); !errors.Is(err, errTermOver) {
		t.Errorf("marked by a term that is over: %v", err)
	}
	if w.record().Version != version {
		t.Error("something was written")
	}
}

func renewedInTime(t *testing.T, c client.Client) {
	w := newWatcher(t, c, "lucky")
	w.watch()
	w.stands = func() error {
		w.renew(time.Now())
		return nil
	}
	if err := w.controller.mark(context.Background(), w.nominated()); !apierrors.IsConflict(err) {
		t.Errorf("marked in spite of a renewal: %v", err)
	}
	if r := w.record(); !r.Held() || r.Fenced != 0 || w.events() != 0 {
		t.Errorf("lease %+v, %d events", r, w.events())
	}
}

func alreadyOver(t *testing.T, c client.Client) {
	for name, change := range map[string]func(*coordinationv1.Lease, lease.Record) (*coordinationv1.Lease, error){
		"left": func(l *coordinationv1.Lease, r lease.Record) (*coordinationv1.Lease, error) {
			return lease.Release(l, r.Holder, r.Epoch)
		},
		"marked": lease.Fence,
	} {
		w := newWatcher(t, c, name)
		w.watch()
		next, err := change(w.lease(), w.record())
		if err != nil {
			t.Fatal(err)
		}
		w.write(next)
		version := w.record().Version
		if err := w.controller.mark(context.Background(), w.nominated()); !errors.Is(err, lease.ErrChanged) || w.record().Version != version {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func leaseGone(t *testing.T, c client.Client) {
	w := newWatcher(t, c, "gone")
	w.watch()
	lost := w.nominated()
	lost.Node = "never-was" // the embedded API lets no Lease of a node go
	if err := w.controller.mark(context.Background(), lost); !apierrors.IsNotFound(err) {
		t.Errorf("marking a Lease that is gone: %v", err)
	}
}

func loopGoesOn(t *testing.T, c client.Client) {
	w := newWatcher(t, c, "stubborn")
	w.watch()
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Patience)
	defer cancel()
	tries := 0
	w.stands = func() error {
		if tries++; tries < 3 {
			return errTermOver
		}
		cancel() // the loop ends after this one
		return nil
	}
	w.controller.Interval = time.Millisecond
	if err := w.controller.markLost(ctx); err != nil || tries != 3 {
		t.Errorf("%d tries: %v", tries, err)
	}
}
