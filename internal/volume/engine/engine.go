package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/volume/block"
)

// ErrStoreIsOlder: a replica knows a newer generation than the Volume, so that the API has lost what was recorded before. Nothing is opened.
var ErrStoreIsOlder = errors.New("a replica knows a newer generation than the Volume")

// ErrNotReleased: the coordinator counts on a member again that should have left.
var ErrNotReleased = errors.New("the replica is not released any more")

// Record is what an engine records in its Volume.
type Record struct {
	// From is the generation before, and Generation the one after.
	From, Generation int64
	// Members from then on, sorted.
	Members []string
	// Leaving are members that leave only because they were released.
	Leaving []string
}

// Timing says how long an engine waits for what.
type Timing struct {
	// Heartbeat is the pause between two pings of a member.
	Heartbeat time.Duration
	// Unanswered is how long a member may leave pings unanswered before I/O stops and the member is given up.
	Unanswered time.Duration
	// FenceWait is how long an engine that left members behind waits before it serves. It is longer than Unanswered of any engine.
	FenceWait time.Duration
	// MemberWait is how long an engine that opens waits for members that do not answer while others do.
	MemberWait time.Duration
	// ClearAfter is how long a chunk must not have been written before its intent is cleared.
	ClearAfter time.Duration
	// Stuck is how long a disk may take at most for a write or a flush while that of another member answers. Half of it is always allowed.
	Stuck time.Duration
}

// DefaultTiming is the timing of engines that are not under test.
func DefaultTiming() Timing {
	return Timing{Heartbeat: 500 * time.Millisecond, Unanswered: 3 * time.Second, FenceWait: 10 * time.Second, MemberWait: 5 * time.Second, ClearAfter: 5 * time.Second, Stuck: time.Minute}
}

// Options make an engine.
type Options struct {
	// Volume is namespace/name, for messages.
	Volume string
	// Size in bytes.
	Size int64
	// Generation and Members as the Volume has them.
	Generation int64
	Members    []string
	// Dial reaches a replica. Every call makes a new connection. Local reports whether the replica is in this process.
	Dial func(ctx context.Context, replica string) (r block.Replica, local bool, err error)
	// Persist makes a record in the Volume, if it still has the generation before. It fails with ErrNotReleased if a member that should leave is
	// not released there any more, and with block.ErrStale if it has not the generation before,
	// or if another node may run the engine now.
	Persist func(ctx context.Context, r Record) error
	// Limit returns what bounds the rate at which a replica is built, in bytes that are copied; nil for no limit. It is asked when a rebuild
	// begins.
	Limit func() *rate.Limiter
	// Clock is CLOCK_BOOTTIME.
	Clock func() time.Duration
	// Timing of the engine.
	Timing Timing
	// OnChange is called when what Status returns may have changed. It must not block.
	OnChange func()
	// Log of the node.
	Log *slog.Logger
}

// Status is how an engine is.
type Status struct {
	// Generation with which the members were opened, and Members.
	Generation int64
	Members    []string
	// Serving says that clients can read and write.
	Serving bool
	// WaitingFor is why they cannot; empty if they can.
	WaitingFor string
	// Rebuilds that run.
	Rebuilds []Rebuild
}

// Engine is the block device that several replicas make. It implements block.Device; calls wait until it serves.
type Engine struct {
	opts Options

	gate   sync.RWMutex // held by every call of a client that writes or flushes for reading; by who needs a moment without any for writing
	ranges ranges
	view   atomic.Pointer[view]
	ended  chan struct{}
	wake   chan struct{}
	tasks  chan task
	group  sync.WaitGroup

	coarse    atomic.Int64   // the clock, as of at most tickEvery ago
	lost      atomic.Bool    // acknowledged writes were lost with the memory of the last member's machine, and no flush has failed since
	lastWrite []atomic.Int64 // by chunk, of the coarse clock; see idle
	suspect   suspects

	period     atomic.Int64  // see underWay
	nextPeriod time.Duration // when it ends; used by the goroutine that changes the membership only

	mu       sync.Mutex
	err      error // why the engine ended
	serving  bool
	waiting  string
	want     Want
	rebuilds map[string]*rebuild
	retry    map[string]*pause // when a replica may be built again
	hung     map[string]*atomic.Int64
}

// view is the membership as calls of clients see it. It is never changed, only replaced.
type view struct {
	generation int64
	members    []*member
	targets    []*target
	read       *member       // where reads go
	held       chan struct{} // calls wait until it is closed; nil if they need not
}

// task is something that the goroutine which changes the membership does for another one.
type task struct {
	do   func(context.Context) error
	done chan error
}

// Want is what the coordinator wants of the replicas.
type Want struct {
	// Build are replicas that should become members.
	Build []string
	// Leave are members that should not be: true if they may come back, so that what they miss is marked.
	Leave map[string]bool
}

// New makes an engine. Run opens it.
func New(o Options) *Engine {
	e := &Engine{
		opts: o, ended: make(chan struct{}), wake: make(chan struct{}, 1), tasks: make(chan task), rebuilds: map[string]*rebuild{}, retry: map[string]*pause{}, hung: map[string]*atomic.Int64{},
		lastWrite: make([]atomic.Int64, block.Chunks(o.Size)), waiting: "the members to be opened",
	}
	e.coarse.Store(int64(o.Clock()))
	e.nextPeriod = o.Clock() + o.Timing.Stuck/2
	e.view.Store(&view{generation: o.Generation, held: make(chan struct{})})
	return e
}

// Run opens the members, serves until ctx ends, and then makes everything durable and lets the members go. It ends early, with the reason,
// if the members cannot be opened or if another engine took over.
func (e *Engine) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err := e.open(ctx)
	if err == nil {
		e.setServing()
		e.group.Go(func() { e.clearLoop(ctx) })
		e.manage(ctx)
		err = e.reason()
	}
	if err == nil || ctx.Err() != nil {
		err = errors.Join(err, e.closeInOrder())
	}
	e.end(block.ErrClosed)
	cancel()
	e.group.Wait()
	v := e.view.Load()
	for _, m := range v.members {
		_ = m.Close() // nothing is under way
	}
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// Size implements block.Device.
func (e *Engine) Size() int64 { return e.opts.Size }

// Status returns how the engine is.
func (e *Engine) Status() Status {
	v := e.view.Load()
	e.mu.Lock()
	defer e.mu.Unlock()
	s := Status{Generation: v.generation, Members: names(v.members), Serving: e.serving && v.held == nil, WaitingFor: e.waiting}
	for _, r := range e.rebuilds {
		s.Rebuilds = append(s.Rebuilds, r.progress())
	}
	slices.SortFunc(s.Rebuilds, func(a, b Rebuild) int { return cmp.Compare(a.Replica, b.Replica) })
	return s
}

// SetWant replaces what is wanted.
func (e *Engine) SetWant(w Want) {
	e.mu.Lock()
	e.want = w
	e.mu.Unlock()
	e.wakeUp()
}

func (e *Engine) wanted() Want {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.want
}

func (e *Engine) wakeUp() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

func (e *Engine) changed() {
	if e.opts.OnChange != nil {
		e.opts.OnChange()
	}
}

// setWaiting records what I/O waits for.
func (e *Engine) setWaiting(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	e.mu.Lock()
	same := e.waiting == text
	e.waiting = text
	e.mu.Unlock()
	if !same {
		e.changed()
	}
}

func (e *Engine) setServing() {
	e.mu.Lock()
	e.serving, e.waiting = true, ""
	e.mu.Unlock()
	v := e.view.Load()
	next := *v
	next.held = nil
	e.view.Store(&next)
	close(v.held)
	e.opts.Log.Info("volume: serving", "volume", e.opts.Volume, "generation", v.generation, "members", names(v.members))
	e.changed()
}

// end ends the engine: every call fails from now on. The first reason is kept.
func (e *Engine) end(reason error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case <-e.ended:
	default:
		e.err = reason
		close(e.ended)
	}
}

func (e *Engine) reason() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// open opens the members with a generation of its own, gives those up that do not answer, and makes the others equal. The members are first
// opened with the generation that the Volume has: if one of them knows a newer one, the generation is not raised past that.
func (e *Engine) open(ctx context.Context) error {
	from := e.opts.Generation
	if len(e.opts.Members) == 0 {
		return fmt.Errorf("volume %s has no member to open", e.opts.Volume)
	}
	opened, err := e.openMembers(ctx, from)
	if err != nil {
		return err
	}
	e.setWaiting("the API to record generation %d", from+1)
	if err := e.persist(ctx, Record{From: from, Generation: from + 1, Members: e.opts.Members}); err != nil {
		return closeOpened(opened, err)
	}
	opened, err = e.raiseMembers(ctx, opened, from+1)
	if err != nil {
		return err
	}
	all := make([]*member, 0, len(opened))
	for _, o := range opened {
		all = append(all, o.member)
	}
	e.view.Store(&view{generation: from + 1, members: all, read: pickRead(all), held: e.view.Load().held})
	missing, behind := without(e.opts.Members, names(all)), e.behind(ctx, opened, from+1)
	if departed := union(missing, behind); len(departed) > 0 {
		e.opts.Log.Warn("volume: continuing without members", "volume", e.opts.Volume, "missing", missing, "restarted", behind)
		members := slices.DeleteFunc(slices.Clone(all), func(m *member) bool { return slices.Contains(behind, m.name) })
		if err := e.record(ctx, change{members: members, departed: departed}); err != nil {
			return err
		}
	} else if err := e.commitAll(ctx, from+1, all); err != nil {
		return err
	}
	e.beat(ctx)
	defer e.watchMembers(ctx)()
	if len(missing) > 0 {
		e.setWaiting("%s, so that an engine that may still read from %s has stopped", e.opts.Timing.FenceWait, strings.Join(missing, ", "))
		if err := backoff.Sleep(ctx, e.opts.Timing.FenceWait); err != nil {
			return err
		}
	}
	return e.resync(ctx, opened)
}

// raiseMembers raises the generation of members that are open, and returns those that did so.
func (e *Engine) raiseMembers(ctx context.Context, opened []opening, generation int64) ([]opening, error) {
	limited, cancel := context.WithTimeout(ctx, e.opts.Timing.MemberWait)
	defer cancel()
	all := make([]*member, 0, len(opened))
	for _, o := range opened {
		all = append(all, o.member)
	}
	sent := e.opts.Clock()
	errs := each(all, func(m *member) error {
		_, err := m.Open(limited, generation)
		return err
	})
	var raised []opening
	var failures []error
	for i, o := range opened {
		err := errs[i]
		if err == nil {
			o.member.heard.Store(int64(sent))
			raised = append(raised, o)
			continue
		}
		failures = append(failures, fmt.Errorf("replica %s: %w", o.member.name, err))
		_ = o.member.Close() // it is given up
	}
	if len(raised) == 0 {
		return nil, errors.Join(failures...)
	}
	return raised, nil
}

// beat starts the heartbeats of members that have none yet.
func (e *Engine) beat(ctx context.Context) {
	for _, m := range e.view.Load().members {
		if m.stop == nil {
			e.startHeartbeat(ctx, m)
		}
	}
}

// opening is a member that was opened, with what it knew.
type opening struct {
	member *member
	state  block.State
}

// openMembers opens all members. Once one is open, the others get Timing.MemberWait to answer.
func (e *Engine) openMembers(ctx context.Context, generation int64) ([]opening, error) {
	type result struct {
		opening
		err error
	}
	dialing, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan result)
	for _, name := range e.opts.Members {
		go func() {
			o, err := e.openMember(dialing, name, generation)
			select {
			case results <- result{o, err}:
			case <-dialing.Done():
				if err == nil {
					_ = o.member.Close() // it came too late
				}
			}
		}()
	}
	var opened []opening
	var failures []error
	var late <-chan time.Time
	for len(opened)+len(failures) < len(e.opts.Members) {
		select {
		case <-ctx.Done():
			return nil, closeOpened(opened, context.Cause(ctx))
		case <-late:
			return sortOpened(opened), nil
		case r := <-results:
			switch {
			case errors.Is(r.err, block.ErrStale):
				return nil, closeOpened(opened, fmt.Errorf("%w: replica %s refused generation %d", ErrStoreIsOlder, r.member.name, generation))
			case r.err != nil:
				failures = append(failures, r.err)
			default:
				opened = append(opened, r.opening)
				if late == nil {
					late = time.After(e.opts.Timing.MemberWait)
				}
			}
		}
	}
	if len(opened) == 0 {
		return nil, fmt.Errorf("volume %s has no member that can be opened: %w", e.opts.Volume, errors.Join(failures...))
	}
	return sortOpened(opened), nil
}

func sortOpened(opened []opening) []opening {
	slices.SortFunc(opened, func(a, b opening) int { return cmp.Compare(a.member.name, b.member.name) })
	return opened
}

func closeOpened(opened []opening, err error) error {
	for _, o := range opened {
		_ = o.member.Close() // nothing was done with it
	}
	return err
}

// openMember opens one member, again and again while it does not answer. It fails if there is nothing to wait for.
func (e *Engine) openMember(ctx context.Context, name string, generation int64) (opening, error) {
	tries := backoff.New(backoff.Policy{First: 50 * time.Millisecond, Longest: time.Second})
	for {
		o, err := e.tryOpen(ctx, name, generation)
		if err == nil || errors.Is(err, block.ErrStale) || hopeless(err) {
			o.member = orNamed(o.member, name)
			return o, err
		}
		e.setWaiting("%v", err)
		if err := backoff.Sleep(ctx, tries.Next()); err != nil {
			return opening{member: &member{name: name}}, err
		}
	}
}

func orNamed(m *member, name string) *member {
	if m == nil {
		return &member{name: name}
	}
	return m
}

func (e *Engine) tryOpen(ctx context.Context, name string, generation int64) (opening, error) {
	limited, cancel := context.WithTimeout(ctx, e.opts.Timing.MemberWait)
	defer cancel()
	r, local, err := e.dial(limited, name)
	if err != nil {
		return opening{}, fmt.Errorf("replica %s: %w", name, err)
	}
	sent := e.opts.Clock()
	state, err := r.Open(limited, generation)
	if err == nil && state.Syncing {
		err = fmt.Errorf("%w: it was never built completely", block.ErrDamaged)
	}
	if err != nil {
		_ = r.Close() // the error that is returned matters more
		return opening{}, fmt.Errorf("replica %s: %w", name, err)
	}
	m := newMember(name, r, local, state.Away)
	m.heard.Store(int64(sent))
	return opening{m, state}, nil
}

// hopeless reports whether a replica will not get better by itself.
func hopeless(err error) bool {
	return errors.Is(err, block.ErrMissing) || errors.Is(err, block.ErrForeign) || errors.Is(err, block.ErrDamaged)
}

// persist records a generation in the Volume, however long that takes. It fails if ctx ends or if another engine took over.
func (e *Engine) persist(ctx context.Context, r Record) error {
	tries := backoff.New(backoff.Policy{First: 50 * time.Millisecond, Longest: time.Second})
	for {
		err := e.opts.Persist(ctx, r)
		if err == nil || errors.Is(err, block.ErrStale) || errors.Is(err, ErrNotReleased) {
			return err
		}
		e.setWaiting("the API to record generation %d: %v", r.Generation, err)
		if err := backoff.Sleep(ctx, tries.Next()); err != nil {
			return err
		}
	}
}

// closeInOrder makes everything durable and equal, so that the next engine need not look.
func (e *Engine) closeInOrder() error {
	ctx, cancel := context.WithTimeout(context.Background(), e.opts.Timing.FenceWait)
	defer cancel()
	for !e.gate.TryLock() { // calls that wait for a change that nobody records any more never end
		if e.view.Load().held != nil || backoff.Sleep(ctx, time.Millisecond) != nil {
			return nil
		}
	}
	defer e.gate.Unlock()
	v := e.view.Load()
	if v.held != nil || slices.ContainsFunc(v.members, func(m *member) bool { return m.failed.Load() }) {
		return nil // it never served, or a change is not recorded: the next engine sees to the rest
	}
	if err := first(each(v.members, func(m *member) error { return m.Flush(ctx, v.generation) })); err != nil {
		return fmt.Errorf("volume %s: flush before closing: %w", e.opts.Volume, err)
	}
	equal := allChunks(e.opts.Size)
	for c := range block.Chunks(e.opts.Size) {
		if e.suspect.has(c) {
			equal.Unset(c)
		}
	}
	return e.clear(ctx, v, equal)
}

func allChunks(size int64) block.Bitmap {
	b := block.NewBitmap(block.Chunks(size))
	for i := range block.Chunks(size) {
		b.Set(i)
	}
	return b
}

func names(members []*member) []string {
	list := make([]string, 0, len(members))
	for _, m := range members {
		list = append(list, m.name)
	}
	slices.Sort(list)
	return list
}

// without returns what is in all and not in some.
func without(all, some []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(some, s) })
}

// pickRead chooses where reads go: to this process if they can.
func pickRead(members []*member) *member {
	for _, m := range members {
		if m.local {
			return m
		}
	}
	if len(members) == 0 {
		return nil
	}
	return members[0]
}

func first(errs []error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// each calls f for every member at once, and returns the errors in their order.
func each(members []*member, f func(*member) error) []error {
	errs := make([]error, len(members))
	if len(members) == 1 {
		errs[0] = f(members[0])
		return errs
	}
	var group sync.WaitGroup
	for i, m := range members[1:] {
		group.Go(func() { errs[i+1] = f(m) })
	}
	errs[0] = f(members[0])
	group.Wait()
	return errs
}
