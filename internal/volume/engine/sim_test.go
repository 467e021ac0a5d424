package engine_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/testlength"
	"github.com/ebb-dev/ebb/internal/volume/block"
	"github.com/ebb-dev/ebb/internal/volume/engine"
	"github.com/ebb-dev/ebb/internal/volume/store"
	"github.com/ebb-dev/ebb/internal/volume/store/lossy"
)

// A play runs engines on real stores, whose machines lose power, processes and connections, while clients read and write. The referee
// knows for every sector which values a read may return.

const (
	simSize    = 6 * block.ChunkSize
	sector     = 512
	simClients = 4
)

// hasty is the timing of plays. Only its ratios matter for what is right.
func hasty() engine.Timing {
	return engine.Timing{Heartbeat: 10 * time.Millisecond, Unanswered: 120 * time.Millisecond, FenceWait: 400 * time.Millisecond, MemberWait: 200 * time.Millisecond, ClearAfter: 60 * time.Millisecond, Stuck: 10 * time.Second}
}

// simMachine has one replica, behind a file system that loses what was not synced.
type simMachine struct {
	name string
	dir  string
	id   store.Identity

	mu    sync.Mutex
	fs    *lossy.FS
	boot  int
	store *store.Store // nil while the process is dead
	life  int          // counts the processes: connections to an earlier one are dead
}

func (m *simMachine) start() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, err := store.Open(m.fs, m.dir, m.id, fmt.Sprint("boot-", m.boot))
	if err != nil {
		return err
	}
	m.store = s
	return nil
}

// stop ends the process; with power its machine loses power too.
func (m *simMachine) stop(power bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.store, m.life = nil, m.life+1
	if power {
		m.boot++
		return m.fs.Crash()
	}
	m.fs.Kill()
	return nil
}

// simEngine is an engine with its node's connections.
type simEngine struct {
	*engine.Engine
	cut    sync.Map // machines that it does not reach
	lost   atomic.Bool
	served atomic.Bool
	cancel context.CancelFunc
	err    error
	ended  chan struct{} // closed when err is set
}

// simLink is a connection of an engine to one process of a machine.
type simLink struct {
	block.Replica
	e    *simEngine
	m    *simMachine
	life int
}

func (l simLink) up() error {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	if _, cut := l.e.cut.Load(l.m.name); cut || l.e.lost.Load() || l.life != l.m.life || l.m.store == nil {
		return fmt.Errorf("%w: %s", block.ErrUnreachable, l.m.name)
	}
	return nil
}

// call does something over the connection. An answer that comes back after the connection was lost is lost too.
func (l simLink) call(do func() error) error {
	if err := l.up(); err != nil {
		return err
	}
	err := do()
	if rand.IntN(20) == 0 { // the answer is late
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
	}
	if lost := l.up(); lost != nil {
		return lost
	}
	return err
}

func (l simLink) Open(ctx context.Context, g int64) (s block.State, err error) {
	err = l.call(func() (err error) { s, err = l.Replica.Open(ctx, g); return err })
	return s, err
}
func (l simLink) Commit(ctx context.Context, m block.Membership) error {
	return l.call(func() error { return l.Replica.Commit(ctx, m) })
}
func (l simLink) ReadAt(ctx context.Context, g int64, p []byte, off int64) error {
	return l.call(func() error { return l.Replica.ReadAt(ctx, g, p, off) })
}
func (l simLink) WriteAt(ctx context.Context, g int64, p []byte, off int64, fua bool) error {
	return l.call(func() error { return l.Replica.WriteAt(ctx, g, p, off, fua) })
}
func (l simLink) Zero(ctx context.Context, g int64, off, n int64, z block.Zero) error {
	return l.call(func() error { return l.Replica.Zero(ctx, g, off, n, z) })
}
func (l simLink) Flush(ctx context.Context, g int64) error {
	return l.call(func() error { return l.Replica.Flush(ctx, g) })
}
func (l simLink) Extents(ctx context.Context, g int64, off, n int64) (x []block.Extent, err error) {
	err = l.call(func() (err error) { x, err = l.Replica.Extents(ctx, g, off, n); return err })
	return x, err
}
func (l simLink) Intent(ctx context.Context, g int64) (b block.Bitmap, err error) {
	err = l.call(func() (err error) { b, err = l.Replica.Intent(ctx, g); return err })
	return b, err
}
func (l simLink) Missed(ctx context.Context, g int64, r string) (b block.Bitmap, ok bool, err error) {
	err = l.call(func() (err error) { b, ok, err = l.Replica.Missed(ctx, g, r); return err })
	return b, ok, err
}
func (l simLink) Clear(ctx context.Context, g int64, b block.Bitmap) error {
	return l.call(func() error { return l.Replica.Clear(ctx, g, b) })
}
func (l simLink) Ping(ctx context.Context, g int64) error {
	return l.call(func() error { return l.Replica.Ping(ctx, g) })
}
func (l simLink) Close() error { return nil }

// play is one history.
type play struct {
	t        *testing.T
	rng      *rand.Rand
	volume   *record
	machines map[string]*simMachine
	engine   atomic.Pointer[simEngine]
	previous atomic.Pointer[simEngine]
	old      []*simEngine
	replicas []string
	wrap     func(block.Replica) block.Replica // breaks a rule, for tests of the referee
	timing   engine.Timing

	mu     sync.Mutex
	log    []string
	broken string

	clients []*simClient
	loss    sync.RWMutex // held by calls for reading, and by a loss of power of everything for writing
}

func (p *play) note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.log = append(p.log, fmt.Sprintf(format, args...))
}

func (p *play) fail(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken == "" {
		p.broken = fmt.Sprintf(format, args...)
		p.log = append(p.log, "BROKEN: "+p.broken)
	}
}

func (p *play) isBroken() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.broken != ""
}

// simClient owns sectors: it does one thing at a time with each.
type simClient struct {
	p       *play
	n       int
	rng     *rand.Rand
	sectors map[int64]*sectorModel
	next    uint64
}

// sectorModel is what a sector may hold.
type sectorModel struct {
	may   []uint64 // what a read may return now
	since []uint64 // what was written since the last flush that succeeded, and what was there then: a loss of all power may leave any
}

func (m *sectorModel) add(list []uint64, v uint64) []uint64 {
	if slices.Contains(list, v) {
		return list
	}
	return append(list, v)
}

func (c *simClient) model(s int64) *sectorModel {
	m := c.sectors[s]
	if m == nil {
		m = &sectorModel{may: []uint64{0}, since: []uint64{0}}
		c.sectors[s] = m
	}
	return m
}

func content(v uint64) []byte {
	b := make([]byte, sector)
	for i := 0; i < sector; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], v)
	}
	return b
}

func value(b []byte) (uint64, error) {
	v := binary.LittleEndian.Uint64(b)
	if !slices.Equal(b, content(v)) {
		return 0, errors.New("torn")
	}
	return v, nil
}

// step does one thing with one sector, or flushes.
func (c *simClient) step(ctx context.Context) {
	c.p.loss.RLock()
	defer c.p.loss.RUnlock()
	e := c.p.engine.Load()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	s := int64(c.rng.IntN(40))*307*simClients + int64(c.n)
	s %= simSize / sector
	s = s/simClients*simClients + int64(c.n)
	if s >= simSize/sector {
		s -= simClients
	}
	switch k := c.rng.IntN(10); {
	case k == 4 && c.p.previous.Load() != nil && c.rng.IntN(4) == 0: // nor may it acknowledge a write that its successor does not see
		c.write(ctx, c.p.previous.Load(), s)
	case k < 5:
		c.write(ctx, e, s)
	case k == 5 && c.p.previous.Load() != nil: // an engine that was replaced may answer, but only with what is true
		limited, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		c.read(limited, c.p.previous.Load(), s)
		cancel()
	case k < 9:
		c.read(ctx, e, s)
	default:
		c.flush(ctx, e)
	}
}

func (c *simClient) write(ctx context.Context, e *simEngine, s int64) {
	c.next++
	v := c.next*simClients + uint64(c.n)
	m := c.model(s)
	m.since = m.add(m.since, v)
	var err error
	if c.rng.IntN(8) == 0 {
		v = 0
		m.since = m.add(m.since, 0)
		err = e.Zero(ctx, s*sector, sector, block.Zero{Hole: c.rng.IntN(2) == 0})
	} else {
		err = e.WriteAt(ctx, content(v), s*sector, false)
	}
	if err != nil {
		m.may = m.add(m.may, v)
		return
	}
	m.may = []uint64{v}
}

func (c *simClient) read(ctx context.Context, e *simEngine, s int64) {
	b := make([]byte, sector)
	if err := e.ReadAt(ctx, b, s*sector); err != nil {
		return
	}
	m := c.model(s)
	v, err := value(b)
	if err != nil || !slices.Contains(m.may, v) {
		c.p.fail("client %d read %d (%v) from sector %d, which may hold %v", c.n, v, err, s, m.may)
		return
	}
	m.may = []uint64{v}
}

func (c *simClient) flush(ctx context.Context, e *simEngine) {
	if e.Flush(ctx) != nil {
		return
	}
	for _, m := range c.sectors {
		m.since = slices.Clone(m.may)
	}
}

// powerLost is after all machines lost power: what was not flushed may be gone.
func (c *simClient) powerLost() {
	for _, m := range c.sectors {
		m.may = slices.Clone(m.since)
	}
}

func newPlay(t *testing.T, seed uint64, wrap func(block.Replica) block.Replica) *play {
	p := &play{t: t, rng: rand.New(rand.NewPCG(seed, 1)), machines: map[string]*simMachine{}, replicas: []string{"a", "b", "c"}, wrap: wrap, timing: hasty()}
	p.volume = &record{generation: 1, members: slices.Clone(p.replicas)}
	for i, name := range p.replicas {
		dir := t.TempDir()
		fs, err := lossy.New(dir, seed*10+uint64(i))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(fs.Close)
		m := &simMachine{name: name, dir: filepath.Join(dir, "replica"), fs: fs, id: store.Identity{Volume: "default/v", VolumeUID: "uid", Replica: name, Size: simSize}}
		if err := store.Create(fs, m.dir, m.id, "boot-0"); err != nil {
			t.Fatal(err)
		}
		if err := m.start(); err != nil {
			t.Fatal(err)
		}
		p.machines[name] = m
	}
	for n := range simClients {
		p.clients = append(p.clients, &simClient{p: p, n: n, rng: rand.New(rand.NewPCG(seed, uint64(n)+2)), sectors: map[int64]*sectorModel{}})
	}
	return p
}

// newEngine replaces the engine. The one before goes on as long as it can.
func (p *play) newEngine() {
	generation, members := p.volume.now()
	e := &simEngine{ended: make(chan struct{})}
	e.Engine = engine.New(engine.Options{
		Volume: "default/v", Size: simSize, Generation: generation, Members: members, Persist: func(ctx context.Context, r engine.Record) error {
			if e.lost.Load() {
				return errors.New("the node is cut off")
			}
			return p.volume.persist(ctx, r)
		},
		Dial: func(_ context.Context, name string) (block.Replica, bool, error) {
			m := p.machines[name]
			m.mu.Lock()
			s, life := m.store, m.life
			m.mu.Unlock()
			if s == nil {
				return nil, false, fmt.Errorf("%w: %s is dead", block.ErrUnreachable, name)
			}
			var r block.Replica = s
			if p.wrap != nil {
				r = p.wrap(s)
			}
			l := simLink{r, e, m, life}
			return l, false, l.up()
		},
		Clock: func() time.Duration { return time.Since(start) + time.Hour }, Timing: p.timing, Log: slog.New(slog.DiscardHandler),
	})
	e.SetWant(engine.Want{Build: p.replicas})
	var ctx context.Context
	ctx, e.cancel = context.WithCancel(context.Background())
	go func() {
		e.err = e.Run(ctx)
		close(e.ended)
	}()
	if before := p.engine.Swap(e); before != nil {
		p.old = append(p.old, before)
		p.previous.Store(before)
		time.AfterFunc(time.Duration(200+p.rng.IntN(800))*time.Millisecond, before.cancel) // its node learns that it is not attached any more
	}
}

// healthy waits until all replicas are members. It opens the volume again if the engine ended.
func (p *play) healthy() bool {
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		e := p.engine.Load()
		s := e.Status()
		if s.Serving {
			e.served.Store(true)
		}
		if s.Serving && len(s.Members) == len(p.replicas) {
			return true
		}
		select {
		case <-e.ended:
			p.note("the engine ended: %v", e.err)
			if e.served.Load() {
				p.fail("an engine that served, and that nobody replaced, ended: %v", e.err)
				return false
			}
			p.newEngine()
		default:
		}
	}
	p.fail("the volume did not become healthy: %+v", p.engine.Load().Status())
	return false
}

// fault makes something go wrong, and mends it after a while.
func (p *play) fault() {
	e := p.engine.Load()
	m := p.machines[p.replicas[p.rng.IntN(len(p.replicas))]]
	pause := func(most int) { time.Sleep(time.Duration(p.rng.IntN(most)) * time.Millisecond) }
	switch p.rng.IntN(7) {
	case 0:
		p.note("cut %s", m.name)
		e.cut.Store(m.name, true)
		pause(200)
		e.cut.Delete(m.name)
	case 1:
		p.note("kill the process of %s", m.name)
		p.must(m.stop(false))
		pause(200)
		p.must(m.start())
	case 2:
		p.note("%s loses power", m.name)
		p.loss.Lock()
		p.must(m.stop(true))
		if _, members := p.volume.now(); slices.Equal(members, []string{m.name}) {
			p.powerLost() // it was alone: the machine is busy, and the others did not answer in time
		}
		p.loss.Unlock()
		pause(200)
		p.must(m.start())
	case 3:
		p.note("the API is away, and %s is cut", m.name)
		p.volume.setAway(true)
		e.cut.Store(m.name, true)
		pause(300)
		p.volume.setAway(false)
		e.cut.Delete(m.name)
	case 4:
		p.note("the node of the engine is cut off from all but %s; another engine opens", m.name)
		for _, name := range p.replicas {
			if name != m.name {
				e.cut.Store(name, true)
			}
		}
		e.lost.Store(p.rng.IntN(2) == 0)
		p.newEngine()
	case 5:
		p.note("the engine is killed")
		e.lost.Store(true)
		p.newEngine()
	case 6:
		p.note("everything loses power")
		e.lost.Store(true)
		for _, m := range p.machines {
			p.must(m.stop(true))
		}
		// No call may be under way when the model is told: those of the dead engine end.
		e.cancel()
		p.loss.Lock()
		p.powerLost()
		p.loss.Unlock()
		for _, m := range p.machines {
			p.must(m.start())
		}
		p.newEngine()
	}
}

func (p *play) powerLost() {
	for _, c := range p.clients {
		c.powerLost()
	}
}

func (p *play) must(err error) {
	if err != nil {
		p.fail("%v", err)
	}
}

// run plays faults while clients work, and compares the replicas at the end.
func (p *play) run(faults int) string {
	p.newEngine()
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	for _, c := range p.clients {
		group.Go(func() {
			for ctx.Err() == nil && !p.isBroken() {
				c.step(ctx)
			}
		})
	}
	for range faults {
		if !p.healthy() || p.isBroken() {
			break
		}
		p.fault()
	}
	p.healthy()
	cancel()
	group.Wait()
	e := p.engine.Load()
	e.cancel()
	if <-e.ended; e.err != nil {
		p.fail("the last engine ended with %v", e.err)
	}
	for _, o := range p.old {
		o.cancel()
		<-o.ended
	}
	p.compare()
	return p.broken
}

// compare fails unless all replicas are the same and hold what the clients may read.
func (p *play) compare() {
	if p.isBroken() {
		return
	}
	var first []byte
	for _, name := range p.replicas {
		s := p.machines[name].store
		b := make([]byte, simSize)
		if err := s.ReadAt(context.Background(), s.State().Generation, b, 0); err != nil {
			p.fail("read replica %s: %v", name, err)
			return
		}
		if first == nil {
			first = b
		}
		if !slices.Equal(b, first) {
			p.fail("replicas %s and %s differ", p.replicas[0], name)
		}
	}
	for _, c := range p.clients {
		for s, m := range c.sectors {
			if v, err := value(first[s*sector : (s+1)*sector]); err != nil || !slices.Contains(m.may, v) {
				p.fail("sector %d holds %d (%v) at the end, and may hold %v", s, v, err, m.may)
			}
		}
	}
}

func TestNoFaultLosesATornOrStaleSector(t *testing.T) {
	for seed := range testlength.Seeds(4, 200) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			t.Parallel()
			p := newPlay(t, seed, nil)
			if broken := p.run(testlength.Pick(5, 25)); broken != "" {
				t.Errorf("%s\n%s", broken, strings.Join(p.log, "\n"))
			}
		})
	}
}

// forgetful breaks a rule of replicas.
type forgetful struct {
	block.Replica
	intent, missed, flush, generation bool
}

func (f forgetful) Intent(ctx context.Context, g int64) (block.Bitmap, error) {
	if f.intent {
		return block.NewBitmap(block.Chunks(simSize)), nil
	}
	return f.Replica.Intent(ctx, g)
}

func (f forgetful) Missed(ctx context.Context, g int64, r string) (block.Bitmap, bool, error) {
	if f.missed {
		return block.NewBitmap(block.Chunks(simSize)), true, nil
	}
	return f.Replica.Missed(ctx, g, r)
}

func (f forgetful) Flush(ctx context.Context, g int64) error {
	if f.flush {
		return nil
	}
	return f.Replica.Flush(ctx, g)
}

// newest is the generation that a replica knows, for one that does not refuse older ones.
func (f forgetful) newest(g int64) int64 {
	if s, ok := f.Replica.(*store.Store); ok && f.generation {
		return s.State().Generation
	}
	return g
}

func (f forgetful) ReadAt(ctx context.Context, g int64, p []byte, off int64) error {
	return f.Replica.ReadAt(ctx, f.newest(g), p, off)
}

func (f forgetful) WriteAt(ctx context.Context, g int64, p []byte, off int64, fua bool) error {
	return f.Replica.WriteAt(ctx, f.newest(g), p, off, fua)
}

func (f forgetful) Ping(ctx context.Context, g int64) error { return f.Replica.Ping(ctx, f.newest(g)) }

func TestTheRefereeSeesABrokenRule(t *testing.T) {
	for name, broken := range map[string]struct {
		rule   forgetful
		timing func(*engine.Timing)
		rare   bool // it shows after many plays only
	}{
		"intent is not remembered":          {rule: forgetful{intent: true}},
		"what was missed is not remembered": {rule: forgetful{missed: true}},
		"a flush does nothing":              {rule: forgetful{flush: true}},
		"an old generation is not refused":  {rule: forgetful{generation: true}, rare: true},
		"an engine never stops by itself":   {timing: func(t *engine.Timing) { t.Unanswered, t.FenceWait = time.Hour, 0 }, rare: true},
	} {
		if broken.rare && !testlength.Long() {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(testlength.Pick(40, 200)) {
				p := newPlay(t, seed, func(r block.Replica) block.Replica {
					rule := broken.rule
					rule.Replica = r
					return rule
				})
				if broken.timing != nil {
					broken.timing(&p.timing)
				}
				if p.run(8) != "" {
					return
				}
			}
			t.Error("no play noticed")
		})
	}
}
