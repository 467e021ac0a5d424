package main

import (
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
)

// clusterStatus is what `ebb status` prints.
type clusterStatus struct {
	Coordinator string                `json:"coordinator"`
	ActiveDrain *v1alpha1.ActiveDrain `json:"activeDrain,omitempty"`
	Nodes       []nodeStatus          `json:"nodes"`
}

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
		Short:   "Show the nodes, who coordinates, and what drains",
		Example: "  ebb status\n  ebb status -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			status, err := readStatus(cmd.Context(), cl)
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), status, func() string { return status.text(time.Now()) })
		},
	}
	c.addFlags(cmd.Flags())
	out.addFlag(cmd.Flags())
	return cmd
}

func readStatus(ctx context.Context, c client.Client) (*clusterStatus, error) {
	var nodes v1alpha1.NodeList
	if err := c.List(ctx, &nodes); err != nil {
		return nil, err
	}
	settings := &v1alpha1.Settings{}
	if err := c.Get(ctx, types.NamespacedName{Name: v1alpha1.SettingsName}, settings); err != nil {
		return nil, err
	}
	leader, err := coordinator.Locate(ctx, c)
	if err != nil && !errors.Is(err, coordinator.ErrNone) {
		return nil, err
	}
	status := &clusterStatus{Coordinator: leader, ActiveDrain: settings.Status.ActiveDrain, Nodes: []nodeStatus{}}
	for i := range nodes.Items {
		status.Nodes = append(status.Nodes, statusOf(&nodes.Items[i], leader))
	}
	slices.SortFunc(status.Nodes, func(a, b nodeStatus) int { return strings.Compare(a.Name, b.Name) })
	return status, nil
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
		leader = "none at the moment"
	}
	fmt.Fprintf(&b, "%d nodes, coordinator: %s\n", len(s.Nodes), leader)
	if s.ActiveDrain != nil {
		fmt.Fprintf(&b, "draining: %s (epoch %d) by drain %s\n", s.ActiveDrain.Node, s.ActiveDrain.NodeEpoch, s.ActiveDrain.Name)
	}
	if len(s.Nodes) == 0 {
		return b.String()
	}
	b.WriteString("\n")
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "NODE\tLIVENESS\tREADY\tREASON\tSINCE\tEPOCH\tHELD\tNOTE")
	for _, n := range s.Nodes {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", n.Name, n.Liveness, n.Ready, n.Reason,
			duration.HumanDuration(now.Sub(n.Since.Time)), n.Epoch, counts(n.Held), n.note())
	}
	w.Flush()
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

// trimLines takes away the spaces that a table leaves at the ends of its lines.
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
