// Package changefeed carries changes of tables from a source to a sink, on nodes that may leave at any time.
//
//	coordinator   places one maintainer per changefeed          plan.go, controller.go     status.placement is the record
//	maintainer    places one dispatcher per table               tables.go, maintainer.go   its epoch goes with every command
//	dispatcher    reads its table's changes, writes the sink    dispatch/                  the sink checks who owns the table
//
// A drain moves maintainers first. A maintainer on the draining node moves nothing; its successor, once it has heard from
// every node, moves the dispatchers. Dispatchers flow on while their maintainer moves.
package changefeed

// Kinds by which the work of changefeeds is counted.
const (
	KindMaintainers = "maintainers"
	KindDispatchers = "dispatchers"
)
