package coordinator

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
)

// slack is how late a renewal may be, on the reader's clock, before it is reported to people.
const slack = 2 * time.Second

// vacancyFacts are the input of an explanation why there is no coordinator. Its times are wall clocks of several machines, which is good
// enough for people; nothing is decided on them.
type vacancyFacts struct {
	now      time.Time
	election *coordinationv1.Lease // nil if no node was ever elected
	nodes    []v1alpha1.Node
	leases   map[string]*coordinationv1.Lease // by node
	slot     *v1alpha1.ActiveDrain
}

// Vacancy explains in sentences that there is no coordinator or that it does not renew its election, since when, and what keeps each
// node from becoming coordinator. The text is empty while the coordinator renews its election.
func Vacancy(ctx context.Context, r client.Reader, now time.Time) (text string, vacant bool, err error) {
	var leases coordinationv1.LeaseList
	if err := r.List(ctx, &leases, client.InNamespace(lease.Namespace)); err != nil {
		return "", false, fmt.Errorf("list leases: %w", err)
	}
	f := vacancyFacts{now: now, leases: map[string]*coordinationv1.Lease{}}
	for i := range leases.Items {
		l := &leases.Items[i]
		if name, ok := lease.NodeOf(l); ok {
			f.leases[name] = l
		} else if l.Name == lease.CoordinatorName {
			f.election = l
		}
	}
	if _, silent, _ := f.state(); !silent {
		return "", false, nil
	}
	var nodes v1alpha1.NodeList
	if err := r.List(ctx, &nodes); err != nil {
		return "", false, fmt.Errorf("list nodes: %w", err)
	}
	settings := &v1alpha1.Settings{} // on Kubernetes the first coordinator creates them
	if err := r.Get(ctx, types.NamespacedName{Name: v1alpha1.SettingsName}, settings); err != nil && !kubeclient.IsMissing(err) {
		return "", false, fmt.Errorf("read Settings: %w", err)
	}
	f.nodes, f.slot = nodes.Items, settings.Status.ActiveDrain
	_, _, vacant = f.state()
	return f.explain(), vacant, nil
}

// state reports whether the coordinator does not renew its election, whether there is none any more, and both in words. A coordinator
// renews several times a second.
func (f vacancyFacts) state() (words string, silent, vacant bool) {
	if f.election == nil {
		return "There is no coordinator: none has been elected yet.", true, true
	}
	since := unrenewed(f.election, f.now)
	if f.election.Spec.HolderIdentity == nil || *f.election.Spec.HolderIdentity == "" {
		return fmt.Sprintf("There is no coordinator: the election was released %s ago.", since), true, true
	}
	duration := time.Duration(0)
	if f.election.Spec.LeaseDurationSeconds != nil {
		duration = time.Duration(*f.election.Spec.LeaseDurationSeconds) * time.Second
	}
	leader := NodeOf(*f.election.Spec.HolderIdentity)
	if since > duration {
		return fmt.Sprintf("There is no coordinator: node %s was elected and has not renewed its election for %s.", leader, since), true, true
	}
	return fmt.Sprintf("The coordinator, node %s, has not renewed its election for %s. Another node can be elected after %s.", leader, since, duration), since > slack, false
}

func (f vacancyFacts) explain() string {
	var b strings.Builder
	words, _, vacant := f.state()
	b.WriteString(words)
	if vacant {
		b.WriteString(" Drains and placements wait until there is one.")
	}
	b.WriteString("\n")
	slices.SortFunc(f.nodes, func(a, c v1alpha1.Node) int { return cmp.Compare(a.Name, c.Name) })
	for i := range f.nodes {
		fmt.Fprintf(&b, "Node %s %s.\n", f.nodes[i].Name, f.candidacy(&f.nodes[i]))
	}
	return b.String()
}

// candidacy returns what keeps a node from becoming coordinator, or that nothing does.
func (f vacancyFacts) candidacy(n *v1alpha1.Node) string {
	rec, held := lease.Record{}, false
	l := f.leases[n.Name]
	if l != nil {
		if r, err := lease.Read(l); err == nil {
			rec, held = r, r.Held()
		}
	}
	switch {
	case l == nil:
		return "cannot become coordinator: it has no lease"
	case !held && n.IsParked():
		return fmt.Sprintf("cannot become coordinator: it is parked; `ebb uncordon %s` brings it back", n.Name)
	case !held && rec.Fenced >= rec.Epoch:
		return "cannot become coordinator: it is lost"
	case !held:
		return "cannot become coordinator: it has left"
	case f.late(l, rec):
		return fmt.Sprintf("has not renewed its lease for %s: it may be dead, frozen or cut off, and is lost after %s", unrenewed(l, f.now), rec.Duration)
	case f.slot != nil && f.slot.Node == n.Name:
		return fmt.Sprintf("cannot become coordinator while drain %s drains it. Once every other node has left or is lost, it cancels that drain and becomes coordinator%s", f.slot.Name, f.waitsFor(n.Name))
	case n.Status.Liveness != v1alpha1.Alive:
		return fmt.Sprintf("cannot become coordinator: it is %s", n.Status.Liveness)
	}
	return "can become coordinator: a node is elected within the duration of a lease"
}

// waitsFor names the other nodes that still hold a lease.
func (f vacancyFacts) waitsFor(node string) string {
	var names []string
	for name, l := range f.leases {
		if rec, err := lease.Read(l); err == nil && name != node && rec.Held() {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return "; it waits for " + strings.Join(names, ", ")
}

// late reports whether a node's lease was not renewed for longer than a healthy node takes.
func (f vacancyFacts) late(l *coordinationv1.Lease, rec lease.Record) bool {
	return unrenewed(l, f.now) > rec.Duration/4+slack
}

// unrenewed is how long ago a Lease was last renewed, by the wall clock of its holder.
func unrenewed(l *coordinationv1.Lease, now time.Time) time.Duration {
	if l.Spec.RenewTime == nil {
		return 0
	}
	return max(0, now.Sub(l.Spec.RenewTime.Time)).Round(time.Second)
}
