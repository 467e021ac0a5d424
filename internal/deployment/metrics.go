package deployment

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// Metrics are the metrics of a node's programs and claims.
type Metrics struct {
	restarts *prometheus.CounterVec
	claims   prometheus.Counter
	errors   *prometheus.CounterVec
	pauses   prometheus.Histogram

	instances, cpu, memory *prometheus.Desc

	// runtime provides the values that are counted at each scrape.
	runtime atomic.Pointer[Runtime]
}

var bothTypes = []v1alpha1.DeploymentType{v1alpha1.TypeDeployment, v1alpha1.TypeDaemon}

// NewMetrics makes the metrics of a node's programs, registered with r.
func NewMetrics(r prometheus.Registerer, node string) *Metrics {
	labels := prometheus.Labels{"node": node}
	m := &Metrics{
		restarts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ebb_deployment_restarts_total", Help: "Programs that exited without being stopped, or could not be started.", ConstLabels: labels,
		}, []string{"type"}),
		claims: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "ebb_deployment_claims_total", Help: "Deployments that the node claimed.", ConstLabels: labels,
		}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ebb_deployment_errors_total", Help: "Errors of deployments by code, each counted when it appears.", ConstLabels: labels,
		}, []string{"code"}),
		pauses: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "ebb_deployment_move_pause_seconds", Help: "How long no node ran a deployment that moved to this node.", ConstLabels: labels,
			Buckets: []float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}),
		instances: prometheus.NewDesc("ebb_deployment_instances", "Programs that run on the node.", []string{"type"}, labels),
		cpu:       prometheus.NewDesc("ebb_deployment_cpu_cores", "CPU cores that the node's programs use.", []string{"type"}, labels),
		memory:    prometheus.NewDesc("ebb_deployment_memory_bytes", "Resident memory of the node's programs.", []string{"type"}, labels),
	}
	for _, t := range bothTypes {
		m.restarts.WithLabelValues(string(t))
	}
	for _, code := range []string{v1alpha1.ErrInvalidType, v1alpha1.ErrDaemonAddressSet, v1alpha1.ErrClaimConflict, v1alpha1.ErrPolicyDisabled, v1alpha1.ErrDaemonMissing} {
		m.errors.WithLabelValues(code)
	}
	r.MustRegister(m.restarts, m.claims, m.errors, m.pauses, m)
	return m
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- m.instances
	ch <- m.cpu
	ch <- m.memory
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	r := m.runtime.Load()
	if r == nil {
		return
	}
	count := map[v1alpha1.DeploymentType]int{}
	for _, t := range r.pids() {
		count[t]++
	}
	loads := r.sampler.programs()
	for _, t := range bothTypes {
		ch <- prometheus.MustNewConstMetric(m.instances, prometheus.GaugeValue, float64(count[t]), string(t))
		ch <- prometheus.MustNewConstMetric(m.cpu, prometheus.GaugeValue, loads[t].cores, string(t))
		ch <- prometheus.MustNewConstMetric(m.memory, prometheus.GaugeValue, loads[t].bytes, string(t))
	}
}

func (m *Metrics) restarted(t v1alpha1.DeploymentType) {
	m.restarts.WithLabelValues(string(t)).Inc()
}

func (m *Metrics) claimed() { m.claims.Inc() }

func (m *Metrics) code(code string) { m.errors.WithLabelValues(code).Inc() }

func (m *Metrics) moved(pause time.Duration) { m.pauses.Observe(pause.Seconds()) }
