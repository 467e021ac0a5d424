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
	// Checkpoint is the checkpoint that the sink has; nil if it has none.
	Checkpoint(ctx context.Context) (*stream.Checkpoint, error)
	// Incarnation of the sink is another number once the sink may have lost writes.
	Incarnation(ctx context.Context) (int64, error)
	// AdoptCheckpoint records the checkpoint and the incarnation at which the changefeed continues, or returns ErrWentBack if the sink
	// does not have the checkpoint any more that was found; nil for none.
	AdoptCheckpoint(ctx context.Context, found *stream.Checkpoint, c stream.Checkpoint) error
	// SaveCheckpoint records a later checkpoint of the same incarnation, or returns ErrWentBack.
	SaveCheckpoint(ctx context.Context, before stream.Position, c stream.Checkpoint) error
}

// anchored is a source that can tell whether it has a transaction.
type anchored interface {
	// HasTransaction returns an error if the source has another history than one with a transaction.
	HasTransaction(ctx context.Context, id string) error
}

// anchor is a transaction that the table trigger has read.
type anchor struct {
	position stream.Position
	id       string
}

// anchors bounds how many of them are kept until the checkpoint has passed them.
const anchors = 128

// saver records checkpoints at the sink. Fields are guarded by the maintainer's lock, except sink.
type saver struct {
	sink   checkpointer       // nil if the sink records none
	found  *stream.Checkpoint // that the sink had when it was opened; nil if it had none
	saved  stream.Position
	at     time.Time
	saving bool
	// incarnation of the sink in which all dispatchers were started, and anchor the newest transaction of the source at the checkpoint or
	// before it; ahead are some after it, at least spacing apart.
	incarnation int64
	anchor      string
	ahead       []anchor
	spacing     stream.Position
	// suspect: a table has another position at the sink than its owner wrote. Nothing is placed until the sink is known not to have
	// gone back.
	suspect bool
}

// saveLimit bounds one attempt to record a checkpoint, and lastSave the one before a maintainer stops.
const (
	saveLimit = callLimit
	lastSave  = time.Second
)

// openSaver opens the sink to record checkpoints, and compares the checkpoint with that of the sink. If the sink went back, or was
// restarted and may have lost writes, the changefeed continues at the checkpoint that the sink has, and wentBack makes the bootstrap
// stop all dispatchers. A source without the transaction that was recorded with the checkpoint is refused.
func (m *Maintainer) openSaver(ctx context.Context, source stream.Source) error {
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
	incarnation, err := c.Incarnation(ctx)
	if err != nil {
		return errors.Join(err, sink.Close())
	}
	found, err := c.Checkpoint(ctx)
	if err != nil {
		return errors.Join(err, sink.Close())
	}
	had := found
	if found == nil { // nothing after the start can have been published
		found = &stream.Checkpoint{Position: *m.started, Incarnation: incarnation}
	}
	m.mu.Lock()
	m.saver = saver{sink: c, found: had, saved: found.Position, incarnation: incarnation, anchor: found.Transaction}
	m.mu.Unlock()
	if err := checkAnchor(ctx, source, found.Transaction); err != nil {
		return err
	}
	switch {
	case found.Position < m.checkpoint:
		m.reportWentBack(ctx, fmt.Sprintf("The sink went back: it has the checkpoint %d, and %d was recorded before. All tables are read again from there.", found.Position, m.checkpoint), found.Position)
		m.checkpoint, m.wentBack = found.Position, true
	case found.Incarnation != incarnation && found.Incarnation != 0:
		m.reportWentBack(ctx, fmt.Sprintf("The server of the sink was restarted or replaced, and may have lost its last commits. All tables are read again from the checkpoint %d, as far as the sink does not have them.", m.checkpoint), m.checkpoint)
		m.wentBack = true
	case found.Incarnation != incarnation:
		m.wentBack = true // an owner has lost its writes, or a version without incarnations has recorded the checkpoint
	}
	return nil
}

// checkAnchor returns an error if a source has another history than one with a transaction. One that is purged is before the checkpoint:
// if the source has purged that, too, reading from there fails.
func checkAnchor(ctx context.Context, source stream.Source, id string) error {
	s, ok := source.(anchored)
	if !ok || id == "" {
		return nil
	}
	if err := s.HasTransaction(ctx, id); !errors.Is(err, stream.ErrPurged) {
		return err
	}
	return nil
}

// adoptIncarnation records, once no dispatcher runs that has written in an earlier incarnation of the sink, the checkpoint at which the
// changefeed continues.
func (m *Maintainer) adoptIncarnation(ctx context.Context) error {
	m.mu.Lock()
	s, at := m.saver, max(m.checkpoint, m.saver.saved)
	m.mu.Unlock()
	if s.sink == nil {
		return nil
	}
	if m.wentBack {
		at = m.checkpoint
	}
	if err := s.sink.AdoptCheckpoint(ctx, s.found, stream.Checkpoint{Position: at, Incarnation: s.incarnation, Transaction: s.anchor}); err != nil {
		return err
	}
	m.mu.Lock()
	m.saver.saved = at
	m.mu.Unlock()
	return nil
}

// reportWentBack reports, in the log and as an event, that the sink has lost writes.
func (m *Maintainer) reportWentBack(ctx context.Context, note string, at stream.Position) {
	m.log.Warn("the sink went back; reading again", "note", note, "checkpoint", m.checkpoint, "sink", at)
	record := events.Recorder{Client: m.opts.Epoch.Client, Controller: "changefeeds", Instance: m.opts.Epoch.Node}
	if err := record.Emit(ctx, events.Event{Regarding: m.Latest(), Type: corev1.EventTypeWarning, Reason: "SinkWentBack", Action: "Begin", Note: note, Key: fmt.Sprint(at)}); err != nil {
		m.log.Warn("could not write an event", "error", err)
	}
}

// passAnchor records a transaction that the table trigger has read. The caller holds the lock.
func (m *Maintainer) passAnchor(at stream.Position, id string) {
	s := &m.saver
	if id == "" || s.sink == nil {
		return
	}
	for len(s.ahead) > 0 && s.ahead[0].position <= m.checkpoint {
		s.anchor, s.ahead = s.ahead[0].id, s.ahead[1:]
	}
	n := len(s.ahead)
	switch {
	case n == 0:
		s.spacing = 1
	case at < s.ahead[n-1].position+s.spacing:
		return
	case n == anchors: // every second, so that they stay evenly spaced however far the checkpoint is behind
		s.spacing *= 2
		for i := range n / 2 {
			s.ahead[i] = s.ahead[2*i]
		}
		s.ahead = s.ahead[:n/2]
	}
	s.ahead = append(s.ahead, anchor{at, id})
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
	for len(m.saver.ahead) > 0 && m.saver.ahead[0].position <= to {
		m.saver.anchor, m.saver.ahead = m.saver.ahead[0].id, m.saver.ahead[1:]
	}
	c := stream.Checkpoint{Position: to, Incarnation: m.saver.incarnation, Transaction: m.saver.anchor}
	m.mu.Unlock()
	if sink == nil {
		return
	}
	attempt, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := sink.SaveCheckpoint(attempt, before, c)
	switch {
	case errors.Is(err, stream.ErrWentBack):
		m.fail(err) // the next attempt begins with what the sink has
	case err != nil && ctx.Err() == nil:
		m.setProblem(fmt.Sprintf("record checkpoint %d at the sink: %v", to, err))
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
