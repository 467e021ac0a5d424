package apiserver

import (
	"context"
	"log/slog"
	"maps"
	"slices"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// storeLogger passes the errors of etcd to the process's log, and drops its other lines, which are several a second.
func storeLogger(level zapcore.LevelEnabler, to slog.Handler) *zap.Logger {
	return zap.New(slogCore{LevelEnabler: level, to: to})
}

// slogCore passes what etcd logs to a handler of slog.
type slogCore struct {
	zapcore.LevelEnabler
	to slog.Handler
}

// With implements zapcore.Core.
func (c slogCore) With(fields []zapcore.Field) zapcore.Core {
	return slogCore{LevelEnabler: c.LevelEnabler, to: c.to.WithAttrs(attrs(fields))}
}

// Check implements zapcore.Core.
func (c slogCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) && c.to.Enabled(context.Background(), levelOf(e.Level)) {
		return ce.AddCore(e, c)
	}
	return ce
}

// Write implements zapcore.Core.
func (c slogCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	r := slog.NewRecord(e.Time, levelOf(e.Level), "etcd: "+e.Message, 0)
	r.AddAttrs(attrs(fields)...)
	return c.to.Handle(context.Background(), r)
}

// Sync implements zapcore.Core.
func (c slogCore) Sync() error { return nil }

func attrs(fields []zapcore.Field) []slog.Attr {
	values := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(values)
	}
	var list []slog.Attr
	for _, key := range slices.Sorted(maps.Keys(values.Fields)) {
		list = append(list, slog.Any(key, values.Fields[key]))
	}
	return list
}

func levelOf(l zapcore.Level) slog.Level {
	switch l {
	case zapcore.DebugLevel:
		return slog.LevelDebug
	case zapcore.InfoLevel:
		return slog.LevelInfo
	case zapcore.WarnLevel:
		return slog.LevelWarn
	}
	return slog.LevelError
}
