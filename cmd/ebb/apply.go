package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
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
		Long: `Create or change objects from manifests, like kubectl apply --server-side. The command first sends every manifest as a dry run: if
one is refused, none is applied. A List is split into its items, so that the output of kubectl get -o yaml can be applied. A
namespace among the manifests is created before the dry run of the others.`,
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
	cmd.Flags().StringSliceVarP(&files, "filename", "f", nil, "file with manifests, or - for standard input; can be repeated")
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
		if object.IsList() {
			items, err := listed(object)
			if err != nil {
				return nil, fmt.Errorf("document %d: %w", n, err)
			}
			objects = append(objects, items...)
			continue
		}
		if object.GetAPIVersion() == "" || object.GetKind() == "" || object.GetName() == "" {
			return nil, fmt.Errorf("document %d: apiVersion, kind and metadata.name are required", n)
		}
		objects = append(objects, object)
	}
}

// listed returns the objects in a List, as `kubectl get -o yaml` prints it.
func listed(list *unstructured.Unstructured) ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	err := list.EachListItem(func(o runtime.Object) error {
		object, ok := o.(*unstructured.Unstructured)
		if !ok || object.GetAPIVersion() == "" || object.GetKind() == "" || object.GetName() == "" {
			return fmt.Errorf("item %d: apiVersion, kind and metadata.name are required", len(all)+1)
		}
		forget(object)
		all = append(all, object)
		return nil
	})
	return all, err
}

// forget removes the fields that the server sets, and those that would make applying the object fail.
func forget(object *unstructured.Unstructured) {
	object.SetManagedFields(nil)
	object.SetResourceVersion("")
	object.SetUID("")
	unstructured.RemoveNestedField(object.Object, "metadata", "creationTimestamp")
	unstructured.RemoveNestedField(object.Object, "metadata", "generation")
	unstructured.RemoveNestedField(object.Object, "status")
}

// setNamespaces sets the default namespace on namespaced objects without one.
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

// applyAll applies namespaces before the dry run of the objects that may be in them.
func applyAll(ctx context.Context, c client.Client, objects []*unstructured.Unstructured) error {
	var namespaces, others []*unstructured.Unstructured
	for _, object := range objects {
		if object.GetAPIVersion() == "v1" && object.GetKind() == "Namespace" {
			namespaces = append(namespaces, object)
		} else {
			others = append(others, object)
		}
	}
	done := "nothing was"
	for _, batch := range [][]*unstructured.Unstructured{namespaces, others} {
		if err := applyBatch(ctx, c, batch, done); err != nil {
			return err
		}
		if len(batch) > 0 {
			done = "only namespaces were"
		}
	}
	return nil
}

func applyBatch(ctx context.Context, c client.Client, objects []*unstructured.Unstructured, done string) error {
	for _, object := range objects {
		if err := applyOne(ctx, c, object.DeepCopy(), client.DryRunAll); err != nil {
			return fmt.Errorf("%s applied: %s %s: %w", done, object.GetKind(), object.GetName(), err)
		}
	}
	for i, object := range objects {
		if err := applyOne(ctx, c, object); err != nil {
			return fmt.Errorf("%s %s, after %d of %d objects were applied: %w", object.GetKind(), object.GetName(), i, len(objects), err)
		}
	}
	return nil
}

func applyOne(ctx context.Context, c client.Client, object *unstructured.Unstructured, opts ...client.ApplyOption) error {
	opts = append(opts, client.FieldOwner("ebb-apply"), client.ForceOwnership)
	return readable(c.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), opts...))
}

// The API's message about a value that does not fit the schema begins with what the API was doing, and may end with its own representation of
// the value.
var (
	typedPatch     = regexp.MustCompile(`^failed to create typed patch object \(.*?\): `)
	representation = regexp.MustCompile(`, got &(?:value\.valueUnstructured\{Value:|\{)(.*)\}$`)
)

// readable rewrites messages that only developers of the server understand.
func readable(err error) error {
	if err == nil || !typedPatch.MatchString(err.Error()) {
		return err
	}
	text := typedPatch.ReplaceAllString(err.Error(), "")
	if m := representation.FindStringSubmatch(text); m != nil {
		value := m[1]
		switch {
		case strings.HasPrefix(value, "[]interface {}"):
			value = "a list"
		case strings.HasPrefix(value, "map[string]interface {}"):
			value = "an object"
		}
		text = strings.TrimSuffix(text, m[0]) + ", got " + value
	}
	return errors.New(text)
}

func appliedText(objects []*unstructured.Unstructured) string {
	var b strings.Builder
	for _, object := range objects {
		fmt.Fprintf(&b, "%s/%s applied\n", strings.ToLower(object.GetKind()), object.GetName())
	}
	return b.String()
}
