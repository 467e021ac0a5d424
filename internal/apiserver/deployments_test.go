package apiserver_test

import (
	"maps"
	"net/http"
	"strings"
	"testing"
)

// program is a deployment with two nodes that could run it, each with a caller of its own and a lease in epoch 1.
type program struct {
	t      *testing.T
	s      *running
	admin  caller
	path   string
	name   string
	n1, n2 string
	as     map[string]caller
}

func newProgram(t *testing.T, spec object) *program {
	t.Helper()
	s := api(t)
	p := &program{t: t, s: s, admin: s.admin(t), name: fresh("program"), n1: fresh("n"), n2: fresh("n")}
	p.path = deployments + "/" + p.name
	p.as = map[string]caller{p.n1: s.node(t, p.n1), p.n2: s.node(t, p.n2)}
	for name := range p.as {
		p.admin.must(t, http.MethodPost, leases, nodeLease(name, "process of "+name, 1, 0))
		p.admin.must(t, http.MethodPost, nodes, nodeObject(name))
		p.admin.must(t, http.MethodPatch, nodes+"/"+name+"/status", object{"status": object{"epoch": 1, "held": object{"deployments": 0}}})
	}
	whole := object{"command": "/bin/true"}
	maps.Copy(whole, spec)
	p.admin.must(t, http.MethodPost, deployments, ebb("Deployment", p.name).with("spec", whole))
	return p
}

// mark calls a node lost.
func (p *program) mark(node string, epoch int) {
	p.t.Helper()
	p.admin.must(p.t, http.MethodPut, leases+"/node-"+node, p.lease(nodeLease(node, "", epoch, epoch)))
}

// rejoins begins a node's next epoch.
func (p *program) rejoins(node string, epoch, fenced int) {
	p.t.Helper()
	p.admin.must(p.t, http.MethodPut, leases+"/node-"+node, p.lease(nodeLease(node, "next process of "+node, epoch, fenced)))
}

func (p *program) lease(l object) object {
	p.t.Helper()
	name := l["metadata"].(object)["name"].(string)
	have := p.admin.must(p.t, http.MethodGet, leases+"/"+name, nil).object(p.t)
	l["metadata"].(object)["resourceVersion"] = have["metadata"].(map[string]any)["resourceVersion"]
	return l
}

// put replaces the object as who, changed from how it is now.
func (p *program) put(who caller, sub string, change func(o object)) answer {
	p.t.Helper()
	o := p.admin.must(p.t, http.MethodGet, p.path, nil).object(p.t)
	change(o)
	return who.do(p.t, http.MethodPut, p.path+sub, o)
}

func (p *program) must(a answer) {
	p.t.Helper()
	if a.code != http.StatusOK {
		p.t.Fatal(a)
	}
}

// refused fails unless a write was refused in these words.
func (p *program) refused(a answer, words string) {
	p.t.Helper()
	if a.code != http.StatusForbidden || !strings.Contains(a.message(), words) {
		p.t.Errorf("got %s, want 403 with %q", a, words)
	}
}

func at(o object, path ...string) map[string]any {
	m := map[string]any(o)
	for _, key := range path {
		next, ok := m[key].(map[string]any)
		if !ok {
			next = map[string]any{}
			m[key] = next
		}
		m = next
	}
	return m
}

func claims(node string) func(object) { return func(o object) { at(o, "spec")["address"] = node } }

// takes makes a node the holder.
func takes(node string, nodeEpoch, epoch int) func(object) {
	return func(o object) {
		at(o, "status")["holder"] = object{"node": node, "nodeEpoch": nodeEpoch, "epoch": epoch}
	}
}

func givesBack(epoch int) func(object) {
	return func(o object) { at(o, "status")["holder"] = object{"epoch": epoch} }
}

// tells adds or replaces a node's instance.
func tells(node string, epoch int, state string) func(object) {
	return func(o object) {
		status := at(o, "status")
		list, _ := status["nodes"].([]any)
		var next []any
		for _, i := range list {
			if i.(map[string]any)["node"] != node {
				next = append(next, i)
			}
		}
		status["nodes"] = append(next, object{"node": node, "nodeEpoch": epoch, "state": state})
	}
}

func forgets(node string) func(object) {
	return func(o object) {
		status := at(o, "status")
		var next []any
		for _, i := range status["nodes"].([]any) {
			if i.(map[string]any)["node"] != node {
				next = append(next, i)
			}
		}
		status["nodes"] = next
	}
}

func both(changes ...func(object)) func(object) {
	return func(o object) {
		for _, c := range changes {
			c(o)
		}
	}
}

func TestANodeClaimsForItselfOnly(t *testing.T) {
	t.Parallel()
	p := newProgram(t, nil)
	n1 := p.as[p.n1]
	p.refused(p.put(n1, "", claims(p.n2)), "node "+p.n1+" may claim a deployment only for itself, not for \""+p.n2+"\"")
	p.must(p.put(n1, "", claims(p.n1)))
	p.refused(p.put(n1, "", claims("")), "may claim a deployment only for itself")
	p.must(p.put(p.as[p.n2], "", claims(p.n2))) // it was drained, or lost
	p.must(p.put(p.admin, "", claims("anybody")))
	p.refused(n1.do(t, http.MethodPatch, p.path, object{"spec": object{"address": p.n2}}), "only for itself")
	p.must(n1.do(t, http.MethodPatch, p.path, object{"spec": object{"address": p.n1}}))
}

func TestANodeChangesNothingOfADeploymentButItsAddress(t *testing.T) {
	t.Parallel()
	p := newProgram(t, nil)
	n1 := p.as[p.n1]
	for field, value := range map[string]any{
		"command": "/bin/false", "args": []any{"x"}, "env": []any{object{"name": "A", "value": "b"}}, "workingDir": "/tmp",
		"enabled": false, "type": "daemon", "priority": 7, "selector": object{"matchLabels": object{"a": "b"}},
		"restart": object{"limit": 3}, "stop": object{"grace": "1s"}, "rollout": object{"maxUnavailable": 2},
	} {
		change := func(o object) { at(o, "spec")[field] = value }
		p.refused(p.put(n1, "", change), "may change only the address in a deployment's spec")
		p.refused(p.put(n1, "", both(claims(p.n1), change)), "may change only the address in a deployment's spec")
		p.refused(n1.do(t, http.MethodPatch, p.path, object{"spec": object{field: value}}), "may change only the address in a deployment's spec")
	}
}

func TestANodeDoesNotMakeOrRemoveDeployments(t *testing.T) {
	t.Parallel()
	p := newProgram(t, nil)
	n1 := p.as[p.n1]
	for what, a := range map[string]answer{
		"create":            n1.do(t, http.MethodPost, deployments, ebb("Deployment", fresh("program")).with("spec", object{"command": "/bin/true"})),
		"delete":            n1.do(t, http.MethodDelete, p.path, nil),
		"delete collection": n1.do(t, http.MethodDelete, deployments+"?fieldSelector=metadata.name="+p.name, nil),
		"create by apply": n1.saying("Content-Type", "application/apply-patch+yaml").do(t, http.MethodPatch,
			deployments+"/"+fresh("program")+"?fieldManager=node", ebb("Deployment", fresh("program")).with("spec", object{"command": "/bin/true"})),
	} {
		if a.code != http.StatusForbidden && a.code != http.StatusBadRequest {
			t.Errorf("%s: %s, want 403", what, a)
		}
	}
	p.admin.must(t, http.MethodGet, p.path, nil)
}

func TestANodePutsOnlyOurFinalizerOnADeployment(t *testing.T) {
	t.Parallel()
	p := newProgram(t, nil)
	n1 := p.as[p.n1]
	finalizers := func(list ...any) func(object) {
		return func(o object) { at(o, "metadata")["finalizers"] = list }
	}
	owner := object{"apiVersion": "ebb.dev/v1alpha1", "kind": "Node", "name": "n", "uid": "u"}
	p.refused(p.put(n1, "", finalizers("example.com/mine")), "may only add the finalizer ebb.dev/deployment to a deployment; it may not change other finalizers or owner references")
	p.refused(p.put(n1, "", func(o object) { at(o, "metadata")["ownerReferences"] = []any{owner} }), "it may not change other finalizers or owner references")
	p.must(p.put(p.admin, "", finalizers("example.com/theirs")))
	p.must(p.put(n1, "", finalizers("example.com/theirs", "ebb.dev/deployment")))
	// Nobody but the coordinator knows when nothing is left anywhere.
	p.refused(p.put(n1, "", finalizers("example.com/theirs")), "finalizers")
	p.refused(p.put(n1, "", finalizers("ebb.dev/deployment")), "finalizers")
	p.must(p.put(p.admin, "", finalizers()))
}

func TestTheHolderIsTakenFromNobodyOrFromAnEpochThatIsOver(t *testing.T) {
	t.Parallel()
	p := newProgram(t, nil)
	n1, n2 := p.as[p.n1], p.as[p.n2]
	p.refused(p.put(n1, "/status", takes(p.n1, 1, 1)), "may not become the holder of a deployment that is addressed to \"\"")
	p.must(p.put(n1, "", claims(p.n1)))
	p.refused(p.put(n1, "/status", takes(p.n2, 1, 1)), "may make only itself the holder of a deployment, and release only its own hold")
	p.refused(p.put(n1, "/status", takes(p.n1, 2, 1)), "may not write for epoch 2: its lease is in epoch 1")
	p.must(p.put(n1, "/status", takes(p.n1, 1, 1)))

	p.must(p.put(n2, "", claims(p.n2)))
	p.refused(p.put(n2, "/status", takes(p.n2, 1, 2)), "node "+p.n1+" holds the deployment and still holds its lease")
	p.refused(p.put(n2, "/status", givesBack(1)), "may make only itself the holder of a deployment, and release only its own hold; the holder was \""+p.n1+"\"")
	p.must(p.put(n1, "/status", givesBack(1)))
	p.must(p.put(n2, "/status", takes(p.n2, 1, 2)))

	p.must(p.put(n1, "", claims(p.n1)))
	p.refused(p.put(n1, "/status", takes(p.n1, 1, 3)), "node "+p.n2+" holds the deployment and still holds its lease")
	p.mark(p.n2, 1)
	p.must(p.put(n1, "/status", takes(p.n1, 1, 3)))
	// The lost one wakes up: its epoch is over.
	p.must(p.put(p.admin, "", claims(p.n2)))
	p.must(p.put(n1, "/status", givesBack(3)))
	p.refused(p.put(n2, "/status", takes(p.n2, 1, 4)), "may not write for epoch 1: its lease is in epoch 1, fenced up to 1")
	p.rejoins(p.n2, 2, 1)
	p.refused(p.put(n2, "/status", takes(p.n2, 1, 4)), "may not write for epoch 1: its lease is in epoch 2")
	p.must(p.put(n2, "/status", takes(p.n2, 2, 4)))
}

func TestAHeldDeploymentIsNotTakenWithoutAGreaterEpochByAnyone(t *testing.T) {
	t.Parallel()
	p := newProgram(t, object{"address": "a"})
	invalid := func(a answer, words string) {
		t.Helper()
		if a.code != http.StatusUnprocessableEntity || !strings.Contains(a.message(), words) {
			t.Errorf("got %s, want 422 with %q", a, words)
		}
	}
	p.must(p.put(p.admin, "/status", takes("a", 1, 5)))
	invalid(p.put(p.admin, "/status", takes("b", 1, 5)), "a deployment's holder can change only with a greater epoch")
	invalid(p.put(p.admin, "/status", takes("a", 2, 5)), "a deployment's holder can change only with a greater epoch")
	invalid(p.put(p.admin, "/status", takes("b", 1, 4)), "cannot decrease")
	invalid(p.put(p.admin, "/status", givesBack(4)), "cannot decrease")
	invalid(p.put(p.admin, "/status", func(o object) { delete(at(o, "status"), "holder") }), "cannot be removed")
	invalid(p.put(p.admin, "/status", func(o object) { delete(o, "status") }), "cannot be removed")
	p.must(p.put(p.admin, "/status", givesBack(5)))
	invalid(p.put(p.admin, "/status", takes("a", 1, 5)), "a deployment's holder can change only with a greater epoch")
	p.must(p.put(p.admin, "/status", takes("b", 1, 6)))
}

func TestADaemonHasNoHolder(t *testing.T) {
	t.Parallel()
	p := newProgram(t, object{"type": "daemon"})
	n1 := p.as[p.n1]
	p.must(p.put(p.admin, "", claims(p.n1)))
	p.refused(p.put(n1, "/status", takes(p.n1, 1, 1)), "may not become the holder of a deployment")
	p.must(p.put(n1, "/status", tells(p.n1, 1, "Running")))
}

func TestANodeSpeaksForItsOwnInstanceOnly(t *testing.T) {
	t.Parallel()
	p := newProgram(t, object{"type": "daemon"})
	n1, n2 := p.as[p.n1], p.as[p.n2]
	p.must(p.put(n1, "/status", tells(p.n1, 1, "Running")))
	p.must(p.put(n2, "/status", tells(p.n2, 1, "Running")))
	p.refused(p.put(n1, "/status", tells(p.n2, 1, "Failed")), "node "+p.n1+" may not write the instance of node "+p.n2)
	p.refused(p.put(n1, "/status", tells("n-other", 1, "Running")), "may not write the instance of node n-other")
	p.refused(p.put(n1, "/status", forgets(p.n2)), "node "+p.n2+" may run the program and still holds its lease")
	apply := n1.saying("Content-Type", "application/apply-patch+yaml")
	saying := func(nodes ...string) answer {
		var list []object
		for _, node := range nodes {
			list = append(list, object{"node": node, "nodeEpoch": 1, "state": "Backoff"})
		}
		return apply.do(t, http.MethodPatch, p.path+"/status?fieldManager=ebb-node-"+p.n1+"&force=true",
			ebb("Deployment", p.name).with("status", object{"nodes": list}))
	}
	p.must(saying(p.n1))
	p.refused(saying(p.n1, p.n2), "may not write the instance of node "+p.n2)
	p.mark(p.n2, 1)
	p.must(p.put(n1, "/status", forgets(p.n2)))
	p.must(p.put(n1, "/status", forgets(p.n1)))
}

func TestANodeDoesNotSpeakInAnEpochThatIsOver(t *testing.T) {
	t.Parallel()
	p := newProgram(t, object{"type": "daemon"})
	n1 := p.as[p.n1]
	p.must(p.put(n1, "/status", tells(p.n1, 1, "Running")))
	p.mark(p.n1, 1)
	p.refused(p.put(n1, "/status", tells(p.n1, 1, "Failed")), "epoch")
	p.rejoins(p.n1, 2, 1)
	p.refused(p.put(n1, "/status", tells(p.n1, 1, "Failed")), "epoch")
	p.must(p.put(n1, "/status", tells(p.n1, 2, "Running")))
	p.must(p.put(n1, "/status", forgets(p.n1)))
}

// What was a daemon runs on several nodes; as a deployment nobody may take it before the others have ended.
func TestTheHolderIsNotTakenWhileAnotherNodesInstanceMayRun(t *testing.T) {
	t.Parallel()
	p := newProgram(t, object{"type": "daemon"})
	n1, n2 := p.as[p.n1], p.as[p.n2]
	p.must(p.put(n2, "/status", tells(p.n2, 1, "Running")))
	p.must(p.put(p.admin, "", both(claims(p.n1), func(o object) { at(o, "spec")["type"] = "deployment" })))
	p.refused(p.put(n1, "/status", takes(p.n1, 1, 1)), "node "+p.n2)
	p.must(p.put(n2, "/status", forgets(p.n2)))
	p.must(p.put(n1, "/status", takes(p.n1, 1, 1)))
}

func TestOneDeploymentsWriteIsOneOfTwo(t *testing.T) {
	t.Parallel()
	p := newProgram(t, nil)
	read := p.admin.must(t, http.MethodGet, p.path, nil).object(t)
	claims(p.n1)(read)
	p.must(p.as[p.n1].do(t, http.MethodPut, p.path, read))
	claims(p.n2)(read)
	if a := p.as[p.n2].do(t, http.MethodPut, p.path, read); a.code != http.StatusConflict {
		t.Errorf("a claim of what was claimed meanwhile: %s, want 409", a)
	}
}
