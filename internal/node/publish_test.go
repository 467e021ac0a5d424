package node

import (
	"context"
	"maps"
	"testing"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// holding is a runtime that holds a number of pieces.
type holding int

func (holding) Name() string                      { return "work" }
func (holding) Run(context.Context, *Epoch) error { return nil }
func (h holding) Held() int                       { return int(h) }

func TestTheCountsOfAStoppingNodeOnlyFall(t *testing.T) {
	for _, c := range []struct {
		what     string
		holds    holding
		liveness v1alpha1.Liveness
		old      v1alpha1.NodeStatus
		want     int64
	}{
		{"a runtime that has ended counts what it let go", 1, v1alpha1.Stopping, v1alpha1.NodeStatus{Epoch: 2, Liveness: v1alpha1.Stopping, Held: map[string]int64{"work": 0}}, 0},
		{"work stops", 2, v1alpha1.Stopping, v1alpha1.NodeStatus{Epoch: 2, Liveness: v1alpha1.Stopping, Held: map[string]int64{"work": 3}}, 2},
		{"it has not reported that it is stopping", 1, v1alpha1.Stopping, v1alpha1.NodeStatus{Epoch: 2, Liveness: v1alpha1.Draining, Held: map[string]int64{"work": 0}}, 1},
		{"it was stopping in another epoch", 1, v1alpha1.Stopping, v1alpha1.NodeStatus{Epoch: 1, Liveness: v1alpha1.Stopping, Held: map[string]int64{"work": 0}}, 1},
		{"it is draining", 1, v1alpha1.Draining, v1alpha1.NodeStatus{Epoch: 2, Liveness: v1alpha1.Draining, Held: map[string]int64{"work": 0}}, 1},
		{"it never reported a count", 1, v1alpha1.Stopping, v1alpha1.NodeStatus{Epoch: 2, Liveness: v1alpha1.Stopping}, 1},
	} {
		n := &Node{opts: Options{Gate: NewGate(func(string, string) {})}, host: &host{hosted: []Hosted{{Runtime: c.holds}}}}
		e := &Epoch{Number: 2, liveness: c.liveness}
		if got := n.status(e, *c.old.DeepCopy()).Held; !maps.Equal(got, map[string]int64{"work": c.want}) {
			t.Errorf("%s: it reports %v, want %d", c.what, got, c.want)
		}
	}
}
