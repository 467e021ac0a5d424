package shim

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAShimComplainsInTheFormatOfItsNode(t *testing.T) {
	for _, format := range []string{"", "text", "json"} {
		t.Run("format "+format, func(t *testing.T) {
			f := newFixture(t)
			s := f.shell("exit 0")
			s.Command, s.ShimLogFormat = "/no/such/program", format
			if _, err := Start(f.ctx(), f.exe, f.dir, s); !errors.Is(err, ErrStartFailed) {
				t.Fatalf("Start: %v", err)
			}
			text, err := os.ReadFile(filepath.Join(f.dir, shimLogName))
			if err != nil {
				t.Fatal(err)
			}
			var line struct{ Time, Level, Msg string }
			err = json.Unmarshal(text, &line)
			if format != "json" {
				if err == nil || !strings.HasPrefix(string(text), "ebb shim "+f.dir+": ") {
					t.Errorf("%q", text)
				}
				return
			}
			if err != nil || line.Level != "ERROR" || line.Time == "" || !strings.HasPrefix(line.Msg, "ebb shim "+f.dir+": ") {
				t.Errorf("%v: %q", err, text)
			}
		})
	}
}
