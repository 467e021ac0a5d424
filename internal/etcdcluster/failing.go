package etcdcluster

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

const (
	// defaultFailedAfter is the default of spec.replaceFailedAfter.
	defaultFailedAfter = 2 * time.Minute
	// steadyAfter is how long a member that failed has to run for its failures not to count any more.
	steadyAfter = 30 * time.Second
	// avoidFor is for how many times that limit a node is avoided after a member failed on it.
	avoidFor = 10
	// answers is more progress than any amount of data.
	answers = 1 << 60
)

// failedAfter returns how long a member may fail before it is replaced.
func (w World) failedAfter() time.Duration {
	if d := w.Cluster.Spec.ReplaceFailedAfter; d != nil && d.Duration > 0 {
		return d.Duration
	}
	return defaultFailedAfter
}

// recordFailures keeps status.failing: voters whose process does not stay up though their node is there, and new members that make no progress,
// also those whose node cannot reserve their ports.
// A voter that its node reports as running does not count, even if the coordinator cannot reach it. While the data of a starting member grows,
// its time starts over, because it may replay a long log.
func (p *planner) recordFailures() {
	var list []v1alpha1.EtcdMemberFailure
	for _, m := range p.current {
		runs := m.Spec.Begin != nil && (m.Spec.Want == v1alpha1.EtcdMemberRun || m.Spec.Want == v1alpha1.EtcdMemberSeal)
		if !runs && !m.reserves() || !p.Live(m.Spec.Node) || !p.View.Listed {
			if was := p.failure(m.Name); was != nil {
				list = append(list, *was) // nothing new is known
			}
			continue
		}
		if f := p.observeFailure(m); f != nil {
			list = append(list, *f)
		}
	}
	p.status.Failing = list
	p.status.Avoid = slices.DeleteFunc(p.status.Avoid, func(a v1alpha1.EtcdAvoidedNode) bool { return !p.Now.Before(a.Until.Time) })
	if len(p.status.Avoid) == 0 {
		p.status.Avoid = nil
	}
}

// recordFirst keeps status.failing while the first member of an incarnation starts, when etcd lists no member yet. A member with an error is
// listed until it answers. Its time starts over when it gets further than ever before; a retry that begins with less data does not count. A
// member without an error may take any time, because it may be restoring much data.
func (p *planner) recordFirst(m memberView) {
	next := v1alpha1.EtcdMemberFailure{Member: m.Name, Since: *micro(p.Now), Restarts: m.Status.Restarts, Progress: m.Status.DataBytes}
	was := p.failure(m.Name)
	p.status.Failing = nil
	if m.healthy() || was == nil && m.Status.Error == "" && m.Status.Restarts == 0 {
		return
	}
	if was != nil && next.Progress <= was.Progress {
		next.Since, next.Progress = was.Since, was.Progress
	}
	p.status.Failing = []v1alpha1.EtcdMemberFailure{next}
}

func (p *planner) failure(member string) *v1alpha1.EtcdMemberFailure {
	for i := range p.status.Failing {
		if p.status.Failing[i].Member == member {
			return &p.status.Failing[i]
		}
	}
	return nil
}

// observeFailure returns what is known of a member that may fail; nil if all is well.
func (p *planner) observeFailure(m memberView) *v1alpha1.EtcdMemberFailure {
	was := p.failure(m.Name)
	switch {
	case m.reserves() && m.is(v1alpha1.EtcdMemberReserved):
		return nil
	case m.reserves() && was == nil:
		return &v1alpha1.EtcdMemberFailure{Member: m.Name, Since: *micro(p.Now), Learner: true}
	case m.peer == nil:
		return was // it was removed; how it was then counts
	}
	if m.learner() {
		return p.observeLearner(m, was)
	}
	if was != nil && was.Learner {
		was = nil // it became a voter
	}
	next := v1alpha1.EtcdMemberFailure{Member: m.Name, Since: *micro(p.Now), Restarts: m.Status.Restarts, Progress: m.Status.DataBytes}
	down := m.Status.Phase != v1alpha1.EtcdMemberRunning && m.Status.Phase != v1alpha1.EtcdMemberSealed && !m.healthy()
	if was == nil {
		if down {
			return &next
		}
		return nil
	}
	restarted, grew := m.Status.Restarts != was.Restarts, next.Progress > was.Progress
	next.Progress = max(next.Progress, was.Progress) // a process that starts over has to get further than it ever did
	switch {
	case down && grew && !restarted:
		return &next
	case down || restarted:
		next.Since = was.Since
		return &next
	case was.HealthySince == nil:
		next.Since, next.HealthySince = was.Since, micro(p.Now)
		return &next
	case p.Now.Sub(was.HealthySince.Time) >= steadyAfter:
		return nil
	}
	return was
}

// observeLearner returns since when a new member has made no progress; nil if it has caught up.
func (p *planner) observeLearner(m memberView, was *v1alpha1.EtcdMemberFailure) *v1alpha1.EtcdMemberFailure {
	lag := p.View.Revision - m.health.Revision
	next := v1alpha1.EtcdMemberFailure{Member: m.Name, Since: *micro(p.Now), Learner: true, Restarts: m.Status.Restarts, Progress: m.Status.DataBytes}
	if m.health.Answered {
		next.Progress = answers - lag // from here on only a smaller lag is progress
	}
	switch {
	case m.healthy() && lag <= 0:
		return nil
	case was != nil && next.Progress <= was.Progress:
		return was
	}
	return &next // it is new, or made progress
}

// failedTooLong returns whether a member has failed for longer than the cluster waits.
func (p *planner) failedTooLong(m memberView) bool {
	f := p.failure(m.Name)
	return f != nil && f.HealthySince == nil && p.Now.Sub(f.Since.Time) >= p.failedAfter()
}

// failingVoters returns the voters that fail now.
func (p *planner) failingVoters() []memberView {
	return slices.DeleteFunc(p.voters(), func(m memberView) bool {
		f := p.failure(m.Name)
		return f == nil || f.HealthySince != nil
	})
}

// replacesFailed returns whether a voter is replaced because it has failed for too long. If two fail at once, the cause may be in the data or the
// options of all of them, and a replacement would only spread it. Then a person has to act.
func (p *planner) replacesFailed(m memberView) bool {
	return m.voter() && p.failedTooLong(m) && len(p.failingVoters()) == 1
}

// leaving returns whether a voter has to be replaced.
func (p *planner) leaving(m memberView) bool { return p.World.leaving(m) || p.replacesFailed(m) }

// reserves returns whether a new member waits for its node to reserve its ports.
func (m memberView) reserves() bool {
	return m.Spec.Begin == nil && m.Spec.Want == v1alpha1.EtcdMemberReserve && m.peer == nil
}

// giveUpNew removes a new member that makes no progress; another one is added, if possible elsewhere.
func (p *planner) giveUpNew(m memberView) {
	p.avoid(m.Spec.Node)
	p.undo(m)
	p.reportScaling("Removing new member %s on %s, which made no progress for %s%s", m.Name, m.Spec.Node, p.failedAfter(), because(m.Status.Error))
}

// removedFailed returns whether a member was removed from etcd's list because it failed for too long. A learner never counted.
func (p *planner) removedFailed(m memberView) bool {
	f := p.failure(m.Name)
	return m.peer == nil && m.Spec.Begin != nil && m.Spec.DataRequired && f != nil && !f.Learner && p.failedTooLong(m)
}

// setAsideFailed keeps the data of a failed member that was removed from etcd's list.
func (p *planner) setAsideFailed(m memberView) {
	p.avoid(m.Spec.Node)
	p.status.SetAside = append(p.status.SetAside, v1alpha1.EtcdSetAside{Member: m.Name, Node: m.Spec.Node, Reason: "It failed and was replaced" + because(shortened(m.Status.Error))})
	p.setDesired(m, v1alpha1.EtcdMemberStop)
}

func shortened(text string) string {
	if len(text) > 200 {
		return text[:200] + "..."
	}
	return text
}

// avoid places new members elsewhere for a while.
func (p *planner) avoid(node string) {
	until := metav1.NewTime(p.Now.Add(avoidFor * p.failedAfter()))
	if i := slices.IndexFunc(p.status.Avoid, func(a v1alpha1.EtcdAvoidedNode) bool { return a.Node == node }); i >= 0 {
		p.status.Avoid[i].Until = until
		return
	}
	p.status.Avoid = append(p.status.Avoid, v1alpha1.EtcdAvoidedNode{Node: node, Until: until})
}

// avoided returns whether new members are preferably placed elsewhere.
func (p *planner) avoided(node string) bool { return p.reluctance(node) > 0 }

// reluctance returns how strongly new members are placed elsewhere: most where a voter fails now, less where one failed a while ago.
func (p *planner) reluctance(node string) int {
	switch {
	case slices.ContainsFunc(p.failingVoters(), func(m memberView) bool { return m.Spec.Node == node }):
		return 2
	case slices.ContainsFunc(p.status.Avoid, func(a v1alpha1.EtcdAvoidedNode) bool { return a.Node == node && p.Now.Before(a.Until.Time) }):
		return 1
	}
	return 0
}

// failingMessage names the members that fail, and what happens about it. A new member is mentioned once it has made no progress for half of its time.
func (p *planner) failingMessage() string {
	var parts []string
	for _, m := range p.current {
		f := p.failure(m.Name)
		isNew := m.learner() || m.reserves() && p.hasRun()
		if f == nil || f.HealthySince != nil || isNew && p.Now.Sub(f.Since.Time) < p.failedAfter()/2 {
			continue
		}
		what := "fails"
		if isNew {
			what = "makes no progress"
		}
		parts = append(parts, fmt.Sprintf("member %s on %s %s since %s%s", m.Name, m.Spec.Node, what, f.Since.UTC().Format("15:04:05 MST"), because(shortened(m.Status.Error))))
	}
	if len(parts) == 0 {
		return ""
	}
	text := strings.Join(parts, "; ") + ". "
	text = strings.ToUpper(text[:1]) + text[1:]
	switch {
	case !p.hasRun():
		return text + fmt.Sprintf("Another node is tried when it has failed for %s.", p.failedAfter())
	case len(p.failingVoters()) > 1:
		return text + "Several members fail at once, so none is replaced: read the logs of their processes, and fix the cause."
	case p.readyVoters() < quorum(p.votes()):
		return text + "It is replaced when the others have a quorum."
	}
	return text + fmt.Sprintf("It is replaced when it has failed for %s.", p.failedAfter())
}
