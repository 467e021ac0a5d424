package deployment

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

// entry returns the node's instance of the program, and when it changes without an event.
func (pw *programWorker) entry(f Facts, step Step) (v1alpha1.DeploymentInstance, time.Duration) {
	i := v1alpha1.DeploymentInstance{
		Node: pw.opts.Node, NodeEpoch: pw.e.Number, Revision: Revision(f.Object), Restarts: pw.restarts, LastExit: pw.lastExit,
		Failures: int32(pw.failures),
		Pause:    pw.pause, Message: step.Why,
	}
	var soon time.Duration
	switch {
	case pw.program != nil:
		i.PID, i.Revision, i.State = int32(pw.program.pid), pw.program.revision, v1alpha1.InstanceRunning
		if f.Object.Spec.Type == v1alpha1.TypeDaemon {
			if soon = pw.program.untilSettled(readyAfter); soon > 0 {
				i.State = v1alpha1.InstanceStarting
			} else if soon = pw.program.untilAged(MinReady(f.Object.Spec.Rollout)); soon > 0 {
				i.Settling = true
			}
		}
		switch {
		case pw.asked != nil && pw.changing:
			i.State = v1alpha1.InstanceRestarting
		case pw.asked != nil:
			i.State = v1alpha1.InstanceStopping
		}
	case f.Spent:
		i.State = v1alpha1.InstanceFailed
	case pw.failures >= crashLoop:
		i.State = v1alpha1.InstanceCrashLoop
	case pw.failures > 0:
		i.State = v1alpha1.InstanceBackoff
	default:
		i.State = v1alpha1.InstanceStarting
	}
	if pw.program == nil && !pw.until.IsZero() && !f.Spent {
		at := metav1.NewMicroTime(pw.until)
		i.RetryAt = &at
	}
	i.Revision = marked(i.Revision, f.Object.Spec.GoesOn() || pw.program != nil && (pw.program.free || pw.program.mayBeFree))
	if i.State != pw.wrote.State || pw.since.IsZero() {
		pw.since = metav1.NowMicro()
	}
	since := pw.since
	i.Since = &since
	return i, soon
}

// withState returns the object with another state in this node's instance.
func (pw *programWorker) withState(d *v1alpha1.Deployment, s v1alpha1.InstanceState) *v1alpha1.Deployment {
	next := d.DeepCopy()
	if i := next.Instance(pw.opts.Node); i != nil {
		now := metav1.NowMicro()
		i.State, i.Since = s, &now
	}
	return next
}

// publish writes the node's own instance by server-side apply, so that it removes nothing that other nodes reported.
func (pw *programWorker) publish(i v1alpha1.DeploymentInstance) error {
	if equality.Semantic.DeepEqual(i, pw.wrote) || !pw.e.Holding() {
		return nil
	}
	entry, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&i)
	if err != nil {
		return err
	}
	object := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"nodes": []any{entry}}}}
	object.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Deployment"))
	object.SetNamespace(pw.key.Namespace)
	object.SetName(pw.key.Name)
	ctx, done, err := pw.request()
	if err != nil {
		return err
	}
	defer done()
	if err := pw.e.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("ebb-node-"+pw.opts.Node), client.ForceOwnership); err != nil {
		return client.IgnoreNotFound(err)
	}
	pw.wrote = i
	return nil
}

// request waits for a free slot among the node's requests and sets the timeout of one. A request also completes when the work ends, as
// long as the node holds its lease.
func (pw *programWorker) request() (context.Context, func(), error) {
	select {
	case pw.writes <- struct{}{}:
	case <-pw.standing.Done():
		return nil, nil, fleet.ErrLeaseInDoubt
	}
	ctx, cancel := context.WithTimeout(pw.standing, writeLimit)
	return ctx, func() { cancel(); <-pw.writes }, nil
}

// write writes a status by compare-and-swap.
func (pw *programWorker) write(next *v1alpha1.Deployment) error {
	return pw.update(next, func(ctx context.Context, o client.Object) error { return pw.e.Client.Status().Update(ctx, o) })
}

func (pw *programWorker) update(next *v1alpha1.Deployment, update func(context.Context, client.Object) error) error {
	ctx, done, err := pw.request()
	if err != nil {
		return err
	}
	defer done()
	if !pw.e.Holding() {
		return fleet.ErrLeaseInDoubt
	}
	if err := update(ctx, next); err != nil {
		return err
	}
	pw.See(next)
	return nil
}

// refresh reads the object live after a write was refused because it had changed.
func (pw *programWorker) refresh(d *v1alpha1.Deployment) error {
	ctx, done, err := pw.request()
	if err != nil {
		return err
	}
	defer done()
	live := &v1alpha1.Deployment{}
	err = pw.e.Client.Get(ctx, pw.key, live)
	if kubeclient.IsMissing(err) {
		pw.Delete(d.UID)
		return nil
	}
	if err != nil {
		return err
	}
	pw.See(live)
	return nil
}

const maxMessage = 1024

// cut shortens a message to the length that the schema allows.
func cut(text string) string {
	if len(text) > maxMessage {
		text = text[:maxMessage-3] + "..."
	}
	return text
}
