package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"runtime/pprof"

	"github.com/spf13/cobra"

	"github.com/ebb-dev/ebb/internal/apiserver"
	"github.com/ebb-dev/ebb/internal/datadir"
	"github.com/ebb-dev/ebb/internal/health"
)

func newAPIServer() *cobra.Command {
	var o apiserver.Options
	var dir, drainConfig string
	logs := newLogFlags()
	cmd := &cobra.Command{
		Use:   "apiserver --data-dir DIR",
		Short: "Run the embedded Kubernetes API",
		Long: `Run the embedded Kubernetes API: Ebb's objects on an embedded etcd, or on an etcd cluster given by its endpoints.

The first start creates a certificate authority and credentials in the data directory: kubeconfig (admin),
viewer.kubeconfig (reads only), token (bearer token of /api/v2) and ca.crt. Stock kubectl works with them.`,
		Example: `  ebb apiserver --data-dir /var/lib/ebb
  ebb apiserver --data-dir /var/lib/ebb --listen 0.0.0.0:6443 --advertise ebb.example.com
  ebb apiserver --data-dir /var/lib/ebb --etcd-servers https://10.0.0.1:2379 --etcd-cafile ca.crt --etcd-certfile c.crt --etcd-keyfile c.key
  kubectl --kubeconfig /var/lib/ebb/kubeconfig get nodes.ebb.dev`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Dir, o.LibraryLog = datadir.Dir(dir), logs.libraryLog().Handler()
			return logs.report(runAPIServer(cmd.Context(), o, drainConfig, logs.newLogger()))
		},
	}
	f := cmd.Flags()
	addDataDir(f, &dir)
	logs.addFlags(f)
	health.AddDrainConfigFlag(f, &drainConfig)
	f.StringVar(&o.Listen, "listen", "127.0.0.1:0", "host:port to listen on; port 0 picks a free port and keeps it for later starts")
	f.StringSliceVar(&o.Advertise, "advertise", nil, "host names or addresses under which clients reach this server; the first goes into kubeconfig files")
	f.StringSliceVar(&o.EtcdServers, "etcd-servers", nil, "URLs of an existing etcd cluster to use instead of the embedded etcd")
	f.DurationVar(&o.EventTTL, "event-ttl", apiserver.DefaultEventTTL, "how long events are kept")
	f.StringVar(&o.EtcdPrefix, "etcd-prefix", "/ebb", "key prefix of the objects in etcd")
	f.StringVar(&o.EtcdCAFile, "etcd-cafile", "", "CA certificate file of the etcd cluster")
	f.StringVar(&o.EtcdCertFile, "etcd-certfile", "", "client certificate file for the etcd cluster")
	f.StringVar(&o.EtcdKeyFile, "etcd-keyfile", "", "key file of the client certificate")
	return cmd
}

func runAPIServer(ctx context.Context, o apiserver.Options, drainConfig string, log *slog.Logger) error {
	loaded, err := health.Load(drainConfig)
	if err != nil {
		return err
	}
	o.Objects = append(kinds.Objects(), health.CustomResources(loaded.Config)...)
	server, err := apiserver.New(ctx, o)
	if err != nil {
		return err
	}
	remove, err := o.Dir.WritePID("apiserver")
	if err != nil {
		return err
	}
	defer remove()
	err = server.Run(ctx, func() {
		log.Info("ready", "url", server.URL(), "kubeconfig", o.Dir.Kubeconfig())
	})
	if errors.Is(err, apiserver.ErrHangs) { // what it waits for is in the stacks, for a report of the error
		err = errors.Join(err, pprof.Lookup("goroutine").WriteTo(os.Stderr, 2))
	}
	return err
}
