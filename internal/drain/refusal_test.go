package drain

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/events"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

// A cordon that is refused, written and refused again is reported twice: a person has to act on each. While it is refused, it is reported once.
func TestARefusalOfACordonIsReportedOnceUntilTheCordonIsWritten(t *testing.T) {
	settings := &v1alpha1.Settings{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SettingsName}}
	settings.Status.ActiveDrain = &v1alpha1.ActiveDrain{Name: "d", UID: "uid-d", Node: "n2", NodeEpoch: 1}
	d := &v1alpha1.Drain{ObjectMeta: metav1.ObjectMeta{Name: "d", UID: "uid-d", Finalizers: []string{v1alpha1.DrainFinalizer}}, Spec: v1alpha1.DrainSpec{NodeName: "n2", Park: true}}
	node := &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2", UID: "uid-n2"}}
	refuses := true
	api := fake.NewClientBuilder().WithScheme(kubeclient.NewScheme()).WithStatusSubresource(d, settings).WithObjects(settings, d, node).
		WithInterceptorFuncs(interceptor.Funcs{Update: func(ctx context.Context, to client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			if _, cordons := o.(*v1alpha1.Node); cordons && refuses {
				return apierrors.NewForbidden(corev1.Resource("nodes"), "n2", errors.New("a webhook says no"))
			}
			return to.Update(ctx, o, opts...)
		}}).Build()
	log := &strings.Builder{}
	c := &Controller{
		Leader: "n1", CheckTerm: func(context.Context) error { return nil }, Tenants: func(client.Reader) []Tenant { return nil },
		Metrics: NewMetrics(prometheus.NewRegistry(), nil), Log: slog.New(slog.NewTextHandler(log, nil)), client: api, cached: api, live: api,
		record: events.Recorder{Client: api, Controller: "drains"}, reported: map[string]bool{}, unreported: map[string]bool{},
	}
	step := &Step{Name: StepCordon, Object: node}
	for i, refused := range []bool{true, true, false} {
		refuses = refused
		if _, err := c.Reconcile(t.Context(), ctrl.Request{}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(log.String(), "a cordon could not be written"); got != 1 {
			t.Errorf("after %d reconciliations: %d reports", i+1, got)
		}
		if reported := c.reported[refusalKey(step)]; reported != refused {
			t.Errorf("after %d reconciliations the next refusal is reported: %t", i+1, !reported)
		}
	}
}
