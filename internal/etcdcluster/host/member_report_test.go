package host

import (
	"testing"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

func TestPublishedURLsChangeOnlyToWhereTheSpecLetsTheMemberMove(t *testing.T) {
	for _, c := range []struct {
		name, published, spec, known, want string
	}{
		{"the first ones are published", "", "", "a", "a"},
		{"a worker that does not know them clears nothing", "a", "", "", "a"},
		{"nor after a move was allowed", "a", "b", "", "a"},
		{"a member that moved publishes where to", "a", "b", "b", "b"},
		{"not without leave", "a", "", "b", "a"},
		{"nor to another place", "a", "c", "b", "a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := &v1alpha1.EtcdMember{
				Spec: v1alpha1.EtcdMemberSpec{PeerURL: c.spec}, Status: v1alpha1.EtcdMemberStatus{PeerURL: c.published, ClientURL: c.published},
			}
			next := v1alpha1.EtcdMemberStatus{PeerURL: c.known, ClientURL: c.known}
			keepURLs(&next, o)
			if next.PeerURL != c.want || next.ClientURL != c.want {
				t.Errorf("published are %q and %q, want %q", next.PeerURL, next.ClientURL, c.want)
			}
		})
	}
}
