package maintainer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/changefeed/wire"
)

const (
	// checkpointEvery is how often a checkpoint is written at most.
	checkpointEvery = 10 * time.Second
	// checkpointShare is how long a node takes for each of its changefeeds at least, so that very many do not keep the API busy.
	checkpointShare = 100 * time.Millisecond
	// countsEvery is the same for how many tables there are and where, and drainCountsEvery while a drain waits for that.
	countsEvery      = time.Second
	drainCountsEvery = 100 * time.Millisecond
)

// advance computes the checkpoint: the lowest position among all tables. Tables that are on their way, or of which their
// node has not told since they came to it, hold it where they are known to be.
func (m *Maintainer) advance() {
	reports := m.opts.Reports.Of(m.key)
	m.mu.Lock()
	defer m.mu.Unlock()
	expected := map[string]int64{}
	low, at, by, any := stream.Position(0), time.Time{}, "", false
	consider := func(p stream.Position, when time.Time, what string) {
		if !any || p < low {
			low, at, by, any = p, when, what, true
		}
	}
	lost := map[stream.Table]bool{}
	for name, r := range reports {
		for _, text := range r.Lost {
			if t, ok := wire.ParseTable(text); ok && m.tables[t] != nil && m.tables[t].node == name {
				lost[t] = true
			}
		}
		if r.Error != "" {
			m.problem, m.problemAt = fmt.Sprintf("node %s: %s", name, r.Error), time.Now()
		}
	}
	for name, t := range m.tables {
		if lost[name] && t.phase == TableRunning && reports[t.node].Round > t.since {
			t.phase = TableAbsent
		}
		if t.phase != TableRunning || reports[t.node].FeedReport == nil || reports[t.node].Round <= t.since {
			consider(t.floor, m.at, m.whereabouts(name, t))
			continue
		}
		expected[t.node]++
	}
	if m.trigger != nil {
		consider(*m.trigger, m.triggerAt, "definitions are being seen to")
	}
	// At the very beginning the sink may lack tables that the source had before. They hold the checkpoint where it began, so later
	// on a table that the sink lacks was made since, unless somebody has dropped it there.
	if len(m.pending) > 0 && m.started != nil && m.pendingFrom <= *m.started {
		m.slowest = fmt.Sprintf("whether %d tables that the sink does not have are made by a definition is known when definitions have been seen to", len(m.pending))
		return
	}
	for name, n := range expected {
		r := reports[name]
		if r.Running < n {
			if m.short == nil {
				m.short = map[string]time.Time{}
			}
			if since, ok := m.short[name]; !ok {
				m.short[name] = time.Now()
			} else if time.Since(since) > staleProblem {
				delete(m.met, name) // it has lost some: it is asked again what runs there
				delete(m.short, name)
			}
			m.slowest = fmt.Sprintf("node %s tells of %d dispatchers where it should have %d", name, r.Running, n)
			return
		}
		delete(m.short, name)
		slowest := r.Slowest
		if slowest != "" {
			slowest = fmt.Sprintf("node %s: %s", name, slowest)
		}
		consider(stream.Position(r.Checkpoint), time.UnixMicro(r.CheckpointUnixMicro), slowest)
	}
	m.slowest = by
	if !any || low <= m.checkpoint {
		return
	}
	m.checkpoint, m.at = low, at
	for _, t := range m.tables {
		t.floor = max(t.floor, low)
	}
}

// whereabouts says in words where a table is that nobody tells of. The caller holds the lock.
func (m *Maintainer) whereabouts(name stream.Table, t *table) string {
	switch t.phase {
	case TableBusy:
		return fmt.Sprintf("table %s is on its way to node %s", name, t.to)
	case TableRunning:
		return fmt.Sprintf("table %s has just come to node %s", name, t.node)
	}
	return fmt.Sprintf("table %s runs nowhere yet", name)
}

// publish writes what has changed: where dispatchers are, that the drain is known, and now and then the checkpoint.
func (m *Maintainer) publish(ctx context.Context, w View) error {
	next := m.Latest().Status.DeepCopy()
	m.describe(next, w)
	last := &m.Latest().Status
	every := max(checkpointEvery, time.Duration(m.opts.Status.Maintained())*checkpointShare)
	switch {
	case next.ObservedDrain != last.ObservedDrain || next.ObservedEpoch != last.ObservedEpoch || next.Error != last.Error:
		every = 0
	case next.Tables != last.Tables || !slices.Equal(next.Nodes, last.Nodes):
		if every = countsEvery; w.Slot != nil {
			every = drainCountsEvery
		}
	case next.Checkpoint == last.Checkpoint && next.Slowest == last.Slowest:
		return nil
	}
	if time.Since(m.written) < every || time.Since(m.unwritten) < again {
		return nil
	}
	err := m.opts.Status.Update(ctx, m.key, func(cf *v1alpha1.Changefeed) bool {
		m.See(cf)
		if m.stands() != nil {
			return false
		}
		m.describe(&cf.Status, w)
		return true
	})
	if err != nil {
		m.unwritten = time.Now()
		return err
	}
	m.written = time.Now()
	return nil
}

// describe puts into a status what the maintainer knows.
func (m *Maintainer) describe(s *v1alpha1.ChangefeedStatus, w View) {
	m.mu.Lock()
	defer m.mu.Unlock()
	counts := map[string]int64{m.opts.Epoch.Node: 1} // the table trigger
	draining := ""
	if w.Slot != nil {
		draining = w.Slot.Node
	}
	for _, t := range m.tables {
		if on := t.countsOn(draining); on != "" {
			counts[on]++
		}
	}
	s.Nodes = nil
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		s.Nodes = append(s.Nodes, v1alpha1.ChangefeedNode{Node: name, Dispatchers: counts[name]})
	}
	s.Tables = int64(len(m.tables))
	s.ObservedDrain, s.ObservedEpoch = "", m.epoch
	if w.Slot != nil {
		s.ObservedDrain = w.Slot.UID
	}
	s.Error = ""
	if time.Since(m.problemAt) < staleProblem {
		s.Error = m.problem
	}
	s.Checkpoint, s.Slowest = max(s.Checkpoint, int64(m.checkpoint)), m.slowest
	if !m.at.IsZero() {
		at := metav1.NewTime(m.at)
		s.CheckpointTime = &at
	}
}

// countsOn is the node that a table is counted on, if any. One on its way is counted where it comes from, unless that is nowhere
// or it is on its way to the draining node: once the maintainer has said that it knows of a drain, the count there only falls.
func (t *table) countsOn(draining string) string {
	switch {
	case t.phase == TableAbsent:
		return ""
	case t.phase == TableBusy && (t.node == "" || t.to == draining):
		return t.to
	}
	return t.node
}

// tellProblem writes why the changefeed does not flow. What cannot be mended by trying again fails it.
func (m *Maintainer) tellProblem(ctx context.Context, problem error) {
	err := m.opts.Status.Update(ctx, m.key, func(cf *v1alpha1.Changefeed) bool {
		m.See(cf)
		if m.stands() != nil {
			return false
		}
		state := cf.Status.State
		if errors.Is(problem, stream.ErrUnusable) || errors.Is(problem, stream.ErrPurged) {
			state = v1alpha1.ChangefeedFailed
		}
		if changed := m.keepStart(&cf.Status); !changed && cf.Status.Error == problem.Error() && cf.Status.State == state {
			return false
		}
		cf.Status.Error, cf.Status.State = problem.Error(), state
		return true
	})
	if err != nil {
		m.log.Warn("problem not written", "error", err)
	}
}

// Progress is how far a maintainer has come.
type Progress struct {
	// Tables of the changefeed.
	Tables int
	// At is when the source committed what the checkpoint is at; zero while that is not known.
	At time.Time
}

// Progress returns how far the maintainer has come, and whether it works for a placement. Until it has moved the checkpoint itself,
// what its predecessor wrote counts.
func (m *Maintainer) Progress() (p Progress, works bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p = Progress{Tables: len(m.tables), At: m.at}
	if before := m.object.Status.CheckpointTime; p.At.IsZero() && before != nil {
		p.At = before.Time
	}
	return p, m.epoch != 0
}
