package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/ebb-dev/ebb/internal/etcdcluster/member"
)

// newEtcdMember is the command that a node runs for each member of an etcd cluster on it.
func newEtcdMember() *cobra.Command {
	logs := newLogFlags()
	cmd := &cobra.Command{
		Use:   member.Command,
		Short: "Run one member of an etcd cluster (started by a node)",
		Long: `Run one member of an etcd cluster. Its node sends the configuration and orders on standard input. When standard input ends,
the member stops.`,
		Args:   cobra.NoArgs,
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			logs.newLogger()
			return logs.report(member.Main(cmd.Context(), os.Stdin, os.Stdout))
		},
	}
	logs.addFlags(cmd.Flags())
	return cmd
}
