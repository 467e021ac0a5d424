package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/testenv"
)

func TestEtcdClustersInTrouble(t *testing.T) {
	beside(t, heavy)
	c := startNodes(t, newCluster(t, testenv.Ebb(t)).calm(), 3)
	t.Run("beside each other", func(t *testing.T) {
		for name, run := range map[string]func(*cluster){
			"a cluster with auth enabled is stopped and started":   stopWithAuth,
			"a member with a corrupt database is replaced":         corruptAMember,
			"a full database takes writes with a larger quota":     fillUp,
			"a member that hangs does not keep a stop from ending": hangAndStop,
			"a member whose object is deleted is replaced":         deleteAMember,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				run(c.of(t))
			})
		}
	})
}

func stopWithAuth(c *cluster) {
	e := c.createEtcd("auth", 3)
	e.settle(3)
	e.five(3)
	e.mustctl("etcdctl user add root:secret && etcdctl user grant-role root root && etcdctl auth enable")
	if out, err := e.etcdctl("etcdctl get test-key"); err == nil {
		c.t.Errorf("auth is enabled, and somebody without a password reads %s", out)
	}
	e.scale(2)
	for _, policy := range []v1alpha1.EtcdOnStop{v1alpha1.EtcdSnapshotThenDelete, v1alpha1.EtcdRetain} {
		e.change(func(s *v1alpha1.EtcdClusterSpec) { s.Storage.OnStop = policy })
		e.become(0)
		e.become(3)
	}
	if out := e.mustctl("etcdctl --user root:secret get key- --prefix"); !strings.Contains(out, e.keys["key-0"]) {
		c.t.Errorf("after a stop and start: %s", out)
	}
}

func corruptAMember(c *cluster) {
	e := c.createEtcd("corrupt", 3)
	e.settle(3)
	e.five(3)
	info := e.get().Status.Members[2]
	m := &v1alpha1.EtcdMember{}
	key := types.NamespacedName{Namespace: "default", Name: info.Name}
	if err := c.client.Get(context.Background(), key, m); err != nil {
		c.t.Fatal(err)
	}
	dir := filepath.Join(string(c.dir.Node(info.Node)), "etcd", m.Spec.ClusterUID, m.Name)
	db := filepath.Join(dir, "data", "member", "snap", "db")
	until(c.t, "its database to be corrupt and its process dead", func() bool {
		// The process may write its pages once more as it ends: it is killed first, and what it is started with again is corrupt.
		if err := c.client.Get(context.Background(), key, m); err != nil || m.Status.PID == 0 {
			return err == nil && m.Status.Error != ""
		}
		_ = syscall.Kill(int(m.Status.PID), syscall.SIGKILL)
		if err := os.WriteFile(db, []byte(strings.Repeat("not a database", 10_000)), 0o600); err != nil {
			c.t.Fatal(err)
		}
		return false
	})
	// Only now, or members that start slowly would be replaced as well.
	e.change(func(s *v1alpha1.EtcdClusterSpec) { s.ReplaceFailedAfter = &metav1.Duration{Duration: 20 * time.Second} })
	until(c.t, "MemberFailing", func() bool { return meta.IsStatusConditionTrue(e.get().Status.Conditions, v1alpha1.EtcdMemberFailing) })
	until(c.t, "a replacement, and its data set aside", func() bool {
		s := e.get().Status
		return s.Phase == v1alpha1.EtcdClusterPhaseRunning && s.ReadyReplicas == 3 && len(s.SetAside) == 1 && s.SetAside[0].Member == info.Name
	})
	e.five(3)
	if _, err := os.Stat(db); err != nil {
		c.t.Errorf("the data that was set aside: %v", err)
	}
	c.must("etcd", "discard", "corrupt", info.Name)
	until(c.t, "it to be discarded", func() bool { _, err := os.Stat(dir); return os.IsNotExist(err) })
}

// memberOf reads the object of a member.
func (e *etcdUnderTest) memberOf(name string) *v1alpha1.EtcdMember {
	e.t.Helper()
	m := &v1alpha1.EtcdMember{}
	if err := e.client.Get(context.Background(), types.NamespacedName{Namespace: "default", Name: name}, m); err != nil {
		e.t.Fatal(err)
	}
	return m
}

func hangAndStop(c *cluster) {
	e := c.createEtcd("hung", 3)
	e.settle(3)
	e.five(3)
	m := e.memberOf(e.get().Status.Members[1].Name)
	if err := syscall.Kill(int(m.Status.PID), syscall.SIGSTOP); err != nil {
		c.t.Fatal(err)
	}
	e.become(0)
	e.become(3)
	e.five(3)
}

func deleteAMember(c *cluster) {
	e := c.createEtcd("replaced", 3)
	e.settle(3)
	e.five(3)
	m := e.memberOf(e.get().Status.Members[0].Name)
	if err := c.client.Delete(context.Background(), m); err != nil {
		c.t.Fatal(err)
	}
	until(c.t, "another member in its place", func() bool {
		s := e.get().Status
		there := slices.ContainsFunc(s.Members, func(info v1alpha1.EtcdMemberInfo) bool { return info.Name == m.Name })
		return s.Phase == v1alpha1.EtcdClusterPhaseRunning && s.ReadyReplicas == 3 && len(s.Members) == 3 && !there
	})
	until(c.t, "its object to be gone", func() bool {
		return apierrors.IsNotFound(c.client.Get(context.Background(), client.ObjectKeyFromObject(m), m))
	})
	e.five(3)
}

func fillUp(c *cluster) {
	quota := func(text string) func(*v1alpha1.EtcdClusterSpec) {
		return func(s *v1alpha1.EtcdClusterSpec) { q := resource.MustParse(text); s.Storage.Quota = &q }
	}
	e := c.createEtcd("full", 3, quota("16Mi"))
	e.settle(3)
	e.five(3)
	cli := e.connectEtcd()
	value := strings.Repeat("v", 1<<20)
	until(c.t, "writes to be refused", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_, err := cli.Put(ctx, fmt.Sprint("big-", time.Now().UnixNano()), value)
		return err != nil && strings.Contains(err.Error(), "database space exceeded")
	})
	until(c.t, "NoSpace, and not Ready", func() bool {
		s := e.get().Status
		return meta.IsStatusConditionTrue(s.Conditions, v1alpha1.EtcdNoSpace) && meta.IsStatusConditionFalse(s.Conditions, v1alpha1.EtcdReady)
	})
	// A stop and start keep the alarm: there is no room. Then the quota is raised.
	e.become(0)
	e.change(quota("64Mi"))
	e.want(3)
	until(c.t, "the alarm to end", func() bool {
		s := e.get().Status
		return s.Phase == v1alpha1.EtcdClusterPhaseRunning && meta.IsStatusConditionTrue(s.Conditions, v1alpha1.EtcdReady) && !meta.IsStatusConditionTrue(s.Conditions, v1alpha1.EtcdNoSpace)
	})
	e.five(3)
	e.change(quota("128Mi"))
	until(c.t, "the quota at every member", func() bool {
		for _, info := range e.get().Status.Members {
			m := &v1alpha1.EtcdMember{}
			if err := c.client.Get(context.Background(), types.NamespacedName{Namespace: "default", Name: info.Name}, m); err != nil || m.Spec.QuotaBytes != 128<<20 || m.Status.ObservedGeneration != m.Generation || !info.Healthy {
				return false
			}
		}
		return true
	})
	e.five(3)
}
