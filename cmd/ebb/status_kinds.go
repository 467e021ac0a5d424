package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// kindSummary is the line about one kind of work in `ebb status`.
type kindSummary struct {
	// Kind in the plural.
	Kind string `json:"kind"`
	// Total is how many objects there are.
	Total int `json:"total"`
	// AsTheyShouldBe says that nothing is wrong or under way with any of them.
	AsTheyShouldBe bool `json:"asTheyShouldBe"`
	// States counts them by how they are.
	States map[string]int `json:"states"`
	// Notes are about those that are not as they should be, sorted by name.
	Notes []kindNote `json:"notes"`

	one   string // the kind in the singular
	see   string // the command that shows more
	order []objectState
}

// kindNote says what is wrong or under way with one object.
type kindNote struct {
	Name    string `json:"name"`
	State   string `json:"state"`
	Message string `json:"message,omitempty"`
}

// objectState is how an object is, in a word or two.
type objectState struct {
	name string
	one  string // what one object does, where that differs from the name
	many string // what several do
	rank stateRank
}

// stateRank says what a state means for the line, and where in it the state is named.
type stateRank int

const (
	rankGood   stateRank = iota // as it usually is
	rankWanted                  // as somebody wants it, though nothing runs
	rankBusy                    // on its way
	rankWrong                   // somebody should look at it
)

// States that several kinds know.
var (
	stateRunning  = objectState{name: "running"}
	stateUnseen   = objectState{name: "not looked at since the last change", rank: rankBusy}
	stateDeleting = objectState{name: "being deleted", rank: rankBusy}
	stateFailed   = objectState{name: "failed", rank: rankWrong}
)

// maxNotes is how many objects a line names.
const maxNotes = 3

// maxNoteLength is how much of a message a line shows, in characters.
const maxNoteLength = 120

func newKindSummary(one, many, see string) *kindSummary {
	return &kindSummary{Kind: many, AsTheyShouldBe: true, States: map[string]int{}, Notes: []kindNote{}, one: one, see: see}
}

// add counts an object; the message says what is wrong or under way.
func (k *kindSummary) add(name string, s objectState, message string) {
	k.Total++
	if k.States[s.name] == 0 {
		k.order = append(k.order, s)
	}
	k.States[s.name]++
	if s.rank < rankBusy {
		return
	}
	k.AsTheyShouldBe = false
	k.Notes = append(k.Notes, kindNote{Name: name, State: s.name, Message: strings.TrimSuffix(oneLine(message), ".")})
}

// sort makes what is shown independent of the order in which the objects were read.
func (k *kindSummary) sort() {
	slices.SortFunc(k.order, func(a, b objectState) int { return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.name, b.name)) })
	slices.SortFunc(k.Notes, func(a, b kindNote) int { return cmp.Compare(a.Name, b.Name) })
}

// line is what `ebb status` says of the kind. Without a coordinator nobody brings what is known up to date.
func (k *kindSummary) line(coordinated bool) string {
	text := plural(k.Total, k.one) + ": "
	if !k.AsTheyShouldBe {
		return text + k.states() + k.seeMore()
	}
	switch {
	case !coordinated && k.Total == 1:
		text += "was as it should be when a coordinator last looked"
	case !coordinated:
		text += "all were as they should be when a coordinator last looked"
	case k.Total == 1:
		text += "as it should be"
	default:
		text += "all as they should be"
	}
	for _, s := range k.order {
		if s.rank == rankWanted && k.Total == 1 {
			text += ", " + s.name
		} else if s.rank == rankWanted {
			text += fmt.Sprintf(", %d %s", k.States[s.name], s.name)
		}
	}
	return text
}

// states lists how many are in each state, and of those that are not as they should be the first few by name.
func (k *kindSummary) states() string {
	var parts []string
	left := maxNotes
	for _, s := range k.order {
		n := k.States[s.name]
		part := fmt.Sprintf("%d %s", n, s.words(n))
		if s.rank >= rankBusy {
			part += k.named(s, &left)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}

func (s objectState) words(n int) string {
	switch {
	case n == 1 && s.one != "":
		return s.one
	case n != 1 && s.many != "":
		return s.many
	}
	return s.name
}

// named names the objects in a state, as many as there is room left for.
func (k *kindSummary) named(s objectState, left *int) string {
	var names []string
	for _, n := range k.Notes {
		if n.State != s.name || *left == 0 {
			continue
		}
		*left--
		if n.Message != "" {
			n.Name += ": " + shorten(n.Message, maxNoteLength)
		}
		names = append(names, n.Name)
	}
	more := k.States[s.name] - len(names)
	switch {
	case len(names) == 0:
		return ""
	case more > 0:
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return " (" + strings.Join(names, "; ") + ")"
}

func (k *kindSummary) seeMore() string {
	if k.see == "" {
		return ""
	}
	return ", see `" + k.see + "`"
}

// shorten cuts a text that is too long for a line, after a sentence if one ends in time.
func shorten(text string, most int) string {
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	cut := string(runes[:most-1])
	if end := strings.LastIndex(cut, ". "); end > 0 {
		return cut[:end]
	}
	return strings.TrimRight(cut, " ") + "…"
}

// readKinds reads how every kind of work is. A kind without objects has no line.
func readKinds(ctx context.Context, c client.Client, programs []v1alpha1.Deployment, now time.Time) ([]*kindSummary, error) {
	var feeds v1alpha1.ChangefeedList
	if err := c.List(ctx, &feeds); err != nil {
		return nil, err
	}
	var clusters v1alpha1.EtcdClusterList
	if err := c.List(ctx, &clusters); err != nil {
		return nil, err
	}
	deployments, daemons := summarizePrograms(programs)
	list := []*kindSummary{}
	for _, k := range []*kindSummary{deployments, daemons, summarizeChangefeeds(feeds.Items, now), summarizeEtcdClusters(clusters.Items)} {
		if k.Total > 0 {
			k.sort()
			list = append(list, k)
		}
	}
	return list, nil
}

// summarizePrograms says how deployments and daemons are.
func summarizePrograms(list []v1alpha1.Deployment) (deployments, daemons *kindSummary) {
	deployments = newKindSummary("deployment", "deployments", "ebb status deployments")
	daemons = newKindSummary("daemon", "daemons", "ebb status deployments")
	for i := range list {
		d := &list[i]
		state, message := programState(d)
		if d.Spec.Type == v1alpha1.TypeDaemon {
			daemons.add(displayName(d), state, message)
		} else {
			deployments.add(displayName(d), state, message)
		}
	}
	return deployments, daemons
}

// programState follows from a program's own conditions.
func programState(d *v1alpha1.Deployment) (objectState, string) {
	running := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DeploymentRunning)
	valid := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DeploymentValid)
	switch {
	case !d.DeletionTimestamp.IsZero():
		return stateDeleting, ""
	case healthy(d) && running.Status == metav1.ConditionTrue:
		return stateRunning, ""
	case healthy(d):
		return objectState{name: "disabled", rank: rankWanted}, ""
	case running == nil || running.ObservedGeneration != d.Generation:
		return stateUnseen, ""
	case valid != nil && valid.Status == metav1.ConditionFalse:
		return objectState{name: "invalid", rank: rankWrong}, valid.Message
	}
	return objectState{name: "not running where it should", many: "not running where they should", rank: rankWrong}, running.Message
}

func summarizeChangefeeds(list []v1alpha1.Changefeed, now time.Time) *kindSummary {
	k := newKindSummary("changefeed", "changefeeds", "ebb status changefeeds")
	for i := range list {
		state, message := changefeedStateOf(&list[i], now)
		k.add(nameIn(list[i].Namespace, list[i].Name), state, message)
	}
	return k
}

// changefeedStateOf follows from what its maintainer and the coordinator wrote.
func changefeedStateOf(cf *v1alpha1.Changefeed, now time.Time) (objectState, string) {
	s := cf.Status
	switch {
	case !cf.DeletionTimestamp.IsZero():
		return stateDeleting, s.Error
	case s.State == v1alpha1.ChangefeedFailed:
		return stateFailed, s.Error
	case s.State == v1alpha1.ChangefeedPaused && !cf.Wanted():
		return objectState{name: "paused", rank: rankWanted}, ""
	case s.State == v1alpha1.ChangefeedRunning && s.Error != "":
		return objectState{name: "in trouble", rank: rankWrong}, s.Error
	case s.State == v1alpha1.ChangefeedRunning && s.Slowest != "" && s.CheckpointTime != nil && now.Sub(s.CheckpointTime.Time) > explainAfter:
		return objectState{name: "lagging", rank: rankWrong}, fmt.Sprintf("%s behind, %s", age(now, s.CheckpointTime.Time), s.Slowest)
	case s.State == v1alpha1.ChangefeedRunning:
		return stateRunning, ""
	case s.State == "":
		return objectState{name: "pending", rank: rankBusy}, s.Error
	}
	return objectState{name: strings.ToLower(string(s.State)), rank: rankBusy}, s.Error
}

func summarizeEtcdClusters(list []v1alpha1.EtcdCluster) *kindSummary {
	k := newKindSummary("etcd cluster", "etcd clusters", "ebb status etcdclusters")
	for i := range list {
		state, message := etcdClusterState(&list[i])
		k.add(nameIn(list[i].Namespace, list[i].Name), state, message)
	}
	return k
}

// etcdClusterState follows from a cluster's own phase and conditions.
func etcdClusterState(ec *v1alpha1.EtcdCluster) (objectState, string) {
	s := ec.Status
	is := func(kind string) bool { return meta.IsStatusConditionTrue(s.Conditions, kind) }
	ready := fmt.Sprintf("%d of %d members ready", s.ReadyReplicas, max(ec.Size(), len(s.Members)))
	switch {
	case !ec.DeletionTimestamp.IsZero():
		return stateDeleting, ""
	case is(v1alpha1.EtcdQuorumLost):
		return objectState{name: "no quorum", one: "has no quorum", many: "have no quorum", rank: rankWrong}, etcdMessage(ec)
	case is(v1alpha1.EtcdDataMissing):
		return objectState{name: "data missing", one: "has data missing", many: "have data missing", rank: rankWrong}, etcdMessage(ec)
	case is(v1alpha1.EtcdSnapshotFailed):
		return objectState{name: "no snapshot", one: "cannot be snapshotted", many: "cannot be snapshotted", rank: rankWrong}, etcdMessage(ec)
	case s.Phase == v1alpha1.EtcdClusterPhaseFailed:
		return stateFailed, etcdMessage(ec)
	case s.Phase == "" || s.ObservedGeneration != ec.Generation:
		return stateUnseen, ""
	case s.Phase == v1alpha1.EtcdClusterPhaseStopped && ec.Size() == 0:
		return objectState{name: "stopped", rank: rankWanted}, ""
	case s.Phase != v1alpha1.EtcdClusterPhaseRunning:
		return objectState{name: strings.ToLower(string(s.Phase)), rank: rankBusy}, etcdMessage(ec)
	case !is(v1alpha1.EtcdReady):
		return objectState{name: "not ready", rank: rankWrong}, ready
	case int(s.ReadyReplicas) < ec.Size():
		return objectState{name: "short of members", rank: rankWrong}, ready
	}
	return stateRunning, ""
}

// summarizeNodes says how nodes are; one that left in order is as somebody wanted it.
func summarizeNodes(list []nodeStatus) *kindSummary {
	k := newKindSummary("node", "nodes", "")
	for _, n := range list {
		switch {
		case n.Ready == string(metav1.ConditionTrue):
			k.add(n.Name, objectState{name: "ready"}, "")
		case n.Reason == v1alpha1.ReasonLeft:
			k.add(n.Name, objectState{name: "left", rank: rankWanted}, "")
		case n.Reason == v1alpha1.ReasonStarting || n.Reason == v1alpha1.ReasonStopping:
			k.add(n.Name, objectState{name: strings.ToLower(n.Reason), rank: rankBusy}, "")
		case n.Reason != "":
			k.add(n.Name, objectState{name: strings.ToLower(n.Reason), rank: rankWrong}, n.Message)
		default:
			k.add(n.Name, objectState{name: "not ready", rank: rankWrong}, n.Message)
		}
	}
	k.sort()
	return k
}

// drainProblem is what is wrong with the drain that holds the slot; empty if nothing is.
func drainProblem(slot *v1alpha1.ActiveDrain, drains []v1alpha1.Drain) string {
	if slot == nil {
		return ""
	}
	i := slices.IndexFunc(drains, func(d v1alpha1.Drain) bool { return string(d.UID) == slot.UID })
	if i < 0 {
		return "its record was deleted; a new Drain of the node goes on"
	}
	d := &drains[i]
	if c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DrainStalled); !d.Status.Phase.Final() && c != nil && c.Status == metav1.ConditionTrue {
		return "stalled: " + strings.TrimSuffix(oneLine(c.Message), ".")
	}
	if c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DrainFinished); d.Status.Phase == v1alpha1.DrainFailed && c != nil {
		return "failed: " + strings.TrimSuffix(oneLine(c.Message), ".")
	}
	return ""
}
