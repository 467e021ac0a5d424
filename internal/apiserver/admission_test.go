package apiserver_test

import (
	"net/http"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/testenv"
)

func TestSettingsCannotBeDeletedByAnyone(t *testing.T) {
	s := api(t)
	admin := s.admin(t)
	want := "settings.ebb.dev \"cluster\" is forbidden: the Settings object \"cluster\" holds the cluster's drain slot and cannot be deleted; use `ebb settings set` to change it"
	refused(t, admin.do(t, http.MethodDelete, settings+"/cluster", nil), want)
	refused(t, admin.do(t, http.MethodDelete, settings+"/cluster", object{"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}), want)
	if a := admin.do(t, http.MethodDelete, settings, nil); a.code != http.StatusForbidden {
		t.Errorf("delete of the collection: %s, want 403", a)
	}
	refused(t, admin.do(t, http.MethodDelete, crds+"/settings.ebb.dev", nil),
		`customresourcedefinitions.apiextensions.k8s.io "settings.ebb.dev" is forbidden: settings.ebb.dev is a type of Ebb and cannot be deleted: all objects of that type would be deleted with it`)
	if a := admin.do(t, http.MethodDelete, crds, nil); a.code != http.StatusForbidden {
		t.Errorf("delete of every type: %s, want 403", a)
	}
	admin.must(t, http.MethodGet, settings+"/cluster", nil)
}

func TestANodeCannotBeDeletedWhileItsLeaseIsHeld(t *testing.T) {
	s := api(t)
	admin := s.admin(t)
	mark := func(node string) {
		admin.must(t, http.MethodPatch, leases+"/"+lease.NameOf(node),
			object{"metadata": object{"annotations": object{lease.FencedAnnotation: "1"}}, "spec": object{"holderIdentity": nil}})
	}
	for how, end := range map[string]func(string){
		"released": func(node string) { release(t, admin, node) },
		"fenced":   mark,
	} {
		t.Run(how, func(t *testing.T) {
			name := fresh("n")
			path := nodes + "/" + name
			admin.must(t, http.MethodPost, nodes, nodeObject(name))
			admin.must(t, http.MethodPost, leases, nodeLease(name, "p", 1, 0))
			want := `nodes.ebb.dev "` + name + `" is forbidden: node ` + name + ` still holds its lease: drain it or stop its process, then delete it`
			refused(t, admin.do(t, http.MethodDelete, path, nil), want)
			refused(t, admin.do(t, http.MethodDelete, nodes+"?fieldSelector=metadata.name="+name, nil), want)
			remembers := `leases.coordination.k8s.io "node-` + name + `" is forbidden: lease node-` + name + ` cannot be deleted: it records that node ` + name +
				` has used epoch 1, which must not be used again; it is enough to delete the Node`
			refused(t, admin.do(t, http.MethodDelete, leases+"/"+lease.NameOf(name), nil), remembers)
			admin.must(t, http.MethodGet, path, nil)
			end(name)
			admin.must(t, http.MethodDelete, path, nil)
			refused(t, admin.do(t, http.MethodDelete, leases+"/"+lease.NameOf(name), nil), remembers)
			if a := admin.do(t, http.MethodGet, path, nil); a.code != http.StatusNotFound {
				t.Errorf("after its deletion: %s, want 404", a)
			}
		})
	}
	t.Run("without a lease", func(t *testing.T) {
		name := fresh("n")
		admin.must(t, http.MethodPost, nodes, nodeObject(name))
		admin.must(t, http.MethodDelete, nodes+"/"+name, nil)
	})
	t.Run("with a lease that nobody can read", func(t *testing.T) {
		name := fresh("n")
		admin.must(t, http.MethodPost, nodes, nodeObject(name))
		broken := nodeLease(name, "", 0, 0)
		broken["metadata"].(object)["annotations"] = object{lease.EpochAnnotation: "many"}
		refused(t, admin.do(t, http.MethodPost, leases, broken),
			`leases.coordination.k8s.io "node-`+name+`" is forbidden: lease ebb-system/node-`+name+`: annotation ebb.dev/epoch is "many", not an epoch`)
	})
}

// state is what a node's Lease says: who holds it, in which epoch, and up to which one it is fenced.
type state struct {
	holder        string
	epoch, fenced int
}

func TestALeaseNeverGoesBackwards(t *testing.T) {
	const (
		backwards = "epoch (2) and fenced epoch (1) must not decrease"
		another   = "epoch 2 belongs to another holder; join with the next epoch"
		fenced    = "epoch 2 was fenced and cannot be held again; join with the next epoch"
	)
	admin := api(t).admin(t)
	for _, c := range []struct {
		what     string
		from, to state
		want     string // empty: allowed
	}{
		{"a renewal", state{"p", 2, 1}, state{"p", 2, 1}, ""},
		{"a release", state{"p", 2, 1}, state{"", 2, 1}, ""},
		{"a fence", state{"p", 2, 1}, state{"", 2, 2}, ""},
		{"a rejoin after a fence", state{"", 2, 2}, state{"p", 3, 2}, ""},
		{"a start after a release", state{"", 2, 1}, state{"q", 3, 1}, ""},
		{"a take-over from a dead process of this machine", state{"p", 2, 1}, state{"q", 3, 1}, ""},
		{"an older epoch", state{"p", 2, 1}, state{"p", 1, 1}, backwards},
		{"no epoch", state{"p", 2, 1}, state{"", 0, 1}, backwards},
		{"an older mark", state{"p", 2, 1}, state{"p", 2, 0}, backwards},
		{"an older mark with a newer epoch", state{"p", 2, 1}, state{"p", 3, 0}, backwards},
		{"a fenced epoch held on", state{"p", 2, 1}, state{"p", 2, 2}, fenced},
		{"a fenced epoch held again", state{"", 2, 2}, state{"p", 2, 2}, fenced},
		{"another holder in the same epoch", state{"p", 2, 1}, state{"q", 2, 1}, another},
		{"a released epoch taken up again", state{"", 2, 1}, state{"p", 2, 1}, another},
		{"an epoch below the mark", state{"", 2, 1}, state{"p", 3, 4}, "epoch 3 was fenced and cannot be held again; join with the next epoch"},
		{"a holder without an epoch", state{}, state{"p", 0, 0}, "epoch 0 was fenced and cannot be held again; join with the next epoch"},
		{"a first epoch", state{}, state{"p", 1, 0}, ""},
	} {
		t.Run(c.what, func(t *testing.T) {
			name := fresh("n")
			var a answer
			if to := nodeLease(name, c.to.holder, c.to.epoch, c.to.fenced); c.from == (state{}) {
				a = admin.do(t, http.MethodPost, leases, to)
			} else {
				have := admin.must(t, http.MethodPost, leases, nodeLease(name, c.from.holder, c.from.epoch, c.from.fenced)).object(t)
				to["metadata"].(object)["resourceVersion"] = have["metadata"].(map[string]any)["resourceVersion"]
				a = admin.do(t, http.MethodPut, leases+"/"+lease.NameOf(name), to)
			}
			if c.want != "" {
				refused(t, a, `leases.coordination.k8s.io "node-`+name+`" is forbidden: lease node-`+name+`: `+c.want)
			} else if a.code/100 != 2 {
				t.Error(a)
			}
		})
	}
}

func TestDeletionNeverWaitsForAGarbageCollector(t *testing.T) {
	s := api(t)
	admin := s.admin(t)
	for _, cascade := range []string{"foreground", "orphan", "background"} {
		t.Run("kubectl --cascade="+cascade, func(t *testing.T) {
			name := fresh("d")
			admin.must(t, http.MethodPost, drains, drainObject(name))
			cmd := exec.CommandContext(t.Context(), testenv.Kubectl(t), "--kubeconfig", s.dir.Kubeconfig(),
				"delete", "drain", name, "--cascade="+cascade, "--timeout=30s")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
			if a := admin.do(t, http.MethodGet, drains+"/"+name, nil); a.code != http.StatusNotFound {
				t.Errorf("still there: %s", a)
			}
		})
	}
	for what, options := range map[string]object{
		"Foreground":       {"propagationPolicy": "Foreground"},
		"Orphan":           {"propagationPolicy": "Orphan"},
		"orphanDependents": {"orphanDependents": true},
	} {
		t.Run("a collection with "+what+" is refused", func(t *testing.T) {
			name := fresh("d")
			admin.must(t, http.MethodPost, drains, drainObject(name))
			path := drains + "?fieldSelector=metadata.name=" + name
			a := admin.do(t, http.MethodDelete, path, options.with("kind", "DeleteOptions").with("apiVersion", "v1"))
			const want = "the embedded API has no garbage collector: delete a collection with propagationPolicy Background"
			if a.code != http.StatusBadRequest || a.message() != want {
				t.Errorf("got %s, want 400 %s", a, want)
			}
			admin.must(t, http.MethodDelete, path, object{"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"})
			if a := admin.do(t, http.MethodGet, drains+"/"+name, nil); a.code != http.StatusNotFound {
				t.Errorf("still there: %s", a)
			}
		})
	}
}

func TestOnlyTheGarbageCollectorsFinalizersAreTakenAway(t *testing.T) {
	admin := api(t).admin(t)
	name := fresh("d")
	finalizers := func(a answer) any { return a.object(t)["metadata"].(map[string]any)["finalizers"] }
	d := drainObject(name)
	d["metadata"].(object)["finalizers"] = []string{"foregroundDeletion", "ebb.dev/drain", "orphan"}
	want := []any{"ebb.dev/drain"}
	if got := finalizers(admin.must(t, http.MethodPost, drains, d)); !reflect.DeepEqual(got, want) {
		t.Errorf("created with %v, want %v", got, want)
	}
	patch := object{"metadata": object{"finalizers": []string{"orphan", "ebb.dev/drain", "foregroundDeletion"}}}
	if got := finalizers(admin.must(t, http.MethodPatch, drains+"/"+name, patch)); !reflect.DeepEqual(got, want) {
		t.Errorf("patched to %v, want %v", got, want)
	}
	admin.must(t, http.MethodDelete, drains+"/"+name, nil)
	if got := finalizers(admin.must(t, http.MethodGet, drains+"/"+name, nil)); !reflect.DeepEqual(got, want) {
		t.Errorf("being deleted with %v, want %v", got, want)
	}
	admin.must(t, http.MethodPatch, drains+"/"+name, object{"metadata": object{"finalizers": nil}})
	if a := admin.do(t, http.MethodGet, drains+"/"+name, nil); a.code != http.StatusNotFound {
		t.Errorf("without finalizers: %s, want 404", a)
	}
}

func TestANodeThatTheDrainSlotNamesCannotBeDeleted(t *testing.T) {
	admin := api(t).admin(t)
	name := fresh("n")
	path := nodes + "/" + name
	admin.must(t, http.MethodPost, nodes, nodeObject(name))
	admin.must(t, http.MethodPatch, settings+"/cluster/status", object{"status": object{"activeDrain": object{"name": "d", "uid": "u", "node": name, "nodeEpoch": 1}}})
	refused(t, admin.do(t, http.MethodDelete, path, nil), `nodes.ebb.dev "`+name+`" is forbidden: drain d of node `+name+
		" still holds the drain slot: wait until the drain has ended, or cancel it with `ebb drain "+name+" --cancel`")
	admin.must(t, http.MethodPatch, settings+"/cluster/status", object{"status": object{"activeDrain": nil}})
	admin.must(t, http.MethodDelete, path, nil)
}

func TestADrainIsDeletedInEveryPhaseButStopping(t *testing.T) {
	admin := api(t).admin(t)
	for _, phase := range phases {
		name := fresh("d")
		admin.must(t, http.MethodPost, drains, drainObject(name))
		admin.must(t, http.MethodPatch, drains+"/"+name+"/status", object{"status": object{"phase": phase}})
		for _, path := range []string{drains + "/" + name, drains + "?fieldSelector=metadata.name=" + name} {
			a := admin.do(t, http.MethodDelete, path, nil)
			if phase != "Stopping" {
				if a.code != http.StatusOK {
					t.Errorf("%s: %s", phase, a)
				}
				continue
			}
			want := "the drain is Stopping: node n9 is empty and is shutting down, so the drain can no longer be cancelled; delete the Drain when it has ended"
			if a.code != http.StatusConflict || !strings.HasSuffix(a.message(), want) {
				t.Errorf("%s: %s, want 409 %s", phase, a, want)
			}
		}
	}
}

func TestADrainCanBeCancelledUntilItIsStopping(t *testing.T) {
	admin := api(t).admin(t)
	const tooLate = "a drain that is Stopping or has ended can no longer be cancelled: its node is shutting down or has left; start the node again to bring it back"
	for _, phase := range phases {
		name := fresh("d")
		path := drains + "/" + name
		admin.must(t, http.MethodPost, drains, drainObject(name))
		admin.must(t, http.MethodPatch, path+"/status", object{"status": object{"phase": phase}})
		var want []string
		if phase == "Stopping" || phase == "Complete" || phase == "Cancelled" {
			want = []string{tooLate}
		}
		invalid(t, admin.do(t, http.MethodPatch, path, object{"spec": object{"cancelled": true}}), want...)
		if want == nil {
			invalid(t, admin.do(t, http.MethodPatch, path, object{"spec": object{"cancelled": false}}), "a cancellation cannot be undone: create another Drain")
		}
	}
}
