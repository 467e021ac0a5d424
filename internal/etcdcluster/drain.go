package etcdcluster

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/etcdcluster/host"
	"github.com/ebb-dev/ebb/internal/fleet"
)

// Reasons of blockers.
const (
	// BlockedNoNode: there is no node to move to.
	BlockedNoNode = "NoSchedulableNode"
	// BlockedQuorum: the cluster would lose its quorum.
	BlockedQuorum = "QuorumAtRisk"
	// BlockedReplacement: a member elsewhere takes the place of the one here.
	BlockedReplacement = "AwaitingReplacement"
	// BlockedRemoval: the member here is being stopped and its data deleted.
	BlockedRemoval = "AwaitingRemoval"
	// BlockedOrphan: the cluster of the member here was deleted by force.
	BlockedOrphan = "NoCluster"
	// BlockedCopy: data of which this node has the only good copy is being copied.
	BlockedCopy = "AwaitingCopy"
	// BlockedSetAside: data of a former member is kept here until somebody discards it.
	BlockedSetAside = "SetAside"
	// BlockedData: data that a stopped cluster kept here cannot be read without data that is missing elsewhere.
	BlockedData = "DataMissing"
)

// Tenants are members and data at rest as a drain sees them. Both need the same objects, which are read once, when the drain first asks.
func Tenants(r client.Reader) []drain.Tenant {
	look := drain.NewLook(r, readDrainWorld)
	return []drain.Tenant{memberTenant{look}, dataTenant{look}}
}

// drainWorld is what a drain reads of all etcd clusters.
type drainWorld struct {
	Clusters  []*v1alpha1.EtcdCluster
	Members   []*v1alpha1.EtcdMember
	Snapshots []*v1alpha1.EtcdSnapshot
	fleet.Fleet
}

func readDrainWorld(ctx context.Context, r client.Reader) (drainWorld, error) {
	f, err := fleet.Read(ctx, r)
	if err != nil {
		return drainWorld{}, err
	}
	w := drainWorld{Fleet: f}
	var clusters v1alpha1.EtcdClusterList
	if err := r.List(ctx, &clusters); err != nil {
		return w, fmt.Errorf("list etcd clusters: %w", err)
	}
	var members v1alpha1.EtcdMemberList
	if err := r.List(ctx, &members); err != nil {
		return w, fmt.Errorf("list etcd members: %w", err)
	}
	var snapshots v1alpha1.EtcdSnapshotList
	if err := r.List(ctx, &snapshots); err != nil {
		return w, fmt.Errorf("list etcd snapshots: %w", err)
	}
	for i := range clusters.Items {
		w.Clusters = append(w.Clusters, &clusters.Items[i])
	}
	for i := range members.Items {
		w.Members = append(w.Members, &members.Items[i])
	}
	for i := range snapshots.Items {
		w.Snapshots = append(w.Snapshots, &snapshots.Items[i])
	}
	return w, nil
}

type memberTenant struct{ *drain.Look[drainWorld] }

// Work implements drain.Tenant.
func (t memberTenant) Work() drain.Work {
	return drain.Work{Name: host.KindMembers, One: "etcd member", Many: "etcd members"}
}

// Remaining implements drain.Tenant.
func (t memberTenant) Remaining(ctx context.Context, node string) (drain.Remaining, error) {
	w, err := t.Take(ctx)
	if err != nil {
		return drain.Remaining{}, err
	}
	return w.membersOn(node), nil
}

type dataTenant struct{ *drain.Look[drainWorld] }

// Work implements drain.Tenant.
func (t dataTenant) Work() drain.Work {
	return drain.Work{Name: host.KindData, One: "only copy of etcd data", Many: "only copies of etcd data"}
}

// Remaining implements drain.Tenant.
func (t dataTenant) Remaining(ctx context.Context, node string) (drain.Remaining, error) {
	w, err := t.Take(ctx)
	if err != nil {
		return drain.Remaining{}, err
	}
	return w.dataOn(node), nil
}

func (w drainWorld) add(left *drain.Remaining, cluster string, b v1alpha1.Blocker) {
	left.Count++
	left.By[cluster]++
	left.Blockers = append(left.Blockers, b)
}

// membersOn lists the members that run on a node, or have yet to start or stop there.
func (w drainWorld) membersOn(node string) drain.Remaining {
	left := drain.Remaining{By: map[string]int64{}}
	for _, m := range w.Members {
		if m.Spec.Node != node || w.ended(m) {
			continue
		}
		b := v1alpha1.Blocker{Kind: "EtcdMember", Name: nameIn(m.Namespace, m.Name)}
		b.Reason, b.Remedy = w.memberBlocked(m)
		w.add(&left, nameIn(m.Namespace, m.Spec.Cluster), b)
	}
	return left
}

// ended reports whether a member has no process and none to come. What is left of one whose node lost or released its
// lease is deleted by the next epoch and is no reason to wait: the cluster does without it.
func (w drainWorld) ended(m *v1alpha1.EtcdMember) bool {
	switch m.Spec.Want {
	case v1alpha1.EtcdMemberStop:
		return reached(m, v1alpha1.EtcdMemberStopped) || !w.Leases[m.Spec.Node].Held()
	case v1alpha1.EtcdMemberDelete:
		return reached(m, v1alpha1.EtcdMemberDeleted) || !w.Leases[m.Spec.Node].Held()
	}
	return false
}

// memberBlocked returns why a member is still there, with the arithmetic.
func (w drainWorld) memberBlocked(m *v1alpha1.EtcdMember) (reason, remedy string) {
	name := nameIn(m.Namespace, m.Spec.Cluster)
	c := w.clusterOf(m)
	switch {
	case m.Spec.Want == v1alpha1.EtcdMemberDelete || m.Spec.Want == v1alpha1.EtcdMemberStop:
		return BlockedRemoval, fmt.Sprintf("cluster %s: %s is being stopped here%s", name, m.Name, because(memberView{EtcdMember: m}.trouble()))
	case c == nil:
		return BlockedOrphan, orphaned(m)
	case trueMessage(c, v1alpha1.EtcdDataMissing) != "":
		return BlockedData, fmt.Sprintf("cluster %s: %s", name, trueMessage(c, v1alpha1.EtcdDataMissing))
	case c.Status.Stop != nil:
		return BlockedRemoval, fmt.Sprintf("cluster %s is being stopped, at step %s%s", name, c.Status.Stop.Step, because(trueMessage(c, v1alpha1.EtcdSnapshotFailed)))
	}
	healthy, voters, others := voterCount(c, m.Name)
	after := healthy
	if others.healthy {
		after--
	}
	switch {
	case voters == 0 && w.anySchedulable():
		return BlockedReplacement, fmt.Sprintf("cluster %s is being started: its first member begins on another node", name)
	case voters > 0 && healthy < quorum(voters):
		return BlockedQuorum, fmt.Sprintf("cluster %s: %d of %d voters healthy, %d are needed; bring %s back", name, healthy, voters, quorum(voters), orOthers(others.unhealthy))
	case !w.anySchedulable():
		return BlockedNoNode, fmt.Sprintf("cluster %s: no other node may take the place of %s: start or uncordon one", name, m.Name)
	case voters > 1 && after < quorum(voters-1) && len(others.unhealthy) > 0:
		return BlockedQuorum, fmt.Sprintf("cluster %s: %d of %d voters healthy; removing %s would lose quorum; start a node or bring %s back", name, healthy, voters, m.Name, orOthers(others.unhealthy))
	}
	what := fmt.Sprintf("cluster %s: %d of %d voters healthy; %s leaves when another member has taken its place", name, healthy, voters, m.Name)
	if now := progress(c.Status); c.Status.Phase == v1alpha1.EtcdClusterPhaseScaling && now != "" {
		what += "; now: " + now
	}
	return BlockedReplacement, what
}

// trueMessage returns the message of a condition of a cluster that is True; empty if it is not.
func trueMessage(c *v1alpha1.EtcdCluster, kind string) string {
	if cond := meta.FindStatusCondition(c.Status.Conditions, kind); cond != nil && cond.Status == metav1.ConditionTrue {
		return strings.TrimSpace(cond.Message)
	}
	return ""
}

// voting is what is known of one voter and the others.
type voting struct {
	healthy   bool // the one
	unhealthy []string
}

// voterCount counts a cluster's voters as its status has them.
func voterCount(c *v1alpha1.EtcdCluster, one string) (healthy, voters int, rest voting) {
	for _, info := range c.Status.Members {
		if info.Role != v1alpha1.EtcdVoter && info.Role != v1alpha1.EtcdLeader {
			continue
		}
		voters++
		if info.Healthy {
			healthy++
		}
		switch {
		case info.Name == one:
			rest.healthy = info.Healthy
		case !info.Healthy:
			rest.unhealthy = append(rest.unhealthy, info.Name)
		}
	}
	slices.Sort(rest.unhealthy)
	return healthy, voters, rest
}

func orOthers(names []string) string {
	if len(names) == 0 {
		return "the others"
	}
	return strings.Join(names, " and ")
}

// clusterOf returns the cluster of a member; nil if there is none, or only another one of the same name.
func (w drainWorld) clusterOf(m *v1alpha1.EtcdMember) *v1alpha1.EtcdCluster {
	for _, c := range w.Clusters {
		if c.Namespace == m.Namespace && c.Name == m.Spec.Cluster && string(c.UID) == m.Spec.ClusterUID {
			return c
		}
	}
	return nil
}

// orphaned returns what to do about a member whose cluster was deleted by force: no coordinator ends it.
func orphaned(m *v1alpha1.EtcdMember) string {
	return fmt.Sprintf("cluster %s: somebody deleted it by force, and %s is left of it; `kubectl delete etcdmember %s` ends it, keeps its data on the node, and `ebb etcd orphans` lists that",
		nameIn(m.Namespace, m.Spec.Cluster), m.Name, commandName(m.Namespace, m.Name))
}

func (w drainWorld) anySchedulable() bool { return len(w.SchedulableNodes()) > 0 }

// dataOn lists the data at rest that only this node has: snapshots without a good copy on a node that stays, and data that members
// of a stopped cluster kept here.
func (w drainWorld) dataOn(node string) drain.Remaining {
	left := drain.Remaining{By: map[string]int64{}}
	for _, snap := range w.Snapshots {
		if !w.onlyHere(snap, node) {
			continue
		}
		b := v1alpha1.Blocker{Kind: "EtcdSnapshot", Name: nameIn(snap.Namespace, snap.Name), Reason: BlockedCopy}
		b.Remedy = fmt.Sprintf("cluster %s: no other node that stays has a verified copy; it is being copied%s%s", nameIn(snap.Namespace, snap.Spec.Cluster), arriving(snap), because(copyErrors(snap.Status.Copies)))
		if !w.anySchedulable() {
			b.Reason, b.Remedy = BlockedNoNode, fmt.Sprintf("cluster %s: no other node may keep a copy: start or uncordon one", nameIn(snap.Namespace, snap.Spec.Cluster))
		}
		w.add(&left, nameIn(snap.Namespace, snap.Spec.Cluster), b)
	}
	for _, m := range w.Members {
		if !host.Retained(m, node) || !w.Leases[node].Held() && !w.needs(m) {
			continue
		}
		b := v1alpha1.Blocker{Kind: "EtcdMember", Name: nameIn(m.Namespace, m.Name), Reason: BlockedCopy}
		b.Remedy = fmt.Sprintf("cluster %s: it is stopped and retained data here; a snapshot of that data must first be on another node", nameIn(m.Namespace, m.Spec.Cluster))
		c := w.clusterOf(m)
		if c == nil {
			b.Reason, b.Remedy = BlockedOrphan, orphaned(m)
		}
		if c != nil {
			if slices.ContainsFunc(c.Status.SetAside, func(a v1alpha1.EtcdSetAside) bool { return a.Member == m.Name }) {
				b.Reason = BlockedSetAside
				b.Remedy = fmt.Sprintf("cluster %s: data of former member %s was set aside here and may have keys that exist nowhere else; `%s` deletes it", nameIn(m.Namespace, m.Spec.Cluster), m.Name, DiscardCommand(c, m.Name))
				w.add(&left, nameIn(m.Namespace, m.Spec.Cluster), b)
				continue
			}
			if missing := trueMessage(c, v1alpha1.EtcdDataMissing); missing != "" {
				b.Reason, b.Remedy = BlockedData, fmt.Sprintf("cluster %s: %s", nameIn(m.Namespace, m.Spec.Cluster), missing)
			}
		}
		w.add(&left, nameIn(m.Namespace, m.Spec.Cluster), b)
	}
	return left
}

// onlyHere reports whether a node has a good copy of a snapshot and no node that stays has another.
func (w drainWorld) onlyHere(snap *v1alpha1.EtcdSnapshot, node string) bool {
	if snap.DeletionTimestamp != nil {
		return false
	}
	if host.OnlyCopy(snap, node) {
		return true
	}
	verified := snap.Verified()
	return slices.Contains(verified, node) && !slices.ContainsFunc(verified, func(other string) bool { return other != node && w.Staying(other) })
}

// needs reports whether a stopped cluster begins again from what a member kept.
func (w drainWorld) needs(m *v1alpha1.EtcdMember) bool {
	c := w.clusterOf(m)
	return c != nil && c.Status.Rest != nil && c.Status.Rest.OnStop == v1alpha1.EtcdRetain
}

// nameIn is how people call an object.
func nameIn(namespace, name string) string {
	if namespace == "default" {
		return name
	}
	return namespace + "/" + name
}
