package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/atomicfile"
	"github.com/ebb-dev/ebb/internal/datadir"
	"github.com/ebb-dev/ebb/internal/etcdcluster"
	"github.com/ebb-dev/ebb/internal/identity"
	"github.com/ebb-dev/ebb/internal/kind"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/pki"
	"github.com/ebb-dev/ebb/internal/shellword"
	"github.com/ebb-dev/ebb/internal/signer"
)

func newEtcd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "etcd",
		Short: "Connect to, inspect, snapshot, restore and resume etcd clusters",
	}
	cmd.AddCommand(newEtcdEndpoints(), newEtcdMembers(), newEtcdSnapshot(), newEtcdRestore(), newEtcdDiscard(), newEtcdOrphans(), newEtcdResume())
	return cmd
}

// etcdCommand holds the flags of every command about one etcd cluster.
type etcdCommand struct {
	cluster
	out       output
	namespace string
}

func (e *etcdCommand) addFlags(cmd *cobra.Command) {
	e.cluster.addFlags(cmd.Flags())
	e.out.addFlag(cmd.Flags())
	addNamespace(cmd.Flags(), &e.namespace, kind.DefaultNamespace, "namespace of the etcd cluster")
}

// get reads the cluster of that name.
func (e *etcdCommand) get(ctx context.Context, name string) (client.Client, *v1alpha1.EtcdCluster, error) {
	c, err := e.client()
	if err != nil {
		return nil, nil, err
	}
	ec := &v1alpha1.EtcdCluster{}
	return c, ec, c.Get(ctx, types.NamespacedName{Namespace: e.namespace, Name: name}, ec)
}

// etcdEndpoints is what a client needs to connect to a cluster.
type etcdEndpoints struct {
	Endpoints []string `json:"endpoints"`
	CACert    string   `json:"caCert,omitempty"`
	Cert      string   `json:"cert,omitempty"`
	Key       string   `json:"key,omitempty"`
}

func newEtcdEndpoints() *cobra.Command {
	var e etcdCommand
	var shell bool
	cmd := &cobra.Command{
		Use:   "endpoints NAME",
		Short: "Print the client endpoints of an etcd cluster",
		Long: `Print the client endpoints of an etcd cluster, for etcdctl --endpoints.

With --shell it prints the environment variables that etcdctl reads, including the paths of your client certificate. If the
kubeconfig file contains the certificate itself, the command writes it to files beside the kubeconfig that only you can read.`,
		Example: `  eval "$(ebb etcd endpoints demo --shell)"
  etcdctl put hello world`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, ec, err := e.get(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			where, err := e.endpoints(ec, shell)
			if err != nil {
				return err
			}
			return e.out.print(cmd.OutOrStdout(), where, func() string {
				if shell {
					return where.shell()
				}
				return strings.Join(where.Endpoints, ",") + "\n"
			})
		},
	}
	e.addFlags(cmd)
	cmd.Flags().BoolVar(&shell, "shell", false, "print environment variables for etcdctl, for a shell to evaluate")
	return cmd
}

// endpoints returns what a client needs to connect to a cluster, with the files of its certificate if it wants them.
func (e *etcdCommand) endpoints(ec *v1alpha1.EtcdCluster, files bool) (*etcdEndpoints, error) {
	urls, err := etcdcluster.Endpoints(ec)
	if err != nil {
		return nil, err
	}
	where := &etcdEndpoints{Endpoints: urls}
	if files && strings.HasPrefix(urls[0], "https:") {
		return where, e.certificates(where)
	}
	return where, nil
}

// certificates returns the files with the certificate of the kubeconfig. If the kubeconfig contains the data itself, it writes them.
func (e *etcdCommand) certificates(where *etcdEndpoints) error {
	cfg, err := e.config()
	if err != nil {
		return err
	}
	where.CACert, where.Cert, where.Key = cfg.CAFile, cfg.CertFile, cfg.KeyFile
	if err := rest.LoadTLSFiles(cfg); err != nil {
		return err
	}
	if err := e.useAuthorityOfNodes(cfg, where); err != nil {
		return err
	}
	if len(cfg.CertData) == 0 || len(cfg.KeyData) == 0 || len(cfg.CAData) == 0 {
		return errors.New("the kubeconfig has no client certificate; members of etcd clusters require one that is signed by the cluster's authority")
	}
	path, err := e.path()
	if err != nil {
		return err
	}
	dir, err := secretsDir(filepath.SplitList(path)[0])
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		data []byte
		path *string
	}{{"ca.crt", cfg.CAData, &where.CACert}, {"client.crt", cfg.CertData, &where.Cert}, {"client.key", cfg.KeyData, &where.Key}} {
		if *f.path == "" {
			*f.path = filepath.Join(dir, f.name)
			if old, err := os.ReadFile(*f.path); err == nil && string(old) == string(f.data) {
				continue
			}
			if err := atomicfile.WriteSecret(*f.path, f.data); err != nil {
				return err
			}
		}
		if *f.path, err = filepath.Abs(*f.path); err != nil {
			return err
		}
	}
	return nil
}

// useAuthorityOfNodes replaces the certificate of the kubeconfig if the nodes have another authority than the API, as on Kubernetes.
func (e *etcdCommand) useAuthorityOfNodes(cfg *rest.Config, where *etcdEndpoints) error {
	authority, err := e.authority(cfg)
	if err != nil || bytes.Equal(authority, cfg.CAData) {
		return err
	}
	path, err := e.path()
	if err != nil {
		return err
	}
	kubeconfig := filepath.SplitList(path)[0]
	dir, err := secretsDir(kubeconfig)
	if err != nil {
		return err
	}
	*where = etcdEndpoints{Endpoints: where.Endpoints}
	cfg.CAData = authority
	profile := pki.Profile{User: identity.Client}
	cert, certErr := os.ReadFile(filepath.Join(dir, "client.crt"))
	key, keyErr := os.ReadFile(filepath.Join(dir, "client.key"))
	if certErr == nil && keyErr == nil && pki.Matches(cert, key) && pki.SignedBy(cert, authority, profile) {
		if _, until, err := pki.Life(cert); err == nil && time.Until(until) > time.Minute {
			cfg.CertData, cfg.KeyData = cert, key
			return nil
		}
	}
	pair, err := e.clientPair(datadir.Dir(filepath.Dir(kubeconfig)), profile)
	cfg.CertData, cfg.KeyData = pair.Cert, pair.Key
	return err
}

// clientPair is a certificate of the nodes' authority: from its key, if that is here, or from the signer.
func (e *etcdCommand) clientPair(dir datadir.Dir, p pki.Profile) (pki.Pair, error) {
	if dir.CanIssue() {
		ca, err := pki.Load(dir.PKI())
		if err != nil {
			return pki.Pair{}, err
		}
		return ca.Issue(p)
	}
	api, err := e.config()
	if err != nil {
		return pki.Pair{}, err
	}
	kube, err := kubernetes.NewForConfig(api)
	if err != nil {
		return pki.Pair{}, err
	}
	return signer.RequestClient(context.Background(), kube)
}

// secretsDir returns a directory that only the user can read: beside the kubeconfig file, or if that is not writable, in the user's
// runtime or cache directory.
func secretsDir(kubeconfig string) (string, error) {
	name := strings.TrimSuffix(filepath.Base(kubeconfig), ".kubeconfig")
	dir := filepath.Join(filepath.Dir(kubeconfig), "etcd-client", name)
	if err := os.MkdirAll(dir, 0o700); err == nil {
		return dir, nil
	}
	base := os.Getenv("XDG_RUNTIME_DIR")
	if base == "" {
		var err error
		if base, err = os.UserCacheDir(); err != nil {
			return "", fmt.Errorf("no directory for certificates: %w", err)
		}
	}
	full, err := filepath.Abs(kubeconfig)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(full))
	dir = filepath.Join(base, "ebb", "etcd-client", hex.EncodeToString(sum[:6]))
	return dir, os.MkdirAll(dir, 0o700)
}

// shell returns the commands that set etcdctl's environment variables.
func (w *etcdEndpoints) shell() string {
	var b strings.Builder
	for _, v := range []struct{ name, value string }{
		{"ETCDCTL_API", "3"}, {"ETCDCTL_ENDPOINTS", strings.Join(w.Endpoints, ",")},
		{"ETCDCTL_CACERT", w.CACert}, {"ETCDCTL_CERT", w.Cert}, {"ETCDCTL_KEY", w.Key},
	} {
		if v.value == "" {
			fmt.Fprintf(&b, "unset %s\n", v.name)
			continue
		}
		fmt.Fprintf(&b, "export %s=%s\n", v.name, shellword.Quote(v.value))
	}
	return b.String()
}

func newEtcdMembers() *cobra.Command {
	var e etcdCommand
	cmd := &cobra.Command{
		Use:   "members NAME",
		Short: "Show the members of an etcd cluster: nodes, roles, health and lag",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, ec, err := e.get(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			members := ec.Status.Members
			if members == nil {
				members = []v1alpha1.EtcdMemberInfo{}
			}
			return e.out.print(cmd.OutOrStdout(), members, func() string { return etcdMembersText(ec) })
		},
	}
	e.addFlags(cmd)
	return cmd
}

func etcdMembersText(ec *v1alpha1.EtcdCluster) string {
	if len(ec.Status.Members) == 0 {
		return fmt.Sprintf("no members: etcd cluster %s is %s\n", kind.NameIn(ec.Namespace, ec.Name), etcdcluster.DescribePhase(ec)) + setAsideText(ec)
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "MEMBER\tNODE\tID\tROLE\tHEALTHY\tLAG\tDB SIZE\tENDPOINT\tMESSAGE")
	for _, m := range ec.Status.Members {
		healthy := "yes"
		if !m.Healthy {
			healthy = "no"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", m.Name, m.Node, orDash(m.ID), orDash(string(m.Role)), healthy, m.RevisionLag,
			humanize.IBytes(uint64(max(m.DBSize, 0))), orDash(m.ClientURL), kind.OneLine(m.Message))
	}
	w.Flush()
	return trimLines(b.String()) + setAsideText(ec)
}

// setAsideText lists the data of former members that is kept.
func setAsideText(ec *v1alpha1.EtcdCluster) string {
	var b strings.Builder
	for _, a := range ec.Status.SetAside {
		fmt.Fprintf(&b, "set aside: data of member %s on %s (%s); `%s` deletes it\n", a.Member, a.Node, a.Reason, etcdcluster.DiscardCommand(ec, a.Member))
	}
	return b.String()
}

func newEtcdSnapshot() *cobra.Command {
	var e etcdCommand
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "snapshot NAME",
		Short: "Take a snapshot of an etcd cluster and wait until it is verified",
		Long: `Take a snapshot of a running etcd cluster and wait until it is verified. The coordinator then has it copied to
spec.snapshot.copies nodes, and deletes the oldest snapshots beyond spec.snapshot.keep.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, ec, err := e.get(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			s, err := etcdcluster.TakeSnapshot(cmd.Context(), c, ec, timeout)
			if err != nil {
				return err
			}
			return e.out.print(cmd.OutOrStdout(), s, func() string {
				return fmt.Sprintf("snapshot %s: revision %d, %s, on %s\n", s.Name, s.Status.Facts.Revision, humanize.IBytes(uint64(s.Status.Facts.Size)), strings.Join(s.Verified(), " and "))
			})
		},
	}
	e.addFlags(cmd)
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait for the snapshot")
	return cmd
}

func newEtcdRestore() *cobra.Command {
	var e etcdCommand
	var o etcdcluster.RestoreOptions
	var cancel bool
	cmd := &cobra.Command{
		Use:   "restore NAME",
		Short: "Restore an etcd cluster from a snapshot or from one member's data after its quorum is lost",
		Long: `Restore an etcd cluster when its quorum or its data is lost for good. The coordinator stops the present members, starts a new
first member from the snapshot, and then adds the others. Keys that were written after the snapshot are not in it.

With --from-member the cluster continues from the data of one member: its node takes a verified snapshot of that data, up to the last entry of
the member's log. The order is refused if another member has a newer log. It waits while unreachable members could still serve clients
among themselves: bring their nodes back, or confirm with --gone that the nodes are gone for good.

Data of the present members that may have newer keys is set aside, not deleted: ` + "`ebb etcd discard`" + ` deletes it.

The order is carried out once, or expires. A stopped cluster is restored from the snapshot when it is next started.`,
		Example: `  ebb etcd restore demo
  ebb etcd restore demo --snapshot demo-0a1b2c3d-7-1
  ebb etcd restore demo --from-member n1 --gone n2,n3
  ebb etcd restore demo --cancel`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, ec, err := e.get(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if cancel {
				if err := etcdcluster.CancelRestore(cmd.Context(), c, ec); err != nil {
					return err
				}
				return e.out.print(cmd.OutOrStdout(), map[string]string{"cluster": ec.Name}, func() string { return fmt.Sprintf("the restore of etcd cluster %s is canceled\n", ec.Name) })
			}
			from, text, err := etcdcluster.Restore(cmd.Context(), c, ec, o)
			if err != nil {
				return err
			}
			return e.out.print(cmd.OutOrStdout(), map[string]string{"cluster": ec.Name, "from": from}, func() string { return text })
		},
	}
	e.addFlags(cmd)
	cmd.Flags().StringVar(&o.Snapshot, "snapshot", "", "name of the EtcdSnapshot, or none to start empty (default: the newest verified one)")
	cmd.Flags().StringVar(&o.FromMember, "from-member", "", "node (or member) from whose data the cluster is restored")
	cmd.Flags().StringSliceVar(&o.Gone, "gone", nil, "nodes that are gone for good: nothing runs there, and nothing will")
	cmd.Flags().BoolVar(&o.Force, "force", false, "restore from a snapshot although the cluster serves clients")
	cmd.Flags().DurationVar(&o.Expires, "expires", etcdcluster.DefaultRestoreExpiry, "how long the order may wait before it expires")
	cmd.Flags().BoolVar(&cancel, "cancel", false, "withdraw an order that has not begun")
	return cmd
}

func newEtcdDiscard() *cobra.Command {
	var e etcdCommand
	cmd := &cobra.Command{
		Use:   "discard NAME MEMBER",
		Short: "Delete the data of a former member that was set aside",
		Long: `Delete the data of a former member that was set aside. The data may have keys that exist nowhere else, and cannot be recovered.
` + "`ebb etcd members NAME`" + ` lists what is set aside.`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, ec, err := e.get(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if err := etcdcluster.Discard(cmd.Context(), c, ec, args[1]); err != nil {
				return err
			}
			return e.out.print(cmd.OutOrStdout(), map[string]string{"cluster": ec.Name, "member": args[1]}, func() string {
				return fmt.Sprintf("the data of member %s is being deleted\n", args[1])
			})
		},
	}
	e.addFlags(cmd)
	return cmd
}

// etcdOrphan is data of an etcd cluster that no object knows.
type etcdOrphan struct {
	Node string `json:"node"`
	Name string `json:"name"`
}

func newEtcdOrphans() *cobra.Command {
	var e etcdCommand
	var remove string
	cmd := &cobra.Command{
		Use:   "orphans",
		Short: "List data of etcd clusters that no object knows, or remove one piece by name",
		Long: `List directories of members and files of snapshots that no object knows. Somebody deleted their
object by force, or the API was restored from a backup that does not know them. Nodes keep them until somebody removes them by name, because the
API may be out of date.`,
		Example: "  ebb etcd orphans\n  ebb etcd orphans --remove n2/member/0a1b2c3d/demo-3@1790000000",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := e.client()
			if err != nil {
				return err
			}
			var nodes v1alpha1.NodeList
			if err := c.List(cmd.Context(), &nodes); err != nil {
				return err
			}
			list := []etcdOrphan{}
			for _, n := range nodes.Items {
				for _, name := range n.Status.EtcdOrphans {
					list = append(list, etcdOrphan{n.Name, name})
				}
			}
			if remove != "" {
				return e.removeOrphan(cmd, c, list, remove)
			}
			return e.out.print(cmd.OutOrStdout(), list, func() string { return etcdOrphansText(list) })
		},
	}
	e.cluster.addFlags(cmd.Flags())
	e.out.addFlag(cmd.Flags())
	cmd.Flags().StringVar(&remove, "remove", "", "what to remove, as NODE/ORPHAN from the list")
	return cmd
}

func etcdOrphansText(list []etcdOrphan) string {
	if len(list) == 0 {
		return "no orphans\n"
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "NODE\tORPHAN")
	for _, o := range list {
		fmt.Fprintf(w, "%s\t%s\n", o.Node, o.Name)
	}
	_ = w.Flush() // a Builder takes everything
	return b.String() + "\nRemove one with `ebb etcd orphans --remove NODE/ORPHAN`.\n"
}

// removeOrphan asks the node to remove what it listed. Only what is still listed stays in the request.
func (e *etcdCommand) removeOrphan(cmd *cobra.Command, c client.Client, list []etcdOrphan, what string) error {
	node, name, _ := strings.Cut(what, "/")
	if !slices.Contains(list, etcdOrphan{node, name}) {
		return fmt.Errorf("there is no orphan %q: `ebb etcd orphans` lists them", what)
	}
	n := &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}
	err := kubeclient.Change(cmd.Context(), c, n, func(n *v1alpha1.Node) (bool, error) {
		asked := slices.DeleteFunc(strings.Split(n.Annotations[v1alpha1.RemoveEtcdOrphansAnnotation], ","), func(s string) bool {
			return s == name || !slices.Contains(list, etcdOrphan{node, s})
		})
		metav1.SetMetaDataAnnotation(&n.ObjectMeta, v1alpha1.RemoveEtcdOrphansAnnotation, strings.Join(append(asked, name), ","))
		return true, nil
	})
	if err != nil {
		return err
	}
	return e.out.print(cmd.OutOrStdout(), etcdOrphan{node, name}, func() string { return fmt.Sprintf("node %s removes %s\n", node, name) })
}

func newEtcdResume() *cobra.Command {
	var e etcdCommand
	cmd := &cobra.Command{
		Use:   "resume NAME",
		Short: "Start an etcd cluster that its schedule has stopped",
		Long:  `Start an etcd cluster that its schedule has stopped, with spec.size members. The schedule stops it again at the next stop.`,
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, ec, err := e.get(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if err := etcdcluster.Resume(cmd.Context(), c, ec); err != nil {
				return err
			}
			return e.out.print(cmd.OutOrStdout(), map[string]any{"cluster": ec.Name, "size": ec.Size()}, func() string {
				return fmt.Sprintf("etcd cluster %s is started with %d members\n", ec.Name, ec.Size())
			})
		},
	}
	e.addFlags(cmd)
	return cmd
}

func newStatusEtcdClusters() *cobra.Command {
	var c cluster
	var out output
	var namespace string
	cmd := &cobra.Command{
		Use:   "etcdclusters",
		Short: "Show etcd clusters: phase, members, newest snapshot and progress",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			list, err := etcdcluster.ReadStatus(cmd.Context(), cl, namespace)
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), list, func() string { return etcdClustersText(list, c.now()) })
		},
	}
	c.addFlags(cmd.Flags())
	out.addFlag(cmd.Flags())
	addNamespace(cmd.Flags(), &namespace, "", "only this namespace (default all)")
	return cmd
}

func etcdClustersText(list []etcdcluster.ClusterStatus, now time.Time) string {
	if len(list) == 0 {
		return "no etcd clusters\n"
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "ETCD CLUSTER\tPHASE\tREADY\tLEADER\tNODES\tSNAPSHOT\tLAST STOP\tLAST START\tAGE\tMESSAGE")
	for _, s := range list {
		fmt.Fprintf(w, "%s\t%s\t%d/%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", kind.NameIn(s.Namespace, s.Name), orDash(string(s.Phase)), s.Ready, s.Size, orDash(s.Leader),
			orDash(strings.Join(s.Nodes, ",")), orDash(s.Snapshot), orDash(s.LastStop), orDash(s.LastStart), age(now, s.Created.Time), kind.OneLine(s.Message))
	}
	w.Flush()
	return trimLines(b.String())
}
