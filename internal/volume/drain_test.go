package volume

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/volume/host"
)

func (s *scene) cluster() Cluster {
	return Cluster{Now: s.Now, Fleet: s.Fleet, Drain: s.Drain, Volumes: []*v1alpha1.Volume{s.Volume}, Replicas: s.Replicas}
}

// blocked lists blockers: "Replica data-r1 LastHealthyReplica: words".
func blocked(left drain.Remaining) []string {
	var all []string
	for _, b := range left.Blockers {
		all = append(all, fmt.Sprintf("%s %s %s: %s", b.Kind, b.Name, b.Reason, b.Remedy))
	}
	if int(left.Count) != len(all) {
		all = append(all, fmt.Sprintf("but %d are counted", left.Count))
	}
	return all
}

func TestWhatADrainWaitsFor(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(*scene)
		want []string // engines, then replicas
	}{
		{"nothing is there", func(s *scene) { s.healthy("n2") }, nil},
		{"a client", func(s *scene) {
			s.healthy("n2")
			s.attach("n1", 2)
			s.Volume.Status.Engine.ClientNames = []string{"fio (pid 7)", "qemu-img (pid 8)"}
		}, []string{"Volume data ClientConnected: volume data: 2 clients (fio (pid 7), qemu-img (pid 8)) connected to it on node n1: disconnect, or attach the volume to another node (`ebb volume attach data NODE`); clients are disconnected at 2026-01-01T12:01:00Z"}},
		{"an engine without clients", func(s *scene) { s.healthy("n2"); s.attach("n1", 0) }, []string{
			"Volume data AwaitingDetach: volume data is being detached from node n1; it is attached again once the node is back"}},
		{"a last copy", func(s *scene) { s.healthy("n1"); s.healthy("n2"); s.cordon("n2") }, []string{
			"Replica data-r1 LastHealthyReplica: volume data, replica data-r1 on node n1: it is the last copy: data-r2 on node n2 does not count (its node is cordoned); uncordon node n2, or evict the replica (`ebb volume replica evict data-r1`)"}},
		{"a replica that may go and is not released yet", func(s *scene) { s.healthy("n1"); s.healthy("n2") }, []string{
			"Replica data-r1 AwaitingRelease: volume data, replica data-r1 on node n1: data-r2 on node n2 has every write; the replica may leave with the node as soon as that is recorded"}},
		{"a released one", func(s *scene) { s.release(s.healthy("n1"), v1alpha1.ReleaseForDrain); s.healthy("n2") }, nil},
		{"one that is released to another epoch", func(s *scene) {
			s.release(s.healthy("n1"), v1alpha1.ReleaseForDrain)
			s.healthy("n2")
			s.Volume.Status.Released[0].NodeEpoch = 7
		}, []string{"Replica data-r1 AwaitingRelease: volume data, replica data-r1 on node n1: data-r2 on node n2 has every write; the replica may leave with the node as soon as that is recorded"}},
		{"one that is being removed", func(s *scene) { s.release(s.healthy("n1"), v1alpha1.ReleaseToEvict); s.healthy("n2") }, []string{
			"Replica data-r1 AwaitingRemoval: volume data, replica data-r1 on node n1: it is being deleted there"}},
		{"one that was removed", func(s *scene) { s.failed("n1").Status.State = v1alpha1.ReplicaRemoved }, nil},
		{"no place to move to", func(s *scene) {
			s.policy(v1alpha1.BlockForEviction)
			s.healthy("n1").Spec.EvictionRequested = true
			s.cordon("n2")
			for _, a := range Plan(s.World).Actions {
				if a.Do == RecordReplica {
					s.Replicas[0].Status = a.Replica.Status
				}
			}
		}, []string{"Replica data-r1 Unschedulable: volume data, replica data-r1 on node n1: no disk can take its replacement: node n1: not alive; node n2: cordoned. Add a node or a disk, free space, or uncordon a node"}},
		{"a dead node with a replica that has a protected peer", func(s *scene) {
			s.policy(v1alpha1.BlockForEviction)
			s.healthy("n1")
			s.healthy("n2")
			s.down("n1")
		}, nil},
		{"a dead node with the last copy", func(s *scene) { s.healthy("n1"); s.failed("n2"); s.down("n1") }, []string{
			"Replica data-r1 LastHealthyReplica: volume data, replica data-r1 on node n1: it is the last copy: data-r2 on node n2 does not count (failed); start node n1, or give up the data by setting the node drain policy to always-allow"}},
		{"a dead node with the last copy that the policy lets go", func(s *scene) { s.policy(v1alpha1.AlwaysAllow); s.healthy("n1"); s.down("n1") }, nil},
		{"a dead node with an engine", func(s *scene) { s.healthy("n2"); s.attach("n1", 1).down("n1") }, []string{
			"Volume data AwaitingDetach: volume data is being detached from node n1; it is attached again once the node is back"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(1, "n1", "n2").drain("n1")
			c.make(s)
			got := append(blocked(s.cluster().enginesOn("n1")), blocked(s.cluster().replicasOn("n1"))...)
			if !slices.Equal(got, c.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

func TestTheWordsOfCounts(t *testing.T) {
	var works drain.Works
	for _, tenant := range Tenants(nil) {
		works = append(works, tenant.Work())
	}
	if got := works.Summary(map[string]int64{host.KindEngines: 1, host.KindReplicas: 2}); got != "1 volume engine, 2 replicas left" {
		t.Error(got)
	}
}

func TestSummaries(t *testing.T) {
	volume := func(name string, change func(*scene)) v1alpha1.Volume {
		s := newScene(2, "n1", "n2", "n3")
		s.healthy("n1")
		change(s)
		s.Volume.Status = Plan(s.World).Status
		s.Volume.Name = name
		return *s.Volume
	}
	list := []v1alpha1.Volume{
		volume("served", func(s *scene) { s.healthy("n2"); s.attach("n1", 0) }),
		volume("rest", func(s *scene) { s.healthy("n2") }),
		volume("short", func(s *scene) { s.cordon("n2", "n3") }),
		volume("waits", func(s *scene) { s.healthy("n2"); s.Volume.Spec.AttachTo = "n3"; s.cordon("n3") }),
		volume("lost", func(s *scene) { s.Replicas[0].Status.State = v1alpha1.ReplicaFailed }),
	}
	k := Summarize(list)
	k.Sort()
	want := "5 volumes: 1 running, 1 detached, 1 not attached (waits: The volume is detached: node n3 cannot take it (cordoned): it is attached again once the node is schedulable), " +
		"1 degraded (short: 1 of 2 replicas have no disk: node n1: has replica data-r1 of the volume; node n2: cordoned; node n3: cordoned), " +
		"1 faulted (lost: no healthy replica is left), see `ebb status volumes`"
	if got := k.Line(true); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := NewMetrics(registry)
	s := newScene(2, "n1", "n2")
	s.healthy("n1").Spec.EvictionRequested = true
	s.unused("n2")
	term, _ := m.begin()
	m.observe(term, s.World, Plan(s.World))
	m.evicted(v1alpha1.EventEvictionAutomatic)
	want := `
# HELP ebb_volume_attached 1 while the volume is attached to a node.
# TYPE ebb_volume_attached gauge
ebb_volume_attached{namespace="default",volume="data"} 0
# HELP ebb_volume_evictions_total Evictions of replicas that were requested or canceled, by the reason of their event.
# TYPE ebb_volume_evictions_total counter
ebb_volume_evictions_total{reason="EvictionAutomatic"} 1
# HELP ebb_volume_replicas Replicas by state: healthy, evicting, building or failed.
# TYPE ebb_volume_replicas gauge
ebb_volume_replicas{namespace="default",state="building",volume="data"} 1
ebb_volume_replicas{namespace="default",state="evicting",volume="data"} 1
ebb_volume_replicas{namespace="default",state="failed",volume="data"} 0
ebb_volume_replicas{namespace="default",state="healthy",volume="data"} 0
# HELP ebb_volume_robustness 1 for the robustness that the volume has: unknown, healthy, degraded or faulted.
# TYPE ebb_volume_robustness gauge
ebb_volume_robustness{namespace="default",robustness="degraded",volume="data"} 1
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	m.forget(types.NamespacedName{Namespace: "default", Name: "data"})
	if n := testutil.CollectAndCount(m); n != 0 {
		t.Errorf("%d series are left", n)
	}
	var none *Metrics
	none.observe(0, s.World, Decision{Status: v1alpha1.VolumeStatus{Robustness: v1alpha1.VolumeHealthy}})
	none.evicted("x")
	none.forget(types.NamespacedName{})
}
