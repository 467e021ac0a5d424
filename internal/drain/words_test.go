package drain_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
)

// maintainers is one of the kinds that move in stages.
const maintainers = "maintainers"

// feedWorks are kinds that move one after the other, and are shown.
var feedWorks = drain.Works{
	{Name: maintainers, Stage: "MigratingMaintainers", Order: 1, Shown: "maintainers"},
	{Name: "dispatchers", Stage: "MigratingDispatchers", Order: 2, Shown: "dispatchers"},
}

// declared are all kinds that tests know of; the order in which they are declared means nothing.
var declared = append(drain.Works{
	{Name: "etcdmembers", One: "etcd member", Many: "etcd members"},
	{Name: "etcddata", One: "only copy of etcd data", Many: "only copies of etcd data"},
}, feedWorks[1], feedWorks[0])

// workOf is the declaration of a kind.
func workOf(name string) drain.Work {
	for _, w := range declared {
		if w.Name == name {
			return w
		}
	}
	return drain.Work{Name: name}
}

func TestASummarySaysWhatIsLeft(t *testing.T) {
	for want, counts := range map[string]map[string]int64{
		"nothing is left":                    {"volumes": 0},
		"3 volumes left":                     {"volumes": 3, "members": 0},
		"1 volume left":                      {"volumes": 1},
		"2 dispatchers, 1 maintainer left":   {"maintainers": 1, "dispatchers": 2},
		"1 deployment, 1 etcd member left":   {"deployments": 1, "etcdmembers": 1, "etcddata": 0},
		"2 deployments, 3 etcd members left": {"deployments": 2, "etcdmembers": 3},
		"1 only copy of etcd data left":      {"etcddata": 1},
		"4 only copies of etcd data left":    {"etcddata": 4},
	} {
		if got := declared.Summary(counts); got != want {
			t.Errorf("%v is %q, want %q", counts, got, want)
		}
	}
}

func TestExplainSaysWhatHoldsANode(t *testing.T) {
	blocker := v1alpha1.Blocker{Kind: "Volume", Name: "v", Reason: "LastCopy", Remedy: "add a disk"}
	plain := v1alpha1.Blocker{Kind: "Volume", Name: "w", Reason: "Rebuilding"}
	for _, c := range []struct {
		name string
		set  func(*scene)
		want string
	}{
		{"an unknown node", func(s *scene) { delete(s.nodes, "n2") }, "There is no node n2.\n"},
		{"a node that never joined", func(s *scene) {
			delete(s.leases, "n2")
			s.says(func(n *v1alpha1.NodeStatus) { *n = v1alpha1.NodeStatus{} })
		}, "Node n2 has never joined.\n"},
		{"an idle node", func(*scene) {}, "Node n2 is Alive in epoch 1.\nNo drain of it is running. It holds nothing.\n"},
		{"a busy node", func(s *scene) { s.holds("n2", "volumes", 2) }, "Node n2 is Alive in epoch 1.\nNo drain of it is running. It holds 2 volumes.\n"},
		{"a cordoned node", func(s *scene) { s.nodes["n2"].Spec.Cordoned = true },
			"Node n2 is Alive in epoch 1.\nIt is cordoned: no new work is placed there. `ebb uncordon n2` allows it again.\nNo drain of it is running. It holds nothing.\n"},
		{"a lost node", func(s *scene) { s.dies("n2") },
			"Node n2 is Alive in epoch 1.\nIt is lost: it did not renew its lease, and the lease has expired. It rejoins as epoch 2 when its process runs again.\n"},
		{"a node that left", func(s *scene) { s.leaves("n2") }, "Node n2 is Alive in epoch 1.\nIt has left: it released its lease. It rejoins as epoch 2 when its process runs again.\n"},
		{"a node that is asked to drain", func(s *scene) {
			s.places("n2", "volumes", 2)
			s.request("d", "n2")
			s.step()
			s.step()
		}, "Node n2 is Alive in epoch 1.\nDrain d is about to begin.\n"},
		{"a draining node", func(s *scene) {
			s.places("n2", "volumes", 2, blocker, plain)
			s.begun("d", "n2")
			s.now = start.Add(time.Minute)
			s.steps()
			s.now = start.Add(90 * time.Second)
		}, "Node n2 is Draining in epoch 1.\nDrain d is Draining, started 1m30s ago: 2 volumes left.\nLast progress was 1m30s ago.\n" +
			"Volume v blocks the drain: LastCopy, for 1m30s; add a disk.\nVolume w blocks the drain: Rebuilding, for 1m30s.\n"},
		{"a node that leaves", func(s *scene) { s.at(v1alpha1.DrainStopping) },
			"Node n2 is Draining in epoch 1.\nDrain d is Stopping, started 0s ago: nothing is left.\nLast progress was 0s ago.\n" +
				"Node n2 blocks the drain: AwaitingExit, for 0s; node n2 is empty and is shutting down; if it hangs, check its log or kill its process.\n"},
		{"a node whose drain failed", func(s *scene) { s.failed() },
			"Node n2 is Draining in epoch 1.\nDrain d is Failed, started 10m0s ago: 2 volumes left.\n" + late + "\nVolume v blocks the drain: LastCopy, for 10m0s; add a disk.\n"},
		{"a node whose failed drain was deleted", func(s *scene) { s.failed(); s.delete("d", s.now); s.steps() },
			"Node n2 is Draining in epoch 1.\nDrain d ended although the node had not left, and the Drain object was deleted. A new Drain of the node continues it; a restart of the node ends it.\n"},
		{"a node that drains although no drain wants it", func(s *scene) {
			s.nodes["n2"].Spec.Desired = &v1alpha1.DesiredLiveness{Liveness: v1alpha1.Draining, Epoch: 1}
			s.obey("n2")
		}, "Node n2 is Draining in epoch 1.\nNo drain of it is running: somebody else wrote spec.desired of Node n2. Restart the process of the node, and it takes work again in its next epoch. It holds nothing.\n"},
		{"a node whose drain waits for another's", func(s *scene) { s.begun("first", "n3"); s.request("d", "n2", queued); s.steps() },
			"Node n2 is Alive in epoch 1.\nNo drain of it is running. It holds nothing.\nDrain d of this node is queued. Waiting for drain first of node n3.\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			c.set(s)
			if diff := cmp.Diff(c.want, drain.Explain(s.world(), "n2")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestEveryStateOfADrainIsToldInItsWords(t *testing.T) {
	const started = "Normal DrainStarted: Draining node n2."
	for _, c := range []struct {
		name string
		set  func(*scene) *v1alpha1.Drain
		want []string
	}{
		{"undecided", func(s *scene) *v1alpha1.Drain { return s.request("d", "n2") }, nil},
		{"held", func(s *scene) *v1alpha1.Drain { d := s.request("d", "n2"); s.step(); return d }, nil},
		{"refused", func(s *scene) *v1alpha1.Drain { d := s.request("d", "n9"); s.steps(); return d }, []string{"Warning DrainRefused: capture not found"}},
		{"queued", func(s *scene) *v1alpha1.Drain {
			s.begun("first", "n3")
			d := s.request("d", "n2", queued)
			s.steps()
			return d
		},
			[]string{"Normal DrainQueued: Waiting for drain first of node n3."}},
		{"draining", func(s *scene) *v1alpha1.Drain { return s.at(v1alpha1.DrainDraining) }, []string{started}},
		{"stalled", func(s *scene) *v1alpha1.Drain {
			d := s.at(v1alpha1.DrainDraining)
			s.places("n2", "volumes", 1)
			s.now = start.Add(5 * time.Minute)
			s.steps()
			return d
		}, []string{started, "Warning DrainStalled 2026-03-01T12:05:00Z: Nothing has left the node for 5m0s: 1 volume left."}},
		{"stopping", func(s *scene) *v1alpha1.Drain { return s.at(v1alpha1.DrainStopping) }, []string{started, "Normal NodeEmpty: Node n2 is empty and is shutting down."}},
		{"complete", func(s *scene) *v1alpha1.Drain { d := s.at(v1alpha1.DrainStopping); s.leaves("n2"); s.steps(); return d },
			[]string{started, "Normal DrainComplete: Node n2 was emptied and has left."}},
		{"gone", func(s *scene) *v1alpha1.Drain { d := s.at(v1alpha1.DrainDraining); s.dies("n2"); s.steps(); return d },
			[]string{started, "Normal DrainComplete: " + gone}},
		{"failed", func(s *scene) *v1alpha1.Drain { return s.failed() },
			[]string{started, "Warning DrainStalled 2026-03-01T12:10:00Z: Nothing has left the node for 5m0s: 2 volumes left.", "Warning DrainFailed: " + late}},
		{"withdrawn", func(s *scene) *v1alpha1.Drain {
			d := s.request("d", "n2")
			s.step()
			s.delete("d", s.now)
			s.steps()
			return d
		},
			[]string{"Warning DrainCancelled: The drain was deleted before it began."}},
		{"ended long ago", func(s *scene) *v1alpha1.Drain {
			d := s.failed()
			s.now = s.now.Add(10*time.Minute + time.Second)
			return d
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(t)
			d := c.set(s)
			var got []string
			for _, n := range drain.Notices(d, s.now) {
				if n.Regarding != d || n.Action != "Drain" {
					t.Errorf("%s is about %s, %s", n.Reason, n.Regarding.GetName(), n.Action)
				}
				key := n.Key
				if key != "" {
					key = " " + key
				}
				got = append(got, fmt.Sprintf("%s %s%s: %s", n.Type, n.Reason, key, n.Note))
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A hundred drains of pods alone that end within seconds have one event each.
func TestTheStartOfABriefDrainOfPodsAloneIsNotTold(t *testing.T) {
	at := func(after time.Duration) *metav1.Time { return &metav1.Time{Time: start.Add(after)} }
	ended := []metav1.Condition{{Type: v1alpha1.DrainFinished, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonDrained, Message: "No pod is left."}}
	for name, c := range map[string]struct {
		scope    v1alpha1.DrainScope
		finished *metav1.Time
		now      time.Duration
		want     []string
	}{
		"has just begun":               {v1alpha1.ScopePods, nil, 4 * time.Second, nil},
		"lasts":                        {v1alpha1.ScopePods, nil, 5 * time.Second, []string{"DrainStarted"}},
		"ended at once":                {v1alpha1.ScopePods, at(2 * time.Second), time.Minute, []string{"DrainComplete"}},
		"ended later":                  {v1alpha1.ScopePods, at(20 * time.Second), time.Minute, []string{"DrainStarted", "DrainComplete"}},
		"began in the future":          {v1alpha1.ScopePods, nil, -time.Hour, []string{"DrainStarted"}},
		"moves Ebb's work, just begun": {"", nil, time.Second, []string{"DrainStarted"}},
	} {
		d := &v1alpha1.Drain{Status: v1alpha1.DrainStatus{Phase: v1alpha1.DrainDraining, Scope: c.scope, StartedAt: at(0), FinishedAt: c.finished}}
		if c.finished != nil {
			d.Status.Phase, d.Status.Conditions = v1alpha1.DrainComplete, ended
		}
		var got []string
		for _, n := range drain.Notices(d, start.Add(c.now)) {
			got = append(got, n.Reason)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A drain that stalls, moves and stalls again is told twice; however often it is looked at, not more.
func TestEveryStallIsToldWithAKeyOfItsOwn(t *testing.T) {
	s := newScene(t)
	d := s.at(v1alpha1.DrainDraining)
	keys := map[string]bool{}
	for _, c := range []struct {
		after time.Duration
		left  int64
	}{{5 * time.Minute, 3}, {6 * time.Minute, 3}, {7 * time.Minute, 2}, {20 * time.Minute, 2}, {21 * time.Minute, 2}} {
		s.now = start.Add(c.after)
		s.places("n2", "volumes", c.left)
		s.steps()
		for _, n := range drain.Notices(d, s.now) {
			if n.Reason == "DrainStalled" {
				keys[n.Key] = true
			}
		}
	}
	if diff := cmp.Diff(map[string]bool{"2026-03-01T12:05:00Z": true, "2026-03-01T12:20:00Z": true}, keys); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestALoneSurvivorsDrainIsToldAsCancelled(t *testing.T) {
	s := newScene(t)
	d := s.at(v1alpha1.DrainDraining)
	d.Status.Phase = v1alpha1.DrainCancelled
	d.Status.Conditions = []metav1.Condition{{Type: v1alpha1.DrainFinished, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonLoneSurvivor, Message: "Every other node is lost."}}
	list := drain.Notices(d, s.now)
	if n := list[len(list)-1]; n.Type != "Warning" || n.Reason != "DrainCancelled" || n.Note != "Every other node is lost." {
		t.Errorf("it is told as %v", n)
	}
}
