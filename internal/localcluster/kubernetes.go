package localcluster

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/config"
	"github.com/ebb-dev/ebb/internal/atomicfile"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/pki"
)

// useKubernetes prepares a Kubernetes in place of an API server of the cluster's own: it copies the credentials into the data directory, creates what
// is missing of Ebb's types and its namespace, and issues what the nodes know each other by.
func (c *Cluster) useKubernetes(ctx context.Context) error {
	ca, err := pki.LoadOrCreate(c.opts.Dir.PKI()) // first: from then on the files in the directory are Ebb's
	if err != nil {
		return err
	}
	cfg, err := c.copyKubeconfig()
	if err != nil {
		return err
	}
	if c.client, err = kubeclient.New(cfg); err != nil {
		return err
	}
	if err := c.createTypes(ctx, cfg); err != nil {
		return err
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: lease.Namespace}}
	if err := client.IgnoreAlreadyExists(c.client.Create(ctx, namespace)); err != nil {
		return fmt.Errorf("create namespace %s: %w", lease.Namespace, err)
	}
	// Where Ebb is installed, its policies refuse everything while there is no Term.
	term := &v1alpha1.Term{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.TermName}}
	if err := client.IgnoreAlreadyExists(c.client.Create(ctx, term)); err != nil {
		return fmt.Errorf("create Term %s: %w", v1alpha1.TermName, err)
	}
	return c.opts.Dir.IssueShared(ca)
}

// copyKubeconfig writes the credentials, with everything that they name in other files, where all commands look for them.
func (c *Cluster) copyKubeconfig() (*rest.Config, error) {
	own := c.opts.Dir.Kubeconfig()
	cfg, err := clientcmd.LoadFromFile(c.opts.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", c.opts.Kubeconfig, err)
	}
	if err := clientcmd.ResolveLocalPaths(cfg); err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", c.opts.Kubeconfig, err)
	}
	data, err := clientcmd.Write(*cfg)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", c.opts.Kubeconfig, err)
	}
	if err := atomicfile.WriteSecret(own, data); err != nil {
		return nil, err
	}
	return kubeclient.Load(own)
}

// createTypes creates the missing types of Ebb. Those that are there stay as they are: others may use them.
func (c *Cluster) createTypes(ctx context.Context, cfg *rest.Config) error {
	typed, err := crdclient.NewForConfig(cfg)
	if err != nil {
		return err
	}
	want, err := config.CRDs()
	if err != nil {
		return err
	}
	created := 0
	for _, crd := range want {
		_, err := typed.CustomResourceDefinitions().Create(ctx, crd, metav1.CreateOptions{})
		if err == nil {
			created++
		} else if !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create %s: %w", crd.Name, err)
		}
	}
	if created > 0 {
		c.say("created %s of Ebb", plural(created, "type"))
	}
	return c.await(ctx, "the types of Ebb", nil, func() error {
		for _, crd := range want {
			current, err := typed.CustomResourceDefinitions().Get(ctx, crd.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if !established(current) {
				return fmt.Errorf("%s is not served yet", crd.Name)
			}
		}
		return c.client.List(ctx, &v1alpha1.TermList{})
	})
}

func established(crd *apiextensionsv1.CustomResourceDefinition) bool {
	return slices.ContainsFunc(crd.Status.Conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
		return c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
	})
}
