package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/manifests"
	"github.com/ebb-dev/ebb/internal/signer"
)

// inCluster is how a process finds the Kubernetes that it runs in.
type inCluster struct{ kubeconfig, account string }

func (c *inCluster) addAccount(fs *pflag.FlagSet) {
	fs.StringVar(&c.account, "service-account", kubeclient.ServiceAccountDir, "directory with token and ca.crt of the pod's service account")
}

func (c *inCluster) config() (*rest.Config, error) {
	if c.kubeconfig != "" {
		return kubeclient.Load(c.kubeconfig)
	}
	return kubeclient.InCluster(c.account)
}

func newSigner() *cobra.Command {
	o, from, logs := signer.Options{Namespace: manifests.Namespace, User: manifests.User(manifests.NodeAccount)}, inCluster{}, newLogFlags()
	var listen string
	cmd := &cobra.Command{
		Use:   "signer",
		Short: "Issue the certificates of nodes on Kubernetes",
		Long: `Issue the certificates with which nodes identify each other on Kubernetes. The signer approves and signs a request for ebb.dev/node if the
requester has a token that is bound to a pod on that node. The key of the authority is in the Secret ebb-system/ebb-ca, which the signer creates and alone may read.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.Validate(); err != nil {
				return err
			}
			var err error
			if o.Config, err = from.config(); err != nil {
				return err
			}
			o.Log = logs.newLogger()
			return logs.report(runSigner(cmd.Context(), o, listen))
		},
	}
	fs := cmd.Flags()
	logs.addFlags(fs)
	fs.StringVar(&from.kubeconfig, "kubeconfig", "", "kubeconfig file (default: the pod's service account)")
	from.addAccount(fs)
	fs.DurationVar(&o.Life, "certificate-life", 7*24*time.Hour, "how long a certificate is valid; nodes renew theirs when a third of that time is left")
	fs.StringVar(&listen, "health-listen", "127.0.0.1:0", "host:port that answers /healthz; port 0 picks a free port")
	return cmd
}

func runSigner(ctx context.Context, o signer.Options, listen string) error {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	health := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	served := make(chan error, 1)
	go func() { served <- health.Serve(l) }()
	defer func() {
		_ = health.Close()
		<-served
	}()
	s, err := signer.New(ctx, o)
	if err != nil {
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return nil
		}
		return err
	}
	return s.Run(ctx)
}
