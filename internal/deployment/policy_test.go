package deployment

import (
	"maps"
	"testing"

	"github.com/ebb-dev/ebb/internal/access/policytest"
)

type fields = map[string]any

// stored is a deployment as a person wrote it and the API server filled it in.
func stored(change ...fields) fields {
	spec := fields{
		"type": "deployment", "command": "/bin/run", "args": []any{"a"}, "env": []any{fields{"name": "A", "value": ""}, fields{"name": "B", "value": "b"}},
		"priority": int64(0), "restart": fields{"backoff": "1s", "maxBackoff": "1m", "limit": int64(0)}, "stop": fields{"grace": "90s"}, "rollout": fields{"maxUnavailable": int64(1)},
	}
	for _, c := range change {
		maps.Copy(spec, c)
	}
	return fields{"metadata": fields{"name": "d", "finalizers": []any{"other/one"}}, "spec": spec, "status": fields{
		"holder": fields{"node": "n2", "nodeEpoch": int64(1), "epoch": int64(4)},
		"nodes":  []any{fields{"node": "n1", "state": "Running"}, fields{"node": "n2", "state": "Running"}},
	}}
}

// written is the same deployment as a node writes it.
func written(change ...fields) fields {
	o := stored(fields{
		"env": []any{fields{"name": "A"}, fields{"name": "B", "value": "b"}}, "restart": fields{"backoff": "1s", "maxBackoff": "1m0s"}, "stop": fields{"grace": "1m30s"},
	})
	delete(o["spec"].(fields), "priority")
	maps.Copy(o["spec"].(fields), merge(change))
	return o
}

func merge(list []fields) fields {
	all := fields{}
	for _, f := range list {
		maps.Copy(all, f)
	}
	return all
}

func TestThePolicyOfDeploymentsSaysWhatTheCheckSays(t *testing.T) {
	with := func(path string, value any) fields {
		o := written()
		switch path {
		case "finalizers":
			o["metadata"].(fields)["finalizers"] = value
		default:
			o["status"].(fields)[path] = value
		}
		return o
	}
	for _, c := range []struct {
		name   string
		next   fields
		status bool
		want   bool
	}{
		{"nothing", written(), false, true},
		{"its address", written(fields{"address": "n1"}), false, true},
		{"another's address", written(fields{"address": "n3"}), false, false},
		{"the command", written(fields{"address": "n1", "command": "/bin/sh"}), false, false},
		{"an argument", written(fields{"args": []any{"b"}}), false, false},
		{"a variable", written(fields{"env": []any{fields{"name": "A", "value": "x"}, fields{"name": "B", "value": "b"}}}), false, false},
		{"a variable taken away", written(fields{"env": []any{fields{"name": "A"}}}), false, false},
		{"the grace", written(fields{"stop": fields{"grace": "1m31s"}}), false, false},
		{"a limit", written(fields{"restart": fields{"backoff": "1s", "maxBackoff": "1m0s", "limit": int64(3)}}), false, false},
		{"a field that was not there", written(fields{"workingDir": "/tmp"}), false, false},
		{"the finalizer of Ebb", with("finalizers", []any{"other/one", "ebb.dev/deployment"}), false, true},
		{"a finalizer of somebody", with("finalizers", []any{"other/one", "other/two"}), false, false},
		{"a finalizer taken away", with("finalizers", []any{}), false, false},
		{"itself as the holder", with("holder", fields{"node": "n1", "nodeEpoch": int64(1), "epoch": int64(5)}), true, true},
		{"another as the holder", with("holder", fields{"node": "n3", "nodeEpoch": int64(1), "epoch": int64(5)}), true, false},
		{"the release of another's hold", with("holder", fields{"epoch": int64(4)}), true, false},
		{"its own instance", with("nodes", []any{fields{"node": "n1", "state": "Stopped"}, fields{"node": "n2", "state": "Running"}}), true, true},
		{"another's instance", with("nodes", []any{fields{"node": "n1", "state": "Running"}, fields{"node": "n2", "state": "Stopped"}}), true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := policytest.Holds(t, nodeWritePolicy, "n1", stored(), c.next, c.status); got != c.want {
				t.Errorf("the policy lets node n1 write it: %v, want %v", got, c.want)
			}
		})
	}
}
