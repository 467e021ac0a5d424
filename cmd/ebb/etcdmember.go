package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/ebb-dev/ebb/internal/etcdcluster/member"
)

// newEtcdMember is for nodes, which start one for every member of an etcd cluster on them.
func newEtcdMember() *cobra.Command {
	logs := newLogFlags()
	cmd := &cobra.Command{
		Use:    member.Command,
		Short:  "Run one member of an etcd cluster (started by a node)",
		Long:   `Run one member of an etcd cluster. Its node tells it what to be on its standard input; when that ends, so does the member.`,
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
