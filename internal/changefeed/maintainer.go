package changefeed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
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
	"github.com/ebb-dev/ebb/internal/deployment"
	"github.com/ebb-dev/ebb/internal/events"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

const (
	// movesAtOnce bounds the tables of a changefeed that are on their way, and batchTables how many go with one order.
	movesAtOnce = 256
	batchTables = 32
	// placeAtOnce is the same for tables that run nowhere: nothing is interrupted by placing them.
	placeAtOnce = 100_000
	placeBatch  = 2000
	// checkpointEvery is how often a checkpoint is written at most.
	checkpointEvery = 10 * time.Second
	// countsEvery is the same for how many tables there are and where, unless a drain waits for that.
	countsEvery = time.Second
	// staleProblem is when a problem that nobody has told of again counts as mended.
	staleProblem = 5 * time.Second
	// again is how soon something that failed is tried again.
	again = 250 * time.Millisecond
)

// maintainer schedules the dispatchers of one changefeed, in one placement of it.
type maintainer struct {
	run  *run
	key  dispatch.FeedKey
	log  *slog.Logger
	wake chan struct{}

	mu        sync.Mutex
	object    *v1alpha1.Changefeed
	epoch     int64 // of the placement that it works for; 0 while it works for none
	tables    map[stream.Table]*table
	counter   int64
	met       map[string]int64 // nodes that were introduced, in which of their epochs
	busy      sync.WaitGroup
	cancel    context.CancelFunc
	problem   string // what was last stumbled over, and when
	problemAt time.Time
	slowest   string               // what holds the checkpoint where it is
	short     map[string]time.Time // nodes that tell of fewer dispatchers than they should have, since when
	trigger   *stream.Position     // up to where definitions have been seen to; nil where there are none
	triggerAt time.Time
	// pending are tables of the source that the sink does not have: a definition after the checkpoint makes them, or nobody did.
	// Which of both is known when definitions have been seen to up to pendingUntil.
	pending      map[stream.Table]bool
	pendingUntil stream.Position

	// Of the loop alone.
	checkpoint stream.Position
	at         time.Time
	written    time.Time
}

// table is what the maintainer knows of one.
type table struct {
	phase TablePhase
	node  string
	to    string // where it is on its way to
	epoch stream.Epoch
	floor stream.Position // everything up to here is at the sink, while nobody tells more
	since uint64          // the round of reports after which the node tells of it
	retry time.Time
	// halted is when its dispatcher was told to stop for a move; zero unless it waits for the next to run.
	halted time.Time
}

func newMaintainer(r *run, cf *v1alpha1.Changefeed) *maintainer {
	key := keyOf(cf)
	return &maintainer{run: r, key: key, object: cf, wake: make(chan struct{}, 1), log: r.opts.Log.With("changefeed", key.String())}
}

// see takes note of a newer object.
func (m *maintainer) see(cf *v1alpha1.Changefeed) {
	cf = cf.DeepCopy() // whoever has it goes on changing it
	m.mu.Lock()
	m.object = cf
	m.mu.Unlock()
	m.poke()
}

func (m *maintainer) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *maintainer) latest() *v1alpha1.Changefeed {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.object
}

// placement is the epoch that the maintainer works for.
func (m *maintainer) placement() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.epoch
}

// stop ends what the maintainer is doing.
func (m *maintainer) stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cancel != nil {
		m.cancel()
	}
	m.poke()
}

// mine says whether the object places its maintainer here, in this incarnation of the node.
func (m *maintainer) mine(p v1alpha1.ChangefeedPlacement) bool {
	return p.Node == m.run.opts.Node && p.NodeEpoch == m.run.e.Number
}

// live works for the placements that name this node, one after the other, until none does or ctx ends.
func (m *maintainer) live(ctx context.Context) {
	for ctx.Err() == nil {
		p := m.latest().Placement()
		if from := p.From; from != nil && from.Node == m.run.opts.Node && from.NodeEpoch == m.run.e.Number && !from.Stopped {
			m.acknowledge(ctx, p.Epoch)
			continue
		}
		if !m.mine(p) {
			return
		}
		w, changed := m.run.view()
		if !w.plan().MayBegin(p) || !m.originGone(ctx, p) {
			m.await(ctx, changed, again)
			continue
		}
		m.work(ctx, p.Epoch)
		if ctx.Err() == nil && m.mine(m.latest().Placement()) && m.latest().Placement().Epoch == p.Epoch {
			m.await(ctx, nil, again)
		}
	}
}

// originGone makes sure that an origin which has not said that it stopped is over, from the server since the view may be behind,
// and writes that down for the placement that begins: a maintainer whose object is old cannot begin on the same grounds.
func (m *maintainer) originGone(ctx context.Context, p v1alpha1.ChangefeedPlacement) bool {
	if p.From == nil || p.From.Stopped {
		return true
	}
	rec, err := deployment.ReadLease(ctx, m.run.e.Client, p.From.Node)
	if err != nil {
		m.setProblem(err.Error())
		return false
	}
	if rec.Epoch != 0 && !rec.Over(p.From.NodeEpoch) {
		return false
	}
	m.settle(ctx, p.Epoch, p.From.Node)
	now := m.latest().Placement()
	return now.Epoch == p.Epoch && (now.From == nil || now.From.Stopped)
}

// acknowledge writes that nothing of an earlier placement runs here any more. It is called only when that is so.
func (m *maintainer) acknowledge(ctx context.Context, epoch int64) {
	if m.settle(ctx, epoch, m.run.opts.Node) {
		m.log.Info("maintainer stopped", "placement", epoch)
		return
	}
	m.run.sleep(ctx, again)
}

// settle writes, by compare-and-swap, that the origin of a placement has stopped.
func (m *maintainer) settle(ctx context.Context, epoch int64, origin string) bool {
	err := m.run.update(ctx, m.key, func(cf *v1alpha1.Changefeed) bool {
		m.see(cf)
		p := cf.Status.Placement
		if p == nil || p.Epoch != epoch || p.From == nil || p.From.Node != origin || p.From.Stopped {
			return false
		}
		now := metav1.NowMicro()
		p.From.Stopped, p.Since = true, &now // from now on the successor's time counts
		return true
	})
	if err != nil && ctx.Err() == nil && !kubeclient.IsMissing(err) {
		m.log.Warn("it is not written yet that the maintainer before has stopped", "error", err)
	}
	return err == nil
}

func (r *run) sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func (m *maintainer) await(ctx context.Context, changed <-chan struct{}, limit time.Duration) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-changed:
	case <-m.wake:
	}
}

// work is one placement: enter, learn, schedule. It returns, with nothing under way, when the placement is over or fails.
func (m *maintainer) work(ctx context.Context, epoch int64) {
	pass, err := m.run.opts.Gate.Enter(KindMaintainers)
	if err != nil {
		m.run.sleep(ctx, again)
		return
	}
	defer pass.Leave()
	trigger, err := m.run.opts.Gate.Enter(KindDispatchers) // the table trigger lives where its maintainer does
	if err != nil {
		m.run.sleep(ctx, again)
		return
	}
	defer trigger.Leave()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.mu.Lock()
	m.epoch, m.counter, m.cancel, m.tables, m.met = epoch, 0, cancel, map[stream.Table]*table{}, map[string]int64{}
	m.mu.Unlock()
	defer func() {
		cancel()
		m.busy.Wait()
		m.mu.Lock()
		defer m.mu.Unlock()
		m.epoch, m.cancel = 0, nil
	}()
	m.log.Info("maintainer begins", "placement", epoch)
	err = m.begin(ctx)
	if err == nil {
		m.busy.Go(func() { m.watchDefinitions(ctx) })
		err = m.schedule(ctx)
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, errOver) {
		m.log.Warn("maintainer failed", "placement", epoch, "error", err)
		m.tellProblem(ctx, err)
	}
}

// errOver: the placement that the maintainer works for is over.
var errOver = errors.New("the placement is over")

// stands fails when the object places the maintainer elsewhere, or nowhere.
func (m *maintainer) stands() error {
	cf := m.latest()
	if p := cf.Placement(); !m.mine(p) || p.Epoch != m.placement() || !cf.Wanted() {
		return errOver
	}
	return nil
}

// begin finds out where to start, which tables there are, and what runs where.
func (m *maintainer) begin(ctx context.Context) error {
	source, err := m.run.opts.Opener.Source(m.config())
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
	m.checkpoint = max(start, stream.Position(m.latest().Status.Checkpoint))
	m.setTrigger(source)
	if err := m.findTables(ctx, source, filter); err != nil {
		return err
	}
	if err := m.meetAll(ctx); err != nil {
		return err
	}
	return m.run.update(ctx, m.key, func(cf *v1alpha1.Changefeed) bool {
		m.see(cf)
		if m.stands() != nil {
			return false
		}
		now := metav1.NowMicro()
		cf.Status.Placement.Phase, cf.Status.Placement.Since, cf.Status.Placement.From = v1alpha1.PlacementRunning, &now, nil
		cf.Status.State, cf.Status.Error = v1alpha1.ChangefeedRunning, ""
		cf.Status.Tables = int64(len(m.tables))
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

// start is where the changefeed began. It is persisted before anything is read.
func (m *maintainer) start(ctx context.Context, source stream.Source) (stream.Position, error) {
	cf := m.latest()
	if cf.Status.StartPosition != nil {
		return stream.Position(*cf.Status.StartPosition), nil
	}
	start, err := ParsePosition(cf.Spec.StartPosition)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", stream.ErrUnusable, err)
	}
	if cf.Spec.StartPosition == "" {
		if start, err = source.Head(ctx); err != nil {
			return 0, err
		}
	}
	err = m.run.update(ctx, m.key, func(cf *v1alpha1.Changefeed) bool {
		m.see(cf)
		if cf.Status.StartPosition != nil || m.stands() != nil {
			return false
		}
		position := int64(start)
		cf.Status.StartPosition, cf.Status.Checkpoint = &position, position
		return true
	})
	if at := m.latest().Status.StartPosition; err == nil && at != nil {
		start = stream.Position(*at)
	}
	return start, err
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
	for name, rec := range w.leases {
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
	reply, err := m.run.peers.bootstrap(ctx, w.nodes[name], &wire.BootstrapRequest{Caller: m.run.caller(), Feed: m.feed()})
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
		if _, err := m.run.peers.order(ctx, w.nodes[name], m.order(wire.Do_DO_STOP, stray)); err != nil {
			return err
		}
	}
	m.mu.Lock()
	m.met[name] = epoch
	m.mu.Unlock()
	return nil
}

func (m *maintainer) feed() *wire.Feed {
	return &wire.Feed{Namespace: m.key.Namespace, Name: m.key.Name, Uid: m.key.UID, Epoch: m.placement()}
}

func (m *maintainer) order(do wire.Do, tables []*wire.TableOrder) *wire.OrderRequest {
	spec := m.latest().Spec
	return &wire.OrderRequest{Caller: m.run.caller(), Feed: m.feed(), Do: do, Tables: tables, Config: &wire.Config{
		Source: spec.Source, Sink: spec.Sink, SourcePasswordFile: spec.SourcePasswordFile, SinkPasswordFile: spec.SinkPasswordFile,
		Workers: spec.Workers, BatchRows: spec.BatchRows, Ddl: spec.DDL == nil || *spec.DDL,
	}}
}

func (m *maintainer) config() dispatch.Config {
	spec := m.latest().Spec
	return dispatch.Config{
		Source: spec.Source, Sink: spec.Sink, SourcePasswordFile: spec.SourcePasswordFile, SinkPasswordFile: spec.SinkPasswordFile,
		Workers: int(spec.Workers), BatchRows: int(spec.BatchRows), DDL: spec.DDL == nil || *spec.DDL,
	}
}

// schedule places and moves tables, counts and reports, until the placement is over.
func (m *maintainer) schedule(ctx context.Context) error {
	for {
		w, changed := m.run.view()
		if err := m.stands(); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		m.meet(ctx, w)
		m.place(ctx, w)
		m.advance()
		if err := m.publish(ctx, w); err != nil && ctx.Err() == nil {
			m.log.Warn("status not written yet", "error", err)
		}
		m.await(ctx, changed, time.Second)
	}
}

// place gives out the orders of one plan.
func (m *maintainer) place(ctx context.Context, w world) {
	plan := w.plan()
	tw := TableWorld{
		Schedulable: m.known(plan.Schedulable()), Gone: func(name string) bool { return !w.leases[name].Held() },
		Self: m.run.opts.Node, Moves: movesAtOnce, Settled: time.Since(w.drained) > w.balanceAfter,
	}
	if w.slot != nil {
		tw.Draining = w.slot.Node
	}
	now := time.Now()
	m.mu.Lock()
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
		size := batchTables
		if pair[0] == "" {
			size = placeBatch
		}
		for chunk := range slices.Chunk(names, size) {
			m.mu.Lock()
			for _, name := range chunk {
				m.tables[name].phase, m.tables[name].to = TableBusy, pair[1]
			}
			m.mu.Unlock()
			m.busy.Go(func() { m.move(ctx, w, pair[0], pair[1], chunk) })
		}
	}
}

// known are the nodes among some that the maintainer has met: others would get orders of a maintainer they do not know.
func (m *maintainer) known(names []string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(names, func(name string) bool { return m.met[name] == 0 })
}

// move brings a batch of tables to a node: it reads ahead there, stops here, and goes on there at the exact position.
func (m *maintainer) move(ctx context.Context, w world, from, to string, names []stream.Table) {
	defer m.poke()
	began := time.Now()
	orders := m.orders(names)
	if from != "" {
		if failed := m.send(ctx, w, to, wire.Do_DO_PREPARE, orders, nil); failed > 0 {
			m.back(names, from)
			m.abandon(ctx, w, to, orders)
			m.run.sleep(ctx, again)
			return
		}
		if !m.halt(ctx, w, from, names, orders) {
			return
		}
	}
	m.send(ctx, w, to, wire.Do_DO_START, orders, func(name stream.Table, o *wire.TableOrder) {
		round := m.run.nextRound()
		m.mu.Lock()
		defer m.mu.Unlock()
		t := m.tables[name]
		t.phase, t.node, t.epoch, t.since = TableRunning, to, fromEpoch(o.Epoch), round
		if !t.halted.IsZero() {
			m.run.opts.Metrics.paused(time.Since(t.halted))
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

// nextRound is a round of reports that begins after now.
func (r *run) nextRound() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.round
}

// orders names new dispatchers for tables, each with an epoch of its own.
func (m *maintainer) orders(names []stream.Table) map[stream.Table]*wire.TableOrder {
	m.mu.Lock()
	defer m.mu.Unlock()
	orders := map[stream.Table]*wire.TableOrder{}
	for _, name := range names {
		m.counter++
		orders[name] = &wire.TableOrder{
			Table: onWire(name), Epoch: &wire.Epoch{Placement: m.epoch, Counter: m.counter}, Position: uint64(m.tables[name].floor),
		}
	}
	return orders
}

// send gives a node an order about tables and calls done for each that was carried out. It says how many were not.
func (m *maintainer) send(ctx context.Context, w world, to string, do wire.Do, orders map[stream.Table]*wire.TableOrder, done func(stream.Table, *wire.TableOrder)) (failed int) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	reply, err := m.run.peers.order(ctx, w.nodes[to], m.order(do, slices.Collect(maps.Values(orders))))
	if err != nil {
		m.setProblem(fmt.Sprintf("node %s: %v", to, err))
		return len(orders)
	}
	for _, result := range reply.Results {
		name, _ := fromWire(result.Table)
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
func (m *maintainer) back(names []stream.Table, from string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, name := range names {
		m.tables[name].phase, m.tables[name].node = TableRunning, from
	}
}

// abandon lets go of dispatchers that were prepared in vain.
func (m *maintainer) abandon(ctx context.Context, w world, to string, orders map[stream.Table]*wire.TableOrder) {
	m.send(ctx, w, to, wire.Do_DO_STOP, orders, nil)
}

// halt stops tables on a node until each has said where it stopped, or the node is gone. It returns false if the maintainer
// ended first.
func (m *maintainer) halt(ctx context.Context, w world, from string, names []stream.Table, starts map[stream.Table]*wire.TableOrder) bool {
	left := map[stream.Table]*wire.TableOrder{}
	m.mu.Lock()
	for _, name := range names {
		m.tables[name].halted = time.Now()
		left[name] = &wire.TableOrder{Table: onWire(name), Epoch: toEpoch(m.tables[name].epoch)}
	}
	m.mu.Unlock()
	for len(left) > 0 {
		if ctx.Err() != nil {
			return false
		}
		call, cancel := context.WithTimeout(ctx, callLimit)
		reply, err := m.run.peers.order(call, w.nodes[from], m.order(wire.Do_DO_STOP, slices.Collect(maps.Values(left))))
		cancel()
		if err != nil {
			m.setProblem(fmt.Sprintf("node %s: %v", from, err))
			w, _ = m.run.view()
			if !w.leases[from].Held() {
				return true // what it had got to, the sink knows
			}
			m.run.sleep(ctx, again)
			continue
		}
		for _, result := range reply.Results {
			name, _ := fromWire(result.Table)
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
			m.run.sleep(ctx, again)
		}
	}
	return true
}

func (m *maintainer) setProblem(text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.problem, m.problemAt = text, time.Now()
}

// advance computes the checkpoint: the lowest position among all tables. Tables that are on their way, or of which their
// node has not told since they came to it, hold it where they are known to be.
func (m *maintainer) advance() {
	m.run.mu.Lock()
	reports := map[string]report{}
	for name, byFeed := range m.run.reports {
		if r, ok := byFeed[m.key]; ok {
			reports[name] = r
		}
	}
	m.run.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	expected := map[string]int64{}
	low, at, by, any := stream.Position(0), time.Time{}, "", false
	consider := func(p stream.Position, when time.Time, what string) {
		if !any || p < low {
			low, at, by, any = p, when, what, true
		}
	}
	lost := map[stream.Table]bool{}
	for name, r := range reports {
		for _, text := range r.Lost {
			if t, ok := fromWire(text); ok && m.tables[t] != nil && m.tables[t].node == name {
				lost[t] = true
			}
		}
		if r.Error != "" {
			m.problem, m.problemAt = fmt.Sprintf("node %s: %s", name, r.Error), time.Now()
		}
	}
	for name, t := range m.tables {
		if lost[name] && t.phase == TableRunning && reports[t.node].round > t.since {
			t.phase = TableAbsent
		}
		if t.phase != TableRunning || reports[t.node].FeedReport == nil || reports[t.node].round <= t.since {
			consider(t.floor, m.at, m.whereabouts(name, t))
			continue
		}
		expected[t.node]++
	}
	if m.trigger != nil {
		consider(*m.trigger, m.triggerAt, "definitions are being seen to")
	}
	if len(m.pending) > 0 {
		m.slowest = fmt.Sprintf("whether %d tables that the sink does not have are made by a definition is known when definitions have been seen to", len(m.pending))
		return // whether these flow from the checkpoint on is not known yet
	}
	for name, n := range expected {
		r := reports[name]
		if r.Running < n {
			if m.short == nil {
				m.short = map[string]time.Time{}
			}
			if since, ok := m.short[name]; !ok {
				m.short[name] = time.Now()
			} else if time.Since(since) > staleProblem {
				delete(m.met, name) // it has lost some: it is asked again what runs there
				delete(m.short, name)
			}
			m.slowest = fmt.Sprintf("node %s tells of %d dispatchers where it should have %d", name, r.Running, n)
			return
		}
		delete(m.short, name)
		slowest := r.Slowest
		if slowest != "" {
			slowest = fmt.Sprintf("node %s: %s", name, slowest)
		}
		consider(stream.Position(r.Checkpoint), time.UnixMicro(r.CheckpointUnixMicro), slowest)
	}
	m.slowest = by
	if !any || low <= m.checkpoint {
		return
	}
	m.checkpoint, m.at = low, at
	for _, t := range m.tables {
		t.floor = max(t.floor, low)
	}
}

// whereabouts says in words where a table is that nobody tells of. The caller holds the lock.
func (m *maintainer) whereabouts(name stream.Table, t *table) string {
	switch t.phase {
	case TableBusy:
		return fmt.Sprintf("table %s is on its way to node %s", name, t.to)
	case TableRunning:
		return fmt.Sprintf("table %s has just come to node %s", name, t.node)
	}
	return fmt.Sprintf("table %s runs nowhere yet", name)
}

// publish writes what has changed: where dispatchers are, that the drain is known, and now and then the checkpoint.
func (m *maintainer) publish(ctx context.Context, w world) error {
	next := m.latest().Status.DeepCopy()
	m.describe(next, w)
	last := &m.latest().Status
	every := checkpointEvery
	switch {
	case next.ObservedDrain != last.ObservedDrain || next.ObservedEpoch != last.ObservedEpoch || next.Error != last.Error:
		every = 0
	case next.Tables != last.Tables || !slices.Equal(next.Nodes, last.Nodes):
		if every = countsEvery; w.slot != nil {
			every = 0 // a drain waits for them
		}
	case next.Checkpoint == last.Checkpoint && next.Slowest == last.Slowest:
		return nil
	}
	if time.Since(m.written) < every {
		return nil
	}
	err := m.run.update(ctx, m.key, func(cf *v1alpha1.Changefeed) bool {
		m.see(cf)
		if m.stands() != nil {
			return false
		}
		m.describe(&cf.Status, w)
		return true
	})
	if err == nil {
		m.written = time.Now()
	}
	return err
}

// describe puts into a status what the maintainer knows.
func (m *maintainer) describe(s *v1alpha1.ChangefeedStatus, w world) {
	m.mu.Lock()
	defer m.mu.Unlock()
	counts := map[string]int64{m.run.opts.Node: 1} // the table trigger
	for _, t := range m.tables {
		if t.phase != TableAbsent && t.node != "" {
			counts[t.node]++
		}
	}
	s.Nodes = nil
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		s.Nodes = append(s.Nodes, v1alpha1.ChangefeedNode{Node: name, Dispatchers: counts[name]})
	}
	s.Tables = int64(len(m.tables))
	s.ObservedDrain, s.ObservedEpoch = "", m.epoch
	if w.slot != nil {
		s.ObservedDrain = w.slot.UID
	}
	s.Error = ""
	if time.Since(m.problemAt) < staleProblem {
		s.Error = m.problem
	}
	s.Checkpoint, s.Slowest = max(s.Checkpoint, int64(m.checkpoint)), m.slowest
	if !m.at.IsZero() {
		at := metav1.NewTime(m.at)
		s.CheckpointTime = &at
	}
}

// tellProblem writes why the changefeed does not flow. What cannot be mended by trying again fails it.
func (m *maintainer) tellProblem(ctx context.Context, problem error) {
	err := m.run.update(ctx, m.key, func(cf *v1alpha1.Changefeed) bool {
		m.see(cf)
		if m.stands() != nil {
			return false
		}
		cf.Status.Error = problem.Error()
		if errors.Is(problem, stream.ErrUnusable) || errors.Is(problem, stream.ErrPurged) {
			cf.Status.State = v1alpha1.ChangefeedFailed
		}
		return true
	})
	if err != nil {
		m.log.Warn("problem not written", "error", err)
	}
}
