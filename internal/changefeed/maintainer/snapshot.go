package maintainer

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed/snapshot"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/events"
)

const (
	// snapshotEvery is how often the progress of the initial copy is read and published.
	snapshotEvery = 2 * time.Second
	// defaultKeyless is how large a table without a key may be.
	defaultKeyless = 256 << 20
	// notCopiedShown is how many of the objects that are not copied are named.
	notCopiedShown = 10
)

// planSnapshot is the position of the plan of the initial copy. The plan is saved at the sink before the changefeed begins, so that later
// attempts have the same.
func (m *Maintainer) planSnapshot(ctx context.Context, source stream.Source) (stream.Position, error) {
	from, ok := source.(snapshot.Source)
	if !ok {
		return 0, fmt.Errorf("spec.snapshot: this source cannot be copied: %w", stream.ErrUnusable)
	}
	sink, to, err := m.openSnapshotSink(ctx)
	if err != nil {
		return 0, err
	}
	defer sink.Close()
	if err := sink.Check(ctx); err != nil {
		return 0, err
	}
	if err := sameNames(ctx, source, sink, m.filter); err != nil {
		return 0, err
	}
	if at, saved, err := to.SnapshotPosition(ctx); saved || err != nil {
		return at, err
	}
	plan, err := from.PlanSnapshot(ctx, m.filter)
	if err != nil {
		return 0, err
	}
	keyless := int64(defaultKeyless)
	if spec := m.Latest().Spec.Snapshot; spec.MaxKeylessBytes != nil {
		keyless = *spec.MaxKeylessBytes
	}
	if err := plan.Check(keyless); err != nil {
		return 0, err
	}
	if err := to.SaveSnapshotPlan(ctx, plan); err != nil {
		return 0, err
	}
	m.log.Info("initial copy planned", "position", plan.Position, "tables", len(plan.Tables))
	m.reportNotCopied(ctx, plan)
	return plan.Position, nil
}

func (m *Maintainer) openSnapshotSink(ctx context.Context) (stream.Sink, snapshot.Sink, error) {
	config, err := m.config(ctx)
	if err != nil {
		return nil, nil, err
	}
	sink, err := m.opts.Opener.Sink(m.key, config)
	if err != nil {
		return nil, nil, err
	}
	to, ok := sink.(snapshot.Sink)
	if !ok {
		_ = sink.Close() // nothing was written
		return nil, nil, fmt.Errorf("spec.snapshot: this sink gets changes only; use a sink of mysql://, or remove the snapshot: %w", stream.ErrUnusable)
	}
	return sink, to, nil
}

// reportNotCopied reports, in the log and as an event, what is not copied.
func (m *Maintainer) reportNotCopied(ctx context.Context, plan *snapshot.Plan) {
	if len(plan.NotCopied) == 0 {
		return
	}
	shown := plan.NotCopied[:min(len(plan.NotCopied), notCopiedShown)]
	note := "Views, triggers, routines and events are not copied: " + strings.Join(shown, ", ")
	if more := len(plan.NotCopied) - len(shown); more > 0 {
		note += fmt.Sprintf(", and %d more", more)
	}
	record := events.Recorder{Client: m.opts.Epoch.Client, Controller: "changefeeds", Instance: m.opts.Epoch.Node}
	if err := record.Emit(ctx, events.Event{Regarding: m.Latest(), Type: corev1.EventTypeNormal, Reason: "NotCopied", Action: "Begin", Note: note, Key: fmt.Sprint(plan.Position)}); err != nil {
		m.log.Warn("could not write an event", "error", err)
	}
}

// makeSnapshotTables creates the tables of the plan, before any dispatcher starts.
func (m *Maintainer) makeSnapshotTables(ctx context.Context) error {
	if m.Latest().Spec.Snapshot == nil {
		return nil
	}
	m.mu.Lock()
	m.copied = copied{status: m.Latest().Status.Snapshot}
	m.mu.Unlock()
	sink, to, err := m.openSnapshotSink(ctx)
	if err != nil {
		return err
	}
	defer sink.Close()
	return to.MakeSnapshotTables(ctx, m.filter)
}

// copied is how far the initial copy is. It is guarded by the maintainer's lock.
type copied struct {
	status *v1alpha1.ChangefeedSnapshotStatus
	read   time.Time
	busy   bool
	pace   copyPace
}

// copyPace estimates how long the rest takes, from the rows that were copied lately.
type copyPace struct {
	rows  int64
	at    time.Time
	speed float64 // rows per second
}

// paceWeight is the weight of the newest measurement.
const paceWeight = 0.3

// left is about how many seconds the rest takes; nil if that is not known.
func (p *copyPace) left(now time.Time, rows, estimate int64) *int64 {
	if !p.at.IsZero() && rows >= p.rows {
		if took := now.Sub(p.at).Seconds(); took > 0 {
			speed := float64(rows-p.rows) / took
			if p.speed == 0 {
				p.speed = speed
			}
			p.speed += paceWeight * (speed - p.speed)
		}
	}
	p.rows, p.at = rows, now
	if p.speed < 1 || estimate < rows {
		return nil
	}
	seconds := int64(float64(estimate-rows) / p.speed)
	return &seconds
}

// fill puts the progress into a status. The caller holds the lock.
func (c *copied) fill(s *v1alpha1.ChangefeedStatus) {
	if c.status != nil {
		s.Snapshot = c.status.DeepCopy()
	}
}

// watchSnapshot starts to read the progress of the initial copy, unless that is finished or was read lately.
func (m *Maintainer) watchSnapshot(ctx context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &m.copied
	if m.Latest().Spec.Snapshot == nil || c.busy || c.status != nil && c.status.FinishedAt != nil || time.Since(c.read) < snapshotEvery {
		return
	}
	c.busy, c.read = true, time.Now()
	m.busy.Go(func() {
		err := m.readSnapshotProgress(ctx)
		m.mu.Lock()
		m.copied.busy = false
		m.mu.Unlock()
		if err != nil && ctx.Err() == nil {
			m.setProblem(fmt.Sprintf("read the progress of the initial copy: %v", err))
		}
	})
}

func (m *Maintainer) readSnapshotProgress(ctx context.Context) error {
	m.mu.Lock()
	to, ok := m.saver.sink.(snapshot.Sink) // it stays open while the placement is worked for; opening another executes DDL at the sink
	m.mu.Unlock()
	if !ok {
		return nil
	}
	p, err := to.SnapshotProgress(ctx)
	if err != nil {
		return err
	}
	now := metav1.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	next := &v1alpha1.ChangefeedSnapshotStatus{Tables: p.Tables, TablesDone: p.TablesDone, Rows: p.Rows, EstimatedRows: p.Estimate, StartedAt: &now}
	if m.copied.status != nil && m.copied.status.StartedAt != nil {
		next.StartedAt = m.copied.status.StartedAt
	}
	if p.TablesDone == p.Tables {
		next.FinishedAt = &now
		m.log.Info("initial copy finished", "tables", p.Tables, "rows", p.Rows, "took", now.Sub(next.StartedAt.Time).Round(time.Second))
	} else {
		next.EstimatedSeconds = m.copied.pace.left(now.Time, p.Rows, p.Estimate)
	}
	m.copied.status = next
	m.Wake()
	return nil
}
