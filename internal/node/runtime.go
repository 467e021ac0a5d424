package node

import (
	"context"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// A Runtime hosts one kind of work on this node. Run returns when ctx ends, with everything it started stopped, and with
// what an earlier process of this node left running: also when ctx has ended before it began.
type Runtime interface {
	// Name of the kind of work, in the plural: the key of the node's counts.
	Name() string
	// Run does the work until ctx ends. A StopOnDoubt runtime runs once in every epoch, which e is; for a KeepOnDoubt runtime e is nil.
	Run(ctx context.Context, e *Epoch) error
	// Held counts the work that runs, starts or stops here or whose only copy is here, and that has to leave before the node may.
	Held() int
}

// A Stayer is a Runtime with work that stays by design until the node stops.
type Stayer interface {
	// Staying counts it.
	Staying() int
}

// An Ender is a Runtime with work that goes on while the node has no lease, in no epoch.
type Ender interface {
	// End stops it. It is called when the process ends while the node has no lease.
	End(context.Context)
}

// A Reporter is a Runtime that publishes more on the Node object than its counts.
type Reporter interface {
	// Report adds it to the node's status.
	Report(*v1alpha1.NodeStatus)
}

// OnLeaseDoubt is what a runtime does while the node's lease is in doubt.
type OnLeaseDoubt int

const (
	// StopOnDoubt is for work whose writes no other component fences: it is stopped before the lease expires, and started again in
	// the next epoch.
	StopOnDoubt OnLeaseDoubt = iota
	// KeepOnDoubt is for work whose writes are fenced elsewhere: it continues, but starts and moves nothing.
	KeepOnDoubt
)

// Hosted is a runtime and what it does while the lease is in doubt.
type Hosted struct {
	Runtime      Runtime
	OnLeaseDoubt OnLeaseDoubt
}
