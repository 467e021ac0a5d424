package manifests

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/ebb-dev/ebb/internal/deployment"
	"github.com/ebb-dev/ebb/internal/drainconfig"
)

// What docs/kubernetes.md promises about the DaemonSet.
func TestTheDaemonSetHasNoMoreThanItNeeds(t *testing.T) {
	set := daemonSet(Options{Image: "ebb:v1"}).(*appsv1.DaemonSet)
	if got := set.Spec.UpdateStrategy.Type; got != appsv1.OnDeleteDaemonSetStrategyType {
		t.Errorf("an update replaces pods by the strategy %s: nothing of a node's work outlives its container", got)
	}
	spec := set.Spec.Template.Spec
	if spec.HostNetwork || spec.HostPID || spec.HostIPC {
		t.Error("the pod shares a namespace of the host")
	}
	if spec.ServiceAccountName != NodeAccount || spec.PriorityClassName != "system-node-critical" {
		t.Errorf("the pod has the account %q and the priority %q", spec.ServiceAccountName, spec.PriorityClassName)
	}
	if !slices.Equal(spec.Tolerations, []corev1.Toleration{{Operator: corev1.TolerationOpExists}}) {
		t.Errorf("the pod tolerates %v: a node is drained while it is tainted", spec.Tolerations)
	}
	if v := spec.Volumes; len(v) != 1 || v[0].HostPath == nil || v[0].HostPath.Path != "/var/lib/ebb" || *v[0].HostPath.Type != corev1.HostPathDirectoryOrCreate {
		t.Errorf("the pod has the volumes %v", v)
	}
	if len(spec.InitContainers) != 1 || len(spec.Containers) != 1 {
		t.Fatalf("the pod has %d containers after %d others", len(spec.Containers), len(spec.InitContainers))
	}
	for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
		if c.Image != "ebb:v1" || c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() || c.Resources.Limits.Memory().IsZero() {
			t.Errorf("container %s: image %q, resources %v", c.Name, c.Image, c.Resources)
		}
		s := c.SecurityContext
		if *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
			t.Errorf("container %s: %+v", c.Name, s)
		}
	}
	prepare, node := spec.InitContainers[0].SecurityContext, spec.Containers[0]
	if *prepare.RunAsUser != 0 || !slices.Equal(prepare.Capabilities.Add, []corev1.Capability{"CHOWN"}) {
		t.Errorf("what prepares the directory has %+v", prepare)
	}
	if s := node.SecurityContext; *s.RunAsUser != 65532 || *s.RunAsGroup != 65532 || !*s.RunAsNonRoot || len(s.Capabilities.Add) > 0 {
		t.Errorf("the node has %+v", s)
	}
	if node.LivenessProbe == nil || node.ReadinessProbe == nil || node.LivenessProbe.HTTPGet.Path != "/healthz" || node.ReadinessProbe.HTTPGet.Path != "/readyz" {
		t.Errorf("the node has the probes %+v and %+v", node.LivenessProbe, node.ReadinessProbe)
	}
	for name, want := range map[string]string{deployment.EnvClaimPolicy: "none", deployment.EnvTrusted: "^$"} {
		if at := slices.IndexFunc(node.Env, func(e corev1.EnvVar) bool { return e.Name == name }); at < 0 || node.Env[at].Value != want {
			t.Errorf("programs are not off: %s in %v", name, node.Env)
		}
	}
}

// A mount hides what is below it, and cannot be made in a directory that another mount does not let it make.
func TestATemplateIsNotMountedOverWhatANodeNeeds(t *testing.T) {
	check := func(path string) error {
		return CheckTemplate(&drainconfig.CustomDrain{TemplatePath: path + "/drain-template.yaml"})
	}
	for _, path := range []string{
		"", "etc/drain-templates", "/etc:drains", "/", "//", "/etc", "/etc/", "/etc/drain-templates/..", "/var", "/var/lib", "/var/lib/ebb", "/var/lib/ebb/templates",
		"/etc/ebb-drain", "/etc/ebb-drain/templates", "/ebb", "/ebb/templates", "/proc", "/proc/self", "/dev", "/sys", "/sys/fs",
		"/run", "/run/secrets", "/var/run", "/var/run/secrets/kubernetes.io/serviceaccount", "/etc/hosts", "/etc/resolv.conf",
	} {
		if err := check(path); err == nil {
			t.Errorf("a template may be mounted at %q", path)
		}
	}
	for _, path := range []string{"/etc/drain-templates", "/templates", "/ebb-templates", "/var/lib/ebb-drain", "/etc/ebb-drain-templates", "/device", "/dev/templates", "/opt/ebb"} {
		if err := check(path); err != nil {
			t.Error(err)
		}
	}
}
