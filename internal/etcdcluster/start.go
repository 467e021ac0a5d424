package etcdcluster

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster/etcd"
	"github.com/ebb-dev/ebb/internal/etcdcluster/snapshot"
)

// firstMemberPatience is how long a first member that failed is left alone before another one is tried.
const firstMemberPatience = 5 * time.Second

// start starts a stopped cluster, if what it begins from is available.
func (p *planner) start() {
	from, why := p.startingPoint()
	if why != "" {
		p.fail(why)
		return
	}
	p.beginStart(from)
	p.continueStart()
}

// continueStart brings up an incarnation: a first member that begins from nothing or from a snapshot, or all former members together
// from the data that they retained. Once a quorum runs, what the start began from is not needed any more.
func (p *planner) continueStart() {
	p.reportCreating()
	if p.resumes() {
		p.resume()
	} else {
		p.startFirstMember()
	}
	if id, runs := p.quorumRuns(); runs {
		p.establish(id)
		p.adjustMembers(p.Cluster.Size())
	}
}

func (p *planner) reportCreating() {
	p.phase, p.reason, p.changing = v1alpha1.EtcdClusterPhaseCreating, v1alpha1.ReasonEtcdCreating, true
}

// resumes returns whether the start continues with the data that members retained.
func (p *planner) resumes() bool {
	return p.status.Rest != nil && p.status.Rest.OnStop == v1alpha1.EtcdRetain
}

// startingPoint returns what the next start begins from, nil for an empty cluster, or why it cannot begin. A cluster that had keys
// never begins empty unless someone asked for exactly that.
func (p *planner) startingPoint() (from *v1alpha1.EtcdStoppedState, why string) {
	rest, asked := p.status.Rest, p.Cluster.Spec.RestoreFrom
	if asked == p.status.ObservedRestoreFrom {
		asked = "" // a start obeyed it
	}
	switch {
	case asked == v1alpha1.EtcdFromNothing && p.status.Incarnation > 0:
		return &v1alpha1.EtcdStoppedState{OnStop: v1alpha1.EtcdDelete}, ""
	case asked != "" && asked != v1alpha1.EtcdFromNothing && (rest == nil || rest.Snapshot != asked):
		return &v1alpha1.EtcdStoppedState{OnStop: v1alpha1.EtcdSnapshotThenDelete, Snapshot: asked}, p.unavailable(asked)
	case rest != nil && rest.OnStop == v1alpha1.EtcdSnapshotThenDelete:
		return rest, p.unavailable(rest.Snapshot)
	}
	return rest, ""
}

// forgetFormerIncarnation drops what etcd reported of the members of the last incarnation, and sorts the members anew.
func (p *planner) forgetFormerIncarnation() {
	if p.status.Incarnation != p.Cluster.Status.Incarnation {
		p.View = etcd.View{}
	}
	p.sortMembers()
}

// unavailable returns why a snapshot cannot be restored now; empty if it can.
func (p *planner) unavailable(name string) string {
	why, absent := p.lacks(name)
	if why != "" && !absent {
		why += " Set spec.restoreFrom to another snapshot, or to none to start empty."
	}
	return why
}

// lacks returns why no living node has a verified copy of a snapshot, and whether absent ones have it.
func (p *planner) lacks(name string) (why string, absent bool) {
	s := p.find(name)
	if s == nil || !s.DeletionTimestamp.IsZero() {
		return fmt.Sprintf("Snapshot %s does not exist.", name), false
	}
	verified := s.Verified()
	switch {
	case slices.ContainsFunc(verified, p.Live):
		return "", false
	case len(verified) > 0:
		return fmt.Sprintf("Only absent nodes have a verified copy of snapshot %s: start %s.", name, strings.Join(verified, " or ")), true
	}
	return fmt.Sprintf("No node has a verified copy of snapshot %s%s.", name, because(s.Status.Error+copyErrors(s.Status.Copies))), false
}

// fail reports that the cluster cannot continue because data is missing.
func (p *planner) fail(missing string) {
	p.phase, p.missing = v1alpha1.EtcdClusterPhaseFailed, missing
}

func copyErrors(copies []v1alpha1.EtcdSnapshotCopy) string {
	var list []string
	for _, c := range copies {
		if c.Error != "" {
			list = append(list, c.Node+": "+c.Error)
		}
	}
	return strings.Join(list, "; ")
}

// taken returns the progress of a snapshot that is being taken.
func taken(s *v1alpha1.EtcdSnapshot) string {
	t := s.Status.Taking
	switch {
	case t == nil || s.Status.Facts != nil || s.Status.Error != "":
		return ""
	case t.Step == string(snapshot.Comparing):
		return fmt.Sprintf(", %s with the member, %s", strings.ToLower(t.Step), humanize.IBytes(uint64(t.Total)))
	}
	return fmt.Sprintf(", %s, %s of %s", strings.ToLower(t.Step), humanize.IBytes(uint64(t.Done)), humanize.IBytes(uint64(t.Total)))
}

// arriving returns how much of the copies that are being transferred has arrived.
func arriving(s *v1alpha1.EtcdSnapshot) string {
	text := ""
	for _, c := range s.Status.Copies {
		if c.Verified == nil && c.Received > 0 && s.Status.Facts != nil {
			text += fmt.Sprintf(", node %s has received %s of %s", c.Node, humanize.IBytes(uint64(c.Received)), humanize.IBytes(uint64(s.Status.Facts.Size)))
		}
	}
	return text
}

// startFirstMember brings up the first member of an incarnation. If that is lost before the cluster is established, the next member
// starts a new incarnation. That loses nothing: the first member is sealed, and serves no client before the cluster is recorded as
// established.
func (p *planner) startFirstMember() {
	snapshot := ""
	if p.status.Rest != nil {
		snapshot = p.status.Rest.Snapshot
	}
	if snapshot != "" {
		if why := p.unavailable(snapshot); why != "" {
			p.fail(why)
			return
		}
	}
	if len(p.current) == 0 {
		node, ok := p.place(nil, p.verifiedOn(snapshot))
		if !ok {
			p.stuck = "No node is schedulable for the first member; start or uncordon a node"
			return
		}
		p.create(node)
		return
	}
	first := p.current[0]
	p.recordFirst(first)
	failed := first.is(v1alpha1.EtcdMemberFailed) && p.Now.Sub(first.CreationTimestamp.Time) > firstMemberPatience || p.failedTooLong(first)
	misplaced := p.Leaving(first.Spec.Node) && !first.healthy() // its node lets it begin only if it has data
	if failed {
		p.avoid(first.Spec.Node)
	}
	switch {
	case !p.Live(first.Spec.Node) || failed || misplaced:
		p.status.Incarnation++
		p.status.Failing = nil
		for _, m := range p.current {
			p.setDesired(m, v1alpha1.EtcdMemberDelete)
		}
		p.current, p.View = nil, etcd.View{}
	case first.Spec.Want == v1alpha1.EtcdMemberReserve && first.is(v1alpha1.EtcdMemberReserved) && p.formerStopped():
		p.setDesired(first, v1alpha1.EtcdMemberSeal, func(s *v1alpha1.EtcdMemberSpec) {
			s.Begin = &v1alpha1.EtcdBegin{InitialCluster: first.Name + "=" + first.Status.PeerURL, Token: p.token(), Snapshot: snapshot, Exact: p.exact()}
		})
	case first.Spec.Want != v1alpha1.EtcdMemberReserve:
		p.setDesired(first, v1alpha1.EtcdMemberSeal)
	}
}

// exact returns whether no write was acknowledged after the snapshot that the cluster begins from: its stop took that snapshot.
func (p *planner) exact() bool {
	rest := p.status.Rest
	return rest != nil && rest.Snapshot != "" && rest.Revision > 0
}

// formerStopped returns whether no member of a former incarnation runs on a node that holds its lease.
func (p *planner) formerStopped() bool {
	return !slices.ContainsFunc(p.former, func(m memberView) bool {
		return p.Live(m.Spec.Node) && !m.is(v1alpha1.EtcdMemberStopped) && !m.is(v1alpha1.EtcdMemberFailed)
	})
}

// verifiedOn returns the nodes with a verified copy of a snapshot.
func (p *planner) verifiedOn(snapshot string) []string {
	if s := p.find(snapshot); s != nil {
		return s.Verified()
	}
	return nil
}

// resume starts all former members together from the data that they retained.
func (p *planner) resume() {
	rest := p.status.Rest
	there, gone, lost, failed := 0, []string{}, []string{}, []string{}
	for _, former := range rest.Members {
		i := slices.IndexFunc(p.current, func(m memberView) bool { return m.Name == former.Name })
		switch {
		case i < 0:
			lost = append(lost, former.Name+" on "+former.Node)
			continue
		case p.current[i].lost():
			lost = append(lost, former.Name+" on "+former.Node)
		case !p.Live(former.Node):
			gone = append(gone, former.Node)
		case p.current[i].is(v1alpha1.EtcdMemberFailed):
			failed = append(failed, former.Name+" on "+former.Node+because(shortened(p.current[i].Status.Error)))
		default:
			there++
		}
		p.wake(p.current[i], func(s *v1alpha1.EtcdMemberSpec) { s.DataRequired = true })
	}
	all, need := len(rest.Members), quorum(len(rest.Members))
	if there >= need {
		if trouble := p.troubleOf(p.current); trouble != "" {
			p.stuck = fmt.Sprintf("Waiting for %d of %d members to run", need, all) + trouble
		}
		return
	}
	missing := fmt.Sprintf("%d of %d members have their data, %d are needed", there, all, need)
	if len(lost) > 0 {
		missing += "; missing: " + strings.Join(lost, ", ")
	}
	if len(gone) > 0 {
		missing += "; absent nodes: " + strings.Join(gone, ", ") + " (start them)"
	}
	if len(failed) > 0 {
		missing += "; failed: " + strings.Join(failed, ", ")
	}
	missing += ". "
	if all-len(lost)-len(failed) < need {
		missing += p.restoreAdvice()
	}
	p.fail(missing)
}

// quorumRuns returns whether a quorum of an incarnation that is being started runs, and the ID of its cluster.
func (p *planner) quorumRuns() (id string, runs bool) {
	if !p.View.Listed {
		return "", false
	}
	want := 1
	if p.resumes() {
		want = quorum(len(p.status.Rest.Members))
	}
	ready := 0
	for _, m := range p.voters() {
		if m.healthy() && m.Spec.Begin != nil && m.health.ClusterID != 0 {
			id = etcd.HexID(m.health.ClusterID)
			ready++
		}
	}
	return id, ready >= want && ready >= quorum(p.votes())
}

// cancelStart ends the members that were started. If a quorum of them runs already, clients may have written, and the cluster is
// stopped instead.
func (p *planner) cancelStart() {
	if id, runs := p.quorumRuns(); runs {
		p.establish(id)
		p.stop()
		return
	}
	p.reportScaling("Canceling the start")
	p.reason = v1alpha1.ReasonEtcdStopping
	done := true
	for _, m := range p.current {
		if p.resumes() {
			p.setDesired(m, v1alpha1.EtcdMemberStop)
			done = done && (!p.Live(m.Spec.Node) || m.is(v1alpha1.EtcdMemberStopped) || m.is(v1alpha1.EtcdMemberFailed))
		} else {
			p.setDesired(m, v1alpha1.EtcdMemberDelete)
			done = false
		}
	}
	if done && len(p.pending()) == 0 && p.formerStopped() {
		p.endStart()
	}
}

// roundedSince returns how much time has passed, for people.
func roundedSince(now, began time.Time) *metav1.Duration {
	return &metav1.Duration{Duration: now.Sub(began).Round(time.Millisecond)}
}

func newTime(t time.Time) *metav1.Time {
	m := metav1.NewTime(t)
	return &m
}
