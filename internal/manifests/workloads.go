package manifests

import (
	"fmt"
	"path/filepath"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	names "k8s.io/apimachinery/pkg/util/validation"

	"github.com/ebb-dev/ebb/internal/deployment"
	"github.com/ebb-dev/ebb/internal/drainconfig"
)

const (
	// user that nodes and the signer run as.
	user = 65532

	command    = "/ebb" // of the image
	dataDir    = "/var/lib/ebb"
	drainDir   = "/etc/ebb-drain" // of the file of --drain-config
	portPeers  = 7600
	portHTTP   = 7601
	portSigner = 7602
)

func workloads(o Options) []runtime.Object {
	objects := []runtime.Object{daemonSet(o), signerDeployment(o), metricsService(o)}
	if o.DrainConfig == nil {
		return objects
	}
	file := func(name, key, content string) runtime.Object {
		return &corev1.ConfigMap{TypeMeta: typed("v1", "ConfigMap"), ObjectMeta: meta(o, name, Namespace), Data: map[string]string{key: content}}
	}
	files := []runtime.Object{file(DrainConfigMap, DrainConfigKey, string(o.DrainConfig))}
	if c := o.Drains.CustomDrain; c != nil {
		files = append(files, file(DrainTemplateMap, filepath.Base(c.TemplatePath), c.Template))
	}
	return append(files, objects...)
}

// mountDrainConfig gives the node the file of --drain-config and the template that it names. They are read at the start.
func mountDrainConfig(spec *corev1.PodSpec, c *drainconfig.CustomDrain) {
	node := &spec.Containers[0]
	mount := func(volume, name, path string) {
		node.VolumeMounts = append(node.VolumeMounts, corev1.VolumeMount{Name: volume, MountPath: path, ReadOnly: true})
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}},
		}})
	}
	node.Args = append(node.Args, "--drain-config="+drainDir+"/"+DrainConfigKey)
	mount("drain-config", DrainConfigMap, drainDir)
	if c != nil {
		mount("drain-template", DrainTemplateMap, filepath.Dir(c.TemplatePath))
	}
}

// reserved are the paths in the pods of the nodes that a mount must neither hide nor be in: what Ebb needs there, and what the container runtime
// mounts. A mount may be in /dev, which is a file system in memory.
var reserved = []string{command, dataDir, drainDir, "/dev", "/proc", "/sys", "/run/secrets", "/var/run/secrets", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf"}

// CheckTemplate refuses a custom drain whose template cannot be mounted where the file says.
func CheckTemplate(c *drainconfig.CustomDrain) error {
	dir, name := filepath.Dir(c.TemplatePath), filepath.Base(c.TemplatePath)
	const instead = "use another absolute path, such as /etc/drain-templates"
	if !filepath.IsAbs(dir) || strings.Contains(dir, ":") {
		return fmt.Errorf("customDrain.templateMountPath: %q cannot be mounted in the pods of the nodes: %s", dir, instead)
	}
	for _, path := range reserved {
		if inside(path, dir) || inside(dir, path) && path != "/dev" {
			return fmt.Errorf("customDrain.templateMountPath: %q cannot be mounted in the pods of the nodes, which have %s: %s", dir, path, instead)
		}
	}
	if wrong := names.IsConfigMapKey(name); len(wrong) > 0 {
		return fmt.Errorf("customDrain.templateFileName: %q cannot be a key of a ConfigMap: %s", name, strings.Join(wrong, "; "))
	}
	return nil
}

// inside reports whether a clean absolute path is a directory or below it.
func inside(path, dir string) bool {
	return dir == "/" || path == dir || strings.HasPrefix(path, dir+"/")
}

func selector(component string) map[string]string {
	return map[string]string{"app.kubernetes.io/name": "ebb", "app.kubernetes.io/component": component}
}

func podMeta(o Options, component string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Labels: selector(component)}
	if o.Version != "" {
		m.Labels["app.kubernetes.io/version"] = o.Version
	}
	return m
}

func field(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
}

// confined is the security context of a container that needs no privilege.
func confined() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		RunAsUser: new(int64(user)), RunAsGroup: new(int64(user)), RunAsNonRoot: new(true), AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
		Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

func resources(cpu, memory, most string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory)},
		Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(most)},
	}
}

func probe(path string, port int, scheme corev1.URIScheme) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt(port), Scheme: scheme}},
		PeriodSeconds: 10, TimeoutSeconds: 5, FailureThreshold: 6,
	}
}

// daemonSet runs a node on every machine. It is replaced only when its pod is deleted: nothing of a node's work outlives the container, so that
// an update begins with a drain.
func daemonSet(o Options) runtime.Object {
	data := corev1.VolumeMount{Name: "data", MountPath: dataDir}
	node := corev1.Container{
		Name: DaemonSet, Image: o.Image, Command: []string{command},
		Args: []string{
			"node", "--kubernetes", "--name=$(NODE_NAME)", "--data-dir=$(EBB_DATA_DIR)",
			// In brackets, since the address may be one of IPv6.
			"--listen=[$(POD_IP)]:7600", "--http-listen=[$(POD_IP)]:7601", "--guard-image=" + o.Image,
		},
		Env: []corev1.EnvVar{
			field("NODE_NAME", "spec.nodeName"), field("POD_IP", "status.podIP"), {Name: "EBB_DATA_DIR", Value: dataDir},
			// Programs are off: none is claimed, and no command is trusted. docs/kubernetes.md says how to turn them on.
			{Name: deployment.EnvClaimPolicy, Value: "none"}, {Name: deployment.EnvTrusted, Value: "^$"},
		},
		Ports:           []corev1.ContainerPort{{Name: "peers", ContainerPort: portPeers}, {Name: "https", ContainerPort: portHTTP}},
		LivenessProbe:   probe("/healthz", portHTTP, corev1.URISchemeHTTPS),
		ReadinessProbe:  probe("/readyz", portHTTP, corev1.URISchemeHTTPS),
		Resources:       resources("100m", "256Mi", "2Gi"),
		SecurityContext: confined(), VolumeMounts: []corev1.VolumeMount{data},
	}
	prepare := corev1.Container{
		Name: "prepare", Image: o.Image, Command: []string{command}, Args: []string{"prepare", "--data-dir=" + dataDir, "--uid=65532"},
		Resources: resources("10m", "64Mi", "128Mi"), VolumeMounts: []corev1.VolumeMount{data},
		SecurityContext: &corev1.SecurityContext{
			RunAsUser: new(int64(0)), AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
			Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"CHOWN"}},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
	set := &appsv1.DaemonSet{
		TypeMeta: typed("apps/v1", "DaemonSet"), ObjectMeta: meta(o, DaemonSet, Namespace),
		Spec: appsv1.DaemonSetSpec{
			Selector:       &metav1.LabelSelector{MatchLabels: selector("node")},
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType},
			Template: corev1.PodTemplateSpec{ObjectMeta: podMeta(o, "node"), Spec: corev1.PodSpec{
				ServiceAccountName: NodeAccount, PriorityClassName: "system-node-critical", TerminationGracePeriodSeconds: new(int64(60)),
				NodeSelector:   map[string]string{corev1.LabelOSStable: "linux"},
				Tolerations:    []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
				InitContainers: []corev1.Container{prepare}, Containers: []corev1.Container{node},
				Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
					HostPath: &corev1.HostPathVolumeSource{Path: dataDir, Type: new(corev1.HostPathDirectoryOrCreate)},
				}}},
			}},
		},
	}
	if o.DrainConfig != nil {
		mountDrainConfig(&set.Spec.Template.Spec, o.Drains.CustomDrain)
	}
	return set
}

// signerDeployment issues the certificates of nodes. Nodes that have one work without it.
func signerDeployment(o Options) runtime.Object {
	return &appsv1.Deployment{
		TypeMeta: typed("apps/v1", "Deployment"), ObjectMeta: meta(o, SignerAccount, Namespace),
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: selector("signer")},
			Template: corev1.PodTemplateSpec{ObjectMeta: podMeta(o, "signer"), Spec: corev1.PodSpec{
				ServiceAccountName: SignerAccount, PriorityClassName: "system-cluster-critical",
				Containers: []corev1.Container{{
					Name: "signer", Image: o.Image, Command: []string{command}, Args: []string{"signer", "--health-listen=[$(POD_IP)]:7602"},
					Env:   []corev1.EnvVar{field("POD_IP", "status.podIP")},
					Ports: []corev1.ContainerPort{{Name: "health", ContainerPort: portSigner}}, LivenessProbe: probe("/healthz", portSigner, corev1.URISchemeHTTP),
					Resources: resources("10m", "64Mi", "256Mi"), SecurityContext: confined(),
				}},
			}},
		},
	}
}

func metricsService(o Options) runtime.Object {
	return &corev1.Service{
		TypeMeta: typed("v1", "Service"), ObjectMeta: meta(o, "ebb-metrics", Namespace),
		Spec: corev1.ServiceSpec{
			ClusterIP: corev1.ClusterIPNone, Selector: selector("node"),
			Ports: []corev1.ServicePort{{Name: "metrics", Port: portHTTP, TargetPort: intstr.FromString("https")}},
		},
	}
}
