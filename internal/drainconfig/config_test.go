package drainconfig_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ebb-dev/ebb/internal/drainconfig"
)

// seed is the configuration of the seed, which must work as it is.
const seed = `systemNamespaces = "^(kube-system|gpu-operator)"
[customDrain]
    enabled = false

    templateMountPath = "/etc/drain-templates" # Where node-drainer mounts its ConfigMap
    templateFileName = "drain-template.yaml" # Name of the template file
    namespace = "nvsentinel"
    apiGroup = "nvsentinel.nvidia.com"
    version = "v1alpha1"
    kind = "DrainRequest"


    timeout = "3600s"

    # Status watching (follows Kubernetes standard: DrainInProgress, DrainComplete, DrainFailed)
    statusConditionType = "DrainComplete"
    statusConditionStatus = "True"
`

func TestTheSeedsFileIsTheDefault(t *testing.T) {
	enabled := &drainconfig.CustomDrain{
		TemplatePath: "/etc/drain-templates/drain-template.yaml", Namespace: "nvsentinel",
		GVK:     schema.GroupVersionKind{Group: "nvsentinel.nvidia.com", Version: "v1alpha1", Kind: "DrainRequest"},
		Timeout: time.Hour, ConditionType: "DrainComplete", ConditionStatus: "True",
	}
	for name, tc := range map[string]struct {
		text string
		want *drainconfig.CustomDrain
	}{
		"the seed":               {seed, nil},
		"the seed, enabled":      {strings.Replace(seed, "enabled = false", "enabled = true", 1), enabled},
		"nothing but enabled":    {"[customDrain]\nenabled = true\n", enabled},
		"nothing":                {"", nil},
		"a custom drain by dots": {"customDrain.enabled = true", enabled},
		"modes without a drain":  {"deleteAfterTimeoutMinutes = 5\n[[userNamespaces]]\nname = \"*\"\nmode = \"Immediate\"\n", nil},
		"a patience and a drain": {"deleteAfterTimeoutMinutes = 5\n[customDrain]\nenabled = true\n", enabled},
		"a file of an editor that begins it with a mark, and ends lines in two characters": {"\ufeff" + strings.ReplaceAll(strings.Replace(seed, "enabled = false", "enabled = true", 1), "\n", "\r\n"), enabled},
		"an empty list of spaces": {"userNamespaces = []\n[customDrain]\nenabled = true\n", enabled},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := drainconfig.Parse("drain.toml", []byte(tc.text))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, c.CustomDrain); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if !c.SystemNamespaces.MatchString("kube-system") || c.SystemNamespaces.MatchString("default") {
				t.Errorf("system namespaces %s", c.SystemNamespaces)
			}
			if c.Quarantine != (drainconfig.Quarantine{MaxShare: 10, Retention: 24 * time.Hour}) {
				t.Errorf("quarantine %+v", c.Quarantine)
			}
		})
	}
}

func TestWhatIsWrongIsNamedWithFileLineAndKey(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"sytemNamespaces = \"x\"", "drain.toml:1: unknown key sytemNamespaces"},
		{"[customDrain]\nenabled = true\ntimeuot = \"1s\"", "drain.toml:3: unknown key customDrain.timeuot"},
		{"[customDrain]\n\nenabled = \"yes\"", "drain.toml:3: customDrain.enabled: must be true or false"},
		{"systemNamespaces = \"(\"", "drain.toml:1: systemNamespaces: \"(\" is not a regular expression"},
		{"deleteAfterTimeoutMinutes = 0", "drain.toml:1: deleteAfterTimeoutMinutes: 0: use 1 to 525600"},
		{"[[userNamespaces]]\nname = \"a\"\nmode = \"Immediate\"\n\n[[userNamespaces]]\nname = \"b\"\nmode = \"Now\"",
			"drain.toml:7: userNamespaces[1].mode: \"Now\": use Immediate, DeleteAfterTimeout or AllowCompletion"},
		{"[[userNamespaces]]\nname = \"[\"\nmode = \"Immediate\"", "drain.toml:2: userNamespaces[0].name: \"[\" is not a name or glob of namespaces"},
		{"[[userNamespaces]]\nname = \"a\"\nmode = \"Immediate\"\n[customDrain]\nenabled = true",
			"drain.toml:5: customDrain.enabled: a custom drain and modes of userNamespaces exclude each other: remove one of them"},
		{"[customDrain]\ntimeout = \"3600\"", "drain.toml:2: customDrain.timeout: \"3600\" is not a duration from 1s to 8760h, such as 3600s or 1h"},
		{"[customDrain]\ntimeout = \"1ms\"", "drain.toml:2: customDrain.timeout: \"1ms\" is not a duration from 1s to 8760h"},
		{"[customDrain]\ntimeout = \"9000h\"", "drain.toml:2: customDrain.timeout: \"9000h\" is not a duration from 1s to 8760h"},
		{"[customDrain]\ntimeout = 3600", "drain.toml:2: customDrain.timeout: must be text in quotes"},
		{"[quarantine]\nmaxShare = 10", "drain.toml:2: quarantine.maxShare: must be text in quotes"},
		{"[quarantine]\nretention = \"2562047h\"", "drain.toml:2: quarantine.retention: \"2562047h\" is not a duration from 1m to 8760h"},
		{"deleteAfterTimeoutMinutes = \"5\"", "drain.toml:1: deleteAfterTimeoutMinutes: must be a whole number"},
		{"deleteAfterTimeoutMinutes = 1.5", "drain.toml:1: deleteAfterTimeoutMinutes: must be a whole number"},
		{"\nuserNamespaces = \"web\"", "drain.toml:2: userNamespaces: must be tables that begin with [[userNamespaces]]"},
		{"customDrain = true", "drain.toml:1: customDrain: must be a table that begins with [customDrain]"},
		{"[[userNamespaces]]\nname = 1", "drain.toml:2: userNamespaces.name: must be text in quotes"},
		{"[[userNamespaces]]\nname = \"a\"\n", "drain.toml:1: userNamespaces[0].mode: \"\": use Immediate"},
		{"\nuserNamespaces = [{name = \"a\", mode = \"Now\"}]", "drain.toml:2: userNamespaces[0].mode: \"Now\": use Immediate"},
		{"\ncustomDrain = {enabled = true, kind = \"x\"}", "drain.toml:2: customDrain.kind: \"x\" is not the name of a kind"},
		{"[[userNamespaces]]\nname = \"Web\"\nmode = \"Immediate\"", "drain.toml:2: userNamespaces[0].name: \"Web\" is not a name or glob of namespaces"},
		{"[[userNamespaces]]\nname = \"\"\nmode = \"Immediate\"", "drain.toml:2: userNamespaces[0].name: \"\" is not a name or glob of namespaces"},
		{"[quarantine]\nmaxShare = \"1%\"\n[quarantine]\nretention = \"1h\"", "drain.toml:3: "},
		{"[quarantine]\nmaxShare = \"1%\"\nmaxShare = \"2%\"", "drain.toml:3: "},
		{"[quarantine]\r\nmaxShare = \"1\"\r\n", "drain.toml:2: quarantine.maxShare: \"1\" is not a share"},
		{"\ufeff[quarantine]\nmaxShare = \"1\"\n", "drain.toml:2: quarantine.maxShare: \"1\" is not a share"},
		{"[customDrain]\ntimeout = \"-1s\"", "drain.toml:2: customDrain.timeout: \"-1s\" is not a duration"},
		{"[customDrain]\napiGroup = \"ebb.dev\"", "drain.toml:2: customDrain.apiGroup: \"ebb.dev\" belongs to Kubernetes or to Ebb"},
		{"[customDrain]\napiGroup = \"coordination.k8s.io\"", "drain.toml:2: customDrain.apiGroup: \"coordination.k8s.io\" belongs to Kubernetes or to Ebb"},
		{"[customDrain]\napiGroup = \"apps\"", "drain.toml:2: customDrain.apiGroup: \"apps\" belongs to Kubernetes or to Ebb"},
		{"[customDrain]\nkind = \"drain\"", "drain.toml:2: customDrain.kind: \"drain\" is not the name of a kind"},
		{"[customDrain]\ntemplateFileName = \"../x\"", "drain.toml:2: customDrain.templateFileName: \"../x\" is not the name of a file"},
		{"[customDrain]\nstatusConditionStatus = \"true\"", "drain.toml:2: customDrain.statusConditionStatus: \"true\": use True, False or Unknown"},
		{"[quarantine]\nmaxShare = \"10\"", "drain.toml:2: quarantine.maxShare: \"10\" is not a share of the nodes, such as 10%"},
		{"[quarantine]\nmaxShare = \"NaN%\"", "drain.toml:2: quarantine.maxShare: \"NaN%\" is not a share of the nodes"},
		{"[quarantine]\nretention = \"0s\"", "drain.toml:2: quarantine.retention: \"0s\" is not a duration from 1m to 8760h"},
		{"[[rules]]\nname = \"a\"\nwhen = \"true\"\nquarantine = false\ndrain = true", "drain.toml:5: rules[0].drain: a node that is drained is quarantined too"},
		{"[[rules]]\nwhen = \"true\"\nquarantine = true\ndrain = true", "drain.toml:1: rules[0]: set a name"},
		{"[[rules]]\nname = \"a\"\nwhen = \"true\"\ndrain = true", "drain.toml:1: rules[0]: set quarantine and drain"},
		{"a = ", "drain.toml:1: "},
		{"\n[userNamespaces]\nname = \"a\"\nmode = \"Immediate\"", "drain.toml:2: userNamespaces: must be tables that begin with [[userNamespaces]]"},
		{"[[customDrain]]\nenabled = true\n[[customDrain]]\nenabled = false", "drain.toml:1: customDrain: must be a table that begins with [customDrain]"},
		{"rules = {name = \"a\"}", "drain.toml:1: rules: must be tables that begin with [[rules]]"},
		{"quarantine = [{maxShare = \"1%\"}]", "drain.toml:1: quarantine: must be a table that begins with [quarantine]"},
		{"systemnamespaces = \"a\"", "drain.toml:1: unknown key systemnamespaces: write systemNamespaces"},
		{"systemNamespaces = \"a\"\nSystemNamespaces = \"b\"", "drain.toml:2: unknown key SystemNamespaces: write systemNamespaces"},
		{"\n[customdrain]\nenabled = true", "drain.toml:2: unknown key customdrain: write customDrain"},
		{"[customDrain]\nenabled = true\nKind = \"DrainRequest\"", "drain.toml:3: unknown key customDrain.Kind: write kind"},
		{"\ncustomDrain = {Enabled = true}", "drain.toml:2: unknown key customDrain.Enabled: write enabled"},
		{"\n[[usernamespaces]]\nname = \"a\"\nmode = \"Immediate\"", "drain.toml:2: unknown key usernamespaces: write userNamespaces"},
		{"[[rules]]\nname = \"a\"\nwhen = \"true\"\nquarantine = true\ndrain = true\nDrain = false", "drain.toml:6: unknown key rules[0].Drain: write drain"},
	} {
		_, err := drainconfig.Parse("drain.toml", []byte(tc.text))
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q:\n%v\nwant %s", tc.text, err, tc.want)
		}
	}
}

func TestEveryMistakeIsNamedAtOnce(t *testing.T) {
	_, err := drainconfig.Parse("f", []byte("systemNamespaces = \"(\"\n[quarantine]\nmaxShare = \"x\"\n"))
	if err == nil || strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("%v", err)
	}
}

func TestAMissingTemplateIsNamed(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "drain.toml")
	text := "[customDrain]\nenabled = true\ntemplateMountPath = \"" + dir + "\"\n"
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := drainconfig.Load(name); err == nil || !strings.Contains(err.Error(), "customDrain.templateFileName") {
		t.Errorf("%v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "drain-template.yaml"), []byte("a: b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := drainconfig.Load(name)
	if err != nil || c.CustomDrain.Template != "a: b\n" {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestAnEmptyExpressionOfSystemNamespacesMatchesNone(t *testing.T) {
	c, err := drainconfig.Parse("drain.toml", []byte("systemNamespaces = \"\"\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, namespace := range []string{"kube-system", "default", "a"} {
		if c.SystemNamespaces.MatchString(namespace) {
			t.Errorf("%s is a system namespace", namespace)
		}
	}
}
