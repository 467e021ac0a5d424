package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	apimeta "k8s.io/apimachinery/pkg/api/meta"

	"github.com/ebb-dev/ebb/internal/atomicfile"
	"github.com/ebb-dev/ebb/internal/drainconfig"
	"github.com/ebb-dev/ebb/internal/manifests"
)

func newManifests() *cobra.Command {
	o := manifests.Options{Objects: kinds.Objects(), Version: version}
	var dir, drainConfig, drainResource string
	var drainCluster bool
	cmd := &cobra.Command{
		Use:   "manifests [--image IMAGE]",
		Short: "Print what installs Ebb on a Kubernetes cluster",
		Long: `Print the YAML that installs Ebb on a Kubernetes cluster: the types, the namespace ebb-system, service accounts, RBAC, admission policies, the
DaemonSet of the nodes and the Deployment of the signer. It is config/kubernetes with this version and an image filled in.

With --drain-config it also prints what the custom drain of that file needs: the Role for its custom resources, or a ClusterRole if they are in no
namespace, the right to list pods, and the policy that lets only the coordinator write them.`,
		Example: `  ebb manifests --image registry.example/ebb:v1 | kubectl apply --server-side -f -
  ebb manifests --drain-config drain.toml | kubectl apply --server-side -f -`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dir != "" {
				return writeManifests(dir)
			}
			var err error
			if o.CustomDrain, err = customDrainOf(drainConfig, drainResource, drainCluster); err != nil {
				return err
			}
			data, err := manifests.All(o)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(data)
			return err
		},
	}
	cmd.Flags().StringVar(&o.Image, "image", manifests.DefaultImage, "image of the nodes and of the signer")
	cmd.Flags().StringVar(&drainConfig, "drain-config", "", "TOML file of --drain-config of the nodes, for the roles of its custom drain")
	cmd.Flags().StringVar(&drainResource, "drain-resource", "", "plural name of the custom resource in the API (default: the plural of its kind)")
	cmd.Flags().BoolVar(&drainCluster, "drain-cluster-scoped", false, "the custom resource is in no namespace")
	cmd.Flags().StringVar(&dir, "write", "", "directory to write the files of config/kubernetes to")
	_ = cmd.Flags().MarkHidden("write") // for make generate
	return cmd
}

// customDrainOf is what the custom drain of a file creates, or nil if it has none. The template is read by the nodes only.
func customDrainOf(path, resource string, clusterScoped bool) (*manifests.CustomDrain, error) {
	if path == "" {
		return nil, nil
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--drain-config: %w", err)
	}
	config, err := drainconfig.Parse(path, data)
	if err != nil || config.CustomDrain == nil {
		return nil, err
	}
	c := &manifests.CustomDrain{Group: config.CustomDrain.GVK.Group, Resource: resource, Namespace: config.CustomDrain.Namespace}
	if c.Resource == "" {
		plural, _ := apimeta.UnsafeGuessKindToResource(config.CustomDrain.GVK)
		c.Resource = plural.Resource
	}
	if clusterScoped {
		c.Namespace = ""
	}
	return c, nil
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
