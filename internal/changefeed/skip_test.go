package changefeed

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

func TestWhatMayBeSkippedAndResumed(t *testing.T) {
	began := int64(3)
	feed := func(state v1alpha1.ChangefeedState, skip ...string) *v1alpha1.Changefeed {
		return &v1alpha1.Changefeed{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: v1alpha1.ChangefeedSpec{Skip: skip}, Status: v1alpha1.ChangefeedStatus{State: state, Checkpoint: 50, StartPosition: &began}}
	}
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"skip", maySkip(feed(v1alpha1.ChangefeedFailed), "0-1-51"), ""},
		{"skip twice", maySkip(feed(v1alpha1.ChangefeedPaused, "0-1-51"), "0-1-51"), "changefeed shop skips GTID 0-1-51 already"},
		{"skip what is replicated", maySkip(feed(v1alpha1.ChangefeedPaused), "0-1-50"), "changefeed shop has replicated everything up to its checkpoint 50, so GTID 0-1-50 can no longer be skipped"},
		{"skip while it runs", maySkip(feed(v1alpha1.ChangefeedRunning), "0-1-51"), "changefeed shop is running, and some of its tables may have passed GTID 0-1-51; run 'ebb changefeed pause shop' first"},
		{"skip nonsense", maySkip(feed(v1alpha1.ChangefeedPaused), "x"), `start position "x" is neither a GTID such as 0-1-100 nor the sequence number of one`},
		{"resume", mayResumeFrom(feed(v1alpha1.ChangefeedPaused), "0-1-60", true), ""},
		{"resume without consent", mayResumeFrom(feed(v1alpha1.ChangefeedFailed), "0-1-60", false), "resuming changefeed shop after GTID 0-1-60 leaves out the transactions after its checkpoint 50, up to 10 of them, with their rows and DDL, except what some tables have already: first change the sink by hand to what it would be after them, then add --leave-out-transactions"},
		{"resume before the checkpoint", mayResumeFrom(feed(v1alpha1.ChangefeedPaused), "0-1-49", true), "changefeed shop has everything up to its checkpoint 50 at its sink, and never writes that again; to start at GTID 0-1-49, create another changefeed with --start-position, from a copy taken there"},
		{"resume while it runs", mayResumeFrom(feed(v1alpha1.ChangefeedRunning), "0-1-60", true), "changefeed shop is running; run 'ebb changefeed pause shop' first"},
	} {
		if got := ""; c.err != nil && c.err.Error() != c.want || c.err == nil && c.want != got {
			t.Errorf("%s: %v\nwant %s", c.name, c.err, c.want)
		}
	}
}
