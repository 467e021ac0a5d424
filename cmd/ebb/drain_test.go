package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
)

func TestACancelledDrainIsNotWaitedForWhenNothingIsLeftOnItsNode(t *testing.T) {
	const ended = "drain d is cancelled, but no process runs on node n2 any more: start it, and the node takes work again; `ebb explain n2` shows its state"
	const waits = "drain d is cancelled, but node n2 is not Alive again yet: `ebb explain n2` shows its state"
	for _, c := range []struct {
		what          string
		holder        string
		epoch, fenced string
		status        int64 // the epoch that the node's status is of
		ready         metav1.ConditionStatus
		slot          bool
		want          string
	}{
		{what: "the node is back in its next epoch", holder: "p", epoch: "4", status: 4, ready: "True"},
		{what: "the node is back, and the slot is not free yet", holder: "p", epoch: "4", status: 4, ready: "True", slot: true, want: waits},
		{what: "the node begins its next epoch", holder: "p", epoch: "4", status: 3, ready: "False", want: waits},
		{what: "the node does not know yet", holder: "p", epoch: "3", status: 3, ready: "True", slot: true, want: waits},
		{what: "the node died, and its lease has not expired", holder: "p", epoch: "3", status: 3, ready: "True", slot: true, want: waits},
		{what: "the node is lost", epoch: "3", fenced: "3", status: 3, ready: "Unknown", want: ended},
		{what: "the node is lost, and the slot is about to be free", epoch: "3", fenced: "3", status: 3, ready: "Unknown", slot: true, want: waits},
		{what: "the node was stopped", epoch: "3", status: 3, ready: "False", want: ended},
		{what: "the node came back and was stopped", epoch: "4", status: 4, ready: "False", want: ended},
	} {
		t.Run(c.what, func(t *testing.T) {
			n := &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}, Status: v1alpha1.NodeStatus{
				Epoch: c.status, Conditions: []metav1.Condition{{Type: v1alpha1.NodeReady, Status: c.ready, Reason: "Test"}},
			}}
			l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: lease.Namespace, Name: lease.NameOf("n2"), Annotations: map[string]string{lease.EpochAnnotation: c.epoch}}}
			if c.fenced != "" {
				l.Annotations[lease.FencedAnnotation] = c.fenced
			}
			l.Spec.HolderIdentity = &c.holder
			settings := &v1alpha1.Settings{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SettingsName}}
			if c.slot {
				settings.Status.ActiveDrain = &v1alpha1.ActiveDrain{Name: "d", UID: "u", Node: "n2", NodeEpoch: 3}
			}
			api := fake.NewClientBuilder().WithScheme(kubeclient.NewScheme()).WithObjects(n, l, settings).Build()
			d := &v1alpha1.Drain{ObjectMeta: metav1.ObjectMeta{Name: "d", UID: "u"}, Spec: v1alpha1.DrainSpec{NodeName: "n2"}, Status: v1alpha1.DrainStatus{NodeEpoch: 3}}
			looked, cancel := context.WithCancel(t.Context())
			cancel() // it looks once
			got := ""
			if err := (&drainFlags{}).awaitBack(looked, api, d); err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func TestWhyADrainHasNotBegunIsSaid(t *testing.T) {
	for what, c := range map[string]struct{ reason, message, want string }{
		"another drain runs": {
			v1alpha1.ReasonQueued, "Waiting for drain d1 of node n3.",
			"drain d of node n2 is queued. Waiting for drain d1 of node n3.\n",
		},
		"the cordon is refused": {
			"CordonRefused", "Node n2 could not be cordoned, which is tried again: no",
			"drain d of node n2 has not begun yet. Node n2 could not be cordoned, which is tried again: no\n",
		},
		"nothing is known": {want: "drain d of node n2 has not begun yet: `ebb explain n2` shows why\n"},
	} {
		d := &v1alpha1.Drain{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: v1alpha1.DrainSpec{NodeName: "n2"}}
		if c.reason != "" {
			d.Status.Conditions = []metav1.Condition{{Type: v1alpha1.DrainFinished, Status: metav1.ConditionFalse, Reason: c.reason, Message: c.message}}
		}
		if got := notBegun(d); got != c.want || !strings.HasSuffix(got, "\n") {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
}

func TestWhatIsKnownOfADrainThatWasCreatedIsSaid(t *testing.T) {
	const waits = "drain d was created but no coordinator has acted on it yet: `ebb explain n2` shows why; delete the Drain if it should not begin later"
	refused := errors.New("connection refused")
	for what, c := range map[string]struct {
		phase   v1alpha1.DrainPhase
		missing bool
		fails   error
		stopped bool
		want    string
	}{
		"it has begun":                           {phase: v1alpha1.DrainDraining},
		"it was refused":                         {phase: v1alpha1.DrainFailed},
		"nobody decides, and the user stops":     {stopped: true, want: waits},
		"the user stops while the API is asked":  {stopped: true, fails: context.Canceled, want: waits},
		"the API went away":                      {fails: refused, want: "drain d of node n2 was created, and its state cannot be read: connection refused; it may begin: `ebb explain n2` shows it"},
		"somebody deleted it before it was seen": {missing: true, want: "drain d of node n2 was deleted before the coordinator decided about it"},
	} {
		t.Run(what, func(t *testing.T) {
			d := &v1alpha1.Drain{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: v1alpha1.DrainSpec{NodeName: "n2"}, Status: v1alpha1.DrainStatus{Phase: c.phase}}
			api := fake.NewClientBuilder().WithScheme(kubeclient.NewScheme())
			if !c.missing {
				api = api.WithObjects(d)
			}
			if c.fails != nil {
				api = api.WithInterceptorFuncs(interceptor.Funcs{Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
					return c.fails
				}})
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if c.stopped {
				cancel()
			}
			got := ""
			if err := awaitDecision(ctx, api.Build(), d.DeepCopy()); err != nil {
				got = err.Error()
			}
			if got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

func TestACommandThatWaitsForLongSaysWhatFor(t *testing.T) {
	for wait, want := range map[time.Duration]string{hintAfter - time.Millisecond: "", hintAfter + time.Millisecond: "ebb: waiting\n"} {
		synctest.Test(t, func(t *testing.T) {
			var out strings.Builder
			end := hintIfSlow(&out, "waiting")
			time.Sleep(wait)
			end()
			if got := out.String(); got != want {
				t.Errorf("after %s: %q, want %q", wait, got, want)
			}
		})
	}
}

// One that had not begun leaves its node as it was, whatever state that is.
func TestACancelledDrainThatHadNotBegunSaysNothingOfItsNode(t *testing.T) {
	d := &v1alpha1.Drain{ObjectMeta: metav1.ObjectMeta{Name: "d", UID: "u"}, Spec: v1alpha1.DrainSpec{NodeName: "n2", WhenBusy: v1alpha1.Queue}, Status: v1alpha1.DrainStatus{Phase: v1alpha1.DrainPending}}
	n := &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}
	settings := &v1alpha1.Settings{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SettingsName}}
	api := fake.NewClientBuilder().WithScheme(kubeclient.NewScheme()).WithStatusSubresource(d).WithObjects(d, n, settings).
		WithInterceptorFuncs(interceptor.Funcs{Update: func(ctx context.Context, to client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			if err := to.Update(ctx, o, opts...); err != nil {
				return err
			}
			withdrawn := o.DeepCopyObject().(*v1alpha1.Drain)
			withdrawn.Status.Phase = v1alpha1.DrainCancelled
			return to.Status().Update(ctx, withdrawn)
		}}).Build()
	cmd, out := &cobra.Command{}, &strings.Builder{}
	cmd.SetOut(out)
	if err := (&drainFlags{wait: true}).runCancel(t.Context(), cmd, api, "n2"); err != nil {
		t.Fatal(err)
	}
	if want := "drain d of node n2 is cancelled\n"; out.String() != want {
		t.Errorf("%q, want %q", out, want)
	}
}
