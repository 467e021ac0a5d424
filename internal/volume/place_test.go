package volume

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

func TestPlaces(t *testing.T) {
	no := false
	for _, c := range []struct {
		name     string
		make     func(*scene)
		evicting []string
		want     Place
		refused  string
	}{
		{"the first of equal nodes", func(s *scene) {}, nil, Place{"n1", "default"}, ""},
		{"a node without a replica of the volume", func(s *scene) { s.healthy("n1") }, nil, Place{"n2", "default"}, ""},
		{"the least used node", func(s *scene) {
			other := newScene(1, "n1").healthy("n1")
			other.Spec.VolumeName, other.Spec.VolumeUID, other.Name = "x", "uid-x", "x-r1"
			s.Everyone = append(s.Everyone, other)
		}, nil, Place{"n2", "default"}, ""},
		{"no node without a replica", func(s *scene) { s.healthy("n1"); s.healthy("n2"); s.healthy("n3") }, nil, Place{},
			"node n1: has replica data-r1 of the volume; node n2: has replica data-r2 of the volume; node n3: has replica data-r3 of the volume"},
		{"a lost copy is no neighbour", func(s *scene) {
			s.healthy("n1")
			s.healthy("n2")
			s.failed("n3").Status.State = v1alpha1.ReplicaFailed
		}, nil, Place{"n3", "default"}, ""},
		{"soft: a node whose replicas are to leave before another one", func(s *scene) {
			s.Volume.Spec.NodeAntiAffinity = v1alpha1.SoftAntiAffinity
			s.healthy("n1")
			s.healthy("n2")
			s.healthy("n3")
		}, []string{"data-r3"}, Place{"n3", "default"}, ""},
		{"soft: another disk of a shared node first", func(s *scene) {
			s.Volume.Spec.NodeAntiAffinity = v1alpha1.SoftAntiAffinity
			s.healthy("n1")
			s.gone("n2", "n3")
			n := s.Nodes["n1"]
			n.Spec.Disks = []v1alpha1.Disk{{Name: "default", Path: "/d"}, {Name: "ssd", Path: "/s"}}
			n.Status.Disks = append(n.Status.Disks, v1alpha1.DiskStatus{Name: "ssd", Ready: true, AvailableBytes: 2 * gib})
		}, nil, Place{"n1", "ssd"}, ""},
		{"soft: the same disk if there is no other", func(s *scene) {
			s.Volume.Spec.NodeAntiAffinity = v1alpha1.SoftAntiAffinity
			s.healthy("n1")
			s.gone("n2", "n3")
		}, nil, Place{"n1", "default"}, ""},
		{"soft nodes and hard disks", func(s *scene) {
			s.Volume.Spec.NodeAntiAffinity, s.Volume.Spec.DiskAntiAffinity = v1alpha1.SoftAntiAffinity, v1alpha1.HardAntiAffinity
			s.healthy("n1")
			s.gone("n2", "n3")
		}, nil, Place{}, "node n1, disk default: has a replica of the volume"},
		{"why not, for each", func(s *scene) {
			s.cordon("n1")
			s.down("n2")
			s.Nodes["n3"].Spec.EvictionRequested = true
			s.node("n4").Status.Disks[0] = v1alpha1.DiskStatus{Name: "default", Message: "read-only file system"}
			s.node("n5").Spec.Disks = []v1alpha1.Disk{
				{Name: "a", Path: "/a"}, {Name: "b", Path: "/b", AllowScheduling: &no}, {Name: "c", Path: "/c", EvictionRequested: true},
				{Name: "d", Path: "/d", Reserved: resource.NewQuantity(5*gib, resource.BinarySI)},
			}
			s.Nodes["n5"].Status.Disks = []v1alpha1.DiskStatus{{Name: "b", Ready: true}, {Name: "c", Ready: true}, {Name: "d", Ready: true, AvailableBytes: 5*gib + 1<<20}}
			s.node("n7").Status.Disks[0].Message = "/d cannot be written: read-only file system"
			s.node("n6").Status.Disks[0].AvailableBytes = gib + gib/2
			promised := newScene(1, "n6").unused("n6")
			promised.Spec.VolumeUID = "uid-x"
			s.Everyone = append(s.Everyone, promised)
		}, nil, Place{}, "node n1: cordoned; node n2: no lease; node n3: its replicas are being evicted; node n4, disk default: not ready: read-only file system; " +
			"node n5, disk a: not published by the node yet; node n5, disk b: scheduling is not allowed; node n5, disk c: its replicas are being evicted; " +
			"node n5, disk d: needs 1Gi, 1Mi are free; node n6, disk default: needs 1Gi, 512Mi are free; node n7, disk default: /d cannot be written: read-only file system"},
		{"no node at all", func(s *scene) { s.gone("n1", "n2", "n3") }, nil, Place{}, "there is no node"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newScene(3, "n1", "n2", "n3")
			c.make(s)
			evicting := map[string]bool{}
			for _, name := range c.evicting {
				evicting[name] = true
			}
			got, refused := s.place(evicting, nil)
			if got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
			if got == (Place{}) && refused.String() != c.refused {
				t.Errorf("refused\n%s\nwant\n%s", refused, c.refused)
			}
		})
	}
}
