package store

import "sync"

// group lets concurrent callers share a piece of work that they all wait for, such as a sync. The work that answers a caller begins after
// its call.
type group struct {
	turn sync.Mutex // held while the work runs
	mu   sync.Mutex
	next *batch // the batch that has not begun
}

type batch struct {
	done chan struct{}
	err  error
}

// do runs the work, or waits for a run that another caller begins after this call.
func (g *group) do(work func() error) error {
	g.mu.Lock()
	if b := g.next; b != nil {
		g.mu.Unlock()
		<-b.done
		return b.err
	}
	b := &batch{done: make(chan struct{})}
	g.next = b
	g.mu.Unlock()

	g.turn.Lock()
	defer g.turn.Unlock()
	g.mu.Lock()
	g.next = nil
	g.mu.Unlock()
	defer close(b.done)
	b.err = work()
	return b.err
}

// alone runs work while no batch runs.
func (g *group) alone(work func() error) error {
	g.turn.Lock()
	defer g.turn.Unlock()
	return work()
}
