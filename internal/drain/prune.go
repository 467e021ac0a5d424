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

// What of finished drains is kept where Settings do not say.
const (
	// DefaultHistoryLimit is how many finished drains are kept.
	DefaultHistoryLimit = 100
	// DefaultHistoryAge is for how long a finished drain is kept.
	DefaultHistoryAge = 7 * 24 * time.Hour
)

const (
	// readable is how long a drain stays after its end in any case: whoever asked for it has to read how it ended.
	readable = time.Minute
	// pruneAgain is when pruning is tried again after an error.
	pruneAgain = time.Minute
	// maxPruned bounds the deletions of one reconciliation; the next one goes on.
	maxPruned = 20
)

// Prune decides which finished drains are deleted now, the one that ended first before the others, and how long after that the next
// one will be due; 0 if none will. It never chooses a drain that has not ended, the one that holds the slot, or one of which told
// says that its events are not written yet. Refused drains have ended like any other.
func Prune(drains []*v1alpha1.Drain, settings *v1alpha1.Settings, now time.Time, told func(*v1alpha1.Drain) bool) (due []*v1alpha1.Drain, next time.Duration) {
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
		case left > 0, slot != nil && slot.UID == string(d.UID), !told(d):
		default:
			due = append(due, d)
		}
	}
	slices.Reverse(due)
	return due, next
}

// history is how many finished drains are kept, and for how long.
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

// newestFirst are the drains that have ended and are not being deleted, by when they ended and then by name.
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

// endOf is when a drain ended.
func endOf(d *v1alpha1.Drain) time.Time {
	if d.Status.FinishedAt == nil {
		return d.CreationTimestamp.Time
	}
	return d.Status.FinishedAt.Time
}

// prune deletes what is due and returns when to look again; 0 if nothing will be due. The cache tells whether there is anything to
// do; what is deleted was read live. Failing to prune is no reason to hold up a drain: it is logged and tried again.
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

// pruneLive deletes what is due by what the server has now.
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

// due reads what Prune decides about.
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
	due, next := Prune(drains, settings, time.Now(), c.toldAll)
	return due, next, nil
}

// sooner is the shorter of two times to look again; 0 means never.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}
