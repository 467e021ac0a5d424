package drain

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// Preview is what a drain of a node would find if it were requested now.
type Preview struct {
	// Node that would be drained.
	Node string `json:"node"`
	// Refused is the reason for which the drain would be refused, and Message its words; empty if it would begin.
	Refused string `json:"refused,omitempty"`
	Message string `json:"message,omitempty"`
	// Moves is the work that would leave the node, by kind, and Stays what the node would keep until it stops.
	Moves map[string]int64 `json:"moves"`
	Stays map[string]int64 `json:"stays,omitempty"`
	// Waits are what each piece of it would wait for.
	Waits []v1alpha1.Blocker `json:"waits,omitempty"`
}

// previewName is the name and the UID of the supposed drain. It is not a valid name, so no object has it.
const previewName = "(preview)"

// Foresee returns what a drain of a node would find. It writes nothing: it asks the kinds of work through a reader that shows the node as
// already Draining. w is the world without that drain, and tenants makes the tenants that read through it.
func Foresee(ctx context.Context, w World, r client.Reader, tenants func(client.Reader) []Tenant, node string) (Preview, error) {
	d := &v1alpha1.Drain{Spec: v1alpha1.DrainSpec{NodeName: node}}
	d.Name, d.UID = previewName, previewName
	p := Preview{Node: node, Moves: map[string]int64{}}
	if p.Refused = refusal(w, d); p.Refused != "" {
		p.Message = refusalMessage(w, p.Refused)
	}
	if w.Nodes[node] == nil || !w.Leases[node].Held() {
		return p, nil
	}
	slot := &v1alpha1.ActiveDrain{Name: previewName, UID: previewName, Node: node, NodeEpoch: w.Leases[node].Epoch}
	d.Status.Phase, d.Status.NodeEpoch = v1alpha1.DrainDraining, slot.NodeEpoch
	seen := &supposition{Reader: r, drain: d, slot: slot}
	supposed, err := Gather(ctx, seen, w.Leader, tenants(seen), w.Now)
	if err != nil {
		return p, err
	}
	for kind, left := range supposed.Left {
		if left.Count > 0 {
			p.Moves[kind] = left.Count
		}
		p.Waits = append(p.Waits, left.Blockers...)
	}
	p.Waits, p.Stays = sorted(p.Waits), w.Nodes[node].Status.Staying
	return p, nil
}

// Begins reports whether the drain would begin; with resign the coordinator would hand over first.
func (p Preview) Begins(resign bool) bool {
	return p.Refused == "" || resign && p.Refused == v1alpha1.ReasonTargetIsCoordinator
}

// Describe returns the preview for people.
func (p Preview) Describe(ws Works, resign bool) string {
	var b strings.Builder
	switch {
	case !p.Begins(resign):
		fmt.Fprintf(&b, "A drain of node %s would be refused now: %s (%s): %s.\n", p.Node, p.Message, p.Refused, RefusalRemedy(p.Refused, p.Node))
	case p.Refused != "":
		fmt.Fprintf(&b, "Node %s is the coordinator: another node would take over, and the drain would begin.\n", p.Node)
	default:
		fmt.Fprintf(&b, "A drain of node %s would begin at once.\n", p.Node)
	}
	if errors.Is(Refusal(p.Refused), ErrCaptureNotFound) {
		return b.String()
	}
	fmt.Fprintf(&b, "It would move: %s.\n", ws.Listed(p.Moves))
	if stays := ws.Listed(p.Stays); stays != nothing {
		fmt.Fprintf(&b, "Until the node stops, it would keep: %s.\n", stays)
	}
	if len(p.Waits) > 0 {
		b.WriteString("It would wait for:\n")
	}
	for _, g := range Groups(p.Waits) {
		fmt.Fprintf(&b, "  %s\n", g)
		for _, advice := range g.Advice() {
			fmt.Fprintf(&b, "    %s\n", advice)
		}
	}
	return b.String()
}

// supposition shows the objects of a reader as if a drain had begun and its node had closed its gate.
type supposition struct {
	client.Reader
	drain *v1alpha1.Drain
	slot  *v1alpha1.ActiveDrain
}

// Get implements client.Reader.
func (s *supposition) Get(ctx context.Context, key types.NamespacedName, object client.Object, opts ...client.GetOption) error {
	if d, ok := object.(*v1alpha1.Drain); ok && key.Name == previewName {
		s.drain.DeepCopyInto(d)
		return nil
	}
	if err := s.Reader.Get(ctx, key, object, opts...); err != nil {
		return err
	}
	s.change(object)
	return nil
}

// List implements client.Reader.
func (s *supposition) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if err := s.Reader.List(ctx, list, opts...); err != nil {
		return err
	}
	switch l := list.(type) {
	case *v1alpha1.NodeList:
		for i := range l.Items {
			s.change(&l.Items[i])
		}
	case *v1alpha1.SettingsList:
		for i := range l.Items {
			s.change(&l.Items[i])
		}
	case *v1alpha1.DrainList:
		l.Items = append(l.Items, *s.drain.DeepCopy())
	}
	return nil
}

// change makes an object what it would be.
func (s *supposition) change(object client.Object) {
	switch o := object.(type) {
	case *v1alpha1.Settings:
		o.Status.ActiveDrain = s.slot.DeepCopy()
	case *v1alpha1.Node:
		if o.Name == s.slot.Node {
			o.Status.Liveness, o.Status.ObservedDrain = v1alpha1.Draining, s.slot.UID
		}
	}
}
