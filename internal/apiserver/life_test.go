package apiserver_test

import (
	"net/http"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// One server from its first start to its second, in a directory whose path is longer than a socket's may be.
func TestAServersLife(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 120), strings.Repeat("e", 120))
	s := start(t, options(dir))
	admin := s.admin(t)
	t.Run("every kind can be used from the moment the server is ready", func(t *testing.T) {
		for _, collection := range []string{nodes, drains, settings, leases, events, crds} {
			if a := admin.do(t, http.MethodGet, collection, nil); a.code != http.StatusOK {
				t.Errorf("list of %s: %s", collection, a)
			}
		}
	})
	t.Run("settings are there from the first start, with their defaults", func(t *testing.T) {
		spec := admin.must(t, http.MethodGet, settings+"/cluster", nil).object(t)["spec"]
		want := map[string]any{
			"nodeDrainPolicy": "block-if-contains-last-replica",
			"onCordon":        "Drain",
			"volumes":         map[string]any{"replicaReplenishmentWait": "10m"},
			"drain":           map[string]any{"clientGrace": "60s", "maintainerBatchSize": 1.0, "stalledAfter": "5m", "balanceAfter": "30s", "bootstrapTimeout": "30s", "historyLimit": 100.0, "historyAge": "168h"},
		}
		if !reflect.DeepEqual(spec, want) {
			t.Errorf("spec is %v, want %v", spec, want)
		}
		admin.must(t, http.MethodPatch, settings+"/cluster", object{"spec": object{"nodeDrainPolicy": "always-allow"}})
	})
	t.Run("an open watch does not hold up its end", func(t *testing.T) {
		resp, err := admin.client.Get(s.url + nodes + "?watch=1")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		begun := time.Now()
		if err := s.stop(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took > 20*time.Second {
			t.Errorf("the end took %s", took)
		}
	})
	again := start(t, options(dir))
	t.Run("a second start finds what was written and keeps the address", func(t *testing.T) {
		spec := again.admin(t).must(t, http.MethodGet, settings+"/cluster", nil).object(t)["spec"].(map[string]any)
		if spec["nodeDrainPolicy"] != "always-allow" {
			t.Errorf("the policy became %v", spec["nodeDrainPolicy"])
		}
		if again.url != s.url {
			t.Errorf("served at %s before and at %s after", s.url, again.url)
		}
	})
	t.Run("clients of the first start go on", func(t *testing.T) {
		admin.must(t, http.MethodGet, nodes, nil)
	})
}
