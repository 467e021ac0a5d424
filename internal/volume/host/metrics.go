package host

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics of the replicas and engines on a node.
type Metrics struct {
	host atomic.Pointer[Host]

	engines, replicas, rebuilds, copied *prometheus.Desc
}

// NewMetrics registers them.
func NewMetrics(r prometheus.Registerer, node string) *Metrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("ebb_volume_"+name, help, labels, prometheus.Labels{"node": node})
	}
	m := &Metrics{
		engines:  desc("engine_serving", "1 while the engine of a volume serves clients on this node, 0 while it does not.", "namespace", "volume"),
		replicas: desc("node_replicas", "Replicas on this node by state.", "state"),
		rebuilds: desc("rebuild_total_bytes", "Bytes to copy to a replica that is being built.", "namespace", "volume", "replica"),
		copied:   desc("rebuild_done_bytes", "Bytes copied so far to a replica that is being built.", "namespace", "volume", "replica"),
	}
	r.MustRegister(m)
	return m
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(c chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.engines, m.replicas, m.rebuilds, m.copied} {
		c <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(c chan<- prometheus.Metric) {
	h := m.host.Load()
	if h == nil {
		return
	}
	h.mu.Lock()
	states := map[string]int{}
	for _, w := range h.replicas {
		states[string(w.newest().Status.State)]++
	}
	attached := make([]*attachment, 0, len(h.attached))
	for _, a := range h.attached {
		attached = append(attached, a)
	}
	h.mu.Unlock()
	for state, n := range states {
		c <- prometheus.MustNewConstMetric(m.replicas, prometheus.GaugeValue, float64(n), state)
	}
	for _, a := range attached {
		e, _ := a.described()
		serving := 0.0
		if e.Serving {
			serving = 1
		}
		c <- prometheus.MustNewConstMetric(m.engines, prometheus.GaugeValue, serving, a.key.Namespace, a.key.Name)
		for _, r := range e.Rebuilds {
			c <- prometheus.MustNewConstMetric(m.rebuilds, prometheus.GaugeValue, float64(r.TotalBytes), a.key.Namespace, a.key.Name, r.Replica)
			c <- prometheus.MustNewConstMetric(m.copied, prometheus.GaugeValue, float64(r.DoneBytes), a.key.Namespace, a.key.Name, r.Replica)
		}
	}
}
