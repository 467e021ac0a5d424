package drain_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/simtest"
)

var (
	errConflict = errors.New("conflict")
	errMissing  = errors.New("not found")
)

// store is the API as a drain sees it: objects with versions, every read live, every write a compare-and-swap.
type store struct {
	settings *v1alpha1.Settings
	drains   map[string]*v1alpha1.Drain
	nodes    map[string]*v1alpha1.Node
	leases   map[string]*coordinationv1.Lease // by node
	versions simtest.Revisions
	blind    bool   // writes whatever version was read
	pause    func() // runs before every read of a coordinator
}

func newStore() *store {
	return &store{
		settings: &v1alpha1.Settings{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SettingsName, ResourceVersion: "0"}},
		drains:   map[string]*v1alpha1.Drain{}, nodes: map[string]*v1alpha1.Node{}, leases: map[string]*coordinationv1.Lease{},
	}
}

func (s *store) bump(o client.Object) { s.versions.Stamp(o) }

func (s *store) reading() {
	if s.pause != nil {
		s.pause()
	}
}

// Get implements client.Reader for the one object that is read by name.
func (s *store) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	s.reading()
	settings, ok := o.(*v1alpha1.Settings)
	if !ok {
		return fmt.Errorf("no %T named %s here", o, key)
	}
	s.settings.DeepCopyInto(settings)
	return nil
}

// List implements client.Reader.
func (s *store) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	s.reading()
	switch list := list.(type) {
	case *v1alpha1.DrainList:
		for _, name := range slices.Sorted(maps.Keys(s.drains)) {
			list.Items = append(list.Items, *s.drains[name].DeepCopy())
		}
	case *v1alpha1.NodeList:
		for _, name := range slices.Sorted(maps.Keys(s.nodes)) {
			list.Items = append(list.Items, *s.nodes[name].DeepCopy())
		}
	case *coordinationv1.LeaseList:
		for _, name := range slices.Sorted(maps.Keys(s.leases)) {
			list.Items = append(list.Items, *s.leases[name].DeepCopy())
		}
	default:
		return fmt.Errorf("no %T here", list)
	}
	return nil
}

// write does what the API does with a step: the version must fit, and one part of the object changes.
func (s *store) write(step *drain.Step) error {
	switch o := step.Object.(type) {
	case *v1alpha1.Settings:
		return update(s, s.settings, o, func() { s.settings.Status = *o.Status.DeepCopy() })
	case *v1alpha1.Node:
		node := s.nodes[o.Name]
		return update(s, node, o, func() {
			if step.Status {
				node.Status = *o.Status.DeepCopy()
				return
			}
			node.Spec, node.Annotations = *o.Spec.DeepCopy(), maps.Clone(o.Annotations)
		})
	case *v1alpha1.Drain:
		d := s.drains[o.Name]
		return update(s, d, o, func() {
			if step.Status {
				d.Status = *o.Status.DeepCopy()
				return
			}
			d.Spec, d.Finalizers = *o.Spec.DeepCopy(), slices.Clone(o.Finalizers)
			if d.DeletionTimestamp != nil && len(d.Finalizers) == 0 {
				delete(s.drains, d.Name)
			}
		})
	}
	return fmt.Errorf("step %s writes a %T", step.Name, step.Object)
}

// object is a pointer to an object of the API.
type object[T any] interface {
	*T
	client.Object
}

func update[T any, O object[T]](s *store, current, next O, change func()) error {
	if current == nil {
		return errMissing
	}
	if !simtest.Fresh(current, next, s.blind) {
		return errConflict
	}
	change()
	s.bump(current)
	return nil
}

// delete marks a drain for deletion, or removes it if nothing holds it.
func (s *store) delete(name string, now time.Time) {
	d := s.drains[name]
	if d == nil || d.DeletionTimestamp != nil {
		return
	}
	if len(d.Finalizers) == 0 {
		delete(s.drains, name)
		return
	}
	at := metav1.NewTime(now)
	d.DeletionTimestamp = &at
	s.bump(d)
}

// cancel sets spec.cancelled, which the API refuses on a drain that is Stopping or has ended.
func (s *store) cancel(name string) {
	d := s.drains[name]
	if d == nil || d.Spec.Cancelled || d.Status.Phase == v1alpha1.DrainStopping || d.Status.Phase == v1alpha1.DrainComplete || d.Status.Phase == v1alpha1.DrainCancelled {
		return
	}
	d.Spec.Cancelled = true
	s.bump(d)
}

// record is what a node's Lease says.
func (s *store) record(node string) lease.Record {
	l := s.leases[node]
	if l == nil {
		return lease.Record{}
	}
	rec, err := lease.Read(l)
	if err != nil {
		panic(err)
	}
	return rec
}

// setLease writes a node's Lease.
func (s *store) setLease(node, holder string, epoch, fenced int64) {
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: lease.Namespace, Name: lease.NameOf(node),
		Annotations: map[string]string{
			lease.EpochAnnotation: strconv.FormatInt(epoch, 10), lease.FencedAnnotation: strconv.FormatInt(fenced, 10),
		},
	}}
	if holder != "" {
		l.Spec.HolderIdentity = &holder
	}
	s.bump(l)
	s.leases[node] = l
}
