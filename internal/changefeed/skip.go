package changefeed

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// Skip makes a changefeed that is stopped leave out a transaction, given by its GTID, when it is resumed.
func Skip(ctx context.Context, c client.Client, key types.NamespacedName, gtid string) (*v1alpha1.Changefeed, error) {
	for {
		cf := &v1alpha1.Changefeed{}
		if err := c.Get(ctx, key, cf); err != nil {
			return nil, err
		}
		if err := maySkip(cf, gtid); err != nil {
			return nil, err
		}
		cf.Spec.Skip = append(cf.Spec.Skip, gtid)
		if err := Validate(&cf.Spec); err != nil {
			return nil, err
		}
		if err := c.Update(ctx, cf); !apierrors.IsConflict(err) {
			return cf, err
		}
	}
}

// maySkip returns an error if a changefeed cannot skip a transaction.
func maySkip(cf *v1alpha1.Changefeed, gtid string) error {
	at, err := stream.ParsePosition(gtid)
	switch {
	case err != nil:
		return err
	case slices.Contains(cf.Spec.Skip, gtid):
		return fmt.Errorf("changefeed %s skips GTID %s already", cf.Name, gtid)
	case int64(at) <= cf.Status.Checkpoint:
		return fmt.Errorf("changefeed %s has replicated everything up to its checkpoint %d, so GTID %s can no longer be skipped", cf.Name, cf.Status.Checkpoint, gtid)
	case cf.Status.State != v1alpha1.ChangefeedFailed && cf.Status.State != v1alpha1.ChangefeedPaused:
		return fmt.Errorf("changefeed %s is running, and some of its tables may have passed GTID %s; run 'ebb changefeed pause %s' first", cf.Name, gtid, cf.Name)
	}
	return nil
}

// ResumeFrom resumes a changefeed that is stopped after a GTID instead of at its checkpoint. leaveOut says that the transactions in between
// may be left out.
func ResumeFrom(ctx context.Context, c client.Client, key types.NamespacedName, gtid string, leaveOut bool) (*v1alpha1.Changefeed, error) {
	for {
		cf := &v1alpha1.Changefeed{}
		if err := c.Get(ctx, key, cf); err != nil {
			return nil, err
		}
		if err := mayResumeFrom(cf, gtid, leaveOut); err != nil {
			return nil, err
		}
		cf.Spec.ResumeFrom = gtid
		if err := Validate(&cf.Spec); err != nil {
			return nil, err
		}
		switch err := c.Update(ctx, cf); {
		case err == nil:
			return SetState(ctx, c, key, v1alpha1.ChangefeedRun)
		case !apierrors.IsConflict(err):
			return nil, err
		}
	}
}

// mayResumeFrom returns an error if a changefeed cannot be resumed after a GTID.
func mayResumeFrom(cf *v1alpha1.Changefeed, gtid string, leaveOut bool) error {
	at, err := stream.ParsePosition(gtid)
	switch {
	case err != nil:
		return err
	case cf.Status.State != v1alpha1.ChangefeedFailed && cf.Status.State != v1alpha1.ChangefeedPaused:
		return fmt.Errorf("changefeed %s is running; run 'ebb changefeed pause %s' first", cf.Name, cf.Name)
	case cf.Status.StartPosition == nil:
		return fmt.Errorf("changefeed %s has not begun; set spec.startPosition instead", cf.Name)
	case int64(at) <= cf.Status.Checkpoint:
		return fmt.Errorf("changefeed %s has everything up to its checkpoint %d at its sink, and never writes that again; to start at GTID %s, create another changefeed with --start-position, from a copy taken there", cf.Name, cf.Status.Checkpoint, gtid)
	case !leaveOut:
		return fmt.Errorf("resuming changefeed %s after GTID %s leaves out the transactions after its checkpoint %d, up to %d of them, with their rows and DDL, except what some tables have already: first change the sink by hand to what it would be after them, then add --leave-out-transactions",
			cf.Name, gtid, cf.Status.Checkpoint, int64(at)-cf.Status.Checkpoint)
	}
	return nil
}
