package coordinator

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/node"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// fast is a timing that real requests on a loaded machine still keep.
func fast() lease.Timing {
	return lease.Timing{Renew: time.Second, Timeout: time.Second, Fence: 5 * time.Second, Dead: 7 * time.Second, Lost: 8 * time.Second}
}

// patience bounds every wait for something that should come.
const patience = 4 * time.Minute

// cluster is a few nodes in the test's own process, against a real API, with real managers.
type cluster struct {
	t       *testing.T
	api     *testenv.API
	admin   client.Client
	members []*member

	mu      sync.Mutex
	journal []entry
	terms   map[string]*Term
}

// entry is a term's manager before it was made, or after its Start returned.
type entry struct {
	what, node, term string
	at               time.Time
}

// member is one node.
type member struct {
	*node.Node
	name     string
	campaign *Campaign
	stop     func()
}

// newCluster starts nodes that leave in order at the end of the test. Changes are made to each campaign before it begins.
func newCluster(t *testing.T, api *testenv.API, names []string, changes ...func(*Campaign, string)) *cluster {
	t.Helper()
	c := &cluster{t: t, api: api, admin: api.Admin(), terms: map[string]*Term{}}
	t.Cleanup(func() { c.setSlot(nil) })
	for _, name := range names {
		c.members = append(c.members, c.start(name, changes...))
	}
	t.Cleanup(func() {
		for _, m := range c.members {
			m.stop()
		}
	})
	for _, m := range c.members {
		until(t, m.name+" to be ready", func() bool { return m.Ready() == nil })
	}
	return c
}

func (c *cluster) start(name string, changes ...func(*Campaign, string)) *member {
	c.t.Helper()
	dir, log := c.api.Node(name), slog.New(slog.NewTextHandler(c.t.Output(), nil)).With("node", name)
	campaign, err := NewCampaign(Options{
		Config: c.api.Config(dir.CoordinatorKubeconfig()), Timing: fast(), Setup: c.setup, Log: log,
		Metrics: NewMetrics(prometheus.NewRegistry(), name),
	})
	if err != nil {
		c.t.Fatal(err)
	}
	campaign.work = c.work
	for _, change := range changes {
		change(campaign, name)
	}
	metrics := node.NewMetrics(prometheus.NewRegistry(), name)
	n, err := node.New(node.Options{
		Name: name, Dir: dir, Config: c.api.Config(dir.Kubeconfig()), Timing: fast(), Clock: node.BootTime,
		HTTPAddress: "https://" + name + ".example:1", Version: "test", Residents: []node.Resident{campaign},
		Gate: node.NewGate(metrics.Refused), Metrics: metrics, Log: log,
		Die: func(reason string) { c.t.Error(reason) },
	})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			c.t.Errorf("node %s: %v", name, err)
		}
	})
	return &member{Node: n, name: name, campaign: campaign, stop: stop}
}

// setup adds what a real coordinator runs.
func (c *cluster) setup(t *Term) error {
	c.mu.Lock()
	c.terms[t.Identity] = t
	c.mu.Unlock()
	nodes := &node.Controller{Epoch: t.Epoch, CheckTerm: t.CheckTerm, Interval: fast().Renew / 4, Log: t.Log}
	return nodes.SetupWithManager(t.Manager)
}

// work is the real work of a term, with its beginning and its end written down.
func (c *cluster) work(t *Term) error {
	c.note("begins", t)
	defer c.note("ends", t)
	return t.run()
}

func (c *cluster) note(what string, t *Term) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.journal = append(c.journal, entry{what, t.Epoch.Node, t.Identity, time.Now()})
}

func (c *cluster) entries() []entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.journal)
}

// ledBy lists the nodes that began a term, in order.
func (c *cluster) ledBy() []string {
	var names []string
	for _, e := range c.entries() {
		if e.what == "begins" {
			names = append(names, e.node)
		}
	}
	return names
}

// noOverlap: the journal is pairs of the same term.
func (c *cluster) noOverlap() {
	c.t.Helper()
	journal := c.entries()
	for i, e := range journal {
		if i%2 == 0 && e.what != "begins" || i%2 == 1 && (e.what != "ends" || e.term != journal[i-1].term) {
			c.t.Errorf("terms overlap: %v", journal)
		}
	}
}

// leader waits until a node leads whose manager runs, and returns it with its term.
func (c *cluster) leader(but ...*member) (*member, *Term) {
	c.t.Helper()
	var leader *member
	var term *Term
	until(c.t, "a coordinator", func() bool {
		name, _ := Locate(context.Background(), c.admin)
		i := slices.IndexFunc(c.members, func(m *member) bool { return m.name == name && m.campaign.Leading() })
		if i < 0 || slices.Contains(but, c.members[i]) {
			return false
		}
		leader, term = c.members[i], c.term(c.holder())
		return term != nil && leader.object(c).Status.Coordinator
	})
	return leader, term
}

func (c *cluster) term(identity string) *Term {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.terms[identity]
}

func (c *cluster) others(m *member) []*member {
	return slices.DeleteFunc(slices.Clone(c.members), func(o *member) bool { return o == m })
}

func (m *member) object(c *cluster) *v1alpha1.Node {
	c.t.Helper()
	n := &v1alpha1.Node{}
	if err := c.admin.Get(context.Background(), types.NamespacedName{Name: m.name}, n); err != nil {
		c.t.Fatal(err)
	}
	return n
}

func (c *cluster) election() *coordinationv1.Lease {
	c.t.Helper()
	l := &coordinationv1.Lease{}
	if err := c.admin.Get(context.Background(), types.NamespacedName{Namespace: lease.Namespace, Name: lease.CoordinatorName}, l); err != nil {
		c.t.Fatal(err)
	}
	return l
}

func (c *cluster) holder() string {
	if l := c.election(); l.Spec.HolderIdentity != nil {
		return *l.Spec.HolderIdentity
	}
	return ""
}

// elect makes somebody the holder of the election, as if they had won it.
func (c *cluster) elect(identity string) {
	c.t.Helper()
	until(c.t, "the election to be changed", func() bool {
		l := c.election()
		l.Spec.HolderIdentity = &identity
		return c.admin.Update(context.Background(), l) == nil
	})
}

func (c *cluster) setSlot(slot *v1alpha1.ActiveDrain) {
	c.t.Helper()
	until(c.t, "the slot to be set", func() bool {
		s := &v1alpha1.Settings{}
		if err := c.admin.Get(context.Background(), types.NamespacedName{Name: v1alpha1.SettingsName}, s); err != nil {
			c.t.Fatal(err)
		}
		s.Status.ActiveDrain = slot
		return c.admin.Status().Update(context.Background(), s) == nil
	})
}

// drain makes a drain that holds the slot, until the test is over and its nodes are gone.
func (c *cluster) drain(name string) *v1alpha1.Drain {
	c.t.Helper()
	d := &v1alpha1.Drain{Spec: v1alpha1.DrainSpec{NodeName: name}}
	d.Name = "drain-" + name
	if err := c.admin.Create(context.Background(), d); err != nil {
		c.t.Error(err)
	}
	c.setSlot(&v1alpha1.ActiveDrain{Name: d.Name, UID: string(d.UID), Node: name, NodeEpoch: 1})
	return d
}

// until polls for a condition that an API object or another goroutine reaches in its own time.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for %s", patience, what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
