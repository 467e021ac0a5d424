package drain_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// patience bounds every wait for something that should come: fifty decisions take a minute on a busy machine.
const patience = 4 * time.Minute

// They have a real embedded API one after the other: there is one slot.
func TestOnARealAPI(t *testing.T) {
	api := testenv.StartAPI(t)
	for _, c := range []struct {
		behaviour string
		test      func(*testing.T, *cluster)
	}{
		{"a request becomes an empty machine and is told once at each turn", testRequestToEmptyMachine},
		{"a node that counts itself anew all the time is told to drain all the same", testTheCountsOfANodeDoNotHoldUpItsDrain},
		{"a coordinator that crashes at any step is followed by one that ends the drain", testCrashAtEveryStep},
		{"a node that restarts or dies is followed", testRestartAndDeath},
		{"a drain whose event cannot be written holds up nothing", testUnwritableEvent},
		{"a drain is cancelled, and is held until its node is free of it", testCancelledDrain},
		{"a drain that is Stopping is neither cancelled nor deleted", testTooLateToCancel},
		{"every row of the error table", testErrorTable},
		{"of fifty requests at once one is accepted", testFiftyRequests},
		{"of fifty requests one is accepted, also when the coordinator crashes among them", testFiftyRequestsAndACrash},
		{"a request that nobody decides is withdrawn", testUndecided},
		{"a request given up before its drain got the slot is withdrawn", testGivenUpHeld},
		{"a request given up after its drain got the slot and before it began is cancelled", testGivenUpCancelled},
		{"a request given up after its drain began is accepted", testGivenUpAccepted},
		{"a report says how a drain stands", testReport},
		{"a preview shows what a drain would find, and writes nothing", testPreview},
		{"metrics follow a drain and go with the node", testMetrics},
		{"a deadline is counted by the clock of the API server, whatever coordinators have", testClockOfADeadline},
		{"finished drains beyond the limit or the age are pruned while another runs", testPruning},
		{"a finished drain that holds the slot is pruned only after it", testPruningLeavesTheSlot},
		{"a finished drain is pruned when its time has come", testPruningWaits},
	} {
		t.Run(c.behaviour, func(t *testing.T) {
			api.Empty()
			c.test(t, newCluster(t, api))
		})
	}
}

// cluster is a real embedded API with nodes that are only objects, and work that is only a number.
type cluster struct {
	t     testing.TB
	api   *testenv.API
	admin client.WithWatch
	work  *work
	ahead time.Duration // of what coordinators are told that the API server's clock shows
}

func newCluster(t testing.TB, api *testenv.API) *cluster {
	return &cluster{t: t, api: api, admin: api.Admin(), work: &work{left: map[string]drain.Remaining{}}}
}

// with adds nodes, Alive in epoch 1.
func (c *cluster) with(nodes ...string) *cluster {
	c.t.Helper()
	for _, name := range nodes {
		c.must(c.admin.Create(context.Background(), &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}))
		c.join(name, 1)
	}
	return c
}

func (c *cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// work is a kind of work on every node, counted from a variable.
type work struct {
	mu   sync.Mutex
	left map[string]drain.Remaining
}

func (w *work) Work() drain.Work { return feedWorks[0] }

func (w *work) Remaining(_ context.Context, node string) (drain.Remaining, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.left[node], nil
}

func (w *work) set(node string, count int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left[node] = drain.Remaining{Count: count}
}

// split is a second kind, split by what its pieces belong to.
type split struct{ by map[string]int64 }

func (s split) Work() drain.Work { return feedWorks[1] }

func (s split) Remaining(context.Context, string) (drain.Remaining, error) {
	left := drain.Remaining{By: maps.Clone(s.by)}
	for _, n := range s.by {
		left.Count += n
	}
	return left, nil
}

// join lets a node hold its lease in an epoch, Alive.
func (c *cluster) join(name string, epoch int64) {
	c.t.Helper()
	c.lease(name, "process of "+name, epoch, 0)
	c.says(name, func(n *v1alpha1.NodeStatus) {
		*n = v1alpha1.NodeStatus{Epoch: epoch, Liveness: v1alpha1.Alive, Held: map[string]int64{maintainers: 0}}
	})
}

// lease writes a node's Lease, made if need be.
func (c *cluster) lease(name, holder string, epoch, fenced int64) {
	c.t.Helper()
	ctx := context.Background()
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: lease.Namespace, Name: lease.NameOf(name)}}
	err := c.admin.Get(ctx, client.ObjectKeyFromObject(l), l)
	l.Annotations = map[string]string{lease.EpochAnnotation: strconv.FormatInt(epoch, 10), lease.FencedAnnotation: strconv.FormatInt(fenced, 10)}
	l.Spec.HolderIdentity = nil
	if holder != "" {
		l.Spec.HolderIdentity = &holder
	}
	if apierrors.IsNotFound(err) {
		c.must(c.admin.Create(ctx, l))
		return
	}
	c.must(err)
	c.must(c.admin.Update(ctx, l))
}

// says writes what a node says of itself.
func (c *cluster) says(name string, change func(*v1alpha1.NodeStatus)) {
	c.t.Helper()
	for {
		n := c.node(name)
		change(&n.Status)
		err := c.admin.Status().Update(context.Background(), n)
		if !apierrors.IsConflict(err) {
			c.must(err)
			return
		}
	}
}

func (c *cluster) node(name string) *v1alpha1.Node {
	c.t.Helper()
	n := &v1alpha1.Node{}
	c.must(c.admin.Get(context.Background(), types.NamespacedName{Name: name}, n))
	return n
}

func (c *cluster) drain(name string) *v1alpha1.Drain {
	c.t.Helper()
	d := &v1alpha1.Drain{}
	c.must(c.admin.Get(context.Background(), types.NamespacedName{Name: name}, d))
	return d
}

func (c *cluster) slot() *v1alpha1.ActiveDrain {
	c.t.Helper()
	settings := &v1alpha1.Settings{}
	c.must(c.admin.Get(context.Background(), types.NamespacedName{Name: v1alpha1.SettingsName}, settings))
	return settings.Status.ActiveDrain
}

func (c *cluster) drains() []v1alpha1.Drain {
	c.t.Helper()
	var list v1alpha1.DrainList
	c.must(c.admin.List(context.Background(), &list))
	return list.Items
}

// request makes a Drain.
func (c *cluster) request(name, node string) {
	c.t.Helper()
	c.must(c.admin.Create(context.Background(), &v1alpha1.Drain{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.DrainSpec{NodeName: node}}))
}

// until waits for something to become true.
func (c *cluster) until(what string, true_ func() bool) {
	c.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(patience)
	for !true_() {
		select {
		case <-limit:
			c.t.Fatalf("%s did not come: the slot is %v, the drains are %s", what, c.slot(), c.states())
		case <-tick.C:
		}
	}
}

func (c *cluster) states() []string {
	var list []string
	for _, d := range c.drains() {
		list = append(list, d.Name+" "+string(d.Status.Phase))
	}
	return list
}

func (c *cluster) phase(name string, phase v1alpha1.DrainPhase) {
	c.t.Helper()
	c.until("drain "+name+" "+string(phase), func() bool { return c.drain(name).Status.Phase == phase })
}

// obeys waits until a node is told something and lets it do that: close its gate, or leave.
func (c *cluster) obeys(name string, l v1alpha1.Liveness) {
	c.t.Helper()
	epoch := c.node(name).Status.Epoch
	c.until("the wish that "+name+" be "+string(l), func() bool {
		want := c.node(name).Spec.Desired
		return want != nil && want.Liveness == l && want.Epoch == epoch
	})
	uid := c.node(name).Spec.Desired.DrainUID
	c.says(name, func(n *v1alpha1.NodeStatus) { n.Liveness, n.ObservedDrain = l, uid })
	if l == v1alpha1.Stopping {
		c.lease(name, "", epoch, 0)
	}
}

// told are the reasons of a drain's events, sorted.
func (c *cluster) told(name string) []string {
	c.t.Helper()
	var list eventsv1.EventList
	c.must(c.admin.List(context.Background(), &list))
	reasons := []string{}
	for _, e := range list.Items {
		if e.Regarding.Kind == "Drain" && e.Regarding.Name == name {
			reasons = append(reasons, e.Reason)
		}
	}
	slices.Sort(reasons)
	return reasons
}

// term is a controller in a manager of its own, as a coordinator's term has it.
type term struct {
	mgr      ctrl.Manager
	api      *drain.API
	registry *prometheus.Registry
	ctx      context.Context
	stop     func() // and wait until it has stopped
}

// lead starts a term on a node. atStep may be nil.
func (c *cluster) lead(leader string, atStep func(t *term, point string)) *term {
	c.t.Helper()
	return c.leadWith(leader, func(context.Context) error { return nil }, atStep)
}

// leadStanding starts a term that calls asked whenever its controller asks whether it stands.
func (c *cluster) leadStanding(leader string, asked func()) *term {
	c.t.Helper()
	return c.leadWith(leader, func(context.Context) error { asked(); return nil }, nil)
}

func (c *cluster) leadWith(leader string, stands func(context.Context) error, atStep func(t *term, point string)) *term {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t := &term{registry: prometheus.NewRegistry(), ctx: ctx}
	cfg, ahead := c.api.Config(c.api.Dir.Kubeconfig()), c.ahead
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			answer, err := next.RoundTrip(r)
			if err == nil {
				date, err := http.ParseTime(answer.Header.Get("Date"))
				if err != nil {
					return nil, err
				}
				answer.Header.Set("Date", date.Add(ahead).Format(http.TimeFormat))
			}
			return answer, err
		})
	})
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{
		Scheme:         kubeclient.NewScheme(),
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return kubeclient.NewMapper(), nil },
		Metrics:        metricsserver.Options{BindAddress: "0"},
		Controller:     config.Controller{SkipNameValidation: new(true)},
	})
	c.must(err)
	controller := &drain.Controller{
		Leader: leader, CheckTerm: stands, Metrics: drain.NewMetrics(t.registry, feedWorks), Log: slog.New(slog.DiscardHandler),
		Tenants: func(client.Reader) []drain.Tenant { return []drain.Tenant{c.work} },
		AtStep: func(point string) {
			if atStep != nil {
				atStep(t, point)
			}
		},
	}
	c.must(controller.SetupWithManager(mgr))
	t.mgr = mgr
	t.api = &drain.API{Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), Leader: leader, Tenants: controller.Tenants}
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			c.t.Errorf("the manager of %s: %v", leader, err)
		}
	})
	c.t.Cleanup(t.stop)
	return t
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// crashAt is a term that ends when its controller reaches a point, before it does anything else.
func (c *cluster) crashAt(leader, point string) *term {
	crashed := make(chan struct{})
	var once sync.Once
	t := c.lead(leader, func(t *term, at string) {
		if at == point {
			once.Do(func() { close(crashed) })
			<-t.ctx.Done()
		}
	})
	go func() {
		select {
		case <-crashed:
			t.stop()
		case <-t.ctx.Done():
		}
	}()
	return t
}
