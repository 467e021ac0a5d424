package node

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
)

// watch begins the epoch's watches: what the coordinator wants of this node, and the leases of all nodes.
func (n *Node) watch(ctx context.Context, e *Epoch) (*group, error) {
	c, err := cache.New(n.opts.Config, cache.Options{
		Scheme: kubeclient.NewScheme(),
		Mapper: kubeclient.NewMapper(),
		ByObject: map[client.Object]cache.ByObject{
			&coordinationv1.Lease{}: {Namespaces: map[string]cache.Config{lease.Namespace: {}}},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	e.Cache = c
	g := n.host.start(context.Background(), []string{"watch"}, []func(context.Context) error{c.Start})
	for _, on := range []func(context.Context, *Epoch, cache.Cache) error{n.onNode, n.onSettings, n.onLease} {
		if err := on(ctx, e, c); err != nil {
			return g, err
		}
	}
	return g, nil
}

// onSettings watches the drain slot. A node that began Draining because the slot named it, just as the slot was being
// freed, would drain for nobody for ever; it begins anew.
func (n *Node) onSettings(ctx context.Context, e *Epoch, c cache.Cache) error {
	informer, err := c.GetInformer(ctx, &v1alpha1.Settings{})
	if err != nil {
		return fmt.Errorf("watch Settings: %w", err)
	}
	see := func(object any) {
		settings, ok := object.(*v1alpha1.Settings)
		if liveness, _ := e.Liveness(); !ok || liveness != v1alpha1.Draining {
			return
		}
		if slot := settings.Status.ActiveDrain; slot != nil && slot.Node == e.Node {
			return
		}
		go n.checkWanted(ctx, e)
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: see, UpdateFunc: func(_, object any) { see(object) },
	})
	return err
}

// checkWanted reads live whether a drain still wants this node, until it knows.
func (n *Node) checkWanted(ctx context.Context, e *Epoch) {
	_ = n.insist(ctx, "read the drain slot", func(ctx context.Context) error { // it ends with the epoch
		ctx, cancel := context.WithTimeout(ctx, writeTimeout)
		defer cancel()
		slot, err := DrainedBy(ctx, n.client, e.Node)
		if err == nil && slot == nil {
			e.BeginAnew("no drain wants this node any more")
		}
		return err
	})
}

func (n *Node) onNode(ctx context.Context, e *Epoch, c cache.Cache) error {
	informer, err := c.GetInformer(ctx, &v1alpha1.Node{})
	if err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	see := func(object any) {
		if node, ok := object.(*v1alpha1.Node); ok && node.Name == e.Node {
			e.obey(node.Spec.Desired, n.opts.Gate)
			liveness, _ := e.Liveness()
			n.opts.Metrics.setLiveness(liveness)
		}
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: see, UpdateFunc: func(_, object any) { see(object) },
	})
	return err
}

func (n *Node) onLease(ctx context.Context, e *Epoch, c cache.Cache) error {
	informer, err := c.GetInformer(ctx, &coordinationv1.Lease{})
	if err != nil {
		return fmt.Errorf("watch leases: %w", err)
	}
	see := func(object any) {
		if l, ok := object.(*coordinationv1.Lease); ok {
			if rec, err := lease.Read(l); err == nil {
				e.Vigil.Saw(rec, n.opts.Clock())
			}
		}
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: see, UpdateFunc: func(_, object any) { see(object) },
		DeleteFunc: func(object any) {
			if gone, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
				object = gone.Obj
			}
			if l, ok := object.(*coordinationv1.Lease); ok {
				if node, ok := lease.NodeOf(l.Name); ok {
					e.Vigil.Forget(node)
				}
			}
		},
	})
	return err
}

// News turns the three kinds of news about objects that an informer brings into two.
func News[T any](see, gone func(T)) toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) {
			if o, ok := object.(T); ok {
				see(o)
			}
		},
		UpdateFunc: func(_, object any) {
			if o, ok := object.(T); ok {
				see(o)
			}
		},
		DeleteFunc: func(object any) {
			if last, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
				object = last.Obj
			}
			if o, ok := object.(T); ok {
				gone(o)
			}
		},
	}
}
