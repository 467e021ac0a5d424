// Package identity names who talks to the API. A user is known by the common name of its client certificate, its groups
// by the certificate's organizations.
package identity

import "strings"

// Who there is.
const (
	// Admin may do everything that the objects' own rules allow.
	Admin = "ebb:admin"
	// AdminGroup is the group of admins.
	AdminGroup = "ebb:admins"
	// Viewer may read everything.
	Viewer = "ebb:viewer"
	// ViewerGroup is the group of viewers.
	ViewerGroup = "ebb:viewers"
	// Client is a person with a certificate for members of etcd clusters, where the API is a Kubernetes with an authority of its own.
	Client = "ebb:client"
	// NodeGroup is the group of the nodes' runtimes.
	NodeGroup = "ebb:nodes"

	nodePrefix        = "ebb:node:"
	coordinatorPrefix = "ebb:coordinator:"
)

// TermHeader carries, on every write of a coordinator, the election term it writes for: the holder identity of the
// election's Lease. The embedded API refuses a write whose term is over.
const TermHeader = "Ebb-Term"

// TermOverHeader is on the answer to a write that was refused because its term is over.
const TermOverHeader = "Ebb-Term-Over"

// Node is the user name of a node's runtimes.
func Node(name string) string { return nodePrefix + name }

// Coordinator is the user name under which a node takes part in the election and, while it leads, runs the controllers. It writes for terms
// of that node only.
func Coordinator(node string) string { return coordinatorPrefix + node }

// CoordinatorName is the node that a coordinator's user name belongs to, and false for a user that is not a coordinator.
func CoordinatorName(user string) (string, bool) { return strings.CutPrefix(user, coordinatorPrefix) }

// NodeName is the node that a user name belongs to, and false for a user that is not a node.
func NodeName(user string) (string, bool) { return strings.CutPrefix(user, nodePrefix) }
