package maintainer

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/changefeed/dispatch"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/worker"
)

const (
	// problemExpiry is how long after it was last reported a problem is shown in the status.
	problemExpiry = 5 * time.Second
	// retryDelay is how long to wait before a failed attempt is repeated.
	retryDelay = 250 * time.Millisecond
	// maxRetryDelay bounds that delay while attempts keep failing.
	maxRetryDelay = 5 * time.Second
	// callLimit bounds one request to a node.
	callLimit = 10 * time.Second
)

// Maintainer schedules the dispatchers of one changefeed.
type Maintainer struct {
	*worker.Worker[*v1alpha1.Changefeed]
	opts Options
	key  dispatch.FeedKey
	log  *slog.Logger

	mu           sync.Mutex
	epoch        int64 // of the placement that it works for; 0 while it works for none
	tables       map[stream.Table]*table
	grouped      map[stream.Table]stream.Table   // of each table in a group, the one that stands for the group in tables
	keyed        map[stream.Table][]stream.Table // of each table that foreign keys join with others, all of them
	counter      int64                           // of the epochs that dispatchers were given in a placement
	countedFor   int64                           // that placement: the next attempt in it must not give an epoch again
	countedFrom  int64                           // the counter when this attempt began
	bootstrapped map[string]int64                // nodes that have answered Bootstrap, and in which of their epochs
	outdated     map[string]bool                 // those of them that run an earlier version, which cannot write the sink
	asking       map[string]bool                 // nodes whose answer to Bootstrap a round of the loop has not waited for
	doubts       map[string]int                  // how often each node was suspected to have dispatchers that are not known
	first        bool                            // the first bootstrap of the placement is under way
	busy         sync.WaitGroup
	cancel       context.CancelFunc
	gone         bool   // the object was deleted
	problem      string // the last problem, and when it was reported
	problemAt    time.Time
	wait         string // what DDL has waited for, and when that was last so; a problem is more likely to be the reason
	waitAt       time.Time
	stopped      stream.Position      // the checkpoint of the last placement, once that has ended
	failure      error                // why the changefeed cannot continue
	slowest      string               // what keeps the checkpoint from advancing
	shortSince   map[string]time.Time // nodes that report fewer dispatchers than were started there, since when
	overSince    map[string]time.Time // nodes that report more dispatchers than can run there, since when
	ddlDone      *stream.Position     // all DDL up to here is executed; nil if the changefeed carries no DDL
	ddlDoneAt    time.Time
	// missing are tables of the source that the sink lacks. Either DDL after missingFrom creates them, or they must be created by
	// hand; which is known once all DDL up to missingUntil is executed.
	missing                   map[stream.Table]bool
	missingFrom, missingUntil stream.Position
	missingHolders            map[stream.Table]stream.Holder // which tables have their names, as far as the sink knows
	// unsure is set if the sink and the source have different tables, or if the tables of the sink are not known. Otherwise every table that
	// existed at missingFrom has the same name now, or a name that another known table has now.
	unsure bool

	saver saver
	// hopeless are errors that retrying does not resolve, by what has them.
	hopeless map[string]hopelessSince

	// spec is what this attempt works by: a change applies to all tables or to none. Only bootstrap changes it.
	spec v1alpha1.ChangefeedSpec

	// Used by the loop of schedule, and before it by bootstrap, only.
	filter          stream.Filter              // that is in effect
	skips           []string                   // GTIDs of transactions that are not replicated
	resumed         *v1alpha1.ChangefeedResume // where it continued instead of at its checkpoint; nil unless it has just done so
	lacking         lacking                    // cascading keys that the sink may lack; of the table trigger once that runs
	filterBefore    *stream.Filter             // the one before it, if that has changed since the changefeed was stopped
	copied          copied                     // how far the initial copy is
	wentBack        bool                       // the sink does not have the checkpoint that was published
	started         *stream.Position           // where the changefeed began; nil while that is not known
	checkpoint      stream.Position
	at              time.Time // when the source committed the transaction at the checkpoint
	publishedAt     time.Time
	publishFailedAt time.Time
}

// table is what the maintainer knows of a table.
type table struct {
	// members are the tables of a group that one dispatcher writes; none if it is a single table.
	members []stream.Table
	// absent are those of them that were not known when the group was made: they do not exist, or no longer do at the source.
	absent []stream.Table
	// watches are other tables, whose DDL it waits for because foreign keys join them.
	watches []stream.Table
	has     stream.Position                  // a single table has its name since then
	named   map[stream.Table]stream.Position // the members of a group have their names since then
	phase   TablePhase
	node    string
	to      string // the node that it moves to
	epoch   stream.Epoch
	from    stream.Position // of the DDL after which its dispatcher begins; 0 if that was before the changefeed or is not known
	floor   stream.Position // everything up to here is known to be at the sink
	since   uint64          // only reports of a later round include its dispatcher
	reached stream.Position // where its dispatcher began, which may be after DDL that is read again; 0 if that is not known
	retry   time.Time       // it is not placed before this time
	// stoppedAt is when its dispatcher was ordered to stop for a move; zero unless the next one has yet to start.
	stoppedAt time.Time
}

// New makes the maintainer of a changefeed. It does nothing until Run.
func New(o Options, cf *v1alpha1.Changefeed) *Maintainer {
	key := KeyOf(cf)
	m := &Maintainer{Worker: worker.New[*v1alpha1.Changefeed](), opts: o, key: key, log: o.Log.With("changefeed", key.String())}
	m.reset(0)
	m.See(cf)
	return m
}

// KeyOf is the key of a changefeed's dispatchers.
func KeyOf(cf *v1alpha1.Changefeed) dispatch.FeedKey {
	return dispatch.FeedKey{Namespace: cf.Namespace, Name: cf.Name, UID: string(cf.UID)}
}

// Observe replaces the object by another version unless that is older: a write may return an older version than the watch has
// delivered meanwhile, and a maintainer that went back would not notice that its placement has been superseded.
func (m *Maintainer) Observe(cf *v1alpha1.Changefeed) {
	m.See(cf.DeepCopy()) // the caller may change its own
}

// Latest is the newest version of the object that the maintainer has observed. It must not be changed.
func (m *Maintainer) Latest() *v1alpha1.Changefeed {
	cf, _ := m.Newest()
	return cf
}

// Placement is the epoch of the placement that the maintainer works for, 0 while it works for none.
func (m *Maintainer) Placement() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.epoch
}

// Stop cancels the placement that the maintainer works for.
func (m *Maintainer) Stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cancel != nil {
		m.cancel()
	}
	m.Wake()
}

// Gone ends Run: the object was deleted. Usually its placement was taken away before, but finalizers can be removed by hand.
func (m *Maintainer) Gone() {
	m.mu.Lock()
	m.gone = true
	m.mu.Unlock()
	m.Stop()
}

func (m *Maintainer) isGone() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.gone
}

// placedHere reports whether a placement names this node in its present epoch.
func (m *Maintainer) placedHere(p v1alpha1.ChangefeedPlacement) bool {
	return p.Node == m.opts.Epoch.Node && p.NodeEpoch == m.opts.Epoch.Number
}

// Run works for the placements that name this node, one after the other. It returns when none does, the object is gone or ctx is
// cancelled.
func (m *Maintainer) Run(ctx context.Context) {
	pauses := backoff.New(backoff.Policy{First: retryDelay, Longest: maxRetryDelay})
	for ctx.Err() == nil && !m.isGone() {
		p := m.Latest().Placement()
		if from := p.From; from != nil && from.Node == m.opts.Epoch.Node && from.NodeEpoch == m.opts.Epoch.Number && !from.Stopped {
			m.acknowledge(ctx, p.Epoch)
			continue
		}
		if !m.placedHere(p) {
			return
		}
		w, changed := m.opts.Cluster.View()
		if cf := m.Latest(); !cf.Wanted() || cf.Status.State == v1alpha1.ChangefeedFailed || !w.MayBegin(p) || !m.ensureOriginStopped(ctx, p) {
			m.Wait(ctx, retryDelay, worker.On{changed})
			continue
		}
		began := time.Now()
		m.work(ctx, p.Epoch)
		if time.Since(began) > pauses.Peek()+maxRetryDelay {
			pauses.Reset()
		}
		// A placement that failed is retried, with a growing delay, until it is superseded.
		for end := time.Now().Add(pauses.Next()); ctx.Err() == nil && !m.isGone() && m.stillPlacedHere(p.Epoch) && time.Now().Before(end); {
			m.Wait(ctx, time.Until(end), worker.On{})
		}
	}
}

// stillPlacedHere reports whether a placement of this node has not been superseded.
func (m *Maintainer) stillPlacedHere(epoch int64) bool {
	p := m.Latest().Placement()
	return m.placedHere(p) && p.Epoch == epoch
}

// ensureOriginStopped reports whether the origin of a placement has stopped. One that has not acknowledged has stopped if the
// lease of its node was released or fenced since: that is read from the API server, because the view may be outdated, and recorded
// in the object before this placement begins. So a maintainer that has an outdated object cannot begin for the same reason.
func (m *Maintainer) ensureOriginStopped(ctx context.Context, p v1alpha1.ChangefeedPlacement) bool {
	if p.From == nil || p.From.Stopped {
		return true
	}
	rec, err := fleet.ReadLease(ctx, m.opts.Epoch.Client, p.From.Node)
	if err != nil {
		m.setProblem(err.Error())
		return false
	}
	if rec.Epoch != 0 && !rec.Over(p.From.NodeEpoch) {
		return false
	}
	m.recordStopped(ctx, p.Epoch, p.From.Node)
	now := m.Latest().Placement()
	return now.Epoch == p.Epoch && (now.From == nil || now.From.Stopped)
}

// acknowledge records that this node, the origin of a placement, has stopped. Run calls it while nothing runs.
func (m *Maintainer) acknowledge(ctx context.Context, epoch int64) {
	if m.recordStopped(ctx, epoch, m.opts.Epoch.Node) {
		m.log.Info("maintainer stopped", "placement", epoch)
		return
	}
	sleep(ctx, retryDelay)
}

// recordStopped records in the object that the origin of a placement has stopped.
func (m *Maintainer) recordStopped(ctx context.Context, epoch int64, origin string) bool {
	err := m.opts.Status.Update(ctx, m.key, func(cf *v1alpha1.Changefeed) bool {
		m.Observe(cf)
		p := cf.Status.Placement
		if p == nil || p.Epoch != epoch || p.From == nil || p.From.Node != origin || p.From.Stopped {
			return false
		}
		now := metav1.NowMicro()
		p.From.Stopped, p.Since = true, &now // the successor's bootstrap timeout counts from now
		// The successor starts from the newest checkpoint, not from the one that was last published.
		m.keepStart(&cf.Status)
		m.mu.Lock()
		cf.Status.Checkpoint = max(cf.Status.Checkpoint, int64(m.stopped))
		m.mu.Unlock()
		return true
	})
	if err != nil && ctx.Err() == nil && !kubeclient.IsMissing(err) {
		m.log.Warn("could not record that the previous maintainer stopped; retrying", "origin", origin, "placement", epoch, "error", err)
	}
	return err == nil
}

func sleep(ctx context.Context, d time.Duration) {
	_ = backoff.Sleep(ctx, d) // callers look at ctx themselves
}

// work runs one placement. It returns when the placement is superseded or fails, after everything that it started has ended.
func (m *Maintainer) work(ctx context.Context, epoch int64) {
	pass, err := m.opts.Gate.Enter(Counted)
	if err != nil {
		sleep(ctx, retryDelay)
		return
	}
	defer pass.Leave()
	trigger, err := m.opts.Gate.Enter(DispatchersCounted) // the table trigger counts as a dispatcher on this node
	if err != nil {
		sleep(ctx, retryDelay)
		return
	}
	defer trigger.Leave()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.mu.Lock()
	if m.gone { // since the last look
		m.mu.Unlock()
		return
	}
	m.reset(epoch)
	m.cancel = cancel
	m.mu.Unlock()
	defer func() {
		cancel()
		m.busy.Wait()
		m.stopSaving(context.WithoutCancel(ctx))
		m.mu.Lock()
		defer m.mu.Unlock()
		m.epoch, m.cancel = 0, nil
	}()
	m.log.Info("maintainer started", "placement", epoch)
	err = m.bootstrap(ctx)
	if err == nil {
		m.busy.Go(func() { m.watchDDL(ctx) })
		err = m.schedule(ctx)
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, errSuperseded) {
		m.log.Warn("maintainer failed", "placement", epoch, "error", err)
		m.publishProblem(ctx, err)
	}
}

// reset forgets everything of the last attempt, except which epochs it gave to dispatchers in the same placement: the sink refuses one that
// is older than what it has recorded. The caller holds the lock.
func (m *Maintainer) reset(epoch int64) {
	if m.countedFor != epoch {
		m.countedFor, m.counter = epoch, 0
	}
	m.countedFrom = m.counter
	m.epoch, m.failure = epoch, nil
	m.tables, m.grouped, m.keyed = map[stream.Table]*table{}, map[stream.Table]stream.Table{}, map[stream.Table][]stream.Table{}
	m.asking = map[string]bool{}
	m.bootstrapped, m.outdated, m.doubts, m.shortSince, m.overSince = map[string]int64{}, map[string]bool{}, map[string]int{}, map[string]time.Time{}, map[string]time.Time{}
	m.hopeless = map[string]hopelessSince{}
}

// errSuperseded: the object no longer has the placement that the maintainer works for.
var errSuperseded = errors.New("the placement has been superseded")

// checkPlacement returns errSuperseded if the object places the maintainer elsewhere, or if the changefeed has failed, is paused or deleted.
func (m *Maintainer) checkPlacement() error {
	cf := m.Latest()
	if p := cf.Placement(); !m.placedHere(p) || p.Epoch != m.Placement() || !cf.Wanted() || cf.Status.State == v1alpha1.ChangefeedFailed {
		return errSuperseded
	}
	return nil
}

// schedule places and moves tables, advances the checkpoint and publishes the status until the placement is superseded.
func (m *Maintainer) schedule(ctx context.Context) error {
	for {
		w, changed := m.opts.Cluster.View()
		if err := m.checkPlacement(); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := m.failed(); err != nil {
			return err
		}
		began := time.Now()
		m.bootstrapRound(ctx, w)
		m.place(ctx, w)
		m.advance()
		if err := m.publish(ctx, w); err != nil && ctx.Err() == nil {
			m.log.Warn("could not write the status; retrying", "error", err)
		}
		m.Wait(ctx, time.Second, worker.On{changed})
		sleep(ctx, m.roundLimit()-time.Since(began))
	}
}

// failed is why the changefeed cannot continue, or nil.
func (m *Maintainer) failed() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.failure
}

// roundLimit is the shortest time that a round may take: each goes over all tables.
func (m *Maintainer) roundLimit() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return min(time.Duration(len(m.tables))*time.Microsecond, 50*time.Millisecond)
}

func (m *Maintainer) setProblem(text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.problem, m.problemAt = text, time.Now()
}

func (m *Maintainer) setWait(text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wait, m.waitAt = text, time.Now()
}
