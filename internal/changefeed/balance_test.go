package changefeed_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed"
)

func TestHowLongAfterADrainAnythingIsBalanced(t *testing.T) {
	for _, c := range []struct {
		name string
		set  *metav1.Duration
		want time.Duration
	}{
		{"not set", nil, 30 * time.Second},
		{"set", &metav1.Duration{Duration: 2 * time.Minute}, 2 * time.Minute},
		{"nothing, which the schema refuses", &metav1.Duration{}, 30 * time.Second},
	} {
		s := &v1alpha1.Settings{}
		s.Spec.Drain.BalanceAfter = c.set
		if got := changefeed.BalanceAfter(s); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
