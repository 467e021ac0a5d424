package changefeed_test

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/lease"
)

// now is when plans are made.
var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const bootstrapLimit = 30 * time.Second

// machine is a node in epoch 1 that may get work.
func machine(name string) *v1alpha1.Node {
	n := &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Liveness, n.Status.Epoch = v1alpha1.Alive, 1
	n.Status.Conditions = []metav1.Condition{{Type: v1alpha1.NodeReady, Status: metav1.ConditionTrue}}
	return n
}

// wchange changes a world, fchange a changefeed.
type (
	wchange func(*changefeed.World)
	fchange func(*v1alpha1.Changefeed)
)

// world has nodes n1, n2 and n3, all of which may get work, and no drain has run for a while.
func world(feeds []*v1alpha1.Changefeed, changes ...wchange) changefeed.World {
	w := changefeed.World{
		Now: now, Changefeeds: feeds, Fleet: fleet.New(),
		BatchSize: 1, BootstrapLimit: bootstrapLimit, Settled: true,
	}
	for _, name := range []string{"n1", "n2", "n3"} {
		w.Nodes[name] = machine(name)
		w.Leases[name] = lease.Record{Node: name, Holder: name + "-process", Epoch: 1}
	}
	for _, c := range changes {
		c(&w)
	}
	return w
}

func node(name string, change func(*v1alpha1.Node)) wchange {
	return func(w *changefeed.World) { change(w.Nodes[name]) }
}

func cordoned(name string) wchange {
	return node(name, func(n *v1alpha1.Node) { n.Spec.Cordoned = true })
}

func notReady(name string) wchange {
	return node(name, func(n *v1alpha1.Node) { n.Status.Conditions[0].Status = metav1.ConditionFalse })
}

func liveness(name string, l v1alpha1.Liveness) wchange {
	return node(name, func(n *v1alpha1.Node) { n.Status.Liveness = l })
}

// fenced is a node whose epoch was fenced. Its object does not show it yet.
func fenced(name string) wchange {
	return func(w *changefeed.World) {
		rec := w.Leases[name]
		rec.Holder, rec.Fenced = "", rec.Epoch
		w.Leases[name] = rec
	}
}

// restarted is a node in its next epoch, which its object shows.
func restarted(name string) wchange {
	return func(w *changefeed.World) {
		rec := w.Leases[name]
		rec.Epoch++
		rec.Holder = name + "-again"
		w.Leases[name] = rec
		w.Nodes[name].Status.Epoch = rec.Epoch
	}
}

// draining is a node in the slot.
func draining(name string) wchange {
	return func(w *changefeed.World) {
		w.Slot = &v1alpha1.ActiveDrain{Name: "d", UID: "drain-1", Node: name, NodeEpoch: 1}
		w.Nodes[name].Status.Liveness = v1alpha1.Draining
	}
}

// inSlot is a node in the slot whose object does not show it yet.
func inSlot(name string) wchange {
	return func(w *changefeed.World) {
		w.Slot = &v1alpha1.ActiveDrain{Name: "d", UID: "drain-1", Node: name, NodeEpoch: 1}
	}
}

func batch(n int) wchange { return func(w *changefeed.World) { w.BatchSize = n } }

func unsettled(w *changefeed.World) { w.Settled = false }

func later(d time.Duration) wchange { return func(w *changefeed.World) { w.Now = now.Add(d) } }

// feed is a changefeed that was never placed. The creation times follow the names.
func feed(name string, changes ...fchange) *v1alpha1.Changefeed {
	cf := &v1alpha1.Changefeed{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), ResourceVersion: "7"}}
	cf.Spec.Source, cf.Spec.Sink, cf.Spec.State = "datagen://", "blackhole://", v1alpha1.ChangefeedRun
	for _, c := range changes {
		c(cf)
	}
	return cf
}

func feeds(list ...*v1alpha1.Changefeed) []*v1alpha1.Changefeed { return list }

func placed(node string, epoch int64, phase v1alpha1.PlacementPhase) fchange {
	return func(cf *v1alpha1.Changefeed) {
		since := metav1.NewMicroTime(now)
		cf.Status.Placement = &v1alpha1.ChangefeedPlacement{Node: node, Epoch: epoch, Phase: phase, Since: &since}
		if node != "" {
			cf.Status.Placement.NodeEpoch = 1
		}
	}
}

func running(node string, epoch int64) fchange {
	return func(cf *v1alpha1.Changefeed) {
		placed(node, epoch, v1alpha1.PlacementRunning)(cf)
		cf.Status.State = v1alpha1.ChangefeedRunning
	}
}

func placing(node string, epoch int64) fchange {
	return placed(node, epoch, v1alpha1.PlacementPlacing)
}

func stopping(epoch int64) fchange { return placed("", epoch, v1alpha1.PlacementStopping) }

func from(node string, epoch int64) fchange {
	return func(cf *v1alpha1.Changefeed) {
		cf.Status.Placement.From = &v1alpha1.PlacementOrigin{Node: node, NodeEpoch: 1, Epoch: epoch}
	}
}

func hasStopped(cf *v1alpha1.Changefeed) { cf.Status.Placement.From.Stopped = true }

func paused(cf *v1alpha1.Changefeed) { cf.Spec.State = v1alpha1.ChangefeedPause }

func deleted(cf *v1alpha1.Changefeed) {
	at := metav1.NewTime(now)
	cf.DeletionTimestamp = &at
}

func state(s v1alpha1.ChangefeedState) fchange {
	return func(cf *v1alpha1.Changefeed) { cf.Status.State = s }
}

// acknowledged is a changefeed whose maintainer has acknowledged the drain in its present epoch, with dispatchers on nodes.
func acknowledged(nodes ...v1alpha1.ChangefeedNode) fchange {
	return func(cf *v1alpha1.Changefeed) {
		cf.Status.ObservedDrain, cf.Status.ObservedEpoch, cf.Status.Nodes = "drain-1", cf.Placement().Epoch, nodes
	}
}

func dispatchers(node string, n int64) v1alpha1.ChangefeedNode {
	return v1alpha1.ChangefeedNode{Node: node, Dispatchers: n}
}

// describePlan is what a plan does with each changefeed.
func describePlan(plan []*v1alpha1.Changefeed) []string {
	var list []string
	for _, cf := range plan {
		p := cf.Placement()
		text := fmt.Sprintf("%s: %s %d %s", cf.Name, p.Node, p.Epoch, p.Phase)
		if p.From != nil {
			text += fmt.Sprintf(" from %s %d", p.From.Node, p.From.Epoch)
		}
		if p.From != nil && p.From.Stopped {
			text += " stopped"
		}
		list = append(list, text+" "+string(cf.Status.State))
	}
	return list
}
