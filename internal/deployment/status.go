package deployment

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kind"
)

// Status is one deployment or daemon as people and programs see it.
type Status struct {
	Namespace string                   `json:"namespace"`
	Name      string                   `json:"name"`
	Type      v1alpha1.DeploymentType  `json:"type"`
	State     v1alpha1.DeploymentState `json:"state"`
	Address   string                   `json:"address"`
	Holder    string                   `json:"holder"`
	Wanted    int32                    `json:"wanted"`
	Running   int32                    `json:"running"`
	// Everywhere says of a daemon whether it runs on every node on which it should.
	Everywhere *bool       `json:"everywhere,omitempty"`
	Healthy    bool        `json:"healthy"`
	Restarts   int32       `json:"restarts"`
	Since      metav1.Time `json:"since"`
	Notes      []string    `json:"notes"`
	// Nodes are those on which something of it may run, and for a daemon those on which it does not, with the reason.
	Nodes []InstanceStatus `json:"nodes"`
}

// InstanceStatus is a program on one node.
type InstanceStatus struct {
	v1alpha1.DeploymentInstance `json:",inline"`
	// Absent says that nothing of it is there; the message says why.
	Absent bool `json:"absent,omitempty"`
}

// stateMissing is shown where a daemon should run and nothing of it is there.
const stateMissing = "Missing"

// ReadStatus reads the deployments and daemons that a key leaves over: an empty name or namespace means any.
func ReadStatus(ctx context.Context, c client.Client, key types.NamespacedName) ([]Status, error) {
	var list v1alpha1.DeploymentList
	if err := c.List(ctx, &list, client.InNamespace(key.Namespace)); err != nil {
		return nil, err
	}
	w, err := ReadWorld(ctx, c)
	if err != nil {
		return nil, err
	}
	all := []Status{}
	for i := range list.Items {
		if d := &list.Items[i]; key.Name == "" || d.Name == key.Name {
			all = append(all, StatusOf(w, d))
		}
	}
	if key.Name != "" && len(all) == 0 {
		where := "in any namespace"
		if key.Namespace != "" {
			where = fmt.Sprintf("in namespace %q", key.Namespace)
		}
		return nil, fmt.Errorf("there is no deployment or daemon %q %s: `ebb status deployments` lists all", key.Name, where)
	}
	slices.SortFunc(all, func(a, b Status) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return all, nil
}

// StatusOf follows from an object and the nodes.
func StatusOf(w World, d *v1alpha1.Deployment) Status {
	s := Status{
		Namespace: d.Namespace, Name: d.Name, Type: d.Spec.Type, State: d.Status.State, Address: d.Spec.Address, Holder: d.Holder().Node,
		Wanted: d.Status.Wanted, Running: d.Status.Running, Since: d.CreationTimestamp, Healthy: Healthy(d), Nodes: []InstanceStatus{},
	}
	if running := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DeploymentRunning); running != nil {
		s.Since = running.LastTransitionTime
	}
	for _, i := range d.Status.Nodes {
		s.Restarts += i.Restarts
		s.Nodes = append(s.Nodes, InstanceStatus{DeploymentInstance: i})
	}
	if d.Spec.Type == v1alpha1.TypeDaemon && d.IsEnabled() {
		everywhere := meta.IsStatusConditionTrue(d.Status.Conditions, v1alpha1.DeploymentRunning) && s.Running == s.Wanted
		s.Everywhere = &everywhere
		s.Nodes = append(s.Nodes, absences(w, d)...)
	}
	slices.SortFunc(s.Nodes, func(a, b InstanceStatus) int { return cmp.Compare(a.Node, b.Node) })
	s.Notes = s.notes(w, d)
	return s
}

// absences are the nodes on which an enabled daemon is not, and why.
func absences(w World, d *v1alpha1.Deployment) []InstanceStatus {
	var list []InstanceStatus
	for name, n := range w.Nodes {
		if !w.Live(name) || d.Instance(name) != nil {
			continue
		}
		i := InstanceStatus{DeploymentInstance: v1alpha1.DeploymentInstance{Node: name, NodeEpoch: n.Status.Epoch}, Absent: true}
		if i.Message = notFor(d, n); i.Message == "" {
			i.State, i.Message = stateMissing, "the node has not started it yet"
		}
		list = append(list, i)
	}
	return list
}

// notFor says why a daemon does not belong on a node; empty if it does.
func notFor(d *v1alpha1.Deployment, n *v1alpha1.Node) string {
	if d.Spec.Selector != nil {
		s, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
		if err != nil || !s.Matches(labels.Set(n.Labels)) {
			return "should not run here: labels do not match"
		}
	}
	if why := trustOf(n).Refuses(d); why != "" {
		return "should not run here: " + why
	}
	if n.Status.Liveness == v1alpha1.Stopping {
		return "should not run here: the node is stopping"
	}
	return ""
}

// notes returns everything that is not healthy, and for a daemon that it runs everywhere.
func (s *Status) notes(w World, d *v1alpha1.Deployment) []string {
	notes := []string{}
	if !d.DeletionTimestamp.IsZero() {
		notes = append(notes, "being deleted")
	}
	running := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DeploymentRunning)
	if running == nil || running.ObservedGeneration != d.Generation {
		notes = append(notes, "the coordinator has not seen its last change yet")
	}
	if c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DeploymentValid); c != nil && c.Status != metav1.ConditionTrue {
		notes = append(notes, c.Reason+": "+c.Message)
	}
	switch {
	case running != nil && running.Status != metav1.ConditionTrue:
		notes = append(notes, running.Reason+": "+running.Message)
	case s.Everywhere != nil && *s.Everywhere:
		notes = append(notes, everywhere(w, s.Wanted))
	}
	if s.Holder != "" && s.Holder != s.Address {
		notes = append(notes, "still held by "+s.Holder)
	}
	if len(d.Status.MayRunOn) > 0 {
		notes = append(notes, "may still run on "+strings.Join(d.Status.MayRunOn, ", ")+": lost")
	}
	return notes
}

// everywhere is the note that a daemon runs on all matching nodes, with their number if these are not all nodes.
func everywhere(w World, wanted int32) string {
	var nodes int32
	for name := range w.Nodes {
		if w.Live(name) {
			nodes++
		}
	}
	if wanted == nodes {
		return "everywhere"
	}
	return fmt.Sprintf("on all matching nodes: %d of %d", wanted, nodes)
}

// Note is all notes in one line.
func (s Status) Note() string {
	var notes []string
	for _, n := range s.Notes {
		notes = append(notes, strings.TrimSuffix(kind.OneLine(n), "."))
	}
	return strings.Join(notes, "; ")
}

// Counts counts deployments and daemons, for programs that read the status.
type Counts struct {
	Deployments int `json:"deployments"`
	Daemons     int `json:"daemons"`
	// Unhealthy are those that are not as they should be.
	Unhealthy []string `json:"unhealthy"`
}

// CountAll is nil when there are none.
func CountAll(list []v1alpha1.Deployment) *Counts {
	if len(list) == 0 {
		return nil
	}
	s := &Counts{Unhealthy: []string{}}
	for i := range list {
		d := &list[i]
		if d.Spec.Type == v1alpha1.TypeDaemon {
			s.Daemons++
		} else {
			s.Deployments++
		}
		if !Healthy(d) {
			s.Unhealthy = append(s.Unhealthy, kind.NameIn(d.Namespace, d.Name))
		}
	}
	slices.Sort(s.Unhealthy)
	return s
}
