package main

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
)

func TestWhatALogHasAtEachLevel(t *testing.T) {
	levels := []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError}
	for _, c := range []struct{ level, own, libraries string }{
		{"debug", "DEBUG INFO WARN ERROR", "INFO WARN ERROR"},
		{"info", "INFO WARN ERROR", "WARN ERROR"},
		{"warn", "WARN ERROR", "WARN ERROR"},
		{"error", "ERROR", "ERROR"},
	} {
		f := newLogFlags()
		if err := f.level.Set(c.level); err != nil {
			t.Fatal(err)
		}
		for want, least := range map[string]slog.Level{c.own: f.threshold(), c.libraries: f.libraries()} {
			var has []string
			for _, l := range levels {
				if f.handler(&bytes.Buffer{}, least).Enabled(context.Background(), l) {
					has = append(has, l.String())
				}
			}
			if got := strings.Join(has, " "); got != want {
				t.Errorf("--log-level %s: has %s, want %s", c.level, got, want)
			}
		}
	}
}

func TestALineOfALogInEachFormat(t *testing.T) {
	for format, want := range map[string]string{
		"text": "level=INFO msg=ready node=n1\n",
		"json": `{"level":"INFO","msg":"ready","node":"n1"}` + "\n",
	} {
		f := newLogFlags()
		if err := f.format.Set(format); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		r := slog.Record{Message: "ready"} // without a time
		r.AddAttrs(slog.String("node", "n1"))
		if err := f.handler(&out, f.threshold()).Handle(context.Background(), r); err != nil || out.String() != want {
			t.Errorf("%v, %q, want %q", err, out.String(), want)
		}
	}
}

func TestChildrenGetTheFlagsOfTheLogThatAreNotDefaults(t *testing.T) {
	for _, c := range []struct {
		format, level string
		want          []string
	}{
		{"text", "info", nil},
		{"json", "info", []string{"--log-format=json"}},
		{"text", "debug", []string{"--log-level=debug"}},
		{"json", "error", []string{"--log-format=json", "--log-level=error"}},
	} {
		f := newLogFlags()
		f.format.value, f.level.value = c.format, c.level
		if got := f.args(); !slices.Equal(got, c.want) {
			t.Errorf("%s, %s: %v, want %v", c.format, c.level, got, c.want)
		}
	}
}
