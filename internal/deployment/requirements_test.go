package deployment_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/config"
	"github.com/ebb-dev/ebb/internal/deployment"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// The requirements R1 to R13 of seed 004, each against the real API server.

// addresses are all addresses that the objects of a site ever had, and who wrote them.
type addresses struct {
	mu      sync.Mutex
	values  map[string][]string // by object, each time that it changed
	writers map[string]bool
}

// watchAddresses sees every write from here on: a watch brings each version of an object.
func (s *site) watchAddresses() *addresses {
	s.t.Helper()
	w, err := s.admin.Watch(context.Background(), &v1alpha1.DeploymentList{}, client.InNamespace(s.home))
	s.must(err)
	s.t.Cleanup(w.Stop)
	a := &addresses{values: map[string][]string{}, writers: map[string]bool{}}
	go func() {
		for e := range w.ResultChan() {
			if d, ok := e.Object.(*v1alpha1.Deployment); ok {
				a.see(d)
			}
		}
	}()
	return a
}

func (a *addresses) see(d *v1alpha1.Deployment) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if had := a.values[d.Name]; len(had) == 0 || had[len(had)-1] != d.Spec.Address {
		a.values[d.Name] = append(had, d.Spec.Address)
	}
	for _, f := range d.ManagedFields {
		var fields map[string]map[string]any
		if json.Unmarshal(f.FieldsV1.GetRawBytes(), &fields) == nil && fields["f:spec"]["f:address"] != nil {
			a.writers[f.Manager] = true
		}
	}
}

func (a *addresses) of(name string) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.values[name])
}

func (a *addresses) writtenBy(who string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.writers[who]
}

// went fails unless an object had exactly these addresses, one after the other.
func (a *addresses) went(t *testing.T, name string, want ...string) {
	t.Helper()
	until(t, name+" to be seen at "+want[len(want)-1], func() bool { return len(a.of(name)) >= len(want) })
	if got := a.of(name); !slices.Equal(got, want) {
		t.Errorf("the addresses of %s were %q, want %q", name, got, want)
	}
}

// wroteNoAddress fails if a node sent a write, accepted or not, that would have made an address other than it was.
func wroteNoAddress(t *testing.T, m *host, was map[string]string) {
	t.Helper()
	for _, w := range m.wire.writes() {
		if w.address != was[w.name] {
			t.Errorf("%s wrote the address %q of %s, which was %q", m.name, w.address, w.name, was[w.name])
		}
	}
}

func TestR1ANodeWithPolicyNoneNeverWritesAnAddress(t *testing.T) {
	t.Parallel()
	s := newSiteAlone(t) // the node is the only one there is
	seen := s.watchAddresses()
	policy, err := deployment.ParseClaimPolicy("  NoNe ")
	s.must(err)
	quiet := s.host("quiet", func(m *host) { m.programs.Policy = policy })
	gone := s.ghost("gone")
	unbound, bound, orphan := s.deploy("unbound"), s.deploy("bound", addressed(quiet.name)), s.deploy("orphan", addressed(gone))
	everywhere := s.deploy("everywhere", daemon)
	orphan.status(holder(gone, 1, 1))
	bound.runsOn(quiet.name)
	everywhere.runsOn(quiet.name)

	s.mark(gone)
	orphan.stands(v1alpha1.StateLost)
	unbound.stands(v1alpha1.StateUnassigned)
	bound.update(disabled)
	bound.until("nobody to hold it", func(d *v1alpha1.Deployment) bool { return d.Holder().Node == "" })
	bound.update(enabled)
	bound.runsOn(quiet.name)
	quiet.drain()
	late := s.deploy("late")
	late.stands(v1alpha1.StateUnassigned)

	// All of them were there to be claimed: a node that claims takes them at once.
	busy := s.host("busy")
	for _, w := range []*work{unbound, orphan, bound, late} {
		w.runsOn(busy.name)
	}
	seen.went(t, "unbound", "", busy.name)
	seen.went(t, "bound", quiet.name, busy.name)
	seen.went(t, "orphan", gone, busy.name)
	seen.went(t, "late", "", busy.name)
	seen.went(t, "everywhere", "")
	if seen.writtenBy(quiet.name) || !seen.writtenBy(busy.name) {
		t.Errorf("the writers of addresses were %v", seen.writers)
	}
	wroteNoAddress(t, quiet, map[string]string{"bound": quiet.name})
	oneAtATime(t, bound.marks())
}

func TestR2UnderNoneTheExecutorGoesOnAndSaysSoOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	quiet := s.host("quiet", claimsNothing)
	bound, everywhere := s.deploy("bound", addressed(quiet.name), restarts(50*time.Millisecond, time.Second, 0)), s.deploy("everywhere", daemon)
	pid := bound.runsOn(quiet.name)
	everywhere.runsOn(quiet.name)
	for _, kind := range []v1alpha1.DeploymentType{v1alpha1.TypeDeployment, v1alpha1.TypeDaemon} {
		until(t, "its resources to be sampled", func() bool {
			return metric(t, quiet.registry, "ebb_deployment_memory_bytes", string(kind)) > 0 &&
				metric(t, quiet.registry, "ebb_deployment_instances", string(kind)) == 1
		})
	}
	s.must(syscall.Kill(pid, syscall.SIGKILL))
	bound.until("it to be started again", func(d *v1alpha1.Deployment) bool {
		i := d.Instance(quiet.name)
		return i != nil && i.State == v1alpha1.InstanceRunning && i.PID != int32(pid) && i.Restarts == 1
	})
	everywhere.update(disabled)
	everywhere.until("it to be stopped", func(d *v1alpha1.Deployment) bool { return len(d.Status.Nodes) == 0 })

	quiet.fenced() // in its next epoch it does not say it again
	bound.until("it to run in the next epoch", func(d *v1alpha1.Deployment) bool {
		i := d.Instance(quiet.name)
		return i != nil && i.NodeEpoch == quiet.epoch() && i.State == v1alpha1.InstanceRunning
	})
	oneAtATime(t, bound.marks())

	c := meta.FindStatusCondition(quiet.object().Status.Conditions, v1alpha1.NodeClaiming)
	if c == nil || c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ErrPolicyDisabled {
		t.Errorf("the node's condition is %v", c)
	}
	if n := s.told(quiet.object().UID, v1alpha1.ErrPolicyDisabled); n != 1 {
		t.Errorf("%d events", n)
	}
	if n := quiet.log.coded(v1alpha1.ErrPolicyDisabled, "/"+quiet.name); n != 1 {
		t.Errorf("%d log lines", n)
	}
	if n := errorsTotal(t, quiet.registry, v1alpha1.ErrPolicyDisabled); n != 1 {
		t.Errorf("counted %v times", n)
	}
}

func TestR3TheTypeIsDaemonOrDeploymentAndStoredAsText(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for given, want := range map[string]string{"": "deployment", "deployment": "deployment", "daemon": "daemon"} {
		w := s.deploy("of-type-"+given+"x", typed(v1alpha1.DeploymentType(given)), disabled)
		raw := &unstructured.Unstructured{}
		raw.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Deployment"))
		s.must(s.admin.Get(context.Background(), w.key, raw))
		if got, _, err := unstructured.NestedString(raw.Object, "spec", "type"); got != want || err != nil {
			t.Errorf("type %q reads as %q (%v), want %q", given, got, err, want)
		}
	}
	for _, bad := range []v1alpha1.DeploymentType{"job", "Daemon", "DEPLOYMENT", " daemon"} {
		d := program("bad", typed(bad))
		d.Namespace = s.home
		if err := s.admin.Create(context.Background(), d); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), `supported values: "daemon", "deployment"`) {
			t.Errorf("type %q: %v", bad, err)
		}
	}
}

// schema replaces the definition of deployments by a changed copy of ours, and waits until it is in force.
func (s *site) schema(change func(*apiextensionsv1.CustomResourceDefinitionVersion), inForce func() bool) {
	s.t.Helper()
	definitions, err := crdclient.NewForConfig(s.api.Config(s.api.Dir.Kubeconfig()))
	s.must(err)
	crds, err := config.CRDs()
	s.must(err)
	i := slices.IndexFunc(crds, func(c *apiextensionsv1.CustomResourceDefinition) bool { return c.Name == "deployments.ebb.dev" })
	change(&crds[i].Spec.Versions[0])
	until(s.t, "the schema to be replaced", func() bool {
		current, err := definitions.CustomResourceDefinitions().Get(context.Background(), crds[i].Name, metav1.GetOptions{})
		s.must(err)
		current.Spec = crds[i].Spec
		_, err = definitions.CustomResourceDefinitions().Update(context.Background(), current, metav1.UpdateOptions{})
		if !apierrors.IsConflict(err) {
			s.must(err)
		}
		return err == nil
	})
	until(s.t, "the schema to be in force", inForce)
}

// tried is what the server would make of a record of a type.
func (s *site) tried(kind string) (string, error) {
	d := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"command": "/bin/true"}}}
	if kind != "" {
		s.must(unstructured.SetNestedField(d.Object, kind, "spec", "type"))
	}
	d.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Deployment"))
	d.SetNamespace(s.home)
	d.SetName("tried")
	err := s.admin.Create(context.Background(), d, client.DryRunAll)
	got, _, _ := unstructured.NestedString(d.Object, "spec", "type")
	return got, err
}

func asItIs(*apiextensionsv1.CustomResourceDefinitionVersion) {}

// withoutType is the schema before there were types.
func withoutType(v *apiextensionsv1.CustomResourceDefinitionVersion) {
	spec := v.Schema.OpenAPIV3Schema.Properties["spec"]
	delete(spec.Properties, "type")
	v.Schema.OpenAPIV3Schema.Properties["spec"] = spec
	v.AdditionalPrinterColumns = nil
	v.SelectableFields = slices.DeleteFunc(v.SelectableFields, func(f apiextensionsv1.SelectableField) bool { return f.JSONPath == ".spec.type" })
}

// anyType is a schema that does not look at the type.
func anyType(v *apiextensionsv1.CustomResourceDefinitionVersion) {
	kind := v.Schema.OpenAPIV3Schema.Properties["spec"].Properties["type"]
	kind.Enum = nil
	v.Schema.OpenAPIV3Schema.Properties["spec"].Properties["type"] = kind
}

func TestR4ARecordFromBeforeTypesExistedIsADeployment(t *testing.T) {
	t.Parallel()
	s := newSiteAlone(t)
	s.schema(withoutType, func() bool { got, err := s.tried(""); return err == nil && got == "" })
	old := s.deploy("old")
	raw := &unstructured.Unstructured{}
	raw.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Deployment"))
	s.must(s.admin.Get(context.Background(), old.key, raw))
	if _, there, _ := unstructured.NestedString(raw.Object, "spec", "type"); there {
		t.Fatalf("the older schema knows of types: %v", raw.Object["spec"])
	}
	s.schema(asItIs, func() bool { got, err := s.tried(""); return err == nil && got == "deployment" })
	if got := old.get().Spec.Type; got != v1alpha1.TypeDeployment {
		t.Errorf("its type reads as %q", got)
	}
	var list v1alpha1.DeploymentList
	s.must(s.admin.List(context.Background(), &list, client.InNamespace(s.home), client.MatchingFields{"spec.type": "deployment"}))
	if len(list.Items) != 1 {
		t.Errorf("%d records of type deployment are found", len(list.Items))
	}
	m := s.host("n")
	old.runsOn(m.name)
	if d := old.stands(v1alpha1.StateAssigned); d.Spec.Address != m.name || d.Spec.Type != v1alpha1.TypeDeployment {
		t.Errorf("it is %+v", d.Spec)
	}
}

func TestR5ADaemonIsNeverClaimed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	seen := s.watchAddresses()
	a, b := s.host("a"), s.host("b")
	everywhere := s.deploy("everywhere", daemon)
	everywhere.runsOn(a.name)
	everywhere.runsOn(b.name)
	s.deploy("w").stands(v1alpha1.StateAssigned) // both have looked for something to claim
	seen.went(t, "everywhere", "")
	for _, m := range []*host{a, b} {
		for _, w := range m.wire.writes() {
			if w.name == "everywhere" && w.address != "" {
				t.Errorf("%s tried to claim it", m.name)
			}
		}
	}
}

func TestR6ADaemonIsBoundToNoNode(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a, b := s.host("a"), s.host("b")
	everywhere := s.deploy("everywhere", daemon)
	everywhere.runsOn(a.name)
	everywhere.runsOn(b.name)
	if d := everywhere.stands(v1alpha1.StateEnabled); d.Spec.Address != "" || d.Holder().Node != "" {
		t.Errorf("the address is %q, the holder %+v", d.Spec.Address, d.Holder())
	}
	// A deployment that becomes a daemon keeps an address that nobody minds, and no holder.
	bound := s.deploy("bound", addressed(a.name))
	bound.runsOn(a.name)
	bound.update(daemon)
	bound.runsOn(b.name)
	bound.runsOn(a.name)
	bound.until("nobody to hold it", func(d *v1alpha1.Deployment) bool { return d.Holder().Node == "" })
	bound.stands(v1alpha1.StateEnabled)
	for _, m := range []*host{a, b} {
		oneAtATime(t, onNode(bound.marks(), m.name))
	}
}

func TestR7EveryNodeRunsOneInstanceAlsoAfterItsProcessWasKilled(t *testing.T) {
	t.Parallel()
	s := newSiteAlone(t)
	n1, n2 := s.ebbNode("n1", calm()), s.ebbNode("n2", fast())
	everywhere, again := s.deploy("everywhere", daemon), s.deploy("again", daemon) // the same program twice is two daemons
	kept, unwanted, removed := s.deploy("kept", addressed("n1")), s.deploy("unwanted", addressed("n1")), s.deploy("removed", addressed("n1"))
	pids := map[string]int{"on n2": everywhere.runsOn("n2"), "also on n2": again.runsOn("n2")}
	for _, w := range []*work{everywhere, again, kept, unwanted, removed} {
		pids[w.key.Name] = w.runsOn("n1")
	}
	n1.end(syscall.SIGKILL)
	n2.end(syscall.SIGKILL)
	unwanted.update(disabled)
	removed.delete()
	removed.update(func(d *v1alpha1.Deployment) { d.Finalizers = nil }) // gone while nobody looked
	n1.start()
	epoch := s.node("n1").Status.Epoch
	for _, w := range []*work{everywhere, again, kept} {
		d := w.until("the next process to have found it", func(d *v1alpha1.Deployment) bool {
			i := d.Instance("n1")
			return i != nil && i.NodeEpoch == epoch && i.State == v1alpha1.InstanceRunning
		})
		if got := int(d.Instance("n1").PID); got != pids[w.key.Name] || starts(onNode(w.marks(), "n1")) != 1 {
			t.Errorf("after its node was killed %s has the pid %d, was %d", w.key.Name, got, pids[w.key.Name])
		}
	}
	if h := kept.get().Holder(); h != (v1alpha1.DeploymentHolder{Node: "n1", NodeEpoch: epoch, Epoch: 2}) {
		t.Errorf("the holder is %+v", h)
	}
	until(t, "what is not wanted any more to end", func() bool { return !lives(pids["unwanted"]) && !lives(pids["removed"]) })
	unwanted.until("nothing of it to be left", func(d *v1alpha1.Deployment) bool { return d.Holder().Node == "" && len(d.Status.Nodes) == 0 })
	until(t, "the counts", func() bool {
		st := s.node("n1").Status
		return st.Held[deployment.Name] == 1 && st.Staying[deployment.Name] == 2
	})

	// The other node comes back later. Its daemons have gone on, and it finds them.
	until(t, "the dead node to be marked", func() bool {
		rec, err := lease.Read(s.lease("n2"))
		return err == nil && rec.Fenced >= rec.Epoch
	})
	if !lives(pids["on n2"]) || !lives(pids["also on n2"]) {
		t.Error("a daemon ended with its node's process")
	}
	n2.start()
	for _, w := range []*work{everywhere, again} {
		w.runsOn("n2")
		w.until("both nodes to be counted", func(d *v1alpha1.Deployment) bool {
			return d.Status.Wanted == 2 && d.Status.Running == 2 && d.Status.State == v1alpha1.StateEnabled
		})
		if n := starts(onNode(w.marks(), "n2")); n != 1 {
			t.Errorf("%s was started %d times on n2", w.key.Name, n)
		}
		oneAtATime(t, onNode(w.marks(), "n1"))
		oneAtATime(t, onNode(w.marks(), "n2"))
	}
	everywhere.update(disabled)
	everywhere.until("every instance to be gone", func(d *v1alpha1.Deployment) bool {
		return d.Status.State == v1alpha1.StateDisabled && len(d.Status.Nodes) == 0
	})
	if lives(pids["everywhere"]) {
		t.Error("a disabled daemon runs on")
	}
}

func TestR8ADeploymentIsClaimedLostReclaimedAndDisabled(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	w := s.deploy("w")
	w.stands(v1alpha1.StateUnassigned)
	a := s.host("a", endsFast)
	if d := w.stands(v1alpha1.StateAssigned); d.Spec.Address != a.name {
		t.Errorf("claimed by %q", d.Spec.Address)
	}
	pid := w.runsOn(a.name)
	held := w.get().Holder()
	if held != (v1alpha1.DeploymentHolder{Node: a.name, NodeEpoch: a.epoch(), Epoch: 1}) {
		t.Errorf("the holder is %+v", held)
	}

	a.wire.cut()
	until(t, "the node to end what it runs", func() bool { return !lives(pid) })
	if d := w.get(); d.Status.State != v1alpha1.StateAssigned || d.Holder() != held {
		t.Errorf("before the mark it is %s, held by %+v", d.Status.State, d.Holder())
	}
	s.mark(a.name)
	if d := w.stands(v1alpha1.StateLost); d.Spec.Address != a.name {
		t.Errorf("lost with the address %q", d.Spec.Address)
	}

	b := s.host("b")
	w.runsOn(b.name)
	if d := w.stands(v1alpha1.StateAssigned); d.Spec.Address != b.name || d.Holder() != (v1alpha1.DeploymentHolder{Node: b.name, NodeEpoch: b.epoch(), Epoch: 2}) {
		t.Errorf("reclaimed as %q, held by %+v", d.Spec.Address, d.Holder())
	}
	a.wire.mend()
	a.awaitReady() // it leaves alone what is not its own any more

	w.update(disabled)
	w.stands(v1alpha1.StateDisabled)
	d := w.until("it to be stopped", func(d *v1alpha1.Deployment) bool { return d.Holder().Node == "" && len(d.Status.Nodes) == 0 })
	if d.Spec.Address != b.name || d.Holder().Epoch != 2 {
		t.Errorf("disabled with the address %q, held by %+v", d.Spec.Address, d.Holder())
	}
	w.update(enabled)
	w.stands(v1alpha1.StateAssigned)
	w.runsOn(b.name)

	w.update(disabled)
	w.until("it to be stopped", func(d *v1alpha1.Deployment) bool { return d.Holder().Node == "" })
	a.update(func(n *v1alpha1.Node) { n.Spec.Cordoned = true }) // nobody claims it
	b.leave()
	w.update(enabled)
	w.stands(v1alpha1.StateLost)
	w.update(disabled)
	w.stands(v1alpha1.StateDisabled)
	w.update(enabled, addressed(""))
	w.stands(v1alpha1.StateUnassigned)
	oneAtATime(t, w.marks())
}

func TestR9ADaemonIsNotReclaimedFromALostNode(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	seen := s.watchAddresses()
	a, gone := s.host("a"), s.ghost("gone")
	everywhere, w := s.deploy("everywhere", daemon), s.deploy("w", addressed(gone))
	pid := everywhere.runsOn(a.name)
	everywhere.status(on(gone, 1, v1alpha1.InstanceRunning))
	everywhere.until("two nodes to be counted", func(d *v1alpha1.Deployment) bool { return d.Status.Wanted == 2 && d.Status.Running == 2 })
	s.mark(gone)
	w.runsOn(a.name) // the deployment of the same node is
	d := everywhere.until("the lost node to be left out", func(d *v1alpha1.Deployment) bool {
		return d.Status.Wanted == 1 && d.Status.Running == 1 && d.Instance(gone) == nil
	})
	if d.Status.State != v1alpha1.StateEnabled || reason(d, v1alpha1.DeploymentRunning) != v1alpha1.ReasonRunning {
		t.Errorf("it is %s, %s", d.Status.State, reason(d, v1alpha1.DeploymentRunning))
	}
	seen.went(t, "w", gone, a.name)
	seen.went(t, "everywhere", "")
	if got := everywhere.runsOn(a.name); got != pid || starts(everywhere.marks()) != 1 {
		t.Errorf("it was started again: pid %d, was %d", got, pid)
	}
}

func TestR10TheTypeIsInTheServedDescription(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	cfg := s.api.Config(s.api.Dir.Kubeconfig())
	c, err := rest.HTTPClientFor(cfg)
	s.must(err)
	resp, err := c.Get(cfg.Host + "/openapi/v3/apis/ebb.dev/v1alpha1")
	s.must(err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	s.must(err)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%d %s", resp.StatusCode, body)
	}
	type schema struct {
		Type       string
		Default    any
		Enum       []any
		Properties map[string]schema
	}
	var served struct {
		Components struct{ Schemas map[string]schema }
	}
	s.must(json.Unmarshal(body, &served))
	field := served.Components.Schemas["dev.ebb.v1alpha1.Deployment"].Properties["spec"].Properties["type"]
	if field.Type != "string" || field.Default != "deployment" || !slices.Equal(field.Enum, []any{"daemon", "deployment"}) {
		t.Errorf("the field is served as %+v", field)
	}
	out, err := exec.Command(testenv.Kubectl(t), "--kubeconfig", s.api.Dir.Kubeconfig(),
		"explain", "deployments.spec.type", "--api-version", "ebb.dev/v1alpha1").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"FIELD: type <string>", "ENUM:", "daemon", "deployment", "one node claims it, the default"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("kubectl explain does not say %q:\n%s", want, out)
		}
	}
}

func TestR11ARecordOfAnInvalidTypeIsSkippedAndSaysSo(t *testing.T) {
	t.Parallel()
	s := newSiteAlone(t)
	m := s.host("n")
	s.schema(anyType, func() bool { _, err := s.tried("job"); return err == nil })
	unbound, bound := s.deploy("unbound", typed("job")), s.deploy("bound", typed("job"), addressed(m.name))
	s.schema(asItIs, func() bool { _, err := s.tried("job"); return apierrors.IsInvalid(err) })

	good := s.deploy("good") // the loop goes on
	good.runsOn(m.name)
	for _, w := range []*work{unbound, bound} {
		// Its status can be written under the schema that would refuse it.
		w.update(func(d *v1alpha1.Deployment) { d.Spec.Args = append(d.Spec.Args, "changed") })
		d := w.until("it to be found invalid", func(d *v1alpha1.Deployment) bool {
			c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DeploymentValid)
			return c != nil && c.Status == metav1.ConditionFalse && c.ObservedGeneration == d.Generation
		})
		if got := reason(d, v1alpha1.DeploymentValid); got != v1alpha1.ErrInvalidType {
			t.Errorf("%s: reason %q", w.key.Name, got)
		}
		if d.Status.State != "" || len(d.Status.Nodes) != 0 || d.Holder().Node != "" || len(w.marks()) != 0 {
			t.Errorf("%s was not skipped: %+v", w.key.Name, d.Status)
		}
		if n := s.told(d.UID, v1alpha1.ErrInvalidType); n != 1 {
			t.Errorf("%s: %d events", w.key.Name, n)
		}
		if n := s.lead.log.coded(v1alpha1.ErrInvalidType, w.key.String()); n != 1 {
			t.Errorf("%s: %d log lines", w.key.Name, n)
		}
	}
	if n := errorsTotal(t, s.lead.registry, v1alpha1.ErrInvalidType); n != 2 {
		t.Errorf("counted %v times", n)
	}
	if got := unbound.get().Spec.Address; got != "" {
		t.Errorf("it was claimed by %s", got)
	}
	for _, w := range []*work{unbound, bound} {
		w.update(typed(v1alpha1.TypeDeployment))
		w.runsOn(m.name)
		w.until("it to be valid", func(d *v1alpha1.Deployment) bool {
			return reason(d, v1alpha1.DeploymentValid) == v1alpha1.ReasonAccepted
		})
	}
}

func TestR12AnAddressOnADaemonIsIgnoredAndSaysSo(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a, b := s.host("a"), s.host("b")
	before := errorsTotal(t, s.lead.registry, v1alpha1.ErrDaemonAddressSet)
	everywhere := s.deploy("everywhere", daemon, addressed(a.name))
	pid := everywhere.runsOn(b.name)
	everywhere.runsOn(a.name)
	everywhere.update(addressed("nobody"))
	d := everywhere.until("it to be found wrong", func(d *v1alpha1.Deployment) bool {
		c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DeploymentValid)
		return c != nil && c.ObservedGeneration == d.Generation && c.Reason == v1alpha1.ErrDaemonAddressSet && strings.Contains(c.Message, `"nobody" is ignored`)
	})
	if n := s.told(d.UID, v1alpha1.ErrDaemonAddressSet); n != 1 {
		t.Errorf("%d events", n)
	}
	if n := s.lead.log.coded(v1alpha1.ErrDaemonAddressSet, everywhere.key.String()); n != 1 {
		t.Errorf("%d log lines", n)
	}
	if n := errorsTotal(t, s.lead.registry, v1alpha1.ErrDaemonAddressSet); n <= before {
		t.Error("it was not counted")
	}
	if d.Status.State != v1alpha1.StateEnabled {
		t.Errorf("it is %s", d.Status.State)
	}
	everywhere.update(addressed(""))
	everywhere.until("it to be valid", func(d *v1alpha1.Deployment) bool {
		return reason(d, v1alpha1.DeploymentValid) == v1alpha1.ReasonAccepted
	})
	if got := everywhere.runsOn(b.name); got != pid || starts(everywhere.marks()) != 2 {
		t.Errorf("addresses restarted it: pid %d, was %d, %d starts", got, pid, starts(everywhere.marks()))
	}
}

func TestR13UnderNoneNoPathWritesAnAddress(t *testing.T) {
	t.Parallel()
	s := newSiteAlone(t)
	seen := s.watchAddresses()
	quiet, busy := s.host("quiet", claimsNothing), s.host("busy", endsFast)
	taken := s.deploy("taken")
	pid := taken.runsOn(busy.name)
	deleted, cleared, kept := s.deploy("deleted", addressed(quiet.name)), s.deploy("cleared", addressed(quiet.name)), s.deploy("kept", addressed(quiet.name))
	left := s.deploy("left", addressed(quiet.name))
	for _, w := range []*work{deleted, cleared, kept, left} {
		w.runsOn(quiet.name)
	}

	busy.wire.cut() // lost: not reclaimed
	until(t, "the lost node to end what it runs", func() bool { return !lives(pid) })
	s.mark(busy.name)
	taken.stands(v1alpha1.StateLost)
	cleared.update(addressed("")) // released: not bound again
	cleared.until("it to be released", func(d *v1alpha1.Deployment) bool { return d.Holder().Node == "" })
	deleted.delete() // let go
	until(t, "the deleted to be gone", func() bool { _, err := deleted.read(); return apierrors.IsNotFound(err) })
	quiet.fenced()
	left.until("it to run in the next epoch", func(d *v1alpha1.Deployment) bool {
		i := d.Instance(quiet.name)
		return i != nil && i.NodeEpoch == quiet.epoch() && i.State == v1alpha1.InstanceRunning
	})
	left.update(disabled) // stopped with its address
	left.until("it to be stopped", func(d *v1alpha1.Deployment) bool { return d.Holder().Node == "" })
	quiet.drain() // nobody may take what it has
	cleared.stands(v1alpha1.StateUnassigned)
	until(t, "what it keeps to be counted", func() bool { return quiet.object().Status.Held[deployment.Name] == 1 })
	quiet.leave()
	kept.stands(v1alpha1.StateLost)

	third := s.host("third") // all but the disabled one were there to be claimed
	for _, w := range []*work{taken, cleared, kept} {
		w.runsOn(third.name)
	}
	seen.went(t, "taken", "", busy.name, third.name)
	seen.went(t, "deleted", quiet.name)
	seen.went(t, "cleared", quiet.name, "", third.name)
	seen.went(t, "kept", quiet.name, third.name)
	seen.went(t, "left", quiet.name)
	if seen.writtenBy(quiet.name) || !seen.writtenBy(third.name) {
		t.Errorf("the writers of addresses were %v", seen.writers)
	}
	wroteNoAddress(t, quiet, map[string]string{"deleted": quiet.name, "cleared": quiet.name, "kept": quiet.name, "left": quiet.name})
	for _, w := range []*work{taken, cleared, kept, left} {
		oneAtATime(t, w.marks())
	}
	busy.wire.mend()
}

func TestAMissingDaemonSaysSoUntilItIsHealed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.host("n")
	before := errorsTotal(t, s.lead.registry, v1alpha1.ErrDaemonMissing)
	w := s.deploy("w", daemon, restarts(50*time.Millisecond, 200*time.Millisecond, 0), func(d *v1alpha1.Deployment) { d.Spec.Command = "/no/such/program" })
	d := w.until("it to be missed", func(d *v1alpha1.Deployment) bool {
		return reason(d, v1alpha1.DeploymentRunning) == v1alpha1.ErrDaemonMissing
	})
	if c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DeploymentRunning); c.Status != metav1.ConditionFalse || !strings.HasPrefix(c.Message, "It does not run on "+m.name+" (") {
		t.Errorf("the condition is %s: %s", c.Status, c.Message)
	}
	d = w.until("it to say why", func(d *v1alpha1.Deployment) bool {
		c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DeploymentRunning)
		return strings.Contains(c.Message, m.name+" (CrashLoop; last exit: ") && strings.Contains(c.Message, "/no/such/program")
	})
	if i := d.Instance(m.name); i == nil || i.State != v1alpha1.InstanceCrashLoop || i.LastExit == nil || i.LastExit.Code != -1 || i.PID != 0 {
		t.Errorf("its entry is %+v", i)
	}
	// It is told once, however often the program is tried again.
	w.until("more restarts", func(d *v1alpha1.Deployment) bool { i := d.Instance(m.name); return i != nil && i.Restarts > 6 })
	if n := s.told(d.UID, v1alpha1.ErrDaemonMissing); n != 1 {
		t.Errorf("%d events", n)
	}
	if n := s.lead.log.coded(v1alpha1.ErrDaemonMissing, w.key.String()); n != 1 {
		t.Errorf("%d log lines", n)
	}
	if n := errorsTotal(t, s.lead.registry, v1alpha1.ErrDaemonMissing); n <= before {
		t.Error("it was not counted")
	}
	w.update(func(d *v1alpha1.Deployment) { d.Spec.Command = "/bin/sh" })
	w.runsOn(m.name)
	w.until("it to be healed", func(d *v1alpha1.Deployment) bool {
		return reason(d, v1alpha1.DeploymentRunning) == v1alpha1.ReasonRunning && d.Status.Running == 1
	})
}

// The other node is faster by the time that a request takes on the wire.
func TestAClaimLostToAnotherNodeIsAConflictUntilTheNextClaim(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m, faster := s.newHost("n"), s.ghost("faster")
	var once sync.Once
	var w *work
	m.wire.before = func(r sent) {
		if r.name == "w" && r.address == m.name {
			once.Do(func() { w.update(addressed(faster)) })
		}
	}
	m.start()
	w = &work{t: t, site: s, key: client.ObjectKey{Namespace: s.home, Name: "w"}}
	s.deploy("w")
	until(t, "the conflict to be told", func() bool {
		c := meta.FindStatusCondition(m.object().Status.Conditions, v1alpha1.NodeClaiming)
		return c != nil && c.Status == metav1.ConditionTrue && c.Reason == v1alpha1.ErrClaimConflict && strings.Contains(c.Message, faster)
	})
	d := w.get()
	if d.Spec.Address != faster || d.Instance(m.name) != nil || len(w.marks()) != 0 {
		t.Errorf("the address is %q, the instances %v", d.Spec.Address, d.Status.Nodes)
	}
	if n := s.told(d.UID, v1alpha1.ErrClaimConflict); n != 1 {
		t.Errorf("%d events", n)
	}
	if n := m.log.coded(v1alpha1.ErrClaimConflict, w.key.String()); n != 1 {
		t.Errorf("%d log lines", n)
	}
	if n := errorsTotal(t, m.registry, v1alpha1.ErrClaimConflict); n != 1 {
		t.Errorf("counted %v times", n)
	}
	s.deploy("next").runsOn(m.name)
	until(t, "the conflict to be over", func() bool {
		c := meta.FindStatusCondition(m.object().Status.Conditions, v1alpha1.NodeClaiming)
		return c.Reason == v1alpha1.ReasonClaiming
	})
}
