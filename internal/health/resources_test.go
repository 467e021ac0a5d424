package health_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drainconfig"
	"github.com/ebb-dev/ebb/internal/health"
	"github.com/ebb-dev/ebb/internal/health/render"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// resourceTest is a client of custom resources on a real API, and what a test looks at beside it.
type resourceTest struct {
	*health.Resources
	t       *testing.T
	ctx     context.Context
	config  *drainconfig.Config
	objects dynamic.ResourceInterface
	crds    crdclient.CustomResourceDefinitionInterface
	changed chan struct{}
}

func newResourceTest(t *testing.T, api *testenv.API, cfg *rest.Config) *resourceTest {
	t.Helper()
	template, err := os.ReadFile("render/testdata/seed.yaml")
	if err != nil {
		t.Fatal(err)
	}
	config, err := drainconfig.Parse("drain.toml", []byte("[customDrain]\nenabled = true\nnamespace = \"default\"\n"))
	if err != nil {
		t.Fatal(err)
	}
	c := config.CustomDrain
	parsed, err := render.Parse("drain-template.yaml", string(template), c.GVK, c.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	r := &resourceTest{t: t, config: config, changed: make(chan struct{}, 100)}
	var cancel context.CancelFunc
	r.ctx, cancel = context.WithCancel(context.Background())
	t.Cleanup(cancel)
	wake := func() {
		select {
		case r.changed <- struct{}{}:
		default:
		}
	}
	if r.Resources, err = health.NewResources(cfg, c, parsed, wake, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	admin := api.Config(api.Dir.Kubeconfig())
	objects, err := dynamic.NewForConfig(admin)
	if err != nil {
		t.Fatal(err)
	}
	r.objects = objects.Resource(schema.GroupVersionResource{Group: c.GVK.Group, Version: c.GVK.Version, Resource: "drainrequests"}).Namespace("default")
	crds, err := crdclient.NewForConfig(admin)
	if err != nil {
		t.Fatal(err)
	}
	r.crds = crds.CustomResourceDefinitions()
	return r
}

// install creates the definition and waits until it is found.
func (r *resourceTest) install() {
	r.t.Helper()
	text, err := os.ReadFile("../../examples/custom-drain/crd.yaml")
	if err != nil {
		r.t.Fatal(err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(text, crd); err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.crds.Create(r.ctx, crd, metav1.CreateOptions{}); err != nil {
		r.t.Fatal(err)
	}
	r.until("the definition to be found", func() bool { d := r.Definition(r.ctx); return d.Ready && d.Namespaced })
}

func (r *resourceTest) until(what string, holds func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("waited for %s", what)
		}
	}
}

func resourceEvent(uid string) *v1alpha1.HealthEvent {
	return &v1alpha1.HealthEvent{
		ObjectMeta: metav1.ObjectMeta{Name: "e1", UID: "u1"}, Spec: v1alpha1.HealthEventSpec{NodeName: "n1", CheckName: "c", ID: "e1", Message: "a: b"},
		Status: v1alpha1.HealthEventStatus{CustomResource: &v1alpha1.CustomResource{APIVersion: "nvsentinel.nvidia.com/v1alpha1", Kind: "DrainRequest", Namespace: "default", Name: "drain-n1-e1", Attempt: 1, UID: uid}},
	}
}

func TestResourcesOnARealAPI(t *testing.T) {
	api := testenv.StartAPI(t)
	r := newResourceTest(t, api, api.Config(api.Dir.Kubeconfig()))

	if d := r.Definition(r.ctx); d.Ready || d.Gone || d.Reason != health.WaitDefinition {
		t.Fatalf("without a definition: %+v", d)
	}
	if _, err := r.Create(r.ctx, resourceEvent("")); err == nil {
		t.Error("created a resource without a definition")
	}
	r.install()

	// Created, with the template's status by a second write.
	created, err := r.Create(r.ctx, resourceEvent(""))
	uid := created.UID
	if err != nil || created.StatusPending {
		t.Fatalf("%+v, %v", created, err)
	}
	made, err := r.objects.Get(r.ctx, "drain-n1-e1", metav1.GetOptions{})
	if err != nil || string(made.GetUID()) != uid || made.GetAnnotations()[v1alpha1.HealthEventAnnotation] != "u1" || made.GetAnnotations()[v1alpha1.AttemptAnnotation] != "1" || !created.At.Equal(new(made.GetCreationTimestamp())) {
		t.Fatalf("%v, %v", made, err)
	}
	conditions, _, _ := unstructured.NestedSlice(made.Object, "status", "conditions")
	if len(conditions) != 1 || conditions[0].(map[string]any)["reason"] != "Pending" {
		t.Errorf("status %v", made.Object["status"])
	}
	if reason, _, _ := unstructured.NestedString(made.Object, "spec", "reason"); reason != "a: b" {
		t.Errorf("reason %q", reason)
	}

	// Its controller reports; the watch wakes us, and what it said stays when the resource is found again after a crash.
	made.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "DrainInProgress", "status": "True"}}}
	if made, err = r.objects.UpdateStatus(r.ctx, made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.until("the watch to show it", func() bool {
		<-r.changed
		seen, wait := r.Get(r.ctx, resourceEvent(uid).Status.CustomResource)
		return wait == nil && seen != nil && seen.GetResourceVersion() == made.GetResourceVersion()
	})
	if again, err := r.Create(r.ctx, resourceEvent("")); err != nil || again != created {
		t.Errorf("found again: %+v, %v; want %+v", again, err, created)
	}
	if now, err := r.objects.Get(r.ctx, "drain-n1-e1", metav1.GetOptions{}); err != nil || now.GetResourceVersion() != made.GetResourceVersion() {
		t.Errorf("it was written again: %v, %v", now, err)
	}

	// What another event or another attempt made is neither adopted nor deleted.
	other := resourceEvent("")
	other.UID = "u2"
	if _, err := r.Create(r.ctx, other); err == nil {
		t.Error("adopted the resource of another event")
	}
	if err := r.Delete(r.ctx, r.ctx, other); err != nil {
		t.Error(err)
	}
	later := resourceEvent("")
	later.Status.CustomResource.Attempt = 2
	if _, err := r.Create(r.ctx, later); err == nil {
		t.Error("adopted the resource of another attempt")
	}
	if err := r.Delete(r.ctx, r.ctx, resourceEvent("another-uid")); err != nil {
		t.Error(err)
	}
	if _, err := r.objects.Get(r.ctx, "drain-n1-e1", metav1.GetOptions{}); err != nil {
		t.Fatalf("it is gone: %v", err)
	}
	if err := r.Delete(r.ctx, r.ctx, resourceEvent(uid)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.objects.Get(r.ctx, "drain-n1-e1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after the deletion: %v", err)
	}
	if err := r.Delete(r.ctx, r.ctx, resourceEvent(uid)); err != nil {
		t.Errorf("deleted twice: %v", err)
	}

	// A kind that --drain-config had before and that is not served: nothing is left of it, but that shows only after a while.
	former := resourceEvent("some-uid")
	former.Status.CustomResource.Kind = "FormerRequest"
	wait := (*health.Wait)(nil)
	if err := r.Delete(r.ctx, r.ctx, former); !errors.As(err, &wait) || wait.Reason != health.WaitDefinition {
		t.Errorf("deleted a resource of a kind that was not served for a moment: %v", err)
	}
	r.until("the former kind to be gone", func() bool { return r.Delete(r.ctx, r.ctx, former) == nil })

	// A namespace that is missing is named.
	elsewhere := resourceEvent("")
	elsewhere.Status.CustomResource.Namespace = "nowhere"
	if _, err := r.Create(r.ctx, elsewhere); err == nil || err.Error() != "There is no namespace nowhere: create it; the drain then continues." {
		t.Errorf("%v", err)
	}

	// An API without pods has none.
	if pods, err := r.Pods(r.ctx, "n1", r.config, begin); err != nil || len(pods.Namespaces) > 0 {
		t.Errorf("pods %+v, %v", pods, err)
	}

	// The definition is deleted.
	if _, err := r.Create(r.ctx, resourceEvent("")); err != nil {
		t.Fatal(err)
	}
	if err := r.crds.Delete(r.ctx, "drainrequests.nvsentinel.nvidia.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.until("the definition to be gone", func() bool {
		d := r.Definition(r.ctx)
		return !d.Ready && d.Gone && d.Reason == health.WaitDefinition
	})
}

// What the controller of a resource reports between the create and the write of the template's status counts.
func TestAControllerThatIsFasterThanTheStatusKeepsItsReport(t *testing.T) {
	api := testenv.StartAPI(t)
	f := &faults{}
	r := newResourceTest(t, api, f.around(api.Config(api.Dir.Kubeconfig())))
	r.install()
	said, writes := []any{map[string]any{"type": "DrainInProgress", "status": "True"}}, 0
	f.set(func(request *http.Request) int {
		if request.Method != http.MethodPut || !strings.HasSuffix(request.URL.Path, "/drain-n1-e1/status") {
			return 0
		}
		writes++
		made, err := r.objects.Get(r.ctx, "drain-n1-e1", metav1.GetOptions{})
		if err != nil {
			t.Error(err)
			return 0
		}
		made.Object["status"] = map[string]any{"conditions": said}
		if _, err := r.objects.UpdateStatus(r.ctx, made, metav1.UpdateOptions{}); err != nil {
			t.Error(err)
		}
		return 0
	})
	created, err := r.Create(r.ctx, resourceEvent(""))
	if err != nil || created.UID == "" || created.StatusPending || writes != 1 {
		t.Errorf("%+v, %v after %d writes of the status", created, err, writes)
	}
	made, err := r.objects.Get(r.ctx, "drain-n1-e1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got, _, _ := unstructured.NestedSlice(made.Object, "status", "conditions"); !cmp.Equal(got, said) {
		t.Errorf("its controller reported %v, and the status has %v", said, got)
	}
}

// Nor does a later attempt to write it.
func TestAStatusThatWasRefusedIsWrittenLaterUnlessTheControllerReported(t *testing.T) {
	api := testenv.StartAPI(t)
	f := &faults{}
	r := newResourceTest(t, api, f.around(api.Config(api.Dir.Kubeconfig())))
	r.install()
	refuse := func(request *http.Request) int {
		if isResource(request) && request.Method == http.MethodPut {
			return http.StatusInternalServerError
		}
		return 0
	}
	reason := func(name string) any {
		t.Helper()
		made, err := r.objects.Get(r.ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		list, _, _ := unstructured.NestedSlice(made.Object, "status", "conditions")
		if len(list) != 1 {
			return nil
		}
		return list[0].(map[string]any)["reason"]
	}
	for _, want := range []string{"Pending", "Busy"} {
		f.set(refuse)
		e := resourceEvent("")
		e.Status.CustomResource.Name = "drain-" + strings.ToLower(want)
		created, err := r.Create(r.ctx, e)
		if err != nil || created.UID == "" || created.At.IsZero() || !created.StatusPending {
			t.Fatalf("%+v, %v", created, err)
		}
		e.Status.CustomResource.UID = created.UID
		wait := (*health.Wait)(nil)
		if err := r.WriteStatus(r.ctx, e); !errors.As(err, &wait) || wait.Reason != health.WaitStatus {
			t.Errorf("while it is refused: %v", err)
		}
		if want == "Busy" {
			made, err := r.objects.Get(r.ctx, e.Status.CustomResource.Name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			made.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "DrainInProgress", "status": "True", "reason": want}}}
			if _, err := r.objects.UpdateStatus(r.ctx, made, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		f.set(nil)
		if err := r.WriteStatus(r.ctx, e); err != nil {
			t.Error(err)
		}
		if got := reason(e.Status.CustomResource.Name); got != want {
			t.Errorf("the status has %v, want %s", got, want)
		}
	}
}

func TestACoordinatorWithoutTheRightIsBlocked(t *testing.T) {
	api := testenv.StartAPI(t) // without --drain-config
	newResourceTest(t, api, api.Config(api.Dir.Kubeconfig())).install()
	r := newResourceTest(t, api, api.Config(api.Node("n1").CoordinatorKubeconfig()))
	if d := r.Definition(r.ctx); !d.Ready {
		t.Fatalf("%+v", d)
	}
	_, err := r.Create(r.ctx, resourceEvent(""))
	if err == nil || !strings.Contains(err.Error(), "The coordinator may not read and write DrainRequest in namespace default") || errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestWhichPodsAreGivenToAnotherScheduler(t *testing.T) {
	pod := func(namespace, name string, change ...func(*unstructured.Unstructured)) unstructured.Unstructured {
		u := unstructured.Unstructured{Object: map[string]any{}}
		u.SetNamespace(namespace)
		u.SetName(name)
		for _, f := range change {
			f(&u)
		}
		return u
	}
	phase := func(phase string) func(*unstructured.Unstructured) {
		return func(u *unstructured.Unstructured) { u.Object["status"] = map[string]any{"phase": phase} }
	}
	owned := func(kind string) func(*unstructured.Unstructured) {
		return func(u *unstructured.Unstructured) {
			u.SetOwnerReferences([]metav1.OwnerReference{{Kind: kind, Name: "o"}})
		}
	}
	static := func(u *unstructured.Unstructured) {
		u.SetAnnotations(map[string]string{corev1.MirrorPodAnnotationKey: "x"})
	}
	got := health.PodsByNamespace([]unstructured.Unstructured{
		pod("team", "b"), pod("team", "a", owned("ReplicaSet")), pod("jobs", "c", phase("Running")),
		pod("jobs", "done", phase("Succeeded")), pod("jobs", "failed", phase("Failed")), pod("team", "agent", owned("DaemonSet")), pod("team", "static", static),
		pod("kube-system", "dns"), pod("ebb-system", "ebb-guard-n1", owned("Node")), pod("ebb-system", "ebb-guard--sensor-n1"),
	}, drainconfig.Default())
	want := []v1alpha1.PodsOfNamespace{{Namespace: "jobs", Names: []string{"c"}}, {Namespace: "team", Names: []string{"a", "b"}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
