package dispatch_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ebb-dev/ebb/internal/changefeed/dispatch"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// A changefeed can be paused, changed and resumed while a node does not reach the API server.
func TestAMachineThatHasAnotherConfigurationStopsAndOpensAgain(t *testing.T) {
	noGoroutines(t)
	source := newTape(t, "tables=3")
	sink := newLedger(t, source)
	tables := source.tables(t)
	source.wind(300)
	m := newMachine(t, source, sink, plenty)
	var opened []dispatch.Config
	m.opened = func(c dispatch.Config) { opened = append(opened, c) }
	renew := func(c dispatch.Config) bool {
		t.Helper()
		renewed, err := m.Renew(t.Context(), key, c)
		if err != nil {
			t.Fatal(err)
		}
		return renewed
	}
	changed := config
	changed.Skips = []stream.Position{250}
	if renew(changed) {
		t.Error("a changefeed that the machine does not know was stopped")
	}
	if err := m.Accept(key, 1); err != nil {
		t.Fatal(err)
	}
	if renew(changed) {
		t.Error("a changefeed that is not open was stopped")
	}
	m.mustStart(orders(ep(1), 0, tables...))
	same := config
	same.Skips, same.Filter, same.SinkPassword = []stream.Position{}, stream.Filter{}, "resolved by the node"
	if renew(same) || len(m.Dispatchers(key)) != 3 {
		t.Errorf("the same configuration stopped it: %v", m.Dispatchers(key))
	}
	until(t, "everything is at the sink", func() bool { return sink.has(tables, 300) })
	if !renew(changed) || len(m.Dispatchers(key)) != 0 || m.places.Load() != 0 {
		t.Errorf("another configuration did not stop it: %v", m.Dispatchers(key))
	}
	if err := m.Accept(key, 0); !errors.Is(err, dispatch.ErrOldMaintainer) {
		t.Errorf("an earlier maintainer is accepted afterwards: %v", err)
	}
	source.wind(600)
	if failed := m.Start(context.Background(), key, 1, changed, orders(ep(2), 0, tables...)); len(failed) > 0 {
		t.Fatal(failed)
	}
	if renew(changed) {
		t.Error("the new configuration stopped it")
	}
	until(t, "the rest is at the sink", func() bool { return sink.has(tables, 600) })
	if len(opened) != 2 || len(opened[0].Skips) != 0 || len(opened[1].Skips) != 1 {
		t.Errorf("it was opened with %+v", opened)
	}
}

// A sink that hangs must not leave a changefeed that nobody can open again.
func TestAMachineThatCouldNotStopIsAskedAgain(t *testing.T) {
	source := newTape(t, "tables=1")
	sink := newLedger(t, source)
	tables := source.tables(t)
	source.wind(100)
	h := newHang(t)
	m := newMachine(t, source, sink, plenty)
	m.mustStart(orders(ep(1), 0, tables...))
	until(t, "everything is at the sink", func() bool { return sink.has(tables, 100) })
	sink.hinder(h.wait)
	source.wind(200)
	until(t, "a write hangs", func() bool { return h.waiting.Load() > 0 })
	changed := config
	changed.Forward = true
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if renewed, err := m.Renew(ctx, key, changed); !renewed || err == nil {
		t.Fatalf("it stopped while a write hung: %v, %v", renewed, err)
	}
	h.release()
	if renewed, err := m.Renew(t.Context(), key, config); !renewed || err != nil {
		t.Errorf("not stopped with the old configuration: %v, %v", renewed, err)
	}
	m.mustStart(orders(ep(2), 0, tables...))
	until(t, "the rest is at the sink", func() bool { return sink.has(tables, 200) })
}
