package main

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

// newLogger logs one line an event to standard error. The libraries of Kubernetes log through it too, from warnings up:
// below that they tell of themselves, not of what happens here.
func newLogger() *slog.Logger {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	libraries := slog.New(&sparing{Handler: slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}), said: &sync.Map{}})
	klog.SetSlogLogger(libraries)
	ctrl.SetLogger(logr.FromSlogHandler(libraries.Handler()))
	return log
}

// sparing lets each message through once a minute: the libraries tell of the same trouble at every try.
type sparing struct {
	slog.Handler
	said *sync.Map // message to when it was said
}

const sayAgain = time.Minute

// Handle implements slog.Handler.
func (s *sparing) Handle(ctx context.Context, r slog.Record) error {
	if last, ok := s.said.Load(r.Message); ok && r.Time.Sub(last.(time.Time)) < sayAgain {
		return nil
	}
	s.said.Store(r.Message, r.Time)
	return s.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (s *sparing) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &sparing{Handler: s.Handler.WithAttrs(attrs), said: s.said}
}

// WithGroup implements slog.Handler.
func (s *sparing) WithGroup(name string) slog.Handler {
	return &sparing{Handler: s.Handler.WithGroup(name), said: s.said}
}

// quietLibraries keeps the libraries of Kubernetes silent in commands that print for people: what went wrong is in the
// command's own error. The first logger that they get is the one they keep.
var quietLibraries = sync.OnceFunc(func() {
	klog.SetLogger(logr.Discard())
	ctrl.SetLogger(logr.Discard())
})
