// Package volume is the coordinator's part of volumes: block devices of which several nodes keep a copy.
//
//	Volume   what people want, who has every acknowledged write (status.members), and which copies may leave (status.released)
//	Replica  one copy on one disk of one node
//
// The coordinator places replicas (place.go), decides which of them leave a node and which may leave with it (policy.go), attaches volumes to
// nodes (attach.go) and brings all of it together in one pure function (plan.go). It never calls a node: the node of a replica and the node
// that a volume is attached to watch the objects (package host).
//
// A copy on which other decisions might rely is never given up without a compare-and-swap on the Volume: every release is an Update of the version of the
// Volume that the decision was based on. So two nodes that leave together cannot each count on the copy of the other.
package volume
