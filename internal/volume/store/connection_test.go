package store_test

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/ebb-dev/ebb/internal/volume/block"
	"github.com/ebb-dev/ebb/internal/volume/store"
)

// An engine that lost a connection opens the replica over another one with the same generation. What the first one still brings is refused.
func TestOnlyTheConnectionThatOpenedLastMayUseTheReplica(t *testing.T) {
	dir, id := filepath.Join(t.TempDir(), "r"), store.Identity{Volume: "default/v", VolumeUID: "uid", Replica: "r", Size: block.ChunkSize}
	if err := store.Create(store.OS{}, dir, id, "boot"); err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(store.OS{}, dir, id, "boot")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	ctx, p := t.Context(), make([]byte, 512)
	calls := func(r block.Replica, generation int64) map[string]error {
		_, extents := r.Extents(ctx, generation, 0, 512)
		_, intent := r.Intent(ctx, generation)
		_, _, missed := r.Missed(ctx, generation, "other", 0)
		return map[string]error{
			"read": r.ReadAt(ctx, generation, p, 0), "write": r.WriteAt(ctx, generation, p, 0, false), "zero": r.Zero(ctx, generation, 0, 512, block.Zero{}),
			"flush": r.Flush(ctx, generation), "extents": extents, "intent": intent, "missed": missed, "clear": r.Clear(ctx, generation, nil),
			"ping": r.Ping(ctx, generation), "commit": r.Commit(ctx, block.Membership{Generation: generation, Members: []string{"r"}}),
		}
	}
	first, second := s.Connect(), s.Connect()
	want := func(what string, got map[string]error, want error) {
		t.Helper()
		for call, err := range got {
			if !errors.Is(err, want) {
				t.Errorf("%s: %s: %v, want %v", what, call, err, want)
			}
		}
	}
	want("before it opened", calls(first, 0), block.ErrUnreachable)
	if _, err := first.Open(ctx, 3); err != nil {
		t.Fatal(err)
	}
	want("opened", calls(first, 3), nil)
	if _, err := second.Open(ctx, 2); !errors.Is(err, block.ErrStale) {
		t.Fatal(err)
	}
	want("after another one was refused", calls(first, 3), nil)
	if _, err := second.Open(ctx, 3); err != nil {
		t.Fatal(err)
	}
	want("the second", calls(second, 3), nil)
	want("the first, after the second", calls(first, 3), block.ErrUnreachable)
	if _, err := second.Open(ctx, 4); err != nil {
		t.Fatal(err)
	}
	want("the first, after a newer generation", calls(first, 3), block.ErrStale)
	if err := errors.Join(first.Close(), s.Ping(ctx, 4)); err != nil {
		t.Errorf("closing a connection closes the replica: %v", err)
	}
}
