package volume

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// What a coordinator knew of volumes is out of date when its term is over: nobody updates it there any more.
func TestTheMetricsOfVolumesEndWithTheTerm(t *testing.T) {
	m := NewMetrics(prometheus.NewRegistry())
	series := func() int { return testutil.CollectAndCount(m) }
	s := newScene(1, "n1")
	s.healthy("n1")
	d := Plan(s.World)
	first, end := m.begin()
	m.observe(first, s.World, d)
	if series() == 0 {
		t.Fatal("nothing is known during the term")
	}
	end()
	if n := series(); n != 0 {
		t.Errorf("%d series after the term", n)
	}
	m.observe(first, s.World, d) // it was under way
	if n := series(); n != 0 {
		t.Errorf("%d series of a term that is over", n)
	}
	second, _ := m.begin()
	end() // once more
	m.observe(second, s.World, d)
	if series() == 0 {
		t.Error("nothing is known during the next term")
	}
	var none *Metrics
	_, end = none.begin()
	end()
}
