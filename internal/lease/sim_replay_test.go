package lease_test

import (
	"encoding/json"
	"testing"

	"github.com/ebb-dev/ebb/internal/simtest"
)

// A run takes about eight thousand events.
var limits = simtest.Limits{Steps: 500_000}

// replayed is a run as text: of a plan, or of an outage.
type replayed struct {
	Plan   *plan   `json:",omitempty"`
	Outage *outage `json:",omitempty"`
}

func encode(r replayed) string {
	data, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	return string(data)
}

func TestReplay(t *testing.T) {
	simtest.Replay(t, func(t *testing.T, text string) {
		var r replayed
		if err := json.Unmarshal([]byte(text), &r); err != nil || (r.Plan == nil) == (r.Outage == nil) {
			t.Fatalf("%s is neither a plan nor an outage: %v", text, err)
		}
		if r.Plan != nil {
			if verdict := play(*r.Plan, broken{}).Verdict(); verdict != "" {
				t.Error(verdict)
			}
			return
		}
		if breaches, _ := r.Outage.breaches(r.Outage.play(broken{})); len(breaches) > 0 {
			t.Errorf("%v", breaches)
		}
	})
}
