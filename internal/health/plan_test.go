package health_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/health"
)

const (
	quarantined = v1alpha1.Quarantined
	progressing = v1alpha1.EvictionInProgress
	succeeded   = v1alpha1.EvictionSucceeded
	failed      = v1alpha1.EvictionFailed
	cancelled   = v1alpha1.EvictionCancelled
)

func TestAFatalEventQuarantinesItsNodeAndDrainsItOnTwoTracks(t *testing.T) {
	s := newStore(3).custom()
	s.send("e1", nil)
	want := []health.Action{"hold", "quarantine", "admit", "snapshot", "create-cr", "name-drain", "start-drain", "wait"}
	if diff := cmp.Diff(want, s.settle()); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	s.is(t, "e1", quarantined, progressing, health.WaitResource)
	if n := s.nodes["n2"]; !n.Spec.Cordoned || !slices.Equal(v1alpha1.CordonOwners(n), []string{string(s.events["e1"].UID)}) {
		t.Errorf("node: %+v, owners %q", n.Spec, v1alpha1.CordonOwners(n))
	}
	if len(s.drains) != 1 {
		t.Fatalf("drains %v", s.drains)
	}
	for _, d := range s.drains {
		if d.Spec.NodeName != "n2" || d.Spec.WhenBusy != v1alpha1.Queue || !d.Spec.Park || d.Annotations[v1alpha1.HealthEventAnnotation] != string(s.events["e1"].UID) {
			t.Errorf("drain %+v", d.Spec)
		}
	}
	s.say("drain-n2-e1", "DrainComplete", "True", "AllJobsCompleted")
	if diff := cmp.Diff([]health.Action{"mark-already-drained", "delete-cr", "wait"}, s.settle()); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	s.is(t, "e1", quarantined, progressing, health.WaitQueue)
	if len(s.resources) != 0 {
		t.Errorf("resources %v", s.resources)
	}
	s.endDrain(v1alpha1.DrainComplete, v1alpha1.ReasonDrained)
	s.settle()
	s.is(t, "e1", quarantined, succeeded, health.ReasonDrained)
	s.send("h1", healthy)
	s.settle()
	s.is(t, "e1", v1alpha1.UnQuarantined, succeeded, health.ReasonResolved)
	s.is(t, "h1", "", "", health.ReasonHealthy)
	if s.nodes["n2"].Spec.Cordoned || len(v1alpha1.CordonOwners(s.nodes["n2"])) > 0 {
		t.Errorf("node is still cordoned: %q", v1alpha1.CordonOwners(s.nodes["n2"]))
	}
}

func TestSucceededNeedsBothTracksInEitherOrder(t *testing.T) {
	s := newStore(3).custom()
	s.send("e1", nil)
	s.settle()
	s.endDrain(v1alpha1.DrainComplete, v1alpha1.ReasonDrained)
	s.settle()
	s.is(t, "e1", quarantined, progressing, health.WaitResource)
	s.say("drain-n2-e1", "DrainComplete", "True", "")
	s.settle()
	s.is(t, "e1", quarantined, succeeded, health.ReasonDrained)
}

func TestHowACustomResourceEnds(t *testing.T) {
	for _, tc := range []struct {
		what    string
		end     func(*store)
		state   v1alpha1.EvictionState
		outcome v1alpha1.CustomResourceOutcome
		message string
	}{
		{"False with the reason Failed", func(s *store) { s.say("drain-n2-e1", "DrainComplete", "False", "Failed") }, failed, v1alpha1.ResourceFailed, "reported a failure"},
		{"DrainFailed", func(s *store) { s.say("drain-n2-e1", "DrainFailed", "True", "JobStuck") }, failed, v1alpha1.ResourceFailed, "JobStuck"},
		{"False for another reason", func(s *store) { s.say("drain-n2-e1", "DrainComplete", "False", "Pending") }, progressing, "", ""},
		{"Unknown", func(s *store) { s.say("drain-n2-e1", "DrainComplete", "Unknown", "Failed") }, progressing, "", ""},
		{"DrainFailed is False", func(s *store) { s.say("drain-n2-e1", "DrainFailed", "False", "") }, progressing, "", ""},
		{"DrainFailed and complete", func(s *store) {
			s.say("drain-n2-e1", "DrainFailed", "True", "")
			s.say("drain-n2-e1", "DrainComplete", "True", "")
		}, progressing, v1alpha1.ResourceComplete, "drained"},
		{"just before the timeout", func(s *store) { s.now = s.now.Add(time.Hour - 10*time.Second) }, progressing, "", ""},
		{"the timeout", func(s *store) { s.now = s.now.Add(time.Hour) }, failed, v1alpha1.ResourceTimedOut, "It was not complete after 1h0m0s."},
		{"complete at the timeout", func(s *store) {
			s.now = s.now.Add(2 * time.Hour)
			s.say("drain-n2-e1", "DrainComplete", "True", "")
		}, progressing, v1alpha1.ResourceComplete, ""},
		{"deleted", func(s *store) { delete(s.resources, "drain-n2-e1") }, failed, v1alpha1.ResourceDeleted, "It was deleted before it was complete."},
	} {
		t.Run(tc.what, func(t *testing.T) {
			s := newStore(3).custom()
			s.send("e1", nil)
			s.settle()
			tc.end(s)
			s.settle()
			cr := s.events["e1"].Status.CustomResource
			if got := s.events["e1"].Status.UserPodsEvictionStatus.Status; got != tc.state || cr.Outcome != tc.outcome || !strings.Contains(cr.Message, tc.message) {
				t.Errorf("%s, %+v", got, cr)
			}
			if left := len(s.resources); (tc.outcome != "") != (left == 0) {
				t.Errorf("%d resources are left", left)
			}
			if !s.nodes["n2"].Spec.Cordoned {
				t.Error("the node is not quarantined any more")
			}
		})
	}
}

// The next coordinator's clock may be hours off.
func TestACustomDrainTimesOutByTheClockThatSetWhenItWasCreated(t *testing.T) {
	for _, off := range []time.Duration{2 * time.Hour, -2 * time.Hour} {
		s := newStore(3).custom()
		s.send("e1", nil)
		s.settle()
		s.ahead = off
		s.now = s.now.Add(30 * time.Minute)
		s.settle()
		s.is(t, "e1", quarantined, progressing, health.WaitResource)
		s.now = s.now.Add(30 * time.Minute)
		s.settle()
		s.is(t, "e1", quarantined, failed, health.ReasonFailed)
	}
}

func TestAStatusThatCannotBeWrittenDelaysNothing(t *testing.T) {
	s := newStore(3).custom()
	s.mute = true
	s.send("e1", nil)
	want := []health.Action{"hold", "quarantine", "admit", "snapshot", "create-cr", "write-status", "name-drain", "start-drain", "write-status"}
	if diff := cmp.Diff(want, s.settle()); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	s.is(t, "e1", quarantined, progressing, health.WaitStatus)
	s.mute = false
	s.settle()
	s.is(t, "e1", quarantined, progressing, health.WaitResource)
	if s.events["e1"].Status.CustomResource.StatusPending {
		t.Error("the status is still pending")
	}

	// It fails at its timeout.
	s = newStore(3).custom()
	s.mute = true
	s.send("e1", nil)
	s.settle()
	s.now = s.now.Add(time.Hour)
	s.settle()
	s.is(t, "e1", quarantined, failed, health.ReasonFailed)
}

func TestAFailedDrainIsRetriedByNameAndBounded(t *testing.T) {
	s := newStore(3).custom()
	s.send("e1", nil)
	s.settle()
	for attempt := 1; attempt <= health.MaxAttempts; attempt++ {
		name := "drain-n2-e1"
		if attempt > 1 {
			name = fmt.Sprintf("drain-n2-e1-%d", attempt)
		}
		if s.resources[name] == nil {
			t.Fatalf("attempt %d: %v", attempt, slices.Collect(maps.Keys(s.resources)))
		}
		s.say(name, "DrainFailed", "True", "No")
		s.settle()
		s.is(t, "e1", quarantined, failed, health.ReasonFailed)
		if steps := s.settle(); len(steps) > 0 {
			t.Fatalf("attempt %d: retried by itself: %v", attempt, steps)
		}
		s.events["e1"].Annotations = map[string]string{v1alpha1.RetryAnnotation: fmt.Sprint(attempt + 1)}
		s.settle()
	}
	s.is(t, "e1", quarantined, failed, health.ReasonFailed)
	if n := len(s.events["e1"].Status.Attempts); n != health.MaxAttempts-1 || len(s.resources) != 0 {
		t.Errorf("%d attempts are recorded, %d resources left", n, len(s.resources))
	}
	// Another event begins anew, as the message says.
	s.send("e2", nil)
	s.settle()
	if s.resources["drain-n2-e2"] == nil || s.events["e2"].Status.Joined != nil {
		t.Errorf("the next event has joined %+v, and there are the resources %v", s.events["e2"].Status.Joined, slices.Collect(maps.Keys(s.resources)))
	}
}

func TestLaterEventsOfANodeJoinItsDrain(t *testing.T) {
	s := newStore(3).custom()
	s.send("e1", nil)
	s.settle()
	s.send("e2", func(e *v1alpha1.HealthEvent) { e.Spec.CheckName = "other" })
	s.settle()
	s.is(t, "e2", quarantined, progressing, health.WaitJoined)
	if len(s.resources) != 1 || len(s.drains) != 1 {
		t.Fatalf("%d resources, %d drains", len(s.resources), len(s.drains))
	}
	s.say("drain-n2-e1", "DrainComplete", "True", "")
	s.endDrain(v1alpha1.DrainComplete, v1alpha1.ReasonDrained)
	s.settle()
	s.is(t, "e1", quarantined, succeeded, health.ReasonDrained)
	s.is(t, "e2", quarantined, succeeded, health.ReasonDrained)
	s.send("e3", func(e *v1alpha1.HealthEvent) { e.Spec.CheckName = "third" })
	s.settle()
	s.is(t, "e3", quarantined, v1alpha1.AlreadyDrained, health.ReasonDrained)
	if len(s.resources) != 0 {
		t.Error("the finished drain was repeated")
	}
	// The quarantine lasts until no unhealthy check is left.
	for i, check := range []string{"check", "third", "other"} {
		if !s.nodes["n2"].Spec.Cordoned {
			t.Fatalf("uncordoned after %d of 3 checks", i)
		}
		s.send("h-"+check, func(e *v1alpha1.HealthEvent) { healthy(e); e.Spec.CheckName = check })
		s.settle()
	}
	if s.nodes["n2"].Spec.Cordoned {
		t.Error("still cordoned")
	}
	for _, name := range []string{"e1", "e2"} {
		s.is(t, name, v1alpha1.UnQuarantined, succeeded, health.ReasonResolved)
	}
	s.is(t, "h-check", "", "", health.WaitOthers)
}

func TestEventsJoinAFailedDrainAndItsRetry(t *testing.T) {
	s := newStore(3).custom()
	s.send("e1", nil)
	s.settle()
	s.say("drain-n2-e1", "DrainFailed", "True", "No")
	s.settle()
	s.send("e2", nil)
	s.settle()
	s.is(t, "e2", quarantined, failed, health.ReasonFailed)
	s.events["e1"].Annotations = map[string]string{v1alpha1.RetryAnnotation: "2"}
	s.settle()
	s.is(t, "e2", quarantined, progressing, health.WaitJoined)
	s.say("drain-n2-e1-2", "DrainComplete", "True", "")
	s.endDrain(v1alpha1.DrainComplete, v1alpha1.ReasonDrained)
	s.settle()
	s.is(t, "e2", quarantined, succeeded, health.ReasonDrained)
}

func TestAHealthyEventCancelsUntilStopping(t *testing.T) {
	s := newStore(3).custom()
	s.send("e1", nil)
	s.settle()
	s.send("h1", healthy)
	steps := s.settle()
	if i, j := slices.Index(steps, "end-cr"), slices.Index(steps, "delete-cr"); i < 0 || j < i {
		t.Errorf("the end of the resource is not recorded before it is deleted: %v", steps)
	}
	s.is(t, "e1", quarantined, progressing, health.WaitCancel)
	if !s.nodes["n2"].Spec.Cordoned || len(s.resources) != 0 {
		t.Error("uncordoned before the drain was over, or the resource is left")
	}
	s.endDrain(v1alpha1.DrainCancelled, v1alpha1.ReasonCancelRequested)
	s.settle()
	s.is(t, "e1", v1alpha1.UnQuarantined, cancelled, health.ReasonResolved)
	s.is(t, "h1", "", "", health.ReasonHealthy)
	if s.nodes["n2"].Spec.Cordoned {
		t.Error("still cordoned")
	}
}

func TestAPersonWhoCordonsAQuarantinedNodeKeepsItCordoned(t *testing.T) {
	s := newStore(3).custom()
	s.send("e1", nil)
	s.settle()
	v1alpha1.AddCordonOwner(s.nodes["n2"], v1alpha1.CordonPerson)
	s.settle()
	s.is(t, "e1", quarantined, progressing, health.WaitResource)
	s.send("h1", healthy)
	s.settle()
	s.endDrain(v1alpha1.DrainCancelled, v1alpha1.ReasonCancelRequested)
	s.settle()
	s.is(t, "e1", v1alpha1.UnQuarantined, cancelled, health.ReasonResolved)
	if n := s.nodes["n2"]; !n.Spec.Cordoned || len(v1alpha1.CordonOwners(n)) > 0 {
		t.Errorf("cordoned %t by %q", n.Spec.Cordoned, v1alpha1.CordonOwners(n))
	}
}

func TestADrainThatIsStoppingIsWaitedFor(t *testing.T) {
	s := newStore(3)
	s.send("e1", nil)
	s.settle()
	s.endDrain(v1alpha1.DrainStopping, "")
	s.send("h1", healthy)
	s.settle()
	s.is(t, "e1", quarantined, progressing, health.WaitStopping)
	s.endDrain(v1alpha1.DrainComplete, v1alpha1.ReasonDrained)
	s.settle()
	s.is(t, "e1", v1alpha1.UnQuarantined, succeeded, health.ReasonResolved)
}

func TestAnOldCancelDoesNotStopAFreshDrain(t *testing.T) {
	s := newStore(3).custom()
	s.send("e1", nil)
	s.settle()
	s.send("h1", healthy)
	s.settle()
	s.endDrain(v1alpha1.DrainCancelled, v1alpha1.ReasonCancelRequested)
	s.settle()
	s.send("e2", nil)
	s.settle()
	s.is(t, "e2", quarantined, progressing, health.WaitResource)
	// A healthy report from before the problem arrives late.
	s.send("h2", func(e *v1alpha1.HealthEvent) {
		healthy(e)
		e.Spec.GeneratedTimestamp = v1alpha1.NewTimestamp(begin)
	})
	// The first one is sent again.
	s.send("h1", healthy)
	s.settle()
	s.is(t, "e2", quarantined, progressing, health.WaitResource)
	if s.resources["drain-n2-e2"] == nil || !s.nodes["n2"].Spec.Cordoned {
		t.Error("the fresh drain was stopped")
	}
}

func TestAReplayedEventDoesNotDrainAgain(t *testing.T) {
	s := newStore(3).custom()
	s.send("e1", nil)
	s.settle()
	s.say("drain-n2-e1", "DrainComplete", "True", "")
	s.endDrain(v1alpha1.DrainComplete, v1alpha1.ReasonDrained)
	s.settle()
	s.send("h1", healthy)
	s.settle()
	s.send("e1", nil)
	if steps := s.settle(); len(steps) > 0 {
		t.Errorf("steps %v", steps)
	}
	// The event was deleted in the meantime: it is older than the retention.
	old := s.events["e1"].Spec.GeneratedTimestamp
	delete(s.events, "e1")
	s.now = s.now.Add(15 * 24 * time.Hour)
	s.send("e1", func(e *v1alpha1.HealthEvent) { e.Spec.GeneratedTimestamp = old })
	s.settle()
	s.is(t, "e1", "", "", health.ReasonExpired)
	if s.nodes["n2"].Spec.Cordoned || s.events["h1"] != nil {
		t.Error("acted on an old event, or kept one for ever")
	}
}

func TestAtMostAShareOfTheNodesIsQuarantined(t *testing.T) {
	for _, tc := range []struct {
		nodes int
		share float64
		by    []string // cordoned by persons
		want  int
	}{
		{3, 10, nil, 1}, {19, 10, nil, 1}, {20, 10, nil, 2}, {20, 10, []string{"n9"}, 1}, {20, 10, []string{"n9", "n10"}, 0},
		{20, 50, nil, 10}, {20, 0, nil, 1}, {30, 10, []string{"n9"}, 2}, {20, 100, nil, 20},
	} {
		s := newStore(tc.nodes)
		s.leader = "none"
		s.config.Quarantine.MaxShare = tc.share
		for _, name := range tc.by {
			s.cordon(name)
		}
		for i := range tc.nodes {
			if name := fmt.Sprintf("n%d", i+1); !slices.Contains(tc.by, name) {
				s.send(fmt.Sprintf("e%03d", i), func(e *v1alpha1.HealthEvent) {
					e.Spec.NodeName = name
					e.Spec.QuarantineOverrides, e.Spec.DrainOverrides = &v1alpha1.Overrides{Force: true}, &v1alpha1.Overrides{Force: true}
				})
			}
		}
		s.settle()
		got := 0
		for name, n := range s.nodes {
			if n.Spec.Cordoned && !slices.Contains(tc.by, name) {
				got++
			}
		}
		if got != tc.want {
			t.Errorf("%d nodes, %v%%, %q cordoned by others: %d quarantined, want %d", tc.nodes, tc.share, tc.by, got, tc.want)
		}
	}
}

func TestEventsBeyondTheLimitWaitByNameAndGoOn(t *testing.T) {
	s := newStore(3)
	s.send("e1", nil)
	s.send("e2", on("n3"))
	s.settle()
	s.is(t, "e2", "", "", health.WaitLimit)
	c := meta.FindStatusCondition(s.events["e2"].Status.Conditions, v1alpha1.HealthEventHandled)
	if want := "At most 1 of 3 nodes may be cordoned at once, and these are: n2. Uncordon one of them, or raise quarantine.maxShare in the file of --drain-config."; c.Message != want {
		t.Errorf("%s\nwant %s", c.Message, want)
	}
	s.uncordon("n2")
	s.endDrain(v1alpha1.DrainCancelled, v1alpha1.ReasonCancelRequested)
	s.settle()
	s.is(t, "e1", v1alpha1.QuarantineCancelled, cancelled, health.ReasonUncordoned)
	s.is(t, "e2", quarantined, progressing, health.WaitQueue)
}

func TestAPersonsUncordonCancels(t *testing.T) {
	for _, owners := range []bool{true, false} { // `ebb uncordon` removes the owners, kubectl leaves them
		s := newStore(3).custom()
		s.send("e1", nil)
		s.send("e2", func(e *v1alpha1.HealthEvent) { e.Spec.CheckName = "other" })
		s.settle()
		s.uncordon("n2")
		if !owners {
			v1alpha1.SetCordonOwners(s.nodes["n2"], nil)
		}
		s.settle()
		s.endDrain(v1alpha1.DrainCancelled, v1alpha1.ReasonCancelRequested)
		s.settle()
		for _, name := range []string{"e1", "e2"} {
			s.is(t, name, v1alpha1.QuarantineCancelled, cancelled, health.ReasonUncordoned)
		}
		if n := s.nodes["n2"]; n.Spec.Cordoned || len(v1alpha1.CordonOwners(n)) > 0 || len(s.resources) > 0 {
			t.Errorf("cordoned %v, owners %q, %d resources", n.Spec.Cordoned, v1alpha1.CordonOwners(n), len(s.resources))
		}
	}
}

func TestANodeCordonedByOthersIsDrainedAndNeverUncordoned(t *testing.T) {
	s := newStore(3)
	s.cordon("n2")
	s.send("e1", nil)
	s.settle()
	s.is(t, "e1", v1alpha1.AlreadyQuarantined, progressing, health.WaitQueue)
	s.endDrain(v1alpha1.DrainComplete, v1alpha1.ReasonDrained)
	s.settle()
	s.is(t, "e1", v1alpha1.AlreadyQuarantined, succeeded, health.ReasonDrained)
	s.send("h1", healthy)
	s.settle()
	if !s.nodes["n2"].Spec.Cordoned {
		t.Error("uncordoned")
	}
	if s.events["e1"].Status.ClosedAt == nil {
		t.Error("not closed")
	}
}

func TestADrainGoesOnWhileAnotherEventCannotJoin(t *testing.T) {
	s := newStore(3)
	s.send("e1", nil)
	s.settle()
	s.is(t, "e1", quarantined, progressing, health.WaitQueue)
	s.send("e2", func(e *v1alpha1.HealthEvent) { e.Spec.CheckName = "other" })
	s.endDrain(v1alpha1.DrainComplete, v1alpha1.ReasonDrained)
	for range 10 {
		for _, step := range health.Next(s.world()) {
			if step.Action != health.ActionQuarantine { // which the API refuses
				s.take(step)
			}
		}
	}
	s.is(t, "e1", quarantined, succeeded, health.ReasonDrained)
}

// A person uncordons the node, and another event arrives before the coordinator looks.
func TestAnUncordonedNodeIsNotDrainedBeforeItIsCordonedForAnotherEvent(t *testing.T) {
	s := newStore(3)
	s.send("e1", nil)
	for range 20 { // until its Drain is about to be created
		steps := health.Next(s.world())
		if slices.ContainsFunc(steps, func(step health.Step) bool { return step.Action.StartsDrain() }) {
			break
		}
		for _, step := range steps {
			s.take(step)
		}
	}
	s.is(t, "e1", quarantined, progressing, health.WaitStart)
	s.uncordon("n2")
	s.send("e2", func(e *v1alpha1.HealthEvent) { e.Spec.CheckName = "other" })
	for range 10 {
		for _, step := range health.Next(s.world()) {
			if step.Action.StartsDrain() {
				t.Fatalf("a drain of the uncordoned node is started for %s", step.Event.Name)
			}
			if step.Action != health.ActionQuarantine { // which the API refuses
				s.take(step)
			}
		}
	}
	s.settle()
	s.is(t, "e1", v1alpha1.QuarantineCancelled, cancelled, health.ReasonUncordoned)
	s.is(t, "e2", quarantined, progressing, health.WaitQueue)
}

// refuseCordons lets the API refuse to cordon nodes, as an admission webhook does.
func refuseCordons(s *store) {
	s.refuse = func(step health.Step) bool { return step.Action == health.ActionQuarantine }
}

// A webhook refuses the cordon for another event. What the person's uncordon ended does not wait for that.
func TestAnUncordonEndsAQuarantineAlsoWhileAnotherEventIsRefused(t *testing.T) {
	for _, owners := range []bool{true, false} { // `ebb uncordon` removes the owners, kubectl leaves them
		s := newStore(3)
		s.send("e1", nil)
		s.settle()
		s.is(t, "e1", quarantined, progressing, health.WaitQueue)
		s.uncordon("n2")
		if owners {
			v1alpha1.SetCordonOwners(s.nodes["n2"], []string{string(s.events["e1"].UID)})
		}
		s.send("e2", func(e *v1alpha1.HealthEvent) { e.Spec.CheckName = "other" })
		refuseCordons(s)
		s.turns(5)
		s.endDrain(v1alpha1.DrainCancelled, v1alpha1.ReasonCancelRequested)
		s.turns(5)
		for _, d := range s.drains {
			if !d.Spec.Cancelled {
				t.Errorf("owners %t: Drain %s of the uncordoned node is not cancelled", owners, d.Name)
			}
		}
		s.is(t, "e1", v1alpha1.QuarantineCancelled, cancelled, health.ReasonUncordoned)
		s.refuse = func(health.Step) bool { return false }
		s.settle()
		s.is(t, "e2", quarantined, progressing, health.WaitQueue)
		if got := v1alpha1.CordonOwners(s.nodes["n2"]); !slices.Equal(got, []string{string(s.events["e2"].UID)}) {
			t.Errorf("owners %t: the cordon belongs to %q", owners, got)
		}
	}
}

// A webhook refuses to add an event to the owners of a cordon. The healthy event of another check ends meanwhile, and the node stays quarantined.
func TestAHealthyEventEndsAlsoWhileAnotherEventIsRefused(t *testing.T) {
	s := newStore(3)
	s.send("e1", nil)
	s.settle()
	s.send("e2", func(e *v1alpha1.HealthEvent) { e.Spec.CheckName = "other" })
	refuseCordons(s)
	s.send("h1", healthy)
	s.turns(5)
	s.is(t, "h1", "", "", health.WaitOthers)
	s.is(t, "e1", quarantined, progressing, health.WaitQueue)
	s.send("h2", func(e *v1alpha1.HealthEvent) { healthy(e); e.Spec.CheckName = "other" })
	s.endDrain(v1alpha1.DrainCancelled, v1alpha1.ReasonCancelRequested)
	s.turns(5)
	s.is(t, "e1", v1alpha1.UnQuarantined, cancelled, health.ReasonResolved)
	s.is(t, "e2", v1alpha1.QuarantineCancelled, cancelled, health.ReasonResolved)
	if s.nodes["n2"].Spec.Cordoned {
		t.Error("the node is still cordoned")
	}
}

// One write cordons a node for several events. If it is refused, each of them is blocked by name.
func TestACordonNamesAllEventsThatItIsFor(t *testing.T) {
	s := newStore(3)
	refuseCordons(s)
	for i := range 3 {
		s.send(fmt.Sprintf("e%d", i), func(e *v1alpha1.HealthEvent) { e.Spec.CheckName = fmt.Sprintf("check%d", i) })
	}
	s.turns(2)
	steps := s.next()
	if len(steps) != 1 || steps[0].Action != health.ActionQuarantine || steps[0].Event.Name != "e0" || len(steps[0].Others) != 2 {
		t.Fatalf("steps %+v", steps)
	}
}

func TestOnlySoManyEventsOwnACordon(t *testing.T) {
	s := newStore(3)
	for i := range 700 {
		s.send(fmt.Sprintf("e%03d", i), func(e *v1alpha1.HealthEvent) { e.Spec.CheckName = fmt.Sprintf("check%d", i) })
	}
	s.settle()
	if owners := v1alpha1.CordonOwners(s.nodes["n2"]); len(owners) != 500 {
		t.Errorf("%d owners", len(owners))
	}
	s.is(t, "e699", "", "", health.WaitProblems)
	for i := range 500 {
		s.send(fmt.Sprintf("h%03d", i), func(e *v1alpha1.HealthEvent) { healthy(e); e.Spec.CheckName = fmt.Sprintf("check%d", i) })
	}
	s.settle()
	s.endDrain(v1alpha1.DrainCancelled, v1alpha1.ReasonCancelRequested)
	s.settle()
	if e := s.events["e699"]; e.Status.NodeQuarantined != quarantined {
		t.Errorf("the last event is %+v", e.Status)
	}
}

func TestACordonThatSomebodyTookOverIsNotCalledAnUncordon(t *testing.T) {
	s := newStore(3)
	s.send("e1", func(e *v1alpha1.HealthEvent) { e.Spec.DrainOverrides = &v1alpha1.Overrides{Skip: true} })
	s.settle()
	v1alpha1.SetCordonOwners(s.nodes["n2"], nil)
	s.settle()
	if e := s.events["e1"]; e.Status.NodeQuarantined != v1alpha1.QuarantineCancelled || e.Status.ClosedAt == nil || !strings.Contains(fmt.Sprint(e.Status.Conditions), health.ReasonTaken) {
		t.Errorf("the event is %+v", e.Status)
	}
}

func TestTheCoordinatorResignsAgainAfterItsDrainWasRefused(t *testing.T) {
	s := newStore(3)
	s.send("e1", nil)
	s.settle()
	s.leader = "n2" // its Drain was created, and the coordinator died
	s.endDrain(v1alpha1.DrainFailed, v1alpha1.ReasonTargetIsCoordinator)
	s.settle()
	if d := s.events["e1"].Status.Drain; s.leader == "n2" || d.Number != 2 || d.UID == "" {
		t.Errorf("%s leads, and the drain is %+v", s.leader, d)
	}
	s.is(t, "e1", quarantined, progressing, health.WaitQueue)
}

func TestTheCoordinatorsNodeResignsFirst(t *testing.T) {
	s := newStore(3).custom()
	s.send("e1", on("n1"))
	steps := s.settle()
	if want := []health.Action{"hold", "quarantine", "admit", "resign", "snapshot", "create-cr", "name-drain", "start-drain", "wait"}; !slices.Equal(steps, want) {
		t.Errorf("%v, want %v", steps, want)
	}
	lone := newStore(1)
	lone.send("e1", on("n1"))
	lone.settle()
	lone.is(t, "e1", quarantined, progressing, health.WaitSingle)
	two := newStore(2)
	two.nodes["n2"].Status.Liveness = v1alpha1.Draining
	two.send("e1", on("n1"))
	two.settle()
	two.is(t, "e1", quarantined, progressing, health.WaitNoSuccessor)
}

func TestADrainThatWasRefusedIsRequestedAgain(t *testing.T) {
	s := newStore(3)
	s.send("e1", nil)
	s.settle()
	s.endDrain(v1alpha1.DrainFailed, v1alpha1.ReasonTargetIsCoordinator)
	s.settle()
	s.is(t, "e1", quarantined, progressing, health.WaitQueue)
	if len(s.drains) != 2 || s.events["e1"].Status.Drain.Number != 2 {
		t.Errorf("%d drains, %+v", len(s.drains), s.events["e1"].Status.Drain)
	}
}

func TestADrainThatAPersonCancelledCancelsTheEventAndKeepsTheQuarantine(t *testing.T) {
	s := newStore(3).custom()
	s.send("e1", nil)
	s.settle()
	s.endDrain(v1alpha1.DrainCancelled, v1alpha1.ReasonCancelRequested)
	s.settle()
	s.is(t, "e1", quarantined, cancelled, health.ReasonCancelled)
	if !s.nodes["n2"].Spec.Cordoned || len(s.resources) > 0 {
		t.Error("uncordoned, or the resource is left")
	}
	s.send("e2", nil)
	s.settle()
	s.is(t, "e2", quarantined, progressing, health.WaitResource)
}

func TestANodeWithoutALeaseNeedsNoDrain(t *testing.T) {
	s := newStore(3)
	s.dead["n2"] = true
	s.send("e1", nil)
	s.settle()
	s.is(t, "e1", quarantined, succeeded, health.ReasonDrained)
	if got := s.events["e1"].Status.Drain.Outcome; got != health.DrainNotRunning || len(s.drains) > 0 {
		t.Errorf("%s, %d drains", got, len(s.drains))
	}
}

func TestEventsWithoutEffect(t *testing.T) {
	for what, tc := range map[string]struct {
		change func(*v1alpha1.HealthEvent)
		reason string
	}{
		"not fatal": {func(e *v1alpha1.HealthEvent) { e.Spec.IsFatal = false }, health.ReasonSkipped},
		"skipped":   {func(e *v1alpha1.HealthEvent) { e.Spec.QuarantineOverrides = &v1alpha1.Overrides{Skip: true} }, health.ReasonSkipped},
		"too old": {func(e *v1alpha1.HealthEvent) {
			e.Spec.GeneratedTimestamp = v1alpha1.NewTimestamp(begin.Add(-25 * time.Hour))
		}, health.ReasonExpired},
		"healthy": {healthy, health.ReasonHealthy},
	} {
		t.Run(what, func(t *testing.T) {
			s := newStore(3).custom()
			s.send("e1", tc.change)
			s.settle()
			s.is(t, "e1", "", "", tc.reason)
			if s.nodes["n2"].Spec.Cordoned || len(s.drains) > 0 {
				t.Error("it had an effect")
			}
		})
	}
}

// The clock of a detector may be wrong by years. What it says about the future counts as said when it arrived.
func TestATimeInTheFutureCountsAsTheArrival(t *testing.T) {
	ahead := func(by time.Duration, change func(*v1alpha1.HealthEvent)) func(*v1alpha1.HealthEvent) {
		return func(e *v1alpha1.HealthEvent) {
			if change != nil {
				change(e)
			}
			e.Spec.GeneratedTimestamp = v1alpha1.NewTimestamp(e.Spec.GeneratedTimestamp.Add(by))
		}
	}
	const years = 20 * 365 * 24 * time.Hour
	t.Run("a healthy report ends no later problem", func(t *testing.T) {
		s := newStore(3)
		s.send("h1", ahead(years, healthy))
		s.settle()
		s.now = s.now.Add(time.Hour)
		s.send("e1", nil)
		s.settle()
		s.is(t, "e1", quarantined, progressing, health.WaitQueue)
	})
	t.Run("a problem ends with a healthy report of now", func(t *testing.T) {
		s := newStore(3)
		s.send("e1", ahead(years, nil))
		s.settle()
		s.now = s.now.Add(time.Hour)
		s.send("h1", healthy)
		s.settle()
		s.endDrain(v1alpha1.DrainCancelled, v1alpha1.ReasonCancelRequested)
		s.settle()
		s.is(t, "e1", v1alpha1.UnQuarantined, cancelled, health.ReasonResolved)
	})
	t.Run("both, within the same second", func(t *testing.T) {
		s := newStore(3)
		s.send("e1", ahead(years, nil))
		s.now = s.now.Add(-time.Second) // it was sent together with the next one
		s.send("h1", ahead(years+time.Millisecond, healthy))
		s.settle()
		s.is(t, "e1", v1alpha1.QuarantineCancelled, cancelled, health.ReasonResolved)
	})
	t.Run("a clock that is ahead by less than a minute", func(t *testing.T) {
		s := newStore(3)
		s.send("e1", ahead(50*time.Second, nil))
		s.settle()
		s.now = s.now.Add(10 * time.Second)
		s.send("h1", healthy) // of another clock, and from before the problem by what it says
		s.settle()
		s.is(t, "e1", quarantined, progressing, health.WaitQueue)
	})
	t.Run("a problem is kept until it would be too old if it were sent again", func(t *testing.T) {
		const day = 24 * time.Hour
		s := newStore(3)
		problem := ahead(8*day, nil)
		at := v1alpha1.NewTimestamp(s.now)
		again := func(e *v1alpha1.HealthEvent) { e.Spec.GeneratedTimestamp = at; problem(e) }
		s.send("e1", again)
		s.now = s.now.Add(time.Hour)
		s.send("h1", healthy)
		s.settle()
		s.is(t, "e1", v1alpha1.QuarantineCancelled, cancelled, health.ReasonResolved)
		s.now = s.now.Add(7 * day)
		s.settle()
		s.send("e1", again)
		s.settle()
		s.is(t, "e1", v1alpha1.QuarantineCancelled, cancelled, health.ReasonResolved)
		s.now = s.now.Add(8 * day)
		if s.settle(); s.events["e1"] != nil {
			t.Error("it is kept for ever")
		}
		s.send("e1", again)
		s.settle()
		s.is(t, "e1", "", "", health.ReasonExpired)
	})
	t.Run("a problem of the future that waits is too old some time", func(t *testing.T) {
		s := newStore(3)
		s.send("e1", ahead(years, on("n9")))
		s.settle()
		s.is(t, "e1", "", "", health.WaitNode)
		s.now = s.now.Add(25 * time.Hour)
		s.settle()
		s.is(t, "e1", "", "", health.ReasonExpired)
	})
}

func TestAQuarantineWithoutADrain(t *testing.T) {
	s := newStore(3).custom()
	s.send("e1", func(e *v1alpha1.HealthEvent) { e.Spec.DrainOverrides = &v1alpha1.Overrides{Skip: true} })
	s.settle()
	s.is(t, "e1", quarantined, v1alpha1.EvictionNotStarted, health.ReasonNoDrain)
	s.send("e2", func(e *v1alpha1.HealthEvent) { e.Spec.CheckName = "other" })
	s.settle()
	s.is(t, "e2", quarantined, progressing, health.WaitResource)
	if len(s.drains) != 1 {
		t.Errorf("%d drains", len(s.drains))
	}
}

func TestAMissingNodeIsWaitedForByName(t *testing.T) {
	s := newStore(3)
	s.send("e1", on("n9"))
	s.settle()
	s.is(t, "e1", "", "", health.WaitNode)
	s.now = s.now.Add(25 * time.Hour)
	s.settle()
	s.is(t, "e1", "", "", health.ReasonExpired)
}

func TestEntitiesAreHealthyOneByOne(t *testing.T) {
	gpu := func(n ...string) func(*v1alpha1.HealthEvent) {
		return func(e *v1alpha1.HealthEvent) {
			for _, name := range n {
				e.Spec.EntitiesImpacted = append(e.Spec.EntitiesImpacted, v1alpha1.Entity{EntityType: "GPU", EntityValue: name})
			}
		}
	}
	s := newStore(3)
	s.send("e1", gpu("0", "1"))
	s.settle()
	s.send("h0", func(e *v1alpha1.HealthEvent) { healthy(e); gpu("0", "7")(e) })
	s.settle()
	if !s.nodes["n2"].Spec.Cordoned {
		t.Fatal("uncordoned with GPU 1 unhealthy")
	}
	s.send("h1", func(e *v1alpha1.HealthEvent) { healthy(e); gpu("1")(e) })
	s.settle()
	s.endDrain(v1alpha1.DrainCancelled, v1alpha1.ReasonCancelRequested)
	s.settle()
	s.is(t, "e1", v1alpha1.UnQuarantined, cancelled, health.ReasonResolved)

	whole := newStore(3)
	whole.send("e1", nil) // the whole node
	whole.send("h1", func(e *v1alpha1.HealthEvent) { healthy(e); gpu("0")(e) })
	whole.settle()
	if !whole.nodes["n2"].Spec.Cordoned {
		t.Error("one healthy GPU ended a problem of the whole node")
	}
}

func TestAHealthyEventOfAnotherCheckChangesNothing(t *testing.T) {
	for what, change := range map[string]func(*v1alpha1.HealthEvent){
		"check":     func(e *v1alpha1.HealthEvent) { e.Spec.CheckName = "other" },
		"agent":     func(e *v1alpha1.HealthEvent) { e.Spec.Agent = "other" },
		"component": func(e *v1alpha1.HealthEvent) { e.Spec.ComponentClass = "other" },
		"node":      func(e *v1alpha1.HealthEvent) { e.Spec.NodeName = "n3" },
	} {
		t.Run(what, func(t *testing.T) {
			s := newStore(3)
			s.send("e1", nil)
			s.settle()
			s.send("h1", func(e *v1alpha1.HealthEvent) { healthy(e); change(e) })
			s.settle()
			s.is(t, "e1", quarantined, progressing, health.WaitQueue)
		})
	}
}

func TestAMissingDefinitionIsWaitedForByName(t *testing.T) {
	missing := health.Definition{Reason: health.WaitDefinition, Message: "There is no DrainRequest."}
	s := newStore(3).custom()
	s.definition = missing
	s.send("e1", nil)
	s.settle()
	s.is(t, "e1", quarantined, progressing, health.WaitDefinition)
	if len(s.drains) != 1 {
		t.Error("Ebb's own drain waits too")
	}
	s.definition = health.Definition{Ready: true, Namespaced: true}
	s.settle()
	s.is(t, "e1", quarantined, progressing, health.WaitResource)
	// The definition is deleted, and all resources with it.
	s.definition, s.resources = missing, map[string]*unstructured.Unstructured{}
	s.settle()
	s.is(t, "e1", quarantined, progressing, health.WaitDefinition)
	s.definition = health.Definition{Ready: true}
	s.settle()
	s.is(t, "e1", quarantined, progressing, health.WaitResource)
	cr := s.events["e1"].Status.CustomResource
	if cr.Name != "drain-n2-e1-2" || cr.Attempt != 2 || cr.Namespace != "" || s.events["e1"].Status.Attempts[0].Outcome != v1alpha1.ResourceLost {
		t.Errorf("%+v", cr)
	}
}

func TestADeletedEventUndoesItsEffects(t *testing.T) {
	s := newStore(3).custom()
	s.send("e1", nil)
	s.settle()
	now := metav1.NewTime(s.now)
	s.events["e1"].DeletionTimestamp = &now
	s.settle()
	s.endDrain(v1alpha1.DrainCancelled, v1alpha1.ReasonCancelRequested)
	s.settle()
	if s.events["e1"] != nil || s.nodes["n2"].Spec.Cordoned || len(s.resources) > 0 {
		t.Errorf("event %v, cordoned %v, resources %v", s.events["e1"], s.nodes["n2"].Spec.Cordoned, s.resources)
	}
}

func manual(s *store, name string) *v1alpha1.Drain {
	now := metav1.NewTime(s.now)
	d := &v1alpha1.Drain{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.DrainSpec{NodeName: "n2", Reason: "kernel"},
		Status: v1alpha1.DrainStatus{Phase: v1alpha1.DrainDraining, StartedAt: &now},
	}
	s.born(d)
	s.drains[name] = d
	return d
}

func TestADrainThatAPersonRequestedHasAnEventOfItsOwn(t *testing.T) {
	s := newStore(3).custom()
	d := manual(s, "n2-abc")
	name := "manual-" + string(d.UID)
	s.settle()
	s.is(t, name, "", progressing, health.WaitResource)
	e := s.events[name]
	if e.Spec.CheckName != "ManualDrain" || e.Spec.Message != "kernel" || s.nodes["n2"].Spec.Cordoned || len(s.drains) != 1 {
		t.Errorf("%+v, cordoned %v, %d drains", e.Spec, s.nodes["n2"].Spec.Cordoned, len(s.drains))
	}
	s.say("drain-n2-"+name, "DrainComplete", "True", "")
	s.settle()
	s.is(t, name, "", succeeded, health.ReasonDrained)

	for what, end := range map[string]func(s *store, d *v1alpha1.Drain){
		"cancelled": func(s *store, d *v1alpha1.Drain) { s.endDrain(v1alpha1.DrainCancelled, v1alpha1.ReasonCancelRequested) },
		"deleted":   func(s *store, d *v1alpha1.Drain) { delete(s.drains, d.Name) },
		"failed":    func(s *store, d *v1alpha1.Drain) { s.endDrain(v1alpha1.DrainFailed, v1alpha1.ReasonDeadlineExceeded) },
	} {
		t.Run(what, func(t *testing.T) {
			s := newStore(3).custom()
			d := manual(s, "n2-abc")
			s.settle()
			end(s, d)
			s.settle()
			s.is(t, "manual-"+string(d.UID), "", cancelled, health.ReasonCancelled)
			if len(s.resources) > 0 {
				t.Error("the resource is left")
			}
		})
	}
}

func TestANodeHasOneResourceAtATime(t *testing.T) {
	s := newStore(3).custom()
	s.send("e1", nil)
	s.settle()
	d := manual(s, "n2-abc")
	s.settle()
	s.is(t, "manual-"+string(d.UID), "", progressing, health.WaitBusy)
	if len(s.resources) != 1 {
		t.Errorf("%d resources", len(s.resources))
	}
}

func TestNamesOfResources(t *testing.T) {
	long := strings.Repeat("a", 100)
	for _, tc := range []struct {
		node, id string
		attempt  int64
		want     string
	}{
		{"n1", "e1", 1, "drain-n1-e1"}, {"n1", "e1", 2, "drain-n1-e1-2"}, {"n1.example.com", "gpu-79", 1, "drain-n1.example.com-gpu-79"},
		{"n1", "GPU_79", 1, ""}, {"n1", "gpu_79", 1, ""}, {"n1", "é", 1, ""}, {"n1", "", 1, ""}, {long, long, 1, ""}, {long, long, 12, ""}, {"n1", "..", 1, ""}, {"n1", "a..b", 1, ""},
	} {
		got := health.ResourceName(tc.node, tc.id, tc.attempt)
		if tc.want != "" && got != tc.want || len(got) > 63 || len(validation.IsDNS1123Subdomain(got)) > 0 || len(validation.IsValidLabelValue(got)) > 0 {
			t.Errorf("%s, %s, %d: %s", tc.node, tc.id, tc.attempt, got)
		}
	}
	if a, b := health.ResourceName("n1", "GPU_79", 1), health.ResourceName("n1", "gpu_79", 1); a == b {
		t.Errorf("two ids have the name %s", a)
	}
	if a, b := health.ResourceName(long, long, 1), health.ResourceName(long, long+"b", 1); a == b {
		t.Errorf("two ids have the name %s", a)
	}
}

func TestThePlannerLeavesTheWorldAsItIs(t *testing.T) {
	s := newStore(3).custom()
	s.send("e1", nil)
	s.send("e2", func(e *v1alpha1.HealthEvent) { e.Spec.CheckName = "other" })
	for range 20 {
		w, same := s.world(), s.world()
		steps := health.Next(w)
		if diff := cmp.Diff(same.Events, w.Events); diff != "" {
			t.Fatalf("(-before +after):\n%s", diff)
		}
		if diff := cmp.Diff(same.Nodes, w.Nodes); diff != "" {
			t.Fatalf("(-before +after):\n%s", diff)
		}
		for _, step := range steps {
			s.take(step)
		}
	}
}

func TestADefinitionThatIsUnknownOrMissingForAMomentEndsNothing(t *testing.T) {
	for _, reason := range []string{health.WaitLookup, health.WaitDefinition} {
		t.Run(reason, func(t *testing.T) {
			s := newStore(3).custom()
			s.send("e1", nil)
			s.settle()
			s.definition = health.Definition{Reason: reason, Message: "Who knows."}
			s.settle()
			s.is(t, "e1", quarantined, progressing, reason)
			s.definition = health.Definition{Ready: true, Namespaced: true}
			s.settle()
			s.is(t, "e1", quarantined, progressing, health.WaitResource)
			if cr := s.events["e1"].Status.CustomResource; cr.Attempt != 1 || cr.Outcome != "" || len(s.resources) != 1 {
				t.Errorf("%+v, %d resources", cr, len(s.resources))
			}
		})
	}
}

func TestADefinitionThatIsGoneTookItsResourcesWithIt(t *testing.T) {
	s := newStore(3).custom()
	s.send("e1", nil)
	s.settle()
	s.definition, s.resources = health.Definition{Gone: true, Reason: health.WaitDefinition, Message: "missing"}, map[string]*unstructured.Unstructured{}
	s.settle()
	s.is(t, "e1", quarantined, progressing, health.WaitDefinition)
	if cr := s.events["e1"].Status.CustomResource; cr.Outcome != v1alpha1.ResourceLost || !cr.Removed {
		t.Errorf("%+v", cr)
	}
	// Nothing is left to delete, so that the end of the problem ends it all.
	s.send("h1", healthy)
	s.settle()
	s.endDrain(v1alpha1.DrainCancelled, v1alpha1.ReasonCancelRequested)
	s.settle()
	s.is(t, "e1", v1alpha1.UnQuarantined, cancelled, health.ReasonResolved)
}

func TestAResourceThatCannotBeReadHoldsUpItsOwnNodeOnly(t *testing.T) {
	s := newStore(30).custom()
	s.send("e1", nil)
	s.send("e2", on("n3"))
	s.settle()
	s.unread["drain-n2-e1"] = health.Wait{Reason: health.WaitForbidden, Message: "No."}
	s.say("drain-n3-e2", "DrainComplete", "True", "")
	s.now = s.now.Add(2 * time.Hour) // it may be complete: nobody knows
	s.settle()
	s.is(t, "e1", quarantined, progressing, health.WaitForbidden)
	s.is(t, "e2", quarantined, progressing, health.WaitQueue)
	s.say("drain-n2-e1", "DrainComplete", "True", "")
	delete(s.unread, "drain-n2-e1")
	s.endDrain(v1alpha1.DrainComplete, v1alpha1.ReasonDrained)
	s.settle()
	s.is(t, "e1", quarantined, succeeded, health.ReasonDrained)
	s.is(t, "e2", quarantined, succeeded, health.ReasonDrained)
}

func TestPodsThatCannotBeListedHoldUpTheCustomResourceOnly(t *testing.T) {
	s := newStore(3).custom()
	s.noPods = true
	s.send("e1", nil)
	s.settle()
	s.is(t, "e1", quarantined, progressing, health.WaitPods)
	if len(s.drains) != 1 || len(s.resources) != 0 {
		t.Errorf("%d drains, %d resources", len(s.drains), len(s.resources))
	}
	s.noPods = false
	s.settle()
	s.is(t, "e1", quarantined, progressing, health.WaitResource)
}

func TestANodeThatDoesNotRunIsDrainedWhenNothingIsLeftOnIt(t *testing.T) {
	s := newStore(3)
	s.dead["n2"], s.work["n2"] = true, "1 replica"
	s.send("e1", nil)
	s.settle()
	s.is(t, "e1", quarantined, progressing, health.WaitNotRunning)
	delete(s.dead, "n2") // it comes back, and is drained as any other
	s.settle()
	s.is(t, "e1", quarantined, progressing, health.WaitQueue)

	s = newStore(3)
	s.dead["n2"], s.nodes["n2"].Status.Epoch = true, 0
	s.send("e1", nil)
	s.settle()
	s.is(t, "e1", quarantined, progressing, health.WaitNotRunning)
}

func TestANodeThatRunsAgainBeforeTheEndIsDrainedAfterAll(t *testing.T) {
	s := newStore(3).custom()
	s.dead["n2"] = true
	s.send("e1", nil)
	s.settle()
	s.is(t, "e1", quarantined, progressing, health.WaitResource)
	delete(s.dead, "n2")
	s.nodes["n2"].Status.Epoch++
	s.say("drain-n2-e1", "DrainComplete", "True", "")
	s.settle()
	s.is(t, "e1", quarantined, progressing, health.WaitQueue)
	s.endDrain(v1alpha1.DrainComplete, v1alpha1.ReasonDrained)
	s.settle()
	s.is(t, "e1", quarantined, succeeded, health.ReasonDrained)
}

func TestTheRoomAtTheLimitGoesToTheOldestProblemThatWaits(t *testing.T) {
	s := newStore(10)
	// n3 had an event long ago, which is over.
	s.send("old", func(e *v1alpha1.HealthEvent) { e.Spec.NodeName, e.Spec.IsFatal = "n3", false })
	s.send("first", on("n1"))
	s.settle()
	s.send("second", on("n4"))
	s.send("third", on("n3"))
	s.settle()
	s.is(t, "second", "", "", health.WaitLimit)
	s.is(t, "third", "", "", health.WaitLimit)
	if len(s.events["second"].Finalizers) > 0 {
		t.Error("an event without effect keeps itself from being deleted")
	}
	s.send("h1", func(e *v1alpha1.HealthEvent) { healthy(e); e.Spec.NodeName = "n1" })
	s.settle()
	s.endDrain(v1alpha1.DrainCancelled, v1alpha1.ReasonCancelRequested)
	s.settle()
	if !s.nodes["n4"].Spec.Cordoned || s.nodes["n3"].Spec.Cordoned {
		t.Errorf("n4 is cordoned: %v, n3: %v", s.nodes["n4"].Spec.Cordoned, s.nodes["n3"].Spec.Cordoned)
	}
}

func TestBeyondTheirNumberEventsWithoutEffectAreDeleted(t *testing.T) {
	s := newStore(10)
	// What drains if it is sent again stays: an event whose cordon a person lifted.
	s.send("lifted", nil)
	s.settle()
	s.uncordon("n2")
	v1alpha1.SetCordonOwners(s.nodes["n2"], nil)
	s.settle()
	s.endDrain(v1alpha1.DrainCancelled, v1alpha1.ReasonCancelRequested)
	s.settle()
	s.is(t, "lifted", v1alpha1.QuarantineCancelled, cancelled, health.ReasonUncordoned)
	// A flapping check.
	for i := range 3 {
		s.send(fmt.Sprintf("flap%d", i), on("n4"))
		s.settle()
		s.send(fmt.Sprintf("well%d", i), func(e *v1alpha1.HealthEvent) { healthy(e); e.Spec.NodeName = "n4" })
		s.settle()
		s.endDrain(v1alpha1.DrainCancelled, v1alpha1.ReasonCancelRequested)
		s.settle()
		s.is(t, fmt.Sprintf("flap%d", i), v1alpha1.UnQuarantined, cancelled, health.ReasonResolved)
	}
	for i := range health.MaxEvents - 2 {
		s.send(fmt.Sprintf("noise%d", i), func(e *v1alpha1.HealthEvent) { e.Spec.NodeName, e.Spec.IsFatal = fmt.Sprintf("n%d", 1+i%10), false })
	}
	for range 4 {
		s.settle()
	}
	if n := len(s.events); n != health.MaxEvents {
		t.Errorf("%d events are left", n)
	}
	// flap0 .. flap2 and well0, well1 are the oldest that have no effect; well2 ends them if they are sent again.
	for name, stays := range map[string]bool{"lifted": true, "flap0": false, "well0": false, "well2": true, "noise9000": true} {
		if (s.events[name] != nil) != stays {
			t.Errorf("%s stays: %v, want %v", name, s.events[name] != nil, stays)
		}
	}
	s.send("flap0", func(e *v1alpha1.HealthEvent) {
		e.Spec.NodeName, e.Spec.GeneratedTimestamp = "n4", v1alpha1.NewTimestamp(begin)
	})
	s.settle()
	if s.nodes["n4"].Spec.Cordoned {
		t.Error("a replay of an event that was deleted early had an effect")
	}
}

// BenchmarkNext measures one look at many events of one node, as a detector sends them that does not stop.
func BenchmarkNext(b *testing.B) {
	for _, n := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := newStore(100)
			for i := range n {
				s.send(fmt.Sprintf("e%d", i), func(e *v1alpha1.HealthEvent) { e.Spec.CheckName = fmt.Sprintf("c%d", i%10) })
			}
			for range 4 {
				for _, step := range health.Next(s.world()) {
					s.take(step)
				}
			}
			w := s.world()
			for b.Loop() {
				health.Next(w)
			}
		})
	}
}

func TestEventsThatWaitAtTheLimitAreNotWrittenForEveryCordon(t *testing.T) {
	s := newStore(30)
	for _, node := range []string{"n1", "n2", "n3"} {
		s.send("on-"+node, on(node))
	}
	for i := range 20 {
		s.send(fmt.Sprintf("e%02d", i), on("n4"))
	}
	s.settle()
	before := s.events["e10"].ResourceVersion
	s.cordon("n9") // by a person
	if steps := s.settle(); len(steps) != 1 || steps[0] != health.ActionWait {
		t.Errorf("steps %v", steps)
	}
	if s.events["e10"].ResourceVersion != before {
		t.Error("written again")
	}
	s.is(t, "e10", "", "", health.WaitLimit)
}

// A thousand events for a hundred nodes: those that have to wait are written once, and name the nodes that are about to be cordoned.
func TestEventsBeyondTheLimitAreWrittenOnce(t *testing.T) {
	s := newStore(100)
	s.config.Quarantine.MaxShare = 10
	for i := range 1000 {
		s.send(fmt.Sprintf("e%03d", i), func(e *v1alpha1.HealthEvent) {
			e.Spec.NodeName, e.Spec.CheckName = fmt.Sprintf("n%d", 2+i%99), fmt.Sprintf("check%d", i/99)
		})
	}
	taken := map[health.Action]int{}
	for _, action := range s.settle() {
		taken[action]++
	}
	admitted := 0
	for _, e := range s.events {
		if e.Status.NodeQuarantined != "" {
			admitted++
		}
	}
	if taken[health.ActionHold] != admitted || taken[health.ActionAdmit] != admitted || taken[health.ActionQuarantine] != 10 {
		t.Errorf("%d events were admitted to 10 nodes, with these steps: %v", admitted, taken)
	}
	if most := len(s.events) - admitted + 10*3; taken[health.ActionWait] > most {
		t.Errorf("%d events wait, with these steps: %v", len(s.events)-admitted, taken)
	}
}

// A report that a check is healthy says what it did not end.
func TestAHealthyEventThatIsNotLaterSaysThatTheNodeStaysQuarantined(t *testing.T) {
	for name, ago := range map[string]time.Duration{"at the same time": 0, "before": time.Hour} {
		s := newStore(3)
		problem := s.send("e1", nil)
		s.settle()
		s.send("h1", func(e *v1alpha1.HealthEvent) {
			healthy(e)
			e.Spec.GeneratedTimestamp = v1alpha1.NewTimestamp(problem.Spec.GeneratedTimestamp.Add(-ago))
		})
		s.send("h2", func(e *v1alpha1.HealthEvent) { healthy(e); e.Spec.CheckName = "another" })
		s.settle()
		for event, want := range map[string]string{
			"h1": "Node n2 stays quarantined: a problem of this check has the same time or a later one.",
			"h2": "No problem of this check keeps node n2 in quarantine.",
		} {
			s.is(t, event, "", "", health.ReasonHealthy)
			if got := meta.FindStatusCondition(s.events[event].Status.Conditions, v1alpha1.HealthEventHandled).Message; got != want {
				t.Errorf("%s: %s says %q, want %q", name, event, got, want)
			}
		}
	}
}

// The end of one custom resource and the beginning of the next are two writes, of which the first may fail.
func TestTheNextResourceOfANodeWaitsUntilTheEndOfTheLastIsRecorded(t *testing.T) {
	for name, ends := range map[string]func(s *store, resource string, d *v1alpha1.Drain){
		"failed":    func(s *store, resource string, _ *v1alpha1.Drain) { s.say(resource, "DrainFailed", "True", "No") },
		"complete":  func(s *store, resource string, _ *v1alpha1.Drain) { s.say(resource, "DrainComplete", "True", "Done") },
		"deleted":   func(s *store, resource string, _ *v1alpha1.Drain) { delete(s.resources, resource) },
		"cancelled": func(s *store, _ string, d *v1alpha1.Drain) { d.Status.Phase = v1alpha1.DrainCancelled },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(3).custom()
			d := manual(s, "first")
			first := "manual-" + string(d.UID)
			s.settle()
			s.now = s.now.Add(time.Minute)
			second := "manual-" + string(manual(s, "second").UID)
			s.settle()
			s.is(t, second, "", progressing, health.WaitBusy)
			ends(s, "drain-n2-"+first, d)
			s.refuse = func(step health.Step) bool { return step.Event.Name == first }
			s.turns(5)
			if cr := s.events[second].Status.CustomResource; cr != nil {
				t.Errorf("it has %+v", cr)
			}
			s.refuse = func(health.Step) bool { return false }
			s.settle()
			s.is(t, second, "", progressing, health.WaitResource)
			if len(s.resources) != 1 || s.resources["drain-n2-"+second] == nil {
				t.Errorf("the resources are %v", slices.Sorted(maps.Keys(s.resources)))
			}
		})
	}
}
