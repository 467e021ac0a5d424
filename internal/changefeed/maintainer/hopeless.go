package maintainer

import (
	"time"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// hopelessAfter is how long an error that retrying does not resolve must have persisted before the changefeed fails: it may be due to a
// server that is being set up or replaced, or to a table that is about to be replaced.
const hopelessAfter = 3 * time.Second

// hopelessSince is since when such an error has persisted, and the last report that had it.
type hopelessSince struct {
	since time.Time
	round uint64
}

// hopelessError is an error of a node that retrying does not resolve, as its text states already.
type hopelessError struct{ text string }

func (e *hopelessError) Error() string { return e.text }
func (e *hopelessError) Unwrap() error { return stream.ErrUnusable }

// noteHopeless records whether something has an error that retrying does not resolve, according to a report or an attempt, and fails the
// changefeed if that persists. The same report counts once. The caller holds the lock.
func (m *Maintainer) noteHopeless(what, text string, hopeless bool, round uint64) {
	h, known := m.hopeless[what]
	switch {
	case !hopeless:
		delete(m.hopeless, what)
	case !known:
		m.hopeless[what] = hopelessSince{since: time.Now(), round: round}
	case round != 0 && round <= h.round:
	case time.Since(h.since) < hopelessAfter:
		h.round = round
		m.hopeless[what] = h
	case m.failure == nil:
		m.failure = &hopelessError{text}
		m.Wake()
	}
}
