package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/datadir"
	"github.com/ebb-dev/ebb/internal/health"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/manifests"
	"github.com/ebb-dev/ebb/internal/signer"
	"github.com/ebb-dev/ebb/internal/testenv"
	"github.com/ebb-dev/ebb/internal/testlength"
)

const (
	customCRD      = "../../examples/custom-drain/crd.yaml"
	customTemplate = "../../examples/custom-drain/drain-template.yaml"
)

// sick is a cluster with a custom drain, and the parts that a test plays itself.
type sick struct {
	*cluster
	requests dynamic.ResourceInterface
	nodeArgs []string
	names    []string      // of the nodes
	token    func() string // may send events, and nothing else

	configDir string                  // has the file of --drain-config and the template
	runPod    func(node, name string) // runs a pod on a node; nil where there are no pods
}

// configure writes the file of --drain-config, with more at its end, and the template. Nodes that run do not see it.
func (s *sick) configure(timeout, more string) {
	s.t.Helper()
	template, err := os.ReadFile(customTemplate)
	if err != nil {
		s.t.Fatal(err)
	}
	text := fmt.Sprintf("[customDrain]\nenabled = true\ntemplateMountPath = %q\nnamespace = \"default\"\ntimeout = %q\n%s", s.configDir, timeout, more)
	for path, data := range map[string][]byte{filepath.Join(s.configDir, "drain-template.yaml"): template, s.configFile(): []byte(text)} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *sick) configFile() string { return filepath.Join(s.configDir, "drain.toml") }

// open begins to watch over custom resources.
func (s *sick) open() {
	s.t.Helper()
	cfg, err := kubeclient.Load(s.dir.Kubeconfig())
	if err != nil {
		s.t.Fatal(err)
	}
	objects, err := dynamic.NewForConfig(cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	s.requests = objects.Resource(schema.GroupVersionResource{Group: "nvsentinel.nvidia.com", Version: "v1alpha1", Resource: "drainrequests"}).Namespace("default")
}

// restart stops every node and starts it again.
func (s *sick) restart() {
	s.t.Helper()
	for _, name := range s.names {
		pid, epoch := s.pid(name), s.record(name).Epoch
		s.signal(name, syscall.SIGTERM)
		until(s.t, "node "+name+" to stop", func() bool { return !alive(pid) })
		s.startNode(name, s.nodeArgs...)
		s.awaitReady(name, epoch+1)
	}
}

// startSick runs a cluster of three nodes whose custom drains may take so long.
func startSick(t testing.TB, c *cluster, timeout string) *sick {
	t.Helper()
	s := &sick{cluster: c, names: trio, configDir: t.TempDir()}
	s.configure(timeout, "")
	s.nodeArgs = []string{"--drain-config", s.configFile()}
	s.token = func() string {
		token, err := datadir.ReadToken(s.dir.HealthToken())
		if err != nil {
			s.t.Fatal(err)
		}
		return token
	}
	c.launch(c.server, "apiserver", "--data-dir", string(c.dir), "--drain-config", s.configFile())
	until(t, "the API server", func() bool { return c.connect() == nil })
	for _, name := range s.names {
		c.startNode(name, s.nodeArgs...)
	}
	for _, name := range s.names {
		c.awaitReady(name, 1)
	}
	s.open()
	return s
}

// startSickOnKubernetes installs Ebb with a custom drain on a real Kubernetes.
func startSickOnKubernetes(t testing.TB, timeout string) *sick {
	t.Helper()
	k := startKubernetes(t, kubeNodes[:3]...)
	k.ebb, k.points = testenv.EbbFailpoints(t), t.TempDir()
	s := &sick{cluster: k.cluster, names: kubeNodes[:3], configDir: t.TempDir()}
	s.configure(timeout, "")
	s.nodeArgs = []string{"--drain-config", s.configFile()}
	file := filepath.Join(s.configDir, "ebb.yaml")
	if err := os.WriteFile(file, []byte(s.must("manifests", "--drain-config", s.configFile())), 0o600); err != nil {
		t.Fatal(err)
	}
	s.kubectl("apply", "--server-side", "-f", file)
	k.turnProgramsOn()
	k.startPod("signer", k.pod("signer", ""))
	for _, name := range s.names {
		s.startNode(name, s.nodeArgs...)
	}
	until(t, "the first coordinator to make the Settings", func() bool { return k.connect() == nil })
	for _, name := range s.names {
		s.awaitReady(name, 1)
	}
	s.token = func() string {
		secret, err := k.typed.CoreV1().Secrets(manifests.Namespace).Get(context.Background(), signer.HealthTokenName, metav1.GetOptions{})
		if err != nil {
			s.t.Fatal(err)
		}
		return string(secret.Data["token"])
	}
	s.runPod = func(node, name string) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "none"}}}}
		until(s.t, "pod "+name+" to be created", func() bool { // its service account may not be there yet
			_, err := k.typed.CoreV1().Pods("default").Create(context.Background(), pod, metav1.CreateOptions{})
			return err == nil
		})
	}
	s.open()
	s.onlyTheCoordinatorWrites(k)
	return s
}

// onlyTheCoordinatorWrites: nodes have the same account, and a policy tells them apart.
func (s *sick) onlyTheCoordinatorWrites(k *installation) {
	s.t.Helper()
	s.kubectl("apply", "-f", customCRD)
	until(s.t, "the CRD to be served", func() bool { _, err := s.requests.List(context.Background(), metav1.ListOptions{}); return err == nil })
	follower := others(s.names, s.awaitLeader(""))[0]
	cfg := rest.AnonymousClientConfig(k.kube.Config())
	cfg.BearerToken = k.token(manifests.NodeAccount, k.pod("node", follower))
	objects, err := dynamic.NewForConfig(cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	request := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "nvsentinel.nvidia.com/v1alpha1", "kind": "DrainRequest", "metadata": map[string]any{"name": "forged"}, "spec": map[string]any{"nodeName": follower},
	}}
	gvr := schema.GroupVersionResource{Group: "nvsentinel.nvidia.com", Version: "v1alpha1", Resource: "drainrequests"}
	_, err = objects.Resource(gvr).Namespace("default").Create(context.Background(), request, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "only the coordinator may do this") {
		s.t.Errorf("a node that does not lead creates a request: %v", err)
	}
	s.kubectl("delete", "-f", customCRD)
}

// post sends events as a detector does, with the token that may do only that.
func (s *sick) post(events ...v1alpha1.HealthEventSpec) (int, string) {
	s.t.Helper()
	body, err := json.Marshal(events)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.send(s.token(), http.MethodPost, "/api/v2/healthevents", body)
}

func (s *sick) send(token, method, path string, body []byte) (int, string) {
	s.t.Helper()
	ca, err := os.ReadFile(s.dir.Node(s.names[0]).CA())
	if err != nil {
		s.t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	to := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true}, Timeout: patience}
	for began := time.Now(); ; pollAgain(began) {
		var names []string
		for _, n := range s.names {
			if s.record(n).Held() && s.node(n).Status.HTTPAddress != "" {
				names = append(names, n)
			}
		}
		if len(names) == 0 && time.Since(began) < patience { // all of them may be between two epochs
			continue
		}
		request, err := http.NewRequest(method, s.node(names[0]).Status.HTTPAddress+path, bytes.NewReader(body))
		if err != nil {
			s.t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+token)
		answer, err := to.Do(request)
		if err == nil && answer.StatusCode != http.StatusServiceUnavailable {
			text, _ := io.ReadAll(answer.Body)
			answer.Body.Close()
			return answer.StatusCode, string(text)
		}
		if time.Since(began) > patience {
			s.t.Fatalf("%s %s: %v", method, path, err)
		}
	}
}

// fatal sends a fatal event.
func (s *sick) fatal(id, node, check string) {
	s.t.Helper()
	if code, body := s.post(v1alpha1.HealthEventSpec{ID: id, NodeName: node, CheckName: check, IsFatal: true, Message: "it: \"broke\"\n#", ErrorCode: []string{"79"}}); code != http.StatusAccepted {
		s.t.Fatalf("event %s: %d %s", id, code, body)
	}
}

// well reports that a check is healthy.
func (s *sick) well(id, node, check string) {
	s.t.Helper()
	if code, body := s.post(v1alpha1.HealthEventSpec{ID: id, NodeName: node, CheckName: check, IsHealthy: true}); code != http.StatusAccepted {
		s.t.Fatalf("event %s: %d %s", id, code, body)
	}
}

func (s *sick) event(name string) *v1alpha1.HealthEvent {
	s.t.Helper()
	e := &v1alpha1.HealthEvent{}
	s.read(types.NamespacedName{Name: name}, e)
	return e
}

// becomes waits until an event is in a state, in words: quarantine, drain and the reason of the condition Handled.
func (s *sick) becomes(name, quarantine, drain, reason string) *v1alpha1.HealthEvent {
	s.t.Helper()
	want, last := strings.Join([]string{quarantine, drain, reason}, " "), ""
	defer func() {
		if s.t.Failed() {
			s.t.Logf("event %s was %s", name, last)
		}
	}()
	until(s.t, "event "+name+" to be "+want, func() bool {
		e := s.event(name)
		state, why := "", ""
		if e.Status.UserPodsEvictionStatus != nil {
			state = string(e.Status.UserPodsEvictionStatus.Status)
		}
		if c := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.HealthEventHandled); c != nil {
			why = c.Reason
		}
		last = strings.Join([]string{string(e.Status.NodeQuarantined), state, why}, " ")
		return last == want
	})
	return s.event(name)
}

// request waits until the custom resource of a name exists.
func (s *sick) request(name string) *unstructured.Unstructured {
	s.t.Helper()
	var found *unstructured.Unstructured
	until(s.t, "resource "+name, func() bool {
		var err error
		found, err = s.requests.Get(context.Background(), name, metav1.GetOptions{})
		return err == nil
	})
	return found
}

// reports lets the controller of a resource report a condition.
func (s *sick) reports(name, kind, status, reason string) {
	s.t.Helper()
	until(s.t, "the condition to be written", func() bool {
		r := s.request(name)
		list := []any{map[string]any{"type": kind, "status": status, "reason": reason}}
		if err := unstructured.SetNestedSlice(r.Object, list, "status", "conditions"); err != nil {
			s.t.Fatal(err)
		}
		_, err := s.requests.UpdateStatus(context.Background(), r, metav1.UpdateOptions{})
		return err == nil
	})
}

func (s *sick) noRequests() {
	s.t.Helper()
	until(s.t, "no resource to be left", func() bool {
		list, err := s.requests.List(context.Background(), metav1.ListOptions{})
		return err == nil && len(list.Items) == 0
	})
}

// recovers waits until a node is Alive and uncordoned in an epoch after another.
func (s *sick) recovers(node string) {
	s.t.Helper()
	until(s.t, "node "+node+" to be back", func() bool {
		n := s.node(node)
		return n.IsReady() && n.Status.Liveness == v1alpha1.Alive && !n.Spec.Cordoned && len(v1alpha1.CordonOwners(n)) == 0 && s.record(node).Held()
	})
}

func TestCustomDrains(t *testing.T) {
	beside(t, light)
	c := newCluster(t, testenv.Ebb(t))
	c.server = testenv.EbbPlain(t)
	startSick(t, c, "1h").customDrains(t)
}

// The same on a real Kubernetes, in one installation.
func TestHealthEventsOnKubernetes(t *testing.T) {
	beside(t, light)
	s := startSickOnKubernetes(t, "1h")
	s.customDrains(t)
	if t.Failed() {
		return
	}
	s.configure("2s", "")
	s.restart()
	s.timesOut(t)
	s.well("h-timeout", s.event("e-timeout").Spec.NodeName, "Xid")
	s.recovers(s.event("e-timeout").Spec.NodeName)
	s.configure("1h", "")
	s.restart()
	s.killedAtEveryStep(t)
	if testlength.Long() && !t.Failed() {
		s.killedAtTheStepsOfAnEviction()
	}
}

// customDrains are the histories of a custom drain. They end as they began, with every node in service.
func (s *sick) customDrains(t *testing.T) {
	leader := s.awaitLeader("")
	target := others(s.names, leader)[0]
	step := func(name string, f func()) {
		t.Run(name, func(t *testing.T) {
			defer func(before testing.TB) { s.t = before }(s.t)
			s.t = t
			f()
		})
	}
	step("the CRD is missing at the start", func() {
		if s.runPod != nil {
			s.runPod(target, "training")
		}
		s.fatal("e1", target, "Xid")
		e := s.becomes("e1", "Quarantined", "InProgress", health.WaitDefinition)
		if n := s.node(target); !n.Spec.Cordoned || !slices.Equal(v1alpha1.CordonOwners(n), []string{string(e.UID)}) {
			t.Errorf("cordoned %v, owners %q", n.Spec.Cordoned, v1alpha1.CordonOwners(n))
		}
		if out := s.must("status"); !strings.Contains(out, "The cluster serves no DrainRequest of nvsentinel.nvidia.com/v1alpha1") {
			t.Errorf("status:\n%s", out)
		}
		s.kubectl("apply", "-f", customCRD)
		r := s.request("drain-" + target + "-e1")
		spec, _, _ := unstructured.NestedMap(r.Object, "spec")
		if spec["reason"] != "it: \"broke\"\n#" || spec["errorCode"] != "79" || spec["nodeName"] != target {
			t.Errorf("spec %v", spec)
		}
		if pods, _, _ := unstructured.NestedStringSlice(r.Object, "spec", "podsToDrain", "default"); s.runPod != nil && !slices.Equal(pods, []string{"training"}) {
			t.Errorf("podsToDrain %v", spec["podsToDrain"])
		}
		until(t, "the template's status", func() bool {
			list, _, _ := unstructured.NestedSlice(s.request("drain-"+target+"-e1").Object, "status", "conditions")
			return len(list) == 1 && list[0].(map[string]any)["reason"] == "Pending"
		})
	})
	step("complete", func() {
		s.awaitParked(target)
		s.becomes("e1", "Quarantined", "InProgress", health.WaitResource)
		s.reports("drain-"+target+"-e1", "DrainComplete", "True", "AllJobsCompleted")
		s.becomes("e1", "Quarantined", "Succeeded", health.ReasonDrained)
		s.noRequests()
	})
	step("another event of a node that is drained", func() {
		s.fatal("e2", target, "Nvlink")
		s.becomes("e2", "Quarantined", "AlreadyDrained", health.ReasonDrained)
		s.well("h2", target, "Nvlink")
		s.becomes("h2", "", "", health.WaitOthers)
		s.well("h1", target, "Xid")
		s.becomes("e1", "UnQuarantined", "Succeeded", health.ReasonResolved)
		s.becomes("e2", "UnQuarantined", "AlreadyDrained", health.ReasonResolved)
		s.recovers(target)
	})
	step("a replayed event does not drain again", func() {
		before := s.event("e1").Status
		s.fatal("e1", target, "Xid")
		if code, _ := s.post(v1alpha1.HealthEventSpec{ID: "e1", NodeName: target, CheckName: "Other", IsFatal: true}); code != http.StatusConflict {
			t.Errorf("another event with the id: %d", code)
		}
		if code, _ := s.send(s.token(), http.MethodGet, "/api/v2/captures", nil); code != http.StatusUnauthorized {
			t.Errorf("the token of events reads captures: %d", code)
		}
		// An event after it was handled, so the replay has been seen.
		s.well("seen", target, "Xid")
		s.becomes("seen", "", "", health.ReasonHealthy)
		if e := s.event("e1"); !equality.Semantic.DeepEqual(e.Status, before) || s.node(target).Spec.Cordoned {
			t.Errorf("the replay had an effect: %+v", e.Status)
		}
		s.noRequests()
	})
	step("cancelled during", func() {
		s.fatal("e3", target, "Xid")
		s.request("drain-" + target + "-e3")
		// One drain, two events.
		s.fatal("e4", target, "Xid")
		s.becomes("e4", "Quarantined", "InProgress", health.WaitJoined)
		s.well("h3", target, "Xid")
		until(t, "the end", func() bool { return s.event("e3").Status.ClosedAt != nil && s.event("e4").Status.ClosedAt != nil })
		s.noRequests()
		s.recovers(target)
	})
	step("an old cancel does not stop a fresh drain", func() {
		s.fatal("e5", target, "Xid")
		s.request("drain-" + target + "-e5")
		old := v1alpha1.NewTimestamp(time.Now().Add(-time.Hour))
		s.post(v1alpha1.HealthEventSpec{ID: "h5", NodeName: target, CheckName: "Xid", IsHealthy: true, GeneratedTimestamp: old})
		s.well("h3", target, "Xid") // sent again
		s.becomes("h5", "", "", health.ReasonHealthy)
		if e := s.event("e5"); e.Status.ClosedAt != nil {
			t.Errorf("%+v", e.Status)
		}
	})
	step("the CRD is removed during", func() {
		s.kubectl("delete", "-f", customCRD)
		s.becomes("e5", "Quarantined", "InProgress", health.WaitDefinition)
		s.kubectl("apply", "-f", customCRD)
		s.request("drain-" + target + "-e5-2")
	})
	step("failed, and tried again", func() {
		s.reports("drain-"+target+"-e5-2", "DrainFailed", "True", "JobStuck")
		e := s.becomes("e5", "Quarantined", "Failed", health.ReasonFailed)
		if want := "JobStuck. `ebb events retry e5` tries again."; !strings.HasSuffix(e.Status.UserPodsEvictionStatus.Message, want) {
			t.Errorf("message %q", e.Status.UserPodsEvictionStatus.Message)
		}
		s.noRequests()
		if out := s.must("events", "retry", "e5"); out != "attempt 3 of the drain of node "+target+" is requested\n" {
			t.Errorf("retry: %q", out)
		}
		s.reports("drain-"+target+"-e5-3", "DrainComplete", "True", "Done")
		s.becomes("e5", "Quarantined", "Succeeded", health.ReasonDrained)
		out := s.must("events", "show", "e5")
		for _, want := range []string{"Attempt 1: DrainRequest drain-" + target + "-e5, Lost", "Attempt 2: DrainRequest drain-" + target + "-e5-2, Failed", "Attempt 3: DrainRequest drain-" + target + "-e5-3, Complete"} {
			if !strings.Contains(out, want) {
				t.Errorf("no %q in\n%s", want, out)
			}
		}
		s.must("uncordon", target)
		s.becomes("e5", "Cancelled", "Succeeded", health.ReasonUncordoned)
		if out := s.mustFail("events", "retry", "e5"); !strings.Contains(out, "event e5 no longer keeps node "+target+" in quarantine (Uncordoned: A person uncordoned the node.): there is nothing to retry") {
			t.Errorf("retry of a closed event: %q", out)
		}
		s.recovers(target)
		var announced eventsv1.EventList
		if err := s.client.List(context.Background(), &announced); err != nil {
			t.Fatal(err)
		}
		reasons := map[string]bool{}
		for _, e := range announced.Items {
			if e.Regarding.Kind == "Node" && e.Regarding.Name == target {
				reasons[e.Reason] = true
			}
		}
		for _, want := range []string{health.AnnouncedQuarantine, health.AnnouncedUnquarantine, health.AnnouncedDrained, health.AnnouncedFailed, health.WaitDefinition} {
			if !reasons[want] {
				t.Errorf("no Event %s about node %s: %v", want, target, reasons)
			}
		}
	})
	step("a drain that a person requested, and the bridge of the documentation", func() { s.drainWithBridge(t, target) })
	step("the coordinator's node resigns", func() {
		s.fatal("e6", leader, "Xid")
		next := s.awaitLeader(leader)
		s.reports("drain-"+leader+"-e6", "DrainComplete", "True", "Done")
		s.becomes("e6", "Quarantined", "Succeeded", health.ReasonDrained)
		s.awaitParked(leader)
		s.well("h6", leader, "Xid")
		s.becomes("e6", "UnQuarantined", "Succeeded", health.ReasonResolved)
		s.recovers(leader)
		if got := s.leader(); got != next {
			t.Errorf("%s leads, and not %s", got, next)
		}
	})
}

// drainWithBridge drains a node by hand. The bridge completes the request when a file says that the node is empty.
func (s *sick) drainWithBridge(t *testing.T, target string) {
	dir := t.TempDir()
	empty, command := filepath.Join(dir, "empty"), filepath.Join(dir, "empty.sh")
	if err := os.WriteFile(command, []byte("#!/bin/sh\ntest -e "+empty+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	bridge := filepath.Join(dir, "bridge")
	build := exec.Command("go", "build", "-o", bridge, "../../examples/bridge")
	build.Env = testenv.PlainBuild()
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	running := s.launch(bridge, "--kubeconfig", s.dir.Kubeconfig(), "--namespace", "default", "--command", command)
	s.must("drain", target, "--reason", "kernel")
	until(t, "the drain to wait for the bridge", func() bool {
		out := s.must("explain", target)
		return strings.Contains(out, "1 custom drain left") && strings.Contains(out, "blocks the drain: CustomResourceInProgress")
	})
	var list v1alpha1.HealthEventList
	if err := s.client.List(context.Background(), &list); err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(list.Items, func(e v1alpha1.HealthEvent) bool { return e.Spec.CheckName == v1alpha1.CheckManualDrain })
	if at < 0 || list.Items[at].Spec.Message != "kernel" || list.Items[at].Spec.NodeName != target {
		t.Fatalf("no event of the drain: %+v", list.Items)
	}
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.becomes(list.Items[at].Name, "", "Succeeded", health.ReasonDrained)
	until(t, "the node to leave", func() bool { return !s.record(target).Held() })
	s.noRequests()
	running.stop() // other tests play the controller of the requests themselves
	before := s.record(target).Epoch
	if s.node(target).IsParked() {
		s.must("uncordon", target)
	} else {
		s.startNode(target, s.nodeArgs...)
	}
	s.awaitReady(target, before+1)
	s.recovers(target)
}

func TestACustomDrainTimesOutWithoutItsController(t *testing.T) {
	beside(t, light)
	c := newCluster(t, testenv.Ebb(t))
	c.server = testenv.EbbPlain(t)
	s := startSick(t, c, "2s")
	s.kubectl("apply", "-f", customCRD)
	s.timesOut(t)
}

func (s *sick) timesOut(t *testing.T) {
	target := others(s.names, s.awaitLeader(""))[0]
	s.fatal("e-timeout", target, "Xid")
	e := s.becomes("e-timeout", "Quarantined", "Failed", health.ReasonFailed)
	if cr := e.Status.CustomResource; cr.Outcome != v1alpha1.ResourceTimedOut || cr.Message != "It was not complete after 2s." {
		t.Errorf("%+v", cr)
	}
	s.noRequests()
	if !s.node(target).Spec.Cordoned {
		t.Error("not quarantined any more")
	}
	// Beyond the limit of one node others wait by name.
	other := others(s.names, target)[0]
	s.fatal("e-limit", other, "Xid")
	s.becomes("e-limit", "", "", health.WaitLimit)
	if s.node(other).Spec.Cordoned {
		t.Error("quarantined beyond the limit")
	}
	s.well("h-limit", other, "Xid")
	s.becomes("e-limit", "Cancelled", "Cancelled", health.ReasonResolved)
}

// The coordinator is killed after every step, and between the halves of those that have two.
func TestTheCoordinatorIsKilledAtEveryStepOfACustomDrain(t *testing.T) {
	beside(t, light)
	c := newCluster(t, testenv.EbbFailpoints(t))
	c.server, c.points = testenv.EbbPlain(t), t.TempDir()
	s := startSick(t, c, "1h")
	s.kubectl("apply", "-f", customCRD)
	s.killedAtEveryStep(t)
}

func (s *sick) killedAtEveryStep(t *testing.T) {
	target := others(s.names, s.awaitLeader(""))[0]
	// What is stored after a step is what is stored before the next one, so that "before" is needed once.
	s.arm("before-health-"+string(health.ActionHold), "")
	for _, a := range []health.Action{
		health.ActionHold, health.ActionQuarantine, health.ActionAdmit, health.ActionSnapshot, health.ActionCreateCR, health.ActionNameDrain, health.ActionStartDrain,
		health.ActionMarkAlreadyDrained, health.ActionDeleteCR, health.ActionEndDrain, health.ActionFinish, health.ActionLift, health.ActionClose,
	} {
		s.arm("after-health-"+string(a), "")
	}
	for _, point := range []string{"create-cr", "write-status", "delete-cr", "start-drain"} {
		s.arm("between-health-"+point, "")
	}
	awaiting := s.reviving()
	body, err := json.Marshal(v1alpha1.HealthEvent{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "HealthEvent"},
		ObjectMeta: metav1.ObjectMeta{Name: "k1"}, Spec: v1alpha1.HealthEventSpec{NodeName: target, CheckName: "Xid", IsFatal: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	if out, errs, code := s.runWith(bytes.NewReader(body), "apply", "-f", "-"); code != 0 {
		t.Fatalf("apply: %s%s", out, errs)
	}
	state := func() v1alpha1.EvictionState {
		if st := s.event("k1").Status.UserPodsEvictionStatus; st != nil {
			return st.Status
		}
		return ""
	}
	awaiting("the resource", func() bool { cr := s.event("k1").Status.CustomResource; return cr != nil && cr.UID != "" })
	first := s.request("drain-" + target + "-k1")
	awaiting("the drain to be created and ended", func() bool { d := s.event("k1").Status.Drain; return d != nil && d.Phase == v1alpha1.DrainComplete })
	s.reports(first.GetName(), "DrainComplete", "True", "Done")
	awaiting("the end", func() bool { return state() == v1alpha1.EvictionSucceeded })
	e := s.event("k1")
	if cr := e.Status.CustomResource; cr.UID != string(first.GetUID()) || cr.Attempt != 1 || len(e.Status.Attempts) > 0 {
		t.Errorf("more than one resource: %+v, %+v", cr, e.Status.Attempts)
	}
	// A drain may be refused because its node has just become the coordinator; one has begun.
	var drains v1alpha1.DrainList
	if err := s.client.List(context.Background(), &drains); err != nil {
		t.Fatal(err)
	}
	begun := slices.DeleteFunc(drains.Items, func(d v1alpha1.Drain) bool {
		return d.Status.StartedAt == nil || d.Annotations[v1alpha1.HealthEventAnnotation] != string(e.UID)
	})
	if len(begun) != 1 || string(begun[0].UID) != e.Status.Drain.UID {
		t.Errorf("%d drains have begun: %+v", len(begun), begun)
	}
	h := &v1alpha1.HealthEvent{ObjectMeta: metav1.ObjectMeta{Name: "l1"}, Spec: v1alpha1.HealthEventSpec{NodeName: target, CheckName: "Xid", IsHealthy: true}}
	later := v1alpha1.NewTimestamp(time.Now().Add(time.Second))
	h.Spec.GeneratedTimestamp = later
	if err := s.client.Create(context.Background(), h); err != nil {
		t.Fatal(err)
	}
	awaiting("the quarantine to be lifted", func() bool {
		n := s.node(target)
		return s.event("k1").Status.NodeQuarantined == v1alpha1.UnQuarantined && !n.Spec.Cordoned && n.IsReady() && n.Status.Liveness == v1alpha1.Alive
	})
	s.noRequests()
	awaiting("somebody to have died at every point", func() bool { return len(s.armed()) == 0 })
	if testlength.Long() {
		s.killedAtTheStepsOfAFailure(target, awaiting)
		s.killedAtTheStepsOfACancel()
	}
}

// killedAtTheStepsOfACancel goes on with an event of the coordinator's node whose Drain is queued behind one that a person requested, and is cancelled.
func (s *sick) killedAtTheStepsOfACancel() {
	s.configure("1h", "[quarantine]\nmaxShare = \"67%\"\n") // the node that is drained may be cordoned, too
	s.restart()
	awaiting := s.reviving()
	busy := others(s.names, s.awaitLeader(""))[0]
	s.arm("after-health-"+string(health.ActionManual), "")
	s.must("drain", busy, "--reason", "kernel")
	var manual *v1alpha1.HealthEvent
	awaiting("the resource of the drain that was requested", func() bool {
		var list v1alpha1.HealthEventList
		if err := s.client.List(context.Background(), &list); err != nil {
			return false
		}
		for i := range list.Items {
			if e := &list.Items[i]; e.Spec.CheckName == v1alpha1.CheckManualDrain && e.Spec.NodeName == busy && e.Status.CustomResource != nil && e.Status.CustomResource.UID != "" {
				manual = e
			}
		}
		return manual != nil && manual.Status.CustomResource.Outcome == ""
	})
	target := s.awaitLeader("") // another one than before: that one was killed
	s.arm("after-health-"+string(health.ActionResign), "")
	s.arm("after-health-"+string(health.ActionCancelDrain), "")
	s.happened("k4", target, "Xid", false)
	awaiting("the Drain to be queued", func() bool {
		d := s.event("k4").Status.Drain
		return d != nil && d.UID != ""
	})
	s.happened("l4", target, "Xid", true)
	awaiting("the Drain to be cancelled, and the quarantine lifted", func() bool {
		e := s.event("k4")
		return e.Status.ClosedAt != nil && e.Status.Drain.Phase == v1alpha1.DrainCancelled && !s.node(target).Spec.Cordoned
	})
	if e := s.event("k4"); e.Status.UserPodsEvictionStatus.Status != v1alpha1.EvictionCancelled || e.Status.NodeQuarantined != v1alpha1.UnQuarantined {
		s.t.Errorf("event k4 is %+v", e.Status)
	}
	if e := s.event(manual.Name); e.Status.CustomResource.UID != manual.Status.CustomResource.UID || e.Status.CustomResource.Outcome != "" {
		s.t.Errorf("the drain that was requested was touched: %+v", e.Status.CustomResource)
	}
	awaiting("somebody to have died at every point of the cancel", func() bool { return len(s.armed()) == 0 })
	s.must("drain", busy, "--cancel")
	awaiting("the nodes to be back", func() bool {
		for _, name := range s.names {
			if n := s.node(name); n.Spec.Cordoned || !n.IsReady() || n.Status.Liveness != v1alpha1.Alive {
				return false
			}
		}
		return true
	})
	s.noRequests()
}

// killedAtTheStepsOfAnEviction goes on without a custom drain: a Drain moves the pods.
func (s *sick) killedAtTheStepsOfAnEviction() {
	if err := os.WriteFile(s.configFile(), []byte("[[userNamespaces]]\nname = \"*\"\nmode = \"Immediate\"\n"), 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.restart()
	awaiting := s.reviving()
	target := others(s.names, s.awaitLeader(""))[0]
	s.runPod(target, "evicted")
	s.arm("between-health-"+string(health.ActionStartDrain), "")
	s.arm("after-health-"+string(health.ActionEvictImmediate), "")
	s.happened("k5", target, "Xid", false)
	awaiting("the node to be drained", func() bool {
		st := s.event("k5").Status.UserPodsEvictionStatus
		return st != nil && st.Status == v1alpha1.EvictionSucceeded
	})
	var drains v1alpha1.DrainList
	if err := s.client.List(context.Background(), &drains); err != nil {
		s.t.Fatal(err)
	}
	e := s.event("k5")
	begun := slices.DeleteFunc(drains.Items, func(d v1alpha1.Drain) bool {
		return d.Status.StartedAt == nil || d.Annotations[v1alpha1.HealthEventAnnotation] != string(e.UID)
	})
	if len(begun) != 1 || string(begun[0].UID) != e.Status.Drain.UID || begun[0].Status.Pods == nil {
		s.t.Errorf("%d drains have begun: %+v", len(begun), begun)
	}
	awaiting("somebody to have died at every point of the eviction", func() bool { return len(s.armed()) == 0 })
	s.happened("l5", target, "Xid", true)
	awaiting("the node to be back", func() bool {
		n := s.node(target)
		return s.event("k5").Status.NodeQuarantined == v1alpha1.UnQuarantined && !n.Spec.Cordoned && n.IsReady() && n.Status.Liveness == v1alpha1.Alive
	})
}

// happened creates an event without the help of a node: the coordinator may be dead.
func (s *sick) happened(name, node, check string, healthy bool) {
	s.t.Helper()
	e := &v1alpha1.HealthEvent{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.HealthEventSpec{NodeName: node, CheckName: check, IsFatal: !healthy, IsHealthy: healthy}}
	if healthy {
		e.Spec.GeneratedTimestamp = v1alpha1.NewTimestamp(time.Now().Add(time.Second))
	}
	if err := s.client.Create(context.Background(), e); err != nil {
		s.t.Fatal(err)
	}
}

// reviving returns a function that waits for something, and meanwhile starts every node again that was killed.
func (s *sick) reviving() func(what string, holds func() bool) {
	revive := s.reviver()
	return func(what string, holds func() bool) {
		s.t.Helper()
		deadline, began := time.Now().Add(3*patience), time.Now()
		for ; !holds(); pollAgain(began) {
			if revive(); time.Now().After(deadline) {
				s.t.Fatalf("waited %s for %s", 3*patience, what)
			}
		}
	}
}

// killedAtTheStepsOfAFailure goes on with a drain that fails, is tried again and is cancelled, with two events.
func (s *sick) killedAtTheStepsOfAFailure(target string, awaiting func(what string, holds func() bool)) {
	for _, a := range []health.Action{health.ActionDrainFailed, health.ActionFollow, health.ActionRetry, health.ActionEndCR, health.ActionRelease} {
		s.arm("after-health-"+string(a), "")
	}
	event := func(name, check string, healthy bool) { s.happened(name, target, check, healthy) }
	failed := func(name string) bool {
		st := s.event(name).Status.UserPodsEvictionStatus
		return st != nil && st.Status == v1alpha1.EvictionFailed
	}
	resource := func(attempt int64) {
		awaiting(fmt.Sprintf("resource %d", attempt), func() bool {
			cr := s.event("k2").Status.CustomResource
			return cr != nil && cr.UID != "" && cr.Attempt == attempt
		})
	}
	event("k2", "Xid", false)
	resource(1)
	event("k3", "Nvlink", false)
	awaiting("the second event to join", func() bool { return s.event("k3").Status.Joined != nil })
	s.reports("drain-"+target+"-k2", "DrainFailed", "True", "JobStuck")
	awaiting("the drain to have failed for both", func() bool { return failed("k2") && failed("k3") })
	s.must("events", "retry", "k2")
	resource(2)
	event("l2", "Xid", true)
	event("l3", "Nvlink", true)
	awaiting("the events to be closed and let go", func() bool {
		one, two := s.event("k2"), s.event("k3")
		return one.Status.ClosedAt != nil && two.Status.ClosedAt != nil && len(one.Finalizers)+len(two.Finalizers) == 0
	})
	if e := s.event("k2"); len(e.Status.Attempts) != 1 || e.Status.UserPodsEvictionStatus.Status != v1alpha1.EvictionCancelled || e.Status.CustomResource.Outcome != v1alpha1.ResourceCancelled {
		s.t.Errorf("event k2 is %+v", e.Status)
	}
	s.noRequests()
	awaiting("somebody to have died at every point of the failure", func() bool { return len(s.armed()) == 0 })
	awaiting("the node to be back", func() bool {
		n := s.node(target)
		return !n.Spec.Cordoned && n.IsReady() && n.Status.Liveness == v1alpha1.Alive
	})
}

// reviver returns a function that starts every node again that was killed.
func (s *sick) reviver() func() {
	pids := map[string]*process{}
	return func() {
		for _, name := range s.names {
			p := pids[name]
			if p == nil {
				if alive(s.pid(name)) {
					continue
				}
			} else {
				select {
				case <-p.done:
				default:
					continue
				}
			}
			pids[name] = s.startNode(name, s.nodeArgs...)
		}
	}
}

// alive reports whether a process runs: one that was killed is waited for by the test and is gone.
func alive(pid int) bool {
	_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
	return err == nil
}
