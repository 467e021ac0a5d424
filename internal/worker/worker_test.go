package worker_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/worker"
)

func version(uid, number string) *corev1.ConfigMap {
	o := &corev1.ConfigMap{}
	o.UID, o.ResourceVersion = types.UID(uid), number
	return o
}

func TestAWorkerNeverGoesBackToAnOlderVersion(t *testing.T) {
	w := worker.New[*corev1.ConfigMap]()
	if o, deleted := w.Newest(); o != nil || deleted {
		t.Errorf("before anything was seen: %v, %v", o, deleted)
	}
	for _, c := range []struct {
		uid, number, want string
	}{
		{"1", "9", "1/9"}, {"1", "10", "1/10"}, {"1", "9", "1/10"}, {"1", "100", "1/100"},
		{"2", "101", "2/101"}, {"1", "100", "2/101"}, {"1", "102", "2/101"}, // the first one was replaced
		{"3", "5", "3/5"}, // the numbers begin anew when the API server lost its data
		{"3", "unknown", "3/unknown"}, {"3", "4", "3/4"},
	} {
		w.See(version(c.uid, c.number))
		o, deleted := w.Newest()
		if got := string(o.UID) + "/" + o.ResourceVersion; got != c.want || deleted {
			t.Errorf("after %s/%s: %s, deleted %v, want %s", c.uid, c.number, got, deleted, c.want)
		}
	}
}

func TestOnlyTheNewestObjectCountsAsDeleted(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(*worker.Worker[*corev1.ConfigMap])
		want bool
	}{
		"it was deleted": {func(w *worker.Worker[*corev1.ConfigMap]) { w.See(version("1", "1")); w.Delete("1") }, true},
		"a late version does not bring it back": {func(w *worker.Worker[*corev1.ConfigMap]) {
			w.See(version("1", "1"))
			w.Delete("1")
			w.See(version("1", "2"))
		}, true},
		"its deletion was seen first": {func(w *worker.Worker[*corev1.ConfigMap]) { w.Delete("1"); w.See(version("1", "1")) }, true},
		"it was made anew": {func(w *worker.Worker[*corev1.ConfigMap]) {
			w.See(version("1", "1"))
			w.Delete("1")
			w.See(version("2", "3"))
		}, false},
		"the deletion is of one that it has replaced": {func(w *worker.Worker[*corev1.ConfigMap]) {
			w.See(version("1", "1"))
			w.See(version("2", "3"))
			w.Delete("1")
		}, false},
		"it has no UID": {func(w *worker.Worker[*corev1.ConfigMap]) { w.See(version("", "1")) }, false},
	} {
		w := worker.New[*corev1.ConfigMap]()
		if c.do(w); !w.Woken() {
			t.Errorf("%s: the loop was not woken", name)
		}
		if _, deleted := w.Newest(); deleted != c.want {
			t.Errorf("%s: deleted %v, want %v", name, deleted, c.want)
		}
	}
}

func TestALoopLooksAgainWhenItIsAskedTo(t *testing.T) {
	for name, c := range map[string]struct {
		next func(look int, closed <-chan struct{}) worker.Next
		wake time.Duration // when something else wakes it
		want []time.Duration
	}{
		"at once": {func(look int, _ <-chan struct{}) worker.Next { return worker.Next{Done: look == 3} }, 0, []time.Duration{0, 0, 0}},
		"later":   {func(look int, _ <-chan struct{}) worker.Next { return worker.Next{In: time.Second, Done: look == 3} }, 0, []time.Duration{0, time.Second, 2 * time.Second}},
		"when it is woken": {func(look int, _ <-chan struct{}) worker.Next { return worker.Next{In: worker.Forever, Done: look == 2} }, time.Minute,
			[]time.Duration{0, time.Minute}},
		"when a channel is closed": {func(look int, closed <-chan struct{}) worker.Next {
			return worker.Next{In: time.Hour, On: worker.On{nil, nil, nil, closed}, Done: look == 2}
		}, 0, []time.Duration{0, 3 * time.Minute}},
		"later and later after errors, until one look succeeds": {func(look int, _ <-chan struct{}) worker.Next {
			if look == 4 {
				return worker.Next{In: time.Minute}
			}
			return worker.Next{Err: errors.New("not yet"), Done: look == 6}
		}, 0, []time.Duration{0, 1 * time.Second, 3 * time.Second, 6 * time.Second, 66 * time.Second, 67 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, closed, began := worker.NewSignal(), make(chan struct{}), time.Now()
				time.AfterFunc(3*time.Minute, func() { close(closed) })
				if c.wake > 0 {
					time.AfterFunc(c.wake, func() { s.Wake(); s.Wake() })
				}
				var looks []time.Duration
				s.Run(t.Context(), backoff.Policy{First: time.Second, Longest: 3 * time.Second}, func() worker.Next {
					looks = append(looks, time.Since(began))
					return c.next(len(looks), closed)
				})
				if !slices.Equal(looks, c.want) {
					t.Errorf("looked after %v, want %v", looks, c.want)
				}
			})
		})
	}
}

func TestALoopEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s, looks := worker.NewSignal(), 0
		time.AfterFunc(time.Minute, func() { cancel(); s.Wake() })
		s.Run(ctx, backoff.Policy{}, func() worker.Next {
			looks++
			return worker.Next{In: worker.Forever}
		})
		s.Run(ctx, backoff.Policy{}, func() worker.Next { looks++; return worker.Next{} })
		if looks != 2 {
			t.Errorf("%d looks, want one of each run", looks)
		}
	})
}
