package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/access"
	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/cordon"
	"github.com/ebb-dev/ebb/internal/kind"
	"github.com/ebb-dev/ebb/internal/kube"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/manifests"
	"github.com/ebb-dev/ebb/internal/signer"
)

func newUninstall() *cobra.Command {
	u := uninstall{}
	var yes bool
	cmd := &cobra.Command{
		Use:   "uninstall --yes",
		Short: "Delete all work from a Kubernetes cluster, so that Ebb can be removed from it",
		Long: `Delete all objects of work and all drains, and wait until the nodes have removed what belongs to them. This deletes the data of volumes and etcd
clusters. The command also lifts the cordons that Ebb made, and removes guards and everything else that Ebb wrote outside of its namespace.

Afterwards run ` + "`kubectl delete -k config/kubernetes`" + ` to remove everything else. If you run that first, it waits forever for objects with
finalizers.

Run this command while the nodes run, because they complete the finalizers. If the nodes are gone for good, add --abandon: the command then removes
the finalizers itself, and the data stays on the machines. The data directories of the nodes always stay.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if u.client, err = u.cluster.client(); err != nil {
				return err
			}
			u.out = cmd.OutOrStdout()
			if !yes {
				return u.preview(cmd.Context())
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), u.timeout)
			defer cancel()
			return u.run(ctx)
		},
	}
	u.cluster.addFlags(cmd.Flags())
	cmd.Flags().BoolVar(&yes, "yes", false, "delete the objects, and the data of volumes and etcd clusters with them")
	cmd.Flags().BoolVar(&u.abandon, "abandon", false, "remove the finalizers of objects whose nodes are gone for good")
	cmd.Flags().DurationVar(&u.timeout, "timeout", 5*time.Minute, "how long to wait for the nodes")
	return cmd
}

// uninstall deletes everything that people and the coordinator made.
type uninstall struct {
	cluster cluster
	client  client.Client
	out     io.Writer
	abandon bool
	timeout time.Duration
}

// resources are the types to delete: first what people make, then what is left of what the coordinator made for it.
func (u *uninstall) resources() []string {
	first, last := []string{"drains"}, []string(nil)
	for _, o := range kinds.Objects() {
		if o.Coordinator == access.Both {
			last = append(last, o.Resource)
		} else {
			first = append(first, o.Resource)
		}
	}
	return append(first, last...)
}

func (u *uninstall) list(ctx context.Context, resource string) ([]metav1.PartialObjectMetadata, error) {
	gvk, err := kubeclient.NewMapper().KindFor(v1alpha1.GroupVersion.WithResource(resource))
	if err != nil {
		return nil, err
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(gvk)
	if err := u.client.List(ctx, list); err != nil && !meta.IsNoMatchError(err) {
		return nil, fmt.Errorf("list %s: %w", resource, err)
	}
	for i := range list.Items {
		list.Items[i].SetGroupVersionKind(gvk)
	}
	return list.Items, nil
}

// preview prints what would be deleted.
func (u *uninstall) preview(ctx context.Context) error {
	var found []string
	for _, resource := range u.resources() {
		items, err := u.list(ctx, resource)
		if err != nil {
			return err
		}
		if len(items) > 0 {
			found = append(found, fmt.Sprintf("%d %s", len(items), resource))
		}
	}
	if len(found) == 0 {
		_, err := fmt.Fprintln(u.out, "nothing to delete; remove Ebb with: kubectl delete -k config/kubernetes")
		return err
	}
	return fmt.Errorf("this would delete %s, with the data of volumes and etcd clusters: add --yes", strings.Join(found, ", "))
}

func (u *uninstall) run(ctx context.Context) error {
	for _, resource := range u.resources() {
		if err := u.remove(ctx, resource); err != nil {
			return err
		}
	}
	clients, err := u.kubernetes()
	if err != nil {
		return err
	}
	if clients != nil {
		if err := u.clean(ctx, clients); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintln(u.out, "all work is deleted; remove Ebb with: kubectl delete -k config/kubernetes")
	return err
}

// remove deletes all objects of a type and waits until they are gone.
func (u *uninstall) remove(ctx context.Context, resource string) error {
	said := 0
	for {
		items, err := u.list(ctx, resource)
		if err != nil {
			return err
		}
		if len(items) == 0 {
			return nil
		}
		if said != len(items) {
			said = len(items)
			fmt.Fprintf(u.out, "deleting %d %s\n", len(items), resource)
		}
		for i := range items {
			if err := u.removeOne(ctx, &items[i]); err != nil {
				return err
			}
		}
		if backoff.Sleep(ctx, 200*time.Millisecond) != nil {
			first := items[0]
			return fmt.Errorf("%s %s is not gone; it has the finalizers %v: check that its nodes run, or add --abandon if they are gone for good",
				strings.TrimSuffix(resource, "s"), kind.NameIn(first.Namespace, first.Name), first.Finalizers)
		}
	}
}

func (u *uninstall) removeOne(ctx context.Context, o *metav1.PartialObjectMetadata) error {
	if o.DeletionTimestamp == nil {
		return client.IgnoreNotFound(u.client.Delete(ctx, o))
	}
	if !u.abandon || len(o.Finalizers) == 0 {
		return nil
	}
	before := o.DeepCopy()
	o.Finalizers = nil
	err := u.client.Patch(ctx, o, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if kubeclient.IsMissing(err) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// kubernetes is a client for what only a Kubernetes has; nil on the embedded API.
func (u *uninstall) kubernetes() (kubernetes.Interface, error) {
	cfg, err := u.cluster.config()
	if err != nil {
		return nil, err
	}
	if has, err := kube.HasNodes(cfg); err != nil || !has {
		return nil, err
	}
	return kubernetes.NewForConfig(cfg)
}

// clean removes what Ebb wrote to objects that are not its own. Objects in its namespace are deleted with the namespace.
func (u *uninstall) clean(ctx context.Context, kube kubernetes.Interface) error {
	if err := u.uncordon(ctx, kube); err != nil {
		return err
	}
	if err := removeGuards(ctx, kube); err != nil {
		return err
	}
	return removeRequests(ctx, kube)
}

// uncordon lifts the cordons that Ebb made on core Nodes, and removes its annotations from them. The cordon of a person stays.
func (u *uninstall) uncordon(ctx context.Context, clients kubernetes.Interface) error {
	nodes := clients.CoreV1().Nodes()
	list, err := nodes.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list core Nodes: %w", err)
	}
	for i := range list.Items {
		name := list.Items[i].Name
		err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			n, err := nodes.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return client.IgnoreNotFound(err)
			}
			if !strip(n) {
				return nil
			}
			if _, err := nodes.Update(ctx, n, metav1.UpdateOptions{}); err != nil {
				return client.IgnoreNotFound(err)
			}
			fmt.Fprintf(u.out, "removed what Ebb wrote to core Node %s\n", name)
			return nil
		})
		if err != nil {
			return fmt.Errorf("core Node %s: %w", name, err)
		}
	}
	return nil
}

// strip removes the cordon and the annotations of Ebb from a core Node, and reports whether there were any.
func strip(n *corev1.Node) bool {
	if owners := v1alpha1.CordonOwners(n); len(owners) > 0 && !slices.Contains(owners, v1alpha1.CordonPerson) {
		cordon.Set(n, false)
	}
	before := len(n.Annotations)
	maps.DeleteFunc(n.Annotations, func(key, _ string) bool { return strings.HasPrefix(key, v1alpha1.GroupVersion.Group+"/") })
	return len(n.Annotations) < before
}

// removeGuards deletes the guards, which would hold `kubectl drain` until the namespace is deleted. No work is left that needs them.
func removeGuards(ctx context.Context, clients kubernetes.Interface) error {
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
	if err := clients.PolicyV1().PodDisruptionBudgets(manifests.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: kube.GuardLabel}); err != nil {
		return fmt.Errorf("budgets of guards: %w", err)
	}
	for _, label := range []string{kube.GuardLabel, kube.SensorLabel} {
		if err := clients.CoreV1().Pods(manifests.Namespace).DeleteCollection(ctx, now, metav1.ListOptions{LabelSelector: label}); err != nil {
			return fmt.Errorf("guards: %w", err)
		}
	}
	return nil
}

// removeRequests deletes the signing requests of nodes, which are in no namespace.
func removeRequests(ctx context.Context, kube kubernetes.Interface) error {
	for _, name := range []string{signer.SignerName, signer.ClientSignerName} {
		selector := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.signerName", name).String()}
		if err := kube.CertificatesV1().CertificateSigningRequests().DeleteCollection(ctx, metav1.DeleteOptions{}, selector); err != nil {
			return fmt.Errorf("signing requests of %s: %w", name, err)
		}
	}
	return nil
}
