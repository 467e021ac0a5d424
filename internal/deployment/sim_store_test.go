package deployment_test

import (
	"maps"
	"slices"
	"strconv"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/deployment"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/lease"
)

// store keeps every version of everything, so that a cache may be as far behind as chance wants. Versions are never changed.
type store struct {
	objects  map[string][]*v1alpha1.Deployment // nil where it was deleted
	nodes    map[string][]*v1alpha1.Node
	leases   map[string][]lease.Record
	renewed  map[string]int // when each lease was, in true time
	released map[string]int // when each was last given back in order
	revision int
	blind    bool // writes do not look at versions
}

func newStore() *store {
	return &store{
		objects: map[string][]*v1alpha1.Deployment{}, nodes: map[string][]*v1alpha1.Node{}, leases: map[string][]lease.Record{},
		renewed: map[string]int{}, released: map[string]int{},
	}
}

func last[T any](versions []T) (newest T) {
	if len(versions) > 0 {
		newest = versions[len(versions)-1]
	}
	return newest
}

func (s *store) object(name string) *v1alpha1.Deployment { return last(s.objects[name]) }

func (s *store) record(node string) lease.Record { return last(s.leases[node]) }

// put stores the next version of an object.
func (s *store) put(d *v1alpha1.Deployment) {
	s.revision++
	d.ResourceVersion = strconv.Itoa(s.revision)
	s.objects[d.Name] = append(s.objects[d.Name], d)
}

// same says whether an object is still the one that was read.
func (s *store) same(read *v1alpha1.Deployment) bool {
	now := s.object(read.Name)
	return now != nil && now.UID == read.UID && (s.blind || now.ResourceVersion == read.ResourceVersion)
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
	next := last(s.nodes[name]).DeepCopy()
	change(next)
	s.nodes[name] = append(s.nodes[name], next)
}

func (s *store) setLease(rec lease.Record) {
	s.leases[rec.Node] = append(s.leases[rec.Node], rec)
}

// live is the world as it is.
func (s *store) live() deployment.World {
	w := deployment.World{Fleet: fleet.New()}
	for name, versions := range s.nodes {
		w.Nodes[name], w.Leases[name] = last(versions), s.record(name)
	}
	return w
}

// cache is how many versions of everything a process has seen.
type cache struct {
	store                  *store
	late                   int // in how many looks once there are news of nodes, and of leases
	objects, nodes, leases map[string]int
}

// fresh is a cache that has just been filled.
func (s *store) fresh() cache {
	c := cache{store: s, late: 2, objects: map[string]int{}, nodes: map[string]int{}, leases: map[string]int{}}
	c.see(func(int) int { return 0 })
	return c
}

// see catches up with some of the news. Each kind has a watch of its own, and those of nodes and leases are often late.
func (c cache) see(draw func(n int) int) {
	catchUp(c.objects, c.store.objects, draw)
	if draw(c.late) == 0 {
		catchUp(c.nodes, c.store.nodes, draw)
	}
	if draw(c.late) == 0 {
		catchUp(c.leases, c.store.leases, draw)
	}
}

// catchUp leaves out as much of the news as is drawn.
func catchUp[T any](seen map[string]int, versions map[string][]T, draw func(n int) int) {
	for _, name := range slices.Sorted(maps.Keys(versions)) {
		if news := len(versions[name]) - seen[name]; news > 0 {
			seen[name] += news - draw(news+1)
		}
	}
}

func known[T any](versions []T, seen int) T { return last(versions[:seen]) }

func (c cache) object(name string) *v1alpha1.Deployment {
	return known(c.store.objects[name], c.objects[name])
}

// world is what a process knows of nodes and leases.
func (c cache) world() deployment.World {
	w := deployment.World{Fleet: fleet.New()}
	for name, seen := range c.nodes {
		if n := known(c.store.nodes[name], seen); n != nil {
			w.Nodes[name] = n
		}
	}
	for name, seen := range c.leases {
		w.Leases[name] = known(c.store.leases[name], seen)
	}
	return w
}
