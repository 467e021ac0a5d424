package changefeed

import (
	"cmp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed/maintainer"
	"github.com/ebb-dev/ebb/internal/fleet"
)

// World is the input of Place, read at one time.
type World struct {
	Now         time.Time
	Changefeeds []*v1alpha1.Changefeed
	fleet.Fleet
	// BatchSize is how many maintainers may move off a draining node at the same time.
	BatchSize int
	// BootstrapLimit is how long a placement may take before it counts as failed.
	BootstrapLimit time.Duration
	// Settled is whether no drain has run for so long that maintainers may be balanced.
	Settled bool
}

// DefaultBootstrapTimeout is how long a placement may take before it counts as failed, unless the settings say otherwise.
const DefaultBootstrapTimeout = 30 * time.Second

// balanceAtOnce bounds the moves that only balance.
const balanceAtOnce = 1

// Place returns the changefeeds whose placements must be written now. The basic scheduler places maintainers that run nowhere, the
// drain scheduler moves them off the draining node, and the balance scheduler evens out the rest. Each changefeed has the
// resourceVersion that the decision is based on.
func Place(w World) []*v1alpha1.Changefeed {
	loads := w.loads()
	var plan []*v1alpha1.Changefeed
	feeds := slices.Clone(w.Changefeeds)
	slices.SortFunc(feeds, func(a, b *v1alpha1.Changefeed) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	room := max(w.BatchSize, 1) - w.departing()
	for _, cf := range feeds {
		next := w.next(cf, loads, &room)
		if next == nil {
			continue
		}
		changed := cf.DeepCopy()
		since := metav1.NewMicroTime(w.Now)
		next.Since = &since
		decide(&changed.Status, next, stateOf(cf, *next))
		plan = append(plan, changed)
	}
	if len(plan) == 0 && w.Slot == nil && w.Settled {
		plan = w.balance(feeds, loads)
	}
	return plan
}

// decide puts the decision of a plan into a status. A changefeed that is stopped takes up its filter, skips and start again when it runs the
// next time.
func decide(s *v1alpha1.ChangefeedStatus, p *v1alpha1.ChangefeedPlacement, state v1alpha1.ChangefeedState) {
	s.Placement, s.State = p, state
	if s.Filter != nil && p.Phase == v1alpha1.PlacementStopping {
		s.Filter.Stopped = true
	}
}

// loads counts maintainers by node, for the nodes that may get more.
func (w World) loads() map[string]int {
	loads := map[string]int{}
	for _, name := range w.SchedulableNodes() {
		loads[name] = 0
	}
	for _, cf := range w.Changefeeds {
		p := cf.Placement()
		if _, ok := loads[p.Node]; ok && cf.Wanted() && !w.Over(p.Node, p.NodeEpoch) {
			loads[p.Node]++
		}
	}
	return loads
}

// departing counts the maintainers that are moving off the draining node. Their placements name another node already, and the draining
// node as the origin.
func (w World) departing() int {
	if w.Slot == nil {
		return 0
	}
	n := 0
	for _, cf := range w.Changefeeds {
		p := cf.Placement()
		if p.From != nil && p.From.Node == w.Slot.Node && p.Node != w.Slot.Node && p.Phase == v1alpha1.PlacementPlacing {
			n++
		}
	}
	return n
}

// next is the placement that a changefeed must get now, or nil. room is how many more may leave the draining node.
func (w World) next(cf *v1alpha1.Changefeed, loads map[string]int, room *int) *v1alpha1.ChangefeedPlacement {
	p := cf.Placement()
	if !cf.Wanted() || cf.Status.State == v1alpha1.ChangefeedFailed {
		if p.Node == "" && (cf.Wanted() || cf.Status.State == v1alpha1.ChangefeedPaused || cf.Status.State == "") {
			return nil
		}
		return &v1alpha1.ChangefeedPlacement{Epoch: p.Epoch + 1, Phase: v1alpha1.PlacementStopping, From: w.origin(p)}
	}
	switch {
	case p.Node == "" && p.From != nil && !w.gone(p.From):
		return nil // it was paused, and the earlier maintainer has not stopped yet
	case p.Node == "" || w.Over(p.Node, p.NodeEpoch):
		return w.place(p, loads)
	case w.Slot != nil && w.Slot.Node == p.Node:
		if *room <= 0 {
			return nil
		}
		next := w.place(p, loads)
		if next != nil {
			*room--
		}
		return next
	case p.Phase == v1alpha1.PlacementPlacing && w.late(p):
		// It counts as failed, and is placed on another node if there is one.
		without := map[string]int{}
		for name, load := range loads {
			if name != p.Node {
				without[name] = load
			}
		}
		next := w.place(p, without)
		if next != nil {
			loads[next.Node]++
		}
		return next
	}
	return nil
}

// late reports whether the maintainer of a placement has not bootstrapped in time. The time before the origin has stopped does not
// count, because it could not begin.
func (w World) late(p v1alpha1.ChangefeedPlacement) bool {
	return w.BootstrapLimit > 0 && p.Since != nil && (p.From == nil || w.gone(p.From)) && w.Now.Sub(p.Since.Time) > w.BootstrapLimit
}

// place places the maintainer on the least loaded node, and counts it there; nil if there is no node.
func (w World) place(p v1alpha1.ChangefeedPlacement, loads map[string]int) *v1alpha1.ChangefeedPlacement {
	node := maintainer.LeastLoaded(loads)
	if node == "" {
		return nil
	}
	loads[node]++
	return &v1alpha1.ChangefeedPlacement{
		Node: node, NodeEpoch: w.Leases[node].Epoch, Epoch: p.Epoch + 1, Phase: v1alpha1.PlacementPlacing, From: w.origin(p),
	}
}

// origin is what must have stopped before the successor of a placement begins: the placement itself or, if that could not begin
// because its own origin has not stopped, that origin.
func (w World) origin(p v1alpha1.ChangefeedPlacement) *v1alpha1.PlacementOrigin {
	if p.From != nil && !w.gone(p.From) {
		return p.From
	}
	if p.Node == "" || w.Over(p.Node, p.NodeEpoch) {
		return nil
	}
	return &v1alpha1.PlacementOrigin{Node: p.Node, NodeEpoch: p.NodeEpoch, Epoch: p.Epoch}
}

// gone reports whether the maintainer of an earlier placement does not run any more.
func (w World) gone(o *v1alpha1.PlacementOrigin) bool {
	return o.Stopped || w.Over(o.Node, o.NodeEpoch)
}

// MayBegin reports whether the maintainer of a placement may begin: the one before it does not run any more.
func (w World) MayBegin(p v1alpha1.ChangefeedPlacement) bool { return p.From == nil || w.gone(p.From) }

// balance moves a maintainer from the most to the least loaded node, if that makes the loads more even: the one that has been there for the
// longest time, so that it is not the same one again and again, and none that has only just come to run there.
func (w World) balance(feeds []*v1alpha1.Changefeed, loads map[string]int) []*v1alpha1.Changefeed {
	low := maintainer.LeastLoaded(loads)
	moving := 0
	for _, cf := range feeds {
		if cf.Wanted() && cf.Status.State != v1alpha1.ChangefeedFailed && cf.Placement().Phase != v1alpha1.PlacementRunning {
			moving++
		}
	}
	if low == "" || moving >= balanceAtOnce {
		return nil
	}
	var oldest *v1alpha1.Changefeed
	for _, cf := range feeds {
		p := cf.Placement()
		load, ok := loads[p.Node]
		if ok && load >= loads[low]+2 && cf.Wanted() && load == most(loads) && (oldest == nil || placedAt(cf).Before(placedAt(oldest))) {
			oldest = cf
		}
	}
	if oldest == nil || w.Now.Sub(placedAt(oldest)) < w.BalanceAfter() {
		return nil
	}
	changed := oldest.DeepCopy()
	since := metav1.NewMicroTime(w.Now)
	changed.Status.Placement = w.place(oldest.Placement(), loads)
	changed.Status.Placement.Since = &since
	changed.Status.State = v1alpha1.ChangefeedMoving
	return []*v1alpha1.Changefeed{changed}
}

// placedAt is when the placement of a changefeed was last changed; zero if that is not known.
func placedAt(cf *v1alpha1.Changefeed) time.Time {
	if since := cf.Placement().Since; since != nil {
		return since.Time
	}
	return time.Time{}
}

func most(loads map[string]int) int {
	highest := 0
	for _, load := range loads {
		highest = max(highest, load)
	}
	return highest
}

// stateOf is the state that a changefeed has with a placement.
func stateOf(cf *v1alpha1.Changefeed, p v1alpha1.ChangefeedPlacement) v1alpha1.ChangefeedState {
	switch {
	case cf.Status.State == v1alpha1.ChangefeedFailed && cf.Wanted():
		return v1alpha1.ChangefeedFailed
	case !cf.Wanted():
		return v1alpha1.ChangefeedPaused
	case p.Phase == v1alpha1.PlacementRunning:
		return v1alpha1.ChangefeedRunning
	case p.From != nil:
		return v1alpha1.ChangefeedMoving
	}
	return v1alpha1.ChangefeedPending
}
