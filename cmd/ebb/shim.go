package main

import (
	"github.com/spf13/cobra"

	"github.com/ebb-dev/ebb/internal/shim/early"
)

// newShim only documents the command: package early has run it before main was reached.
func newShim() *cobra.Command {
	return &cobra.Command{
		Use:   early.Command + " DIR",
		Short: "Keep one program under a deadline (started by a node)",
		Long: `Keep one program under a deadline. A node starts a shim for every program and gives it a new deadline at each renewal of
its lease. At the deadline the shim kills the program and everything it started, whether the node is dead, frozen or cut
off. DIR holds what to run, the socket, and how it went; a node that was restarted attaches to it again.`,
		Example: "  ebb shim /var/lib/ebb/nodes/n1/programs/web",
		Args:    cobra.ExactArgs(1),
		RunE:    func(*cobra.Command, []string) error { return nil },
	}
}
