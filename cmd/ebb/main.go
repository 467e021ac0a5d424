// Command ebb takes machines out of service without losing a row, a block, a key or a quorum.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:]))
}

// exitError is an exit code without a message: it has been printed already.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

func run(ctx context.Context, args []string) int {
	root := newRoot()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var code exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	}
	fmt.Fprintln(os.Stderr, "ebb:", err)
	return 1
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "ebb",
		Short: "Take machines out of service without losing a row, a block, a key or a quorum",
		Long: `Ebb moves stateful work off a machine and takes the machine out of service only when nothing is left on it.

Client commands find the cluster through --kubeconfig, KUBECONFIG or EBB_DATA_DIR, in this order.`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newUp(), newAPIServer(), newNode(), newShim(), newEtcdMember(), newGuard(), newCredentials(), newSigner(), newManifests(), newUninstall(), newPrepare(),
		newStatus(), newLogs(), newChangefeed(), newEtcd(), newVolume(), newDrain(), newExplain(), newEvents(), newSlurmBridge(), newApply(), newCordon(), newUncordon(), newResign(), newSettings(), newVersion())
	refuseUnknown(root)
	return root
}

// refuseUnknown makes every command that only has subcommands refuse an unknown subcommand. Without a subcommand it shows its help.
func refuseUnknown(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		refuseUnknown(sub)
	}
	if cmd.HasParent() && cmd.HasSubCommands() && !cmd.Runnable() {
		cmd.Args = cobra.NoArgs // which names the unknown command
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
}
