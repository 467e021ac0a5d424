package apiserver

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A part of a server that never ends keeps nobody who stops it waiting for longer than the limit.
func TestAServerThatDoesNotEndIsGivenUp(t *testing.T) {
	failed := errors.New("failed")
	for name, tc := range map[string]struct {
		stopped, ends time.Duration // after the start
		err           error
		want          error
		took          time.Duration
	}{
		"it ends in order":                     {stopped: time.Hour, ends: time.Hour + time.Second, took: time.Hour + time.Second},
		"it ends in order, late":               {stopped: time.Hour, ends: time.Hour + stopLimit - time.Second, took: time.Hour + stopLimit - time.Second},
		"it fails":                             {stopped: 2 * time.Hour, ends: time.Hour, err: failed, want: failed, took: time.Hour},
		"it fails when it is stopped":          {stopped: time.Hour, ends: time.Hour + time.Second, err: failed, want: failed, took: time.Hour + time.Second},
		"it hangs":                             {stopped: time.Hour, ends: 3 * time.Hour, want: ErrHangs, took: time.Hour + stopLimit},
		"it hangs, stopped before it is ready": {ends: 3 * time.Hour, want: ErrHangs, took: stopLimit},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithTimeout(t.Context(), tc.stopped)
				defer stop()
				began := time.Now()
				err := within(ctx, stopLimit, func() error {
					time.Sleep(tc.ends)
					return tc.err
				})
				took := time.Since(began)
				time.Sleep(tc.ends) // until what hangs has ended too
				if took != tc.took || !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) {
					t.Errorf("it took %s and returned %v, want %s and %v", took, err, tc.took, tc.want)
				}
			})
		})
	}
}
