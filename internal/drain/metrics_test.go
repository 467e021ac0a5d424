package drain_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

func rawMerge(patch []byte) client.Patch { return client.RawPatch(types.MergePatchType, patch) }

const prefix = "ebb_coordinator_drain_capture_"

// gauges are the values of a node's gauges, by what follows the prefix.
func gauges(t testing.TB, r *prometheus.Registry, node string) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if len(m.GetLabel()) != 1 || m.GetLabel()[0].GetName() != "capture_id" {
				t.Errorf("%s has the labels %v", f.GetName(), m.GetLabel())
			}
			if m.GetLabel()[0].GetValue() == node && m.GetGauge() != nil {
				values[f.GetName()[len(prefix):]] = m.GetGauge().GetValue()
			}
		}
	}
	return values
}

// durations is how many drains of a node were measured.
func durations(t testing.TB, r *prometheus.Registry, node string) uint64 {
	t.Helper()
	count, _ := histogram(t, r, node)
	return count
}

func histogram(t testing.TB, r *prometheus.Registry, node string) (count uint64, bounds []float64) {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if h := m.GetHistogram(); f.GetName() == prefix+"duration_seconds" && h != nil && m.GetLabel()[0].GetValue() == node {
				for _, b := range h.GetBucket() {
					bounds = append(bounds, b.GetUpperBound())
				}
				count = h.GetSampleCount()
			}
		}
	}
	return count, bounds
}

func testMetrics(t *testing.T, c *cluster) {
	c.with("n1", "n2", "n3")
	c.work.set("n2", 3)
	r := c.lead("n1", nil).registry
	are := func(status, maintainers float64) {
		t.Helper()
		want := map[string]float64{"status": status, "remaining_maintainers": maintainers, "remaining_dispatchers": 0}
		c.until("the metrics "+cmp.Diff(want, gauges(t, r, "n2")), func() bool { return cmp.Equal(want, gauges(t, r, "n2")) })
	}
	if got := gauges(t, r, "n2"); len(got) > 0 {
		t.Errorf("before any drain there are %v", got)
	}
	c.request("d", "n2")
	are(1, 3)
	c.obeys("n2", v1alpha1.Draining)
	c.says("n2", func(n *v1alpha1.NodeStatus) { n.Held = map[string]int64{maintainers: 4} })
	are(1, 4)
	c.work.set("n2", 0)
	c.lease("n2", "", 1, 1) // it dies with what it said last
	c.phase("d", v1alpha1.DrainComplete)
	are(0, 0)
	c.until("one duration", func() bool { return durations(t, r, "n2") == 1 })
	_, bounds := histogram(t, r, "n2")
	if diff := cmp.Diff([]float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512}, bounds); diff != "" {
		t.Errorf("buckets (-want +got):\n%s", diff)
	}
	if got := gauges(t, r, "n3"); len(got) > 0 {
		t.Errorf("a node that nobody drained has %v", got)
	}
	c.until("rest", func() bool { return c.slot() == nil })
	c.must(c.admin.Delete(context.Background(), &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}))
	c.until("the end of the metrics", func() bool { return len(gauges(t, r, "n2")) == 0 && durations(t, r, "n2") == 0 })
}
