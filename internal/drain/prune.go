package drain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// Defaults of the history of finished drains.
const (
	// DefaultHistoryLimit is how many finished drains are kept.
	DefaultHistoryLimit = 100
	// DefaultHistoryAge is for how long a finished drain is kept.
	DefaultHistoryAge = 7 * 24 * time.Hour
)

const (
	// readable is how long a finished drain is always kept, so that its requester can read how it ended.
	readable = time.Minute
	// pruneAgain is the delay before pruning is tried again after an error.
	pruneAgain = time.Minute
	// maxPruned bounds the deletions of one reconciliation; the next one continues.
	maxPruned = 20
)

// Prune returns the finished drains to delete now, oldest first, and the time until the next one is due; 0 if none will be. It never
// returns a drain that has not ended, that holds the slot, or whose events are not all written yet. Refused drains are finished too.
func Prune(drains []*v1alpha1.Drain, settings *v1alpha1.Settings, now time.Time, written func(*v1alpha1.Drain) bool) (due []*v1alpha1.Drain, next time.Duration) {
	limit, age := history(settings)
	finished := newestFirst(drains)
	for i, d := range finished {
		kept := age
		if i >= limit {
			kept = readable
		}
		left := endOf(d).Add(kept).Sub(now)
		switch slot := settings.Status.ActiveDrain; {
		case left > 0 && (next == 0 || left < next):
			next = left
		case left > 0, slot != nil && slot.UID == string(d.UID), !written(d):
		default:
			due = append(due, d)
		}
	}
	slices.Reverse(due)
	return due, next
}

// history returns how many finished drains are kept, and for how long.
func history(settings *v1alpha1.Settings) (limit int, age time.Duration) {
	limit, age = DefaultHistoryLimit, DefaultHistoryAge
	if set := settings.Spec.Drain.HistoryLimit; set != nil {
		limit = int(*set)
	}
	if set := settings.Spec.Drain.HistoryAge; set != nil {
		age = set.Duration
	}
	return max(limit, 0), max(age, readable)
}

// newestFirst returns the drains that have ended and are not being deleted, sorted by end and then by name.
func newestFirst(drains []*v1alpha1.Drain) []*v1alpha1.Drain {
	var finished []*v1alpha1.Drain
	for _, d := range drains {
		if d.Status.Phase.Final() && d.DeletionTimestamp.IsZero() {
			finished = append(finished, d)
		}
	}
	slices.SortFunc(finished, func(a, b *v1alpha1.Drain) int {
		return cmp.Or(endOf(b).Compare(endOf(a)), cmp.Compare(b.Name, a.Name))
	})
	return finished
}

// endOf returns when a drain ended.
func endOf(d *v1alpha1.Drain) time.Time {
	if d.Status.FinishedAt == nil {
		return d.CreationTimestamp.Time
	}
	return d.Status.FinishedAt.Time
}

// prune deletes the drains that are due and returns when to check again; 0 means never. It reads live only if the cache shows something
// to delete. An error does not delay a drain: it is logged, and pruning is tried again.
func (c *Controller) prune(ctx context.Context) time.Duration {
	due, next, err := c.due(ctx, c.cached)
	if err == nil && len(due) > 0 {
		next, err = c.pruneLive(ctx)
	}
	if err != nil && ctx.Err() == nil {
		c.Log.Warn("could not delete old finished drains; trying again", "wait", pruneAgain, "error", err)
		return pruneAgain
	}
	return next
}

// pruneLive deletes the drains that are due according to live reads.
func (c *Controller) pruneLive(ctx context.Context) (time.Duration, error) {
	due, next, err := c.due(ctx, c.live)
	if err != nil {
		return 0, err
	}
	if len(due) > maxPruned {
		due, next = due[:maxPruned], time.Millisecond
	}
	if err := c.CheckTerm(ctx); err != nil {
		return 0, fmt.Errorf("prune drains: %w", err)
	}
	var failed []error
	for _, d := range due {
		exactly := client.Preconditions{UID: &d.UID, ResourceVersion: &d.ResourceVersion}
		if err := client.IgnoreNotFound(c.client.Delete(ctx, d, exactly)); err != nil {
			failed = append(failed, fmt.Errorf("delete drain %s: %w", d.Name, err))
			continue
		}
		c.Log.Info("deleted an old finished drain", "drain", d.Name, "target", d.Spec.NodeName, "phase", d.Status.Phase, "finished", endOf(d))
	}
	return next, errors.Join(failed...)
}

// due reads the drains and the settings, and calls Prune.
func (c *Controller) due(ctx context.Context, r client.Reader) ([]*v1alpha1.Drain, time.Duration, error) {
	settings := &v1alpha1.Settings{}
	if err := r.Get(ctx, types.NamespacedName{Name: v1alpha1.SettingsName}, settings); err != nil {
		return nil, 0, fmt.Errorf("read Settings: %w", err)
	}
	var list v1alpha1.DrainList
	if err := r.List(ctx, &list); err != nil {
		return nil, 0, fmt.Errorf("list drains: %w", err)
	}
	var drains []*v1alpha1.Drain
	for i := range list.Items {
		drains = append(drains, &list.Items[i])
	}
	due, next := Prune(drains, settings, c.now(), c.allReported)
	return due, next, nil
}

// sooner returns the shorter of two delays; 0 means never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}
