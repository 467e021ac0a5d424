package store_test

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/ebb-dev/ebb/internal/volume/block"
	"github.com/ebb-dev/ebb/internal/volume/store"
)

func TestSmoke(t *testing.T) {
	ctx := context.Background()
	id := store.Identity{Volume: "ns/v", VolumeUID: "u", Replica: "v-1", Size: 5<<20 + 4096}
	dir := filepath.Join(t.TempDir(), "replicas", "ns-v-u", "v-1")
	if err := store.Create(store.OS{}, dir, id, "b"); err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(store.OS{}, dir, id, "b")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Commit(ctx, block.Membership{Generation: 1, Members: []string{"v-1", "v-2"}, Away: []string{"v-3"}}); err != nil {
		t.Fatal(err)
	}
	if err := s.WriteAt(ctx, 1, make([]byte, 4096), 2<<20, true); err != nil {
		t.Fatal(err)
	}
	if err := s.Zero(ctx, 1, 3<<20, 4096, block.Zero{}); err != nil {
		t.Fatal(err)
	}
	t.Log(s.Intent(ctx, 1))
	t.Log(s.Missed(ctx, 1, "v-3"))
	t.Log(s.Extents(ctx, 1, 0, id.Size))
	t.Log(s.State())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	t.Log(store.Inspect(store.OS{}, dir))
	if err := store.Remove(store.OS{}, dir); err != nil {
		t.Fatal(err)
	}
}
