// Package etcdcluster is the coordinator's part of etcd clusters that run on the nodes of an Ebb cluster. A cluster has zero to
// seven members, and it can be stopped and started with every key intact.
//
//	EtcdCluster   what people want             the coordinator plans (plan.go, pure) and acts (controller.go, act.go)
//	EtcdMember    one etcd server on one node  the node runs it: package host, and package member for the process
//	EtcdSnapshot  one snapshot, kept by nodes  the node takes, verifies, copies and deletes it: packages host and snapshot
//
// The coordinator never calls a node. It writes what nodes should do to the specs of the objects, and reads what nodes report from their
// status. It talks to the members themselves as a client of etcd: package etcd.
package etcdcluster
