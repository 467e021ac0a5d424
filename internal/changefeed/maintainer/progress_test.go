package maintainer

import (
	"log/slog"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

func TestHowFarAMaintainerHasCome(t *testing.T) {
	at := time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)
	before := metav1.NewTime(at.Add(-time.Minute))
	for _, c := range []struct {
		name   string
		change func(*Maintainer)
		at     time.Time
		works  bool
	}{
		{"it has moved the checkpoint", func(*Maintainer) {}, at, true},
		{"it has not moved the checkpoint yet", func(m *Maintainer) { m.at = time.Time{} }, before.Time, true},
		{"the time of the checkpoint is not known", func(m *Maintainer) { m.at, m.Latest().Status.CheckpointTime = time.Time{}, nil }, time.Time{}, true},
		{"it works for no placement", func(m *Maintainer) { m.epoch = 0 }, at, false},
	} {
		cf := &v1alpha1.Changefeed{}
		cf.Status.CheckpointTime = &before
		m := New(Options{Log: slog.New(slog.DiscardHandler)}, cf)
		m.epoch, m.at = 3, at
		m.tables = map[stream.Table]*table{{Schema: "s", Name: "a"}: {}, {Schema: "s", Name: "b"}: {}}
		c.change(m)
		got, works := m.Progress()
		if want := (Progress{Tables: 2, At: c.at}); got != want || works != c.works {
			t.Errorf("%s: got %+v, %v, want %+v, %v", c.name, got, works, want, c.works)
		}
	}
}
