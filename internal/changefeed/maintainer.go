package changefeed

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/changefeed/dispatch"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/changefeed/wire"
	"github.com/ebb-dev/ebb/internal/deployment"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

const (
	// staleProblem is when a problem that nobody has told of again counts as mended.
	staleProblem = 5 * time.Second
	// again is how soon something that failed is tried again.
	again = 250 * time.Millisecond
	// againLast is how soon, if it goes on failing.
	againLast = 5 * time.Second
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
	// pending are tables of the source that the sink does not have: a definition after pendingFrom makes them, or nobody did.
	// Which of both is known when definitions have been seen to up to pendingUntil.
	pending                   map[stream.Table]bool
	pendingFrom, pendingUntil stream.Position

	// Of the loop alone.
	started    *stream.Position // where the changefeed began; nil while that is not known
	checkpoint stream.Position
	at         time.Time
	written    time.Time // when the status last was
	unwritten  time.Time // when that last failed
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

// see takes note of an object, unless it is older than what was seen before: a write may begin with what was seen last while the
// watch brings something newer, and a maintainer that went back would not learn that it is over.
func (m *maintainer) see(cf *v1alpha1.Changefeed) {
	cf = cf.DeepCopy() // whoever has it goes on changing it
	m.mu.Lock()
	if !older(cf, m.object) {
		m.object = cf
	}
	m.mu.Unlock()
	m.poke()
}

// older says whether one version of an object was written before another.
func older(a, b *v1alpha1.Changefeed) bool {
	x, errA := strconv.ParseUint(a.ResourceVersion, 10, 64)
	y, errB := strconv.ParseUint(b.ResourceVersion, 10, 64)
	return a.UID == b.UID && errA == nil && errB == nil && x < y
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
	pauses := backoff.New(backoff.Policy{First: again, Longest: againLast})
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
		began := time.Now()
		m.work(ctx, p.Epoch)
		if time.Since(began) > pauses.Peek()+againLast {
			pauses.Reset()
		}
		// One that could not begin tries again, less and less often, until the placement is another.
		for end := time.Now().Add(pauses.Next()); ctx.Err() == nil && m.stillMine(p.Epoch) && time.Now().Before(end); {
			m.await(ctx, nil, time.Until(end))
		}
	}
}

// stillMine says whether the object places its maintainer here, in the same placement.
func (m *maintainer) stillMine(epoch int64) bool {
	p := m.latest().Placement()
	return m.mine(p) && p.Epoch == epoch
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
		// The successor need not go over what was done here, and begins where this one would have.
		m.keepStart(&cf.Status)
		cf.Status.Checkpoint = max(cf.Status.Checkpoint, int64(m.checkpoint))
		return true
	})
	if err != nil && ctx.Err() == nil && !kubeclient.IsMissing(err) {
		m.log.Warn("it is not written yet that the maintainer before has stopped", "error", err)
	}
	return err == nil
}

func (r *run) sleep(ctx context.Context, d time.Duration) {
	_ = backoff.Sleep(ctx, d) // callers look at ctx themselves
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

func (m *maintainer) feed() *wire.Feed {
	return &wire.Feed{Namespace: m.key.Namespace, Name: m.key.Name, Uid: m.key.UID, Epoch: m.placement()}
}

func (m *maintainer) order(do wire.Do, tables []*wire.TableOrder) *wire.OrderRequest {
	spec := m.latest().Spec
	return &wire.OrderRequest{Caller: m.run.caller(), Feed: m.feed(), Do: do, Tables: tables, Config: &wire.Config{
		Source: spec.Source, Sink: spec.Sink, SourcePasswordFile: spec.SourcePasswordFile, SinkPasswordFile: spec.SinkPasswordFile,
		SourceSecret: secretOnWire(spec.SourcePasswordSecretRef), SinkSecret: secretOnWire(spec.SinkPasswordSecretRef),
		Workers: spec.Workers, BatchRows: spec.BatchRows, Ddl: spec.DDL == nil || *spec.DDL,
	}}
}

// config is what to open, with the passwords read anew.
func (m *maintainer) config(ctx context.Context) (dispatch.Config, error) {
	spec := m.latest().Spec
	return m.run.opts.Opener.Resolve(ctx, m.key.Namespace, dispatch.Config{
		Source: spec.Source, Sink: spec.Sink, SourcePasswordFile: spec.SourcePasswordFile, SinkPasswordFile: spec.SinkPasswordFile,
		SourceSecret: secretRef(spec.SourcePasswordSecretRef), SinkSecret: secretRef(spec.SinkPasswordSecretRef),
		Workers: int(spec.Workers), BatchRows: int(spec.BatchRows), DDL: spec.DDL == nil || *spec.DDL,
	})
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
		began := time.Now()
		m.meet(ctx, w)
		m.place(ctx, w)
		m.advance()
		if err := m.publish(ctx, w); err != nil && ctx.Err() == nil {
			m.log.Warn("status not written yet", "error", err)
		}
		m.await(ctx, changed, time.Second)
		m.run.sleep(ctx, m.rest()-time.Since(began))
	}
}

// rest is how long a round takes at least: each looks at every table.
func (m *maintainer) rest() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return min(time.Duration(len(m.tables))*time.Microsecond, 50*time.Millisecond)
}

func (m *maintainer) setProblem(text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.problem, m.problemAt = text, time.Now()
}
