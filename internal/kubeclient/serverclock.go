package kubeclient

import (
	"net/http"
	"sync"
	"time"
)

// dateUnit is the resolution of the header Date.
const dateUnit = time.Second

// ServerClock is what the API server's clock shows at least. Times that it set, and those that are compared with them by several coordinators
// in turn, are times of that clock. The coordinator's own may be wrong by hours: it serves only to count how long ago an answer came.
//
// An answer says when it was made, without fractions of the second. The server's clock shows that time or a later one when the answer
// arrives, so that nothing is ever found to be over too early.
type ServerClock struct {
	now func() time.Time // monotonic

	mu      sync.Mutex
	shown   time.Time // what the server's clock showed at least when the answer arrived
	arrived time.Time // on the coordinator's clock
}

// NewServerClock makes a clock that no answer has set yet.
func NewServerClock() *ServerClock { return &ServerClock{now: time.Now} }

// See takes note of an answer to a request that was sent at a time. Of several answers the one that says most counts, unless it cannot be
// true: the server's clock was set back, or another server answers.
func (c *ServerClock) See(date, sent time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	arrived := c.now()
	if c.shown.IsZero() {
		c.shown, c.arrived = date, arrived
		return
	}
	known := c.shown.Add(arrived.Sub(c.arrived))
	if latest := date.Add(dateUnit + arrived.Sub(sent)); known.Before(date) || known.After(latest) {
		c.shown, c.arrived = date, arrived
	}
}

// Now is what the server's clock shows at least; zero if no answer said.
func (c *ServerClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shown.IsZero() {
		return time.Time{}
	}
	return c.shown.Add(c.now().Sub(c.arrived))
}

// Watch makes a client's answers set the clock.
func (c *ServerClock) Watch(next http.RoundTripper) http.RoundTripper {
	return clockedTransport{next, c}
}

type clockedTransport struct {
	http.RoundTripper
	clock *ServerClock
}

// RoundTrip implements http.RoundTripper.
func (t clockedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	sent := t.clock.now()
	answer, err := t.RoundTripper.RoundTrip(r)
	if err == nil {
		if date, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
			t.clock.See(date, sent)
		}
	}
	return answer, err
}
