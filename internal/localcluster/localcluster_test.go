package localcluster

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

// Whoever reads the line "ready" runs commands next, and they read the Settings.
func TestAClusterIsReadyWhenACoordinatorHasMadeTheSettings(t *testing.T) {
	node := &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: v1alpha1.NodeStatus{
		Epoch: 2, Conditions: []metav1.Condition{{Type: v1alpha1.NodeReady, Status: metav1.ConditionTrue}},
	}}
	api := fake.NewClientBuilder().WithScheme(kubeclient.NewScheme()).WithObjects(node).Build()
	c := &Cluster{client: api, nodes: []*process{{name: "n1"}}}
	look := func() error { return c.allReady(t.Context(), map[string]int64{"n1": 1}, map[string]bool{}) }
	if err := look(); err == nil || !strings.Contains(err.Error(), "no coordinator has created the Settings yet") {
		t.Errorf("without Settings: %v", err)
	}
	if err := api.Create(t.Context(), &v1alpha1.Settings{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SettingsName}}); err != nil {
		t.Fatal(err)
	}
	if err := look(); err != nil {
		t.Error(err)
	}
}
