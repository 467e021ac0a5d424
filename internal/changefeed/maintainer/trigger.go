package maintainer

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/changefeed/wire"
	"github.com/ebb-dev/ebb/internal/fleet"
)

// static is a source without DDL.
type static interface{ Static() bool }

// watchFromCheckpoint makes the table trigger begin at the checkpoint, if the changefeed carries DDL and the source may have any.
func (m *Maintainer) watchFromCheckpoint(source stream.Source) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ddlDone = nil
	if s, ok := source.(static); ok && s.Static() {
		return
	}
	if ddl := m.Latest().Spec.DDL; ddl == nil || *ddl {
		at := m.checkpoint
		m.ddlDone = &at
	}
}

// tableLister is a sink that can list the tables that the changefeed has written to (Known), and those that exist (Present).
type tableLister interface {
	Known(ctx context.Context) ([]stream.Table, error)
	Present(ctx context.Context) ([]stream.Table, error)
}

// findTables finds the tables to replicate from the checkpoint on: those that the source has now, and those that it has dropped or
// renamed since the checkpoint. A table that was created since the checkpoint is missing at the sink: the DDL that creates it adds it.
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
	k, ok := sink.(tableLister)
	ok = ok && m.ddlDone != nil
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
	exists := map[stream.Table]bool{}
	for _, name := range present {
		exists[name] = true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.missing, m.missingFrom, m.missingUntil = map[stream.Table]bool{}, m.checkpoint, head
	for _, name := range append(names, known...) {
		switch {
		case !filter.Allows(name):
		case ok && !exists[name] && head > m.checkpoint:
			m.missing[name] = true
		default:
			m.tables[name] = &table{floor: m.checkpoint}
		}
	}
	return nil
}

// addMissing adds the tables that no DDL up to a position has created. Their dispatchers report that the sink lacks them. The caller
// holds the lock.
func (m *Maintainer) addMissing(at stream.Position) {
	if len(m.missing) == 0 || at < m.missingUntil {
		return
	}
	for name := range m.missing {
		if m.tables[name] == nil {
			m.tables[name] = &table{floor: m.missingFrom}
		}
	}
	clear(m.missing)
}

// created are the tables that exist after a DDL and not before.
func created(d *stream.DDL) []stream.Table {
	if d.Kind == stream.CreateTable {
		return d.Tables
	}
	return d.Becomes
}

// watchDDL is the table trigger: it reads the log of the source for DDL that creates, drops or renames tables, and executes each when
// the dispatchers of all tables that it concerns have reached it. The checkpoint does not pass DDL that is not executed.
func (m *Maintainer) watchDDL(ctx context.Context) {
	m.mu.Lock()
	watch := m.ddlDone != nil
	m.mu.Unlock()
	for watch && ctx.Err() == nil {
		err := m.readDDL(ctx)
		if ctx.Err() != nil {
			return
		}
		m.setProblem(fmt.Sprintf("execute DDL: %v", err))
		m.log.Warn("could not execute DDL; retrying", "error", err)
		sleep(ctx, 4*retryDelay)
	}
}

func (m *Maintainer) readDDL(ctx context.Context) error {
	source, config, err := m.openSource(ctx)
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
	after := *m.ddlDone
	m.mu.Unlock()
	return stream.ReadOf(ctx, source, after, stream.NoTable, func(t *stream.Transaction) error {
		if t.DDL != nil && !t.DDL.Alone() && concerns(filter, t.DDL) {
			if err := m.executeDDL(ctx, sink, filter, t); err != nil {
				return err
			}
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		*m.ddlDone, m.ddlDoneAt = t.Position, t.At
		m.addMissing(t.Position)
		return nil
	})
}

// concerns reports whether a DDL concerns anything that is replicated. One that names no table is about a schema.
func concerns(f stream.Filter, d *stream.DDL) bool {
	if len(d.Tables) == 0 {
		return f.Allows(stream.Table{Schema: d.Schema, Name: "*"}) || len(f) == 0
	}
	return slices.ContainsFunc(slices.Concat(d.Tables, d.Becomes), f.Allows)
}

// executeDDL waits for the tables that a DDL concerns, executes it at the sink, and adds and removes tables accordingly.
func (m *Maintainer) executeDDL(ctx context.Context, sink stream.Sink, f stream.Filter, t *stream.Transaction) error {
	done, err := ddlExecuted(ctx, sink, t.Position)
	if err != nil {
		return err
	}
	if !done { // if it is executed, its tables may be past it already
		if err := m.awaitBlocked(ctx, t.DDL); err != nil {
			return err
		}
	}
	if !m.opts.Epoch.Holding() {
		return fmt.Errorf("%w: no DDL is executed until it is renewed", fleet.ErrLeaseInDoubt)
	}
	if err := sink.ExecuteDDL(ctx, t.Position, t.DDL, stream.Epoch{Placement: m.Placement()}); err != nil {
		return err
	}
	m.log.Info("DDL executed", "position", t.Position, "kind", t.DDL.Kind, "tables", t.DDL.Tables)
	floor := t.Position
	switch t.DDL.Kind {
	case stream.CreateTable:
		floor-- // CREATE TABLE ... SELECT has rows at the same position
	case stream.DropTable, stream.RenameTable:
		if err := m.removeTables(ctx, t.DDL.Tables); err != nil {
			return err
		}
	default:
		return nil
	}
	defer m.Wake() // the loop places the new tables
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range created(t.DDL) {
		delete(m.missing, name)
		if f.Allows(name) && m.tables[name] == nil {
			m.tables[name] = &table{floor: floor}
		}
	}
	return nil
}

// ddlRecorder is a sink that records which DDL was executed.
type ddlRecorder interface {
	DDLExecuted(ctx context.Context, position stream.Position) (bool, error)
}

// ddlExecuted reports whether an earlier maintainer has executed the DDL at a position: the checkpoint that a maintainer starts from
// may be older than what its predecessor executed.
func ddlExecuted(ctx context.Context, sink stream.Sink, at stream.Position) (bool, error) {
	d, ok := sink.(ddlRecorder)
	if !ok {
		return false, nil
	}
	return d.DDLExecuted(ctx, at)
}

// awaitBlocked returns when the dispatchers of all tables that a DDL drops or renames have reached it.
func (m *Maintainer) awaitBlocked(ctx context.Context, d *stream.DDL) error {
	if d.Kind == stream.CreateTable || d.Kind == stream.OtherDDL {
		return nil
	}
	for began := time.Now(); ; {
		waiting, node := m.unblocked(d.Tables)
		if waiting == "" {
			return nil
		}
		if time.Since(began) > problemExpiry {
			m.setProblem(fmt.Sprintf("waiting for table %s to reach the DDL that drops or renames it", waiting))
		}
		sleep(ctx, blockedPoll)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if w, _ := m.opts.Cluster.View(); w.Leases[node].Held() { // sooner than with the next round of reports: DDL holds up the checkpoint
			m.opts.Reports.Request(ctx, w, node, []*wire.Feed{m.feed()})
		}
	}
}

// blockedPoll is how often a node is asked whether a table has reached a DDL.
const blockedPoll = 10 * time.Millisecond

// unblocked is a table among some that is not reported to have reached its DDL, and its node; empty if all are.
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

// orderUnderWay reports whether an order about a table has been sent and not been answered.
func (m *Maintainer) orderUnderWay(name stream.Table) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.tables[name]
	return t != nil && t.phase == TableBusy
}

// removeTables stops the dispatchers of tables that do not exist any more, and forgets the tables.
func (m *Maintainer) removeTables(ctx context.Context, names []stream.Table) error {
	for _, name := range names {
		for m.orderUnderWay(name) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			sleep(ctx, blockedPoll)
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
