// Package wire is what nodes say to each other about etcd clusters.
package wire
