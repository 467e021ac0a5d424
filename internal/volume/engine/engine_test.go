package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/volume/block"
	"github.com/ebb-dev/ebb/internal/volume/engine"
	"github.com/ebb-dev/ebb/internal/volume/store"
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
}

func (l link) up() error {
	l.machine.mu.Lock()
	defer l.machine.mu.Unlock()
	if l.cut {
		return fmt.Errorf("%w: cut", block.ErrUnreachable)
	}
	return nil
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
	if err := l.up(); err != nil {
		return block.State{}, err
	}
	return l.Replica.Open(ctx, g)
}

func (l link) Commit(ctx context.Context, m block.Membership) error {
	return errors.Join(l.up(), l.Replica.Commit(ctx, m))
}

func (l link) ReadAt(ctx context.Context, g int64, p []byte, off int64) error {
	if err := l.up(); err != nil {
		return err
	}
	return l.Replica.ReadAt(ctx, g, p, off)
}

// hang waits while the disk hangs.
func (l link) hang() {
	l.machine.mu.Lock()
	hangs := l.hangs
	l.machine.mu.Unlock()
	if hangs != nil {
		<-hangs
	}
}

func (l link) WriteAt(ctx context.Context, g int64, p []byte, off int64, fua bool) error {
	l.hang()
	if err := l.writable(); err != nil {
		return err
	}
	return l.Replica.WriteAt(ctx, g, p, off, fua)
}

func (l link) Zero(ctx context.Context, g int64, off, n int64, z block.Zero) error {
	if err := l.writable(); err != nil {
		return err
	}
	l.set(func(m *machine) { m.zeros = append(m.zeros, n) })
	return l.Replica.Zero(ctx, g, off, n, z)
}

func (l link) Flush(ctx context.Context, g int64) error {
	l.hang()
	if err := l.up(); err != nil {
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

func (l link) Close() error { return nil }

// bench is a volume with its replicas.
type bench struct {
	t        *testing.T
	dir      string
	size     int64
	volume   *record
	machines map[string]*machine
	running  atomic.Bool // the newest engine
	timing   engine.Timing
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
	b := &bench{t: t, dir: t.TempDir(), size: size, volume: &record{generation: 1, members: members}, machines: map[string]*machine{}, timing: quick()}
	for _, name := range members {
		b.add(name)
	}
	return b
}

func (b *bench) add(name string) *machine {
	b.t.Helper()
	id := store.Identity{Volume: "default/v", VolumeUID: "uid", Replica: name, Size: b.size}
	dir := filepath.Join(b.dir, name)
	if err := store.Create(store.OS{}, dir, id, "boot-1"); err != nil {
		b.t.Fatal(err)
	}
	s, err := store.Open(store.OS{}, dir, id, "boot-1")
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = s.Close() })
	b.machines[name] = &machine{name: name, store: s}
	return b.machines[name]
}

func (b *bench) dial(_ context.Context, name string) (block.Replica, bool, error) {
	m := b.machines[name]
	if m == nil {
		return nil, false, fmt.Errorf("%w: no machine %s", block.ErrUnreachable, name)
	}
	l := link{m, m.store}
	m.mu.Lock()
	local := m.local
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

func TestWhatIsWrittenIsOnEveryMemberAndReadBack(t *testing.T) {
	b := newBench(t, "a", "b", "c")
	e, stop := b.engine()
	b.write(e, 4096, 7, 10000)
	b.reads(e, 4096, 7, 10000)
	if err := e.Zero(t.Context(), 5000, 100, block.Zero{Hole: true}); err != nil {
		t.Fatal(err)
	}
	b.reads(e, 5000, 0, 100)
	if err := e.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	b.equal("a", "b", "c")
	if _, err := e.Extents(t.Context(), 0, 4096); !errors.Is(err, block.ErrClosed) {
		t.Errorf("an engine that ended answers %v", err)
	}
}

// A client may zero gigabytes with one request. A disk on which zeros have to be written takes long for that, and hangs no more than one that
// is sent as much in writes.
func TestALongZeroReachesTheDisksInPieces(t *testing.T) {
	const piece, whole = 64 << 20, 200 << 20
	b := newBenchOf(t, whole, "a", "b")
	b.timing.Stuck, b.timing.Unanswered = time.Minute, time.Minute // a slow disk writes hundreds of MiB
	e, stop := b.engine()
	b.write(e, whole-512, 7, 512)
	for _, z := range []block.Zero{{Hole: true}, {FUA: true}} {
		b.write(e, 100<<20, 7, 512)
		for _, m := range b.machines {
			m.set(func(m *machine) { m.zeros = nil })
		}
		if err := e.Zero(t.Context(), 4096, whole-8192, z); err != nil {
			t.Fatal(err)
		}
		b.reads(e, 100<<20, 0, 512)
		for _, m := range b.machines {
			sum := int64(0)
			for _, n := range m.zeros {
				if sum += n; n > piece {
					t.Errorf("%+v: %d bytes were zeroed at once on %s", z, n, m.name)
				}
			}
			if sum != whole-8192 {
				t.Errorf("%+v: %d bytes were zeroed on %s, want %d", z, sum, m.name, whole-8192)
			}
		}
	}
	b.reads(e, whole-512, 7, 512)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}

func TestAMemberThatFailsIsGivenUpAndComesBackWithADelta(t *testing.T) {
	b := newBench(t, "a", "b", "c")
	e, stop := b.engine()
	b.write(e, 0, 1, 4096)
	b.machines["c"].set(func(m *machine) { m.cut = true })
	b.write(e, block.ChunkSize, 2, 4096)
	if _, members := b.volume.now(); !slices.Equal(members, []string{"a", "b"}) {
		t.Fatalf("a write was acknowledged with members %v recorded", members)
	}
	b.machines["c"].set(func(m *machine) { m.cut = false })
	e.SetWant(engine.Want{Build: []string{"a", "b", "c"}})
	total := int64(0)
	until(t, "c to be a member", func() bool {
		s := e.Status()
		for _, r := range s.Rebuilds {
			total = max(total, r.Total)
			if !r.Delta && r.Total > 0 {
				t.Fatal("everything is copied")
			}
		}
		return slices.Equal(s.Members, []string{"a", "b", "c"})
	})
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	b.equal("a", "b", "c")
}

// A member is given up while a write is under way and another replica is being built, which knows the next generation when the write reaches it.
func TestAReplicaThatIsBuiltGetsAWriteDuringWhichAMemberIsGivenUp(t *testing.T) {
	const off = 5 * block.ChunkSize // not among what c missed before
	b := newBench(t, "a", "b", "c")
	b.timing.Stuck = time.Minute
	e, stop := b.engine()
	b.write(e, 0, 1, 4096)
	b.machines["c"].set(func(m *machine) { m.cut = true })
	b.write(e, 0, 2, 4096)
	hangs := make(chan struct{})
	b.machines["c"].set(func(m *machine) { m.cut, m.hangs = false, hangs })
	e.SetWant(engine.Want{Build: []string{"a", "b", "c"}})
	until(t, "c to be built", func() bool {
		s := e.Status()
		return len(s.Rebuilds) == 1 && s.Rebuilds[0].Total > 0
	})
	b.machines["b"].set(func(m *machine) { m.hangs = hangs })
	written := make(chan error, 1)
	go func() { written <- e.WriteAt(context.Background(), fill(3, 4096), off, false) }()
	until(t, "the write to be under way", func() bool {
		a, p := b.machines["a"].store, make([]byte, 4096)
		return a.ReadAt(t.Context(), a.State().Generation, p, off) == nil && p[0] == 3
	})
	b.machines["b"].set(func(m *machine) { m.cut = true })
	until(t, "b to be given up", func() bool { return slices.Equal(e.Status().Members, []string{"a"}) })
	close(hangs)
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	until(t, "c to be a member", func() bool { return slices.Equal(e.Status().Members, []string{"a", "c"}) })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	b.equal("a", "c")
}

func TestANewReplicaIsBuiltWhileWritesGoOn(t *testing.T) {
	b := newBench(t, "a")
	e, stop := b.engine()
	for off := int64(0); off < size; off += 3 * 4096 {
		b.write(e, off, byte(off/4096), 4096)
	}
	b.add("n")
	e.SetWant(engine.Want{Build: []string{"a", "n"}})
	for i := 0; len(e.Status().Members) < 2 || i < 200; i++ {
		b.write(e, int64(i*7919*512)%(size-8192), byte(i), 5000)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	b.equal("a", "n")
	if got, err := b.machines["n"].store.Extents(t.Context(), 100, 0, size); err == nil && len(got) == 0 {
		t.Error("no extents")
	}
}

func TestWhileTheAPIIsAwayNothingIsAcknowledgedWithoutAMember(t *testing.T) {
	b := newBench(t, "a", "b")
	e, _ := b.engine()
	b.write(e, 0, 1, 512)
	b.volume.setAway(true)
	b.machines["b"].set(func(m *machine) { m.cut = true })
	done := make(chan error, 1)
	go func() { done <- e.WriteAt(context.Background(), fill(2, 512), 0, false) }()
	until(t, "I/O to wait", func() bool { return e.Status().WaitingFor != "" })
	select {
	case err := <-done:
		t.Fatalf("a write ended with %v while the API was away", err)
	case <-time.After(2 * quick().Unanswered):
	}
	b.volume.setAway(false)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if _, members := b.volume.now(); !slices.Equal(members, []string{"a"}) {
		t.Errorf("members are %v", members)
	}
}

func TestAnEngineThatWasReplacedReadsAndWritesNothing(t *testing.T) {
	b := newBench(t, "a", "b")
	old, _ := b.engine()
	b.write(old, 0, 1, 512)
	next, _ := b.engine()
	b.write(next, 0, 2, 512)
	if err := old.WriteAt(t.Context(), fill(3, 512), 0, false); !errors.Is(err, block.ErrClosed) {
		t.Errorf("the old engine writes: %v", err)
	}
	if err := old.ReadAt(t.Context(), make([]byte, 512), 0); !errors.Is(err, block.ErrClosed) {
		t.Errorf("the old engine reads: %v", err)
	}
	b.reads(next, 0, 2, 512)
}

func TestADiskThatIsFullIsGivenUpUnlessAllAre(t *testing.T) {
	b := newBench(t, "a", "b")
	e, _ := b.engine()
	b.write(e, 0, 1, 512)
	for _, m := range b.machines {
		m.set(func(m *machine) { m.fail = block.ErrNoSpace })
	}
	if err := e.WriteAt(t.Context(), fill(2, 512), 0, false); !errors.Is(err, block.ErrNoSpace) {
		t.Fatalf("with all disks full: %v", err)
	}
	if got := e.Status().Members; len(got) != 2 {
		t.Fatalf("members are %v", got)
	}
	b.machines["a"].set(func(m *machine) { m.fail = nil })
	b.write(e, 0, 3, 512)
	if got := e.Status().Members; !slices.Equal(got, []string{"a"}) {
		t.Errorf("members are %v", got)
	}
}

func TestALocalDiskThatHangsIsGivenUp(t *testing.T) {
	for name, do := range map[string]func(e *engine.Engine) error{
		"write": func(e *engine.Engine) error { return e.WriteAt(context.Background(), fill(2, 4096), 0, false) },
		"flush": func(e *engine.Engine) error { return e.Flush(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "a", "b")
			local := b.machines["a"]
			local.set(func(m *machine) { m.local = true })
			e, _ := b.engine()
			b.write(e, 0, 1, 4096)
			hangs := make(chan struct{})
			local.set(func(m *machine) { m.hangs = hangs })
			ended := make(chan error, 1)
			go func() { ended <- do(e) }()
			select {
			case err := <-ended:
				if err != nil {
					t.Fatal(err)
				}
			case <-time.After(patience):
				close(hangs)
				t.Fatal("the call waits for the disk")
			}
			if _, members := b.volume.now(); !slices.Equal(members, []string{"b"}) {
				t.Fatalf("members are %v", members)
			}
			b.write(e, block.ChunkSize, 3, 4096)
			b.reads(e, block.ChunkSize, 3, 4096)
			local.set(func(m *machine) { m.hangs = nil })
			close(hangs)
			e.SetWant(engine.Want{Build: []string{"a", "b"}})
			until(t, "a to be a member again", func() bool { return len(e.Status().Members) == 2 })
			b.equal("a", "b")
		})
	}
}

func TestALastDiskThatHangsIsWaitedFor(t *testing.T) {
	for _, members := range [][]string{{"a"}, {"a", "b"}} {
		t.Run(fmt.Sprint(len(members)), func(t *testing.T) {
			b := newBench(t, members...)
			b.machines["a"].set(func(m *machine) { m.local = true })
			e, _ := b.engine()
			b.write(e, 0, 1, 4096)
			hangs := make(chan struct{})
			for _, m := range b.machines {
				m.set(func(m *machine) { m.hangs = hangs })
			}
			ended := make(chan error, 1)
			go func() { ended <- e.WriteAt(context.Background(), fill(2, 4096), 0, false) }()
			select {
			case err := <-ended:
				t.Errorf("the write ended with %v", err)
			case <-time.After(2 * quick().Stuck):
			}
			for _, m := range b.machines {
				m.set(func(m *machine) { m.hangs = nil })
			}
			close(hangs)
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if got := e.Status().Members; !slices.Equal(got, members) {
				t.Errorf("members are %v", got)
			}
		})
	}
}

func TestAReplicaThatIsBuiltOnADiskThatHangsIsGivenUp(t *testing.T) {
	b := newBench(t, "a")
	e, _ := b.engine()
	b.write(e, 0, 1, 4096)
	b.add("n")
	hangs := make(chan struct{})
	b.machines["n"].set(func(m *machine) { m.hangs, m.local = hangs, true })
	t.Cleanup(func() { close(hangs) })
	e.SetWant(engine.Want{Build: []string{"a", "n"}})
	until(t, "the rebuild", func() bool { return len(e.Status().Rebuilds) > 0 })
	b.write(e, block.ChunkSize, 2, 4096)
	b.reads(e, block.ChunkSize, 2, 4096)
}

func TestTheLastMemberIsWaitedFor(t *testing.T) {
	b := newBench(t, "a")
	e, _ := b.engine()
	b.write(e, 0, 1, 512)
	b.machines["a"].set(func(m *machine) { m.cut = true })
	done := make(chan error, 1)
	go func() { done <- e.WriteAt(context.Background(), fill(2, 512), 0, false) }()
	until(t, "I/O to wait", func() bool { return e.Status().WaitingFor != "" })
	b.machines["a"].set(func(m *machine) { m.cut = false })
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	b.reads(e, 0, 2, 512)
}

func TestAVolumeIsNotOpenedIfAReplicaKnowsANewerGeneration(t *testing.T) {
	b := newBench(t, "a", "b")
	if err := b.machines["b"].store.Commit(t.Context(), block.Membership{Generation: 7, Members: []string{"b"}}); err != nil {
		t.Fatal(err)
	}
	for range 10 { // however often it is tried
		_, stop := b.engine()
		until(t, "the engine to end", func() bool { return b.ended() })
		if err := stop(); !errors.Is(err, engine.ErrStoreIsOlder) {
			t.Fatalf("the engine ended with %v", err)
		}
	}
	if generation, _ := b.volume.now(); generation != 1 {
		t.Errorf("the generation was raised to %d", generation)
	}
}

func TestAMemberLeavesOnlyWhileItIsReleased(t *testing.T) {
	b := newBench(t, "a", "b")
	e, _ := b.engine()
	b.write(e, 0, 1, 512)
	e.SetWant(engine.Want{Leave: map[string]bool{"b": false}}) // as seen a while ago: it was revoked since
	for i := range 20 {
		b.write(e, 0, byte(i), 512)
	}
	if got := e.Status().Members; len(got) != 2 {
		t.Fatalf("members are %v", got)
	}
	b.volume.mu.Lock()
	b.volume.released = map[string]bool{"b": true}
	b.volume.mu.Unlock()
	e.SetWant(engine.Want{Leave: map[string]bool{"b": false}})
	until(t, "b to leave", func() bool { return slices.Equal(e.Status().Members, []string{"a"}) })
	b.write(e, 0, 9, 512)
	b.reads(e, 0, 9, 512)
}

// A ping of the generation before is refused while the engine itself raises the generation; the engine learns of it afterwards.
func TestAPingThatItsOwnEngineOvertookEndsNothing(t *testing.T) {
	b := newBench(t, "a", "b", "c")
	b.timing.Unanswered = time.Minute
	pings := make(chan chan struct{})
	b.machines["a"].set(func(m *machine) { m.pings = pings })
	e, stop := b.engine()
	ping := <-pings // under way, with the first generation
	b.machines["c"].set(func(m *machine) { m.fail = errors.New("the disk is broken") })
	b.write(e, 0, 1, 512)
	until(t, "c to be given up", func() bool { return slices.Equal(e.Status().Members, []string{"a", "b"}) })
	ping <- struct{}{}
	ping = <-pings // refused, which the engine does not know yet
	ping <- struct{}{}
	until(t, "the next ping", func() bool {
		select {
		case ping = <-pings:
			return true
		default:
			return b.ended()
		}
	})
	if b.ended() {
		t.Fatalf("the engine ended though nobody replaced it: %v", stop())
	}
	b.machines["a"].set(func(m *machine) { m.pings = nil })
	ping <- struct{}{}
	(<-pings) <- struct{}{}
	b.write(e, 0, 2, 512)
	b.reads(e, 0, 2, 512)
}
