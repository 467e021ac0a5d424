// Package wire is the protocol by which nodes copy snapshots of etcd clusters from each other.
package wire
