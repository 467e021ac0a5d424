// Package maintainer schedules the dispatchers of one changefeed. A maintainer works for one placement at a time:
//
//	maintainer.go   waits until its predecessor has stopped, then runs; acknowledges when it has stopped itself
//	bootstrap.go    opens source and sink, finds the tables, asks every node which dispatchers run there
//	tables.go       plans where tables go: a pure function
//	moves.go        carries the plan out: prepare at the destination, stop at the origin, start at the exact position
//	trigger.go      the table trigger: executes DDL that creates, drops or renames tables
//	checkpoint.go   computes the checkpoint and publishes the status
//
// The epoch of the placement is part of every request to a node and of every owner's epoch at the sink, so that nothing of an
// earlier maintainer takes effect after a later one has begun.
package maintainer
