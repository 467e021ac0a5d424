package dispatch

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ebb-dev/ebb/internal/changefeed/snapshot"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// unsnapped is a source of which no snapshot can be taken.
type unsnapped struct {
	stream.Source
	asked chan struct{}
}

func (unsnapped) PlanSnapshot(context.Context, stream.Filter) (*snapshot.Plan, error) {
	return nil, errors.New("not now")
}

func (s unsnapped) OpenSnapshot(context.Context) (snapshot.Session, error) {
	s.asked <- struct{}{}
	return nil, errors.New("not now")
}

// A few tables of a changefeed are copied at the same time. One that is far behind, waits for DDL or has another owner must not keep others
// from being copied.
func TestATableThatCannotBeCopiedNowTakesNoPlace(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*dispatcher)
		ends   bool
		copied bool
	}{
		"it is near":          {func(*dispatcher) {}, false, true},
		"it is catching up":   {func(d *dispatcher) { d.listens = false }, false, false},
		"it waits for DDL":    {func(d *dispatcher) { d.queue = []*stream.Rows{{DDL: &stream.DDL{Kind: stream.DropTable}}} }, false, false},
		"it has lost its row": {func(d *dispatcher) { d.state, d.listens = Lost, false }, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				source := unsnapped{asked: make(chan struct{}, 1000)}
				f := &Feed{engine: New(Options{Memory: 1 << 20}), hub: &sharedHub{hub: &hub{source: source}}, copies: make(chan struct{}, 1)}
				d := &dispatcher{feed: f, state: Running, listens: true}
				c.change(d)
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() { d.copyTable(ctx); close(ended) }()
				time.Sleep(time.Minute)
				synctest.Wait()
				if len(f.copies) != 0 {
					t.Error("it has a place")
				}
				if (len(source.asked) > 0) != c.copied {
					t.Errorf("it took %d snapshots", len(source.asked))
				}
				select {
				case <-ended:
					if !c.ends {
						t.Error("it has ended")
					}
				default:
					if c.ends {
						t.Error("it goes on")
					}
				}
				cancel()
				<-ended
			})
		})
	}
}
