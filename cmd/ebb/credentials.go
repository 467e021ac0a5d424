package main

import (
	"fmt"
	"net"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/ebb-dev/ebb/internal/datadir"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

func newCredentials() *cobra.Command {
	var dir, outDir string
	var hosts []string
	cmd := &cobra.Command{
		Use:   "credentials NODE --out DIR",
		Short: "Create the credentials of a node on another machine",
		Long: `Create the credentials with which a node on another machine joins the cluster. Run the command on the machine that has the API
server's data directory: the key of the certificate authority never leaves it. Copy DIR to the other machine as its data directory.`,
		Example: "  ebb credentials n4 --data-dir /var/lib/ebb --out n4 --host 10.0.0.4\n  scp -r n4 10.0.0.4:/var/lib/ebb",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if dir == "" {
				return errNoDataDir
			}
			if err := checkNodeName(args[0]); err != nil {
				return err
			}
			from := datadir.Dir(dir)
			if !from.CanIssue() {
				return fmt.Errorf("%s has no certificate authority: run this command with the data directory of the API server", dir)
			}
			to := datadir.Dir(outDir).Node(args[0])
			if err := from.IssueNode(to, args[0], append([]string{"localhost", "127.0.0.1", "::1"}, hosts...)); err != nil {
				return err
			}
			cfg, err := kubeclient.Load(to.Kubeconfig())
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "credentials of node %s written to %s; copy them to its machine and start it with: ebb node --name %s --data-dir %s\n%s",
				args[0], to, args[0], outDir, notes(cfg.Host, hosts))
			return err
		},
	}
	addDataDir(cmd.Flags(), &dir)
	cmd.Flags().StringVar(&outDir, "out", "", "directory to write to (required)")
	cmd.Flags().StringSliceVar(&hosts, "host", nil, "host name or address under which other machines reach the node; can be repeated")
	_ = cmd.MarkFlagRequired("out")
	return cmd
}

// notes says what keeps credentials from being used on another machine: server is the URL of the API, and hosts are those of the node.
func notes(server string, hosts []string) string {
	text := ""
	u, err := url.Parse(server)
	if err == nil && (u.Hostname() == "localhost" || net.ParseIP(u.Hostname()).IsLoopback()) {
		text += fmt.Sprintf("note: the credentials name the API server as %s, which is reached on this machine only; for another machine, start the API server with --listen and --advertise, and run this command again\n", server)
	}
	if len(hosts) == 0 {
		text += "note: without --host the node's certificate is valid for localhost only\n"
	}
	return text
}
