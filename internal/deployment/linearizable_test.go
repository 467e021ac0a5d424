package deployment_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/deployment"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/lease"
)

// swap is what somebody asked of an address: make it to, if it is from. A read asks nothing.
type swap struct {
	name     string
	read     bool
	from, to string
}

// outcome is what came of it.
type outcome struct {
	done    bool   // the swap was made
	unknown bool   // nobody was told whether it was: it may be made at any time, or never
	value   string // what was read
}

// register is an address as it has to behave: a register with compare-and-swap. A swap that was refused changes nothing, and
// may be refused for a change of something else in the object.
var register = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		by := map[string][]porcupine.Operation{}
		for _, o := range history {
			name := o.Input.(swap).name
			by[name] = append(by[name], o)
		}
		var parts [][]porcupine.Operation
		for _, part := range by {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		in, out := input.(swap), output.(outcome)
		switch {
		case in.read:
			return out.value == state.(string), state
		case out.unknown && in.from == state.(string):
			return true, in.to
		case !out.done:
			return true, state
		}
		return in.from == state.(string), in.to
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
}

// recorder keeps the history of all addresses.
type recorder struct {
	began time.Time

	mu        sync.Mutex
	history   []porcupine.Operation
	addresses map[string]string // by object and version
	made      int
	refused   int
}

func (r *recorder) now() int64 { return time.Since(r.began).Nanoseconds() }

func version(d *v1alpha1.Deployment) string { return d.Name + "@" + d.ResourceVersion }

// saw takes note of the address that a version has.
func (r *recorder) saw(d *v1alpha1.Deployment) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.addresses[version(d)] = d.Spec.Address
}

func (r *recorder) add(who int, called int64, in swap, out outcome) {
	returned := r.now()
	if out.unknown {
		returned = math.MaxInt64
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history = append(r.history, porcupine.Operation{ClientId: who, Input: in, Call: called, Output: out, Return: returned})
	switch {
	case out.done:
		r.made++
	case !in.read && !out.unknown:
		r.refused++
	}
}

func (r *recorder) counts() (made, refused int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.made, r.refused
}

// recording is a client whose updates of deployments are written down as swaps from the address that was read.
type recording struct {
	client.Client
	r     *recorder
	who   int
	blind bool // writes the address whatever has happened since it was read
}

func (c recording) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	err := c.Client.Get(ctx, key, o, opts...)
	if d, ok := o.(*v1alpha1.Deployment); ok && err == nil {
		c.r.saw(d)
	}
	return err
}

func (c recording) Update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	d, ok := o.(*v1alpha1.Deployment)
	if !ok {
		return c.Client.Update(ctx, o, opts...)
	}
	c.r.mu.Lock()
	from, known := c.r.addresses[version(d)]
	c.r.mu.Unlock()
	if !known {
		return errors.New("an update of a version that nobody read")
	}
	in, called := swap{name: d.Name, from: from, to: d.Spec.Address}, c.r.now()
	var err error
	if c.blind {
		err = c.Client.Patch(ctx, d, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"address":%q}}`, d.Spec.Address)))
	} else {
		err = c.Client.Update(ctx, d, opts...)
	}
	if err == nil {
		c.r.saw(d)
	}
	c.r.add(c.who, called, in, outcome{done: err == nil, unknown: err != nil && !apierrors.IsConflict(err)})
	return err
}

// hostsPrograms makes the object of a node that hosts programs, without which it may not write about them.
func hostsPrograms(t testing.TB, admin client.Client, name string) {
	t.Helper()
	n := &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := admin.Create(context.Background(), n); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.Delete(context.Background(), n) }) // nothing depends on its going
	until(t, "node "+name+" to host programs", func() bool {
		if admin.Get(context.Background(), client.ObjectKeyFromObject(n), n) != nil {
			return false
		}
		n.Status.Held = map[string]int64{deployment.Name: 0}
		return admin.Status().Update(context.Background(), n) == nil
	})
}

// contend lets many nodes claim the same few deployments, each sure that they are its own, while people clear the addresses
// and others read, until enough has happened.
func contend(t *testing.T, s *site, nodes, swaps int, blind bool) *recorder {
	t.Helper()
	r := &recorder{began: time.Now(), addresses: map[string]string{}}
	var works []*work
	for i := range 3 {
		works = append(works, s.deploy(fmt.Sprintf("w%d", i)))
	}
	ctx := context.Background() // what was begun is finished
	enough := func() bool { made, _ := r.counts(); return made >= swaps || time.Since(r.began) > patience }
	var wg sync.WaitGroup
	list := func(c client.Reader) ([]*v1alpha1.Deployment, error) {
		var l v1alpha1.DeploymentList
		if err := c.List(ctx, &l, client.InNamespace(s.home)); err != nil {
			return nil, err
		}
		var all []*v1alpha1.Deployment
		for i := range l.Items {
			r.saw(&l.Items[i])
			all = append(all, &l.Items[i])
		}
		return all, nil
	}
	for i := range nodes {
		name := fmt.Sprintf("n%d-%s", i, s.home)
		world := newCluster(name) // nobody else is there, as far as it knows
		world.Nodes[name].Labels = map[string]string{"home": s.home}
		c := recording{s.api.Client(s.api.Node(name).Kubeconfig()), r, i, blind}
		hostsPrograms(t, s.admin, name)
		claimer := deployment.NewClaimer(&deployment.Claimer{
			Node: name, Client: c, May: func() bool { return true }, Log: slog.New(slog.DiscardHandler),
			View: func(context.Context) (deployment.World, []*v1alpha1.Deployment, error) {
				all, err := list(c)
				return deployment.World{Fleet: fleet.Fleet{Nodes: world.Nodes, Leases: map[string]lease.Record{name: world.Leases[name]}}}, all, err
			},
			Claimed: func(*v1alpha1.Deployment) {}, Conflict: func(*v1alpha1.Deployment, string) {}, Settled: func() {},
		})
		wg.Go(func() {
			for !enough() {
				_, _ = claimer.Round(ctx) // a view that could not be read is read again
			}
		})
	}
	wg.Go(func() { // people
		c := recording{Client: s.admin, r: r, who: nodes}
		for !enough() {
			d := &v1alpha1.Deployment{}
			if err := c.Get(ctx, works[rand.N(len(works))].key, d); err != nil {
				continue
			}
			if d.Spec.Address != "" {
				d.Spec.Address = ""
				_ = c.Update(ctx, d) // refused if somebody was faster
			}
		}
	})
	for i := range 2 {
		wg.Go(func() { // readers
			for !enough() {
				d, called := &v1alpha1.Deployment{}, r.now()
				if err := s.admin.Get(ctx, works[rand.N(len(works))].key, d); err == nil {
					r.add(nodes+1+i, called, swap{name: d.Name, read: true}, outcome{value: d.Spec.Address})
				}
			}
		})
	}
	wg.Wait()
	if made, _ := r.counts(); made < swaps/3 {
		t.Fatalf("%d of %d swaps in %s", made, swaps, patience)
	}
	return r
}

func TestClaimsOfManyNodesAreLinearizable(t *testing.T) {
	t.Parallel()
	r := contend(t, newSite(t), 4, 60, false)
	made, refused := r.counts()
	t.Logf("%d operations: %d swaps were made, %d refused", len(r.history), made, refused)
	if refused == 0 {
		t.Error("nobody ever met another")
	}
	if got, info := porcupine.CheckOperationsVerbose(register, r.history, patience); got != porcupine.Ok {
		t.Errorf("the history of addresses is %s: %v", got, info.PartialLinearizations())
	}
}

// The check can fail: nodes that claim without looking whether the object has changed are found out.
func TestBlindClaimsAreNotLinearizable(t *testing.T) {
	t.Parallel()
	r := contend(t, newSite(t), 4, 40, true)
	if got := porcupine.CheckOperationsTimeout(register, r.history, patience); got != porcupine.Illegal {
		t.Errorf("the history of blind claims is %s", got)
	}
}
