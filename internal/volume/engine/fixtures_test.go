package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/volume/block"
	"github.com/ebb-dev/ebb/internal/volume/engine"
	"github.com/ebb-dev/ebb/internal/volume/store"
	"github.com/ebb-dev/ebb/internal/volume/store/lossy"
)

const size = 8 * block.ChunkSize

var start = time.Now()

// quick is a timing for tests: the ratios are those of DefaultTiming.
func quick() engine.Timing {
	return engine.Timing{Heartbeat: 50 * time.Millisecond, Unanswered: 500 * time.Millisecond, FenceWait: 1500 * time.Millisecond, MemberWait: time.Second, ClearAfter: 300 * time.Millisecond, Stuck: time.Second}
}

// record is the Volume object: who may run an engine, with which generation and members.
type record struct {
	mu         sync.Mutex
	generation int64
	members    []string
	away       bool // the API does not answer
	released   map[string]bool
}

func (r *record) persist(_ context.Context, c engine.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	from, generation, members := c.From, c.Generation, c.Members
	switch {
	case r.away:
		return errors.New("the API does not answer")
	case r.generation == generation && slices.Equal(r.members, members):
		return nil
	case r.generation != from:
		return fmt.Errorf("%w: the Volume has generation %d", block.ErrStale, r.generation)
	}
	for _, name := range c.Leaving {
		if !r.released[name] {
			return engine.ErrNotReleased
		}
	}
	r.generation, r.members = generation, slices.Clone(members)
	return nil
}

func (r *record) now() (int64, []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.generation, slices.Clone(r.members)
}

func (r *record) setAway(away bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.away = away
}

// machine is a node with one replica on its disk.
type machine struct {
	name  string
	store *store.Store

	mu    sync.Mutex
	cut   bool
	local bool               // it is the machine of the engine
	hangs chan struct{}      // if there is one, writes and flushes wait until it is closed
	fail  error              // of every write
	pings chan chan struct{} // if there is one, every ping and every answer says here that it is under way, and waits to be let on
	zeros []int64            // lengths of the ranges that were zeroed
	on    func(op) error     // if there is one, it is called before everything that a link does, and may fail it

	in    string        // the disk hangs as soon as it is used in such a call
	hung  chan struct{} // closed when it does
	thaws chan struct{} // closed when it works again

	late func(do func() error) error // if there is one, it does the next write, or only says so

	fs    *lossy.FS // if the machine can lose power
	boot  int
	lives int // counts its processes
}

// onlyDisksHang is for tests in which every node answers, on a machine that may be busy.
func (b *bench) onlyDisksHang() { b.timing.Unanswered, b.timing.Stuck = time.Minute, 4*time.Second }

// hangsIn lets a disk hang as soon as it is used in a call, until the test ends.
func (b *bench) hangsIn(name, call string) {
	m := b.machines[name]
	m.set(func(m *machine) { m.in, m.hung, m.thaws = call, make(chan struct{}), make(chan struct{}) })
	b.t.Cleanup(func() { close(m.thaws) })
}

// awaitHang waits until the disk hangs.
func (b *bench) awaitHang(name string) {
	b.t.Helper()
	select {
	case <-b.machines[name].hung:
	case <-time.After(patience):
		b.t.Fatalf("the disk of %s was not used", name)
	}
}

// used waits while the disk hangs. On another node a call ends with its connection, here it does not.
func (l link) used(ctx context.Context, call string) error {
	l.machine.mu.Lock()
	thaws, closed := l.thaws, l.closed
	if thaws != nil && l.in == call {
		l.in = ""
		close(l.hung)
	}
	hangs := thaws != nil && l.in == ""
	if l.local {
		ctx, closed = context.Background(), nil
	}
	l.machine.mu.Unlock()
	if !hangs {
		return nil
	}
	select {
	case <-thaws:
		return nil
	case <-closed:
	case <-ctx.Done():
	}
	return fmt.Errorf("%w: the disk hangs", block.ErrUnreachable)
}

// op is what a link does.
type op struct {
	what string
	off  int64
}

// loses makes the machine lose power, and starts it again.
func (b *bench) losesPower(m *machine) {
	b.t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.fs.Crash(); err != nil {
		b.t.Fatal(err)
	}
	m.boot, m.lives = m.boot+1, m.lives+1
	b.open(m)
}

// open opens the replica of a machine that was just started.
func (b *bench) open(m *machine) {
	b.t.Helper()
	var fs store.FS = store.OS{}
	if m.fs != nil {
		fs = m.fs
	}
	s, err := store.Open(fs, filepath.Join(b.dir, m.name, "replica"), b.identity(m.name), fmt.Sprint("boot-", m.boot))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = s.Close() })
	m.store = s
}

func (b *bench) identity(name string) store.Identity {
	return store.Identity{Volume: "default/v", VolumeUID: "uid", Replica: name, Size: b.size}
}

func (m *machine) set(change func(*machine)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(m)
}

// link is a connection to a machine.
type link struct {
	*machine
	block.Replica
	life   int
	closed chan struct{}
	once   *sync.Once
}

func (l link) up() error {
	l.machine.mu.Lock()
	defer l.machine.mu.Unlock()
	if l.cut || l.life != l.lives {
		return fmt.Errorf("%w: cut", block.ErrUnreachable)
	}
	return nil
}

// does calls the hook of the machine.
func (l link) does(what string, off int64) error {
	l.machine.mu.Lock()
	on := l.on
	l.machine.mu.Unlock()
	if on == nil {
		return nil
	}
	return on(op{what, off})
}

func (l link) writable() error {
	if err := l.up(); err != nil {
		return err
	}
	l.machine.mu.Lock()
	defer l.machine.mu.Unlock()
	return l.fail
}

func (l link) Open(ctx context.Context, g int64) (block.State, error) {
	if err := l.does("open", 0); err != nil {
		return block.State{}, err
	}
	if err := errors.Join(l.up(), l.used(ctx, "open")); err != nil {
		return block.State{}, err
	}
	return l.Replica.Open(ctx, g)
}

func (l link) Commit(ctx context.Context, m block.Membership) error {
	if err := l.does("commit", 0); err != nil {
		return err
	}
	return errors.Join(l.up(), l.Replica.Commit(ctx, m))
}

func (l link) ReadAt(ctx context.Context, g int64, p []byte, off int64) error {
	if err := l.does("read", off); err != nil {
		return err
	}
	if err := errors.Join(l.up(), l.used(ctx, "read")); err != nil {
		return err
	}
	return l.Replica.ReadAt(ctx, g, p, off)
}

func (l link) Extents(ctx context.Context, g int64, off, n int64) ([]block.Extent, error) {
	if err := errors.Join(l.up(), l.used(ctx, "extents")); err != nil {
		return nil, err
	}
	return l.Replica.Extents(ctx, g, off, n)
}

func (l link) Intent(ctx context.Context, g int64) (block.Bitmap, error) {
	if err := errors.Join(l.up(), l.used(ctx, "intent")); err != nil {
		return nil, err
	}
	return l.Replica.Intent(ctx, g)
}

func (l link) Clear(ctx context.Context, g int64, chunks block.Bitmap) error {
	if err := errors.Join(l.up(), l.used(ctx, "clear")); err != nil {
		return err
	}
	return l.Replica.Clear(ctx, g, chunks)
}

// hang waits while the disk hangs.
func (l link) hang() {
	l.machine.mu.Lock()
	hangs := l.hangs
	l.machine.mu.Unlock()
	if hangs == nil {
		return
	}
	select {
	case <-hangs:
	case <-l.closed:
	}
}

func (l link) WriteAt(ctx context.Context, g int64, p []byte, off int64, fua bool) error {
	if err := l.does("write", off); err != nil {
		return err
	}
	l.hang()
	if err := errors.Join(l.writable(), l.used(ctx, "write")); err != nil {
		return err
	}
	l.machine.mu.Lock()
	late := l.late
	l.machine.mu.Unlock()
	if late != nil {
		p = slices.Clone(p)
		return late(func() error { return l.Replica.WriteAt(context.Background(), g, p, off, fua) })
	}
	return l.Replica.WriteAt(ctx, g, p, off, fua)
}

func (l link) Zero(ctx context.Context, g int64, off, n int64, z block.Zero) error {
	if err := l.does("zero", off); err != nil {
		return err
	}
	if err := errors.Join(l.writable(), l.used(ctx, "zero")); err != nil {
		return err
	}
	l.set(func(m *machine) { m.zeros = append(m.zeros, n) })
	return l.Replica.Zero(ctx, g, off, n, z)
}

func (l link) Flush(ctx context.Context, g int64) error {
	if err := l.does("flush", 0); err != nil {
		return err
	}
	l.hang()
	if err := errors.Join(l.up(), l.used(ctx, "flush")); err != nil {
		return err
	}
	return l.Replica.Flush(ctx, g)
}

func (l link) Ping(ctx context.Context, g int64) error {
	if err := l.up(); err != nil {
		return err
	}
	l.machine.mu.Lock()
	pings := l.pings
	l.machine.mu.Unlock()
	if pings == nil {
		return l.Replica.Ping(ctx, g)
	}
	letOn := make(chan struct{})
	pings <- letOn
	<-letOn
	err := l.Replica.Ping(ctx, g)
	pings <- letOn
	<-letOn
	return err
}

func (l link) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// bench is a volume with its replicas.
type bench struct {
	t        *testing.T
	dir      string
	size     int64
	volume   *record
	machines map[string]*machine
	running  atomic.Bool // the newest engine
	timing   engine.Timing
	powered  bool // machines that are added can lose power
}

// ended reports whether the newest engine ended by itself.
func (b *bench) ended() bool { return !b.running.Load() }

func newBench(t *testing.T, members ...string) *bench {
	t.Helper()
	return newBenchOf(t, size, members...)
}

// newBenchOf is newBench for a volume of another size.
func newBenchOf(t *testing.T, size int64, members ...string) *bench {
	t.Helper()
	b := emptyBench(t, size, members)
	for _, name := range members {
		b.add(name)
	}
	return b
}

// newPoweredBench is newBench with machines that can lose power.
func newPoweredBench(t *testing.T, members ...string) *bench {
	t.Helper()
	b := emptyBench(t, size, members)
	b.powered = true
	for _, name := range members {
		b.add(name)
	}
	return b
}

func emptyBench(t *testing.T, size int64, members []string) *bench {
	return &bench{t: t, dir: t.TempDir(), size: size, volume: &record{generation: 1, members: members}, machines: map[string]*machine{}, timing: quick()}
}

func (b *bench) add(name string) *machine {
	b.t.Helper()
	m := &machine{name: name, boot: 1}
	dir := filepath.Join(b.dir, name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		b.t.Fatal(err)
	}
	var fs store.FS = store.OS{}
	if b.powered {
		lossyFS, err := lossy.New(dir, 1)
		if err != nil {
			b.t.Fatal(err)
		}
		b.t.Cleanup(lossyFS.Close)
		m.fs, fs = lossyFS, lossyFS
	}
	if err := store.Create(fs, filepath.Join(dir, "replica"), b.identity(name), "boot-1"); err != nil {
		b.t.Fatal(err)
	}
	b.open(m)
	b.machines[name] = m
	return m
}

func (b *bench) dial(_ context.Context, name string) (block.Replica, bool, error) {
	m := b.machines[name]
	if m == nil {
		return nil, false, fmt.Errorf("%w: no machine %s", block.ErrUnreachable, name)
	}
	m.mu.Lock()
	local := m.local
	l := link{m, m.store.Connect(), m.lives, make(chan struct{}), &sync.Once{}}
	m.mu.Unlock()
	return l, local, l.up()
}

// engine runs an engine. stop ends it in order.
func (b *bench) engine() (e *engine.Engine, stop func() error) {
	generation, members := b.volume.now()
	e = engine.New(engine.Options{
		Volume: "default/v", Size: b.size, Generation: generation, Members: members, Dial: b.dial, Persist: b.volume.persist,
		Clock: func() time.Duration { return time.Since(start) + time.Hour }, Timing: b.timing, Log: slog.New(slog.NewTextHandler(b.t.Output(), nil)),
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	b.running.Store(true)
	go func() {
		err := e.Run(ctx)
		b.running.Store(false)
		ended <- err
	}()
	stop = sync.OnceValue(func() error { cancel(); return <-ended })
	b.t.Cleanup(func() { _ = stop() })
	return e, stop
}

// patience bounds every wait for something that should come, on a machine that may be busy.
const patience = 4 * time.Minute

func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for %s", patience, what)
		}
	}
}

func fill(b byte, n int) []byte { return bytes.Repeat([]byte{b}, n) }

func (b *bench) write(e *engine.Engine, off int64, v byte, n int) {
	b.t.Helper()
	if err := e.WriteAt(b.t.Context(), fill(v, n), off, false); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) reads(e *engine.Engine, off int64, v byte, n int) {
	b.t.Helper()
	p := make([]byte, n)
	if err := e.ReadAt(b.t.Context(), p, off); err != nil {
		b.t.Fatal(err)
	}
	if !bytes.Equal(p, fill(v, n)) {
		b.t.Fatalf("at %d: read %d…, want %d", off, p[0], v)
	}
}

// equal fails unless replicas have the same bytes.
func (b *bench) equal(names ...string) {
	b.t.Helper()
	var want []byte
	for _, name := range names {
		s := b.machines[name].store
		p := make([]byte, size)
		if err := s.ReadAt(b.t.Context(), s.State().Generation, p, 0); err != nil {
			b.t.Fatal(err)
		}
		if want == nil {
			want = p
		}
		if !bytes.Equal(p, want) {
			at := 0
			for p[at] == want[at] {
				at++
			}
			b.t.Errorf("replicas %s and %s differ at %d: %d and %d", names[0], name, at, want[at], p[at])
		}
	}
}
