package deployment

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/backoff"
)

// Phase is the state of a program's processes on this node.
type Phase int

// The phases.
const (
	// Absent: no process of it runs here.
	Absent Phase = iota
	// Present: it runs here.
	Present
	// Ending: it was asked to stop and processes of it are left.
	Ending
)

// Facts are the input of a node's decision about one program.
type Facts struct {
	// Object is nil once it was deleted.
	Object *v1alpha1.Deployment
	// Node, its epoch, labels and trust.
	Node   string
	Epoch  int64
	Labels map[string]string
	Trust  Trust
	// Alive is false while the node drains. Leaving is true when the epoch ends, and Stopping when the node ends with it.
	Alive, Leaving, Stopping bool

	// Phase of the program here, the UID of its object, and its revision.
	Phase    Phase
	UID      types.UID
	Revision string
	// Free is set if it runs without a deadline, and so continues while the node has no lease.
	Free bool
	// Admitted says that the gate counts it.
	Admitted bool

	// Occupied is another node that may still run the deployment.
	Occupied string
	// MayRestart is set if the rollout allows this node to stop its daemon.
	MayRestart bool
	// Turn is set if, in a drain, no program of lower priority has to be stopped first.
	Turn bool
	// Elsewhere is set if another node may run the deployment and has not given it up, and Failing if it has failed here so often that another
	// node should run it.
	Elsewhere, Failing bool
	// Undecided is set if it depends on the coordinator, which has not seen the deployment yet, as whom the program runs.
	Undecided bool
	// Completes is set if a drain waits until the program ends by itself.
	Completes bool
	// Wait is the time until the next start; Spent says that the restart limit is reached and there is none.
	Wait  time.Duration
	Spent bool
}

// Action is the next thing that a node does about one program.
type Action string

// The actions.
const (
	// Idle: wait for something to change.
	Idle Action = "Idle"
	// Forget: this node has nothing to do with the program.
	Forget Action = "Forget"
	// Take: record by compare-and-swap that this node may run it.
	Take Action = "Take"
	// Start: run it.
	Start Action = "Start"
	// Stop: ask it to end.
	Stop Action = "Stop"
	// Detach: leave it running for the next epoch, which attaches to it.
	Detach Action = "Detach"
	// Restart: record by compare-and-swap that it is stopped for a new revision, and ask it to end.
	Restart Action = "Restart"
	// Release: record that no process of it is left here.
	Release Action = "Release"
	// GiveUp: release it, and record that this node should be avoided.
	GiveUp Action = "GiveUp"
)

// What a program waits for.
const (
	WaitStopping = "stopping"
	WaitOccupied = "another node may still run it"
	WaitBackoff  = "waiting before the next start"
	WaitSpent    = "the restart limit is reached"
	WaitRollout  = "the rollout restarts other nodes first"
	WaitTurn     = "programs of lower priority are stopped first"
	WaitDraining = "the node takes no new work"
	WaitLabels   = ineligibleLabels
	WaitAvoided  = "it failed here, and another node should run it"
	WaitUser     = "a node of an earlier version runs, so the coordinator decides first as whom the program runs"
)

// Step is an action and its reason; for Idle, what the program waits for.
type Step struct {
	Do  Action
	Why string
}

// Next decides what the node does next about a program.
func Next(f Facts) Step {
	if f.Leaving && !f.Stopping && f.Free && f.Phase != Absent {
		return Step{Do: Detach}
	}
	if f.Phase == Ending {
		return Step{Idle, WaitStopping}
	}
	why := f.unwanted()
	if f.Phase == Present {
		return f.nextPresent(why)
	}
	return f.nextAbsent(why)
}

// unwanted returns why the program should not run here; empty if it should.
func (f Facts) unwanted() string {
	d := f.Object
	switch {
	case f.Leaving:
		return "the node is stopping"
	case d == nil:
		return "deleted"
	case !runnable(d):
		return v1alpha1.ErrInvalidType
	case !d.IsEnabled():
		return "disabled"
	case f.Trust.Refuses(d) != "":
		return f.Trust.Refuses(d)
	case d.Spec.Type == v1alpha1.TypeDaemon && !matches(d, f.Labels):
		return WaitLabels
	case d.Spec.Type == v1alpha1.TypeDeployment && d.Spec.Address != f.Node:
		return "addressed to another node"
	}
	return ""
}

// ours reports whether the object records that this node may run it: in this epoch, and in any epoch.
func (f Facts) ours() (now, ever bool) {
	if f.Object == nil {
		return false, false
	}
	h, i := f.Object.Holder(), f.Object.Instance(f.Node)
	now = i != nil && i.NodeEpoch == f.Epoch
	if f.Object.Spec.Type == v1alpha1.TypeDeployment {
		now = now && h.Node == f.Node && h.NodeEpoch == f.Epoch
	} else {
		now = now && h.Node != f.Node // a daemon that was a deployment has no holder any more
	}
	return now, i != nil || h.Node == f.Node
}

func (f Facts) nextPresent(unwanted string) Step {
	d := f.Object
	if unwanted != "" || d.UID != f.UID {
		if unwanted != "" && d != nil && !f.Leaving && !f.Alive && d.Spec.Type == v1alpha1.TypeDeployment && d.Spec.Address != f.Node && !f.Turn {
			return Step{Idle, WaitTurn}
		}
		return Step{Do: Stop, Why: unwanted}
	}
	now, _ := f.ours()
	switch {
	case !now && d.Spec.Type == v1alpha1.TypeDeployment && d.Holder().Node != f.Node:
		return Step{Do: Stop, Why: "this node is not its holder"} // it was a daemon, or another node took it while this one was cut off
	case f.Free && !d.Spec.GoesOn():
		return Step{Do: Stop, Why: "changed"} // a deadline can be taken from a running program, but not given to it
	case !now:
		return Step{Do: Take}
	case f.Revision == Revision(d):
		return Step{Do: Idle}
	case d.Spec.Type == v1alpha1.TypeDeployment:
		return Step{Do: Stop, Why: "changed"}
	case !f.MayRestart:
		return Step{Idle, WaitRollout}
	}
	return Step{Do: Restart, Why: "changed"}
}

func (f Facts) nextAbsent(unwanted string) Step {
	now, ever := f.ours()
	if unwanted != "" {
		if ever {
			return Step{Do: Release, Why: unwanted}
		}
		return Step{Do: Forget, Why: unwanted}
	}
	if f.Elsewhere && f.Object.Spec.Type == v1alpha1.TypeDeployment && !f.Object.Spec.Pinned && Avoids(f.Object, f.Node) {
		if ever {
			return Step{Do: Release, Why: WaitAvoided}
		}
		return Step{Idle, WaitAvoided}
	}
	switch {
	case !f.Alive && !f.Admitted:
		if ever {
			return Step{Do: Release, Why: WaitDraining}
		}
		return Step{Idle, WaitDraining}
	case now && !f.Alive && f.Completes && f.Elsewhere && f.Object.Spec.Type == v1alpha1.TypeDeployment && !f.Object.Spec.Pinned:
		return Step{Idle, WaitDraining} // it has run to its end here, and another node starts it
	case now && f.Failing && f.Elsewhere && !f.Object.Spec.Pinned:
		return Step{Do: GiveUp, Why: WaitAvoided}
	case now && f.Spent:
		return Step{Idle, WaitSpent}
	case now && f.Wait > 0:
		return Step{Idle, WaitBackoff}
	case f.Object.Spec.Type == v1alpha1.TypeDeployment && f.Occupied != "":
		return Step{Idle, WaitOccupied}
	case now && f.Undecided:
		return Step{Idle, WaitUser}
	case now:
		return Step{Do: Start}
	case f.Object.Spec.Type == v1alpha1.TypeDeployment && f.Object.Holder().Node != f.Node && !matches(f.Object, f.Labels):
		return Step{Idle, WaitLabels}
	}
	return Step{Do: Take}
}

// Revision identifies the fields of a spec that need a restart of the program when they change.
func Revision(d *v1alpha1.Deployment) string {
	spec := &d.Spec
	args, env := append([]string{}, spec.Args...), append([]v1alpha1.EnvVar{}, spec.Env...) // nil and empty are the same
	parts := []any{spec.Command, args, env, spec.WorkingDir}
	if as := d.RunsAs(); as != v1alpha1.NodeUser { // which all programs had once, and which must not restart them now
		parts = append(parts, as)
	}
	data, _ := json.Marshal(parts) // strings only: never fails
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

// goesOnMark is at the end of the revision in an instance whose program may go on without a lease: it was written before the program lost its
// deadline, and stays true though the spec is changed while the node is away. Nodes of earlier versions keep it as it is.
const goesOnMark = "+keep"

// marked returns a revision as an instance has it.
func marked(revision string, goesOn bool) string {
	revision = strings.TrimSuffix(revision, goesOnMark)
	if goesOn {
		return revision + goesOnMark
	}
	return revision
}

// goesOn reports whether the program of an instance may go on without a lease.
func goesOn(i *v1alpha1.DeploymentInstance) bool {
	return i != nil && strings.HasSuffix(i.Revision, goesOnMark)
}

// Backoff returns the delay before a start after this many consecutive failures.
func Backoff(p v1alpha1.RestartPolicy, failures int) time.Duration {
	return backoff.Policy{First: orDuration(p.Backoff, time.Second), Longest: orDuration(p.MaxBackoff, 5*time.Minute)}.After(int64(failures))
}

// Forgiven reports whether a program ran for so long that its earlier failures no longer count.
func Forgiven(p v1alpha1.RestartPolicy, ran time.Duration) bool {
	return ran >= orDuration(p.ResetAfter, time.Minute)
}

// Exhausted reports whether a program with this many consecutive failures is not started again.
func Exhausted(p v1alpha1.RestartPolicy, failures int) bool {
	return p.Limit > 0 && failures > int(p.Limit)
}

// Failing reports whether a deployment with this many consecutive failures should be tried on another node.
func Failing(d *v1alpha1.Deployment, failures int) bool {
	after := int32(defaultMoveAfter)
	if d.Spec.Restart.MoveAfter != nil {
		after = *d.Spec.Restart.MoveAfter
	}
	return d.Spec.Type == v1alpha1.TypeDeployment && after > 0 && (failures >= int(after) || Exhausted(d.Spec.Restart, failures))
}

const (
	defaultMoveAfter = 5
	// avoidFor is how long a node that gave a deployment up is avoided.
	avoidFor = 10 * time.Minute
)

// Avoids reports whether a node has given up the program as it is now. The coordinator removes what is no longer true.
func Avoids(d *v1alpha1.Deployment, node string) bool {
	return slices.ContainsFunc(d.Status.Avoid, func(a v1alpha1.AvoidedNode) bool { return a.Node == node && a.Revision == Revision(d) })
}

// GivenUp returns the object as a node writes it that gives a deployment up.
func GivenUp(d *v1alpha1.Deployment, node string, message string, now time.Time) *v1alpha1.Deployment {
	next := Released(d, node, nil)
	for _, c := range d.Status.Conditions { // of the coordinator, which compares the time with its own clock: that of this node may be behind
		if c.LastTransitionTime.After(now) {
			now = c.LastTransitionTime.Time
		}
	}
	next.Status.Avoid = append(withoutNode(next.Status.Avoid, node), v1alpha1.AvoidedNode{
		Node: node, Revision: Revision(d), Until: metav1.NewMicroTime(now.Add(avoidFor)), Message: cut(message),
	})
	return next
}

func withoutNode(list []v1alpha1.AvoidedNode, node string) []v1alpha1.AvoidedNode {
	return slices.DeleteFunc(slices.Clone(list), func(a v1alpha1.AvoidedNode) bool { return a.Node == node })
}

// MinReady is how long a changed daemon must have run on a node before the next one is restarted.
func MinReady(p v1alpha1.RolloutPolicy) time.Duration { return orDuration(p.MinReady, 10*time.Second) }

// crashLoop is the number of consecutive failures after which a program is reported as CrashLoop.
const crashLoop = 3

// Grace is how long a program has after SIGTERM.
func Grace(p v1alpha1.StopPolicy) time.Duration { return orDuration(p.Grace, 10*time.Second) }

func orDuration(d *metav1.Duration, otherwise time.Duration) time.Duration {
	if d == nil || d.Duration <= 0 {
		return otherwise
	}
	return d.Duration
}

// Taken returns the object as a node writes it when it takes it: a deployment's holder with the next epoch, and the node's instance.
// The instances of nodes whose lease has ended are removed from a deployment, but for those that may go on: the coordinator takes note of them. The
// caller has made sure that no other node may run it.
func Taken(d *v1alpha1.Deployment, w World, node string, epoch int64, instance v1alpha1.DeploymentInstance) *v1alpha1.Deployment {
	next := d.DeepCopy()
	h := d.Holder()
	if d.Spec.Type == v1alpha1.TypeDeployment {
		next.Status.Holder = &v1alpha1.DeploymentHolder{Node: node, NodeEpoch: epoch, Epoch: h.Epoch + 1}
		next.Status.State = v1alpha1.StateAssigned
	} else if h.Node == node {
		next.Status.Holder = &v1alpha1.DeploymentHolder{Epoch: h.Epoch}
	}
	instance.Node, instance.NodeEpoch = node, epoch
	next.Status.Nodes = slices.DeleteFunc(next.Status.Nodes, func(i v1alpha1.DeploymentInstance) bool {
		return i.Node == node || d.Spec.Type == v1alpha1.TypeDeployment && !w.Live(i.Node) && !w.mayGoOn(d, &i)
	})
	next.Status.Nodes = append(next.Status.Nodes, instance)
	return next
}

// Released returns the object as a node writes it when no process of the program is left on it.
func Released(d *v1alpha1.Deployment, node string, asked *time.Time) *v1alpha1.Deployment {
	next := d.DeepCopy()
	h := d.Holder()
	if h.Node == node {
		next.Status.Holder = &v1alpha1.DeploymentHolder{Epoch: h.Epoch}
		next.Status.LastStop = nil
		if asked != nil && d.IsEnabled() {
			next.Status.LastStop = &v1alpha1.DeploymentStop{Node: node, Epoch: h.Epoch, At: metav1.NewMicroTime(*asked)}
		}
	}
	next.Status.Nodes = slices.DeleteFunc(next.Status.Nodes, func(i v1alpha1.DeploymentInstance) bool { return i.Node == node })
	return next
}
