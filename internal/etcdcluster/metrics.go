package etcdcluster

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// Metrics are the coordinator's metrics of etcd clusters. They outlive terms. The series of a cluster are deleted with it.
type Metrics struct {
	stops, starts *prometheus.HistogramVec
	failures      *prometheus.CounterVec
	age, size     *prometheus.Desc
	members       *prometheus.Desc

	mu    sync.Mutex
	known map[types.NamespacedName]figures
}

// figures are the values of one cluster.
type figures struct {
	uid           types.UID
	snapshotTaken float64 // seconds since 1970
	snapshotSize  float64
	members       map[string]int
	failed        map[string]bool // snapshots that failed and were counted
}

// NewMetrics makes the metrics of etcd clusters and registers them with r.
func NewMetrics(r prometheus.Registerer) *Metrics {
	labels := []string{"namespace", "cluster"}
	buckets := []float64{.25, .5, 1, 2, 3, 5, 10, 20, 30, 60, 120, 300}
	histogram := func(name, help string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	}
	m := &Metrics{
		stops:    histogram("ebb_etcd_stop_seconds", "How long stops of the cluster took, from when they began until nothing ran."),
		starts:   histogram("ebb_etcd_start_seconds", "How long starts of the cluster took, from when they began until every member was healthy."),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "ebb_etcd_snapshot_failures_total", Help: "Snapshots that could not be taken or verified."}, labels),
		age:      prometheus.NewDesc("ebb_etcd_snapshot_timestamp_seconds", "When the newest verified snapshot was taken, in seconds since 1970.", labels, nil),
		size:     prometheus.NewDesc("ebb_etcd_snapshot_bytes", "Size of the newest verified snapshot.", labels, nil),
		members:  prometheus.NewDesc("ebb_etcd_members", "Members by state: leader, voter, learner, unhealthy or other.", append(labels, "state"), nil),
		known:    map[types.NamespacedName]figures{},
	}
	r.MustRegister(m.stops, m.starts, m.failures, m)
	return m
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.age, m.size, m.members} {
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
		if f.snapshotTaken > 0 {
			gauge(m.age, f.snapshotTaken)
			gauge(m.size, f.snapshotSize)
		}
		for state, n := range f.members {
			gauge(m.members, float64(n), state)
		}
	}
}

// observe updates the metrics after a decision.
func (m *Metrics) observe(w World, d Decision) {
	if m == nil {
		return
	}
	key := types.NamespacedName{Namespace: w.Cluster.Namespace, Name: w.Cluster.Name}
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.known[key]
	if was.uid != w.Cluster.UID {
		was = figures{failed: map[string]bool{}}
	}
	is := figures{uid: w.Cluster.UID, members: map[string]int{}, failed: map[string]bool{}}
	for _, info := range d.Status.Members {
		is.members[stateOf(info)]++
	}
	for _, s := range w.Snapshots {
		if s.Name == d.Status.Snapshot && s.Status.Facts != nil {
			is.snapshotTaken, is.snapshotSize = float64(s.Status.Facts.At.UnixMilli())/1000, float64(s.Status.Facts.Size)
		}
		if s.Status.Error == "" {
			continue
		}
		is.failed[s.Name] = true
		if !was.failed[s.Name] {
			m.failures.WithLabelValues(key.Namespace, key.Name).Inc()
		}
	}
	if d.Status.LastStop != nil && (w.Cluster.Status.LastStop == nil || *w.Cluster.Status.LastStop != *d.Status.LastStop) {
		m.stops.WithLabelValues(key.Namespace, key.Name).Observe(d.Status.LastStop.Seconds())
	}
	if d.Status.LastStart != nil && (w.Cluster.Status.LastStart == nil || *w.Cluster.Status.LastStart != *d.Status.LastStart) {
		m.starts.WithLabelValues(key.Namespace, key.Name).Observe(d.Status.LastStart.Seconds())
	}
	m.known[key] = is
}

func stateOf(info v1alpha1.EtcdMemberInfo) string {
	switch {
	case info.Role == "":
		return "other"
	case !info.Healthy:
		return "unhealthy"
	}
	return string(info.Role)
}

// forget deletes the series of a cluster.
func (m *Metrics) forget(key types.NamespacedName) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.known, key)
	m.stops.DeleteLabelValues(key.Namespace, key.Name)
	m.starts.DeleteLabelValues(key.Namespace, key.Name)
	m.failures.DeleteLabelValues(key.Namespace, key.Name)
}
