package e2e

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/testenv"
	"github.com/ebb-dev/ebb/internal/testenv/need"
)

// TestVolumesAreRepairedByHand does what only a person may: removes an orphan, and goes on with an old copy when every newer one is lost.
func TestVolumesAreRepairedByHand(t *testing.T) {
	beside(t, light)
	need.Programs(t, "qemu-io")
	c := startNodes(t, newCluster(t, testenv.Ebb(t)), 3)
	c.step(t, "an orphan", func(*testing.T) { c.removeOrphanByHand() })
	c.step(t, "salvage", func(*testing.T) { c.salvageByHand() })
	c.step(t, "an API restored from a backup", func(*testing.T) { c.salvageAfterRestore() })
}

// copies are the replicas of the volume by node.
func (v *servedVolume) copies() map[string]v1alpha1.Replica {
	v.t.Helper()
	var list v1alpha1.ReplicaList
	if err := v.client.List(context.Background(), &list, client.MatchingLabels{v1alpha1.VolumeLabel: v.name}); err != nil {
		v.t.Fatal(err)
	}
	found := map[string]v1alpha1.Replica{}
	for _, r := range list.Items {
		found[r.Spec.NodeName] = r
	}
	return found
}

// directory of a replica on the default disk of its node.
func (v *servedVolume) directory(r v1alpha1.Replica) string {
	v.t.Helper()
	found, err := filepath.Glob(filepath.Join(string(v.dir), "nodes", r.Spec.NodeName, "volumes", "replicas", "*", r.Name))
	if err != nil || len(found) != 1 {
		v.t.Fatalf("replica %s is in %v (%v)", r.Name, found, err)
	}
	return found[0]
}

// revive starts a node that was killed.
func (c *cluster) revive(node string, epoch int64) {
	c.t.Helper()
	c.startNode(node)
	c.awaitReady(node, epoch+1)
}

func (c *cluster) removeOrphanByHand() {
	v := c.serveVolume("left", 16<<20, 3, "n1")
	node := v.nodeOfReplica()
	replica, epoch := v.copies()[node], c.record(node).Epoch
	path := v.directory(replica)
	orphan := node + "/default/" + filepath.Base(filepath.Dir(path)) + "/" + replica.Name
	c.signal(node, syscall.SIGKILL)
	v.awaitMembers(2)
	c.must("volume", "replica", "rm", replica.Name, "--yes")
	until(c.t, "the replica of the dead node to be forgotten", func() bool {
		return apierrors.IsNotFound(c.client.Get(context.Background(), client.ObjectKeyFromObject(&replica), &v1alpha1.Replica{}))
	})
	c.revive(node, epoch)
	until(c.t, "the orphan to be listed", func() bool {
		return slices.ContainsFunc(decode[[]struct{ Node, Disk, Name string }](c.t, c.must("volume", "orphans", "-o", "json")), func(o struct{ Node, Disk, Name string }) bool {
			return o.Node+"/"+o.Disk+"/"+o.Name == orphan
		})
	})
	v.awaitMembers(3) // the volume does not care
	if _, err := os.Stat(path); err != nil {
		c.t.Fatalf("the orphan was not kept: %v", err)
	}
	c.must("volume", "orphans", "--remove", orphan)
	until(c.t, "the orphan to be removed", func() bool { return c.must("volume", "orphans") == "no orphans\n" })
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		c.t.Errorf("the orphan is still there: %v", err)
	}
	until(c.t, "the request to be forgotten", func() bool {
		n := &v1alpha1.Node{}
		if err := c.client.Get(context.Background(), client.ObjectKey{Name: node}, n); err != nil {
			c.t.Fatal(err)
		}
		return n.Annotations[v1alpha1.RemoveOrphansAnnotation] == ""
	})
	if got := c.mustFail("volume", "orphans", "--remove", orphan); !strings.Contains(got, "there is no orphan") {
		c.t.Errorf("removing it again says %q", got)
	}
	v.awaitMembers(3)
}

// mustFail runs a command that has to fail, and returns what it says.
func (c *cluster) mustFail(args ...string) string {
	c.t.Helper()
	out, errs, code := c.run(args...)
	if code != 1 {
		c.t.Errorf("ebb %s: exit %d\n%s%s", strings.Join(args, " "), code, out, errs)
	}
	return errs
}

func (c *cluster) salvageByHand() {
	v := c.serveVolume("lost", 16<<20, 2, "n1")
	copies := v.copies()
	away := v.nodeOfReplica()
	var kept string
	for node := range copies {
		if node != away {
			kept = node
		}
	}
	v.attachTo(kept)
	runProgram(c.t, "qemu-io", "-f", "raw", "-c", "write -P 0xaa 0 1M", "-c", "flush", v.uri)
	awayEpoch := c.record(away).Epoch
	c.signal(away, syscall.SIGKILL)
	v.awaitMembers(1)
	runProgram(c.t, "qemu-io", "-f", "raw", "-c", "write -P 0xbb 0 1M", "-c", "flush", v.uri)
	if got := c.mustFail("volume", "salvage", v.name, "--replica", copies[away].Name, "--yes"); !strings.Contains(got, "there is nothing to salvage") {
		c.t.Errorf("salvage of a volume that serves clients says %q", got)
	}
	path, keptEpoch := v.directory(copies[kept]), c.record(kept).Epoch
	c.signal(kept, syscall.SIGKILL)
	until(c.t, "the process to be gone", func() bool { return syscall.Kill(c.pid(kept), 0) != nil })
	if err := os.RemoveAll(path); err != nil {
		c.t.Fatal(err)
	}
	c.revive(kept, keptEpoch)
	c.revive(away, awayEpoch)
	until(c.t, "the volume to be faulted", func() bool { return v.status().Robustness == v1alpha1.VolumeFaulted })
	until(c.t, "the older replica to be ready", func() bool {
		r := v.copies()[away]
		return r.Status.State == v1alpha1.ReplicaReady && r.Status.NodeEpoch > awayEpoch
	})
	if s := v.status(); !slices.Equal(s.Members, []string{copies[kept].Name}) {
		c.t.Fatalf("the members are %v: a stale copy was taken without anybody asking", s.Members)
	}
	if got := c.mustFail("volume", "salvage", v.name); !strings.Contains(got, copies[away].Name+" (node "+away) {
		c.t.Errorf("salvage without a replica says %q", got)
	}
	c.must("volume", "salvage", v.name, "--replica", copies[away].Name, "--yes")
	v.attachTo(away)
	if out := runProgram(c.t, "qemu-io", "-f", "raw", "-c", "read -P 0xaa 0 1M", v.uri); strings.Contains(out, "verification failed") {
		c.t.Errorf("the salvaged copy has something else:\n%s", out)
	}
	v.awaitMembers(2)
}

// salvageAfterRestore restores the API from a backup that is older than the replicas of a volume. Nothing of it is opened until a person decides.
func (c *cluster) salvageAfterRestore() {
	v := c.serveVolume("older", 16<<20, 2, "n1")
	runProgram(c.t, "qemu-io", "-f", "raw", "-c", "write -P 0xaa 0 1M", "-c", "flush", v.uri)
	backup := filepath.Join(c.t.TempDir(), "backup")
	c.withoutServer(func() { runProgram(c.t, "cp", "-a", c.dir.APIServer(), backup) })
	old := v.status().Generation
	v.attachTo("n2")
	runProgram(c.t, "qemu-io", "-f", "raw", "-c", "write -P 0xbb 0 1M", "-c", "flush", v.uri)
	for _, node := range trio {
		pid := c.pid(node)
		c.signal(node, syscall.SIGKILL)
		until(c.t, "the process to be gone", func() bool { return syscall.Kill(pid, 0) != nil })
	}
	c.withoutServer(func() {
		if err := os.RemoveAll(c.dir.APIServer()); err != nil {
			c.t.Fatal(err)
		}
		runProgram(c.t, "cp", "-a", backup, c.dir.APIServer())
	})
	for _, node := range trio {
		c.back(node)
	}
	until(c.t, "the volume not to be opened", func() bool {
		o := meta.FindStatusCondition(v.status().Conditions, v1alpha1.VolumeOpenable)
		return o != nil && o.Status == metav1.ConditionFalse && o.Reason == v1alpha1.ReasonStoreIsOlder && strings.Contains(o.Message, "`ebb volume salvage older`")
	})
	var newest v1alpha1.Replica
	until(c.t, "both replicas to be ready", func() bool {
		newest = v1alpha1.Replica{}
		ready := 0
		for _, r := range v.copies() {
			if r.Status.State == v1alpha1.ReplicaReady && r.Status.Generation > old {
				ready++
			}
			if r.Status.Generation > newest.Status.Generation {
				newest = r
			}
		}
		return ready == 2
	})
	if got := c.mustFail("volume", "attach", v.name, "n3", "--wait", "3s"); !strings.Contains(got, "has generation") {
		c.t.Errorf("attaching it says %q", got)
	}
	if s := v.status(); s.NBDURI != "" || s.Engine != nil && s.Engine.Serving {
		c.t.Errorf("the volume is served though the store is older: %+v", s)
	}
	c.must("volume", "salvage", v.name, "--replica", newest.Name, "--yes")
	v.attachTo("n3")
	if out := runProgram(c.t, "qemu-io", "-f", "raw", "-c", "read -P 0xbb 0 1M", v.uri); strings.Contains(out, "verification failed") {
		c.t.Errorf("the salvaged copy has something else:\n%s", out)
	}
	v.awaitMembers(2)
}

// withoutServer stops the API server, does something, and starts it again.
func (c *cluster) withoutServer(do func()) {
	c.t.Helper()
	pid := c.pid("apiserver")
	c.signal("apiserver", syscall.SIGTERM)
	until(c.t, "the API server to be gone", func() bool { return syscall.Kill(pid, 0) != nil })
	do()
	c.startServer()
	until(c.t, "the API server", func() bool { return c.connect() == nil })
}
