package v1alpha1

import (
	"encoding/json"
	"testing"
)

func TestATimestampReadsEveryFormOfRFC3339(t *testing.T) {
	for text, want := range map[string]string{
		"2026-05-04T12:00:00Z":            "2026-05-04T12:00:00.000000Z",
		"2026-05-04T12:00:00.5Z":          "2026-05-04T12:00:00.500000Z",
		"2026-05-04T12:00:00.123Z":        "2026-05-04T12:00:00.123000Z",
		"2026-05-04T12:00:00.123456Z":     "2026-05-04T12:00:00.123456Z",
		"2026-05-04T12:00:00.123456789Z":  "2026-05-04T12:00:00.123456Z",
		"2026-05-04T14:00:00.25+02:00":    "2026-05-04T12:00:00.250000Z",
		"2026-05-04t12:00:00z":            "",
		"yesterday":                       "",
		"2026-05-04T12:00:00.123456+0200": "",
	} {
		var read Timestamp
		err := json.Unmarshal([]byte(`"`+text+`"`), &read)
		if want == "" {
			if err == nil {
				t.Errorf("%s is read as %s", text, read)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if written, err := json.Marshal(read); err != nil || string(written) != `"`+want+`"` {
			t.Errorf("%s is written as %s, %v", text, written, err)
		}
	}
}
