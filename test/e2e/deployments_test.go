package e2e

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/shim"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// diary is a program that writes down when it starts, that it lives, and that it ends. It holds a lock for as long as
// anything of it lives, also what has left its session, its parent and its environment behind: one that finds the lock taken is the
// second at once, and says so.
const diary = `
RUN="$$-$EPOCHREALTIME"
exec 9>>"$LOCK"
flock -n 9 || echo "$EPOCHREALTIME overlap $EBB_DEPLOYMENT $EBB_NODE $RUN" >> "$DIARY"
mark() { echo "$EPOCHREALTIME $1 $EBB_DEPLOYMENT $EBB_NODE $RUN" >> "$DIARY"; }
trap 'mark end; exit 0' TERM
mark start
(env -i /usr/bin/setsid /bin/sleep 100000 >&- 2>&- &)
while true; do
  mark beat
  sleep 0.3 &
  wait $!
done
`

const (
	manyPrograms = 30
	manyDaemons  = 2
)

// fleetOfPrograms is a cluster with programs that keep diaries.
type fleetOfPrograms struct {
	*cluster
	dir string
}

// One cluster runs thirty deployments and two daemons through everything that befalls machines. In the end the diaries
// say whether anything ever ran twice at once.
func TestProgramsNeverRunTwiceAtOnce(t *testing.T) {
	beside(t, heavy)
	f := &fleetOfPrograms{cluster: startNodes(t, newCluster(t, testenv.Ebb(t)), 3), dir: t.TempDir()}
	for _, step := range []struct {
		name string
		run  func(*testing.T, *fleetOfPrograms)
	}{
		{"claimed evenly, and on every node", claimedEvenly},
		{"a killed node's programs run elsewhere after its lease", killedNode},
		{"a node killed together with its shims leaves nothing running", killedWithItsShims},
		{"a node killed and restarted at once finds its programs running", restartedNode},
		{"a frozen node's programs end with its lease", frozenNode},
		{"a drain moves them without the wait", drainedNode},
		{"an address changed by hand", changedByHand},
		{"a type changed there and back", changedType},
		{"an API server that is away stops deployments before the leases end, and no daemon", awayServer},
		{"disabled, and deleted", disabledAndDeleted},
	} {
		if !t.Run(step.name, func(t *testing.T) {
			f.t = t
			step.run(t, f)
			f.neverTwice()
		}) {
			break
		}
	}
	f.t = t
}

func programName(i int) string { return fmt.Sprintf("p%02d", i) }

// program makes one that keeps a diary; the lock of a daemon is each node's own.
func (f *fleetOfPrograms) program(name string, kind v1alpha1.DeploymentType) *v1alpha1.Deployment {
	script, lock := diary, name
	if kind == v1alpha1.TypeDaemon {
		script = `LOCK="$LOCK-$EBB_NODE"` + "\n" + diary
	}
	return &v1alpha1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: v1alpha1.DeploymentSpec{
			Type: kind, User: v1alpha1.NodeUser, Command: "/bin/bash", Args: []string{"-c", script},
			Env: []v1alpha1.EnvVar{{Name: "LOCK", Value: filepath.Join(f.dir, lock+".lock")}, {Name: "DIARY", Value: filepath.Join(f.dir, "diary")}},
		},
	}
}

func (f *fleetOfPrograms) deployments() []v1alpha1.Deployment {
	f.t.Helper()
	var list v1alpha1.DeploymentList
	until(f.t, "the list of deployments", func() bool { return f.client.List(context.Background(), &list) == nil })
	return list.Items
}

func (f *fleetOfPrograms) deployment(name string) *v1alpha1.Deployment {
	f.t.Helper()
	d := &v1alpha1.Deployment{}
	if err := f.client.Get(context.Background(), types.NamespacedName{Namespace: "default", Name: name}, d); err != nil {
		f.t.Fatal(err)
	}
	return d
}

// change changes a deployment as a person would.
func (f *fleetOfPrograms) change(name string, change func(*v1alpha1.Deployment)) {
	f.t.Helper()
	until(f.t, name+" to be changed", func() bool {
		d := f.deployment(name)
		change(d)
		return f.client.Update(context.Background(), d) == nil
	})
}

// allRun waits until every deployment runs on one of the given nodes, and every daemon on all of them.
func (f *fleetOfPrograms) allRun(nodes ...string) {
	f.t.Helper()
	began := time.Now()
	deadline := began.Add(patience)
	for {
		waiting := f.waiting(nodes)
		if waiting == "" {
			return
		}
		if time.Now().After(deadline) {
			f.t.Fatalf("not all run on %v: %s\n%s", nodes, waiting, f.kubectl("get", "deployments.ebb.dev"))
		}
		pollAgain(began)
	}
}

func (f *fleetOfPrograms) waiting(nodes []string) string {
	list, epochs := f.deployments(), map[string]int64{}
	for _, name := range nodes {
		epochs[name] = f.record(name).Epoch
	}
	for _, d := range list {
		on := []string{}
		for _, i := range d.Status.Nodes {
			if i.State == v1alpha1.InstanceRunning && slices.Contains(nodes, i.Node) && epochs[i.Node] == i.NodeEpoch {
				on = append(on, i.Node)
			}
		}
		want := 1
		if d.Spec.Type == v1alpha1.TypeDaemon {
			want = len(nodes)
		} else if h := d.Holder(); !slices.Contains(on, h.Node) {
			return d.Name + " is not run by its holder " + h.Node
		}
		if len(on) != want || len(d.Status.Nodes) != want {
			return fmt.Sprintf("%s runs on %v", d.Name, on)
		}
	}
	return ""
}

// entry is one line of a diary.
type entry struct {
	at                    float64
	mark, name, node, run string
}

func (f *fleetOfPrograms) diary() []entry {
	f.t.Helper()
	file, err := os.Open(filepath.Join(f.dir, "diary"))
	if err != nil {
		f.t.Fatal(err)
	}
	defer file.Close()
	var all []entry
	for scanner := bufio.NewScanner(file); scanner.Scan(); {
		fields := strings.Fields(scanner.Text())
		if len(fields) != 5 {
			continue // a line that is just being written
		}
		at, err := strconv.ParseFloat(fields[0], 64)
		if err != nil {
			f.t.Fatalf("diary: %q", scanner.Text())
		}
		all = append(all, entry{at, fields[1], fields[2], fields[3], fields[4]})
	}
	return all
}

// neverTwice reads the diaries: no run of a deployment begins before the one before it wrote its last line, and none found
// the lock taken.
func (f *fleetOfPrograms) neverTwice() {
	f.t.Helper()
	type life struct {
		entry
		last float64
	}
	runs := map[string][]*life{}
	for _, e := range f.diary() {
		if e.mark == "overlap" {
			f.t.Errorf("two at once: %+v", e)
		}
		who := e.name
		if strings.HasPrefix(who, "daemon") {
			who += "@" + e.node
		}
		list := runs[who]
		if n := len(list); n == 0 || list[n-1].run != e.run || list[n-1].node != e.node {
			list = append(list, &life{entry: e})
		}
		list[len(list)-1].last = e.at
		runs[who] = list
	}
	for who, list := range runs {
		seen := map[string]bool{}
		for i, run := range list {
			id := run.node + "/" + run.run
			if seen[id] || run.mark != "start" && run.mark != "overlap" {
				f.t.Errorf("%s: the run %s goes on after another began", who, id)
			}
			seen[id] = true
			if i > 0 && run.at < list[i-1].last {
				f.t.Errorf("%s: %s began %.3f s before %s ended", who, id, list[i-1].last-run.at, list[i-1].node)
			}
		}
	}
}

// lastBeat is when a deployment last gave a sign of life on a node.
func (f *fleetOfPrograms) lastBeat(node string) time.Time {
	last := 0.0
	for _, e := range f.diary() {
		if e.node == node && !strings.HasPrefix(e.name, "daemon") && e.name != "default/"+keptProgram && e.name != keptProgram {
			last = max(last, e.at)
		}
	}
	return time.UnixMicro(int64(last * 1e6))
}

// keptProgram is a deployment that goes on without a lease, from some step on.
const keptProgram = "p02"

// lastRun is the last run of a deployment.
func (f *fleetOfPrograms) lastRun(name string) string {
	run := ""
	for _, e := range f.diary() {
		if strings.HasSuffix(e.name, name) {
			run = e.run
		}
	}
	return run
}

// awaitFree waits until the shim of a deployment on a node has no deadline any more.
func (f *fleetOfPrograms) awaitFree(name, node string) (run string) {
	f.t.Helper()
	dir := filepath.Join(f.cluster.dir.Node(node).Programs(), "default", name)
	until(f.t, name+" to have no deadline", func() bool {
		h, err := shim.Attach(context.Background(), dir)
		if err != nil {
			return false
		}
		defer h.Close()
		st, err := h.Status(context.Background())
		return err == nil && st.Deadline.Never()
	})
	return f.lastRun(name)
}

// daemons are the runs of daemons that are alive on a node, by name, as their diaries say.
func (f *fleetOfPrograms) daemons(node string) map[string]string {
	runs := map[string]string{}
	for _, e := range f.diary() {
		if e.node == node && strings.HasPrefix(e.name, "daemon") {
			runs[e.name] = e.run
		}
	}
	return runs
}

// sameDaemons fails if daemons on a node ended or were started again since an earlier look at them.
func (f *fleetOfPrograms) sameDaemons(node string, before map[string]string) {
	f.t.Helper()
	if after := f.daemons(node); !maps.Equal(before, after) {
		f.t.Errorf("the daemons of %s were %v, and are %v", node, before, after)
	}
	for _, e := range f.diary() {
		if e.mark == "end" && before[e.name] == e.run && e.node == node {
			f.t.Errorf("%s on %s was stopped", e.name, node)
		}
	}
}

func claimedEvenly(t *testing.T, f *fleetOfPrograms) {
	began := time.Now()
	for i := range manyDaemons {
		f.create(f.program(fmt.Sprintf("daemon%d", i), v1alpha1.TypeDaemon))
	}
	for i := range manyPrograms {
		f.create(f.program(programName(i), v1alpha1.TypeDeployment))
	}
	f.allRun(trio...)
	t.Logf("%d deployments and %d daemons run %s after the first was made", manyPrograms, manyDaemons, time.Since(began).Round(time.Millisecond))
	shares := f.shares()
	for _, name := range trio {
		if shares[name] != manyPrograms/3 {
			t.Errorf("shares: %v", shares)
		}
	}
}

func (f *fleetOfPrograms) create(d *v1alpha1.Deployment) {
	f.t.Helper()
	if err := f.client.Create(context.Background(), d); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fleetOfPrograms) shares() map[string]int {
	shares := map[string]int{}
	for _, d := range f.deployments() {
		if d.Spec.Type == v1alpha1.TypeDeployment {
			shares[d.Spec.Address]++
		}
	}
	return shares
}

// follower is a node that does not lead.
func (f *fleetOfPrograms) follower() string { return others(trio, f.awaitLeader(""))[0] }

func killedNode(t *testing.T, f *fleetOfPrograms) {
	victim := f.follower()
	epoch := f.record(victim).Epoch
	f.signal(victim, syscall.SIGKILL)
	died := time.Now()
	f.allRun(others(trio, victim)...)
	t.Logf("the programs of a killed node run elsewhere after %s; its last beat came %s after the kill",
		time.Since(died).Round(time.Millisecond), f.lastBeat(victim).Sub(died).Round(time.Millisecond))
	if r := f.record(victim); r.Fenced != epoch {
		t.Errorf("the lease of the killed node: %+v", r)
	}
	f.startNode(victim)
	f.awaitReady(victim, epoch+1)
	f.allRun(trio...)
	if shares := f.shares(); shares[victim] != 0 {
		t.Errorf("something moved back by itself: %v", shares)
	}
}

// Only the kernel is left to end the programs of a node when everything of Ebb is killed there.
func killedWithItsShims(t *testing.T, f *fleetOfPrograms) {
	victim := others(trio, f.awaitLeader(""))[0]
	if f.shares()[victim] == 0 { // the one that was killed before has nothing but its daemons
		victim = others(trio, f.awaitLeader(""))[1]
	}
	epoch := f.record(victim).Epoch
	states, err := filepath.Glob(filepath.Join(f.cluster.dir.Node(victim).Programs(), "*", "*", "state.json"))
	if err != nil || len(states) == 0 {
		t.Fatalf("the shims of %s: %v, %v", victim, states, err)
	}
	f.signal(victim, syscall.SIGKILL)
	for _, state := range states {
		st, err := shim.ReadState(filepath.Dir(state))
		if err != nil {
			t.Fatal(err)
		}
		if st.Phase == shim.Running {
			_ = syscall.Kill(st.Shim.PID, syscall.SIGKILL) // it may have ended
		}
	}
	died := time.Now()
	f.allRun(others(trio, victim)...)
	if last := f.lastBeat(victim).Sub(died); last > f.timing.Renew {
		t.Errorf("programs of %s gave a sign of life %s after their shims were killed", victim, last)
	}
	f.startNode(victim)
	f.awaitReady(victim, epoch+1)
	f.allRun(trio...)
}

func restartedNode(t *testing.T, f *fleetOfPrograms) {
	victim := others(others(trio, f.awaitLeader("")), "")[0]
	if f.shares()[victim] == 0 { // the one that was killed before has nothing but its daemons
		victim = others(others(trio, f.awaitLeader("")), victim)[0]
	}
	// A machine may be too busy to start a node before the lease of the one before ends. Then its programs end too, as they must.
	for range 5 {
		before, epoch := f.pids(victim), f.record(victim).Epoch
		renewal := f.record(victim).Version
		until(t, "a renewal", func() bool { return f.record(victim).Version != renewal })
		f.signal(victim, syscall.SIGKILL)
		killed := time.Now()
		f.startNode(victim)
		f.awaitReady(victim, epoch+1)
		took := time.Since(killed)
		f.allRun(trio...)
		after := f.pids(victim)
		switch late := took > f.timing.Fence-2*f.timing.Renew; { // a renewal may be as old when it is seen
		case slices.Equal(before, after) && len(before) > 0:
			return
		case !late:
			t.Errorf("programs of %s before %v, and %s later %v", victim, before, took, after)
			return
		}
		t.Logf("%s came back after %s, when its lease may have ended", victim, took)
	}
	t.Errorf("%s never came back before its lease ended", victim)
}

// pids are the processes that run on a node, with what they run.
func (f *fleetOfPrograms) pids(node string) []string {
	var list []string
	for _, d := range f.deployments() {
		if i := d.Instance(node); i != nil {
			list = append(list, fmt.Sprintf("%s:%d:%d", d.Name, i.PID, i.Restarts))
		}
	}
	slices.Sort(list)
	return list
}

func frozenNode(t *testing.T, f *fleetOfPrograms) {
	victim := f.awaitLeader("") // it has programs, and freezing the coordinator is the harder case
	epoch := f.record(victim).Epoch
	f.signal(victim, syscall.SIGSTOP)
	froze := time.Now()
	f.allRun(others(trio, victim)...)
	last := f.lastBeat(victim).Sub(froze)
	t.Logf("the programs of a frozen coordinator run elsewhere after %s; the last beat came after %s", time.Since(froze).Round(time.Millisecond), last.Round(time.Millisecond))
	if last > f.timing.Lost {
		t.Errorf("a program of the frozen node was alive %s after the freeze", last)
	}
	f.signal(victim, syscall.SIGCONT)
	f.awaitReady(victim, epoch+1)
	f.allRun(trio...)
}

func drainedNode(t *testing.T, f *fleetOfPrograms) {
	var target string
	for name, share := range f.shares() {
		if share > 0 && name != f.awaitLeader("") {
			target = name
		}
	}
	epoch := f.record(target).Epoch
	began := time.Now()
	out := f.must("drain", target, "--wait")
	took := time.Since(began)
	f.allRun(others(trio, target)...)
	t.Logf("drained in %s, all run after %s:\n%s", took.Round(time.Millisecond), time.Since(began).Round(time.Millisecond), out)
	longest, moved := time.Duration(0), 0
	for _, d := range f.deployments() {
		for _, i := range d.Status.Nodes {
			if i.Pause != nil {
				longest, moved = max(longest, i.Pause.Duration), moved+1
			}
		}
	}
	if moved == 0 {
		t.Error("no pause was measured")
	}
	t.Logf("%d moved, the longest pause was %s", moved, longest)
	f.startNode(target)
	f.awaitReady(target, epoch+1)
	f.allRun(trio...)
}

func changedByHand(t *testing.T, f *fleetOfPrograms) {
	for i := range 5 {
		name := programName(i)
		from := f.deployment(name).Spec.Address
		to := others(trio, from)[i%2]
		f.change(name, func(d *v1alpha1.Deployment) { d.Spec.Address = to })
		until(t, name+" to run on "+to, func() bool {
			d := f.deployment(name)
			return d.Holder().Node == to && d.Instance(to) != nil && d.Instance(to).State == v1alpha1.InstanceRunning
		})
	}
	f.allRun(trio...)
}

func changedType(t *testing.T, f *fleetOfPrograms) {
	const name = "p07"
	// As a daemon its instances have one lock between them: they are meant to overlap, so it gets none.
	f.change(name, func(d *v1alpha1.Deployment) {
		d.Spec.Type = v1alpha1.TypeDaemon
		d.Spec.Command, d.Spec.Args = "sleep", []string{"10000"}
	})
	until(t, name+" to run everywhere", func() bool { d := f.deployment(name); return d.Status.Running == 3 && d.Status.Wanted == 3 })
	f.change(name, func(d *v1alpha1.Deployment) {
		like := f.program(name, v1alpha1.TypeDeployment)
		d.Spec.Type, d.Spec.Command, d.Spec.Args, d.Spec.Address = v1alpha1.TypeDeployment, like.Spec.Command, like.Spec.Args, ""
	})
	f.allRun(trio...)
}

func awayServer(t *testing.T, f *fleetOfPrograms) {
	epochs, daemons := map[string]int64{}, map[string]map[string]string{}
	for _, name := range trio {
		epochs[name], daemons[name] = f.record(name).Epoch, f.daemons(name)
	}
	f.change(keptProgram, func(d *v1alpha1.Deployment) { d.Spec.WhenDisconnected = v1alpha1.KeepDisconnected })
	kept := f.deployment(keptProgram).Spec.Address
	run := f.awaitFree(keptProgram, kept)
	f.signal("apiserver", syscall.SIGKILL)
	killed := time.Now()
	time.Sleep(f.outage()) // the outage itself
	back := time.Now()
	for _, name := range trio {
		f.sameDaemons(name, daemons[name])
		last := f.lastBeat(name).Sub(killed)
		t.Logf("last beat on %s %s into the outage", name, last.Round(time.Millisecond))
		if last > f.timing.Lost {
			t.Errorf("programs of %s ran on", name)
		}
	}
	f.startServer()
	for _, name := range trio {
		f.awaitReady(name, epochs[name]+1)
	}
	f.allRun(trio...)
	t.Logf("all run %s after the server was started again", time.Since(back).Round(time.Millisecond))
	for _, name := range trio {
		f.sameDaemons(name, daemons[name])
	}
	if now := f.lastRun(keptProgram); now != run {
		t.Errorf("%s, which was to be kept, was run %s before the outage and is %s after it", keptProgram, run, now)
	}
}

func disabledAndDeleted(t *testing.T, f *fleetOfPrograms) {
	off := false
	address := f.deployment("p01").Spec.Address
	f.change("p01", func(d *v1alpha1.Deployment) { d.Spec.Enabled = &off })
	until(t, "p01 to be stopped", func() bool {
		d := f.deployment("p01")
		return d.Status.State == v1alpha1.StateDisabled && len(d.Status.Nodes) == 0 && d.Holder().Node == ""
	})
	if got := f.deployment("p01").Spec.Address; got != address {
		t.Errorf("disabling moved the address from %s to %q", address, got)
	}
	if err := f.client.DeleteAllOf(context.Background(), &v1alpha1.Deployment{}, client.InNamespace("default")); err != nil {
		t.Fatal(err)
	}
	until(t, "all to be gone", func() bool { return len(f.deployments()) == 0 })
	for _, name := range trio {
		until(t, "the counts of "+name+" to be zero", func() bool {
			s := f.node(name).Status
			return s.Held["deployments"] == 0 && s.Staying["deployments"] == 0
		})
		// A node removes a program's directory when it sees that the object is gone, which is a moment after it is.
		until(t, "the directories of deleted programs on "+name+" to be removed", func() bool {
			left, err := filepath.Glob(filepath.Join(string(f.cluster.dir), "nodes", name, "programs", "default", "*"))
			return err == nil && len(left) == 0
		})
	}
}
