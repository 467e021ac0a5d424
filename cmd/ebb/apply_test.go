package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/ebb-dev/ebb/internal/testenv"
)

func TestApplyTakesListsAndCoreKinds(t *testing.T) {
	api := testenv.StartAPI(t)
	apply := func(text string) (string, error) {
		cmd := newApply()
		var out bytes.Buffer
		cmd.SetIn(strings.NewReader(text))
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		cmd.SetArgs([]string{"--kubeconfig", api.Dir.Kubeconfig(), "-f", "-"})
		err := cmd.ExecuteContext(t.Context())
		return out.String(), err
	}
	const list = `apiVersion: v1
kind: List
metadata: {resourceVersion: ""}
items:
- {apiVersion: v1, kind: Secret, metadata: {name: db, namespace: shop, uid: old, resourceVersion: "7", creationTimestamp: "2026-01-02T03:04:05Z"}, stringData: {password: x}}
- apiVersion: ebb.dev/v1alpha1
  kind: Changefeed
  metadata: {name: demo, namespace: shop}
  spec: {source: "datagen://?tables=1", sink: "blackhole://"}
  status: {state: Running}
- {apiVersion: v1, kind: Namespace, metadata: {name: shop}}
`
	for range 2 {
		if out, err := apply(list); err != nil || out != "secret/db applied\nchangefeed/demo applied\nnamespace/shop applied\n" {
			t.Errorf("%v, %s", err, out)
		}
	}
	var secret corev1.Secret
	if err := api.Admin().Get(context.Background(), client.ObjectKey{Namespace: "shop", Name: "db"}, &secret); err != nil || string(secret.Data["password"]) != "x" {
		t.Errorf("%v, %v", err, secret.Data)
	}
	for text, want := range map[string]string{
		strings.ReplaceAll(list, "name: demo", "nme: demo"):                                                                                       "-: document 1: item 2: apiVersion, kind and metadata.name are required",
		"{apiVersion: v1, kind: ConfigMap, metadata: {name: c, namespace: nowhere}}":                                                              `nothing was applied: ConfigMap c: namespaces "nowhere" not found`,
		"{apiVersion: v1, kind: Namespace, metadata: {name: made}}\n---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: C, namespace: made}}": "only namespaces were applied: ConfigMap C: ",
		`{apiVersion: ebb.dev/v1alpha1, kind: Deployment, metadata: {name: d}, spec: {command: [a]}}`:                                             "nothing was applied: Deployment d: .spec.command: expected string, got a list",
		`{apiVersion: ebb.dev/v1alpha1, kind: Deployment, metadata: {name: d}, spec: {command: {a: b}}}`:                                          "nothing was applied: Deployment d: .spec.command: expected string, got an object",
		`{apiVersion: ebb.dev/v1alpha1, kind: Deployment, metadata: {name: d}, spec: {command: 7}}`:                                               "nothing was applied: Deployment d: .spec.command: expected string, got 7",
		`{apiVersion: ebb.dev/v1alpha1, kind: Deployment, metadata: {name: d}, spec: {enabled: "yes"}}`:                                           `nothing was applied: Deployment d: .spec.enabled: expected boolean, got yes`,
		`{apiVersion: ebb.dev/v1alpha1, kind: Deployment, metadata: {name: d}, spec: {comand: x}}`:                                                "nothing was applied: Deployment d: .spec.comand: field not declared in schema",
	} {
		if _, err := apply(text); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
}

// A dry run does not find everything: the API may go away in the middle.
func TestAnApplyThatFailsInTheMiddleSaysHowMuchWasApplied(t *testing.T) {
	const text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: NAME, namespace: default}\n---\n"
	objects, err := parseManifests([]byte(strings.ReplaceAll(text, "NAME", "a") + strings.ReplaceAll(text, "NAME", "b") + strings.ReplaceAll(text, "NAME", "c")))
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	api := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{Apply: func(context.Context, client.WithWatch, runtime.ApplyConfiguration, ...client.ApplyOption) error {
		if calls++; calls == 5 { // three dry runs come first
			return errors.New("connection refused")
		}
		return nil
	}}).Build()
	const want = "ConfigMap b, after 1 of 3 objects were applied: connection refused"
	if err := applyAll(t.Context(), api, objects); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
