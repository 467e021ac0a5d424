package health_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/health"
	"github.com/ebb-dev/ebb/internal/simtest"
	"github.com/ebb-dev/ebb/internal/testlength"
)

// rule of the simulation.
type simRule string

const (
	ruleShare     simRule = "Ebb cordons no node beyond the share"
	ruleForeign   simRule = "Ebb uncordons no node that others cordoned"
	ruleOne       simRule = "a node has one custom resource at a time"
	ruleSucceeded simRule = "Succeeded needs a complete resource and a complete drain"
	ruleFinal     simRule = "a drain that succeeded is not repeated"
	ruleEnd       simRule = "in the end everything is handled and nothing is left"
	ruleIntent    simRule = "what is created was recorded before"
	ruleAttempt   simRule = "an event has one custom resource alive at a time"
	ruleTrueWait  simRule = "a wait for a successor ends when there is one"
	ruleOldCancel simRule = "a healthy event ends only older problems of its check"
)

// play is one history: detectors, persons, the drain controller and the controller of custom resources do things at random, and the
// coordinator dies at random points.
type play struct {
	*store
	random  *rand.Rand
	referee *simtest.Referee[simRule]
	foreign map[string]bool // cordoned by persons
	created map[string]int  // resources made for an event
	calm    bool            // no more faults
	sent    int

	wrong    broken
	finished map[string]bool // resources, by UID, whose controller reported that they are complete
	seenDead map[string]bool // nodes that did not run at the last look; they may start before a write, in which nothing of it shows
	lifted   map[string]bool // nodes that a person uncordoned
}

// broken are rules that a play breaks on purpose, to see whether the referee notices.
type broken struct{ share, foreign, intent, both, attempt, oldCancel bool }

func playSeed(seed uint64, wrong broken) *simtest.Referee[simRule] {
	bound := simtest.Start("health", strconv.FormatUint(seed, 10), simtest.Limits{Steps: 200_000})
	defer bound.End()
	random := rand.New(rand.NewPCG(seed, 15))
	p := &play{store: newStore(3 + random.IntN(20)), random: random, foreign: map[string]bool{}, created: map[string]int{}, finished: map[string]bool{}, lifted: map[string]bool{}}
	p.referee = simtest.NewReferee[simRule](func() string { return p.now.Format(time.TimeOnly) })
	if p.chance(0.8) {
		p.custom()
	}
	p.config.Quarantine.MaxShare = float64(random.IntN(40))
	p.crash = func(string) bool { return !p.calm && p.chance(0.05) }
	p.refuse = func(health.Step) bool { return !p.calm && p.chance(0.05) }
	p.wrong, p.saw = wrong, func(step health.Step) { p.judge(step, wrong) }
	for range 150 {
		bound.Step()
		p.happen()
		p.coordinate(bound, 1+random.IntN(4))
	}
	p.finish(bound)
	return p.referee
}

func (p *play) chance(x float64) bool { return p.random.Float64() < x }

func (p *play) pick(n int) string { return fmt.Sprintf("n%d", 1+p.random.IntN(n)) }

// coordinate lets the coordinator look a few times. It may see an old world, and die at any step.
func (p *play) coordinate(bound *simtest.Play, times int) {
	for range times {
		bound.Step()
		clear(p.left)
		w := p.world()
		p.seenDead = maps.Clone(p.dead)
		if !p.calm && p.chance(0.1) {
			p.happen() // between the look and the writes
		}
		for _, step := range health.Next(w) {
			alive := p.take(step)
			p.judgeStore(p.wrong)
			if !alive {
				p.referee.Count("crashes")
				p.elect()
				break
			}
		}
	}
}

// elect makes a node the coordinator after the last one died: often one that was about to be drained, whose Drain is refused then.
func (p *play) elect() {
	p.leader = p.pick(len(p.nodes))
	for _, name := range slices.Sorted(maps.Keys(p.drains)) {
		if d := p.drains[name]; !d.Status.Phase.Final() && d.Status.StartedAt == nil && p.chance(0.3) {
			p.leader = d.Spec.NodeName
			p.drain()
		}
	}
	if p.dead[p.leader] {
		p.leader = "nobody"
	}
}

// happen is one thing that somebody else does.
func (p *play) happen() {
	p.now = p.now.Add(time.Duration(1+p.random.IntN(30)) * time.Second)
	switch p.random.IntN(15) {
	case 0, 1, 2, 3:
		p.report()
	case 4, 5, 6:
		p.work()
	case 7, 8:
		p.drain()
	case 9:
		p.person()
	case 10:
		p.define()
	case 12: // a custom resource cannot be read: a right is missing, or a webhook does not answer
		clear(p.unread)
		for _, name := range slices.Sorted(maps.Keys(p.resources)) {
			if p.chance(0.3) {
				p.unread[name] = health.Wait{Reason: health.WaitForbidden, Message: "403"}
			}
		}
	case 13:
		p.noPods, p.mute = p.chance(0.3), p.chance(0.3)
		p.ahead = time.Duration(p.random.IntN(7200)-3600) * time.Second // another coordinator
	case 14: // work is left on nodes that do not run
		clear(p.store.work)
		for _, name := range slices.Sorted(maps.Keys(p.dead)) {
			if p.dead[name] && p.chance(0.5) {
				p.store.work[name] = "1 replica"
			}
		}
	case 11:
		name := p.pick(len(p.nodes))
		p.dead[name] = p.chance(0.3)
	}
}

// define changes what is known of the kind of the resources: it is there; it was deleted, and all resources with it; or discovery failed, which
// says nothing.
func (p *play) define() {
	switch {
	case p.chance(0.6):
		p.definition = health.Definition{Ready: true, Namespaced: true}
	case p.chance(0.5):
		p.definition = health.Definition{Reason: health.WaitLookup, Message: "503"}
	case p.chance(0.5):
		p.definition = health.Definition{Reason: health.WaitDefinition, Message: "404 for a moment"}
	default:
		p.definition = health.Definition{Reason: health.WaitDefinition, Message: "missing", Gone: true}
		clear(p.resources)
	}
}

func (p *play) report() {
	p.sent++
	p.send(fmt.Sprintf("e%d", p.random.IntN(p.sent)+p.sent/2), func(e *v1alpha1.HealthEvent) {
		e.Spec.NodeName, e.Spec.CheckName = p.pick(len(p.nodes)), fmt.Sprintf("c%d", p.random.IntN(2))
		e.Spec.IsHealthy = p.chance(0.3)
		e.Spec.IsFatal = !e.Spec.IsHealthy && p.chance(0.9)
		e.Spec.GeneratedTimestamp = v1alpha1.NewTimestamp(p.now.Add(-time.Duration(p.random.IntN(120)) * time.Second))
	})
}

// work lets the controller of a custom resource do something.
func (p *play) work() {
	for _, name := range slices.Sorted(maps.Keys(p.resources)) {
		switch p.random.IntN(8) {
		case 0, 1:
			p.say(name, "DrainComplete", "True", "Done")
			p.finished[string(p.resources[name].GetUID())] = true
		case 2:
			p.say(name, "DrainFailed", "True", "No")
		case 3:
			delete(p.resources, name)
		}
	}
}

// drain lets Ebb's drain controller do something.
func (p *play) drain() {
	for _, name := range slices.Sorted(maps.Keys(p.drains)) {
		d := p.drains[name]
		if d.Status.Phase.Final() || !p.chance(0.5) && !p.calm {
			continue
		}
		end := func(phase v1alpha1.DrainPhase, reason string) {
			d.Status.Phase = phase
			meta.SetStatusCondition(&d.Status.Conditions, metav1.Condition{Type: v1alpha1.DrainFinished, Status: metav1.ConditionTrue, Reason: reason})
		}
		now := metav1.NewTime(p.now)
		switch {
		case d.Status.Phase == v1alpha1.DrainStopping:
			end(v1alpha1.DrainComplete, v1alpha1.ReasonDrained)
			p.dead[d.Spec.NodeName] = true
		case d.Spec.Cancelled:
			end(v1alpha1.DrainCancelled, v1alpha1.ReasonCancelRequested)
		case d.Spec.NodeName == p.leader:
			end(v1alpha1.DrainFailed, v1alpha1.ReasonTargetIsCoordinator)
		case p.dead[d.Spec.NodeName] && d.Status.StartedAt == nil:
			end(v1alpha1.DrainFailed, v1alpha1.ReasonCaptureNotFound)
		case d.Status.StartedAt == nil:
			d.Status.Phase, d.Status.StartedAt = v1alpha1.DrainDraining, &now
		default:
			d.Status.Phase = v1alpha1.DrainStopping
		}
		p.touch(d)
	}
}

func (p *play) person() {
	name := p.pick(len(p.nodes))
	switch p.random.IntN(5) {
	case 0:
		if !p.nodes[name].Spec.Cordoned && len(v1alpha1.CordonOwners(p.nodes[name])) == 0 {
			p.cordon(name)
			p.foreign[name] = true
		}
	case 1:
		p.uncordon(name)
		v1alpha1.SetCordonOwners(p.nodes[name], nil)
		delete(p.foreign, name)
		p.lifted[name] = true
	case 2:
		for _, id := range slices.Sorted(maps.Keys(p.events)) {
			if e := p.events[id]; e.Status.CustomResource != nil && p.chance(0.5) {
				cr := e.Status.CustomResource
				metav1.SetMetaDataAnnotation(&e.ObjectMeta, v1alpha1.RetryAnnotation, fmt.Sprint(cr.Attempt+1))
				p.touch(e)
			}
		}
	case 3:
		for _, id := range slices.Sorted(maps.Keys(p.drains)) {
			if d := p.drains[id]; d.Status.Phase != v1alpha1.DrainStopping && !d.Status.Phase.Final() && p.chance(0.3) {
				d.Spec.Cancelled = true
				p.touch(d)
			}
		}
	case 4:
		if !p.dead[name] {
			manual(p.store, fmt.Sprintf("manual%d", p.uid)).Spec.NodeName = name
		}
	}
}

// judge looks at every step that the coordinator takes.
func (p *play) judge(step health.Step, wrong broken) {
	p.referee.Count(string(step.Action))
	switch step.Action {
	case health.ActionQuarantine:
		limit := max(1, int(float64(len(p.nodes))*p.config.Quarantine.MaxShare/100))
		if wrong.share {
			limit = 0
		}
		cordoned := 0
		for _, n := range p.nodes {
			if n.Spec.Cordoned {
				cordoned++
			}
		}
		// A person may cordon between the look and the write; the simulation does one thing there.
		if old := p.nodes[step.Node.Name]; !old.Spec.Cordoned && cordoned > limit {
			p.referee.Breach(ruleShare, "%s is cordoned as number %d of %d", step.Node.Name, cordoned+1, limit)
		}
	case health.ActionLift:
		if old := p.nodes[step.Node.Name]; old.Spec.Cordoned && !step.Node.Spec.Cordoned && (p.foreign[step.Node.Name] || wrong.foreign) {
			p.referee.Breach(ruleForeign, "%s", step.Node.Name)
		}
	case health.ActionCreateCR:
		p.judgeCreate(step.Event, wrong)
	case health.ActionFinish:
		p.judgeFinish(step.Event, wrong)
	case health.ActionWait:
		alive := 0
		for name := range p.nodes {
			if !p.seenDead[name] {
				alive++
			}
		}
		if c := meta.FindStatusCondition(step.Event.Status.Conditions, v1alpha1.HealthEventHandled); c.Reason == health.WaitNoSuccessor && alive > 1 {
			p.referee.Breach(ruleTrueWait, "%s: %d nodes run", step.Event.Name, alive)
		}
	case health.ActionCancelDrain, health.ActionClose:
		p.judgeCancel(step, wrong)
	}
}

// judgeStore looks at what is stored, whoever wrote it.
func (p *play) judgeStore(wrong broken) {
	limit, ours := max(1, int(float64(len(p.nodes))*p.config.Quarantine.MaxShare/100)), 0
	for name, n := range p.nodes {
		if n.Spec.Cordoned && !p.foreign[name] {
			ours++
		}
	}
	if ours > limit {
		p.referee.Breach(ruleShare, "%d nodes are cordoned by Ebb, %d may be", ours, limit)
	}
	alive := map[string][]string{}
	for name, r := range p.resources {
		uid := r.GetAnnotations()[v1alpha1.HealthEventAnnotation]
		if alive[uid] = append(alive[uid], name); len(alive[uid]) > 1 || wrong.attempt {
			p.referee.Breach(ruleAttempt, "%q", alive[uid])
		}
	}
}

// judgeCancel: what ends an event is a newer healthy one of its check, a person, or the end of its node.
func (p *play) judgeCancel(step health.Step, wrong broken) {
	e := p.events[step.Event.Name]
	if p.lifted[e.Spec.NodeName] || !e.DeletionTimestamp.IsZero() {
		return
	}
	for _, h := range p.events {
		same := h.Spec.IsHealthy && h.Spec.NodeName == e.Spec.NodeName && h.Spec.CheckName == e.Spec.CheckName
		if same && health.TimeOf(h).After(health.TimeOf(e)) && !wrong.oldCancel {
			return
		}
	}
	p.referee.Breach(ruleOldCancel, "%s: %s", step.Action, e.Name)
}

func (p *play) judgeCreate(e *v1alpha1.HealthEvent, wrong broken) {
	if recorded := p.events[e.Name].Status.CustomResource; recorded == nil || recorded.Name != e.Status.CustomResource.Name || wrong.intent {
		p.referee.Breach(ruleIntent, "%s", e.Name)
	}
	if p.events[e.Name].Status.Pods == nil {
		p.referee.Breach(ruleIntent, "%s has no record of pods", e.Name)
	}
	p.created[e.Name]++
	if p.created[e.Name] > 30 {
		p.referee.Breach(ruleFinal, "%s has %d resources", e.Name, p.created[e.Name])
	}
	for _, r := range p.resources {
		uid := r.GetAnnotations()[v1alpha1.HealthEventAnnotation]
		for _, other := range p.events {
			cr := other.Status.CustomResource
			if string(other.UID) == uid && other.Name != e.Name && other.Spec.NodeName == e.Spec.NodeName && cr != nil && cr.Name == r.GetName() && cr.Outcome == "" {
				p.referee.Breach(ruleOne, "%s and %s on %s", other.Name, e.Name, e.Spec.NodeName)
			}
		}
	}
}

func (p *play) judgeFinish(e *v1alpha1.HealthEvent, wrong broken) {
	if e.Status.UserPodsEvictionStatus.Status != v1alpha1.EvictionSucceeded || e.Annotations[v1alpha1.ManualDrainAnnotation] != "" {
		return
	}
	cr, d := e.Status.CustomResource, e.Status.Drain
	if p.config.CustomDrain != nil && (cr == nil || cr.Outcome != v1alpha1.ResourceComplete) || d == nil || d.Phase != v1alpha1.DrainComplete {
		p.referee.Breach(ruleSucceeded, "%s: %+v, %+v", e.Name, cr, d)
	}
	if cr != nil && (!p.finished[cr.UID] || wrong.both) {
		p.referee.Breach(ruleSucceeded, "%s: the controller of %s never said that it is complete", e.Name, cr.Name)
	}
	if d != nil && d.Outcome == health.DrainNotRunning && !p.seenDead[e.Spec.NodeName] {
		p.referee.Breach(ruleSucceeded, "%s: node %s runs, and was not drained", e.Name, e.Spec.NodeName)
	}
}

// finish ends all faults, reports every check healthy, and lets everything come to rest.
func (p *play) finish(bound *simtest.Play) {
	p.calm, p.noPods, p.mute, p.ahead, p.definition = true, false, false, 0, health.Definition{Ready: true, Namespaced: true}
	clear(p.unread)
	clear(p.store.work)
	p.now = p.now.Add(time.Hour)
	for name := range p.nodes {
		for _, check := range []string{"c0", "c1"} {
			p.send("healthy-"+name+"-"+check, func(e *v1alpha1.HealthEvent) {
				healthy(e)
				e.Spec.NodeName, e.Spec.CheckName = name, check
			})
		}
	}
	for range 60 {
		p.leader = "nobody"
		for clear(p.left); len(p.next()) > 0; {
			p.coordinate(bound, 1)
		}
		if p.rested() {
			break
		}
		p.drain()
		p.now = p.now.Add(2 * time.Hour)
	}
	if steps := health.Next(p.world()); len(steps) > 0 {
		p.referee.Breach(ruleEnd, "the planner still wants %s of %s", steps[0].Action, steps[0].Event.Name)
	}
	for _, e := range p.events {
		if !meta.IsStatusConditionTrue(e.Status.Conditions, v1alpha1.HealthEventHandled) {
			p.referee.Breach(ruleEnd, "event %s is not handled: %+v", e.Name, e.Status)
		}
	}
	for name, n := range p.nodes {
		if n.Spec.Cordoned != p.foreign[name] {
			p.referee.Breach(ruleEnd, "node %s is cordoned: %v, by others: %v, owners %q", name, n.Spec.Cordoned, p.foreign[name], v1alpha1.CordonOwners(n))
		}
	}
	for name, r := range p.resources {
		p.referee.Breach(ruleEnd, "resource %s is left, made for %s", name, r.GetAnnotations()[v1alpha1.HealthEventAnnotation])
	}
}

// rested reports whether every event is handled, so that time changes nothing more.
func (p *play) rested() bool {
	for _, e := range p.events {
		if !meta.IsStatusConditionTrue(e.Status.Conditions, v1alpha1.HealthEventHandled) {
			return false
		}
	}
	return true
}

func TestNoSeedBreaksTheRules(t *testing.T) {
	counts := map[string]int{}
	for seed := range testlength.Seeds(40, 1000) {
		r := playSeed(seed, broken{})
		if verdict := r.Verdict(); verdict != "" {
			t.Fatalf("seed %d: %s", seed, verdict)
		}
		for _, what := range []string{"crashes", "create-cr", "lift", "retry", "manual", "resign", "cancel-drain", "finish", "close", "end-cr", "write-status"} {
			counts[what] += r.Counted(what)
		}
	}
	if os.Getenv("EBB_SEED") != "" {
		return
	}
	for what, n := range counts {
		if n == 0 {
			t.Errorf("no play had a %s", what)
		}
	}
}

func TestTheRefereeSeesABrokenRule(t *testing.T) {
	for name, wrong := range map[string]broken{
		"share": {share: true}, "foreign": {foreign: true}, "intent": {intent: true}, "both": {both: true}, "attempt": {attempt: true}, "oldCancel": {oldCancel: true},
	} {
		seen := false
		for seed := uint64(1); seed < 20 && !seen; seed++ {
			seen = playSeed(seed, wrong).Broken()
		}
		if !seen {
			t.Errorf("%s: nobody noticed", name)
		}
	}
}

func TestReplay(t *testing.T) {
	plan := os.Getenv(simtest.PlanVariable)
	if plan == "" {
		t.Skip("set " + simtest.PlanVariable + " to the seed of a play")
	}
	seed, err := strconv.ParseUint(plan, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if verdict := playSeed(seed, broken{}).Verdict(); verdict != "" {
		t.Fatal(verdict)
	}
}
