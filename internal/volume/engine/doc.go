// Package engine makes one block device of several replicas. Writes go to all members before they are acknowledged; reads come from one.
//
//	engine.go    Engine: options, opening, closing, what it reports
//	io.go        reads, writes and flushes of clients
//	member.go    one replica that is a member, and its heartbeat
//	change.go    changes of the membership, one at a time
//	rebuild.go   copying to a replica that is not a member yet
//	resync.go    what is made equal before an engine serves, and clearing of the intent
//	ranges.go    the order of writes and copies that overlap
//
// # Who may read and write
//
// Every engine opens the volume with a generation of its own, and every change of the members raises the generation. The Volume is written
// first, then the replicas, and replicas refuse whoever is behind. An engine that was replaced therefore cannot write. It could still read
// from a member that the new engine does not reach: so it stops all I/O when any member has not answered for Timing.Unanswered, and a new
// engine that leaves members behind serves nobody before Timing.FenceWait has passed.
//
// # When a member is lost
//
// I/O waits until the Volume and the members that are left have recorded that it is no member any more. A write that succeeded on those is
// acknowledged then. The last member is never given up: its errors reach the client, and while it does not answer, I/O waits.
package engine
