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
	// Coordinator is used for the election and by the controllers of the elected node, and for nothing else.
	Coordinator = "ebb:coordinator"
	// NodeGroup is the group of the nodes' runtimes.
	NodeGroup = "ebb:nodes"

	nodePrefix = "ebb:node:"
)

// TermHeader carries, on every write of a coordinator, the election term it writes for: the holder identity of the
// election's Lease. The embedded API refuses a write whose term is over.
const TermHeader = "Ebb-Term"

// TermOverHeader is on the answer to a write that was refused because its term is over.
const TermOverHeader = "Ebb-Term-Over"

// Node is the user name of a node's runtimes.
func Node(name string) string { return nodePrefix + name }

// NodeName is the node that a user name belongs to, and false for a user that is not a node.
func NodeName(user string) (string, bool) { return strings.CutPrefix(user, nodePrefix) }
