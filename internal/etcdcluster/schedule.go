package etcdcluster

import (
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// maxLookback is how far back missed times are looked for.
const maxLookback = 400 * 24 * time.Hour

// Scheduled is what a schedule asks for.
type Scheduled struct {
	// Size to scale to, or nil to leave it as it is.
	Size *int32
	// UpTo is the time up to which the schedule is followed once Size is set.
	UpTo time.Time
	// Next is when the schedule asks for something again; zero for never.
	Next time.Time
}

// Due returns what a cluster's schedule asks for now. Of times that were missed, only the latest counts.
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
	from := c.Status.Scheduled
	if from == nil {
		return due, nil // a new schedule has missed nothing
	}
	due.UpTo = from.Time
	since := from.Time
	if now.Sub(since) > maxLookback {
		since = now.Add(-maxLookback)
	}
	stopped, started := latest(stop, since, now), latest(start, since, now)
	switch {
	case stopped.IsZero() && started.IsZero():
		return due, nil
	case started.After(stopped):
		size := int32(v1alpha1.EtcdClusterDefaultSize)
		if rest := c.Status.Rest; rest != nil && rest.Size > 0 {
			size = rest.Size
		}
		due.UpTo = started
		if c.Size() == 0 {
			due.Size = &size
		}
	default:
		due.UpTo, due.Size = stopped, new(int32)
	}
	return due, nil
}

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
	if _, err := time.LoadLocation(zone); err != nil {
		return nil, fmt.Errorf("spec.schedule.timeZone %q is not known: %w", zone, err)
	}
	parsed, err := cron.ParseStandard("CRON_TZ=" + zone + " " + text)
	if err != nil {
		return nil, fmt.Errorf("spec.schedule.%s %q: %w", name, text, err)
	}
	return parsed, nil
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
