package main

import (
	"log/slog"
	"os"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

// newLogger logs one line an event to standard error. The libraries of Kubernetes log through it too, from warnings up:
// below that they tell of themselves, not of what happens here.
func newLogger() *slog.Logger {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	libraries := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	klog.SetSlogLogger(libraries)
	ctrl.SetLogger(logr.FromSlogHandler(libraries.Handler()))
	return log
}

// quietLibraries keeps the libraries of Kubernetes silent in commands that print for people: what went wrong is in the
// command's own error. The first logger that they get is the one they keep.
func quietLibraries() {
	klog.SetLogger(logr.Discard())
	ctrl.SetLogger(logr.Discard())
}
