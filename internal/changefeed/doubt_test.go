package changefeed

import (
	"strings"
	"testing"

	"github.com/ebb-dev/ebb/internal/changefeed/dispatch"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// A file sink cannot fence an earlier owner; the node's lease does.
func TestANodeWritesNoFilesWhileItsLeaseIsInDoubt(t *testing.T) {
	h := newMeasured()
	h.opts.Opener.Files = t.TempDir()
	sink, err := h.opts.Opener.Sink(dispatch.FeedKey{Namespace: "default", Name: "demo", UID: "1"}, dispatch.Config{Sink: "file://" + h.opts.Opener.Files})
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	acquire := func() error {
		_, _, err := sink.Acquire(t.Context(), stream.Table{Schema: "s", Name: "t"}.Since(0), stream.Epoch{Placement: 1, Counter: 1}, 0)
		return err
	}
	holding := false
	for _, c := range []struct {
		name    string
		change  func()
		refused bool
	}{
		{"no epoch yet", func() {}, true},
		{"in doubt", func() { h.holding = func() bool { return holding } }, true},
		{"holding", func() { holding = true }, false},
		{"the epoch is over", func() { h.holding = nil }, true},
	} {
		c.change()
		if err := acquire(); (err != nil) != c.refused || c.refused && !strings.Contains(err.Error(), "in doubt") {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestFilesAreWrittenBelowTheNodesDirectoryOnly(t *testing.T) {
	root := t.TempDir()
	for dir, ok := range map[string]bool{
		root: true, root + "/feed": true, root + "/a/../b": true, root + "/..": false, root + "/../other": false, "/etc": false, root + "x": false,
	} {
		if err := (Opener{Files: root}).below(dir); (err == nil) != ok {
			t.Errorf("%s: %v", dir, err)
		}
	}
	if err := (Opener{}).below(root); err == nil {
		t.Error("a node without a directory for files writes some")
	}
}
