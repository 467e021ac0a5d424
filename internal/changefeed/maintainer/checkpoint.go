package maintainer

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed/dispatch"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/changefeed/wire"
)

const (
	// checkpointEvery is the least time between two writes of the checkpoint.
	checkpointEvery = 10 * time.Second
	// checkpointShare is the same for each changefeed that the node maintains, so that very many do not overload the API server.
	checkpointShare = 100 * time.Millisecond
	// idleEvery is how much the time of the checkpoint must have changed to be written, if the checkpoint has not.
	idleEvery = 30 * time.Second
	// countsEvery is the same for the number of tables and dispatchers, and drainCountsEvery while a drain waits for these.
	countsEvery      = time.Second
	drainCountsEvery = 100 * time.Millisecond
)

// advance computes the checkpoint: the lowest position among all tables. A table that is moving, or that its node has not reported
// since it was started there, counts with the position that it is known to have reached.
func (m *Maintainer) advance() {
	reports := m.opts.Reports.Of(m.key)
	m.mu.Lock()
	defer m.mu.Unlock()
	expected, digests := map[string]int64{}, map[string]uint64{}
	low, at, by, any := stream.Position(0), time.Time{}, "", false
	consider := func(p stream.Position, when time.Time, what string) {
		if !any || p < low {
			low, at, by, any = p, when, what, true
		}
	}
	lost := map[stream.Table]bool{}
	for name, r := range reports {
		for _, text := range r.Lost {
			id, _ := wire.ParseTable(text)
			if t := m.reported(id); t != nil && t.node == name {
				lost[id.Table] = true
			}
		}
		if r.Error != "" {
			m.problem, m.problemAt = fmt.Sprintf("node %s: %s", name, r.Error), time.Now()
		}
		m.noteHopeless("node "+name, fmt.Sprintf("node %s: %s", name, r.Error), r.Hopeless, r.Round)
	}
	m.noteSurplus(reports)
	for name, t := range m.tables {
		if lost[name] && t.phase == TableRunning && reports[t.node].Round > t.since {
			t.phase = TableAbsent
			m.suspect(t)
		}
		if t.phase != TableRunning || reports[t.node].FeedReport == nil || reports[t.node].Round <= t.since {
			consider(t.floor, m.at, m.location(name, t))
			continue
		}
		expected[t.node]++
		digests[t.node] ^= t.identity(name).Digest(t.epoch)
	}
	if m.ddlDone != nil {
		consider(*m.ddlDone, m.ddlDoneAt, "waiting for DDL")
	}
	// When the changefeed begins, the source may have renamed tables since, and the sink may lack tables that the source had before.
	// Both keep the checkpoint from advancing until the DDL is read. So a table that the sink lacks later was created since, unless
	// somebody dropped it at the sink, and every table that existed at the checkpoint is known to the sink.
	// If both have the same tables, there is nothing to find out.
	if begins := m.started != nil && m.missingFrom <= *m.started; begins && m.unsure && m.ddlDone != nil && *m.ddlDone < m.missingUntil {
		m.slowest = fmt.Sprintf("checking whether DDL up to position %d renames tables", m.missingUntil)
		if len(m.missing) == 0 {
			return
		}
		m.slowest = "checking whether pending DDL creates " + plural(len(m.missing), "table") + " missing at the sink"
		return
	}
	for name, n := range expected {
		r := reports[name]
		if others := r.Running == n && r.Digest != nil && *r.Digest != digests[name]; r.Running < n || others {
			if since, ok := m.shortSince[name]; !ok {
				m.shortSince[name] = time.Now()
			} else if time.Since(since) > problemExpiry {
				m.doubt(name) // it has lost some; bootstrapping it again shows which
				delete(m.shortSince, name)
			}
			m.slowest = fmt.Sprintf("node %s reports %s running, but %d were started there", name, plural(int(r.Running), "dispatcher"), n)
			if others {
				m.slowest = fmt.Sprintf("node %s reports %s running, but other ones were started there", name, plural(int(r.Running), "dispatcher"))
			}
			return
		}
		delete(m.shortSince, name)
		slowest := r.Slowest
		if slowest != "" {
			slowest = fmt.Sprintf("node %s: %s", name, slowest)
		}
		consider(stream.Position(r.Checkpoint), time.UnixMicro(r.CheckpointUnixMicro), slowest)
	}
	m.slowest = by
	if any && low == m.checkpoint && at.After(m.at) {
		m.at = at // an idle source has nothing after it
	}
	if !any || low <= m.checkpoint {
		return
	}
	m.checkpoint, m.at = low, at
	for _, t := range m.tables {
		t.floor = max(t.floor, low)
	}
}

// noteSurplus bootstraps a node again if it has reported more dispatchers than were ordered there for a while. A dispatcher that the maintainer
// does not know of keeps the node's checkpoint from advancing, or hides that another is missing. The caller holds the lock.
func (m *Maintainer) noteSurplus(reports map[string]Report) {
	most := map[string]int64{}
	for _, t := range m.tables {
		if t.phase != TableAbsent {
			most[t.node]++
		}
		if t.phase == TableBusy && t.to != t.node {
			most[t.to]++
		}
	}
	for name, r := range reports {
		since, over := m.overSince[name]
		switch {
		case r.FeedReport == nil || r.Dispatchers <= most[name] || m.bootstrapped[name] == 0:
			delete(m.overSince, name)
		case !over:
			m.overSince[name] = time.Now()
		case time.Since(since) > problemExpiry:
			m.log.Warn("the node reports more dispatchers than were started there; bootstrapping it again", "node", name, "reported", r.Dispatchers, "started", most[name])
			delete(m.overSince, name)
			m.doubt(name)
		}
	}
}

func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// location describes where a table is that no report includes. The caller holds the lock.
func (m *Maintainer) location(name stream.Table, t *table) string {
	switch t.phase {
	case TableBusy:
		return fmt.Sprintf("table %s is moving to node %s", name, t.to)
	case TableRunning:
		return fmt.Sprintf("table %s was just started on node %s, which has not reported it yet", name, t.node)
	}
	return fmt.Sprintf("table %s does not run on any node yet", name)
}

// publish writes the status if it has changed: at once that a drain is observed, less often counts, and still less the checkpoint.
func (m *Maintainer) publish(ctx context.Context, w View) error {
	every := max(checkpointEvery, time.Duration(m.opts.Status.Maintained())*checkpointShare)
	m.watchSnapshot(ctx)
	m.saveCheckpoint(ctx, every/20) // sooner: only what is saved is published
	next := m.Latest().Status.DeepCopy()
	m.fillStatus(next, w)
	last := &m.Latest().Status
	switch {
	case next.ObservedDrain != last.ObservedDrain || next.ObservedEpoch != last.ObservedEpoch || next.Error != last.Error || last.Filter == nil || next.Filter.Pending != last.Filter.Pending:
		every = 0
	case next.Snapshot != nil && (last.Snapshot == nil || (next.Snapshot.FinishedAt == nil) != (last.Snapshot.FinishedAt == nil)):
		every = 0
	case next.Snapshot != nil && !equality.Semantic.DeepEqual(next.Snapshot, last.Snapshot):
		every = snapshotEvery
	case slices.ContainsFunc(next.Skip, func(s v1alpha1.ChangefeedSkip) bool {
		return s.PassedAt != nil && !slices.ContainsFunc(last.Skip, s.Same)
	}):
		every = countsEvery
	case next.Tables != last.Tables || !slices.Equal(next.Nodes, last.Nodes):
		if every = countsEvery; w.Slot != nil {
			every = drainCountsEvery
		}
	case next.Checkpoint == last.Checkpoint && next.Slowest == last.Slowest:
		if last.CheckpointTime == nil || next.CheckpointTime.Sub(last.CheckpointTime.Time) < idleEvery {
			return nil
		}
	}
	if time.Since(m.publishedAt) < every || time.Since(m.publishFailedAt) < retryDelay {
		return nil
	}
	err := m.opts.Status.Update(ctx, m.key, func(cf *v1alpha1.Changefeed) bool {
		m.Observe(cf)
		if m.checkPlacement() != nil {
			return false
		}
		m.fillStatus(&cf.Status, w)
		return true
	})
	if err != nil {
		m.publishFailedAt = time.Now()
		return err
	}
	m.publishedAt = time.Now()
	return nil
}

// fillStatus puts what the maintainer knows into a status.
func (m *Maintainer) fillStatus(s *v1alpha1.ChangefeedStatus, w View) {
	m.mu.Lock()
	defer m.mu.Unlock()
	counts := map[string]int64{m.opts.Epoch.Node: 1} // the table trigger
	draining := ""
	if w.Slot != nil {
		draining = w.Slot.Node
	}
	tables := int64(0)
	for name, t := range m.tables {
		tables += int64(len(t.names(name)) - len(t.absent))
		if on := t.countedOn(draining); on != "" {
			counts[on]++
		}
	}
	s.Nodes = nil
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		s.Nodes = append(s.Nodes, v1alpha1.ChangefeedNode{Node: name, Dispatchers: counts[name]})
	}
	s.Tables, s.Filter = tables, m.effectiveFilter()
	m.copied.fill(s)
	s.ObservedDrain, s.ObservedEpoch = "", m.epoch
	if w.Slot != nil {
		s.ObservedDrain = w.Slot.UID
	}
	s.Error = ""
	if time.Since(m.waitAt) < problemExpiry {
		s.Error = m.wait
	}
	if time.Since(m.problemAt) < problemExpiry {
		s.Error = m.problem
	}
	s.Checkpoint, s.Slowest = max(s.Checkpoint, int64(m.acknowledged())), m.slowest
	m.fillSkips(s)
	if !m.at.IsZero() {
		at := metav1.NewTime(m.at)
		s.CheckpointTime = &at
	}
}

// countedOn is the node that a table is counted on, if any. One that moves is counted on its origin, unless it has none or its
// destination is the draining node: once the maintainer has published that it observes a drain, the count there must only fall.
func (t *table) countedOn(draining string) string {
	switch {
	case t.phase == TableAbsent:
		return ""
	case t.phase == TableBusy && (t.node == "" || t.to == draining):
		return t.to
	}
	return t.node
}

// publishProblem publishes why the maintainer cannot work. An error that retrying cannot resolve makes the changefeed Failed.
func (m *Maintainer) publishProblem(ctx context.Context, problem error) {
	err := m.opts.Status.Update(ctx, m.key, func(cf *v1alpha1.Changefeed) bool {
		m.Observe(cf)
		if m.checkPlacement() != nil {
			return false
		}
		state := cf.Status.State
		if dispatch.Hopeless(problem) {
			state = v1alpha1.ChangefeedFailed
		}
		if changed := m.keepStart(&cf.Status); !changed && cf.Status.Error == problem.Error() && cf.Status.State == state {
			return false
		}
		cf.Status.Error, cf.Status.State = problem.Error(), state
		return true
	})
	if err != nil {
		m.log.Warn("could not write an error to the status", "error", err)
	}
}

// Progress is the progress of a maintainer.
type Progress struct {
	// Tables of the changefeed.
	Tables int
	// At is when the source committed the transaction at the checkpoint; zero while that is not known.
	At time.Time
}

// Progress returns how far the maintainer has come, and whether it works for a placement. Until it has moved the checkpoint itself,
// what its predecessor wrote counts.
func (m *Maintainer) Progress() (p Progress, works bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p = Progress{Tables: len(m.tables), At: m.at}
	if before := m.Latest().Status.CheckpointTime; p.At.IsZero() && before != nil {
		p.At = before.Time
	}
	return p, m.epoch != 0
}
