package kubeclient_test

import (
	"context"
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

// store is one node on a server. It refuses what was not read from its newest version.
type store struct {
	client.Client
	is     v1alpha1.Node
	reads  int
	before func() // what somebody else does before every write
	fails  error
}

func (s *store) Get(_ context.Context, _ types.NamespacedName, o client.Object, _ ...client.GetOption) error {
	s.reads++
	if s.fails != nil {
		return s.fails
	}
	s.is.DeepCopyInto(o.(*v1alpha1.Node))
	return nil
}

func (s *store) write(n *v1alpha1.Node) error {
	if s.before != nil {
		s.before()
	}
	if n.ResourceVersion != s.is.ResourceVersion {
		return apierrors.NewConflict(v1alpha1.GroupVersion.WithResource("nodes").GroupResource(), n.Name, errors.New("changed"))
	}
	n.ResourceVersion += "+"
	s.is = *n.DeepCopy()
	return nil
}

func (s *store) Update(_ context.Context, o client.Object, _ ...client.UpdateOption) error {
	return s.write(o.(*v1alpha1.Node))
}

// another writes the status.
func (s *store) another() {
	s.is.ResourceVersion += "*"
	s.is.Status.Address += "*"
}

func decided() (*store, *v1alpha1.Node) {
	s := &store{is: v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u1", ResourceVersion: "1", Generation: 1}}}
	n := s.is.DeepCopy()
	n.Spec.Cordoned = true
	return s, n
}

func (s *store) rewrite(n *v1alpha1.Node) (*v1alpha1.Node, error) {
	return kubeclient.Rewrite(context.Background(), s, n, s.write, func(newest *v1alpha1.Node) bool {
		newest.Spec = n.Spec
		return newest.Generation == n.Generation
	})
}

func TestADecisionIsWrittenOnceIfNobodyElseWrites(t *testing.T) {
	s, n := decided()
	written, err := s.rewrite(n)
	if err != nil || written != n || !s.is.Spec.Cordoned || s.reads != 0 {
		t.Errorf("%v, %v after %d reads", written, err, s.reads)
	}
}

func TestADecisionIsCarriedIntoANewerVersionThatDoesNotTouchIt(t *testing.T) {
	s, n := decided()
	times := 2
	s.before = func() {
		if times--; times >= 0 {
			s.another()
		}
	}
	written, err := s.rewrite(n)
	if err != nil || s.reads != 2 {
		t.Fatalf("%v after %d reads", err, s.reads)
	}
	if !s.is.Spec.Cordoned || s.is.Status.Address != "**" || written.ResourceVersion != s.is.ResourceVersion {
		t.Errorf("the server has %+v, returned was %+v", s.is, written)
	}
}

func TestADecisionWhoseGroundsHaveChangedIsAConflict(t *testing.T) {
	for what, change := range map[string]func(*store){
		"the spec":                   func(s *store) { s.is.Generation++ },
		"another object of the name": func(s *store) { s.is.UID = "u2" },
	} {
		t.Run(what, func(t *testing.T) {
			s, n := decided()
			s.another()
			change(s)
			if _, err := s.rewrite(n); !apierrors.IsConflict(err) || s.is.Spec.Cordoned || s.reads != 1 {
				t.Errorf("%v after %d reads, cordoned %t", err, s.reads, s.is.Spec.Cordoned)
			}
		})
	}
}

func TestARewriteEndsIfOthersWriteAllTheTime(t *testing.T) {
	s, n := decided()
	s.before = s.another
	if _, err := s.rewrite(n); !apierrors.IsConflict(err) || s.reads != 5 {
		t.Errorf("%v after %d reads", err, s.reads)
	}
}

func TestARewriteReturnsOtherErrorsAtOnce(t *testing.T) {
	s, n := decided()
	s.another()
	s.fails = errors.New("no answer")
	if _, err := s.rewrite(n); !errors.Is(err, s.fails) || s.reads != 1 {
		t.Errorf("%v after %d reads", err, s.reads)
	}
	refused := errors.New("refused")
	_, err := kubeclient.Rewrite(context.Background(), s, n, func(*v1alpha1.Node) error { return refused }, func(*v1alpha1.Node) bool { return true })
	if !errors.Is(err, refused) || s.reads != 1 {
		t.Errorf("%v after %d reads", err, s.reads)
	}
}

func cordon(n *v1alpha1.Node) (bool, error) {
	needed := !n.Spec.Cordoned
	n.Spec.Cordoned = true
	return needed, nil
}

func TestAChangeIsMadeAgainOnWhatOthersWrote(t *testing.T) {
	s, _ := decided()
	times := 2
	s.before = func() {
		if times--; times >= 0 {
			s.another()
		}
	}
	n := &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	if err := kubeclient.Change(t.Context(), s, n, cordon); err != nil || s.reads != 3 {
		t.Fatalf("%v after %d reads", err, s.reads)
	}
	if !s.is.Spec.Cordoned || n.Status.Address != "**" || n.ResourceVersion != s.is.ResourceVersion {
		t.Errorf("the server has %+v, returned was %+v", s.is, n)
	}
}

func TestAChangeBeginsWithTheVersionThatItIsGiven(t *testing.T) {
	s, _ := decided()
	if err := kubeclient.Change(t.Context(), s, s.is.DeepCopy(), cordon); err != nil || s.reads != 0 || !s.is.Spec.Cordoned {
		t.Errorf("%v after %d reads", err, s.reads)
	}
	if err := kubeclient.Change(t.Context(), s, s.is.DeepCopy(), cordon); err != nil || s.is.ResourceVersion != "1+" {
		t.Errorf("%v; what needed no change was written as %s", err, s.is.ResourceVersion)
	}
}

func TestAChangeIsNeverMadeToAnotherObjectOfTheName(t *testing.T) {
	s, n := decided()
	n.Spec.Cordoned = false
	s.another()
	s.is.UID = "u2"
	if err := kubeclient.Change(t.Context(), s, n, cordon); !apierrors.IsNotFound(err) || s.is.Spec.Cordoned {
		t.Errorf("%v, cordoned %t", err, s.is.Spec.Cordoned)
	}
}

func TestAChangeThatIsRefusedWritesNothing(t *testing.T) {
	s, n := decided()
	refused := errors.New("refused")
	err := kubeclient.Change(t.Context(), s, n, func(*v1alpha1.Node) (bool, error) { return true, refused })
	if !errors.Is(err, refused) || s.is.Spec.Cordoned {
		t.Errorf("%v, cordoned %t", err, s.is.Spec.Cordoned)
	}
}
