package pod

import (
	"net/http"
	"sync"
	"time"
)

// dateUnit is the resolution of the header Date.
const dateUnit = time.Second

// serverClock is what the API server's clock shows at least. Deadlines and ends of grace periods are times of that clock, and the
// coordinator's own may be wrong by hours: it serves only to count how long ago an answer came.
//
// An answer says when it was made, without fractions of the second. The server's clock shows that time or a later one when the answer
// arrives, so that nothing is ever found to be over too early.
type serverClock struct {
	now func() time.Time // monotonic

	mu      sync.Mutex
	shown   time.Time // what the server's clock showed at least when the answer arrived
	arrived time.Time // on the coordinator's clock
}

func newServerClock() *serverClock { return &serverClock{now: time.Now} }

// see takes note of an answer to a request that was sent at a time. Of several answers the one that says most counts, unless it cannot be
// true: the server's clock was set back, or another server answers.
func (c *serverClock) see(date, sent time.Time) {
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
func (c *serverClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shown.IsZero() {
		return time.Time{}
	}
	return c.shown.Add(c.now().Sub(c.arrived))
}

// watch makes a client's answers set the clock.
func (c *serverClock) watch(next http.RoundTripper) http.RoundTripper {
	return clockedTransport{next, c}
}

type clockedTransport struct {
	http.RoundTripper
	clock *serverClock
}

// RoundTrip implements http.RoundTripper.
func (t clockedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	sent := t.clock.now()
	answer, err := t.RoundTripper.RoundTrip(r)
	if err == nil {
		if date, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
			t.clock.see(date, sent)
		}
	}
	return answer, err
}
