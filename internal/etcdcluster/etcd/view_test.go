package etcd

import (
	"slices"
	"testing"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

func TestOnlyMembersOfTheCurrentIncarnationAreAsked(t *testing.T) {
	target := Target{Cluster: &v1alpha1.EtcdCluster{Status: v1alpha1.EtcdClusterStatus{Incarnation: 2}}}
	for _, incarnation := range []int64{1, 2, 3} {
		target.Members = append(target.Members, &v1alpha1.EtcdMember{Spec: v1alpha1.EtcdMemberSpec{Incarnation: incarnation}})
	}
	if got := target.current(); len(got) != 1 || got[0].Spec.Incarnation != 2 {
		t.Errorf("%d members are asked", len(got))
	}
	if len(target.Members) != 3 {
		t.Error("the members that were given have changed")
	}
}

func TestTheListIsAskedOfHealthyVotersTheLeaderFirst(t *testing.T) {
	ends := []*endpoint{{name: "silent"}, {name: "learner"}, {name: "voter"}, {name: "leader"}, {name: "leaderless"}}
	health := map[string]Health{
		"silent": {Error: "does not answer"}, "learner": {Answered: true, ID: 1, Leader: 3, Learner: true}, "voter": {Answered: true, ID: 2, Leader: 3},
		"leader": {Answered: true, ID: 3, Leader: 3}, "leaderless": {Answered: true, ID: 4},
	}
	var got []string
	for _, e := range listers(ends, health) {
		got = append(got, e.name)
	}
	if want := []string{"leader", "voter"}; !slices.Equal(got, want) {
		t.Errorf("asked are %v, want %v", got, want)
	}
}

func TestHealthyVotersAreCountedWithoutTheOneThatLeaves(t *testing.T) {
	ok := func(id uint64) Health { return Health{Answered: true, ID: id, Leader: 1} }
	l := listing{
		peers:  []Peer{{ID: 1}, {ID: 2}, {ID: 3}, {ID: 4, Learner: true}},
		health: map[string]Health{"a": ok(1), "b": ok(2), "c": {Error: "does not answer"}, "d": ok(4)},
	}
	for _, c := range []struct {
		without         uint64
		healthy, voters int
	}{{0, 2, 3}, {1, 1, 2}, {3, 2, 2}, {4, 2, 3}} {
		if healthy, voters := l.healthyWithout(c.without); healthy != c.healthy || voters != c.voters {
			t.Errorf("without %d: %d of %d, want %d of %d", c.without, healthy, voters, c.healthy, c.voters)
		}
	}
}

func TestAMemberIsFoundByItsIDOnceThatIsKnown(t *testing.T) {
	list := []Peer{{ID: 0xa1, PeerURL: "https://a"}, {ID: 0xb2, PeerURL: "https://b"}}
	for _, c := range []struct {
		name, id, url string
		want          uint64
	}{
		{"by its ID", "a1", "https://a", 0xa1},
		{"at another address", "a1", "https://c", 0xa1},
		{"at the address of another one", "a1", "https://b", 0xa1},
		{"before it has reported its ID", "", "https://b", 0xb2},
		{"not at all, if it was removed and another one listens there", "ff", "https://b", 0},
		{"not at all, if it has no address", "a1", "", 0},
	} {
		m := &v1alpha1.EtcdMember{Status: v1alpha1.EtcdMemberStatus{ID: c.id, PeerURL: c.url}}
		if p, found := PeerOf(list, m); p.ID != c.want || found != (c.want != 0) {
			t.Errorf("%s: %x, %t", c.name, p.ID, found)
		}
	}
}

func TestQuorum(t *testing.T) {
	for voters, want := range map[int]int{1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 7: 4} {
		if got := Quorum(voters); got != want {
			t.Errorf("of %d voters %d, want %d", voters, got, want)
		}
	}
}
