package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/grpclog"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

// logFlags are the log flags of long-running processes.
type logFlags struct {
	format choice
	level  choice
}

const (
	logText = "text"
	logJSON = "json"
)

func newLogFlags() logFlags {
	return logFlags{
		format: choice{value: logText, of: []string{logText, logJSON}, what: "log format"},
		level:  choice{value: "info", of: []string{"debug", "info", "warn", "error"}, what: "log level"},
	}
}

func (f *logFlags) addFlags(fs *pflag.FlagSet) {
	fs.Var(&f.format, "log-format", "format of the log: text, or json with one object per line")
	fs.Var(&f.level, "log-level", "lowest level that is logged: debug, info, warn or error")
}

// args returns the log flags for a child process, without defaults.
func (f logFlags) args() []string {
	var args []string
	if f.format.value != logText {
		args = append(args, "--log-format="+f.format.value)
	}
	if f.level.value != "info" {
		args = append(args, "--log-level="+f.level.value)
	}
	return args
}

// choice is a flag with a few values.
type choice struct {
	value string
	of    []string
	what  string
}

// Set implements pflag.Value.
func (c *choice) Set(text string) error {
	if !slices.Contains(c.of, text) {
		last := len(c.of) - 1
		return fmt.Errorf("%q is not a %s: use %s or %s", text, c.what, strings.Join(c.of[:last], ", "), c.of[last])
	}
	c.value = text
	return nil
}

// String implements pflag.Value.
func (c *choice) String() string { return c.value }

// Type implements pflag.Value.
func (c *choice) Type() string { return strings.Join(c.of, "|") }

// threshold is the lowest level that is logged.
func (f logFlags) threshold() slog.Level {
	var level slog.Level
	_ = level.UnmarshalText([]byte(f.level.value)) // it is one of the choices
	return level
}

// libraries is the lowest level that is logged of the libraries. Their infos are about themselves, so that they need --log-level debug.
func (f logFlags) libraries() slog.Level {
	if f.threshold() < slog.LevelInfo {
		return slog.LevelInfo
	}
	return max(f.threshold(), slog.LevelWarn)
}

func (f logFlags) handler(w io.Writer, least slog.Level) slog.Handler {
	o := &slog.HandlerOptions{Level: least}
	if f.format.value == logJSON {
		return slog.NewJSONHandler(w, o)
	}
	return slog.NewTextHandler(w, o)
}

// newLogger returns a logger to standard error, one line an event. The libraries log through it too: those of Kubernetes, gRPC, and
// everything that writes to Go's standard logger.
func (f logFlags) newLogger() *slog.Logger {
	libraries := f.libraryLog()
	klog.SetSlogLogger(libraries)
	ctrl.SetLogger(logr.FromSlogHandler(libraries.Handler()))
	grpclog.SetLoggerV2(grpcLog{libraries})
	slog.SetDefault(libraries)
	slog.SetLogLoggerLevel(slog.LevelWarn) // what Go's standard logger gets are errors of connections
	return slog.New(f.handler(os.Stderr, f.threshold()))
}

func (f logFlags) libraryLog() *slog.Logger {
	return slog.New(&sparing{Handler: f.handler(os.Stderr, f.libraries()), said: &sync.Map{}})
}

// report logs the error with which a process ends, if every line of the log must be JSON.
func (f logFlags) report(err error) error {
	if err == nil || f.format.value != logJSON {
		return err
	}
	slog.New(f.handler(os.Stderr, slog.LevelError)).Error("the process exits because of an error", "error", err)
	return exitError(1)
}

// grpcLog logs for gRPC, without its infos about every connection.
type grpcLog struct{ *slog.Logger }

// Info implements grpclog.LoggerV2.
func (g grpcLog) Info(...any) {}

// Infoln implements grpclog.LoggerV2.
func (g grpcLog) Infoln(...any) {}

// Infof implements grpclog.LoggerV2.
func (g grpcLog) Infof(string, ...any) {}

// Warning implements grpclog.LoggerV2. A connection that fails is tried again and reported by whoever uses it.
func (g grpcLog) Warning(args ...any) { g.Logger.Info("gRPC: " + fmt.Sprint(args...)) }

// Warningln implements grpclog.LoggerV2.
func (g grpcLog) Warningln(args ...any) { g.Warning(args...) }

// Warningf implements grpclog.LoggerV2.
func (g grpcLog) Warningf(format string, args ...any) { g.Warning(fmt.Sprintf(format, args...)) }

// Error implements grpclog.LoggerV2.
func (g grpcLog) Error(args ...any) { g.Logger.Error("gRPC: " + fmt.Sprint(args...)) }

// Errorln implements grpclog.LoggerV2.
func (g grpcLog) Errorln(args ...any) { g.Error(args...) }

// Errorf implements grpclog.LoggerV2.
func (g grpcLog) Errorf(format string, args ...any) { g.Error(fmt.Sprintf(format, args...)) }

// Fatal implements grpclog.LoggerV2.
func (g grpcLog) Fatal(args ...any) { g.Error(args...); os.Exit(1) }

// Fatalln implements grpclog.LoggerV2.
func (g grpcLog) Fatalln(args ...any) { g.Fatal(args...) }

// Fatalf implements grpclog.LoggerV2.
func (g grpcLog) Fatalf(format string, args ...any) { g.Fatal(fmt.Sprintf(format, args...)) }

// V implements grpclog.LoggerV2.
func (g grpcLog) V(int) bool { return false }

// sparing logs each message at most once a minute: the libraries report the same error at every attempt.
type sparing struct {
	slog.Handler
	said *sync.Map // message to when it was last logged
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
