package drain

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

// ErrUndecided: the coordinator did not decide in time, and the drain did not begin.
var ErrUndecided = errors.New("the coordinator did not decide about the drain in time; the request was withdrawn: try again")

// errWithdrawn: the Drain was deleted before the coordinator decided about it.
var errWithdrawn = errors.New("the drain was deleted before the coordinator decided about it")

const (
	decisionPoll = 25 * time.Millisecond
	// WithdrawTime is how long Request may take to withdraw the Drain, after its context has ended.
	WithdrawTime = 5 * time.Second
)

// API creates, cancels and reports drains for HTTP clients. It belongs to one term.
type API struct {
	// Client writes for the term.
	Client client.Client
	// Reader reads live.
	Reader client.Reader
	// Leader is the node that decides.
	Leader string
	// Tenants returns the kinds of work, reading through the given reader.
	Tenants func(client.Reader) []Tenant
}

// Request creates a Drain and waits for the coordinator's decision. It returns the drain when it has begun, or the refusal.
func (a *API) Request(ctx context.Context, spec v1alpha1.DrainSpec) (*v1alpha1.Drain, error) {
	if v1alpha1.ValidateNodeName(spec.NodeName) != nil {
		return nil, ErrCaptureNotFound // no node can have this name
	}
	d := &v1alpha1.Drain{
		ObjectMeta: metav1.ObjectMeta{GenerateName: spec.NodeName + "-"},
		Spec:       spec,
	}
	if err := a.Client.Create(ctx, d); err != nil {
		return nil, fmt.Errorf("create the Drain: %w", err)
	}
	decided, err := a.await(ctx, d)
	if err == nil {
		return decided, nil
	}
	return a.withdraw(d, err)
}

// await polls for the decision.
func (a *API) await(ctx context.Context, d *v1alpha1.Drain) (*v1alpha1.Drain, error) {
	for {
		current := &v1alpha1.Drain{}
		err := a.Reader.Get(ctx, client.ObjectKeyFromObject(d), current)
		switch {
		case kubeclient.IsMissing(err) || err == nil && current.UID != d.UID:
			return nil, errWithdrawn
		case err != nil && ctx.Err() != nil:
			return nil, ErrUndecided
		case err != nil:
			return nil, fmt.Errorf("read Drain %s: %w", d.Name, err)
		}
		if current.Status.StartedAt != nil {
			return current, nil
		}
		if current.Status.Phase.Final() {
			return nil, ended(current)
		}
		select {
		case <-ctx.Done():
			return nil, ErrUndecided
		case <-time.After(decisionPoll):
		}
	}
}

// Cancel requests the cancellation of a node's drain, and waits until the drain has ended.
func (a *API) Cancel(ctx context.Context, node string) (*v1alpha1.Drain, error) {
	return Cancel(ctx, a.Client, node)
}

// ended is the error of a drain that ended before it began.
func ended(d *v1alpha1.Drain) error {
	c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DrainFinished)
	if c == nil {
		return fmt.Errorf("drain %s is %s", d.Name, d.Status.Phase)
	}
	if err := Refusal(c.Reason); err != nil {
		return err
	}
	if c.Reason == v1alpha1.ReasonWithdrawn || c.Reason == v1alpha1.ReasonCancelRequested {
		return errWithdrawn
	}
	return fmt.Errorf("drain %s is %s: %s", d.Name, d.Status.Phase, c.Message)
}

// withdraw deletes a drain whose requester would get the error cause. A drain that has begun in the meantime is left alone and
// returned: the requester must not get an error that claims that nothing began.
func (a *API) withdraw(d *v1alpha1.Drain, cause error) (*v1alpha1.Drain, error) {
	ctx, cancel := context.WithTimeout(context.Background(), WithdrawTime)
	defer cancel()
	for deleted := false; ; {
		current := &v1alpha1.Drain{}
		err := a.Reader.Get(ctx, client.ObjectKeyFromObject(d), current)
		switch {
		case kubeclient.IsMissing(err) || err == nil && current.UID != d.UID:
			return nil, cause
		case err != nil:
			return nil, errors.Join(cause, fmt.Errorf("withdraw Drain %s: it may still begin: %w", d.Name, err))
		case current.Status.StartedAt != nil && !cancelRequested(current):
			return current, nil
		case current.Status.Phase.Final():
			return nil, a.forget(ctx, current, cause)
		case !deleted:
			// With the resourceVersion that was read: a drain that has begun since is read again.
			err := a.Client.Delete(ctx, current, client.Preconditions{UID: &current.UID, ResourceVersion: &current.ResourceVersion})
			if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
				return nil, errors.Join(cause, fmt.Errorf("withdraw Drain %s: it may still begin: %w", d.Name, err))
			}
			deleted = err == nil
			continue
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("drain %s is neither begun nor withdrawn yet: %w", d.Name, cause)
		case <-time.After(decisionPoll):
		}
	}
}

// forget deletes a Drain that never began, and returns why it did not.
func (a *API) forget(ctx context.Context, d *v1alpha1.Drain, cause error) error {
	if err := client.IgnoreNotFound(a.Client.Delete(ctx, d, client.Preconditions{UID: &d.UID})); err != nil {
		return errors.Join(cause, fmt.Errorf("remove Drain %s: %w", d.Name, err))
	}
	if why := ended(d); errors.Is(cause, ErrUndecided) && !errors.Is(why, errWithdrawn) {
		return why
	}
	return cause
}

// Report is the progress of a node's drain.
type Report struct {
	// Draining reports whether the node drains.
	Draining bool
	// Shown is what is left on it, by the name under which it is shown.
	Shown map[string]int64
	// By splits each of these counts by owner.
	By map[string]map[string]int64
	// Total is what is left of all kinds.
	Total int64
}

// Report counts now and returns the progress of a node's drain.
func (a *API) Report(ctx context.Context, node string) (Report, error) {
	report := Report{Shown: map[string]int64{}, By: map[string]map[string]int64{}}
	n := &v1alpha1.Node{}
	if err := a.Reader.Get(ctx, types.NamespacedName{Name: node}, n); err != nil {
		if kubeclient.IsMissing(err) || v1alpha1.ValidateNodeName(node) != nil {
			return report, ErrCaptureNotFound
		}
		return report, err
	}
	w, err := Gather(ctx, a.Reader, a.Leader, a.Tenants(a.Reader), time.Now())
	if err != nil {
		return report, err
	}
	slot, d := w.Slot()
	if slot == nil || slot.Node != node || w.over(slot) || d == nil || d.Status.Phase == v1alpha1.DrainComplete || d.Status.Phase == v1alpha1.DrainCancelled {
		return report, nil
	}
	report.Draining = true
	counts := w.counts(slot)
	report.Shown = w.Works.Shown(counts)
	for _, work := range w.Works {
		if left := w.Left[work.Name].By; work.Shown != "" && len(left) > 0 {
			if report.By[work.Shown] == nil {
				report.By[work.Shown] = map[string]int64{}
			}
			maps.Copy(report.By[work.Shown], left)
		}
	}
	for _, n := range counts {
		report.Total += n
	}
	return report, nil
}

// Explain describes in sentences the state of a node and what blocks its drain.
func Explain(w World, node string) string {
	n := w.Nodes[node]
	if n == nil {
		return fmt.Sprintf("There is no node %s.\n", node)
	}
	if n.Status.Epoch == 0 {
		return fmt.Sprintf("Node %s has never joined.\n", node)
	}
	var b strings.Builder
	rec := w.Leases[node]
	fmt.Fprintf(&b, "Node %s is %s in epoch %d.\n", node, n.Status.Liveness, n.Status.Epoch)
	switch {
	case !rec.Held() && n.IsParked():
		fmt.Fprintf(&b, "It is parked: it was drained, and its process waits without a lease. `ebb uncordon %s` brings it back as epoch %d.\n", node, n.Status.Epoch+1)
	case !rec.Held() && n.Status.Parked != nil:
		fmt.Fprintf(&b, "It was parked and is uncordoned now: it joins as epoch %d when its process runs.\n", n.Status.Epoch+1)
	case !rec.Held() && rec.Fenced >= n.Status.Epoch:
		fmt.Fprintf(&b, "It is lost: it did not renew its lease, and the lease has expired. It rejoins as epoch %d when its process runs again.\n", n.Status.Epoch+1)
	case !rec.Held():
		fmt.Fprintf(&b, "It has left: it released its lease. It rejoins as epoch %d when its process runs again.\n", n.Status.Epoch+1)
	case n.Spec.Cordoned:
		fmt.Fprintf(&b, "It is cordoned: no new work is placed there. `ebb uncordon %s` allows it again.\n", node)
	}
	if rec.Held() && n.Status.Liveness == v1alpha1.Alive && meta.IsStatusConditionTrue(n.Status.Conditions, v1alpha1.NodeNeedsGuard) && !meta.IsStatusConditionTrue(n.Status.Conditions, v1alpha1.NodeGuarded) {
		explainGuard(&b, n)
	}
	slot, d := w.Slot()
	switch {
	case slot != nil && slot.Node == node && d != nil:
		explainDrain(&b, w, d)
	case slot != nil && slot.Node == node:
		fmt.Fprintf(&b, "Drain %s ended although the node had not left, and the Drain object was deleted. A new Drain of the node continues it; a restart of the node ends it.\n", slot.Name)
	case rec.Held() && n.Status.Liveness == v1alpha1.Draining && n.Status.Epoch == rec.Epoch:
		fmt.Fprintf(&b, "No drain of it is running: somebody else wrote spec.desired of Node %s. Restart the process of the node, and it takes work again in its next epoch. It holds %s.\n",
			node, w.Works.Listed(n.Status.Held))
	case rec.Held():
		fmt.Fprintf(&b, "No drain of it is running. It holds %s.\n", w.Works.Listed(n.Status.Held))
	}
	explainQueue(&b, w, node)
	return b.String()
}

// explainGuard explains that a node of Kubernetes takes no work because it has no guard.
func explainGuard(b *strings.Builder, n *v1alpha1.Node) {
	why := "The coordinator has not created it yet."
	if c := meta.FindStatusCondition(n.Status.Conditions, v1alpha1.NodeGuarded); c != nil {
		why = c.Message
	}
	if n.Spec.Cordoned {
		why = "No guard is created while the node is cordoned."
	}
	fmt.Fprintf(b, "Until its guard runs, it takes no work that must leave before the node does. %s `kubectl get pods,pdb -n ebb-system -l ebb.dev/guard` shows the guards.\n", why)
}

// explainQueue names the drains of the node that wait for another drain.
func explainQueue(b *strings.Builder, w World, node string) {
	for _, d := range inOrder(w.Drains) {
		c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DrainFinished)
		if d.Spec.NodeName == node && c != nil && c.Reason == v1alpha1.ReasonQueued {
			fmt.Fprintf(b, "Drain %s of this node is queued. %s\n", d.Name, c.Message)
		}
	}
}

func explainDrain(b *strings.Builder, w World, d *v1alpha1.Drain) {
	if d.Status.StartedAt == nil {
		if end := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DrainFinished); d.Status.Phase.Final() && end != nil {
			fmt.Fprintf(b, "Drain %s is %s. %s\n", d.Name, d.Status.Phase, end.Message)
		} else {
			fmt.Fprintf(b, "Drain %s is about to begin.\n", d.Name)
		}
		for _, g := range Groups(d.Status.Blockers) {
			b.WriteString(g.sentence(w.Now))
		}
		return
	}
	fmt.Fprintf(b, "Drain %s is %s, started %s ago: %s.\n", d.Name, d.Status.Phase, w.Now.Sub(d.Status.StartedAt.Time).Round(time.Second), w.Works.Summary(d.Status.Remaining))
	if c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DrainFinished); c != nil && c.Status == metav1.ConditionTrue {
		fmt.Fprintf(b, "%s\n", c.Message)
	}
	if d.Status.LastProgress != nil && !d.Status.Phase.Final() {
		fmt.Fprintf(b, "Last progress was %s ago.\n", w.Now.Sub(d.Status.LastProgress.Time).Round(time.Second))
	}
	for _, g := range Groups(d.Status.Blockers) {
		b.WriteString(g.sentence(w.Now))
	}
}
