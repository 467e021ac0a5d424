package deployment_test

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/deployment"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/lease"
)

// fourNodes: n2 has no fast disk, n3 does not trust the command, n4 is gone.
func fourNodes() deployment.World {
	w := deployment.World{Fleet: fleet.Fleet{Nodes: map[string]*v1alpha1.Node{}, Leases: map[string]lease.Record{}}}
	for _, name := range []string{"n1", "n2", "n3", "n4"} {
		n := &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"disk": "fast"}}}
		n.Status.Epoch, n.Status.Liveness = 1, v1alpha1.Alive
		w.Nodes[name], w.Leases[name] = n, lease.Record{Node: name, Holder: "a process", Epoch: 1}
	}
	w.Nodes["n2"].Labels = nil
	w.Nodes["n3"].Status.TrustedCommands = "^/opt/"
	w.Leases["n4"] = lease.Record{Node: "n4", Epoch: 1, Fenced: 1}
	return w
}

// observedAs is a daemon for fast disks, and what the coordinator says of it.
func observedAs(status metav1.ConditionStatus, running int32, on ...string) *v1alpha1.Deployment {
	d := program("beat", daemon, fastDisk)
	d.Spec.Command, d.Status.Running, d.Status.Wanted = "/bin/beat", running, 1
	d.Status.Conditions = []metav1.Condition{{Type: v1alpha1.DeploymentRunning, Status: status, Reason: "Reason", Message: "message.", ObservedGeneration: d.Generation}}
	for _, node := range on {
		d.Status.Nodes = append(d.Status.Nodes, v1alpha1.DeploymentInstance{Node: node, NodeEpoch: 1, State: v1alpha1.InstanceRunning, Restarts: 2})
	}
	return d
}

func TestTheStatusOfADaemonSaysWhereItIsNotAndWhy(t *testing.T) {
	for name, c := range map[string]struct {
		d          *v1alpha1.Deployment
		nodes      []string
		everywhere bool
		note       string
	}{
		"it is where it should be": {observedAs(metav1.ConditionTrue, 1, "n1"), []string{
			"n1 Running ", "n2  should not run here: labels do not match", "n3  should not run here: command not trusted",
		}, true, "on all matching nodes: 1 of 3"},
		"it is missing": {observedAs(metav1.ConditionFalse, 0), []string{
			"n1 Missing the node has not started it yet", "n2  should not run here: labels do not match", "n3  should not run here: command not trusted",
		}, false, "Reason: message"},
	} {
		s := deployment.StatusOf(fourNodes(), c.d)
		var nodes []string
		for _, i := range s.Nodes {
			nodes = append(nodes, strings.Join([]string{i.Node, string(i.State), i.Message}, " "))
		}
		if !slices.Equal(nodes, c.nodes) || s.Everywhere == nil || *s.Everywhere != c.everywhere || s.Note() != c.note {
			t.Errorf("%s: %q, everywhere %v, note %q", name, nodes, s.Everywhere, s.Note())
		}
	}
}

func TestTheStatusOfADeploymentNamesWhatIsUnexpected(t *testing.T) {
	d := program("web", addressed("n2"), holder("n1", 1, 1))
	d.Generation = 2
	d.Status.Conditions = []metav1.Condition{{Type: v1alpha1.DeploymentRunning, Status: metav1.ConditionTrue, ObservedGeneration: 1}}
	s := deployment.StatusOf(fourNodes(), d)
	if s.Everywhere != nil || s.Healthy || s.Note() != "the coordinator has not seen its last change yet; still held by n1" {
		t.Errorf("everywhere %v, healthy %v, note %q", s.Everywhere, s.Healthy, s.Note())
	}
}

func TestDeploymentsAndDaemonsAreCounted(t *testing.T) {
	if got := deployment.CountAll(nil); got != nil {
		t.Errorf("of none: %+v", got)
	}
	got := deployment.CountAll([]v1alpha1.Deployment{*program("b"), *observedAs(metav1.ConditionTrue, 1), *program("a")})
	if got.Deployments != 2 || got.Daemons != 1 || !slices.Equal(got.Unhealthy, []string{"/a", "/b"}) { // they have no namespace
		t.Errorf("%+v", got)
	}
}
