package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	apimeta "k8s.io/apimachinery/pkg/api/meta"

	"github.com/ebb-dev/ebb/internal/atomicfile"
	"github.com/ebb-dev/ebb/internal/drainconfig"
	"github.com/ebb-dev/ebb/internal/health"
	"github.com/ebb-dev/ebb/internal/manifests"
)

func newManifests() *cobra.Command {
	o := manifests.Options{Objects: kinds.Objects(), Version: version}
	var dir, drains, template, drainResource string
	var drainCluster bool
	cmd := &cobra.Command{
		Use:   "manifests [--image IMAGE]",
		Short: "Print what installs Ebb on a Kubernetes cluster",
		Long: `Print the YAML that installs Ebb on a Kubernetes cluster: the types, the namespace ebb-system, service accounts, RBAC, admission policies, the
DaemonSet of the nodes and the Deployment of the signer. It is config/kubernetes with this version and an image filled in.

With --drain-config the file (docs/pods.md) is put into a ConfigMap that the nodes read at their start, and the admission policies get its
systemNamespaces. If it has a custom drain, what that needs is printed too: the Role for its custom resources, or a ClusterRole if they are in no
namespace, and the policy that lets only the coordinator write them. Its template is put into a ConfigMap, too, and mounted where the file says that it is;
--drain-template names it if it is elsewhere on this machine.`,
		Example: `  ebb manifests --image registry.example/ebb:v1 | kubectl apply --server-side -f -
  ebb manifests --drain-config drain.toml | kubectl apply --server-side -f -
  ebb manifests --drain-config drain.toml --drain-template drain-template.yaml | kubectl apply --server-side -f -`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dir != "" {
				return writeManifests(dir)
			}
			if err := readDrainConfig(drains, template, &o); err != nil {
				return err
			}
			o.CustomDrain = customDrainOf(o.Drains, drainResource, drainCluster)
			data, err := manifests.All(o)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(data)
			return err
		},
	}
	cmd.Flags().StringVar(&o.Image, "image", manifests.DefaultImage, "image of the nodes and of the signer")
	cmd.Flags().StringVar(&drains, "drain-config", "", "TOML file about drains, for the nodes (docs/pods.md)")
	cmd.Flags().StringVar(&template, "drain-template", "", "template of the custom drain (default: where --drain-config says that it is)")
	cmd.Flags().StringVar(&drainResource, "drain-resource", "", "plural name of the custom resource in the API (default: the plural of its kind)")
	cmd.Flags().BoolVar(&drainCluster, "drain-cluster-scoped", false, "the custom resource is in no namespace")
	cmd.Flags().StringVar(&dir, "write", "", "directory to write the files of config/kubernetes to")
	_ = cmd.Flags().MarkHidden("write") // for make generate
	return cmd
}

// readDrainConfig reads the file of --drain-config, and the template if it has a custom drain. What the nodes would refuse at their start is refused.
func readDrainConfig(path, template string, o *manifests.Options) (err error) {
	if path == "" {
		if template != "" {
			return errors.New("--drain-template needs --drain-config")
		}
		return nil
	}
	if o.DrainConfig, err = os.ReadFile(path); err != nil {
		return fmt.Errorf("--drain-config: %w", err)
	}
	if o.Drains, err = drainconfig.Parse(path, o.DrainConfig); err != nil {
		return err
	}
	if c := o.Drains.CustomDrain; c != nil {
		if err := manifests.CheckTemplate(c); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		text, err := os.ReadFile(cmp.Or(template, c.TemplatePath))
		if err != nil {
			return fmt.Errorf("%s: the template of the custom drain: %w; --drain-template names it on this machine", path, err)
		}
		c.Template = string(text)
	} else if template != "" {
		return fmt.Errorf("--drain-template: %s has no custom drain that is enabled", path)
	}
	_, err = health.Prepare(o.Drains)
	return err
}

// customDrainOf is what the custom drain of a file creates, or nil if it has none.
func customDrainOf(config *drainconfig.Config, resource string, clusterScoped bool) *manifests.CustomDrain {
	if config == nil || config.CustomDrain == nil {
		return nil
	}
	c := &manifests.CustomDrain{Group: config.CustomDrain.GVK.Group, Resource: resource, Namespace: config.CustomDrain.Namespace}
	if c.Resource == "" {
		plural, _ := apimeta.UnsafeGuessKindToResource(config.CustomDrain.GVK)
		c.Resource = plural.Resource
	}
	if clusterScoped {
		c.Namespace = ""
	}
	return c
}

// writeManifests writes config/kubernetes, which names no version.
func writeManifests(dir string) error {
	files, err := manifests.Files(manifests.Options{Objects: kinds.Objects(), Image: manifests.DefaultImage})
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := atomicfile.Write(filepath.Join(dir, f.Name), f.Data, 0o644); err != nil {
			return fmt.Errorf("manifests: %w", err)
		}
	}
	return nil
}
