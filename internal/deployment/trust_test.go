package deployment_test

import (
	"testing"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/deployment"
)

func TestAClaimPolicyIsReadAsPeopleWriteIt(t *testing.T) {
	for text, want := range map[string]v1alpha1.ClaimPolicy{
		"":                      v1alpha1.ClaimByCount,
		" \t\n":                 v1alpha1.ClaimByCount,
		"deployment_count":      v1alpha1.ClaimByCount,
		"Deployment_Count":      v1alpha1.ClaimByCount,
		"resource_usage":        v1alpha1.ClaimByUsage,
		"\tRESOURCE_USAGE\r\n ": v1alpha1.ClaimByUsage,
		"none":                  v1alpha1.ClaimNone,
		"NONE":                  v1alpha1.ClaimNone,
		"  NoNe ":               v1alpha1.ClaimNone,
	} {
		if got, err := deployment.ParseClaimPolicy(text); err != nil || got != want {
			t.Errorf("%q is read as %q (%v), want %q", text, got, err, want)
		}
	}
}

func TestAnUnknownClaimPolicyIsRefused(t *testing.T) {
	for _, text := range []string{"non", "none.", "no ne", "\"none\"", "off", "deployment-count", "resource_usage,none"} {
		got, err := deployment.ParseClaimPolicy(text)
		if err == nil || got != "" {
			t.Errorf("%q is read as %q (%v), want a refusal", text, got, err)
		}
	}
	_, err := deployment.ParseClaimPolicy(" Off ")
	if want := `unknown claim policy " Off ": use deployment_count, resource_usage or none`; err == nil || err.Error() != want {
		t.Errorf("the refusal says %v, want %s", err, want)
	}
}

func TestTrustIsAnExpressionThatCommandsMatch(t *testing.T) {
	if trust, err := deployment.ParseTrust(""); err != nil || trust.String() != "" || trust.String() != "" {
		t.Errorf("no expression is read as %q (%v)", trust, err)
	}
	if trust, err := deployment.ParseTrust("^/opt/"); err != nil || trust.String() != "^/opt/" {
		t.Errorf("the expression is read as %q (%v)", trust, err)
	}
	_, err := deployment.ParseTrust("(")
	if want := "trusted commands: \"(\" is not a regular expression: error parsing regexp: missing closing ): `(`"; err == nil || err.Error() != want {
		t.Errorf("the refusal says %v, want %s", err, want)
	}
}

func TestANodeRunsWhatItTrusts(t *testing.T) {
	path := []v1alpha1.EnvVar{{Name: "PATH", Value: "/tmp"}}
	for _, c := range []struct {
		name, expression string
		spec             v1alpha1.DeploymentSpec
		want             bool
	}{
		{"a node without an expression trusts all", "", v1alpha1.DeploymentSpec{Command: "/tmp/evil", Env: path}, true},
		{"a path that matches", "^/opt/ours/", v1alpha1.DeploymentSpec{Command: "/opt/ours/app"}, true},
		{"a path that does not", "^/opt/ours/", v1alpha1.DeploymentSpec{Command: "/opt/theirs/app"}, false},
		{"a path with PATH in the environment is not looked up", "^/opt/ours/", v1alpha1.DeploymentSpec{Command: "/opt/ours/app", Env: path}, true},
		{"dots that lead out", "^/opt/ours/", v1alpha1.DeploymentSpec{Command: "/opt/ours/../theirs/app"}, false},
		{"dots that lead in", "^/opt/ours/", v1alpha1.DeploymentSpec{Command: "/tmp/../opt/./ours//app"}, true},
		{"dots above the root", "^/opt/ours/", v1alpha1.DeploymentSpec{Command: "/../../opt/ours/app"}, true},
		{"a relative path in a trusted directory", "^/opt/ours/", v1alpha1.DeploymentSpec{Command: "./app", WorkingDir: "/opt/ours"}, true},
		{"a relative path that leads out of it", "^/opt/ours/", v1alpha1.DeploymentSpec{Command: "../theirs/app", WorkingDir: "/opt/ours"}, false},
		{"a relative path in another directory", "^/opt/ours/", v1alpha1.DeploymentSpec{Command: "opt/ours/app", WorkingDir: "/tmp"}, false},
		{"a relative path without a directory begins at the root", "^/opt/ours/", v1alpha1.DeploymentSpec{Command: "opt/ours/app"}, true},
		{"a directory with dots", "^/opt/ours/", v1alpha1.DeploymentSpec{Command: "./app", WorkingDir: "/opt/ours/../theirs"}, false},
		{"an absolute path does not care for the directory", "^/opt/ours/", v1alpha1.DeploymentSpec{Command: "/opt/ours/app", WorkingDir: "/tmp"}, true},
		{"a bare name that matches", "^app$", v1alpha1.DeploymentSpec{Command: "app", WorkingDir: "/tmp"}, true},
		{"a bare name that does not", "^app$", v1alpha1.DeploymentSpec{Command: "apps"}, false},
		{"a bare name with another PATH", "^app$", v1alpha1.DeploymentSpec{Command: "app", Env: path}, false},
		{"a bare name with an empty PATH", "^app$", v1alpha1.DeploymentSpec{Command: "app", Env: []v1alpha1.EnvVar{{Name: "PATH"}}}, false},
		{"a bare name with other variables", "^app$", v1alpha1.DeploymentSpec{Command: "app", Env: []v1alpha1.EnvVar{{Name: "path"}, {Name: "PATHS"}}}, true},
		{"a bare name is not a path", "^/opt/ours/", v1alpha1.DeploymentSpec{Command: "app", WorkingDir: "/opt/ours"}, false},
		{"arguments do not count", "ours", v1alpha1.DeploymentSpec{Command: "/bin/sh", Args: []string{"ours"}}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			trust, err := deployment.ParseTrust(c.expression)
			if err != nil {
				t.Fatal(err)
			}
			if got := trust.Refuses(&v1alpha1.Deployment{Spec: c.spec}) == ""; got != c.want {
				t.Errorf("%q allows %q in %q: %t, want %t", c.expression, c.spec.Command, c.spec.WorkingDir, got, c.want)
			}
		})
	}
}
