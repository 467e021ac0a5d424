package maintainer

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// advancer is a sink whose recorded positions can be moved past what was written.
type advancer interface {
	AdvanceTo(ctx context.Context, to stream.Position, transaction string) error
}

// resumeFrom makes the changefeed continue at the position of spec.resumeFrom, once, when it was stopped. Positions at the sink are moved first,
// because they decide: a process that ends in between leaves nothing half done. A dispatcher that still writes a table loses it, because the
// position has changed.
func (m *Maintainer) resumeFrom(ctx context.Context, source stream.Source) error {
	cf := m.Latest()
	m.resumed = nil
	gtid, filter, last := cf.Spec.ResumeFrom, cf.Status.Filter, cf.Status.ResumedFrom
	if gtid == "" || filter != nil && !filter.Stopped || last != nil && last.GTID == gtid {
		return nil
	}
	at, err := stream.ParsePosition(gtid)
	switch copying := cf.Status.Snapshot; {
	case err != nil:
		return fmt.Errorf("spec.resumeFrom: %w: %w", stream.ErrUnusable, err)
	case cf.Status.StartPosition == nil:
		return fmt.Errorf("spec.resumeFrom: the changefeed has not begun; use spec.startPosition: %w", stream.ErrUnusable)
	case cf.Spec.Snapshot != nil && (copying == nil || copying.FinishedAt == nil):
		return fmt.Errorf("spec.resumeFrom: the initial copy is not finished; remove spec.resumeFrom, and set it when it is: %w", stream.ErrUnusable)
	case at <= m.checkpoint:
		return fmt.Errorf("spec.resumeFrom: GTID %s is not after the checkpoint %d, and what is at the sink already cannot be written again; remove it: %w", gtid, m.checkpoint, stream.ErrUnusable)
	}
	if err := hasTransaction(ctx, source, gtid, at); err != nil {
		return fmt.Errorf("spec.resumeFrom: %w", err)
	}
	config, err := m.config(ctx)
	if err != nil {
		return err
	}
	sink, err := m.opts.Opener.Sink(m.key, config)
	if err != nil {
		return err
	}
	defer sink.Close()
	a, ok := sink.(advancer)
	if !ok {
		return fmt.Errorf("spec.resumeFrom: this sink does not record positions; remove it: %w", stream.ErrUnusable)
	}
	if err := a.AdvanceTo(ctx, at, gtid); err != nil {
		return err
	}
	m.log.Warn("continuing after another position than the checkpoint, as spec.resumeFrom says", "checkpoint", m.checkpoint, "gtid", gtid)
	m.resumed = &v1alpha1.ChangefeedResume{GTID: gtid, Checkpoint: int64(m.checkpoint), At: metav1.Now()}
	m.checkpoint = at
	return nil
}

// keepResume adds the position at which the changefeed continued to a status.
func (m *Maintainer) keepResume(s *v1alpha1.ChangefeedStatus) (changed bool) {
	if m.resumed == nil || s.ResumedFrom != nil && s.ResumedFrom.GTID == m.resumed.GTID {
		return false
	}
	s.ResumedFrom = m.resumed.DeepCopy()
	return true
}
