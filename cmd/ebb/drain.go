package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/coordinator"
	"github.com/ebb-dev/ebb/internal/cordon"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/kube"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/pod"
	"github.com/ebb-dev/ebb/internal/volume"
)

const (
	exitBlocked     = 2   // work was left at the deadline
	exitInterrupted = 130 // Ctrl-C
	drainPoll       = 100 * time.Millisecond
)

// drainFlags are the flags of `ebb drain`.
type drainFlags struct {
	cluster  cluster
	out      output
	wait     bool
	resign   bool
	queue    bool
	cancel   bool
	plan     bool
	park     bool
	pods     bool
	deadline time.Duration
	reason   string
}

func newDrain() *cobra.Command {
	var f drainFlags
	cmd := &cobra.Command{
		Use:   "drain NODE",
		Short: "Move all work off a node and take it out of service",
		Long: `Move all work off a node and take it out of service. The node takes no new work. When nothing is left on it, its process exits;
start the process again to bring the node back. With --park the drain cordons the node first, and in the end its process keeps running
without a lease until the node is uncordoned. Until the drain is Stopping, --cancel ends it: the node is Alive again in a new
epoch, and work that has moved stays where it is.

On Kubernetes the pods of the node leave too, by the mode of their namespace (docs/pods.md), unless --pods=false is set. A node on which no
process of Ebb runs has a drain of its pods alone.

With --plan nothing is changed: the command shows whether the drain would begin, what it would move, and what each piece of work would wait
for; pods are not part of it. It exits 1 if the drain would be refused.

Without --wait the command returns when the drain has begun or was refused. With --wait it shows what is left until the node has
left; Ctrl-C stops watching, and the drain continues.

The exit code is 0 when the node was drained (without --wait, when the drain has begun), 2 when work was left at the deadline, and
1 when the drain was refused or failed for another reason. After its deadline the node stays Draining; a new drain of the same
node continues.`,
		Example: `  ebb drain n3 --plan
  ebb drain n3 --wait
  ebb drain n3 --wait --deadline 10m --reason "kernel upgrade"
  ebb drain n1 --resign --wait
  ebb drain n3 --park --wait
  ebb drain n3 --cancel`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	fs := cmd.Flags()
	f.cluster.addFlags(fs)
	f.cluster.addTokenFlag(fs)
	f.out.addFlag(fs)
	fs.BoolVar(&f.wait, "wait", false, "show what is left until the node has left")
	fs.BoolVar(&f.resign, "resign", false, "if the node is the coordinator, let another node take over first")
	fs.BoolVar(&f.queue, "queue", false, "if another node is being drained, wait for that drain to end instead of being refused")
	fs.BoolVar(&f.cancel, "cancel", false, "cancel the node's drain; with --wait, wait until the node is Alive again")
	fs.BoolVar(&f.plan, "plan", false, "show what the drain would do, and change nothing")
	fs.BoolVar(&f.park, "park", false, "cordon the node, and keep its drained process waiting until the node is uncordoned, instead of letting it exit")
	fs.BoolVar(&f.pods, "pods", true, "on Kubernetes, move the pods off the node too")
	fs.DurationVar(&f.deadline, "deadline", 0, "how long the drain may take; 0 for no limit")
	fs.StringVar(&f.reason, "reason", "", "reason for the drain, kept in the Drain object")
	return cmd
}

func (f *drainFlags) run(cmd *cobra.Command, node string) error {
	if f.deadline < 0 {
		return fmt.Errorf("--deadline %s: must not be negative", f.deadline)
	}
	if f.plan && (f.cancel || f.wait) {
		return errors.New("--plan changes nothing: it cannot be combined with --wait or --cancel")
	}
	if f.cancel && (f.resign || f.queue || f.park || !f.pods || f.deadline > 0 || f.reason != "") {
		return errors.New("--cancel can only be combined with --wait")
	}
	ctx := cmd.Context()
	c, err := f.cluster.client()
	if err != nil {
		return err
	}
	if f.plan {
		return f.runPlan(ctx, cmd, c, node)
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
		return fmt.Errorf("drain %s of node %s was deleted before it ended: `ebb explain %s` shows the state of the node", d.Name, node, node)
	}
	return outcome(w.drain)
}

// runPlan shows what a drain of the node would find.
func (f *drainFlags) runPlan(ctx context.Context, cmd *cobra.Command, c client.Client, node string) error {
	leader, err := coordinator.Locate(ctx, c)
	if err != nil && !errors.Is(err, coordinator.ErrNone) {
		return err
	}
	w, err := drain.Gather(ctx, c, leader, nil, time.Now())
	if err != nil {
		return err
	}
	p, err := drain.Foresee(ctx, w, c, kinds.Tenants, node)
	if err != nil {
		return err
	}
	if err := f.out.print(cmd.OutOrStdout(), p, func() string { return p.Describe(kinds.Works(), f.resign) }); err != nil {
		return err
	}
	if !p.Begins(f.resign) && !(f.queue && p.Refused == v1alpha1.ReasonDrainInProgress) {
		return exitError(1)
	}
	return nil
}

// runCancel cancels the drain of a node and, with --wait, waits until the node is Alive again.
func (f *drainFlags) runCancel(ctx context.Context, cmd *cobra.Command, c client.Client, node string) error {
	answered := hintIfSlow(cmd.ErrOrStderr(), fmt.Sprintf(
		"waiting for the coordinator to carry out the cancellation: `ebb explain %s` shows what it waits for; Ctrl-C stops waiting, and the cancellation stays requested", node))
	d, err := drain.Cancel(ctx, c, node)
	answered()
	switch {
	case errors.Is(err, drain.ErrCaptureNotFound):
		return fmt.Errorf("there is no node %q: `ebb status` lists the nodes", node)
	case errors.Is(err, drain.ErrCancelPending):
		return fmt.Errorf("%w: `ebb explain %s` shows what it waits for", err, node)
	case err != nil:
		return err
	}
	alone := d.Status.Scope == v1alpha1.ScopePods
	if f.wait && d.Status.StartedAt != nil && !alone {
		back := hintIfSlow(cmd.ErrOrStderr(), fmt.Sprintf("drain %s is cancelled; waiting until node %s is Alive again: `ebb explain %s` shows its state", d.Name, node, node))
		err := f.awaitBack(ctx, c, d)
		back()
		if err != nil {
			return err
		}
	}
	return f.out.print(cmd.OutOrStdout(), d, func() string {
		if d.Status.Pods != nil {
			return fmt.Sprintf("drain %s of node %s is cancelled. %s\n", d.Name, node, pod.Moved(d.Status.Pods))
		}
		if f.wait && d.Status.StartedAt != nil {
			return fmt.Sprintf("drain %s of node %s is cancelled; the node is Alive again\n", d.Name, node)
		}
		return fmt.Sprintf("drain %s of node %s is cancelled\n", d.Name, node)
	})
}

// awaitBack waits until the node of a cancelled drain is Ready in a newer epoch than the drained one, and the slot is free. It fails if no process
// is left on the node that could bring it back.
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
		free := slot == nil || slot.UID != string(d.UID)
		if n.Status.Epoch > d.Status.NodeEpoch && n.IsReady() && free {
			return nil
		}
		// The next epoch follows without a gap, unless the node died or was stopped.
		rec, err := fleet.ReadLease(ctx, c, n.Name)
		if err != nil {
			return err
		}
		if free && !rec.Held() && rec.Over(d.Status.NodeEpoch) {
			return fmt.Errorf("drain %s is cancelled, but no process runs on node %s any more: start it, and the node takes work again; `ebb explain %s` shows its state", d.Name, n.Name, n.Name)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("drain %s is cancelled, but node %s is not Alive again yet: `ebb explain %s` shows its state", d.Name, n.Name, n.Name)
		case <-time.After(drainPoll):
		}
	}
}

// resignFirst lets another node take over if the node is the coordinator.
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
		fmt.Fprintf(cmd.OutOrStdout(), "%s resigned; the coordinator is now %s\n", result.Resigned, result.Coordinator)
	}
	return nil
}

func (f *drainFlags) create(ctx context.Context, c client.Client, node string) (*v1alpha1.Drain, error) {
	if err := v1alpha1.ValidateNodeName(node); err != nil {
		return nil, err
	}
	d := &v1alpha1.Drain{
		ObjectMeta: metav1.ObjectMeta{GenerateName: node + "-"},
		Spec:       v1alpha1.DrainSpec{NodeName: node, Reason: f.reason, Park: f.park},
	}
	if f.queue {
		d.Spec.WhenBusy = v1alpha1.Queue
	}
	if !f.pods {
		d.Spec.Pods = &f.pods
	}
	if f.deadline > 0 {
		d.Spec.Deadline = &metav1.Duration{Duration: f.deadline}
	}
	if err := c.Create(ctx, d); err != nil {
		return nil, fmt.Errorf("drain node %s: %w", node, err)
	}
	return d, nil
}

// begun waits until the drain has begun, is queued, or was refused.
func (f *drainFlags) begun(ctx context.Context, cmd *cobra.Command, c client.Client, d *v1alpha1.Drain) error {
	decided := hintIfSlow(cmd.ErrOrStderr(), fmt.Sprintf(
		"waiting for the coordinator's decision about drain %s: `ebb explain %s` shows what it waits for; Ctrl-C stops waiting, and the drain may begin later", d.Name, d.Spec.NodeName))
	err := awaitDecision(ctx, c, d)
	decided()
	if err != nil {
		return err
	}
	if d.Status.Phase.Final() && d.Status.StartedAt == nil {
		return outcome(d)
	}
	return f.out.print(cmd.OutOrStdout(), d, func() string {
		if d.Status.StartedAt == nil {
			return notBegun(d)
		}
		if d.Status.Scope == v1alpha1.ScopePods {
			text := fmt.Sprintf("drain %s of node %s has begun: %s\n", d.Name, d.Spec.NodeName, pod.Progress(d.Status.Pods))
			for _, b := range d.Status.Pods.Blockers {
				text += "  " + pod.Sentence(b, time.Now()) + "\n"
			}
			return text
		}
		return fmt.Sprintf("drain %s of node %s has begun: %s\n", d.Name, d.Spec.NodeName, kinds.Works().Summary(d.Status.Remaining))
	})
}

// awaitDecision reads a drain until the coordinator has decided about it.
func awaitDecision(ctx context.Context, c client.Client, d *v1alpha1.Drain) error {
	for {
		switch err := c.Get(ctx, client.ObjectKeyFromObject(d), d); {
		case err == nil && (d.Status.StartedAt != nil || d.Status.Phase != ""):
			return nil
		case kubeclient.IsMissing(err):
			return fmt.Errorf("drain %s of node %s was deleted before the coordinator decided about it", d.Name, d.Spec.NodeName)
		case err != nil && ctx.Err() == nil:
			return fmt.Errorf("drain %s of node %s was created, and its state cannot be read: %w; it may begin: `ebb explain %s` shows it", d.Name, d.Spec.NodeName, err, d.Spec.NodeName)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("drain %s was created but no coordinator has acted on it yet: `ebb explain %s` shows why; delete the Drain if it should not begin later", d.Name, d.Spec.NodeName)
		case <-time.After(drainPoll):
		}
	}
}

// hintAfter is how long a command waits before it says what for.
const hintAfter = 3 * time.Second

// hintIfSlow prints what a command waits for if that takes long. The caller ends it when the wait is over.
func hintIfSlow(w io.Writer, hint string) (end func()) {
	over := make(chan struct{})
	var printing sync.WaitGroup
	printing.Go(func() {
		select {
		case <-over:
		case <-time.After(hintAfter):
			fmt.Fprintln(w, "ebb: "+hint)
		}
	})
	return func() {
		close(over)
		printing.Wait()
	}
}

// notBegun says why a drain that was accepted has not begun.
func notBegun(d *v1alpha1.Drain) string {
	why := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DrainFinished)
	switch {
	case why == nil:
		return fmt.Sprintf("drain %s of node %s has not begun yet: `ebb explain %s` shows why\n", d.Name, d.Spec.NodeName, d.Spec.NodeName)
	case why.Reason == v1alpha1.ReasonQueued:
		return fmt.Sprintf("drain %s of node %s is queued. %s\n", d.Name, d.Spec.NodeName, why.Message)
	}
	return fmt.Sprintf("drain %s of node %s has not begun yet. %s\n", d.Name, d.Spec.NodeName, why.Message)
}

// outcome returns the error of a drain that has ended, or nil if it is Complete.
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
	if remedy := drain.RefusalRemedy(end.Reason, d.Spec.NodeName); remedy != "" {
		return fmt.Errorf("drain of node %s: %s (%s): %s", d.Spec.NodeName, end.Message, end.Reason, remedy)
	}
	return fmt.Errorf("drain of node %s: %s (%s)", d.Spec.NodeName, end.Message, end.Reason)
}

// explainEvictions returns how far the evictions of replicas from a node are. A drain lists them among its blockers; for a cordon they are shown
// only here.
func explainEvictions(ctx context.Context, c client.Client, node string) (string, error) {
	var list v1alpha1.ReplicaList
	if err := c.List(ctx, &list); err != nil {
		return "", fmt.Errorf("replicas: %w", err)
	}
	return volume.Evictions(list.Items, node), nil
}

// explainCore explains a node of Kubernetes on which Ebb has never run: only its pods can be drained.
func explainCore(ctx context.Context, c *cluster, cl client.Client, node, pods string) (string, error) {
	cfg, err := c.config()
	if err != nil {
		return "", err
	}
	target, err := kube.CordonOf(ctx, cl, cfg, &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}})
	if err != nil {
		return "", err
	}
	if target.GetUID() == "" && pods != "" {
		return fmt.Sprintf("Node %s was deleted.\n%s", node, pods), nil
	}
	if target.GetUID() == "" {
		return "", fmt.Errorf("there is no node %q: `ebb status` lists the nodes", node)
	}
	text := fmt.Sprintf("Node %s is a node of Kubernetes on which Ebb has not run.\n", node)
	if cordon.Is(target) {
		text += fmt.Sprintf("It is cordoned. `ebb uncordon %s` allows pods there again.\n", node)
	}
	if pods == "" {
		pods = "No drain of it is running.\n"
	}
	return text + pods, nil
}

func newExplain() *cobra.Command {
	var c cluster
	var out output
	cmd := &cobra.Command{
		Use:     "explain NODE",
		Short:   "Explain the state of a node and what blocks its drain",
		Example: "  ebb explain n3",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			w, err := drain.Gather(cmd.Context(), cl, "", nil, time.Now())
			if err != nil {
				return err
			}
			w.Works, w.Now = kinds.Works(), c.now().Truncate(time.Second) // the API has told its time by now
			pods := pod.Explain(w.Drains, args[0], w.Now)
			if w.Nodes[args[0]] == nil {
				pods += pod.ExplainWaiting(w.Drains, args[0], w.Now)
				core, err := explainCore(cmd.Context(), &c, cl, args[0], pods)
				if err != nil {
					return err
				}
				return out.print(cmd.OutOrStdout(), map[string]string{"explanation": core}, func() string { return core })
			}
			_, d := w.Slot()
			if d != nil && d.Spec.NodeName != args[0] {
				d = nil
			}
			vacancy, _, err := coordinator.Vacancy(cmd.Context(), cl, c.now())
			if err != nil {
				return err
			}
			evictions, err := explainEvictions(cmd.Context(), cl, args[0])
			if err != nil {
				return err
			}
			explanation := struct {
				Node        *v1alpha1.Node  `json:"node"`
				Drain       *v1alpha1.Drain `json:"drain,omitempty"`
				Explanation string          `json:"explanation"`
			}{w.Nodes[args[0]], d, drain.Explain(w, args[0]) + pods + evictions + vacancy}
			return out.print(cmd.OutOrStdout(), explanation, func() string { return explanation.Explanation })
		},
	}
	c.addFlags(cmd.Flags())
	out.addFlag(cmd.Flags())
	return cmd
}
