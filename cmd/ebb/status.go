package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/coordinator"
	"github.com/ebb-dev/ebb/internal/deployment"
	"github.com/ebb-dev/ebb/internal/kind"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/pod"
)

// clusterStatus is what `ebb status` prints.
type clusterStatus struct {
	Coordinator string                `json:"coordinator"`
	Vacancy     string                `json:"vacancy,omitempty"` // explanation if there is no coordinator or it does not renew its election
	ActiveDrain *v1alpha1.ActiveDrain `json:"activeDrain,omitempty"`
	Nodes       []nodeStatus          `json:"nodes"`
	Drains      []drainStatus         `json:"drains"`
	Deployments *deployment.Counts    `json:"deployments,omitempty"`
	// DrainProblem is what is wrong with the drain that holds the slot.
	DrainProblem string `json:"drainProblem,omitempty"`
	// NodeSummary summarizes the nodes, and Kinds each kind of work that has objects.
	NodeSummary *kind.Summary   `json:"nodeSummary"`
	Kinds       []*kind.Summary `json:"kinds"`
}

// drainStatus is one of the latest drains.
type drainStatus struct {
	Name      string              `json:"name"`
	Node      string              `json:"node"`
	Phase     v1alpha1.DrainPhase `json:"phase"`
	Outcome   string              `json:"outcome,omitempty"`
	Message   string              `json:"message,omitempty"`
	Remaining map[string]int64    `json:"remaining"`
	Created   metav1.Time         `json:"created"`
}

// latestDrains is how many drains the status shows, besides up to unfinishedDrains older ones that have not ended.
const (
	latestDrains     = 5
	unfinishedDrains = 20
)

type nodeStatus struct {
	Name        string            `json:"name"`
	Liveness    v1alpha1.Liveness `json:"liveness"`
	Ready       string            `json:"ready"`
	Reason      string            `json:"reason,omitempty"`
	Message     string            `json:"message,omitempty"`
	Since       metav1.Time       `json:"since"`
	Epoch       int64             `json:"epoch"`
	Coordinator bool              `json:"coordinator"`
	Cordoned    bool              `json:"cordoned"`
	Held        map[string]int64  `json:"held"`
	HTTPAddress string            `json:"httpAddress,omitempty"`
}

func newStatus() *cobra.Command {
	var c cluster
	var out output
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Show the nodes, the coordinator, the running drain and the state of each kind of work",
		Example: "  ebb status\n  ebb status -o json\n  ebb status deployments",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			status, err := readStatus(cmd.Context(), cl, c.now)
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), status, func() string { return status.text(c.now()) })
		},
	}
	c.addFlags(cmd.Flags())
	out.addFlag(cmd.Flags())
	cmd.AddCommand(newStatusDeployments(), newChangefeedList("changefeeds"), newStatusEtcdClusters(), newVolumeList("volumes"))
	return cmd
}

// readStatus reads what there is to show. It asks for the time after the first answer of the API.
func readStatus(ctx context.Context, c client.Client, clock func() time.Time) (*clusterStatus, error) {
	var nodes v1alpha1.NodeList
	if err := c.List(ctx, &nodes); err != nil {
		return nil, err
	}
	now := clock()
	settings := &v1alpha1.Settings{} // on Kubernetes the first coordinator creates them: until then the status says why there is none
	if err := c.Get(ctx, types.NamespacedName{Name: v1alpha1.SettingsName}, settings); err != nil && !kubeclient.IsMissing(err) {
		return nil, err
	}
	leader, err := coordinator.Locate(ctx, c)
	if err != nil && !errors.Is(err, coordinator.ErrNone) {
		return nil, err
	}
	status := &clusterStatus{Coordinator: leader, ActiveDrain: settings.Status.ActiveDrain, Nodes: []nodeStatus{}}
	var vacant bool
	if status.Vacancy, vacant, err = coordinator.Vacancy(ctx, c, now); err != nil {
		return nil, err
	}
	if vacant {
		leader, status.Coordinator = "", ""
	}
	for i := range nodes.Items {
		status.Nodes = append(status.Nodes, statusOf(&nodes.Items[i], leader))
	}
	slices.SortFunc(status.Nodes, func(a, b nodeStatus) int { return strings.Compare(a.Name, b.Name) })
	status.NodeSummary = summarizeNodes(status.Nodes)
	var drains v1alpha1.DrainList
	if err := c.List(ctx, &drains); err != nil {
		return nil, err
	}
	status.Drains, status.DrainProblem = latest(drains.Items, settings.Status.ActiveDrain, now), drainProblem(settings.Status.ActiveDrain, drains.Items)
	var programs v1alpha1.DeploymentList
	if err := c.List(ctx, &programs); err != nil {
		return nil, err
	}
	status.Deployments = deployment.CountAll(programs.Items)
	status.Kinds, err = kinds.Summaries(ctx, c, now)
	return status, err
}

// latest returns the newest drains, and older ones that have not ended, newest first.
func latest(drains []v1alpha1.Drain, slot *v1alpha1.ActiveDrain, now time.Time) []drainStatus {
	slices.SortFunc(drains, func(a, b v1alpha1.Drain) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	list := []drainStatus{}
	unfinished := 0
	for i, d := range drains {
		if i >= latestDrains {
			if unfinished++; d.Status.Phase.Final() || unfinished > unfinishedDrains {
				unfinished--
				continue
			}
		}
		s := drainStatus{Name: d.Name, Node: d.Spec.NodeName, Phase: d.Status.Phase, Remaining: orEmpty(d.Status.Remaining), Created: d.CreationTimestamp}
		if s.Phase == "" {
			s.Phase = v1alpha1.DrainPending
		}
		if c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DrainFinished); c != nil {
			s.Outcome, s.Message = c.Reason, c.Message+sinceFailed(&d, slot)
		}
		if d.Status.Pods != nil && !d.Status.Phase.Final() {
			s.Message += " Pods: " + pod.Progress(d.Status.Pods) + "."
			for _, b := range d.Status.Pods.Blockers {
				s.Message += " " + pod.Sentence(b, now) + "."
			}
		}
		list = append(list, s)
	}
	return list
}

// sinceFailed returns, in a sentence, what has become of the node of a drain that failed at its deadline. The drain's own message stays what it was then: that
// the node stays Draining.
func sinceFailed(d *v1alpha1.Drain, slot *v1alpha1.ActiveDrain) string {
	c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DrainReleased)
	switch {
	case d.Status.Phase != v1alpha1.DrainFailed || d.Status.StartedAt == nil || d.Status.Scope == v1alpha1.ScopePods:
		return ""
	case c != nil && c.Status == metav1.ConditionTrue:
		return " " + c.Message
	case slot == nil || slot.UID != string(d.UID):
		return fmt.Sprintf(" Since then it no longer holds node %s.", d.Spec.NodeName)
	}
	return ""
}

func statusOf(n *v1alpha1.Node, leader string) nodeStatus {
	s := nodeStatus{
		Name: n.Name, Liveness: n.Status.Liveness, Ready: "Unknown", Epoch: n.Status.Epoch, Coordinator: n.Name == leader,
		Cordoned: n.Spec.Cordoned, Held: orEmpty(n.Status.Held), HTTPAddress: n.Status.HTTPAddress, Since: n.CreationTimestamp,
	}
	if ready := meta.FindStatusCondition(n.Status.Conditions, v1alpha1.NodeReady); ready != nil {
		s.Ready, s.Reason, s.Message, s.Since = string(ready.Status), ready.Reason, ready.Message, ready.LastTransitionTime
	}
	return s
}

func (s *clusterStatus) text(now time.Time) string {
	var b strings.Builder
	leader := s.Coordinator
	if leader == "" {
		leader = "none"
	}
	fmt.Fprintf(&b, "%s, coordinator: %s\n", kind.Plural(len(s.Nodes), "node"), leader)
	b.WriteString(s.Vacancy)
	if s.ActiveDrain != nil {
		fmt.Fprintf(&b, "draining: %s (epoch %d) by drain %s%s\n", s.ActiveDrain.Node, s.ActiveDrain.NodeEpoch, s.ActiveDrain.Name, because(s.DrainProblem))
	}
	if !s.NodeSummary.AsTheyShouldBe {
		fmt.Fprintln(&b, s.NodeSummary.Line(true))
	}
	for _, k := range s.Kinds {
		fmt.Fprintln(&b, k.Line(s.Coordinator != ""))
	}
	b.WriteString("\n")
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "NODE\tLIVENESS\tREADY\tREASON\tSINCE\tEPOCH\tHELD\tNOTE")
	for _, n := range s.Nodes {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", n.Name, n.Liveness, n.Ready, n.Reason,
			duration.HumanDuration(now.Sub(n.Since.Time)), n.Epoch, held(n.Held), n.note())
	}
	w.Flush()
	if len(s.Drains) > 0 {
		fmt.Fprintln(w, "\nDRAIN\tNODE\tPHASE\tAGE\tREMAINING\tMESSAGE")
		for _, d := range s.Drains {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", d.Name, d.Node, d.Phase, duration.HumanDuration(now.Sub(d.Created.Time)), held(d.Remaining), kind.OneLine(d.Message))
		}
		w.Flush()
	}
	return trimLines(b.String())
}

func (n nodeStatus) note() string {
	var notes []string
	if n.Coordinator {
		notes = append(notes, "coordinator")
	}
	if n.Cordoned {
		notes = append(notes, "cordoned")
	}
	return strings.Join(notes, ", ")
}

// because appends what is wrong, if anything is.
func because(problem string) string {
	if problem == "" {
		return ""
	}
	return "; " + problem
}

// held returns counts in words; "-" if nothing was ever counted.
func held(counts map[string]int64) string {
	if len(counts) == 0 {
		return "-"
	}
	return kinds.Works().Listed(counts)
}

func counts(m map[string]int64) string {
	var parts []string
	for kind, count := range m {
		parts = append(parts, kind+"="+strconv.FormatInt(count, 10))
	}
	slices.Sort(parts)
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, " ")
}

// trimLines removes the spaces that a table leaves at the ends of its lines.
func trimLines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

func orEmpty(m map[string]int64) map[string]int64 {
	if m == nil {
		return map[string]int64{}
	}
	return m
}
