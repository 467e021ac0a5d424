package changefeed

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
func (m *maintainer) setTrigger(source stream.Source) {
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

// knower is a sink that remembers which tables were written.
type knower interface {
	Known(ctx context.Context) ([]stream.Table, error)
}

// earlier are tables that flowed up to the checkpoint, and that the source may have dropped or renamed since.
func (m *maintainer) earlier(ctx context.Context) ([]stream.Table, error) {
	sink, err := m.run.opts.Opener.Sink(m.key, m.config())
	if err != nil {
		return nil, err
	}
	defer sink.Close()
	if err := sink.Check(ctx); err != nil {
		return nil, err
	}
	if k, ok := sink.(knower); ok {
		return k.Known(ctx)
	}
	return nil, nil
}

// watchDefinitions is the table trigger: it reads the source's log for definitions that make, drop or rename tables, and sees
// to each when every table that it concerns stands before it. The checkpoint does not pass one that is not done.
func (m *maintainer) watchDefinitions(ctx context.Context) {
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
		m.run.sleep(ctx, 4*again)
	}
}

func (m *maintainer) readDefinitions(ctx context.Context) error {
	config := m.config()
	source, err := m.run.opts.Opener.Source(config)
	if err != nil {
		return err
	}
	defer source.Close()
	sink, err := m.run.opts.Opener.Sink(m.key, config)
	if err != nil {
		return err
	}
	defer sink.Close()
	filter, err := ParseFilter(m.latest().Spec.Filter)
	if err != nil {
		return err
	}
	m.mu.Lock()
	after := *m.trigger
	m.mu.Unlock()
	return source.Read(ctx, after, func(t *stream.Transaction) error {
		if t.DDL != nil && !t.DDL.Alone() && concerns(filter, t.DDL) {
			if err := m.define(ctx, sink, filter, t); err != nil {
				return err
			}
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		*m.trigger, m.triggerAt = t.Position, t.At
		return nil
	})
}

// concerns says whether a definition is about anything that flows. One that names no table is about a schema.
func concerns(f Filter, d *stream.DDL) bool {
	if len(d.Tables) == 0 {
		return f.Allows(stream.Table{Schema: d.Schema, Name: "*"}) || len(f) == 0
	}
	return slices.ContainsFunc(slices.Concat(d.Tables, d.Becomes), f.Allows)
}

// define waits for the tables that a definition concerns, executes it, and takes note of what tables there are then.
func (m *maintainer) define(ctx context.Context, sink stream.Sink, f Filter, t *stream.Transaction) error {
	if err := m.awaitBlocked(ctx, t.DDL); err != nil {
		return err
	}
	if !m.run.e.Holding() {
		return errors.New("the lease is in doubt")
	}
	if err := sink.Define(ctx, t.Position, t.DDL, stream.Epoch{Placement: m.placement()}); err != nil {
		return err
	}
	m.log.Info("definition executed", "position", t.Position, "kind", t.DDL.Kind, "tables", t.DDL.Tables)
	made := t.DDL.Becomes
	floor := t.Position
	switch t.DDL.Kind {
	case stream.CreateTable:
		made, floor = t.DDL.Tables, t.Position-1 // it may come with rows of the same position
	case stream.DropTable, stream.RenameTable:
		if err := m.end(ctx, t.DDL.Tables); err != nil {
			return err
		}
	default:
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range made {
		if f.Allows(name) && m.tables[name] == nil {
			m.tables[name] = &table{floor: floor}
		}
	}
	return nil
}

// awaitBlocked returns when every dispatcher of the tables stands before the definition.
func (m *maintainer) awaitBlocked(ctx context.Context, d *stream.DDL) error {
	if d.Kind == stream.CreateTable || d.Kind == stream.OtherDDL {
		return nil
	}
	for {
		waiting := m.unblocked(d.Tables)
		if waiting == "" {
			return nil
		}
		_, changed := m.run.view()
		timer := time.NewTimer(reportEvery)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// unblocked is a table among some that has not said yet that it stands before a definition; empty if all have.
func (m *maintainer) unblocked(names []stream.Table) string {
	m.run.mu.Lock()
	blocked := map[string]bool{}
	for node, byFeed := range m.run.reports {
		if r, ok := byFeed[m.key]; ok {
			for _, text := range r.Blocked {
				blocked[node+"\x00"+text] = true
			}
		}
	}
	m.run.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range names {
		if t := m.tables[name]; t != nil && !(t.phase == TableRunning && blocked[t.node+"\x00"+onWire(name)]) {
			return name.String()
		}
	}
	return ""
}

// end lets go of tables that are no more.
func (m *maintainer) end(ctx context.Context, names []stream.Table) error {
	w, _ := m.run.view()
	for _, name := range names {
		m.mu.Lock()
		t := m.tables[name]
		busy := t != nil && t.phase == TableBusy
		var order *wire.TableOrder
		if t != nil {
			order = &wire.TableOrder{Table: onWire(name), Epoch: toEpoch(t.epoch)}
		}
		m.mu.Unlock()
		if t == nil {
			continue
		}
		if busy {
			return fmt.Errorf("table %s is on its way", name)
		}
		if t.phase == TableRunning {
			call, cancel := context.WithTimeout(ctx, callLimit)
			_, err := m.run.peers.order(call, w.nodes[t.node], m.order(wire.Do_DO_STOP, []*wire.TableOrder{order}))
			cancel()
			if err != nil && w.leases[t.node].Held() {
				return err
			}
		}
		m.mu.Lock()
		delete(m.tables, name)
		m.mu.Unlock()
	}
	return nil
}
