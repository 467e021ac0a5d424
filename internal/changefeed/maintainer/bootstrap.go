package maintainer

import (
	"context"
	"fmt"
	"slices"
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
	"github.com/ebb-dev/ebb/internal/worker"
)

// bootstrap finds out where to start, which tables there are, and which dispatchers run on which node.
func (m *Maintainer) bootstrap(ctx context.Context) error {
	source, _, err := m.openSource(ctx)
	if err != nil {
		return err
	}
	defer source.Close()
	if err := source.Check(ctx); err != nil {
		return err
	}
	m.warnPartlyLogged(ctx, source)
	if err := m.decideFilter(); err != nil {
		return err
	}
	m.decideSkips()
	start, err := m.start(ctx, source)
	if err != nil {
		return err
	}
	m.started = &start
	m.checkpoint = max(start, stream.Position(m.Latest().Status.Checkpoint))
	if err := m.resumeFrom(ctx, source); err != nil {
		return err
	}
	if err := m.checkSkips(ctx, source); err != nil {
		return err
	}
	if err := m.openSaver(ctx, source); err != nil {
		return err
	}
	if err := m.makeSnapshotTables(ctx); err != nil {
		return err
	}
	m.watchFromCheckpoint(source)
	if err := m.findTables(ctx, source, m.filter); err != nil {
		return err
	}
	if err := m.bootstrapNodes(ctx); err != nil {
		return err
	}
	if err := m.adoptIncarnation(ctx); err != nil {
		return err
	}
	m.wentBack = false
	// One write for all of it, before any dispatcher starts.
	w, _ := m.opts.Cluster.View()
	return m.opts.Status.Update(ctx, m.key, func(cf *v1alpha1.Changefeed) bool {
		m.Observe(cf)
		if m.checkPlacement() != nil {
			return false
		}
		now := metav1.NowMicro()
		cf.Status.Placement.Phase, cf.Status.Placement.Since, cf.Status.Placement.From = v1alpha1.PlacementRunning, &now, nil
		m.keepStart(&cf.Status)
		m.fillStatus(&cf.Status, w)
		cf.Status.State, cf.Status.Error = v1alpha1.ChangefeedRunning, ""
		return true
	})
}

// partialLogger is a source that knows the tables whose changes are not all in its log, each with the reason.
type partialLogger interface {
	PartlyLogged(ctx context.Context) ([]string, error)
}

// warnPartlyLogged warns of such tables, in the log and with an event.
func (m *Maintainer) warnPartlyLogged(ctx context.Context, source stream.Source) {
	p, ok := source.(partialLogger)
	if !ok {
		return
	}
	list, err := p.PartlyLogged(ctx)
	if err != nil || len(list) == 0 {
		return
	}
	tables := strings.Join(list, "; ")
	m.log.Warn("the binary log of the source does not contain all changes of some tables", "tables", tables)
	record := events.Recorder{Client: m.opts.Epoch.Client, Controller: "changefeeds", Instance: m.opts.Epoch.Node}
	err = record.Emit(ctx, events.Event{
		Regarding: m.Latest(), Type: corev1.EventTypeWarning, Reason: "UnfaithfulTables", Action: "Begin", Note: "The binary log of the source does not contain all changes of these tables: " + tables, Key: fmt.Sprint(len(list)),
	})
	if err != nil {
		m.log.Warn("could not write an event", "error", err)
	}
}

// keepStart puts the position at which the changefeed began into a status, once it is known, and the one at which it was resumed.
func (m *Maintainer) keepStart(s *v1alpha1.ChangefeedStatus) (changed bool) {
	if changed = m.keepResume(s); m.started == nil || s.StartPosition != nil {
		return changed
	}
	at := int64(*m.started)
	s.StartPosition, s.Checkpoint = &at, max(s.Checkpoint, at)
	return true
}

// start is the position at which the changefeed began, or begins now. It is persisted before any dispatcher starts, and also when
// an error prevents that, so that later attempts begin at the same position.
func (m *Maintainer) start(ctx context.Context, source stream.Source) (stream.Position, error) {
	cf := m.Latest()
	if cf.Status.StartPosition != nil {
		return stream.Position(*cf.Status.StartPosition), nil
	}
	if cf.Spec.Snapshot != nil {
		return m.planSnapshot(ctx, source)
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

// bootstrapNodes bootstraps every node whose lease is held. It waits until each has answered or lost its lease.
func (m *Maintainer) bootstrapNodes(ctx context.Context) error {
	for {
		w, changed := m.opts.Cluster.View()
		missing := m.bootstrapNewNodes(ctx, w)
		if missing == "" {
			return m.checkPlacement()
		}
		if err := m.checkPlacement(); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		m.setProblem("waiting for node " + missing + " to report its dispatchers")
		m.Wait(ctx, retryDelay, worker.On{changed})
	}
}

// bootstrapNewNodes bootstraps, all at once, the nodes that have not been bootstrapped in their present epoch. It returns one that
// has not answered, if any.
func (m *Maintainer) bootstrapNewNodes(ctx context.Context, w View) (missing string) {
	var wg sync.WaitGroup
	for name, rec := range w.Leases {
		m.mu.Lock()
		done := m.bootstrapped[name] == rec.Epoch
		m.mu.Unlock()
		if !rec.Held() || done {
			continue
		}
		wg.Go(func() {
			if err := m.bootstrapNode(ctx, w, name, rec.Epoch); err != nil {
				m.mu.Lock()
				missing = name
				m.mu.Unlock()
			}
		})
	}
	wg.Wait()
	return missing
}

// bootstrapNode makes a node refuse orders of earlier maintainers, and takes over the dispatchers that run there.
func (m *Maintainer) bootstrapNode(ctx context.Context, w View, name string, epoch int64) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	began := m.opts.Reports.Round()
	reply, err := m.opts.Nodes.Bootstrap(ctx, w.Nodes[name], &wire.BootstrapRequest{Caller: m.caller(), Feed: m.feed()})
	if err != nil {
		return err
	}
	if reply.NodeEpoch != epoch {
		return fmt.Errorf("node %s answered in epoch %d, but its lease has epoch %d", name, reply.NodeEpoch, epoch)
	}
	var stray []*wire.TableOrder
	m.mu.Lock()
	here := map[stream.Table]bool{}
	for _, d := range reply.Dispatchers {
		id, ok := wire.ParseTable(d.Table)
		t := m.tables[id]
		if t != nil && !(slices.Equal(wire.TableNames(t.members), d.Members) && slices.Equal(wire.TableNames(t.watches), d.Watches)) ||
			t == nil && (len(d.Members) > 0 || len(d.Watches) > 0 || m.known(id)) {
			ok = false // other tables were joined by foreign keys
		}
		if t == nil && ok && m.ddlDone != nil && dispatch.State(d.State) == dispatch.Running {
			// The source has dropped or renamed it since. Its changes before that must still be written.
			t = &table{floor: m.checkpoint}
			m.tables[id] = t
		}
		if t != nil && t.phase == TableBusy {
			continue // an order about it has not been answered
		}
		if t != nil && t.phase == TableRunning && t.node == name && t.epoch == wire.ParseEpoch(d.Epoch) && dispatch.State(d.State) == dispatch.Prepared {
			here[id] = true // it was started after the node had made its reply
			continue
		}
		// A dispatcher that has written what the sink has lost would leave a gap.
		newer := m.wentBack || t != nil && t.phase == TableRunning && t.node != name && t.epoch.Compare(wire.ParseEpoch(d.Epoch)) > 0
		if t != nil && !newer && dispatch.State(d.State) == dispatch.Lost {
			m.suspect(t)
		}
		if !ok || t == nil || newer || dispatch.State(d.State) != dispatch.Running {
			stray = append(stray, &wire.TableOrder{Table: d.Table, Epoch: d.Epoch})
			continue
		}
		here[id] = true
		t.stoppedAt = time.Time{} // if it was being moved, the length of the pause is not known
		t.phase, t.node, t.epoch, t.floor = TableRunning, name, wire.ParseEpoch(d.Epoch), max(t.floor, stream.Position(d.Checkpoint))
	}
	for id, t := range m.tables {
		if t.phase == TableRunning && t.node == name && !here[id] && (began == 0 || t.since < began) {
			t.phase = TableAbsent // the node lost it; its reply cannot include what was started after began
		}
	}
	m.mu.Unlock()
	if len(stray) > 0 { // prepared for a move that was abandoned, failed, or of a table that is not replicated any more
		if _, err := m.opts.Nodes.Order(ctx, w.Nodes[name], m.order(wire.Do_DO_STOP, stray)); err != nil {
			return err
		}
	}
	m.mu.Lock()
	m.bootstrapped[name] = epoch
	m.mu.Unlock()
	return nil
}
