package drain_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
)

func TestAStageNamesWhatMoves(t *testing.T) {
	for want, counts := range map[string]map[string]int64{
		"":                     {"volumes": 0},
		"MigratingMaintainers": {"maintainers": 1, "dispatchers": 9, "volumes": 2},
		"MigratingDispatchers": {"maintainers": 0, "dispatchers": 1, "volumes": 2},
		"members,volumes":      {"maintainers": 0, "volumes": 2, "members": 1, "programs": 0},
	} {
		s := newScene(t)
		s.holds("n2", "volumes", 0)
		for kind, count := range counts {
			s.places("n2", kind, count)
		}
		d := s.request("d", "n2")
		s.steps()
		if d.Status.Stage != want {
			t.Errorf("with %v the stage is %q, want %q", counts, d.Status.Stage, want)
		}
	}
}

func TestLastProgressMovesOnlyWhenSomethingLeaves(t *testing.T) {
	s := newScene(t)
	s.places("n2", "volumes", 5)
	s.places("n2", "members", 5)
	d := s.begun("d", "n2")
	s.steps()
	for _, c := range []struct {
		what             string
		volumes, members int64
		moved            bool
	}{
		{"nothing changes", 5, 5, false},
		{"something arrives", 6, 5, false},
		{"something leaves", 5, 5, true},
		{"something leaves and more arrives", 4, 9, true},
		{"nothing changes again", 4, 9, false},
		{"the last of a kind leaves", 0, 9, true},
		{"a kind comes back", 1, 9, false},
	} {
		before := d.Status.LastProgress.Time
		s.now = s.now.Add(time.Minute)
		s.places("n2", "volumes", c.volumes)
		s.places("n2", "members", c.members)
		s.steps()
		want := before
		if c.moved {
			want = s.now
		}
		if got := d.Status.LastProgress.Time; !got.Equal(want) {
			t.Errorf("%s: the last progress is at %v, want %v", c.what, got, want)
		}
	}
}

func TestADrainThatNothingMovesIsStalledUntilSomethingDoes(t *testing.T) {
	for _, c := range []struct{ set, patience time.Duration }{{0, 5 * time.Minute}, {time.Minute, time.Minute}, {-1, 5 * time.Minute}} {
		t.Run(c.set.String(), func(t *testing.T) {
			s := newScene(t)
			if c.set != 0 {
				s.settings.Spec.Drain.StalledAfter = &metav1.Duration{Duration: c.set}
			}
			s.places("n2", "volumes", 2)
			s.holds("n2", "programs", 1)
			d := s.begun("d", "n2")
			s.now = start.Add(c.patience - time.Second)
			s.steps()
			stalled(t, d, metav1.ConditionFalse, "Moving", "Work is leaving the node.", start)
			s.now = start.Add(c.patience)
			s.steps()
			stalled(t, d, metav1.ConditionTrue, "NothingMoves", fmt.Sprintf("Nothing has left the node for %s: 1 program, 2 volumes left.", c.patience), s.now)
			s.now = s.now.Add(time.Second)
			s.takes()
			s.places("n2", "volumes", 1)
			s.takes(drain.StepProgress)
			stalled(t, d, metav1.ConditionFalse, "Moving", "Work is leaving the node.", s.now)
		})
	}
}

func stalled(t *testing.T, d *v1alpha1.Drain, status metav1.ConditionStatus, reason, message string, since time.Time) {
	t.Helper()
	got := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DrainStalled)
	want := &metav1.Condition{Type: "Stalled", Status: status, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(since)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the condition Stalled (-want +got):\n%s", diff)
	}
}

func TestADrainThatEndsIsNotStalled(t *testing.T) {
	s := newScene(t)
	d := s.at(v1alpha1.DrainDraining)
	s.places("n2", "volumes", 1)
	s.dies("n2")
	s.now = start.Add(time.Hour)
	s.steps()
	stalled(t, d, metav1.ConditionTrue, "NothingMoves", "Nothing has left the node for 5m0s: 1 volume left.", s.now)
	s.places("n2", "volumes", 0)
	s.now = s.now.Add(time.Minute)
	s.steps()
	stalled(t, d, metav1.ConditionFalse, "Moving", "Work is leaving the node.", s.now)
}

func TestBlockersAreSortedAndKeepWhenTheyWereFirstSeen(t *testing.T) {
	b := func(kind, name, reason, remedy string) v1alpha1.Blocker {
		return v1alpha1.Blocker{Kind: kind, Name: name, Reason: reason, Remedy: remedy}
	}
	s := newScene(t)
	s.places("n2", "volumes", 2, b("Volume", "b", "LastCopy", "add a disk"), b("Volume", "a", "Rebuilding", ""), b("Volume", "a", "LastCopy", ""))
	s.places("n2", "members", 1, b("EtcdMember", "m", "NoQuorum", "start another"), b("EtcdMember", "m", "NoQuorum", "twice"))
	d := s.request("d", "n2")
	s.steps()
	names(t, d, "EtcdMember/m/NoQuorum@0s", "Node/n2/AwaitingAcknowledgement@0s", "Volume/a/LastCopy@0s", "Volume/a/Rebuilding@0s", "Volume/b/LastCopy@0s")
	s.obey("n2")
	s.now = start.Add(time.Minute)
	s.places("n2", "members", 1)
	s.places("n2", "volumes", 2, b("Volume", "c", "LastCopy", ""), b("Volume", "b", "LastCopy", "add two disks"))
	s.steps()
	names(t, d, "Volume/b/LastCopy@0s", "Volume/c/LastCopy@1m0s")
	if got := d.Status.Blockers[0].Remedy; got != "add two disks" {
		t.Errorf("the remedy is still %q", got)
	}
	s.places("n2", "members", 1, b("EtcdMember", "m", "NoQuorum", ""))
	s.steps()
	names(t, d, "EtcdMember/m/NoQuorum@1m0s", "Volume/b/LastCopy@0s", "Volume/c/LastCopy@1m0s")
}

func names(t *testing.T, d *v1alpha1.Drain, want ...string) {
	t.Helper()
	var got []string
	for _, b := range d.Status.Blockers {
		got = append(got, fmt.Sprintf("%s/%s/%s@%s", b.Kind, b.Name, b.Reason, b.Since.Sub(start)))
	}
	if !slices.Equal(got, want) {
		t.Errorf("blockers are %v, want %v", got, want)
	}
}

// A drain is one object; the first of very many blockers are enough to read, and the drain's own is among them.
func TestVeryManyBlockersAreCutShort(t *testing.T) {
	s := newScene(t)
	var many []v1alpha1.Blocker
	for i := range 5000 {
		many = append(many, v1alpha1.Blocker{Kind: "Changefeed", Name: fmt.Sprintf("c%04d", i), Reason: "Slow"})
	}
	s.places("n2", "changefeeds", 5000, many...)
	d := s.request("d", "n2")
	s.steps()
	last := d.Status.Blockers[len(d.Status.Blockers)-1]
	if len(d.Status.Blockers) != 100 || last.Reason != drain.BlockedByNode || d.Status.Blockers[98].Name != "c0098" {
		t.Errorf("%d blockers, the last %v", len(d.Status.Blockers), last)
	}
}

func TestADrainSaysWhatItItselfWaitsFor(t *testing.T) {
	for name, c := range map[string]struct {
		change         func(*scene)
		reason, remedy string
	}{
		"the gate": {func(s *scene) {
			s.says(func(n *v1alpha1.NodeStatus) { n.Liveness, n.ObservedDrain = v1alpha1.Alive, "" })
		},
			"AwaitingAcknowledgement", "node n2 has not acknowledged the drain yet; if this lasts, check its log; a dead node is fenced when its lease expires"},
		"a restart": {func(s *scene) { s.takesNextEpoch("n2") },
			"AwaitingReturn", "node n2 is restarting; if this lasts, check its log"},
		"a node that was told to stop by somebody else": {func(s *scene) {
			s.says(func(n *v1alpha1.NodeStatus) { n.Liveness, n.ObservedDrain = v1alpha1.Stopping, "" })
		}, "AwaitingExit", "node n2 was asked to stop and is shutting down; if it hangs, check its log or kill its process"},
		"the exit": {func(s *scene) { s.places("n2", "volumes", 0) },
			"AwaitingExit", "node n2 is empty and is shutting down; if it hangs, check its log or kill its process"},
		"nothing of its own":             {func(*scene) {}, "", ""},
		"nothing of a node that is gone": {func(s *scene) { s.dies("n2") }, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			s.places("n2", "volumes", 1)
			d := s.begun("d", "n2")
			c.change(s)
			s.steps()
			var want []v1alpha1.Blocker
			if c.reason != "" {
				want = []v1alpha1.Blocker{{Kind: "Node", Name: "n2", Reason: c.reason, Remedy: c.remedy, Since: metav1.NewTime(start)}}
			}
			if diff := cmp.Diff(want, d.Status.Blockers); diff != "" {
				t.Errorf("blockers (-want +got):\n%s", diff)
			}
		})
	}
}
