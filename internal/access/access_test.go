package access_test

import (
	"context"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/ebb-dev/ebb/internal/access"
	"github.com/ebb-dev/ebb/internal/access/policytest"
	"github.com/ebb-dev/ebb/internal/lease"
)

type fields = map[string]any

func object(status fields) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: fields{"spec": fields{"node": "n1"}, "status": status}}
}

// leases: n1 and n4 hold epoch 3, n2 was fenced in epoch 3, n3 has released epoch 3.
func leases(_ context.Context, node string) (lease.Record, error) {
	return map[string]lease.Record{
		"n1": {Node: "n1", Holder: "p", Epoch: 3},
		"n2": {Node: "n2", Epoch: 3, Fenced: 3},
		"n3": {Node: "n3", Epoch: 3},
		"n4": {Node: "n4", Holder: "p", Epoch: 3},
	}[node], nil
}

func TestWhatANodeMayWrite(t *testing.T) {
	bound := &access.NodeWrites{
		Bindings: []access.Binding{{Node: "spec.node", Epoch: "status.nodeEpoch"}, {Node: "status.from.node", Epoch: "status.from.nodeEpoch"}},
		Fixed:    []string{"status.place"},
	}
	listed := &access.NodeWrites{Entries: "status.copies"}
	shared := &access.NodeWrites{Entries: "status.copies", Owned: []access.Owned{{Node: "spec.node", Paths: []string{"status.facts", "status.error"}}}}
	entry := func(node, text string) any { return fields{"node": node, "text": text} }
	for _, c := range []struct {
		name     string
		writes   *access.NodeWrites
		node     string
		old, new fields
		spec     bool // not only the status is written
		want     string
	}{
		{name: "its own", writes: bound, node: "n1", new: fields{"nodeEpoch": int64(3)}},
		{name: "more than the status", writes: bound, node: "n1", new: fields{"nodeEpoch": int64(3)}, spec: true, want: "node n1 may write the status of the object only"},
		{name: "in an epoch that has ended", writes: bound, node: "n1", new: fields{"nodeEpoch": int64(2)}, want: "node n1 may not write for epoch 2: its lease is in epoch 3, fenced up to 0"},
		{name: "without an epoch", writes: bound, node: "n1", new: fields{}, want: "node n1 may not write for epoch 0: its lease is in epoch 3, fenced up to 0"},
		{name: "another's", writes: bound, node: "n3", new: fields{"nodeEpoch": int64(3)}, want: "the object is not bound to node n3"},
		{name: "by a second binding", writes: bound, node: "n1", new: fields{"nodeEpoch": int64(2), "from": fields{"node": "n1", "nodeEpoch": int64(3)}}},
		{name: "by a second binding, when fenced", writes: bound, node: "n2", new: fields{"from": fields{"node": "n2", "nodeEpoch": int64(3)}}, want: "node n2 may not write for epoch 3: its lease is in epoch 3, fenced up to 3"},
		{name: "what is fixed", writes: bound, node: "n1", old: fields{"place": "a"}, new: fields{"nodeEpoch": int64(3), "place": "b"}, want: "node n1 may not change status.place"},
		{name: "what is fixed, by taking it away", writes: bound, node: "n1", old: fields{"place": "a"}, new: fields{"nodeEpoch": int64(3)}, want: "node n1 may not change status.place"},
		{name: "its own entry", writes: listed, node: "n1", old: fields{"copies": []any{entry("n2", "a")}}, new: fields{"copies": []any{entry("n2", "a"), entry("n1", "b")}}},
		{name: "its own entry, taken away", writes: listed, node: "n1", old: fields{"copies": []any{entry("n1", "a")}}, new: fields{}},
		{name: "another's entry", writes: listed, node: "n1", old: fields{"copies": []any{entry("n2", "a")}}, new: fields{"copies": []any{entry("n2", "b")}}, want: "node n1 may not write the entry of node n2 in status.copies"},
		{name: "another's entry, taken away", writes: listed, node: "n1", old: fields{"copies": []any{entry("n2", "a")}}, new: fields{}, want: "node n1 may not remove the entry of node n2 from status.copies"},
		{name: "another's entry, made", writes: listed, node: "n1", new: fields{"copies": []any{entry("n2", "a")}}, want: "node n1 may not write the entry of node n2 in status.copies"},
		{name: "its own entry, beside what another owns", writes: shared, node: "n4", old: fields{"facts": "a"}, new: fields{"facts": "a", "copies": []any{entry("n4", "a")}}},
		{name: "what it owns", writes: shared, node: "n1", old: fields{"error": "a"}, new: fields{"facts": "b"}},
		{name: "what it owns, for another", writes: shared, node: "n1", new: fields{"facts": "b", "copies": []any{entry("n4", "a")}}, want: "node n1 may not write the entry of node n4 in status.copies"},
		{name: "what another owns", writes: shared, node: "n4", new: fields{"error": "b"}, want: "node n4 may not change status.error: spec.node names n1"},
		{name: "what another owns, by taking it away", writes: shared, node: "n4", old: fields{"facts": "a"}, new: fields{}, want: "node n4 may not change status.facts: spec.node names n1"},
		{name: "its own entry, without a lease", writes: listed, node: "n3", new: fields{"copies": []any{entry("n3", "a")}}, want: "node n3 holds no lease: epoch 3 has ended"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ""
			if err := c.writes.Judge(t.Context(), access.Write{Node: c.node, Old: object(c.old), New: object(c.new), Status: !c.spec, Lease: leases}); err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			// A policy of Kubernetes says the same, except that it cannot see leases.
			allowed := c.want == "" || strings.Contains(c.want, "epoch")
			if got := policytest.Holds(t, c.writes.Rules(), c.node, object(c.old).Object, object(c.new).Object, !c.spec); got != allowed {
				t.Errorf("the rules hold: %v, want %v", got, allowed)
			}
		})
	}
}
