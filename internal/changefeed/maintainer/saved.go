package maintainer

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/events"
)

// checkpointer is a sink that records the checkpoint. The checkpoint in the status is never ahead of it, unless the sink went back.
type checkpointer interface {
	stream.Sink
	Checkpoint(ctx context.Context) (position stream.Position, ok bool, err error)
	SaveCheckpoint(ctx context.Context, before, position stream.Position) error
}

// saver records checkpoints at the sink. Fields are guarded by the maintainer's lock, except sink.
type saver struct {
	sink   checkpointer // nil if the sink records none
	saved  stream.Position
	at     time.Time
	saving bool
	// suspect: a table has another position at the sink than its owner wrote. Nothing is placed until the sink is known not to have
	// gone back.
	suspect bool
}

// saveLimit bounds one attempt to record a checkpoint, and lastSave the one before a maintainer stops.
const (
	saveLimit = callLimit
	lastSave  = time.Second
)

// openSaver opens the sink to record checkpoints, and compares the checkpoint with that of the sink. If the sink went back, the
// changefeed continues at the checkpoint that the sink has, and wentBack makes the bootstrap stop all dispatchers.
func (m *Maintainer) openSaver(ctx context.Context) error {
	m.closeSaver()
	config, err := m.config(ctx)
	if err != nil {
		return err
	}
	sink, err := m.opts.Opener.Sink(m.key, config)
	if err != nil {
		return err
	}
	c, ok := sink.(checkpointer)
	if !ok {
		return sink.Close()
	}
	at, found, err := c.Checkpoint(ctx)
	if err != nil {
		return errors.Join(err, sink.Close())
	}
	m.mu.Lock()
	m.saver = saver{sink: c, saved: at}
	m.mu.Unlock()
	if !found {
		at = *m.started // nothing after it can have been published
	}
	if at >= m.checkpoint {
		return nil
	}
	note := fmt.Sprintf("The sink went back: it has the checkpoint %d, and %d was recorded before. All tables are read again from there.", at, m.checkpoint)
	m.log.Warn("the sink went back; reading again", "checkpoint", m.checkpoint, "sink", at)
	record := events.Recorder{Client: m.opts.Epoch.Client, Controller: "changefeeds", Instance: m.opts.Epoch.Node}
	if err := record.Emit(ctx, events.Event{Regarding: m.Latest(), Type: corev1.EventTypeWarning, Reason: "SinkWentBack", Action: "Begin", Note: note, Key: fmt.Sprint(at)}); err != nil {
		m.log.Warn("could not write an event", "error", err)
	}
	m.checkpoint, m.wentBack = at, true
	return nil
}

func (m *Maintainer) closeSaver() {
	m.mu.Lock()
	s := m.saver
	m.saver = saver{}
	m.mu.Unlock()
	m.wentBack = false
	if s.sink != nil {
		_ = s.sink.Close() // nothing is being recorded
	}
}

// acknowledged is the newest checkpoint that may be published. The caller holds the lock.
func (m *Maintainer) acknowledged() stream.Position {
	if m.saver.sink == nil {
		return m.checkpoint
	}
	return min(m.checkpoint, m.saver.saved)
}

// saveCheckpoint starts to record the checkpoint at the sink, unless that is recorded, or was lately.
func (m *Maintainer) saveCheckpoint(ctx context.Context, every time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := &m.saver
	if s.suspect {
		every = retryDelay
	} else if m.checkpoint <= s.saved {
		return
	}
	if s.sink == nil || s.saving || time.Since(s.at) < every {
		return
	}
	s.saving, s.at = true, time.Now()
	to := max(m.checkpoint, s.saved)
	m.busy.Go(func() { m.save(ctx, to, saveLimit) })
}

// suspect makes a table that has lost its owner continue at the last checkpoint that is recorded at the sink, or at the DDL that made
// it, if the sink has no later position of it: the sink may have lost what was written since. The caller holds the lock.
func (m *Maintainer) suspect(t *table) {
	if m.saver.sink != nil {
		m.saver.suspect = true
		t.floor = min(t.floor, max(m.saver.saved, t.from-min(t.from, 1)))
	}
}

// suspicious reports whether the sink may have gone back.
func (m *Maintainer) suspicious() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.saver.suspect
}

// stopSaving records the checkpoint for the last time, so that the next maintainer starts from it.
func (m *Maintainer) stopSaving(ctx context.Context) {
	m.mu.Lock()
	newer := m.saver.sink != nil && m.checkpoint > m.saver.saved && m.failure == nil
	m.mu.Unlock()
	if newer {
		m.save(ctx, m.checkpoint, lastSave)
	}
	m.mu.Lock()
	m.stopped = m.acknowledged()
	m.mu.Unlock()
	m.closeSaver()
}

// save records a checkpoint at the sink.
func (m *Maintainer) save(ctx context.Context, to stream.Position, limit time.Duration) {
	m.mu.Lock()
	sink, before := m.saver.sink, m.saver.saved
	m.mu.Unlock()
	if sink == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := sink.SaveCheckpoint(ctx, before, to)
	if errors.Is(err, stream.ErrWentBack) {
		m.fail(err) // the next attempt begins with what the sink has
	}
	m.mu.Lock()
	m.saver.saving = false
	if err == nil {
		m.saver.saved, m.saver.suspect = max(m.saver.saved, to), false
	}
	m.mu.Unlock()
	if err == nil {
		m.Wake()
	}
}
