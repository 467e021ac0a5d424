package etcdcluster

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster/etcd"
)

// roomBelow is how much of its quota a database may take for the alarm that it is full to end: nine tenths.
const roomBelow, roomOf = 9, 10

// applyQuota gives a changed quota to one voter after the other: its node restarts the process. It returns whether one is waited for.
func (p *planner) applyQuota() bool {
	quota := p.quotaBytes()
	for _, m := range p.voters() {
		if m.Spec.QuotaBytes != quota && p.readyVoters() == p.votes() && !slices.ContainsFunc(p.voters(), func(m memberView) bool { return !m.is(v1alpha1.EtcdMemberRunning) }) {
			p.reportScaling("Restarting member %s on %s with the new quota of its database", m.Name, m.Spec.Node)
			p.setDesired(m, v1alpha1.EtcdMemberRun, func(s *v1alpha1.EtcdMemberSpec) { s.QuotaBytes = quota })
			return true
		}
	}
	if slices.ContainsFunc(p.voters(), func(m memberView) bool { return m.Spec.QuotaBytes != quota }) {
		p.changing = true // until every voter is healthy again
	}
	return false
}

func (p *planner) quotaBytes() int64 {
	if q := p.Cluster.Spec.Storage.Quota; q != nil {
		return q.Value()
	}
	return 0
}

// disarm ends the alarm that a database is full once every database has room: the quota was raised, the cluster was restored from a snapshot of a
// full one, or somebody compacted and defragmented it. An alarm that data is corrupt is never ended without a person.
func (p *planner) disarm() {
	for _, m := range p.current {
		if h := m.health; !h.OK() || h.Quota <= 0 || h.DBSize*roomOf >= h.Quota*roomBelow {
			return
		}
	}
	for _, a := range p.View.Alarms {
		if a.NoSpace {
			p.act(Action{Do: DisarmNoSpace, Peer: etcd.Peer{ID: a.Member, Name: p.alarmed(a)}})
		}
	}
}

// alarmed names the member of an alarm.
func (p *planner) alarmed(a etcd.Alarm) string {
	for _, m := range p.current {
		if m.peer != nil && m.peer.ID == a.Member {
			return m.Name + " on " + m.Spec.Node
		}
	}
	return "a former member, " + etcd.HexID(a.Member)
}

// differs returns whether etcd has raised the alarm that the data of a member differs from the others'.
func (p *planner) differs(m memberView) bool {
	return m.peer != nil && slices.ContainsFunc(p.View.Alarms, func(a etcd.Alarm) bool { return a.Corrupt && a.Member == m.peer.ID })
}

// lastGood returns whether the data of all voters differs but that of one: what it has is the only good copy.
func (p *planner) lastGood(m memberView) bool {
	others := slices.DeleteFunc(p.voters(), func(v memberView) bool { return v.Name == m.Name })
	return !p.differs(m) && len(others) > 0 && !slices.ContainsFunc(others, func(v memberView) bool { return !p.differs(v) })
}

// replaceDiffering is how a person replaces a member whose data differs.
func (p *planner) replaceDiffering() string {
	return inNamespace("kubectl delete etcdmember NAME", p.Cluster.Namespace)
}

// reported returns the message of a condition as it was.
func (p *planner) reported(condition string) string {
	if c := meta.FindStatusCondition(p.Cluster.Status.Conditions, condition); c != nil {
		return c.Message
	}
	return ""
}

// alarmMessages returns what to report of the alarms. While nobody confirms the list nothing is known of them, and what was reported stays.
func (p *planner) alarmMessages() (noSpace, corrupt string) {
	if !p.View.Listed && p.phase != v1alpha1.EtcdClusterPhaseStopped || p.View.AlarmsUnknown {
		return p.reported(v1alpha1.EtcdNoSpace), p.reported(v1alpha1.EtcdCorrupt)
	}
	var full, bad []string
	for _, a := range p.View.Alarms {
		switch {
		case a.NoSpace:
			full = append(full, p.alarmed(a))
		case a.Corrupt:
			bad = append(bad, p.alarmed(a))
		}
	}
	if len(full) > 0 {
		noSpace = fmt.Sprintf("The database of %s reached its quota, and the cluster refuses writes: raise spec.storage.quota, or compact and defragment it.", strings.Join(full, " and "))
	}
	if len(bad) > 0 {
		corrupt = fmt.Sprintf("The data of %s differs from the others'. Compare the members (`etcdctl endpoint hashkv --cluster`), replace the wrong one (`%s`), and disarm the alarm (`etcdctl alarm disarm`).",
			strings.Join(bad, " and "), p.replaceDiffering())
	}
	return noSpace, corrupt
}
