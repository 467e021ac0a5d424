package volume

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// did lists the actions of a decision: "create-replica data-r3 on n3 for data-r1".
func did(d Decision) []string {
	var all []string
	for _, a := range d.Actions {
		text := string(a.Do)
		if a.Replica != nil {
			text += " " + a.Replica.Name
		}
		switch a.Do {
		case CreateReplica:
			text += " on " + a.Replica.Spec.NodeName
			if a.Replica.Spec.Replaces != "" {
				text += " for " + a.Replica.Spec.Replaces
			}
		case SetEviction:
			text += fmt.Sprintf(" %v", a.Eviction.Requested)
		case RecordReplica:
			continue
		}
		all = append(all, text)
	}
	return all
}

// reasonOf is why a decision releases a replica; empty if it does not.
func reasonOf(d Decision, replica string) v1alpha1.ReleaseReason {
	for _, e := range d.Status.Released {
		if e.Replica == replica {
			return e.Reason
		}
	}
	return ""
}

func wants(t *testing.T, d Decision, want ...string) {
	t.Helper()
	if got := did(d); !slices.Equal(got, want) {
		t.Errorf("actions\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestTheFinalizerComesFirst(t *testing.T) {
	s := newScene(1, "n1")
	s.Volume.Finalizers = nil
	wants(t, Plan(s.World), "hold-volume")
}

func TestANewVolume(t *testing.T) {
	s := newScene(2, "n1", "n2", "n3")
	s.Volume.Spec.AttachTo = "n3"
	d := Plan(s.World)
	wants(t, d, "create-replica data-r1 on n1", "create-replica data-r2 on n2")
	if d.Status.NextReplica != 3 || d.Status.AttachedTo != "" || d.Status.Robustness != v1alpha1.VolumeUnknown {
		t.Errorf("%+v", d.Status)
	}
	r1, r2 := s.unused("n1"), s.unused("n2")
	r2.Status.State = v1alpha1.ReplicaPending
	if d = Plan(s.World); len(d.Status.Members) > 0 || d.Status.Generation != 0 {
		t.Errorf("members before all are ready: %+v", d.Status)
	}
	r2.Status.State = v1alpha1.ReplicaReady
	d = Plan(s.World)
	if !slices.Equal(d.Status.Members, []string{r1.Name, r2.Name}) || d.Status.Generation != 1 {
		t.Errorf("%+v", d.Status)
	}
	s.Volume.Status = d.Status
	d = Plan(s.World)
	if d.Status.AttachedTo != "n3" || d.Status.Generation != 2 || d.Status.Robustness != v1alpha1.VolumeHealthy {
		t.Errorf("%+v", d.Status)
	}
}

func TestAVolumeThatLostItsStatusIsNotMadeAnew(t *testing.T) {
	s := newScene(2, "n1", "n2", "n3")
	s.Volume.Spec.AttachTo = "n3"
	for _, node := range []string{"n1", "n2"} {
		s.unused(node).Status.Generation = 9
	}
	d := Plan(s.World)
	wants(t, d)
	c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.VolumeOpenable)
	if d.Status.Generation != 0 || len(d.Status.Members) > 0 || d.Status.AttachedTo != "" || c == nil || c.Reason != v1alpha1.ReasonStoreIsOlder ||
		!strings.Contains(c.Message, "Replica data-r1 has generation 9, and the store only generation 0") || !strings.Contains(c.Message, "`ebb volume salvage data`") {
		t.Errorf("%+v", d.Status)
	}
}

func TestAReplicaLeavesACordonedNodeStepByStep(t *testing.T) {
	s := newScene(1, "n1", "n2").policy(v1alpha1.BlockForEviction).cordon("n1")
	r := s.healthy("n1")
	d := Plan(s.World)
	wants(t, d, "set-eviction data-r1 true", "create-replica data-r2 on n2 for data-r1")
	r.Spec.EvictionRequested = true
	target := s.unused("n2")
	target.Spec.Replaces = r.Name
	d = Plan(s.World)
	wants(t, d)
	if d.Status.RebuildOn != "n2" || d.Status.Generation != 2 || len(d.Status.Released) > 0 {
		t.Errorf("a detached volume is built on the node of the target: %+v", d.Status)
	}
	s.Volume.Status = d.Status
	s.Volume.Status.Members = []string{"data-r1", "data-r2"}
	s.Volume.Status.Generation = 4
	d = Plan(s.World)
	wants(t, d)
	if d.Status.RebuildOn != "" || d.Status.Generation != 5 || reasonOf(d, "data-r1") != v1alpha1.ReleaseToEvict {
		t.Errorf("released: %+v", d.Status)
	}
	s.Volume.Status = d.Status
	d = Plan(s.World)
	wants(t, d) // it is a member as the volume is stored
	if !slices.Equal(d.Status.Members, []string{"data-r2"}) || d.Status.Generation != 6 {
		t.Errorf("taken out: %+v", d.Status)
	}
	s.Volume.Status = d.Status
	wants(t, Plan(s.World), "delete-replica data-r1")
	deletedAt(r)
	wants(t, Plan(s.World))
	r.Status.State = v1alpha1.ReplicaRemoved
	wants(t, Plan(s.World), "forget-replica data-r1")
	s.Replicas, s.Everyone = s.Replicas[1:], s.Everyone[1:]
	if d = Plan(s.World); len(d.Status.Released) != 0 || d.Status.Robustness != v1alpha1.VolumeHealthy {
		t.Errorf("forgotten: %+v", d.Status)
	}
}

func TestAnUncordonCancelsUntilTheReplicaIsNoMember(t *testing.T) {
	s := newScene(1, "n1", "n2").policy(v1alpha1.BlockForEviction)
	r := s.healthy("n1")
	r.Spec.EvictionRequested = true
	s.healthy("n2").Spec.Replaces = r.Name
	s.attach("n2", 0).release(r, v1alpha1.ReleaseToEvict)
	d := Plan(s.World)
	wants(t, d, "set-eviction data-r1 false")
	if len(d.Status.Released) != 0 {
		t.Errorf("%+v", d.Status)
	}
	s.Volume.Status.Members = []string{"data-r2"}
	wants(t, Plan(s.World), "set-eviction data-r1 false", "delete-replica data-r1")
}

func TestOfTwoCopiesOnLeavingNodesOneStays(t *testing.T) {
	s := newScene(2, "n1", "n2").drain("n1")
	r1, r2 := s.healthy("n1"), s.healthy("n2")
	if d := Plan(s.World); reasonOf(d, r1.Name) != v1alpha1.ReleaseForDrain || reasonOf(d, r2.Name) != "" {
		t.Errorf("%+v", d.Status.Released)
	}
	s.cordon("n2")
	if d := Plan(s.World); len(d.Status.Released) != 0 {
		t.Errorf("with the other cordoned: %+v", d.Status.Released)
	}
	s.release(r1, v1alpha1.ReleaseForDrain)
	if d := Plan(s.World); len(d.Status.Released) != 0 {
		t.Errorf("it is not revoked: %+v", d.Status.Released)
	}
	s.Nodes["n1"].Spec.Desired = &v1alpha1.DesiredLiveness{Liveness: v1alpha1.Stopping, Epoch: 1, DrainUID: "uid-d"}
	if d := Plan(s.World); len(d.Status.Released) != 1 {
		t.Errorf("it is revoked though the node was told to stop: %+v", d.Status.Released)
	}
	s.Slot.NodeEpoch = 2 // the node was restarted, and the drain follows it
	if d := Plan(s.World); len(d.Status.Released) != 0 {
		t.Errorf("the release of an epoch that is over: %+v", d.Status.Released)
	}
}

func TestADrainDetaches(t *testing.T) {
	for _, c := range []struct {
		name     string
		clients  int32
		after    time.Duration
		deadline time.Duration
		detached bool
		look     time.Duration
	}{
		{"nobody connected", 0, 0, 0, true, 0},
		{"a client, within its grace", 1, 50 * time.Second, 0, false, 10 * time.Second},
		{"a client, after its grace", 1, 60 * time.Second, 0, true, 0},
		{"a client, long before the deadline", 1, 19 * time.Second, 30 * time.Second, false, time.Second},
		{"a client, shortly before the deadline", 1, 20 * time.Second, 30 * time.Second, true, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(1, "n1", "n2").drain("n1")
			s.healthy("n2")
			s.attach("n1", c.clients)
			s.Now = noon.Add(c.after)
			if c.deadline > 0 {
				s.Drain.Spec.Deadline = &metav1.Duration{Duration: c.deadline}
			}
			d := Plan(s.World)
			if got := d.Status.AttachedTo == ""; got != c.detached || d.LookAfter != c.look {
				t.Errorf("detached %v, look after %s", got, d.LookAfter)
			}
			if c.detached && (d.Status.DetachedFor != "uid-d" || d.Status.Generation != 2 || d.Status.Engine != nil || d.Status.NBDURI != "") {
				t.Errorf("%+v", d.Status)
			}
		})
	}
}

func TestAttachments(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(*scene)
		want string
	}{
		{"a cordon never detaches", func(s *scene) { s.attach("n1", 0).cordon("n1") }, "n1"},
		{"a node that is lost is detached", func(s *scene) { s.attach("n1", 1).down("n1") }, ""},
		{"another node gets it at once", func(s *scene) { s.attach("n1", 1); s.Volume.Spec.AttachTo = "n2" }, "n2"},
		{"nobody wants it", func(s *scene) { s.attach("n1", 1); s.Volume.Spec.AttachTo = "" }, ""},
		{"a cordoned node does not get it", func(s *scene) { s.Volume.Spec.AttachTo = "n1"; s.cordon("n1") }, ""},
		{"attaching wins over a rebuild", func(s *scene) { s.Volume.Spec.AttachTo = "n1"; s.Volume.Status.RebuildOn = "n2" }, "n1"},
		{"after the drain it is attached again", func(s *scene) { s.Volume.Spec.AttachTo = "n1"; s.Volume.Status.DetachedFor = "uid-d" }, "n1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(1, "n1", "n2")
			s.healthy("n2")
			c.make(s)
			was := s.Volume.Status.DeepCopy()
			d := Plan(s.World).Status
			if d.AttachedTo != c.want || d.RebuildOn != "" {
				t.Errorf("attached to %q, rebuilt on %q", d.AttachedTo, d.RebuildOn)
			}
			if moved := was.AttachedTo != d.AttachedTo || was.RebuildOn != d.RebuildOn; moved != (d.Generation == was.Generation+1) {
				t.Errorf("generation %d to %d", was.Generation, d.Generation)
			}
			if c.want != "" && d.DetachedFor != "" {
				t.Error("it is attached and detached for a drain")
			}
		})
	}
}

func TestFailedReplicas(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(*scene)
		want []string
	}{
		{"its node is back: it is brought up to date in place", func(s *scene) { s.failed("n2") }, nil},
		{"away for a short time", func(s *scene) { s.failed("n2"); s.down("n2") }, nil},
		{"away for too long", func(s *scene) { s.failed("n2"); s.down("n2"); s.Now = noon.Add(10 * time.Minute) }, []string{"create-replica data-r3 on n3"}},
		{"no wait", func(s *scene) {
			s.failed("n2")
			s.down("n2")
			s.Settings.Volumes.ReplicaReplenishmentWait = &metav1.Duration{}
		}, []string{"create-replica data-r3 on n3"}},
		{"its node was removed", func(s *scene) { s.failed("n2"); s.gone("n2") }, []string{"create-replica data-r3 on n3"}},
		{"its directory is lost", func(s *scene) { s.failed("n2").Status.State = v1alpha1.ReplicaFailed }, []string{"create-replica data-r3 on n3"}},
		{"a member away for too long while the volume is detached", func(s *scene) {
			s.healthy("n2")
			s.down("n2")
			s.Now = noon.Add(10 * time.Minute)
		}, []string{"create-replica data-r3 on n3"}},
		{"a target whose node drains is abandoned", func(s *scene) { s.unused("n2"); s.drain("n2").release(s.Replicas[1], v1alpha1.ReleaseToRemove) },
			[]string{"delete-replica data-r2", "create-replica data-r3 on n3"}},
		{"a target whose node is cordoned goes on", func(s *scene) { s.unused("n2"); s.cordon("n2") }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(2, "n1", "n2", "n3")
			s.healthy("n1")
			c.make(s)
			wants(t, Plan(s.World), c.want...)
		})
	}
}

func TestFailedReplicasGoOnceTheVolumeHasItsCount(t *testing.T) {
	s := newScene(2, "n1", "n2", "n3")
	s.healthy("n1")
	f := s.failed("n2")
	s.healthy("n3")
	if d := Plan(s.World); reasonOf(d, f.Name) != v1alpha1.ReleaseToRemove {
		t.Errorf("%+v", d.Status.Released)
	}
	// Surplus healthy ones stay.
	s = newScene(1, "n1", "n2")
	s.healthy("n1")
	s.healthy("n2")
	d := Plan(s.World)
	wants(t, d)
	if len(d.Status.Released) != 0 {
		t.Errorf("%+v", d.Status.Released)
	}
}

func TestTheTimesOfReplicas(t *testing.T) {
	s := newScene(2, "n1", "n2")
	r1, r2 := s.unused("n1"), s.healthy("n2")
	s.Volume.Status.Members = []string{r1.Name}
	got := map[string]*v1alpha1.Replica{}
	for _, a := range Plan(s.World).Actions {
		if a.Do == RecordReplica {
			got[a.Replica.Name] = a.Replica
		}
	}
	if r := got[r1.Name]; r == nil || r.Status.HealthyAt == nil || !r.Status.HealthyAt.Time.Equal(noon) || r.Status.FailedAt != nil {
		t.Errorf("a new member: %+v", r)
	}
	if r := got[r2.Name]; r == nil || r.Status.FailedAt == nil || !r.Status.FailedAt.Time.Equal(noon) {
		t.Errorf("no member any more: %+v", r)
	}
}

func TestAVolumeIsDeletedInOrder(t *testing.T) {
	s := newScene(1, "n1", "n2")
	r := s.healthy("n1")
	s.attach("n2", 1)
	at := metav1.NewTime(noon)
	s.Volume.DeletionTimestamp = &at
	d := Plan(s.World)
	wants(t, d)
	if d.Status.AttachedTo != "" {
		t.Errorf("%+v", d.Status)
	}
	s.Volume.Status = d.Status
	d = Plan(s.World)
	wants(t, d)
	if len(d.Status.Members) != 0 {
		t.Errorf("%+v", d.Status)
	}
	s.Volume.Status = d.Status
	wants(t, Plan(s.World), "delete-replica data-r1")
	deletedAt(r)
	wants(t, Plan(s.World))
	s.down("n1")
	wants(t, Plan(s.World), "forget-replica data-r1")
	s.Replicas, s.Everyone = nil, nil
	wants(t, Plan(s.World), "forget-volume")
}

func TestConditions(t *testing.T) {
	s := newScene(3, "n1", "n2")
	s.healthy("n1")
	s.healthy("n2")
	s.Volume.Spec.AttachTo = "n2"
	s.cordon("n2")
	d := Plan(s.World)
	for kind, want := range map[string]string{
		v1alpha1.VolumeAttached:  "False NodeUnavailable The volume is detached: node n2 cannot take it (cordoned): it is attached again once the node is schedulable.",
		v1alpha1.VolumeScheduled: "False Unschedulable 1 of 3 replicas have no disk: node n1: has replica data-r1 of the volume; node n2: cordoned. Add a node or a disk, free space, or uncordon a node.",
	} {
		c := meta.FindStatusCondition(d.Status.Conditions, kind)
		if c == nil || fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message) != want {
			t.Errorf("%s: %+v, want %s", kind, c, want)
		}
	}
	if d.Status.Robustness != v1alpha1.VolumeDegraded {
		t.Error(d.Status.Robustness)
	}
}

func TestAReplicaThatWaitsForItsDiskIsPlacedElsewhereAfterAWhile(t *testing.T) {
	s := newScene(2, "n1", "n2", "n3")
	s.healthy("n1")
	r := s.unused("n2")
	r.Status.State, r.Status.Created = v1alpha1.ReplicaPending, false
	r.CreationTimestamp = metav1.NewTime(noon.Add(-time.Minute))
	s.Nodes["n2"].Status.Disks[0].Ready = false
	d := Plan(s.World)
	wants(t, d)
	if d.LookAfter != s.replenishmentWait()-time.Minute {
		t.Errorf("the next look is after %s", d.LookAfter)
	}
	r.CreationTimestamp = metav1.NewTime(noon.Add(-s.replenishmentWait()))
	d = Plan(s.World)
	wants(t, d, "create-replica data-r3 on n3")
	if e := d.Status.Released; len(e) != 1 || e[0].Replica != r.Name || e[0].Reason != v1alpha1.ReleaseToRemove {
		t.Errorf("released: %+v", e)
	}
	s.Nodes["n2"].Status.Disks[0].Ready = true
	wants(t, Plan(s.World))
	r.Status.Message = "create replica data-r2: read-only file system"
	wants(t, Plan(s.World), "create-replica data-r3 on n3")
}

func TestAVolumeSaysWhichOfItsFirstReplicasCannotBeCreated(t *testing.T) {
	s := newScene(2, "n1", "n2")
	s.Volume.Spec.AttachTo = "n1"
	s.unused("n1")
	r := s.unused("n2")
	r.Status = v1alpha1.ReplicaStatus{State: v1alpha1.ReplicaPending, Message: "read-only file system"}
	c := meta.FindStatusCondition(Plan(s.World).Status.Conditions, v1alpha1.VolumeAttached)
	if want := "The volume is detached: its first replicas are not ready yet (data-r2 on node n2: read-only file system)."; c == nil || c.Message != want {
		t.Errorf("%+v, want %s", c, want)
	}
}

func TestAnEngineThatWaitsForARecordHasItsMembersOpen(t *testing.T) {
	s := newScene(1, "n1")
	s.healthy("n1")
	s.attach("n1", 1)
	s.Volume.Status.NBDURI = "nbd+unix:///data?socket=/s"
	s.Volume.Status.Engine.Serving, s.Volume.Status.Engine.WaitingFor = false, "the API to record generation 2"
	d := Plan(s.World)
	for kind, want := range map[string]string{
		v1alpha1.VolumeOpenable: "True The members are open.",
		v1alpha1.VolumeAttached: "False I/O on node n1 waits for the API to record generation 2.",
	} {
		if c := meta.FindStatusCondition(d.Status.Conditions, kind); c == nil || fmt.Sprintf("%s %s", c.Status, c.Message) != want {
			t.Errorf("%s: %+v", kind, c)
		}
	}
}
