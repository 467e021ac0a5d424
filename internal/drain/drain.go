// Package drain takes one node out of service: it decides which drain may begin, counts what is left on the node, and decides when
// the drain has ended. It moves nothing itself: every kind of work moves off a node that is not Alive.
//
//	         refused, or slot taken and deadline passed before it could begin ───────▶ Failed
//	            ▲                                                                          ▲ deadline
//	Pending ────┴─ slot taken, node's epoch and counts recorded ──▶ Draining ──────────────┤
//	                                                                  │  │                 ▲ deadline
//	                                     everything counted at zero ──┘  │                 │
//	                                               ▼                     │ every other     │
//	Complete ◀── epoch of the node ended ─── Stopping                    │ node is lost ──▶ Cancelled
//	   ▲                                                                 │
//	   └────────── node dead, nothing bound to it any more (NodeGone) ◀──┘
//
// If the node restarts, the drain continues in its next epoch. A drain that failed before it could begin releases its node, as a cancelled
// one does: the slot is free when the node has begun its next epoch. Every other failed drain keeps its node Draining, and the slot.
// All state of a drain is in the Drain object and in the slot in Settings; nothing is kept in memory only.
package drain

import (
	"context"
	"errors"
	"fmt"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// A Tenant reports one kind of work to drains: how much of it is left on a node, and what it waits for.
type Tenant interface {
	// Work declares the kind.
	Work() Work
	// Remaining returns the work that the objects place on a node.
	Remaining(ctx context.Context, node string) (Remaining, error)
}

// Remaining is what is left of one kind on a node.
type Remaining struct {
	// Count of objects, or of their parts on the node.
	Count int64
	// By splits the count by owner, for kinds that have one.
	By map[string]int64
	// Blockers are what the work waits for. The drain sets their Since.
	Blockers []v1alpha1.Blocker
	// Loose is a sentence about what may still run on a node that is gone, although no object places it there; empty if nothing may.
	Loose string
}

// Refusals, in the order in which they are checked.
var (
	// ErrCaptureNotFound: there is no such node.
	ErrCaptureNotFound = errors.New("capture not found")
	// ErrSingleNode: fewer than two nodes have a live lease.
	ErrSingleNode = errors.New("at least 2 captures required for drain operation")
	// ErrTargetIsCoordinator: the coordinator cannot drain itself.
	ErrTargetIsCoordinator = errors.New("cannot drain coordinator node")
	// ErrDrainInProgress: another drain holds the slot.
	ErrDrainInProgress = errors.New("another drain operation is in progress")
)

// refusals pairs the reasons of refused drains with the errors they stand for.
var refusals = map[string]error{
	v1alpha1.ReasonCaptureNotFound:     ErrCaptureNotFound,
	v1alpha1.ReasonSingleNode:          ErrSingleNode,
	v1alpha1.ReasonTargetIsCoordinator: ErrTargetIsCoordinator,
	v1alpha1.ReasonDrainInProgress:     ErrDrainInProgress,
}

// Refusal is the error for which a drain was refused, or nil for any other reason.
func Refusal(reason string) error { return refusals[reason] }

// RefusalRemedy is what a person can do about the refusal of a drain of a node; empty if the reason is no refusal.
func RefusalRemedy(reason, node string) string {
	switch reason {
	case v1alpha1.ReasonCaptureNotFound:
		return "`ebb status` lists the nodes; one that has left, is lost or is parked cannot be drained"
	case v1alpha1.ReasonSingleNode:
		return "start another node first, which can take the work"
	case v1alpha1.ReasonTargetIsCoordinator:
		return fmt.Sprintf("`ebb drain %s --resign` lets another node take over first", node)
	case v1alpha1.ReasonDrainInProgress:
		return fmt.Sprintf("`ebb drain %s --queue` waits until it has ended", node)
	}
	return ""
}
