package filesink_test

import (
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/changefeed/datagen"
	"github.com/ebb-dev/ebb/internal/changefeed/dispatch"
	"github.com/ebb-dev/ebb/internal/changefeed/filesink"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// carrier is a node's data path, from a made-up source of one table to the files of a site.
func (s *site) carrier() *dispatch.Engine {
	return dispatch.New(dispatch.Options{
		OpenSource: func(dispatch.Config) (stream.Source, error) {
			u, err := url.Parse("datagen://?tables=1&rate=2000")
			if err != nil {
				return nil, err
			}
			return datagen.Parse(u)
		},
		OpenSink: func(dispatch.FeedKey, dispatch.Config) (stream.Sink, error) {
			return filesink.Open(filesink.Options{Directory: s.dir, Changefeed: "default/demo/1", MaxBytes: 4096}), nil
		},
		Enter: func() (func(), error) { return func() {}, nil }, Memory: 1 << 20,
	})
}

// A table that moves from node to node leaves every position in its files, each once.
func TestATableThatMovesLosesNothingAndDoublesNothing(t *testing.T) {
	s := newSite(t)
	key, table := dispatch.FeedKey{Namespace: "default", Name: "demo", UID: "1"}, stream.Table{Schema: "datagen", Name: "t0"}
	source, _ := datagen.Parse(&url.URL{Scheme: "datagen", RawQuery: "tables=1&rate=2000"})
	start, err := source.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	at := start
	for i := range int64(5) {
		e := s.carrier()
		order := dispatch.Order{Table: table, Epoch: epoch(i + 1), Position: at}
		if failed := e.Start(t.Context(), key, i+1, dispatch.Config{Workers: 1, BatchRows: 50}, []dispatch.Order{order}); len(failed) > 0 {
			t.Fatal(failed)
		}
		for until := time.Now().Add(time.Minute); e.Report(key).Rows < 100; time.Sleep(time.Millisecond) {
			if time.Now().After(until) {
				t.Fatalf("%+v", e.Report(key))
			}
		}
		stopped, failed := e.Stop(t.Context(), key, i+1, []dispatch.Order{order})
		if len(failed) > 0 {
			t.Fatal(failed)
		}
		at = stopped[table]
		if err := e.Close(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	files, next := s.files("datagen.t0"), start+1
	for _, name := range slices.Sorted(maps.Keys(files)) {
		for text := range strings.Lines(files[name]) {
			var line struct{ Position stream.Position }
			if err := json.Unmarshal([]byte(text), &line); err != nil || line.Position != next {
				t.Fatalf("%s: position %d, want %d: %v", name, line.Position, next, err)
			}
			next++
		}
	}
	if next <= start+500 || next <= at {
		t.Errorf("the files end at %d, the last owner at %d", next-1, at)
	}
}
