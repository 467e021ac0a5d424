package coordinator

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/node"
)

// process is one run of a node's program: the campaign is real, everything around it a model.
type process struct {
	world    *world
	machine  *machine
	gate     gate
	campaign *Campaign
	freed    chan struct{}

	mu      sync.Mutex
	dead    bool
	end     context.CancelFunc // of the epoch it is in
	ended   chan struct{}      // closed when that epoch's campaign has returned
	changed chan struct{}      // closed and replaced when the machine's liveness changes
}

// gate stops a frozen process wherever it deals with the world.
type gate struct {
	mu   sync.Mutex
	shut chan struct{} // closed at the thaw; nil unless frozen
}

func (g *gate) pass() {
	for {
		g.mu.Lock()
		shut := g.shut
		g.mu.Unlock()
		if shut == nil {
			return
		}
		<-shut
	}
}

func (g *gate) set(frozen bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if frozen && g.shut == nil {
		g.shut = make(chan struct{})
	} else if !frozen && g.shut != nil {
		close(g.shut)
		g.shut = nil
	}
}

func newProcess(m *machine) *process {
	p := &process{world: m.world, machine: m, freed: make(chan struct{}, 1), changed: make(chan struct{}), ended: make(chan struct{})}
	close(p.ended)
	c := newCampaign(Options{Timing: timing, Log: quiet, Metrics: m.world.metrics}, elections{process: p})
	guard := c.guard
	c.parts = parts{eligible: p.eligible, alone: notAlone, liveness: p.liveness, work: p.work, guard: func(l *resourcelock.LeaseLock, stopped func() bool) resourcelock.Interface {
		l.Client = elections{process: p, identity: l.Identity()}
		if p.world.broken.plainLock {
			return l
		}
		if p.world.broken.selfRelease {
			stopped = func() bool { return true }
		}
		return counted{guard(l, stopped), p.world.referee}
	}}
	p.campaign = c
	return p
}

// counted tells the referee what the guard did.
type counted struct {
	resourcelock.Interface
	referee *referee
}

func (c counted) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	err := c.Interface.Update(ctx, r)
	if errors.Is(err, errNotHeld) || errors.Is(err, errStillWorking) {
		c.referee.Count(err.Error())
	}
	return err
}

// enter begins the machine's next epoch in this process, once the last one has ended.
func (p *process) enter() {
	ctx, end := context.WithCancel(context.Background())
	p.mu.Lock()
	before, ended := p.ended, make(chan struct{})
	p.end, p.ended = end, ended
	p.mu.Unlock()
	epoch := &node.Epoch{Node: p.machine.name, Number: p.machine.nextEpoch(), Client: everybody()}
	p.world.running.Go(func() {
		defer close(ended)
		<-before
		p.campaign.campaign(ctx, epoch, p.freed)
	})
}

// leave ends the epoch in order.
func (p *process) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end()
}

// kill: from now on nothing it does reaches anything. Its goroutines only wind down.
func (p *process) kill() {
	p.mu.Lock()
	p.dead = true
	p.mu.Unlock()
	p.world.referee.died(p)
	p.gate.set(false)
	p.leave()
}

func (p *process) isDead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dead
}

func (p *process) isCut() bool { return p.machine.is(cut) }

// signal tells the campaign that the election was released, if the watch works.
func (p *process) signal() {
	p.gate.pass()
	if p.isDead() || p.isCut() {
		return
	}
	select {
	case p.freed <- struct{}{}:
	default:
	}
}

func (p *process) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *process) liveness(*node.Epoch) (v1alpha1.Liveness, <-chan struct{}) {
	p.gate.pass()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.machine.is(drained) {
		return v1alpha1.Draining, p.changed
	}
	return v1alpha1.Alive, p.changed
}

func (p *process) eligible(ctx context.Context, _ *node.Epoch) error {
	named, err := send(ctx, p, func() (bool, error) { return p.machine.is(drained), nil })
	if err == nil && named {
		err = errors.New("named by a drain")
	}
	return err
}

// skewed is a Lease as written by a machine whose clock shows any time at all.
func (p *process) skewed(l *coordinationv1.Lease) *coordinationv1.Lease {
	l = l.DeepCopy()
	years := int(p.world.network.Between(0, 120)) - 60
	l.Spec.RenewTime.Time = l.Spec.RenewTime.AddDate(years, 0, 0)
	l.Spec.AcquireTime.Time = l.Spec.AcquireTime.AddDate(years, 0, 0)
	return l
}

// work is what a term does: it writes, through the term's own binding, until it is told to stop, and then takes a while.
func (p *process) work(t *Term) error {
	if !p.world.broken.earlyReturn {
		return p.writeAll(t)
	}
	p.world.running.Go(func() { _ = p.writeAll(t) })
	<-t.ctx.Done()
	return nil
}

func (p *process) writeAll(t *Term) error {
	p.world.referee.begins(p, t.Identity)
	defer p.world.referee.ends(p, t.Identity)
	writes, err := rest.TransportFor(t.bind(&rest.Config{Transport: roundTripper(p.write)}))
	if err != nil {
		return err
	}
	for t.ctx.Err() == nil {
		p.try(writes)
		waitAny(t.ctx, p.world.network.Between(10*time.Millisecond, 500*time.Millisecond))
	}
	if p.world.broken.neverStops {
		<-p.world.over
	}
	waitAny(context.Background(), p.world.network.Between(0, timing.Dead-timing.Fence))
	p.try(writes)
	return nil
}

func (p *process) try(writes http.RoundTripper) {
	r, err := http.NewRequest(http.MethodPost, "https://store/", http.NoBody)
	if err != nil {
		panic(err)
	}
	if resp, err := writes.RoundTrip(r); err == nil {
		resp.Body.Close()
	}
}

func (p *process) write(r *http.Request) (*http.Response, error) {
	return send(r.Context(), p, func() (*http.Response, error) { return p.world.store.write(r.Header) })
}
