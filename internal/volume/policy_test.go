package volume

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

var policies = []v1alpha1.NodeDrainPolicy{
	v1alpha1.AlwaysAllow, v1alpha1.AllowIfReplicaIsStopped, v1alpha1.BlockIfContainsLastReplica, v1alpha1.BlockForEviction,
	v1alpha1.BlockForEvictionIfContainsLastReplica,
}

// shape is one case of the cross product: words only, so that the oracle knows nothing of the objects.
type shape struct {
	policy  v1alpha1.NodeDrainPolicy
	node    string // of the replica in question: well, cordoned, draining, down, gone
	asked   string // "", node, disk, replica
	own     string // the replica itself: healthy, failed, unused, rebuilding
	was     bool   // it was being evicted already
	volume  string // attached, stopped, rebuilding, detached-by-drain
	peers   []peerShape
	replace bool // the first peer is the replacement
}

type peerShape struct{ own, node string } // node: well, cordoned, down, gone, same, released, deleting

func (s shape) String() string {
	return fmt.Sprintf("%s node=%s asked=%q own=%s was=%v volume=%s peers=%v replacement=%v", s.policy, s.node, s.asked, s.own, s.was, s.volume, s.peers, s.replace)
}

// mayGo is the table, read anew.
func (s shape) mayGo() bool {
	if s.policy == v1alpha1.AlwaysAllow {
		return true
	}
	if s.policy == v1alpha1.BlockForEviction {
		return false // it is still there
	}
	if s.own == "unused" || s.own == "rebuilding" {
		return true
	}
	if s.policy == v1alpha1.AllowIfReplicaIsStopped && s.volume == "stopped" {
		return true
	}
	return s.protectedPeer()
}

func (s shape) protectedPeer() bool {
	for _, p := range s.peers {
		if p.own == "healthy" && p.node == "well" {
			return true
		}
	}
	return false
}

// evicts is the order of the rules, read anew.
func (s shape) evicts() (bool, string) {
	switch {
	case s.node == "down" || s.node == "gone":
		return false, "EvictionCanceled"
	case s.asked != "":
		return true, "EvictionUserRequested"
	case s.node == "well":
		return false, "EvictionCanceled"
	case s.policy == v1alpha1.BlockForEviction:
		return true, "EvictionAutomatic"
	case s.policy != v1alpha1.BlockForEvictionIfContainsLastReplica:
		return false, "EvictionCanceled"
	case !s.protectedPeer():
		return true, "EvictionAutomatic"
	case s.was && s.replace && s.peers[0].own == "healthy" && s.peers[0].node != "deleting":
		return true, "EvictionAutomatic" // latched
	}
	return false, "EvictionCanceled"
}

// build makes the objects of a shape; the replica in question is the first.
func (s shape) build() (World, *v1alpha1.Replica) {
	w := newScene(int32(len(s.peers)+1), "a", "b", "c")
	w.policy(s.policy)
	add := func(own, node string) *v1alpha1.Replica {
		switch own {
		case "healthy":
			return w.healthy(node)
		case "failed":
			return w.failed(node)
		}
		return w.unused(node)
	}
	r := add(s.own, "a")
	r.Spec.EvictionRequested = s.was
	for i, p := range s.peers {
		node := []string{"b", "c"}[i]
		if p.node == "same" {
			node = "a"
		}
		other := add(p.own, node)
		if i == 0 && s.replace {
			other.Spec.Replaces = r.Name
		}
		switch p.node {
		case "cordoned":
			w.cordon(node)
		case "down":
			w.down(node)
		case "gone":
			w.gone(node)
		case "released":
			w.release(other, v1alpha1.ReleaseToEvict)
		case "deleting":
			deletedAt(other)
		}
	}
	switch s.node {
	case "cordoned":
		w.cordon("a")
	case "draining":
		w.drain("a")
	case "down":
		w.down("a")
	case "gone":
		w.gone("a")
	}
	switch s.asked {
	case "node":
		if n := w.Nodes["a"]; n != nil {
			n.Spec.EvictionRequested = true
		}
	case "disk":
		if n := w.Nodes["a"]; n != nil {
			n.Spec.Disks = []v1alpha1.Disk{{Name: "default", Path: "/d", EvictionRequested: true}}
		}
	case "replica":
		r.Annotations = map[string]string{v1alpha1.EvictAnnotation: "true"}
	}
	switch s.volume {
	case "attached":
		w.attach("b", 0)
	case "rebuilding":
		w.Volume.Status.RebuildOn = "b"
	case "detached-by-drain":
		w.Volume.Status.DetachedFor = "uid-d"
	}
	if s.own == "rebuilding" {
		w.Volume.Status.Engine = &v1alpha1.VolumeEngine{Node: "b", Rebuilds: []v1alpha1.VolumeRebuild{{Replica: r.Name, DoneBytes: 1, TotalBytes: 2}}}
	}
	return w.World, r
}

// everyShape calls f with the whole cross product.
func everyShape(f func(shape)) {
	var peers [][]peerShape
	var one []peerShape
	for _, node := range []string{"well", "cordoned", "down", "gone", "same", "released", "deleting"} {
		one = append(one, peerShape{"healthy", node})
	}
	for _, node := range []string{"well", "cordoned", "gone"} {
		one = append(one, peerShape{"failed", node}, peerShape{"unused", node}, peerShape{"rebuilding", node})
	}
	peers = append(peers, nil)
	for i, a := range one {
		peers = append(peers, []peerShape{a})
		for _, b := range one[i:] {
			peers = append(peers, []peerShape{a, b})
		}
	}
	for _, policy := range policies {
		for _, node := range []string{"well", "cordoned", "draining", "down", "gone"} {
			for _, own := range []string{"healthy", "failed", "unused", "rebuilding"} {
				for _, volume := range []string{"attached", "stopped", "rebuilding", "detached-by-drain"} {
					for _, p := range peers {
						for _, more := range []struct {
							asked        string
							was, replace bool
						}{{}, {"node", false, false}, {"disk", false, false}, {"replica", true, false}, {"", true, false}, {"", true, true}, {"", false, true}} {
							if more.replace && len(p) == 0 || volume != "attached" && (more.asked != "" || more.was) {
								continue
							}
							f(shape{policy, node, more.asked, own, more.was, volume, p, more.replace})
						}
					}
				}
			}
		}
	}
}

func TestThePoliciesAreTheTable(t *testing.T) {
	cases := 0
	everyShape(func(s shape) {
		cases++
		w, r := s.build()
		if s.own == "rebuilding" && s.volume == "stopped" {
			return // a rebuild is an engine
		}
		if got := w.MayGo(r); got.Allowed != s.mayGo() || got.Reason == "" || got.Remedy == "" {
			t.Fatalf("%s: may go: %+v, want %v", s, got, s.mayGo())
		}
		want, event := s.evicts()
		if got := w.Eviction(r); got.Requested != want || got.Event != event || got.Why == "" {
			t.Fatalf("%s: eviction: %+v, want %v %s", s, got, want, event)
		}
	})
	if cases < 50_000 {
		t.Errorf("only %d cases", cases)
	}
}

func TestTheWordsOfThePolicies(t *testing.T) {
	for _, c := range []struct {
		name string
		make func() (World, *v1alpha1.Replica)
		want Verdict
	}{
		{"the only replica", func() (World, *v1alpha1.Replica) {
			s := newScene(1, "n1", "n2")
			return s.World, s.healthy("n1")
		}, Verdict{false, "LastHealthyReplica", "volume data, replica data-r1 on node n1: it is the last copy of the volume; evict the replica (`ebb volume replica evict data-r1`), or set the node drain policy to block-for-eviction-if-contains-last-replica"}},
		{"the peer's node is cordoned", func() (World, *v1alpha1.Replica) {
			s := newScene(2, "n1", "n2")
			r := s.healthy("n1")
			s.healthy("n2")
			return s.cordon("n2").World, r
		}, Verdict{false, "LastHealthyReplica", "volume data, replica data-r1 on node n1: it is the last copy: data-r2 on node n2 does not count (its node is cordoned); uncordon node n2, or evict the replica (`ebb volume replica evict data-r1`)"}},
		{"one peer is down and one failed", func() (World, *v1alpha1.Replica) {
			s := newScene(3, "n1", "n2", "n3")
			r := s.healthy("n1")
			s.healthy("n2")
			s.failed("n3")
			return s.down("n2").World, r
		}, Verdict{false, "LastHealthyReplica", "volume data, replica data-r1 on node n1: it is the last copy: data-r2 on node n2 does not count (its node is down), data-r3 on node n3 does not count (failed); start node n2, or evict the replica (`ebb volume replica evict data-r1`)"}},
		{"the peer was released", func() (World, *v1alpha1.Replica) {
			s := newScene(2, "n1", "n2")
			r := s.healthy("n1")
			return s.release(s.healthy("n2"), v1alpha1.ReleaseForDrain).World, r
		}, Verdict{false, "LastHealthyReplica", "volume data, replica data-r1 on node n1: it is the last copy: data-r2 on node n2 does not count (released); evict the replica (`ebb volume replica evict data-r1`), or set the node drain policy to block-for-eviction-if-contains-last-replica"}},
		{"the only replica failed", func() (World, *v1alpha1.Replica) {
			s := newScene(1, "n1")
			return s.World, s.failed("n1")
		}, Verdict{false, "LastHealthyReplica", "volume data, replica data-r1 on node n1: it is not healthy, and the volume has no other copy; if it is not needed any more, remove it (`ebb volume replica rm data-r1`)"}},
		{"a protected peer", func() (World, *v1alpha1.Replica) {
			s := newScene(2, "n1", "n2")
			r := s.healthy("n1")
			s.healthy("n2")
			return s.World, r
		}, Verdict{true, "PeerProtects", "volume data, replica data-r1 on node n1: data-r2 on node n2 has every write"}},
		{"a stopped volume", func() (World, *v1alpha1.Replica) {
			s := newScene(1, "n1")
			return s.policy(v1alpha1.AllowIfReplicaIsStopped).World, s.healthy("n1")
		}, Verdict{true, "VolumeStopped", "volume data, replica data-r1 on node n1: the volume is detached and has no engine"}},
		{"always", func() (World, *v1alpha1.Replica) {
			s := newScene(1, "n1")
			return s.policy(v1alpha1.AlwaysAllow).World, s.healthy("n1")
		}, Verdict{true, "PolicyAllows", "volume data, replica data-r1 on node n1: policy always-allow lets every replica leave"}},
		{"eviction that is being built", func() (World, *v1alpha1.Replica) {
			s := newScene(1, "n1", "n2")
			r := s.healthy("n1")
			s.unused("n2").Spec.Replaces = r.Name
			s.Volume.Status.Engine = &v1alpha1.VolumeEngine{Node: "n2", Rebuilds: []v1alpha1.VolumeRebuild{{Replica: "data-r2", DoneBytes: 35, TotalBytes: 100}}}
			return s.policy(v1alpha1.BlockForEviction).World, r
		}, Verdict{false, "AwaitingEviction", "volume data, replica data-r1 on node n1: it leaves when data-r2 on node n2 is healthy (35% built)"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, r := c.make()
			if got := w.MayGo(r); got != c.want {
				t.Errorf("got\n%+v\nwant\n%+v", got, c.want)
			}
		})
	}
}

func TestTheWordsOfEvictions(t *testing.T) {
	s := newScene(1, "n1", "n2").policy(v1alpha1.BlockForEvictionIfContainsLastReplica)
	r := s.healthy("n1")
	say := func(want Eviction) {
		t.Helper()
		if got := s.Eviction(r); got != want {
			t.Errorf("got\n%+v\nwant\n%+v", got, want)
		}
		r.Spec.EvictionRequested = want.Requested
	}
	about := "volume data, replica data-r1 on node n1: "
	say(Eviction{false, "EvictionCanceled", about + "the node is neither cordoned nor being drained, and nobody requested the eviction"})
	s.cordon("n1")
	say(Eviction{true, "EvictionAutomatic", about + "the node is cordoned and it is the last copy of the volume"})
	other := s.unused("n2")
	other.Spec.Replaces = r.Name
	say(Eviction{true, "EvictionAutomatic", about + "the node is cordoned and it is the last copy: data-r2 on node n2 does not count (not built yet)"})
	s.Volume.Status.Members = append(s.Volume.Status.Members, other.Name)
	say(Eviction{true, "EvictionAutomatic", about + "the node is cordoned and data-r2 on node n2 has taken its place"})
	s.Nodes["n1"].Spec.EvictionRequested = true
	say(Eviction{true, "EvictionUserRequested", about + "eviction was requested for the node"})
	s.down("n1")
	say(Eviction{false, "EvictionCanceled", about + "the node is down or gone"})
}

func TestANodeMayGo(t *testing.T) {
	s := newScene(2, "n1", "n2")
	c := func() Cluster {
		return Cluster{Now: noon, Fleet: s.Fleet, Volumes: []*v1alpha1.Volume{s.Volume}, Replicas: s.Replicas}
	}
	say := func(want Verdict) {
		t.Helper()
		if got := c().NodeMayGo("n1"); got != want {
			t.Errorf("got\n%+v\nwant\n%+v", got, want)
		}
	}
	say(Verdict{true, "NoReplicas", "node n1 has no replica"})
	s.healthy("n1")
	s.healthy("n2")
	say(Verdict{true, "PolicyAllows", "policy block-if-contains-last-replica lets every replica on node n1 leave"})
	s.cordon("n2")
	if got := c().NodeMayGo("n1"); got.Allowed || got.Reason != BlockedLastCopy {
		t.Errorf("got %+v", got)
	}
	s.attach("n1", 0)
	say(Verdict{false, "AwaitingDetach", "volume data has its engine on node n1: detach it (`ebb volume detach data`)"})
}

func TestANodeIsAutoEvictingOnlyByPolicy(t *testing.T) {
	s := newScene(1, "n1", "n2").policy(v1alpha1.BlockForEviction).cordon("n1")
	r := s.healthy("n1")
	c := Cluster{Now: noon, Fleet: s.Fleet, Volumes: []*v1alpha1.Volume{s.Volume}, Replicas: s.Replicas}
	if c.AutoEvicting("n1") {
		t.Error("before evictionRequested is set")
	}
	r.Spec.EvictionRequested = true
	if !c.AutoEvicting("n1") || c.AutoEvicting("n2") {
		t.Error("not while a replica is evicted by policy")
	}
	s.Nodes["n1"].Spec.EvictionRequested = true
	if c.AutoEvicting("n1") {
		t.Error("while a person asks for it")
	}
}

// Commands that a message names work as they are written, wherever the volume is.
func TestRemediesNameTheNamespace(t *testing.T) {
	team := func(s *scene) *scene {
		s.Volume.Namespace = "team"
		for _, r := range s.Replicas {
			r.Namespace = "team"
		}
		return s
	}
	for want, got := range map[string]func() string{
		"`ebb volume replica evict data-r1 -n team`": func() string {
			s := newScene(1, "n1", "n2").drain("n1")
			r := s.healthy("n1")
			return team(s).MayGo(r).Remedy
		},
		"uncordon node n2, or evict the replica (`ebb volume replica evict data-r1 -n team`)": func() string {
			s := newScene(2, "n1", "n2").drain("n1").cordon("n2")
			r := s.healthy("n1")
			s.healthy("n2")
			return team(s).MayGo(r).Remedy
		},
		"start node n2, or evict the replica (`ebb volume replica evict data-r1 -n team`)": func() string {
			s := newScene(2, "n1", "n2").drain("n1").down("n2")
			r := s.healthy("n1")
			s.healthy("n2")
			return team(s).MayGo(r).Remedy
		},
		"`ebb volume replica rm data-r1 -n team`": func() string {
			s := newScene(1, "n1", "n2").drain("n1")
			r := s.failed("n1")
			return team(s).MayGo(r).Remedy
		},
		"it leaves when data-r2 on node n2 is healthy (it stands still: no space left; `ebb volume replica rm data-r2 -n team` lets another one be built)": func() string {
			s := newScene(1, "n1", "n2").drain("n1").policy(v1alpha1.BlockForEviction)
			r := s.healthy("n1")
			s.unused("n2").Spec.Replaces = r.Name
			s.attach("n2", 0)
			s.Volume.Status.Engine.Rebuilds = []v1alpha1.VolumeRebuild{{Replica: "data-r2", Error: "no space left"}}
			return team(s).MayGo(r).Remedy
		},
		"`ebb volume detach data -n team`": func() string {
			s := newScene(1, "n1")
			s.healthy("n1")
			return team(s.attach("n1", 0)).cluster().NodeMayGo("n1").Remedy
		},
		"`ebb volume attach data -n team NODE`": func() string {
			s := newScene(1, "n1").drain("n1")
			s.healthy("n1")
			return team(s.attach("n1", 1)).cluster().enginesOn("n1").Blockers[0].Remedy
		},
		"`ebb volume salvage data -n team`": func() string {
			s := newScene(1, "n1")
			s.healthy("n1").Status.Generation = 9
			return meta.FindStatusCondition(Plan(team(s).World).Status.Conditions, v1alpha1.VolumeOpenable).Message
		},
	} {
		if text := got(); !strings.Contains(text, want) {
			t.Errorf("it says %q, want %q", text, want)
		}
	}
}
