package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed/sqlhistory"
	"github.com/ebb-dev/ebb/internal/etcdcluster/member"
	"github.com/ebb-dev/ebb/internal/shim"
	"github.com/ebb-dev/ebb/internal/testenv"
	"github.com/ebb-dev/ebb/internal/testlength"
)

const (
	// smallNode is the node whose directory is on a small disk, which can be filled.
	smallNode = "n4"
	// smallNodeDisk is its size: the log and the database of an etcd member, a replica, a snapshot, and little more.
	smallNodeDisk = 512 << 20
	chaosVolume   = "chaos"
	chaosEtcd     = "chaos"
	chaosSize     = 3 // of the etcd cluster, except for a while
	chaosPrograms = 6
)

// chaosWork is what the cluster carries besides changefeeds, with a referee for each kind.
type chaosWork struct {
	c        *chaos
	etcd     *etcdUnderTest
	keys     *etcdLoad
	programs *fleetOfPrograms
	volume   *testVolume
	blocks   *volumeLoad
	fills    bool // the small node has a disk of its own

	referee *historyReferee
	writers sync.WaitGroup
	enough  context.CancelFunc // no further history is begun

	mu    sync.Mutex
	ended map[outcome]int
	cut   int // histories that ended with the source
}

// startAll starts four nodes: three for three members and three replicas, and one to move them to.
func (c *chaos) startAll() {
	c.t.Helper()
	c.nodes = []string{"n1", "n2", "n3", smallNode}
	startNodes(c.t, c.cluster, 3)
	c.mountSmall()
	c.startNode(smallNode)
	c.awaitReady(smallNode, 1)
}

// mountSmall puts the directory of a node on a disk of its own, if this user may mount.
func (c *chaos) mountSmall() {
	dir := string(c.dir.Node(smallNode))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		c.t.Fatal(err)
	}
	if err := syscall.Mount("ebb-test", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", smallNodeDisk)); err != nil {
		c.test.Logf("no disk is filled: mount: %v", err)
		return
	}
	c.test.Cleanup(func() {
		testenv.EndPrograms(c.dir, "*") // nobody finds their shims afterwards
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			c.test.Errorf("unmount %s: %v", dir, err)
		}
	})
}

// beginWork creates an etcd cluster, programs, a volume and random histories of SQL, and begins to use them.
func (c *chaos) beginWork(seed uint64) *chaosWork {
	c.t.Helper()
	c.volumeSettings(`{"drain":{"clientGrace":"3s"}}`)
	w := &chaosWork{c: c, ended: map[outcome]int{}, programs: &fleetOfPrograms{cluster: c.cluster, dir: c.test.TempDir()}}
	w.fills = deviceOf(c.t, string(c.dir.Node(smallNode))) != deviceOf(c.t, string(c.dir))
	w.etcd = c.createEtcd(chaosEtcd, chaosSize)
	for i := range chaosPrograms {
		w.programs.create(w.programs.program(programName(i), v1alpha1.TypeDeployment))
	}
	w.programs.create(w.programs.program("daemon0", v1alpha1.TypeDaemon))
	w.volume = c.createVolume(chaosVolume, 2+int(seed%2))
	w.volume.attach("n2")
	w.etcd.settle(chaosSize)
	w.programs.allRun(c.nodes...)
	w.keys = w.etcd.loadWith(true)
	w.blocks = w.volume.load()
	w.beginHistories(seed)
	return w
}

// deviceOf is the file system that a directory is on.
func deviceOf(t testing.TB, dir string) uint64 {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(dir, &st); err != nil {
		t.Fatal(err)
	}
	return st.Dev
}

// beginHistories plays one random history after another, each with a changefeed of its own.
func (w *chaosWork) beginHistories(seed uint64) {
	w.referee = &historyReferee{cluster: w.c.cluster, source: w.c.source, sink: w.c.sink, from: w.c.source.Open(""), to: w.c.sink.Open(""), outages: true}
	w.c.test.Cleanup(func() { w.referee.from.Close(); w.referee.to.Close() })
	if err := os.WriteFile(filepath.Join(w.c.dir.Credentials(), "pair"), []byte(w.c.source.Password+"\n"), 0o600); err != nil {
		w.c.t.Fatal(err)
	}
	// What changefeeds refuse ends a history early, and the rest of it is not looked at: other tests have it.
	without := excluded()
	for form := range sqlhistory.Rare {
		without[form] = true
	}
	ctx, enough := context.WithCancel(context.Background())
	w.enough = enough
	w.c.test.Cleanup(enough)
	for lane := range testlength.Pick(1, 3) {
		w.writers.Go(func() {
			for i := uint64(0); ctx.Err() == nil; i++ {
				w.playOne(ctx, seed*1_000_000+uint64(lane)*100_000+i, without)
				time.Sleep(200 * time.Millisecond) // a rate, not a wait: a server may be down
			}
		})
	}
}

// playOne plays one history to its end.
func (w *chaosWork) playOne(ctx context.Context, seed uint64, without map[sqlhistory.Form]bool) {
	s, _ := scriptOfSeed(seed, without, "mix")
	s.limit, s.errorLimit = stalled, stalled
	next := s.next
	s.next = func() (sqlhistory.Statement, bool) {
		if ctx.Err() != nil {
			return sqlhistory.Statement{}, false // it ends here, and is compared as it is
		}
		return next()
	}
	v, err := w.referee.play(context.Background(), s)
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err != nil && unanswered(err): // a server was killed before anything could be compared
		w.cut++
	case err != nil:
		w.c.test.Errorf("history %d: %v", seed, err)
	case v.bad():
		w.c.test.Errorf("history %d %s: %s\n%s", seed, v.outcome, v.detail, sqlhistory.Script(v.statements, s.name))
	}
	if err == nil {
		w.ended[v.outcome]++
	}
}

// endHistories lets the histories that are being played come to their end.
func (w *chaosWork) endHistories() {
	w.c.t.Helper()
	w.enough()
	w.writers.Wait()
	w.c.logf("histories ended %v; %d were cut off by a server that was killed", w.ended, w.cut)
}

// check asks every referee.
func (w *chaosWork) check() {
	t := w.c.t
	t.Helper()
	w.resize(chaosSize)
	w.etcd.settle(chaosSize)
	w.keys.check()
	w.programs.allRun(w.c.nodes...)
	w.programs.neverTwice()
	w.volume.settle()
	w.blocks.check()
	w.volume.sameCopies()
	if err := w.c.client.DeleteAllOf(context.Background(), &v1alpha1.Deployment{}, client.InNamespace("default")); err != nil {
		t.Fatal(err)
	}
	until(t, "all programs to be gone", func() bool { return len(w.programs.deployments()) == 0 })
}

// faults are what the referees have seen so far.
func (w *chaosWork) faults() []string {
	var found []string
	w.keys.mu.Lock()
	found = append(found, w.keys.wrong...)
	w.keys.mu.Unlock()
	w.blocks.mu.Lock()
	found = append(found, w.blocks.wrong...)
	w.blocks.mu.Unlock()
	return found
}

// wantNothingOn says what other kinds of work are on a node that was drained.
func (w *chaosWork) wantNothingOn(node string) error {
	var members v1alpha1.EtcdMemberList
	var programs v1alpha1.DeploymentList
	v := &v1alpha1.Volume{}
	w.c.await("the objects", func(ctx context.Context) bool {
		return w.c.client.List(ctx, &members) == nil && w.c.client.List(ctx, &programs) == nil && w.c.client.Get(ctx, w.volume.key(), v) == nil
	})
	for _, m := range members.Items {
		if m.Spec.Node == node {
			return fmt.Errorf("member %s is on the drained node: %+v", m.Name, m.Spec)
		}
	}
	for _, d := range programs.Items {
		if h := d.Holder(); d.Spec.Type == v1alpha1.TypeDeployment && h.Node == node {
			return fmt.Errorf("deployment %s is held by the drained node: %+v", d.Name, h)
		}
	}
	if v.Status.AttachedTo == node {
		return fmt.Errorf("volume %s is attached to the drained node %s", v.Name, node)
	}
	return nil
}

// children are the members of etcd clusters that a node runs.
func (c *chaos) children(node int) []int {
	var found []int
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		command, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		stat, err2 := os.ReadFile(filepath.Join(dir, "stat"))
		if err != nil || err2 != nil || !slices.Contains(strings.Split(string(command), "\x00"), member.Command) {
			continue
		}
		_, after, _ := strings.Cut(string(stat), ") ")
		if fields := strings.Fields(after); len(fields) > 1 && fields[1] == strconv.Itoa(node) {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			found = append(found, pid)
		}
	}
	return found
}

// members are the processes of etcd members on a node; none if the node does not run.
func (c *chaos) members(node string) []int {
	pid, alive, err := c.process(node)
	if err != nil || !alive {
		return nil
	}
	return c.children(pid)
}

// shims kills the shims of a node.
func (c *chaos) shims(node string) (n int) {
	states, _ := filepath.Glob(filepath.Join(c.dir.Node(node).Programs(), "*", "*", "state.json"))
	for _, state := range states {
		if st, err := shim.ReadState(filepath.Dir(state)); err == nil && st.Phase != shim.Exited && st.Shim.Runs() {
			_ = syscall.Kill(st.Shim.PID, syscall.SIGKILL) // it may have ended
			n++
		}
	}
	return n
}

// killMachine kills everything of Ebb on a node at once.
func (c *chaos) killMachine(e event) error {
	var epoch int64
	c.await("the lease of "+e.target, func(ctx context.Context) (ok bool) { epoch, _, ok = c.epochOf(ctx, e.target); return ok })
	members := c.members(e.target)
	if err := c.kill(e.target); err != nil {
		return err
	}
	for _, pid := range members {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it ends with its node
	}
	c.logf("    with %d members and %d shims", len(members), c.shims(e.target))
	time.Sleep(e.hold) // for how long it is down
	c.restart(e.target, epoch)
	return nil
}

// moveNode kills a node, and it comes back with another address. Its etcd member goes on in its place while the others have a quorum, so all of
// them have to be there before.
func (c *chaos) moveNode(e event) error {
	ready := c.await("the etcd cluster to be whole before a node moves", func(ctx context.Context) bool {
		ec := &v1alpha1.EtcdCluster{}
		return c.client.Get(ctx, c.work.etcd.key, ec) == nil && ec.Status.Phase == v1alpha1.EtcdClusterPhaseRunning &&
			ec.Status.ReadyReplicas == chaosSize && len(ec.Status.Members) == chaosSize
	})
	if !ready {
		return nil
	}
	listen := fmt.Sprintf("127.0.0.%d:0", 1+e.pick%5)
	c.listen.Store(e.target, listen)
	c.logf("    to %s", listen)
	if err := c.killNode(e); err != nil {
		return err
	}
	c.await("the member on "+e.target+" to be at its new address", func(ctx context.Context) bool {
		var members v1alpha1.EtcdMemberList
		return c.client.List(ctx, &members) == nil && !slices.ContainsFunc(members.Items, func(m v1alpha1.EtcdMember) bool { return m.Status.Moved != nil })
	})
	return nil
}

func (c *chaos) killShims(e event) error {
	c.logf("    %d shims of %s", c.shims(e.target), e.target)
	return nil
}

func (c *chaos) killMembers(e event) error {
	members := c.members(e.target)
	for _, pid := range members {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
	}
	c.logf("    %d members of %s", len(members), e.target)
	return nil
}

func (c *chaos) freezeMembers(e event) error {
	members := c.members(e.target)
	for _, pid := range members {
		_ = syscall.Kill(pid, syscall.SIGSTOP) // it may have ended
	}
	time.Sleep(e.hold) // for how long they are frozen
	for _, pid := range members {
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
	return nil
}

// cancelDrain begins a drain and changes its mind. It may be too late: then the node exits.
func (c *chaos) cancelDrain(e event) error {
	var epoch int64
	c.await("the lease of "+e.target, func(ctx context.Context) (ok bool) { epoch, _, ok = c.epochOf(ctx, e.target); return ok })
	out, errs, code := c.cluster.run("drain", e.target)
	c.logf("    drain of %s: exit %d: %s", e.target, code, lastLine(out+errs))
	time.Sleep(e.hold) // the mind is not changed yet
	out, errs, code = c.cluster.run("drain", e.target, "--cancel")
	c.logf("    cancel: exit %d: %s", code, lastLine(out+errs))
	c.await("the drain to end", c.noDrain)
	over := func(ctx context.Context) bool {
		_, alive, err := c.process(e.target)
		return err == nil && !alive || c.ready(ctx, e.target, 0)
	}
	if !c.await("the end of "+e.target, over) {
		return nil
	}
	if _, alive, _ := c.process(e.target); !alive {
		c.restart(e.target, epoch)
	}
	return nil
}

// fillDisk leaves no space on the small node's disk for a while.
func (c *chaos) fillDisk(e event) error {
	if !c.work.fills {
		return nil
	}
	filler := filepath.Join(string(c.dir.Node(e.target)), "filler")
	f, err := os.Create(filler)
	if err != nil {
		return err
	}
	defer f.Close()
	for block := make([]byte, 1<<20); len(block) > 0; {
		if _, err = f.Write(block); err != nil {
			block = block[:len(block)/2]
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		err = fmt.Errorf("fill the disk: %w", err)
	} else {
		err = nil
	}
	time.Sleep(e.hold) // for how long it is full
	return errors.Join(err, os.Remove(filler))
}

// patch changes an object with a merge patch, as soon as the API server takes it.
func (c *chaos) patch(o client.Object, text string) {
	c.await("a change of "+o.GetName(), func(ctx context.Context) bool {
		return c.client.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(text))) == nil
	})
}

func (c *chaos) attachElsewhere(e event) error {
	v := &v1alpha1.Volume{}
	c.await("the volume", func(ctx context.Context) bool { return c.client.Get(ctx, c.work.volume.key(), v) == nil })
	to := others(c.nodes, v.Spec.AttachTo)[e.pick%(len(c.nodes)-1)]
	c.logf("    from %s to %s", v.Spec.AttachTo, to)
	c.patch(v, fmt.Sprintf(`{"spec":{"attachTo":%q}}`, to))
	return nil
}

func (c *chaos) changePolicy(e event) error {
	policies := []v1alpha1.NodeDrainPolicy{
		v1alpha1.BlockIfContainsLastReplica, v1alpha1.BlockForEviction, v1alpha1.BlockForEvictionIfContainsLastReplica, v1alpha1.AllowIfReplicaIsStopped, v1alpha1.AlwaysAllow,
	}
	policy := policies[e.pick%len(policies)]
	c.logf("    %s", policy)
	settings := &v1alpha1.Settings{}
	settings.Name = v1alpha1.SettingsName
	c.patch(settings, fmt.Sprintf(`{"spec":{"nodeDrainPolicy":%q}}`, policy))
	return nil
}

// resize asks for another size of the etcd cluster.
func (w *chaosWork) resize(size int) {
	ec := &v1alpha1.EtcdCluster{}
	ec.Namespace, ec.Name = w.etcd.key.Namespace, w.etcd.key.Name
	w.c.patch(ec, fmt.Sprintf(`{"spec":{"size":%d}}`, size))
}

// resizeEtcd asks for another size, and for the usual one after a while: it may not have been reached.
func (c *chaos) resizeEtcd(e event) error {
	size := []int{1, 2, 4}[e.pick%3]
	c.logf("    to %d", size)
	c.work.resize(size)
	time.Sleep(e.hold) // for how long it is wanted
	c.work.resize(chaosSize)
	return nil
}

// stopEtcd stops the cluster and starts it again. If the stop was released meanwhile, the start is a restore.
func (c *chaos) stopEtcd(e event) error {
	c.work.resize(0)
	time.Sleep(e.hold) // for how long it is wanted
	c.work.resize(chaosSize)
	return nil
}

// tell logs how the other kinds of work are, for a run that failed.
func (w *chaosWork) tell() {
	if w == nil || w.keys == nil || w.blocks == nil {
		return
	}
	w.blocks.mu.Lock()
	ended := slices.Sorted(maps.Keys(w.blocks.errors))
	w.blocks.mu.Unlock()
	w.c.test.Logf("%d keys, %d blocks acknowledged; connections ended with %s", w.keys.count(), w.blocks.acked.Load(), strings.Join(ended, "; "))
	for _, args := range [][]string{{"status"}, {"status", "volumes"}, {"status", "etcdclusters"}} {
		out, errs, _ := w.c.cluster.run(args...)
		w.c.test.Logf("ebb %s\n%s%s", strings.Join(args, " "), out, errs)
	}
}
