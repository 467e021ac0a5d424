package engine_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ebb-dev/ebb/internal/volume/block"
	"github.com/ebb-dev/ebb/internal/volume/engine"
	"github.com/ebb-dev/ebb/internal/volume/store/lossy"
)

// simLink is a connection of an engine to one process of a machine.
type simLink struct {
	block.Replica
	e      *simEngine
	m      *simMachine
	life   int
	once   sync.Once
	closed chan struct{}
}

// dial reaches a machine. A store on which a sync failed is opened anew.
func (p *play) dial(e *simEngine, m *simMachine) (*simLink, error) {
	m.mu.Lock()
	s, life := m.store, m.life
	m.mu.Unlock()
	if s == nil {
		return nil, fmt.Errorf("%w: %s is dead", block.ErrUnreachable, m.name)
	}
	r := s.Connect()
	if p.wrap != nil {
		r = p.wrap(r)
	}
	l := &simLink{Replica: r, e: e, m: m, life: life, closed: make(chan struct{})}
	return l, l.up()
}

func (l *simLink) up() error {
	l.m.mu.Lock()
	defer l.m.mu.Unlock()
	if _, cut := l.e.cut.Load(l.m.name); cut || l.m.cut || l.e.lost.Load() || l.life != l.m.life || l.m.store == nil {
		return fmt.Errorf("%w: %s", block.ErrUnreachable, l.m.name)
	}
	return nil
}

// thawed waits while the machine is frozen.
func (m *simMachine) thawed() {
	m.mu.Lock()
	froze := m.froze
	m.mu.Unlock()
	if froze != nil {
		<-froze
	}
}

// over does something over the connection. An answer that comes back after the connection was lost is lost too. What a frozen machine was asked for
// it does when it thaws, whether or not anybody waits.
func over[T any](ctx context.Context, l *simLink, do func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var none T
	if err := l.up(); err != nil {
		return none, err
	}
	done := make(chan result, 1)
	go func() {
		l.m.thawed()
		value, err := do()
		if rand.IntN(20) == 0 { // the answer is late
			time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
		}
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		if lost := l.up(); lost != nil {
			return none, lost
		}
		return r.value, r.err
	case <-ctx.Done():
	case <-l.closed:
	}
	return none, fmt.Errorf("%w: %s has not answered", block.ErrUnreachable, l.m.name)
}

func (l *simLink) call(ctx context.Context, do func() error) error {
	_, err := over(ctx, l, func() (struct{}, error) { return struct{}{}, do() })
	return err
}

func (l *simLink) Open(ctx context.Context, g int64) (block.State, error) {
	return over(ctx, l, func() (block.State, error) { return l.Replica.Open(context.Background(), g) })
}
func (l *simLink) Commit(ctx context.Context, m block.Membership) error {
	return l.call(ctx, func() error { return l.Replica.Commit(context.Background(), m) })
}
func (l *simLink) ReadAt(ctx context.Context, g int64, p []byte, off int64) error {
	b, err := over(ctx, l, func() ([]byte, error) {
		b := make([]byte, len(p))
		return b, l.Replica.ReadAt(context.Background(), g, b, off)
	})
	copy(p, b)
	return err
}
func (l *simLink) WriteAt(ctx context.Context, g int64, p []byte, off int64, fua bool) error {
	p = slices.Clone(p)
	return l.call(ctx, func() error { return l.Replica.WriteAt(context.Background(), g, p, off, fua) })
}
func (l *simLink) Zero(ctx context.Context, g int64, off, n int64, z block.Zero) error {
	return l.call(ctx, func() error { return l.Replica.Zero(context.Background(), g, off, n, z) })
}
func (l *simLink) Flush(ctx context.Context, g int64) error {
	return l.call(ctx, func() error { return l.Replica.Flush(context.Background(), g) })
}
func (l *simLink) Extents(ctx context.Context, g int64, off, n int64) ([]block.Extent, error) {
	return over(ctx, l, func() ([]block.Extent, error) { return l.Replica.Extents(context.Background(), g, off, n) })
}
func (l *simLink) Intent(ctx context.Context, g int64) (block.Bitmap, error) {
	return over(ctx, l, func() (block.Bitmap, error) { return l.Replica.Intent(context.Background(), g) })
}
func (l *simLink) Missed(ctx context.Context, g int64, r string, at int64) (block.Bitmap, bool, error) {
	type missed struct {
		chunks block.Bitmap
		known  bool
	}
	m, err := over(ctx, l, func() (m missed, err error) {
		m.chunks, m.known, err = l.Replica.Missed(context.Background(), g, r, at)
		return m, err
	})
	return m.chunks, m.known, err
}
func (l *simLink) Clear(ctx context.Context, g int64, b block.Bitmap) error {
	return l.call(ctx, func() error { return l.Replica.Clear(context.Background(), g, b) })
}
func (l *simLink) Ping(ctx context.Context, g int64) error {
	return l.call(ctx, func() error { return l.Replica.Ping(context.Background(), g) })
}
func (l *simLink) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// losses says when acknowledged writes that were not flushed may be lost: when every member has lost its memory since it last had everything.
type losses struct {
	mu    sync.Mutex
	lossy map[string]bool // machines that lost their memory since they had everything
	count atomic.Int64
	// salvages counts what begins and ends when a replica that has any older state becomes the only member.
	salvages atomic.Int64
}

// note is to be called with the lock, whenever a machine lost its memory and whenever the members change.
func (l *losses) note(members []string) {
	if !slices.ContainsFunc(members, func(name string) bool { return !l.lossy[name] }) {
		l.count.Add(1)
	}
}

// lose makes machines lose their memory. Clients are told before, for what they read afterwards, and after, for what was acknowledged meanwhile.
func (p *play) lose(machines []*simMachine, how func(*simMachine)) {
	note := func() {
		p.losses.mu.Lock()
		defer p.losses.mu.Unlock()
		for _, m := range machines {
			p.losses.lossy[m.name] = true
		}
		_, members := p.volume.now()
		p.losses.note(members)
	}
	note()
	for _, m := range machines {
		how(m)
	}
	note()
}

// persist records what an engine asks for. The answer may be lost. When a replica becomes a member, all members were flushed before.
func (p *play) persist(ctx context.Context, e *simEngine, r engine.Record) error {
	if rand.IntN(8) == 0 {
		time.Sleep(time.Duration(rand.IntN(30)) * time.Millisecond)
	}
	p.losses.mu.Lock()
	defer p.losses.mu.Unlock()
	if p.attached.Load() != e {
		return fmt.Errorf("%w: the volume is attached elsewhere", block.ErrStale)
	}
	_, before := p.volume.now()
	if err := p.volume.persist(ctx, r); err != nil {
		return err
	}
	if len(r.Members) > len(before) {
		for _, name := range r.Members {
			delete(p.losses.lossy, name)
		}
	}
	p.losses.note(r.Members)
	if rand.IntN(8) == 0 {
		return errors.New("the answer of the API was lost")
	}
	return nil
}

// whole reports whether all members have everything, which is so if all can be flushed over the connections that the engine has.
func (p *play) whole(e *simEngine) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if e.Flush(ctx) != nil || len(e.Status().Members) != len(p.replicas) {
		return false
	}
	p.losses.mu.Lock()
	defer p.losses.mu.Unlock()
	clear(p.losses.lossy)
	return true
}

// lasts makes a fault last, for a while or for some of the next ones.
func (p *play) lasts(most int, mend func()) {
	p.mends = append(p.mends, mend)
	if p.rng.IntN(2) == 0 {
		time.Sleep(time.Duration(p.rng.IntN(most)) * time.Millisecond)
		p.mendSome(1)
	}
}

// mendSome mends about one in some of what is broken.
func (p *play) mendSome(some int) {
	var left []func()
	for _, mend := range p.mends {
		if p.rng.IntN(some) == 0 {
			mend()
		} else {
			left = append(left, mend)
		}
	}
	p.mends = left
}

func (p *play) mendAll() { p.mendSome(1) }

// fault makes something go wrong, and mends it after a while.
func (p *play) fault() {
	p.mendSome(2)
	if p.rng.IntN(2) == 0 {
		time.Sleep(time.Duration(p.rng.IntN(60)) * time.Millisecond)
	}
	e := p.engine.Load()
	m := p.machines[p.replicas[p.rng.IntN(len(p.replicas))]]
	start := func() { p.must(m.start()) }
	switch p.rng.IntN(14) {
	case 0:
		p.note("the engine does not reach %s", m.name)
		e.cut.Store(m.name, true)
		p.lasts(200, func() { e.cut.Delete(m.name) })
	case 1:
		p.note("kill the process of %s", m.name)
		p.must(m.stop(false))
		p.lasts(200, start)
	case 2:
		p.note("%s loses power", m.name)
		p.lose([]*simMachine{m}, func(m *simMachine) { p.must(m.stop(true)) })
		p.lasts(200, start)
	case 3:
		p.note("the API is away, and the engine does not reach %s", m.name)
		p.volume.setAway(true)
		e.cut.Store(m.name, true)
		p.lasts(300, func() {
			p.volume.setAway(false)
			e.cut.Delete(m.name)
		})
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
		e.cancel()
		p.lose(slices.Collect(maps.Values(p.machines)), func(m *simMachine) { p.must(m.stop(true)) })
		for _, m := range p.machines {
			p.must(m.start())
		}
		p.newEngine()
	case 7:
		p.note("%s and its replica cannot be reached", m.name)
		m.set(func() { m.cut = true })
		p.lasts(200, func() { m.set(func() { m.cut = false }) })
	case 8:
		p.note("%s freezes", m.name)
		froze := make(chan struct{})
		m.set(func() {
			if m.froze == nil {
				m.froze = froze
			}
		})
		p.lasts(300, func() {
			m.set(func() {
				if m.froze == froze {
					m.froze = nil
				}
			})
			close(froze)
		})
	case 9:
		p.note("the process of %s ends in order", m.name)
		p.must(m.close())
		p.lasts(200, start)
	case 10:
		p.note("a sync of %s fails", m.name)
		p.lose([]*simMachine{m}, p.failSyncs)
		start()
	case 11:
		p.note("replicas that are no members are not built for a while")
		e.SetWant(engine.Want{})
		p.lasts(200, func() { e.SetWant(engine.Want{Build: p.replicas}) })
	case 12:
		leave := []*simMachine{m}
		p.note("%s is full", m.name)
		if p.rng.IntN(3) == 0 {
			p.note("every other disk is full too")
			leave = slices.Collect(maps.Values(p.machines))
		}
		for _, m := range leave {
			m.fs.SetFree(0)
		}
		p.lasts(200, func() {
			for _, m := range leave {
				m.fs.SetFree(-1)
			}
		})
	case 13:
		if p.rng.IntN(3) == 0 {
			p.salvage(e, m)
		}
	}
}

// salvage makes a replica the only member, whatever it has, if it was ever built completely.
func (p *play) salvage(e *simEngine, m *simMachine) {
	m.mu.Lock()
	whole := m.store != nil && !m.store.State().Syncing
	m.mu.Unlock()
	if !whole {
		return
	}
	p.note("%s is salvaged", m.name)
	for _, o := range append(slices.Clone(p.old), e) { // a volume that is served is not salvaged
		o.lost.Store(true)
		o.cancel()
	}
	p.losses.salvages.Add(1)
	p.losses.mu.Lock()
	p.volume.mu.Lock()
	for _, other := range p.machines {
		other.mu.Lock()
		if other.store != nil {
			p.volume.generation = max(p.volume.generation, other.store.State().Generation)
		}
		other.mu.Unlock()
	}
	p.volume.generation, p.volume.members = p.volume.generation+1, []string{m.name}
	p.attached.Store(nil)
	p.volume.mu.Unlock()
	p.losses.note(p.volume.members)
	p.losses.mu.Unlock()
	p.newEngine()
	p.losses.salvages.Add(1)
}

func (m *simMachine) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

// close ends the process in order.
func (m *simMachine) close() error {
	m.mu.Lock()
	s := m.store
	m.store, m.life = nil, m.life+1
	m.mu.Unlock()
	if s == nil {
		return nil
	}
	return s.Close()
}

// failSyncs lets the syncs of data fail on a machine until its replica has failed, and then closes the replica, as its node does.
func (p *play) failSyncs(m *simMachine) {
	m.mu.Lock()
	s := m.store
	m.mu.Unlock()
	if s == nil {
		return
	}
	m.fs.Inject(func(op lossy.Op) error {
		if op.Kind == lossy.Sync {
			return syscall.EIO
		}
		return nil
	})
	for deadline := time.Now().Add(100 * time.Millisecond); s.Failure() == nil && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	m.fs.Inject(nil)
	_ = m.close() // it says that the sync failed
}
