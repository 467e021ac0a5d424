package node

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// Metrics are the metrics of a node.
type Metrics struct {
	liveness *prometheus.GaugeVec
	epoch    prometheus.Gauge
	leaseAge prometheus.GaugeFunc
	refusals *prometheus.CounterVec

	// current is the epoch whose lease age is reported.
	current atomic.Pointer[Epoch]
}

// NewMetrics makes the metrics of a node, registered with r.
func NewMetrics(r prometheus.Registerer, node string) *Metrics {
	labels := prometheus.Labels{"node": node}
	m := &Metrics{
		liveness: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "ebb_node_liveness", Help: "1 for the present liveness of the node, 0 for the others.", ConstLabels: labels,
		}, []string{"liveness"}),
		epoch: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "ebb_node_epoch", Help: "The incarnation of the node.", ConstLabels: labels,
		}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ebb_node_gate_refusals_total", Help: "Work that the node refused to take, by kind and reason.", ConstLabels: labels,
		}, []string{"kind", "reason"}),
	}
	m.leaseAge = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "ebb_node_lease_age_seconds", Help: "Time since the last successful renewal of the lease was sent; -1 without a lease.", ConstLabels: labels,
	}, m.age)
	r.MustRegister(m.liveness, m.epoch, m.leaseAge, m.refusals)
	return m
}

func (m *Metrics) age() float64 {
	e := m.current.Load()
	if e == nil {
		return -1
	}
	return e.clock().Sub(e.Held.SentAt()).Seconds()
}

func (m *Metrics) setLiveness(l v1alpha1.Liveness) {
	for _, each := range []v1alpha1.Liveness{v1alpha1.Alive, v1alpha1.Draining, v1alpha1.Stopping} {
		value := 0.0
		if each == l {
			value = 1
		}
		m.liveness.WithLabelValues(string(each)).Set(value)
	}
}

// Refused counts a refusal of the gate.
func (m *Metrics) Refused(kind, reason string) { m.refusals.WithLabelValues(kind, reason).Inc() }
