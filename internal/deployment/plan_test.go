package deployment_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/deployment"
)

// facts are those of node n1 in epoch 2, Alive, about a program of which nothing runs there.
func facts(d *v1alpha1.Deployment, changes ...func(*deployment.Facts)) deployment.Facts {
	f := deployment.Facts{Object: d, Node: "n1", Epoch: 2, Alive: true, Turn: true}
	for _, c := range changes {
		c(&f)
	}
	return f
}

// present is a program that runs there as its object wants it, and is counted.
func present(f *deployment.Facts) {
	f.Phase, f.Admitted = deployment.Present, true
	if f.Object != nil {
		f.UID, f.Revision = f.Object.UID, deployment.Revision(f.Object)
	}
}

func ending(f *deployment.Facts)     { present(f); f.Phase = deployment.Ending }
func draining(f *deployment.Facts)   { f.Alive = false }
func leaving(f *deployment.Facts)    { f.Alive, f.Leaving = false, true }
func stopping(f *deployment.Facts)   { f.Stopping = true }
func free(f *deployment.Facts)       { f.Free = true }
func admitted(f *deployment.Facts)   { f.Admitted = true }
func noTurn(f *deployment.Facts)     { f.Turn = false }
func occupied(f *deployment.Facts)   { f.Occupied = "n2" }
func oldVersion(f *deployment.Facts) { f.Revision = "old" }
func recreated(f *deployment.Facts)  { f.UID = "uid-before" }
func mayRestart(f *deployment.Facts) { f.MayRestart = true }
func pause(f *deployment.Facts)      { f.Wait = time.Second }
func spent(f *deployment.Facts)      { f.Spent = true }
func undecided(f *deployment.Facts)  { f.Undecided = true }
func slowDisk(f *deployment.Facts)   { f.Labels = map[string]string{"disk": "slow"} }

func distrusting(f *deployment.Facts) { f.Trust, _ = deployment.ParseTrust("^/usr/") }

func keeps(d *v1alpha1.Deployment) { d.Spec.WhenDisconnected = v1alpha1.KeepDisconnected }

func idle(why string) deployment.Step { return deployment.Step{Do: deployment.Idle, Why: why} }

func does(a deployment.Action, why string) deployment.Step { return deployment.Step{Do: a, Why: why} }

func TestWhatANodeDoesNextWithAProgramThatDoesNotRun(t *testing.T) {
	ours := []change{addressed("n1"), running("n1", 2)}
	for _, c := range []struct {
		name string
		f    deployment.Facts
		want deployment.Step
	}{
		{"an addressed deployment is taken", facts(program("d", addressed("n1"))), does(deployment.Take, "")},
		{"a deployment that was given back is taken", facts(program("d", addressed("n1"), holder("", 0, 4))), does(deployment.Take, "")},
		{"a deployment that another may run is waited for", facts(program("d", addressed("n1"), running("n2", 1)), occupied), idle(deployment.WaitOccupied)},
		{"a deployment whose holder is over is taken", facts(program("d", addressed("n1"), running("n2", 1))), does(deployment.Take, "")},
		{"a taken deployment is started", facts(program("d", ours...)), does(deployment.Start, "")},
		{"a taken deployment that others ran as a daemon is waited for", facts(program("d", append(ours, on("n2", 1, v1alpha1.InstanceRunning))...), occupied), idle(deployment.WaitOccupied)},
		{"a deployment of an earlier epoch is taken again", facts(program("d", addressed("n1"), running("n1", 1))), does(deployment.Take, "")},
		{"a deployment of a later epoch is taken again", facts(program("d", addressed("n1"), running("n1", 3))), does(deployment.Take, "")},
		{"an instance without a holder is not enough", facts(program("d", addressed("n1"), on("n1", 2, v1alpha1.InstanceRunning))), does(deployment.Take, "")},
		{"a holder without an instance is not enough", facts(program("d", addressed("n1"), holder("n1", 2, 1))), does(deployment.Take, "")},
		{"a holder of an earlier epoch is not enough", facts(program("d", addressed("n1"), holder("n1", 1, 1), on("n1", 2, v1alpha1.InstanceRunning))), does(deployment.Take, "")},
		{"a deployment whose labels do not match is left alone", facts(program("d", addressed("n1"), fastDisk), slowDisk), idle(deployment.WaitLabels)},
		{"a deployment whose labels no longer match is started again", facts(program("d", append(ours, fastDisk)...), slowDisk), does(deployment.Start, "")},
		{"a deployment whose labels no longer match is taken again", facts(program("d", addressed("n1"), running("n1", 1), fastDisk), slowDisk), does(deployment.Take, "")},
		{"as whom a deployment runs is decided first", facts(program("d", ours...), undecided), idle(deployment.WaitUser)},
		{"as whom a daemon runs is decided first", facts(program("d", daemon, running("n1", 2)), undecided), idle(deployment.WaitUser)},
		{"a deployment is taken before it is decided as whom it runs", facts(program("d", addressed("n1")), undecided), does(deployment.Take, "")},
		{"a pause is kept", facts(program("d", ours...), pause), idle(deployment.WaitBackoff)},
		{"a program without restarts left is not started", facts(program("d", ours...), pause, spent), idle(deployment.WaitSpent)},
		{"a new deployment has no pause", facts(program("d", addressed("n1")), pause, spent), does(deployment.Take, "")},

		{"a deployment without an address is nobody's", facts(program("d")), does(deployment.Forget, "addressed to another node")},
		{"a deployment of another is forgotten", facts(program("d", addressed("n2"))), does(deployment.Forget, "addressed to another node")},
		{"a deployment that went to another is given back", facts(program("d", addressed("n2"), running("n1", 2))), does(deployment.Release, "addressed to another node")},
		{"an earlier epoch's deployment is given back", facts(program("d", addressed("n2"), running("n1", 1))), does(deployment.Release, "addressed to another node")},
		{"a holder alone is given back", facts(program("d", addressed("n2"), holder("n1", 1, 1))), does(deployment.Release, "addressed to another node")},
		{"an instance alone is given back", facts(program("d", addressed("n2"), running("n2", 1), on("n1", 1, v1alpha1.InstanceRunning))), does(deployment.Release, "addressed to another node")},
		{"a disabled deployment is forgotten", facts(program("d", addressed("n1"), disabled)), does(deployment.Forget, "disabled")},
		{"a disabled deployment is given back", facts(program("d", append(ours, disabled)...)), does(deployment.Release, "disabled")},
		{"a deployment that is being deleted is given back", facts(program("d", append(ours, deleted)...)), does(deployment.Release, "disabled")},
		{"a deleted program is forgotten", facts(nil), does(deployment.Forget, "deleted")},
		{"an untrusted program is forgotten", facts(program("d", addressed("n1")), distrusting), does(deployment.Forget, "command not trusted")},
		{"an untrusted program is given back", facts(program("d", ours...), distrusting), does(deployment.Release, "command not trusted")},
		{"a program without a type is forgotten", facts(program("d", typed("x"))), does(deployment.Forget, v1alpha1.ErrInvalidType)},
		{"a program whose type was lost is given back", facts(program("d", append(ours, typed(""))...)), does(deployment.Release, v1alpha1.ErrInvalidType)},

		{"a daemon is taken", facts(program("d", daemon)), does(deployment.Take, "")},
		{"a daemon is taken whoever has it", facts(program("d", daemon, running("n2", 1)), occupied), does(deployment.Take, "")},
		{"a daemon is taken whatever its address", facts(program("d", daemon, addressed("n2"))), does(deployment.Take, "")},
		{"a taken daemon is started", facts(program("d", daemon, running("n1", 2))), does(deployment.Start, "")},
		{"a daemon of an earlier epoch is taken again", facts(program("d", daemon, running("n1", 1))), does(deployment.Take, "")},
		{"a taken daemon is started whoever has it", facts(program("d", daemon, running("n1", 2), running("n2", 1)), occupied), does(deployment.Start, "")},
		{"a daemon pauses", facts(program("d", daemon, running("n1", 2)), pause), idle(deployment.WaitBackoff)},
		{"a daemon runs out of restarts", facts(program("d", daemon, running("n1", 2)), spent), idle(deployment.WaitSpent)},
		{"a daemon whose labels do not match is forgotten", facts(program("d", daemon, fastDisk), slowDisk), does(deployment.Forget, deployment.WaitLabels)},
		{"a daemon whose labels no longer match is given back", facts(program("d", daemon, fastDisk, running("n1", 2)), slowDisk), does(deployment.Release, deployment.WaitLabels)},
		{"a daemon whose selector cannot be read is forgotten", facts(program("d", daemon, badSelector)), does(deployment.Forget, deployment.WaitLabels)},

		{"a draining node takes nothing", facts(program("d", addressed("n1")), draining), idle(deployment.WaitDraining)},
		{"a draining node takes no daemon", facts(program("d", daemon), draining), idle(deployment.WaitDraining)},
		{"a draining node gives back what it has not begun", facts(program("d", ours...), draining), does(deployment.Release, deployment.WaitDraining)},
		{"a draining node starts again what was there", facts(program("d", ours...), draining, admitted), does(deployment.Start, "")},
		{"a leaving node gives back", facts(program("d", ours...), leaving, admitted), does(deployment.Release, "the node is stopping")},
		{"a leaving node forgets", facts(program("d", addressed("n1")), leaving), does(deployment.Forget, "the node is stopping")},
		{"a leaving node forgets a deleted program", facts(nil, leaving), does(deployment.Forget, "the node is stopping")},
	} {
		t.Run(c.name, func(t *testing.T) { wantNext(t, c.f, c.want) })
	}
}

func TestWhatANodeDoesNextWithAProgramThatRuns(t *testing.T) {
	ours := []change{addressed("n1"), running("n1", 2)}
	gone := []change{addressed("n2"), running("n1", 2)}
	for _, c := range []struct {
		name string
		f    deployment.Facts
		want deployment.Step
	}{
		{"a deployment runs", facts(program("d", ours...), present), idle("")},
		{"a daemon goes on without a lease", facts(program("d", daemon, running("n1", 2)), present, leaving, free), does(deployment.Detach, "")},
		{"a deleted daemon goes on without a lease", facts(nil, present, leaving, free), does(deployment.Detach, "")},
		{"a daemon that is ending is left to its shim without a lease", facts(program("d", daemon, running("n1", 2)), ending, leaving, free), does(deployment.Detach, "")},
		{"a daemon ends with its node", facts(program("d", daemon, running("n1", 2)), present, leaving, stopping, free), does(deployment.Stop, "the node is stopping")},
		{"a daemon with a deadline ends without a lease", facts(program("d", daemon, running("n1", 2)), present, leaving), does(deployment.Stop, "the node is stopping")},
		{"a deployment that is kept goes on", facts(program("d", append(ours, keeps)...), present, free), idle("")},
		{"a deployment that is kept no longer is started again", facts(program("d", ours...), present, free), does(deployment.Stop, "changed")},
		{"a kept deployment that another took is stopped", facts(program("d", addressed("n1"), running("n2", 1), keeps), present, free), does(deployment.Stop, "this node is not its holder")},
		{"a kept deployment of an earlier epoch is taken again", facts(program("d", addressed("n1"), running("n1", 1), keeps), present, free), does(deployment.Take, "")},
		{"a deployment runs on while labels change", facts(program("d", append(ours, fastDisk)...), present, slowDisk), idle("")},
		{"a deployment that was found running is taken again", facts(program("d", addressed("n1"), running("n1", 1)), present), does(deployment.Take, "")},
		{"a deployment whose instance vanished is taken again", facts(program("d", addressed("n1"), holder("n1", 2, 1)), present), does(deployment.Take, "")},
		{"a deployment that another took is stopped", facts(program("d", addressed("n1"), running("n2", 1)), present), does(deployment.Stop, "this node is not its holder")},
		{"a daemon that became a deployment is stopped", facts(program("d", addressed("n1"), on("n1", 2, v1alpha1.InstanceRunning)), present), does(deployment.Stop, "this node is not its holder")},
		{"a changed deployment is stopped", facts(program("d", ours...), present, oldVersion), does(deployment.Stop, "changed")},
		{"a changed deployment that was found running is taken first", facts(program("d", addressed("n1"), running("n1", 1)), present, oldVersion), does(deployment.Take, "")},
		{"a deployment that went to another is stopped", facts(program("d", gone...), present), does(deployment.Stop, "addressed to another node")},
		{"a deployment that lost its address is stopped", facts(program("d", running("n1", 2)), present), does(deployment.Stop, "addressed to another node")},
		{"a disabled program is stopped", facts(program("d", append(ours, disabled)...), present), does(deployment.Stop, "disabled")},
		{"a program that is being deleted is stopped", facts(program("d", append(ours, deleted)...), present), does(deployment.Stop, "disabled")},
		{"a deleted program is stopped", facts(nil, present), does(deployment.Stop, "deleted")},
		{"a program of an object that was made anew is stopped", facts(program("d", ours...), present, recreated), does(deployment.Stop, "")},
		{"an untrusted program is stopped", facts(program("d", ours...), present, distrusting), does(deployment.Stop, "command not trusted")},
		{"a program without a type is stopped", facts(program("d", append(ours, typed("x"))...), present), does(deployment.Stop, v1alpha1.ErrInvalidType)},
		{"a program that ends is waited for", facts(program("d", ours...), ending), idle(deployment.WaitStopping)},
		{"a deleted program that ends is waited for", facts(nil, ending), idle(deployment.WaitStopping)},
		{"a leaving node waits for what ends", facts(program("d", ours...), ending, leaving), idle(deployment.WaitStopping)},

		{"a daemon runs", facts(program("d", daemon, running("n1", 2)), present), idle("")},
		{"a daemon that was found running is taken again", facts(program("d", daemon, running("n1", 1)), present), does(deployment.Take, "")},
		{"a deployment that became a daemon runs on", facts(program("d", daemon, on("n1", 2, v1alpha1.InstanceRunning)), present), idle("")},
		{"a changed daemon waits for others", facts(program("d", daemon, running("n1", 2)), present, oldVersion), idle(deployment.WaitRollout)},
		{"a changed daemon is restarted", facts(program("d", daemon, running("n1", 2)), present, oldVersion, mayRestart), does(deployment.Restart, "changed")},
		{"a daemon that has not changed is not restarted", facts(program("d", daemon, running("n1", 2)), present, mayRestart), idle("")},
		{"a daemon whose labels no longer match is stopped", facts(program("d", daemon, fastDisk, running("n1", 2)), present, slowDisk), does(deployment.Stop, deployment.WaitLabels)},

		{"a draining node runs on what nobody claimed", facts(program("d", ours...), present, draining, noTurn), idle("")},
		{"a draining node stops what was claimed", facts(program("d", gone...), present, draining), does(deployment.Stop, "addressed to another node")},
		{"a draining node stops what is less important first", facts(program("d", gone...), present, draining, noTurn), idle(deployment.WaitTurn)},
		{"an alive node waits for no turn", facts(program("d", gone...), present, noTurn), does(deployment.Stop, "addressed to another node")},
		{"a leaving node waits for no turn", facts(program("d", gone...), present, leaving, noTurn), does(deployment.Stop, "the node is stopping")},
		{"a draining node stops what is disabled at once", facts(program("d", append(ours, disabled)...), present, draining, noTurn), does(deployment.Stop, "disabled")},
		{"a draining node stops what was deleted at once", facts(nil, present, draining, noTurn), does(deployment.Stop, "deleted")},
		{"a draining node keeps its daemons", facts(program("d", daemon, running("n1", 2)), present, draining), idle("")},
		{"a leaving node stops its daemons", facts(program("d", daemon, running("n1", 2)), present, leaving), does(deployment.Stop, "the node is stopping")},
	} {
		t.Run(c.name, func(t *testing.T) { wantNext(t, c.f, c.want) })
	}
}

func wantNext(t *testing.T, f deployment.Facts, want deployment.Step) {
	t.Helper()
	before := f.Object.DeepCopy()
	if got := deployment.Next(f); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if diff := cmp.Diff(before, f.Object); diff != "" {
		t.Errorf("Next changed the object it was given:\n%s", diff)
	}
}

func TestATakeWritesTheHolderWithTheNextEpoch(t *testing.T) {
	w := newCluster("n1", "n2", "dead", "left", "restarted")
	w.dies("dead")
	w.leaves("left")
	w.restarts("restarted")
	mine := v1alpha1.DeploymentInstance{Node: "somebody", NodeEpoch: 99, State: v1alpha1.InstanceStarting, Revision: "r"}
	instance := func(node string, epoch int64) v1alpha1.DeploymentInstance {
		return v1alpha1.DeploymentInstance{Node: node, NodeEpoch: epoch, State: v1alpha1.InstanceRunning}
	}
	taken := v1alpha1.DeploymentInstance{Node: "n1", NodeEpoch: 2, State: v1alpha1.InstanceStarting, Revision: "r"}
	for _, c := range []struct {
		name string
		d    *v1alpha1.Deployment
		want v1alpha1.DeploymentStatus
	}{
		{"from nobody", program("d"), v1alpha1.DeploymentStatus{
			State: v1alpha1.StateAssigned, Holder: &v1alpha1.DeploymentHolder{Node: "n1", NodeEpoch: 2, Epoch: 1}, Nodes: []v1alpha1.DeploymentInstance{taken},
		}},
		{"from nobody after others", program("d", holder("", 0, 7)), v1alpha1.DeploymentStatus{
			State: v1alpha1.StateAssigned, Holder: &v1alpha1.DeploymentHolder{Node: "n1", NodeEpoch: 2, Epoch: 8}, Nodes: []v1alpha1.DeploymentInstance{taken},
		}},
		{"from itself", program("d", running("n1", 1)), v1alpha1.DeploymentStatus{
			State: v1alpha1.StateAssigned, Holder: &v1alpha1.DeploymentHolder{Node: "n1", NodeEpoch: 2, Epoch: 2}, Nodes: []v1alpha1.DeploymentInstance{taken},
		}},
		{"from the dead", program("d", running("dead", 1), on("left", 1, v1alpha1.InstanceRunning), on("never", 1, v1alpha1.InstanceRunning)), v1alpha1.DeploymentStatus{
			State: v1alpha1.StateAssigned, Holder: &v1alpha1.DeploymentHolder{Node: "n1", NodeEpoch: 2, Epoch: 2}, Nodes: []v1alpha1.DeploymentInstance{taken},
		}},
		{"from the dead, on whom it goes on", program("d", keeps, running("dead", 1), on("left", 1, v1alpha1.InstanceRunning)), v1alpha1.DeploymentStatus{
			State: v1alpha1.StateAssigned, Holder: &v1alpha1.DeploymentHolder{Node: "n1", NodeEpoch: 2, Epoch: 2}, Nodes: []v1alpha1.DeploymentInstance{instance("dead", 1), taken},
		}},
		{"beside those who live", program("d", on("n2", 1, v1alpha1.InstanceRunning), on("restarted", 1, v1alpha1.InstanceRunning)), v1alpha1.DeploymentStatus{
			State: v1alpha1.StateAssigned, Holder: &v1alpha1.DeploymentHolder{Node: "n1", NodeEpoch: 2, Epoch: 1},
			Nodes: []v1alpha1.DeploymentInstance{instance("n2", 1), instance("restarted", 1), taken},
		}},
		{"a daemon has no holder, and drops nobody", program("d", daemon, running("n2", 1), on("dead", 1, v1alpha1.InstanceRunning), on("n1", 1, v1alpha1.InstanceRunning)), v1alpha1.DeploymentStatus{
			Nodes: []v1alpha1.DeploymentInstance{instance("n2", 1), instance("dead", 1), taken},
		}},
		{"a daemon gives up the holder it had as a deployment", program("d", daemon, holder("n1", 1, 5)), v1alpha1.DeploymentStatus{
			Holder: &v1alpha1.DeploymentHolder{Epoch: 5}, Nodes: []v1alpha1.DeploymentInstance{taken},
		}},
		{"a daemon leaves another's holder alone", program("d", daemon, holder("n2", 1, 5)), v1alpha1.DeploymentStatus{
			Holder: &v1alpha1.DeploymentHolder{Node: "n2", NodeEpoch: 1, Epoch: 5}, Nodes: []v1alpha1.DeploymentInstance{taken},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := c.d.DeepCopy()
			got := deployment.Taken(c.d, w.World, "n1", 2, mine)
			if diff := cmp.Diff(before, c.d); diff != "" {
				t.Errorf("the object it was given has changed:\n%s", diff)
			}
			if diff := cmp.Diff(c.want, got.Status); diff != "" {
				t.Errorf("the status (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before.Spec, got.Spec); diff != "" {
				t.Errorf("the spec has changed:\n%s", diff)
			}
		})
	}
}

func TestAReleaseLeavesNothingOfTheNode(t *testing.T) {
	asked := time.Unix(7, 0)
	stop := &v1alpha1.DeploymentStop{Node: "n1", Epoch: 1, At: metav1.NewMicroTime(asked)}
	stopped := func(d *v1alpha1.Deployment) { d.Status.LastStop = &v1alpha1.DeploymentStop{Node: "n2"} }
	other := v1alpha1.DeploymentInstance{Node: "n2", NodeEpoch: 1, State: v1alpha1.InstanceRunning}
	for _, c := range []struct {
		name  string
		d     *v1alpha1.Deployment
		asked *time.Time
		want  v1alpha1.DeploymentStatus
	}{
		{"its holder and its instance", program("d", running("n1", 1)), &asked,
			v1alpha1.DeploymentStatus{Holder: &v1alpha1.DeploymentHolder{Epoch: 1}, Nodes: []v1alpha1.DeploymentInstance{}, LastStop: stop}},
		{"a disabled deployment does not move", program("d", running("n1", 1), disabled, stopped), &asked,
			v1alpha1.DeploymentStatus{Holder: &v1alpha1.DeploymentHolder{Epoch: 1}, Nodes: []v1alpha1.DeploymentInstance{}}},
		{"a program that ended by itself", program("d", running("n1", 1), stopped), nil,
			v1alpha1.DeploymentStatus{Holder: &v1alpha1.DeploymentHolder{Epoch: 1}, Nodes: []v1alpha1.DeploymentInstance{}}},
		{"an instance beside another's", program("d", running("n2", 1), on("n1", 1, v1alpha1.InstanceStopping)), &asked,
			v1alpha1.DeploymentStatus{Holder: &v1alpha1.DeploymentHolder{Node: "n2", NodeEpoch: 1, Epoch: 1}, Nodes: []v1alpha1.DeploymentInstance{other}}},
		{"a daemon", program("d", daemon, running("n2", 1), running("n1", 1)), &asked,
			v1alpha1.DeploymentStatus{Nodes: []v1alpha1.DeploymentInstance{other}}},
		{"nothing", program("d"), &asked, v1alpha1.DeploymentStatus{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := c.d.DeepCopy()
			got := deployment.Released(c.d, "n1", c.asked)
			if diff := cmp.Diff(before, c.d); diff != "" {
				t.Errorf("the object it was given has changed:\n%s", diff)
			}
			if diff := cmp.Diff(c.want, got.Status); diff != "" {
				t.Errorf("the status (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before.Spec, got.Spec); diff != "" {
				t.Errorf("the spec has changed:\n%s", diff)
			}
		})
	}
}

func TestAProgramIsRestartedForWhatItRunsAlone(t *testing.T) {
	spec := func() *v1alpha1.DeploymentSpec {
		return &v1alpha1.DeploymentSpec{
			Type: v1alpha1.TypeDeployment, Address: "n1", Command: "/opt/app", Args: []string{"a", "b"},
			Env: []v1alpha1.EnvVar{{Name: "A", Value: "1"}}, WorkingDir: "/opt",
		}
	}
	for _, c := range []struct {
		name   string
		change func(*v1alpha1.DeploymentSpec)
		want   bool
	}{
		{"nothing", func(*v1alpha1.DeploymentSpec) {}, false},
		{"command", func(s *v1alpha1.DeploymentSpec) { s.Command = "/opt/apps" }, true},
		{"an argument", func(s *v1alpha1.DeploymentSpec) { s.Args[1] = "c" }, true},
		{"one argument more", func(s *v1alpha1.DeploymentSpec) { s.Args = append(s.Args, "") }, true},
		{"two arguments in one", func(s *v1alpha1.DeploymentSpec) { s.Args = []string{"a b"} }, true},
		{"the value of a variable", func(s *v1alpha1.DeploymentSpec) { s.Env[0].Value = "2" }, true},
		{"the name of a variable", func(s *v1alpha1.DeploymentSpec) { s.Env[0].Name = "B" }, true},
		{"no variables", func(s *v1alpha1.DeploymentSpec) { s.Env = nil }, true},
		{"workingDir", func(s *v1alpha1.DeploymentSpec) { s.WorkingDir = "/" }, true},
		{"type", func(s *v1alpha1.DeploymentSpec) { s.Type = v1alpha1.TypeDaemon }, false},
		{"enabled", func(s *v1alpha1.DeploymentSpec) { s.Enabled = new(bool) }, false},
		{"address", func(s *v1alpha1.DeploymentSpec) { s.Address = "n2" }, false},
		{"selector", func(s *v1alpha1.DeploymentSpec) { s.Selector = &metav1.LabelSelector{} }, false},
		{"priority", func(s *v1alpha1.DeploymentSpec) { s.Priority = 3 }, false},
		{"restart", func(s *v1alpha1.DeploymentSpec) { s.Restart.Limit = 3 }, false},
		{"stop", func(s *v1alpha1.DeploymentSpec) { s.Stop.Grace = &metav1.Duration{Duration: 1} }, false},
		{"rollout", func(s *v1alpha1.DeploymentSpec) { s.Rollout.MaxUnavailable = 3 }, false},
		{"user", func(s *v1alpha1.DeploymentSpec) { s.User = "postgres" }, true},
		{"the node's user", func(s *v1alpha1.DeploymentSpec) { s.User = v1alpha1.NodeUser }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			changed := &v1alpha1.Deployment{Spec: *spec()}
			c.change(&changed.Spec)
			if got := deployment.Revision(changed) != deployment.Revision(&v1alpha1.Deployment{Spec: *spec()}); got != c.want {
				t.Errorf("the revision changes: %t, want %t", got, c.want)
			}
		})
	}
}

func lasting(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }

func TestPausesDoubleUpToTheLongest(t *testing.T) {
	short := v1alpha1.RestartPolicy{Backoff: lasting(100 * time.Millisecond), MaxBackoff: lasting(350 * time.Millisecond)}
	for _, c := range []struct {
		name     string
		policy   v1alpha1.RestartPolicy
		failures int
		want     time.Duration
	}{
		{"no failure, no pause", short, 0, 0},
		{"fewer than none", short, -1, 0},
		{"the first", short, 1, 100 * time.Millisecond},
		{"the second", short, 2, 200 * time.Millisecond},
		{"the third is cut", short, 3, 350 * time.Millisecond},
		{"many", short, 1 << 40, 350 * time.Millisecond},
		{"the default begins with a second", v1alpha1.RestartPolicy{}, 1, time.Second},
		{"the default doubles", v1alpha1.RestartPolicy{}, 9, 256 * time.Second},
		{"the default ends at five minutes", v1alpha1.RestartPolicy{}, 10, 5 * time.Minute},
		{"durations that make no sense are the default", v1alpha1.RestartPolicy{Backoff: lasting(-1), MaxBackoff: lasting(0)}, 2, 2 * time.Second},
		{"a first pause that is too long is cut", v1alpha1.RestartPolicy{Backoff: lasting(time.Hour), MaxBackoff: lasting(time.Minute)}, 1, time.Minute},
		{"pauses without an end do not overflow", v1alpha1.RestartPolicy{Backoff: lasting(time.Hour), MaxBackoff: lasting(1 << 62)}, 1000, 1 << 62},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := deployment.Backoff(c.policy, c.failures); got != c.want {
				t.Errorf("%s after %d failures, want %s", got, c.failures, c.want)
			}
		})
	}
}

func TestFailuresAreForgivenAfterALongRun(t *testing.T) {
	quick := v1alpha1.RestartPolicy{ResetAfter: lasting(time.Second)}
	for _, c := range []struct {
		policy v1alpha1.RestartPolicy
		ran    time.Duration
		want   bool
	}{
		{quick, time.Second - 1, false}, {quick, time.Second, true},
		{v1alpha1.RestartPolicy{}, time.Minute - 1, false}, {v1alpha1.RestartPolicy{}, time.Minute, true},
	} {
		if got := deployment.Forgiven(c.policy, c.ran); got != c.want {
			t.Errorf("after %s forgiven is %t, want %t", c.ran, got, c.want)
		}
	}
}

func TestRestartsAreUsedUpPastTheLimit(t *testing.T) {
	for _, c := range []struct {
		limit    int32
		failures int
		want     bool
	}{
		{0, 0, false}, {0, 1 << 30, false}, {2, 0, false}, {2, 2, false}, {2, 3, true}, {2, 4, true},
	} {
		if got := deployment.Exhausted(v1alpha1.RestartPolicy{Limit: c.limit}, c.failures); got != c.want {
			t.Errorf("limit %d after %d failures: %t, want %t", c.limit, c.failures, got, c.want)
		}
	}
}

func TestAProgramHasTenSecondsToStopUnlessItsSpecSaysMore(t *testing.T) {
	for want, p := range map[time.Duration]v1alpha1.StopPolicy{
		10 * time.Second: {},
		time.Minute:      {Grace: lasting(time.Minute)},
	} {
		if got := deployment.Grace(p); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
