package health

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// Metrics of health events on the coordinator.
type Metrics struct {
	quarantine, eviction, drained prometheus.Histogram
	outcomes                      *prometheus.CounterVec
	dropped                       prometheus.Counter
}

// NewMetrics registers the metrics of health events with r.
func NewMetrics(r prometheus.Registerer) *Metrics {
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "ebb_health_event_to_" + name + "_seconds", Help: help, Buckets: buckets})
	}
	quick := prometheus.ExponentialBuckets(0.01, 2, 14)
	m := &Metrics{
		quarantine: histogram("quarantine", "Time from the arrival of a health event until its node was quarantined.", quick),
		eviction:   histogram("first_eviction", "Time from the arrival of a health event until the first pod was evicted for it, or its custom resource was created; without pods until its Drain was.", quick),
		drained:    histogram("drained", "Time from the arrival of a health event until its node was drained.", prometheus.ExponentialBuckets(0.1, 2, 18)),
		outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ebb_health_events_total", Help: "Health events by how they ended: the reason of the condition Handled.",
		}, []string{"outcome"}),
	}
	m.dropped = prometheus.NewCounter(prometheus.CounterOpts{Name: "ebb_health_events_dropped_total", Help: "Health events that were not stored, because there are too many."})
	r.MustRegister(m.quarantine, m.eviction, m.drained, m.outcomes, m.dropped)
	return m
}

// drop counts an event that was not stored.
func (m *Metrics) drop() {
	if m != nil {
		m.dropped.Inc()
	}
}

// See observes what a write of an event changed. pods says that Drains move pods, and ended is the Drain whose end was recorded with it, if any.
func (m *Metrics) See(before, after *v1alpha1.HealthEvent, pods bool, ended *v1alpha1.Drain, now time.Time) {
	if m == nil {
		return
	}
	age := now.Sub(ReceivedAt(after)).Seconds()
	if before.Status.NodeQuarantined == "" && after.Status.NodeQuarantined == v1alpha1.Quarantined {
		m.quarantine.Observe(age)
	}
	switch {
	case after.Status.Joined != nil:
	case ended != nil && ended.Status.Pods != nil && ended.Status.Pods.FirstEvictionAt != nil:
		m.eviction.Observe(max(0, ended.Status.Pods.FirstEvictionAt.Sub(ReceivedAt(after)).Seconds()))
	case started(after) && !started(before) && (!pods || after.Status.CustomResource != nil):
		m.eviction.Observe(age)
	}
	if eviction(before) != eviction(after) && eviction(after) == v1alpha1.EvictionSucceeded {
		m.drained.Observe(age)
	}
	if handled(after) && (!handled(before) || reasonOf(before) != reasonOf(after)) {
		m.outcomes.WithLabelValues(reasonOf(after)).Inc()
	}
}

// started reports whether anything was created to drain the node of an event.
func started(e *v1alpha1.HealthEvent) bool {
	return e.Status.CustomResource != nil && e.Status.CustomResource.UID != "" || e.Status.Drain != nil && e.Status.Drain.UID != "" || len(e.Status.Attempts) > 0
}
