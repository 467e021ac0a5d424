package maintainer

import (
	"context"
	"log/slog"
	"time"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed/dispatch"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/changefeed/wire"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/node"
)

// Options are what a maintainer needs of the node that it runs on.
type Options struct {
	// Epoch of the node.
	Epoch *node.Epoch
	// Gate of the node: a maintainer and its table trigger pass it before they start.
	Gate *node.Gate
	// Opener of sources and sinks.
	Opener Opener
	// Cluster is what the node observes.
	Cluster Cluster
	// Nodes sends requests to nodes, this one included.
	Nodes Nodes
	// Reports of nodes about their dispatchers.
	Reports Reports
	// Tap follows the node's own reader of a changefeed after a position, or returns nil if that is not possible; may be nil.
	Tap func(key dispatch.FeedKey, after stream.Position) *dispatch.Tap
	// Status writes the status of Changefeeds.
	Status Status
	// Paused is called with how long a table that moved was not written.
	Paused func(time.Duration)
	// Log of the node.
	Log *slog.Logger
}

// Opener opens what a changefeed names.
type Opener interface {
	// Resolve reads the passwords that a config references.
	Resolve(ctx context.Context, namespace string, c dispatch.Config) (dispatch.Config, error)
	// Source opens the source of a resolved config.
	Source(c dispatch.Config) (stream.Source, error)
	// Sink opens its sink.
	Sink(key dispatch.FeedKey, c dispatch.Config) (stream.Sink, error)
}

// Cluster is what a node observes of the others.
type Cluster interface {
	// View returns what is known, and a channel that is closed when that changes.
	View() (View, <-chan struct{})
}

// Names under which a node counts the work of changefeeds.
const (
	// Counted is the name of maintainers.
	Counted = "maintainers"
	// DispatchersCounted is the name of dispatchers.
	DispatchersCounted = "dispatchers"
)

// View is the cluster as a node last observed it. It is not changed once it is handed out.
type View struct {
	Rules
	fleet.Fleet
	// Settling is whether a drain has run lately.
	Settling fleet.Settling
}

// Rules are those that the coordinator places maintainers by.
type Rules interface {
	// MayBegin reports whether the maintainer of a placement may begin: no earlier one runs any more.
	MayBegin(v1alpha1.ChangefeedPlacement) bool
}

// Nodes sends requests to nodes.
type Nodes interface {
	Bootstrap(ctx context.Context, n *v1alpha1.Node, req *wire.BootstrapRequest) (*wire.BootstrapReply, error)
	Order(ctx context.Context, n *v1alpha1.Node, req *wire.OrderRequest) (*wire.OrderReply, error)
}

// Reports are what nodes report about their dispatchers. Requests for them are numbered in the order in which they are sent.
type Reports interface {
	// Of returns the last report of every node about a changefeed.
	Of(key dispatch.FeedKey) map[string]Report
	// Round is the number of the last request. A report with a greater number was made after now.
	Round() uint64
	// Request requests a report from one node and returns when it has arrived or failed.
	Request(ctx context.Context, v View, node string, feeds []*wire.Feed)
}

// Report is what a node reported of a changefeed, and the number of the request that it answers.
type Report struct {
	Round uint64
	*wire.FeedReport
}

// Status writes the status of Changefeeds.
type Status interface {
	// Update changes a status by compare-and-swap until it is written, or change returns false because nothing is to be changed.
	Update(ctx context.Context, key dispatch.FeedKey, change func(*v1alpha1.Changefeed) bool) error
	// Maintained is how many changefeeds have their maintainer on this node: the more, the less often each may write.
	Maintained() int
}
