package httpapi

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/health"
)

// Every field that detectors send, by the name that it has in JSON.
func TestEveryFieldOfAHealthEventIsRead(t *testing.T) {
	const body = `{"version": 1, "agent": "syslog", "componentClass": "GPU", "checkName": "GpuXidError", "isFatal": true, "isHealthy": false, "message": "it broke",
		"recommendedAction": "RESTART_BM", "errorCode": ["79", "48"], "entitiesImpacted": [{"entityType": "GPU", "entityValue": "0"}], "metadata": {"zone": "a"},
		"generatedTimestamp": "2026-05-04T14:00:00.5+02:00", "nodeName": "n1", "quarantineOverrides": {"force": true, "skip": false},
		"drainOverrides": {"force": false, "skip": true}, "id": "e1"}`
	want := []v1alpha1.HealthEventSpec{{
		Version: 1, Agent: "syslog", ComponentClass: "GPU", CheckName: "GpuXidError", IsFatal: true, Message: "it broke", RecommendedAction: "RESTART_BM",
		ErrorCode: []string{"79", "48"}, EntitiesImpacted: []v1alpha1.Entity{{EntityType: "GPU", EntityValue: "0"}}, Metadata: map[string]string{"zone": "a"},
		GeneratedTimestamp: v1alpha1.NewTimestamp(time.Date(2026, 5, 4, 12, 0, 0, 500_000_000, time.UTC)), NodeName: "n1",
		QuarantineOverrides: &v1alpha1.Overrides{Force: true}, DrainOverrides: &v1alpha1.Overrides{Skip: true}, ID: "e1",
	}}
	got, err := readEvents(strings.NewReader(body))
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for _, action := range []v1alpha1.RecommendedAction{
		"NONE", "COMPONENT_RESET", "CONTACT_SUPPORT", "RUN_FIELDDIAG", "RESTART_VM", "RESTART_BM", "REPLACE_VM", "RUN_DCGMEUD", "CUSTOM", "UNKNOWN",
	} {
		if _, err := readEvents(strings.NewReader(strings.Replace(body, "RESTART_BM", string(action), 1))); err != nil {
			t.Errorf("action %s: %v", action, err)
		}
	}
}

func TestHealthEventsAreReadStrictly(t *testing.T) {
	const good = `{"id":"e1","nodeName":"n1","checkName":"c","isFatal":true,"generatedTimestamp":"2026-05-04T12:00:00.123456Z","recommendedAction":"RESTART_BM"}`
	for _, body := range []string{good, "[" + good + "]", " [" + good + "," + good + "]\n"} {
		if _, err := readEvents(strings.NewReader(body)); err != nil {
			t.Errorf("%s: %v", body, err)
		}
	}
	for body, want := range map[string]string{
		``:                "the body is neither a health event nor a list of them",
		`[]`:              "the body has 0 events",
		`{"idd":"x"}`:     `unknown field "idd"`,
		good + good:       "after top-level value",
		good + "}":        "after top-level value",
		"[" + good + "]]": "after top-level value",
		`{"id":"e","nodeName":"n1","checkName":"c","isfatal":true}`:                    `unknown field "isfatal"`,
		`[` + good + `,{"id":"e","nodeName":"n1","checkName":"c","id":"f"}]`:           `duplicate field "[1].id"`,
		`{"id":"e","nodeName":"n1","checkName":"c","metadata":{"a":"1","a":"2"}}`:      `duplicate field "metadata.a"`,
		`{"id":"e","nodeName":"n1","checkName":"c","entitiesImpacted":[{"Type":"G"}]}`: `unknown field "entitiesImpacted[0].Type"`,
		"null":              "no event was stored: event 1 (): checkName is missing; id is missing",
		"[null]":            "no event was stored: event 1 (): checkName is missing; id is missing",
		"{\"id\":\"\xff\"}": "the body is not UTF-8",
		"[" + good + "," + good + "," + strings.Replace(good, "RESTART_BM", "NONE", 1) + "]":              "no event was stored: event 3 (e1): event 2 has the same id and another content",
		`{"nodeName":"n1","checkName":"c"}`:                                                               "event 1 (): id is missing",
		`[` + good + `,{"id":"e2","nodeName":"N_1","checkName":"c"}]`:                                     `no event was stored: event 2 (e2): nodeName: node name "N_1" is not a DNS subdomain`,
		`{"id":"e","nodeName":"n1","checkName":"c","recommendedAction":"PANIC"}`:                          `recommendedAction "PANIC" is unknown`,
		`{"id":"e","nodeName":"n1","checkName":"c","drainOverrides":{"force":true,"skip":true}}`:          "drainOverrides: force and skip exclude each other",
		`{"id":"e","nodeName":"n1","checkName":"c","generatedTimestamp":"yesterday"}`:                     "the body is neither a health event nor a list of them",
		`{"id":"e","nodeName":"n1","checkName":"c","generatedTimestamp":"9999-12-31T23:59:59-01:00"}`:     "generatedTimestamp is in the year 10000 of UTC",
		fmt.Sprintf(`{"id":"e","nodeName":"n1","checkName":"c","message":%q}`, strings.Repeat("x", 8193)): "message is longer than 8192 characters",
	} {
		if _, err := readEvents(strings.NewReader(body)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: %v, want %s", body, err, want)
		}
	}
}

func TestTheAnswerSaysWhichEventsAreNotStored(t *testing.T) {
	created, existing := health.Received{ID: "a", Result: health.Created}, health.Received{ID: "b", Result: health.Existing}
	conflict, dropped := health.Received{ID: "c", Result: health.Conflicting}, health.Received{ID: "d", Result: health.Dropped, Reason: "full"}
	var many []health.Received
	for i := range 25 {
		many = append(many, health.Received{ID: fmt.Sprintf("m%d", i), Result: health.Conflicting})
	}
	for _, tc := range []struct {
		received []health.Received
		code     int
		want     any
	}{
		{[]health.Received{created, existing}, http.StatusAccepted, EventsReceived{Events: []health.Received{created, existing}}},
		{[]health.Received{created, conflict}, http.StatusConflict, Error{CodeEventConflict, "1 of 2 events have the id of another event: c. All others are stored."}},
		{[]health.Received{dropped, created}, http.StatusTooManyRequests, Error{CodeTooManyEvents, "1 of 2 events were not stored, because there are too many: d (full). All others are stored."}},
		{[]health.Received{dropped, created, conflict}, http.StatusConflict, Error{CodeEventConflict, "1 of 3 events have the id of another event: c. 1 of 3 events were not stored, because there are too many: d (full). All others are stored."}},
		{many, http.StatusConflict, Error{CodeEventConflict, "25 of 25 events have the id of another event: m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, and 15 more. All others are stored."}},
	} {
		code, answer := answerTo(tc.received)
		if diff := cmp.Diff(tc.want, answer); code != tc.code || diff != "" {
			t.Errorf("%d (-want %d, +got):\n%s", code, tc.code, diff)
		}
	}
}
