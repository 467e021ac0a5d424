package maintainer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/changefeed/wire"
)

// static is a source whose tables never change.
type static interface{ Static() bool }

// setTrigger says whether definitions have to be watched for, and from where.
func (m *Maintainer) setTrigger(source stream.Source) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.trigger = nil
	if s, ok := source.(static); ok && s.Static() {
		return
	}
	if ddl := m.object.Spec.DDL; ddl == nil || *ddl {
		at := m.checkpoint
		m.trigger = &at
	}
}

// knower is a sink that can tell which tables were written, and which are there.
type knower interface {
	Known(ctx context.Context) ([]stream.Table, error)
	Present(ctx context.Context) ([]stream.Table, error)
}

// findTables finds out which tables flow from the checkpoint on: those that the source has now, and those that it had and has
// dropped or renamed since. One that it has made since is not at the sink; the definition that makes it adds it.
func (m *Maintainer) findTables(ctx context.Context, source stream.Source, filter stream.Filter) error {
	names, head, err := source.Tables(ctx)
	if err != nil {
		return err
	}
	config, err := m.config(ctx)
	if err != nil {
		return err
	}
	sink, err := m.opts.Opener.Sink(m.key, config)
	if err != nil {
		return err
	}
	defer sink.Close()
	if err := sink.Check(ctx); err != nil {
		return err
	}
	m.mu.Lock()
	k, ok := sink.(knower)
	ok = ok && m.trigger != nil
	m.mu.Unlock()
	var known, present []stream.Table
	if ok {
		if known, err = k.Known(ctx); err != nil {
			return err
		}
		if present, err = k.Present(ctx); err != nil {
			return err
		}
	}
	there := map[stream.Table]bool{}
	for _, name := range present {
		there[name] = true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pending, m.pendingFrom, m.pendingUntil = map[stream.Table]bool{}, m.checkpoint, head
	for _, name := range append(names, known...) {
		switch {
		case !filter.Allows(name):
		case ok && !there[name] && head > m.checkpoint:
			m.pending[name] = true
		default:
			m.tables[name] = &table{floor: m.checkpoint}
		}
	}
	return nil
}

// resolve lets the tables flow that no definition has made: the sink lacks them, and says so. The caller holds the lock.
func (m *Maintainer) resolve(at stream.Position) {
	if len(m.pending) == 0 || at < m.pendingUntil {
		return
	}
	for name := range m.pending {
		if m.tables[name] == nil {
			m.tables[name] = &table{floor: m.pendingFrom}
		}
	}
	clear(m.pending)
}

// makes are the tables that there are after a definition and not before.
func makes(d *stream.DDL) []stream.Table {
	if d.Kind == stream.CreateTable {
		return d.Tables
	}
	return d.Becomes
}

// watchDefinitions is the table trigger: it reads the source's log for definitions that make, drop or rename tables, and sees
// to each when every table that it concerns stands before it. The checkpoint does not pass one that is not done.
func (m *Maintainer) watchDefinitions(ctx context.Context) {
	m.mu.Lock()
	watch := m.trigger != nil
	m.mu.Unlock()
	for watch && ctx.Err() == nil {
		err := m.readDefinitions(ctx)
		if ctx.Err() != nil {
			return
		}
		m.setProblem(fmt.Sprintf("definitions: %v", err))
		m.log.Warn("definitions are not seen to", "error", err)
		sleep(ctx, 4*again)
	}
}

func (m *Maintainer) readDefinitions(ctx context.Context) error {
	config, err := m.config(ctx)
	if err != nil {
		return err
	}
	source, err := m.opts.Opener.Source(config)
	if err != nil {
		return err
	}
	defer source.Close()
	sink, err := m.opts.Opener.Sink(m.key, config)
	if err != nil {
		return err
	}
	defer sink.Close()
	filter, err := stream.ParseFilter(m.Latest().Spec.Filter)
	if err != nil {
		return err
	}
	m.mu.Lock()
	after := *m.trigger
	m.mu.Unlock()
	return stream.ReadOf(ctx, source, after, stream.NoTable, func(t *stream.Transaction) error {
		if t.DDL != nil && !t.DDL.Alone() && concerns(filter, t.DDL) {
			if err := m.define(ctx, sink, filter, t); err != nil {
				return err
			}
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		*m.trigger, m.triggerAt = t.Position, t.At
		m.resolve(t.Position)
		return nil
	})
}

// concerns says whether a definition is about anything that flows. One that names no table is about a schema.
func concerns(f stream.Filter, d *stream.DDL) bool {
	if len(d.Tables) == 0 {
		return f.Allows(stream.Table{Schema: d.Schema, Name: "*"}) || len(f) == 0
	}
	return slices.ContainsFunc(slices.Concat(d.Tables, d.Becomes), f.Allows)
}

// define waits for the tables that a definition concerns, executes it, and takes note of what tables there are then.
func (m *Maintainer) define(ctx context.Context, sink stream.Sink, f stream.Filter, t *stream.Transaction) error {
	done, err := defined(ctx, sink, t.Position)
	if err != nil {
		return err
	}
	if !done { // else its tables may be past it already
		if err := m.awaitBlocked(ctx, t.DDL); err != nil {
			return err
		}
	}
	if !m.opts.Epoch.Holding() {
		return errors.New("the lease is in doubt")
	}
	if err := sink.Define(ctx, t.Position, t.DDL, stream.Epoch{Placement: m.Placement()}); err != nil {
		return err
	}
	m.log.Info("definition executed", "position", t.Position, "kind", t.DDL.Kind, "tables", t.DDL.Tables)
	floor := t.Position
	switch t.DDL.Kind {
	case stream.CreateTable:
		floor-- // it may come with rows of the same position
	case stream.DropTable, stream.RenameTable:
		if err := m.end(ctx, t.DDL.Tables); err != nil {
			return err
		}
	default:
		return nil
	}
	defer m.Wake() // the loop places what was made
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range makes(t.DDL) {
		delete(m.pending, name)
		if f.Allows(name) && m.tables[name] == nil {
			m.tables[name] = &table{floor: floor}
		}
	}
	return nil
}

// definer is a sink that remembers which definitions were executed.
type definer interface {
	Defined(ctx context.Context, position stream.Position) (bool, error)
}

// defined says whether an earlier maintainer has executed a definition. The checkpoint that a maintainer begins with is older than
// what the one before got to.
func defined(ctx context.Context, sink stream.Sink, at stream.Position) (bool, error) {
	d, ok := sink.(definer)
	if !ok {
		return false, nil
	}
	return d.Defined(ctx, at)
}

// awaitBlocked returns when every dispatcher of the tables stands before the definition.
func (m *Maintainer) awaitBlocked(ctx context.Context, d *stream.DDL) error {
	if d.Kind == stream.CreateTable || d.Kind == stream.OtherDDL {
		return nil
	}
	for began := time.Now(); ; {
		waiting, node := m.unblocked(d.Tables)
		if waiting == "" {
			return nil
		}
		if time.Since(began) > staleProblem {
			m.setProblem(fmt.Sprintf("waiting for table %s to come to the definition at which it is dropped or renamed", waiting))
		}
		sleep(ctx, blockedEvery)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if w, _ := m.opts.Cluster.View(); w.Leases[node].Held() { // all wait for this: the next round of reports is too far away
			m.opts.Reports.Request(ctx, w, node, []*wire.Feed{m.feed()})
		}
	}
}

// blockedEvery is how often a node is asked whether a table has come to a definition.
const blockedEvery = 10 * time.Millisecond

// unblocked is a table among some that has not said yet that it stands before a definition, and its node; empty if all have.
func (m *Maintainer) unblocked(names []stream.Table) (table, node string) {
	blocked := map[string]bool{}
	for node, r := range m.opts.Reports.Of(m.key) {
		for _, text := range r.Blocked {
			blocked[node+"\x00"+text] = true
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range names {
		if t := m.tables[name]; t != nil && !(t.phase == TableRunning && blocked[t.node+"\x00"+wire.TableName(name)]) {
			return name.String(), t.node
		}
	}
	return "", ""
}

// onItsWay says whether an order about a table is under way.
func (m *Maintainer) onItsWay(name stream.Table) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.tables[name]
	return t != nil && t.phase == TableBusy
}

// end lets go of tables that are no more.
func (m *Maintainer) end(ctx context.Context, names []stream.Table) error {
	for _, name := range names {
		for m.onItsWay(name) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			sleep(ctx, blockedEvery)
		}
		w, _ := m.opts.Cluster.View()
		m.mu.Lock()
		t := m.tables[name]
		var order *wire.TableOrder
		if t != nil {
			order = &wire.TableOrder{Table: wire.TableName(name), Epoch: wire.NewEpoch(t.epoch)}
		}
		m.mu.Unlock()
		if t == nil {
			continue
		}
		if t.phase == TableRunning {
			call, cancel := context.WithTimeout(ctx, callLimit)
			_, err := m.opts.Nodes.Order(call, w.Nodes[t.node], m.order(wire.Do_DO_STOP, []*wire.TableOrder{order}))
			cancel()
			if err != nil && w.Leases[t.node].Held() {
				return err
			}
		}
		m.mu.Lock()
		delete(m.tables, name)
		m.mu.Unlock()
	}
	return nil
}
