package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/shortname"
	"github.com/ebb-dev/ebb/internal/testenv"
	"github.com/ebb-dev/ebb/internal/testenv/need"
)

// remains is what a test that failed leaves of its cluster: a directory with what every process printed and every object.
type remains struct {
	mu      sync.Mutex
	dir     string
	objects bool          // have been asked for
	used    time.Duration // of the processors, by all processes that have ended
}

// keep writes down every object, if the test has failed. Nothing has been stopped yet when it is first called.
func (c *cluster) keep() {
	c.kept.mu.Lock()
	defer c.kept.mu.Unlock()
	if !c.whole.Failed() || c.kept.objects {
		return
	}
	c.kept.objects = true
	if err := c.keepObjects(c.remainsDir("objects")); err != nil {
		c.whole.Logf("not all objects could be kept: %v", err)
	}
}

// keepOutput writes down what a process printed, if the test has failed.
func (c *cluster) keepOutput(name, text string) {
	c.kept.mu.Lock()
	defer c.kept.mu.Unlock()
	if !c.whole.Failed() {
		return
	}
	if need.OnCI() { // where nobody can look into a directory afterwards
		c.whole.Logf("%s:\n%s", name, gist(text))
	}
	dir := c.remainsDir("logs")
	for i := 1; ; i++ {
		file, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("%s.%d.log", fileName(name), i)), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if os.IsExist(err) {
			continue
		}
		if err == nil {
			_, err = file.WriteString(text)
			file.Close()
		}
		if err != nil {
			c.whole.Logf("%s could not be kept: %v", name, err)
		}
		return
	}
}

// gist is what a reader of CI's output needs of a log to begin with, in few enough lines that what failed is not lost among them: the first
// warning or error of each sort, and how it ended.
func gist(text string) string {
	const loud, last, width = 6, 2, 240
	lines := strings.Split(strings.TrimSpace(text), "\n")
	var kept []string
	seen, omitted := map[string]bool{}, 0
	for i, line := range lines {
		sort := sortOfLine.FindString(line)
		switch isNew := sort != "" && !seen[sort]; {
		case i >= len(lines)-last:
		case isNew && len(seen) < loud:
			seen[sort] = true
		default:
			omitted++
			continue
		}
		if omitted > 0 {
			kept = append(kept, fmt.Sprintf("… %d more", omitted))
			omitted = 0
		}
		kept = append(kept, line[:min(len(line), width)])
	}
	return strings.Join(kept, "\n")
}

// sortOfLine is what warnings and errors of one sort have in common.
var sortOfLine = regexp.MustCompile(`level=(WARN|ERROR) msg=("[^"]*"|[^ ]*)`)

var unfit = regexp.MustCompile(`[^a-zA-Z0-9]+`)

// fileName is a name that fits a file: the first words of what was run, without the paths of temporary directories.
func fileName(text string) string {
	words := strings.Fields(text)
	if at := slices.Index(words, "--data-dir"); at >= 0 {
		words = words[:at]
	}
	return shortname.Fit(strings.Trim(unfit.ReplaceAllString(strings.Join(words, "-"), "-"), "-"), 100)
}

// remainsDir is a directory below the one that is kept, which it names when it is made.
func (c *cluster) remainsDir(part string) string {
	if c.kept.dir == "" {
		parent := os.Getenv("EBB_ARTIFACTS")
		if parent == "" {
			parent = os.TempDir()
		}
		_ = os.MkdirAll(parent, 0o700) // or the next line says why not
		dir, err := os.MkdirTemp(parent, "ebb-"+fileName(c.whole.Name())+"-")
		if err != nil {
			c.whole.Errorf("nothing can be kept of the cluster: %v", err)
			dir = c.whole.TempDir()
		}
		c.kept.dir = dir
		c.whole.Logf("the cluster's logs and objects are in %s", dir)
	}
	dir := filepath.Join(c.kept.dir, part)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		c.whole.Errorf("keep %s: %v", part, err)
	}
	return dir
}

// keepObjects writes every object that there is, in a file for each kind.
func (c *cluster) keepObjects(dir string) error {
	if c.client == nil {
		return fmt.Errorf("the API server never answered")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, gvk := range keptKinds(c.client) {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(gvk)
		if err := c.client.List(ctx, list); err != nil {
			return fmt.Errorf("list %s: %w", gvk.Kind, err)
		}
		var text strings.Builder
		for _, item := range list.Items {
			part, err := yaml.Marshal(item.Object)
			if err != nil {
				return err
			}
			fmt.Fprintf(&text, "---\n%s", part)
		}
		name := strings.ToLower(strings.TrimSuffix(gvk.Kind, "List")) + ".yaml"
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text.String()), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// keptKinds are the lists of all kinds of Ebb's, of Leases and of Events.
func keptKinds(c client.Client) []schema.GroupVersionKind {
	kinds := []schema.GroupVersionKind{
		coordinationv1.SchemeGroupVersion.WithKind("LeaseList"), eventsv1.SchemeGroupVersion.WithKind("EventList"),
	}
	for kind := range c.Scheme().KnownTypes(v1alpha1.GroupVersion) {
		if strings.HasSuffix(kind, "List") {
			kinds = append(kinds, v1alpha1.GroupVersion.WithKind(kind))
		}
	}
	slices.SortFunc(kinds, func(a, b schema.GroupVersionKind) int { return strings.Compare(a.Kind, b.Kind) })
	return kinds
}

// onPurpose makes TestEndsOnPurpose do something; its value is how it ends.
const onPurpose = "EBB_E2E_ENDS"

// TestEndsOnPurpose is run by the test below, in a process of its own.
func TestEndsOnPurpose(t *testing.T) {
	how := os.Getenv(onPurpose)
	if how == "" {
		t.Skip("a part of TestATestThatFailsLeavesItsClusterBehind")
	}
	c := startCluster(t, testenv.Ebb(t), 1)
	t.Run("a step", func(t *testing.T) {
		c.t = t
		if how == "fail" {
			t.Error("on purpose")
		}
	})
	c.t = t
}

func TestATestThatFailsLeavesItsClusterBehind(t *testing.T) {
	beside(t, light)
	for how, want := range map[string][]string{
		"pass": nil,
		"fail": {
			"logs/apiserver-of-ebb-up.1.log", "logs/ebb-up-nodes-1.1.log", "logs/n1-of-ebb-up.1.log", "objects/changefeed.yaml", "objects/deployment.yaml",
			"objects/drain.yaml", "objects/etcdcluster.yaml", "objects/etcdmember.yaml", "objects/etcdsnapshot.yaml", "objects/event.yaml",
			"objects/healthevent.yaml", "objects/lease.yaml", "objects/node.yaml", "objects/replica.yaml", "objects/settings.yaml", "objects/term.yaml", "objects/volume.yaml",
		},
	} {
		kept := t.TempDir()
		cmd := exec.Command(os.Args[0], "-test.run", "^TestEndsOnPurpose$", "-test.v")
		cmd.Env = append(os.Environ(), onPurpose+"="+how, "EBB_ARTIFACTS="+kept)
		out, err := cmd.CombinedOutput()
		if (err != nil) != (how == "fail") {
			t.Fatalf("%s: %v\n%s", how, err, out)
		}
		dirs, err := filepath.Glob(filepath.Join(kept, "ebb-TestEndsOnPurpose-*"))
		if err != nil || len(dirs) != min(len(want), 1) {
			t.Fatalf("%s: it left %v\n%s", how, dirs, out)
		}
		if how == "pass" {
			continue
		}
		if line := "the cluster's logs and objects are in " + dirs[0]; !strings.Contains(string(out), line) {
			t.Errorf("it does not say %q:\n%s", line, out)
		}
		var got []string
		if err := filepath.WalkDir(dirs[0], func(path string, d os.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				name, _ := filepath.Rel(dirs[0], path)
				got = append(got, name)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("it left\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		for file, text := range map[string]string{"objects/lease.yaml": "name: node-n1", "objects/node.yaml": "name: n1", "logs/ebb-up-nodes-1.1.log": "ready"} {
			if data, err := os.ReadFile(filepath.Join(dirs[0], file)); err != nil || !strings.Contains(string(data), text) {
				t.Errorf("%s does not say %q: %v\n%s", file, text, err, data)
			}
		}
	}
}
