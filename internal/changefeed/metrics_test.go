package changefeed

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed/dispatch"
	"github.com/ebb-dev/ebb/internal/changefeed/maintainer"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/node"
)

// measured is a host with its metrics.
type measured struct {
	*Host
	registry *prometheus.Registry
}

func newMeasured() *measured {
	m := &measured{registry: prometheus.NewRegistry()}
	gate := node.NewGate(func(string, string) {})
	gate.Open(1)
	log := slog.New(slog.DiscardHandler)
	m.Host = NewHost(Options{
		Node: "n1", Gate: gate, Opener: Opener{Log: log}, Memory: 1 << 20, Metrics: NewMetrics(m.registry, "n1"), Log: log,
	})
	return m
}

// scrape is what Prometheus would get, by series, without comments.
func (m *measured) scrape(t *testing.T) map[string]string {
	t.Helper()
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	body, _ := io.ReadAll(answer.Body)
	if answer.Code != 200 {
		t.Fatalf("%d: %s", answer.Code, body)
	}
	series := map[string]string{}
	for line := range strings.Lines(string(body)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && !strings.HasPrefix(line, "#") {
			series[name] = value
		}
	}
	return series
}

func (m *measured) want(t *testing.T, want map[string]string) {
	t.Helper()
	got := m.scrape(t)
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s is %q, not %q", name, got[name], value)
		}
	}
}

// flow starts a table of a datagen source at its head.
func (m *measured) flow(t *testing.T, key dispatch.FeedKey, table string) {
	t.Helper()
	c := dispatch.Config{Source: "datagen://?tables=2&rate=100", Sink: "blackhole://", Workers: 1, BatchRows: 10}
	source, err := m.opts.Opener.Source(c)
	if err != nil {
		t.Fatal(err)
	}
	head, err := source.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	order := dispatch.Order{Table: stream.Table{Schema: "datagen", Name: table}, Epoch: stream.Epoch{Placement: 1, Counter: 1}, Position: head}
	if failed := m.engine.Start(t.Context(), key, 1, c, []dispatch.Order{order}); len(failed) > 0 {
		t.Fatal(failed)
	}
}

func of(name, changefeed string) string {
	return fmt.Sprintf(`%s{changefeed="%s",namespace="default",node="n1"}`, name, changefeed)
}

// datagenTime is after the first transaction of datagen sources.
var datagenTime = time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)

func TestMetricsOfDispatchersEndWithTheChangefeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(datagenTime))
		m := newMeasured()
		key := dispatch.FeedKey{Namespace: "default", Name: "demo", UID: "1"}
		m.flow(t, key, "t0")
		m.flow(t, key, "t1")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		r := m.engine.Report(key)
		if r.Rows < 990 || r.Bytes < r.Rows {
			t.Fatalf("%d rows, %d bytes in 10 s at 100 a second", r.Rows, r.Bytes)
		}
		m.want(t, map[string]string{
			of("ebb_changefeed_dispatchers", "demo"):              "2",
			of("ebb_changefeed_rows_total", "demo"):               fmt.Sprint(r.Rows),
			of("ebb_changefeed_bytes_total", "demo"):              fmt.Sprint(r.Bytes),
			of("ebb_changefeed_tables", "demo"):                   "", // its maintainer is elsewhere
			`ebb_changefeed_memory_bytes{node="n1"}`:              "0",
			`ebb_changefeed_flush_seconds_count{node="n1"}`:       fmt.Sprint(r.Rows), // each came alone
			`ebb_changefeed_table_pause_seconds_count{node="n1"}`: "0",
		})
		if err := m.engine.Close(context.Background(), key); err != nil {
			t.Fatal(err)
		}
		for name := range m.scrape(t) {
			if strings.Contains(name, "demo") {
				t.Errorf("%s is still served", name)
			}
		}
	})
}

// A changefeed that is deleted and created again has two keys until the first is closed.
func TestAChangefeedThatIsCreatedAgainHasOneSeries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(datagenTime))
		m := newMeasured()
		for _, uid := range []string{"1", "2"} {
			key := dispatch.FeedKey{Namespace: "default", Name: "demo", UID: uid}
			m.flow(t, key, "t0")
			defer m.engine.Close(context.Background(), key)
		}
		m.want(t, map[string]string{of("ebb_changefeed_dispatchers", "demo"): "2"})
	})
}

// placed is a changefeed whose maintainer is placed on n1.
func placed(checkpointTime *metav1.Time) *v1alpha1.Changefeed {
	cf := &v1alpha1.Changefeed{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "demo", UID: types.UID("1")}}
	cf.Spec.Source, cf.Spec.Sink = "datagen://?tables=2", "blackhole://"
	cf.Status.Placement = &v1alpha1.ChangefeedPlacement{Node: "n1", NodeEpoch: 1, Epoch: 3, Phase: v1alpha1.PlacementPlacing}
	cf.Status.CheckpointTime = checkpointTime
	return cf
}

// stored is an API with one Changefeed.
type stored struct{ cf *v1alpha1.Changefeed }

func (s stored) Update(_ context.Context, _ dispatch.FeedKey, change func(*v1alpha1.Changefeed) bool) error {
	change(s.cf)
	return nil
}

func (s stored) Maintained() int { return 1 }

func TestMetricsOfAMaintainer(t *testing.T) {
	ago := func(d time.Duration) *metav1.Time {
		at := metav1.NewTime(datagenTime.Add(-d))
		return &at
	}
	for _, c := range []struct {
		name        string
		cf          *v1alpha1.Changefeed
		works       bool
		tables, lag string
	}{
		{"works", placed(ago(1500 * time.Millisecond)), true, "2", "1.5"},
		{"works for no placement", placed(ago(1500 * time.Millisecond)), false, "", ""},
		{"does not know when the source committed", placed(nil), true, "2", ""},
		{"has a source whose clock is ahead", placed(ago(-time.Hour)), true, "2", "0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(time.Until(datagenTime))
				h := newMeasured()
				r := &run{Host: h.Host, e: &node.Epoch{Node: "n1", Number: 1}, changed: make(chan struct{})}
				options := r.maintainerOptions()
				options.Status = stored{c.cf.DeepCopy()}
				m := &hosted{Maintainer: maintainer.New(options, c.cf), run: r}
				key := maintainer.KeyOf(c.cf)
				h.running[key] = m
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.works {
					go m.Run(ctx)
					synctest.Wait()
				}
				h.want(t, map[string]string{of("ebb_changefeed_tables", "demo"): c.tables, of("ebb_changefeed_checkpoint_lag_seconds", "demo"): c.lag})
				delete(h.running, key)
				h.want(t, map[string]string{of("ebb_changefeed_tables", "demo"): "", of("ebb_changefeed_checkpoint_lag_seconds", "demo"): ""})
			})
		})
	}
}
