package slurm

import (
	"errors"
	"fmt"
	"strings"
)

// reasonPrefix begins the reason of every drain of ours in Slurm.
const reasonPrefix = "ebb drain "

// Conditions of a SlurmDrainRequest.
const (
	Complete   = "DrainComplete"
	InProgress = "DrainInProgress"
	Failed     = "DrainFailed"
)

// Started is the reason of InProgress once the node is drained in Slurm under our reason.
const Started = "DrainStarted"

// Request is what is known of a request, and of its node in Slurm.
type Request struct {
	// Key is its namespace and name.
	Key string
	// Deleted, Held, Done and Failed: it is being deleted, has our finalizer, has ended.
	Deleted, Held, Done, Failed bool
	// Started: it has reported that the drain has begun.
	Started bool
	// Followed: another request, which has not ended, is about the same node.
	Followed bool
	// Namesake is another node that has the same name in Slurm.
	Namesake string
	// Node in Slurm, with the jobs on it, or what went wrong when it was read.
	Node Node
	Jobs []string
	Err  error
}

// Action is what is done about a request.
type Action string

// Actions.
const (
	Nothing Action = "nothing"
	Hold    Action = "hold"    // add the finalizer
	Drain   Action = "drain"   // drain the node in Slurm
	Resume  Action = "resume"  // resume it, then release
	Release Action = "release" // remove the finalizer
	Report  Action = "report"  // write a condition
)

// Step is an action and the condition that goes with it.
type Step struct {
	Action                        Action
	Type, Status, Reason, Message string
}

func report(kind, status, reason, format string, args ...any) Step {
	return Step{Action: Report, Type: kind, Status: status, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// ReasonOf is the reason under which a request drains its node.
func ReasonOf(key string) string { return reasonPrefix + key }

// IsOurs reports whether a reason is that of a request.
func IsOurs(reason string) bool { return strings.HasPrefix(reason, reasonPrefix) }

// Returned reports whether a node that no request is about, and that is in service, is resumed: a finished request drained it.
func Returned(n Node) bool { return n.Drain && IsOurs(n.Reason) }

// Next decides about a request.
//
// Deleting an unfinished request resumes what it drained itself, and nothing else. A finished one leaves the node drained: Ebb deletes
// finished requests, and a sick node must not take jobs again before it is uncordoned. An unfinished one that another request follows leaves
// the node drained for that one.
func Next(r Request) Step {
	ours := r.Node.Drain && r.Node.Reason == ReasonOf(r.Key)
	unknown := errors.Is(r.Err, ErrUnknownNode)
	switch {
	case r.Deleted && !r.Held:
		return Step{Action: Nothing}
	case r.Deleted && (r.Done || unknown):
		return Step{Action: Release}
	case r.Err != nil && (r.Deleted || !unknown):
		return report(InProgress, "True", "SlurmUnreachable", "Waiting for Slurm: %v", r.Err)
	case r.Deleted && ours && !r.Followed: // otherwise jobs would begin until the next request has drained it
		return Step{Action: Resume}
	case r.Deleted:
		return Step{Action: Release}
	case r.Done || r.Failed:
		return Step{Action: Nothing}
	case !r.Held:
		return Step{Action: Hold}
	case unknown:
		return report(Failed, "True", "UnknownNode", "%v: correct --node-table or --node-rule", r.Err)
	case r.Namesake != "" && !ours: // a drain that has begun goes on
		return report(Failed, "True", "AmbiguousName", "Node %s has the same name in Slurm: correct --node-table or --node-rule, or delete the node that is no longer there", r.Namesake)
	case r.Node.Drain && !ours && IsOurs(r.Node.Reason):
		return Step{Action: Drain} // of a request before this one
	case r.Node.Drain && !ours:
		return report(InProgress, "True", "DrainedByOthers", "The node is drained in Slurm for another reason, which Ebb leaves alone: %q. When somebody resumes it there, this request drains it.", r.Node.Reason)
	case !ours:
		return Step{Action: Drain}
	case len(r.Jobs) > 0:
		return report(InProgress, "True", Started, "Waiting for jobs: %s", strings.Join(r.Jobs, ", "))
	case r.Node.Busy || !r.Started:
		return report(InProgress, "True", Started, "The node is %s.", r.Node.State)
	}
	return report(Complete, "True", "AllJobsCompleted", "No job is left on the node.")
}
