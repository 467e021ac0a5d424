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
		Short: "Print the manifests that install Ebb on a Kubernetes cluster",
		Long: `Print the manifests that install Ebb on a Kubernetes cluster: the CRDs, the namespace ebb-system, service accounts, RBAC, admission policies, the
DaemonSet of the nodes and the Deployment of the signer. They are those of config/kubernetes, with this version and the image filled in.

With --drain-config, the manifests include a ConfigMap with the file (docs/pods.md), which the nodes read at their start, and the admission policies
use its systemNamespaces. If the file configures a custom drain, they also include the Role for its custom resources (a ClusterRole if these are
cluster-scoped), the policy that lets only the coordinator write them, and a ConfigMap with its template, which is mounted at the path in the file.
--drain-template names the template if it is elsewhere on this machine.`,
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
	cmd.Flags().StringVar(&drains, "drain-config", "", "TOML file that configures drains, for the nodes (docs/pods.md)")
	cmd.Flags().StringVar(&template, "drain-template", "", "template of the custom drain (default: the path in --drain-config)")
	cmd.Flags().StringVar(&drainResource, "drain-resource", "", "plural name of the custom resource in the API (default: the plural of its kind)")
	cmd.Flags().BoolVar(&drainCluster, "drain-cluster-scoped", false, "the custom resource is cluster-scoped")
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
