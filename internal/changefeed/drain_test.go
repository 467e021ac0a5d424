package changefeed_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed"
	"github.com/ebb-dev/ebb/internal/drain"
)

// blocked is a blocker by its name, reason and remedy.
func blocked(name, reason, remedy string) v1alpha1.Blocker {
	return v1alpha1.Blocker{Kind: "Changefeed", Name: name, Reason: reason, Remedy: remedy}
}

const (
	remedyQueue        = "its maintainer waits until others have moved; `ebb settings set drain.maintainerBatchSize=N` lets N move at a time"
	remedyMove         = "its maintainer has not stopped on this node yet"
	remedyNoNode       = "no other node is schedulable for its maintainer: start or uncordon one"
	remedyTables       = "its maintainer is moving its dispatchers to other nodes"
	remedyNoMaintainer = "no node runs its maintainer, which has to acknowledge the drain and report the dispatchers on this node"
	remedyNowhere      = "no other node is schedulable for its dispatchers: start or uncordon one"
)

func unacknowledged(on string) string {
	return "waiting for its maintainer on node " + on + " to acknowledge the drain and report the dispatchers on this node"
}

// left is what is left, by changefeed.
func left(by map[string]int64, blockers ...v1alpha1.Blocker) drain.Remaining {
	r := drain.Remaining{By: map[string]int64{}, Blockers: blockers}
	for name, n := range by {
		r.By[name] = n
		r.Count += n
	}
	return r
}

func TestWhichMaintainersAreLeftOnANode(t *testing.T) {
	inNamespace := func(cf *v1alpha1.Changefeed) { cf.Namespace = "shop" }
	for _, c := range []struct {
		name string
		w    changefeed.World
		want drain.Remaining
	}{
		{"none", world(feeds(feed("a", running("n2", 1)), feed("b")), draining("n1")), left(nil)},
		{"one that runs there", world(feeds(feed("a", running("n1", 1))), draining("n1")),
			left(map[string]int64{"a": 1}, blocked("a", "AwaitingTurn", remedyQueue))},
		{"one that was to begin there", world(feeds(feed("a", placing("n1", 1))), draining("n1")),
			left(map[string]int64{"a": 1}, blocked("a", "AwaitingTurn", remedyQueue))},
		{"one that has yet to stop there", world(feeds(feed("a", placing("n2", 2), from("n1", 1))), draining("n1")),
			left(map[string]int64{"a": 1}, blocked("a", "AwaitingMove", remedyMove))},
		{"one that is paused and has yet to stop there", world(feeds(feed("a", stopping(2), from("n1", 1), paused)), draining("n1")),
			left(map[string]int64{"a": 1}, blocked("a", "AwaitingMove", remedyMove))},
		{"one that has stopped there", world(feeds(feed("a", placing("n2", 2), from("n1", 1), hasStopped)), draining("n1")), left(nil)},
		{"one that has yet to stop on a node that died", world(feeds(feed("a", placing("n2", 2), from("n1", 1))), draining("n1"), fenced("n1")), left(nil)},
		{"one with nowhere to go", world(feeds(feed("a", running("n1", 1))), draining("n1"), cordoned("n2"), notReady("n3")),
			left(map[string]int64{"a": 1}, blocked("a", "NoSchedulableNode", remedyNoNode))},
		{"one on a node that died, not placed elsewhere yet", world(feeds(feed("a", running("n1", 1))), draining("n1"), fenced("n1")),
			left(map[string]int64{"a": 1}, blocked("a", "AwaitingTurn", remedyQueue))},
		{"a paused one on a node that died", world(feeds(feed("a", running("n1", 1), paused)), draining("n1"), fenced("n1")), left(nil)},
		{"several, each by its name", world(feeds(feed("a", running("n1", 1)), feed("b", inNamespace, running("n1", 1)), feed("c", placing("n3", 2), from("n1", 1))), draining("n1")),
			left(map[string]int64{"a": 1, "shop/b": 1, "c": 1}, blocked("a", "AwaitingTurn", remedyQueue), blocked("shop/b", "AwaitingTurn", remedyQueue), blocked("c", "AwaitingMove", remedyMove))},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, c.w.MaintainersOn("n1")); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

func TestWhichDispatchersAreLeftOnANode(t *testing.T) {
	earlierEpoch := func(cf *v1alpha1.Changefeed) { cf.Status.ObservedEpoch-- }
	earlierDrain := func(cf *v1alpha1.Changefeed) { cf.Status.ObservedDrain = "drain-0" }
	for _, c := range []struct {
		name string
		w    changefeed.World
		want drain.Remaining
	}{
		{"none, and all have acknowledged", world(feeds(feed("a", running("n2", 3), acknowledged(dispatchers("n2", 5)))), draining("n1")), left(nil)},
		{"some", world(feeds(feed("a", running("n2", 3), acknowledged(dispatchers("n1", 4), dispatchers("n2", 1)))), draining("n1")),
			left(map[string]int64{"a": 4}, blocked("a", "AwaitingDispatchers", remedyTables))},
		{"a maintainer that has not acknowledged counts as one", world(feeds(feed("a", running("n2", 3))), draining("n1")),
			left(map[string]int64{"a": 1}, blocked("a", "AwaitingMaintainer", unacknowledged("n2")))},
		{"one that acknowledged an earlier drain", world(feeds(feed("a", running("n2", 3), acknowledged(), earlierDrain)), draining("n1")),
			left(map[string]int64{"a": 1}, blocked("a", "AwaitingMaintainer", unacknowledged("n2")))},
		{"one that acknowledged in an earlier epoch", world(feeds(feed("a", running("n2", 3), acknowledged(), earlierEpoch)), draining("n1")),
			left(map[string]int64{"a": 1}, blocked("a", "AwaitingMaintainer", unacknowledged("n2")))},
		{"one that has not bootstrapped yet", world(feeds(feed("a", placing("n2", 3), acknowledged())), draining("n1")),
			left(map[string]int64{"a": 1}, blocked("a", "AwaitingMaintainer", unacknowledged("n2")))},
		{"one without a maintainer", world(feeds(feed("a")), draining("n1")),
			left(map[string]int64{"a": 1}, blocked("a", "AwaitingMaintainer", remedyNoMaintainer))},
		{"one that has not acknowledged keeps the count that it published before", world(feeds(feed("a", running("n2", 3), acknowledged(dispatchers("n1", 4)), earlierDrain)), draining("n1")),
			left(map[string]int64{"a": 4}, blocked("a", "AwaitingMaintainer", unacknowledged("n2")))},
		{"those of a paused one are the node's to stop", world(feeds(feed("a", stopping(3), paused, acknowledged(dispatchers("n1", 4)))), draining("n1")), left(nil)},
		{"those of a deleted one too", world(feeds(feed("a", stopping(3), deleted)), draining("n1")), left(nil)},
		{"those of a failed one too", world(feeds(feed("a", stopping(3), state(v1alpha1.ChangefeedFailed))), draining("n1")), left(nil)},
		{"those on a node that died ended with it", world(feeds(feed("a", running("n2", 3), acknowledged(dispatchers("n1", 4)))), draining("n1"), fenced("n1")), left(nil)},
		{"with nowhere to go", world(feeds(feed("a", running("n1", 3), acknowledged(dispatchers("n1", 4)))), draining("n1"), cordoned("n2"), cordoned("n3")),
			left(map[string]int64{"a": 4}, blocked("a", "NoSchedulableNode", remedyNowhere))},
		{"without a drain they are only counted", world(feeds(feed("a", running("n2", 3), acknowledged(dispatchers("n1", 4))), feed("b", running("n2", 1)))),
			left(map[string]int64{"a": 4}, blocked("a", "AwaitingDispatchers", remedyTables))},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, c.w.DispatchersOn("n1")); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}
