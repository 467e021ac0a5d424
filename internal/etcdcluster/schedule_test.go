package etcdcluster

import (
	"testing"
	"time"

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
	for _, c := range []struct {
		name       string
		size       int32
		rest       int32
		from, now  string
		wants      int32 // -1 for nothing
		upTo, next string
	}{
		{"it begins to count when it is first seen", 3, 0, "", "2026-06-01T10:00:00Z", -1, "2026-06-01T10:00:00Z", "2026-06-01T18:00:00Z"},
		{"nothing was due", 3, 0, "2026-06-01T10:00:00Z", "2026-06-01T17:59:59Z", -1, "2026-06-01T10:00:00Z", "2026-06-01T18:00:00Z"},
		{"in the evening it stops, by the clock of Berlin", 3, 0, "2026-06-01T10:00:00Z", "2026-06-01T18:00:00Z", 0, "2026-06-01T18:00:00Z", "2026-06-02T05:00:00Z"},
		{"in winter that is an hour later", 3, 0, "2026-01-12T10:00:00Z", "2026-01-12T19:00:01Z", 0, "2026-01-12T19:00:00Z", "2026-01-13T06:00:00Z"},
		{"in the morning it has the size that it had", 0, 5, "2026-06-01T18:00:00Z", "2026-06-02T05:00:10Z", 5, "2026-06-02T05:00:00Z", "2026-06-02T18:00:00Z"},
		{"what runs already stays as it is", 1, 5, "2026-06-01T18:00:00Z", "2026-06-02T05:00:10Z", -1, "2026-06-02T05:00:00Z", "2026-06-02T18:00:00Z"},
		{"of times that were missed the latest counts", 3, 0, "2026-06-01T10:00:00Z", "2026-06-04T03:00:00Z", 0, "2026-06-03T18:00:00Z", "2026-06-04T05:00:00Z"},
		{"a start that was missed after a stop", 0, 3, "2026-06-01T10:00:00Z", "2026-06-04T12:00:00Z", 3, "2026-06-04T05:00:00Z", "2026-06-04T18:00:00Z"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ec := &v1alpha1.EtcdCluster{Spec: v1alpha1.EtcdClusterSpec{Size: &c.size, Schedule: &v1alpha1.EtcdSchedule{Stop: "0 20 * * *", Start: "0 7 * * *", TimeZone: "Europe/Berlin"}}}
			if c.from != "" {
				ec.Status.Scheduled = newTime(at(c.from))
			}
			if c.rest > 0 {
				ec.Status.Rest = &v1alpha1.EtcdStoppedState{Size: c.rest}
			}
			due, err := Due(ec, at(c.now))
			if err != nil {
				t.Fatal(err)
			}
			got := int32(-1)
			if due.Size != nil {
				got = *due.Size
			}
			if got != c.wants || !due.UpTo.Equal(at(c.upTo)) || !due.Next.Equal(at(c.next)) {
				t.Errorf("size %d up to %s, next %s; want %d up to %s, next %s", got, due.UpTo.UTC(), due.Next.UTC(), c.wants, c.upTo, c.next)
			}
		})
	}
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
		_, err := Due(&v1alpha1.EtcdCluster{Spec: v1alpha1.EtcdClusterSpec{Schedule: &c.schedule}}, noon)
		if err == nil || err.Error() != c.want {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
}
