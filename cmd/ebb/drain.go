package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/coordinator"
	"github.com/ebb-dev/ebb/internal/drain"
)

const (
	exitBlocked     = 2   // something was left at the deadline
	exitInterrupted = 130 // Ctrl-C
	drainPoll       = 100 * time.Millisecond
)

// drainFlags are what `ebb drain` is asked for.
type drainFlags struct {
	cluster  cluster
	out      output
	wait     bool
	resign   bool
	queue    bool
	cancel   bool
	deadline time.Duration
	reason   string
}

func newDrain() *cobra.Command {
	var f drainFlags
	cmd := &cobra.Command{
		Use:   "drain NODE",
		Short: "Empty a node and take it out of service",
		Long: `Empty a node and take it out of service. The node takes no new work, gives away what it has, and when nothing is left
its process exits. Then it comes back by being started again. Until the drain is Stopping, --cancel ends it: the node comes
back Alive in a new epoch, and what has moved stays where it is.

Without --wait the command returns when the drain has begun or was refused. With it the command shows what is left until
the node is gone; Ctrl-C stops watching, not the drain.

It exits 0 when the node was drained (or, without --wait, when the drain has begun), 2 when something was left at the
deadline, and 1 when the drain was refused or failed otherwise. Past its deadline the node stays Draining; a new drain of
the same node goes on.`,
		Example: `  ebb drain n3 --wait
  ebb drain n3 --wait --deadline 10m --reason "kernel upgrade"
  ebb drain n1 --resign --wait
  ebb drain n3 --cancel`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	fs := cmd.Flags()
	f.cluster.addFlags(fs)
	f.cluster.addTokenFlag(fs)
	f.out.addFlag(fs)
	fs.BoolVar(&f.wait, "wait", false, "show what is left until the node is gone")
	fs.BoolVar(&f.resign, "resign", false, "if the node is the coordinator, let it hand over first")
	fs.BoolVar(&f.queue, "queue", false, "if another node drains, wait for it rather than be refused")
	fs.BoolVar(&f.cancel, "cancel", false, "end the node's drain, and let the node go back to work; with --wait, until it is Alive again")
	fs.DurationVar(&f.deadline, "deadline", 0, "how long the drain may take; 0 means as long as it needs")
	fs.StringVar(&f.reason, "reason", "", "why, for whoever looks later")
	return cmd
}

func (f *drainFlags) run(cmd *cobra.Command, node string) error {
	if f.deadline < 0 {
		return fmt.Errorf("--deadline %s: must not be negative", f.deadline)
	}
	if f.cancel && (f.resign || f.queue || f.deadline > 0 || f.reason != "") {
		return errors.New("--cancel ends a drain: of the other flags only --wait goes with it")
	}
	ctx := cmd.Context()
	c, err := f.cluster.client()
	if err != nil {
		return err
	}
	if f.cancel {
		return f.runCancel(ctx, cmd, c, node)
	}
	if f.resign {
		if err := f.resignFirst(ctx, cmd, c, node); err != nil {
			return err
		}
	}
	d, err := f.create(ctx, c, node)
	if err != nil {
		return err
	}
	if !f.wait {
		return f.begun(ctx, cmd, c, d)
	}
	w := &watcher{client: c, drain: d}
	if f.out == "" && term.IsTerminal(int(os.Stdout.Fd())) {
		err = w.show(ctx)
	} else {
		err = w.print(ctx, cmd.ErrOrStderr(), cmd.OutOrStdout(), f.out == "")
	}
	if err != nil {
		return err
	}
	if f.out != "" {
		if err := f.out.print(cmd.OutOrStdout(), w.drain, nil); err != nil {
			return err
		}
	}
	if w.gone && !w.drain.Status.Phase.Final() {
		return fmt.Errorf("drain %s of node %s was deleted before its end was seen: `ebb explain %s` says how the node is", d.Name, node, node)
	}
	return outcome(w.drain)
}

// runCancel ends the drain of a node and, if asked, waits until the node is back.
func (f *drainFlags) runCancel(ctx context.Context, cmd *cobra.Command, c client.Client, node string) error {
	d, err := drain.Cancel(ctx, c, node)
	switch {
	case errors.Is(err, drain.ErrCaptureNotFound):
		return fmt.Errorf("there is no node %q: `ebb status` lists them", node)
	case errors.Is(err, drain.ErrCancelPending):
		return fmt.Errorf("%w: `ebb explain %s` says what keeps it", err, node)
	case err != nil:
		return err
	}
	if f.wait && d.Status.StartedAt != nil {
		if err := f.awaitBack(ctx, c, d); err != nil {
			return err
		}
	}
	return f.out.print(cmd.OutOrStdout(), d, func() string {
		if f.wait {
			return fmt.Sprintf("drain %s of node %s is cancelled; the node is back at work\n", d.Name, node)
		}
		return fmt.Sprintf("drain %s of node %s is cancelled\n", d.Name, node)
	})
}

// awaitBack waits until the node of a cancelled drain serves in a newer epoch than the drained one, and the slot is free.
func (f *drainFlags) awaitBack(ctx context.Context, c client.Client, d *v1alpha1.Drain) error {
	for {
		n, settings := &v1alpha1.Node{}, &v1alpha1.Settings{}
		if err := c.Get(ctx, types.NamespacedName{Name: d.Spec.NodeName}, n); err != nil {
			return err
		}
		if err := c.Get(ctx, types.NamespacedName{Name: v1alpha1.SettingsName}, settings); err != nil {
			return err
		}
		slot := settings.Status.ActiveDrain
		if n.Status.Epoch > d.Status.NodeEpoch && n.IsReady() && (slot == nil || slot.UID != string(d.UID)) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("drain %s is cancelled, and node %s has not come back yet: `ebb explain %s` says how it is", d.Name, n.Name, n.Name)
		case <-time.After(drainPoll):
		}
	}
}

// resignFirst hands the election over if the node has it.
func (f *drainFlags) resignFirst(ctx context.Context, cmd *cobra.Command, c client.Client, node string) error {
	leader, err := coordinator.Locate(ctx, c)
	if err != nil && !errors.Is(err, coordinator.ErrNone) {
		return err
	}
	if leader != node {
		return nil
	}
	result, err := resign(ctx, &f.cluster)
	if err != nil {
		return fmt.Errorf("--resign: %w", err)
	}
	if f.out == "" {
		fmt.Fprintf(cmd.OutOrStdout(), "%s resigned; %s is the coordinator\n", result.Resigned, result.Coordinator)
	}
	return nil
}

func (f *drainFlags) create(ctx context.Context, c client.Client, node string) (*v1alpha1.Drain, error) {
	if err := v1alpha1.ValidateNodeName(node); err != nil {
		return nil, err
	}
	d := &v1alpha1.Drain{
		ObjectMeta: metav1.ObjectMeta{GenerateName: node + "-"},
		Spec:       v1alpha1.DrainSpec{NodeName: node, Reason: f.reason},
	}
	if f.queue {
		d.Spec.WhenBusy = v1alpha1.Queue
	}
	if f.deadline > 0 {
		d.Spec.Deadline = &metav1.Duration{Duration: f.deadline}
	}
	if err := c.Create(ctx, d); err != nil {
		return nil, fmt.Errorf("drain node %s: %w", node, err)
	}
	return d, nil
}

// begun waits until the drain has begun, waits in the queue, or was refused.
func (f *drainFlags) begun(ctx context.Context, cmd *cobra.Command, c client.Client, d *v1alpha1.Drain) error {
	for {
		if err := c.Get(ctx, client.ObjectKeyFromObject(d), d); err != nil {
			return err
		}
		if d.Status.StartedAt != nil || d.Status.Phase != "" {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("drain %s was asked for and waits for a coordinator: `ebb explain %s`, or delete it", d.Name, d.Spec.NodeName)
		case <-time.After(drainPoll):
		}
	}
	if d.Status.Phase.Final() && d.Status.StartedAt == nil {
		return outcome(d)
	}
	return f.out.print(cmd.OutOrStdout(), d, func() string {
		if d.Status.StartedAt == nil {
			return fmt.Sprintf("drain %s of node %s waits for its turn\n", d.Name, d.Spec.NodeName)
		}
		return fmt.Sprintf("drain %s of node %s has begun: %s\n", d.Name, d.Spec.NodeName, kinds.Works().Summary(d.Status.Remaining))
	})
}

// outcome is the error, or none, of a drain that has ended.
func outcome(d *v1alpha1.Drain) error {
	end := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DrainFinished)
	switch {
	case d.Status.Phase == v1alpha1.DrainComplete:
		return nil
	case end == nil || end.Status != metav1.ConditionTrue:
		return exitError(exitInterrupted)
	case end.Reason == v1alpha1.ReasonDeadlineExceeded:
		fmt.Fprintln(os.Stderr, "ebb:", end.Message)
		return exitError(exitBlocked)
	}
	return fmt.Errorf("drain of node %s: %s (%s)", d.Spec.NodeName, end.Message, end.Reason)
}

func newExplain() *cobra.Command {
	var c cluster
	var out output
	cmd := &cobra.Command{
		Use:     "explain NODE",
		Short:   "Say what holds a node, in sentences",
		Example: "  ebb explain n3",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			w, err := drain.Gather(cmd.Context(), cl, "", nil, time.Now())
			w.Works = kinds.Works()
			if err != nil {
				return err
			}
			if w.Nodes[args[0]] == nil {
				return fmt.Errorf("there is no node %q: `ebb status` lists them", args[0])
			}
			_, d := w.Slot()
			if d != nil && d.Spec.NodeName != args[0] {
				d = nil
			}
			vacancy, _, err := coordinator.Vacancy(cmd.Context(), cl, time.Now())
			if err != nil {
				return err
			}
			explanation := struct {
				Node        *v1alpha1.Node  `json:"node"`
				Drain       *v1alpha1.Drain `json:"drain,omitempty"`
				Explanation string          `json:"explanation"`
			}{w.Nodes[args[0]], d, drain.Explain(w, args[0]) + vacancy}
			return out.print(cmd.OutOrStdout(), explanation, func() string { return explanation.Explanation })
		},
	}
	c.addFlags(cmd.Flags())
	out.addFlag(cmd.Flags())
	return cmd
}
