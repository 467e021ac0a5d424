package etcdcluster

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

func TestWhatAScheduleAsksFor(t *testing.T) {
	at := func(text string) time.Time {
		parsed, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		return parsed
	}
	weekdays := v1alpha1.EtcdSchedule{Stop: "0 20 * * *", Start: "0 7 * * *", TimeZone: "Europe/Berlin"}
	earlier := v1alpha1.EtcdSchedule{Stop: "0 9 * * *", Start: "0 7 * * *", TimeZone: "Europe/Berlin"}
	for _, c := range []struct {
		name       string
		size       int32
		suspended  int32 // the size at that time; -1 if it is not
		observed   *v1alpha1.EtcdSchedule
		from, now  string
		wants      int // the size that the cluster should have
		upTo, next string
	}{
		{"it begins to count when it is first seen", 3, -1, nil, "", "2026-06-01T10:00:00Z", 3, "2026-06-01T10:00:00Z", "2026-06-01T18:00:00Z"},
		{"nothing was due", 3, -1, &weekdays, "2026-06-01T10:00:00Z", "2026-06-01T17:59:59Z", 3, "2026-06-01T10:00:00Z", "2026-06-01T18:00:00Z"},
		{"in the evening it stops, by the clock of Berlin", 3, -1, &weekdays, "2026-06-01T10:00:00Z", "2026-06-01T18:00:00Z", 0, "2026-06-01T18:00:00Z", "2026-06-02T05:00:00Z"},
		{"in winter that is an hour later", 3, -1, &weekdays, "2026-01-12T10:00:00Z", "2026-01-12T19:00:01Z", 0, "2026-01-12T19:00:00Z", "2026-01-13T06:00:00Z"},
		{"at night it stays stopped", 5, 5, &weekdays, "2026-06-01T18:00:00Z", "2026-06-02T01:00:00Z", 0, "2026-06-01T18:00:00Z", "2026-06-02T05:00:00Z"},
		{"in the morning it has the size that people asked for", 5, 5, &weekdays, "2026-06-01T18:00:00Z", "2026-06-02T05:00:10Z", 5, "2026-06-02T05:00:00Z", "2026-06-02T18:00:00Z"},
		{"another size starts it at night", 1, 5, &weekdays, "2026-06-01T18:00:00Z", "2026-06-02T01:00:10Z", 1, "2026-06-01T18:00:00Z", "2026-06-02T05:00:00Z"},
		{"what people stopped is not started", 0, 3, &weekdays, "2026-06-01T18:00:00Z", "2026-06-02T05:00:10Z", 0, "2026-06-02T05:00:00Z", "2026-06-02T18:00:00Z"},
		{"nor counts as suspended", 0, -1, &weekdays, "2026-06-01T10:00:00Z", "2026-06-01T18:00:00Z", 0, "2026-06-01T18:00:00Z", "2026-06-02T05:00:00Z"},
		{"of times that were missed the latest counts", 3, -1, &weekdays, "2026-06-01T10:00:00Z", "2026-06-04T03:00:00Z", 0, "2026-06-03T18:00:00Z", "2026-06-04T05:00:00Z"},
		{"a start that was missed after a stop", 3, 3, &weekdays, "2026-06-01T10:00:00Z", "2026-06-04T12:00:00Z", 3, "2026-06-04T05:00:00Z", "2026-06-04T18:00:00Z"},
		{"a clock that was a year ahead is forgotten", 3, -1, &weekdays, "2027-06-01T10:00:00Z", "2026-06-01T17:00:00Z", 3, "2026-06-01T17:00:00Z", "2026-06-01T18:00:00Z"},
		{"one that is a little behind does not stop it twice", 3, -1, &weekdays, "2026-06-01T18:00:00Z", "2026-06-01T17:59:58Z", 3, "2026-06-01T18:00:00Z", "2026-06-01T18:00:00Z"},
		{"a schedule that was changed has missed nothing", 3, -1, &earlier, "2026-06-01T05:00:00Z", "2026-06-01T18:30:00Z", 3, "2026-06-01T18:30:00Z", "2026-06-02T05:00:00Z"},
		{"a stopped cluster stays so when its schedule is changed", 3, 3, &earlier, "2026-06-01T05:00:00Z", "2026-06-01T18:30:00Z", 0, "2026-06-01T18:30:00Z", "2026-06-02T05:00:00Z"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ec := &v1alpha1.EtcdCluster{Spec: v1alpha1.EtcdClusterSpec{Size: &c.size, Schedule: &weekdays}, Status: v1alpha1.EtcdClusterStatus{ObservedSchedule: c.observed}}
			if c.from != "" {
				ec.Status.Scheduled = newTime(at(c.from))
			}
			if c.suspended >= 0 {
				ec.Status.Suspended = &v1alpha1.EtcdSuspension{Size: c.suspended}
			}
			status, next, err := Follow(ec, at(c.now))
			if err != nil {
				t.Fatal(err)
			}
			ec.Status = status
			if ec.IsSuspended() != (c.size > 0 && c.wants == 0) {
				t.Errorf("suspended: %t", ec.IsSuspended())
			}
			if ec.Size() != c.wants || !status.Scheduled.Equal(newTime(at(c.upTo))) || !next.Equal(at(c.next)) || *ec.Spec.Size != c.size || *status.ObservedSchedule != weekdays {
				t.Errorf("size %d up to %s, next %s; want %d up to %s, next %s", ec.Size(), status.Scheduled.UTC(), next.UTC(), c.wants, c.upTo, c.next)
			}
			if again, _, _ := Follow(ec, at(c.now)); !equality.Semantic.DeepEqual(again, status) {
				t.Errorf("asked again it changes %+v to %+v", status, again)
			}
		})
	}
}

func TestAClusterWhoseScheduleIsRemovedRuns(t *testing.T) {
	ec := &v1alpha1.EtcdCluster{Status: v1alpha1.EtcdClusterStatus{Scheduled: newTime(noon), ObservedSchedule: &v1alpha1.EtcdSchedule{}, Suspended: &v1alpha1.EtcdSuspension{Size: v1alpha1.EtcdClusterDefaultSize}}}
	if ec.Size() != 0 {
		t.Fatalf("suspended it has size %d", ec.Size())
	}
	var err error
	ec.Status, _, err = Follow(ec, noon)
	if err != nil || ec.Size() != v1alpha1.EtcdClusterDefaultSize || ec.Status.ObservedSchedule != nil || ec.Status.Scheduled != nil {
		t.Errorf("%+v, %v", ec.Status, err)
	}
}

// In Berlin the clock went from 02:00 to 03:00 on 29 March 2026, and from 03:00 to 02:00 on 25 October 2026.
// nextTimes are the times, in UTC, at which something is due after another time.
type nextTimes struct {
	text, from string
	want       []string
}

func checkTimes(t *testing.T, zone string, list []nextTimes) {
	t.Helper()
	location, err := time.LoadLocation(zone)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list {
		s, err := parseCron("stop", c.text, zone)
		if err != nil {
			t.Fatal(err)
		}
		at, err := time.Parse(time.RFC3339, c.from)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range c.want {
			if at = s.Next(at); at.UTC().Format(time.RFC3339) != want {
				t.Errorf("%s after %s: %s (%s), want %s", c.text, c.from, at.UTC().Format(time.RFC3339), at.In(location), want)
				break
			}
		}
	}
}

func TestTimesByTheClockOnTheWall(t *testing.T) {
	checkTimes(t, "Europe/Berlin", []nextTimes{
		{"30 2 * * *", "2026-03-28T12:00:00Z", []string{"2026-03-29T01:30:00Z", "2026-03-30T00:30:00Z"}},
		{"30 2 * * *", "2026-03-29T01:10:00Z", []string{"2026-03-29T01:30:00Z", "2026-03-30T00:30:00Z"}},
		{"30 2 * * *", "2026-10-24T12:00:00Z", []string{"2026-10-25T01:30:00Z", "2026-10-26T01:30:00Z"}},
		{"30 2 * * *", "2026-10-25T00:40:00Z", []string{"2026-10-25T01:30:00Z", "2026-10-26T01:30:00Z"}},
		{"0 7 * * *", "2026-03-28T12:00:00Z", []string{"2026-03-29T05:00:00Z", "2026-03-30T05:00:00Z"}},
		{"0 * * * *", "2026-10-25T00:00:00Z", []string{"2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z"}},
		{"*/30 2 * * 1-5", "2026-06-01T12:00:00Z", []string{"2026-06-02T00:00:00Z", "2026-06-02T00:30:00Z", "2026-06-03T00:00:00Z"}},
	})
}

// In Havana the clock goes from 00:00 to 01:00 on 8 March 2026, and from 01:00 to 00:00 on 1 November 2026.
func TestSchedulesByName(t *testing.T) {
	checkTimes(t, "America/Havana", []nextTimes{
		{"@daily", "2026-03-07T12:00:00Z", []string{"2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z"}},
		{"30 0 * * *", "2026-03-07T12:00:00Z", []string{"2026-03-08T05:30:00Z", "2026-03-09T04:30:00Z"}},
		{"30 1 * * *", "2026-03-07T12:00:00Z", []string{"2026-03-08T05:30:00Z", "2026-03-09T05:30:00Z"}},
		{"30 23 * * *", "2026-03-07T12:00:00Z", []string{"2026-03-08T04:30:00Z", "2026-03-09T03:30:00Z"}},
		{"30 0 * * *", "2026-10-31T12:00:00Z", []string{"2026-11-01T05:30:00Z", "2026-11-02T05:30:00Z"}},
		{"30 1 * * *", "2026-10-31T12:00:00Z", []string{"2026-11-01T06:30:00Z", "2026-11-02T06:30:00Z"}},
		{"30 23 * * *", "2026-10-31T12:00:00Z", []string{"2026-11-01T03:30:00Z", "2026-11-02T04:30:00Z"}},
		{" @midnight", "2026-10-31T12:00:00Z", []string{"2026-11-01T05:00:00Z", "2026-11-02T05:00:00Z"}},
		{"@hourly", "2026-11-01T03:30:00Z", []string{"2026-11-01T04:00:00Z", "2026-11-01T05:00:00Z", "2026-11-01T06:00:00Z"}},
		{"@every 5h", "2026-06-01T00:00:00Z", []string{"2026-06-01T05:00:00Z", "2026-06-01T10:00:00Z"}},
	})
}

func TestABadScheduleIsNamed(t *testing.T) {
	for _, c := range []struct {
		schedule v1alpha1.EtcdSchedule
		want     string
	}{
		{v1alpha1.EtcdSchedule{Stop: "every day"}, `spec.schedule.stop "every day": expected exactly 5 fields, found 2: [every day]`},
		{v1alpha1.EtcdSchedule{Start: "0 7 * * *", TimeZone: "Moon"}, `spec.schedule.timeZone "Moon" is not known: unknown time zone Moon`},
		{v1alpha1.EtcdSchedule{Start: "TZ=UTC 0 7 * * *"}, `spec.schedule.start "TZ=UTC 0 7 * * *": name the time zone in spec.schedule.timeZone`},
	} {
		running := v1alpha1.EtcdClusterStatus{Scheduled: newTime(noon)}
		status, _, err := Follow(&v1alpha1.EtcdCluster{Spec: v1alpha1.EtcdClusterSpec{Schedule: &c.schedule}, Status: running}, noon)
		if err == nil || err.Error() != c.want {
			t.Errorf("%v, want %s", err, c.want)
		}
		if said := meta.FindStatusCondition(status.Conditions, v1alpha1.EtcdScheduleValid); said == nil || said.Status != metav1.ConditionFalse || said.Message != c.want || status.Suspended != nil {
			t.Errorf("the status says %+v", status)
		}
	}
}

// Another size than the one that was suspended starts the cluster for good: the former size does not suspend it again, even if the schedule
// cannot be read any more.
func TestASizeThatEndsASuspensionEndsItForGood(t *testing.T) {
	size := int32(1)
	for _, s := range []v1alpha1.EtcdSchedule{{Stop: "0 20 * * *"}, {Stop: "every day"}} {
		ec := &v1alpha1.EtcdCluster{
			Spec:   v1alpha1.EtcdClusterSpec{Size: &size, Schedule: &s},
			Status: v1alpha1.EtcdClusterStatus{Scheduled: newTime(noon), Suspended: &v1alpha1.EtcdSuspension{Size: 5}},
		}
		ec.Status, _, _ = Follow(ec, noon)
		five := int32(5)
		if ec.Spec.Size = &five; ec.Size() != 5 {
			t.Errorf("%q: with its former size it is suspended again: %+v", s.Stop, ec.Status.Suspended)
		}
	}
}
