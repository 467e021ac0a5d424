package etcdcluster

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster/etcd"
)

// crashes: the process of a member ends again and again, for as long as that.
func crashes(member string, since time.Duration) worldChange {
	return func(w *World) {
		for _, m := range w.Members {
			if m.Name == member {
				m.Status.Phase, m.Status.Error, m.Status.Restarts = v1alpha1.EtcdMemberStarting, "invalid database", 7
			}
		}
		w.View.Health[member] = etcd.Health{Error: "does not answer"}
		w.Cluster.Status.Failing = append(w.Cluster.Status.Failing, v1alpha1.EtcdMemberFailure{Member: member, Since: *micro(noon.Add(-since)), Restarts: 5})
	}
}

// learning adds a learner on n4 that has lagged for as long as that, and made progress or not.
func learning(lag int64, since time.Duration, progress int64) worldChange {
	return func(w *World) {
		m := addMember(w, 4, "n4")
		m.Spec.DataRequired = false
		w.View.Peers[len(w.View.Peers)-1].Learner = true
		h := w.View.Health[m.Name]
		h.Learner, h.Revision = true, w.View.Revision-lag
		w.View.Health[m.Name] = h
		w.Cluster.Status.Failing = []v1alpha1.EtcdMemberFailure{{Member: m.Name, Since: *micro(noon.Add(-since)), Progress: progress}}
	}
}

// reserving adds a member on n4 whose node cannot reserve its ports since then.
func reserving(since time.Duration) worldChange {
	return func(w *World) {
		m := addMember(w, 4, "n4")
		w.View.Peers = w.View.Peers[:len(w.View.Peers)-1]
		delete(w.View.Health, m.Name)
		m.Spec.Want, m.Spec.Begin, m.Spec.DataRequired = v1alpha1.EtcdMemberReserve, nil, false
		m.Status = v1alpha1.EtcdMemberStatus{Phase: v1alpha1.EtcdMemberPending, ObservedGeneration: 1, Error: "read-only file system"}
		if since > 0 {
			w.Cluster.Status.Failing = []v1alpha1.EtcdMemberFailure{{Member: m.Name, Since: *micro(noon.Add(-since)), Learner: true}}
		}
	}
}

func TestMembersThatFailAreReplaced(t *testing.T) {
	removed := func(w *World) { w.View.Peers = w.View.Peers[:2] }
	for _, c := range []struct {
		name  string
		world World
		deeds string
		says  string
	}{
		{"a crash loop is reported at once", runningWorld(3, crashes("demo-3", time.Minute)), "", "Member demo-3 on n3 fails since 11:59:00 UTC (invalid database). It is replaced when it has failed for 2m0s."},
		{"and replaced after a while, elsewhere", runningWorld(3, crashes("demo-3", 2*time.Minute)), "create-member demo-4 on n4", "demo-3"},
		{"on the same node if no other is free", runningWorld(3, crashes("demo-3", 2*time.Minute), cordoned("n4")), "create-member demo-4 on n3", "demo-3"},
		{"never when two fail at once", runningWorld(5, crashes("demo-3", time.Hour), crashes("demo-4", time.Minute)), "", "Several members fail at once, so none is replaced"},
		{"and never without a quorum", runningWorld(3, crashes("demo-3", time.Hour), unhealthy("demo-2")), "", "when the others have a quorum"},
		{"its data is set aside when it is out of the list", runningWorld(3, sized(2), crashes("demo-3", time.Hour), removed), "set-desired demo-3 Stop", "fails"},
		{"a member that only the coordinator cannot reach stays", runningWorld(3, unhealthy("demo-3")), "", ""},
		{"one that runs again stays", runningWorld(3, crashes("demo-3", time.Hour), func(w *World) {
			w.Members[2].Status.Phase, w.View.Health["demo-3"] = v1alpha1.EtcdMemberRunning, w.View.Health["demo-2"]
			w.Cluster.Status.Failing[0].Restarts = 7
		}), "", ""},
		{"a learner that makes progress is waited for", runningWorld(3, drains("n3"), learning(3, time.Hour, answers-4)), "promote-learner demo-4", ""},
		{"one that does not is reported", runningWorld(3, drains("n3"), learning(3, time.Minute, answers-3)), "promote-learner demo-4", "makes no progress"},
		{"and given up", runningWorld(3, drains("n3"), learning(3, 2*time.Minute, answers-3)), "remove-peer demo-4", "makes no progress"},
		{"a node that reserves no ports is waited for", runningWorld(3, drains("n3"), reserving(0)), "", ""},
		{"and reported", runningWorld(3, drains("n3"), reserving(time.Minute)), "", "Member demo-4 on n4 makes no progress since 11:59:00 UTC (read-only file system)"},
		{"and given up", runningWorld(3, drains("n3"), reserving(2*time.Minute)), "set-desired demo-4 Delete", "makes no progress"},
		{"its object does not keep another from being added", runningWorld(3, drains("n3"), reserving(0), func(w *World) {
			w.Members[3].Spec.Want, w.Members[3].Generation = v1alpha1.EtcdMemberDelete, 2
			addNode(w, "n5")
			avoids("n4", time.Minute)(w)
		}), "create-member demo-5 on n5", ""},
		{"one that caught up is not", runningWorld(3, drains("n3"), learning(0, time.Hour, answers)), "promote-learner demo-4", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := Plan(c.world)
			if deeds(d) != c.deeds {
				t.Errorf("it does %q, want %q", deeds(d), c.deeds)
			}
			said := ""
			if cond := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.EtcdMemberFailing); cond != nil {
				said = cond.Message
			}
			if (said == "") != (c.says == "") || !strings.Contains(said, c.says) {
				t.Errorf("it says %q, want %q", said, c.says)
			}
		})
	}
	d := Plan(runningWorld(3, sized(2), crashes("demo-3", time.Hour), removed))
	if len(d.Status.SetAside) != 1 || d.Status.SetAside[0].Member != "demo-3" || len(d.Status.Avoid) != 1 || d.Status.Avoid[0].Node != "n3" {
		t.Errorf("set aside %+v, avoided %+v", d.Status.SetAside, d.Status.Avoid)
	}
}

func TestAMemberHasToBeSteadyForItsFailuresToBeForgotten(t *testing.T) {
	w := runningWorld(3, crashes("demo-3", time.Minute))
	began := w.Cluster.Status.Failing[0].Since
	step := func(after time.Duration, change func()) *v1alpha1.EtcdMemberFailure {
		w.Now = w.Now.Add(after)
		change()
		w.Cluster.Status = Plan(w).Status
		if len(w.Cluster.Status.Failing) == 0 {
			return nil
		}
		return &w.Cluster.Status.Failing[0]
	}
	up := func() {
		w.Members[2].Status.Phase, w.View.Health["demo-3"] = v1alpha1.EtcdMemberRunning, w.View.Health["demo-2"]
	}
	if f := step(0, func() {}); f == nil || f.Since != began {
		t.Fatalf("%+v", f)
	}
	if f := step(time.Second, up); f == nil || f.HealthySince == nil {
		t.Fatalf("it answers: %+v", f)
	}
	if f := step(time.Second, func() { w.Members[2].Status.Restarts++ }); f == nil || f.HealthySince != nil || f.Since != began {
		t.Fatalf("it crashed again: %+v", f)
	}
	if f := step(time.Second, up); f == nil || f.HealthySince == nil {
		t.Fatalf("it answers: %+v", f)
	}
	if f := step(steadyAfter, up); f != nil {
		t.Fatalf("it is steady: %+v", f)
	}
}

// A voter that replays a long log is not a voter that fails, and neither is one that only the coordinator cannot reach.
func TestAVoterThatStartsSlowlyOrRunsUnseenIsNotReplaced(t *testing.T) {
	const starting, running = v1alpha1.EtcdMemberStarting, v1alpha1.EtcdMemberRunning
	type report struct {
		phase    v1alpha1.EtcdMemberPhase
		bytes    int64
		restarts int64
	}
	const bytes = 16 << 20
	for _, c := range []struct {
		name     string
		report   func(minute int64) report
		replaced bool
	}{
		{"its data grows", func(minute int64) report { return report{starting, minute * bytes, 0} }, false},
		{"its data grows after a crash", func(minute int64) report { return report{starting, minute * bytes, min(minute, 1)} }, false},
		{"nothing happens", func(int64) report { return report{starting, bytes, 0} }, true},
		{"it starts over and over, and gets no further", func(minute int64) report { return report{starting, minute % 2 * bytes, minute / 2} }, true},
		{"its data shrinks", func(minute int64) report { return report{starting, (100 - minute) * bytes, 0} }, true},
		{"it crashed once, and its node says that it runs", func(minute int64) report {
			if minute == 0 {
				return report{starting, 0, 0}
			}
			return report{running, 0, 1}
		}, false},
		{"it crashes again and again", func(minute int64) report {
			if minute%2 == 0 {
				return report{starting, 0, minute}
			}
			return report{running, 0, minute}
		}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := runningWorld(3, unhealthy("demo-3"))
			replaced := false
			for minute := range int64(10) {
				r := c.report(minute)
				w.Now = noon.Add(time.Duration(minute) * time.Minute)
				status := &w.Members[2].Status
				status.Phase, status.DataBytes, status.Restarts = r.phase, r.bytes, r.restarts
				d := Plan(w)
				replaced = replaced || strings.Contains(deeds(d), "create-member")
				w.Cluster.Status = d.Status
			}
			if replaced != c.replaced {
				t.Errorf("replaced: %t, failing: %+v", replaced, w.Cluster.Status.Failing)
			}
		})
	}
	w := runningWorld(3, unhealthy("demo-3"), crashes("demo-3", time.Minute))
	w.Members[2].Status.Phase, w.Cluster.Status.Failing[0].Restarts = running, 7
	for range 2 {
		w.Cluster.Status = Plan(w).Status
		w.Now = w.Now.Add(steadyAfter)
	}
	if f := w.Cluster.Status.Failing; len(f) != 0 {
		t.Errorf("its node says that it runs, and it fails: %+v", f)
	}
}

func alarm(a etcd.Alarm, size, quota int64) worldChange {
	return func(w *World) {
		w.View.Alarms = []etcd.Alarm{a}
		for name, h := range w.View.Health {
			h.DBSize, h.Quota = size, quota
			w.View.Health[name] = h
		}
	}
}

func TestAlarmsAreConditions(t *testing.T) {
	quota := func(text string) worldChange {
		return func(w *World) { q := resource.MustParse(text); w.Cluster.Spec.Storage.Quota = &q }
	}
	for _, c := range []struct {
		name, condition, says string
		world                 World
		deeds                 string
	}{
		{"a full database", v1alpha1.EtcdNoSpace, "The database of demo-2 on n2 reached its quota", runningWorld(3, alarm(etcd.Alarm{Member: 0xa2, NoSpace: true}, 100, 100)), ""},
		{"one that has room again", v1alpha1.EtcdNoSpace, "reached its quota", runningWorld(3, alarm(etcd.Alarm{Member: 0xa2, NoSpace: true}, 80, 100)), "disarm-no-space demo-2 on n2"},
		{"a restored one, of a member that is gone", v1alpha1.EtcdNoSpace, "a former member, ff", runningWorld(3, alarm(etcd.Alarm{Member: 0xff, NoSpace: true}, 80, 100)), "disarm-no-space a former member, ff"},
		{"a raised quota reaches one member at a time", v1alpha1.EtcdNoSpace, "reached", runningWorld(3, quota("1Gi"), alarm(etcd.Alarm{Member: 0xa2, NoSpace: true}, 100, 100)), "set-desired demo-1 Run"},
		{"but not while another restarts", v1alpha1.EtcdNoSpace, "reached", runningWorld(3, quota("1Gi"), unhealthy("demo-3"), alarm(etcd.Alarm{Member: 0xa2, NoSpace: true}, 100, 100)), ""},
		{"corrupt data is never disarmed", v1alpha1.EtcdCorrupt, "The data of demo-1 on n1 differs", runningWorld(3, alarm(etcd.Alarm{Member: 0xa1, Corrupt: true}, 1, 100)), ""},
		{"what cannot be read stays as it was", v1alpha1.EtcdCorrupt, "as it was", runningWorld(3, func(w *World) {
			w.View.AlarmsUnknown = true
			w.Cluster.Status.Conditions = []metav1.Condition{{Type: v1alpha1.EtcdCorrupt, Status: metav1.ConditionTrue, Message: "as it was"}}
		}), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := Plan(c.world)
			cond := meta.FindStatusCondition(d.Status.Conditions, c.condition)
			if cond == nil || !strings.Contains(cond.Message, c.says) {
				t.Errorf("it says %+v", cond)
			}
			if deeds(d) != c.deeds {
				t.Errorf("it does %q, want %q", deeds(d), c.deeds)
			}
			if meta.IsStatusConditionTrue(d.Status.Conditions, v1alpha1.EtcdReady) {
				t.Error("it is Ready")
			}
		})
	}
}

// avoids: a member failed on a node, which is avoided for as long as that from now on.
func avoids(node string, left time.Duration) worldChange {
	return func(w *World) {
		w.Cluster.Status.Avoid = []v1alpha1.EtcdAvoidedNode{{Node: node, Until: metav1.NewTime(noon.Add(left))}}
	}
}

// Trying a node again and again on which members fail would keep a drain waiting for ever; without a drain nothing is won by sharing a node.
func TestWhereAMemberGoesWhenItFailedOnTheOnlyFreeNode(t *testing.T) {
	shares := func(w *World) { w.Members[2].Spec.Node = "n2" }
	freed := func(w *World) { addNode(w, "n5") }
	for _, c := range []struct {
		name  string
		world World
		deeds string
	}{
		{"it shares a node while a drain waits", runningWorld(3, drains("n1"), avoids("n4", time.Minute)), "create-member demo-4 on n2"},
		{"rather than on the node of a voter that fails", runningWorld(3, drains("n1"), avoids("n4", time.Minute), crashes("demo-2", time.Minute)), "create-member demo-4 on n3"},
		{"it has a node of its own if another one is free", runningWorld(3, drains("n1"), avoids("n4", time.Minute), freed), "create-member demo-4 on n5"},
		{"rather where one failed than where one fails now", runningWorld(3, cordoned("n2"), avoids("n4", time.Minute), crashes("demo-3", 2*time.Minute)), "create-member demo-4 on n4"},
		{"it is tried there again when that was long ago", runningWorld(3, drains("n1"), avoids("n4", 0)), "create-member demo-4 on n4"},
		{"it is tried there again without a drain", runningWorld(3, sized(4), avoids("n4", time.Minute)), "create-member demo-4 on n4"},
		{"and while a drain waits for others", runningWorld(3, sized(4), freed, drains("n5"), avoids("n4", time.Minute)), "create-member demo-4 on n4"},
		{"two that share a node stay while members fail on the free one", runningWorld(3, shares, cordoned("n3"), avoids("n4", time.Minute)), ""},
		{"and are spread again afterwards", runningWorld(3, shares, cordoned("n3"), avoids("n4", 0)), "create-member demo-4 on n4"},
		{"or to another node", runningWorld(3, shares, cordoned("n3"), avoids("n4", time.Minute), freed), "create-member demo-4 on n5"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := deeds(Plan(c.world)); got != c.deeds {
				t.Errorf("it does %q, want %q", got, c.deeds)
			}
		})
	}
}
