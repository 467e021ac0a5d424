// Package fleet reads the nodes, their leases, the drain slot and the settings at one time, and answers what every kind of work asks of
// them: who lives, whose epoch has ended, and which nodes may get new work.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
)

// ErrLeaseInDoubt: the node could not renew its lease in time, so another node may take its work over at any moment. Nothing is started,
// moved or written until the lease is renewed or the next epoch begins.
var ErrLeaseInDoubt = errors.New("the node's lease is in doubt")

// readLimit bounds the live read of one lease.
const readLimit = 5 * time.Second

// Fleet is what is known of the nodes at one time. The zero value is an empty fleet.
type Fleet struct {
	// Nodes by name.
	Nodes map[string]*v1alpha1.Node
	// Leases by node.
	Leases map[string]lease.Record
	// Slot is the drain that runs, or nil.
	Slot *v1alpha1.ActiveDrain
	// Settings of the cluster.
	Settings v1alpha1.SettingsSpec
}

// Read reads the fleet through r. The objects may be shared with r's cache and must not be changed.
func Read(ctx context.Context, r client.Reader) (Fleet, error) {
	f, err := ReadNodes(ctx, r)
	if err != nil {
		return f, err
	}
	settings := &v1alpha1.Settings{}
	if err := r.Get(ctx, types.NamespacedName{Name: v1alpha1.SettingsName}, settings); err != nil {
		return f, fmt.Errorf("read Settings %s: %w", v1alpha1.SettingsName, err)
	}
	f.Slot, f.Settings = settings.Status.ActiveDrain, settings.Spec
	return f, nil
}

// ReadNodes reads the nodes and their leases only, for who decides nothing that the slot or the settings change.
func ReadNodes(ctx context.Context, r client.Reader) (Fleet, error) {
	f := New()
	var nodes v1alpha1.NodeList
	if err := r.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return f, fmt.Errorf("list nodes: %w", err)
	}
	for i := range nodes.Items {
		f.Nodes[nodes.Items[i].Name] = &nodes.Items[i]
	}
	var leases coordinationv1.LeaseList
	if err := r.List(ctx, &leases, client.InNamespace(lease.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return f, fmt.Errorf("list leases: %w", err)
	}
	for i := range leases.Items {
		l := &leases.Items[i]
		if _, ok := lease.NodeOf(l); !ok {
			continue // the election's
		}
		rec, err := lease.Read(l)
		if err != nil {
			return f, err
		}
		f.Leases[rec.Node] = rec
	}
	return f, nil
}

// New is an empty fleet to add nodes and leases to.
func New() Fleet {
	return Fleet{Nodes: map[string]*v1alpha1.Node{}, Leases: map[string]lease.Record{}}
}

// ReadLease reads the lease of one node. The record of a node without a lease is empty but for its name.
func ReadLease(ctx context.Context, r client.Reader, node string) (lease.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	l := &coordinationv1.Lease{}
	err := r.Get(ctx, types.NamespacedName{Namespace: lease.Namespace, Name: lease.NameOf(node)}, l)
	if kubeclient.IsMissing(err) {
		return lease.Record{Node: node}, nil
	}
	if err != nil {
		return lease.Record{}, fmt.Errorf("lease of node %s: %w", node, err)
	}
	return lease.Read(l)
}

// Live reports whether some process may be living on a node. Without a lease there is none: a node writes and starts nothing before it
// holds one.
func (f Fleet) Live(node string) bool { return f.Leases[node].Held() }

// Over reports whether an epoch of a node has ended: it was released, fenced, or followed by a newer one.
func (f Fleet) Over(node string, epoch int64) bool {
	rec := f.Leases[node]
	return rec.Epoch == 0 || rec.Over(epoch)
}

// current reports whether the node's status was written by the epoch that holds its lease.
func (f Fleet) current(node string) bool {
	n, rec := f.Nodes[node], f.Leases[node]
	return n != nil && rec.Held() && rec.Epoch == n.Status.Epoch
}

// Leaving reports whether a node gives its work away: a drain names it, or it said itself that it is not Alive.
func (f Fleet) Leaving(node string) bool {
	if f.Slot != nil && f.Slot.Node == node {
		return true
	}
	return f.current(node) && f.Nodes[node].Status.Liveness != v1alpha1.Alive && f.Nodes[node].Status.Liveness != ""
}

// Staying reports whether a process may be living on a node that gives nothing away.
func (f Fleet) Staying(node string) bool { return f.Live(node) && !f.Leaving(node) }

// Why a node may not get new work.
const (
	NoLease  = "no lease"
	Draining = "draining"
	NotAlive = "not alive"
	NotReady = "not ready"
	Cordoned = "cordoned"
)

// Ineligible is why a node may not get new work, or empty if it may.
func (f Fleet) Ineligible(node string) string {
	n := f.Nodes[node]
	switch {
	case !f.current(node):
		return NoLease
	case n.Status.Liveness != v1alpha1.Alive:
		return NotAlive
	case f.Leaving(node):
		return Draining
	case !n.IsReady():
		return NotReady
	case n.Spec.Cordoned:
		return Cordoned
	}
	return ""
}

// Schedulable reports whether a node may get new work.
func (f Fleet) Schedulable(node string) bool { return f.Ineligible(node) == "" }

// SchedulableNodes are the nodes that may get new work, sorted.
func (f Fleet) SchedulableNodes() []string {
	var names []string
	for name := range f.Nodes {
		if f.Schedulable(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Settling is the pause of balancing after a drain: nothing is moved only to even out the load while a drain runs or shortly after one.
// The zero value has seen no drain.
type Settling struct{ drained time.Time }

// DefaultBalanceAfter is how long no drain must have run before anything is balanced, unless the settings say otherwise.
const DefaultBalanceAfter = 30 * time.Second

// Began is a Settling that waits as long as after a drain: whoever has just started does not know what happened before.
func Began(now time.Time) Settling { return Settling{drained: now} }

// Saw notes the fleet as it is now.
func (s *Settling) Saw(f Fleet, now time.Time) {
	if f.Slot != nil {
		s.drained = now
	}
}

// Settled reports whether no drain has run for as long as the settings of the fleet ask for.
func (s Settling) Settled(f Fleet, now time.Time) bool {
	return f.Slot == nil && now.Sub(s.drained) > f.BalanceAfter()
}

// BalanceAfter is how long no drain must have run before anything is balanced.
func (f Fleet) BalanceAfter() time.Duration {
	return DurationOr(f.Settings.Drain.BalanceAfter, DefaultBalanceAfter)
}

// DurationOr is a duration of the settings, or what holds if it is not set.
func DurationOr(set *metav1.Duration, otherwise time.Duration) time.Duration {
	if set != nil && set.Duration > 0 {
		return set.Duration
	}
	return otherwise
}

// ChangesHands reports whether an update of a Lease is more than a renewal, for who watches leases: every node renews all the time, and a
// look at the whole fleet for each renewal would never end.
func ChangesHands(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*coordinationv1.Lease)
	after, same := e.ObjectNew.(*coordinationv1.Lease)
	if !ok || !same {
		return true
	}
	if _, ok := lease.NodeOf(after); !ok {
		return false // the election's: nothing that watches nodes rests on it
	}
	was, err1 := lease.Read(before)
	is, err2 := lease.Read(after)
	was.Version, is.Version = "", ""
	return err1 != nil || err2 != nil || was != is
}
