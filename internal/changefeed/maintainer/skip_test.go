package maintainer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// logged is a source that has the transactions 0-1-1 to 0-1-100.
type logged struct{ stream.Source }

func (logged) Head(context.Context) (stream.Position, error) { return 100, nil }

func (logged) HasTransaction(_ context.Context, id string) error {
	if !strings.HasPrefix(id, "0-1-") {
		return fmt.Errorf("the server does not have GTID %s: %w", id, stream.ErrUnusable)
	}
	return nil
}

func TestSkipsAreCheckedWhenTheyComeIntoEffect(t *testing.T) {
	for _, c := range []struct {
		name   string
		spec   []string
		status []v1alpha1.ChangefeedSkip
		filter *v1alpha1.ChangefeedFilter
		in     string // those in effect
		want   string
	}{
		{name: "none"},
		{name: "a new changefeed", spec: []string{"0-1-60"}, in: "0-1-60"},
		{name: "added while it was stopped", spec: []string{"0-1-60", "0-1-70"}, filter: &v1alpha1.ChangefeedFilter{Stopped: true}, in: "0-1-60 0-1-70"},
		{name: "added while it runs", spec: []string{"0-1-60"}, filter: &v1alpha1.ChangefeedFilter{}},
		{name: "removed while it runs", status: []v1alpha1.ChangefeedSkip{{GTID: "0-1-60"}}, filter: &v1alpha1.ChangefeedFilter{}, in: "0-1-60"},
		{name: "before the checkpoint", spec: []string{"0-1-50"}, in: "0-1-50", want: "spec.skip: GTID 0-1-50 is not after the checkpoint 50, so it has been replicated already"},
		{name: "passed before", spec: []string{"0-1-40"}, status: []v1alpha1.ChangefeedSkip{{GTID: "0-1-40"}}, filter: &v1alpha1.ChangefeedFilter{Stopped: true}, in: "0-1-40"},
		{name: "not there yet", spec: []string{"0-1-101"}, in: "0-1-101", want: "spec.skip: GTID 0-1-101 is after the newest transaction of the source, which is 100"},
		{name: "of another server", spec: []string{"0-2-60"}, in: "0-2-60", want: "spec.skip: GTID 0-2-60 is not in the log of the source"},
	} {
		cf := &v1alpha1.Changefeed{}
		cf.Spec.Skip, cf.Status.Skip, cf.Status.Filter = c.spec, c.status, c.filter
		m := New(Options{Log: slog.New(slog.DiscardHandler)}, cf)
		m.checkpoint = 50
		m.decideSkips()
		if got := strings.Join(m.skips, " "); got != c.in {
			t.Errorf("%s: %s are in effect, want %s", c.name, got, c.in)
		}
		err := m.checkSkips(t.Context(), logged{})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want) || !errors.Is(err, stream.ErrUnusable)) {
			t.Errorf("%s: %v\nwant %s", c.name, err, c.want)
		}
	}
}

func TestAPositionToStartAtIsCheckedFirst(t *testing.T) {
	for _, c := range []struct {
		from, want string
		at         stream.Position
	}{
		{from: "0-1-60", at: 60},
		{from: "60", at: 60},
		{from: "", at: 100},
		{from: "0-1-101", want: "spec.startPosition: GTID 0-1-101 is after the newest transaction of the source"},
		{from: "0-2-60", want: "spec.startPosition: GTID 0-2-60 is not in the log of the source"},
	} {
		cf := &v1alpha1.Changefeed{}
		cf.Spec.StartPosition = c.from
		at, err := New(Options{Log: slog.New(slog.DiscardHandler)}, cf).start(t.Context(), logged{})
		if at != c.at || c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want) || !errors.Is(err, stream.ErrUnusable)) {
			t.Errorf("%q: %d, %v\nwant %d, %s", c.from, at, err, c.at, c.want)
		}
	}
}

func TestASkipIsPassedWithTheCheckpoint(t *testing.T) {
	m := New(Options{Log: slog.New(slog.DiscardHandler)}, &v1alpha1.Changefeed{})
	m.skips = []string{"0-1-60", "0-1-70"}
	s := &v1alpha1.ChangefeedStatus{}
	for _, c := range []struct {
		checkpoint int64
		want       string
	}{{59, "- -"}, {60, "passed -"}, {69, "passed -"}, {70, "passed passed"}} {
		s.Checkpoint = c.checkpoint
		before := s.DeepCopy().Skip
		m.fillSkips(s)
		var got []string
		for i, skip := range s.Skip {
			word := "-"
			if skip.PassedAt != nil {
				word = "passed"
			}
			got = append(got, word)
			if i < len(before) && before[i].PassedAt != nil && !before[i].PassedAt.Equal(skip.PassedAt) {
				t.Errorf("%s is passed a second time", skip.GTID)
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("at %d: %v, want %s", c.checkpoint, got, c.want)
		}
	}
}

func TestAPositionToResumeFromIsCheckedFirst(t *testing.T) {
	began := int64(3)
	for _, c := range []struct {
		name, from string
		change     func(*v1alpha1.Changefeed)
		want       string
	}{
		{name: "none"},
		{name: "done", from: "0-1-60", change: func(cf *v1alpha1.Changefeed) { cf.Status.ResumedFrom = &v1alpha1.ChangefeedResume{GTID: "0-1-60"} }},
		{name: "set while it runs", from: "0-1-60", change: func(cf *v1alpha1.Changefeed) { cf.Status.Filter.Stopped = false }},
		{name: "before it began", from: "0-1-60", change: func(cf *v1alpha1.Changefeed) { cf.Status.StartPosition = nil }, want: "spec.resumeFrom: the changefeed has not begun; use spec.startPosition"},
		{name: "during the initial copy", from: "0-1-60", change: func(cf *v1alpha1.Changefeed) { cf.Spec.Snapshot = &v1alpha1.ChangefeedSnapshot{} }, want: "spec.resumeFrom: the initial copy is not finished"},
		{name: "back", from: "0-1-50", want: "spec.resumeFrom: GTID 0-1-50 is not after the checkpoint 50, and what is at the sink already cannot be written again"},
		{name: "not there yet", from: "0-1-101", want: "spec.resumeFrom: GTID 0-1-101 is after the newest transaction of the source"},
		{name: "of another server", from: "0-2-60", want: "spec.resumeFrom: GTID 0-2-60 is not in the log of the source"},
	} {
		cf := &v1alpha1.Changefeed{}
		cf.Spec.ResumeFrom, cf.Status.Filter, cf.Status.StartPosition = c.from, &v1alpha1.ChangefeedFilter{Stopped: true}, &began
		if c.change != nil {
			c.change(cf)
		}
		m := New(Options{Log: slog.New(slog.DiscardHandler)}, cf)
		m.checkpoint = 50
		err := m.resumeFrom(t.Context(), logged{})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want) || !errors.Is(err, stream.ErrUnusable)) || m.checkpoint != 50 || m.resumed != nil {
			t.Errorf("%s: %v\nwant %s", c.name, err, c.want)
		}
	}
}
