// Package etcdcluster runs etcd clusters on the nodes of an Ebb cluster: from none to seven members, stopped and started
// with every key intact.
//
//	EtcdCluster   what people want                  the coordinator decides: plan.go, controller.go, observe.go, drain.go
//	EtcdMember    one etcd server on one node       the node obeys and tells: runtime.go, member/
//	EtcdSnapshot  one snapshot, kept by nodes       the node takes, verifies, copies and deletes: snapshots.go, snapshot/
//
// The coordinator never calls a node: all it wants is in the objects, and all it knows of a node is in their status. It
// talks to the members themselves as any client of etcd does.
package etcdcluster

// Kinds of work, as gates, counts and drains name them.
const (
	// KindMembers are members that run, start or stop.
	KindMembers = "etcdmembers"
	// KindData is data at rest of which a node keeps the only copy, or a share that its cluster cannot do without.
	KindData = "etcddata"
)
