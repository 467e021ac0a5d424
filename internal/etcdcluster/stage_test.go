package etcdcluster

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

func TestTheStageOfACluster(t *testing.T) {
	stopAt := func(step v1alpha1.EtcdStopStep) *v1alpha1.EtcdStop { return &v1alpha1.EtcdStop{Step: step} }
	kept := &v1alpha1.EtcdStoppedState{OnStop: v1alpha1.EtcdRetain}
	began := micro(noon)
	for _, c := range []struct {
		name   string
		status v1alpha1.EtcdClusterStatus
		change func(*v1alpha1.EtcdCluster)
		want   Stage
	}{
		{"without a finalizer", v1alpha1.EtcdClusterStatus{}, func(c *v1alpha1.EtcdCluster) { c.Finalizers = nil }, StageNew},
		{"never started", v1alpha1.EtcdClusterStatus{}, nil, StageStopped},
		{"first start", v1alpha1.EtcdClusterStatus{Starting: began}, nil, StageStarting},
		{"established and growing", v1alpha1.EtcdClusterStatus{Starting: began, ClusterID: "c1"}, nil, StageRunning},
		{"running", v1alpha1.EtcdClusterStatus{ClusterID: "c1"}, nil, StageRunning},
		{"sealing", v1alpha1.EtcdClusterStatus{ClusterID: "c1", Stop: stopAt(v1alpha1.EtcdSealing)}, nil, StageStopping},
		{"copying", v1alpha1.EtcdClusterStatus{ClusterID: "c1", Stop: stopAt(v1alpha1.EtcdCopying)}, nil, StageStopping},
		{"released", v1alpha1.EtcdClusterStatus{ClusterID: "c1", Rest: kept, Stop: stopAt(v1alpha1.EtcdReleased)}, nil, StageReleasing},
		{"stopped with keys", v1alpha1.EtcdClusterStatus{ClusterID: "c1", Rest: kept, Phase: v1alpha1.EtcdClusterPhaseStopped}, nil, StageStopped},
		{"started again", v1alpha1.EtcdClusterStatus{ClusterID: "c1", Rest: kept, Starting: began}, nil, StageStarting},
		{"woken for its data", v1alpha1.EtcdClusterStatus{ClusterID: "c1", Rest: kept, Stop: stopAt(v1alpha1.EtcdSealing), Phase: v1alpha1.EtcdClusterPhaseStopped}, nil, StageEvacuating},
		{"released after that", v1alpha1.EtcdClusterStatus{ClusterID: "c1", Rest: kept, Stop: stopAt(v1alpha1.EtcdReleased), Phase: v1alpha1.EtcdClusterPhaseStopped}, nil, StageReleasing},
		{"deleted", v1alpha1.EtcdClusterStatus{ClusterID: "c1"}, func(c *v1alpha1.EtcdCluster) { c.DeletionTimestamp = &metav1.Time{Time: noon} }, StageDeleting},
	} {
		t.Run(c.name, func(t *testing.T) {
			ec := &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Finalizers: []string{v1alpha1.EtcdClusterFinalizer}}, Status: c.status}
			if c.change != nil {
				c.change(ec)
			}
			if got := StageOf(ec); got != c.want {
				t.Errorf("stage %s, want %s", got, c.want)
			}
		})
	}
}

// A plan makes the transitions that it needs, in one go.
func TestTransitionsOfOnePlan(t *testing.T) {
	never := func(w *World) { w.Cluster.Status, w.View = v1alpha1.EtcdClusterStatus{}, runningWorld(0).View }
	asked := func(w *World) {
		w.Cluster.Spec.Restore = &v1alpha1.EtcdRestoreOrder{ID: "1", Snapshot: "none", Force: true, Expires: metav1.NewTime(noon.Add(time.Hour))}
	}
	stopping := func(w *World) { w.Cluster.Status.Stop = &v1alpha1.EtcdStop{Step: v1alpha1.EtcdSealing} }
	for _, c := range []struct {
		name  string
		world World
		want  []Transition
	}{
		{"nothing to do", runningWorld(3), nil},
		{"a first start", runningWorld(0, never, sized(3)), []Transition{{StageStopped, StageStarting}}},
		{"a quorum runs", runningWorld(3, func(w *World) { w.Cluster.Status.ClusterID, w.Cluster.Status.Starting = "", micro(noon) }), []Transition{{StageStarting, StageRunning}}},
		{"a start that is called off too late", runningWorld(3, sized(0), func(w *World) { w.Cluster.Status.ClusterID, w.Cluster.Status.Starting = "", micro(noon) }), []Transition{{StageStarting, StageRunning}, {StageRunning, StageStopping}}},
		{"a stop", runningWorld(3, sized(0)), []Transition{{StageRunning, StageStopping}}},
		{"a stop that keeps nothing", runningWorld(3, sized(0), onStop(v1alpha1.EtcdDelete)), []Transition{{StageRunning, StageStopping}, {StageStopping, StageReleasing}}},
		{"a stop that is canceled", runningWorld(3, stopping), []Transition{{StageStopping, StageRunning}}},
		{"an evacuation", runningWorld(3, retained, drains("n2")), []Transition{{StageStopped, StageEvacuating}}},
		{"an evacuation that a start overtakes", runningWorld(3, retained, drains("n2"), stopping, sized(3)), []Transition{{StageEvacuating, StageStopped}, {StageStopped, StageStarting}}},
		{"a restore", runningWorld(3, asked), []Transition{{StageRunning, StageStarting}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Plan(c.world).Transitions
			if len(got) != len(c.want) {
				t.Fatalf("transitions %v, want %v", got, c.want)
			}
			for i := range got {
				if got[i] != c.want[i] || !got[i].Legal() {
					t.Errorf("transition %v, want %v; legal: %t", got[i], c.want[i], got[i].Legal())
				}
			}
		})
	}
}
