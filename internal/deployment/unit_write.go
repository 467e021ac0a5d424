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

// entry is what the node says of the program, and when that changes by itself.
func (u *unit) entry(f Facts, step Step) (v1alpha1.DeploymentInstance, time.Duration) {
	i := v1alpha1.DeploymentInstance{
		Node: u.opts.Node, NodeEpoch: u.e.Number, Revision: Revision(&f.Object.Spec), Restarts: u.restarts, LastExit: u.lastExit,
		Pause: u.pause, Message: step.Why,
	}
	var soon time.Duration
	switch {
	case u.program != nil:
		i.PID, i.Revision, i.State = int32(u.program.pid), u.program.revision, v1alpha1.InstanceRunning
		if f.Object.Spec.Type == v1alpha1.TypeDaemon {
			if soon = u.program.settles(readyAfter); soon > 0 {
				i.State = v1alpha1.InstanceStarting
			}
		}
		switch {
		case u.asked != nil && u.changing:
			i.State = v1alpha1.InstanceRestarting
		case u.asked != nil:
			i.State = v1alpha1.InstanceStopping
		}
	case f.Spent:
		i.State = v1alpha1.InstanceFailed
	case u.failures >= crashLoop:
		i.State = v1alpha1.InstanceCrashLoop
	case u.failures > 0:
		i.State = v1alpha1.InstanceBackoff
	default:
		i.State = v1alpha1.InstanceStarting
	}
	if i.State != u.told.State || u.since.IsZero() {
		u.since = metav1.NowMicro()
	}
	since := u.since
	i.Since = &since
	return i, soon
}

// withState is the object with another state of this node's entry.
func (u *unit) withState(d *v1alpha1.Deployment, s v1alpha1.InstanceState) *v1alpha1.Deployment {
	next := d.DeepCopy()
	if i := next.Instance(u.opts.Node); i != nil {
		now := metav1.NowMicro()
		i.State, i.Since = s, &now
	}
	return next
}

// tell writes the node's own entry, by server-side apply: it takes nothing away from what others say.
func (u *unit) tell(i v1alpha1.DeploymentInstance) error {
	if equality.Semantic.DeepEqual(i, u.told) || !u.e.Holding() {
		return nil
	}
	entry, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&i)
	if err != nil {
		return err
	}
	object := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"nodes": []any{entry}}}}
	object.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("Deployment"))
	object.SetNamespace(u.key.Namespace)
	object.SetName(u.key.Name)
	ctx, done, err := u.request()
	if err != nil {
		return err
	}
	defer done()
	if err := u.e.Client.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("ebb-node-"+u.opts.Node), client.ForceOwnership); err != nil {
		return client.IgnoreNotFound(err)
	}
	u.told = i
	return nil
}

// request waits for its place among the node's requests and bounds one. It is finished also when the work ends, as long as
// the lease stands.
func (u *unit) request() (context.Context, func(), error) {
	select {
	case u.writes <- struct{}{}:
	case <-u.standing.Done():
		return nil, nil, fleet.ErrLeaseInDoubt
	}
	ctx, cancel := context.WithTimeout(u.standing, writeLimit)
	return ctx, func() { cancel(); <-u.writes }, nil
}

// write writes a status by compare-and-swap.
func (u *unit) write(next *v1alpha1.Deployment) error {
	return u.update(next, func(ctx context.Context, o client.Object) error { return u.e.Client.Status().Update(ctx, o) })
}

func (u *unit) update(next *v1alpha1.Deployment, update func(context.Context, client.Object) error) error {
	ctx, done, err := u.request()
	if err != nil {
		return err
	}
	defer done()
	if !u.e.Holding() {
		return fleet.ErrLeaseInDoubt
	}
	if err := update(ctx, next); err != nil {
		return err
	}
	u.mu.Lock()
	u.object = next
	u.mu.Unlock()
	return nil
}

// refresh reads the object live after a write was refused because it had changed.
func (u *unit) refresh(d *v1alpha1.Deployment) error {
	ctx, done, err := u.request()
	if err != nil {
		return err
	}
	defer done()
	live := &v1alpha1.Deployment{}
	err = u.e.Client.Get(ctx, u.key, live)
	if kubeclient.IsMissing(err) {
		u.gone(d.UID)
		return nil
	}
	if err != nil {
		return err
	}
	u.see(live)
	return nil
}

const maxMessage = 1024

// cut shortens a message to what an object may hold.
func cut(text string) string {
	if len(text) > maxMessage {
		text = text[:maxMessage-3] + "..."
	}
	return text
}
