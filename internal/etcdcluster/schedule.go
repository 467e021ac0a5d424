package etcdcluster

import (
	"fmt"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // the image of Ebb, and small hosts, have no time zones

	"github.com/robfig/cron/v3"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

const (
	// maxLookback is how far back missed times are looked for.
	maxLookback = 400 * 24 * time.Hour
	// maxAhead is how far the clocks of coordinators may differ: up to that, a time that one of them has acted on does not come again.
	maxAhead = 10 * time.Minute
)

// Scheduled is what a schedule asks for.
type Scheduled struct {
	// Suspended is what status.suspended should be.
	Suspended *v1alpha1.EtcdSuspension
	// UpTo is the time up to which the schedule is followed once Suspended is written.
	UpTo time.Time
	// Next is when the schedule asks for something again; zero for never.
	Next time.Time
}

// Follow returns the status of a cluster that follows its schedule, and when the schedule asks for something next; zero for never. A schedule that
// cannot be followed is a condition and an error: the size that the cluster should have does not change.
func Follow(c *v1alpha1.EtcdCluster, now time.Time) (v1alpha1.EtcdClusterStatus, time.Time, error) {
	s := *c.Status.DeepCopy()
	if c.Spec.Schedule == nil {
		s.Scheduled, s.ObservedSchedule, s.Suspended = nil, nil, nil
		meta.RemoveStatusCondition(&s.Conditions, v1alpha1.EtcdScheduleValid)
		return s, time.Time{}, nil
	}
	valid := metav1.Condition{Type: v1alpha1.EtcdScheduleValid, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonEtcdFollowed, ObservedGeneration: c.Generation}
	due, err := Due(c, now)
	if err != nil {
		valid.Status, valid.Reason, valid.Message = metav1.ConditionFalse, v1alpha1.ReasonEtcdBadSchedule, err.Error()
		if !c.IsSuspended() {
			s.Suspended = nil // another size has ended it, and the former one must not bring it back
		}
	} else {
		s.Scheduled, s.ObservedSchedule, s.Suspended = newTime(due.UpTo), c.Spec.Schedule.DeepCopy(), due.Suspended
	}
	if was := meta.FindStatusCondition(s.Conditions, valid.Type); was == nil || was.Status != valid.Status {
		valid.LastTransitionTime = metav1.NewTime(now)
	}
	meta.SetStatusCondition(&s.Conditions, valid)
	return s, due.Next, err
}

// Due returns what a cluster's schedule asks for now. Of times that were missed, only the latest counts. A schedule that is new or was changed
// has missed nothing, and neither has one that was followed by a clock that was far ahead: otherwise it would rest until that time comes.
func Due(c *v1alpha1.EtcdCluster, now time.Time) (Scheduled, error) {
	s := c.Spec.Schedule
	now = now.Truncate(time.Second)
	stop, err := parseCron("stop", s.Stop, s.TimeZone)
	if err != nil {
		return Scheduled{}, err
	}
	start, err := parseCron("start", s.Start, s.TimeZone)
	if err != nil {
		return Scheduled{}, err
	}
	due := Scheduled{UpTo: now, Next: soonest(next(stop, now), next(start, now))}
	if c.IsSuspended() {
		due.Suspended = c.Status.Suspended
	}
	from := c.Status.Scheduled
	if from == nil || c.Status.ObservedSchedule == nil || *c.Status.ObservedSchedule != *s || from.Sub(now) > maxAhead {
		return due, nil
	}
	due.UpTo = from.Time
	since := from.Time
	if now.Sub(since) > maxLookback {
		since = now.Add(-maxLookback)
	}
	stopped, started := latest(stop, since, now), latest(start, since, now)
	switch {
	case stopped.IsZero() && started.IsZero():
	case started.After(stopped):
		due.UpTo, due.Suspended = started, nil
	case c.SpecSize() == 0:
		due.UpTo = stopped
	default:
		due.UpTo, due.Suspended = stopped, &v1alpha1.EtcdSuspension{Since: *newTime(stopped), Size: int32(c.SpecSize())}
	}
	return due, nil
}

// parseCron reads a cron expression. An expression with fixed hours and minutes follows local time: a time that the change to summer
// time skips comes at the end of the skipped hour, and a time that the change to winter time repeats comes once. Others follow elapsed time.
func parseCron(name, text, zone string) (cron.Schedule, error) {
	if text == "" {
		return nil, nil
	}
	if strings.Contains(text, "TZ=") {
		return nil, fmt.Errorf("spec.schedule.%s %q: name the time zone in spec.schedule.timeZone", name, text)
	}
	if zone == "" {
		zone = "UTC"
	}
	place, err := time.LoadLocation(zone)
	if err != nil {
		return nil, fmt.Errorf("spec.schedule.timeZone %q is not known: %w", zone, err)
	}
	parsed, err := cron.ParseStandard("CRON_TZ=" + zone + " " + text)
	if err != nil {
		return nil, fmt.Errorf("spec.schedule.%s %q: %w", name, text, err)
	}
	if fields := strings.Fields(text); !slices.Contains(atMidnight, strings.TrimSpace(text)) && (len(fields) < 2 || fields[0] == "@every" || strings.Contains(fields[0]+fields[1], "*")) {
		return parsed, nil
	}
	if parsed, err = cron.ParseStandard("CRON_TZ=UTC " + text); err != nil {
		return nil, fmt.Errorf("spec.schedule.%s %q: %w", name, text, err)
	}
	return wallClock{parsed, place}, nil
}

// atMidnight are the names of schedules with a fixed hour and minute.
var atMidnight = []string{"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight"}

// wallClock is a schedule by the local time of a place. It treats local time as UTC, which skips and repeats nothing.
type wallClock struct {
	cron.Schedule
	place *time.Location
}

// longestShift is more than any change of a clock.
const longestShift = 3 * time.Hour

func (w wallClock) Next(after time.Time) time.Time {
	local := after.In(w.place)
	wall := time.Date(local.Year(), local.Month(), local.Day(), local.Hour(), local.Minute(), local.Second(), 0, time.UTC)
	for at := w.Schedule.Next(wall.Add(-longestShift)); !at.IsZero(); at = w.Schedule.Next(at) {
		if on := w.onWall(at); on.After(after) {
			return on
		}
	}
	return time.Time{}
}

// onWall returns when a local time comes: one that is repeated the second time, one that is skipped as much later as the clock is changed.
// What time.Date returns for these depends on whether the place is east or west of Greenwich.
func (w wallClock) onWall(wall time.Time) time.Time {
	near := time.Date(wall.Year(), wall.Month(), wall.Day(), wall.Hour(), wall.Minute(), 0, 0, w.place)
	with := func(offsetOf time.Time) time.Time {
		_, offset := offsetOf.Zone()
		return wall.Add(-time.Duration(offset) * time.Second).In(w.place)
	}
	early, late := with(near.Add(-longestShift)), with(near.Add(longestShift))
	if late.Before(early) {
		early, late = late, early
	}
	if shows := func(at time.Time) bool { return at.Hour() == wall.Hour() && at.Minute() == wall.Minute() }; shows(early) && !shows(late) {
		return early
	}
	return late
}

func next(s cron.Schedule, after time.Time) time.Time {
	if s == nil {
		return time.Time{}
	}
	return s.Next(after)
}

func soonest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// latest returns the last time of a schedule after since and not after now; zero if there is none.
func latest(s cron.Schedule, since, now time.Time) time.Time {
	var last time.Time
	for at := next(s, since); !at.IsZero() && !at.After(now); at = s.Next(at) {
		last = at
	}
	return last
}
