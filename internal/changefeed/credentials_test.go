package changefeed_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed"
	"github.com/ebb-dev/ebb/internal/changefeed/dispatch"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestAPasswordIsReadFromAFileInTheDirectoryAndNowhereElse(t *testing.T) {
	outside := t.TempDir()
	write(t, filepath.Join(outside, "shadow"), "secret of the machine")
	dir := filepath.Join(outside, "credentials")
	if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "db"), "  pass word \r\n\n")
	write(t, filepath.Join(dir, "sub", "inner"), "inner")
	write(t, filepath.Join(dir, ".hidden"), "hidden")
	write(t, filepath.Join(dir, "empty"), "\n")
	for name, target := range map[string]string{
		"inside": "db", "up": "../shadow", "absolute": filepath.Join(outside, "shadow"), "roundabout": "../credentials/db", "subdir": "sub", "nothing": "not-there",
	} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../..", filepath.Join(dir, "sub", "out")); err != nil {
		t.Fatal(err)
	}
	o := changefeed.Opener{Credentials: dir}
	for name, want := range map[string]string{"": "", "db": "  pass word ", "inside": "  pass word ", "empty": ""} {
		if got, err := o.Password(name); err != nil || got != want {
			t.Errorf("%q is %q, %v", name, got, err)
		}
	}
	for _, name := range []string{
		"../shadow", "..", ".", "/etc/passwd", filepath.Join(outside, "shadow"), "sub/inner", "sub/../db", "./db", ".hidden", "db/", "sub", "up", "absolute",
		"roundabout", "subdir", "nothing", "not-there", "sub/out/shadow", "db\x00", "..\\shadow",
	} {
		if got, err := o.Password(name); err == nil {
			t.Errorf("%q was read: %q", name, got)
		} else if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "pass word") {
			t.Errorf("%q: the error contains the secret: %v", name, err)
		}
	}
	if _, err := (changefeed.Opener{}).Password("db"); message(err) != `password file "db": this node has no directory for it: start the node with --credentials-dir` {
		t.Errorf("without a directory: %v", err)
	}
	if got, err := (changefeed.Opener{}).Password(""); err != nil || got != "" {
		t.Errorf("without either: %q, %v", got, err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestInvalidSourcesAndSinksAreUnusable(t *testing.T) {
	o := changefeed.Opener{}
	for _, source := range []string{"", "datagen://?tables=x", "datagen://?tables=0", "datagen://?colour=red", "ftp://host", "://", "datagen://?rate=-1"} {
		if s, err := o.Source(dispatch.Config{Source: source}); !errors.Is(err, stream.ErrUnusable) {
			t.Errorf("source %q: %v, %v", source, s, err)
		}
	}
	for _, sink := range []string{"", "ftp://host", "://", "file://here", "file:///there?size=1"} {
		if s, err := o.Sink(dispatch.FeedKey{}, dispatch.Config{Sink: sink}); !errors.Is(err, stream.ErrUnusable) {
			t.Errorf("sink %q: %v, %v", sink, s, err)
		}
	}
	if _, err := o.Source(dispatch.Config{Source: "datagen://?tables=3"}); err != nil {
		t.Error(err)
	}
	if _, err := o.Sink(dispatch.FeedKey{}, dispatch.Config{Sink: "blackhole://"}); err != nil {
		t.Error(err)
	}
}

func TestValidateReturnsTheSameErrorEveryTime(t *testing.T) {
	spec := func(source, sink, start string, filter ...string) *v1alpha1.ChangefeedSpec {
		return &v1alpha1.ChangefeedSpec{Source: source, Sink: sink, StartPosition: start, Filter: filter}
	}
	if err := changefeed.Validate(spec("datagen://?tables=2", "blackhole://", "0-1-5", "a.*")); err != nil {
		t.Errorf("a good one: %v", err)
	}
	if err := changefeed.Validate(spec("mysql://u@h:3306?tls=true", "mysql://u@[::1]:3306/?tls-ca=ca.crt", "")); err != nil {
		t.Errorf("one with TLS: %v", err)
	}
	if err := changefeed.Validate(spec("datagen://", "file:///data/out?maxBytes=1048576", "")); err != nil {
		t.Errorf("one with files: %v", err)
	}
	for name, bad := range map[string]*v1alpha1.ChangefeedSpec{
		"a password":  spec("datagen://u:secret@h", "blackhole://", ""),
		"two schemes": spec("ftp://a", "ftp://b", ""),
		"a filter":    spec("datagen://", "blackhole://", "", "nonsense"),
		"a position":  spec("datagen://", "blackhole://", "nonsense"),
		"a directory": spec("datagen://", "file://here", ""),
		"no port":     spec("mysql://u@h", "blackhole://", ""),
		"nobody":      spec("mysql://h:3306", "blackhole://", ""),
		"a schema":    spec("mysql://u@h:3306/app", "blackhole://", ""),
		"an option":   spec("mysql://u@h:3306?tls=skip-verify", "blackhole://", ""),
	} {
		first := message(changefeed.Validate(bad))
		if first == "" {
			t.Errorf("%s: nothing is wrong", name)
		}
		if strings.Contains(first, "secret") {
			t.Errorf("%s: %s", name, first)
		}
		for range 50 {
			if again := message(changefeed.Validate(bad)); again != first {
				t.Errorf("%s: once %q, once %q", name, first, again)
				break
			}
		}
	}
}
