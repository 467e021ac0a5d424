package maintainer

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/changefeed/wire"
)

const (
	// movesAtOnce bounds how many tables of a changefeed move at the same time, unless it has very many, and batchTables how many
	// are in one request.
	movesAtOnce = 256
	batchTables = movesAtOnce / 8
	// placeAtOnce and placeBatch are the same for tables that run on no node: placing them interrupts no replication.
	placeAtOnce = 100_000
	placeBatch  = 2000
)

// place plans, and starts to carry out the plan.
func (m *Maintainer) place(ctx context.Context, w View) {
	if m.suspicious() {
		return
	}
	tw := TableWorld{
		Schedulable: m.bootstrappedOf(w, w.SchedulableNodes()), Gone: func(name string) bool { return !w.Leases[name].Held() },
		Self: m.opts.Epoch.Node, Settled: w.Settling.Settled(w.Fleet, time.Now()),
	}
	if w.Slot != nil {
		tw.Draining = w.Slot.Node
	}
	now := time.Now()
	m.mu.Lock()
	moves := max(movesAtOnce, len(m.tables)/64)
	tw.Moves, tw.Tables = moves, make([]TableState, 0, len(m.tables))
	for name, t := range m.tables {
		if t.phase == TableRunning && tw.Gone(t.node) {
			t.phase = TableAbsent
		}
		if t.phase == TableAbsent {
			tw.Moves = placeAtOnce
			if now.Before(t.retry) {
				continue
			}
		}
		state := TableState{Table: name, Phase: t.phase, Node: t.node}
		if t.phase == TableBusy {
			state.Node = t.to
		}
		tw.Tables = append(tw.Tables, state)
	}
	m.mu.Unlock()
	groups := map[[2]string][]stream.Table{}
	for _, move := range PlaceTables(tw) {
		pair := [2]string{move.From, move.To}
		groups[pair] = append(groups[pair], move.Table)
	}
	for pair, names := range groups {
		size := max(batchTables, moves/8)
		if pair[0] == "" {
			size = placeBatch
		}
		for chunk := range slices.Chunk(names, size) {
			list := m.begin(chunk, pair[0], pair[1])
			if len(list) == 0 {
				continue
			}
			m.busy.Go(func() { m.move(ctx, w, pair[0], pair[1], list) })
		}
	}
}

// begin marks tables that an order is about to be sent about. They are not looked up by name again: the table trigger may meanwhile
// replace a table by another of the same name. It leaves out those that are gone.
func (m *Maintainer) begin(names []stream.Table, from, to string) map[stream.Table]*table {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := map[stream.Table]*table{}
	for _, name := range names {
		if t := m.tables[name]; t != nil && t.phase != TableBusy {
			t.phase, t.node, t.to = TableBusy, from, to
			list[name] = t
		}
	}
	return list
}

// bootstrappedOf are those of some nodes that are bootstrapped in their present epoch: others might still accept orders of an earlier
// maintainer, or have dispatchers that are not known. Nodes of earlier versions are not among them.
func (m *Maintainer) bootstrappedOf(w View, names []string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(names, func(name string) bool {
		return m.bootstrapped[name] == 0 || m.bootstrapped[name] != w.Leases[name].Epoch || m.outdated[name]
	})
}

// move moves tables to a node: their dispatchers there read ahead, those on the origin stop, and those there continue at the exact
// position. Without an origin they only start.
func (m *Maintainer) move(ctx context.Context, w View, from, to string, list map[stream.Table]*table) {
	defer m.Wake()
	began := time.Now()
	orders := m.newOrders(list)
	if from != "" {
		if failed := m.send(ctx, w, to, wire.Do_DO_PREPARE, orders, nil); failed > 0 {
			m.keep(list, from)
			m.discard(ctx, w, to, orders)
			sleep(ctx, retryDelay)
			return
		}
		if !m.stopTables(ctx, w, from, list, orders) {
			return
		}
		if lost := m.leaveLost(list, orders); len(lost) > 0 {
			m.discard(ctx, w, to, lost)
		}
	}
	started := map[*table]bool{}
	m.send(ctx, w, to, wire.Do_DO_START, orders, func(name stream.Table, o *wire.TableOrder, at stream.Position) {
		round := m.opts.Reports.Round()
		m.mu.Lock()
		defer m.mu.Unlock()
		t := list[name]
		started[t] = true
		t.phase, t.node, t.epoch, t.since, t.reached = TableRunning, to, wire.ParseEpoch(o.Epoch), round, at
		if !t.stoppedAt.IsZero() {
			m.opts.Paused(time.Since(t.stoppedAt))
			t.stoppedAt = time.Time{}
		}
	})
	m.mu.Lock()
	for _, t := range list {
		if t.phase == TableBusy && !started[t] { // it could not be started; place it again
			t.phase, t.retry = TableAbsent, time.Now().Add(retryDelay)
		}
	}
	m.mu.Unlock()
	if from != "" {
		m.log.Info("tables moved", "tables", len(list), "from", from, "to", to, "took", time.Since(began).Round(time.Millisecond))
	}
}

// leaveLost removes from a move the tables whose dispatchers were Lost when they were stopped, and returns their orders. They are placed again
// when it is known whether the sink went back.
func (m *Maintainer) leaveLost(list map[stream.Table]*table, orders map[stream.Table]*wire.TableOrder) map[stream.Table]*wire.TableOrder {
	lost := map[stream.Table]*wire.TableOrder{}
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, t := range list {
		if t.phase == TableAbsent {
			lost[name] = orders[name]
			delete(orders, name)
			delete(list, name)
		}
	}
	return lost
}

// newOrders makes an order for each table, with a new epoch.
func (m *Maintainer) newOrders(list map[stream.Table]*table) map[stream.Table]*wire.TableOrder {
	m.mu.Lock()
	defer m.mu.Unlock()
	orders := map[stream.Table]*wire.TableOrder{}
	for name, t := range list {
		m.counter++
		orders[name] = &wire.TableOrder{
			Table: wire.TableName(t.identity(name)), Epoch: &wire.Epoch{Placement: m.epoch, Counter: m.counter}, Position: uint64(t.floor), Begins: uint64(t.from), Members: wire.TableNames(t.identities()), Watches: wire.Names(t.watches),
		}
	}
	return orders
}

// send sends orders to a node and calls done for each that succeeded. It returns how many failed. If the answer is lost, the node may have
// carried them out: it is bootstrapped again, which takes over what was started or stops it.
func (m *Maintainer) send(ctx context.Context, w View, to string, do wire.Do, orders map[stream.Table]*wire.TableOrder, done func(stream.Table, *wire.TableOrder, stream.Position)) (failed int) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	reply, err := m.opts.Nodes.Order(ctx, w.Nodes[to], m.order(do, slices.Collect(maps.Values(orders))))
	if err != nil {
		m.mu.Lock()
		m.doubt(to)
		m.mu.Unlock()
		m.setProblem(fmt.Sprintf("node %s: %v", to, err))
		return len(orders)
	}
	for _, result := range reply.Results {
		id, _ := wire.ParseTable(result.Table)
		name := id.Table
		switch o := orders[name]; {
		case o == nil || o.Table != result.Table: // it is about another table of the name
		case result.Error != "":
			failed++
			m.noteLost(name, result)
			text := fmt.Sprintf("node %s: %s", to, result.Error)
			m.setProblem(text)
			m.noteOrder(name, text, result.Hopeless)
		default:
			m.noteOrder(name, "", false)
			if done != nil {
				done(name, o, stream.Position(result.Position))
			}
		}
	}
	return failed
}

// noteOrder records whether an order about a table failed in a way that retrying does not resolve.
func (m *Maintainer) noteOrder(name stream.Table, text string, hopeless bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.noteHopeless("table "+name.String(), text, hopeless, 0)
}

// noteLost makes the maintainer check whether the sink went back, if a node reports a Lost dispatcher.
func (m *Maintainer) noteLost(name stream.Table, result *wire.TableResult) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t := m.tables[name]; t != nil && result.Lost {
		m.suspect(t)
	}
}

// keep marks tables that could not be moved as running on their origin.
func (m *Maintainer) keep(list map[stream.Table]*table, from string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range list {
		t.phase, t.node = TableRunning, from
	}
}

// discard stops dispatchers that were prepared for a move that does not take place.
func (m *Maintainer) discard(ctx context.Context, w View, to string, orders map[stream.Table]*wire.TableOrder) {
	m.send(ctx, w, to, wire.Do_DO_STOP, orders, nil)
}

// stopTables stops the dispatchers of tables on a node, and enters into starts the position at which each stopped. It retries until
// all have, or nobody holds the node's lease. It returns false if ctx was cancelled first. Those that were Lost are Absent then.
func (m *Maintainer) stopTables(ctx context.Context, w View, from string, list map[stream.Table]*table, starts map[stream.Table]*wire.TableOrder) bool {
	left := map[stream.Table]*wire.TableOrder{}
	m.mu.Lock()
	for name, t := range list {
		t.stoppedAt = time.Now()
		left[name] = &wire.TableOrder{Table: wire.TableName(t.identity(name)), Epoch: wire.NewEpoch(t.epoch)}
	}
	m.mu.Unlock()
	for len(left) > 0 {
		if ctx.Err() != nil {
			return false
		}
		call, cancel := context.WithTimeout(ctx, callLimit)
		reply, err := m.opts.Nodes.Order(call, w.Nodes[from], m.order(wire.Do_DO_STOP, slices.Collect(maps.Values(left))))
		cancel()
		if err != nil {
			m.setProblem(fmt.Sprintf("node %s: %v", from, err))
			w, _ = m.opts.Cluster.View()
			if !w.Leases[from].Held() {
				return true // the sink knows the positions
			}
			sleep(ctx, retryDelay)
			continue
		}
		for _, result := range reply.Results {
			id, _ := wire.ParseTable(result.Table)
			name := id.Table
			if o := left[name]; o == nil || o.Table != result.Table {
				continue
			}
			if result.Error != "" {
				m.setProblem(fmt.Sprintf("node %s: %s", from, result.Error))
			}
			if result.Error != "" && !result.Lost {
				continue
			}
			m.mu.Lock()
			if t := list[name]; result.Lost && t != nil {
				m.suspect(t)
				t.phase = TableAbsent
			}
			if result.Found && list[name] != nil {
				list[name].floor = max(list[name].floor, stream.Position(result.Position))
				starts[name].Position = uint64(list[name].floor)
			}
			m.mu.Unlock()
			delete(left, name)
		}
		if len(left) > 0 {
			sleep(ctx, retryDelay)
		}
	}
	return true
}
