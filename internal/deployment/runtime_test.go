package deployment_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/deployment"
	"github.com/ebb-dev/ebb/internal/drain"
)

// instance waits for a node's entry to be as it should.
func (w *work) instance(node, what string, holds func(*v1alpha1.DeploymentInstance) bool) *v1alpha1.DeploymentInstance {
	w.t.Helper()
	return w.until("it to be "+what+" on "+node, func(d *v1alpha1.Deployment) bool {
		i := d.Instance(node)
		return i != nil && holds(i)
	}).Instance(node)
}

// released waits until nothing of the program is left anywhere.
func (w *work) released() *v1alpha1.Deployment {
	w.t.Helper()
	return w.until("nothing of it to be left", func(d *v1alpha1.Deployment) bool { return d.Holder().Node == "" && len(d.Status.Nodes) == 0 })
}

func revised(d *v1alpha1.Deployment) { d.Spec.Args = append(d.Spec.Args, "changed") }

func prioritised(p int32) change { return func(d *v1alpha1.Deployment) { d.Spec.Priority = p } }

func chosen(key, value string) change {
	return func(d *v1alpha1.Deployment) { d.Spec.Selector.MatchLabels[key] = value }
}

func TestWithoutALeaseDeploymentsStopAndDaemonsGoOn(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.host("n", endsFast)
	w, everywhere := s.deploy("w"), s.deploy("everywhere", daemon)
	kept := s.deploy("kept", func(d *v1alpha1.Deployment) { d.Spec.WhenDisconnected = v1alpha1.KeepDisconnected })
	pid, goesOn := w.runsOn(m.name), map[*work]int{everywhere: everywhere.runsOn(m.name), kept: kept.runsOn(m.name)}
	epoch, cut := m.epoch(), time.Now()
	m.wire.cut()
	until(t, "its program to end", func() bool { return !lives(pid) })
	if took := time.Since(cut); took > fast().Lost {
		t.Errorf("it ended %s after the node was cut off, and others may run it after %s", took, fast().Lost)
	}
	until(t, "the epoch to end", func() bool { return m.node.Epoch() == nil })
	m.wire.mend()
	for _, w := range []*work{w, everywhere, kept} {
		i := w.instance(m.name, "running in the next epoch", func(i *v1alpha1.DeploymentInstance) bool {
			return i.NodeEpoch > epoch && i.State == v1alpha1.InstanceRunning && i.Restarts == 0
		})
		if before, ok := goesOn[w]; ok && (int(i.PID) != before || starts(w.marks()) != 1) {
			t.Errorf("%s had process %d and has %d, after %d starts", w.key.Name, before, i.PID, starts(w.marks()))
		}
		oneAtATime(t, w.marks())
	}
	// What is to stop without a lease after all gets a deadline, and for that it is started again.
	kept.update(func(d *v1alpha1.Deployment) { d.Spec.WhenDisconnected = v1alpha1.StopDisconnected })
	kept.instance(m.name, "started again", func(i *v1alpha1.DeploymentInstance) bool {
		return i.State == v1alpha1.InstanceRunning && int(i.PID) != goesOn[kept]
	})
	oneAtATime(t, kept.marks())
}

// A node that ends without a lease stops what goes on without one.
func TestANodeThatEndsWithoutALeaseStopsItsDaemons(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.host("n", endsFast)
	pid := s.deploy("everywhere", daemon).runsOn(m.name)
	m.wire.cut()
	until(t, "the epoch to end", func() bool { return m.node.Epoch() == nil })
	if !lives(pid) {
		t.Error("the daemon ended with the lease")
	}
	m.stop()
	if lives(pid) {
		t.Error("the daemon outlived its node")
	}
	m.wire.mend()
	s.mark(m.name)
}

func TestANodeThatLeavesStopsEverythingAndGivesItBack(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.host("n")
	w, everywhere := s.deploy("w"), s.deploy("everywhere", daemon)
	pids := []int{w.runsOn(m.name), everywhere.runsOn(m.name)}
	m.stop()
	for _, pid := range pids {
		if lives(pid) {
			t.Errorf("process %d outlived its node", pid)
		}
	}
	for _, w := range []*work{w, everywhere} {
		if d := w.get(); d.Holder().Node != "" || len(d.Status.Nodes) != 0 {
			t.Errorf("%s is held by %+v, runs on %v", w.key.Name, d.Holder(), d.Status.Nodes)
		}
		if marks := w.marks(); marks[len(marks)-1].what != "end" {
			t.Errorf("%s did not end in order: %+v", w.key.Name, marks[len(marks)-1])
		}
	}
	m.start() // it finds its deployment where it left it
	w.runsOn(m.name)
	oneAtATime(t, w.marks())
}

func TestAChangeOfTypeNeverRunsTwo(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a, b, c := s.host("a"), s.host("b"), s.host("c")
	w := s.deploy("w", addressed(a.name), runs(slow, s.file("w")))
	w.runsOn(a.name)
	w.update(daemon)
	for _, m := range []*host{a, b, c} {
		w.runsOn(m.name)
	}
	until(t, "it to be counted as what stays", func() bool {
		st := a.object().Status
		return st.Held[deployment.Name] == 0 && st.Staying[deployment.Name] == 1
	})
	before := len(w.marks())
	w.update(typed(v1alpha1.TypeDeployment)) // its address is a
	w.until("it to run on one node", func(d *v1alpha1.Deployment) bool {
		i := d.Instance(a.name)
		return len(d.Status.Nodes) == 1 && i != nil && i.State == v1alpha1.InstanceRunning && d.Holder().Node == a.name
	})
	// As a deployment it starts when every instance of the daemon has ended.
	marks := w.marks()[before:]
	begins := slices.IndexFunc(marks, func(m mark) bool { return m.what == "start" })
	if begins < 0 {
		t.Fatal("it was not started as a deployment")
	}
	for i, m := range marks {
		if i > begins && m.run != marks[begins].run {
			t.Errorf("run %s of the daemon lived on %s when the deployment ran", m.run, m.node)
			break
		}
	}
	if starts(marks) != 1 {
		t.Errorf("%d starts", starts(marks))
	}
	for _, m := range []*host{a, b, c} {
		oneAtATime(t, onNode(w.marks(), m.name))
	}
}

func TestAnAddressChangedByHandMovesAProgramAndNeverRunsTwo(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a, b := s.host("a"), s.host("b")
	w := s.deploy("w", addressed(a.name), runs(slow, s.file("w")))
	w.runsOn(a.name)
	for i, to := range []*host{b, a, b} {
		w.update(addressed(to.name))
		w.runsOn(to.name)
		if h := w.get().Holder(); h.Node != to.name || h.Epoch != int64(i+2) {
			t.Errorf("the holder is %+v", h)
		}
	}
	// Back and forth before anybody is done.
	for range 3 {
		w.update(addressed(a.name))
		w.update(addressed(b.name))
	}
	w.until("it to settle", func(d *v1alpha1.Deployment) bool {
		i := d.Instance(b.name)
		return d.Holder().Node == b.name && len(d.Status.Nodes) == 1 && i != nil && i.State == v1alpha1.InstanceRunning
	})
	oneAtATime(t, w.marks())
}

func TestAChangedProgramIsRestarted(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.host("n")
	w := s.deploy("w", runs(slow, s.file("w")))
	pid := w.runsOn(m.name)
	was := w.get().Instance(m.name).Revision
	w.update(prioritised(7)) // nothing that the program would notice
	w.update(revised)
	i := w.instance(m.name, "restarted", func(i *v1alpha1.DeploymentInstance) bool {
		return i.State == v1alpha1.InstanceRunning && int(i.PID) != pid && i.Revision != was
	})
	if i.Restarts != 0 {
		t.Errorf("a restart that was asked for is counted: %d", i.Restarts)
	}
	oneAtATime(t, w.marks())
	if n := starts(w.marks()); n != 2 {
		t.Errorf("%d starts", n)
	}
}

func TestAChangedDaemonIsRestartedNodeByNode(t *testing.T) {
	t.Parallel()
	for _, atOnce := range []int32{1, 2} {
		t.Run(fmt.Sprintf("%d at a time", atOnce), func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			var names []string
			for _, name := range []string{"a", "b", "c"} {
				names = append(names, s.host(name).name)
			}
			w := s.deploy("w", daemon, unavailable(atOnce))
			for _, name := range names {
				w.runsOn(name)
			}
			before := len(w.marks())
			revision := w.get().Instance(names[0]).Revision
			watch, err := s.admin.Watch(context.Background(), &v1alpha1.DeploymentList{}, client.InNamespace(s.home))
			s.must(err)
			defer watch.Stop()
			w.update(revised)
			done, most := false, 0
			for limit := time.After(patience); !done; {
				select {
				case e := <-watch.ResultChan():
					d, ok := e.Object.(*v1alpha1.Deployment)
					if !ok {
						t.Fatalf("the watch ended: %v", e)
					}
					down, old := 0, 0
					for _, name := range names {
						i := d.Instance(name)
						if i == nil || i.State != v1alpha1.InstanceRunning {
							down++
						}
						if i == nil || i.Revision == revision {
							old++
						}
					}
					most = max(most, down)
					done = down == 0 && old == 0
				case <-limit:
					t.Fatalf("the rollout did not end: %+v", w.get().Status.Nodes)
				}
			}
			if most > int(atOnce) || most == 0 {
				t.Errorf("at most %d nodes were without it, by its status", most)
			}
			down, most := map[string]bool{}, 0
			for _, m := range w.marks()[before:] {
				switch m.what {
				case "end":
					down[m.node] = true
				case "start":
					delete(down, m.node)
				}
				most = max(most, len(down))
			}
			if most > int(atOnce) || most == 0 {
				t.Errorf("at most %d nodes were without it, by what the programs did", most)
			}
			for _, name := range names {
				oneAtATime(t, onNode(w.marks(), name))
			}
		})
	}
}

// A daemon that does not run is not made worse: the rollout stops at the first node whose new program fails.
func TestARolloutStopsAtAProgramThatFails(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var names []string
	for _, name := range []string{"a", "b", "c"} {
		names = append(names, s.host(name).name)
	}
	w := s.deploy("w", daemon, restarts(50*time.Millisecond, 100*time.Millisecond, 0))
	for _, name := range names {
		w.runsOn(name)
	}
	good := w.get().Instance(names[0]).Revision
	w.update(runs("exit 1"))
	w.until("the new program to fail", func(d *v1alpha1.Deployment) bool {
		return slices.ContainsFunc(d.Status.Nodes, func(i v1alpha1.DeploymentInstance) bool { return i.Restarts > 5 })
	})
	still := 0
	for _, i := range w.get().Status.Nodes {
		if i.Revision == good && i.State == v1alpha1.InstanceRunning {
			still++
		}
	}
	if still != 2 {
		t.Errorf("%d nodes run the program that works: %+v", still, w.get().Status.Nodes)
	}
	w.update(runs(steady, w.file, "mended"))
	for _, name := range names {
		w.instance(name, "mended", func(i *v1alpha1.DeploymentInstance) bool {
			return i.State == v1alpha1.InstanceRunning && strings.TrimSuffix(i.Revision, keepMark) == deployment.Revision(w.get())
		})
	}
}

func TestAProgramThatFailsIsStartedAgainLaterAndLaterUntilItsLimit(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.host("n")
	const crashes = named + `
read -r up rest </proc/uptime
echo "start $run $EBB_NODE $EBB_DEPLOYMENT $up" >>"$0"
exit 3
`
	file := s.file("w")
	watch, err := s.admin.Watch(context.Background(), &v1alpha1.DeploymentList{}, client.InNamespace(s.home))
	s.must(err)
	defer watch.Stop()
	w := s.deploy("w", runs(crashes, file), restarts(200*time.Millisecond, 800*time.Millisecond, 5))
	i := w.instance(m.name, "given up", func(i *v1alpha1.DeploymentInstance) bool { return i.State == v1alpha1.InstanceFailed })
	if i.Restarts != 6 || i.PID != 0 || i.LastExit == nil || i.LastExit.Code != 3 || i.LastExit.Message != "the main process exited with code 3" {
		t.Errorf("its entry is %+v, its last exit %+v", i, i.LastExit)
	}
	d := w.until("the condition to say so", func(d *v1alpha1.Deployment) bool {
		c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DeploymentRunning)
		return c != nil && c.Reason == v1alpha1.ReasonNotRunning && c.Message == "On node "+m.name+" it is Failed; last exit: the main process exited with code 3."
	})
	var states []v1alpha1.InstanceState
	for e := range watch.ResultChan() {
		got, ok := e.Object.(*v1alpha1.Deployment)
		if !ok {
			t.Fatalf("the watch ended: %v", e)
		}
		if i := got.Instance(m.name); i != nil && !slices.Contains(states, i.State) {
			states = append(states, i.State)
		}
		if got.ResourceVersion == d.ResourceVersion {
			break
		}
	}
	for _, want := range []v1alpha1.InstanceState{v1alpha1.InstanceBackoff, v1alpha1.InstanceCrashLoop, v1alpha1.InstanceFailed} {
		if !slices.Contains(states, want) {
			t.Errorf("it was never %s: %v", want, states)
		}
	}
	marks := w.marks()
	if len(marks) != 6 {
		t.Fatalf("it was started %d times", len(marks))
	}
	// The pauses are at least nine tenths of 0.2, 0.4, 0.8, 0.8 and 0.8 s; the kernel tells the time in hundredths.
	for i, least := range []float64{.18, .36, .72, .72, .72} {
		if pause := marks[i+1].up - marks[i].up; pause < least-.02 {
			t.Errorf("start %d came after %.2f s, want at least %.2f", i+2, pause, least)
		}
	}
	if n := metric(t, m.registry, "ebb_deployment_restarts_total", "deployment"); n != 6 {
		t.Errorf("%v restarts are counted", n)
	}
	// A new program gets a new count.
	w.update(runs(steady, file))
	i = w.instance(m.name, "mended", func(i *v1alpha1.DeploymentInstance) bool { return i.State == v1alpha1.InstanceRunning })
	if i.Restarts != 6 {
		t.Errorf("%d restarts", i.Restarts)
	}
}

func TestAStoppedProgramGetsItsGraceAndThenItsWholeGroupIsKilled(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.host("n")
	const stubborn = named + `
mark() { read -r up rest </proc/uptime; echo "$1 $run $EBB_NODE $EBB_DEPLOYMENT $up $2" >>"$0"; }
trap 'mark term' TERM
setsid /bin/sh -c 'trap "" TERM; while :; do sleep 0.1; done' "$0.child" &
mark start
while :; do mark beat; sleep 0.1; done
`
	w := s.deploy("w", runs(stubborn, s.file("w")), grace(time.Second))
	pid := w.runsOn(m.name)
	child := s.file("w") + ".child"
	until(t, "the program and its child to run", func() bool { return lives(pid) && runsAnywhere(child) })
	w.update(disabled)
	w.instance(m.name, "stopping", func(i *v1alpha1.DeploymentInstance) bool { return i.State == v1alpha1.InstanceStopping })
	w.released()
	if lives(pid) || runsAnywhere(child) {
		t.Errorf("the program lives: %v; its child lives: %v", lives(pid), runsAnywhere(child))
	}
	marks := w.marks()
	term := slices.IndexFunc(marks, func(m mark) bool { return m.what == "term" })
	if term < 0 {
		t.Fatal("it was killed without being asked")
	}
	if lasted := marks[len(marks)-1].up - marks[term].up; lasted < .5 || lasted > 2 {
		t.Errorf("it lived for %.2f s after it was asked, with a grace of 1 s", lasted)
	}
}

func TestAProgramGetsWhereAndWhatItIsAndNothingOfTheNode(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.host("n") // NODE_SECRET is in its environment, and it has connections open
	file := filepath.Join(s.dir, "environment")
	const tells = `tr '\0' '\n' </proc/self/environ >"$0"; ls -l /proc/self/fd >"$0.fds"; pwd >"$0.pwd"; mv "$0" "$0.done"; while :; do sleep 0.1; done`
	s.deploy("w", runs(tells, file), func(d *v1alpha1.Deployment) {
		d.Spec.Env = []v1alpha1.EnvVar{{Name: "GREETING", Value: "hello"}, {Name: "EBB_NODE", Value: "a lie"}}
		d.Spec.WorkingDir = s.dir
	}).runsOn(m.name)
	until(t, "the program to tell", func() bool { _, err := os.Stat(file + ".done"); return err == nil })
	data, err := os.ReadFile(file + ".done")
	s.must(err)
	var names []string
	for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		name, value, _ := strings.Cut(line, "=")
		names = append(names, name)
		want := map[string]string{"EBB_NODE": m.name, "EBB_DEPLOYMENT": "w", "GREETING": "hello"}[name]
		if want != "" && value != want {
			t.Errorf("%s is %q, want %q", name, value, want)
		}
	}
	slices.Sort(names)
	names = slices.DeleteFunc(names, func(n string) bool { return n == "PWD" || n == "OLDPWD" || n == "_" || n == "SHLVL" }) // the shell's own
	if want := []string{"EBB_DEPLOYMENT", "EBB_NODE", "EBB_SHIM_INSTANCE", "GREETING", "PATH"}; !slices.Equal(names, want) {
		t.Errorf("its variables are %v, want %v", names, want)
	}
	if strings.Contains(string(data), secret) {
		t.Error("it knows the node's secret")
	}
	fds, err := os.ReadFile(file + ".fds")
	s.must(err)
	if strings.Contains(string(fds), string(s.api.Dir)) || strings.Contains(string(fds), "socket:") {
		t.Errorf("it has open files of the node:\n%s", fds)
	}
	pwd, err := os.ReadFile(file + ".pwd")
	s.must(err)
	if strings.TrimSpace(string(pwd)) != s.dir {
		t.Errorf("it runs in %s", pwd)
	}
}

func TestAnUntrustedCommandIsNeitherClaimedNorRun(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.host("n", func(m *host) {
		trust, err := deployment.ParseTrust(`^/bin/sh$`)
		s.must(err)
		m.programs.Trust = trust
	})
	foreign := func(d *v1alpha1.Deployment) {
		d.Spec.Command = "/usr/bin/env"
		d.Spec.Args = append([]string{"sh"}, d.Spec.Args...)
	}
	unbound, bound, everywhere := s.deploy("unbound", foreign), s.deploy("bound", foreign, addressed(m.name)), s.deploy("everywhere", daemon, foreign)
	s.deploy("good").runsOn(m.name)
	s.deploy("good-everywhere", daemon).runsOn(m.name)
	d := unbound.until("it to say why", func(d *v1alpha1.Deployment) bool {
		return reason(d, v1alpha1.DeploymentRunning) == v1alpha1.ReasonNoEligibleNode
	})
	c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DeploymentRunning)
	if !strings.Contains(c.Message, m.name+": command not trusted") || !strings.Contains(c.Message, "/usr/bin/env") {
		t.Errorf("the condition says %q", c.Message)
	}
	bound.until("it to say why", func(d *v1alpha1.Deployment) bool {
		c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DeploymentRunning)
		return c != nil && strings.Contains(c.Message, "command not trusted")
	})
	everywhere.until("it to say why", func(d *v1alpha1.Deployment) bool {
		c := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DeploymentRunning)
		return c != nil && c.Message == "No node has matching labels and trusts the command."
	})
	for _, w := range []*work{unbound, bound, everywhere} {
		if d := w.get(); len(w.marks()) != 0 || len(d.Status.Nodes) != 0 || d.Holder().Node != "" {
			t.Errorf("%s was run: %+v", w.key.Name, d.Status)
		}
	}
	if got := unbound.get().Spec.Address; got != "" {
		t.Errorf("it was claimed by %s", got)
	}
	if m.log.said("program not run: this node does not trust it") == 0 {
		t.Error("the node does not say so")
	}
	// What runs and is changed into something untrusted is stopped.
	w := s.deploy("w")
	pid := w.runsOn(m.name)
	w.update(foreign)
	w.released()
	if lives(pid) {
		t.Error("the program runs on")
	}
}

func TestADeletedProgramIsGoneBeforeItsObjectIs(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a, b := s.host("a"), s.host("b")
	w, everywhere := s.deploy("w", addressed(a.name), runs(slow, s.file("w"))), s.deploy("everywhere", daemon, runs(slow, s.file("everywhere")))
	pids := []int{w.runsOn(a.name), everywhere.runsOn(a.name), everywhere.runsOn(b.name)}
	dirs := []string{filepath.Join(a.programs.Dir, s.home, "w"), filepath.Join(a.programs.Dir, s.home, "everywhere"), filepath.Join(b.programs.Dir, s.home, "everywhere")}
	for _, dir := range dirs {
		if _, err := os.Stat(dir); err != nil {
			t.Error(err)
		}
	}
	w.delete()
	everywhere.delete()
	for _, w := range []*work{w, everywhere} {
		until(t, "the object to be gone", func() bool { _, err := w.read(); return apierrors.IsNotFound(err) })
	}
	for _, pid := range pids {
		if lives(pid) {
			t.Errorf("process %d outlived its object", pid)
		}
	}
	for _, dir := range dirs {
		until(t, dir+" to be removed", func() bool { _, err := os.Stat(dir); return os.IsNotExist(err) })
	}
	for _, m := range []*host{a, b} {
		until(t, "nothing to be counted", func() bool {
			st := m.object().Status
			return st.Held[deployment.Name] == 0 && st.Staying[deployment.Name] == 0
		})
	}
}

func TestARecreatedObjectNeverOverlapsTheOneBefore(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a, b := s.host("a"), s.host("b")
	again := func() *work { return s.deploy("w", runs(slow, s.file("w"))) }
	w := again()
	w.stands(v1alpha1.StateAssigned)
	for range 2 {
		uid := w.get().UID
		w.until("it to run", func(d *v1alpha1.Deployment) bool { return d.Status.Running == 1 })
		w.delete()
		until(t, "the object to be gone", func() bool { _, err := w.read(); return apierrors.IsNotFound(err) })
		if w = again(); w.get().UID == uid {
			t.Fatal("it is the same object")
		}
	}
	w.until("it to run", func(d *v1alpha1.Deployment) bool { return d.Status.Running == 1 })
	oneAtATime(t, w.marks())
	// On the same node also when somebody took the finalizer away while it ran.
	node := w.get().Spec.Address
	pid := w.runsOn(node)
	w.delete()
	w.update(func(d *v1alpha1.Deployment) { d.Finalizers = nil })
	w = s.deploy("w", runs(slow, s.file("w")), addressed(node))
	if next := w.runsOn(node); next == pid {
		t.Error("the new object has the old program")
	}
	oneAtATime(t, w.marks())
	for _, m := range []*host{a, b} {
		until(t, "the counts", func() bool {
			want := int64(0)
			if m.name == node {
				want = 1
			}
			return m.object().Status.Held[deployment.Name] == want
		})
	}
}

func TestADrainStopsTheLeastImportantFirstAndMeasuresThePause(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.host("a")
	together := s.file("together")
	var list []*work
	for i, p := range []int32{50, -1, 0, 100} {
		list = append(list, s.deploy(fmt.Sprintf("w%d", i), prioritised(p), runs(slow, together)))
	}
	everywhere := s.deploy("everywhere", daemon)
	for _, w := range list {
		w.runsOn(a.name)
	}
	pid := everywhere.runsOn(a.name)
	b := s.host("b")
	everywhere.runsOn(b.name)
	a.drain()
	for _, w := range list {
		i := w.instance(b.name, "moved", func(i *v1alpha1.DeploymentInstance) bool { return i.State == v1alpha1.InstanceRunning })
		d := w.until("nothing to be left", func(d *v1alpha1.Deployment) bool { return d.Instance(a.name) == nil })
		if d.Spec.Address != b.name || d.Holder().Node != b.name {
			t.Errorf("%s is at %q, held by %+v", w.key.Name, d.Spec.Address, d.Holder())
		}
		if stop := d.Status.LastStop; stop == nil || stop.Node != a.name || stop.Epoch+1 != d.Holder().Epoch {
			t.Errorf("%s: the last stop is %+v", w.key.Name, stop)
		}
		// A slow program takes a second to end; nobody runs it from when it was asked until it runs again.
		if i.Pause == nil || i.Pause.Duration < time.Second || i.Pause.Duration > 30*time.Second {
			t.Errorf("%s: the pause is %v", w.key.Name, i.Pause)
		}
		if n := s.told(d.UID, "Moved"); n != 1 {
			t.Errorf("%s: %d events", w.key.Name, n)
		}
	}
	var ends []string
	for _, m := range readMarks(t, together) {
		if m.what == "end" {
			ends = append(ends, m.deployment)
		}
	}
	if !slices.Equal(ends, []string{"w1", "w2", "w0", "w3"}) {
		t.Errorf("they ended in the order %v", ends)
	}
	until(t, "what is left to be counted", func() bool {
		st := a.object().Status
		return st.Held[deployment.Name] == 0 && st.Staying[deployment.Name] == 1
	})
	if got := everywhere.runsOn(a.name); got != pid {
		t.Errorf("the daemon of the draining node has the pid %d, was %d", got, pid)
	}
	left, err := deployment.Tenant{Reader: s.admin}.Remaining(context.Background(), a.name)
	if err != nil || left.Count != 0 || len(left.Blockers) != 0 {
		t.Errorf("left are %+v, %v", left, err)
	}
	late := s.deploy("late") // nothing new comes to a draining node
	late.runsOn(b.name)
	late.update(addressed(a.name))
	late.until("it to come back", func(d *v1alpha1.Deployment) bool { return d.Spec.Address == b.name })
	if starts(onNode(late.marks(), a.name)) != 0 {
		t.Error("a draining node started it")
	}
	a.update(func(n *v1alpha1.Node) { n.Spec.Desired.Liveness = v1alpha1.Stopping })
	a.awaitEnd()
	if lives(pid) {
		t.Error("the daemon outlived its node")
	}
}

func TestWhatNobodyMayClaimBlocksADrainByName(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.host("a", labelled("disk", "fast"))
	quiet := s.host("quiet", claimsNothing, labelled("disk", "fast"))
	slowDisk := s.host("slow", labelled("disk", "slow"))
	distrusting := s.host("distrusting", labelled("disk", "fast"), func(m *host) {
		trust, err := deployment.ParseTrust("^/opt/")
		s.must(err)
		m.programs.Trust = trust
	})
	cordoned := s.host("cordoned", labelled("disk", "fast"))
	cordoned.update(func(n *v1alpha1.Node) { n.Spec.Cordoned = true })
	stuck, free, off := s.deploy("stuck", chosen("disk", "fast"), addressed(a.name)), s.deploy("free", addressed(a.name)), s.deploy("off", addressed(a.name), disabled)
	pid := stuck.runsOn(a.name)
	free.runsOn(a.name)
	off.stands(v1alpha1.StateDisabled)
	a.drain()
	free.runsOn(slowDisk.name)
	var left drain.Remaining
	until(t, "one to be left", func() bool {
		var err error
		left, err = deployment.Tenant{Reader: s.admin}.Remaining(context.Background(), a.name)
		s.must(err)
		return left.Count == 1
	})
	b := left.Blockers[0]
	if b.Kind != "Deployment" || b.Name != s.home+"/stuck" || b.Reason != deployment.BlockedNowhere {
		t.Errorf("the blocker is %+v", b)
	}
	for _, want := range []string{
		"disk=fast", quiet.name + ": claim policy none", slowDisk.name + ": labels do not match",
		distrusting.name + ": command not trusted", cordoned.name + ": cordoned",
	} {
		if !strings.Contains(b.Remedy, want) {
			t.Errorf("the remedy does not say %q: %s", want, b.Remedy)
		}
	}
	if !lives(pid) || a.object().Status.Held[deployment.Name] != 1 {
		t.Errorf("the program was stopped though nobody may run it; held are %v", a.object().Status.Held)
	}
	cordoned.update(func(n *v1alpha1.Node) { n.Spec.Cordoned = false })
	stuck.runsOn(cordoned.name)
	until(t, "nothing to be left", func() bool { return a.object().Status.Held[deployment.Name] == 0 })
	oneAtATime(t, stuck.marks())
}

// A disabled program that still stops counts in a drain until it has, and not longer.
func TestADisabledProgramDoesNotKeepADrain(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.host("a")
	w := s.deploy("w", addressed(a.name), runs(slow, s.file("w")))
	w.runsOn(a.name)
	a.drain()
	w.update(disabled)
	w.stands(v1alpha1.StateDisabled)
	w.released()
	until(t, "nothing to be held", func() bool { return a.object().Status.Held[deployment.Name] == 0 })
	left, err := deployment.Tenant{Reader: s.admin}.Remaining(context.Background(), a.name)
	if err != nil || left.Count != 0 {
		t.Errorf("left are %+v, %v", left, err)
	}
	if d := w.get(); d.Spec.Address != a.name {
		t.Errorf("its address is %q", d.Spec.Address)
	}
}

// What a program writes goes to files below the node's directory, which is closed to others.
func TestTheDirectoriesOfProgramsAreClosedToOthers(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.host("n")
	s.deploy("w", runs(`echo spoke; while :; do sleep 0.1; done`)).runsOn(m.name)
	dir := filepath.Join(m.programs.Dir, s.home, "w")
	until(t, "the output to be there", func() bool {
		data, err := os.ReadFile(filepath.Join(dir, "out.log"))
		return err == nil && string(data) == "spoke\n"
	})
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != fs.FileMode(0o700) {
		t.Errorf("%s has the mode %v, %v", dir, info.Mode(), err)
	}
}

// A node is labelled and unlabelled while it runs: its daemons follow, its deployments stay.
func TestDaemonsFollowTheLabelsOfTheirNode(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.host("n")
	everywhere, w := s.deploy("everywhere", daemon, chosen("gpu", "yes")), s.deploy("w", chosen("gpu", "yes"))
	w.stands(v1alpha1.StateUnassigned)
	m.update(func(n *v1alpha1.Node) { n.Labels["gpu"] = "yes" })
	everywhere.runsOn(m.name)
	pid := w.runsOn(m.name)
	m.update(func(n *v1alpha1.Node) { delete(n.Labels, "gpu") })
	everywhere.released()
	if got := w.runsOn(m.name); got != pid {
		t.Errorf("the deployment has the pid %d, was %d", got, pid)
	}
	m.update(func(n *v1alpha1.Node) { n.Labels["gpu"] = "yes" })
	everywhere.runsOn(m.name)
	if n := starts(everywhere.marks()); n != 2 {
		t.Errorf("the daemon was started %d times", n)
	}
}
