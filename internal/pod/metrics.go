package pod

import "github.com/prometheus/client_golang/prometheus"

// Metrics of pods on the coordinator. They outlive terms.
type Metrics struct {
	evictions *prometheus.CounterVec
	draining  prometheus.Gauge
}

// NewMetrics registers the metrics of pods with r.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		evictions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "ebb", Subsystem: "pods", Name: "evictions_total", Help: "Evictions and deletions of pods that were sent, by verb and result (accepted, gone, refused, failed)",
		}, []string{"verb", "result"}),
		draining: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "ebb", Subsystem: "pods", Name: "draining_nodes", Help: "Drains whose pods are being moved"}),
	}
	r.MustRegister(m.evictions, m.draining)
	return m
}

func (m *Metrics) sent(v Verb, result string) { m.evictions.WithLabelValues(string(v), result).Inc() }
