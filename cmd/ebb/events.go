package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/health"
	"github.com/ebb-dev/ebb/internal/kind"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

func newEvents() *cobra.Command {
	var c cluster
	var out output
	var node string
	cmd := &cobra.Command{
		Use:     "events",
		Short:   "Show reports about the health of nodes, and what became of them",
		Long:    `Show reports about the health of nodes, newest first: whether each quarantined its node, how far the drain is, and what it waits for.`,
		Example: "  ebb events\n  ebb events --node n2\n  ebb events show gpu-79-n2\n  ebb events retry gpu-79-n2",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			var list v1alpha1.HealthEventList
			if err := cl.List(cmd.Context(), &list); err != nil {
				return err
			}
			events := slices.DeleteFunc(list.Items, func(e v1alpha1.HealthEvent) bool { return node != "" && e.Spec.NodeName != node })
			slices.SortFunc(events, func(a, b v1alpha1.HealthEvent) int {
				return cmp.Or(health.ReceivedAt(&b).Compare(health.ReceivedAt(&a)), strings.Compare(a.Name, b.Name))
			})
			return out.print(cmd.OutOrStdout(), events, func() string { return eventTable(events, c.now()) })
		},
	}
	c.addFlags(cmd.Flags())
	out.addFlag(cmd.Flags())
	cmd.Flags().StringVar(&node, "node", "", "show only the events of this node")
	cmd.AddCommand(newEventsShow(), newEventsRetry())
	return cmd
}

func readEvent(ctx context.Context, c client.Client, name string) (*v1alpha1.HealthEvent, error) {
	e := &v1alpha1.HealthEvent{}
	err := c.Get(ctx, types.NamespacedName{Name: name}, e)
	if kubeclient.IsMissing(err) {
		return nil, fmt.Errorf("there is no health event %q: `ebb events` lists them", name)
	}
	return e, err
}

func newEventsShow() *cobra.Command {
	var c cluster
	var out output
	cmd := &cobra.Command{
		Use:     "show NAME",
		Short:   "Show everything about one event",
		Example: "  ebb events show gpu-79-n2",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			e, err := readEvent(cmd.Context(), cl, args[0])
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), e, func() string { return describeEvent(e, c.now()) })
		},
	}
	c.addFlags(cmd.Flags())
	out.addFlag(cmd.Flags())
	return cmd
}

func newEventsRetry() *cobra.Command {
	var c cluster
	var out output
	cmd := &cobra.Command{
		Use:     "retry NAME",
		Short:   "Try the failed custom drain of an event again",
		Example: "  ebb events retry gpu-79-n2",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			e, attempt, err := retryEvent(cmd.Context(), cl, args[0])
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), e, func() string {
				return fmt.Sprintf("attempt %d of the drain of node %s is requested\n", attempt, e.Spec.NodeName)
			})
		},
	}
	c.addFlags(cmd.Flags())
	out.addFlag(cmd.Flags())
	return cmd
}

// retryEvent requests the next attempt of a failed drain.
func retryEvent(ctx context.Context, c client.Client, name string) (*v1alpha1.HealthEvent, int64, error) {
	for {
		e, err := readEvent(ctx, c, name)
		if err != nil {
			return nil, 0, err
		}
		s, cr := e.Status.UserPodsEvictionStatus, e.Status.CustomResource
		switch {
		case e.Status.ClosedAt != nil:
			reason, message := stateOfEvent(e)
			return nil, 0, fmt.Errorf("event %s no longer keeps node %s in quarantine (%s: %s): there is nothing to retry; `ebb drain %s` drains the node", name, e.Spec.NodeName, reason, kind.OneLine(message), e.Spec.NodeName)
		case e.Annotations[v1alpha1.ManualDrainAnnotation] != "" && meta.IsStatusConditionTrue(e.Status.Conditions, v1alpha1.HealthEventHandled):
			return nil, 0, fmt.Errorf("the drain that event %s was made for has ended: `ebb drain %s` drains the node", name, e.Spec.NodeName)
		case e.Status.Joined != nil:
			return nil, 0, fmt.Errorf("event %s joined the drain of event %s: retry that one", name, e.Status.Joined.Name)
		case s == nil || s.Status != v1alpha1.EvictionFailed || cr == nil:
			return nil, 0, fmt.Errorf("the drain of event %s has not failed: `ebb events show %s` shows its state", name, name)
		case cr.Attempt >= health.MaxAttempts:
			return nil, 0, fmt.Errorf("event %s has had %d attempts, which is the maximum: send another event, or drain node %s by hand", name, cr.Attempt, e.Spec.NodeName)
		}
		before := e.DeepCopy()
		metav1.SetMetaDataAnnotation(&e.ObjectMeta, v1alpha1.RetryAnnotation, strconv.FormatInt(cr.Attempt+1, 10))
		// A patch leaves the spec as it was written; an update may not, and is refused then.
		if err := c.Patch(ctx, e, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); !apierrors.IsConflict(err) {
			return e, cr.Attempt + 1, err
		}
	}
}

func eventTable(events []v1alpha1.HealthEvent, now time.Time) string {
	if len(events) == 0 {
		return "no health events\n"
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "EVENT\tNODE\tCHECK\tHEALTH\tQUARANTINE\tDRAIN\tAGE\tSTATE\tMESSAGE")
	for i := range events {
		e := &events[i]
		reason, message := stateOfEvent(e)
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", e.Name, kind.OneLine(e.Spec.NodeName), kind.OneLine(e.Spec.CheckName), healthOf(e),
			cmp.Or(string(e.Status.NodeQuarantined), "-"), evictionOf(e), duration.HumanDuration(now.Sub(health.ReceivedAt(e))), reason, kind.OneLine(message))
	}
	w.Flush()
	return trimLines(b.String())
}

func healthOf(e *v1alpha1.HealthEvent) string {
	switch {
	case e.Spec.IsHealthy:
		return "healthy"
	case e.Spec.IsFatal:
		return "fatal"
	}
	return "unhealthy"
}

func evictionOf(e *v1alpha1.HealthEvent) string {
	if e.Status.UserPodsEvictionStatus == nil {
		return "-"
	}
	return string(e.Status.UserPodsEvictionStatus.Status)
}

// stateOfEvent is the reason of the condition Handled and its message.
func stateOfEvent(e *v1alpha1.HealthEvent) (reason, message string) {
	c := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.HealthEventHandled)
	if c == nil {
		return "-", "not seen by the coordinator yet"
	}
	return c.Reason, c.Message
}

// describeEvent is everything about one event.
func describeEvent(e *v1alpha1.HealthEvent, now time.Time) string {
	var b strings.Builder
	reason, message := stateOfEvent(e)
	fmt.Fprintf(&b, "Event %s of node %s, check %s: %s, received %s ago.\n", e.Name, kind.OneLine(e.Spec.NodeName), kind.OneLine(e.Spec.CheckName), healthOf(e), duration.HumanDuration(now.Sub(health.ReceivedAt(e))))
	if e.Spec.Message != "" {
		fmt.Fprintf(&b, "It says: %s\n", kind.OneLine(e.Spec.Message))
	}
	fmt.Fprintf(&b, "%s: %s\n", reason, kind.OneLine(message))
	if e.Status.NodeQuarantined != "" {
		fmt.Fprintf(&b, "Quarantine: %s.\n", e.Status.NodeQuarantined)
	}
	if s := e.Status.UserPodsEvictionStatus; s != nil {
		fmt.Fprintf(&b, "Drain: %s. %s\n", s.Status, kind.OneLine(s.Message))
	}
	if e.Status.Joined != nil {
		fmt.Fprintf(&b, "It joined the drain of event %s.\n", e.Status.Joined.Name)
	}
	if d := e.Status.Drain; d != nil && d.Name != "" {
		fmt.Fprintf(&b, "Ebb's own drain: %s%s.\n", d.Name, ended(string(d.Phase), d.Outcome))
	}
	attempts := slices.Clone(e.Status.Attempts)
	if e.Status.CustomResource != nil {
		attempts = append(attempts, *e.Status.CustomResource)
	}
	for _, cr := range attempts {
		fmt.Fprintf(&b, "Attempt %d: %s %s%s.\n", cr.Attempt, cr.Kind, kind.NameIn(cr.Namespace, cr.Name), ended(string(cr.Outcome), strings.TrimSuffix(cr.Message, ".")))
	}
	return b.String()
}

// ended is how something ended, if it did.
func ended(outcome, more string) string {
	switch {
	case outcome == "":
		return ", in progress"
	case more == "":
		return ", " + outcome
	}
	return ", " + outcome + " (" + kind.OneLine(more) + ")"
}
