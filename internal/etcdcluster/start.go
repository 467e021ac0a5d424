package etcdcluster

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster/etcd"
)

// fromNothing as spec.restoreFrom begins an empty cluster.
const fromNothing = "none"

// seedPatience is how long a seed that failed is left as it is before another is tried.
const seedPatience = 5 * time.Second

// start brings up an incarnation: a seed that begins from nothing or from a snapshot, or all former members together from the data
// that they kept. Once a quorum of it runs it is established, and what it began from is not needed any more.
func (p *planner) start() {
	if p.status.Starting == nil && !p.beginStart() {
		return
	}
	p.creating()
	if p.resumes() {
		p.resume()
	} else {
		p.plant()
	}
	if id, runs := p.quorumRuns(); runs {
		p.establish(id)
		p.change(p.Cluster.Size())
	}
}

func (p *planner) creating() {
	p.phase, p.reason, p.changing = v1alpha1.EtcdClusterPhaseCreating, v1alpha1.ReasonEtcdCreating, true
}

// resumes says whether the start goes on with the data that members kept.
func (p *planner) resumes() bool {
	return p.status.Rest != nil && p.status.Rest.OnStop == v1alpha1.EtcdRetain
}

// beginStart writes down what the cluster begins from, and says whether it can. A cluster that had keys never begins empty unless
// someone asked for exactly that.
func (p *planner) beginStart() bool {
	rest, from := p.status.Rest, p.Cluster.Spec.RestoreFrom
	switch {
	case from == fromNothing && p.status.Incarnation > 0:
		rest = &v1alpha1.EtcdRest{OnStop: v1alpha1.EtcdDelete}
	case from != "" && from != fromNothing && (rest == nil || rest.Snapshot != from):
		if why := p.unavailable(from); why != "" {
			p.fail(why)
			return false
		}
		rest = &v1alpha1.EtcdRest{OnStop: v1alpha1.EtcdSnapshotThenDelete, Snapshot: from}
	case rest != nil && rest.OnStop == v1alpha1.EtcdSnapshotThenDelete:
		if why := p.unavailable(rest.Snapshot); why != "" {
			p.fail(why)
			return false
		}
	}
	if former := p.status.Rest; rest != nil && former != nil && rest != former {
		rest.Size, rest.Stopped = former.Size, former.Stopped
	}
	if rest == nil || rest.OnStop != v1alpha1.EtcdRetain {
		p.status.Incarnation++
		p.status.ClusterID = ""
		if rest != nil && rest.OnStop == v1alpha1.EtcdSnapshotThenDelete {
			p.status.ClusterID = p.Cluster.Status.ClusterID
		}
	}
	p.status.Rest, p.status.Starting = rest, micro(p.Now)
	p.newIncarnation()
	return true
}

// newIncarnation forgets what was known of the members of the last one.
func (p *planner) newIncarnation() {
	if p.status.Incarnation != p.Cluster.Status.Incarnation {
		p.View = etcd.View{}
	}
	p.sortMembers()
}

// unavailable returns why a snapshot cannot be restored now; empty if it can.
func (p *planner) unavailable(name string) string {
	s := p.find(name)
	if s == nil {
		return fmt.Sprintf("Snapshot %s is not there. Name another one, or none, in spec.restoreFrom.", name)
	}
	verified := s.Verified()
	switch {
	case slices.ContainsFunc(verified, p.live):
		return ""
	case len(verified) > 0:
		return fmt.Sprintf("Snapshot %s is on %s only, which is absent: start it again.", name, strings.Join(verified, " and "))
	}
	return fmt.Sprintf("No node has a verified copy of snapshot %s%s. Name another one, or none, in spec.restoreFrom.", name, because(s.Status.Error+copyErrors(s)))
}

// fail reports that the cluster cannot go on because data is missing.
func (p *planner) fail(missing string) {
	p.phase, p.missing = v1alpha1.EtcdClusterPhaseFailed, missing
}

func copyErrors(s *v1alpha1.EtcdSnapshot) string {
	var list []string
	for _, c := range s.Status.Copies {
		if c.Error != "" {
			list = append(list, c.Node+": "+c.Error)
		}
	}
	return strings.Join(list, "; ")
}

// plant brings up the seed of an incarnation. There is one in each: a seed that is lost before the cluster was established takes its
// incarnation with it. That loses nothing, since it serves no client before: the seal is lifted when it is written down that the
// cluster is established.
func (p *planner) plant() {
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
	if len(p.ours) == 0 {
		node, ok := p.place(nil, p.keepers(snapshot))
		if !ok {
			p.message = "No node may take the first member; start or uncordon a node"
			return
		}
		p.create(node)
		return
	}
	seed := p.ours[0]
	failed := seed.is(v1alpha1.EtcdMemberFailed) && p.Now.Sub(seed.CreationTimestamp.Time) > seedPatience
	misplaced := p.giving(seed.Spec.Node) && seed.Spec.Begin == nil
	switch {
	case !p.live(seed.Spec.Node) || failed || misplaced:
		p.status.Incarnation++
		for _, m := range p.ours {
			p.wish(m, v1alpha1.EtcdMemberDelete)
		}
		p.ours, p.View = nil, etcd.View{}
	case seed.Spec.Want == v1alpha1.EtcdMemberReserve && seed.is(v1alpha1.EtcdMemberReserved) && p.oldStopped():
		p.wish(seed, v1alpha1.EtcdMemberSeal, func(s *v1alpha1.EtcdMemberSpec) {
			s.Begin = &v1alpha1.EtcdBegin{InitialCluster: seed.Name + "=" + seed.Status.PeerURL, Token: p.token(), Snapshot: snapshot, Exact: p.exact()}
		})
	case seed.Spec.Want != v1alpha1.EtcdMemberReserve:
		p.wish(seed, v1alpha1.EtcdMemberSeal)
	}
}

// exact says whether nothing was acknowledged after the snapshot that the cluster begins from: it is the one that its stop took.
func (p *planner) exact() bool {
	rest := p.status.Rest
	return rest != nil && rest.Snapshot != "" && rest.Revision > 0
}

// oldStopped says whether no member of a former incarnation runs any more on a node that can tell.
func (p *planner) oldStopped() bool {
	return !slices.ContainsFunc(p.old, func(m memberView) bool {
		return p.live(m.Spec.Node) && !m.is(v1alpha1.EtcdMemberStopped) && !m.is(v1alpha1.EtcdMemberFailed)
	})
}

// keepers are the nodes with a verified copy of a snapshot.
func (p *planner) keepers(name string) []string {
	for _, s := range p.Snapshots {
		if s.Name == name {
			return s.Verified()
		}
	}
	return nil
}

// resume starts all former members together, from their own data.
func (p *planner) resume() {
	rest := p.status.Rest
	there, gone, lost := 0, []string{}, []string{}
	for _, former := range rest.Members {
		i := slices.IndexFunc(p.ours, func(m memberView) bool { return m.Name == former.Name })
		switch {
		case i < 0:
			lost = append(lost, former.Name+" on "+former.Node)
			continue
		case p.ours[i].lost():
			lost = append(lost, former.Name+" on "+former.Node)
		case !p.live(former.Node):
			gone = append(gone, former.Node)
		default:
			there++
		}
		p.wish(p.ours[i], v1alpha1.EtcdMemberRun, func(s *v1alpha1.EtcdMemberSpec) { s.DataRequired = true })
	}
	all, need := len(rest.Members), quorum(len(rest.Members))
	if there >= need {
		return
	}
	missing := fmt.Sprintf("Data of %d of %d members is there and %d are needed", there, all, need)
	if len(lost) > 0 {
		missing += "; missing: " + strings.Join(lost, ", ")
	}
	if len(gone) > 0 {
		missing += "; absent: " + strings.Join(gone, ", ") + ", start it again"
	}
	missing += ". "
	if all-len(lost) < need {
		missing += p.restoreAdvice()
	}
	p.fail(missing)
}

// quorumRuns returns whether a quorum of an incarnation that is being started runs, and the ID of its cluster.
func (p *planner) quorumRuns() (id string, runs bool) {
	if !p.View.Listed || p.status.Starting == nil {
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

// establish records that the incarnation runs: from now on only its members have the newest keys.
func (p *planner) establish(id string) {
	p.missing = ""
	p.status.ClusterID, p.status.Rest = id, nil
}

// abortStart takes back a start that has not come to anything yet.
func (p *planner) abortStart() {
	p.scaling("Calling off the start")
	p.reason = v1alpha1.ReasonEtcdStopping
	done := true
	for _, m := range p.ours {
		if p.resumes() {
			p.wish(m, v1alpha1.EtcdMemberStop)
			done = done && (!p.live(m.Spec.Node) || m.is(v1alpha1.EtcdMemberStopped) || m.is(v1alpha1.EtcdMemberFailed))
		} else {
			p.wish(m, v1alpha1.EtcdMemberDelete)
			done = false
		}
	}
	if done && len(p.pending()) == 0 {
		p.status.Starting = nil
		p.rested()
	}
}

// restoreIfAsked begins a new incarnation from a snapshot because a person asked for it: the remedy for a quorum that is lost.
func (p *planner) restoreIfAsked() {
	asked := p.Cluster.Annotations[v1alpha1.EtcdRestoreAnnotation]
	if asked == "" || asked == p.status.ObservedRestore || p.Cluster.Size() == 0 {
		return
	}
	name, _, _ := strings.Cut(asked, "/")
	rest := &v1alpha1.EtcdRest{OnStop: v1alpha1.EtcdDelete}
	if name != fromNothing {
		if p.missing = p.unavailable(name); p.missing != "" {
			return
		}
		rest = &v1alpha1.EtcdRest{OnStop: v1alpha1.EtcdSnapshotThenDelete, Snapshot: name}
	} else {
		p.status.ClusterID = ""
	}
	p.status.ObservedRestore = asked
	p.status.Incarnation++
	p.status.Rest, p.status.Starting, p.status.Stop = rest, micro(p.Now), nil
	p.newIncarnation()
}

func newTime(t time.Time) *metav1.Time {
	m := metav1.NewTime(t)
	return &m
}
