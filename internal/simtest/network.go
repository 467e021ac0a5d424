package simtest

import (
	"math/rand/v2"
	"sync"
	"time"
)

// Network decides what becomes of every message of a play: how long it is under way, and whether it arrives. Carrying it there is up to the
// simulator, since some have a queue of events and others goroutines in virtual time.
type Network struct {
	mu     sync.Mutex
	random *rand.Rand
	usual  Span
	faults Faults
	calm   bool
	script []Message
}

// Span is a range of durations, without its end.
type Span struct{ From, To time.Duration }

// Faults are what goes wrong with messages, until Calm.
type Faults struct {
	Lost float64 // the share of messages that never arrive
	Late []Late  // on top of what a message usually takes
}

// Late is a share of the messages that take longer, by up to a duration.
type Late struct {
	Share float64
	UpTo  time.Duration
}

// Message is what becomes of one message.
type Message struct {
	Takes time.Duration
	Lost  bool
}

// NewNetwork returns a network whose messages usually take some time of a span.
func NewNetwork(random *rand.Rand, usual Span, f Faults) *Network {
	return &Network{random: random, usual: usual, faults: f}
}

// Script says what becomes of the next messages, before chance decides again.
func (n *Network) Script(next ...Message) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.script = next
}

// Message draws what becomes of the next message.
func (n *Network) Message() Message {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.script) > 0 {
		m := n.script[0]
		n.script = n.script[1:]
		return m
	}
	m := Message{Takes: n.between(n.usual)}
	if n.calm {
		return m
	}
	draw := n.random.Float64()
	if m.Lost = draw < n.faults.Lost; m.Lost {
		return m
	}
	draw -= n.faults.Lost
	for _, l := range n.faults.Late {
		if draw < l.Share {
			m.Takes += n.between(Span{To: l.UpTo})
			break
		}
		draw -= l.Share
	}
	return m
}

// Calm ends the faults.
func (n *Network) Calm() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calm = true
}

// IsCalm reports whether the faults are over.
func (n *Network) IsCalm() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.calm
}

// Between draws a duration of a span, for what else happens by chance.
func (n *Network) Between(from, to time.Duration) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.between(Span{from, to})
}

// Chance is true in percent of a hundred cases.
func (n *Network) Chance(percent int) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.random.IntN(100) < percent
}

func (n *Network) between(s Span) time.Duration {
	return s.From + time.Duration(n.random.Int64N(int64(s.To-s.From)))
}
