package apiserver_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// A time that the API accepts and Go cannot read would keep every coordinator from reading any object of the kind.
func TestATimeThatIsAcceptedCanBeRead(t *testing.T) {
	admin := api(t).admin(t)
	for text, accepted := range map[string]struct{ event, drain bool }{
		"2026-05-04T12:00:00Z":            {true, true},
		"2026-05-04T12:00:00+00:00":       {true, true},
		"2026-05-04T14:00:00-02:30":       {true, true},
		"2026-05-04T12:00:00.5Z":          {true, false}, // a Drain has whole seconds
		"2026-05-04T12:00:00.123456789Z":  {true, false},
		"2026-05-04T12:00:00.1234567890Z": {},
		"9999-12-31T23:59:59-01:00":       {true, true},
		"0000-01-01T00:00:00+01:00":       {true, true},
		"2026-05-04t12:00:00Z":            {},
		"2026-05-04T12:00:00z":            {},
		"2026-05-04T12:00:00x5Z":          {},
		"2026-05-04T12:00:00,5Z":          {},
		"2026-05-04T12:00:00+99:99":       {},
		"2026-05-04T12:00:00ZTomorrow":    {},
		"2026-05-04T12:00:60Z":            {},
		"2026-02-30T12:00:00Z":            {},
		"2026-05-04 12:00:00":             {},
		"":                                {},
	} {
		t.Run(text, func(t *testing.T) {
			for _, c := range []struct {
				path string
				o    object
				read any
				want bool
			}{
				{"/apis/ebb.dev/v1alpha1/healthevents", ebb("HealthEvent", fresh("e")).with("spec", object{"nodeName": "n9", "checkName": "c", "generatedTimestamp": text}), &v1alpha1.HealthEvent{}, accepted.event},
				{drains, ebb("Drain", fresh("d")).with("spec", object{"nodeName": "n9", "requestedAt": text}), &v1alpha1.Drain{}, accepted.drain},
			} {
				a := admin.do(t, http.MethodPost, c.path, c.o)
				if got := a.code/100 == 2; got != c.want {
					t.Errorf("%s: %s, want it accepted: %t", c.path, a, c.want)
				}
				if a.code/100 != 2 {
					continue
				}
				if err := json.Unmarshal(a.body, c.read); err != nil {
					t.Errorf("%s: accepted and not readable: %v", c.path, err)
				}
			}
		})
	}
}
