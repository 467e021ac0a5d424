package apiserver_test

import (
	"net/http"
	"testing"

	"github.com/ebb-dev/ebb/internal/identity"
	"github.com/ebb-dev/ebb/internal/lease"
)

// refused checks that a request was forbidden, and with which words.
func refused(t *testing.T, a answer, want string) {
	t.Helper()
	if a.code != http.StatusForbidden || a.message() != want {
		t.Errorf("got  %s\nwant 403 %s", a, want)
	}
}

func TestANodeMayNotWriteItsOwnSpec(t *testing.T) {
	s := api(t)
	admin := s.admin(t)
	name := fresh("n")
	node, path := s.node(t, name), nodes+"/"+name
	want := `nodes.ebb.dev "` + name + `" is forbidden: node ` + name + ` may not write its own spec`

	refused(t, node.do(t, http.MethodPost, nodes, nodeObject(name).with("spec", object{"cordoned": true})), want)
	node.must(t, http.MethodPost, nodes, nodeObject(name).with("metadata", object{"name": name, "labels": object{"zone": "a"}}))
	wish := object{"cordoned": true, "desired": object{"liveness": "Draining", "epoch": 1, "drainUID": "u"}}
	admin.must(t, http.MethodPatch, path, object{"spec": wish})
	have := node.must(t, http.MethodGet, path, nil).object(t)

	for what, a := range map[string]answer{
		"uncordon itself":   node.do(t, http.MethodPatch, path, object{"spec": object{"cordoned": false}}),
		"clear desired":     node.do(t, http.MethodPatch, path, object{"spec": object{"desired": nil}}),
		"drop the spec":     node.do(t, http.MethodPatch, path, object{"spec": nil}),
		"update":            node.do(t, http.MethodPut, path, have.with("spec", object{"cordoned": true})),
		"update without":    node.do(t, http.MethodPut, path, have.with("spec", nil)),
		"server-side apply": node.saying("Content-Type", "application/apply-patch+yaml").do(t, http.MethodPatch, path+"?fieldManager=n&force=true", nodeObject(name).with("spec", object{"cordoned": false})),
	} {
		t.Run(what, func(t *testing.T) { refused(t, a, want) })
	}
	t.Run("its labels it may", func(t *testing.T) {
		node.must(t, http.MethodPatch, path, object{"metadata": object{"labels": object{"zone": "b"}}})
	})
	t.Run("its status does not carry a spec", func(t *testing.T) {
		replace(t, admin, leases, nodeLease(name, "p", 1, 0))
		node.must(t, http.MethodPatch, path+"/status", object{"spec": object{"cordoned": false}, "status": object{"epoch": 1}})
		spec := admin.must(t, http.MethodGet, path, nil).object(t)["spec"].(map[string]any)
		if spec["cordoned"] != true {
			t.Errorf("spec is %v after a write of the status", spec)
		}
	})
}

func TestANodeMayNotCreateAnotherNodeOrItsLease(t *testing.T) {
	s := api(t)
	name := fresh("n")
	node := s.node(t, name)
	other := name + "x"
	refused(t, node.do(t, http.MethodPost, nodes, nodeObject(other)),
		`nodes.ebb.dev "`+other+`" is forbidden: the credentials of node `+name+` may not write node `+other)
	refused(t, node.do(t, http.MethodPost, leases, nodeLease(other, "p", 1, 0)),
		`leases.coordination.k8s.io "node-`+other+`" is forbidden: the credentials of node `+name+` may not write the lease node-`+other)
	for collection, o := range map[string]object{nodes: nodeObject(""), leases: nodeLease("", "p", 1, 0)} {
		o["metadata"] = object{"generateName": name}
		if a := node.do(t, http.MethodPost, collection, o); a.code != http.StatusForbidden {
			t.Errorf("a generated name in %s: %s, want 403", collection, a)
		}
	}
}

func TestANodeMayNotWriteTheMark(t *testing.T) {
	s := api(t)
	name := fresh("n")
	node, path := s.node(t, name), leases+"/"+lease.NameOf(name)
	want := `leases.coordination.k8s.io "node-` + name + `" is forbidden: lease node-` + name + `: only the coordinator may fence an epoch`
	refused(t, node.do(t, http.MethodPost, leases, nodeLease(name, "", 1, 1)), want)
	node.must(t, http.MethodPost, leases, nodeLease(name, "p", 1, 0))
	mark := object{"metadata": object{"annotations": object{lease.FencedAnnotation: "1"}}, "spec": object{"holderIdentity": nil}}
	refused(t, node.do(t, http.MethodPatch, path, mark), want)
	s.admin(t).must(t, http.MethodPatch, path, mark)
	unmark := object{"metadata": object{"annotations": object{lease.FencedAnnotation: nil}}}
	refused(t, node.do(t, http.MethodPatch, path, unmark),
		`leases.coordination.k8s.io "node-`+name+`" is forbidden: lease node-`+name+`: epoch (1) and fenced epoch (1) must not decrease`)
}

func TestANodeSpeaksOnlyForTheEpochOfItsLease(t *testing.T) {
	s := api(t)
	admin := s.admin(t)
	name := fresh("n")
	node, path := s.node(t, name), nodes+"/"+name
	prefix := `nodes.ebb.dev "` + name + `" is forbidden: node ` + name + ` `
	node.must(t, http.MethodPost, nodes, nodeObject(name))
	speak := func(epoch int) answer {
		return node.do(t, http.MethodPatch, path+"/status", object{"status": object{"epoch": epoch, "liveness": "Alive"}})
	}
	refused(t, speak(1), prefix+"has no lease: it may not write for epoch 1")
	node.must(t, http.MethodPost, leases, nodeLease(name, "p", 1, 0))
	refused(t, speak(2), prefix+"may not write for epoch 2: its lease is in epoch 1, fenced up to 0")
	if a := speak(1); a.code != http.StatusOK {
		t.Errorf("in the epoch of its lease: %s", a)
	}
	release(t, admin, name)
	refused(t, speak(1), prefix+"may not write for epoch 1: its lease is in epoch 1, fenced up to 0")
	admin.must(t, http.MethodPatch, leases+"/"+lease.NameOf(name), object{"metadata": object{"annotations": object{lease.FencedAnnotation: "1"}}})
	refused(t, speak(1), prefix+"may not write for epoch 1: its lease is in epoch 1, fenced up to 1")
	node.must(t, http.MethodPatch, leases+"/"+lease.NameOf(name),
		object{"metadata": object{"annotations": object{lease.EpochAnnotation: "2"}}, "spec": object{"holderIdentity": "q"}})
	refused(t, speak(1), prefix+"may not write for epoch 1: its lease is in epoch 2, fenced up to 1")
	if a := speak(2); a.code != http.StatusOK {
		t.Errorf("in its next epoch: %s", a)
	}
}

func TestOnlyAdminsImpersonate(t *testing.T) {
	s := api(t)
	for who, c := range map[string]caller{
		"viewer": s.viewer(t), "node": s.node(t, "n1"), "coordinator": s.coordinator(t, "n1/1/a.1"), "unknown": s.as(t, "mallory"),
	} {
		t.Run(who, func(t *testing.T) {
			for what, as := range map[string]caller{
				"admin":         c.saying("Impersonate-User", identity.Admin),
				"admins' group": c.saying("Impersonate-User", "x").saying("Impersonate-Group", identity.AdminGroup),
				"masters":       c.saying("Impersonate-User", "x").saying("Impersonate-Group", "system:masters"),
				"another node":  c.saying("Impersonate-User", identity.Node("n2")),
			} {
				if a := as.do(t, http.MethodGet, nodes, nil); a.code != http.StatusForbidden {
					t.Errorf("as %s: %s, want 403", what, a)
				}
			}
		})
	}
	t.Run("an admin who acts as a node may only what a node may", func(t *testing.T) {
		as := s.admin(t).saying("Impersonate-User", identity.Node("n1"))
		if a := as.do(t, http.MethodGet, nodes, nil); a.code != http.StatusOK {
			t.Error(a)
		}
		if a := as.do(t, http.MethodPost, drains, drainObject(fresh("d"))); a.code != http.StatusForbidden {
			t.Errorf("creates a drain: %s, want 403", a)
		}
	})
}
