package maintainer

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed/dispatch"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/changefeed/wire"
	"github.com/ebb-dev/ebb/internal/events"
)

// begin finds out where to start, which tables there are, and what runs where.
func (m *Maintainer) begin(ctx context.Context) error {
	config, err := m.config(ctx)
	if err != nil {
		return err
	}
	source, err := m.opts.Opener.Source(config)
	if err != nil {
		return err
	}
	defer source.Close()
	if err := source.Check(ctx); err != nil {
		return err
	}
	m.warnUnfaithful(ctx, source)
	filter, err := stream.ParseFilter(m.Latest().Spec.Filter)
	if err != nil {
		return fmt.Errorf("%w: %w", stream.ErrUnusable, err)
	}
	start, err := m.start(ctx, source)
	if err != nil {
		return err
	}
	m.started = &start
	m.checkpoint = max(start, stream.Position(m.Latest().Status.Checkpoint))
	m.setTrigger(source)
	if err := m.findTables(ctx, source, filter); err != nil {
		return err
	}
	if err := m.meetAll(ctx); err != nil {
		return err
	}
	// All of it in one write, before anything flows.
	w, _ := m.opts.Cluster.View()
	return m.opts.Status.Update(ctx, m.key, func(cf *v1alpha1.Changefeed) bool {
		m.See(cf)
		if m.stands() != nil {
			return false
		}
		now := metav1.NowMicro()
		cf.Status.Placement.Phase, cf.Status.Placement.Since, cf.Status.Placement.From = v1alpha1.PlacementRunning, &now, nil
		m.keepStart(&cf.Status)
		m.describe(&cf.Status, w)
		cf.Status.State, cf.Status.Error = v1alpha1.ChangefeedRunning, ""
		return true
	})
}

// unfaithful is a source that knows of tables whose changes its log does not tell in full.
type unfaithful interface {
	Unfaithful(ctx context.Context) ([]string, error)
}

// warnUnfaithful tells people of such tables.
func (m *Maintainer) warnUnfaithful(ctx context.Context, source stream.Source) {
	u, ok := source.(unfaithful)
	if !ok {
		return
	}
	list, err := u.Unfaithful(ctx)
	if err != nil || len(list) == 0 {
		return
	}
	note := "The source's log does not tell all that happens to: " + strings.Join(list, "; ")
	m.log.Warn(note)
	record := events.Recorder{Client: m.opts.Epoch.Client, Controller: "changefeeds", Instance: m.opts.Epoch.Node}
	err = record.Emit(ctx, events.Event{
		Regarding: m.Latest(), Type: corev1.EventTypeWarning, Reason: "UnfaithfulTables", Action: "Begin", Note: note, Key: fmt.Sprint(len(list)),
	})
	if err != nil {
		m.log.Warn("event not written", "error", err)
	}
}

// keepStart puts into a status where the changefeed began, once that is known.
func (m *Maintainer) keepStart(s *v1alpha1.ChangefeedStatus) (changed bool) {
	if m.started == nil || s.StartPosition != nil {
		return false
	}
	at := int64(*m.started)
	s.StartPosition, s.Checkpoint = &at, max(s.Checkpoint, at)
	return true
}

// start is where the changefeed began, or begins now. It is persisted before anything flows, and when something else keeps it from
// flowing.
func (m *Maintainer) start(ctx context.Context, source stream.Source) (stream.Position, error) {
	cf := m.Latest()
	if cf.Status.StartPosition != nil {
		return stream.Position(*cf.Status.StartPosition), nil
	}
	if cf.Spec.StartPosition == "" {
		return source.Head(ctx)
	}
	start, err := stream.ParsePosition(cf.Spec.StartPosition)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", stream.ErrUnusable, err)
	}
	return start, nil
}

// meetAll introduces the maintainer to every node that is alive, and waits for each to answer or to be gone.
func (m *Maintainer) meetAll(ctx context.Context) error {
	for {
		w, changed := m.opts.Cluster.View()
		missing := m.meet(ctx, w)
		if missing == "" {
			return m.stands()
		}
		if err := m.stands(); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		m.setProblem("waiting for node " + missing + " to say what runs there")
		m.await(ctx, changed, again)
	}
}

// meet introduces the maintainer to the nodes that it has not met in their present epoch, all at once, and says which one
// has not answered.
func (m *Maintainer) meet(ctx context.Context, w View) (missing string) {
	var wg sync.WaitGroup
	for name, rec := range w.Leases {
		m.mu.Lock()
		met := m.met[name] == rec.Epoch
		m.mu.Unlock()
		if !rec.Held() || met {
			continue
		}
		wg.Go(func() {
			if err := m.introduce(ctx, w, name, rec.Epoch); err != nil {
				m.mu.Lock()
				missing = name
				m.mu.Unlock()
			}
		})
	}
	wg.Wait()
	return missing
}

// introduce asks a node what of the changefeed runs there.
func (m *Maintainer) introduce(ctx context.Context, w View, name string, epoch int64) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	began := m.opts.Reports.Round()
	reply, err := m.opts.Nodes.Bootstrap(ctx, w.Nodes[name], &wire.BootstrapRequest{Caller: m.caller(), Feed: m.feed()})
	if err != nil {
		return err
	}
	if reply.NodeEpoch != epoch {
		return fmt.Errorf("node %s is in epoch %d, not %d", name, reply.NodeEpoch, epoch)
	}
	var stray []*wire.TableOrder
	m.mu.Lock()
	here := map[stream.Table]bool{}
	for _, d := range reply.Dispatchers {
		id, ok := wire.ParseTable(d.Table)
		t := m.tables[id]
		if t == nil && ok && m.trigger != nil && dispatch.State(d.State) == dispatch.Running {
			// The source has dropped or renamed it since: its changes before that still count.
			t = &table{floor: m.checkpoint}
			m.tables[id] = t
		}
		if t != nil && t.phase == TableBusy {
			continue // an order about it is under way
		}
		if t != nil && t.phase == TableRunning && t.node == name && t.epoch == wire.ParseEpoch(d.Epoch) && dispatch.State(d.State) == dispatch.Prepared {
			here[id] = true // it was started while the node answered
			continue
		}
		newer := t != nil && t.phase == TableRunning && t.node != name && t.epoch.Compare(wire.ParseEpoch(d.Epoch)) > 0
		if !ok || t == nil || newer || dispatch.State(d.State) != dispatch.Running {
			stray = append(stray, &wire.TableOrder{Table: d.Table, Epoch: d.Epoch})
			continue
		}
		here[id] = true
		t.halted = time.Time{} // if it was being moved: how long it stood still, nobody knows
		t.phase, t.node, t.epoch, t.floor = TableRunning, name, wire.ParseEpoch(d.Epoch), max(t.floor, stream.Position(d.Checkpoint))
	}
	for id, t := range m.tables {
		if t.phase == TableRunning && t.node == name && !here[id] && (began == 0 || t.since < began) {
			t.phase = TableAbsent // the node has come back without it; what was started meanwhile, it could not know of
		}
	}
	m.mu.Unlock()
	if len(stray) > 0 { // prepared for a move that nobody goes on with, lost, or of a table that no longer flows
		if _, err := m.opts.Nodes.Order(ctx, w.Nodes[name], m.order(wire.Do_DO_STOP, stray)); err != nil {
			return err
		}
	}
	m.mu.Lock()
	m.met[name] = epoch
	m.mu.Unlock()
	return nil
}
