package etcdcluster

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster/etcd"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/lease"
)

// noon is when everything happens.
var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// worldChange changes a world.
type worldChange func(*World)

// runningWorld is a cluster with a healthy member on each of n1, n2, …, and one node more; the first leads.
func runningWorld(members int, change ...worldChange) World {
	size := int32(members)
	w := World{
		Now: noon, Fleet: fleet.New(), Settled: true, Load: map[string]int{},
		Cluster: &v1alpha1.EtcdCluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "demo", UID: "12345678-90", Generation: 4, Finalizers: []string{v1alpha1.EtcdClusterFinalizer}},
			Spec: v1alpha1.EtcdClusterSpec{
				Size: &size, Storage: v1alpha1.EtcdStorage{OnStop: v1alpha1.EtcdSnapshotThenDelete}, Snapshot: v1alpha1.EtcdSnapshotPolicy{Keep: 3, Copies: 2},
				ReplaceAfter: &metav1.Duration{Duration: 5 * time.Minute},
			},
			Status: v1alpha1.EtcdClusterStatus{Phase: v1alpha1.EtcdClusterPhaseRunning, ClusterID: "c1", Incarnation: 1, NextMember: int64(size) + 1, RestoreFromTracked: true},
		},
		View: etcd.View{Listed: true, Via: "demo-1", Revision: 7, Health: map[string]etcd.Health{}},
	}
	for i := range members + 1 {
		addNode(&w, fmt.Sprintf("n%d", i+1))
	}
	for i := range members {
		addMember(&w, i+1, fmt.Sprintf("n%d", i+1))
	}
	for _, f := range change {
		f(&w)
	}
	return w
}

func addNode(w *World, name string) {
	n := &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	n.Status.Epoch, n.Status.Liveness = 1, v1alpha1.Alive
	n.Status.Conditions = []metav1.Condition{{Type: v1alpha1.NodeReady, Status: metav1.ConditionTrue}}
	w.Nodes[name], w.Leases[name] = n, lease.Record{Node: name, Holder: name, Epoch: 1}
}

func addMember(w *World, number int, node string) *v1alpha1.EtcdMember {
	name := fmt.Sprintf("demo-%d", number)
	m := &v1alpha1.EtcdMember{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Generation: 1},
		Spec: v1alpha1.EtcdMemberSpec{
			Cluster: "demo", ClusterUID: "12345678-90", Incarnation: 1, Node: node, Want: v1alpha1.EtcdMemberRun, Begin: &v1alpha1.EtcdBegin{}, DataRequired: true,
		},
		Status: v1alpha1.EtcdMemberStatus{
			Phase: v1alpha1.EtcdMemberRunning, ObservedGeneration: 1, PeerURL: "peer-" + name, ClientURL: "client-" + name, ID: fmt.Sprintf("%x", 0xa0+number), Data: true,
		},
	}
	w.Members = append(w.Members, m)
	id := uint64(0xa0 + number)
	w.View.Peers = append(w.View.Peers, etcd.Peer{ID: id, Name: name, PeerURL: m.Status.PeerURL})
	w.View.Health[name] = etcd.Health{Answered: true, ID: id, ClusterID: 0xc1, Leader: 0xa1, Revision: 7}
	w.Load[node]++
	return m
}

func sized(n int32) worldChange { return func(w *World) { w.Cluster.Spec.Size = &n } }

func unhealthy(members ...string) worldChange {
	return func(w *World) {
		for _, name := range members {
			w.View.Health[name] = etcd.Health{Error: "does not answer"}
		}
	}
}

// movedTo: the member's node has another address.
func movedTo(member, peerURL string) worldChange {
	return func(w *World) {
		for _, m := range w.Members {
			if m.Name == member {
				m.Status.Phase, m.Status.Moved = v1alpha1.EtcdMemberFailed, &v1alpha1.EtcdMemberURLs{PeerURL: peerURL}
			}
		}
	}
}

// listedAt: etcd's list has the member at another address.
func listedAt(member, peerURL string) worldChange {
	return func(w *World) {
		for i := range w.View.Peers {
			if w.View.Peers[i].Name == member {
				w.View.Peers[i].PeerURL = peerURL
			}
		}
	}
}

// mayStartAt: the member's node may start it at an address.
func mayStartAt(member, peerURL string) worldChange {
	return func(w *World) {
		for _, m := range w.Members {
			if m.Name == member {
				m.Spec.PeerURL = peerURL
			}
		}
	}
}

func drains(node string) worldChange {
	return func(w *World) {
		w.Slot, w.Settled = &v1alpha1.ActiveDrain{Node: node}, false
		w.Nodes[node].Status.Liveness = v1alpha1.Draining
	}
}

func gone(node string, since time.Duration) worldChange {
	return func(w *World) {
		w.Leases[node] = lease.Record{Node: node, Epoch: 1, Fenced: 1}
		w.Nodes[node].Status.Conditions = []metav1.Condition{{Type: v1alpha1.NodeReady, Status: metav1.ConditionUnknown, LastTransitionTime: metav1.NewTime(noon.Add(-since))}}
		for _, m := range w.Members {
			if m.Spec.Node == node {
				w.View.Health[m.Name] = etcd.Health{Error: "does not answer"}
			}
		}
	}
}

func cordoned(node string) worldChange {
	return func(w *World) { w.Nodes[node].Spec.Cordoned = true }
}

func zoned(zones ...string) worldChange {
	return func(w *World) {
		for i, z := range zones {
			w.Nodes[fmt.Sprintf("n%d", i+1)].Labels["zone"] = z
		}
	}
}

func onStop(policy v1alpha1.EtcdOnStop) worldChange {
	return func(w *World) { w.Cluster.Spec.Storage.OnStop = policy }
}

// deletedByHand: somebody deletes the object of a member.
func deletedByHand(member string) worldChange {
	return func(w *World) {
		for _, m := range w.Members {
			if m.Name == member {
				m.DeletionTimestamp = newTime(noon)
			}
		}
	}
}

// undeletable: the last member was removed, and its node cannot delete its data; the process has a PID, or none.
func undeletable(pid int64) worldChange {
	return func(w *World) {
		m := w.Members[len(w.Members)-1]
		w.View.Peers = w.View.Peers[:len(w.View.Peers)-1]
		delete(w.View.Health, m.Name)
		m.Spec.Want, m.Status.Error, m.Status.PID = v1alpha1.EtcdMemberDelete, "read-only file system", pid
	}
}

// noQuorum: nobody confirms the list, and that is known for a while.
func noQuorum(w *World) {
	for _, m := range w.Members {
		if !slices.ContainsFunc(w.Cluster.Status.Members, func(known v1alpha1.EtcdMemberInfo) bool { return known.Name == m.Name }) {
			w.Cluster.Status.Members = append(w.Cluster.Status.Members, v1alpha1.EtcdMemberInfo{Name: m.Name, Role: v1alpha1.EtcdVoter})
		}
	}
	w.View.Listed, w.View.Peers = false, nil
	w.Cluster.Status.Conditions = []metav1.Condition{{Type: v1alpha1.EtcdReady, Status: metav1.ConditionFalse, LastTransitionTime: metav1.NewTime(noon.Add(-time.Minute))}}
}

// deeds are the actions in short.
func deeds(d Decision) string {
	var list []string
	for _, a := range d.Actions {
		text := string(a.Do)
		switch {
		case a.Do == CreateMember:
			text += " " + a.Member.Name + " on " + a.Member.Spec.Node
		case a.Do == SetDesired:
			text += " " + a.Member.Name + " " + string(a.Member.Spec.Want)
		case a.Member != nil:
			text += " " + a.Member.Name
		case a.Snapshot != nil:
			text += " " + a.Snapshot.Name
		case a.Peer.ID != 0:
			text += " " + a.Peer.Name
		}
		list = append(list, text)
	}
	return strings.Join(list, ", ")
}

func message(d Decision) string {
	if c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.EtcdProgressing); c != nil {
		return c.Message
	}
	return ""
}

func TestWhatIsDoneNext(t *testing.T) {
	for _, c := range []struct {
		name    string
		world   World
		deeds   string
		phase   v1alpha1.EtcdClusterPhase
		message string
	}{
		{"nothing, when all is well", runningWorld(3), "", "Running", "Cluster is running"},
		{"a member is added where there is none", runningWorld(3, sized(4)), "create-member demo-4 on n4", "Scaling", "Adding a member on n4"},
		{"in another zone first", runningWorld(3, sized(4), func(w *World) { addNode(w, "n5") }, zoned("a", "b", "c", "a", "d")), "create-member demo-4 on n5", "Scaling", "Adding a member on n5"},
		{"two share a node only if they must", runningWorld(3, sized(5), cordoned("n4")), "create-member demo-4 on n1", "Scaling", "Adding a member on n1"},
		{"not before a quorum is healthy", runningWorld(3, sized(4), unhealthy("demo-2", "demo-3")), "", "Scaling", "1 of 3 voters healthy; waiting for a quorum before adding a member"},
		{"the newest leaves, not the leader", runningWorld(3, sized(2)), "remove-peer demo-3", "Scaling", "Removing member demo-3 on n3"},
		{"the unhealthy one leaves first", runningWorld(3, sized(2), unhealthy("demo-2")), "remove-peer demo-2", "Scaling", "Removing member demo-2 on n2"},
		{"one on a cordoned node leaves before others", runningWorld(3, sized(2), cordoned("n2")), "remove-peer demo-2", "Scaling", "Removing member demo-2 on n2"},
		{"one of the most crowded zone leaves", runningWorld(4, sized(3), zoned("a", "b", "b", "c")), "remove-peer demo-3", "Scaling", "Removing member demo-3 on n3"},
		{"leadership moves first", runningWorld(2, sized(1), cordoned("n1")), "move-leader demo-2", "Scaling", "Moving leadership from demo-1 before it is removed"},
		{
			"no voter leaves that quorum needs", runningWorld(4, sized(3), drains("n1"), unhealthy("demo-3", "demo-4")), "", "Scaling",
			"2 of 4 voters healthy; removing demo-1 would lose quorum; start a node or bring demo-3 and demo-4 back",
		},
		{"a drained node's member is replaced first", runningWorld(3, drains("n2")), "create-member demo-4 on n4", "Scaling", "Adding a member on n4"},
		{"with nowhere to go it says so", runningWorld(1, drains("n1"), cordoned("n2")), "", "Scaling", "0 of 1 members: no node is schedulable for another one; start or uncordon a node"},
		{"a node that is gone is waited for", runningWorld(3, gone("n3", time.Minute)), "", "Running", "Cluster is running"},
		{"and its member is replaced after a while", runningWorld(3, gone("n3", 6*time.Minute)), "create-member demo-4 on n4", "Scaling", "Adding a member on n4"},
		{
			"a member whose data is lost is replaced", runningWorld(3, unhealthy("demo-3"), func(w *World) {
				w.Members[2].Status.Phase, w.Members[2].Status.Data = v1alpha1.EtcdMemberFailed, false
			}), "create-member demo-4 on n4", "Scaling", "Adding a member on n4",
		},
		{
			"members that share a node move apart", runningWorld(3, func(w *World) { w.Members[1].Spec.Node = "n1" }), "create-member demo-4 on n4", "Scaling",
			"Adding a member on n4, so that no two share a node",
		},
		{"but not shortly after a drain", runningWorld(3, func(w *World) { w.Members[1].Spec.Node, w.Settled = "n1", false }), "", "Running", "Cluster is running"},
		{"a stop is written down before anything else", runningWorld(3, sized(0)), "", "Scaling", "Stopping cluster"},
		{"a stop waits for a quorum", runningWorld(3, sized(0), unhealthy("demo-2", "demo-3")), "", "Scaling", "Waiting for a quorum before stopping, so that every key is kept"},
		{
			"unless nothing is to be kept", runningWorld(3, sized(0), unhealthy("demo-2", "demo-3"), onStop(v1alpha1.EtcdDelete)),
			"set-desired demo-1 Delete, set-desired demo-2 Delete, set-desired demo-3 Delete", "Scaling", "Stopping cluster: waiting for its processes to end",
		},
		{"a moment without a leader is no failure", runningWorld(3, noQuorum, func(w *World) { w.Cluster.Status.Conditions = nil }), "", "Running", "Waiting for a quorum of the members"},
		{"no new cluster where one was recorded", runningWorld(3, func(w *World) { w.Members, w.View = nil, etcd.View{} }), "", "Failed", "No member of cluster c1 is left. There is no verified snapshot, and no data on a reachable node; to give up every key and start empty run `ebb etcd restore demo --snapshot none`."},
		{
			"a quorum that is lost is told with the remedy", runningWorld(3, gone("n2", time.Minute), gone("n3", time.Minute), noQuorum), "", "Failed",
			"1 of 3 voters answer, 2 are needed: bring demo-2 and demo-3 back. If they are lost for good: To continue from the data of one member run `ebb etcd restore demo --from-member NODE`, with NODE n1.",
		},
		{
			"when all nodes moved at once, the condition says so", runningWorld(3, noQuorum, func(w *World) {
				for _, m := range w.Members {
					m.Status.Phase, m.Status.Error, w.View.Health[m.Name] = v1alpha1.EtcdMemberFailed, "the node has another address", etcd.Health{}
				}
			}), "", "Failed",
			"0 of 3 voters answer, 2 are needed: bring demo-1 and demo-2 and demo-3 back (demo-1: the node has another address). If they are lost for good: To continue from the data of one member run `ebb etcd restore demo --from-member NODE`, with NODE n1 or n2 or n3.",
		},
		{
			"a member whose node got another address is listed there first", runningWorld(3, unhealthy("demo-3"), movedTo("demo-3", "https://elsewhere:1")), "update-peer demo-3", "Scaling",
			"Member demo-3 on n3 has another address: changing it from peer-demo-3 to https://elsewhere:1 in etcd's list",
		},
		{
			"then it is started there", runningWorld(3, unhealthy("demo-3"), movedTo("demo-3", "https://elsewhere:1"), listedAt("demo-3", "https://elsewhere:1")), "set-desired demo-3 Run", "Scaling",
			"Member demo-3 on n3 has another address: starting it at https://elsewhere:1",
		},
		{
			"if the node has its former address again, the list follows", runningWorld(3, listedAt("demo-3", "https://elsewhere:1")), "update-peer demo-3", "Scaling",
			"Member demo-3 on n3 has another address: changing it from https://elsewhere:1 to peer-demo-3 in etcd's list",
		},
		{
			"what etcd answered to the last attempt is reported", runningWorld(3, unhealthy("demo-3"), movedTo("demo-3", "https://elsewhere:1"), func(w *World) {
				w.Failed = map[Do]string{UpdatePeer: "member demo-3: refused", RemovePeer: "another"}
			}), "update-peer demo-3", "Scaling",
			"Member demo-3 on n3 has another address: changing it from peer-demo-3 to https://elsewhere:1 in etcd's list (member demo-3: refused)",
		},
		{
			"a member whose address another one has is replaced", runningWorld(3, unhealthy("demo-3"), movedTo("demo-3", "peer-demo-2")), "create-member demo-4 on n4", "Scaling",
			"Adding a member on n4",
		},
		{
			"and then it is removed", runningWorld(4, sized(3), unhealthy("demo-3"), movedTo("demo-3", "peer-demo-2")), "remove-peer demo-3", "Scaling",
			"Removing member demo-3 on n3",
		},
		{
			"unless that one moves on first", runningWorld(3, unhealthy("demo-2"), movedTo("demo-2", "peer-demo-3"), movedTo("demo-3", "https://elsewhere:1")), "update-peer demo-3", "Scaling",
			"Member demo-3 on n3 has another address: changing it from peer-demo-3 to https://elsewhere:1 in etcd's list",
		},
		{
			"a member that did not move must not start there later", runningWorld(3, listedAt("demo-3", "https://elsewhere:1"), mayStartAt("demo-3", "https://elsewhere:1")), "set-desired demo-3 Run", "Scaling",
			"Member demo-3 on n3 did not move to https://elsewhere:1: keeping it from starting there",
		},
		{
			"nor if the list has its address again", runningWorld(3, mayStartAt("demo-3", "https://elsewhere:1")), "set-desired demo-3 Run", "Scaling",
			"Member demo-3 on n3 did not move to https://elsewhere:1: keeping it from starting there",
		},
		{"one that moved stays where it is", runningWorld(3, mayStartAt("demo-3", "peer-demo-3")), "", "Running", "Cluster is running"},
		{"a member whose object somebody deletes is replaced", runningWorld(3, deletedByHand("demo-2")), "create-member demo-4 on n4", "Scaling", "Adding a member on n4"},
		{"and then it is removed, though another one is newer", runningWorld(4, sized(3), deletedByHand("demo-2")), "remove-peer demo-2", "Scaling", "Removing member demo-2 on n2"},
		{
			"data that cannot be deleted is reported", runningWorld(4, sized(3), undeletable(0)), "", "Scaling",
			"Deleting member demo-4 on n4 (read-only file system)",
		},
		{"and no other change waits for that", runningWorld(4, undeletable(0), drains("n2")), "create-member demo-5 on n5", "Scaling", "Adding a member on n5"},
		{
			"but for a process that still runs", runningWorld(4, undeletable(7), drains("n2")), "", "Scaling",
			"Deleting member demo-4 on n4 (read-only file system)",
		},
		{
			"a peer that no object knows is removed", runningWorld(3, func(w *World) {
				w.View.Peers = append(w.View.Peers, etcd.Peer{ID: 9, Name: "stranger", PeerURL: "elsewhere", Learner: true})
			}), "remove-peer stranger", "Scaling", "Removing stranger, which has no EtcdMember",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := c.world.Cluster.DeepCopy()
			if c.name == "a quorum that is lost is told with the remedy" {
				c.world.View.Health["demo-1"] = etcd.Health{Answered: true, ID: 0xa1}
			}
			d := Plan(c.world)
			if got := deeds(d); got != c.deeds {
				t.Errorf("it does %q, want %q", got, c.deeds)
			}
			if d.Status.Phase != c.phase || message(d) != c.message {
				t.Errorf("it says %s: %s\nwant %s: %s", d.Status.Phase, message(d), c.phase, c.message)
			}
			if !equality.Semantic.DeepEqual(before, c.world.Cluster) {
				t.Error("the planner changed what it was given")
			}
		})
	}
}

// A draining node admits data that it kept stopped only sealed. Without it the cluster may have no quorum, and its members could not be replaced.
func TestAMemberThatDoesNotRunOnADrainingNodeIsStartedSealedFirst(t *testing.T) {
	phase := func(p v1alpha1.EtcdMemberPhase, want v1alpha1.EtcdMemberWish) worldChange {
		return func(w *World) {
			w.Members[0].Status.Phase, w.Members[0].Spec.Want = p, want
			w.View = etcd.View{}
		}
	}
	resumed := func(w *World) {
		w.Cluster.Status.Phase, w.Cluster.Status.Starting = v1alpha1.EtcdClusterPhaseCreating, micro(noon)
		w.Cluster.Status.Rest = &v1alpha1.EtcdStoppedState{OnStop: v1alpha1.EtcdRetain, Members: []v1alpha1.EtcdMemberInfo{{Name: "demo-1", Node: "n1"}}}
	}
	for _, c := range []struct {
		name  string
		world World
		deeds string
	}{
		{"a restore or a person had stopped it", runningWorld(1, drains("n1"), phase(v1alpha1.EtcdMemberStopped, v1alpha1.EtcdMemberStop)), "set-desired demo-1 Seal"},
		{"it was refused", runningWorld(1, drains("n1"), phase(v1alpha1.EtcdMemberStarting, v1alpha1.EtcdMemberRun)), "set-desired demo-1 Seal"},
		{"once it runs it serves clients", runningWorld(1, drains("n1"), phase(v1alpha1.EtcdMemberSealed, v1alpha1.EtcdMemberSeal)), "set-desired demo-1 Run"},
		{"elsewhere it serves them at once", runningWorld(1, phase(v1alpha1.EtcdMemberStopped, v1alpha1.EtcdMemberStop)), "set-desired demo-1 Run"},
		{"a cluster starts from data that it retained", runningWorld(1, drains("n1"), resumed, phase(v1alpha1.EtcdMemberStopped, v1alpha1.EtcdMemberStop)), "set-desired demo-1 Seal"},
		{"and elsewhere it is as before", runningWorld(1, resumed, phase(v1alpha1.EtcdMemberStopped, v1alpha1.EtcdMemberStop)), "set-desired demo-1 Run"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := deeds(Plan(c.world)); got != c.deeds {
				t.Errorf("it does %q, want %q", got, c.deeds)
			}
		})
	}
}

func TestADeletionSaysWhichSnapshotCannotBeDeleted(t *testing.T) {
	w := runningWorld(0, snapshotted("s1", time.Hour, "n1"), func(w *World) { w.Cluster.DeletionTimestamp = newTime(noon) })
	w.Snapshots[0].DeletionTimestamp, w.Snapshots[0].Status.Copies[0] = newTime(noon), v1alpha1.EtcdSnapshotCopy{Node: "n1", Error: "read-only file system"}
	if got, want := message(Plan(w)), "Deleting cluster (n1: read-only file system)"; got != want {
		t.Errorf("it says %q, want %q", got, want)
	}
}

func TestAClusterCreatedWithSizeZeroIsStoppedAtOnce(t *testing.T) {
	w := runningWorld(0, func(w *World) { w.Cluster.Status = v1alpha1.EtcdClusterStatus{}; w.View = etcd.View{} })
	d := Plan(w)
	if d.Status.Phase != v1alpha1.EtcdClusterPhaseStopped || len(d.Notices) != 0 || d.Status.Members == nil || len(d.Actions) != 0 {
		t.Errorf("%+v", d)
	}
	w.Cluster.Status = d.Status
	sized(3)(&w)
	d = Plan(w)
	if deeds(d) != "create-member demo-1 on n1" || d.Status.Phase != v1alpha1.EtcdClusterPhaseCreating || message(d) != v1alpha1.MessageEtcdBootstrap {
		t.Errorf("its first start: %q, %s %s", deeds(d), d.Status.Phase, message(d))
	}
}

func TestARestartSaysSoOnce(t *testing.T) {
	w := runningWorld(0, sized(3), func(w *World) {
		w.View = etcd.View{}
		w.Cluster.Status = v1alpha1.EtcdClusterStatus{
			Phase: v1alpha1.EtcdClusterPhaseStopped, ClusterID: "c1", Incarnation: 1, NextMember: 4, Rest: &v1alpha1.EtcdStoppedState{OnStop: v1alpha1.EtcdDelete},
		}
	})
	keys := map[string]bool{}
	for range 3 {
		d := Plan(w)
		c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.EtcdProgressing)
		if c.Status != metav1.ConditionTrue || c.Reason != "Creating" || c.Message != "Restarting cluster from stopped state" {
			t.Fatalf("%+v", c)
		}
		for _, n := range d.Notices {
			keys[n.Reason+n.Key+n.Note] = true
		}
		w.Cluster.Status = d.Status
		w.Now = w.Now.Add(time.Second)
	}
	if len(keys) != 1 {
		t.Errorf("events: %v", keys)
	}
}

// snapshotted adds a snapshot with verified copies.
func snapshotted(name string, age time.Duration, nodes ...string) worldChange {
	return func(w *World) {
		s := &v1alpha1.EtcdSnapshot{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, CreationTimestamp: metav1.NewTime(noon.Add(-age)), Finalizers: []string{v1alpha1.EtcdSnapshotFinalizer}},
			Spec:       v1alpha1.EtcdSnapshotSpec{Cluster: "demo", ClusterUID: "12345678-90", Nodes: nodes, Member: "demo-1"},
			Status:     v1alpha1.EtcdSnapshotStatus{Facts: &v1alpha1.EtcdSnapshotFacts{Revision: 7}},
		}
		for _, node := range nodes {
			s.Status.Copies = append(s.Status.Copies, v1alpha1.EtcdSnapshotCopy{Node: node, Verified: micro(noon)})
		}
		w.Snapshots = append(w.Snapshots, s)
	}
}

func copies(n int32) worldChange {
	return func(w *World) { w.Cluster.Spec.Snapshot.Copies = n }
}

func unverified(name string, age time.Duration, nodes ...string) worldChange {
	return func(w *World) {
		snapshotted(name, age, nodes...)(w)
		copies := w.Snapshots[len(w.Snapshots)-1].Status.Copies
		for i := range copies {
			copies[i].Verified = nil
		}
	}
}

// While no client is served, leases end and their keys go: the revision moves, and a snapshot at the former one cannot be taken.
func TestASnapshotIsTakenAgainUnderTheSealWhenTheRevisionMoved(t *testing.T) {
	for _, c := range []struct {
		name     string
		revision int64 // of the cluster; the stop was at 7
		attempt  int64
		deeds    string
		failed   bool
	}{
		{"leases ended", 9, 1, "create-snapshot demo-12345678-4-2", false},
		{"the store is full", 7, 1, "set-desired demo-1 Run, set-desired demo-2 Run, set-desired demo-3 Run", true},
		{"something goes on writing", 9, 30, "set-desired demo-1 Run, set-desired demo-2 Run, set-desired demo-3 Run", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			name := fmt.Sprintf("demo-12345678-4-%d", c.attempt)
			w := runningWorld(3, sized(0), snapshotted(name, time.Second, "n1", "n2"))
			w.Snapshots[0].Status = v1alpha1.EtcdSnapshotStatus{Error: "it could not be taken"}
			w.View.Revision = c.revision
			w.Cluster.Status.Stop = &v1alpha1.EtcdStop{
				Generation: 4, OnStop: v1alpha1.EtcdSnapshotThenDelete, Step: v1alpha1.EtcdSnapshotting, Attempt: c.attempt, Revision: 7, Snapshot: name,
			}
			for _, m := range w.Members {
				m.Spec.Want, m.Status.Phase = v1alpha1.EtcdMemberSeal, v1alpha1.EtcdMemberSealed
			}
			d := Plan(w)
			if got := deeds(d); got != c.deeds {
				t.Errorf("it does %q, want %q", got, c.deeds)
			}
			if got := meta.IsStatusConditionTrue(d.Status.Conditions, v1alpha1.EtcdSnapshotFailed); got != c.failed {
				t.Errorf("SnapshotFailed is %t", got)
			}
			if c.failed {
				return
			}
			if s := d.Actions[0].Snapshot; s.Spec.Revision != c.revision || d.Status.Stop.Revision != c.revision || d.Status.Stop.Attempt != c.attempt+1 {
				t.Errorf("at revision %d, %+v", s.Spec.Revision, d.Status.Stop)
			}
		})
	}
}

// A stop that cannot get its copies lets clients in again.
func TestAStopThatCannotBeCompletedServesClientsMeanwhile(t *testing.T) {
	const name, serve = "demo-12345678-4-1", "set-desired demo-1 Run, set-desired demo-2 Run, set-desired demo-3 Run"
	failing := func(nodes ...string) worldChange {
		return func(w *World) {
			for _, node := range nodes {
				w.Snapshots[0].Status.Copies = append(w.Snapshots[0].Status.Copies, v1alpha1.EtcdSnapshotCopy{Node: node, Error: "no space left on device"})
			}
		}
	}
	forgot := func(nodes ...string) worldChange {
		return func(w *World) {
			for _, node := range nodes {
				w.Cluster.Status.Stop.CopyFailures = append(w.Cluster.Status.Stop.CopyFailures, v1alpha1.EtcdSnapshotCopy{Node: node, Error: "no space left on device"})
			}
		}
	}
	at := func(step v1alpha1.EtcdStopStep, sealed time.Duration) worldChange {
		return func(w *World) {
			w.Cluster.Status.Stop.Step, w.Cluster.Status.Stop.SealedSince = step, micro(noon.Add(-sealed))
		}
	}
	paused := func(left time.Duration) worldChange {
		return func(w *World) {
			w.Cluster.Status.Stop.Step, w.Cluster.Status.Stop.SealedSince, w.Cluster.Status.Stop.PausedUntil = v1alpha1.EtcdSealing, nil, micro(noon.Add(left))
		}
	}
	starting := func(member int) worldChange {
		return func(w *World) { w.Members[member].Status.Phase = v1alpha1.EtcdMemberStarting }
	}
	for _, c := range []struct {
		name   string
		change []worldChange
		deeds  string
		pauses bool
		says   string
	}{
		{"a node that fails is replaced", []worldChange{failing("n2")}, "place-snapshot " + name, false, "snapshot " + name + " is on 1 of 2 nodes (n2: no space left on device)"},
		{"one that failed and forgot it is not asked again", []worldChange{forgot("n2"), failing("n3")}, "place-snapshot " + name, false, "n2: no space left on device; n3: no space left on device"},
		{"every node failed at some time", []worldChange{forgot("n2", "n3"), failing("n4")}, serve, true, "Every node that could keep a copy was tried"},
		{"one is still to be tried", []worldChange{failing("n2", "n3")}, "place-snapshot " + name, false, "n3: no space left on device"},
		{"every node failed", []worldChange{failing("n2", "n3", "n4")}, serve, true, "Every node that could keep a copy was tried"},
		{"copies take too long", []worldChange{at(v1alpha1.EtcdCopying, 6*time.Minute)}, serve, true, "snapshot " + name + " is on 1 of 2 nodes"},
		{"copies may take a while", []worldChange{at(v1alpha1.EtcdCopying, 4*time.Minute)}, "", false, ""},
		{
			"a shorter time is set", []worldChange{at(v1alpha1.EtcdCopying, 4*time.Minute), func(w *World) { w.Cluster.Spec.Storage.StopTimeout = &metav1.Duration{Duration: time.Minute} }},
			serve, true, "kept clients out for 1m0s",
		},
		{"a member never stops serving", []worldChange{at(v1alpha1.EtcdSealing, 6*time.Minute), starting(2)}, serve, true, "members that do not stop serving clients: demo-3"},
		{"the pause goes on", []worldChange{paused(time.Second)}, serve, false, ""},
		{"the pause is over", []worldChange{paused(-time.Second)}, serve + ", create-snapshot demo-12345678-4-trial-1", false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := runningWorld(3, sized(0), snapshotted(name, time.Hour, "n1"))
			w.Snapshots[0].Spec.Nodes = []string{"n1", "n2"}
			w.Cluster.Status.Stop = &v1alpha1.EtcdStop{
				Generation: 4, OnStop: v1alpha1.EtcdSnapshotThenDelete, Step: v1alpha1.EtcdCopying, Attempt: 1, Revision: 7, Snapshot: name, SealedSince: micro(noon.Add(-time.Second)),
			}
			for _, m := range w.Members {
				m.Spec.Want, m.Status.Phase = v1alpha1.EtcdMemberSeal, v1alpha1.EtcdMemberSealed
			}
			for _, change := range c.change {
				change(&w)
			}
			d := Plan(w)
			if got := deeds(d); got != c.deeds {
				t.Errorf("it does %q, want %q", got, c.deeds)
			}
			if s := d.Status.Stop; c.pauses != (s.PausedUntil != nil && s.SealedSince == nil && s.Step == v1alpha1.EtcdSealing) && c.name != "the pause goes on" {
				t.Errorf("the stop is %+v", s)
			}
			failed := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.EtcdSnapshotFailed)
			if c.says != "" && (failed == nil || failed.Status != metav1.ConditionTrue || !strings.Contains(failed.Message, c.says)) {
				t.Errorf("SnapshotFailed is %+v", failed)
			}
		})
	}
}

// Clients are kept out only when nodes have said that they have room for the copies, so that full disks never cut them off.
func TestAStopAsksForRoomBeforeItKeepsClientsOut(t *testing.T) {
	const trial, seal = "demo-12345678-4-trial-1", "set-desired demo-1 Seal, set-desired demo-2 Seal, set-desired demo-3 Seal"
	const full = "no space left on device"
	answers := func(room string, none ...string) worldChange {
		return func(w *World) {
			for node := range strings.SplitSeq(room, ",") {
				w.Snapshots[0].Status.Copies = append(w.Snapshots[0].Status.Copies, v1alpha1.EtcdSnapshotCopy{Node: node, Room: micro(noon)})
			}
			for _, node := range none {
				w.Snapshots[0].Status.Copies = append(w.Snapshots[0].Status.Copies, v1alpha1.EtcdSnapshotCopy{Node: node, Error: full})
			}
			w.Snapshots[0].Status.Copies = slices.DeleteFunc(w.Snapshots[0].Status.Copies, func(c v1alpha1.EtcdSnapshotCopy) bool { return c.Node == "" })
		}
	}
	// asked: the nodes have been asked for so long by the coordinator's clock. That of the API server is an hour behind.
	asked := func(age time.Duration, nodes ...string) worldChange {
		return func(w *World) {
			w.Cluster.Status.Stop.Trial, w.Asked = trial, map[string]time.Time{}
			for _, node := range nodes {
				w.Asked[node] = noon.Add(-age)
			}
			w.Snapshots = append(w.Snapshots, &v1alpha1.EtcdSnapshot{
				ObjectMeta: metav1.ObjectMeta{Name: trial, CreationTimestamp: metav1.NewTime(noon.Add(-time.Hour)), Finalizers: []string{v1alpha1.EtcdSnapshotFinalizer}},
				Spec:       v1alpha1.EtcdSnapshotSpec{TrialBytes: 1 << 20, MemberNode: "n2", Nodes: nodes},
			})
		}
	}
	// also: so was another node, later.
	also := func(age time.Duration, node string) worldChange {
		return func(w *World) {
			w.Snapshots[0].Spec.Nodes, w.Asked[node] = append(w.Snapshots[0].Spec.Nodes, node), noon.Add(-age)
			slices.Sort(w.Snapshots[0].Spec.Nodes)
		}
	}
	silent := func(nodes ...string) worldChange {
		return func(w *World) { w.Cluster.Status.Stop.Silent = nodes }
	}
	unseen := func(w *World) { w.Asked = nil }
	// failed: the last snapshot could not be taken on a node.
	failed := func(node string) worldChange {
		return func(w *World) {
			w.Cluster.Status.Stop.Snapshot = "failed"
			w.Snapshots = append(w.Snapshots, &v1alpha1.EtcdSnapshot{
				ObjectMeta: metav1.ObjectMeta{Name: "failed", Finalizers: []string{v1alpha1.EtcdSnapshotFinalizer}}, Spec: v1alpha1.EtcdSnapshotSpec{MemberNode: node, Nodes: []string{"n2", "n4"}}, Status: v1alpha1.EtcdSnapshotStatus{Error: full},
			})
		}
	}
	for _, c := range []struct {
		name   string
		change []worldChange
		deeds  string
		nodes  string // that are asked
		pauses bool
		says   string
	}{
		{"the nodes of the copies are asked first", nil, "create-snapshot " + trial, "n1,n4", false, ""},
		{"it waits for their answers", []worldChange{asked(time.Second, "n1", "n4")}, "", "", false, ""},
		{"one answer is not enough", []worldChange{asked(time.Second, "n1", "n4"), answers("n1")}, "", "", false, ""},
		{"enough have room", []worldChange{asked(time.Second, "n1", "n4"), answers("n1,n4")}, seal, "", false, ""},
		{"another node is asked for one that has no room", []worldChange{asked(time.Second, "n1", "n4"), answers("n1", "n4")}, "place-snapshot " + trial, "n1,n2,n4", false, ""},
		{"and is enough", []worldChange{asked(time.Second, "n1", "n2", "n4"), answers("n1,n2", "n4")}, seal, "", false, ""},
		{
			"no node has room", []worldChange{asked(time.Second, "n1", "n2", "n3", "n4"), answers("", "n1", "n2", "n3", "n4")}, "delete-snapshot " + trial, "", true,
			"2 nodes must have room for a copy of the snapshot, among them the node of a healthy member, and 0 have it (n1: " + full + "; n2: " + full + "; n3: " + full + "; n4: " + full + ")",
		},
		{
			"one of two has room", []worldChange{asked(time.Second, "n1", "n2", "n3", "n4"), answers("n1", "n2", "n3", "n4")}, "delete-snapshot " + trial, "", true,
			"and 1 have it (n2: " + full + "; n3: " + full + "; n4: " + full + ")",
		},
		{
			"no member's node has room to take it", []worldChange{func(w *World) { addNode(w, "n5") }, asked(time.Second, "n1", "n2", "n3", "n4", "n5"), answers("n4,n5", "n1", "n2", "n3")},
			"delete-snapshot " + trial, "", true, "and 2 have it (n1: " + full,
		},
		{
			"a node where the last snapshot failed is asked again rather than one that has no room now",
			[]worldChange{asked(time.Second, "n1", "n3", "n4"), answers("n4", "n1", "n3"), failed("n2")}, "place-snapshot " + trial, "n1,n2,n3,n4", false, "",
		},
		{
			"the others could not reach the node of the snapshot, which drains: whether it is silent has to be known",
			[]worldChange{drains("n2"), asked(time.Second, "n1", "n2", "n3", "n4"), answers("", "n1", "n3", "n4")}, "", "", false, "",
		},
		{
			"and when it is, another takes the snapshot", []worldChange{drains("n2"), asked(time.Minute, "n1", "n2", "n3", "n4"), answers("", "n1", "n3", "n4")},
			"delete-snapshot " + trial, "", true, "; n2: it did not answer for 30s)",
		},
		{"one that does not answer has no room", []worldChange{asked(time.Minute, "n1", "n4"), answers("n1")}, "place-snapshot " + trial, "n1,n2,n4", false, ""},
		{"the one that is asked instead has its own time", []worldChange{asked(time.Minute, "n1", "n4"), also(time.Second, "n2"), answers("n1")}, "", "", false, ""},
		{"and is enough when it answers", []worldChange{asked(time.Minute, "n1", "n4"), also(time.Second, "n2"), answers("n1,n2")}, seal, "", false, ""},
		{"a node that was silent before is asked last", []worldChange{silent("n4")}, "create-snapshot " + trial, "n1,n2", false, ""},
		{"but asked", []worldChange{silent("n4"), asked(time.Second, "n1", "n2", "n3"), answers("n1", "n2", "n3")}, "place-snapshot " + trial, "n1,n2,n3,n4", false, ""},
		{"and the snapshot is rather taken elsewhere", []worldChange{silent("n1")}, "create-snapshot " + trial, "n2,n4", false, ""},
		{"a coordinator that has just begun waits", []worldChange{asked(time.Minute, "n1", "n4"), unseen}, "", "", false, ""},
		{"also if some have answered", []worldChange{asked(time.Minute, "n1", "n4"), unseen, answers("n1")}, "", "", false, ""},
		{"nodes of a former version do not answer", []worldChange{asked(time.Minute, "n1", "n4")}, seal, "", false, ""},
		{"a trial that somebody deleted is asked again", []worldChange{asked(time.Second, "n1", "n4"), func(w *World) { w.Snapshots = nil }}, "create-snapshot " + trial, "n1,n4", false, ""},
		{"what retains its data needs no room", []worldChange{onStop(v1alpha1.EtcdRetain), func(w *World) { w.Cluster.Status.Stop.OnStop = v1alpha1.EtcdRetain }}, seal, "", false, ""},
		{"a cluster that is wanted again forgets it", []worldChange{asked(time.Second, "n1", "n4"), sized(3)}, "delete-snapshot " + trial, "", false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := runningWorld(3, sized(0), func(w *World) {
				w.Cluster.Status.Stop = &v1alpha1.EtcdStop{Generation: 4, OnStop: v1alpha1.EtcdSnapshotThenDelete, Step: v1alpha1.EtcdSealing}
			})
			for _, change := range c.change {
				change(&w)
			}
			d := Plan(w)
			if got := deeds(d); got != c.deeds {
				t.Errorf("it does %q, want %q", got, c.deeds)
			}
			for _, a := range d.Actions {
				if a.Snapshot != nil && c.nodes != "" && strings.Join(a.Snapshot.Spec.Nodes, ",") != c.nodes {
					t.Errorf("it asks %v, want %s", a.Snapshot.Spec.Nodes, c.nodes)
				}
			}
			stop := d.Status.Stop
			if stop != nil && (stop.SealedSince != nil) != (c.deeds == seal) || c.pauses != (stop != nil && stop.PausedUntil != nil) {
				t.Errorf("the stop is %+v", stop)
			}
			failed := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.EtcdSnapshotFailed)
			if c.says != "" && (failed == nil || failed.Status != metav1.ConditionTrue || !strings.Contains(failed.Message, c.says)) {
				t.Errorf("SnapshotFailed is %+v", failed)
			}
		})
	}
}

func TestANodeIsSilentUntilItAnswers(t *testing.T) {
	w := runningWorld(3, sized(0), func(w *World) {
		w.Cluster.Status.Stop = &v1alpha1.EtcdStop{Generation: 4, OnStop: v1alpha1.EtcdSnapshotThenDelete, Step: v1alpha1.EtcdSealing, Trial: "t"}
		w.Snapshots = []*v1alpha1.EtcdSnapshot{{ObjectMeta: metav1.ObjectMeta{Name: "t"}, Spec: v1alpha1.EtcdSnapshotSpec{TrialBytes: 1, MemberNode: "n1", Nodes: []string{"n1", "n4"}}}}
		w.Asked = map[string]time.Time{"n1": noon.Add(-time.Minute), "n4": noon.Add(-time.Minute)}
	})
	trial := w.Snapshots[0]
	for _, c := range []struct {
		answer v1alpha1.EtcdSnapshotCopy
		silent string
	}{
		{v1alpha1.EtcdSnapshotCopy{Node: "n1", Room: micro(noon)}, "n4"},
		{v1alpha1.EtcdSnapshotCopy{Node: "n4", Error: "no space left on device"}, ""},
	} {
		trial.Status.Copies = append(trial.Status.Copies, c.answer)
		w.Cluster.Status = Plan(w).Status
		if got := strings.Join(w.Cluster.Status.Stop.Silent, ","); got != c.silent {
			t.Errorf("after the answer of %s %q is silent, want %q", c.answer.Node, got, c.silent)
		}
	}
}

func TestEveryNodeOfATrialIsTimedFromWhenItWasAsked(t *testing.T) {
	trial := func(uid string, nodes ...string) *v1alpha1.EtcdSnapshot {
		return &v1alpha1.EtcdSnapshot{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}, Spec: v1alpha1.EtcdSnapshotSpec{Nodes: nodes}}
	}
	at := func(seconds int) time.Time { return noon.Add(time.Duration(seconds) * time.Second) }
	var a askings
	for i, c := range []struct {
		trial *v1alpha1.EtcdSnapshot
		want  map[string]time.Time
	}{
		{nil, nil},
		{trial("a", "n1", "n2"), map[string]time.Time{"n1": at(1), "n2": at(1)}},
		{trial("a", "n1", "n2", "n3"), map[string]time.Time{"n1": at(1), "n2": at(1), "n3": at(2)}},
		{trial("b", "n1"), map[string]time.Time{"n1": at(3)}},
		{nil, nil},
		{trial("b", "n1"), map[string]time.Time{"n1": at(5)}},
	} {
		if got := a.saw(c.trial, at(i)); !maps.Equal(got, c.want) {
			t.Errorf("%d: %v, want %v", i, got, c.want)
		}
	}
}

func TestSnapshotsAreKeptAndCopied(t *testing.T) {
	for _, c := range []struct {
		name  string
		world World
		deeds string
		nodes string
	}{
		{"enough", runningWorld(3, snapshotted("s1", time.Hour, "n1", "n2")), "", ""},
		{"one copy is too few", runningWorld(3, snapshotted("s1", time.Hour, "n1")), "place-snapshot s1", "n1,n4"},
		{"a draining node keeps its copy until others have theirs", runningWorld(4, drains("n5"), snapshotted("s1", time.Hour, "n1", "n5")), "place-snapshot s1", "n1,n2,n5"},
		{"a node that is there keeps the only copy, not one that is away", runningWorld(3, copies(1), gone("n1", time.Minute), snapshotted("s1", time.Hour, "n1", "n2")), "place-snapshot s1", "n2"},
		{"a node that is away for a moment keeps it", runningWorld(3, gone("n2", time.Minute), snapshotted("s1", time.Hour, "n1", "n2")), "", ""},
		{
			"the oldest beyond what is kept goes", runningWorld(3, snapshotted("s1", 4*time.Hour, "n1", "n2"), snapshotted("s2", 3*time.Hour, "n1", "n2"), snapshotted("s3", 2*time.Hour, "n1", "n2"),
				snapshotted("s4", time.Hour, "n1", "n2")), "delete-snapshot s1", "",
		},
		{
			"but not if newer ones are only on nodes that are away", runningWorld(3, gone("n2", time.Minute), snapshotted("s1", 4*time.Hour, "n1", "n3"), snapshotted("s2", 3*time.Hour, "n2"),
				snapshotted("s3", 2*time.Hour, "n2"), snapshotted("s4", time.Hour, "n2")), "place-snapshot s2, place-snapshot s3, place-snapshot s4", "",
		},
		{
			"but not if newer ones have no verified copy", runningWorld(3, snapshotted("s1", 4*time.Hour, "n1", "n2"), snapshotted("s2", 3*time.Hour, "n1", "n2"), snapshotted("s3", 2*time.Hour, "n1", "n2"),
				unverified("s4", time.Hour, "n1", "n2")), "", "",
		},
		{
			"but not the one that is asked for", runningWorld(3, func(w *World) { w.Cluster.Spec.RestoreFrom = "s1" }, snapshotted("s1", 4*time.Hour, "n1", "n2"), snapshotted("s2", 3*time.Hour, "n1", "n2"),
				snapshotted("s3", 2*time.Hour, "n1", "n2"), snapshotted("s4", time.Hour, "n1", "n2")), "delete-snapshot s2", "",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := Plan(c.world)
			if got := deeds(d); got != c.deeds {
				t.Fatalf("it does %q, want %q", got, c.deeds)
			}
			if c.nodes != "" {
				if got := strings.Join(d.Actions[0].Snapshot.Spec.Nodes, ","); got != c.nodes {
					t.Errorf("on %s, want %s", got, c.nodes)
				}
			}
		})
	}
}

// The node with the only copy of a stop's snapshot is lost before the members' data is deleted. That may be all there is of the keys.
func TestDataStaysWhileOnlyAbsentNodesHaveItsSnapshot(t *testing.T) {
	released := func(w *World) {
		w.Cluster.Status.Stop = &v1alpha1.EtcdStop{Step: v1alpha1.EtcdReleased, OnStop: v1alpha1.EtcdSnapshotThenDelete, Snapshot: "s1"}
		w.Cluster.Status.Rest = &v1alpha1.EtcdStoppedState{OnStop: v1alpha1.EtcdSnapshotThenDelete, Snapshot: "s1", Revision: 7}
		for _, m := range w.Members {
			m.Spec.Want, m.Status.Data = v1alpha1.EtcdMemberSeal, true
		}
	}
	d := Plan(runningWorld(3, sized(0), copies(1), snapshotted("s1", time.Minute, "n1"), released, gone("n1", time.Minute)))
	if got := deeds(d); strings.Contains(got, "Delete") {
		t.Errorf("it does %q", got)
	}
	failed := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.EtcdSnapshotFailed)
	for _, part := range []string{"start n1", "the data of the members is kept", "set the size of the cluster first (`kubectl scale etcdcluster demo --replicas=N`)", "--from-member NODE"} {
		if failed == nil || !strings.Contains(failed.Message, part) {
			t.Errorf("it does not say %q: %+v", part, failed)
		}
	}
	if failed != nil && strings.Contains(failed.Message, "--snapshot s1") {
		t.Errorf("it advises to restore the snapshot that is not there: %s", failed.Message)
	}
	if d.Status.Phase == v1alpha1.EtcdClusterPhaseStopped {
		t.Error("it counts as stopped")
	}
	unknown := func(w *World) { w.Cluster.Status.Rest = nil }
	if got := deeds(Plan(runningWorld(3, sized(0), copies(1), snapshotted("s1", time.Minute, "n2"), released, unknown))); strings.Contains(got, "Delete") {
		t.Errorf("without a word on where the keys are it does %q", got)
	}
	if got := deeds(Plan(runningWorld(3, sized(0), copies(1), snapshotted("s1", time.Minute, "n1"), released))); !strings.Contains(got, "set-desired demo-2 Delete") {
		t.Errorf("with the node it does %q", got)
	}
}

// Any world: what is decided never breaks the rules that hold in every single step.
func TestNoStepBreaksARule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		flag := func(name string, of int) bool { return rapid.IntRange(0, of).Draw(t, name) == of }
		members := rapid.IntRange(1, 7).Draw(t, "members")
		w := runningWorld(members, sized(int32(rapid.IntRange(0, 7).Draw(t, "size"))))
		onStop(rapid.SampledFrom([]v1alpha1.EtcdOnStop{v1alpha1.EtcdSnapshotThenDelete, v1alpha1.EtcdRetain, v1alpha1.EtcdDelete}).Draw(t, "onStop"))(&w)
		for i := range members {
			name, node := fmt.Sprintf("demo-%d", i+1), fmt.Sprintf("n%d", i+1)
			if flag(name+" unhealthy", 3) {
				unhealthy(name)(&w)
			}
			if flag(node+" gone", 5) {
				gone(node, time.Duration(rapid.IntRange(0, 10).Draw(t, "minutes"))*time.Minute)(&w)
			}
			if flag(name+" is a learner", 5) {
				w.View.Peers[i].Learner = true
			}
			if flag(name+" shares", 5) {
				w.Members[i].Spec.Node = "n1"
			}
			if flag(name+" wants", 6) {
				w.Members[i].Spec.Want = rapid.SampledFrom([]v1alpha1.EtcdMemberWish{v1alpha1.EtcdMemberReserve, v1alpha1.EtcdMemberSeal, v1alpha1.EtcdMemberStop, v1alpha1.EtcdMemberDelete}).Draw(t, "want")
			}
			if flag(name+" failed", 8) {
				w.Members[i].Status.Phase = v1alpha1.EtcdMemberFailed
			}
		}
		if flag("a drain", 3) {
			drains(fmt.Sprintf("n%d", rapid.IntRange(1, members+1).Draw(t, "drains")))(&w)
		}
		if flag("no list", 4) {
			noQuorum(&w)
		}
		d := Plan(w)
		checkStep(t, w, d)
	})
}

// checkStep holds a decision against the rules.
func checkStep(t *rapid.T, w World, d Decision) {
	changes := 0
	healthy, voters := 0, 0
	for _, p := range w.View.Peers {
		if !p.Learner {
			voters++
			if w.View.Health[p.Name].OK() {
				healthy++
			}
		}
	}
	for _, a := range d.Actions {
		switch a.Do {
		case CreateMember, AddLearner, PromoteLearner, RemovePeer:
			changes++
		}
		switch {
		case a.Do == RemovePeer && !a.Peer.Learner:
			after := healthy
			if w.View.Health[a.Peer.Name].OK() {
				after--
			}
			if after < quorum(voters-1) {
				t.Fatalf("%s is removed and %d of %d voters are left healthy", a.Peer.Name, after, voters-1)
			}
		case a.Do == CreateMember:
			if w.Cluster.Status.ClusterID != "" && d.Status.Rest == nil && healthy < quorum(voters) {
				t.Fatalf("a member is added with %d of %d voters healthy", healthy, voters)
			}
			if !w.Schedulable(a.Member.Spec.Node) {
				t.Fatalf("a member is added on %s, which takes no work", a.Member.Spec.Node)
			}
		case a.Do == SetDesired && a.Member.Spec.Want == v1alpha1.EtcdMemberDelete:
			released := d.Status.Stop != nil && d.Status.Stop.Step == v1alpha1.EtcdReleased
			listed := slices.ContainsFunc(w.View.Peers, func(p etcd.Peer) bool { return p.PeerURL == a.Member.Status.PeerURL })
			if !released && listed {
				t.Fatalf("%s is deleted and etcd has it", a.Member.Name)
			}
			if released && d.Status.Stop.OnStop != v1alpha1.EtcdDelete {
				t.Fatalf("%s is deleted in the same step as it is released", a.Member.Name)
			}
		case a.Do == SetDesired && a.Member.Spec.Begin != nil && !a.Member.Spec.Begin.Existing && a.Member.Spec.Begin.Token != "":
			t.Fatalf("%s begins a cluster where there is one", a.Member.Name)
		}
	}
	if changes > 1 {
		t.Fatalf("%d changes of members at once: %s", changes, deeds(d))
	}
}

func TestTheErrorOfTheLastAttemptIsKeptUntilItSucceeds(t *testing.T) {
	c := &Controller{failed: map[types.NamespacedName]map[Do]string{}}
	demo, other := types.NamespacedName{Name: "demo"}, types.NamespacedName{Name: "other"}
	c.recordAttempt(demo, UpdatePeer, errors.New("refused"))
	c.recordAttempt(demo, UpdatePeer, conflict("etcdclusters", "demo"))
	c.recordAttempt(demo, RemovePeer, nil)
	if got := c.lastFailures(demo)[UpdatePeer]; got != "refused" || len(c.lastFailures(demo)) != 1 || len(c.lastFailures(other)) != 0 {
		t.Errorf("the errors are %q and %q", c.lastFailures(demo), c.lastFailures(other))
	}
	c.recordAttempt(demo, UpdatePeer, nil)
	if got := c.lastFailures(demo); len(got) != 0 {
		t.Errorf("the errors are %q after it succeeded", got)
	}
}
