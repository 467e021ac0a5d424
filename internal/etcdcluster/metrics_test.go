package etcdcluster

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestMetricsFollowAClusterAndGoWithIt(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := NewMetrics(registry)
	w := runningWorld(3, unhealthy("demo-3"), snapshotted("s1", time.Hour, "n1", "n2"))
	w.Snapshots[0].Status.Facts.Size, w.Snapshots[0].Status.Facts.At = 4096, *micro(noon)
	failed := w.Snapshots[0].DeepCopy()
	failed.Name, failed.Status.Error = "s2", "no space"
	w.Snapshots = append(w.Snapshots, failed)
	d := Plan(w)
	d.Status.LastStop = &metav1.Duration{Duration: 3 * time.Second}
	m.observe(w, d)
	w.Cluster.Status.LastStop = d.Status.LastStop
	m.observe(w, d) // what was counted is not counted again
	want := `
# HELP ebb_etcd_members Members by state: leader, voter, learner, unhealthy or other.
# TYPE ebb_etcd_members gauge
ebb_etcd_members{cluster="demo",namespace="default",state="leader"} 1
ebb_etcd_members{cluster="demo",namespace="default",state="unhealthy"} 1
ebb_etcd_members{cluster="demo",namespace="default",state="voter"} 1
# HELP ebb_etcd_snapshot_bytes Size of the newest verified snapshot.
# TYPE ebb_etcd_snapshot_bytes gauge
ebb_etcd_snapshot_bytes{cluster="demo",namespace="default"} 4096
# HELP ebb_etcd_snapshot_failures_total Snapshots that could not be taken or verified.
# TYPE ebb_etcd_snapshot_failures_total counter
ebb_etcd_snapshot_failures_total{cluster="demo",namespace="default"} 1
# HELP ebb_etcd_snapshot_timestamp_seconds When the newest verified snapshot was taken, in seconds since 1970.
# TYPE ebb_etcd_snapshot_timestamp_seconds gauge
ebb_etcd_snapshot_timestamp_seconds{cluster="demo",namespace="default"} 1.7776368e+09
`
	names := []string{"ebb_etcd_members", "ebb_etcd_snapshot_bytes", "ebb_etcd_snapshot_failures_total", "ebb_etcd_snapshot_timestamp_seconds"}
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
	if n := testutil.CollectAndCount(m.stops); n != 1 {
		t.Errorf("%d series of stops", n)
	}
	m.forget(types.NamespacedName{Namespace: "default", Name: "demo"})
	if n, err := testutil.GatherAndCount(registry); n != 0 || err != nil {
		t.Errorf("%d series of a cluster that is gone, %v", n, err)
	}
}
