package deployment

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

const (
	// missingAfter is how long an enabled daemon may be starting before it is reported as missing.
	missingAfter = 5 * time.Second
	// claimedWithin is how long the coordinator leaves the state of a new deployment to the node that claims it.
	claimedWithin = time.Second
)

// Observe returns the status of a deployment, and when to check again even if nothing changes; zero means never.
func Observe(w World, d *v1alpha1.Deployment, now time.Time) (v1alpha1.DeploymentStatus, time.Duration) {
	next := *d.Status.DeepCopy()
	var again time.Duration
	state := w.State(d)
	if age := now.Sub(d.CreationTimestamp.Time); next.State == "" && state == v1alpha1.StateUnassigned && age < claimedWithin {
		return next, claimedWithin - age
	}
	if unseen(d) && w.unsettled() {
		// The node publishes its version at once. What is decided before would be decided by the version that it had: a program that was
		// started while the node was away would be started again, as the node's user.
		return next, claimedWithin
	}
	next.State = state
	if w.Current() && (len(d.Status.Conditions) == 0 || d.Spec.User != "") {
		next.Isolated = true // without a user it gets one of its own from now on
	}
	next.MayRunOn = w.mayRunOn(d)
	next.Nodes = append(slices.DeleteFunc(next.Nodes, func(i v1alpha1.DeploymentInstance) bool { return w.ended(&i) && !w.blocks(d, &i) }), w.returned(d)...)
	next.Avoid, again = avoided(d, now)
	seen := d.DeepCopy()
	seen.Status.Nodes = next.Nodes
	next.Wanted, next.Running = w.count(seen)
	set := func(c metav1.Condition) {
		c.ObservedGeneration, c.LastTransitionTime = d.Generation, metav1.NewTime(now)
		meta.SetStatusCondition(&next.Conditions, c)
	}
	valid := metav1.Condition{Type: v1alpha1.DeploymentValid, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAccepted}
	if code, message := Check(d); code != "" {
		valid.Status, valid.Reason, valid.Message = metav1.ConditionFalse, code, message
	}
	set(valid)
	running := w.running(seen, next)
	if running.Reason == v1alpha1.ErrDaemonMissing {
		since := now
		if old := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DeploymentRunning); old != nil && old.Status == metav1.ConditionFalse && old.Reason != v1alpha1.ReasonDisabled {
			since = old.LastTransitionTime.Time
		}
		if wait := max(missingAfter-now.Sub(since), w.restarting(seen, now)); wait > 0 {
			running.Reason = v1alpha1.ReasonNotRunning
			again = sooner(again, wait)
		}
	}
	set(running)
	return next, again
}

// ended reports whether the lease under which a node wrote its instance has ended. Then the program has stopped, unless it continues without a
// lease.
func (w World) ended(i *v1alpha1.DeploymentInstance) bool {
	rec := w.Leases[i.Node]
	return !rec.Held() && rec.Epoch >= i.NodeEpoch
}

// blocks reports whether an instance on a lost node keeps others from starting a deployment, until the node is back and has ended its program, or
// somebody deletes its Node object.
func (w World) blocks(d *v1alpha1.Deployment, i *v1alpha1.DeploymentInstance) bool {
	return !d.Spec.GoesOn() && w.mayGoOn(d, i) && w.Nodes[i.Node] != nil
}

// returned returns instances on nodes that are back, and on which a deployment may still run: each node removes its own when nothing is left.
func (w World) returned(d *v1alpha1.Deployment) (list []v1alpha1.DeploymentInstance) {
	for _, node := range d.Status.MayRunOn {
		if rec := w.Leases[node]; rec.Held() && d.Instance(node) == nil && d.Spec.Type == v1alpha1.TypeDeployment {
			list = append(list, v1alpha1.DeploymentInstance{Node: node, NodeEpoch: max(rec.Epoch-1, 1), State: v1alpha1.InstanceStopping, Revision: goesOnMark})
		}
	}
	return list
}

// mayRunOn returns the lost nodes on which a program that continues without a lease may still run. A node that released its lease has stopped it.
func (w World) mayRunOn(d *v1alpha1.Deployment) []string {
	list := slices.DeleteFunc(slices.Clone(d.Status.MayRunOn), func(node string) bool {
		rec := w.Leases[node]
		return rec.Held() || w.Nodes[node] == nil
	})
	for i := range d.Status.Nodes {
		n := &d.Status.Nodes[i]
		if w.Current() && w.mayGoOn(d, n) && w.Nodes[n.Node] != nil && !slices.Contains(list, n.Node) {
			list = append(list, n.Node)
		}
	}
	slices.Sort(list)
	return list
}

// sooner returns the shorter of two times to wait, of which zero is never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b < a {
		return b
	}
	return a
}

// avoided returns the nodes that are still to be avoided, and when that changes.
func avoided(d *v1alpha1.Deployment, now time.Time) (list []v1alpha1.AvoidedNode, again time.Duration) {
	for _, a := range d.Status.Avoid {
		left := a.Until.Sub(now)
		if left <= 0 || a.Revision != Revision(d) {
			continue
		}
		if left > 2*avoidFor { // the clock of the node is ahead: it is avoided, but not for ever
			left = avoidFor
			a.Until = metav1.NewMicroTime(now.Add(left))
		}
		list, again = append(list, a), sooner(again, left)
	}
	return list, again
}

// restarting returns how much longer a daemon that runs nowhere it is missing may take, because it is only being restarted there: it
// was asked to stop, within its grace, or is about to start. Zero if it fails, or is missing altogether.
func (w World) restarting(d *v1alpha1.Deployment, now time.Time) time.Duration {
	var longest time.Duration
	for _, name := range w.daemonNodes(d) {
		if w.available(d, name) {
			continue
		}
		i := d.Instance(name)
		if i == nil || i.Since == nil || i.Failures > 0 {
			return 0
		}
		switch i.State {
		case v1alpha1.InstanceRestarting, v1alpha1.InstanceStopping, v1alpha1.InstanceStarting:
		default:
			return 0
		}
		left := Grace(d.Spec.Stop) + missingAfter - now.Sub(i.Since.Time)
		if left <= 0 {
			return 0
		}
		longest = max(longest, left)
	}
	return longest
}

// count returns on how many nodes a program should run, and on how many of them it runs.
func (w World) count(d *v1alpha1.Deployment) (wanted, running int32) {
	if !runnable(d) || !d.IsEnabled() {
		return 0, 0
	}
	nodes := []string{d.Spec.Address}
	wanted = 1
	if d.Spec.Type == v1alpha1.TypeDaemon {
		nodes = w.daemonNodes(d)
		wanted = int32(len(nodes))
	}
	for _, name := range nodes {
		if w.Live(name) && w.available(d, name) {
			running++
		}
	}
	return wanted, running
}

// running returns the condition Running.
func (w World) running(d *v1alpha1.Deployment, s v1alpha1.DeploymentStatus) metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.DeploymentRunning, Status: metav1.ConditionFalse}
	switch {
	case !runnable(d):
		c.Reason, c.Message = v1alpha1.ErrInvalidType, "No node runs a deployment of an invalid type."
	case !d.IsEnabled():
		c.Reason, c.Message = v1alpha1.ReasonDisabled, "spec.enabled is false."
	case d.Spec.Type == v1alpha1.TypeDaemon:
		w.daemonRunning(d, s, &c)
	case s.State != v1alpha1.StateAssigned:
		c.Reason, c.Message = v1alpha1.ReasonUnassigned, "No node has claimed it yet."
		if d.Spec.Pinned && d.Spec.Address != "" {
			c.Reason, c.Message = v1alpha1.ReasonPinned, fmt.Sprintf("It is pinned to node %s, which has no lease. It starts when the node is back; set spec.pinned to false to let another node run it.", d.Spec.Address)
		} else if why := w.Nowhere(d, ""); why != "" {
			c.Reason, c.Message = v1alpha1.ReasonNoEligibleNode, nowhere(d, why)
		}
	case s.Running == s.Wanted:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, v1alpha1.ReasonRunning, "It runs on "+d.Spec.Address+"."
	default:
		c.Reason, c.Message = v1alpha1.ReasonNotRunning, w.absence(d)
	}
	c.Message = cut(c.Message)
	return c
}

// nowhere is the message that no node may claim a deployment, with the reason of each node.
func nowhere(d *v1alpha1.Deployment, why string) string {
	which := "without a selector"
	if d.Spec.Selector != nil {
		which = "with the selector " + metav1.FormatLabelSelector(d.Spec.Selector)
	}
	return fmt.Sprintf("No node may claim it (%s %s): %s.", d.Spec.Command, which, why)
}

// absence returns why a deployment's node does not run it.
func (w World) absence(d *v1alpha1.Deployment) string {
	node := d.Spec.Address
	other := w.Occupied(d, node)
	if other != "" && !w.Live(other) {
		return fmt.Sprintf("Node %s starts it when it is certain that node %s, which is lost, does not run it any more: it goes on there without a lease. "+
			"Start node %s, or, if its machine is off for good, delete its Node object.", node, other, other)
	}
	if i := d.Instance(node); i != nil {
		return fmt.Sprintf("On node %s it is %s%s.", node, i.State, ending(i))
	}
	if why := w.refuses(d, node); why != "" {
		return fmt.Sprintf("Node %s does not run it: %s.", node, why)
	}
	if other != "" {
		return fmt.Sprintf("Node %s will start it when node %s has stopped it.", node, other)
	}
	return fmt.Sprintf("Node %s has not started it yet.", node)
}

func ending(i *v1alpha1.DeploymentInstance) string {
	if i.LastExit == nil {
		return ""
	}
	return "; last exit: " + i.LastExit.Message
}

// maxNamed bounds how many nodes a message names.
const maxNamed = 10

func (w World) daemonRunning(d *v1alpha1.Deployment, s v1alpha1.DeploymentStatus, c *metav1.Condition) {
	if s.Wanted == 0 {
		c.Reason, c.Message = v1alpha1.ReasonNoEligibleNode, "No node has matching labels and trusts the command."
		return
	}
	if s.Running == s.Wanted {
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, v1alpha1.ReasonRunning, fmt.Sprintf("It runs on all %d nodes.", s.Wanted)
		return
	}
	var missing []string
	for _, name := range w.daemonNodes(d) {
		if w.available(d, name) {
			continue
		}
		text := name
		if i := d.Instance(name); i != nil {
			text += " (" + string(i.State) + ending(i) + ")"
		}
		missing = append(missing, text)
	}
	more := ""
	if len(missing) > maxNamed {
		missing, more = missing[:maxNamed], fmt.Sprintf(" and %d more", len(missing)-maxNamed)
	}
	c.Reason = v1alpha1.ErrDaemonMissing
	c.Message = fmt.Sprintf("It does not run on %s%s.", strings.Join(missing, ", "), more)
}

// Vacated reports whether no node may run the program any more, so that the object may be deleted.
func (w World) Vacated(d *v1alpha1.Deployment) bool {
	if h := d.Holder(); h.Node != "" && w.Live(h.Node) {
		return false
	}
	return !slices.ContainsFunc(d.Status.Nodes, func(i v1alpha1.DeploymentInstance) bool { return w.Live(i.Node) })
}
