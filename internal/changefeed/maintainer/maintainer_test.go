package maintainer

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/changefeed/wire"
	"github.com/ebb-dev/ebb/internal/node"
)

// A maintainer that took an older version for the newest would work on after its placement was superseded.
func TestAMaintainerNeverGoesBackToAnOlderObject(t *testing.T) {
	version := func(uid, number string) *v1alpha1.Changefeed {
		cf := &v1alpha1.Changefeed{}
		cf.UID, cf.ResourceVersion = types.UID(uid), number
		return cf
	}
	m := New(Options{Log: slog.New(slog.DiscardHandler)}, version("1", "9"))
	for _, c := range []struct {
		see  *v1alpha1.Changefeed
		want string
	}{{version("1", "10"), "10"}, {version("1", "9"), "10"}, {version("1", "10"), "10"}, {version("1", "100"), "100"}, {version("2", "5"), "5"}} {
		if m.Observe(c.see); m.Latest().ResourceVersion != c.want {
			t.Errorf("after %s it has %s, want %s", c.see.ResourceVersion, m.Latest().ResourceVersion, c.want)
		}
	}
}

// A drain may begin while orders to its node have been sent. What they start must be in the first count that is published with the
// observed drain: a count that grows later would mean that a draining node takes work.
func TestATableThatMovesToTheDrainingNodeIsCountedThere(t *testing.T) {
	for name, c := range map[string]struct {
		table table
		want  string
	}{
		"it runs":                                      {table{phase: TableRunning, node: "n1"}, "n1"},
		"it runs nowhere":                              {table{phase: TableAbsent, node: "n1"}, ""},
		"it is placed for the first time":              {table{phase: TableBusy, to: "n1"}, "n1"},
		"it is placed on the draining node":            {table{phase: TableBusy, to: "n2"}, "n2"},
		"it moves to the draining node":                {table{phase: TableBusy, node: "n1", to: "n2"}, "n2"},
		"it moves off the draining node":               {table{phase: TableBusy, node: "n2", to: "n1"}, "n2"},
		"it moves between two nodes that do not drain": {table{phase: TableBusy, node: "n1", to: "n3"}, "n1"},
	} {
		if got := c.table.countedOn("n2"); got != c.want {
			t.Errorf("%s: it is counted on %q, want %q", name, got, c.want)
		}
	}
}

// unchanging is a cluster in which nothing happens.
type unchanging struct{}

func (unchanging) View() (View, <-chan struct{}) { return View{}, nil }

// The finalizers of an object can be removed by hand while it is placed here: nobody takes that placement away.
func TestAMaintainerEndsWithItsObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cf := &v1alpha1.Changefeed{}
		cf.DeletionTimestamp = &metav1.Time{Time: time.Now()} // so that nothing is begun
		cf.Status.Placement = &v1alpha1.ChangefeedPlacement{Epoch: 1, Node: "n1", NodeEpoch: 1}
		m := New(Options{Log: slog.New(slog.DiscardHandler), Cluster: unchanging{}, Epoch: &node.Epoch{Node: "n1", Number: 1}}, cf)
		ended := make(chan struct{})
		go func() { m.Run(t.Context()); close(ended) }()
		time.Sleep(time.Hour)
		select {
		case <-ended:
			t.Fatal("it ended though the object is there")
		default:
		}
		m.Gone()
		<-ended
	})
}

// A sink that was started again makes a maintainer begin anew in the same placement. Rows at the sink have the epochs that were given before.
func TestAnEpochIsNotGivenTwiceInAPlacement(t *testing.T) {
	m := New(Options{Log: slog.New(slog.DiscardHandler)}, &v1alpha1.Changefeed{})
	give := func(placement int64) stream.Epoch {
		m.reset(placement)
		return wire.ParseEpoch(m.newOrders(map[stream.Table]*table{logTable: {}})[logTable].Epoch)
	}
	for i, want := range []stream.Epoch{{Placement: 4, Counter: 1}, {Placement: 4, Counter: 2}, {Placement: 4, Counter: 3}, {Placement: 5, Counter: 1}} {
		if got := give(want.Placement); got != want {
			t.Errorf("order %d has epoch %v, want %v", i, got, want)
		}
	}
}
