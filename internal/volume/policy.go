package volume

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kind"
)

// Verdict says whether something may leave with its node, as the node drain policy has it.
//
//	policy                                       the node may leave when                    evicts when the node is cordoned or drained
//	always-allow                                 at once                                    nothing
//	allow-if-replica-is-stopped                  every replica has a protected peer, or     nothing
//	                                             its volume is stopped
//	block-if-contains-last-replica               every replica has a protected peer         nothing
//	block-for-eviction                           no replica is left                         every replica
//	block-for-eviction-if-contains-last-replica  every replica has a protected peer         replicas without a protected peer
//
// A protected peer is healthy, on another node that is schedulable, and not released. A replica that was never healthy does not hold up the
// node, except under block-for-eviction. For every policy the engine must have left the node first.
type Verdict struct {
	// Allowed is set if it may leave.
	Allowed bool
	// Reason is one word.
	Reason string
	// Remedy is why, and what a person can do if it may not leave.
	Remedy string
}

// Reasons of verdicts. Those that refuse are reasons of blockers too.
const (
	// AllowedByPolicy: the policy asks for nothing.
	AllowedByPolicy = "PolicyAllows"
	// AllowedUnused: the replica was never healthy.
	AllowedUnused = "NeverHealthy"
	// AllowedStopped: nobody uses the volume.
	AllowedStopped = "VolumeStopped"
	// AllowedPeer: another replica has everything.
	AllowedPeer = "PeerProtects"
	// AllowedEmpty: the node has no replica.
	AllowedEmpty = "NoReplicas"

	// BlockedLastCopy: no other replica is protected.
	BlockedLastCopy = v1alpha1.ReasonLastHealthyReplica
	// BlockedEviction: the replica leaves when another one has taken its place.
	BlockedEviction = "AwaitingEviction"
	// BlockedUnschedulable: no disk can take the replica that should take its place.
	BlockedUnschedulable = v1alpha1.ReasonNoReplacement
	// BlockedRemoval: the replica is being deleted.
	BlockedRemoval = "AwaitingRemoval"
	// BlockedRelease: the replica may leave, and that has not been recorded yet.
	BlockedRelease = "AwaitingRelease"
	// BlockedEngine: the volume is attached to the node.
	BlockedEngine = "AwaitingDetach"
	// BlockedClient: a client is connected to the volume on the node.
	BlockedClient = "ClientConnected"
)

// MayGo returns whether a replica may leave with its node.
func (w World) MayGo(r *v1alpha1.Replica) Verdict {
	policy := w.policy()
	switch policy {
	case v1alpha1.AlwaysAllow:
		return w.allow(r, AllowedByPolicy, "policy %s lets every replica leave", policy)
	case v1alpha1.BlockForEviction:
		return w.mustLeave(r)
	}
	if w.Unused(r) {
		return w.allow(r, AllowedUnused, "it was never healthy")
	}
	if policy == v1alpha1.AllowIfReplicaIsStopped && w.Stopped() {
		return w.allow(r, AllowedStopped, "the volume is detached and has no engine")
	}
	if peer := w.ProtectedPeer(r); peer != nil {
		return w.allow(r, AllowedPeer, "%s on node %s has every write", peer.Name, peer.Spec.NodeName)
	}
	if policy == v1alpha1.BlockForEvictionIfContainsLastReplica {
		return w.mustLeave(r)
	}
	return Verdict{Reason: BlockedLastCopy, Remedy: w.about(r) + w.whyLast(r) + "; " + w.lastCopyRemedy(r)}
}

// mustLeave is the verdict on a replica that has to be moved first.
func (w World) mustLeave(r *v1alpha1.Replica) Verdict {
	v := Verdict{Reason: BlockedEviction}
	switch other := w.replacement(r); {
	case other == nil && w.othersKept(r) >= int(w.Volume.Spec.Replicas):
		v.Remedy = w.about(r) + "it leaves now: the volume has enough replicas without it"
	case other == nil:
		v.Remedy = w.about(r) + "it leaves when another replica has been built elsewhere"
	default:
		v.Remedy = w.about(r) + fmt.Sprintf("it leaves when %s on node %s is healthy%s", other.Name, other.Spec.NodeName, w.progress(other))
	}
	return v
}

// about begins a sentence: which replica of which volume on which node.
func (w World) about(r *v1alpha1.Replica) string {
	return fmt.Sprintf("volume %s, replica %s on node %s: ", w.name(), r.Name, r.Spec.NodeName)
}

func (w World) allow(r *v1alpha1.Replica, reason, format string, args ...any) Verdict {
	return Verdict{Allowed: true, Reason: reason, Remedy: w.about(r) + fmt.Sprintf(format, args...)}
}

// whyLast returns why the other replicas do not protect the data.
func (w World) whyLast(r *v1alpha1.Replica) string {
	var others []string
	for _, other := range w.Replicas {
		switch why := w.unprotected(other); {
		case other.Name == r.Name:
		case other.Spec.NodeName == r.Spec.NodeName:
			others = append(others, fmt.Sprintf("%s is on the same node", other.Name))
		default:
			others = append(others, fmt.Sprintf("%s on node %s does not count (%s)", other.Name, other.Spec.NodeName, why))
		}
	}
	switch healthy := w.Healthy(r); {
	case healthy && len(others) == 0:
		return "it is the last copy of the volume"
	case healthy:
		return "it is the last copy: " + strings.Join(others, ", ")
	case len(others) == 0:
		return "it is not healthy, and the volume has no other copy"
	}
	return "it is not healthy, and no other copy is safe: " + strings.Join(others, ", ")
}

// lastCopyRemedy is what a person can do about a last copy.
func (w World) lastCopyRemedy(r *v1alpha1.Replica) string {
	var cordoned, down []string
	for _, other := range w.Replicas {
		node := other.Spec.NodeName
		switch {
		case other.Name == r.Name || !w.Healthy(other) || node == r.Spec.NodeName:
		case w.Nodes[node] == nil || !w.Live(node):
			down = append(down, node)
		case w.Nodes[node].Spec.Cordoned:
			cordoned = append(cordoned, node)
		}
	}
	switch {
	case len(cordoned) > 0:
		return fmt.Sprintf("uncordon node %s, or evict the replica (`ebb volume replica evict %s`)", list(cordoned), Argument(r.Namespace, r.Name))
	case len(down) > 0:
		return fmt.Sprintf("start node %s, or evict the replica (`ebb volume replica evict %s`)", list(down), Argument(r.Namespace, r.Name))
	case !w.Healthy(r):
		return fmt.Sprintf("if it is not needed any more, remove it (`ebb volume replica rm %s`)", Argument(r.Namespace, r.Name))
	}
	return fmt.Sprintf("evict the replica (`ebb volume replica evict %s`), or set the node drain policy to %s", Argument(r.Namespace, r.Name), v1alpha1.BlockForEvictionIfContainsLastReplica)
}

func list(names []string) string {
	slices.Sort(names)
	return strings.Join(slices.Compact(names), " and ")
}

// progress of the building of a replica, in words.
func (w World) progress(r *v1alpha1.Replica) string {
	b := w.rebuild(r.Name)
	switch {
	case b == nil:
		return ""
	case b.Error != "":
		return fmt.Sprintf(" (it stands still: %s; `ebb volume replica rm %s` lets another one be built)", b.Error, Argument(r.Namespace, r.Name))
	case b.TotalBytes > 0:
		return fmt.Sprintf(" (%d%% built)", 100*b.DoneBytes/b.TotalBytes)
	}
	return ""
}

// NodeMayGo returns whether a node may leave as far as volumes are concerned, and if not, the first thing that blocks it.
func (c Cluster) NodeMayGo(node string) Verdict {
	policy := policyOf(c.Fleet)
	for _, v := range c.Volumes {
		if v.EngineNode() == node {
			return Verdict{Reason: BlockedEngine, Remedy: fmt.Sprintf("volume %s has its engine on node %s: detach it (`ebb volume detach %s`)", kind.NameIn(v.Namespace, v.Name), node, Argument(v.Namespace, v.Name))}
		}
	}
	verdict := Verdict{Allowed: true, Reason: AllowedEmpty, Remedy: fmt.Sprintf("node %s has no replica", node)}
	for _, v := range c.Volumes {
		w := c.World(v)
		for _, r := range w.Replicas {
			if r.Spec.NodeName != node || r.Status.State == v1alpha1.ReplicaRemoved {
				continue
			}
			if one := w.MayGo(r); !one.Allowed {
				return one
			}
			verdict.Reason, verdict.Remedy = AllowedByPolicy, fmt.Sprintf("policy %s lets every replica on node %s leave", policy, node)
		}
	}
	return verdict
}

// Eviction is the decision whether a replica should leave its node.
type Eviction struct {
	// Requested is what spec.evictionRequested should be.
	Requested bool
	// Event is the event of a change to that: EvictionUserRequested, EvictionAutomatic or EvictionCanceled.
	Event string
	// Why, in words.
	Why string
}

// Automatic reports whether only the policy requests the eviction.
func (e Eviction) Automatic() bool { return e.Requested && e.Event == v1alpha1.EventEvictionAutomatic }

// Eviction decides whether a replica should leave its node. The order of the rules is part of the contract.
func (w World) Eviction(r *v1alpha1.Replica) Eviction {
	node := r.Spec.NodeName
	cancel := func(format string, args ...any) Eviction {
		return Eviction{Event: v1alpha1.EventEvictionCanceled, Why: w.about(r) + fmt.Sprintf(format, args...)}
	}
	automatic := func(format string, args ...any) Eviction {
		return Eviction{Requested: true, Event: v1alpha1.EventEvictionAutomatic, Why: w.about(r) + fmt.Sprintf(format, args...)}
	}
	if w.down(node) {
		return cancel("the node is down or gone")
	}
	if who := w.evictionRequested(r); who != "" {
		return Eviction{Requested: true, Event: v1alpha1.EventEvictionUserRequested, Why: w.about(r) + "eviction was requested for the " + who}
	}
	why := "cordoned"
	switch {
	case w.draining(node):
		why = "being drained"
	case !w.Nodes[node].Spec.Cordoned:
		return cancel("the node is neither cordoned nor being drained, and nobody requested the eviction")
	}
	switch policy := w.policy(); policy {
	case v1alpha1.BlockForEviction:
		return automatic("the node is %s and the policy is %s", why, policy)
	case v1alpha1.BlockForEvictionIfContainsLastReplica:
		peer := w.ProtectedPeer(r)
		if peer == nil {
			return automatic("the node is %s and %s", why, w.whyLast(r))
		}
		if other := w.latched(r); other != nil {
			return automatic("the node is %s and %s on node %s has taken its place", why, other.Name, other.Spec.NodeName)
		}
		return cancel("%s on node %s has every write", peer.Name, peer.Spec.NodeName)
	default:
		return cancel("policy %s evicts nothing", policy)
	}
}

// latched returns the healthy replacement of a replica that is being evicted: from then on a protected peer does not cancel the eviction,
// or the surplus copy would stay.
func (w World) latched(r *v1alpha1.Replica) *v1alpha1.Replica {
	if !r.Spec.EvictionRequested {
		return nil
	}
	if other := w.replacement(r); other != nil && w.Healthy(other) {
		return other
	}
	return nil
}

// evictionRequested returns what a person asked eviction of: "node", "disk ssd" or "replica"; empty if of nothing.
func (w World) evictionRequested(r *v1alpha1.Replica) string {
	n := w.Nodes[r.Spec.NodeName]
	switch {
	case n.Spec.EvictionRequested:
		return "node"
	case slices.ContainsFunc(n.Spec.Disks, func(d v1alpha1.Disk) bool { return d.Name == r.Spec.Disk && d.EvictionRequested }):
		return "disk " + r.Spec.Disk
	case r.Annotations[v1alpha1.EvictAnnotation] == "true":
		return "replica"
	}
	return ""
}

// AutoEvicting reports whether some replica on a node is evicted by the policy rather than by request.
func (c Cluster) AutoEvicting(node string) bool {
	for _, r := range c.Replicas {
		if r.Spec.NodeName != node || !r.Spec.EvictionRequested {
			continue
		}
		if v := c.Volume(r); v != nil && c.World(v).Eviction(r).Automatic() {
			return true
		}
	}
	return false
}
