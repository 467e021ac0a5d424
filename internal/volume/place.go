package volume

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// DefaultDisk is the name of the one disk of a node whose spec has none.
const DefaultDisk = "default"

// Place is a disk of a node.
type Place struct{ Node, Disk string }

// Refusal is why a disk, or a whole node, cannot take a replica.
type Refusal struct {
	// Place that was considered; without a disk if the whole node was refused.
	Place
	// Why not.
	Why string
}

// Refusals are all that was considered, sorted by node and disk.
type Refusals []Refusal

// String lists the refusals: "node n1: cordoned; node n2, disk ssd: needs 10Gi, 3Gi are free".
func (rs Refusals) String() string {
	if len(rs) == 0 {
		return "there is no node"
	}
	var parts []string
	for _, r := range rs {
		where := "node " + r.Node
		if r.Disk != "" {
			where += ", disk " + r.Disk
		}
		parts = append(parts, where+": "+r.Why)
	}
	return strings.Join(parts, "; ")
}

// How good a place is, from best to worst. The classes below fresh need soft anti-affinity of nodes.
const (
	freshNode    = iota // the node has no replica of the volume
	evictingNode        // all replicas of the volume there are to leave
	sharedNode
)

// candidate is a disk that can take a replica.
type candidate struct {
	Place
	class    int
	onDisk   int   // replicas of the volume on the disk
	nodeLoad int64 // bytes of replicas on the node
	diskLoad int64 // bytes of replicas on the disk
	free     int64
}

// place returns the best disk for one more replica of the volume, or why none can take it. Evicting says which replicas are to leave;
// pending are replicas that are decided on and not created yet.
func (w World) place(evicting map[string]bool, pending []*v1alpha1.Replica) (Place, Refusals) {
	w.Replicas, w.Everyone = slices.Concat(w.Replicas, pending), slices.Concat(w.Everyone, pending)
	var found []candidate
	var refused Refusals
	for _, name := range slices.Sorted(maps.Keys(w.Nodes)) {
		here, why := w.candidates(w.Nodes[name], evicting)
		found, refused = append(found, here...), append(refused, why...)
	}
	if len(found) == 0 {
		return Place{}, refused
	}
	best := slices.MinFunc(found, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.class, b.class), cmp.Compare(a.onDisk, b.onDisk), cmp.Compare(a.nodeLoad, b.nodeLoad), cmp.Compare(a.diskLoad, b.diskLoad),
			-cmp.Compare(a.free, b.free), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Disk, b.Disk))
	})
	return best.Place, nil
}

// candidates are the disks of a node that can take a replica, and why the others cannot.
func (w World) candidates(n *v1alpha1.Node, evicting map[string]bool) ([]candidate, Refusals) {
	refuse := func(format string, args ...any) Refusals {
		return Refusals{{Place: Place{Node: n.Name}, Why: fmt.Sprintf(format, args...)}}
	}
	if why := w.Ineligible(n.Name); why != "" {
		return nil, refuse("%s", why)
	}
	if n.Spec.EvictionRequested {
		return nil, refuse("its replicas are being evicted")
	}
	here := w.mineOn(n.Name)
	class := freshNode
	if len(here) > 0 {
		class = sharedNode
		if !slices.ContainsFunc(here, func(r *v1alpha1.Replica) bool { return !evicting[r.Name] }) {
			class = evictingNode
		}
		if w.Volume.Spec.NodeAntiAffinity != v1alpha1.SoftAntiAffinity {
			return nil, refuse("has replica %s of the volume", here[0].Name)
		}
	}
	disks := disksOf(n)
	if len(disks) == 0 {
		return nil, refuse("has published no disk")
	}
	var found []candidate
	var refused Refusals
	for _, d := range disks {
		c := candidate{Place: Place{n.Name, d.Name}, class: class, nodeLoad: w.load(n.Name, ""), diskLoad: w.load(n.Name, d.Name)}
		for _, r := range here {
			if r.Spec.Disk == d.Name {
				c.onDisk++
			}
		}
		c.free = w.free(n.Name, d)
		if why := w.refuses(d, c); why != "" {
			refused = append(refused, Refusal{c.Place, why})
			continue
		}
		found = append(found, c)
	}
	return found, refused
}

// refuses is why a disk cannot take a replica of the volume, or empty.
func (w World) refuses(d disk, c candidate) string {
	size := w.Volume.Spec.Size.Value()
	switch {
	case !d.reported:
		return "not published by the node yet"
	case !d.is.Ready:
		return "not ready: " + cmp.Or(d.is.Message, "no reason given")
	case d.is.Message != "":
		return d.is.Message
	case d.AllowScheduling != nil && !*d.AllowScheduling:
		return "scheduling is not allowed"
	case d.EvictionRequested:
		return "its replicas are being evicted"
	case c.onDisk > 0 && w.Volume.Spec.DiskAntiAffinity == v1alpha1.HardAntiAffinity:
		return "has a replica of the volume"
	case c.free < size:
		return fmt.Sprintf("needs %s, %s are free", bytes(size), bytes(max(c.free, 0)))
	}
	return ""
}

// disk is a disk as people declare it and as its node reports it.
type disk struct {
	v1alpha1.Disk
	is       v1alpha1.DiskStatus
	reported bool
}

// disksOf are the disks of a node that people declared; without any, the one that every node has.
func disksOf(n *v1alpha1.Node) []disk {
	declared := n.Spec.Disks
	if len(declared) == 0 {
		declared = []v1alpha1.Disk{{Name: DefaultDisk}}
	}
	var list []disk
	for _, d := range declared {
		one := disk{Disk: d}
		for _, s := range n.Status.Disks {
			if s.Name == d.Name {
				one.is, one.reported = s, true
			}
		}
		list = append(list, one)
	}
	slices.SortFunc(list, func(a, b disk) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// mineOn are the volume's replicas on a node that share their fate with a new one there. A copy that is lost or being deleted does not.
func (w World) mineOn(node string) []*v1alpha1.Replica {
	var here []*v1alpha1.Replica
	for _, r := range w.Replicas {
		if r.Spec.NodeName == node && !deleting(r) && r.Status.State != v1alpha1.ReplicaFailed {
			here = append(here, r)
		}
	}
	return here
}

// load is how many bytes all replicas on a node have, or those on one of its disks.
func (w World) load(node, disk string) int64 {
	var sum int64
	for _, r := range w.Everyone {
		if r.Spec.NodeName == node && (disk == "" || r.Spec.Disk == disk) && !deleting(r) {
			sum += r.Spec.SizeBytes
		}
	}
	return sum
}

// free is what a disk has for a new replica: what is available, without what people reserved and what is promised to replicas that have not
// been written yet.
func (w World) free(node string, d disk) int64 {
	free := d.is.AvailableBytes
	if d.Reserved != nil {
		free -= d.Reserved.Value()
	}
	for _, r := range w.Everyone {
		if r.Spec.NodeName == node && r.Spec.Disk == d.Name && !deleting(r) && r.Status.HealthyAt == nil {
			free -= r.Spec.SizeBytes
		}
	}
	return free
}

// bytes is a size as people write it. What is no whole number of its unit is rounded down to a tenth.
func bytes(n int64) string {
	const units = "KMGTPE"
	unit, power := int64(1), 0
	for power < len(units) && n/unit >= 1024 {
		unit, power = unit*1024, power+1
	}
	if n%unit == 0 {
		return resource.NewQuantity(n, resource.BinarySI).String()
	}
	return fmt.Sprintf("%d.%d%ci", n/unit, n%unit*10/unit, units[power-1])
}
