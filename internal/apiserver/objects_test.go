package apiserver_test

import (
	"net/http"
	"strconv"
	"testing"

	"github.com/ebb-dev/ebb/internal/lease"
)

const (
	nodes       = "/apis/ebb.dev/v1alpha1/nodes"
	drains      = "/apis/ebb.dev/v1alpha1/drains"
	settings    = "/apis/ebb.dev/v1alpha1/settings"
	terms       = "/apis/ebb.dev/v1alpha1/terms"
	deployments = "/apis/ebb.dev/v1alpha1/namespaces/default/deployments"
	crates      = "/apis/ebb.dev/v1alpha1/namespaces/default/crates"
	leases      = "/apis/coordination.k8s.io/v1/namespaces/ebb-system/leases"
	otherLeases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
	events      = "/apis/events.k8s.io/v1/namespaces/default/events"
	coreEvents  = "/api/v1/namespaces/default/events"
	secrets     = "/api/v1/namespaces/default/secrets"
	configMaps  = "/api/v1/namespaces/default/configmaps"
	namespaces  = "/api/v1/namespaces"
	crds        = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
)

// object is anything the API keeps.
type object map[string]any

// with is the object with one more field at its root.
func (o object) with(field string, value any) object {
	next := object{}
	for k, v := range o {
		next[k] = v
	}
	if value == nil {
		delete(next, field)
	} else {
		next[field] = value
	}
	return next
}

func ebb(kind, name string) object {
	return object{"apiVersion": "ebb.dev/v1alpha1", "kind": kind, "metadata": object{"name": name}}
}

func nodeObject(name string) object { return ebb("Node", name) }
func drainObject(name string) object {
	return ebb("Drain", name).with("spec", object{"nodeName": "n9"})
}

// nodeLease is a node's Lease; an empty holder is none, an epoch or a mark of 0 is not written.
func nodeLease(node, holder string, epoch, fenced int) object {
	notes := object{}
	if epoch > 0 {
		notes[lease.EpochAnnotation] = strconv.Itoa(epoch)
	}
	if fenced > 0 {
		notes[lease.FencedAnnotation] = strconv.Itoa(fenced)
	}
	l := leaseObject(lease.NameOf(node), holder)
	l["metadata"].(object)["annotations"] = notes
	return l
}

func leaseObject(name, holder string) object {
	spec := object{"leaseDurationSeconds": 10}
	if holder != "" {
		spec["holderIdentity"] = holder
	}
	return object{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": object{"name": name}, "spec": spec}
}

func eventObject(name string) object {
	return object{
		"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": object{"name": name},
		"eventTime": "2026-01-02T03:04:05.000000Z", "type": "Normal", "reason": "Drained", "action": "Drain",
		"note": "nothing is left", "reportingController": "ebb.dev/drain", "reportingInstance": "n1",
		"regarding": object{"kind": "Node", "name": "n2"},
	}
}

// core is an object of the core group.
func core(kind, name string) object {
	return object{"apiVersion": "v1", "kind": kind, "metadata": object{"name": name}}
}

func secretObject(name string) object {
	return core("Secret", name).with("stringData", object{"password": "hunter2"})
}

func coreEventObject(name string) object {
	return core("Event", name).with("involvedObject", object{"kind": "Node", "name": "n2"}).with("reason", "Drained").with("message", "nothing is left")
}

// definition is a minimal type with a status and a scale.
func definition(group, plural, kind string) object {
	replicas := object{"type": "object", "properties": object{
		"replicas": object{"type": "integer"}, "node": object{"type": "string"}, "nodeEpoch": object{"type": "integer", "format": "int64"},
	}}
	return object{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": object{"name": plural + "." + group},
		"spec": object{
			"group": group, "scope": "Namespaced", "names": object{"kind": kind, "plural": plural},
			"versions": []object{{
				"name": "v1alpha1", "served": true, "storage": true,
				"schema": object{"openAPIV3Schema": object{"type": "object", "properties": object{"spec": replicas, "status": replicas}}},
				"subresources": object{
					"status": object{},
					"scale":  object{"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
				},
			}},
		},
	}
}

// installCrates brings a kind of work, which the server itself does not have yet.
func installCrates(t testing.TB, admin caller) {
	t.Helper()
	if a := admin.do(t, http.MethodPost, crds, definition("ebb.dev", "crates", "Crate")); a.code != http.StatusCreated && a.code != http.StatusConflict {
		t.Fatal(a)
	}
	eventually(t, "crates are served", func() bool {
		return admin.do(t, http.MethodGet, crates, nil).code == http.StatusOK
	})
}

// elect makes term the holder of the election's Lease.
func elect(t testing.TB, admin caller, term string) {
	t.Helper()
	replace(t, admin, leases, leaseObject(lease.CoordinatorName, term))
}

// replace makes the object be as given, whatever there was.
func replace(t testing.TB, admin caller, collection string, o object) {
	t.Helper()
	name := o["metadata"].(object)["name"].(string)
	if a := admin.do(t, http.MethodDelete, collection+"/"+name, nil); a.code != http.StatusOK && a.code != http.StatusNotFound {
		t.Fatal(a)
	}
	admin.must(t, http.MethodPost, collection, o)
}

// hold begins the next epoch of a node, and says which that is.
func hold(t testing.TB, admin caller, node, holder string) (epoch int) {
	t.Helper()
	path := leases + "/" + lease.NameOf(node)
	have := admin.do(t, http.MethodGet, path, nil)
	if have.code == http.StatusNotFound {
		admin.must(t, http.MethodPost, leases, nodeLease(node, holder, 1, 0))
		return 1
	}
	notes, _ := have.object(t)["metadata"].(map[string]any)["annotations"].(map[string]any)
	before, _ := notes[lease.EpochAnnotation].(string)
	epoch, err := strconv.Atoi(before)
	if err != nil {
		t.Fatal(err)
	}
	epoch++
	admin.must(t, http.MethodPatch, path, object{
		"metadata": object{"annotations": object{lease.EpochAnnotation: strconv.Itoa(epoch)}}, "spec": object{"holderIdentity": holder},
	})
	return epoch
}

// release ends the epoch of a node's lease in order, if one is held.
func release(t testing.TB, admin caller, node string) {
	t.Helper()
	a := admin.do(t, http.MethodPatch, leases+"/"+lease.NameOf(node), object{"spec": object{"holderIdentity": nil}})
	if a.code != http.StatusOK && a.code != http.StatusNotFound {
		t.Fatal(a)
	}
}
