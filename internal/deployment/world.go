package deployment

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/fleet"
)

// World is the input of decisions about programs, read at one time.
type World struct {
	fleet.Fleet
	// Waited reports whether the deployments of a node that released its lease may be claimed. A node that is only restarted
	// should find its deployments again. If Waited is nil, they may be claimed at once.
	Waited func(node string) bool
	// Completes reports whether the programs of a namespace run to their end before they leave a draining node. If it is nil, none do.
	Completes func(namespace string) bool
}

// Current reports whether every node that runs programs knows the fields that this version writes into objects. A node of an earlier version drops
// unknown fields from every object that it writes, and such writes are refused. So these fields are written only when all nodes are upgraded.
func (w World) Current() bool {
	for name, n := range w.Nodes {
		if w.Live(name) && ofEarlierVersion(n) {
			return false
		}
	}
	return true
}

// ofEarlierVersion reports whether what a node has published last came from a version before programs had users of their own.
func ofEarlierVersion(n *v1alpha1.Node) bool {
	return n.Status.ClaimPolicy != "" && meta.FindStatusCondition(n.Status.Conditions, v1alpha1.NodeProgramsIsolated) == nil
}

// unsettled reports whether a node has joined that published nothing yet in its epoch, and was of an earlier version before: it may have been upgraded.
func (w World) unsettled() bool {
	for name, n := range w.Nodes {
		if w.Live(name) && ofEarlierVersion(n) && n.Status.Epoch != w.Leases[name].Epoch {
			return true
		}
	}
	return false
}

// unseen reports whether the coordinator has not decided yet as whom a deployment runs that names no user.
func unseen(d *v1alpha1.Deployment) bool {
	return d.Spec.User == "" && !d.Status.Isolated && len(d.Status.Conditions) == 0
}

// Undecided reports whether the coordinator, which has not seen a deployment yet, will decide that it runs as the node's user: a program that is
// started as a user of its own would be started again.
func (w World) Undecided(d *v1alpha1.Deployment) bool { return unseen(d) && !w.Current() }

// Check returns what is wrong with a deployment's spec, as a code and a sentence, or nothing.
func Check(d *v1alpha1.Deployment) (code, message string) {
	switch {
	case d.Spec.Type != v1alpha1.TypeDeployment && d.Spec.Type != v1alpha1.TypeDaemon:
		return v1alpha1.ErrInvalidType, fmt.Sprintf("type %q is neither %s nor %s: no node runs it until the type is corrected", d.Spec.Type, v1alpha1.TypeDaemon, v1alpha1.TypeDeployment)
	case d.Spec.Type == v1alpha1.TypeDaemon && d.Spec.Address != "":
		return v1alpha1.ErrDaemonAddressSet, fmt.Sprintf("address %q is ignored because a daemon runs on every matching node: remove the address", d.Spec.Address)
	}
	if _, err := selector(d); err != nil {
		return v1alpha1.ReasonInvalidSelector, fmt.Sprintf("the selector matches no node: %v", err)
	}
	return "", ""
}

// runnable reports whether a deployment has a valid type.
func runnable(d *v1alpha1.Deployment) bool {
	return d.Spec.Type == v1alpha1.TypeDeployment || d.Spec.Type == v1alpha1.TypeDaemon
}

func selector(d *v1alpha1.Deployment) (labels.Selector, error) {
	if d.Spec.Selector == nil {
		return labels.Everything(), nil
	}
	return metav1.LabelSelectorAsSelector(d.Spec.Selector)
}

// matches reports whether a node's labels match the selector of a program.
func matches(d *v1alpha1.Deployment, node map[string]string) bool {
	s, err := selector(d)
	return err == nil && s.Matches(labels.Set(node))
}

// State of a deployment; empty if its type is invalid.
func (w World) State(d *v1alpha1.Deployment) v1alpha1.DeploymentState {
	switch {
	case !runnable(d):
		return ""
	case !d.IsEnabled():
		return v1alpha1.StateDisabled
	case d.Spec.Type == v1alpha1.TypeDaemon:
		return v1alpha1.StateEnabled
	case d.Spec.Address == "":
		return v1alpha1.StateUnassigned
	case !w.Live(d.Spec.Address):
		return v1alpha1.StateLost
	}
	return v1alpha1.StateAssigned
}

// draining reports whether the deployments of a node may be claimed because it drains.
func (w World) draining(node string) bool {
	n := w.Nodes[node]
	return n != nil && n.Status.Liveness == v1alpha1.Draining && n.Status.Epoch == w.Leases[node].Epoch
}

// Claimable reports whether a deployment may be claimed: it has no address, or the node of its address is lost, is being drained, or
// will not run it.
func (w World) Claimable(d *v1alpha1.Deployment) bool {
	if d.Spec.Type != v1alpha1.TypeDeployment || !d.IsEnabled() {
		return false
	}
	address := d.Spec.Address
	switch {
	case address == "":
		return true
	case d.Spec.Pinned:
		return false
	case w.draining(address):
		return !w.completing(d)
	}
	if rec := w.Leases[address]; !rec.Held() {
		marked := rec.Epoch == 0 || rec.Fenced >= rec.Epoch
		return marked || w.Waited == nil || w.Waited(address)
	}
	return d.Holder().Node != address && (w.refuses(d, address) != "" || Avoids(d, address) && w.Elsewhere(d, address)) // and it does not run there
}

// Elsewhere reports whether another node may claim a deployment and has not given it up.
func (w World) Elsewhere(d *v1alpha1.Deployment, but string) bool {
	for name := range w.Nodes {
		if name != but && w.IneligibleReason(d, name) == "" && !Avoids(d, name) {
			return true
		}
	}
	return false
}

// completing reports whether a deployment stays on its draining node until its program ends. One that waits for a restart has ended.
func (w World) completing(d *v1alpha1.Deployment) bool {
	if w.Completes == nil || !w.Completes(d.Namespace) || d.Holder().Node != d.Spec.Address {
		return false
	}
	i := d.Instance(d.Spec.Address)
	return i != nil && (i.State == v1alpha1.InstanceStarting || i.State == v1alpha1.InstanceRunning || i.State == v1alpha1.InstanceRestarting)
}

// refuses returns why a node would not run a deployment that is addressed to it.
func (w World) refuses(d *v1alpha1.Deployment, node string) string {
	n := w.Nodes[node]
	switch {
	case n == nil:
		return ""
	case !matches(d, n.Labels):
		return ineligibleLabels
	}
	return trustOf(n).Refuses(d)
}

// trustOf parses what a node publishes of its trust. If it is invalid, the node trusts no command.
func trustOf(n *v1alpha1.Node) Trust {
	key := [2]string{n.Status.TrustedCommands, n.Status.ProgramUsers}
	if known, ok := trusts.Load(key); ok {
		return known.(Trust)
	}
	t, err := ParseTrust(n.Status.TrustedCommands)
	users, invalid := ParseUsers(n.Status.ProgramUsers)
	if err != nil || invalid != nil {
		t, _ = ParseTrust(`\b\B`) // matches nothing
	}
	t = t.As(users)
	trusts.Store(key, t)
	return t
}

// trusts caches the parsed expressions of nodes. There is at most one for each node, and each is used for every deployment.
var trusts sync.Map

// Why a node cannot claim a deployment.
const (
	ineligiblePolicy = "claim policy none"
	ineligibleLabels = "labels do not match"
)

// ineligibleReason returns why a node may claim nothing at all now; empty if it may.
func (w World) ineligibleReason(n *v1alpha1.Node) string {
	switch why := w.Ineligible(n.Name); {
	case why != "":
		return why
	case n.Status.ClaimPolicy != v1alpha1.ClaimByCount && n.Status.ClaimPolicy != v1alpha1.ClaimByUsage:
		return ineligiblePolicy
	}
	return ""
}

// IneligibleReason returns why a node may not claim a deployment; empty if it may.
func (w World) IneligibleReason(d *v1alpha1.Deployment, node string) string {
	n := w.Nodes[node]
	if n == nil {
		return fleet.NoLease
	}
	if why := w.ineligibleReason(n); why != "" {
		return why
	}
	return w.refuses(d, node)
}

// Nowhere returns why no other node may claim a deployment, for each node; empty if one may.
func (w World) Nowhere(d *v1alpha1.Deployment, but string) string {
	var reasons []string
	for name := range w.Nodes {
		if name == but {
			continue
		}
		why := w.IneligibleReason(d, name)
		if why == "" {
			return ""
		}
		if why != fleet.NoLease {
			reasons = append(reasons, name+": "+why)
		}
	}
	slices.Sort(reasons)
	if len(reasons) == 0 {
		return "no other node has a lease"
	}
	return strings.Join(reasons, ", ")
}

// mayGoOn reports whether the program of an instance may still run on a lost node: it goes on without a lease, or did when the node was last heard
// of. A node that left in order has stopped it.
func (w World) mayGoOn(d *v1alpha1.Deployment, i *v1alpha1.DeploymentInstance) bool {
	rec := w.Leases[i.Node]
	return (goesOn(i) || d.Spec.GoesOn()) && !rec.Held() && rec.Fenced >= i.NodeEpoch
}

// Claimed returns another node that lives and may still run a deployment; empty if none may. The holder and the instances of other nodes
// count until these nodes have removed them or hold no lease any more, also if they were written in an earlier epoch: a newer
// epoch of the same node may have found the program running.
func (w World) Claimed(d *v1alpha1.Deployment, node string) string {
	if h := d.Holder(); h.Node != "" && h.Node != node && w.Live(h.Node) {
		return h.Node
	}
	for i := range d.Status.Nodes {
		if other := d.Status.Nodes[i].Node; other != node && w.Live(other) {
			return other
		}
	}
	return ""
}

// Occupied returns another node that may still run a deployment that is not running here; empty if none may. Lost nodes count as well on which the
// program goes on without a lease, unless it is one that should rather run twice: it may have become one that must not while they were away.
func (w World) Occupied(d *v1alpha1.Deployment, node string) string {
	if other := w.Claimed(d, node); other != "" || d.Spec.GoesOn() {
		return other
	}
	for i := range d.Status.Nodes {
		if n := &d.Status.Nodes[i]; n.Node != node && w.mayGoOn(d, n) {
			return n.Node
		}
	}
	for _, other := range d.Status.MayRunOn {
		if other != node {
			return other
		}
	}
	return ""
}

// daemonNodes returns the nodes on which a daemon should run: their labels match, and they trust its command. They are alive, or
// draining with the daemon already running, because a draining node takes no new one.
func (w World) daemonNodes(d *v1alpha1.Deployment) []string {
	var names []string
	for name, n := range w.Nodes {
		rec := w.Leases[name]
		runs := n.Status.Liveness == v1alpha1.Alive || n.Status.Liveness == v1alpha1.Draining && d.Instance(name) != nil
		if rec.Held() && rec.Epoch == n.Status.Epoch && runs && matches(d, n.Labels) && trustOf(n).Refuses(d) == "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// available reports whether a program runs on a node, as reported by the node's current epoch.
func (w World) available(d *v1alpha1.Deployment, node string) bool {
	i := d.Instance(node)
	return i != nil && i.State == v1alpha1.InstanceRunning && i.NodeEpoch >= w.Leases[node].Epoch
}

// MayRestart reports whether a node may stop its daemon for a new revision without exceeding the rollout's maxUnavailable.
func (w World) MayRestart(d *v1alpha1.Deployment, node string) bool {
	if i := d.Instance(node); i == nil || i.State != v1alpha1.InstanceRunning {
		return true
	}
	down := int32(1)
	for _, name := range w.rolloutNodes(d) {
		if i := d.Instance(name); name != node && (!w.available(d, name) || i.Settling) {
			down++
		}
	}
	return down <= max(d.Spec.Rollout.MaxUnavailable, 1)
}

// rolloutNodes returns the nodes that a rollout counts: those on which the daemon should run, and those with an instance whose node
// has not yet reported in its newest epoch. An instance with a newer epoch than the lease shows that the lease in the cache is old.
func (w World) rolloutNodes(d *v1alpha1.Deployment) []string {
	names := w.daemonNodes(d)
	for _, i := range d.Status.Nodes {
		if (w.Live(i.Node) || i.NodeEpoch > w.Leases[i.Node].Epoch) && !slices.Contains(names, i.Node) {
			names = append(names, i.Node)
		}
	}
	return names
}
