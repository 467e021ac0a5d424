package e2e

import (
	"context"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// A node that comes back with another address keeps its member of an etcd cluster, with its ID, its vote and its data: etcd's list gets the new
// address. If all nodes get another address at once, nobody can change the list, and the condition names the restore.
func TestAMemberKeepsItsPlaceWhenItsNodeGetsAnotherAddress(t *testing.T) {
	beside(t, light)
	c := newCluster(t, testenv.Ebb(t))
	startNodes(t, c, 0)
	addresses := map[string]string{"n1": "localhost:0", "n2": "127.0.0.1:0", "n3": "127.0.0.1:0"}
	for _, name := range trio {
		c.startNode(name, "--listen", addresses[name])
	}
	for _, name := range trio {
		c.awaitReady(name, 1)
	}
	e := c.createEtcd("moved", 3)
	e.settle(3)
	e.five(3)
	for _, name := range []string{"n3", c.awaitLeader("")} {
		before := c.memberOn(e, name)
		c.move([]string{name}, "127.0.0.4:0")
		until(t, "the member of "+name+" to run at its new address", func() bool {
			m := c.memberOn(e, name)
			return m != nil && m.Status.Phase == v1alpha1.EtcdMemberRunning && hostOf(m.Status.PeerURL) == "127.0.0.4" && m.Status.Moved == nil
		})
		e.settle(3)
		if m := c.memberOn(e, name); m.UID != before.UID || m.Status.ID != before.Status.ID {
			t.Errorf("member %s with ID %s became %s with ID %s", before.Name, before.Status.ID, m.Name, m.Status.ID)
		}
		e.five(3)
	}
	c.move(trio, "127.0.0.5:0")
	var said string
	untilSo(t, func() string { return "the condition to name the restore; it says " + said }, func() bool {
		ec := e.get()
		said = ""
		for _, cond := range ec.Status.Conditions {
			said += cond.Type + ": " + cond.Message + "\n"
		}
		return ec.Status.Phase == v1alpha1.EtcdClusterPhaseFailed && strings.Contains(said, "the node has another address than the member") &&
			strings.Contains(said, "`ebb etcd restore moved --from-member NODE`, with NODE n1 or n2 or n3")
	})
	if ready := meta.FindStatusCondition(e.get().Status.Conditions, v1alpha1.EtcdReady); ready != nil && ready.Status == "True" {
		t.Errorf("the cluster says that it is ready: %+v", ready)
	}
	c.must("etcd", "restore", "moved", "--from-member", "n2")
	e.settle(3)
	e.five(3)
}

// move kills nodes at once and starts them with another address.
func (c *cluster) move(nodes []string, listen string) {
	c.t.Helper()
	before := map[string]int64{}
	for _, name := range nodes {
		before[name] = c.record(name).Epoch
		pid := c.pid(name)
		c.signal(name, syscall.SIGKILL)
		until(c.t, name+" to be gone", func() bool { return syscall.Kill(pid, 0) != nil })
	}
	for _, name := range nodes {
		c.startNode(name, "--listen", listen)
	}
	for _, name := range nodes {
		c.awaitReady(name, before[name]+1)
	}
}

// memberOn is the member of an etcd cluster on a node.
func (c *cluster) memberOn(e *etcdUnderTest, node string) *v1alpha1.EtcdMember {
	c.t.Helper()
	var list v1alpha1.EtcdMemberList
	if err := c.client.List(context.Background(), &list, client.MatchingLabels{v1alpha1.EtcdClusterLabel: e.key.Name}); err != nil {
		c.t.Fatal(err)
	}
	if i := slices.IndexFunc(list.Items, func(m v1alpha1.EtcdMember) bool { return m.Spec.Node == node }); i >= 0 {
		return &list.Items[i]
	}
	return nil
}

func hostOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return ""
	}
	return u.Hostname()
}
