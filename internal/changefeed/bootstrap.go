package changefeed

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
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
func (m *maintainer) begin(ctx context.Context) error {
	config, err := m.config(ctx)
	if err != nil {
		return err
	}
	source, err := m.run.opts.Opener.Source(config)
	if err != nil {
		return err
	}
	defer source.Close()
	if err := source.Check(ctx); err != nil {
		return err
	}
	m.warnUnfaithful(ctx, source)
	filter, err := ParseFilter(m.latest().Spec.Filter)
	if err != nil {
		return fmt.Errorf("%w: %w", stream.ErrUnusable, err)
	}
	start, err := m.start(ctx, source)
	if err != nil {
		return err
	}
	m.started = &start
	m.checkpoint = max(start, stream.Position(m.latest().Status.Checkpoint))
	m.setTrigger(source)
	if err := m.findTables(ctx, source, filter); err != nil {
		return err
	}
	if err := m.meetAll(ctx); err != nil {
		return err
	}
	// All of it in one write, before anything flows.
	w, _ := m.run.view()
	return m.run.update(ctx, m.key, func(cf *v1alpha1.Changefeed) bool {
		m.see(cf)
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
func (m *maintainer) warnUnfaithful(ctx context.Context, source stream.Source) {
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
	record := events.Recorder{Client: m.run.e.Client, Controller: "changefeeds", Instance: m.run.opts.Node}
	err = record.Emit(ctx, events.Event{
		Regarding: m.latest(), Type: corev1.EventTypeWarning, Reason: "UnfaithfulTables", Action: "Begin", Note: note, Key: fmt.Sprint(len(list)),
	})
	if err != nil {
		m.log.Warn("event not written", "error", err)
	}
}

// keepStart puts into a status where the changefeed began, once that is known.
func (m *maintainer) keepStart(s *v1alpha1.ChangefeedStatus) (changed bool) {
	if m.started == nil || s.StartPosition != nil {
		return false
	}
	at := int64(*m.started)
	s.StartPosition, s.Checkpoint = &at, max(s.Checkpoint, at)
	return true
}

// start is where the changefeed began, or begins now. It is persisted before anything flows, and when something else keeps it from
// flowing.
func (m *maintainer) start(ctx context.Context, source stream.Source) (stream.Position, error) {
	cf := m.latest()
	if cf.Status.StartPosition != nil {
		return stream.Position(*cf.Status.StartPosition), nil
	}
	if cf.Spec.StartPosition == "" {
		return source.Head(ctx)
	}
	start, err := ParsePosition(cf.Spec.StartPosition)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", stream.ErrUnusable, err)
	}
	return start, nil
}

var positionText = regexp.MustCompile(`^(\d{1,10}-\d{1,10}-)?\d+$`)

// ParsePosition reads a position as people write it: a GTID domain-server-sequence, or the sequence number of one.
func ParsePosition(text string) (stream.Position, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text[strings.LastIndexByte(text, '-')+1:], 10, 63)
	if err != nil || !positionText.MatchString(text) {
		return 0, fmt.Errorf("start position %q is neither a GTID such as 0-1-100 nor the number of one", text)
	}
	return stream.Position(n), nil
}

// meetAll introduces the maintainer to every node that is alive, and waits for each to answer or to be gone.
func (m *maintainer) meetAll(ctx context.Context) error {
	for {
		w, changed := m.run.view()
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
func (m *maintainer) meet(ctx context.Context, w world) (missing string) {
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
func (m *maintainer) introduce(ctx context.Context, w world, name string, epoch int64) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	began := m.run.nextRound()
	reply, err := m.run.peers.bootstrap(ctx, w.Nodes[name], &wire.BootstrapRequest{Caller: m.run.caller(), Feed: m.feed()})
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
		id, ok := fromWire(d.Table)
		t := m.tables[id]
		if t == nil && ok && m.trigger != nil && dispatch.State(d.State) == dispatch.Running {
			// The source has dropped or renamed it since: its changes before that still count.
			t = &table{floor: m.checkpoint}
			m.tables[id] = t
		}
		if t != nil && t.phase == TableBusy {
			continue // an order about it is under way
		}
		if t != nil && t.phase == TableRunning && t.node == name && t.epoch == fromEpoch(d.Epoch) && dispatch.State(d.State) == dispatch.Prepared {
			here[id] = true // it was started while the node answered
			continue
		}
		newer := t != nil && t.phase == TableRunning && t.node != name && t.epoch.Compare(fromEpoch(d.Epoch)) > 0
		if !ok || t == nil || newer || dispatch.State(d.State) != dispatch.Running {
			stray = append(stray, &wire.TableOrder{Table: d.Table, Epoch: d.Epoch})
			continue
		}
		here[id] = true
		t.halted = time.Time{} // if it was being moved: how long it stood still, nobody knows
		t.phase, t.node, t.epoch, t.floor = TableRunning, name, fromEpoch(d.Epoch), max(t.floor, stream.Position(d.Checkpoint))
	}
	for id, t := range m.tables {
		if t.phase == TableRunning && t.node == name && !here[id] && (began == 0 || t.since < began) {
			t.phase = TableAbsent // the node has come back without it; what was started meanwhile, it could not know of
		}
	}
	m.mu.Unlock()
	if len(stray) > 0 { // prepared for a move that nobody goes on with, lost, or of a table that no longer flows
		if _, err := m.run.peers.order(ctx, w.Nodes[name], m.order(wire.Do_DO_STOP, stray)); err != nil {
			return err
		}
	}
	m.mu.Lock()
	m.met[name] = epoch
	m.mu.Unlock()
	return nil
}
