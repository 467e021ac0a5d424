package manifests

import (
	"strings"
	"testing"

	"github.com/ebb-dev/ebb/internal/access/policytest"
	"github.com/ebb-dev/ebb/internal/lease"
)

type fields = map[string]any

func TestANodeWritesItsOwnLeaseHoweverLongItsName(t *testing.T) {
	long := strings.Repeat("a", 230) + "." + strings.Repeat("b", 22)
	twin := long[:252] + "c"
	of := func(node string) fields {
		return fields{"metadata": fields{"name": lease.NameOf(node), "annotations": fields{lease.NodeAnnotation: node}}}
	}
	for _, c := range []struct {
		what             string
		node, name, verb string
		before, after    fields
		want             bool
	}{
		{"its own", "n1", "node-n1", "UPDATE", of("n1"), of("n1"), true},
		{"another's", "n1", "node-n2", "UPDATE", of("n2"), of("n2"), false},
		{"its own, which it creates", long, lease.NameOf(long), "CREATE", nil, of(long), true},
		{"its own, with a long name", long, lease.NameOf(long), "UPDATE", of(long), of(long), true},
		{"that of a node with a short name", long, "node-n1", "UPDATE", of("n1"), of(long), false},
		{"that of a node with a short name, which it creates", long, "node-n1", "CREATE", nil, of(long), false},
		{"that of a node with almost the same name", long, lease.NameOf(twin), "UPDATE", of(twin), of(long), false},
		{"that of a node with almost the same name, as it is", long, lease.NameOf(twin), "UPDATE", of(twin), of(twin), false},
		{"a name of its own that is not the one of its Lease", long, "node-" + strings.Repeat("x", 230) + "-0123456789abcdef", "CREATE", nil, of(long), false},
	} {
		got := policytest.Allows(t, leaseRules(), policytest.Request{Node: c.node, Name: c.name, Operation: c.verb, Before: c.before, After: c.after})
		if got != c.want {
			t.Errorf("%s: allowed %t", c.what, got)
		}
	}
}

func TestOfACoreNodeEbbWritesItsOwnAnnotationsOnly(t *testing.T) {
	node := func(annotations fields) fields {
		return fields{"metadata": fields{"name": "n1", "annotations": annotations}, "spec": fields{}}
	}
	other := fields{"other/a": "1"}
	for _, c := range []struct {
		what          string
		before, after fields
		want          bool
	}{
		{"nothing changes", node(other), node(other), true},
		{"there are none", fields{"metadata": fields{}, "spec": fields{}}, fields{"metadata": fields{}, "spec": fields{}}, true},
		{"one of its own is added", node(other), node(fields{"other/a": "1", "ebb.dev/cordon-owners": "x"}), true},
		{"one of its own is the first", fields{"metadata": fields{}, "spec": fields{}}, node(fields{"ebb.dev/cordon-owners": "x"}), true},
		{"one of its own is removed", node(fields{"other/a": "1", "ebb.dev/cordon-owners": "x"}), node(other), true},
		{"another is added", node(other), node(fields{"other/a": "1", "other/b": "1"}), false},
		{"another is changed", node(other), node(fields{"other/a": "2"}), false},
		{"another is removed", node(other), node(fields{}), false},
		{"all are removed", node(other), fields{"metadata": fields{}, "spec": fields{}}, false},
	} {
		if got := policytest.Allows(t, coreNodeRules(), policytest.Request{Node: "n1", Name: "n1", Before: c.before, After: c.after}); got != c.want {
			t.Errorf("%s: allowed %t", c.what, got)
		}
	}
}

func TestAddressesOfPodsMayBeOfIPv6(t *testing.T) {
	data, err := encode(workloads(Options{Image: "ebb:1"}))
	if err != nil {
		t.Fatal(err)
	}
	if bare := strings.ReplaceAll(string(data), "[$(POD_IP)]:", ""); strings.Contains(bare, "$(POD_IP)") || !strings.Contains(string(data), "--listen=[$(POD_IP)]:7600") {
		t.Errorf("an address of a pod is not in brackets:\n%s", data)
	}
}
