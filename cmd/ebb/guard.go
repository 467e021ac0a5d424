package main

import (
	"time"

	"github.com/spf13/cobra"
)

// newGuard is the program of a guard pod: it does nothing. Its budget is what holds the node.
func newGuard() *cobra.Command {
	var outlast bool
	cmd := &cobra.Command{
		Use:    "guard",
		Hidden: true,
		Short:  "Run until it is stopped: the program of the pods that guard nodes on Kubernetes",
		Long: `Run until it is stopped. On Kubernetes, Ebb runs this in a pod on each node that has work, with a disruption budget that allows no eviction.
So ` + "`kubectl drain`" + ` waits until the work has left the node. People do not run it.`,
		Example: "  ebb guard",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			<-cmd.Context().Done()
			if outlast {
				time.Sleep(time.Hour) // SIGKILL ends it
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&outlast, "outlast-sigterm", false, "continue after SIGTERM until the process is killed, so that the coordinator can see the eviction of the pod")
	return cmd
}
