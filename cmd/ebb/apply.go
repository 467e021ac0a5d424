package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func newApply() *cobra.Command {
	var c cluster
	var out output
	var files []string
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Create or change objects from manifests",
		Long: `Create or change objects from manifests, as kubectl apply --server-side does. Every manifest is tried without effect
first: if one is refused, none is applied.`,
		Example: "  ebb apply -f drain.yaml\n  cat drain.yaml | ebb apply -f -",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			objects, err := readManifests(files, cmd.InOrStdin())
			if err != nil {
				return err
			}
			cfg, err := c.config()
			if err != nil {
				return err
			}
			cl, err := client.New(cfg, client.Options{})
			if err != nil {
				return err
			}
			if err := setNamespaces(cl, objects); err != nil {
				return err
			}
			if err := applyAll(cmd.Context(), cl, objects); err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), objects, func() string { return appliedText(objects) })
		},
	}
	c.addFlags(cmd.Flags())
	out.addFlag(cmd.Flags())
	cmd.Flags().StringSliceVarP(&files, "filename", "f", nil, "file with manifests, or - for standard input; may be repeated")
	_ = cmd.MarkFlagRequired("filename")
	return cmd
}

func readManifests(files []string, stdin io.Reader) ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	for _, file := range files {
		data, err := readFile(file, stdin)
		if err != nil {
			return nil, err
		}
		objects, err := parseManifests(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all = append(all, objects...)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no manifest in %s", strings.Join(files, ", "))
	}
	return all, nil
}

func readFile(file string, stdin io.Reader) ([]byte, error) {
	if file == "-" {
		return io.ReadAll(stdin)
	}
	return os.ReadFile(file)
}

func parseManifests(data []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
	for n := 1; ; n++ {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
		if len(object.Object) == 0 {
			continue
		}
		if object.GetAPIVersion() == "" || object.GetKind() == "" || object.GetName() == "" {
			return nil, fmt.Errorf("document %d: apiVersion, kind and metadata.name are needed", n)
		}
		objects = append(objects, object)
	}
}

// setNamespaces puts objects that live in a namespace and name none into the default one.
func setNamespaces(c client.Client, objects []*unstructured.Unstructured) error {
	for _, object := range objects {
		if object.GetNamespace() != "" {
			continue
		}
		namespaced, err := c.IsObjectNamespaced(object)
		if err != nil {
			return fmt.Errorf("nothing was applied: %s %s: %w", object.GetKind(), object.GetName(), err)
		}
		if namespaced {
			object.SetNamespace("default")
		}
	}
	return nil
}

func applyAll(ctx context.Context, c client.Client, objects []*unstructured.Unstructured) error {
	for _, object := range objects {
		if err := applyOne(ctx, c, object.DeepCopy(), client.DryRunAll); err != nil {
			return fmt.Errorf("nothing was applied: %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	for _, object := range objects {
		if err := applyOne(ctx, c, object); err != nil {
			return fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return nil
}

func applyOne(ctx context.Context, c client.Client, object *unstructured.Unstructured, opts ...client.ApplyOption) error {
	opts = append(opts, client.FieldOwner("ebb-apply"), client.ForceOwnership)
	return c.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), opts...)
}

func appliedText(objects []*unstructured.Unstructured) string {
	var b strings.Builder
	for _, object := range objects {
		fmt.Fprintf(&b, "%s/%s applied\n", strings.ToLower(object.GetKind()), object.GetName())
	}
	return b.String()
}
