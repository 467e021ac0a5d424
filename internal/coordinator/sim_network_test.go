package coordinator

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

var (
	errRefused = errors.New("connection refused")
	errDead    = errors.New("this process is dead")
)

// network carries requests and answers, late or not at all.
type network struct {
	flights sync.WaitGroup

	mu     sync.Mutex
	random *rand.Rand
	faults int  // of a hundred requests, how many meet a fault
	calm   bool // the faults are over, and what was late is gone
	next   []trip
}

// trip is what will happen to one request.
type trip struct {
	out, back         time.Duration
	outLost, backLost bool
}

func (n *network) between(low, high time.Duration) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return low + time.Duration(n.random.Int64N(int64(high-low)))
}

func (n *network) chance(percent int) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.random.IntN(100) < percent
}

func (n *network) isCalm() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.calm
}

func (n *network) calmDown() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calm = true
}

const late = 12 * time.Second

func (n *network) plan() trip {
	if t, ok := n.scripted(); ok {
		return t
	}
	t := trip{out: n.between(time.Millisecond, 20*time.Millisecond), back: n.between(time.Millisecond, 20*time.Millisecond)}
	if n.isCalm() || !n.chance(n.faults) {
		return t
	}
	switch n.between(0, 4) {
	case 0:
		t.outLost = true
	case 1:
		t.backLost = true
	case 2:
		t.out = n.between(0, late)
	case 3:
		t.back = n.between(0, late)
	}
	return t
}

// scripted are the trips that a scenario wants for the first requests.
func (n *network) scripted() (t trip, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.next) == 0 {
		return t, false
	}
	t, n.next = n.next[0], n.next[1:]
	return t, true
}

type answer[T any] struct {
	value T
	err   error
}

// send carries a request of a process to the store and the answer back. The process may be frozen between deciding and
// sending, and between the answer's arrival and its being seen; what it gives up on may still arrive.
func send[T any](ctx context.Context, p *process, ask func() (T, error)) (T, error) {
	var none T
	p.world.bound.Step()
	p.gate.pass()
	if p.isDead() {
		return none, errDead
	}
	ctx, cancel := context.WithTimeout(ctx, timing.Timeout)
	defer cancel()
	answers := make(chan answer[T], 1)
	p.world.network.flights.Go(func() {
		if a, ok := fly(p, ask); ok {
			answers <- a
		}
	})
	var a answer[T]
	select {
	case a = <-answers:
	case <-ctx.Done():
		a.err = ctx.Err()
	}
	p.gate.pass()
	if p.isDead() {
		return none, errDead
	}
	return a.value, a.err
}

// fly is one request under way. It reports whether there will be an answer.
func fly[T any](p *process, ask func() (T, error)) (answer[T], bool) {
	w := p.world
	t := w.network.plan()
	time.Sleep(t.out)
	isLate := t.out > timing.Timeout
	if t.outLost || isLate && w.network.isCalm() || p.isCut() {
		return answer[T]{}, false
	}
	if w.store.isAway() {
		return answer[T]{err: errRefused}, true
	}
	value, err := ask()
	if isLate {
		w.referee.Count("late arrival")
	}
	time.Sleep(t.back)
	return answer[T]{value, err}, !t.backLost && !p.isCut()
}

// elections is the client of one process: of an elector if it has an identity, else of the campaign itself.
type elections struct {
	coordinationclient.CoordinationV1Interface
	process  *process
	identity string
}

type electionLeases struct {
	coordinationclient.LeaseInterface
	elections
}

func (e elections) Leases(string) coordinationclient.LeaseInterface {
	return electionLeases{elections: e}
}

func (l electionLeases) Get(ctx context.Context, _ string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	if l.process.world.broken.noSitOut && l.identity == "" {
		somebody := "somebody/1/x"
		return &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: &somebody}}, nil
	}
	return send(ctx, l.process, l.process.world.store.get)
}

func (l electionLeases) Create(ctx context.Context, o *coordinationv1.Lease, _ metav1.CreateOptions) (*coordinationv1.Lease, error) {
	o = l.process.skewed(o)
	return send(ctx, l.process, func() (*coordinationv1.Lease, error) { return l.process.world.store.create(l.identity, o) })
}

func (l electionLeases) Update(ctx context.Context, o *coordinationv1.Lease, _ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	o = l.process.skewed(o)
	return send(ctx, l.process, func() (*coordinationv1.Lease, error) { return l.process.world.store.update(l.identity, o) })
}
