// Package drain takes one node out of service: it decides which request may begin, counts what is left, and says when it
// is over. It moves nothing itself; every kind of work reacts to a node that is not Alive.
//
//	         refused ─────────────────────────────────────────────────────────────────▶ Failed
//	            ▲                                                                          ▲ deadline
//	Pending ────┴─ slot taken, node's epoch and counts recorded ──▶ Draining ──────────────┤
//	                                                                  │  │                 ▲ deadline
//	                                     everything counted at zero ──┘  │                 │
//	                                               ▼                     │ every other     │
//	Complete ◀── epoch of the node over ──── Stopping                    │ node is lost ──▶ Cancelled
//	   ▲                                                                 │
//	   └────────── node dead, nothing bound to it any more (NodeGone) ◀──┘
//
// A node that restarts meanwhile is followed into its next epoch.
// The record of a drain is the Drain object and the slot in Settings; nothing about it lives in memory only.
package drain

import (
	"context"
	"errors"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// A Tenant is a kind of work seen by a drain: what of it is left on the node, and what each piece waits for.
type Tenant interface {
	// Work declares the kind.
	Work() Work
	// Remaining returns what the objects place on a node.
	Remaining(ctx context.Context, node string) (Remaining, error)
}

// Remaining is what is left of one kind on a node.
type Remaining struct {
	// Count of pieces.
	Count int64
	// By splits the count by what the pieces belong to, for kinds that have such a thing.
	By map[string]int64
	// Blockers are what keeps pieces there. Their Since is set by the drain.
	Blockers []v1alpha1.Blocker
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
