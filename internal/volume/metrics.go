package volume

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// Metrics are the coordinator's metrics of volumes. They outlive terms; what they say of a volume is deleted with the volume, and with the term, after
// which another node knows better.
type Metrics struct {
	evictions  *prometheus.CounterVec
	replicas   *prometheus.Desc
	robustness *prometheus.Desc
	attached   *prometheus.Desc

	mu    sync.Mutex
	term  int // counts the terms
	known map[types.NamespacedName]figures
}

// figures are the values of one volume.
type figures struct {
	replicas   map[string]int
	robustness v1alpha1.VolumeRobustness
	attached   bool
}

// NewMetrics makes the metrics of volumes and registers them with r.
func NewMetrics(r prometheus.Registerer) *Metrics {
	labels := []string{"namespace", "volume"}
	m := &Metrics{
		evictions:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "ebb_volume_evictions_total", Help: "Evictions of replicas that were requested or canceled, by the reason of their event."}, []string{"reason"}),
		replicas:   prometheus.NewDesc("ebb_volume_replicas", "Replicas by state: healthy, evicting, building or failed.", append(labels, "state"), nil),
		robustness: prometheus.NewDesc("ebb_volume_robustness", "1 for the robustness that the volume has: unknown, healthy, degraded or faulted.", append(labels, "robustness"), nil),
		attached:   prometheus.NewDesc("ebb_volume_attached", "1 while the volume is attached to a node.", labels, nil),
		known:      map[types.NamespacedName]figures{},
	}
	r.MustRegister(m.evictions, m)
	return m
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.replicas, m.robustness, m.attached} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, f := range m.known {
		gauge := func(d *prometheus.Desc, value float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, append([]string{key.Namespace, key.Name}, labels...)...)
		}
		for state, n := range f.replicas {
			gauge(m.replicas, float64(n), state)
		}
		gauge(m.robustness, 1, string(f.robustness))
		attached := 0.0
		if f.attached {
			attached = 1
		}
		gauge(m.attached, attached)
	}
}

// begin begins a term, which the function that it returns ends.
func (m *Metrics) begin() (term int, end func()) {
	if m == nil {
		return 0, func() {}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.term++
	term = m.term
	return term, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.term == term {
			m.term++
			clear(m.known)
		}
	}
}

// observe updates the metrics after a decision of a term, unless that is over.
func (m *Metrics) observe(term int, w World, d Decision) {
	if m == nil || d.Status.Robustness == "" {
		return
	}
	f := figures{replicas: map[string]int{"healthy": 0, "evicting": 0, "building": 0, "failed": 0}, robustness: d.Status.Robustness, attached: d.Status.AttachedTo != ""}
	for _, r := range w.Replicas {
		f.replicas[w.stateOf(r)]++
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.term != term {
		return
	}
	m.known[types.NamespacedName{Namespace: w.Volume.Namespace, Name: w.Volume.Name}] = f
}

// stateOf is a replica in one word.
func (w World) stateOf(r *v1alpha1.Replica) string {
	switch {
	case w.Unused(r):
		return "building"
	case !w.Healthy(r):
		return "failed"
	case r.Spec.EvictionRequested:
		return "evicting"
	}
	return "healthy"
}

func (m *Metrics) evicted(reason string) {
	if m != nil {
		m.evictions.WithLabelValues(reason).Inc()
	}
}

// forget deletes the series of a volume.
func (m *Metrics) forget(key types.NamespacedName) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.known, key)
}
