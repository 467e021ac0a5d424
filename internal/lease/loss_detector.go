package lease

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// LossDetector counts, on one node, how long the Lease of each node has stayed unchanged. It only nominates nodes as lost:
// fencing one is a write that the resourceVersion guards. It is safe for concurrent use.
type LossDetector struct {
	own Timing

	mu      sync.Mutex
	renewed Instant // when the last successful renewal of our own was sent
	seen    map[string]sighting
}

type sighting struct {
	record Record
	since  Instant
}

// NewLossDetector begins counting on a node whose own lease has the given timing and was last renewed at sentAt. Every epoch of
// that node needs a new one: counts from an epoch that ended in doubt are not valid.
func NewLossDetector(own Timing, sentAt Instant) *LossDetector {
	return &LossDetector{own: own, renewed: sentAt, seen: map[string]sighting{}}
}

// Saw records what the store holds for one node, as seen at now. A changed resourceVersion restarts that node's count.
func (d *LossDetector) Saw(r Record, now Instant) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if old, ok := d.seen[r.Node]; ok && old.record.Version == r.Version {
		return
	}
	d.seen[r.Node] = sighting{record: r, since: now}
}

// Forget drops a node whose Lease was deleted.
func (d *LossDetector) Forget(node string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.seen, node)
}

// Renewed records that our own renewal, sent at sentAt, succeeded. If the one before is further back than a renewal may
// take, nobody observed whether renewals succeeded in between, so every count restarts.
func (d *LossDetector) Renewed(sentAt Instant) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gap(sentAt) {
		d.restart(sentAt)
	}
	d.renewed = max(d.renewed, sentAt)
}

// gap reports whether our own last successful renewal is overdue at now.
func (d *LossDetector) gap(now Instant) bool { return now.Sub(d.renewed) > d.own.Renew+d.own.Timeout }

// Failed records that a renewal of our own failed. Renewals of other nodes may have failed for the same reason, so every
// count restarts: an outage of the API makes every lease look old and proves nothing.
func (d *LossDetector) Failed(now Instant) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.restart(now)
}

// restart restarts every count at now, except those that began later.
func (d *LossDetector) restart(now Instant) {
	for node, s := range d.seen {
		s.since = max(s.since, now)
		d.seen[node] = s
	}
}

// Lost lists the held leases that stayed unchanged for long enough, by node. It is empty while our own renewals
// are overdue.
func (d *LossDetector) Lost(now Instant) []Record {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gap(now) {
		return nil
	}
	var lost []Record
	for _, s := range d.seen {
		if s.record.Held() && now.Sub(s.since) >= d.patience(s.record) {
			lost = append(lost, s.record)
		}
	}
	slices.SortFunc(lost, func(a, b Record) int { return cmp.Compare(a.Node, b.Node) })
	return lost
}

// patience is how long a lease must stay unchanged: its own duration, but not less than ours, and not more than a timing allows. All nodes of a cluster
// live by one timing, or nearly so while it is changed, and a duration that somebody edited must call nobody lost whose work still runs.
func (d *LossDetector) patience(r Record) time.Duration {
	return min(max(r.Duration, d.own.Lost), maxLost)
}

// Unchanged is how long a node's lease has been seen unchanged, and false for a node never seen.
func (d *LossDetector) Unchanged(node string, now Instant) (time.Duration, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, ok := d.seen[node]
	return now.Sub(s.since), ok
}
