package pod

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// A drain that waits keeps its place, however long it waits, and whoever was requested first begins first.
func TestDrainsBeginInTheOrderInWhichTheyWereRequested(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, all := []string{}, newTurns(1)
		soFar := func() []string {
			all.mu.Lock()
			defer all.mu.Unlock()
			return slices.Clone(began)
		}
		running := all.ask(time.Unix(0, 0), func() {})
		places := map[string]*turn{}
		for _, c := range []struct {
			name      string
			requested int64
		}{{"second", 2}, {"third", 3}, {"gives up", 1}, {"first", 1}, {"third again", 3}} {
			places[c.name] = all.ask(time.Unix(c.requested, 0), func() { began = append(began, c.name) })
		}
		places["gives up"].end()
		time.Sleep(turnLimit / 2)
		running.end()
		running.end() // which counts once
		if got := soFar(); !slices.Equal(got, []string{"first"}) {
			t.Errorf("began: %q", got)
		}
		time.Sleep(3 * turnLimit) // none of them ends its turn
		synctest.Wait()
		if want := []string{"first", "second", "third", "third again"}; !slices.Equal(soFar(), want) || !places["first"].come() {
			t.Errorf("began: %q, want %q", soFar(), want)
		}
		time.Sleep(turnLimit)
	})
}

func TestADrainThatIsCancelledWhileItWaitsForItsTurnEndsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newController(drainOf("n1"))
		releaseSlot(t, c)
		c.turns = newTurns(0)
		w := newNodeWorker(c, read(t, c))
		over := make(chan struct{})
		go func() {
			defer close(over)
			w.run(t.Context())
		}()
		synctest.Wait()
		d := read(t, c)
		d.Spec.Cancelled = true
		if err := c.client.Update(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		cancelled := time.Now()
		w.See(d)
		<-over
		if took := time.Since(cancelled); took > time.Second || read(t, c).Status.Phase != v1alpha1.DrainCancelled {
			t.Errorf("after %s the drain is %s", took, read(t, c).Status.Phase)
		}
		if len(c.turns.waiting) > 0 {
			t.Error("it keeps its place")
		}
	})
}
