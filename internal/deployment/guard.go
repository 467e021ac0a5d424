package deployment

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/access"
	"github.com/ebb-dev/ebb/internal/fleet"
)

// checkNodeWrite allows a node to write of a deployment only: its own name as the address; itself as the holder, in its current epoch,
// if there is no holder or the holder's lease has ended; and its own instance.
func checkNodeWrite(ctx context.Context, w access.Write) error {
	next, err := decode(w.New)
	if err != nil {
		return err
	}
	old, err := decode(w.Old)
	if err != nil {
		return err
	}
	g := guard{Write: w}
	if w.Status {
		if old.Status.Isolated != next.Status.Isolated || !slices.Equal(old.Status.MayRunOn, next.Status.MayRunOn) ||
			!equality.Semantic.DeepEqual(old.Status.Conditions, next.Status.Conditions) {
			return fmt.Errorf("node %s may not change the conditions of a deployment, as whom it runs, nor on which lost nodes it may still run", w.Node)
		}
		if !equality.Semantic.DeepEqual(withoutNode(old.Status.Avoid, w.Node), withoutNode(next.Status.Avoid, w.Node)) {
			return fmt.Errorf("node %s may give a deployment up for itself only", w.Node)
		}
		if err := g.checkHolder(ctx, old, next); err != nil {
			return err
		}
		return g.checkInstances(ctx, old, next)
	}
	if old.Spec.Address != next.Spec.Address && next.Spec.Address != w.Node {
		return fmt.Errorf("node %s may claim a deployment only for itself, not for %q", w.Node, next.Spec.Address)
	}
	old.Spec.Address = next.Spec.Address
	if !equality.Semantic.DeepEqual(old.Spec, next.Spec) {
		return fmt.Errorf("node %s may change only the address in a deployment's spec", w.Node)
	}
	added := slices.Clone(old.Finalizers)
	if !slices.Contains(added, v1alpha1.DeploymentFinalizer) {
		added = append(added, v1alpha1.DeploymentFinalizer)
	}
	if !slices.Equal(next.Finalizers, old.Finalizers) && !slices.Equal(next.Finalizers, added) || !equality.Semantic.DeepEqual(next.OwnerReferences, old.OwnerReferences) {
		return fmt.Errorf("node %s may only add the finalizer %s to a deployment; it may not change other finalizers or owner references", w.Node, v1alpha1.DeploymentFinalizer)
	}
	return nil
}

// nodeWritePolicy is checkNodeWrite for the policies of Kubernetes. Whether other leases have ended is checked by the nodes, with live reads.
var nodeWritePolicy = []access.Rule{
	{
		Expression: "variables.status || object.?spec.?address == oldObject.?spec.?address || object.?spec.?address.orValue('') == variables.node",
		Message:    "a node may claim a deployment for itself only",
	},
	{
		// By meaning: a node writes the whole object, in which it writes durations in its own way and leaves empty fields out.
		Expression: "variables.status || (object.spec.all(k, k in ['address', 'env'] || (k in oldObject.spec && (k in ['restart', 'stop', 'rollout'] ? " +
			"(object.spec[k].all(f, f in oldObject.spec[k] && (type(object.spec[k][f]) == string ? duration(object.spec[k][f]) == duration(oldObject.spec[k][f]) : object.spec[k][f] == oldObject.spec[k][f])) && " +
			"oldObject.spec[k].all(f, f in object.spec[k] || oldObject.spec[k][f] == 0)) : object.spec[k] == oldObject.spec[k]))) && " +
			"oldObject.spec.all(k, k in ['address', 'env'] || k in object.spec || oldObject.spec[k] == '' || oldObject.spec[k] == 0 || oldObject.spec[k] == false || oldObject.spec[k] == []) && " +
			"object.spec.?env.orValue([]).size() == oldObject.spec.?env.orValue([]).size() && " +
			"object.spec.?env.orValue([]).all(e, oldObject.spec.?env.orValue([]).exists(o, o.name == e.name && o.?value.orValue('') == e.?value.orValue(''))))",
		Message: "a node may change only the address in a deployment's spec",
	},
	{
		Expression: "object.metadata.?finalizers.orValue([]).all(f, f == '" + v1alpha1.DeploymentFinalizer + "' || f in oldObject.metadata.?finalizers.orValue([])) && " +
			"oldObject.metadata.?finalizers.orValue([]).all(f, f in object.metadata.?finalizers.orValue([])) && object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences",
		Message: "a node may only add Ebb's finalizer to a deployment",
	},
	{
		Expression: "object.?status.?isolated.orValue(false) == oldObject.?status.?isolated.orValue(false) && object.?status.?mayRunOn.orValue([]) == oldObject.?status.?mayRunOn.orValue([]) && " +
			"object.?status.?conditions.orValue([]) == oldObject.?status.?conditions.orValue([])",
		Message: "a node may not change the conditions of a deployment, as whom it runs, nor on which lost nodes it may still run",
	},
	{
		Expression: "object.?status.?avoid.orValue([]).all(e, e.node == variables.node || oldObject.?status.?avoid.orValue([]).exists(o, o == e)) && " +
			"oldObject.?status.?avoid.orValue([]).all(o, o.node == variables.node || object.?status.?avoid.orValue([]).exists(e, e == o))",
		Message: "a node may give a deployment up for itself only",
	},
	{
		Expression: "object.?status.?holder == oldObject.?status.?holder || object.?status.?holder.?node.orValue('') == variables.node || " +
			"(object.?status.?holder.?node.orValue('') == '' && oldObject.?status.?holder.?node.orValue('') == variables.node)",
		Message: "a node may make only itself the holder of a deployment, and release only its own hold",
	},
	{
		Expression: "object.?status.?nodes.orValue([]).all(e, e.node == variables.node || oldObject.?status.?nodes.orValue([]).exists(o, o == e))",
		Message:    "a node may write its own instance of a deployment only",
	},
}

func decode(object *unstructured.Unstructured) (*v1alpha1.Deployment, error) {
	d := &v1alpha1.Deployment{}
	if object == nil {
		return d, nil
	}
	return d, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, d)
}

// guard checks one write of a node.
type guard struct{ access.Write }

func (g guard) checkHolder(ctx context.Context, old, next *v1alpha1.Deployment) error {
	was, is := old.Holder(), next.Holder()
	switch {
	case was == is:
		return nil
	case is.Node == "" && was.Node == g.Node:
		return nil
	case is.Node != g.Node:
		return fmt.Errorf("node %s may make only itself the holder of a deployment, and release only its own hold; the holder was %q", g.Node, was.Node)
	case next.Spec.Type != v1alpha1.TypeDeployment || next.Spec.Address != g.Node:
		return fmt.Errorf("node %s may not become the holder of a deployment that is addressed to %q", g.Node, next.Spec.Address)
	}
	if err := g.CheckEpoch(ctx, is.NodeEpoch); err != nil {
		return err
	}
	for i := range next.Status.Nodes {
		if err := g.checkLeaseEnded(ctx, next.Status.Nodes[i].Node, "may run the program"); err != nil {
			return err
		}
	}
	if was.Node != g.Node { // the holder goes on with what runs, in another epoch
		if err := g.checkNotGoingOn(ctx, old); err != nil {
			return err
		}
	}
	return g.checkLeaseEnded(ctx, was.Node, "holds the deployment")
}

// checkNotGoingOn fails while a deployment that must not run twice may go on without a lease on a lost node.
func (g guard) checkNotGoingOn(ctx context.Context, d *v1alpha1.Deployment) error {
	if d.Spec.GoesOn() {
		return nil
	}
	w := World{Fleet: fleet.New()}
	for i := range d.Status.Nodes {
		name := d.Status.Nodes[i].Node
		rec, err := g.Lease(ctx, name)
		if err != nil {
			return err
		}
		w.Leases[name] = rec
	}
	if other := w.Occupied(d, g.Node); other != "" {
		return fmt.Errorf("node %s may still run the program", other)
	}
	return nil
}

// checkLeaseEnded fails while another node holds its lease, so that it may still run processes.
func (g guard) checkLeaseEnded(ctx context.Context, other, does string) error {
	if other == "" || other == g.Node {
		return nil
	}
	rec, err := g.Lease(ctx, other)
	if err == nil && rec.Held() {
		err = fmt.Errorf("node %s %s and still holds its lease", other, does)
	}
	return err
}

// checkInstances allows a node to write its own instance, and to remove those of nodes whose lease has ended.
func (g guard) checkInstances(ctx context.Context, old, next *v1alpha1.Deployment) error {
	for i := range next.Status.Nodes {
		is := &next.Status.Nodes[i]
		if was := old.Instance(is.Node); was != nil && equality.Semantic.DeepEqual(was, is) {
			continue
		}
		if is.Node != g.Node {
			return fmt.Errorf("node %s may not write the instance of node %s", g.Node, is.Node)
		}
		if err := g.CheckEpoch(ctx, is.NodeEpoch); err != nil {
			return err
		}
	}
	for i := range old.Status.Nodes {
		was := old.Status.Nodes[i].Node
		if next.Instance(was) == nil {
			if err := g.checkLeaseEnded(ctx, was, "may run the program"); err != nil {
				return err
			}
			if was == g.Node {
				continue
			}
			if err := g.checkNotGoingOn(ctx, old); err != nil {
				return err
			}
		}
	}
	return nil
}
