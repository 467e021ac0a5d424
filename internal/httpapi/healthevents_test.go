package httpapi

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ebb-dev/ebb/internal/health"
)

func TestHealthEventsAreReadStrictly(t *testing.T) {
	const good = `{"id":"e1","nodeName":"n1","checkName":"c","isFatal":true,"generatedTimestamp":"2026-05-04T12:00:00.123456Z","recommendedAction":"RESTART_BM"}`
	for _, body := range []string{good, "[" + good + "]", " [" + good + "," + good + "]\n"} {
		if _, err := readEvents(strings.NewReader(body)); err != nil {
			t.Errorf("%s: %v", body, err)
		}
	}
	for body, want := range map[string]string{
		``:                  "the body is neither a health event nor a list of them",
		`[]`:                "the body has 0 events",
		`{"idd":"x"}`:       `unknown field "idd"`,
		good + good:         "something follows it",
		good + "}":          "something follows it",
		"[" + good + "]]":   "something follows it",
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
