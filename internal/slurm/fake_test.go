package slurm_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/slurm"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// fakeSlurm are commands that keep nodes in files, so that a test can do something between two of them.
type fakeSlurm struct {
	t        *testing.T
	dir      string
	bridge   *slurm.Bridge
	requests dynamic.ResourceInterface
	objects  client.Client
}

const (
	fakeScontrol = `#!/bin/sh
cd "$(dirname "$0")"
echo "$*" >> log
case "$*" in
"--all --oneliner show node") cat nodes/*; if [ -e then ]; then mv then now; . ./now; fi ;;
"--all --oneliner show node "*) cat "nodes/$5" ;;
"update "*" state=resume") echo "NodeName=${2#nodename=} State=IDLE Weight=1" > "nodes/${2#nodename=}" ;;
"update "*" state=drain "*) echo "NodeName=${2#nodename=} State=IDLE+DRAIN Reason=${4#reason=} [root@2026-11-16T12:00:00]" > "nodes/${2#nodename=}" ;;
esac
`
	fakeSqueue = "#!/bin/sh\ncat \"$(dirname \"$0\")/jobs\"\n"
)

// startFake starts an API with nodes, and a bridge that looks only when the test says so.
func startFake(t *testing.T, rule string, nodes ...string) *fakeSlurm {
	t.Helper()
	f := &fakeSlurm{t: t, dir: t.TempDir()}
	if err := os.Mkdir(filepath.Join(f.dir, "nodes"), 0o755); err != nil {
		t.Fatal(err)
	}
	f.file("scontrol", fakeScontrol)
	f.file("squeue", fakeSqueue)
	f.file("jobs", "")
	for _, name := range []string{"s1", "s2"} {
		f.file("nodes/"+name, "NodeName="+name+" State=IDLE Weight=1\n")
	}
	api := testenv.StartAPI(t)
	cfg := api.Config(api.Dir.Kubeconfig())
	if err := slurm.Install(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	f.file("table", "n1 s1\nn2 s2\n")
	names, err := slurm.NewNames(filepath.Join(f.dir, "table"), rule)
	if err != nil {
		t.Fatal(err)
	}
	f.bridge, err = slurm.New(slurm.Options{Config: cfg, Namespace: "default", Slurm: slurm.Commands{Dir: f.dir}, Names: names, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	objects, err := dynamic.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	f.requests, f.objects = objects.Resource(slurm.Resource).Namespace("default"), api.Admin()
	for _, name := range nodes {
		if err := f.objects.Create(t.Context(), &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NodeSpec{Cordoned: true}}); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func (f *fakeSlurm) file(name, text string) {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, name), []byte(text), 0o755); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fakeSlurm) read(name string) string {
	f.t.Helper()
	text, err := os.ReadFile(filepath.Join(f.dir, name))
	if err != nil {
		f.t.Fatal(err)
	}
	return string(text)
}

const byHand = "NodeName=s1 State=IDLE+DRAIN Reason=by hand [root@2026-11-16T12:00:00]\n"

// afterTheRead lets a person drain s1 after the bridge has read all nodes.
func (f *fakeSlurm) afterTheRead() {
	f.file("then", "echo '"+strings.TrimSpace(byHand)+"' > nodes/s1\n")
}

// isByHand checks that the drain of the person is there, and that nothing was changed since a length of the log.
func (f *fakeSlurm) isByHand(since int) {
	f.t.Helper()
	if got := f.read("nodes/s1"); got != byHand {
		f.t.Errorf("s1 is %s", got)
	}
	if log := f.read("log")[since:]; strings.Contains(log, "update ") {
		f.t.Errorf("the bridge changed a node:\n%s", log)
	}
}

func (f *fakeSlurm) create(name, node string) {
	f.t.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "slurm.ebb.dev/v1alpha1", "kind": "SlurmDrainRequest", "metadata": map[string]any{"name": name}, "spec": map[string]any{"nodeName": node},
	}}
	if _, err := f.requests.Create(f.t.Context(), u, metav1.CreateOptions{}); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fakeSlurm) remove(name string) {
	f.t.Helper()
	if err := f.requests.Delete(f.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fakeSlurm) look() {
	f.t.Helper()
	if err := f.bridge.Look(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
}

// says checks the reason and the message of a condition that is True. No reason is no such condition.
func (f *fakeSlurm) says(name, kind, reason, message string) {
	f.t.Helper()
	u, err := f.requests.Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	list, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	got := map[string]any{}
	for _, c := range list {
		if m := c.(map[string]any); m["type"] == kind && m["status"] == "True" {
			got = m
		}
	}
	said, _ := got["reason"].(string)
	text, _ := got["message"].(string)
	if said != reason || !strings.Contains(text, message) {
		f.t.Errorf("%s says %s %q: %q; want %q: %q", name, kind, said, text, reason, message)
	}
}

func TestADrainByHandAfterTheReadIsLeftAlone(t *testing.T) {
	f := startFake(t, "", "n1", "n2")

	// Before the bridge drains.
	f.afterTheRead()
	f.create("r1", "n1")
	f.look()
	f.isByHand(0)
	f.says("r1", slurm.InProgress, "DrainedByOthers", `"by hand"`)

	// Before it resumes what a request drained that is deleted.
	f.file("nodes/s1", "NodeName=s1 State=IDLE Weight=1\n")
	f.file("jobs", "7\n")
	f.look()
	f.says("r1", slurm.InProgress, "DrainStarted", "Waiting for jobs: 7")
	f.remove("r1")
	since := len(f.read("log"))
	f.afterTheRead()
	f.look()
	f.isByHand(since)
	if _, err := f.requests.Get(t.Context(), "r1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the request is held: %v", err)
	}

	// Before it resumes a node that is in service again.
	n := &v1alpha1.Node{}
	if err := f.objects.Get(t.Context(), client.ObjectKey{Name: "n1"}, n); err != nil {
		t.Fatal(err)
	}
	n.Spec.Cordoned = false
	if err := f.objects.Update(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	n.Status = v1alpha1.NodeStatus{Liveness: v1alpha1.Alive, Epoch: 1, Conditions: []metav1.Condition{
		{Type: v1alpha1.NodeReady, Status: metav1.ConditionTrue, Reason: "Serving", LastTransitionTime: metav1.Now()},
	}}
	if err := f.objects.Status().Update(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	f.file("nodes/s1", "NodeName=s1 State=IDLE+DRAIN Reason=ebb drain default/old [root@2026-11-16T12:00:00]\n")
	since = len(f.read("log"))
	f.afterTheRead()
	f.look()
	f.isByHand(since)

	// Without a person it is resumed.
	f.file("nodes/s1", "NodeName=s1 State=IDLE+DRAIN Reason=ebb drain default/old [root@2026-11-16T12:00:00]\n")
	f.look()
	if got := f.read("nodes/s1"); got != "NodeName=s1 State=IDLE Weight=1\n" {
		t.Errorf("s1 is %s", got)
	}
}

func TestAMachineIsNotDrainedForTwoNames(t *testing.T) {
	f := startFake(t, "(.*)-[ab]=$1", "n1", "n2", "s2", "s3-a", "s3-b", "s4-a")
	for _, name := range []string{"s3", "s4"} {
		f.file("nodes/"+name, "NodeName="+name+" State=IDLE Weight=1\n")
	}
	f.create("by-rule", "s3-a")
	f.create("by-table", "n2") // s2 in Slurm, and s2 is a node in Ebb
	f.create("requested", "s5-a")
	f.create("requested-too", "s5-b") // neither is a node in Ebb
	f.file("nodes/s5", "NodeName=s5 State=IDLE Weight=1\n")
	f.look()
	f.says("by-rule", slurm.Failed, "AmbiguousName", "Node s3-b has the same name in Slurm: correct --node-table or --node-rule")
	f.says("by-table", slurm.Failed, "AmbiguousName", "Node s2 has the same name")
	f.says("requested", slurm.Failed, "AmbiguousName", "Node s5-b has the same name")
	f.says("requested-too", slurm.Failed, "AmbiguousName", "Node s5-a has the same name")
	if log := f.read("log"); strings.Contains(log, "update ") {
		t.Errorf("a node was drained:\n%s", log)
	}
	f.create("alone", "s4-a")
	f.look()
	f.says("alone", slurm.InProgress, "DrainStarted", "")

	// A drain that has begun goes on.
	f.file("jobs", "7\n")
	if err := f.objects.Create(t.Context(), &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "s4-b"}}); err != nil {
		t.Fatal(err)
	}
	f.look()
	f.says("alone", slurm.Failed, "", "")
}

// One look after the end of the last job reports that the drain is complete: it takes the interval between two looks, and no longer.
func TestTheFirstLookAfterTheEndOfTheJobsCompletesTheDrain(t *testing.T) {
	f := startFake(t, "", "n1", "n2")
	f.file("jobs", "7\n")
	f.create("r1", "n1")
	f.look()
	f.says("r1", slurm.InProgress, "DrainStarted", "Waiting for jobs: 7")
	f.says("r1", slurm.Complete, "", "")
	f.file("jobs", "")
	f.look()
	f.says("r1", slurm.Complete, "AllJobsCompleted", "")
}
