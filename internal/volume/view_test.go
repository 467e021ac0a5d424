package volume

import (
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// items are the volumes and replicas of scenes as a list of the API has them.
func items(scenes ...*scene) (volumes []v1alpha1.Volume, replicas []v1alpha1.Replica) {
	for _, s := range scenes {
		volumes = append(volumes, *s.Volume)
		for _, r := range s.Replicas {
			replicas = append(replicas, *r)
		}
	}
	return volumes, replicas
}

func viewed(scenes ...*scene) []View {
	volumes, replicas := items(scenes...)
	return Views(volumes, replicas, noon)
}

// named gives a scene's volume and its replicas another name.
func (s *scene) named(namespace, name string) *scene {
	s.Volume.Namespace, s.Volume.Name, s.Volume.UID = namespace, name, s.Volume.UID+"-"+s.Volume.UID
	for _, r := range s.Replicas {
		r.Namespace, r.Spec.VolumeName, r.Spec.VolumeUID = namespace, name, string(s.Volume.UID)
		r.Name = name + strings.TrimPrefix(r.Name, "data")
	}
	for i, m := range s.Volume.Status.Members {
		s.Volume.Status.Members[i] = name + strings.TrimPrefix(m, "data")
	}
	return s
}

func (s *scene) condition(kind, reason, message string) *scene {
	s.Volume.Status.Conditions = append(s.Volume.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: message})
	return s
}

// busy is a volume of which everything is told: a member that is evicted, one being built, one away with its node, one not made yet.
func busy() *scene {
	s := newScene(3, "n1", "n2", "n3", "n4")
	s.healthy("n2").Spec.EvictionRequested = true
	s.unused("n1")
	s.failed("n4")
	pending := s.unused("n3")
	pending.Status = v1alpha1.ReplicaStatus{State: v1alpha1.ReplicaPending, Message: "disk default: /d has no ebb-disk.json: is its file system mounted?"}
	s.attach("n1", 2)
	s.Volume.Status.Robustness, s.Volume.Status.Generation, s.Volume.Status.NBDURI = v1alpha1.VolumeDegraded, 7, "nbd+unix:///data?socket=/s"
	s.Volume.Status.Engine.ClientNames = []string{"fio (pid 1)", "qemu-io (pid 2)"}
	s.Volume.Status.Engine.Rebuilds = []v1alpha1.VolumeRebuild{
		{Replica: "data-r2", DoneBytes: gib / 4, TotalBytes: gib, StartedAt: metav1.NewTime(noon.Add(-30 * time.Second))},
		{Replica: "data-r3", Error: "the replica does not answer", StartedAt: metav1.NewTime(noon)},
	}
	return s
}

func TestVolumesAsPeopleSeeThem(t *testing.T) {
	if got := Table(viewed()); got != "no volumes\n" {
		t.Errorf("without a volume it says %q", got)
	}
	well := newScene(2, "n1", "n2").named("default", "archive")
	well.Volume.Spec.Size = resource.MustParse("64Mi")
	other := newScene(1, "n1").named("apps", "z").condition(v1alpha1.VolumeScheduled, v1alpha1.ReasonUnschedulable, strings.Repeat("node n1: needs 1Ti, 1.5Gi are free; ", 10))
	const want = `VOLUME    SIZE      ROBUSTNESS   ATTACHED TO   REPLICAS                                                          NOTE
apps/z    1.0 GiB   unknown      -             -                                                                 node n1: needs 1Ti, 1.5Gi are free; node n1: needs 1Ti, 1.5Gi are free; node n1: needs 1Ti, 1.5Gi are free; node n1: nee… (` + "`ebb volume inspect z -n apps`" + `)
archive   64 MiB    unknown      -             -
data      1.0 GiB   degraded     n1            n1 rebuilding 25%, 90s left, n2 evicting, n3 waiting, n4 failed
`
	if got := Table(viewed(busy(), well, other)); got != want {
		t.Errorf("it says\n%s\nwant\n%s", got, want)
	}
}

func TestOneVolumeAsPeopleSeeIt(t *testing.T) {
	opening := newScene(1, "n1")
	opening.healthy("n1")
	opening.attach("n1", 0).Volume.Status.Engine.Serving = false
	opening.Volume.Status.Engine.WaitingFor = "replica data-r1 on node n1"
	opening.condition(v1alpha1.VolumeAttached, v1alpha1.ReasonAttaching, "Node n1 is opening the volume: replica data-r1 on node n1.")
	opening.condition(v1alpha1.VolumeOpenable, v1alpha1.ReasonMembersMissing, "The members cannot be opened: replica data-r1 on node n1.")
	waiting := newScene(1, "n1")
	waiting.Volume.Spec.AttachTo = "n9"
	waiting.condition(v1alpha1.VolumeAttached, v1alpha1.ReasonNodeUnavailable, "The volume is detached: node n9 does not exist: attach the volume to another one.")
	detached := newScene(1, "n1").condition(v1alpha1.VolumeAttached, v1alpha1.ReasonDetached, "The volume is detached: spec.attachTo is empty.")
	deletedAt(detached.healthy("n1"))
	for _, tc := range []struct {
		name  string
		scene *scene
		want  string
	}{
		{"one in the middle of everything", busy(), `volume data: 1.0 GiB, degraded, generation 7
attached to n1: nbd+unix:///data?socket=/s
client: fio (pid 1)
client: qemu-io (pid 2)

REPLICA   NODE   DISK      STATE                      NOTE
data-r2   n1     default   rebuilding 25%, 90s left
data-r1   n2     default   healthy, evicting
data-r4   n3     default   waiting                    disk default: /d has no ebb-disk.json: is its file system mounted?
data-r3   n4     default   failed                     the replica does not answer
`},
		{"one that is being opened", opening, `volume data: 1.0 GiB, unknown, generation 1
being attached to n1: waiting for replica data-r1 on node n1
note: Node n1 is opening the volume: replica data-r1 on node n1.

REPLICA   NODE   DISK      STATE     NOTE
data-r1   n1     default   healthy
`},
		{"one whose node is not there", waiting, `volume data: 1.0 GiB, unknown, generation 0
detached
note: The volume is detached: node n9 does not exist: attach the volume to another one.

REPLICA   NODE   DISK   STATE   NOTE
`},
		{"one that nobody wants attached", detached, `volume data: 1.0 GiB, unknown, generation 1
detached

REPLICA   NODE   DISK      STATE     NOTE
data-r1   n1     default   leaving
`},
	} {
		if got := viewed(tc.scene)[0].Text(); got != tc.want {
			t.Errorf("%s: it says\n%s\nwant\n%s", tc.name, got, tc.want)
		}
	}
}

func TestAReplicaOfAnotherVolumeOfTheSameNameIsNotShown(t *testing.T) {
	s := newScene(1, "n1")
	s.healthy("n1").Spec.VolumeUID = "uid-before"
	if got := viewed(s)[0].Replicas; len(got) != 0 {
		t.Errorf("the volume shows %v", got)
	}
}

// faulted is a volume whose only member is lost. One replica left before, the other two know more and less than the volume.
func faulted() *scene {
	s := newScene(2, "n1", "n2", "n3")
	s.healthy("n1").Status.State = v1alpha1.ReplicaFailed
	s.Replicas[0].Status.Message, s.Replicas[0].Status.Generation = "its directory is missing", 4
	s.failed("n2").Status.Generation = 3
	s.failed("n3").Status.Generation = 9
	s.Volume.Status.Generation = 4
	s.release(s.Replicas[1], v1alpha1.ReleaseToRemove)
	return s
}

func TestASalvagedVolumeHasOneMemberAndTheHighestGeneration(t *testing.T) {
	s := faulted()
	volumes, replicas := items(s)
	v := &volumes[0]
	if err := Salvage(v, replicas, "data-r2"); err != nil {
		t.Fatal(err)
	}
	if st := v.Status; st.Generation != 10 || len(st.Members) != 1 || st.Members[0] != "data-r2" || len(st.Released) != 0 {
		t.Errorf("generation %d, members %v, released %v", st.Generation, st.Members, st.Released)
	}
}

// A replica that was away during a salvage knows a newer generation when it comes back. Nothing can be changed then, though the volume is served.
func TestAVolumeIsSalvagedAgainWhenANewerReplicaComesBack(t *testing.T) {
	s := faulted()
	s.Replicas[0].Status.State = v1alpha1.ReplicaReady
	s.attach("n1", 1)
	volumes, replicas := items(s)
	if err := Salvage(&volumes[0], replicas, "data-r1"); err != nil {
		t.Fatal(err)
	}
	if st := volumes[0].Status; st.Generation != 10 || !slices.Equal(st.Members, []string{"data-r1"}) {
		t.Errorf("generation %d, members %v", st.Generation, st.Members)
	}
}

func TestSalvageRefuses(t *testing.T) {
	const three = "data-r1 (node n1, generation 4, Failed), data-r2 (node n2, generation 3, Ready), data-r3 (node n3, generation 9, Ready)"
	for _, tc := range []struct {
		name, replica, want string
		change              func(*scene)
	}{
		{"without a replica", "", "choose the replica to keep with --replica: " + three, nil},
		{"a replica that the volume does not have", "x", "volume data has no replica x, but " + three, nil},
		{"a replica that cannot be read", "data-r1", "replica data-r1 is Failed: its directory is missing", nil},
		{"a replica that is empty", "data-r4", "replica data-r4 was never healthy: it is empty", func(s *scene) { s.unused("n1") }},
		{"a replica that was never reported", "data-r2", "replica data-r2 is Pending: its node has not reported it", func(s *scene) { s.Replicas[1].Status.State = "" }},
		{"a volume that serves clients", "data-r2", "volume data serves clients on n1: there is nothing to salvage", func(s *scene) { s.attach("n1", 0); s.Replicas[2].Status.Generation = 4 }},
		{"a volume that an engine of a newer store serves", "data-r2", "volume data serves clients on n1: there is nothing to salvage", func(s *scene) {
			s.attach("n1", 0)
			s.Volume.Status.Engine.Generation = 9
		}},
		{"a replica that was never built completely", "data-r2", "replica data-r2 was never built completely: a part of the data is missing there", func(s *scene) {
			s.Replicas[1].Status.Incomplete = true
		}},
		{"a volume without replicas", "x", "volume data has no replica x, but none", func(s *scene) { s.Replicas = nil }},
		{"a volume without replicas, and none is named", "", "volume data has no replica to keep", func(s *scene) { s.Replicas = nil }},
	} {
		s := faulted()
		if tc.change != nil {
			tc.change(s)
		}
		volumes, replicas := items(s)
		before := volumes[0].DeepCopy()
		if err := Salvage(&volumes[0], replicas, tc.replica); err == nil || err.Error() != tc.want {
			t.Errorf("%s: %v\nwant %s", tc.name, err, tc.want)
		}
		if volumes[0].Status.Generation != before.Status.Generation || len(volumes[0].Status.Members) != 1 {
			t.Errorf("%s: it changed the volume all the same", tc.name)
		}
	}
}

func TestSizesAsPeopleWriteThem(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 1023: "1023", 1024: "1Ki", 1536: "1.5Ki", gib: "1Gi", gib + 1: "1.0Gi", 42703848 << 10: "40.7Gi", 15 << 40: "15Ti", 512 << 20: "512Mi"} {
		if got := bytes(n); got != want {
			t.Errorf("%d bytes are %q, want %q", n, got, want)
		}
	}
}

func TestTheEvictionsOfANodeAreListed(t *testing.T) {
	s := newScene(1, "n1", "n2").policy(v1alpha1.BlockForEviction).cordon("n1")
	s.healthy("n1").Spec.EvictionRequested = true
	s.unused("n2").Spec.Replaces = "data-r1"
	list := []v1alpha1.Replica{}
	for _, a := range Plan(s.World).Actions {
		if a.Do == RecordReplica {
			list = append(list, *a.Replica)
		}
	}
	want := "Eviction of volume data, replica data-r1 on node n1: it leaves when data-r2 on node n2 is healthy.\n"
	if got := Evictions(list, "n1"); got != want {
		t.Errorf("got %q", got)
	}
	if got := Evictions(list, "n2"); got != "" {
		t.Errorf("n2: %q", got)
	}
}
