package shellword_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/ebb-dev/ebb/internal/shellword"
)

func TestAShellReadsWhatWasQuoted(t *testing.T) {
	words := []string{"ebb", "--data-dir=/tmp/my data", "", "it's", `"`, "$HOME", "a;b&c|d", "*", "`id`", `back\slash`, "two\nlines", "~", "ähre", "#x"}
	out, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", `for w in `+shellword.Join(words...)+`; do printf '%s\0' "$w"; done`).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"); !slices.Equal(got, words) {
		t.Errorf("a shell reads %q, want %q", got, words)
	}
}

func TestPlainWordsStayAsTheyAre(t *testing.T) {
	if got, want := shellword.Join("ebb", "node", "--data-dir", "/var/lib/ebb-1.2_3", "--log-format=json"), "ebb node --data-dir /var/lib/ebb-1.2_3 --log-format=json"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
