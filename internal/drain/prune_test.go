package drain_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
)

// ago makes a drain that ended some time before start.
func ago(name string, phase v1alpha1.DrainPhase, since time.Duration) *v1alpha1.Drain {
	d := &v1alpha1.Drain{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(start.Add(-since))}}
	d.Status.Phase = phase
	if phase.Final() {
		at := metav1.NewTime(start.Add(-since))
		d.Status.FinishedAt = &at
	}
	return d
}

func TestWhichFinishedDrainsArePruned(t *testing.T) {
	const complete, failed, cancelled = v1alpha1.DrainComplete, v1alpha1.DrainFailed, v1alpha1.DrainCancelled
	leaving := ago("leaving", complete, 3*time.Hour)
	leaving.DeletionTimestamp = &metav1.Time{Time: start}
	noEnd := ago("no-end", complete, 3*time.Hour)
	noEnd.Status.FinishedAt = nil
	for _, c := range []struct {
		name   string
		limit  int32
		age    time.Duration
		slot   string
		untold string
		drains []*v1alpha1.Drain
		want   []string
		next   time.Duration
	}{
		{name: "no drains", limit: 2, age: time.Hour},
		{name: "one that is young and within the limit stays until its age", limit: 2, age: time.Hour,
			drains: []*v1alpha1.Drain{ago("a", complete, 20*time.Minute)}, next: 40 * time.Minute},
		{name: "one that is too old goes", limit: 2, age: time.Hour, drains: []*v1alpha1.Drain{ago("a", complete, time.Hour)}, want: []string{"a"}},
		{name: "one that is a moment short of its age stays that moment", limit: 2, age: time.Hour,
			drains: []*v1alpha1.Drain{ago("a", complete, time.Hour-time.Second)}, next: time.Second},
		{name: "those beyond the limit go, the one that ended first before the others", limit: 2, age: 24 * time.Hour,
			drains: []*v1alpha1.Drain{ago("a", complete, 2*time.Hour), ago("b", failed, 5*time.Hour), ago("c", cancelled, 4*time.Hour), ago("d", complete, 3*time.Hour)},
			want:   []string{"b", "c"}, next: 21 * time.Hour},
		{name: "of those that ended together the first by name goes first", limit: 1, age: 24 * time.Hour,
			drains: []*v1alpha1.Drain{ago("b", complete, 2*time.Hour), ago("c", complete, 2*time.Hour), ago("a", complete, 2*time.Hour)}, want: []string{"a", "b"}, next: 22 * time.Hour},
		{name: "with a limit of none all go", limit: 0, age: 24 * time.Hour, drains: []*v1alpha1.Drain{ago("a", complete, 2*time.Minute)}, want: []string{"a"}},
		{name: "whoever asked has a minute to read the end, whatever the limit", limit: 0, age: 24 * time.Hour,
			drains: []*v1alpha1.Drain{ago("a", complete, 50*time.Second), ago("b", failed, 20*time.Second)}, next: 10 * time.Second},
		{name: "whatever the age", limit: 5, age: time.Nanosecond, drains: []*v1alpha1.Drain{ago("a", complete, 50*time.Second)}, next: 10 * time.Second},
		{name: "those that have not ended stay, and count for nothing", limit: 1, age: time.Hour,
			drains: []*v1alpha1.Drain{ago("p", v1alpha1.DrainPending, 9*time.Hour), ago("n", "", 9*time.Hour), ago("d", v1alpha1.DrainDraining, 9*time.Hour),
				ago("s", v1alpha1.DrainStopping, 9*time.Hour), ago("a", complete, 30*time.Minute)}, next: 30 * time.Minute},
		{name: "the one that holds the slot stays, and counts", limit: 1, age: time.Hour, slot: "b",
			drains: []*v1alpha1.Drain{ago("a", failed, 3*time.Hour), ago("b", failed, 2*time.Hour)}, want: []string{"a"}},
		{name: "one whose events are not written yet stays", limit: 5, age: time.Hour, untold: "a",
			drains: []*v1alpha1.Drain{ago("a", complete, 3*time.Hour), ago("b", complete, 2*time.Hour)}, want: []string{"b"}},
		{name: "one that is being deleted is left alone", limit: 0, age: time.Hour, drains: []*v1alpha1.Drain{leaving}},
		{name: "one without a time of its end is as old as its record", limit: 5, age: time.Hour, drains: []*v1alpha1.Drain{noEnd}, want: []string{"no-end"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			settings := &v1alpha1.Settings{}
			settings.Spec.Drain.HistoryLimit, settings.Spec.Drain.HistoryAge = &c.limit, &metav1.Duration{Duration: c.age}
			if c.slot != "" {
				settings.Status.ActiveDrain = &v1alpha1.ActiveDrain{Name: c.slot, UID: "uid-" + c.slot, Node: "n1", NodeEpoch: 1}
			}
			for range 5 { // in whatever order they are read
				rand.Shuffle(len(c.drains), func(i, j int) { c.drains[i], c.drains[j] = c.drains[j], c.drains[i] })
				due, next := drain.Prune(c.drains, settings, start, func(d *v1alpha1.Drain) bool { return d.Name != c.untold })
				var got []string
				for _, d := range due {
					got = append(got, d.Name)
				}
				if !slices.Equal(got, c.want) || next != c.next {
					t.Errorf("%v go and the next is due in %s, want %v and %s", got, next, c.want, c.next)
				}
			}
		})
	}
}

func TestWithoutSettingsAHundredDrainsAreKeptForAWeek(t *testing.T) {
	var drains []*v1alpha1.Drain
	for i := range 103 {
		drains = append(drains, ago(fmt.Sprintf("d%03d", i), v1alpha1.DrainComplete, time.Duration(i+1)*time.Hour))
	}
	due, next := drain.Prune(drains, &v1alpha1.Settings{}, start, func(*v1alpha1.Drain) bool { return true })
	if len(due) != 3 || due[0].Name != "d102" || next != (7*24-100)*time.Hour {
		t.Errorf("%d go, the next in %s", len(due), next)
	}
	old := ago("old", v1alpha1.DrainComplete, 7*24*time.Hour)
	if due, _ := drain.Prune([]*v1alpha1.Drain{old}, &v1alpha1.Settings{}, start, func(*v1alpha1.Drain) bool { return true }); len(due) != 1 {
		t.Error("one that is a week old stays")
	}
}

// testPruning: finished drains go, also those that a finalizer holds, and what has not ended or holds the slot stays.
func testPruning(t *testing.T, c *cluster) {
	c.with("n1", "n2", "n3")
	c.history(2, time.Hour)
	t.Cleanup(func() { c.history(drain.DefaultHistoryLimit, drain.DefaultHistoryAge) })
	for i, phase := range []v1alpha1.DrainPhase{v1alpha1.DrainComplete, v1alpha1.DrainFailed, v1alpha1.DrainCancelled, v1alpha1.DrainFailed} {
		c.ended(fmt.Sprintf("old-%d", i), phase, time.Duration(50-10*i)*time.Minute)
	}
	c.ended("ancient", v1alpha1.DrainComplete, 2*time.Hour)
	c.work.set("n2", 1)
	c.lead("n1", nil)
	c.request("active", "n2")
	c.phase("active", v1alpha1.DrainDraining)
	c.until("two finished drains", func() bool { return c.names() == "active old-2 old-3" })
	c.history(0, time.Hour)
	c.until("no finished drain", func() bool { return c.names() == "active" })
}

// testPruningLeavesTheSlot: the drain that failed and holds the slot stays, however old it is.
func testPruningLeavesTheSlot(t *testing.T, c *cluster) {
	c.with("n1", "n2", "n3")
	c.history(0, time.Hour)
	t.Cleanup(func() { c.history(drain.DefaultHistoryLimit, drain.DefaultHistoryAge) })
	c.ended("holder", v1alpha1.DrainFailed, 2*time.Hour)
	c.ended("other", v1alpha1.DrainFailed, time.Hour)
	settings := c.settings()
	settings.Status.ActiveDrain = &v1alpha1.ActiveDrain{Name: "holder", UID: string(c.drain("holder").UID), Node: "n2", NodeEpoch: 1}
	c.must(c.admin.Status().Update(context.Background(), settings))
	c.lead("n1", nil)
	c.until("only the holder of the slot", func() bool { return c.names() == "holder" })
	c.lease("n2", "", 1, 1)
	c.until("no drain once the slot is free", func() bool { return c.names() == "" })
}

// testPruningWaits: a drain that will be due later goes then, and nothing is looked at in between.
func testPruningWaits(t *testing.T, c *cluster) {
	c.with("n1", "n2", "n3")
	c.history(5, time.Hour)
	t.Cleanup(func() { c.history(drain.DefaultHistoryLimit, drain.DefaultHistoryAge) })
	c.ended("soon", v1alpha1.DrainComplete, time.Hour-4*time.Second)
	var terms atomic.Int64
	c.leadStanding("n1", func() { terms.Add(1) })
	c.until("the drain that became due to go", func() bool { return c.names() == "" })
	if n := terms.Load(); n > 3 {
		t.Errorf("the term was read %d times to delete one drain", n)
	}
}

// history sets how many finished drains are kept, and for how long.
func (c *cluster) history(limit int32, age time.Duration) {
	c.t.Helper()
	for {
		settings := c.settings()
		settings.Spec.Drain.HistoryLimit, settings.Spec.Drain.HistoryAge = &limit, &metav1.Duration{Duration: age}
		err := c.admin.Update(context.Background(), settings)
		if !apierrors.IsConflict(err) { // the controller writes the slot there
			c.must(err)
			return
		}
	}
}

func (c *cluster) settings() *v1alpha1.Settings {
	c.t.Helper()
	settings := &v1alpha1.Settings{}
	c.must(c.admin.Get(context.Background(), types.NamespacedName{Name: v1alpha1.SettingsName}, settings))
	return settings
}

// ended makes a drain that ended some time ago and is held by the finalizer, as those that began are.
func (c *cluster) ended(name string, phase v1alpha1.DrainPhase, since time.Duration) {
	c.t.Helper()
	d := &v1alpha1.Drain{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{v1alpha1.DrainFinalizer}}, Spec: v1alpha1.DrainSpec{NodeName: "n3"}}
	c.must(c.admin.Create(context.Background(), d))
	at := metav1.NewTime(time.Now().Add(-since))
	d.Status = v1alpha1.DrainStatus{Phase: phase, FinishedAt: &at}
	c.must(c.admin.Status().Update(context.Background(), d))
}

// names are those of all drains, sorted.
func (c *cluster) names() string {
	c.t.Helper()
	var names []string
	for _, d := range c.drains() {
		names = append(names, d.Name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}
