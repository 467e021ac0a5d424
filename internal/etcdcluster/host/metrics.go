package host

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// Metrics are a node's metrics of the members and snapshots on it.
type Metrics struct {
	restarts       prometheus.Counter
	taken, copied  prometheus.Histogram
	failed         *prometheus.CounterVec
	members, sizes *prometheus.Desc

	host atomic.Pointer[Host]
}

// NewMetrics makes the metrics of a node and registers them with r.
func NewMetrics(r prometheus.Registerer, node string) *Metrics {
	labels := prometheus.Labels{"node": node}
	seconds := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, ConstLabels: labels, Buckets: []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}})
	}
	m := &Metrics{
		restarts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ebb_etcd_member_restarts_total", Help: "Restarts of members' processes that ended by themselves.", ConstLabels: labels,
		}),
		taken:  seconds("ebb_etcd_snapshot_take_seconds", "How long snapshots took that were taken and verified."),
		copied: seconds("ebb_etcd_snapshot_copy_seconds", "How long snapshots took to come from another node."),
		failed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ebb_etcd_node_snapshot_failures_total", Help: "Snapshots that could not be taken, copied, or were found to be damaged, by what was done.", ConstLabels: labels,
		}, []string{"step"}),
		members: prometheus.NewDesc("ebb_etcd_node_members", "Members on the node, by phase.", []string{"phase"}, labels),
		sizes:   prometheus.NewDesc("ebb_etcd_node_snapshot_bytes", "Bytes of the verified snapshots on the node.", nil, labels),
	}
	for _, step := range []string{stepTake, stepCopy, stepVerify} {
		m.failed.WithLabelValues(step)
	}
	r.MustRegister(m.restarts, m.taken, m.copied, m.failed, m)
	return m
}

// Steps that may fail, as the label step names them.
const (
	stepTake   = "take"
	stepCopy   = "copy"
	stepVerify = "verify"
)

func since(h prometheus.Histogram, began time.Time) { h.Observe(time.Since(began).Seconds()) }

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) { ch <- m.members; ch <- m.sizes }

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	h := m.host.Load()
	if h == nil {
		return
	}
	phases := map[v1alpha1.EtcdMemberPhase]int{
		v1alpha1.EtcdMemberReserved: 0, v1alpha1.EtcdMemberStarting: 0, v1alpha1.EtcdMemberRunning: 0, v1alpha1.EtcdMemberSealed: 0,
		v1alpha1.EtcdMemberStopped: 0, v1alpha1.EtcdMemberFailed: 0,
	}
	bytes := h.count(phases)
	for phase, n := range phases {
		ch <- prometheus.MustNewConstMetric(m.members, prometheus.GaugeValue, float64(n), string(phase))
	}
	ch <- prometheus.MustNewConstMetric(m.sizes, prometheus.GaugeValue, float64(bytes))
}
