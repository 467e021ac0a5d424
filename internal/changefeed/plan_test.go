package changefeed_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/lease"
)

func TestWhereMaintainersArePlaced(t *testing.T) {
	one := func(changes ...fchange) []*v1alpha1.Changefeed { return feeds(feed("a", changes...)) }
	everyoneCordoned := []wchange{cordoned("n1"), cordoned("n2"), cordoned("n3")}
	for _, c := range []struct {
		name string
		w    changefeed.World
		want []string
	}{
		{"a new one goes to the first of equals", world(one()), []string{"a: n1 1 Placing Pending"}},
		{"a new one goes to the least loaded", world(feeds(feed("a"), feed("b", running("n1", 1)), feed("c", running("n3", 1)))), []string{"a: n2 1 Placing Pending"}},
		{"each assignment counts for the next", world(feeds(feed("a"), feed("b"), feed("c"), feed("d"), feed("e", running("n1", 1)))),
			[]string{"a: n2 1 Placing Pending", "b: n3 1 Placing Pending", "c: n1 1 Placing Pending", "d: n2 1 Placing Pending"}},
		{"one that is on its way counts where it goes", world(feeds(feed("a"), feed("b", placing("n1", 2), from("n2", 1)))), []string{"a: n2 1 Placing Pending"}},
		{"a paused one's node is free", world(feeds(feed("a"), feed("b", running("n1", 1), paused))), []string{"a: n1 1 Placing Pending", "b:  2 Stopping from n1 1 Paused"}},
		{"the oldest is placed first", world(feeds(feed("b"), feed("a", func(cf *v1alpha1.Changefeed) { cf.CreationTimestamp = metav1.NewTime(now) }))),
			[]string{"b: n1 1 Placing Pending", "a: n2 1 Placing Pending"}},
		{"nothing changes while all is well", world(feeds(feed("a", running("n1", 1)), feed("b", running("n2", 1)), feed("c", running("n3", 1)))), nil},

		{"not on a cordoned node", world(one(), cordoned("n1")), []string{"a: n2 1 Placing Pending"}},
		{"not on a node that is not ready", world(one(), notReady("n1")), []string{"a: n2 1 Placing Pending"}},
		{"not on a draining node", world(one(), liveness("n1", v1alpha1.Draining)), []string{"a: n2 1 Placing Pending"}},
		{"not on a stopping node", world(one(), liveness("n1", v1alpha1.Stopping)), []string{"a: n2 1 Placing Pending"}},
		{"not on a fenced node whose object says all is well", world(one(), fenced("n1")), []string{"a: n2 1 Placing Pending"}},
		{"not on a node in the slot whose object says all is well", world(one(), inSlot("n1")), []string{"a: n2 1 Placing Pending"}},
		{"not on a node without a lease", world(one(), func(w *changefeed.World) { delete(w.Leases, "n1") }), []string{"a: n2 1 Placing Pending"}},
		{"not on a node whose object is of an earlier epoch", world(one(), restarted("n1"), node("n1", func(n *v1alpha1.Node) { n.Status.Epoch = 1 })), []string{"a: n2 1 Placing Pending"}},
		{"nowhere without a node", world(one(), everyoneCordoned...), nil},
		{"a cordon moves nothing", world(one(running("n1", 1)), cordoned("n1")), nil},

		{"the node died", world(one(running("n1", 3)), fenced("n1")), []string{"a: n2 4 Placing Pending"}},
		{"the node restarted", world(one(running("n1", 3)), restarted("n1")), []string{"a: n1 4 Placing Pending"}},
		{"all of a node that restarted are spread over all", world(feeds(feed("a", running("n1", 1)), feed("b", running("n1", 1)), feed("c", running("n1", 1))), restarted("n1")),
			[]string{"a: n1 2 Placing Pending", "b: n2 2 Placing Pending", "c: n3 2 Placing Pending"}},
		{"the node's lease vanished", world(one(running("n1", 3)), func(w *changefeed.World) { delete(w.Leases, "n1") }), []string{"a: n2 4 Placing Pending"}},
		{"the node died and there is no other", world(one(running("n1", 3)), append(everyoneCordoned, fenced("n1"))...), nil},

		{"a drain moves it", world(one(running("n1", 3)), draining("n1")), []string{"a: n2 4 Placing from n1 3 Moving"}},
		{"a drain moves it before the node knows", world(one(running("n1", 3)), inSlot("n1")), []string{"a: n2 4 Placing from n1 3 Moving"}},
		{"a draining node without a slot keeps it", world(one(running("n1", 3)), liveness("n1", v1alpha1.Draining)), nil},
		{"another's drain does not", world(one(running("n2", 3)), draining("n1")), nil},
		{"a drain without another node waits", world(one(running("n1", 3)), draining("n1"), cordoned("n2"), notReady("n3")), nil},
		{"and goes on with one", world(one(running("n1", 3)), draining("n1"), cordoned("n2")), []string{"a: n3 4 Placing from n1 3 Moving"}},
		{"the draining node died", world(one(running("n1", 3)), draining("n1"), fenced("n1")), []string{"a: n2 4 Placing Pending"}},

		{"the destination died before the origin stopped", world(one(placing("n2", 4), from("n1", 3)), draining("n1"), fenced("n2")), []string{"a: n3 5 Placing from n1 3 Moving"}},
		{"the destination died after the origin stopped", world(one(placing("n2", 4), from("n1", 3), hasStopped), draining("n1"), fenced("n2")), []string{"a: n3 5 Placing Pending"}},
		{"the destination restarted before the origin stopped", world(one(placing("n2", 4), from("n1", 3)), draining("n1"), restarted("n2")), []string{"a: n2 5 Placing from n1 3 Moving"}},
		{"both died", world(one(placing("n2", 4), from("n1", 3)), draining("n1"), fenced("n1"), fenced("n2")), []string{"a: n3 5 Placing Pending"}},
		{"the destination died and only the draining node is left", world(one(placing("n2", 4), from("n1", 3)), draining("n1"), fenced("n2"), fenced("n3")), nil},
		{"the destination is drained before the origin stopped", world(one(placing("n2", 4), from("n1", 3)), draining("n2")), []string{"a: n1 5 Placing from n1 3 Moving"}},
		{"the destination is drained after the origin stopped", world(one(placing("n2", 4), from("n1", 3), hasStopped), draining("n2")), []string{"a: n1 5 Placing from n2 4 Moving"}},

		{"a move waits for its origin, however long", world(one(placing("n2", 4), from("n1", 3)), draining("n1"), later(time.Hour)), nil},
		{"a bootstrap in time", world(one(placing("n2", 4)), later(bootstrapLimit)), nil},
		{"a bootstrap that takes too long", world(one(placing("n2", 4)), later(bootstrapLimit+1)), []string{"a: n1 5 Placing from n2 4 Moving"}},
		{"a bootstrap that takes too long after its origin stopped", world(one(placing("n2", 4), from("n1", 3), hasStopped), draining("n1"), later(bootstrapLimit+1)), []string{"a: n3 5 Placing from n2 4 Moving"}},
		{"a bootstrap that takes too long with no other node", world(one(placing("n2", 4)), later(time.Hour), cordoned("n1"), fenced("n3")), nil},
		{"one that runs is never too late", world(one(running("n2", 4)), later(time.Hour)), nil},
		{"bootstraps without a limit", world(one(placing("n2", 4)), later(time.Hour), func(w *changefeed.World) { w.BootstrapLimit = 0 }), nil},

		{"paused", world(one(running("n1", 3), paused)), []string{"a:  4 Stopping from n1 3 Paused"}},
		{"deleted", world(one(running("n1", 3), deleted)), []string{"a:  4 Stopping from n1 3 Paused"}},
		{"failed", world(one(running("n1", 3), state(v1alpha1.ChangefeedFailed))), []string{"a:  4 Stopping from n1 3 Failed"}},
		{"paused while it moves", world(one(placing("n2", 4), from("n1", 3), paused)), []string{"a:  5 Stopping from n1 3 Paused"}},
		{"paused on a node that died", world(one(running("n1", 3), paused), fenced("n1")), []string{"a:  4 Stopping Paused"}},
		{"paused, and stopped already", world(one(stopping(4), from("n1", 3), hasStopped, paused, state(v1alpha1.ChangefeedPaused))), nil},
		{"paused from the beginning", world(one(paused, state(v1alpha1.ChangefeedPaused))), nil},
		{"resumed before the origin stopped", world(one(stopping(4), from("n1", 3), state(v1alpha1.ChangefeedPaused))), nil},
		{"resumed after the origin stopped", world(one(stopping(4), from("n1", 3), hasStopped, state(v1alpha1.ChangefeedPaused))), []string{"a: n1 5 Placing Pending"}},
		{"resumed after the origin died", world(one(stopping(4), from("n1", 3), state(v1alpha1.ChangefeedPaused)), fenced("n1")), []string{"a: n2 5 Placing Pending"}},
		{"resumed during a drain", world(one(stopping(4), from("n1", 3), hasStopped), draining("n1")), []string{"a: n2 5 Placing Pending"}},
		{"failed stays where it is", world(one(stopping(4), state(v1alpha1.ChangefeedFailed))), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, describePlan(changefeed.Place(c.w))); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// A failed changefeed whose cause was fixed must run again after it was paused and resumed.
// Only a changefeed that was stopped takes up a changed filter.
func TestAFilterIsDecidedAgainAfterAStopAndNotAfterAMove(t *testing.T) {
	inEffect := func(cf *v1alpha1.Changefeed) {
		cf.Status.Filter = &v1alpha1.ChangefeedFilter{Patterns: []string{"a.*"}, Pending: true}
	}
	for name, c := range map[string]struct {
		world changefeed.World
		want  bool
	}{
		"paused":  {world(feeds(feed("a", running("n1", 3), paused, inEffect))), true},
		"failed":  {world(feeds(feed("a", running("n1", 3), state(v1alpha1.ChangefeedFailed), inEffect))), true},
		"drained": {world(feeds(feed("a", running("n1", 3), inEffect)), draining("n1")), false},
	} {
		plan := changefeed.Place(c.world)
		if len(plan) != 1 || plan[0].Status.Filter.Stopped != c.want || c.world.Changefeeds[0].Status.Filter.Stopped {
			t.Errorf("%s: %+v", name, plan)
		}
	}
}

func TestAFailedChangefeedThatIsPausedAndResumedRunsAgain(t *testing.T) {
	cf := feed("a", stopping(4), state(v1alpha1.ChangefeedFailed), paused)
	if plan := changefeed.Place(world(feeds(cf))); len(plan) == 1 {
		cf = plan[0]
	}
	if cf.Status.State != v1alpha1.ChangefeedPaused {
		t.Errorf("paused, it is %s", cf.Status.State)
	}
	cf.Spec.State = v1alpha1.ChangefeedRun
	if plan := changefeed.Place(world(feeds(cf))); len(plan) != 1 || plan[0].Placement().Node == "" {
		t.Errorf("resumed, it is not placed: %v", describePlan(plan))
	}
}

func TestAPlacementHasTheTimeAndTheResourceVersionOfThePlan(t *testing.T) {
	plan := changefeed.Place(world(feeds(feed("a", running("n1", 3))), draining("n1")))
	if len(plan) != 1 {
		t.Fatalf("planned %v", describePlan(plan))
	}
	since := metav1.NewMicroTime(now)
	want := &v1alpha1.ChangefeedPlacement{
		Node: "n2", NodeEpoch: 1, Epoch: 4, Phase: v1alpha1.PlacementPlacing, Since: &since,
		From: &v1alpha1.PlacementOrigin{Node: "n1", NodeEpoch: 1, Epoch: 3},
	}
	if diff := cmp.Diff(want, plan[0].Status.Placement); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if plan[0].ResourceVersion != "7" {
		t.Errorf("it would be written over version %q", plan[0].ResourceVersion)
	}
}

// many are changefeeds a, b, c… that run on a node.
func many(n int, node string) []*v1alpha1.Changefeed {
	var list []*v1alpha1.Changefeed
	for i := range n {
		list = append(list, feed(string(rune('a'+i)), running(node, 1)))
	}
	return list
}

func TestADrainMovesAtMostABatchOfMaintainersAtATime(t *testing.T) {
	for _, c := range []struct{ batch, want int }{{1, 1}, {0, 1}, {-3, 1}, {2, 2}, {3, 3}, {10, 6}} {
		t.Run(fmt.Sprintf("a batch of %d", c.batch), func(t *testing.T) {
			if plan := changefeed.Place(world(many(6, "n1"), draining("n1"), batch(c.batch))); len(plan) != c.want {
				t.Errorf("moved %v", describePlan(plan))
			}
		})
	}
}

// During a move the placement names the destination already: moves are counted by their origin.
func TestMovesAreCountedByTheirOrigin(t *testing.T) {
	for _, c := range []struct {
		name  string
		moves []*v1alpha1.Changefeed
		batch int
		extra wchange
		want  []string
	}{
		{"one under way", feeds(feed("m", placing("n2", 2), from("n1", 1))), 1, nil, nil},
		{"one whose origin stopped is still under way", feeds(feed("m", placing("n2", 2), from("n1", 1), hasStopped)), 1, nil, nil},
		{"one that has come to run is over", feeds(feed("m", running("n2", 2))), 1, nil, []string{"x: n3 2 Placing from n1 1 Moving"}},
		{"one from another node does not count", feeds(feed("m", placing("n2", 2), from("n3", 1))), 1, nil, []string{"x: n3 2 Placing from n1 1 Moving"}},
		{"one that is only being stopped does not count", feeds(feed("m", stopping(2), from("n1", 1), paused)), 1, nil, []string{"x: n2 2 Placing from n1 1 Moving"}},
		{"one that goes back to the draining node is no move off it, and moves", feeds(feed("m", placing("n1", 3), from("n1", 1))), 1, nil, []string{"m: n2 4 Placing from n1 1 Moving"}},
		{"the batch was made larger", feeds(feed("m", placing("n2", 2), from("n1", 1))), 2, nil, []string{"x: n3 2 Placing from n1 1 Moving"}},
		{"the batch was made smaller", feeds(feed("m", placing("n2", 2), from("n1", 1)), feed("n", placing("n3", 2), from("n1", 1))), 1, nil, nil},
		{"a move whose destination died goes on and counts", feeds(feed("m", placing("n2", 2), from("n1", 1))), 1, fenced("n2"), []string{"m: n3 3 Placing from n1 1 Moving"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			changes := []wchange{draining("n1"), batch(c.batch)}
			if c.extra != nil {
				changes = append(changes, c.extra)
			}
			w := world(append(c.moves, feed("x", running("n1", 1)), feed("y", running("n1", 1))), changes...)
			if diff := cmp.Diff(c.want, describePlan(changefeed.Place(w))); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

func TestNothingIsBalancedDuringADrainAndShortlyAfter(t *testing.T) {
	for _, c := range []struct {
		name  string
		feeds []*v1alpha1.Changefeed
		w     []wchange
		want  int
	}{
		{"quiet", many(3, "n1"), nil, 1},
		{"a drain elsewhere", many(3, "n1"), []wchange{draining("n3")}, 0},
		{"a drain just now", many(3, "n1"), []wchange{unsettled}, 0},
		{"even enough", append(many(2, "n1"), feed("x", running("n2", 1)), feed("y", running("n3", 1))), nil, 0},
		{"another is on its way", append(many(3, "n1"), feed("x", placing("n2", 2), from("n1", 1))), nil, 0},
		{"another is paused", append(many(3, "n1"), feed("x", stopping(2), paused, state(v1alpha1.ChangefeedPaused))), nil, 1},
		{"another has failed", append(many(3, "n1"), feed("x", stopping(2), state(v1alpha1.ChangefeedFailed))), nil, 1},
		{"no other node", many(3, "n1"), []wchange{cordoned("n2"), notReady("n3")}, 0},
		{"a loaded node that is cordoned", many(3, "n1"), []wchange{cordoned("n1")}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			plan := changefeed.Place(world(c.feeds, append(c.w, later(time.Minute))...))
			if len(plan) != c.want {
				t.Errorf("moved %v", describePlan(plan))
			}
		})
	}
}

// Otherwise the first by name is moved whenever a node is the fullest, and never gets to work.
func TestBalancingMovesWhatHasBeenThereForTheLongestTime(t *testing.T) {
	since := func(ago time.Duration) fchange {
		return func(cf *v1alpha1.Changefeed) {
			at := metav1.NewMicroTime(now.Add(-ago))
			cf.Status.Placement.Since = &at
		}
	}
	for _, c := range []struct {
		name  string
		feeds []*v1alpha1.Changefeed
		want  []string
	}{
		{"the longest", feeds(feed("a", running("n1", 6), since(40*time.Second)), feed("b", running("n1", 1), since(time.Hour)), feed("c", running("n1", 1), since(time.Minute))), []string{"b: n2 2 Placing from n1 1 Moving"}},
		{"all have just come", feeds(feed("a", running("n1", 6), since(time.Second)), feed("b", running("n1", 1), since(29*time.Second))), nil},
		{"placed by an earlier version", feeds(feed("a", running("n1", 6), since(time.Hour)), feed("b", running("n1", 1), func(cf *v1alpha1.Changefeed) { cf.Status.Placement.Since = nil })), []string{"b: n2 2 Placing from n1 1 Moving"}},
	} {
		if diff := cmp.Diff(c.want, describePlan(changefeed.Place(world(c.feeds)))); diff != "" {
			t.Errorf("%s: -want +got\n%s", c.name, diff)
		}
	}
}

func TestBalancingMovesOneAtATimeAndEnds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var list []*v1alpha1.Changefeed
		for i := range rapid.IntRange(0, 12).Draw(t, "changefeeds") {
			list = append(list, feed(fmt.Sprintf("f%02d", i), running(rapid.SampledFrom([]string{"n1", "n2", "n3"}).Draw(t, "on"), 1)))
		}
		moved := map[string]bool{}
		for round := range len(list) + 1 {
			plan := changefeed.Place(world(list, later(time.Minute+time.Duration(round)*time.Second)))
			if len(plan) == 0 {
				load := map[string]int{"n1": 0, "n2": 0, "n3": 0}
				for _, cf := range list {
					load[cf.Placement().Node]++
				}
				if most, fewest := max(load["n1"], load["n2"], load["n3"]), min(load["n1"], load["n2"], load["n3"]); most-fewest > 1 {
					t.Fatalf("it ended with %v", load)
				}
				return
			}
			if len(plan) != 1 || plan[0].Placement().From == nil {
				t.Fatalf("at once: %v", describePlan(plan))
			}
			if moved[plan[0].Name] {
				t.Fatalf("%s moves again", plan[0].Name)
			}
			moved[plan[0].Name] = true
			if again := changefeed.Place(world(replaced(list, plan))); len(again) != 0 {
				t.Fatalf("while %v is under way: %v", describePlan(plan), describePlan(again))
			}
			list = replaced(list, plan)
			for _, cf := range list {
				cf.Status.Placement.Phase, cf.Status.Placement.From = v1alpha1.PlacementRunning, nil
			}
		}
		t.Fatal("it does not end")
	})
}

// replaced is a list with what a plan changed.
func replaced(list, plan []*v1alpha1.Changefeed) []*v1alpha1.Changefeed {
	out := slices.Clone(list)
	for i, cf := range out {
		for _, changed := range plan {
			if changed.Name == cf.Name {
				out[i] = changed.DeepCopy()
			}
		}
	}
	return out
}

// drawnWorld is any world that is possible.
func drawnWorld(t *rapid.T) changefeed.World {
	names := []string{"n1", "n2", "n3", "n4"}
	w := changefeed.World{
		Now: now.Add(time.Duration(rapid.IntRange(0, 60).Draw(t, "later")) * time.Second), Fleet: fleet.New(),
		BatchSize: rapid.IntRange(-1, 3).Draw(t, "batch"), BootstrapLimit: bootstrapLimit, Settled: rapid.Bool().Draw(t, "settled"),
	}
	for _, name := range names {
		w.Nodes[name] = machine(name)
		w.Leases[name] = lease.Record{Node: name, Holder: name, Epoch: 1}
		switch rapid.IntRange(0, 9).Draw(t, name) {
		case 0:
			cordoned(name)(&w)
		case 1:
			notReady(name)(&w)
		case 2:
			fenced(name)(&w)
		case 3:
			restarted(name)(&w)
		case 4:
			liveness(name, v1alpha1.Stopping)(&w)
		case 5:
			delete(w.Leases, name)
		}
	}
	if rapid.Bool().Draw(t, "a drain") {
		slot := rapid.SampledFrom(names).Draw(t, "slot")
		inSlot(slot)(&w)
		if rapid.Bool().Draw(t, "known") {
			draining(slot)(&w)
		}
	}
	for i := range rapid.IntRange(0, 6).Draw(t, "changefeeds") {
		cf := feed(fmt.Sprintf("f%d", i))
		epoch := rapid.Int64Range(1, 5).Draw(t, "epoch")
		switch rapid.IntRange(0, 4).Draw(t, "phase") {
		case 1:
			running(rapid.SampledFrom(names).Draw(t, "on"), epoch)(cf)
		case 2:
			placing(rapid.SampledFrom(names).Draw(t, "on"), epoch)(cf)
		case 3:
			placing(rapid.SampledFrom(names).Draw(t, "on"), epoch)(cf)
			from(rapid.SampledFrom(names).Draw(t, "from"), epoch-1)(cf)
			cf.Status.Placement.From.Stopped = rapid.Bool().Draw(t, "stopped")
		case 4:
			stopping(epoch)(cf)
			from(rapid.SampledFrom(names).Draw(t, "from"), epoch-1)(cf)
			cf.Status.Placement.From.Stopped = rapid.Bool().Draw(t, "stopped")
		}
		switch rapid.IntRange(0, 6).Draw(t, "wish") {
		case 0:
			paused(cf)
		case 1:
			deleted(cf)
		case 2:
			state(v1alpha1.ChangefeedFailed)(cf)
		}
		w.Changefeeds = append(w.Changefeeds, cf)
	}
	return w
}

func TestEveryPlanKeepsTheRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawnWorld(t)
		var before []*v1alpha1.Changefeed
		old := map[string]v1alpha1.ChangefeedPlacement{}
		for _, cf := range w.Changefeeds {
			before = append(before, cf.DeepCopy())
			old[cf.Name] = cf.Placement()
		}
		schedulable := w.SchedulableNodes()
		plan := changefeed.Place(w)
		if diff := cmp.Diff(before, w.Changefeeds); diff != "" {
			t.Fatalf("the plan changed what it was given:\n%s", diff)
		}
		over := func(node string, epoch int64) bool {
			rec := w.Leases[node]
			return rec.Epoch == 0 || rec.Over(epoch)
		}
		for _, cf := range plan {
			was, is := old[cf.Name], cf.Placement()
			if is.Epoch != was.Epoch+1 {
				t.Fatalf("%s: from epoch %d to %d", cf.Name, was.Epoch, is.Epoch)
			}
			if is.Node != "" && (!slices.Contains(schedulable, is.Node) || is.NodeEpoch != w.Leases[is.Node].Epoch || !cf.Wanted()) {
				t.Fatalf("%s is placed on %s", cf.Name, is.Node)
			}
			if is.Node != "" && w.Slot != nil && is.Node == w.Slot.Node {
				t.Fatalf("%s is placed on the draining node", cf.Name)
			}
			// What runs, or may still run, must stop first.
			if f := was.From; f != nil && !f.Stopped && !over(f.Node, f.NodeEpoch) {
				if is.From == nil || *is.From != *f {
					t.Fatalf("%s: %v has not stopped and is forgotten: %v", cf.Name, f, is.From)
				}
			} else if was.Node != "" && !over(was.Node, was.NodeEpoch) {
				if want := (v1alpha1.PlacementOrigin{Node: was.Node, NodeEpoch: was.NodeEpoch, Epoch: was.Epoch}); is.From == nil || *is.From != want {
					t.Fatalf("%s: %v may run and is forgotten: %v", cf.Name, want, is.From)
				}
			}
			if w.MayBegin(is) != (is.From == nil) {
				t.Fatalf("%s may begin: %v", cf.Name, is)
			}
		}
		if w.Slot == nil {
			return
		}
		moves := func(list []*v1alpha1.Changefeed) (n int) {
			for _, cf := range list {
				if p := cf.Placement(); p.From != nil && p.From.Node == w.Slot.Node && p.Node != w.Slot.Node && p.Phase == v1alpha1.PlacementPlacing && cf.Wanted() && cf.Status.State != v1alpha1.ChangefeedFailed {
					n++
				}
			}
			return n
		}
		if now := moves(replaced(w.Changefeeds, plan)); now > max(moves(w.Changefeeds), max(w.BatchSize, 1)) {
			t.Fatalf("%d moves off the draining node at once, with a batch of %d: %v", now, w.BatchSize, describePlan(plan))
		}
	})
}
