package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed"
	"github.com/ebb-dev/ebb/internal/deployment"
	"github.com/ebb-dev/ebb/internal/etcdcluster"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// fenced are the blocks of a language in a Markdown text.
func fenced(text, language string) []string {
	var blocks []string
	for {
		_, rest, ok := strings.Cut(text, "\n```"+language+"\n")
		if !ok {
			return blocks
		}
		block, after, _ := strings.Cut(rest, "\n```\n")
		blocks = append(blocks, block+"\n")
		text = "\n" + after
	}
}

// documented is a page whose manifests are of one kind.
type documented struct {
	page, kind string
	least      int
	// stored checks a manifest that the API has accepted.
	stored func(t *testing.T, c client.Client, manifest string, key types.NamespacedName)
}

// `ebb apply` tries every manifest without effect before it applies any.
func TestTheManifestsInTheDocumentationAreAccepted(t *testing.T) {
	beside(t, light)
	api, ebb := testenv.StartAPI(t), testenv.Ebb(t)
	c := api.Admin()
	for _, d := range []documented{
		{"deployments.md", "deployment", 4, deploymentStored}, {"changefeeds.md", "changefeed", 2, changefeedStored}, {"etcd-clusters.md", "etcdcluster", 2, etcdClusterStored},
		{"volumes.md", "volume", 2, volumeStored},
	} {
		text, err := os.ReadFile(filepath.Join("..", "..", "docs", d.page))
		if err != nil {
			t.Fatal(err)
		}
		blocks := fenced(string(text), "yaml")
		if len(blocks) < d.least {
			t.Errorf("only %d manifests were found in %s", len(blocks), d.page)
		}
		for i, block := range blocks {
			t.Run(fmt.Sprintf("%s %d", d.page, i+1), func(t *testing.T) {
				named := read[struct{ Metadata types.NamespacedName }](t, block).Metadata
				if named.Namespace == "" {
					named.Namespace = "default"
				}
				ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: named.Namespace}}
				if err := c.Create(context.Background(), ns); client.IgnoreAlreadyExists(err) != nil {
					t.Fatal(err)
				}
				cmd := exec.Command(ebb, "apply", "--kubeconfig", api.Dir.Kubeconfig(), "-f", "-")
				cmd.Stdin = strings.NewReader(block)
				out, err := cmd.CombinedOutput()
				if want := d.kind + "/" + named.Name + " applied\n"; err != nil || string(out) != want {
					t.Fatalf("%v\n%s\nof\n%s", err, out, block)
				}
				d.stored(t, c, block, named)
			})
		}
	}
}

// read reads a manifest as far as its fields are known.
func read[T any](t *testing.T, manifest string) T {
	t.Helper()
	var v T
	if err := yaml.Unmarshal([]byte(manifest), &v); err != nil {
		t.Fatalf("%v in\n%s", err, manifest)
	}
	return v
}

func deploymentStored(t *testing.T, c client.Client, manifest string, key types.NamespacedName) {
	d := &v1alpha1.Deployment{}
	if err := c.Get(context.Background(), key, d); err != nil {
		t.Fatal(err)
	}
	want := read[struct {
		Spec struct{ Type v1alpha1.DeploymentType }
	}](t, manifest).Spec.Type
	if want != "" && d.Spec.Type != want {
		t.Errorf("stored with type %q", d.Spec.Type)
	}
	if code, message := deployment.Check(d); code != "" {
		t.Errorf("%s: %s", code, message)
	}
}

func changefeedStored(t *testing.T, _ client.Client, manifest string, _ types.NamespacedName) {
	cf := read[v1alpha1.Changefeed](t, manifest)
	if err := changefeed.Validate(&cf.Spec); err != nil {
		t.Errorf("%s: %v", cf.Name, err)
	}
}

func etcdClusterStored(t *testing.T, _ client.Client, manifest string, _ types.NamespacedName) {
	ec := read[v1alpha1.EtcdCluster](t, manifest)
	if ec.Spec.Schedule == nil {
		return
	}
	if _, err := etcdcluster.Due(&ec, time.Now()); err != nil {
		t.Errorf("%s: %v", ec.Name, err)
	}
}

// volumeStored checks that a documented volume says all that a Volume needs: its defaults are in the schema.
func volumeStored(t *testing.T, c client.Client, _ string, key types.NamespacedName) {
	t.Helper()
	v := &v1alpha1.Volume{}
	if err := c.Get(t.Context(), key, v); err != nil {
		t.Fatal(err)
	}
	if v.Spec.Size.Value() <= 0 || v.Spec.Replicas < 1 || v.Spec.NodeAntiAffinity == "" || v.Spec.DiskAntiAffinity == "" {
		t.Errorf("it is stored as %+v", v.Spec)
	}
}
