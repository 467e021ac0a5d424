package main

import (
	"github.com/spf13/cobra"

	"github.com/ebb-dev/ebb/internal/shim/early"
)

// newShim only documents the command: package early has run it before main was reached.
func newShim() *cobra.Command {
	return &cobra.Command{
		Use:   early.Command + " DIR",
		Short: "Run one program and kill it at a deadline (started by a node)",
		Long: `Run one program and kill it at a deadline. A node starts one shim for every program and extends the deadline whenever it renews its
lease. At the deadline the shim kills the program and every process that the program started, so that a node that is dead, frozen
or cut off runs nothing any more. DIR contains the spec, the socket and the state; a restarted node attaches to the shim again.`,
		Hidden:  true,
		Example: "  ebb shim /var/lib/ebb/nodes/n1/programs/web",
		Args:    cobra.ExactArgs(1),
		RunE:    func(*cobra.Command, []string) error { return nil },
	}
}
