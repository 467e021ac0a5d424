package deployment

import (
	"maps"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// turn reports whether a program may be stopped in a drain: every program of lower priority that can leave has left, and only few
// are moving. A program keeps running here until its next node can soon start it. One that is pinned, or runs to its end, holds up no other.
func (r *Runtime) turn(me *programWorker, priority int32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, pw := range r.workers {
		if pw == me {
			continue
		}
		d := pw.object()
		if d != nil && pw.running() != nil && d.Spec.Type == v1alpha1.TypeDeployment && d.Spec.Priority < priority &&
			(d.Spec.Address != r.opts.Node || !d.Spec.Pinned && !r.world.completing(d) && r.world.Nowhere(d, r.opts.Node) == "") {
			return false
		}
	}
	now := time.Now()
	maps.DeleteFunc(r.departed, func(_ types.NamespacedName, since time.Time) bool { return now.Sub(since) > departLimit })
	if _, ok := r.departed[me.key]; !ok && len(r.departed) >= departAtOnce {
		return false
	}
	r.departed[me.key] = now
	return true
}

// arrived records that a program that left in a drain has started on another node. The caller holds the lock.
func (r *Runtime) arrived(d *v1alpha1.Deployment) {
	key := client.ObjectKeyFromObject(d)
	if _, ok := r.departed[key]; !ok {
		return
	}
	for i := range d.Status.Nodes {
		if in := &d.Status.Nodes[i]; in.Node != r.opts.Node && in.State != v1alpha1.InstanceStarting {
			delete(r.departed, key)
			close(r.moved)
			r.moved = make(chan struct{})
			return
		}
	}
}
