package drain

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// Metrics of drains on the coordinator. They outlive terms and drains, and are dropped with the Node object.
type Metrics struct {
	status    *prometheus.GaugeVec
	remaining map[string]*prometheus.GaugeVec // by the count under which work is shown
	duration  *prometheus.HistogramVec

	mu    sync.Mutex
	nodes map[string]bool // that have series
}

// NewMetrics registers the metrics of drains with r.
func NewMetrics(r prometheus.Registerer, works Works) *Metrics {
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "ebb", Subsystem: "coordinator", Name: name, Help: help}, []string{"capture_id"})
	}
	m := &Metrics{
		status:    gauge("drain_capture_status", "Status of drain capture operation (0=idle, 1=draining)"),
		remaining: map[string]*prometheus.GaugeVec{},
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "ebb", Subsystem: "coordinator", Name: "drain_capture_duration_seconds", Help: "Duration of drain capture operation",
			Buckets: prometheus.ExponentialBuckets(1, 2, 10),
		}, []string{"capture_id"}),
		nodes: map[string]bool{},
	}
	r.MustRegister(m.status, m.duration)
	for shown := range works.Shown(nil) {
		m.remaining[shown] = gauge("drain_capture_remaining_"+shown, "Number of remaining "+shown+" on draining capture")
		r.MustRegister(m.remaining[shown])
	}
	return m
}

// see updates the metrics.
func (m *Metrics) see(w World) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget(func(node string) bool { return w.Nodes[node] != nil })
	for node := range m.nodes {
		m.status.WithLabelValues(node).Set(0)
	}
	slot, d := w.Slot()
	if slot == nil || d == nil || w.Nodes[slot.Node] == nil {
		return
	}
	m.nodes[slot.Node] = true
	shown := w.Works.Shown(w.counts(slot))
	for name, v := range m.remaining {
		v.WithLabelValues(slot.Node).Set(float64(shown[name]))
	}
	value := 0.0
	if !d.Status.Phase.Final() {
		value = 1
	}
	m.status.WithLabelValues(slot.Node).Set(value)
}

// observeEnd observes how long a drain took, from its persisted start. Only the coordinator that ended the drain calls it: a later one
// that finds old drains would count them twice.
func (m *Metrics) observeEnd(d *v1alpha1.Drain) {
	if d.Status.StartedAt == nil || d.Status.FinishedAt == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.nodes[d.Spec.NodeName] = true
	took := d.Status.FinishedAt.Sub(d.Status.StartedAt.Time)
	m.duration.WithLabelValues(d.Spec.NodeName).Observe(max(took, 0).Seconds()) // two coordinators' clocks may differ
}

// keep drops the series of all other nodes.
func (m *Metrics) keep(there func(node string) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget(there)
}

func (m *Metrics) forget(there func(node string) bool) {
	for node := range m.nodes {
		if there(node) {
			continue
		}
		m.status.DeleteLabelValues(node)
		for _, v := range m.remaining {
			v.DeleteLabelValues(node)
		}
		m.duration.DeleteLabelValues(node)
		delete(m.nodes, node)
	}
}
