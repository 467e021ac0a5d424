// Command ebb takes machines out of service without losing a row, a block, a key or a quorum.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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
	fmt.Fprintln(os.Stderr, "ebb:", hinted(err))
	return 1
}

// hinted adds what to do about a server that cannot be reached, or does not answer.
func hinted(err error) error {
	if op := (*net.OpError)(nil); errors.As(err, &op) && op.Op == "dial" {
		return fmt.Errorf("%w: nothing answers there: check that it runs, and that --kubeconfig, KUBECONFIG or %s names the right cluster", err, envDataDir)
	}
	if late := (*url.Error)(nil); errors.As(err, &late) && late.Timeout() {
		return fmt.Errorf("%w: the server did not answer in time: check whether its process is frozen or its machine overloaded, and try again", err)
	}
	return err
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "ebb",
		Short: "Take machines out of service without losing a row, a block, a key or a quorum",
		Long: `Ebb moves stateful work off a machine and takes the machine out of service only when nothing is left on it.

Client commands find the cluster through --kubeconfig, KUBECONFIG or EBB_DATA_DIR, in this order. An object in a namespace other than default is named
NAMESPACE/NAME, as it is printed, or with --namespace.`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newUp(), newAPIServer(), newNode(), newShim(), newEtcdMember(), newGuard(), newCredentials(), newSigner(), newManifests(), newUninstall(), newPrepare(),
		newStatus(), newLogs(), newChangefeed(), newEtcd(), newVolume(), newDrain(), newExplain(), newEvents(), newSlurmBridge(), newApply(), newCordon(), newUncordon(), newResign(), newSettings(), newVersion())
	refuseUnknown(root)
	nameUsage(root)
	acceptNamespaces(root)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if unknown := (*pflag.NotExistError)(nil); errors.As(err, &unknown) {
			return fmt.Errorf("%w: `%s --help` lists the flags", err, cmd.CommandPath())
		}
		return err
	})
	return root
}

// nameUsage makes every command say how it is used when it gets too few arguments or too many.
func nameUsage(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		nameUsage(sub)
	}
	check := cmd.Args
	if check == nil || cmd.HasSubCommands() {
		return
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return fmt.Errorf("%w: use `%s`", err, cmd.UseLine())
		}
		return nil
	}
}

// acceptNamespaces makes every command that names an object in a namespace take the name as it is printed: with its namespace before it.
func acceptNamespaces(cmd *cobra.Command) {
	for _, sub := range cmd.Commands() {
		acceptNamespaces(sub)
	}
	run, flag := cmd.RunE, cmd.Flags().Lookup("namespace")
	if run == nil || flag == nil {
		return
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return run(cmd, args)
		}
		namespace, name, both := strings.Cut(args[0], "/")
		if !both {
			return run(cmd, args)
		}
		if flag.Changed && flag.Value.String() != namespace {
			return fmt.Errorf("%s names another namespace than --namespace %s: omit one of them", args[0], flag.Value)
		}
		if err := flag.Value.Set(namespace); err != nil {
			return err
		}
		return run(cmd, append([]string{name}, args[1:]...))
	}
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
