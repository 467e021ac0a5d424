package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/deployment"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/lease"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// threeNodes live; n3 has other labels.
func threeNodes() deployment.World {
	w := deployment.World{Fleet: fleet.Fleet{Nodes: map[string]*v1alpha1.Node{}, Leases: map[string]lease.Record{}}}
	for _, name := range []string{"n1", "n2", "n3"} {
		n := &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"disk": "ssd"}}}
		n.Status.Epoch, n.Status.Liveness = 1, v1alpha1.Alive
		w.Nodes[name] = n
		w.Leases[name] = lease.Record{Node: name, Holder: "a process", Epoch: 1}
	}
	w.Nodes["n3"].Labels = nil
	return w
}

func program(name string, t v1alpha1.DeploymentType, change ...func(*v1alpha1.Deployment)) *v1alpha1.Deployment {
	d := &v1alpha1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Generation: 1, CreationTimestamp: metav1.NewTime(now.Add(-2 * time.Second))}}
	d.Spec.Type, d.Spec.Command = t, "/bin/true"
	says(d, v1alpha1.DeploymentValid, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "")
	for _, c := range change {
		c(d)
	}
	return d
}

// says adds a condition that began a minute ago.
func says(d *v1alpha1.Deployment, kind string, status metav1.ConditionStatus, reason, message string) {
	d.Status.Conditions = append(d.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: 1, LastTransitionTime: metav1.NewTime(now.Add(-time.Minute)),
	})
}

func running(status metav1.ConditionStatus, reason, message string) func(*v1alpha1.Deployment) {
	return func(d *v1alpha1.Deployment) { says(d, v1alpha1.DeploymentRunning, status, reason, message) }
}

// counted sets the state, and on how many nodes it runs and should.
func counted(state v1alpha1.DeploymentState, running, wanted int32) func(*v1alpha1.Deployment) {
	return func(d *v1alpha1.Deployment) {
		d.Status.State, d.Status.Running, d.Status.Wanted = state, running, wanted
	}
}

func on(node string, state v1alpha1.InstanceState, change ...func(*v1alpha1.DeploymentInstance)) func(*v1alpha1.Deployment) {
	since := metav1.NewMicroTime(now.Add(-30 * time.Second))
	i := v1alpha1.DeploymentInstance{Node: node, NodeEpoch: 1, State: state, Since: &since}
	for _, c := range change {
		c(&i)
	}
	return func(d *v1alpha1.Deployment) { d.Status.Nodes = append(d.Status.Nodes, i) }
}

func table(details bool, programs ...*v1alpha1.Deployment) string {
	var s deploymentsStatus
	for _, d := range programs {
		s.Deployments = append(s.Deployments, deployment.StatusOf(threeNodes(), d))
	}
	return "\n" + s.text(now, details)
}

func TestTheTableOfDeployments(t *testing.T) {
	for _, c := range []struct {
		name     string
		details  bool
		programs []*v1alpha1.Deployment
		want     string
	}{
		{"none", false, nil, `
no deployments and no daemons
`},
		{"what is healthy takes one line", false, []*v1alpha1.Deployment{
			program("hello", v1alpha1.TypeDeployment, running("True", "Running", "It runs on n1."), counted("ASSIGNED", 1, 1), on("n1", "Running"),
				func(d *v1alpha1.Deployment) { d.Spec.Address = "n1" }),
			program("idle", v1alpha1.TypeDeployment, running("False", "Disabled", "spec.enabled is false."), counted("DISABLED", 0, 0)),
		}, `
NAME    TYPE         STATE      ADDRESS   RUNNING   RESTARTS   SINCE   NOTE
hello   deployment   ASSIGNED   n1        1/1       0          60s
idle    deployment   DISABLED   -         0/0       0          60s     Disabled: spec.enabled is false
`},
		{"a daemon that is everywhere", false, []*v1alpha1.Deployment{
			program("beat", v1alpha1.TypeDaemon, running("True", "Running", "It runs on all 3 nodes."), counted("ENABLED", 3, 3),
				on("n1", "Running"), on("n2", "Running"), on("n3", "Running")),
		}, `
NAME   TYPE     STATE     ADDRESS   RUNNING   RESTARTS   SINCE   NOTE
beat   daemon   ENABLED   -         3/3       0          60s     everywhere
`},
		{"a daemon that belongs on some nodes only", true, []*v1alpha1.Deployment{
			program("beat", v1alpha1.TypeDaemon, running("True", "Running", "It runs on all 2 nodes."), counted("ENABLED", 2, 2),
				on("n2", "Running", func(i *v1alpha1.DeploymentInstance) { i.PID = 42 }), on("n1", "Running"),
				func(d *v1alpha1.Deployment) {
					d.Namespace, d.Spec.Selector = "ops", &metav1.LabelSelector{MatchLabels: map[string]string{"disk": "ssd"}}
				}),
		}, `
NAME       TYPE     STATE     ADDRESS   RUNNING   RESTARTS   SINCE   NOTE
ops/beat   daemon   ENABLED   -         2/2       0          60s     on all matching nodes: 2 of 3

ops/beat on each node:
NODE   STATE     PID   RESTARTS   SINCE   LAST EXIT   PAUSE   MESSAGE
n1     Running   -     0          30s     -           -
n2     Running   42    0          30s     -           -
n3     -         -     0          -       -           -       should not run here: labels do not match
`},
		{"a daemon that is missing is shown on each node", false, []*v1alpha1.Deployment{
			program("beat", v1alpha1.TypeDaemon, running("False", "ERR_DAEMON_MISSING", "It does not run on n1 (CrashLoop), n2."), counted("ENABLED", 1, 3),
				on("n3", "Running"), on("n1", "CrashLoop", func(i *v1alpha1.DeploymentInstance) {
					i.Restarts, i.Message = 5, "waiting before the next start"
					i.LastExit = &v1alpha1.InstanceExit{Code: 7, Message: "exit\ncode 7", At: metav1.NewMicroTime(now.Add(-5 * time.Second))}
				})),
		}, `
NAME   TYPE     STATE     ADDRESS   RUNNING   RESTARTS   SINCE   NOTE
beat   daemon   ENABLED   -         1/3       5          60s     ERR_DAEMON_MISSING: It does not run on n1 (CrashLoop), n2

beat on each node:
NODE   STATE       PID   RESTARTS   SINCE   LAST EXIT              PAUSE   MESSAGE
n1     CrashLoop   -     5          30s     exit code 7 (5s ago)   -       waiting before the next start
n2     Missing     -     0          -       -                      -       the node has not started it yet
n3     Running     -     0          30s     -                      -
`},
		{"everything that is wrong is said", false, []*v1alpha1.Deployment{
			program("moving", v1alpha1.TypeDeployment, running("False", "NotRunning", "Node n2 will start it when node n1 has stopped it."), counted("ASSIGNED", 0, 1),
				on("n1", "Stopping", func(i *v1alpha1.DeploymentInstance) { i.Pause = &metav1.Duration{Duration: 250 * time.Millisecond} }),
				func(d *v1alpha1.Deployment) {
					d.Spec.Address, d.Status.Holder = "n2", &v1alpha1.DeploymentHolder{Node: "n1", NodeEpoch: 1, Epoch: 1}
				}),
			program("new", v1alpha1.TypeDeployment),
			program("odd", "cron", running("False", "ERR_INVALID_TYPE", "No node runs a deployment of an invalid type."), func(d *v1alpha1.Deployment) {
				d.Status.Conditions[0].Status, d.Status.Conditions[0].Reason, d.Status.Conditions[0].Message = "False", "ERR_INVALID_TYPE", "type \"cron\" is wrong"
			}),
		}, `
NAME     TYPE         STATE      ADDRESS   RUNNING   RESTARTS   SINCE   NOTE
moving   deployment   ASSIGNED   n2        0/1       0          60s     NotRunning: Node n2 will start it when node n1 has stopped it; still held by n1
new      deployment   -          -         0/0       0          2s      the coordinator has not seen its last change yet
odd      cron         -          -         0/0       0          60s     ERR_INVALID_TYPE: type "cron" is wrong; ERR_INVALID_TYPE: No node runs a deployment of an invalid type

moving on each node:
NODE   STATE      PID   RESTARTS   SINCE   LAST EXIT   PAUSE   MESSAGE
n1     Stopping   -     0          30s     -           250ms

new runs on no node

odd runs on no node
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, table(c.details, c.programs...)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// An address that a daemon should not have is no answer to whether it is everywhere.
func TestADaemonWithAnAddressIsEverywhereAllTheSame(t *testing.T) {
	d := program("beat", v1alpha1.TypeDaemon, running("True", "Running", "It runs on all 3 nodes."), counted("ENABLED", 3, 3), func(d *v1alpha1.Deployment) {
		d.Spec.Address, d.Status.Conditions[0].Status, d.Status.Conditions[0].Reason = "n1", "False", "ERR_DAEMON_ADDRESS_SET"
	})
	s := deployment.StatusOf(threeNodes(), d)
	if s.Everywhere == nil || !*s.Everywhere || s.Healthy {
		t.Errorf("everywhere %v, healthy %v", s.Everywhere, s.Healthy)
	}
	if got := strings.Join(s.Notes, "; "); got != "ERR_DAEMON_ADDRESS_SET: ; everywhere" {
		t.Errorf("notes %q", got)
	}
}
