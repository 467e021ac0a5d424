package kube

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/lease"
)

// why says what keeps a cordoned node, in the words of `ebb explain`. It names no times, so that it changes only with the work. It says
// nothing about what passes at once.
func (w GuardWorld) why(n *v1alpha1.Node, works drain.Works) string {
	holds := fmt.Sprintf("Ebb holds node %s: ", n.Name)
	held := works.Listed(n.Status.Held)
	placed := w.Placed[n.Name]
	if d := w.foremost(n.Name); d != nil {
		return whyDrain(holds, d, works)
	}
	switch {
	case !w.Live(n.Name) && !placed.none():
		return sentences(fmt.Sprintf("%sit %s, and objects place %s on it. Ebb moves that to other nodes.", holds, gone(w.Leases[n.Name]), works.Listed(placed.Counts)), placed.Blockers)
	case !w.Live(n.Name):
		return ""
	case w.failed(n.Name) != nil:
		return w.whyFailed(holds, n, works)
	case w.wantsDrain(n, w.Core[n.Name]):
		return w.whyNotYet(holds, n)
	case w.gaveUp(n) && !placed.none():
		return sentences(fmt.Sprintf("%sit runs nothing, and objects place %s on it.", holds, works.Listed(placed.Counts)), placed.Blockers)
	case w.gaveUp(n):
		return ""
	case w.live() < 2:
		return fmt.Sprintf("%sit holds %s, and no other node can take that. Start another node.", holds, held)
	case w.Sensors[guardLabel(n.Name)] != nil:
		return fmt.Sprintf("%sit holds %s, and no drain of it is running. `ebb drain %s`, or a new `kubectl drain %s`, moves the work away.", holds, held, n.Name, n.Name)
	}
	return fmt.Sprintf("%sit holds %s, and no drain of it is running. `ebb drain %s` moves the work away.", holds, held, n.Name)
}

// gone says how a node without a lease went.
func gone(rec lease.Record) string {
	if rec.Epoch > 0 && rec.Fenced >= rec.Epoch {
		return "is lost"
	}
	return "has left"
}

// whyNotYet says why a drain that begins by itself has not begun: the coordinator cannot be drained, and has to resign.
func (w GuardWorld) whyNotYet(holds string, n *v1alpha1.Node) string {
	if n.Name != w.Leader {
		return ""
	}
	for _, d := range w.Drains {
		if !d.Status.Phase.Final() {
			return fmt.Sprintf("%sit is the coordinator, which cannot be drained. It resigns when drain %s of node %s has ended.", holds, d.Name, d.Spec.NodeName)
		}
	}
	if w.successor() == "" {
		return holds + "it is the coordinator, which cannot be drained, and no other node can take over. Uncordon another node, or start one."
	}
	return ""
}

// foremost returns a drain of a node that has not ended, one that has begun before one that waits.
func (w World) foremost(node string) *v1alpha1.Drain {
	found := w.running(node)
	for _, d := range w.Drains {
		if d.Spec.NodeName == node && !d.Status.Phase.Final() && d.Status.StartedAt != nil {
			found = d
		}
	}
	return found
}

// drainComes reports whether a drain of a cordoned node is created by itself, as things are. It says what drainCordoned does.
func (w World) drainComes(n *v1alpha1.Node) bool {
	a := w.drainCordoned(n, w.Core[n.Name])
	if a != nil && (a.Verb == Create || a.Verb == Resign) {
		return true
	}
	// A coordinator that drains others resigns after that.
	return n.Name == w.Leader && a == nil && w.wantsDrain(n, w.Core[n.Name]) && w.busy() && w.successor() != ""
}

// failed returns the drain that keeps a node Draining after its deadline.
func (w GuardWorld) failed(node string) *v1alpha1.Drain {
	if w.Slot == nil || w.Slot.Node != node {
		return nil
	}
	for _, d := range w.Drains {
		if string(d.UID) == w.Slot.UID && d.Status.Phase == v1alpha1.DrainFailed {
			return d
		}
	}
	return nil
}

func (w GuardWorld) whyFailed(holds string, n *v1alpha1.Node, works drain.Works) string {
	d := w.failed(n.Name)
	text := fmt.Sprintf("%sdrain %s is Failed, %s. `ebb drain %s` continues it.", holds, d.Name, works.Summary(d.Status.Remaining), n.Name)
	return sentences(text, d.Status.Blockers)
}

func whyDrain(holds string, d *v1alpha1.Drain, works drain.Works) string {
	text := fmt.Sprintf("%sdrain %s is %s", holds, d.Name, cmp.Or(d.Status.Phase, v1alpha1.DrainPending))
	if d.Status.StartedAt == nil {
		if c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DrainFinished); c != nil {
			return text + ". " + c.Message
		}
		return "" // it is about to be decided
	}
	return sentences(text+", "+works.Summary(d.Status.Remaining)+".", d.Status.Blockers)
}

// sentences adds what is in the way to a text.
func sentences(text string, blockers []v1alpha1.Blocker) string {
	all := []string{text}
	for _, g := range drain.Groups(blockers) {
		all = append(all, strings.Join(append([]string{g.String()}, g.Advice()...), ": ")+".")
	}
	return strings.Join(all, " ")
}

// unguarded says why a node gets no work that needs a guard, if that may last.
func (w GuardWorld) unguarded(n *v1alpha1.Node) string {
	if _, why, problem := w.stands(n.Name); problem && needsGuard(n) && w.Live(n.Name) && !n.Spec.Cordoned {
		return fmt.Sprintf("Until its guard runs, node %s takes no work that must leave before the node does. %s", n.Name, why)
	}
	return ""
}

// notice is what an event last said of a node.
type notice struct {
	text  string
	first time.Time // of the notices since the node is held
	last  time.Time
	holds bool // it said what holds the node
}

const (
	// noticeAfter is the least time between two events about a node. It grows with how long the node is held, up to noticeMost.
	noticeAfter = 10 * time.Second
	noticeMost  = 5 * time.Minute
	// noticeAgain is after how long the same is said again: events expire.
	noticeAgain = 20 * time.Minute
)

// due reports whether an event about a node should be written now.
func (last notice) due(text string, now time.Time) bool {
	if last.first.IsZero() {
		return true
	}
	since := now.Sub(last.last)
	if text == last.text {
		return since >= noticeAgain
	}
	return since >= min(max(last.last.Sub(last.first)/4, noticeAfter), noticeMost)
}

// said is the notice after an event was written.
func (last notice) said(text string, now time.Time, holds bool) notice {
	if last.first.IsZero() {
		last.first = now
	}
	return notice{text: text, first: last.first, last: now, holds: holds}
}
