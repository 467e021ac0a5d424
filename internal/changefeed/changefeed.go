// Package changefeed replicates changes of tables from a source to a sink, on nodes that may fail or be drained at any time.
//
//	coordinator   places one maintainer per changefeed             plan.go, controller.go   status.placement is the record
//	maintainer    places one dispatcher per table                  maintainer/              its epoch is part of every request
//	dispatcher    reads its table's changes, writes to the sink    dispatch/                the sink checks who owns the table
//
// A drain moves maintainers first. A maintainer on the draining node moves nothing; its successor, once every node has reported
// which dispatchers it has, moves them. Dispatchers keep writing while their maintainer moves.
package changefeed

import "github.com/ebb-dev/ebb/internal/changefeed/maintainer"

// Kinds of work that changefeeds have on a node.
const (
	KindMaintainers = maintainer.Counted
	KindDispatchers = maintainer.DispatchersCounted
)
