package apiserver_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/version"
)

func decode[T any](t *testing.T, a answer) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(a.body, &v); err != nil {
		t.Fatalf("%v in %s", err, a)
	}
	return v
}

func TestClientsWithoutAggregatedDiscoveryFindEveryGroup(t *testing.T) {
	viewer := api(t).viewer(t)
	core := decode[metav1.APIVersions](t, viewer.must(t, http.MethodGet, "/api", nil))
	if core.Kind != "APIVersions" || !slices.Equal(core.Versions, []string{"v1"}) {
		t.Errorf("/api says %+v, want v1", core)
	}
	groups := decode[metav1.APIGroupList](t, viewer.must(t, http.MethodGet, "/apis", nil))
	got := map[string]string{}
	var order []string
	for _, g := range groups.Groups {
		got[g.Name] = g.PreferredVersion.GroupVersion
		order = append(order, g.Name)
	}
	for group, want := range map[string]string{
		"apiextensions.k8s.io": "apiextensions.k8s.io/v1", "coordination.k8s.io": "coordination.k8s.io/v1",
		"ebb.dev": "ebb.dev/v1alpha1", "events.k8s.io": "events.k8s.io/v1",
		"authentication.k8s.io": "authentication.k8s.io/v1", "authorization.k8s.io": "authorization.k8s.io/v1",
	} {
		if got[group] != want {
			t.Errorf("group %s is served as %q, want %s", group, got[group], want)
		}
	}
	for range 5 {
		again := decode[metav1.APIGroupList](t, viewer.must(t, http.MethodGet, "/apis", nil))
		// Definitions of other tests come and go meanwhile.
		var now []string
		for _, g := range again.Groups {
			now = append(now, g.Name)
		}
		both := func(names, others []string) []string {
			return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !slices.Contains(others, name) })
		}
		if diff := cmp.Diff(both(order, now), both(now, order)); diff != "" {
			t.Fatalf("groups come in another order each time: %s", diff)
		}
	}
	resources := decode[metav1.APIResourceList](t, viewer.must(t, http.MethodGet, "/apis/ebb.dev/v1alpha1", nil))
	kinds := map[string]string{}
	for _, r := range resources.APIResources {
		kinds[r.Name] = r.Kind
	}
	for resource, kind := range map[string]string{"nodes": "Node", "nodes/status": "Node", "drains": "Drain", "settings": "Settings"} {
		if kinds[resource] != kind {
			t.Errorf("resource %s is of kind %q, want %s", resource, kinds[resource], kind)
		}
	}
}

func TestTheAggregatedFormNamesTheSameGroups(t *testing.T) {
	viewer := api(t).viewer(t)
	plain := decode[metav1.APIGroupList](t, viewer.must(t, http.MethodGet, "/apis", nil))
	aggregated := viewer.saying("Accept", "application/json;v=v2;g=apidiscovery.k8s.io;as=APIGroupDiscoveryList")
	names := func() map[string]bool {
		list := decode[struct {
			Kind  string
			Items []struct{ Metadata struct{ Name string } }
		}](t, aggregated.must(t, http.MethodGet, "/apis", nil))
		if list.Kind != "APIGroupDiscoveryList" {
			t.Fatalf("answered with a %s", list.Kind)
		}
		all := map[string]bool{}
		for _, item := range list.Items {
			all[item.Metadata.Name] = true
		}
		return all
	}
	eventually(t, "both forms agree", func() bool {
		all := names()
		for _, g := range plain.Groups {
			if !all[g.Name] {
				return false
			}
		}
		return true
	})
}

func TestEveryIdentityReadsDiscoveryAndHealthAndOnlyViewersReadMetrics(t *testing.T) {
	s := api(t)
	for who, c := range map[string]caller{"viewer": s.viewer(t), "node": s.node(t, "n1"), "coordinator": s.coordinator(t, "")} {
		for _, path := range []string{"/api", "/apis", "/apis/ebb.dev", "/apis/ebb.dev/v1alpha1", "/openapi/v2", "/openapi/v3", "/version", "/healthz", "/livez", "/readyz"} {
			if a := c.do(t, http.MethodGet, path, nil); a.code != http.StatusOK {
				t.Errorf("%s: GET %s: %d", who, path, a.code)
			}
		}
		want := http.StatusForbidden
		if who == "viewer" {
			want = http.StatusOK
		}
		if a := c.do(t, http.MethodGet, "/metrics", nil); a.code != want {
			t.Errorf("%s: GET /metrics: %d, want %d", who, a.code, want)
		}
		for _, path := range []string{"/", "/debug/pprof/", "/logs", "/apis/../metrics/x", "/metrics/slis"} {
			if a := c.do(t, http.MethodGet, path, nil); a.code != http.StatusForbidden {
				t.Errorf("%s: GET %s: %d, want 403", who, path, a.code)
			}
		}
	}
}

// `kubectl version` compares the version of the server with its own, and fails if it is none.
func TestTheVersionOfTheServerIsThatOfAKubernetes(t *testing.T) {
	got := decode[version.Info](t, api(t).viewer(t).must(t, http.MethodGet, "/version", nil))
	v, err := utilversion.ParseSemantic(got.GitVersion)
	if err != nil {
		t.Fatal(err)
	}
	if v.Major() != 1 || v.Minor() < 37 || v.BuildMetadata() != "ebb" || got.Major != "1" || got.Minor != strconv.Itoa(int(v.Minor())) {
		t.Errorf("%+v", got)
	}
	if got.GitCommit != "" || got.BuildDate != "" {
		t.Errorf("it names a build of Kubernetes: %+v", got)
	}
}
