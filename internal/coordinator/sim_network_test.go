package coordinator

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/ebb-dev/ebb/internal/simtest"
)

var (
	errRefused = errors.New("connection refused")
	errDead    = errors.New("this process is dead")
)

// newNetwork is the network of a play in which some of a hundred requests meet a fault: they or their answers are lost or late.
func newNetwork(p plan) *simtest.Network {
	share := float64(p.faults) / 100 / 4
	n := simtest.NewNetwork(rand.New(rand.NewPCG(p.seed, 2)), simtest.Span{From: time.Millisecond, To: 20 * time.Millisecond},
		simtest.Faults{Lost: share, Late: []simtest.Late{{Share: share, UpTo: 12 * time.Second}}})
	if p.faults == 0 {
		n.Calm()
	}
	return n
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
	p.world.flights.Go(func() {
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
	out, back := w.network.Message(), w.network.Message()
	time.Sleep(out.Takes)
	isLate := out.Takes > timing.Timeout
	if out.Lost || isLate && w.network.IsCalm() || p.isCut() {
		return answer[T]{}, false
	}
	if w.store.isAway() {
		return answer[T]{err: errRefused}, true
	}
	value, err := ask()
	if isLate {
		w.referee.Count("late arrival")
	}
	time.Sleep(back.Takes)
	return answer[T]{value, err}, !back.Lost && !p.isCut()
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
