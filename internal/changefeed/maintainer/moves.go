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
	// movesAtOnce bounds the tables of a changefeed that are on their way, unless it has very many, and batchTables how many go
	// with one order.
	movesAtOnce = 256
	batchTables = movesAtOnce / 8
	// placeAtOnce is the same for tables that run nowhere: nothing is interrupted by placing them.
	placeAtOnce = 100_000
	placeBatch  = 2000
)

// place gives out the orders of one plan.
func (m *Maintainer) place(ctx context.Context, w View) {
	tw := TableWorld{
		Schedulable: m.known(w.Schedulable()), Gone: func(name string) bool { return !w.Leases[name].Held() },
		Self: m.opts.Epoch.Node, Settled: time.Since(w.DrainSeen) > w.BalanceAfter,
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
			m.mu.Lock()
			for _, name := range chunk {
				t := m.tables[name]
				t.phase, t.node, t.to = TableBusy, pair[0], pair[1]
			}
			m.mu.Unlock()
			m.busy.Go(func() { m.move(ctx, w, pair[0], pair[1], chunk) })
		}
	}
}

// known are the nodes among some that the maintainer has met: others would get orders of a maintainer they do not know.
func (m *Maintainer) known(names []string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(names, func(name string) bool { return m.met[name] == 0 })
}

// move brings a batch of tables to a node: it reads ahead there, stops here, and goes on there at the exact position.
func (m *Maintainer) move(ctx context.Context, w View, from, to string, names []stream.Table) {
	defer m.Wake()
	began := time.Now()
	orders := m.orders(names)
	if from != "" {
		if failed := m.send(ctx, w, to, wire.Do_DO_PREPARE, orders, nil); failed > 0 {
			m.back(names, from)
			m.abandon(ctx, w, to, orders)
			sleep(ctx, again)
			return
		}
		if !m.halt(ctx, w, from, names, orders) {
			return
		}
	}
	m.send(ctx, w, to, wire.Do_DO_START, orders, func(name stream.Table, o *wire.TableOrder) {
		round := m.opts.Reports.Round()
		m.mu.Lock()
		defer m.mu.Unlock()
		t := m.tables[name]
		t.phase, t.node, t.epoch, t.since = TableRunning, to, wire.ParseEpoch(o.Epoch), round
		if !t.halted.IsZero() {
			m.opts.Paused(time.Since(t.halted))
			t.halted = time.Time{}
		}
	})
	m.mu.Lock()
	for _, name := range names {
		if t := m.tables[name]; t.phase == TableBusy { // it could not be started; it is placed again
			t.phase, t.retry = TableAbsent, time.Now().Add(again)
		}
	}
	m.mu.Unlock()
	if from != "" {
		m.log.Info("tables moved", "tables", len(names), "from", from, "to", to, "took", time.Since(began).Round(time.Millisecond))
	}
}

// orders names new dispatchers for tables, each with an epoch of its own.
func (m *Maintainer) orders(names []stream.Table) map[stream.Table]*wire.TableOrder {
	m.mu.Lock()
	defer m.mu.Unlock()
	orders := map[stream.Table]*wire.TableOrder{}
	for _, name := range names {
		m.counter++
		orders[name] = &wire.TableOrder{
			Table: wire.TableName(name), Epoch: &wire.Epoch{Placement: m.epoch, Counter: m.counter}, Position: uint64(m.tables[name].floor),
		}
	}
	return orders
}

// send gives a node an order about tables and calls done for each that was carried out. It says how many were not.
func (m *Maintainer) send(ctx context.Context, w View, to string, do wire.Do, orders map[stream.Table]*wire.TableOrder, done func(stream.Table, *wire.TableOrder)) (failed int) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	reply, err := m.opts.Nodes.Order(ctx, w.Nodes[to], m.order(do, slices.Collect(maps.Values(orders))))
	if err != nil {
		m.setProblem(fmt.Sprintf("node %s: %v", to, err))
		return len(orders)
	}
	for _, result := range reply.Results {
		name, _ := wire.ParseTable(result.Table)
		switch o := orders[name]; {
		case o == nil:
		case result.Error != "":
			failed++
			m.setProblem(fmt.Sprintf("node %s: %s", to, result.Error))
		case done != nil:
			done(name, o)
		}
	}
	return failed
}

// back puts tables that were not moved to where they run.
func (m *Maintainer) back(names []stream.Table, from string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range names {
		m.tables[name].phase, m.tables[name].node = TableRunning, from
	}
}

// abandon lets go of dispatchers that were prepared in vain.
func (m *Maintainer) abandon(ctx context.Context, w View, to string, orders map[stream.Table]*wire.TableOrder) {
	m.send(ctx, w, to, wire.Do_DO_STOP, orders, nil)
}

// halt stops tables on a node until each has said where it stopped, or the node is gone. It returns false if the maintainer
// ended first.
func (m *Maintainer) halt(ctx context.Context, w View, from string, names []stream.Table, starts map[stream.Table]*wire.TableOrder) bool {
	left := map[stream.Table]*wire.TableOrder{}
	m.mu.Lock()
	for _, name := range names {
		m.tables[name].halted = time.Now()
		left[name] = &wire.TableOrder{Table: wire.TableName(name), Epoch: wire.NewEpoch(m.tables[name].epoch)}
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
				return true // what it had got to, the sink knows
			}
			sleep(ctx, again)
			continue
		}
		for _, result := range reply.Results {
			name, _ := wire.ParseTable(result.Table)
			if result.Error != "" {
				m.setProblem(fmt.Sprintf("node %s: %s", from, result.Error))
				continue
			}
			m.mu.Lock()
			if result.Found {
				m.tables[name].floor = max(m.tables[name].floor, stream.Position(result.Position))
				starts[name].Position = uint64(m.tables[name].floor)
			}
			m.mu.Unlock()
			delete(left, name)
		}
		if len(left) > 0 {
			sleep(ctx, again)
		}
	}
	return true
}
