package deployment_test

import (
	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/deployment"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/simtest"
)

// store keeps every version of everything, so that a cache may be as far behind as chance wants. Versions are never changed.
type store struct {
	simtest.Revisions
	objects  simtest.Versions[*v1alpha1.Deployment] // nil where it was deleted
	nodes    simtest.Versions[*v1alpha1.Node]
	leases   simtest.Versions[lease.Record]
	renewed  map[string]int // when each lease was, in true time
	released map[string]int // when each was last given back in order
	blind    bool           // writes do not look at versions
}

func newStore() *store {
	return &store{
		objects: simtest.Versions[*v1alpha1.Deployment]{}, nodes: simtest.Versions[*v1alpha1.Node]{}, leases: simtest.Versions[lease.Record]{},
		renewed: map[string]int{}, released: map[string]int{},
	}
}

func (s *store) object(name string) *v1alpha1.Deployment { return s.objects.Newest(name) }

func (s *store) record(node string) lease.Record { return s.leases.Newest(node) }

// put stores the next version of an object.
func (s *store) put(d *v1alpha1.Deployment) {
	s.Stamp(d)
	s.objects.Add(d.Name, d)
}

// same says whether an object is still the one that was read.
func (s *store) same(read *v1alpha1.Deployment) bool {
	now := s.object(read.Name)
	return now != nil && simtest.Fresh(now, read, s.blind)
}

// swapStatus and swapSpec write one half of an object, if it is still the one that was read.
func (s *store) swapStatus(next *v1alpha1.Deployment) bool {
	if !s.same(next) {
		return false
	}
	now := s.object(next.Name).DeepCopy()
	next.Status.DeepCopyInto(&now.Status)
	s.put(now)
	return true
}

func (s *store) swapSpec(next *v1alpha1.Deployment) bool {
	if !s.same(next) {
		return false
	}
	now := s.object(next.Name).DeepCopy()
	next.Spec.DeepCopyInto(&now.Spec)
	s.put(now)
	return true
}

// edit writes the newest version of an object, whatever it is.
func (s *store) edit(name string, change func(*v1alpha1.Deployment)) bool {
	if s.object(name) == nil {
		return false
	}
	next := s.object(name).DeepCopy()
	change(next)
	s.put(next)
	return true
}

// apply writes one node's entry and nothing else, as server-side apply does.
func (s *store) apply(name string, i v1alpha1.DeploymentInstance) {
	s.edit(name, func(d *v1alpha1.Deployment) {
		if entry := d.Instance(i.Node); entry != nil {
			*entry = i
			return
		}
		d.Status.Nodes = append(d.Status.Nodes, i)
	})
}

func (s *store) editNode(name string, change func(*v1alpha1.Node)) {
	next := s.nodes.Newest(name).DeepCopy()
	change(next)
	s.nodes.Add(name, next)
}

func (s *store) setLease(rec lease.Record) {
	s.leases.Add(rec.Node, rec)
}

// live is the world as it is.
func (s *store) live() deployment.World {
	w := deployment.World{Fleet: fleet.New()}
	for name := range s.nodes {
		w.Nodes[name], w.Leases[name] = s.nodes.Newest(name), s.record(name)
	}
	return w
}

// cache is how many versions of everything a process has seen.
type cache struct {
	store                  *store
	late                   int // in how many looks once there are news of nodes, and of leases
	objects, nodes, leases simtest.Seen
}

// fresh is a cache that has just been filled.
func (s *store) fresh() cache {
	c := cache{store: s, late: 2, objects: simtest.Seen{}, nodes: simtest.Seen{}, leases: simtest.Seen{}}
	c.see(func(int) int { return 0 })
	return c
}

// see catches up with some of the news. Each kind has a watch of its own, and those of nodes and leases are often late.
func (c cache) see(draw func(n int) int) {
	c.store.objects.CatchUp(c.objects, draw)
	if draw(c.late) == 0 {
		c.store.nodes.CatchUp(c.nodes, draw)
	}
	if draw(c.late) == 0 {
		c.store.leases.CatchUp(c.leases, draw)
	}
}

func (c cache) object(name string) *v1alpha1.Deployment {
	return c.store.objects.At(name, c.objects[name])
}

// world is what a process knows of nodes and leases.
func (c cache) world() deployment.World {
	w := deployment.World{Fleet: fleet.New()}
	for name, seen := range c.nodes {
		if n := c.store.nodes.At(name, seen); n != nil {
			w.Nodes[name] = n
		}
	}
	for name, seen := range c.leases {
		w.Leases[name] = c.store.leases.At(name, seen)
	}
	return w
}
