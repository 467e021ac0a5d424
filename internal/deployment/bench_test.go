package deployment_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/deployment"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// What the claims have to keep: about one write each, and no node with more than one deployment above another.
const (
	mostWrites = 1.1
	mostSpread = 1
)

// market is nodes that only claim, on a real API.
type market struct {
	b     testing.TB
	api   *testenv.API
	admin client.Client
	names []string

	writes atomic.Int64 // updates with an address, accepted or not
	lost   atomic.Int64 // those that another was faster than
	failed atomic.Int64 // those that failed otherwise, which is for want of time
	taken  sync.Map     // by object, who was told that it is its own
}

// newMarket is an API with nodes that hold their leases and no processes behind them.
func newMarket(b testing.TB, nodes int) *market {
	b.Helper()
	api := testenv.StartAPI(b, deployment.Kind().Objects...)
	m := &market{b: b, api: api, admin: api.Admin(), names: numbered("n", nodes)}
	ctx := context.Background()
	parallel(nodes, func(i int) {
		name, holder := m.names[i], "process"
		m.must(m.admin.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: lease.Namespace, Name: lease.NameOf(name), Annotations: map[string]string{lease.EpochAnnotation: "1"}},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder},
		}))
		n := &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		m.must(m.admin.Create(ctx, n))
		n.Status = v1alpha1.NodeStatus{Epoch: 1, Liveness: v1alpha1.Alive, ClaimPolicy: v1alpha1.ClaimByCount, Held: map[string]int64{deployment.Name: 0}}
		meta.SetStatusCondition(&n.Status.Conditions, metav1.Condition{Type: v1alpha1.NodeReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonServing})
		m.must(m.admin.Status().Update(ctx, n))
	})
	return m
}

func (m *market) must(err error) {
	m.b.Helper()
	if err != nil {
		m.b.Fatal(err)
	}
}

// parallel does n things, a few at a time.
func parallel(n int, do func(int)) {
	var wg sync.WaitGroup
	next := atomic.Int64{}
	for range 16 {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				do(int(i))
			}
		})
	}
	wg.Wait()
}

// supply makes new deployments for the next round, and removes those of the one before.
func (m *market) supply(round, n int) {
	m.b.Helper()
	ctx := context.Background()
	if round > 0 {
		var list v1alpha1.DeploymentList
		m.must(m.admin.List(ctx, &list))
		parallel(len(list.Items), func(i int) {
			d := &list.Items[i]
			d.Finalizers = nil
			m.must(m.admin.Update(ctx, d))
			m.must(m.admin.Delete(ctx, d))
		})
	}
	m.writes.Store(0)
	m.lost.Store(0)
	m.failed.Store(0)
	m.taken.Clear()
	parallel(n, func(i int) {
		d := &v1alpha1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("w-%d-%d", round, i)}}
		d.Spec.Command = "/bin/true"
		m.must(m.admin.Create(ctx, d))
	})
}

// watch is a cache of what claimers look at, and pokes them at every change.
func (m *market) watch(ctx context.Context, cfg string, poke func()) ctrlcache.Cache {
	m.b.Helper()
	c, err := ctrlcache.New(m.api.Config(cfg), ctrlcache.Options{Scheme: kubeclient.NewScheme(), Mapper: kubeclient.NewMapper()})
	m.must(err)
	go func() { _ = c.Start(ctx) }() // ends with ctx
	for _, object := range []client.Object{&v1alpha1.Node{}, &coordinationv1.Lease{}, &v1alpha1.Deployment{}} {
		informer, err := c.GetInformer(ctx, object)
		m.must(err)
		_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { poke() }, UpdateFunc: func(_, _ any) { poke() }, DeleteFunc: func(any) { poke() },
		})
		m.must(err)
	}
	c.WaitForCacheSync(ctx)
	return c
}

// view is what a claimer plans from.
func view(c client.Reader) func(context.Context) (deployment.World, []*v1alpha1.Deployment, error) {
	return func(ctx context.Context) (deployment.World, []*v1alpha1.Deployment, error) {
		w, err := deployment.ReadWorld(ctx, c)
		if err != nil {
			return w, nil, err
		}
		var list v1alpha1.DeploymentList
		if err := c.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
			return w, nil, err
		}
		deployments := make([]*v1alpha1.Deployment, len(list.Items))
		for i := range list.Items {
			deployments[i] = &list.Items[i]
		}
		return w, deployments, nil
	}
}

// claimer claims for one node, counted.
func (m *market) claimer(name string, c client.Client, reader func() client.Reader) *deployment.Claimer {
	return deployment.NewClaimer(&deployment.Claimer{
		Node: name, Client: counting{c, m}, May: func() bool { return true }, Log: slog.New(slog.DiscardHandler),
		View: func(ctx context.Context) (deployment.World, []*v1alpha1.Deployment, error) {
			return view(reader())(ctx)
		},
		Claimed: func(d *v1alpha1.Deployment) {
			if who, taken := m.taken.LoadOrStore(d.UID, name); taken {
				m.b.Errorf("%s was claimed by %s and by %s", d.Name, who, name)
			}
		},
		Conflict: func(*v1alpha1.Deployment, string) {}, Settled: func() {},
	})
}

// alone is a client with a connection of its own, as every node has.
func (m *market) alone() client.Client {
	cfg := m.api.Config(m.api.Dir.Kubeconfig())
	cfg.Dial = (&net.Dialer{}).DialContext
	c, err := kubeclient.New(cfg)
	m.must(err)
	return c
}

// counting counts every update that says an address: all that claimers send.
type counting struct {
	client.Client
	m *market
}

func (c counting) Update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	c.m.writes.Add(1)
	err := c.Client.Update(ctx, o, opts...)
	switch {
	case apierrors.IsConflict(err):
		c.m.lost.Add(1)
	case err != nil:
		c.m.failed.Add(1)
	}
	return err
}

// shares are how many deployments each node has; nobody's are under the empty name.
func (m *market) shares() map[string]int {
	m.b.Helper()
	var list v1alpha1.DeploymentList
	m.must(m.admin.List(context.Background(), &list))
	shares := map[string]int{}
	for i := range list.Items {
		shares[list.Items[i].Spec.Address]++
	}
	return shares
}

// spread is the largest share minus the smallest.
func (m *market) spread() int {
	shares := m.shares()
	least, most := shares[m.names[0]], 0
	for _, name := range m.names {
		least, most = min(least, shares[name]), max(most, shares[name])
	}
	return most - least
}

// claimed waits until every deployment has an address. What it does for that is part of the load: a watch, as any node has.
func (m *market) claimed(ctx context.Context, objects int, limit time.Duration) {
	m.b.Helper()
	var mu sync.Mutex
	has := map[string]bool{}
	all := make(chan struct{})
	see := func(object any) {
		d := object.(*v1alpha1.Deployment)
		mu.Lock()
		defer mu.Unlock()
		if d.Spec.Address != "" && !has[d.Name] {
			if has[d.Name] = true; len(has) == objects {
				close(all)
			}
		}
	}
	c, err := ctrlcache.New(m.api.Config(m.api.Dir.Kubeconfig()), ctrlcache.Options{Scheme: kubeclient.NewScheme(), Mapper: kubeclient.NewMapper()})
	m.must(err)
	go func() { _ = c.Start(ctx) }() // ends with ctx
	informer, err := c.GetInformer(ctx, &v1alpha1.Deployment{})
	m.must(err)
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(_, o any) { see(o) }})
	m.must(err)
	select {
	case <-all:
	case <-time.After(limit):
		m.b.Fatalf("%d of %d have no address after %s", m.shares()[""], objects, limit)
	}
}

// measure claims everything once in each round, and fails if the claims do not keep what they have to.
func (m *market) measure(b *testing.B, objects int, begin func(context.Context)) {
	b.Helper()
	var took time.Duration
	var writes float64
	worst := 0
	rounds := 0
	for ; b.Loop(); rounds++ {
		b.StopTimer()
		m.supply(rounds, objects)
		ctx, cancel := context.WithCancel(context.Background())
		b.StartTimer()
		started := time.Now()
		begin(ctx)
		m.claimed(ctx, objects, 5*time.Minute)
		took += time.Since(started)
		b.StopTimer()
		cancel()
		writes += float64(m.writes.Load()) / float64(objects)
		worst = max(worst, m.spread())
		b.StartTimer()
	}
	n := float64(rounds)
	b.ReportMetric(took.Seconds()/n, "s/all-claimed")
	b.ReportMetric(writes/n, "writes/claim")
	b.ReportMetric(float64(worst), "spread")
	b.ReportMetric(float64(objects)*n/took.Seconds(), "claims/s")
	if writes/n > mostWrites {
		b.Errorf("%.3f writes for each claim, want at most %.1f; of the last round's %d were lost and %d failed",
			writes/n, mostWrites, m.lost.Load(), m.failed.Load())
	}
	if worst > mostSpread {
		b.Errorf("the largest share is %d more than the smallest, want at most %d", worst, mostSpread)
	}
}

// Three nodes with credentials and watches of their own, as three processes have them, and a thousand new deployments.
func BenchmarkClaim1000On3(b *testing.B) {
	m := newMarket(b, 3)
	m.measure(b, 1000, func(ctx context.Context) {
		for _, name := range m.names {
			cfg := m.api.Node(name).Kubeconfig()
			var c *deployment.Claimer
			var cache ctrlcache.Cache
			c = m.claimer(name, m.api.Client(cfg), func() client.Reader { return cache })
			cache = m.watch(ctx, cfg, c.Wake)
			go c.Run(ctx)
		}
	})
}

// A hundred nodes on one cache: what is measured is the plan and its agreement, and what the API takes.
func BenchmarkClaim10000By100(b *testing.B) {
	m := newMarket(b, 100)
	m.measure(b, 10_000, func(ctx context.Context) {
		var claimers []*deployment.Claimer
		var cache ctrlcache.Cache
		for _, name := range m.names {
			claimers = append(claimers, m.claimer(name, m.alone(), func() client.Reader { return cache }))
		}
		cache = m.watch(ctx, m.api.Dir.Kubeconfig(), func() {
			for _, c := range claimers {
				c.Wake()
			}
		})
		for _, c := range claimers {
			go c.Run(ctx)
		}
	})
}

// The loop of the seed's own program, for comparison: in each cycle every node reads all, and whoever has the fewest claims
// one. Its cycle is 5 s; here it is 10 ms.
func BenchmarkClaim100On3AsNodeUnit(b *testing.B) {
	const cycle, objects = 10 * time.Millisecond, 100
	m := newMarket(b, 3)
	naive := func(ctx context.Context, name string, c client.Client) {
		for tick := time.NewTicker(cycle); ctx.Err() == nil; <-tick.C {
			var list v1alpha1.DeploymentList
			if c.List(ctx, &list) != nil {
				continue
			}
			counts := map[string]int{}
			var free *v1alpha1.Deployment
			for i := range list.Items {
				if a := list.Items[i].Spec.Address; a != "" {
					counts[a]++
				} else if free == nil {
					free = &list.Items[i]
				}
			}
			least := true
			for _, other := range m.names {
				least = least && counts[name] <= counts[other]
			}
			if free == nil || !least {
				continue
			}
			free.Spec.Address = name
			m.writes.Add(1)
			if err := c.Update(ctx, free); err == nil {
				m.taken.Store(free.UID, name)
			} else if !apierrors.IsConflict(err) && ctx.Err() == nil {
				b.Error(err)
			}
		}
	}
	run := func(begin func(context.Context)) (perSecond, writes float64) {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		started := time.Now()
		begin(ctx)
		m.claimed(ctx, objects, time.Minute)
		return objects / time.Since(started).Seconds(), float64(m.writes.Load()) / objects
	}
	var theirs, ours, theirWrites float64
	round := 0
	for b.Loop() {
		b.StopTimer()
		m.supply(round, objects)
		b.StartTimer()
		perSecond, writes := run(func(ctx context.Context) {
			for _, name := range m.names {
				go naive(ctx, name, m.api.Client(m.api.Node(name).Kubeconfig()))
			}
		})
		theirs, theirWrites = theirs+perSecond, theirWrites+writes
		b.StopTimer()
		m.supply(round+1, objects)
		perSecond, _ = run(func(ctx context.Context) {
			for _, name := range m.names {
				cfg := m.api.Node(name).Kubeconfig()
				var c *deployment.Claimer
				var cache ctrlcache.Cache
				c = m.claimer(name, m.api.Client(cfg), func() client.Reader { return cache })
				cache = m.watch(ctx, cfg, c.Wake)
				go c.Run(ctx)
			}
		})
		ours += perSecond
		round += 2
		b.StartTimer()
	}
	n := float64(round / 2)
	b.ReportMetric(theirs/n, "claims/s")
	b.ReportMetric(theirWrites/n, "writes/claim")
	b.ReportMetric(ours/theirs, "times-slower-than-ours")
	b.ReportMetric(ours/theirs*float64(5*time.Second/cycle), "times-slower-at-5s")
}

func BenchmarkAssign(b *testing.B) {
	for _, size := range []struct{ nodes, deployments int }{{3, 1000}, {100, 10_000}} {
		b.Run(fmt.Sprintf("%d by %d", size.deployments, size.nodes), func(b *testing.B) {
			w, list := newCluster(numbered("n", size.nodes)...), programs("w", size.deployments)
			b.ReportAllocs()
			for b.Loop() {
				if plan := deployment.Assign(w.World, list); len(plan) != size.deployments {
					b.Fatalf("%d were assigned", len(plan))
				}
			}
		})
	}
}
