package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ebb-dev/ebb/config"
	"github.com/ebb-dev/ebb/internal/access"
	"github.com/ebb-dev/ebb/internal/manifests"
)

var kubernetesDir = filepath.Join("..", "..", "config", "kubernetes")

func TestTheManifestsInTheRepositoryAreWhatIsGenerated(t *testing.T) {
	files, err := manifests.Files(manifests.Options{Objects: kinds.Objects(), Image: manifests.DefaultImage})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		have, err := os.ReadFile(filepath.Join(kubernetesDir, f.Name))
		if err != nil || string(have) != string(f.Data) {
			t.Errorf("config/kubernetes/%s is out of date (%v): run `make generate`", f.Name, err)
		}
	}
	if have, err := os.ReadDir(kubernetesDir); err != nil || len(have) != len(files) {
		t.Errorf("config/kubernetes has %d files, %d are generated: %v", len(have), len(files), err)
	}
}

func TestEveryTypeIsInstalledAndNoneThatTheClusterHas(t *testing.T) {
	index, err := os.ReadFile(filepath.Join("..", "..", "config", "crd", "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	crds, err := config.CRDs()
	if err != nil {
		t.Fatal(err)
	}
	for _, crd := range crds {
		if file := "ebb.dev_" + crd.Spec.Names.Plural + ".yaml"; !strings.Contains(string(index), "- "+file+"\n") {
			t.Errorf("config/crd/kustomization.yaml lacks %s", file)
		}
		if crd.Spec.Group != "ebb.dev" {
			t.Errorf("%s is not a type of Ebb", crd.Name)
		}
	}
	if listed := strings.Count(string(index), "\n- "); listed != len(crds) {
		t.Errorf("config/crd/kustomization.yaml lists %d types, there are %d", listed, len(crds))
	}
}

func TestManifestsHaveVersionAndImageFilledIn(t *testing.T) {
	data, err := manifests.All(manifests.Options{Objects: kinds.Objects(), Image: "registry.example/ebb:v9", Version: "v9"})
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	if strings.Count(text, "image: registry.example/ebb:v9\n") != 3 || !strings.Contains(text, "app.kubernetes.io/version: v9\n") || strings.Contains(text, manifests.DefaultImage) {
		t.Error("version and image are not filled in everywhere")
	}
	for _, kind := range []string{"CustomResourceDefinition", "Namespace", "DaemonSet", "Deployment", "ValidatingAdmissionPolicy", "ClusterRole"} {
		if !strings.Contains(text, "\nkind: "+kind+"\n") {
			t.Errorf("no %s", kind)
		}
	}
}

func TestTheFileOfDrainsIsMountedAndItsSystemNamespacesAreEnforced(t *testing.T) {
	file := filepath.Join(t.TempDir(), "drain.toml")
	if err := os.WriteFile(file, []byte("systemNamespaces = '^(a\\.b|c\"d)$'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := manifests.Options{Objects: kinds.Objects(), Image: "ebb"}
	if err := readDrainConfig(file, "", &o); err != nil {
		t.Fatal(err)
	}
	data, err := manifests.All(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"name: ebb-drain-config\n", "- --drain-config=/etc/ebb-drain/drain.toml\n", "mountPath: /etc/ebb-drain\n", `!request.namespace.matches("^(a\\.b|c\"d)$")`} {
		if !strings.Contains(string(data), want) {
			t.Errorf("the manifests lack %s", want)
		}
	}
	if err := os.WriteFile(file, []byte("systemNamespace = 'a'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := readDrainConfig(file, "", &o); err == nil || !strings.Contains(err.Error(), "drain.toml:1: unknown key systemNamespace") {
		t.Errorf("a bad file: %v", err)
	}
}

// A declaration that is checked by code says the same in CEL, or a node on Kubernetes could write everything.
func TestEveryDeclarationHasRules(t *testing.T) {
	for _, o := range kinds.Objects() {
		if o.Node != nil && (len(o.Node.Rules()) < 2 || o.Node.Check != nil && len(o.Node.Policy) == 0) {
			t.Errorf("%s: a node's writes have the rules %v", o.Resource, o.Node.Rules())
		}
	}
	if rules := (&access.NodeWrites{Check: func(context.Context, access.Write) error { return nil }}).Rules(); len(rules) != 1 || rules[0].Expression != "false" {
		t.Errorf("a check without a policy has the rules %v", rules)
	}
}

func TestManifestsOfACustomDrainHaveWhatItNeeds(t *testing.T) {
	file := filepath.Join(t.TempDir(), "drain.toml")
	if err := os.WriteFile(file, []byte("[customDrain]\nenabled = true\nnamespace = \"jobs\"\napiGroup = \"slurm.ebb.dev\"\nkind = \"SlurmDrainRequest\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	render := func(args ...string) string {
		t.Helper()
		cmd := newManifests()
		var out strings.Builder
		cmd.SetOut(&out)
		if len(args) > 0 {
			args = append(args, "--drain-template", "../../examples/slurm/drain-template.yaml")
		}
		cmd.SetArgs(args)
		if err := cmd.Execute(); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	plain := render()
	if strings.Contains(plain, manifests.CustomDrainRole) {
		t.Error("the manifests without a custom drain have its role")
	}
	// added are the documents that are not there without a file.
	added := func(args ...string) string {
		known, more := strings.Split(plain, "\n---\n"), []string(nil)
		for _, document := range strings.Split(render(args...), "\n---\n") {
			if !slices.Contains(known, document) {
				more = append(more, document)
			}
		}
		return strings.Join(more, "\n---\n")
	}
	for _, tc := range []struct {
		args []string
		want []string
	}{
		{[]string{"--drain-config", file}, []string{
			"name: ebb-drain-template\n", "  drain-template.yaml: |\n    apiVersion: slurm.ebb.dev/v1alpha1\n", "mountPath: /etc/drain-templates\n",
			"kind: Role\n", "kind: RoleBinding\n", "namespace: jobs\n", "- slurmdrainrequests\n", "- slurmdrainrequests/status\n", "  - pods\n  verbs:\n  - list\n", "kubernetes.io/metadata.name: jobs\n",
		}},
		{[]string{"--drain-config", file, "--drain-cluster-scoped"}, []string{"kind: ClusterRole\n", "- slurmdrainrequests\n"}},
		{[]string{"--drain-config", file, "--drain-resource", "drains-of-slurm"}, []string{"- drains-of-slurm\n", "- drains-of-slurm/status\n"}},
	} {
		text := added(tc.args...)
		for _, want := range tc.want {
			if !strings.Contains(text, want) {
				t.Errorf("%v: no %q in\n%s", tc.args, want, text)
			}
		}
		if clusterScoped := len(tc.args) == 3; clusterScoped && strings.Contains(text, "kind: Role\n") {
			t.Errorf("%v: a Role\n%s", tc.args, text)
		}
	}
}

// What a node would refuse at its start is refused before it is installed.
func TestManifestsThatTheNodesWouldRefuseAreNotPrinted(t *testing.T) {
	const works = "../../examples/custom-drain/drain-template.yaml"
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken.yaml")
	if err := os.WriteFile(broken, []byte("kind: {{ .HealthEvent.Kind }}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ config, template, want string }{
		{"[customDrain]\nenabled = true\n", works, ""},
		{"[customDrain]\nenabled = true\ntemplateMountPath = \"" + dir + "\"\ntemplateFileName = \"none.yaml\"\n", "", "drain.toml: the template of the custom drain: open " + dir + "/none.yaml: no such file or directory; --drain-template names it on this machine"},
		{"[customDrain]\nenabled = true\n", broken, "can't evaluate field Kind"},
		{"[customDrain]\nenabled = true\ntemplateMountPath = \"templates\"\n", works, `customDrain.templateMountPath: "templates" cannot be mounted in the pods of the nodes`},
		{"[customDrain]\nenabled = true\ntemplateMountPath = \"/etc/ebb-drain/x\"\n", works, `customDrain.templateMountPath: "/etc/ebb-drain/x" cannot be mounted`},
		{"[customDrain]\nenabled = true\ntemplateFileName = \"a b\"\n", works, `customDrain.templateFileName: "a b" cannot be a key of a ConfigMap`},
		{"[[rules]]\nname = \"a\"\nwhen = \"event.none\"\nquarantine = true\ndrain = true\n", "", "drain.toml:3: rules[0].when: "},
		{"", works, "has no custom drain that is enabled"},
	} {
		file := filepath.Join(dir, "drain.toml")
		if err := os.WriteFile(file, []byte(tc.config), 0o600); err != nil {
			t.Fatal(err)
		}
		o := manifests.Options{Objects: kinds.Objects(), Image: "ebb"}
		err := readDrainConfig(file, tc.template, &o)
		if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%q with %q: %v, want %s", tc.config, tc.template, err, tc.want)
		}
	}
	if err := readDrainConfig("", works, &manifests.Options{}); err == nil {
		t.Error("a template without --drain-config is accepted")
	}
}
