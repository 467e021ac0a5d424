package maintainer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ebb-dev/ebb/internal/changefeed/dispatch"
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
	if ddl := m.spec.DDL; ddl == nil || *ddl {
		at := m.checkpoint
		m.ddlDone = &at
	}
}

// knower is a sink that can list the tables that the changefeed has written to.
type knower interface {
	Known(ctx context.Context) ([]stream.Table, error)
}

// presenter is a sink that can list the tables that exist.
type presenter interface {
	Present(ctx context.Context) ([]stream.Table, error)
}

// namer is a server, as a source or a sink, that may ignore the case of the names of tables.
type namer interface {
	LowerCaseTableNames(ctx context.Context) (string, error)
}

// sameNames returns ErrUnusable if the source and the sink do not compare the names of tables in the same way: two tables of the source
// could be one at the sink. It also refuses a filter that matches no name of the source.
func sameNames(ctx context.Context, source stream.Source, sink stream.Sink, f stream.Filter) error {
	from, ok := source.(namer)
	if !ok {
		return nil
	}
	a, err := from.LowerCaseTableNames(ctx)
	if err != nil {
		return err
	}
	if a == "1" {
		if err := f.Folded(); err != nil {
			return err
		}
	}
	to, ok := sink.(namer)
	if !ok {
		return nil
	}
	b, err := to.LowerCaseTableNames(ctx)
	if err == nil && a != b {
		err = fmt.Errorf("lower_case_table_names is %s at the source and %s at the sink; set up the sink anew with lower_case_table_names=%s: %w", a, b, a, stream.ErrUnusable)
	}
	return err
}

// admitter is a sink at which two tables may have the same name.
type admitter interface {
	Admit(t stream.Table) error
}

// admitAll returns ErrUnusable if a sink cannot have one of the tables inside a filter.
func admitAll(sink stream.Sink, f stream.Filter, tables []stream.Table) error {
	a, ok := sink.(admitter)
	if !ok {
		return nil
	}
	for _, t := range tables {
		if f.Allows(t) {
			if err := a.Admit(t); err != nil {
				return err
			}
		}
	}
	return nil
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
	if err := sameNames(ctx, source, sink, filter); err != nil {
		return err
	}
	if err := admitAll(sink, filter, names); err != nil {
		return err
	}
	if err := m.checkAdded(ctx, sink, names); err != nil {
		return err
	}
	m.mu.Lock()
	carriesDDL := m.ddlDone != nil
	m.mu.Unlock()
	var known, present []stream.Table
	if k, ok := sink.(knower); ok && carriesDDL {
		if known, err = k.Known(ctx); err != nil {
			return err
		}
	}
	p, ok := sink.(presenter)
	if ok = ok && carriesDDL; ok {
		if present, err = p.Present(ctx); err != nil {
			return err
		}
	}
	exists := map[stream.Table]bool{}
	for _, name := range present {
		exists[name] = true
	}
	keys, err := foreignKeys(ctx, sink)
	if err != nil {
		return err
	}
	have, err := sourceKeys(ctx, source, sink, filter)
	if err != nil {
		return err
	}
	if err := m.noteLacking(ctx, source, filter.LackingCascades(have, keys)); err != nil {
		return err
	}
	held, err := holders(ctx, sink)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	fresh := map[stream.Table]*table{}
	m.missing, m.missingHolders, m.missingFrom, m.missingUntil = map[stream.Table]bool{}, map[stream.Table]stream.Holder{}, m.checkpoint, head
	for _, name := range append(names, known...) {
		switch {
		case !filter.Allows(name):
		case ok && !exists[name] && head > m.checkpoint:
			m.missing[name], m.missingHolders[name] = true, held[name]
		default:
			fresh[name] = newTable(held[name].Since, m.checkpoint)
		}
	}
	m.unsure = !ok || len(m.missing) > 0 || slices.ContainsFunc(present, func(name stream.Table) bool { return filter.Allows(name) && fresh[name] == nil })
	return m.enter(fresh, keys, filter)
}

// renamedSince are the tables that a DDL reads, changes or renames, and that are not known because the source had renamed or removed them
// before its tables were listed. They existed at the checkpoint: had DDL after it created them, they would be known.
func (m *Maintainer) renamedSince(f stream.Filter, t *stream.Transaction) []stream.Table {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t.Position > m.missingUntil {
		return nil
	}
	names := slices.Concat(t.DDL.Tables, t.DDL.Reads, t.DDL.Removes)
	switch t.DDL.Kind {
	case stream.RenameTable, stream.AlterTable:
	case stream.CreateTable:
		names = slices.Clone(t.DDL.Reads) // the DDL must not change
	default:
		return nil // what is dropped need not be read
	}
	return slices.DeleteFunc(names, func(name stream.Table) bool { return m.known(name) || m.missing[name] || !f.Allows(name) })
}

// addRenamed adds those of some tables that the sink has, so that their changes since the checkpoint are read.
func (m *Maintainer) addRenamed(ctx context.Context, sink stream.Sink, f stream.Filter, names []stream.Table) error {
	if p, ok := sink.(presenter); ok && len(names) > 0 {
		present, err := p.Present(ctx)
		if err != nil {
			return err
		}
		names = slices.DeleteFunc(names, func(name stream.Table) bool { return !slices.Contains(present, name) })
	}
	if len(names) == 0 {
		return nil
	}
	keys, err := foreignKeys(ctx, sink)
	if err != nil {
		return err
	}
	held, err := holdersOf(ctx, sink, names)
	if err != nil {
		return err
	}
	defer m.Wake()
	m.mu.Lock()
	defer m.mu.Unlock()
	fresh := map[stream.Table]*table{}
	for _, name := range names {
		fresh[name] = newTable(held[name].Since, m.missingFrom)
	}
	return m.enter(fresh, keys, f)
}

// addMissing adds the tables that no DDL up to a position has created. Their dispatchers report that the sink lacks them. The caller
// holds the lock.
func (m *Maintainer) addMissing(at stream.Position) {
	if len(m.missing) == 0 || at < m.missingUntil {
		return
	}
	for name := range m.missing {
		if !m.known(name) {
			m.tables[name] = newTable(m.missingHolders[name].Since, m.missingFrom)
		}
	}
	clear(m.missing)
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
		var refused *refusedError
		if errors.As(err, &refused) || errors.Is(err, stream.ErrWentBack) { // after the latter, the next attempt begins with what the sink has
			m.fail(err)
			return
		}
		m.mu.Lock()
		m.noteHopeless("table trigger", fmt.Sprintf("execute DDL: %v", err), dispatch.Hopeless(err), 0)
		m.mu.Unlock()
		m.setProblem(fmt.Sprintf("execute DDL: %v", err))
		m.log.Warn("could not execute DDL; retrying", "error", err)
		sleep(ctx, 4*retryDelay)
	}
}

// refusedError is why the changefeed must not continue past a DDL.
type refusedError struct{ err error }

func (e *refusedError) Error() string { return e.err.Error() }
func (e *refusedError) Unwrap() error { return e.err }

// fail ends the work for the placement with an error.
func (m *Maintainer) fail(err error) {
	m.mu.Lock()
	m.failure = err
	m.mu.Unlock()
	m.Wake()
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
	filter := m.filter // it does not change while the placement stands
	return m.followLog(ctx, source, func(t *stream.Transaction) error {
		if t.DDL != nil && !t.DDL.Alone() {
			if err := m.handleDDL(ctx, sink, filter, t); err != nil {
				return err
			}
		}
		if err := m.checkLacking(ctx, source, sink, filter, t.Position); err != nil {
			return err
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if err := m.checkRows(filter, t); err != nil {
			return err
		}
		*m.ddlDone, m.ddlDoneAt = t.Position, t.At
		m.noteHopeless("table trigger", "", false, 0)
		if !t.Idle {
			m.passAnchor(t.Position, t.ID)
		}
		m.addMissing(t.Position)
		return nil
	})
}

// followLog visits what comes after the DDL that is executed. It follows the reader of the node where there is one, and otherwise reads the
// log itself until it can.
func (m *Maintainer) followLog(ctx context.Context, source stream.Source, visit func(*stream.Transaction) error) error {
	for {
		m.mu.Lock()
		after := *m.ddlDone
		m.mu.Unlock()
		tap := m.tap(after)
		if tap == nil {
			err := stream.ReadOf(ctx, source, after, stream.NoTable, func(t *stream.Transaction) error {
				err := visit(t)
				if tap = m.tap(t.Position); err == nil && tap != nil {
					err = errTapped
				}
				return err
			})
			if !errors.Is(err, errTapped) {
				return err
			}
		}
		if err := tap.Read(ctx, visit); err != nil {
			return err
		}
	}
}

// errTapped: the table trigger follows the reader of the node from now on.
var errTapped = errors.New("the reader of the node is read")

// tap follows the reader of the node after a position; nil if it cannot. DDL that decides which tables there are is read ahead of the
// changes: the checkpoint waits for it.
func (m *Maintainer) tap(after stream.Position) *dispatch.Tap {
	m.mu.Lock()
	ahead := m.unsure && after < m.missingUntil
	m.mu.Unlock()
	if ahead || m.opts.Tap == nil {
		return nil
	}
	return m.opts.Tap(m.key, after)
}

// handleDDL waits for the tables that a DDL concerns, executes at the sink what the filter leaves of it, and replaces these tables by
// those that exist afterwards. Each of them is another table from then on, even if it has the same name.
func (m *Maintainer) handleDDL(ctx context.Context, sink stream.Sink, f stream.Filter, t *stream.Transaction) error {
	skip := slices.Contains(m.skipPositions(), t.Position)
	if skip {
		m.log.Warn("DDL is skipped, as spec.skip says", "position", t.Position, "gtid", t.ID, "statement", t.DDL.Text())
	}
	if skip && t.DDL.Unexecutable() {
		return nil // dispatchers pass it
	}
	if err := m.refuseThrough(ctx, sink, f, t); err != nil && !skip {
		return err
	}
	t, err := withoutTables(ctx, sink, t)
	if err != nil {
		return err
	}
	plan, err := f.Plan(t.DDL)
	switch {
	case skip && (err != nil || plan != nil && plan.Kind == stream.DropSchema):
		plan, err = nil, nil // nothing of it is executed, and no positions are recorded
	case skip && plan != nil:
		plan = plan.Without()
	}
	if err != nil {
		return &refusedError{fmt.Errorf("position %d: %w", t.Position, err)}
	}
	if plan != nil {
		if err := m.addUnknown(ctx, sink, f, t); err != nil {
			return err
		}
		if view, err := m.renamesViews(ctx, sink, plan, t.Position); view || err != nil {
			return err
		}
	}
	if plan != nil && len(plan.Releases) > 0 {
		if err := m.refuseReleased(ctx, sink, t, plan.Releases); err != nil {
			return err
		}
	}
	before := m.tablesBefore(t)
	kept, grouped := m.keptOf(before, t.DDL)
	executed := plan != nil
	if executed {
		if len(kept) > 0 {
			part := *plan
			part.Waits = kept
			plan = &part
		}
		err = m.executeDDL(ctx, sink, before, t.Position, plan)
	} else {
		err = m.awaitPassed(ctx, before, t.Position)
		before = m.notPast(before, t)
		kept, grouped = m.keptOf(before, t.DDL)
		plan = t.DDL
	}
	if err != nil {
		return err
	}
	var keys []stream.ForeignKey
	if grouped || len(t.DDL.References) > 0 {
		if keys, err = foreignKeys(ctx, sink); err != nil {
			return err
		}
	}
	after := slices.Concat(plan.After(), kept)
	held, err := holdersAfter(ctx, sink, after, t, executed, m.holdersKnown(after))
	if err != nil {
		return err
	}
	if err := m.removeTables(ctx, before); err != nil {
		return err
	}
	defer m.Wake() // the loop places the new tables
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.enterAfter(t.Position, plan, kept, held, keys, f)
}

// refuseThrough refuses a RENAME IF EXISTS through a name that a table has already: as it has succeeded, the table that was to get the name first
// was missing, and this one was renamed instead.
func (m *Maintainer) refuseThrough(ctx context.Context, sink stream.Sink, f stream.Filter, t *stream.Transaction) error {
	if len(t.DDL.Through) == 0 {
		return nil
	}
	if done, err := ddlExecuted(ctx, sink, t.Position); done || err != nil {
		return err
	}
	if name, ok := m.existsBetween(f, t); ok {
		return &refusedError{fmt.Errorf("position %d: %w", t.Position, t.DDL.Stops(fmt.Sprintf("it is not known which tables it renames, since table %s existed before it", name)))}
	}
	return nil
}

// existsBetween is a table that a rename goes through and that exists before it.
func (m *Maintainer) existsBetween(f stream.Filter, t *stream.Transaction) (name stream.Table, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range t.DDL.Through {
		if _, e := m.find(name); f.Allows(name) && e != nil && e.from <= t.Position {
			return name, true
		}
	}
	return name, false
}

// refuseReleased refuses a rename that takes a table out of the filter if a cascading key joins it with a table that stays.
func (m *Maintainer) refuseReleased(ctx context.Context, sink stream.Sink, t *stream.Transaction, releases []stream.Table) error {
	keys, err := foreignKeys(ctx, sink)
	if err != nil {
		return err
	}
	if err := t.DDL.ReleasedCascade(releases, keys); err != nil {
		return &refusedError{fmt.Errorf("position %d: %w", t.Position, err)}
	}
	return nil
}

// enterAfter adds the tables that a DDL has made or changed, and those that it has kept, as far as they have their names still: a later DDL may have
// been executed by an earlier maintainer. The caller holds the lock.
func (m *Maintainer) enterAfter(at stream.Position, d *stream.DDL, kept []stream.Table, held map[stream.Table]stream.Holder, keys []stream.ForeignKey, f stream.Filter) error {
	fresh := map[stream.Table]*table{}
	for _, name := range slices.Concat(d.After(), kept) {
		floor := at
		if d.Kind == stream.CreateTable && slices.Contains(d.Tables, name) {
			floor-- // CREATE TABLE ... SELECT has rows at the same position
		}
		delete(m.missing, name)
		if h := held[name]; f.Allows(name) && !m.known(name) && !h.Over && fresh[name] == nil {
			fresh[name] = &table{has: h.Since, floor: floor, from: max(at, h.Since)}
		}
	}
	return m.enter(fresh, keys, f)
}

// addUnknown adds the tables of a DDL that is not executed and that are not known.
func (m *Maintainer) addUnknown(ctx context.Context, sink stream.Sink, f stream.Filter, t *stream.Transaction) error {
	names := m.renamedSince(f, t)
	if len(names) == 0 {
		return nil
	}
	if done, err := ddlExecuted(ctx, sink, t.Position); done || err != nil {
		return err
	}
	return m.addRenamed(ctx, sink, f, names)
}

// tablesBefore are the tables that a DDL concerns, without those that a later DDL made. Of a group it is the table that stands for it.
// Tables that foreign keys join with those that it names are among them.
func (m *Maintainer) tablesBefore(t *stream.Transaction) []stream.Table {
	m.mu.Lock()
	defer m.mu.Unlock()
	var names []stream.Table
	add := func(name stream.Table) {
		for _, each := range append([]stream.Table{name}, m.keyed[name]...) {
			if leader, e := m.find(each); e != nil && e.from <= t.Position && !slices.Contains(names, leader) {
				names = append(names, leader)
			}
		}
	}
	if t.DDL.Kind != stream.DropSchema {
		for _, name := range t.DDL.Names() {
			if t.DDL.Concerns(name) {
				add(name)
			}
		}
		return names
	}
	for leader, e := range m.tables {
		for _, name := range slices.Concat(e.names(leader), e.watches) {
			if t.DDL.Concerns(name) {
				add(name)
			}
		}
	}
	slices.SortFunc(names, stream.CompareTables)
	return names
}

// executeDDL executes DDL at the sink when the tables that it concerns have reached it.
func (m *Maintainer) executeDDL(ctx context.Context, sink stream.Sink, before []stream.Table, at stream.Position, d *stream.DDL) error {
	done, err := ddlExecuted(ctx, sink, at)
	if err != nil {
		return err
	}
	if !done { // if it is executed, its tables may be past it already
		if err := m.awaitBlocked(ctx, sink, before, at); err != nil {
			return err
		}
	}
	if !m.opts.Epoch.Holding() {
		return fmt.Errorf("%w: no DDL is executed until it is renewed", fleet.ErrLeaseInDoubt)
	}
	if err := sink.ExecuteDDL(ctx, at, d, stream.Epoch{Placement: m.Placement()}); err != nil {
		return err
	}
	m.log.Info("DDL executed", "position", at, "kind", d.Kind, "tables", d.Tables)
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

// awaitBlocked returns when the dispatchers of tables have reached the DDL at a position. It also returns once the DDL is executed: an earlier
// maintainer that was frozen may come to the end of it, and then its tables are past it, or do not have their names any more.
func (m *Maintainer) awaitBlocked(ctx context.Context, sink stream.Sink, names []stream.Table, at stream.Position) error {
	asked := time.Now()
	return m.await(ctx, names, at, func(names []stream.Table, at stream.Position) (string, string) {
		table, node := m.unblocked(names, at)
		if table == "" || time.Since(asked) < executedPoll {
			return table, node
		}
		asked = time.Now()
		if done, err := ddlExecuted(ctx, sink, at); done && err == nil {
			return "", ""
		}
		return table, node
	})
}

// awaitPassed returns when the dispatchers of tables have reached the DDL at a position, or are after it. It is for DDL that is not executed at
// the sink: nothing is recorded there, so that a table may have passed it before the maintainer began.
func (m *Maintainer) awaitPassed(ctx context.Context, names []stream.Table, at stream.Position) error {
	return m.await(ctx, names, at, func(names []stream.Table, at stream.Position) (string, string) {
		return m.unblocked(m.notPast(slices.Clone(names), &stream.Transaction{Position: at}), at)
	})
}

// await waits until every table has reached the DDL at a position.
func (m *Maintainer) await(ctx context.Context, names []stream.Table, at stream.Position, left func([]stream.Table, stream.Position) (table, node string)) error {
	for began := time.Now(); ; {
		waiting, node := left(names, at)
		if waiting == "" {
			return nil
		}
		if time.Since(began) > problemExpiry {
			m.setWait(fmt.Sprintf("waiting for table %s to reach the DDL at position %d", waiting, at))
		}
		sleep(ctx, pollAfter(time.Since(began)))
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if w, _ := m.opts.Cluster.View(); w.Leases[node].Held() { // sooner than with the next round of reports: DDL holds up the checkpoint
			m.opts.Reports.Request(ctx, w, node, []*wire.Feed{m.feed()})
		}
	}
}

const (
	// blockedPoll is how often a node is asked whether a table has reached a DDL.
	blockedPoll = 10 * time.Millisecond
	// blockedPollSlow is the same once that has taken longer than blockedPollFor: as often as nodes are asked anyway, because many
	// changefeeds may wait at the same time.
	blockedPollSlow = 200 * time.Millisecond
	blockedPollFor  = time.Second
	// executedPoll is how often the sink is asked meanwhile whether somebody else has executed the DDL.
	executedPoll = 5 * time.Second
)

// pollAfter is how soon a node is asked again after so long a wait.
func pollAfter(waited time.Duration) time.Duration {
	if waited > blockedPollFor {
		return blockedPollSlow
	}
	return blockedPoll
}

// unblocked is a table among some that is not reported to have reached the DDL at a position, and its node; empty if all are. A report
// counts only if it is about this table and this DDL, and was made after the table's dispatcher was started: an earlier table of the same name may
// have stood before another DDL.
func (m *Maintainer) unblocked(names []stream.Table, at stream.Position) (table, node string) {
	reports := m.opts.Reports.Of(m.key)
	blocked := map[string]bool{}
	for node, r := range reports {
		for i, text := range r.Blocked {
			if i < len(r.BlockedAt) && r.BlockedAt[i] == uint64(at) {
				blocked[node+"\x00"+text] = true
			}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range names {
		t := m.tables[name]
		if t != nil && !(t.phase == TableRunning && reports[t.node].Round > t.since && blocked[t.node+"\x00"+wire.TableName(t.identity(name))]) {
			return name.String(), t.node
		}
	}
	return "", ""
}

// removeTables stops the dispatchers of tables that do not exist any more, and forgets the tables.
func (m *Maintainer) removeTables(ctx context.Context, names []stream.Table) error {
	for _, name := range names {
		t, runs, err := m.claim(ctx, name)
		if err != nil {
			return err
		}
		if runs {
			if err := m.stopClaimed(ctx, name, t); err != nil {
				m.mu.Lock()
				t.phase = TableRunning
				m.mu.Unlock()
				return err
			}
		}
		m.mu.Lock()
		m.forget(name)
		m.mu.Unlock()
	}
	return nil
}

// claim makes sure that no order about a table is or will be under way: a table that is forgotten while it is being started would leave a
// dispatcher that nobody knows of. It returns whether a dispatcher runs, which counts as busy then. A table without one is forgotten at once.
func (m *Maintainer) claim(ctx context.Context, name stream.Table) (t *table, runs bool, err error) {
	for {
		m.mu.Lock()
		t := m.tables[name]
		switch {
		case t == nil || t.phase == TableAbsent:
			m.forget(name)
			m.mu.Unlock()
			return nil, false, nil
		case t.phase == TableRunning:
			t.phase, t.to = TableBusy, t.node
			m.mu.Unlock()
			return t, true, nil
		}
		m.mu.Unlock()
		if ctx.Err() != nil {
			return nil, false, ctx.Err()
		}
		sleep(ctx, blockedPoll)
	}
}

// stopClaimed stops the dispatcher of a table that is claimed. If nobody holds the lease of its node, the node stops it when it is
// bootstrapped again.
func (m *Maintainer) stopClaimed(ctx context.Context, name stream.Table, t *table) error {
	w, _ := m.opts.Cluster.View()
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	order := &wire.TableOrder{Table: wire.TableName(t.identity(name)), Epoch: wire.NewEpoch(t.epoch)}
	reply, err := m.opts.Nodes.Order(ctx, w.Nodes[t.node], m.order(wire.Do_DO_STOP, []*wire.TableOrder{order}))
	if err != nil && w.Leases[t.node].Held() {
		return err
	}
	for _, result := range reply.GetResults() {
		m.noteLost(name, result)
		if result.Error != "" && !result.Lost {
			return fmt.Errorf("node %s: stop the dispatcher of table %s: %s", t.node, name, result.Error)
		}
	}
	return nil
}
