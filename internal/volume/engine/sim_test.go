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
	store *store.Store  // nil while the process is dead
	life  int           // counts the processes: connections to an earlier one are dead
	cut   bool          // no engine reaches it
	froze chan struct{} // if there is one, calls wait until it is closed
}

func (m *simMachine) start() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.store != nil {
		return nil
	}
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

// play is one history.
type play struct {
	t        *testing.T
	rng      *rand.Rand
	volume   *record
	machines map[string]*simMachine
	engine   atomic.Pointer[simEngine]
	previous atomic.Pointer[simEngine]
	attached atomic.Pointer[simEngine] // whose node the volume is attached to
	old      []*simEngine
	replicas []string
	wrap     func(block.Replica) block.Replica // breaks a rule, for tests of the referee
	timing   engine.Timing

	mu     sync.Mutex
	log    []string
	broken string

	clients []*simClient
	losses  losses
	mends   []func() // of faults that last
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
	losses  int64 // that the model knows of
	salvage int64 // the last one that the model knows of
}

// sectorModel is what a sector may hold.
type sectorModel struct {
	may   []uint64 // what a read may return now
	since []uint64 // what was written since the last flush that succeeded, and what was there then: a loss of all power may leave any
	ever  []uint64 // what was ever written: a replica that is salvaged may have any
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
		m = &sectorModel{may: []uint64{0}, since: []uint64{0}, ever: []uint64{0}}
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
	e := c.p.engine.Load()
	c.noteLosses()
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
	m.since, m.ever = m.add(m.since, v), m.add(m.ever, v)
	var err error
	fua := c.rng.IntN(8) == 0
	if c.rng.IntN(8) == 0 {
		v = 0
		m.since, m.ever = m.add(m.since, 0), m.add(m.ever, 0)
		err = e.Zero(ctx, s*sector, sector, block.Zero{Hole: c.rng.IntN(2) == 0, FUA: fua})
	} else {
		err = e.WriteAt(ctx, content(v), s*sector, fua)
	}
	switch lost := c.noteLosses(); {
	case err != nil || lost:
		m.may = m.add(m.may, v)
	case fua:
		m.may, m.since = []uint64{v}, []uint64{v}
	default:
		m.may = []uint64{v}
	}
}

func (c *simClient) read(ctx context.Context, e *simEngine, s int64) {
	b := make([]byte, sector)
	if err := e.ReadAt(ctx, b, s*sector); err != nil {
		return
	}
	m, lost := c.model(s), c.noteLosses()
	v, err := value(b)
	if err != nil || !slices.Contains(m.may, v) {
		c.p.fail("client %d read %d (%v) from sector %d, which may hold %v", c.n, v, err, s, m.may)
		return
	}
	if !lost {
		m.may = []uint64{v}
	}
}

func (c *simClient) flush(ctx context.Context, e *simEngine) {
	if err := e.Flush(ctx); c.noteLosses() || err != nil {
		return
	}
	for _, m := range c.sectors {
		m.since = slices.Clone(m.may)
	}
}

// noteLosses tells the model if acknowledged writes that were not flushed may have been lost since it was told last.
func (c *simClient) noteLosses() bool {
	if n := c.p.losses.salvages.Load(); n != c.salvage {
		c.salvage = n
		for _, m := range c.sectors {
			m.may, m.since = slices.Clone(m.ever), slices.Clone(m.ever)
		}
		c.losses = c.p.losses.count.Load()
		return true
	}
	n := c.p.losses.count.Load()
	if n == c.losses {
		return false
	}
	c.losses = n
	for _, m := range c.sectors {
		m.may = slices.Clone(m.since)
	}
	return true
}

func newPlay(t *testing.T, seed uint64, wrap func(block.Replica) block.Replica) *play {
	p := &play{t: t, rng: rand.New(rand.NewPCG(seed, 1)), machines: map[string]*simMachine{}, replicas: []string{"a", "b", "c"}, wrap: wrap, timing: hasty(), losses: losses{lossy: map[string]bool{}}}
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
	e := &simEngine{ended: make(chan struct{})}
	p.attached.Store(e)
	generation, members := p.volume.now()
	e.Engine = engine.New(engine.Options{
		Volume: "default/v", Size: simSize, Generation: generation, Members: members, Persist: func(ctx context.Context, r engine.Record) error {
			if e.lost.Load() {
				return errors.New("the node is cut off")
			}
			return p.persist(ctx, e, r)
		},
		Dial: func(_ context.Context, name string) (block.Replica, bool, error) {
			l, err := p.dial(e, p.machines[name])
			return l, false, err
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
	p.mendAll()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		e := p.engine.Load()
		s := e.Status()
		if s.Serving {
			e.served.Store(true)
		}
		if s.Serving && len(s.Members) == len(p.replicas) && p.whole(e) {
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
		if p.rng.IntN(2) == 0 && !p.healthy() || p.isBroken() {
			break
		}
		p.fault()
	}
	p.healthy()
	cancel()
	group.Wait()
	e := p.engine.Load()
	e.cancel()
	if <-e.ended; e.err != nil && !errors.Is(e.err, block.ErrUnreachable) { // a busy machine
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
		err := s.ReadAt(context.Background(), s.State().Generation, b, 0)
		for errors.Is(err, block.ErrStale) { // an engine that was replaced had it under way
			err = s.ReadAt(context.Background(), s.State().Generation, b, 0)
		}
		if err != nil {
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

func (f forgetful) Missed(ctx context.Context, g int64, r string, at int64) (block.Bitmap, bool, error) {
	if f.missed {
		return block.NewBitmap(block.Chunks(simSize)), true, nil
	}
	return f.Replica.Missed(ctx, g, r, at)
}

func (f forgetful) Flush(ctx context.Context, g int64) error {
	if f.flush {
		return nil
	}
	return f.Replica.Flush(ctx, g)
}

// newest is the generation that a replica knows, for one that does not refuse older ones.
func (f forgetful) newest(g int64) int64 {
	if s, ok := f.Replica.(interface{ State() block.State }); ok && f.generation {
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
