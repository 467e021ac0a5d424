package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ebb-dev/ebb/internal/datadir"
	"github.com/ebb-dev/ebb/internal/health"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/localcluster"
	"github.com/ebb-dev/ebb/internal/shellword"
)

func newUp() *cobra.Command {
	o, timing := localcluster.Options{}, lease.DefaultTiming()
	var dir, drainConfig string
	var withSamples bool
	var guardImage string
	logs := newLogFlags()
	cmd := &cobra.Command{
		Use:   "up --data-dir DIR",
		Short: "Run a whole cluster on this machine, in the foreground",
		Long: `Run a whole cluster on this machine, in the foreground: an API server and nodes n1 to nN, each a process of its own
that can be killed separately. A process that ends is not restarted; the command prints how to start it again.

It writes DIR/kubeconfig, DIR/token, DIR/run/<name>.pid and DIR/logs/<name>.log, and prints "ready" once every node is
Ready and the samples are created. On Ctrl-C the nodes leave the cluster and the API server stops.

With --kubeconfig the nodes use that Kubernetes cluster instead of an API server of their own, all with the credentials in the file. Use this only to
try Ebb; docs/kubernetes.md describes an installation. The CRDs of Ebb and the namespace ebb-system are created there if they are missing.

The lease flags are passed to every node; a node that is started again needs the same ones.`,
		Example: `  ebb up --nodes 3 --data-dir /tmp/ebb
  ebb up --data-dir /tmp/ebb --lease-renew 600ms --lease-renew-timeout 600ms --lease-fence 3s --lease-dead 4s --lease-duration 5s
  ebb up --data-dir /tmp/ebb --kubeconfig ~/.kube/config
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
			// What is printed is for other terminals too, in other directories.
			dir, err := filepath.Abs(dir)
			if err != nil {
				return err
			}
			exe, err := os.Executable()
			if err != nil {
				return err
			}
			o.Dir, o.Exe, o.Command, o.Out = datadir.Dir(dir), exe, callable(os.Args[0]), cmd.OutOrStdout()
			o.LogArgs, o.NodeArgs = logs.args(), leaseArgs(timing)
			if guardImage != "" {
				if o.Kubeconfig == "" {
					return errors.New("--guard-image: guards exist only on Kubernetes; set --kubeconfig, or omit the flag")
				}
				o.NodeArgs = append(o.NodeArgs, "--guard-image="+guardImage)
			}
			if drainConfig != "" {
				if _, err := health.Load(drainConfig); err != nil {
					return err
				}
				path, err := filepath.Abs(drainConfig)
				if err != nil {
					return err
				}
				o.NodeArgs, o.ServerArgs = append(o.NodeArgs, "--drain-config", path), []string{"--drain-config", path}
			}
			c, err := localcluster.Start(cmd.Context(), o)
			if err != nil {
				return err
			}
			if withSamples { // what reads the line "ready" may ask for them next
				if err := addSamples(cmd.Context(), o.Dir); err != nil {
					c.Stop()
					return err
				}
			}
			fmt.Fprintln(o.Out, "ready")
			fmt.Fprintf(o.Out, "An outage of the API of up to %s stops nothing; a longer one stops deployments until it ends (docs/deployments.md). The flags --lease-… change this time.\n", timing.Outage())
			if withSamples {
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
	f.IntVar(&o.Nodes, "nodes", 3, "number of nodes")
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig file of a Kubernetes cluster to use as the API (default: the cluster gets an API server of its own)")
	f.StringVar(&guardImage, "guard-image", "", "with --kubeconfig, image of the guards: pods that make kubectl drain wait for the work of Ebb; without it there are no guards")
	health.AddDrainConfigFlag(f, &drainConfig)
	addLeaseTiming(f, &timing)
	f.BoolVar(&withSamples, "samples", false, "create one small object of every kind of work, if there is none yet, and print commands to try")
	return cmd
}

// callable is how a person calls a program from any directory. One without a slash is found by PATH.
func callable(program string) string {
	if path, err := filepath.Abs(program); err == nil && strings.Contains(program, "/") {
		return path
	}
	return program
}

// whatNext prints commands to try.
func whatNext(w io.Writer, ebb string, dir datadir.Dir) {
	fmt.Fprintf(w, `
Try next, in another terminal:

  export EBB_DATA_DIR=%[1]s
  # the nodes, and which of them is the coordinator
  %[2]s status
  # five samples: the deployment hello on one node, the daemon heartbeat on every node, the changefeed stream spread over the nodes,
  # the etcd cluster demo with a member on each of three nodes, and the volume demo with two replicas
  %[2]s status deployments
  %[2]s logs hello -f
  %[2]s logs heartbeat --tail 1
  %[2]s status changefeeds
  %[2]s status etcdclusters
  %[2]s volume inspect demo
  # use the etcd cluster, stop it and start it again: it keeps every key
  eval "$(%[2]s etcd endpoints demo --shell)"; etcdctl put hello world; etcdctl endpoint status --cluster --write-out=table
  kubectl --kubeconfig %[3]s scale etcdcluster demo --replicas=0
  kubectl --kubeconfig %[3]s scale etcdcluster demo --replicas=3
  # let another node become the coordinator
  %[2]s resign
  # take a node out of service: its work moves to other nodes (the coordinator cannot be drained: add --resign)
  %[2]s drain n2 --plan
  %[2]s drain n2 --wait
  # kill a node: it is marked lost when its lease expires
  kill -9 $(cat %[4]s)
  kubectl --kubeconfig %[3]s get nodes.ebb.dev -w

Ctrl-C in this terminal stops the cluster; the data stays in %[1]s.
`, shellword.Quote(string(dir)), shellword.Quote(ebb), shellword.Quote(dir.Kubeconfig()), shellword.Quote(dir.PIDFile("n1")))
}
