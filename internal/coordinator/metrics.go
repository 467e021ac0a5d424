package coordinator

import "github.com/prometheus/client_golang/prometheus"

// Metrics of the election as this node sees it.
type Metrics struct {
	changes prometheus.Counter
	leading prometheus.Gauge
}

// NewMetrics makes the metrics of the election, registered with r.
func NewMetrics(r prometheus.Registerer, nodeName string) *Metrics {
	labels := prometheus.Labels{"node": nodeName}
	m := &Metrics{
		changes: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ebb_coordinator_election_changes_total", Help: "How often this node saw the coordinator change.", ConstLabels: labels,
		}),
		leading: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "ebb_coordinator_leading", Help: "1 if this node is the coordinator, 0 otherwise.", ConstLabels: labels,
		}),
	}
	r.MustRegister(m.changes, m.leading)
	return m
}
