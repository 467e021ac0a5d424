package apiserver_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// invalid checks that the schema refused a request, and with which words; no words mean that it was accepted.
func invalid(t *testing.T, a answer, want ...string) {
	t.Helper()
	if len(want) == 0 {
		if a.code/100 != 2 {
			t.Errorf("got %s, want it accepted", a)
		}
		return
	}
	got := reasons(t, a)
	slices.Sort(want)
	if a.code != http.StatusUnprocessableEntity || !slices.Equal(got, want) {
		t.Errorf("got %d\n%s\nwant 422\n%s", a.code, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// reasons are the words of the rules at the root, and with its field whatever was wrong with a field. The server's
// remark that further rules were not looked at is not one.
func reasons(t *testing.T, a answer) []string {
	t.Helper()
	var s metav1.Status
	if err := json.Unmarshal(a.body, &s); err != nil {
		t.Fatalf("%v in %s", err, a)
	}
	var all []string
	if s.Details != nil {
		for _, c := range s.Details.Causes {
			if !strings.Contains(c.Message, "some validation rules were not checked") {
				all = append(all, strings.TrimPrefix(c.Field+": "+c.Message, "<nil>: Invalid value: "))
			}
		}
	}
	slices.Sort(all)
	return all
}

// change puts an object into one status and asks for another, which is nil where the status is to vanish.
func change(t *testing.T, collection string, o, from, to object) answer {
	t.Helper()
	admin := api(t).admin(t)
	path := collection + "/" + o["metadata"].(object)["name"].(string)
	have := admin.must(t, http.MethodPost, collection, o).object(t)
	if len(from) > 0 {
		have = admin.must(t, http.MethodPut, path+"/status", have.with("status", from)).object(t)
	}
	next := have.with("status", nil)
	if to != nil {
		next = have.with("status", to)
	}
	return admin.do(t, http.MethodPut, path+"/status", next)
}

const (
	nodeEpoch    = "a node's epoch cannot decrease or be removed"
	nodeVanishes = "a node's liveness cannot be removed"
	nodeForward  = "a node's liveness only moves forward within an epoch: Alive, Draining, Stopping"
)

var livenesses = []string{"Alive", "Draining", "Stopping"}

func TestANodesLivenessOnlyMovesForwardWithinAnEpoch(t *testing.T) {
	for _, epochs := range []struct {
		what     string
		from, to int
		free     bool // every liveness may follow every other
	}{
		{"the same epoch", 2, 2, false},
		{"no epoch yet", 0, 0, false},
		{"the next epoch", 2, 3, true},
		{"a first epoch", 0, 1, true},
	} {
		for i, from := range livenesses {
			for j, to := range livenesses {
				t.Run(epochs.what+"/"+from+" to "+to, func(t *testing.T) {
					var want []string
					if j < i && !epochs.free {
						want = []string{nodeForward}
					}
					invalid(t, change(t, nodes, nodeObject(fresh("n")), lively(from, epochs.from), lively(to, epochs.to)), want...)
				})
			}
		}
	}
}

func lively(liveness string, epoch int) object {
	o := object{"liveness": liveness}
	if epoch > 0 {
		o["epoch"] = epoch
	}
	return o
}

func TestANodesEpochNeverGoesBackwardsAndItsStatusNeverVanishes(t *testing.T) {
	alive := lively("Alive", 2)
	for _, c := range []struct {
		what     string
		from, to object
		want     []string
	}{
		{"an epoch grows", alive, lively("Alive", 7), nil},
		{"an older epoch", alive, lively("Alive", 1), []string{nodeEpoch}},
		{"an older epoch and liveness", lively("Stopping", 2), lively("Alive", 1), []string{nodeEpoch, nodeForward}},
		{"epoch 0", alive, lively("Alive", 1).with("epoch", 0), []string{nodeEpoch}},
		{"no status", alive, nil, []string{nodeEpoch, nodeVanishes}},
		{"an empty status", alive, object{}, []string{nodeEpoch, nodeVanishes}},
		{"no epoch", alive, lively("Alive", 0), []string{nodeEpoch}},
		{"no epoch and another liveness", alive, lively("Stopping", 0), []string{nodeEpoch}},
		{"no liveness", alive, object{"epoch": 2}, []string{nodeVanishes}},
		{"no liveness in the next epoch", alive, object{"epoch": 3}, []string{nodeVanishes}},
		{"an epoch alone vanishes", object{"epoch": 2}, object{}, []string{nodeEpoch}},
		{"a negative epoch", object{}, object{"epoch": -1}, []string{"status.epoch: Invalid value: -1: epoch in body should be greater than or equal to 0"}},
		{"an unknown liveness", object{}, object{"liveness": "Dead"}, []string{`status.liveness: Unsupported value: "Dead": supported values: "Alive", "Draining", "Stopping"`}},
		{"an empty liveness", object{}, object{"liveness": ""}, []string{`status.liveness: Unsupported value: "": supported values: "Alive", "Draining", "Stopping"`}},
	} {
		t.Run(c.what, func(t *testing.T) {
			invalid(t, change(t, nodes, nodeObject(fresh("n")), c.from, c.to), c.want...)
		})
	}
}

func TestAStatusIsNotLostThroughTheObjectItself(t *testing.T) {
	admin := api(t).admin(t)
	name := fresh("n")
	path := nodes + "/" + name
	invalid(t, change(t, nodes, nodeObject(name), lively("Alive", 2), lively("Draining", 2)))
	have := admin.must(t, http.MethodGet, path, nil).object(t)
	admin.must(t, http.MethodPut, path, have.with("status", nil))
	admin.must(t, http.MethodPatch, path, object{"status": object{"epoch": 1, "liveness": "Alive"}})
	status := admin.must(t, http.MethodGet, path, nil).object(t)["status"].(map[string]any)
	if status["epoch"] != 2.0 || status["liveness"] != "Draining" {
		t.Errorf("the status became %v", status)
	}
	for what, patch := range map[string]object{"status": {"status": nil}, "all of it": {"status": object{"epoch": nil, "liveness": nil}}} {
		t.Run("patched away: "+what, func(t *testing.T) {
			invalid(t, admin.do(t, http.MethodPatch, path+"/status", patch), nodeEpoch, nodeVanishes)
		})
	}
}

func TestANodesNameIsADNSSubdomainToTheAPIAndToOurselves(t *testing.T) {
	admin := api(t).admin(t)
	for _, name := range []string{strings.Repeat("a", 254), "N1", "-a", "a-", "a_b", "a..b", ".a", "a.", "a.-b", "ä"} {
		a := admin.do(t, http.MethodPost, nodes, nodeObject(name))
		if a.code != http.StatusUnprocessableEntity || !strings.Contains(a.String(), "metadata.name") {
			t.Errorf("%s: %s", name, a)
		}
		if v1alpha1.ValidateNodeName(name) == nil {
			t.Errorf("%s: refused by the API and not by ValidateNodeName", name)
		}
	}
	for _, name := range []string{"0", "a", "n-1", "ip-10-0-0-1.ec2.internal", strings.Repeat("a", 253)} {
		replace(t, admin, nodes, nodeObject(name))
		if err := v1alpha1.ValidateNodeName(name); err != nil {
			t.Errorf("accepted by the API: %v", err)
		}
	}
}

func TestWhatACoordinatorWantsOfANodeIsChecked(t *testing.T) {
	admin := api(t).admin(t)
	desired := object{"liveness": "Draining", "epoch": 1, "drainUID": "u"}
	for _, c := range []struct {
		what    string
		desired object
		want    []string
	}{
		{"draining", desired, nil},
		{"stopping", desired.with("liveness", "Stopping"), nil},
		{"alive", desired.with("liveness", "Alive"), []string{"spec.desired.liveness: Invalid value: \"Alive\": a node can be asked to become Draining or Stopping; it is Alive again only in a new epoch"}},
		{"no epoch", desired.with("epoch", nil), []string{"spec.desired.epoch: Required value"}},
		{"epoch 0", desired.with("epoch", 0), []string{"spec.desired.epoch: Invalid value: 0: spec.desired.epoch in body should be greater than or equal to 1"}},
		{"no drain", desired.with("drainUID", nil), []string{"spec.desired.drainUID: Required value"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			invalid(t, admin.do(t, http.MethodPost, nodes, nodeObject(fresh("n")).with("spec", object{"desired": c.desired})), c.want...)
		})
	}
}
