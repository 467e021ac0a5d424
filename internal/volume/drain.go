package volume

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/kind"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/volume/host"
)

// Tenants are engines and replicas as a drain sees them. Both need the same objects, which are read once, when the drain first asks.
func Tenants(r client.Reader) []drain.Tenant {
	look := drain.NewLook(r, ReadCluster)
	return []drain.Tenant{engineTenant{look}, replicaTenant{look}}
}

// ReadCluster reads all volumes and what decides about them. Replicas are read before volumes: a replica with a newer generation than its
// volume then means that the store went back in time.
func ReadCluster(ctx context.Context, r client.Reader) (Cluster, error) {
	f, err := fleet.Read(ctx, r)
	if err != nil {
		return Cluster{}, err
	}
	c := Cluster{Fleet: f}
	if c.Drain, err = readDrain(ctx, r, f.Slot); err != nil {
		return c, err
	}
	var replicas v1alpha1.ReplicaList
	if err := r.List(ctx, &replicas); err != nil {
		return c, fmt.Errorf("list replicas: %w", err)
	}
	var volumes v1alpha1.VolumeList
	if err := r.List(ctx, &volumes); err != nil {
		return c, fmt.Errorf("list volumes: %w", err)
	}
	for i := range replicas.Items {
		c.Replicas = append(c.Replicas, &replicas.Items[i])
	}
	for i := range volumes.Items {
		c.Volumes = append(c.Volumes, &volumes.Items[i])
	}
	c.Now = time.Now()
	return c, nil
}

// readDrain reads the drain in the slot; nil if there is none.
func readDrain(ctx context.Context, r client.Reader, slot *v1alpha1.ActiveDrain) (*v1alpha1.Drain, error) {
	if slot == nil {
		return nil, nil
	}
	d := &v1alpha1.Drain{}
	if err := r.Get(ctx, types.NamespacedName{Name: slot.Name}, d); kubeclient.IsMissing(err) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("drain %s: %w", slot.Name, err)
	}
	if string(d.UID) != slot.UID {
		return nil, nil
	}
	return d, nil
}

type engineTenant struct{ *drain.Look[Cluster] }

// Work implements drain.Tenant.
func (t engineTenant) Work() drain.Work {
	return drain.Work{Name: host.KindEngines, One: "volume engine", Many: "volume engines"}
}

// Remaining implements drain.Tenant.
func (t engineTenant) Remaining(ctx context.Context, node string) (drain.Remaining, error) {
	c, err := t.Take(ctx)
	if err != nil {
		return drain.Remaining{}, err
	}
	return c.enginesOn(node), nil
}

type replicaTenant struct{ *drain.Look[Cluster] }

// Work implements drain.Tenant.
func (t replicaTenant) Work() drain.Work {
	return drain.Work{Name: host.KindReplicas, One: "replica", Many: "replicas"}
}

// Remaining implements drain.Tenant.
func (t replicaTenant) Remaining(ctx context.Context, node string) (drain.Remaining, error) {
	c, err := t.Take(ctx)
	if err != nil {
		return drain.Remaining{}, err
	}
	return c.replicasOn(node), nil
}

func add(left *drain.Remaining, volume string, b v1alpha1.Blocker) {
	left.Count++
	left.By[volume]++
	left.Blockers = append(left.Blockers, b)
}

// enginesOn lists the volumes whose engine is on a node.
func (c Cluster) enginesOn(node string) drain.Remaining {
	left := drain.Remaining{By: map[string]int64{}}
	for _, v := range c.Volumes {
		if v.EngineNode() != node {
			continue
		}
		w := c.World(v)
		b := v1alpha1.Blocker{Kind: "Volume", Name: w.name()}
		b.Reason, b.Remedy = w.engineBlocked(node)
		add(&left, w.name(), b)
	}
	return left
}

// engineBlocked returns why the engine of a volume is still on a node.
func (w World) engineBlocked(node string) (reason, remedy string) {
	name := w.name()
	switch n := w.clients(node); {
	case w.Volume.Status.AttachedTo != node:
		return BlockedEngine, fmt.Sprintf("volume %s: node %s is building a replica of it; another node continues that", name, node)
	case n == 0 || w.down(node):
		return BlockedEngine, fmt.Sprintf("volume %s is being detached from node %s; it is attached again once the node is back", name, node)
	default:
		who := kind.Plural(int(n), "client")
		if names := w.Volume.Status.Engine.ClientNames; len(names) > 0 {
			who += " (" + strings.Join(names, ", ") + ")"
		}
		what := fmt.Sprintf("volume %s: %s connected to it on node %s: disconnect, or attach the volume to another node (`ebb volume attach %s NODE`)", name, who, node, Argument(w.Volume.Namespace, w.Volume.Name))
		if at, ok := w.disconnectAt(); ok {
			what += fmt.Sprintf("; clients are disconnected at %s", at.UTC().Format(time.RFC3339))
		}
		return BlockedClient, what
	}
}

// replicasOn lists the replicas with which a node may not leave. On a node that died, only last healthy copies count that the policy would not
// have released: waiting for the others would not help.
func (c Cluster) replicasOn(node string) drain.Remaining {
	left := drain.Remaining{By: map[string]int64{}}
	epoch := c.Leases[node].Epoch
	if c.Slot != nil && c.Slot.Node == node {
		epoch = c.Slot.NodeEpoch
	}
	dead := !c.Live(node)
	for _, r := range c.Replicas {
		v := c.Volume(r)
		if r.Spec.NodeName != node || host.PresenceOf(v, r, epoch) != host.Held {
			continue
		}
		b := v1alpha1.Blocker{Kind: "Replica", Name: kind.NameIn(r.Namespace, r.Name)}
		volume := kind.NameIn(r.Namespace, r.Spec.VolumeName)
		switch {
		case dead && (v == nil || deleting(v) || !c.World(v).lastCopy(r)):
			continue
		case v == nil:
			b.Reason, b.Remedy = BlockedRemoval, fmt.Sprintf("volume %s was deleted, but its replica %s on node %s is left: delete it (`ebb volume replica rm %s`)", volume, r.Name, node, Argument(r.Namespace, r.Name))
		case dead:
			w := c.World(v)
			b.Reason, b.Remedy = BlockedLastCopy, w.about(r)+w.whyLast(r)+fmt.Sprintf("; start node %s, or give up the data by setting the node drain policy to %s", node, v1alpha1.AlwaysAllow)
		default:
			b.Reason, b.Remedy = c.World(v).replicaBlocked(r)
		}
		add(&left, volume, b)
	}
	return left
}

// lastCopy reports whether a replica is the last healthy one and the policy does not let it leave.
func (w World) lastCopy(r *v1alpha1.Replica) bool {
	return w.Healthy(r) && w.ProtectedPeer(r) == nil && !w.MayGo(r).Allowed
}

// replicaBlocked returns why a replica is still on its node.
func (w World) replicaBlocked(r *v1alpha1.Replica) (reason, remedy string) {
	if released(w.Volume, r) || deleting(w.Volume) {
		return BlockedRemoval, w.about(r) + "it is being deleted there"
	}
	if w.Volume.EngineNode() == r.Spec.NodeName {
		return BlockedEngine, w.about(r) + "the engine of the volume has to leave the node first"
	}
	verdict := w.MayGo(r)
	if verdict.Allowed {
		return BlockedRelease, verdict.Remedy + "; the replica may leave with the node as soon as that is recorded"
	}
	c := meta.FindStatusCondition(r.Status.Conditions, v1alpha1.ReplicaEvicting)
	if c != nil && c.Status == metav1.ConditionTrue && c.Reason == v1alpha1.ReasonNoReplacement && verdict.Reason == BlockedEviction {
		return BlockedUnschedulable, strings.TrimSuffix(c.Message, ".")
	}
	return verdict.Reason, verdict.Remedy
}
