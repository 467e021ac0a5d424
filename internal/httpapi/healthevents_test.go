package httpapi

import (
	"fmt"
	"strings"
	"testing"
)

func TestHealthEventsAreReadStrictly(t *testing.T) {
	const good = `{"id":"e1","nodeName":"n1","checkName":"c","isFatal":true,"generatedTimestamp":"2026-05-04T12:00:00.123456Z","recommendedAction":"RESTART_BM"}`
	for _, body := range []string{good, "[" + good + "]", " [" + good + "," + good + "]\n"} {
		if _, err := readEvents(strings.NewReader(body)); err != nil {
			t.Errorf("%s: %v", body, err)
		}
	}
	for body, want := range map[string]string{
		``:                                  "the body is neither a health event nor a list of them",
		`[]`:                                "the body has 0 events",
		`{"idd":"x"}`:                       `unknown field "idd"`,
		good + good:                         "something follows it",
		`{"nodeName":"n1","checkName":"c"}`: "event 1 (): id is missing",
		`[` + good + `,{"id":"e2","nodeName":"N_1","checkName":"c"}]`:                                     `no event was stored: event 2 (e2): nodeName: node name "N_1" is not a DNS subdomain`,
		`{"id":"e","nodeName":"n1","checkName":"c","recommendedAction":"PANIC"}`:                          `recommendedAction "PANIC" is unknown`,
		`{"id":"e","nodeName":"n1","checkName":"c","drainOverrides":{"force":true,"skip":true}}`:          "drainOverrides: force and skip exclude each other",
		`{"id":"e","nodeName":"n1","checkName":"c","generatedTimestamp":"yesterday"}`:                     "the body is neither a health event nor a list of them",
		fmt.Sprintf(`{"id":"e","nodeName":"n1","checkName":"c","message":%q}`, strings.Repeat("x", 8193)): "message is longer than 8192 characters",
	} {
		if _, err := readEvents(strings.NewReader(body)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: %v, want %s", body, err, want)
		}
	}
}
