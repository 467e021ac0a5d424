package apiserver_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/ebb-dev/ebb/internal/identity"
)

// kubectlFails runs kubectl for what has to be refused and returns what it says.
func kubectlFails(t *testing.T, kubeconfig string, args ...string) string {
	t.Helper()
	out, err := kubectlAs(t, kubeconfig, args...).CombinedOutput()
	if err == nil {
		t.Errorf("kubectl %s succeeds: %s", strings.Join(args, " "), out)
	}
	return string(out)
}

// newNamespace makes a namespace of the test's own.
func newNamespace(t *testing.T, s *running) string {
	t.Helper()
	name := fresh("ns")
	s.admin(t).must(t, http.MethodPost, namespaces, core("Namespace", name))
	return name
}

func listOf(ns string) string {
	return `apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Namespace, metadata: {name: ` + ns + `}}
- {apiVersion: v1, kind: ConfigMap, metadata: {name: settings, namespace: ` + ns + `}, data: {size: "3"}}
- apiVersion: ebb.dev/v1alpha1
  kind: Changefeed
  metadata: {name: demo, namespace: ` + ns + `}
  spec: {source: "datagen://?tables=1", sink: "blackhole://"}
`
}

func TestKubectlAppliesLists(t *testing.T) {
	s := api(t)
	for how, c := range map[string]struct {
		flags       []string
		first, then [3]string
	}{
		"client-side": {nil, [3]string{"created", "created", "created"}, [3]string{"unchanged", "unchanged", "unchanged"}},
		"server-side": {[]string{"--server-side"}, [3]string{"serverside-applied", "serverside-applied", "serverside-applied"}, [3]string{"serverside-applied", "serverside-applied", "serverside-applied"}},
	} {
		t.Run(how, func(t *testing.T) {
			ns := fresh("list")
			says := func(what [3]string) string {
				return "namespace/" + ns + " " + what[0] + "\nconfigmap/settings " + what[1] + "\nchangefeed.ebb.dev/demo " + what[2] + "\n"
			}
			apply := append([]string{"apply", "-f", manifest(t, listOf(ns))}, c.flags...)
			equal(t, kubectl(t, s, apply...), says(c.first))
			equal(t, kubectl(t, s, apply...), says(c.then))
		})
	}
	t.Run("what was read is applied again", func(t *testing.T) {
		ns := fresh("list")
		kubectl(t, s, "apply", "-f", manifest(t, listOf(ns)+"- {apiVersion: v1, kind: Secret, metadata: {name: db, namespace: "+ns+"}, data: {password: aHVudGVyMg==}}\n"))
		text := kubectl(t, s, "get", "cm,secrets,changefeeds", "-n", ns, "-o", "yaml")
		if !strings.Contains(text, "kind: List\n") {
			t.Fatalf("no list:\n%s", text)
		}
		equal(t, kubectl(t, s, "apply", "-f", manifest(t, text)), "configmap/settings configured\nsecret/db configured\nchangefeed.ebb.dev/demo configured\n")
		equal(t, kubectl(t, s, "get", "secret", "db", "-n", ns, "-o", "jsonpath={.data.password}"), "aHVudGVyMg==")
	})
}

func TestKubectlKeepsSecretsAndConfigMaps(t *testing.T) {
	s := api(t)
	ns := newNamespace(t, s)
	equal(t, kubectl(t, s, "create", "secret", "generic", "db", "-n", ns, "--from-literal=password=hunter2"), "secret/db created\n")
	equal(t, kubectl(t, s, "get", "secret", "db", "-n", ns, "-o", "jsonpath={.data.password}"), "aHVudGVyMg==")
	equal(t, table(kubectl(t, s, "get", "secrets", "-n", ns)), "NAME|TYPE|DATA|AGE\ndb|Opaque|1|<age>")
	equal(t, kubectl(t, s, "patch", "secret", "db", "-n", ns, "-p", `{"stringData":{"user":"me"}}`), "secret/db patched\n")
	if out := kubectl(t, s, "describe", "secret", "db", "-n", ns); !strings.Contains(out, "password:  7 bytes\nuser:      2 bytes") {
		t.Errorf("describe says\n%s", out)
	}
	equal(t, kubectl(t, s, "create", "configmap", "c", "-n", ns, "--from-literal=a=b"), "configmap/c created\n")
	equal(t, table(kubectl(t, s, "get", "cm", "-n", ns)), "NAME|DATA|AGE\nc|1|<age>")
	equal(t, kubectl(t, s, "delete", "secret/db", "cm/c", "-n", ns), "secret \"db\" deleted from "+ns+" namespace\nconfigmap \"c\" deleted from "+ns+" namespace\n")

	viewer := s.dir.ViewerKubeconfig()
	if out := kubectlFails(t, viewer, "get", "secrets", "-n", ns); !strings.Contains(out, `User "ebb:viewer" cannot list resource "secrets"`) {
		t.Errorf("a viewer reads secrets: %s", out)
	}
}

func TestKubectlDescribesWithEvents(t *testing.T) {
	s := api(t)
	admin := s.admin(t)
	name := fresh("described")
	for kind, collection := range map[string]string{"Node": nodes, "Drain": drains} {
		o := ebb(kind, name)
		if kind == "Drain" {
			o = drainObject(name)
		}
		uid := admin.must(t, http.MethodPost, collection, o).object(t)["metadata"].(map[string]any)["uid"]
		event := eventObject(fresh("e")).with("note", "note about "+kind).
			with("regarding", object{"kind": kind, "name": name, "uid": uid, "apiVersion": "ebb.dev/v1alpha1"})
		admin.must(t, http.MethodPost, events, event)
		if out := kubectl(t, s, "describe", strings.ToLower(kind)+".ebb.dev", name); !strings.Contains(out, "Drained") || !strings.Contains(out, "note about "+kind) {
			t.Errorf("describe %s shows no event:\n%s", kind, out)
		}
		if out := kubectl(t, s, "events", "--for", strings.ToLower(kind)+".ebb.dev/"+name); !strings.Contains(out, "note about "+kind) {
			t.Errorf("events --for shows no event:\n%s", out)
		}
	}
}

func TestBothEventAPIsShowTheSameObjects(t *testing.T) {
	admin := api(t).admin(t)
	name, other := fresh("e"), fresh("e")
	admin.must(t, http.MethodPost, events, eventObject(name))
	admin.must(t, http.MethodPost, coreEvents, coreEventObject(other))
	read := func(path string) map[string]any {
		o := admin.must(t, http.MethodGet, path, nil).object(t)
		delete(o, "metadata")
		return o
	}
	if diff := cmp.Diff(map[string]any{
		"apiVersion": "v1", "kind": "Event", "eventTime": "2026-01-02T03:04:05.000000Z", "type": "Normal", "reason": "Drained", "action": "Drain",
		"message": "nothing is left", "reportingComponent": "ebb.dev/drain", "reportingInstance": "n1", "involvedObject": map[string]any{"kind": "Node", "name": "n2"},
		"source": map[string]any{}, "firstTimestamp": nil, "lastTimestamp": nil,
	}, read(coreEvents+"/"+name)); diff != "" {
		t.Errorf("core form of an event: %s", diff)
	}
	if o := read(events + "/" + other); o["note"] != "nothing is left" || o["reason"] != "Drained" {
		t.Errorf("the other form of a core event: %v", o)
	}
	for _, path := range []string{events + "?fieldSelector=regarding.name=n2,metadata.name=" + name, coreEvents + "?fieldSelector=involvedObject.kind=Node,metadata.name=" + name} {
		if got := len(read(path)["items"].([]any)); got != 1 {
			t.Errorf("%s finds %d", path, got)
		}
	}
	refusedAs(t, admin.do(t, http.MethodGet, coreEvents+"?fieldSelector=spec.x=1", nil), http.StatusBadRequest, `"spec.x" is not a supported field selector`)
}

func refusedAs(t *testing.T, a answer, code int, words ...string) {
	t.Helper()
	if a.code != code {
		t.Errorf("got %s, want %d", a, code)
	}
	for _, part := range words {
		if !strings.Contains(a.message(), part) {
			t.Errorf("got %s, want words %q", a, part)
		}
	}
}

func TestWhatIsNotValidIsRefusedInPlainWords(t *testing.T) {
	admin := api(t).admin(t)
	long := strings.Repeat("x", 1<<20)
	for what, c := range map[string]struct {
		collection string
		o          object
		says       string
	}{
		"a name with capitals":        {secrets, core("Secret", "Big"), `metadata.name: Invalid value: "Big"`},
		"a key that is a path":        {secrets, core("Secret", "s").with("stringData", object{"a/b": "x"}), `data[a/b]: Invalid value: "a/b"`},
		"too much data":               {secrets, core("Secret", "s").with("stringData", object{"a": long, "b": "x"}), "data: Too long: may not be more than 1048576 bytes"},
		"TLS without a key":           {secrets, core("Secret", "s").with("type", "kubernetes.io/tls").with("stringData", object{"tls.crt": "x"}), "data[tls.key]: Required value"},
		"docker configuration":        {secrets, core("Secret", "s").with("type", "kubernetes.io/dockerconfigjson").with("stringData", object{".dockerconfigjson": "{hunter2"}), "data[.dockerconfigjson]: Invalid value: \"<secret contents redacted>\": is not JSON"},
		"basic auth with nothing":     {secrets, core("Secret", "s").with("type", "kubernetes.io/basic-auth"), "data[username]: Required value"},
		"a key twice":                 {configMaps, core("ConfigMap", "c").with("data", object{"a": "x"}).with("binaryData", object{"a": "eA=="}), "data[a]: Invalid value: \"a\": must not be in binaryData as well"},
		"a namespace with a dot":      {namespaces, core("Namespace", "a.b"), `metadata.name: Invalid value: "a.b"`},
		"an event in another place":   {coreEvents, coreEventObject("e").with("involvedObject", object{"kind": "Node", "name": "n", "namespace": "ebb-system"}), "does not match event.namespace default"},
		"an event without a reporter": {events, eventObject("e").with("reportingController", nil), "reportingComponent: Required value"},
		"an event of a strange type":  {events, eventObject("e").with("type", "Bad"), `type: Unsupported value: "Bad"`},
		"an unknown field":            {secrets + "?fieldValidation=Strict", core("Secret", "s").with("strngData", object{}), `unknown field "strngData"`},
	} {
		t.Run(what, func(t *testing.T) {
			a := admin.do(t, http.MethodPost, c.collection, c.o)
			if a.code != http.StatusUnprocessableEntity && a.code != http.StatusBadRequest || !strings.Contains(a.message(), c.says) {
				t.Errorf("got %s, want words %q", a, c.says)
			}
			if bytes.Contains(a.body, []byte("hunter2")) {
				t.Errorf("the answer shows the secret: %s", a)
			}
		})
	}
	t.Run("what is immutable stays", func(t *testing.T) {
		name := fresh("fixed")
		path := secrets + "/" + name
		admin.must(t, http.MethodPost, secrets, secretObject(name).with("immutable", true))
		refusedAs(t, admin.do(t, http.MethodPatch, path, object{"stringData": object{"password": "other"}}), http.StatusUnprocessableEntity, "data: Forbidden: field is immutable when `immutable` is set")
		refusedAs(t, admin.do(t, http.MethodPatch, path, object{"immutable": nil}), http.StatusUnprocessableEntity, "immutable: Forbidden")
		refusedAs(t, admin.do(t, http.MethodPatch, path, object{"type": "kubernetes.io/tls"}), http.StatusUnprocessableEntity, "type: Invalid value", "field is immutable")
		admin.must(t, http.MethodPatch, path, object{"metadata": object{"labels": object{"a": "b"}}})
	})
}

func TestNothingIsCreatedInANamespaceThatIsMissingOrBeingDeleted(t *testing.T) {
	s := api(t)
	admin := s.admin(t)
	missing := fresh("missing")
	in := func(collection, ns string) string {
		return strings.Replace(strings.Replace(collection, "/namespaces/default/", "/namespaces/"+ns+"/", 1), "/namespaces/ebb-system/", "/namespaces/"+ns+"/", 1)
	}
	installCrates(t, admin)
	kinds := map[string]object{
		secrets: secretObject("x"), configMaps: core("ConfigMap", "x"), leases: leaseObject("x", "p"),
		crates: ebb("Crate", "x").with("spec", object{"replicas": 1}),
	}
	for collection, o := range kinds {
		if a := admin.do(t, http.MethodPost, in(collection, missing), o); a.code != http.StatusNotFound || a.message() != `namespaces "`+missing+`" not found` {
			t.Errorf("%s: %s", collection, a)
		}
	}
	ns := newNamespace(t, s)
	admin.must(t, http.MethodPost, in(crates, ns), object{"apiVersion": "ebb.dev/v1alpha1", "kind": "Crate", "metadata": object{"name": "held", "finalizers": []string{"test.ebb.dev/hold"}}, "spec": object{"replicas": 1}})
	admin.must(t, http.MethodDelete, namespaces+"/"+ns, nil)
	for collection, o := range kinds {
		refusedAs(t, admin.do(t, http.MethodPost, in(collection, ns), o), http.StatusForbidden, "unable to create new content in namespace "+ns+" because it is being terminated")
	}
	admin.must(t, http.MethodPatch, in(crates, ns)+"/held", object{"metadata": object{"finalizers": nil}})
	gone(t, admin, ns)
}

// gone waits until a namespace does not exist any more.
func gone(t *testing.T, admin caller, ns string) {
	t.Helper()
	eventually(t, "namespace "+ns+" is gone", func() bool {
		return admin.do(t, http.MethodGet, namespaces+"/"+ns, nil).code == http.StatusNotFound
	})
}

func TestDeletingANamespaceEmptiesIt(t *testing.T) {
	s := api(t)
	admin := s.admin(t)
	ns := fresh("emptied")
	equal(t, kubectl(t, s, "create", "namespace", ns, "--save-config"), "namespace/"+ns+" created\n")
	equal(t, table(kubectl(t, s, "get", "ns", ns)), "NAME|STATUS|AGE\n"+ns+"|Active|<age>")
	group := strings.ReplaceAll(ns, "-", "") + ".example.com"
	gadgets := "/apis/" + group + "/v1alpha1/namespaces/" + ns + "/gadgets"
	admin.must(t, http.MethodPost, crds, definition(group, "gadgets", "Gadget"))
	defer admin.do(t, http.MethodDelete, crds+"/gadgets."+group, nil)
	eventually(t, "gadgets are served", func() bool { return admin.do(t, http.MethodGet, gadgets, nil).code == http.StatusOK })

	gadget := object{"apiVersion": group + "/v1alpha1", "kind": "Gadget", "metadata": object{"name": "held", "finalizers": []string{"test.ebb.dev/hold"}}}
	admin.must(t, http.MethodPost, gadgets, gadget)
	admin.must(t, http.MethodPost, gadgets, gadget.with("metadata", object{"name": "free"}))
	kubectl(t, s, "apply", "-f", manifest(t, listOf(ns)))
	kubectl(t, s, "create", "secret", "generic", "db", "-n", ns, "--from-literal=password=hunter2")
	about := coreEventObject("e").with("involvedObject", object{"kind": "Secret", "name": "db", "namespace": ns})
	admin.must(t, http.MethodPost, "/api/v1/namespaces/"+ns+"/events", about)
	admin.must(t, http.MethodPost, "/apis/coordination.k8s.io/v1/namespaces/"+ns+"/leases", leaseObject("l", ""))

	equal(t, kubectl(t, s, "delete", "ns", ns, "--wait=false"), "namespace \""+ns+"\" deleted\n")
	var status struct {
		Status struct {
			Phase      string
			Conditions []struct{ Type, Status, Message string }
		}
	}
	condition := func(kind string) string {
		for _, c := range status.Status.Conditions {
			if c.Type == kind && c.Status == "True" {
				return c.Message
			}
		}
		return ""
	}
	eventually(t, "only what is held is left", func() bool {
		a := admin.must(t, http.MethodGet, namespaces+"/"+ns, nil)
		if err := json.Unmarshal(a.body, &status); err != nil {
			t.Fatal(err)
		}
		return condition("NamespaceContentRemaining") == "Some resources are remaining: gadgets."+group+" has 1 resource instances"
	})
	equal(t, status.Status.Phase, "Terminating")
	equal(t, condition("NamespaceFinalizersRemaining"), "Some content in the namespace has finalizers remaining: test.ebb.dev/hold in 1 resource instances")
	if out := kubectl(t, s, "describe", "ns", ns); !strings.Contains(out, "Terminating") || !strings.Contains(out, "SomeResourcesRemain") {
		t.Errorf("describe says\n%s", out)
	}
	admin.must(t, http.MethodPatch, gadgets+"/held", object{"metadata": object{"finalizers": nil}})
	gone(t, admin, ns)
	newNamespaceAgain(t, s, ns, gadgets)
}

// newNamespaceAgain: a namespace of the same name begins empty.
func newNamespaceAgain(t *testing.T, s *running, ns, gadgets string) {
	t.Helper()
	admin := s.admin(t)
	admin.must(t, http.MethodPost, namespaces, core("Namespace", ns))
	for _, collection := range []string{gadgets, "/api/v1/namespaces/" + ns + "/secrets", "/api/v1/namespaces/" + ns + "/configmaps", "/api/v1/namespaces/" + ns + "/events"} {
		if items := admin.must(t, http.MethodGet, collection, nil).object(t)["items"].([]any); len(items) != 0 {
			t.Errorf("%s has %d objects of the namespace before", collection, len(items))
		}
	}
}

func TestTheSystemsNamespacesAreThereAndStay(t *testing.T) {
	admin := api(t).admin(t)
	for _, ns := range []string{"default", "kube-system", "kube-public", "ebb-system"} {
		admin.must(t, http.MethodGet, namespaces+"/"+ns, nil)
		refused(t, admin.do(t, http.MethodDelete, namespaces+"/"+ns, nil), `namespaces "`+ns+`" is forbidden: this namespace may not be deleted`)
	}
}

func TestAStoreFromBeforeThereWereNamespacesIsTakenOver(t *testing.T) {
	t.Parallel()
	f := startForeignEtcd(t)
	dir := t.TempDir()
	first := start(t, f.options(dir))
	admin := first.admin(t)
	admin.must(t, http.MethodPost, namespaces, core("Namespace", "old"))
	admin.must(t, http.MethodPost, "/apis/ebb.dev/v1alpha1/namespaces/old/changefeeds",
		ebb("Changefeed", "c").with("spec", object{"source": "datagen://?tables=1", "sink": "blackhole://"}))
	brought := definition("events.k8s.io", "events", "Event")
	brought["metadata"].(object)["annotations"] = object{"api-approved.kubernetes.io": "unapproved, Ebb's embedded API serves this type in place of Kubernetes"}
	admin.must(t, http.MethodPost, crds, brought)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	gone, err := f.etcd.Server.DeleteRange(t.Context(), &etcdserverpb.DeleteRangeRequest{Key: []byte("/our/prefix/namespaces/"), RangeEnd: []byte("/our/prefix/namespaces0")})
	if err != nil || gone.Deleted != 5 {
		t.Fatalf("took %v namespaces away: %v", gone, err)
	}

	again := start(t, f.options(dir)).admin(t)
	for _, ns := range []string{"old", "default", "kube-system", "kube-public", "ebb-system"} {
		again.must(t, http.MethodGet, namespaces+"/"+ns, nil)
	}
	again.must(t, http.MethodGet, "/apis/ebb.dev/v1alpha1/namespaces/old/changefeeds/c", nil)
	if a := again.do(t, http.MethodGet, crds+"/events.events.k8s.io", nil); a.code != http.StatusNotFound && a.object(t)["metadata"].(map[string]any)["deletionTimestamp"] == nil {
		t.Errorf("the type that held events stays: %s", a)
	}
	again.must(t, http.MethodPost, events, eventObject("e"))
	again.must(t, http.MethodGet, coreEvents+"/e", nil)
}

func TestEventsGoWhenTheirTimeIsUp(t *testing.T) {
	t.Parallel()
	o := options(t.TempDir())
	o.EventTTL = 2 * time.Second
	admin := start(t, o).admin(t)
	admin.must(t, http.MethodPost, events, eventObject("short"))
	admin.must(t, http.MethodPost, secrets, secretObject("stays"))
	eventually(t, "the event is gone", func() bool { return admin.do(t, http.MethodGet, coreEvents+"/short", nil).code == http.StatusNotFound })
	admin.must(t, http.MethodGet, secrets+"/stays", nil)

	t.Run("secrets are encrypted in the store", func(t *testing.T) {
		key, err := os.ReadFile(filepath.Join(o.Dir.PKI(), "secrets.key"))
		if err != nil || len(key) < 32 {
			t.Fatalf("key of %d bytes: %v", len(key), err)
		}
		for _, file := range storeFiles(t, string(o.Dir)) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range []string{"hunter2", "aHVudGVyMg"} {
				if bytes.Contains(data, []byte(text)) {
					t.Errorf("%s holds the password", file)
				}
			}
		}
	})
}

// storeFiles are the files that etcd keeps objects in.
func storeFiles(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"snap/db", "wal/*.wal"} {
		found, err := filepath.Glob(filepath.Join(dir, "apiserver", "etcd", "data", "member", pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("no %s: %v", pattern, err)
		}
		all = append(all, found...)
	}
	return all
}

func TestEveryoneKnownMayAskWhatTheyMay(t *testing.T) {
	s := api(t)
	ask := func(c caller, verb, group, resource, name string) answer {
		return c.do(t, http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", object{
			"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
			"spec": object{"resourceAttributes": object{"verb": verb, "group": group, "resource": resource, "name": name, "namespace": "default"}},
		})
	}
	for _, c := range []struct {
		who                         string
		as                          caller
		verb, group, resource, name string
		want                        bool
	}{
		{"admin", s.admin(t), "delete", "", "secrets", "x", true},
		{"viewer", s.viewer(t), "get", "", "secrets", "x", false},
		{"viewer", s.viewer(t), "list", "*", "*", "", false},
		{"viewer", s.viewer(t), "list", "ebb.dev", "drains", "", true},
		{"node", s.node(t, "n1"), "get", "", "secrets", "x", true},
		{"node", s.node(t, "n1"), "list", "", "secrets", "", false},
		{"coordinator", s.coordinator(t, ""), "get", "", "secrets", "x", false},
		{"coordinator", s.coordinator(t, ""), "update", "ebb.dev", "drains", "d", true},
	} {
		a := ask(c.as, c.verb, c.group, c.resource, c.name)
		if a.code != http.StatusCreated {
			t.Errorf("%s asks: %s", c.who, a)
			continue
		}
		if got := a.object(t)["status"].(map[string]any)["allowed"]; got != c.want {
			t.Errorf("%s, %s %s: %v, want %v", c.who, c.verb, c.resource, got, c.want)
		}
	}
	if a := ask(s.as(t, "mallory"), "get", "", "secrets", "x"); a.code != http.StatusForbidden {
		t.Errorf("a stranger asks: %s", a)
	}
}

func TestKubectlAuth(t *testing.T) {
	s := api(t)
	equal(t, kubectl(t, s, "auth", "can-i", "create", "changefeeds"), "yes\n")
	equal(t, kubectlFails(t, s.dir.ViewerKubeconfig(), "auth", "can-i", "get", "secrets"), "no\n")
	equal(t, kubectlFails(t, s.dir.Kubeconfig(), "auth", "can-i", "get", "secrets", "--as", identity.Viewer, "--as-group", identity.ViewerGroup), "no\n")
	if out := table(kubectl(t, s, "auth", "whoami")); !strings.Contains(out, "Username|ebb:admin\nGroups|[ebb:admins system:authenticated]") {
		t.Errorf("whoami says\n%s", out)
	}
	equal(t, table(kubectl(t, s, "auth", "can-i", "--list")), "Resources|Non-Resource URLs|Resource Names|Verbs\n*.*|[]|[]|[*]\n[*]|[]|[*]")
	node := table(kubectl(t, s, "auth", "can-i", "--list", "-n", "ebb-system", "--as", identity.Node("n1")))
	for _, line := range []string{
		"secrets|[]|[]|[get]", "nodes.ebb.dev|[]|[]|[get list watch create]", "nodes.ebb.dev|[]|[n1]|[update patch]",
		"leases.coordination.k8s.io|[]|[node-n1]|[update patch]", "events|[]|[]|[get list watch create patch]",
	} {
		if !strings.Contains(node+"\n", "\n"+line+"\n") {
			t.Errorf("no %q in what a node may:\n%s", line, node)
		}
	}
	if strings.Contains(node, "configmaps") {
		t.Errorf("a node may do something with config maps:\n%s", node)
	}
}
