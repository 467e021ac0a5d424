package localcluster

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/child"
	"github.com/ebb-dev/ebb/internal/datadir"
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

// A node that ended is started again by a command of its own, and so `ebb up` does not stop it.
func TestTheEndOfAClusterNamesWhatStillRuns(t *testing.T) {
	var out strings.Builder
	c := &Cluster{opts: Options{Dir: datadir.Dir(t.TempDir()), Nodes: 3, Out: &out}, unlock: func() {}}
	for _, name := range []string{"n1", "n2"} {
		p, err := child.Start(exec.Command("true"), nil)
		if err != nil {
			t.Fatal(err)
		}
		<-p.Done()
		c.nodes = append(c.nodes, &process{Process: p, name: name})
	}
	p, err := child.Start(exec.Command("sleep", "1000"), nil)
	if err != nil {
		t.Fatal(err)
	}
	c.nodes = append(c.nodes, &process{Process: p, name: "n3"})
	if err := os.MkdirAll(string(c.opts.Dir.Node("n2")), 0o700); err != nil {
		t.Fatal(err)
	}
	unlock, err := datadir.Lock(c.opts.Dir.Node("n2").Lock())
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	c.Stop()
	if want := "stopping 1 node\nn2 still runs: another command started it\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}
