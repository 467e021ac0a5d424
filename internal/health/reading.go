package health

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/kube"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

const (
	// readFew is how many nodes are read one by one rather than all at once.
	readFew = 10
	// readFor is how long the lists of a turn count for what no step rests on alone: how many other nodes are cordoned, and who could coordinate.
	readFor = time.Second
)

// reading is what a turn has read besides the events.
//
// An API server answers a live list from its cache, which it brings up to date with etcd at most ten times a second for each kind. A turn that
// listed everything again for each of its steps would take a tenth of a second for each. So it lists once, and before the next steps reads only the
// objects that they rest on, one by one, which go to etcd directly.
type reading struct {
	fleet  fleet.Fleet
	drains map[string]*v1alpha1.Drain
	core   map[string]*corev1.Node
	at     time.Time
}

// reusable returns a reading that only has to be brought up to date for the events of a world, or nil.
func (r *reading) reusable(w *World) *reading {
	if r == nil || time.Since(r.at) > readFor || len(w.concerned()) > readFew {
		return nil
	}
	return r
}

// into puts a reading into a world, which may add to it.
func (r *reading) into(w *World) {
	w.Fleet = fleet.Fleet{Nodes: maps.Clone(r.fleet.Nodes), Leases: r.fleet.Leases, Slot: r.fleet.Slot, Settings: r.fleet.Settings}
	for _, name := range slices.Sorted(maps.Keys(r.drains)) {
		w.Drains = append(w.Drains, r.drains[name])
	}
	w.addCore(r.core)
}

// concerned are the nodes about which something may have to be done, with the names of the Drains that were made for their events.
func (w *World) concerned() map[string][]string {
	nodes := map[string][]string{}
	for _, e := range w.Events {
		if !isOpen(e) && handled(e) {
			continue
		}
		name := e.Spec.NodeName
		nodes[name] = append(nodes[name], drainsOf(e)...)
	}
	return nodes
}

// drainsOf is the name of the Drain of an event, if it has one.
func drainsOf(e *v1alpha1.HealthEvent) []string {
	if e.Status.Drain == nil || e.Status.Drain.Name == "" {
		return nil
	}
	return []string{e.Status.Drain.Name}
}

// readAll reads everything.
func (c *Controller) readAll(ctx context.Context, live bool, w *World) (*reading, error) {
	reader := c.cached
	if live {
		reader = c.live
	}
	read := &reading{drains: map[string]*v1alpha1.Drain{}, at: time.Now()}
	var drains v1alpha1.DrainList
	all, ctxAll := errgroup.WithContext(ctx) // at the same time: what a sick node waits for is how long they take
	all.Go(func() error { return wrapped("list drains", reader.List(ctxAll, &drains)) })
	all.Go(func() (err error) {
		read.fleet, err = fleet.Read(ctxAll, reader)
		return err
	})
	all.Go(func() (err error) {
		if c.Core {
			read.core, err = kube.ReadNodes(ctxAll, c.cached)
		}
		return err
	})
	if err := all.Wait(); err != nil {
		return nil, err
	}
	for i := range drains.Items {
		read.drains[drains.Items[i].Name] = &drains.Items[i]
	}
	if !live || !c.Core {
		return read, nil
	}
	return read, c.readCore(ctx, read, w)
}

// readCore reads the core Nodes live that events are about and that Ebb does not know. Of the others, of which there may be thousands, only the
// number counts.
func (c *Controller) readCore(ctx context.Context, read *reading, w *World) (err error) {
	var names []string
	for name := range w.concerned() {
		if read.fleet.Nodes[name] == nil {
			names = append(names, name)
		}
	}
	if len(names) > readFew {
		read.core, err = kube.ReadNodes(ctx, c.live)
		return err
	}
	for _, name := range names {
		n, err := readOne(ctx, c.live, name, &corev1.Node{})
		if err != nil {
			return err
		}
		put(read.core, name, n)
	}
	return nil
}

// refresh reads live what the next steps rest on: of the nodes about which something may have to be done the Node, the core Node, the lease and the
// Drains of their events, and the slot.
func (c *Controller) refresh(ctx context.Context, old *reading, w *World) (*reading, error) {
	read := &reading{
		fleet:  fleet.Fleet{Nodes: maps.Clone(old.fleet.Nodes), Leases: maps.Clone(old.fleet.Leases), Slot: old.fleet.Slot, Settings: old.fleet.Settings},
		drains: maps.Clone(old.drains), core: maps.Clone(old.core), at: old.at,
	}
	var mu sync.Mutex
	note := func(f func()) {
		mu.Lock()
		defer mu.Unlock()
		f()
	}
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(atOnce)
	all.Go(func() error {
		settings := &v1alpha1.Settings{}
		if err := c.live.Get(ctx, client.ObjectKey{Name: v1alpha1.SettingsName}, settings); err != nil {
			return wrapped("read the settings", err)
		}
		note(func() { read.fleet.Slot, read.fleet.Settings = settings.Status.ActiveDrain, settings.Spec })
		return nil
	})
	for name, drains := range w.concerned() {
		all.Go(func() error {
			n, err := readOne(ctx, c.live, name, &v1alpha1.Node{})
			note(func() { put(read.fleet.Nodes, name, n) })
			return err
		})
		all.Go(func() error {
			rec, err := fleet.ReadLease(ctx, c.live, name)
			note(func() {
				if delete(read.fleet.Leases, name); rec.Version != "" { // it exists
					read.fleet.Leases[name] = rec
				}
			})
			return err
		})
		if c.Core {
			all.Go(func() error {
				n, err := readOne(ctx, c.live, name, &corev1.Node{})
				note(func() { put(read.core, name, n) })
				return err
			})
		}
		for _, drain := range drains {
			all.Go(func() error {
				d, err := readOne(ctx, c.live, drain, &v1alpha1.Drain{})
				note(func() { put(read.drains, drain, d) })
				return err
			})
		}
	}
	return read, all.Wait()
}

// readOne reads an object; nil is one that does not exist.
func readOne[T client.Object](ctx context.Context, r client.Reader, name string, object T) (T, error) {
	var none T
	err := r.Get(ctx, client.ObjectKey{Name: name}, object)
	switch {
	case kubeclient.IsMissing(err):
		return none, nil
	case err != nil:
		return none, fmt.Errorf("read %T %s: %w", object, name, err)
	}
	return object, nil
}

// put stores an object under its name, or that it does not exist.
func put[T any](objects map[string]*T, name string, object *T) {
	if delete(objects, name); object != nil {
		objects[name] = object
	}
}
