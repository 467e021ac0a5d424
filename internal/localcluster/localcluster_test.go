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

// Whoever copies the command into another terminal starts the same process.
func TestACommandToStartAProcessAgainCanBeCopied(t *testing.T) {
	c := &Cluster{server: &process{name: "apiserver"}, opts: Options{
		Dir: "/tmp/my data", Command: "/opt/e b/ebb", NodeArgs: []string{"--lease-fence=9s"}, LogArgs: []string{"--log-format=json"},
	}}
	for p, want := range map[*process]string{
		c.server:     "'/opt/e b/ebb' apiserver --data-dir '/tmp/my data' --log-format=json",
		{name: "n2"}: "'/opt/e b/ebb' node --name n2 --data-dir '/tmp/my data' --lease-fence=9s --log-format=json",
	} {
		if got := c.commandOf(p); got != want {
			t.Errorf("%s: %s, want %s", p.name, got, want)
		}
	}
}
