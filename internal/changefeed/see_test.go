package changefeed

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// A maintainer that took an older version for the newest would go on after its placement is over.
func TestAMaintainerNeverGoesBackToAnOlderObject(t *testing.T) {
	version := func(uid, number string) *v1alpha1.Changefeed {
		cf := &v1alpha1.Changefeed{}
		cf.UID, cf.ResourceVersion = types.UID(uid), number
		return cf
	}
	m := &maintainer{object: version("1", "9"), wake: make(chan struct{}, 1)}
	for _, c := range []struct {
		see  *v1alpha1.Changefeed
		want string
	}{{version("1", "10"), "10"}, {version("1", "9"), "10"}, {version("1", "10"), "10"}, {version("1", "100"), "100"}, {version("2", "5"), "5"}} {
		if m.see(c.see); m.latest().ResourceVersion != c.want {
			t.Errorf("after %s it has %s, want %s", c.see.ResourceVersion, m.latest().ResourceVersion, c.want)
		}
	}
}
