package apiserver_test

import (
	"net/http"
	"slices"
	"testing"
)

const (
	drainNode     = "a drain's nodeName cannot be changed: create another Drain for the other node"
	drainPark     = "a drain's park cannot be changed: cancel the drain and create another"
	drainVanishes = "a drain's phase cannot be removed"
	drainEnded    = "a drain that has ended cannot change: create another Drain"
	drainPending  = "a drain cannot return to Pending"
	drainStopping = "a drain cannot return from Stopping to Draining"
	drainEpoch    = "a drain's nodeEpoch cannot decrease or be removed"
	drainStarted  = "a drain's startedAt cannot be changed"
)

var phases = []string{"Pending", "Draining", "Stopping", "Complete", "Cancelled", "Failed"}

func TestADrainsPhaseOnlyMovesForward(t *testing.T) {
	allowed := map[string][]string{
		"Pending":  {"Draining", "Stopping", "Complete", "Cancelled", "Failed"},
		"Draining": {"Stopping", "Complete", "Cancelled", "Failed"},
		"Stopping": {"Complete", "Cancelled", "Failed"},
	}
	for _, from := range phases {
		for _, to := range phases {
			t.Run(from+" to "+to, func(t *testing.T) {
				var want []string
				if from != to && !slices.Contains(allowed[from], to) {
					if allowed[from] == nil {
						want = append(want, drainEnded)
					}
					if to == "Pending" {
						want = append(want, drainPending)
					}
					if from == "Stopping" && to == "Draining" {
						want = append(want, drainStopping)
					}
				}
				invalid(t, change(t, drains, drainObject(fresh("d")), object{"phase": from}, object{"phase": to}), want...)
			})
		}
	}
}

func TestADrainsRecordIsNotRewritten(t *testing.T) {
	const at, later = "2026-01-02T03:04:05Z", "2026-01-02T03:04:06Z"
	begun := object{"phase": "Draining", "nodeEpoch": 2, "startedAt": at}
	for _, c := range []struct {
		what     string
		from, to object
		want     []string
	}{
		{"progress", begun, begun.with("lastProgress", later).with("remaining", object{"volumes": 1}), nil},
		{"a start is recorded", object{"phase": "Pending"}, begun, nil},
		{"a newer epoch of the node", begun, begun.with("nodeEpoch", 3), nil},
		{"an end", begun, begun.with("phase", "Complete").with("finishedAt", later), nil},
		{"counts after the end", begun.with("phase", "Failed"), begun.with("phase", "Failed").with("remaining", object{"volumes": 0}), nil},
		{"no status", begun, nil, []string{drainVanishes, drainEpoch, drainStarted}},
		{"an empty status", begun, object{}, []string{drainVanishes, drainEpoch, drainStarted}},
		{"no phase", begun, begun.with("phase", nil), []string{drainVanishes}},
		{"no phase after the end", begun.with("phase", "Complete"), begun.with("phase", nil), []string{drainVanishes}},
		{"no epoch", begun, begun.with("nodeEpoch", nil), []string{drainEpoch}},
		{"an older epoch", begun, begun.with("nodeEpoch", 1), []string{drainEpoch}},
		{"another start", begun, begun.with("startedAt", later), []string{drainStarted}},
		{"no start", begun, begun.with("startedAt", nil), []string{drainStarted}},
		{"an unknown phase", object{}, object{"phase": "Done"}, []string{`status.phase: Unsupported value: "Done": supported values: "Pending", "Draining", "Stopping", "Complete", "Cancelled", "Failed"`}},
	} {
		t.Run(c.what, func(t *testing.T) {
			invalid(t, change(t, drains, drainObject(fresh("d")), c.from, c.to), c.want...)
		})
	}
}

func TestADrainStaysWithItsNode(t *testing.T) {
	admin := api(t).admin(t)
	name := fresh("d")
	admin.must(t, http.MethodPost, drains, drainObject(name))
	path := drains + "/" + name
	invalid(t, admin.do(t, http.MethodPatch, path, object{"spec": object{"nodeName": "n8"}}), drainNode)
	invalid(t, admin.do(t, http.MethodPatch, path, object{"spec": object{"park": true}}), drainPark)
	invalid(t, admin.do(t, http.MethodPatch, path, object{"spec": object{"park": false}}))
	invalid(t, admin.do(t, http.MethodPatch, path, object{"spec": object{"nodeName": nil}}), "spec.nodeName: Required value")
	invalid(t, admin.do(t, http.MethodPatch, path, object{"spec": nil}), "spec: Required value")
	invalid(t, admin.do(t, http.MethodPatch, path, object{"spec": object{"reason": "a new kernel", "deadline": "10m"}}))
}

// noDuration is what the schema says of a text that is not a duration.
const noDuration = `Invalid value: "string": type conversion error from 'string' to 'google.protobuf.Duration' evaluating rule: must be a positive duration, such as 90s or 10m`

func TestADrainsWishIsChecked(t *testing.T) {
	admin := api(t).admin(t)
	for _, c := range []struct {
		what string
		spec object
		want []string
	}{
		{"a queued one", object{"nodeName": "n1", "whenBusy": "Queue"}, nil},
		{"a deadline", object{"nodeName": "n1", "deadline": "1h30m"}, nil},
		{"a deadline that is no duration", object{"nodeName": "n1", "deadline": "tomorrow"}, []string{"spec.deadline: " + noDuration}},
		{"a deadline in the past", object{"nodeName": "n1", "deadline": "-5m"}, []string{`spec.deadline: Invalid value: "-5m": must be a positive duration, such as 90s or 10m`}},
		{"a deadline without end", object{"nodeName": "n1", "deadline": "99999999999999999999h"}, []string{"spec.deadline: " + noDuration}},
		{"no node", object{}, []string{"spec.nodeName: Required value"}},
		{"an empty node", object{"nodeName": ""}, []string{`spec.nodeName: Invalid value: "": spec.nodeName in body should be at least 1 chars long`}},
		{"an unknown way to wait", object{"nodeName": "n1", "whenBusy": "Never"}, []string{`spec.whenBusy: Unsupported value: "Never": supported values: "Refuse", "Queue"`}},
	} {
		t.Run(c.what, func(t *testing.T) {
			invalid(t, admin.do(t, http.MethodPost, drains, ebb("Drain", fresh("d")).with("spec", c.spec)), c.want...)
		})
	}
	t.Run("by default it does not wait", func(t *testing.T) {
		spec := admin.must(t, http.MethodPost, drains, drainObject(fresh("d"))).object(t)["spec"].(map[string]any)
		if spec["whenBusy"] != "Refuse" {
			t.Errorf("whenBusy is %v", spec["whenBusy"])
		}
	})
}

func TestThereIsOneSettingsObject(t *testing.T) {
	admin := api(t).admin(t)
	invalid(t, admin.do(t, http.MethodPost, settings, ebb("Settings", "other")), "the only Settings object must be named cluster")
	const policies = `"block-if-contains-last-replica", "allow-if-replica-is-stopped", "always-allow", "block-for-eviction", "block-for-eviction-if-contains-last-replica"`
	invalid(t, admin.do(t, http.MethodPatch, settings+"/cluster", object{"spec": object{"nodeDrainPolicy": "whatever"}}),
		`spec.nodeDrainPolicy: Unsupported value: "whatever": supported values: `+policies)
	invalid(t, admin.do(t, http.MethodPatch, settings+"/cluster", object{"spec": object{"drain": object{"stalledAfter": "soon"}}}), "spec.drain.stalledAfter: "+noDuration)
	for text, want := range map[string]string{"soon": noDuration, "0s": `Invalid value: "0s": must be a positive duration, such as 90s or 10m`} {
		for _, field := range []string{"balanceAfter", "bootstrapTimeout"} {
			invalid(t, admin.do(t, http.MethodPatch, settings+"/cluster", object{"spec": object{"drain": object{field: text}}}), "spec.drain."+field+": "+want)
		}
	}
	const aMinute = `Invalid value: "59s": must be a duration of at least 1m, such as 12h`
	invalid(t, admin.do(t, http.MethodPatch, settings+"/cluster", object{"spec": object{"drain": object{"historyAge": "59s"}}}), "spec.drain.historyAge: "+aMinute)
	invalid(t, admin.do(t, http.MethodPatch, settings+"/cluster", object{"spec": object{"drain": object{"historyLimit": -1}}}),
		"spec.drain.historyLimit: Invalid value: -1: spec.drain.historyLimit in body should be greater than or equal to 0")
	slot := object{"name": "d", "uid": "u", "node": "n1", "nodeEpoch": 1}
	for _, field := range []string{"name", "uid", "node", "nodeEpoch"} {
		invalid(t, admin.do(t, http.MethodPatch, settings+"/cluster/status", object{"status": object{"activeDrain": slot.with(field, nil)}}),
			"status.activeDrain."+field+": Required value")
	}
	invalid(t, admin.do(t, http.MethodPatch, settings+"/cluster/status", object{"status": object{"activeDrain": slot}}))
	invalid(t, admin.do(t, http.MethodPatch, settings+"/cluster/status", object{"status": object{"activeDrain": nil}}))
}
