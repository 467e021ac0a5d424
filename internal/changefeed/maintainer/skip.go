package maintainer

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// decideSkips decides which transactions are not replicated: those of the spec when the changefeed starts for the first time or was stopped,
// and else those that were in effect. Dispatchers that outlive a maintainer have the same.
func (m *Maintainer) decideSkips() {
	cf := m.Latest()
	m.skips = nil
	if had := cf.Status.Filter; had != nil && !had.Stopped {
		for _, s := range cf.Status.Skip {
			m.skips = append(m.skips, s.GTID)
		}
		return
	}
	m.skips = slices.Clone(cf.Spec.Skip)
}

// checkSkips returns ErrUnusable if a transaction that should be skipped was replicated already, or if the source does not have it. It does not
// look for transactions that were skipped before, because the source may have purged them.
func (m *Maintainer) checkSkips(ctx context.Context, source stream.Source) error {
	for _, gtid := range m.skips {
		if slices.ContainsFunc(m.Latest().Status.Skip, func(s v1alpha1.ChangefeedSkip) bool { return s.GTID == gtid }) {
			continue // it was checked when it came into effect
		}
		at, err := stream.ParsePosition(gtid)
		if err != nil {
			return fmt.Errorf("spec.skip: %w: %w", stream.ErrUnusable, err)
		}
		if at <= m.checkpoint {
			return fmt.Errorf("spec.skip: GTID %s is not after the checkpoint %d, so it has been replicated already; remove it from spec.skip: %w", gtid, m.checkpoint, stream.ErrUnusable)
		}
		if err := hasTransaction(ctx, source, gtid, at); err != nil {
			return fmt.Errorf("spec.skip: %w", err)
		}
	}
	return nil
}

// hasTransaction returns ErrUnusable if a source does not have a transaction.
func hasTransaction(ctx context.Context, source stream.Source, gtid string, at stream.Position) error {
	head, err := source.Head(ctx)
	if err != nil {
		return err
	}
	if at > head {
		return fmt.Errorf("GTID %s is after the newest transaction of the source, which is %d; name one that the source has: %w", gtid, head, stream.ErrUnusable)
	}
	s, ok := source.(anchored)
	if !ok {
		return nil
	}
	if err := s.HasTransaction(ctx, gtid); err != nil {
		return fmt.Errorf("GTID %s is not in the log of the source: %w", gtid, err)
	}
	return nil
}

// skipPositions are the positions of the transactions that are not replicated.
func (m *Maintainer) skipPositions() []stream.Position {
	var list []stream.Position
	for _, gtid := range m.skips {
		if at, err := stream.ParsePosition(gtid); err == nil { // checkSkips has refused others
			list = append(list, at)
		}
	}
	return list
}

func (m *Maintainer) skipsOnWire() []uint64 {
	var list []uint64
	for _, at := range m.skipPositions() {
		list = append(list, uint64(at))
	}
	return list
}

// fillSkips adds to a status the transactions that are not replicated, and which of them its checkpoint has passed.
func (m *Maintainer) fillSkips(s *v1alpha1.ChangefeedStatus) {
	had := s.Skip
	s.Skip = nil
	for _, gtid := range m.skips {
		next := v1alpha1.ChangefeedSkip{GTID: gtid}
		if i := slices.IndexFunc(had, func(o v1alpha1.ChangefeedSkip) bool { return o.GTID == gtid }); i >= 0 {
			next.PassedAt = had[i].PassedAt
		}
		if at, err := stream.ParsePosition(gtid); err == nil && next.PassedAt == nil && int64(at) <= s.Checkpoint {
			now := metav1.Now()
			next.PassedAt = &now
		}
		s.Skip = append(s.Skip, next)
	}
}
