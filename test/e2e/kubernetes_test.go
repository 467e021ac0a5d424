package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/manifests"
	"github.com/ebb-dev/ebb/internal/pki"
	"github.com/ebb-dev/ebb/internal/testenv"
	"github.com/ebb-dev/ebb/internal/testkube"
)

// kubeNodes are the nodes of the Kubernetes that Ebb is installed on.
var kubeNodes = []string{"k1", "k2", "k3", "k4.example.internal"}

// installation is Ebb on a real Kubernetes. KWOK runs the pods there, which means that nothing runs: the test starts the commands of their
// containers on this machine, with the environment that the pods give them and tokens that are bound to them.
type installation struct {
	*cluster
	kube    *testkube.Cluster
	typed   kubernetes.Interface
	secrets string // directory of the pods' service accounts

	signer      *process
	startSigner func() *process
}

// startKubernetes starts a Kubernetes with nodes. Nothing of Ebb is there yet.
func startKubernetes(t testing.TB, nodes ...string) *installation {
	t.Helper()
	return startKubernetesWith(t, testenv.Ebb(t), nodes...)
}

// startKubernetesWith is startKubernetes for a program of Ebb.
func startKubernetesWith(t testing.TB, ebb string, nodes ...string) *installation {
	t.Helper()
	c := newCluster(t, ebb)
	if err := c.dir.Create(); err != nil {
		t.Fatal(err)
	}
	kube, err := testkube.Start(context.Background(), testkube.Options{Dir: filepath.Join(t.TempDir(), "kube"), Programs: testenv.KubePrograms(t), Nodes: nodes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kube.Stop)
	credentials, err := os.ReadFile(kube.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.dir.Kubeconfig(), credentials, 0o600); err != nil {
		t.Fatal(err)
	}
	typed, err := kubernetes.NewForConfig(kube.Config())
	if err != nil {
		t.Fatal(err)
	}
	k := &installation{cluster: c, kube: kube, typed: typed, secrets: t.TempDir()}
	c.launchNode = k.startPodOf
	return k
}

// install installs Ebb as a person does, with programs turned on, and starts everything, the nodes with more arguments. Certificates live for
// certificateLife.
func (k *installation) install(certificateLife time.Duration, args ...string) {
	k.t.Helper()
	k.kubectl("apply", "-k", filepath.Join("..", "..", "config", "kubernetes"))
	k.turnProgramsOn()
	k.startSigner = func() *process {
		return k.startPod("signer", k.pod("signer", ""), "--certificate-life="+certificateLife.String())
	}
	k.signer = k.startSigner()
	for _, name := range kubeNodes {
		k.startNode(name, args...)
	}
	until(k.t, "the first coordinator to make the Settings", func() bool { return k.connect() == nil })
	for _, name := range kubeNodes {
		k.awaitReady(name, 1)
	}
}

// turnProgramsOn lets the nodes of the DaemonSet run programs.
func (k *installation) turnProgramsOn() {
	k.t.Helper()
	k.kubectl("-n", manifests.Namespace, "set", "env", "daemonset/"+manifests.DaemonSet, "NODE_UNIT_CLAIM_POLICY-", "TRUSTED_PACKAGE_REGEXP-")
	// A change of the DaemonSet reaches the pods that are made after its controller has seen it.
	until(k.t, "the change of the DaemonSet to be observed", func() bool {
		set, err := k.typed.AppsV1().DaemonSets(manifests.Namespace).Get(context.Background(), manifests.DaemonSet, metav1.GetOptions{})
		return err == nil && set.Status.ObservedGeneration == set.Generation
	})
	k.kubectl("-n", manifests.Namespace, "delete", "pods", "--all", "--grace-period=1", "--wait=false")
}

// pod is the pod of a component, on a node unless that is empty, as it is now.
func (k *installation) pod(component, node string) *corev1.Pod {
	k.t.Helper()
	var found *corev1.Pod
	until(k.t, fmt.Sprintf("a pod of the %s on node %q to run", component, node), func() bool {
		list, err := k.typed.CoreV1().Pods(manifests.Namespace).List(context.Background(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=" + component})
		if err != nil {
			return false
		}
		for i := range list.Items {
			p := &list.Items[i]
			on := p.Spec.Containers[0].Env
			changed := component != "node" || !slices.ContainsFunc(on, func(e corev1.EnvVar) bool { return e.Name == "TRUSTED_PACKAGE_REGEXP" })
			if p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning && (node == "" || p.Spec.NodeName == node) && changed {
				found = p
			}
		}
		return found != nil
	})
	return found
}

// startPodOf starts the node of the DaemonSet's pod on a node.
func (k *installation) startPodOf(node string, args ...string) *process {
	k.t.Helper()
	return k.startPod(node, k.pod("node", node), args...)
}

// startPod runs the command of a pod's container, with more arguments, and the credentials of the pod.
func (k *installation) startPod(name string, pod *corev1.Pod, args ...string) *process {
	k.t.Helper()
	dir := filepath.Join(k.secrets, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		k.t.Fatal(err)
	}
	for file, data := range map[string][]byte{"token": []byte(k.token(pod.Spec.ServiceAccountName, pod)), "ca.crt": k.kube.Config().CAData} {
		if err := os.WriteFile(filepath.Join(dir, file), data, 0o600); err != nil {
			k.t.Fatal(err)
		}
	}
	host, port, _ := strings.Cut(strings.TrimPrefix(k.kube.Config().Host, "https://"), ":")
	env := []string{"KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port}
	container := pod.Spec.Containers[0]
	command := slices.Concat(container.Command, container.Args)
	for _, e := range container.Env {
		value := e.Value
		switch {
		case e.Name == "EBB_DATA_DIR":
			value = string(k.dir) // in place of the directory of the host
		case e.ValueFrom != nil && e.ValueFrom.FieldRef.FieldPath == "spec.nodeName":
			value = pod.Spec.NodeName
		case e.ValueFrom != nil && e.ValueFrom.FieldRef.FieldPath == "status.podIP":
			value = pod.Status.PodIP
		}
		env = append(env, e.Name+"="+value)
		for i := range command {
			command[i] = strings.ReplaceAll(command[i], "$("+e.Name+")", value)
		}
	}
	if command[0] != "/ebb" {
		k.t.Fatalf("the container's command is %q", command)
	}
	return k.launchAt("", append(os.Environ(), env...), k.ebb, slices.Concat(command[1:], []string{"--service-account", dir}, args)...)
}

// token of a service account, bound to a pod unless that is nil.
func (k *installation) token(account string, pod *corev1.Pod) string {
	k.t.Helper()
	request := &authenticationv1.TokenRequest{}
	if pod != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}
	}
	answer, err := k.typed.CoreV1().ServiceAccounts(manifests.Namespace).CreateToken(context.Background(), account, request, metav1.CreateOptions{})
	if err != nil {
		k.t.Fatal(err)
	}
	return answer.Status.Token
}

// drainWhileTheCoordinatorDies drains a node and kills the coordinator with SIGKILL as soon as the drain has begun. A new one finishes it. In the end
// both nodes are back.
func (k *installation) drainWhileTheCoordinatorDies(target string) {
	k.t.Helper()
	leader := k.awaitLeader("")
	name := "of-" + strings.ReplaceAll(target, ".", "-") + "-" + fmt.Sprint(k.record(target).Epoch)
	k.ask(name, target)
	until(k.t, "the drain to begin", func() bool {
		d := &v1alpha1.Drain{}
		return k.client.Get(context.Background(), client.ObjectKey{Name: name}, d) == nil && d.Status.Phase != "" && d.Status.Phase != v1alpha1.DrainPending
	})
	k.signal(leader, syscall.SIGKILL)
	until(k.t, "the killed coordinator to be gone", func() bool { return syscall.Kill(k.pid(leader), 0) != nil })
	k.back(leader)
	k.awaitLeader("")
	k.awaitEnd(name, v1alpha1.DrainComplete, v1alpha1.ReasonDrained)
}

// followers are the nodes that do not lead.
func (k *installation) followers() []string { return others(kubeNodes, k.awaitLeader("")) }

// One installation carries one piece of every kind through a drain of its node during which the coordinator is killed.
func TestEbbOnKubernetes(t *testing.T) {
	beside(t, light)
	k := startKubernetes(t, kubeNodes...)
	k.install(2 * time.Minute)
	for _, step := range []struct {
		name string
		run  func(*testing.T, *installation)
	}{
		{"a deployment", kubeDeployment},
		{"a changefeed", kubeChangefeed},
		{"an etcd cluster", kubeEtcd},
		{"a volume", kubeVolume},
		{"who may write what", kubeAccess},
		{"certificates are renewed", kubeCertificates},
		{"the signer is away", kubeNoSigner},
		{"the Term is deleted", kubeNoTerm},
	} {
		if !t.Run(step.name, func(t *testing.T) {
			k.t = t
			step.run(t, k)
		}) {
			break
		}
	}
	k.t = t
}

func kubeDeployment(t *testing.T, k *installation) {
	f := &fleetOfPrograms{cluster: k.cluster, dir: t.TempDir()}
	for _, name := range []string{"p1", "p2", "p3", "p4"} {
		f.create(f.program(name, v1alpha1.TypeDeployment))
	}
	f.allRun(kubeNodes...)
	target := ""
	for _, d := range f.deployments() {
		if h := d.Holder().Node; slices.Contains(k.followers(), h) {
			target = h
		}
	}
	k.drainWhileTheCoordinatorDies(target)
	f.allRun(others(kubeNodes, target)...)
	f.neverTwice()
	k.back(target)
	k.kubectl("delete", "deployments.ebb.dev", "--all")
	f.neverTwice()
}

func kubeChangefeed(t *testing.T, k *installation) {
	f := &feeds{cluster: k.cluster, states: map[string][]v1alpha1.ChangefeedStatus{}}
	f.must("changefeed", "create", "cf", "--source", fmt.Sprintf("datagen://?tables=%d&rate=200", feedTables), "--sink", "blackhole://")
	f.allFlow(kubeNodes...)
	target := k.followers()[0]
	k.drainWhileTheCoordinatorDies(target)
	f.allFlow(others(kubeNodes, target)...)
	k.back(target)
}

func kubeEtcd(t *testing.T, k *installation) {
	e := k.createEtcd("keys", 3)
	e.settle(3)
	e.five(3)
	target := ""
	for _, m := range e.get().Status.Members {
		if slices.Contains(k.followers(), m.Node) {
			target = m.Node
		}
	}
	k.drainWhileTheCoordinatorDies(target)
	e.settle(3)
	e.five(3)
	k.back(target)
}

func kubeVolume(t *testing.T, k *installation) {
	k.drainPolicy(v1alpha1.BlockForEviction)
	v := k.createVolume("disk", 2)
	followers := k.followers()
	at := slices.IndexFunc(v.nodes(), func(n string) bool { return slices.Contains(followers, n) })
	target := v.nodes()[at]
	v.attach(others(followers, target)[0])
	load := v.load()
	k.drainWhileTheCoordinatorDies(target)
	load.goesOn()
	v.settle()
	if slices.Contains(v.nodes(), target) {
		t.Errorf("the drained node %s has a replica still: %v", target, v.nodes())
	}
	load.check()
	v.sameCopies()
	k.back(target)
}

// kubeCertificates: a node's certificate is replaced while it runs.
func kubeCertificates(t *testing.T, k *installation) {
	name := kubeNodes[0]
	read := func() string {
		data, err := os.ReadFile(k.dir.Node(name).TLSCert())
		if err != nil {
			t.Fatal(err)
		}
		from, until, err := pki.Life(data)
		if err != nil {
			t.Fatal(err)
		}
		return from.String() + " to " + until.String()
	}
	epoch, first := k.record(name).Epoch, read()
	until(t, "a new certificate", func() bool { return read() != first })
	if out := k.must("status"); !strings.Contains(out, "4 nodes") {
		t.Error(out)
	}
	if now := k.record(name).Epoch; now != epoch {
		t.Errorf("node %s is in epoch %d, was in %d", name, now, epoch)
	}
}

// kubeNoSigner: a node that needs a certificate makes one request, however long the signer is away and however often the node starts.
func kubeNoSigner(t *testing.T, k *installation) {
	k.signer.stop()
	node := k.followers()[0]
	k.leaves(node)
	before := k.requestsOf(node)
	for _, file := range []string{k.dir.Node(node).TLSCert(), k.dir.Node(node).TLSKey()} {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		p := k.startNode(node)
		until(t, "the node to wait for its certificate", func() bool { return k.requestsOf(node) > before })
		p.stop()
	}
	if got := k.requestsOf(node) - before; got != 1 {
		t.Errorf("%d requests of a node that started three times", got)
	}
	epoch := k.record(node).Epoch
	k.startNode(node)
	k.signer = k.startSigner()
	k.awaitReady(node, epoch+1)
	if got := k.requestsOf(node) - before; got != 1 {
		t.Errorf("%d requests until the signer was back", got)
	}
}

// leaves asks a node to leave and waits until its process has ended.
func (k *installation) leaves(node string) {
	k.t.Helper()
	pid := k.pid(node)
	k.signal(node, syscall.SIGTERM)
	until(k.t, "node "+node+" to leave", func() bool { return !k.record(node).Held() && syscall.Kill(pid, 0) != nil })
}

// requestsOf counts the signing requests of a node.
func (k *installation) requestsOf(node string) int {
	k.t.Helper()
	list, err := k.typed.CertificatesV1().CertificateSigningRequests().List(context.Background(), metav1.ListOptions{})
	if err != nil {
		k.t.Fatal(err)
	}
	count := 0
	for i := range list.Items {
		if strings.HasPrefix(list.Items[i].Name, "ebb-node-"+node+"-") {
			count++
		}
	}
	return count
}

// kubeNoTerm: without the Term the policies refuse every write. It comes back before a lease is lost.
func kubeNoTerm(t *testing.T, k *installation) {
	k.awaitLeader("")
	epochs := map[string]int64{}
	for _, name := range kubeNodes {
		epochs[name] = k.record(name).Epoch
	}
	term := &v1alpha1.Term{}
	read := func() bool {
		return k.client.Get(context.Background(), client.ObjectKey{Name: v1alpha1.TermName}, term) == nil
	}
	if !read() {
		t.Fatal("there is no Term")
	}
	was := term.UID
	k.kubectl("delete", "validatingadmissionpolicybinding", "ebb-keep-terms") // which would refuse it
	until(t, "the Term to be deleted", func() bool { return k.client.Delete(context.Background(), term) == nil })
	k.kubectl("apply", "-k", filepath.Join("..", "..", "config", "kubernetes"))
	until(t, "the Term to name the coordinator", func() bool { return read() && term.UID != was && term.Spec.Node != "" })
	d := &v1alpha1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "after-the-term"}, Spec: v1alpha1.DeploymentSpec{Command: "/bin/true", Enabled: new(false)}}
	if err := k.client.Create(context.Background(), d); err != nil {
		t.Fatal(err)
	}
	until(t, "the coordinator to write again", func() bool {
		return k.client.Get(context.Background(), client.ObjectKeyFromObject(d), d) == nil && len(d.Status.Conditions) > 0
	})
	for _, name := range kubeNodes {
		until(t, "node "+name+" to hold its lease", func() bool { return k.record(name).Held() })
		if got := k.record(name).Epoch; got != epochs[name] {
			t.Logf("node %s lost epoch %d", name, epochs[name])
		}
	}
}
