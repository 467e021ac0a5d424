package node_test

import (
	"errors"
	"testing"

	"github.com/ebb-dev/ebb/internal/node"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// The API goes away for longer than a lease. What nobody checks stops before the lease expires, what is checked elsewhere
// goes on, nothing starts, nothing is marked, and everyone comes back in the next epoch.
func TestAnOutageOfTheAPIFencesAndMarksNobody(t *testing.T) {
	api := testenv.StartAPI(t)
	stops, keeps := &worker{name: "unchecked"}, &worker{name: "checked"}
	m := newMachine(t, api, "n1", func(o *node.Options) {
		stops.gate, keeps.gate = o.Gate, o.Gate
		o.Runtimes = []node.Hosted{{Runtime: stops, OnLeaseDoubt: node.StopOnDoubt}, {Runtime: keeps, OnLeaseDoubt: node.KeepOnDoubt}}
	}).start()
	m.awaitReady(1)
	until(t, "the work to run", func() bool { a, _, _ := stops.state(); b, _, _ := keeps.state(); return a && b })
	held := m.node.Epoch().Held
	api.Stop()
	until(t, "the unchecked work to stop", func() bool { running, _, _ := stops.state(); return !running })
	_, _, stopped := stops.state()
	fence, dead := held.Deadline()
	if stopped < fence || stopped > dead {
		t.Errorf("stopped %s after the fence began; it may take from 0 to %s", stopped.Sub(fence), dead.Sub(fence))
	}
	if running, _, _ := keeps.state(); !running {
		t.Error("the work that is checked elsewhere was stopped")
	}
	if _, err := m.opts.Gate.Enter("checked"); !errors.Is(err, node.ErrRefused) {
		t.Errorf("work entered without a lease: %v", err)
	}
	if m.node.Ready() == nil {
		t.Error("ready without a lease")
	}
	until(t, "the lease to expire for everyone", func() bool { return node.BootTime().Sub(dead) > 2*fast().Lost })
	api.Start()
	m.awaitReady(2)
	if r := m.record(); r.Fenced != 0 {
		t.Errorf("an outage marked the node: %+v", r)
	}
	until(t, "the unchecked work to run again", func() bool { running, _, _ := stops.state(); return running })
	if _, starts, _ := keeps.state(); starts != 1 {
		t.Errorf("the checked work was started %d times", starts)
	}
}
