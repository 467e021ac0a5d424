package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/ebb-dev/ebb/internal/datadir"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/localcluster"
)

func newUp() *cobra.Command {
	o, timing := localcluster.Options{}, lease.DefaultTiming()
	var dir string
	var withSamples bool
	logs := newLogFlags()
	cmd := &cobra.Command{
		Use:   "up --data-dir DIR",
		Short: "Run a whole cluster on this machine, in the foreground",
		Long: `Run a whole cluster on this machine, in the foreground: an API server and nodes n1 to nN, each a process of its own
that can be killed on its own. A process that ends is not started again; the line that tells of it says how to.

It writes DIR/kubeconfig, DIR/token, DIR/run/<name>.pid and DIR/logs/<name>.log, and prints "ready" once every node is
Ready. Ctrl-C lets the nodes leave in order and ends the API server.

The timing of leases is passed on to every node; a node that is started again needs the same.`,
		Example: `  ebb up --nodes 3 --data-dir /tmp/ebb
  ebb up --data-dir /tmp/ebb --lease-renew 600ms --lease-renew-timeout 600ms --lease-fence 3s --lease-dead 4s --lease-duration 5s
  EBB_DATA_DIR=/tmp/ebb ebb status`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dir == "" {
				return errNoDataDir
			}
			if err := timing.Validate(); err != nil {
				return err
			}
			quietLibraries()
			exe, err := os.Executable()
			if err != nil {
				return err
			}
			o.Dir, o.Exe, o.Command, o.Out = datadir.Dir(dir), exe, os.Args[0], cmd.OutOrStdout()
			o.LogArgs, o.NodeArgs = logs.args(), leaseArgs(timing)
			c, err := localcluster.Start(cmd.Context(), o)
			if err != nil {
				return err
			}
			fmt.Fprintln(o.Out, "ready")
			if withSamples {
				if err := addSamples(cmd.Context(), o.Dir); err != nil {
					c.Stop()
					return err
				}
				whatNext(o.Out, o.Command, o.Dir)
			}
			c.Wait(cmd.Context())
			c.Stop()
			return nil
		},
	}
	f := cmd.Flags()
	addDataDir(f, &dir)
	logs.addFlags(f)
	f.IntVar(&o.Nodes, "nodes", 3, "how many nodes to run")
	addLeaseTiming(f, &timing)
	f.BoolVar(&withSamples, "samples", false, "add one small piece of every kind of work that is not there yet, and say what to try next")
	return cmd
}

// whatNext says what a person can try now.
func whatNext(w io.Writer, ebb string, dir datadir.Dir) {
	fmt.Fprintf(w, `
Try next, in another terminal:

  export EBB_DATA_DIR=%[1]s
  # who is there, who coordinates
  %[2]s status
  # four samples run: the deployment hello on one node, the daemon heartbeat on all of them, the changefeed stream over them,
  # and the etcd cluster demo with a member on each of three nodes
  %[2]s status deployments
  %[2]s logs hello -f
  %[2]s logs heartbeat --tail 1
  %[2]s status changefeeds
  %[2]s status etcdclusters
  # talk to the etcd cluster, stop it, start it again: every key is still there
  eval "$(%[2]s etcd endpoints demo --shell)"; etcdctl put hello world; etcdctl endpoint status --cluster --write-out=table
  kubectl --kubeconfig %[1]s/kubeconfig scale etcdcluster demo --replicas=0
  kubectl --kubeconfig %[1]s/kubeconfig scale etcdcluster demo --replicas=3
  # the coordinator hands over
  %[2]s resign
  # take a node out of service: what it runs goes on elsewhere (the coordinator is refused: add --resign)
  %[2]s drain n2 --wait
  # a node dies: watch it being marked after its lease
  kill -9 $(cat %[1]s/run/n1.pid)
  kubectl --kubeconfig %[1]s/kubeconfig get nodes.ebb.dev -w

Ctrl-C here stops everything in order; the data stays in %[1]s.
`, dir, ebb)
}
