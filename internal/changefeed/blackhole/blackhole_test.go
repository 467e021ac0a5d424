package blackhole_test

import (
	"context"
	"sync"
	"testing"

	"github.com/ebb-dev/ebb/internal/changefeed/blackhole"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

func TestABlackholeCountsWhatItGets(t *testing.T) {
	s := blackhole.New()
	ctx := context.Background()
	if err := s.Check(ctx); err != nil {
		t.Error(err)
	}
	table := stream.Table{Schema: "s", Name: "t"}
	rows := []*stream.Rows{{Table: table, Changes: make([]stream.Change, 2)}, {Table: table, Changes: make([]stream.Change, 3)}}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			w, at, err := s.Acquire(ctx, table.Since(0), stream.Epoch{Placement: 1, Counter: int64(i)}, 17)
			if err != nil || at != 17 {
				t.Errorf("acquired at %d, %v", at, err)
				return
			}
			for range 100 {
				if err := w.Write(ctx, rows, 20); err != nil {
					t.Error(err)
				}
			}
			if err := w.Write(ctx, nil, 21); err != nil {
				t.Error(err)
			}
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := s.ExecuteDDL(ctx, 22, &stream.DDL{Kind: stream.DropTable, Tables: []stream.Table{table}}, stream.Epoch{}); err != nil {
		t.Error(err)
	}
	if s.Rows() != 2000 {
		t.Errorf("it counted %d", s.Rows())
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
