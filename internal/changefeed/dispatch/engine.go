// Package dispatch is the data path of a node: one reader per source, one dispatcher per table, a few workers per changefeed.
//
//	Source ─▶ hub ─▶ dispatcher (queue) ─▶ worker ─▶ Writer        Prepared ─start─▶ Running ─stop─▶ Stopped
//	           └ catch-up reader ─▶ dispatchers that are behind                        └─ another owner ─▶ Lost
//
// Maintainers decide what runs where. Every order carries the epoch of its maintainer, and those of earlier maintainers are refused.
package dispatch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ebb-dev/ebb/internal/changefeed/omission"
	"github.com/ebb-dev/ebb/internal/changefeed/route"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// ErrOldMaintainer: the node has accepted a newer maintainer, or runs a dispatcher that a newer one has started.
var ErrOldMaintainer = errors.New("the maintainer has been superseded")

// FeedKey names a changefeed.
type FeedKey struct{ Namespace, Name, UID string }

// String is namespace/name.
func (k FeedKey) String() string { return k.Namespace + "/" + k.Name }

// Config is what a node must know to run dispatchers of a changefeed.
type Config struct {
	Source, Sink                         string
	SourcePasswordFile, SinkPasswordFile string
	// SourceSecret and SinkSecret name passwords in Secrets, and SourcePassword and SinkPassword are those passwords.
	SourceSecret, SinkSecret     SecretRef
	SourcePassword, SinkPassword Password
	Workers, BatchRows           int
	// DDL is whether DDL is replicated.
	DDL bool
	// SnapshotRate is how many rows per second the node copies initially; 0 for no limit.
	SnapshotRate int
	// Forward is whether rows are forwarded to the sink as they were logged, where that is possible.
	Forward bool
	// Routes give tables other names at the sink, and Filter is the one that is in effect.
	Routes []route.Rule
	Filter stream.Filter
	// LeaveOut are columns and rows that are not replicated.
	LeaveOut []omission.Rule
	// Skips are transactions that are not replicated.
	Skips []stream.Position
}

// same reports whether dispatchers run alike with both. Passwords are those of the same files and Secrets.
func (c Config) same(o Config) bool {
	for _, x := range []*Config{&c, &o} {
		x.SourcePassword, x.SinkPassword = "", ""
		x.Routes, x.Filter, x.LeaveOut, x.Skips = orNil(x.Routes), orNil(x.Filter), orNil(x.LeaveOut), orNil(x.Skips)
	}
	return reflect.DeepEqual(c, o)
}

// orNil is a list, nil if it has no elements.
func orNil[L ~[]E, E any](list L) L {
	if len(list) == 0 {
		return nil
	}
	return list
}

// SecretRef names a password in a Secret of the changefeed's namespace.
type SecretRef struct{ Name, Key string }

// Password is not shown where a Config is printed.
type Password string

// Format implements fmt.Formatter.
func (Password) Format(s fmt.State, _ rune) { _, _ = s.Write([]byte("<password>")) }

// Options make an engine.
type Options struct {
	// OpenSource and OpenSink open what a changefeed names.
	OpenSource func(Config) (stream.Source, error)
	OpenSink   func(FeedKey, Config) (stream.Sink, error)
	// Enter admits a dispatcher to the node; the function that it returns is called when the dispatcher has ended.
	Enter func() (leave func(), err error)
	// May reports whether the node's lease is held and not in doubt; nil for always. DDL is executed only then: unlike a write, a
	// statement that is under way cannot be fenced.
	May func() bool
	// Memory bounds the changes that were read and not yet written, in bytes.
	Memory int64
	// Flushed is called with the time that it took to write each batch, including failed attempts; may be nil.
	Flushed func(time.Duration)
}

// Engine runs the dispatchers of a node.
type Engine struct {
	opts   Options
	budget *budget

	mu    sync.Mutex
	feeds map[FeedKey]*Feed
	hubs  map[string]*sharedHub
}

// sharedHub is a hub and how many feeds read through it.
type sharedHub struct {
	*hub
	feeds int
}

// New makes an engine.
func New(o Options) *Engine {
	e := &Engine{opts: o, feeds: map[FeedKey]*Feed{}, hubs: map[string]*sharedHub{}}
	e.budget = newBudget(o.Memory, e.relieve)
	return e
}

// Feed is one changefeed on this node.
type Feed struct {
	engine *Engine
	key    FeedKey
	config Config
	batch  int
	hub    *sharedHub
	sink   stream.Sink
	// together, if not nil, writes several tables in one transaction.
	together stream.Together
	ctx      context.Context
	cancel   context.CancelFunc
	work     chan struct{} // wakes a worker when a dispatcher is in line
	wg       sync.WaitGroup

	rows, bytes atomic.Int64
	linger      linger
	pace        pace
	parking     parking
	pacer       pacer
	copies      chan struct{} // has room for as many tables as are copied at the same time

	mu         sync.Mutex
	maintainer int64 // the placement of the newest maintainer that was accepted
	tables     map[stream.Table]*placed
	line       []waiting
	writing    int  // writes that are under way
	holding    bool // a worker waits for more dispatchers in line
	closed     bool
}

// waiting is a dispatcher in line for a worker, and since when.
type waiting struct {
	*dispatcher
	since time.Time
}

// placed is a dispatcher that the node has admitted.
type placed struct {
	*dispatcher
	leave func()
}

// Status of a dispatcher.
type Status struct {
	stream.Identity
	// Members of its group of tables, if it writes one.
	Members []stream.Identity
	Watches []stream.Table
	Epoch   stream.Epoch
	// Begins is the position of the DDL that it begins with, as its maintainer knew it.
	Begins     stream.Position
	State      State
	Checkpoint stream.Position
	Err        error
}

// Accept accepts a maintainer, or returns ErrOldMaintainer if a newer one was accepted before.
func (e *Engine) Accept(key FeedKey, epoch int64) error {
	e.mu.Lock()
	defer e.mu.Unlock() // so that nobody replaces it by another one that does not know the maintainer
	f := e.feeds[key]
	if f == nil {
		f = e.unopened(key, epoch)
		e.feeds[key] = f
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if epoch < f.maintainer {
		return fmt.Errorf("changefeed %s: %w: its placement is %d, and this node has accepted placement %d", key, ErrOldMaintainer, epoch, f.maintainer)
	}
	f.maintainer = epoch
	return nil
}

// unopened is a changefeed that nothing was ordered of yet.
func (e *Engine) unopened(key FeedKey, maintainer int64) *Feed {
	return &Feed{engine: e, key: key, maintainer: maintainer, tables: map[stream.Table]*placed{}}
}

// Renew stops everything of a changefeed on this node that runs with another configuration, and reports whether that was so. The next order opens
// it again. A node that did not see that a changefeed was paused and resumed would go on with what it had before.
func (e *Engine) Renew(ctx context.Context, key FeedKey, c Config) (renewed bool, err error) {
	f := e.known(key)
	if f == nil {
		return false, nil
	}
	f.mu.Lock()
	same := f.hub == nil || !f.closed && f.config.same(c) // a close may have been given up
	f.mu.Unlock()
	if same {
		return false, nil
	}
	return true, e.close(ctx, f, true)
}

// Opened reports whether the source and the sink of a changefeed are open.
func (e *Engine) Opened(key FeedKey) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	f := e.feeds[key]
	return f != nil && f.hub != nil
}

// feed returns a changefeed with its source and sink open.
func (e *Engine) feed(key FeedKey, c Config) (*Feed, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f := e.feeds[key]
	if f == nil {
		return nil, fmt.Errorf("changefeed %s was closed on this node meanwhile", key)
	}
	if f.hub != nil {
		return f, nil
	}
	sink, err := e.opts.OpenSink(key, c)
	if err != nil {
		return nil, fmt.Errorf("open the sink of changefeed %s: %w", key, err)
	}
	id := c.Source + "\x00" + c.SourcePasswordFile
	if c.SourceSecret.Name != "" { // the same name in another namespace is another Secret
		id += strings.Join([]string{"", key.Namespace, c.SourceSecret.Name, c.SourceSecret.Key}, "\x00")
	}
	if c.Forward { // its reader does not decode what it reads
		id += "\x00forward"
	}
	shared := e.hubs[id]
	if shared == nil {
		source, err := e.opts.OpenSource(c)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open the source of changefeed %s: %w", key, err), sink.Close())
		}
		shared = &sharedHub{hub: newHub(source, e.budget)}
		e.hubs[id] = shared
	}
	shared.feeds++
	f.mu.Lock()
	defer f.mu.Unlock()
	f.config, f.batch, f.hub, f.sink = c, max(c.BatchRows, 1), shared, sink
	f.together, _ = sink.(stream.Together)
	f.linger.shared = f.together != nil
	f.ctx, f.cancel = context.WithCancel(context.Background())
	f.work = make(chan struct{}, 1)
	f.pacer.rate, f.copies = c.SnapshotRate, make(chan struct{}, copiesAtOnce)
	for range max(c.Workers, 1) {
		f.wg.Go(f.run)
	}
	return f, nil
}

// enqueue puts a dispatcher in line for a worker.
func (f *Feed) enqueue(d *dispatcher) {
	f.mu.Lock()
	f.line = append(f.line, waiting{d, time.Now()})
	f.mu.Unlock()
	f.ring()
}

// ring wakes a worker.
func (f *Feed) ring() { ring(f.work) }

// Dispatchers lists the dispatchers of a changefeed.
func (e *Engine) Dispatchers(key FeedKey) []Status {
	f := e.known(key)
	if f == nil {
		return nil
	}
	var list []Status
	for _, d := range f.all() {
		list = append(list, d.status())
	}
	return list
}

func (e *Engine) known(key FeedKey) *Feed {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.feeds[key]
}

func (f *Feed) all() []*placed {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := make([]*placed, 0, len(f.tables))
	for _, d := range f.tables {
		list = append(list, d)
	}
	return list
}

// Report is the progress of a changefeed on this node.
type Report struct {
	Maintainer int64
	// Dispatchers on this node, including prepared ones.
	Dispatchers int
	// Running of them, and the lowest checkpoint among these, with when the source committed it.
	Running      int
	Checkpoint   stream.Position
	CheckpointAt time.Time
	// Digest of the running ones: the exclusive or of the digests of their tables and epochs.
	Digest uint64
	// Slowest is the table with that checkpoint, and what its dispatcher is doing; empty if it has written all that was read.
	Slowest string
	// Lost are tables that have another owner at the sink, or that are not where their dispatcher left them.
	Lost []stream.Identity
	// Blocked are tables whose dispatchers have reached DDL that the maintainer executes.
	Blocked []Blocked
	// Rows and Bytes that were written since the changefeed was opened on this node.
	Rows, Bytes int64
	// Err is the last error that has not been resolved.
	Err error
}

// Blocked is a table whose dispatcher has reached DDL that the maintainer executes, and the position of that DDL.
type Blocked struct {
	stream.Identity
	At stream.Position
}

// retrying is a sink that retries by itself, and knows the error that it retries after.
type retrying interface{ Trouble() error }

// Report returns the progress of a changefeed. It takes time proportional to the number of its tables on this node.
func (e *Engine) Report(key FeedKey) Report {
	var r Report
	f := e.known(key)
	if f == nil {
		return r
	}
	f.mu.Lock()
	r.Maintainer = f.maintainer
	opened := f.hub != nil
	f.mu.Unlock()
	if !opened {
		return r
	}
	r.Rows, r.Bytes = f.rows.Load(), f.bytes.Load()
	r.Err = f.hub.trouble()
	if s, ok := f.sink.(retrying); ok {
		r.Err = cmp.Or(s.Trouble(), r.Err)
	}
	position, at := f.hub.where()
	var slowest *placed
	for _, d := range f.all() {
		d.mu.Lock()
		r.Dispatchers++
		switch d.state {
		case Running:
			p, when := d.locked(position, at)
			if r.Running == 0 || p < r.Checkpoint {
				r.Checkpoint, r.CheckpointAt, slowest = p, when, d
			}
			r.Running++
			r.Digest ^= d.identity().Digest(d.epoch)
			if d.blocked() && !d.flushing {
				r.Blocked = append(r.Blocked, Blocked{Identity: d.identity(), At: d.queue[0].Position})
			}
		case Lost:
			r.Lost = append(r.Lost, d.identity())
		}
		if err := d.problem(); err != nil && !Hopeless(r.Err) {
			r.Err = err
		}
		d.mu.Unlock()
	}
	if slowest != nil {
		if doing := slowest.doing(); doing != "" {
			r.Slowest = fmt.Sprintf("table %s %s", slowest.table, doing)
		}
	}
	return r
}

// Close stops everything of a changefeed on this node.
func (e *Engine) Close(ctx context.Context, key FeedKey) error {
	f := e.known(key)
	if f == nil {
		return nil
	}
	return e.close(ctx, f, false)
}

// close stops everything of a changefeed on this node. If the changefeed goes on, the node still refuses earlier maintainers.
func (e *Engine) close(ctx context.Context, f *Feed, goesOn bool) error {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	for _, d := range f.all() {
		if _, err := f.remove(ctx, d); err != nil && !errors.Is(err, ErrLost) {
			return err
		}
	}
	e.mu.Lock()
	if e.feeds[f.key] != f { // somebody else has closed it
		e.mu.Unlock()
		return nil
	}
	delete(e.feeds, f.key)
	if goesOn {
		f.mu.Lock()
		e.feeds[f.key] = e.unopened(f.key, f.maintainer)
		f.mu.Unlock()
	}
	var last *sharedHub
	if f.hub != nil {
		if f.hub.feeds--; f.hub.feeds == 0 {
			last = f.hub
			for id, h := range e.hubs {
				if h == last {
					delete(e.hubs, id)
				}
			}
		}
	}
	e.mu.Unlock()
	if f.hub == nil {
		return nil
	}
	f.cancel()
	f.wg.Wait()
	err := f.sink.Close()
	if last != nil {
		last.close()
		err = errors.Join(err, last.source.Close())
	}
	return err
}

// Keys are the changefeeds that a maintainer was accepted for.
func (e *Engine) Keys() []FeedKey {
	e.mu.Lock()
	defer e.mu.Unlock()
	keys := make([]FeedKey, 0, len(e.feeds))
	for key := range e.feeds {
		keys = append(keys, key)
	}
	return keys
}

// Memory is the size of the changes that were read and not yet written.
func (e *Engine) Memory() int64 { return e.budget.inUse() }
