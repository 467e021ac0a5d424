package apiserver_test

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/ebb-dev/ebb/internal/testenv"
)

// kubectl runs stock kubectl as admin and returns what it prints.
func kubectl(t *testing.T, s *running, args ...string) string {
	t.Helper()
	cmd := kubectlCommand(t, s, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s%s", strings.Join(args, " "), err, out, stderr.String())
	}
	if stderr.Len() > 0 {
		t.Errorf("kubectl %s warns: %s", strings.Join(args, " "), stderr.String())
	}
	return string(out)
}

func kubectlCommand(t *testing.T, s *running, args ...string) *exec.Cmd {
	t.Helper()
	return kubectlAs(t, s.dir.Kubeconfig(), args...)
}

func kubectlAs(t *testing.T, kubeconfig string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), testenv.Kubectl(t), append([]string{"--kubeconfig", kubeconfig}, args...)...)
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir()) // no discovery cache of an earlier test
	return cmd
}

var blanks = regexp.MustCompile(` {2,}`)

// table is what kubectl printed, one row a line, cells separated by "|", ages left out.
func table(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for i, line := range lines {
		cells := strings.Split(blanks.ReplaceAllString(strings.TrimSpace(line), "|"), "|")
		if i > 0 && regexp.MustCompile(`^(\d+[smh])+$`).MatchString(cells[len(cells)-1]) {
			cells[len(cells)-1] = "<age>"
		}
		lines[i] = strings.Join(cells, "|")
	}
	return strings.Join(lines, "\n")
}

func equal(t *testing.T, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func manifest(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "manifest.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestKubectlListsEveryKind(t *testing.T) {
	out := kubectl(t, api(t), "api-resources", "--api-group=ebb.dev", "--sort-by=name")
	for _, want := range []string{
		"drains|dr|ebb.dev/v1alpha1|false|Drain",
		"nodes|en|ebb.dev/v1alpha1|false|Node",
		"settings|ebb.dev/v1alpha1|false|Settings",
	} {
		if !strings.Contains(table(out), want) {
			t.Errorf("no %q in\n%s", want, table(out))
		}
	}
	all := table(kubectl(t, api(t), "api-resources"))
	for _, want := range []string{"events|ev|v1|true|Event", "events|ev|events.k8s.io/v1|true|Event", "secrets|v1|true|Secret", "configmaps|cm|v1|true|ConfigMap", "namespaces|ns|v1|false|Namespace", "leases|coordination.k8s.io/v1|true|Lease"} {
		if !strings.Contains(all, want) {
			t.Errorf("no %q in\n%s", want, all)
		}
	}
}

func TestKubectlExplains(t *testing.T) {
	s := api(t)
	for field, want := range map[string][]string{
		"drain":                        {"GROUP:      ebb.dev", "Drain takes one node out of service: it moves all work off the node, and its"},
		"node.spec.desired.liveness":   {"FIELD: liveness <string>", "liveness the node should reach."},
		"node.status.liveness":         {"ENUM:", "    Alive\n    Draining\n    Stopping\n", "It only moves forward"},
		"drain.status.blockers.remedy": {"FIELD: remedy <string>", "remedy is what a person can do about it."},
		"settings.spec.drain":          {"maintainerBatchSize\t<integer>", "is how many maintainers of changefeeds move"},
		"lease.spec":                   {"holderIdentity\t<string>"},
		"event.message":                {"FIELD: message <string>", "A human-readable description of the status of this operation."},
		"secret.stringData":            {"FIELD: stringData <map[string]string>", "write-only"},
		"configmap.binaryData":         {"FIELD: binaryData <map[string]string>"},
		"namespace.status.conditions":  {"FIELD: conditions <[]NamespaceCondition>", "lastTransitionTime\t<string>"},
	} {
		out := kubectl(t, s, "explain", field)
		for _, part := range want {
			if !strings.Contains(out, part) {
				t.Errorf("explain %s: no %q in\n%s", field, part, out)
			}
		}
	}
}

func TestKubectlAppliesChangesAndDeletes(t *testing.T) {
	s := api(t)
	name := fresh("apply")
	drain := func(reason string) string {
		return manifest(t, "apiVersion: ebb.dev/v1alpha1\nkind: Drain\nmetadata:\n  name: "+name+"\nspec:\n  nodeName: n9\n  reason: "+reason+"\n")
	}
	equal(t, kubectl(t, s, "apply", "-f", drain("kernel")), "drain.ebb.dev/"+name+" created\n")
	equal(t, kubectl(t, s, "apply", "-f", drain("kernel")), "drain.ebb.dev/"+name+" unchanged\n")
	equal(t, kubectl(t, s, "apply", "-f", drain("disk")), "drain.ebb.dev/"+name+" configured\n")
	equal(t, kubectl(t, s, "apply", "--server-side", "--force-conflicts", "-f", drain("fan")), "drain.ebb.dev/"+name+" serverside-applied\n")
	equal(t, kubectl(t, s, "get", "dr", name, "-o", "jsonpath={.spec.reason}"), "fan")
	equal(t, kubectl(t, s, "delete", "drain", name), "drain.ebb.dev \""+name+"\" deleted\n")
	out, err := kubectlCommand(t, s, "get", "drain", name).CombinedOutput()
	if err == nil || string(out) != "Error from server (NotFound): drains.ebb.dev \""+name+"\" not found\n" {
		t.Errorf("get after delete: %v, %s", err, out)
	}
	t.Run("what is refused says why", func(t *testing.T) {
		bad := manifest(t, "apiVersion: ebb.dev/v1alpha1\nkind: Drain\nmetadata:\n  name: "+name+"\nspec:\n  nodeName: n9\n  nodename: n8\n")
		out, err := kubectlCommand(t, s, "apply", "-f", bad).CombinedOutput()
		if err == nil || !strings.Contains(string(out), `unknown field "spec.nodename"`) {
			t.Errorf("a misspelt field: %v, %s", err, out)
		}
	})
}

func TestKubectlPrintsColumnsThatTellSomething(t *testing.T) {
	s := api(t)
	admin := s.admin(t)
	name := fresh("columns")
	ready := []object{{"type": "Ready", "status": "True", "reason": "Serving", "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z"}}
	invalid(t, change(t, nodes, nodeObject(name).with("spec", object{"cordoned": true}), nil,
		lively("Alive", 3).with("coordinator", true).with("conditions", ready).with("httpAddress", "https://127.0.0.1:1").with("version", "v1")))
	invalid(t, change(t, drains, ebb("Drain", name).with("spec", object{"nodeName": name, "reason": "kernel"}), nil, object{
		"phase": "Failed", "stage": "volumes",
		"conditions": []object{{"type": "Finished", "status": "True", "reason": "DeadlineExceeded", "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z"}},
		"blockers":   []object{{"kind": "Volume", "name": "v", "reason": "LastReplica", "since": "2026-01-02T03:04:05Z"}},
	}))
	admin.must(t, http.MethodPost, leases, nodeLease(name, "p", 3, 2))
	admin.must(t, http.MethodPost, events, eventObject(name))
	admin.must(t, http.MethodPatch, settings+"/cluster", object{"spec": object{"nodeDrainPolicy": "block-if-contains-last-replica", "drain": object{"maintainerBatchSize": 1}}})

	equal(t, table(kubectl(t, s, "get", "nodes.ebb.dev", name)),
		"NAME|LIVENESS|READY|COORDINATOR|CORDONED|EPOCH|REASON|AGE\n"+name+"|Alive|True|true|true|3|Serving|<age>")
	equal(t, table(kubectl(t, s, "get", "en", name, "-o", "wide")),
		"NAME|LIVENESS|READY|COORDINATOR|CORDONED|EPOCH|REASON|ADDRESS|VERSION|AGE\n"+name+"|Alive|True|true|true|3|Serving|https://127.0.0.1:1|v1|<age>")
	equal(t, table(kubectl(t, s, "get", "drain", name)),
		"NAME|NODE|PHASE|OUTCOME|STAGE|BLOCKER|PROGRESS|AGE\n"+name+"|"+name+"|Failed|DeadlineExceeded|volumes|LastReplica|<age>")
	equal(t, table(kubectl(t, s, "get", "settings")),
		"NAME|DRAIN-POLICY|BATCH|DRAINING|AGE\ncluster|block-if-contains-last-replica|1|<age>")
	equal(t, table(kubectl(t, s, "get", "leases", "-n", "ebb-system", "node-"+name)),
		"NAME|HOLDER|EPOCH|FENCED|RENEWED|AGE\nnode-"+name+"|p|3|2|<age>")
	got := table(kubectl(t, s, "get", "events", name))
	if want := regexp.MustCompile("^LAST SEEN\\|TYPE\\|REASON\\|OBJECT\\|MESSAGE\n\\d+d\\|Normal\\|Drained\\|node/n2\\|nothing is left$"); !want.MatchString(got) {
		t.Errorf("events are\n%s\nwant\n%s", got, want)
	}
	if out := kubectl(t, s, "get", "ebb"); !strings.Contains(out, "node.ebb.dev/"+name) || !strings.Contains(out, "drain.ebb.dev/"+name) || !strings.Contains(out, "settings.ebb.dev/cluster") {
		t.Errorf("the category ebb shows\n%s", out)
	}
}

func TestKubectlScales(t *testing.T) {
	s := api(t)
	admin := s.admin(t)
	installCrates(t, admin)
	name := fresh("scale")
	admin.must(t, http.MethodPost, crates, ebb("Crate", name).with("spec", object{"replicas": 1}))
	equal(t, kubectl(t, s, "scale", "crate.ebb.dev/"+name, "--replicas=3"), "crate.ebb.dev/"+name+" scaled\n")
	equal(t, kubectl(t, s, "get", "crates.ebb.dev", name, "-o", "jsonpath={.spec.replicas}"), "3")
}

func TestKubectlWatches(t *testing.T) {
	s := api(t)
	admin := s.admin(t)
	name := fresh("watch")
	admin.must(t, http.MethodPost, nodes, nodeObject(name))
	// A list: of a single object kubectl drops the first event of the watch, which is a change that was made before the watch began.
	cmd := kubectlCommand(t, s, "get", "nodes.ebb.dev", "--field-selector=metadata.name="+name, "-w", "--no-headers")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	lines := bufio.NewReader(out)
	next := func() string {
		line, err := lines.ReadString('\n')
		if err != nil && err != io.EOF {
			t.Fatal(err)
		}
		return strings.Join(strings.Fields(line), " ")
	}
	if first := next(); !strings.HasPrefix(first, name+" ") {
		t.Fatalf("first line %q", first)
	}
	admin.must(t, http.MethodPatch, nodes+"/"+name+"/status", object{"status": object{"liveness": "Alive", "epoch": 1}})
	if line := next(); !strings.HasPrefix(line, name+" Alive 1 ") {
		t.Errorf("after a change: %q", line)
	}
	admin.must(t, http.MethodPatch, nodes+"/"+name+"/status", object{"status": object{"liveness": "Stopping"}})
	if line := next(); !strings.HasPrefix(line, name+" Stopping 1 ") {
		t.Errorf("after another: %q", line)
	}
}
