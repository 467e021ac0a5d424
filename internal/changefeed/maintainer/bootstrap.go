package maintainer

import (
	"context"
	"errors"
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
	m.spec = m.Latest().Spec
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
	if err := m.checkLeaveOut(ctx, source); err != nil {
		return err
	}
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

// keepStart adds the position at which the changefeed began to a status, once it is known, and the position at which it was resumed.
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
	if strings.Contains(cf.Spec.StartPosition, "-") { // a GTID, and not only its number, which a transaction of another server may have, too
		if err := hasTransaction(ctx, source, cf.Spec.StartPosition, start); err != nil {
			return 0, fmt.Errorf("spec.startPosition: %w", err)
		}
	}
	return start, nil
}

// bootstrapNodes bootstraps every node whose lease is held. It waits until each has answered or lost its lease.
func (m *Maintainer) bootstrapNodes(ctx context.Context) error {
	m.setFirst(true)
	defer m.setFirst(false)
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

func (m *Maintainer) setFirst(first bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.first = first
}

// doubt makes the maintainer bootstrap a node again: the node may have dispatchers that the maintainer does not know of. A bootstrap that is
// under way does not count, because its answer may be older. The caller holds the lock.
func (m *Maintainer) doubt(name string) {
	delete(m.bootstrapped, name)
	m.doubts[name]++
}

// bootstrapNewNodes bootstraps, all at once, the nodes that have not been bootstrapped in their present epoch. It returns one that
// has not been afterwards, if any.
func (m *Maintainer) bootstrapNewNodes(ctx context.Context, w View) (missing string) {
	var wg sync.WaitGroup
	for _, name := range m.unbootstrapped(w) {
		wg.Go(func() { m.tryBootstrap(ctx, w, name) })
	}
	wg.Wait()
	// Only now: the bootstrap of one node may have raised doubts about another.
	if left := m.unbootstrapped(w); len(left) > 0 {
		return left[0]
	}
	return ""
}

// bootstrapPatience is how long a round waits for the nodes that it bootstraps.
const bootstrapPatience = 500 * time.Millisecond

// bootstrapRound begins to bootstrap the nodes that are not bootstrapped in their present epoch, and waits a little for them. One that does not
// answer must not hold up the tables on other nodes.
func (m *Maintainer) bootstrapRound(ctx context.Context, w View) {
	var begun []chan struct{}
	for _, name := range m.unbootstrapped(w) {
		done := make(chan struct{})
		m.mu.Lock()
		asked := m.asking[name]
		m.asking[name] = true
		m.mu.Unlock()
		if asked {
			continue
		}
		begun = append(begun, done)
		m.busy.Go(func() {
			defer close(done)
			m.tryBootstrap(ctx, w, name)
			m.mu.Lock()
			delete(m.asking, name)
			m.mu.Unlock()
			m.Wake()
		})
	}
	limit, cancel := context.WithTimeout(ctx, bootstrapPatience)
	defer cancel()
	for _, done := range begun {
		select {
		case <-done:
		case <-limit.Done():
			return
		}
	}
}

// tryBootstrap bootstraps a node. If that fails, the next round tries again.
func (m *Maintainer) tryBootstrap(ctx context.Context, w View, name string) {
	if err := m.bootstrapNode(ctx, w, name, w.Leases[name].Epoch); err != nil && ctx.Err() == nil {
		m.log.Debug("could not bootstrap a node; retrying", "node", name, "error", err)
	}
}

// unbootstrapped are the nodes whose lease is held and that have not been bootstrapped in their present epoch, sorted.
func (m *Maintainer) unbootstrapped(w View) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []string
	for name, rec := range w.Leases {
		if rec.Held() && m.bootstrapped[name] != rec.Epoch {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// errUnsettled: the report of a node may be outdated, or could not be acted on yet.
var errUnsettled = errors.New("the node has to be bootstrapped again")

// bootstrapNode makes a node refuse orders of earlier maintainers and stop what runs there with another configuration, takes over the other
// dispatchers that run there, and stops those that must not run. If it fails, the node stays unbootstrapped, and the next round tries again.
func (m *Maintainer) bootstrapNode(ctx context.Context, w View, name string, epoch int64) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	m.mu.Lock()
	doubts := m.doubts[name]
	m.mu.Unlock()
	began := m.opts.Reports.Round()
	reply, err := m.opts.Nodes.Bootstrap(ctx, w.Nodes[name], &wire.BootstrapRequest{Caller: m.caller(), Feed: m.feed(), Config: m.configOnWire()})
	if err != nil {
		return err
	}
	if reply.NodeEpoch != epoch {
		return fmt.Errorf("node %s answered in epoch %d, but its lease has epoch %d", name, reply.NodeEpoch, epoch)
	}
	m.mu.Lock()
	if m.outdated[name] = reply.Layout < wire.Layout; m.outdated[name] {
		m.problem, m.problemAt = fmt.Sprintf("node %s runs an earlier version, which cannot write the sink any more; it gets no tables until it is upgraded", name), time.Now()
	}
	stray, busy := m.takeOver(name, reply.Dispatchers, began)
	m.mu.Unlock()
	if err := m.stopStray(ctx, w, name, stray); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if busy || m.doubts[name] != doubts {
		return errUnsettled
	}
	m.bootstrapped[name] = epoch
	return nil
}

// takeOver takes over the dispatchers that a node has reported, and returns those that it must stop: prepared for a move that was
// abandoned, failed, of a table that is not replicated any more, or of an earlier table of the same name. If an order about
// one of the tables is unanswered, its dispatcher is decided about when the answer arrives. The caller holds the lock.
func (m *Maintainer) takeOver(name string, list []*wire.Dispatcher, began uint64) (stray []*wire.TableOrder, busy bool) {
	here := map[stream.Table]bool{}
	for _, d := range list {
		table, ok := wire.ParseTable(d.Table)
		id, t := table.Table, m.tables[table.Table]
		if t != nil && !(slices.Equal(wire.TableNames(t.identities()), d.Members) && slices.Equal(wire.Names(t.watches), d.Watches)) ||
			t == nil && (len(d.Members) > 0 || len(d.Watches) > 0 || m.known(id)) {
			ok = false // other tables were joined by foreign keys
		}
		if t != nil && !t.is(table) || table.Since == stream.AnySince || m.outdated[name] {
			ok = false // it is another table of this name, or it is not known which
		}
		if t != nil && t.phase == TableBusy {
			busy = true
			continue
		}
		epoch := wire.ParseEpoch(d.Epoch)
		started := t != nil && t.is(table) && t.phase == TableRunning && t.node == name && t.epoch == epoch
		if started && dispatch.State(d.State) == dispatch.Prepared {
			here[id] = true // it was started after the node had made its reply
			continue
		}
		if t != nil && t.phase == TableRunning && t.node == name && t.epoch.Compare(epoch) > 0 {
			here[id], busy = true, true // the reply was made before the node was given a newer one
			continue
		}
		ok = ok && (started || (m.first || m.ordered(epoch)) && m.current(t, d))
		if t == nil && ok && m.first && m.ddlDone != nil && dispatch.State(d.State) == dispatch.Running {
			// The source has dropped or renamed it since. Its changes before that must still be written. Later on, a table that is not known
			// is one that DDL has ended while the node was away.
			t = newTable(table.Since, m.checkpoint)
			m.tables[id] = t
		}
		elsewhere := t != nil && t.phase == TableRunning && t.node != name
		// A dispatcher that has written what the sink has lost would leave a gap.
		newer := m.wentBack || elsewhere && t.epoch.Compare(epoch) >= 0
		if t != nil && t.is(table) && !newer && dispatch.State(d.State) == dispatch.Lost {
			m.suspect(t)
		}
		if !ok || t == nil || newer || dispatch.State(d.State) != dispatch.Running {
			stray = append(stray, &wire.TableOrder{Table: d.Table, Epoch: d.Epoch})
			continue
		}
		if elsewhere {
			m.doubt(t.node) // it has an older dispatcher, which its next bootstrap stops
		}
		here[id] = true
		t.stoppedAt = time.Time{} // if it was being moved, the length of the pause is not known
		t.phase, t.node, t.epoch, t.floor = TableRunning, name, epoch, max(t.floor, stream.Position(d.Checkpoint))
		if !started {
			t.reached = 0 // its checkpoint is in the floor
		}
	}
	for id, t := range m.tables {
		if t.phase == TableRunning && t.node == name && !here[id] && (began == 0 || t.since < began) {
			t.phase = TableAbsent // the node lost it; its reply cannot include what was started after began
		}
	}
	return stray, busy
}

// current reports whether a dispatcher may be that of the present table, and not of an earlier table of the same name: it was not started before
// the DDL after which the table's dispatcher begins, where both are known, and it is not behind the checkpoint or that DDL. A dispatcher that is
// behind waits for DDL that was executed without it, and would wait forever. t is nil if the table is not known. The caller holds the lock.
func (m *Maintainer) current(t *table, d *wire.Dispatcher) bool {
	least := m.checkpoint
	if t != nil && t.from > 0 {
		least = max(least, t.from-1) // CREATE TABLE ... SELECT has rows at the same position
		if d.Begins != nil && stream.Position(*d.Begins) < t.from {
			return false
		}
	}
	return stream.Position(d.Checkpoint) >= least
}

// ordered reports whether a dispatcher was started since this maintainer began to work. An older one, on a node that was away when the others
// were asked, may have written rows that the sink has lost since. The caller holds the lock.
func (m *Maintainer) ordered(epoch stream.Epoch) bool {
	return epoch.Placement == m.epoch && epoch.Counter > m.countedFrom
}

// stopStray stops dispatchers that must not run. It returns an error unless all of them have stopped.
func (m *Maintainer) stopStray(ctx context.Context, w View, name string, stray []*wire.TableOrder) error {
	if len(stray) == 0 {
		return nil
	}
	reply, err := m.opts.Nodes.Order(ctx, w.Nodes[name], m.order(wire.Do_DO_STOP, stray))
	if err != nil {
		return err
	}
	for _, result := range reply.Results {
		if result.Error != "" && !result.Lost { // one that was Lost has ended
			m.setProblem(fmt.Sprintf("node %s: %s", name, result.Error))
			return fmt.Errorf("node %s: %s: %w", name, result.Error, errUnsettled)
		}
	}
	return nil
}
