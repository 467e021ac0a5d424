package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/ebb-dev/ebb/internal/slurm"
)

// slurmFlags are the flags of `ebb slurm-bridge`.
type slurmFlags struct {
	cluster     cluster
	logs        logFlags
	o           slurm.Options
	table, rule string
	install     bool
}

func newSlurmBridge() *cobra.Command {
	f := slurmFlags{logs: newLogFlags()}
	cmd := &cobra.Command{
		Use:   "slurm-bridge",
		Short: "Drain nodes of a Slurm cluster for Ebb",
		Long: `Drain nodes of a Slurm cluster for Ebb. The bridge serves SlurmDrainRequests, which Ebb creates from the template of a custom drain
(docs/custom-drains.md). It drains the node in Slurm under a reason that names the request, waits until no job is left, and reports
that. If a request is deleted before that, the bridge resumes the node, provided that the request drained it. After that the node stays
drained in Slurm until it is in service in Ebb again. The bridge never changes a drain that somebody else made in Slurm.

Run it where scontrol, sinfo and squeue work, with the permission to drain nodes.`,
		Example: `  ebb slurm-bridge --namespace default
  ebb slurm-bridge --node-rule '(.*)\.example\.com=$1' --node-table /etc/ebb/slurm-nodes`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.logs.report(f.run(cmd.Context())) },
	}
	fs := cmd.Flags()
	f.cluster.addFlags(fs)
	f.logs.addFlags(fs)
	fs.StringVar(&f.o.Namespace, "namespace", "default", "namespace of the requests")
	fs.StringVar(&f.table, "node-table", "", "file with a name in Ebb and a name in Slurm on each line")
	fs.StringVar(&f.rule, "node-rule", "", "PATTERN=REPLACEMENT for the names that the table does not have (default: the names are the same)")
	fs.StringVar(&f.o.Slurm.Conf, "slurm-conf", "", "slurm.conf of the cluster (default: the one that Slurm's commands use)")
	fs.StringVar(&f.o.Slurm.Dir, "slurm-bin", "", "directory of Slurm's commands (default: they are looked up in PATH)")
	fs.DurationVar(&f.o.Poll, "poll", slurm.DefaultPoll, "how often the bridge asks Slurm about its nodes")
	fs.BoolVar(&f.install, "install-crd", true, "create the CustomResourceDefinition of the requests if it is missing")
	return cmd
}

func (f *slurmFlags) run(ctx context.Context) (err error) {
	if f.o.Poll < 100*time.Millisecond {
		return fmt.Errorf("--poll %s: use 100ms or more", f.o.Poll)
	}
	if f.o.Names, err = slurm.NewNames(f.table, f.rule); err != nil {
		return err
	}
	if f.o.Config, err = f.cluster.config(); err != nil {
		return err
	}
	f.o.Config.Timeout = 0 // watches last
	f.o.Log = f.logs.newLogger()
	if f.install {
		if err := slurm.Install(ctx, f.o.Config); err != nil {
			return err
		}
	}
	bridge, err := slurm.New(f.o)
	if err != nil {
		return err
	}
	f.o.Log.Info("serving", "namespace", f.o.Namespace)
	return bridge.Run(ctx)
}
