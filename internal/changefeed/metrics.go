package changefeed

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ebb-dev/ebb/internal/changefeed/dispatch"
	"github.com/ebb-dev/ebb/internal/changefeed/maintainer"
)

// Metrics are the metrics of a node's changefeeds. Those with a series per changefeed are collected at each scrape, so that a series
// ends with its changefeed.
type Metrics struct {
	flushes, pauses prometheus.Histogram

	lag, tables              *prometheus.Desc // of the maintainers here
	dispatchers, rows, bytes *prometheus.Desc // of the dispatchers here
	memory                   *prometheus.Desc

	host atomic.Pointer[Host]
}

// NewMetrics makes the metrics of a node's changefeeds, registered with r.
func NewMetrics(r prometheus.Registerer, node string) *Metrics {
	labels := prometheus.Labels{"node": node}
	histogram := func(name, help string, buckets ...float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, ConstLabels: labels, Buckets: buckets})
	}
	perFeed := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, []string{"namespace", "changefeed"}, labels)
	}
	m := &Metrics{
		flushes: histogram("ebb_changefeed_flush_seconds", "Time to write a batch to the sink, including failed attempts.",
			.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30),
		pauses: histogram("ebb_changefeed_table_pause_seconds", "Time for which a table was not written because it moved: from the order to stop at its origin until it runs at its destination.",
			.005, .01, .025, .05, .1, .2, .3, .5, 1, 2.5, 5, 10, 30),
		lag:         perFeed("ebb_changefeed_checkpoint_lag_seconds", "Time since the source committed the transaction at the checkpoint; reported by the maintainer's node."),
		tables:      perFeed("ebb_changefeed_tables", "Tables of the changefeed; reported by the maintainer's node."),
		dispatchers: perFeed("ebb_changefeed_dispatchers", "Dispatchers of tables on the node, including those that only read ahead."),
		rows:        perFeed("ebb_changefeed_rows_total", "Row changes that the node has written since it began to run dispatchers of the changefeed."),
		bytes:       perFeed("ebb_changefeed_bytes_total", "Approximate size in memory of the changes that the node has written since it began to run dispatchers of the changefeed."),
		memory:      prometheus.NewDesc("ebb_changefeed_memory_bytes", "Memory used on the node by changes that were read and not yet written.", nil, labels),
	}
	r.MustRegister(m.flushes, m.pauses, m)
	return m
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.lag, m.tables, m.dispatchers, m.rows, m.bytes, m.memory} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	h := m.host.Load()
	if h == nil {
		return
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	gauge(m.memory, float64(h.engine.Memory()))
	for name, r := range h.dispatching() {
		gauge(m.dispatchers, float64(r.Dispatchers), name.namespace, name.name)
		ch <- prometheus.MustNewConstMetric(m.rows, prometheus.CounterValue, float64(r.Rows), name.namespace, name.name)
		ch <- prometheus.MustNewConstMetric(m.bytes, prometheus.CounterValue, float64(r.Bytes), name.namespace, name.name)
	}
	now := time.Now()
	for name, s := range h.maintained() {
		gauge(m.tables, float64(s.Tables), name.namespace, name.name)
		if !s.At.IsZero() {
			// The source's clock may be ahead of this one.
			gauge(m.lag, max(now.Sub(s.At), 0).Seconds(), name.namespace, name.name)
		}
	}
}

func (m *Metrics) flushed(took time.Duration) { m.flushes.Observe(took.Seconds()) }

func (m *Metrics) paused(pause time.Duration) { m.pauses.Observe(pause.Seconds()) }

// feedName is a changefeed in labels. One that was deleted and created again has two keys for a moment, and one name.
type feedName struct{ namespace, name string }

func named(key dispatch.FeedKey) feedName { return feedName{key.Namespace, key.Name} }

// dispatching is what the dispatchers on this node report, by changefeed.
func (h *Host) dispatching() map[feedName]dispatch.Report {
	all := map[feedName]dispatch.Report{}
	for _, key := range h.engine.Keys() {
		sum, r := all[named(key)], h.engine.Report(key)
		sum.Dispatchers += r.Dispatchers
		sum.Rows += r.Rows
		sum.Bytes += r.Bytes
		all[named(key)] = sum
	}
	return all
}

// maintained is the progress of the maintainers on this node, by changefeed.
func (h *Host) maintained() map[feedName]maintainer.Progress {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := map[feedName]maintainer.Progress{}
	for key, m := range h.running {
		if s, works := m.Progress(); works {
			all[named(key)] = s
		}
	}
	return all
}
