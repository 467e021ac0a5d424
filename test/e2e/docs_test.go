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

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"

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

// `ebb apply` tries every manifest without effect before it applies any.
func TestTheManifestsInTheDocumentationAreAccepted(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "deployments.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := fenced(string(text), "yaml")
	if len(blocks) < 4 {
		t.Fatalf("only %d manifests were found", len(blocks))
	}
	api := testenv.StartAPI(t)
	ebb, c := testenv.Ebb(t), api.Admin()
	for i, block := range blocks {
		t.Run(fmt.Sprint(i+1), func(t *testing.T) {
			var named struct {
				Metadata struct{ Namespace, Name string }
				Spec     struct{ Type v1alpha1.DeploymentType }
			}
			if err := yaml.Unmarshal([]byte(block), &named); err != nil {
				t.Fatalf("%v in\n%s", err, block)
			}
			cmd := exec.Command(ebb, "apply", "--kubeconfig", api.Dir.Kubeconfig(), "-f", "-")
			cmd.Stdin = strings.NewReader(block)
			out, err := cmd.CombinedOutput()
			if want := "deployment/" + named.Metadata.Name + " applied\n"; err != nil || string(out) != want {
				t.Fatalf("%v\n%s\nof\n%s", err, out, block)
			}
			key := types.NamespacedName{Namespace: named.Metadata.Namespace, Name: named.Metadata.Name}
			if key.Namespace == "" {
				key.Namespace = "default"
			}
			d := &v1alpha1.Deployment{}
			if err := c.Get(context.Background(), key, d); err != nil {
				t.Fatal(err)
			}
			if named.Spec.Type != "" && d.Spec.Type != named.Spec.Type {
				t.Errorf("stored with type %q", d.Spec.Type)
			}
			if code, message := deployment.Check(d); code != "" {
				t.Errorf("%s: %s", code, message)
			}
		})
	}
}

func TestTheManifestsOfChangefeedsAreAccepted(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "changefeeds.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := fenced(string(text), "yaml")
	if len(blocks) < 2 {
		t.Fatalf("only %d manifests were found", len(blocks))
	}
	api := testenv.StartAPI(t)
	for _, block := range blocks {
		cf := &v1alpha1.Changefeed{}
		if err := yaml.Unmarshal([]byte(block), cf); err != nil {
			t.Fatalf("%v in\n%s", err, block)
		}
		if err := changefeed.Validate(&cf.Spec); err != nil {
			t.Errorf("%s: %v", cf.Name, err)
		}
		cmd := exec.Command(testenv.Ebb(t), "apply", "--kubeconfig", api.Dir.Kubeconfig(), "-f", "-")
		cmd.Stdin = strings.NewReader(block)
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != "changefeed/"+cf.Name+" applied\n" {
			t.Errorf("%v\n%s\nof\n%s", err, out, block)
		}
	}
}

func TestTheManifestsOfEtcdClustersAreAccepted(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "etcd-clusters.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := fenced(string(text), "yaml")
	if len(blocks) < 2 {
		t.Fatalf("only %d manifests were found", len(blocks))
	}
	api := testenv.StartAPI(t)
	for _, block := range blocks {
		ec := &v1alpha1.EtcdCluster{}
		if err := yaml.Unmarshal([]byte(block), ec); err != nil {
			t.Fatalf("%v in\n%s", err, block)
		}
		if ec.Spec.Schedule != nil {
			if _, err := etcdcluster.Due(ec, time.Now()); err != nil {
				t.Errorf("%s: %v", ec.Name, err)
			}
		}
		cmd := exec.Command(testenv.Ebb(t), "apply", "--kubeconfig", api.Dir.Kubeconfig(), "-f", "-")
		cmd.Stdin = strings.NewReader(block)
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != "etcdcluster/"+ec.Name+" applied\n" {
			t.Errorf("%v\n%s\nof\n%s", err, out, block)
		}
	}
}
