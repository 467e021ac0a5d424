package volume

import (
	"maps"
	"testing"

	"github.com/ebb-dev/ebb/internal/access/policytest"
)

func TestThePolicyOfVolumesLetsTheEngineWriteItsFields(t *testing.T) {
	type fields = map[string]any
	volume := func(change fields) fields {
		status := fields{"attachedTo": "n1", "generation": int64(4), "members": []any{"r1"}, "robustness": "healthy"}
		maps.Copy(status, change)
		return fields{"status": status}
	}
	for _, c := range []struct {
		name     string
		node     string
		old, new fields
		spec     bool
		want     bool
	}{
		{name: "nothing", node: "n1", want: true},
		{name: "members and generation", node: "n1", new: fields{"members": []any{"r1", "r2"}, "generation": int64(5), "engine": fields{"node": "n1"}}, want: true},
		{name: "by another node", node: "n2", new: fields{"generation": int64(5)}},
		{name: "where it is rebuilt", node: "n2", old: fields{"attachedTo": "", "rebuildOn": "n2"}, new: fields{"attachedTo": "", "rebuildOn": "n2", "generation": int64(5)}, want: true},
		{name: "an older generation", node: "n1", new: fields{"generation": int64(3)}},
		{name: "what the coordinator writes", node: "n1", new: fields{"robustness": "degraded"}},
		{name: "a field that was not there", node: "n1", new: fields{"released": []any{"r1"}}},
		{name: "where it is attached", node: "n1", new: fields{"attachedTo": "n2"}},
		{name: "the spec", node: "n1", spec: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := policytest.Holds(t, engineWritePolicy(), c.node, volume(c.old), volume(c.new), !c.spec); got != c.want {
				t.Errorf("the policy lets node %s write it: %v, want %v", c.node, got, c.want)
			}
		})
	}
}
