package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed"
	"github.com/ebb-dev/ebb/internal/deployment"
	"github.com/ebb-dev/ebb/internal/etcdcluster"
	"github.com/ebb-dev/ebb/internal/kind"
)

// etcd makes a cluster of three members.
func etcd(name string, phase v1alpha1.EtcdClusterPhase, ready int32, change ...func(*v1alpha1.EtcdCluster)) v1alpha1.EtcdCluster {
	ec := v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Generation: 2}}
	ec.Status.Phase, ec.Status.ReadyReplicas, ec.Status.ObservedGeneration = phase, ready, 2
	for _, c := range change {
		c(&ec)
	}
	return ec
}

func etcdSays(kind string, status metav1.ConditionStatus, message string) func(*v1alpha1.EtcdCluster) {
	return func(ec *v1alpha1.EtcdCluster) {
		ec.Status.Conditions = append(ec.Status.Conditions, metav1.Condition{Type: kind, Status: status, Reason: kind, Message: message})
	}
}

func sized(n int32) func(*v1alpha1.EtcdCluster) {
	return func(ec *v1alpha1.EtcdCluster) { ec.Spec.Size = &n }
}

var etcdReady = etcdSays(v1alpha1.EtcdReady, "True", "3 of 3 members healthy")

func feed(name string, state v1alpha1.ChangefeedState, change ...func(*v1alpha1.Changefeed)) v1alpha1.Changefeed {
	cf := v1alpha1.Changefeed{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	cf.Status.State = state
	for _, c := range change {
		c(&cf)
	}
	return cf
}

// behind sets when the source committed the checkpoint, and what holds it there.
func behind(by time.Duration, slowest string) func(*v1alpha1.Changefeed) {
	return func(cf *v1alpha1.Changefeed) {
		at := metav1.NewTime(now.Add(-by))
		cf.Status.CheckpointTime, cf.Status.Slowest = &at, slowest
	}
}

func lineOf(k *kind.Summary) string { k.Sort(); return k.Line(true) }

func TestTheLineOfEtcdClusters(t *testing.T) {
	stopped := etcd("night", v1alpha1.EtcdClusterPhaseStopped, 0, sized(0), etcdSays(v1alpha1.EtcdReady, "False", "Cluster stopped"))
	good := etcd("good", v1alpha1.EtcdClusterPhaseRunning, 3, etcdReady)
	lost := etcd("demo", v1alpha1.EtcdClusterPhaseFailed, 1, etcdSays(v1alpha1.EtcdReady, "False", "1 of 3 members healthy"), etcdSays(v1alpha1.EtcdQuorumLost, "True", "1 of 3 voters answer, 2 are needed."))
	other := etcd("other", v1alpha1.EtcdClusterPhaseFailed, 0, etcdSays(v1alpha1.EtcdQuorumLost, "True", "0 of 3 voters answer"))
	leaving := etcd("leaving", v1alpha1.EtcdClusterPhaseRunning, 3, etcdReady)
	leaving.DeletionTimestamp = &metav1.Time{Time: now}
	changed := etcd("changed", v1alpha1.EtcdClusterPhaseRunning, 3, etcdReady)
	changed.Generation = 3
	const see = ", see `ebb status etcdclusters`"
	for _, c := range []struct {
		want string
		list []v1alpha1.EtcdCluster
	}{
		{"1 etcd cluster: as it should be", []v1alpha1.EtcdCluster{good}},
		{"1 etcd cluster: as it should be, stopped", []v1alpha1.EtcdCluster{stopped}},
		{"2 etcd clusters: all as they should be, 1 stopped", []v1alpha1.EtcdCluster{good, stopped}},
		{"2 etcd clusters: 1 running, 1 has no quorum (demo: 1 of 3 voters answer, 2 are needed)" + see, []v1alpha1.EtcdCluster{good, lost}},
		{"2 etcd clusters: 2 have no quorum (demo: 1 of 3 voters answer, 2 are needed; other: 0 of 3 voters answer)" + see, []v1alpha1.EtcdCluster{lost, other}},
		{"1 etcd cluster: 1 short of members (demo: 2 of 3 members ready)" + see, []v1alpha1.EtcdCluster{etcd("demo", v1alpha1.EtcdClusterPhaseRunning, 2, etcdReady)}},
		{"1 etcd cluster: 1 not ready (demo: 1 of 3 members ready)" + see,
			[]v1alpha1.EtcdCluster{etcd("demo", v1alpha1.EtcdClusterPhaseRunning, 1, etcdSays(v1alpha1.EtcdReady, "False", "1 of 3 members healthy"))}},
		{"1 etcd cluster: 1 scaling (demo: Adding member demo-4 on node n4)" + see,
			[]v1alpha1.EtcdCluster{etcd("demo", v1alpha1.EtcdClusterPhaseScaling, 3, etcdReady, etcdSays(v1alpha1.EtcdProgressing, "True", "Adding member demo-4 on node n4"))}},
		{"1 etcd cluster: 1 stopped (demo: Starting)" + see, []v1alpha1.EtcdCluster{etcd("demo", v1alpha1.EtcdClusterPhaseStopped, 0, etcdSays(v1alpha1.EtcdProgressing, "False", "Starting"))}},
		{"1 etcd cluster: 1 has data missing (night: data of night-2 is missing on n2)" + see,
			[]v1alpha1.EtcdCluster{etcd("night", v1alpha1.EtcdClusterPhaseFailed, 0, etcdSays(v1alpha1.EtcdDataMissing, "True", "data of night-2 is missing on n2."))}},
		{"1 etcd cluster: 1 cannot be snapshotted (night: disk full)" + see,
			[]v1alpha1.EtcdCluster{etcd("night", v1alpha1.EtcdClusterPhaseScaling, 3, sized(0), etcdReady, etcdSays(v1alpha1.EtcdSnapshotFailed, "True", "disk full"))}},
		{"1 etcd cluster: 1 failed (demo: it cannot go on)" + see,
			[]v1alpha1.EtcdCluster{etcd("demo", v1alpha1.EtcdClusterPhaseFailed, 3, etcdReady, etcdSays(v1alpha1.EtcdProgressing, "False", "it cannot go on"))}},
		{"2 etcd clusters: 1 being deleted (leaving), 1 not seen by the coordinator since the last change (changed)" + see, []v1alpha1.EtcdCluster{leaving, changed}},
		{"1 etcd cluster: 1 not seen by the coordinator since the last change (new)" + see, []v1alpha1.EtcdCluster{etcd("new", "", 0)}},
	} {
		if diff := cmp.Diff(c.want, lineOf(etcdcluster.Summarize(c.list))); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

func TestTheLineOfChangefeeds(t *testing.T) {
	paused := feed("paused", v1alpha1.ChangefeedPaused, func(cf *v1alpha1.Changefeed) { cf.Spec.State = v1alpha1.ChangefeedPause })
	stumbles := func(text string) func(*v1alpha1.Changefeed) {
		return func(cf *v1alpha1.Changefeed) { cf.Status.Error = text }
	}
	const see = ", see `ebb status changefeeds`"
	for _, c := range []struct {
		want string
		list []v1alpha1.Changefeed
	}{
		{"1 changefeed: as it should be", []v1alpha1.Changefeed{feed("a", v1alpha1.ChangefeedRunning)}},
		{"2 changefeeds: all as they should be, 1 paused", []v1alpha1.Changefeed{feed("a", v1alpha1.ChangefeedRunning), paused}},
		{"1 changefeed: as it should be", []v1alpha1.Changefeed{feed("idle", v1alpha1.ChangefeedRunning, behind(time.Hour, ""))}},
		{"1 changefeed: as it should be", []v1alpha1.Changefeed{feed("quick", v1alpha1.ChangefeedRunning, behind(20*time.Second, "node n1: table a.b writes"))}},
		{"1 changefeed: 1 lagging (slow: 45s behind, node n1: table a.b writes)" + see, []v1alpha1.Changefeed{feed("slow", v1alpha1.ChangefeedRunning, behind(45*time.Second, "node n1: table a.b writes"))}},
		{"3 changefeeds: 1 running, 1 failed (bad: access denied for user 'x'), 1 in trouble (shop/odd: sink: connection refused)" + see, []v1alpha1.Changefeed{
			feed("odd", v1alpha1.ChangefeedRunning, stumbles("sink: connection refused"), func(cf *v1alpha1.Changefeed) { cf.Namespace = "shop" }),
			feed("bad", v1alpha1.ChangefeedFailed, stumbles("access denied\nfor user 'x'")), feed("good", v1alpha1.ChangefeedRunning)}},
		{"2 changefeeds: 1 moving (b), 1 pending (a: no schedulable node)" + see, []v1alpha1.Changefeed{feed("a", "", stumbles("no schedulable node")), feed("b", v1alpha1.ChangefeedMoving)}},
		{"1 changefeed: 1 paused (a)" + see, []v1alpha1.Changefeed{feed("a", v1alpha1.ChangefeedPaused)}}, // and wanted
	} {
		if diff := cmp.Diff(c.want, lineOf(changefeed.Summarize(c.list, now))); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

func TestTheLinesOfDeploymentsAndDaemons(t *testing.T) {
	runs := running("True", "Running", "It runs.")
	good, off := program("good", v1alpha1.TypeDeployment, runs), program("off", v1alpha1.TypeDeployment, running("False", v1alpha1.ReasonDisabled, "spec.enabled is false."))
	const see = ", see `ebb status deployments`"
	for _, c := range []struct {
		want string
		list []*v1alpha1.Deployment
	}{
		{"1 deployment: as it should be / 1 daemon: as it should be", []*v1alpha1.Deployment{good, program("beat", v1alpha1.TypeDaemon, runs)}},
		{"2 deployments: all as they should be, 1 disabled / 0 daemons: all as they should be", []*v1alpha1.Deployment{good, off}},
		{"3 deployments: 1 running, 1 disabled, 1 not running where it should (web: No node claims it)" + see + " / 1 daemon: 1 not running where it should (beat: It runs on 2 of 3 nodes)" + see,
			[]*v1alpha1.Deployment{off, program("web", v1alpha1.TypeDeployment, running("False", "NotRunning", "No node claims it.")), good,
				program("beat", v1alpha1.TypeDaemon, running("False", "NotRunning", "It runs on 2 of 3 nodes."))}},
		{"2 deployments: 1 not seen by the coordinator since the last change (new), 1 invalid (odd: type \"cron\" is wrong)" + see + " / 0 daemons: all as they should be", []*v1alpha1.Deployment{
			program("new", v1alpha1.TypeDeployment),
			program("odd", "cron", running("False", "ERR_INVALID_TYPE", "Nobody runs it."), func(d *v1alpha1.Deployment) {
				d.Status.Conditions[0].Status, d.Status.Conditions[0].Message = "False", "type \"cron\" is wrong"
			})}},
	} {
		var list []v1alpha1.Deployment
		for _, d := range c.list {
			list = append(list, *d)
		}
		lines := deployment.Summarize(list)
		deployments, daemons := lines[0], lines[1]
		if diff := cmp.Diff(c.want, lineOf(deployments)+" / "+lineOf(daemons)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

func TestALineNamesAFewAndIsTheSameInWhateverOrderTheyAreRead(t *testing.T) {
	var list []v1alpha1.Changefeed
	for i := range 7 {
		list = append(list, feed(fmt.Sprintf("f%d", i), v1alpha1.ChangefeedFailed, func(cf *v1alpha1.Changefeed) { cf.Status.Error = strings.Repeat("é", 200) }))
	}
	list = append(list, feed("slow", v1alpha1.ChangefeedRunning, behind(time.Hour, "x")))
	long := strings.Repeat("é", 119) + "…"
	want := "8 changefeeds: 7 failed (f0: " + long + "; f1: " + long + "; f2: " + long + "; and 4 more), 1 lagging, see `ebb status changefeeds`"
	for range 20 {
		rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		if diff := cmp.Diff(want, lineOf(changefeed.Summarize(slices.Clone(list), now))); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	}
}

// Without a coordinator nobody brings the conditions up to date.
func TestWithoutACoordinatorNothingIsCalledAsItShouldBe(t *testing.T) {
	one := changefeed.Summarize([]v1alpha1.Changefeed{feed("a", v1alpha1.ChangefeedRunning)}, now)
	two := changefeed.Summarize([]v1alpha1.Changefeed{feed("a", v1alpha1.ChangefeedRunning), feed("b", v1alpha1.ChangefeedRunning)}, now)
	for want, k := range map[string]*kind.Summary{
		"1 changefeed: was as it should be when a coordinator last looked":         one,
		"2 changefeeds: all were as they should be when a coordinator last looked": two,
	} {
		if got := k.Line(false); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestTheProblemOfADrain(t *testing.T) {
	with := func(phase v1alpha1.DrainPhase, conditions ...metav1.Condition) v1alpha1.Drain {
		d := v1alpha1.Drain{ObjectMeta: metav1.ObjectMeta{Name: "d", UID: types.UID("u")}}
		d.Status.Phase, d.Status.Conditions = phase, conditions
		return d
	}
	slot := &v1alpha1.ActiveDrain{Name: "d", UID: "u", Node: "n2", NodeEpoch: 1}
	stalled := metav1.Condition{Type: v1alpha1.DrainStalled, Status: "True", Message: "Nothing has left the node for 5m0s: 1 volume left."}
	failed := metav1.Condition{Type: v1alpha1.DrainFinished, Status: "True", Message: "Node n2 was not drained within 10m0s."}
	for _, c := range []struct {
		want   string
		slot   *v1alpha1.ActiveDrain
		drains []v1alpha1.Drain
	}{
		{"", nil, []v1alpha1.Drain{with(v1alpha1.DrainFailed, failed)}},
		{"", slot, []v1alpha1.Drain{with(v1alpha1.DrainDraining)}},
		{"stalled: Nothing has left the node for 5m0s: 1 volume left", slot, []v1alpha1.Drain{with(v1alpha1.DrainDraining, stalled)}},
		{"failed: Node n2 was not drained within 10m0s", slot, []v1alpha1.Drain{with(v1alpha1.DrainFailed, stalled, failed)}},
		{"the Drain object was deleted; a new Drain of the node continues", slot, nil},
	} {
		if got := drainProblem(c.slot, c.drains); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

// sick is a cluster in which a good deal is wrong.
func sick() *clusterStatus {
	at := metav1.NewTime(now.Add(-time.Minute))
	s := &clusterStatus{
		Coordinator: "n1", ActiveDrain: &v1alpha1.ActiveDrain{Name: "d", UID: "u", Node: "n3", NodeEpoch: 4}, DrainProblem: "stalled: Nothing has left the node for 5m0s: 1 etcd member left",
		Nodes: []nodeStatus{
			{Name: "n1", Liveness: "Alive", Ready: "True", Reason: "Serving", Since: at, Epoch: 1, Coordinator: true, Held: map[string]int64{"deployments": 1, "dispatchers": 11, "etcdmembers": 1, "etcddata": 0, "maintainers": 0}},
			{Name: "n2", Liveness: "Alive", Ready: "Unknown", Reason: "Fenced", Message: "Its lease stayed unchanged.", Since: at, Epoch: 2, Held: map[string]int64{"deployments": 0}},
			{Name: "n3", Liveness: "Draining", Ready: "True", Reason: "Serving", Since: at, Epoch: 4, Cordoned: true, Held: map[string]int64{"etcdmembers": 1, "etcddata": 2}},
			{Name: "n4", Liveness: "Stopping", Ready: "False", Reason: "Left", Since: at, Epoch: 1, Held: map[string]int64{}},
		},
		Drains: []drainStatus{
			{Name: "d", Node: "n3", Phase: "Draining", Remaining: map[string]int64{"etcdmembers": 1, "deployments": 0}, Created: at, Message: "Work is being moved off the node."},
			{Name: "c", Node: "n4", Phase: "Complete", Remaining: map[string]int64{"etcdmembers": 0}, Created: at, Message: "Node n4 was emptied and has left."},
			{Name: "b", Node: "n9", Phase: "Failed", Remaining: map[string]int64{}, Created: at, Message: "capture not found"},
		},
	}
	s.NodeSummary = summarizeNodes(s.Nodes)
	clusters := etcdcluster.Summarize([]v1alpha1.EtcdCluster{etcd("demo", v1alpha1.EtcdClusterPhaseFailed, 1, etcdSays(v1alpha1.EtcdQuorumLost, "True", "1 of 3 voters answer, 2 are needed."))})
	feeds := changefeed.Summarize([]v1alpha1.Changefeed{feed("stream", v1alpha1.ChangefeedRunning)}, now)
	for _, k := range []*kind.Summary{feeds, clusters} {
		k.Sort()
		s.Kinds = append(s.Kinds, k)
	}
	return s
}

func TestTheStatusSaysWhatIsWrong(t *testing.T) {
	want := "4 nodes, coordinator: n1\n" +
		"draining: n3 (epoch 4) by drain d; stalled: Nothing has left the node for 5m0s: 1 etcd member left\n" +
		"4 nodes: 2 ready, 1 left, 1 fenced (n2: Its lease stayed unchanged)\n" +
		"1 changefeed: as it should be\n" +
		"1 etcd cluster: 1 has no quorum (demo: 1 of 3 voters answer, 2 are needed), see `ebb status etcdclusters`\n" + `
NODE   LIVENESS   READY     REASON    SINCE   EPOCH   HELD                                          NOTE
n1     Alive      True      Serving   60s     1       1 deployment, 11 dispatchers, 1 etcd member   coordinator
n2     Alive      Unknown   Fenced    60s     2       nothing
n3     Draining   True      Serving   60s     4       2 only copies of etcd data, 1 etcd member     cordoned
n4     Stopping   False     Left      60s     1       -

DRAIN   NODE   PHASE      AGE   REMAINING       MESSAGE
d       n3     Draining   60s   1 etcd member   Work is being moved off the node.
c       n4     Complete   60s   nothing         Node n4 was emptied and has left.
b       n9     Failed     60s   -               capture not found
`
	if diff := cmp.Diff(want, sick().text(now)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestTheStatusInJSONHasTheSameFacts(t *testing.T) {
	data, err := json.Marshal(sick())
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		DrainProblem string
		NodeSummary  kind.Summary
		Kinds        []kind.Summary
		Nodes        []struct{ Held map[string]int64 }
	}
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	want := []string{
		`{"kind":"changefeeds","total":1,"asTheyShouldBe":true,"states":{"running":1},"notes":[]}`,
		`{"kind":"etcd clusters","total":1,"asTheyShouldBe":false,"states":{"no quorum":1},"notes":[{"name":"demo","state":"no quorum","message":"1 of 3 voters answer, 2 are needed"}]}`,
		`{"kind":"nodes","total":4,"asTheyShouldBe":false,"states":{"fenced":1,"left":1,"ready":2},"notes":[{"name":"n2","state":"fenced","message":"Its lease stayed unchanged"}]}`,
	}
	for i, k := range append(got.Kinds, got.NodeSummary) {
		line, err := json.Marshal(k)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want[i], string(line)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	if got.DrainProblem == "" || got.Nodes[0].Held["dispatchers"] != 11 {
		t.Errorf("%+v", got)
	}
}

// The message of a drain is written when it ends, and a failed one says that its node stays Draining. The status says when that has ended.
func TestTheStatusSaysWhenAFailedDrainNoLongerHoldsItsNode(t *testing.T) {
	const stays = "Node n2 was not drained within 10m0s: 1 volume left. It stays Draining and takes no new work; a new Drain of it continues where this one ended."
	const released = "The drain was cancelled: node n2 takes work again in a new epoch. Work that has moved stays where it is."
	began := metav1.NewTime(now)
	drain := func(phase v1alpha1.DrainPhase, message string, started *metav1.Time, released string) v1alpha1.Drain {
		d := v1alpha1.Drain{ObjectMeta: metav1.ObjectMeta{Name: "d", UID: "u"}, Spec: v1alpha1.DrainSpec{NodeName: "n2"}, Status: v1alpha1.DrainStatus{Phase: phase, StartedAt: started}}
		d.Status.Conditions = append(d.Status.Conditions, metav1.Condition{Type: v1alpha1.DrainFinished, Status: metav1.ConditionTrue, Message: message})
		if released != "" {
			d.Status.Conditions = append(d.Status.Conditions, metav1.Condition{Type: v1alpha1.DrainReleased, Status: metav1.ConditionTrue, Message: released})
		}
		return d
	}
	slot := func(uid string) *v1alpha1.ActiveDrain {
		return &v1alpha1.ActiveDrain{Name: "d", UID: uid, Node: "n2", NodeEpoch: 1}
	}
	for what, c := range map[string]struct {
		drain v1alpha1.Drain
		slot  *v1alpha1.ActiveDrain
		want  string
	}{
		"it holds its node":                      {drain(v1alpha1.DrainFailed, stays, &began, ""), slot("u"), stays},
		"it was cancelled":                       {drain(v1alpha1.DrainFailed, stays, &began, released), slot("u"), stays + " " + released},
		"it was cancelled, and the slot is free": {drain(v1alpha1.DrainFailed, stays, &began, released), nil, stays + " " + released},
		"its node was stopped":                   {drain(v1alpha1.DrainFailed, stays, &began, ""), nil, stays + " Since then it no longer holds node n2."},
		"another drain followed":                 {drain(v1alpha1.DrainFailed, stays, &began, ""), slot("v"), stays + " Since then it no longer holds node n2."},
		"it never began":                         {drain(v1alpha1.DrainFailed, "capture not found", nil, ""), nil, "capture not found"},
		"it is complete":                         {drain(v1alpha1.DrainComplete, "Node n2 was emptied and has left.", &began, ""), nil, "Node n2 was emptied and has left."},
	} {
		if got := latest([]v1alpha1.Drain{c.drain}, c.slot, now)[0].Message; got != c.want {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
}
