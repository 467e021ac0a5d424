package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/testenv"
	"github.com/ebb-dev/ebb/internal/testenv/need"
	"github.com/ebb-dev/ebb/internal/testlength"
)

// volumeOutage is how long the API server is away while a volume is written to: a minute in the long form.
func volumeOutage() time.Duration { return testlength.Pick(20*time.Second, time.Minute) }

// crashedVolume is a volume of three replicas on three nodes, under load, whose nodes are killed.
type crashedVolume struct {
	*testVolume
	l *volumeLoad
}

func TestVolumesOutliveCrashes(t *testing.T) {
	beside(t, heavy)
	c := newCluster(t, testenv.Ebb(t))
	startNodes(t, c, len(trio))
	v := &crashedVolume{testVolume: c.createVolume("crashed", len(trio))}
	v.attach("n2")
	v.l = v.load()
	for _, step := range []struct {
		name string
		run  func()
	}{
		{"kill -9 of a node with a replica", v.killReplica},
		{"kill -9 of the node with the engine", v.killEngine},
		{"kill -9 of all nodes at once", v.killAll},
		{"the API server is away, and a node with a replica is killed", v.killReplicaWithoutAPI},
		{"the API server is away, and the nodes with a replica and with the engine are killed", v.killEngineWithoutAPI},
		{"a frozen engine is replaced", v.freezeEngine},
	} {
		if !t.Run(step.name, func(t *testing.T) {
			c.t = t
			began := time.Now()
			v.l.longestPause()
			step.run()
			v.l.goesOn()
			v.settle()
			t.Logf("took %.1f s, longest pause of I/O %.1f s, %d writes so far", time.Since(began).Seconds(), v.l.longestPause().Seconds(), v.l.acked.Load())
			v.l.mu.Lock()
			defer v.l.mu.Unlock()
			for _, wrong := range v.l.wrong {
				t.Error(wrong)
			}
		}) {
			break
		}
	}
	c.t = t
	if t.Failed() {
		return
	}
	v.l.check()
	v.sameCopies()
}

// other is a node without the engine.
func (v *crashedVolume) other() string {
	v.t.Helper()
	return others(trio, v.get().Status.AttachedTo)[0]
}

// killReplica kills a node with a replica: I/O goes on without it, and it is brought up to date when it is back.
func (v *crashedVolume) killReplica() {
	node := v.other()
	old := v.replicas()[node]
	v.signal(node, syscall.SIGKILL)
	until(v.t, "the replica to be given up", func() bool { return len(v.get().Status.Members) == 2 })
	v.l.goesOn()
	until(v.t, "the volume to be degraded", func() bool { return v.get().Status.Robustness == v1alpha1.VolumeDegraded })
	v.back(node)
	v.settle()
	if now := v.replicas()[node]; now == nil || now.UID != old.UID {
		v.t.Errorf("the replica on %s is %v, and was %s", node, now, old.Name)
	}
}

// killEngine kills the node that serves the volume: it is attached there again when the node is back.
func (v *crashedVolume) killEngine() {
	node := v.get().Status.AttachedTo
	v.signal(node, syscall.SIGKILL)
	until(v.t, "the volume to be detached", func() bool { return v.get().Status.AttachedTo == "" })
	v.back(node)
	until(v.t, "the volume to be attached again", func() bool { return v.get().Status.AttachedTo == node })
}

// killAll kills all nodes at once, each in the middle of something.
func (v *crashedVolume) killAll() { v.blackOut(trio) }

// killReplicaWithoutAPI kills the API server, and while it is away a node with a replica. Without the API server alone I/O goes on. Without the
// replica it waits, because nobody can record that the replica misses something.
func (v *crashedVolume) killReplicaWithoutAPI() {
	t := v.t
	node := v.other()
	began := time.Now()
	v.signal("apiserver", syscall.SIGKILL)
	until(t, "the API server to be gone", func() bool { return v.connect() != nil })
	v.l.lanesGoOn()
	v.killUntilWaiting(node, began.Add(volumeOutage()))
	before := v.l.acked.Load()
	v.startServer()
	until(t, "the API server", func() bool { return v.connect() == nil })
	back := time.Now()
	until(t, "I/O to go on", func() bool { return v.l.acked.Load() > before })
	t.Logf("I/O went on %.1f s after the API server was back", time.Since(back).Seconds())
	v.l.goesOn()
	if members := v.get().Status.Members; len(members) != 2 {
		t.Errorf("the members are %v", members)
	}
	v.back(node)
}

// killUntilWaiting kills a node with a replica while the API server is away, and looks until a time whether I/O waits. What was under way when
// the node died may have reached the replica: every lane has one request.
func (v *crashedVolume) killUntilWaiting(node string, end time.Time) {
	v.t.Helper()
	pid := v.pid(node)
	v.signal(node, syscall.SIGKILL)
	until(v.t, "the process to be gone", func() bool { return syscall.Kill(pid, 0) != nil })
	before := v.l.acked.Load()
	until(v.t, "I/O to wait", func() bool {
		v.l.mu.Lock()
		defer v.l.mu.Unlock()
		return time.Since(v.l.last) > time.Second
	})
	time.Sleep(time.Until(end)) // the outage itself
	if after := v.l.acked.Load() - before; after > loadLanes {
		v.t.Errorf("%d writes were acknowledged though nobody could record that a replica misses them", after)
	}
}

// killEngineWithoutAPI kills a node with a replica and then the one with the engine while the API server is away. Nobody could record that the
// replica missed something, and it is the first to be back.
func (v *crashedVolume) killEngineWithoutAPI() {
	t := v.t
	engine, node := v.get().Status.AttachedTo, v.other()
	v.signal("apiserver", syscall.SIGKILL)
	until(t, "the API server to be gone", func() bool { return v.connect() != nil })
	v.l.lanesGoOn()
	v.killUntilWaiting(node, time.Now())
	v.signal(engine, syscall.SIGKILL)
	v.startServer()
	until(t, "the API server", func() bool { return v.connect() == nil })
	v.back(node)
	v.back(engine)
}

// lanesGoOn waits until more is written, without asking the API.
func (l *volumeLoad) lanesGoOn() {
	l.v.t.Helper()
	before := l.acked.Load()
	until(l.v.t, "I/O to go on without the API", func() bool { return l.acked.Load() > before+30 })
}

// freezeEngine freezes the node that serves the volume, attaches the volume elsewhere, and wakes the node: what it serves then is not stale.
func (v *crashedVolume) freezeEngine() {
	t := v.t
	node := v.get().Status.AttachedTo
	next := others(trio, node)[0]
	at := int64(volumeSize-volumeFill) - loadBlock
	var old []*nbdConn
	for range 4 {
		conn := v.l.connectOnce()
		defer conn.Close()
		old = append(old, conn)
	}
	if err := old[0].writeAt(sectorOf(1), at); err != nil {
		t.Fatal(err)
	}
	pid := v.pid(node)
	v.signal(node, syscall.SIGSTOP)
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	v.l.disconnect()
	v.must("volume", "attach", v.name, next, "--wait", patience.String())
	v.l.goesOn()
	conn := v.l.connectOnce()
	defer conn.Close()
	if err := conn.writeAt(sectorOf(2), at); err != nil {
		t.Fatal(err)
	}
	// What the old engine is asked while it is frozen, it answers when it wakes. All of that is after the write above.
	for i, c := range old {
		var err error
		switch i {
		case 0, 1:
			err = c.send(nbdRead, at, loadSector, nil)
		case 2:
			err = c.send(nbdWrite, at, loadSector, sectorOf(3))
		case 3:
			err = c.send(nbdFlush, 0, 0, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	v.signal(node, syscall.SIGCONT)
	for i, c := range old {
		if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, loadSector)
		if i > 1 {
			got = nil
		}
		err := c.answer(got)
		t.Logf("request %d to the engine that was replaced: %v", i, err)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			t.Errorf("request %d to the engine that was replaced is not answered", i)
		case err == nil:
			t.Errorf("request %d to the engine that was replaced succeeded, and returned %x", i, got)
		}
	}
	got := make([]byte, loadSector)
	if err := conn.readAt(got, at); err != nil || !slices.Equal(got, sectorOf(2)) {
		t.Errorf("after the old engine woke up, the sector has %x (%v)", got[:8], err)
	}
	v.awaitReady(node, 1)
}

// A disk that is full loses its replica, and the volume goes on without it. It is built again when there is space.
func TestAFullDiskLosesItsReplica(t *testing.T) {
	beside(t, light)
	small := smallDisk(t)
	c := newCluster(t, testenv.Ebb(t))
	startNodes(t, c, 2)
	c.startNode("n3", "--volume-dir", small)
	c.awaitReady("n3", 1)
	told := keepVolumeChronicle(t, c.client)
	until(t, "the disk to be published", func() bool { disks := c.node("n3").Status.Disks; return len(disks) == 1 && disks[0].Ready })
	v := c.createVolume("full", 3)
	v.attach("n1")
	l := v.load()
	full := v.replicas()["n3"]
	filler := filepath.Join(small, "filler")
	fillDisk(t, filler)
	until(t, "the replica on the full disk to be given up", func() bool { return !slices.Contains(v.get().Status.Members, full.Name) })
	l.goesOn()
	until(t, "the volume to be degraded", func() bool { return v.get().Status.Robustness == v1alpha1.VolumeDegraded })
	o := &v1alpha1.Volume{}
	if err := c.client.Get(context.Background(), v.key(), o); err != nil || len(o.Status.Members) != 2 {
		t.Errorf("the members are %v (%v)", o.Status.Members, err)
	}
	t.Log(c.must("volume", "inspect", "full"))
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	v.settle()
	if now := v.replicas()["n3"]; now == nil || now.UID != full.UID {
		t.Errorf("the replica on n3 is %v, and was %s", now, full.Name)
	}
	for _, o := range versions(t, told, v.get(), 0) {
		if o.Status.AttachedTo == "" && o.Status.Engine != nil {
			t.Errorf("version %s: the volume was detached because of a full disk", o.ResourceVersion)
		}
	}
	l.check()
	v.sameCopies()
}

// smallDisk is a disk with room for one volume and little more.
func smallDisk(t *testing.T) string {
	t.Helper()
	small := t.TempDir()
	if err := syscall.Mount("ebb-test", small, "tmpfs", 0, fmt.Sprintf("size=%d", volumeSize+32<<20)); err != nil {
		need.Missing(t, "a small disk cannot be made, which needs root: mount: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(small, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", small, err)
		}
	})
	return small
}

// If every disk is full, clients are told so, and no replica is given up: none is better than another one.
func TestWhenAllDisksAreFullClientsAreToldAndNobodyIsDropped(t *testing.T) {
	beside(t, light)
	c := newCluster(t, testenv.Ebb(t))
	startNodes(t, c, 0)
	var fillers []string
	for i, name := range trio[:2] {
		small := smallDisk(t)
		fillers = append(fillers, filepath.Join(small, "filler"))
		c.startNode(name, "--volume-dir", small)
		c.awaitReady(name, 1)
		until(t, "the disk to be published", func() bool { disks := c.node(trio[i]).Status.Disks; return len(disks) == 1 && disks[0].Ready })
	}
	told := keepVolumeChronicle(t, c.client)
	v := c.createVolume("full", 2)
	v.attach(trio[0])
	conn, err := dialNBD(v.get().Status.NBDURI)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.writeAt(sectorOf(1), 0); err != nil {
		t.Fatal(err)
	}
	members := v.get().Status.Members
	for _, filler := range fillers {
		fillDisk(t, filler)
	}
	for at := int64(1 << 20); at < 4<<20; at += 1 << 20 {
		var refused nbdError
		if err := conn.writeAt(make([]byte, 64<<10), at); !errors.As(err, &refused) || refused != nbdNoSpace {
			t.Errorf("a write to full disks ended with %v", err)
		}
	}
	got := make([]byte, loadSector)
	if err := conn.readAt(got, 0); err != nil || !slices.Equal(got, sectorOf(1)) {
		t.Errorf("reads return %x (%v)", got[:8], err)
	}
	for _, filler := range fillers {
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
	}
	if err := conn.writeAt(sectorOf(2), 1<<20); err != nil {
		t.Errorf("with space again: %v", err)
	}
	if err := conn.flush(); err != nil {
		t.Error(err)
	}
	for _, o := range versions(t, told, v.get(), 0) {
		if len(o.Status.Members) > 0 && !slices.Equal(o.Status.Members, members) {
			t.Errorf("version %s: the members are %v, and were %v", o.ResourceVersion, o.Status.Members, members)
		}
	}
	v.sameCopies()
}

// fillDisk writes a file until no space is left.
func fillDisk(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for block := make([]byte, 64<<10); len(block) > 0; {
		if _, err = f.Write(block); err != nil {
			block = block[:len(block)/2]
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("fill the disk: %v", err)
	}
}

// A node whose directory is too deep for sockets has no use for them until a volume is attached to it. Then the volume says what is wrong.
func TestAVolumeSaysThatItsSocketHasNoPlace(t *testing.T) {
	beside(t, light)
	need.Programs(t, "nbdinfo")
	c := newCluster(t, testenv.Ebb(t))
	startNodes(t, c, 1)
	c.startNode("n2", "--volume-sockets", filepath.Join(t.TempDir(), strings.Repeat("deep", 25)))
	odd, err := os.MkdirTemp("", "a & b+c") // a place that has to be encoded in a URI
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(odd) })
	c.startNode("n3", "--volume-sockets", filepath.Join(odd, "nbd"))
	c.awaitReady("n2", 1)
	c.awaitReady("n3", 1)
	v := c.createVolume("nowhere", 2)
	c.must("volume", "attach", "nowhere", "n2")
	var message string
	untilSo(t, func() string { return "the volume to say that its socket has no place: it says " + message }, func() bool {
		if attached := meta.FindStatusCondition(v.get().Status.Conditions, v1alpha1.VolumeAttached); attached != nil {
			message = attached.Message
		}
		return strings.Contains(message, "choose a shorter directory with --volume-sockets")
	})
	v.attach("n1")
	v.load().check()
	for range 2 {
		v.attach("n3")
		if got := strings.TrimSpace(runProgram(t, "nbdinfo", "--size", v.get().Status.NBDURI)); got != strconv.FormatInt(v.get().Spec.Size.Value(), 10) {
			t.Errorf("nbdinfo --size says %s", got)
		}
		v.sameCopies()
		// It is detached now, and something cleans the directory away.
		if err := os.RemoveAll(filepath.Join(odd, "nbd")); err != nil {
			t.Fatal(err)
		}
	}
}
