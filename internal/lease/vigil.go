package lease

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// Vigil watches the leases of all nodes from one node and counts how long each has stayed unchanged. It only nominates:
// whoever acts on it still has to write the mark by resourceVersion. It is safe for concurrent use.
type Vigil struct {
	own Timing

	mu      sync.Mutex
	renewed Instant // when the last successful renewal of our own was sent
	seen    map[string]sighting
}

type sighting struct {
	record Record
	since  Instant
}

// NewVigil starts watching on a node whose own lease has the given timing and was last renewed at sentAt. Every epoch of
// that node needs a new one: what was counted before an epoch ended in doubt says nothing.
func NewVigil(own Timing, sentAt Instant) *Vigil {
	return &Vigil{own: own, renewed: sentAt, seen: map[string]sighting{}}
}

// Saw records what the store holds for one node, as seen at now. A changed resourceVersion restarts that node's count.
func (v *Vigil) Saw(r Record, now Instant) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if old, ok := v.seen[r.Node]; ok && old.record.Version == r.Version {
		return
	}
	v.seen[r.Node] = sighting{record: r, since: now}
}

// Forget drops a node whose Lease is gone.
func (v *Vigil) Forget(node string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.seen, node)
}

// Renewed records that our own renewal, sent at sentAt, succeeded. If the one before is further back than a renewal may
// take, this process was not there to see whether renewals succeeded in between, and every count starts again.
func (v *Vigil) Renewed(sentAt Instant) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.gap(sentAt) {
		v.restart(sentAt)
	}
	v.renewed = max(v.renewed, sentAt)
}

// gap says whether our own renewals have not been seen to succeed up to now.
func (v *Vigil) gap(now Instant) bool { return now.Sub(v.renewed) > v.own.Renew+v.own.Timeout }

// Failed records that a renewal of our own failed. Then the others may have failed for the same reason, so every count
// starts again: an outage of the API makes every lease look old and decides nothing.
func (v *Vigil) Failed(now Instant) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.restart(now)
}

// restart begins every count again at now, and moves none back: a lease that was seen since then was seen later.
func (v *Vigil) restart(now Instant) {
	for node, s := range v.seen {
		s.since = max(s.since, now)
		v.seen[node] = s
	}
}

// Lost lists the held leases that stayed unchanged for their whole duration, by node. It is empty while our own renewals
// are overdue.
func (v *Vigil) Lost(now Instant) []Record {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.gap(now) {
		return nil
	}
	var lost []Record
	for _, s := range v.seen {
		if s.record.Held() && now.Sub(s.since) >= v.patience(s.record) {
			lost = append(lost, s.record)
		}
	}
	slices.SortFunc(lost, func(a, b Record) int { return cmp.Compare(a.Node, b.Node) })
	return lost
}

// patience is how long a lease must stay unchanged: as long as it says or, when it does not say, as long as our own.
func (v *Vigil) patience(r Record) time.Duration {
	if r.Duration <= 0 {
		return v.own.Lost
	}
	return r.Duration
}

// Unchanged is how long a node's lease has been seen unchanged, and false for a node never seen.
func (v *Vigil) Unchanged(node string, now Instant) (time.Duration, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	s, ok := v.seen[node]
	return now.Sub(s.since), ok
}
