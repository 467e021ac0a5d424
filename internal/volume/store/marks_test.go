package store_test

import (
	"path/filepath"
	"testing"

	"github.com/ebb-dev/ebb/internal/volume/block"
	"github.com/ebb-dev/ebb/internal/volume/store"
)

// A replica that comes back and is built with what it missed remembers what it gets meanwhile: the only member may have it not. One that is built from
// nothing is built from nothing again.
func TestAReplicaThatIsBuiltMarksWhatItGetsBesideAnOnlyMember(t *testing.T) {
	for name, c := range map[string]struct {
		membership block.Membership
		marked     bool
	}{
		"with what it missed": {block.Membership{Generation: 1, Members: []string{"other"}}, true},
		"from nothing":        {block.Membership{Generation: 1, Members: []string{"other"}, Syncing: true}, false},
		"the only member":     {block.Membership{Generation: 1, Members: []string{"r"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir, id := filepath.Join(t.TempDir(), "r"), store.Identity{Volume: "default/v", VolumeUID: "uid", Replica: "r", Size: block.ChunkSize}
			if err := store.Create(store.OS{}, dir, id, "boot"); err != nil {
				t.Fatal(err)
			}
			s, err := store.Open(store.OS{}, dir, id, "boot")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			if err := s.Commit(t.Context(), c.membership); err != nil {
				t.Fatal(err)
			}
			if err := s.WriteAt(t.Context(), 1, make([]byte, 512), 0, false); err != nil {
				t.Fatal(err)
			}
			if got, err := s.Intent(t.Context(), 1); err != nil || got.Has(0) != c.marked {
				t.Errorf("marked: %v, %v", got.Has(0), err)
			}
		})
	}
}
