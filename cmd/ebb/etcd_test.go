package main

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// threeMembers is an etcd cluster of which one member is not healthy.
func threeMembers() *v1alpha1.EtcdCluster {
	return &v1alpha1.EtcdCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "demo"},
		Status: v1alpha1.EtcdClusterStatus{
			Phase: v1alpha1.EtcdClusterPhaseRunning, ReadyReplicas: 2, Nodes: []string{"n1", "n2", "n3"}, Snapshot: "demo-1",
			Members: []v1alpha1.EtcdMemberInfo{
				{Name: "demo-1", Node: "n1", ID: "a1", Role: v1alpha1.EtcdVoter, Message: "node n1 is absent", ClientURL: "https://127.0.0.1:1"},
				{Name: "demo-2", Node: "n2", ID: "a2", Role: v1alpha1.EtcdLeader, Healthy: true, ClientURL: "https://127.0.0.1:2", DBSize: 20 << 10},
				{Name: "demo-3", Node: "n3", ID: "a3", Role: v1alpha1.EtcdVoter, Healthy: true, ClientURL: "https://127.0.0.1:3", DBSize: 20 << 10, RevisionLag: 2},
				{Name: "demo-4", Node: "n3", Role: v1alpha1.EtcdLearner, ClientURL: "https://127.0.0.1:4"},
			},
			Conditions: []metav1.Condition{{Type: v1alpha1.EtcdProgressing, Status: metav1.ConditionFalse, Message: "Cluster is running"}},
		},
	}
}

func TestTheMembersOfAnEtcdClusterAsPeopleSeeThem(t *testing.T) {
	const want = `MEMBER   NODE   ID   ROLE      HEALTHY   LAG   DB SIZE   ENDPOINT              MESSAGE
demo-1   n1     a1   voter     no        0     0 B       https://127.0.0.1:1   node n1 is absent
demo-2   n2     a2   leader    yes       0     20 KiB    https://127.0.0.1:2
demo-3   n3     a3   voter     yes       2     20 KiB    https://127.0.0.1:3
demo-4   n3     -    learner   no        0     0 B       https://127.0.0.1:4
`
	if got := etcdMembersText(threeMembers()); got != want {
		t.Errorf("it says\n%s\nwant\n%s", got, want)
	}
	stopped := &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "demo"}, Status: v1alpha1.EtcdClusterStatus{Phase: v1alpha1.EtcdClusterPhaseStopped}}
	if got := etcdMembersText(stopped); got != "no members: etcd cluster x/demo is stopped; `kubectl scale etcdcluster demo --replicas=N -n x` starts it\n" {
		t.Errorf("it says %q", got)
	}
}

func TestEtcdClustersAsPeopleSeeThem(t *testing.T) {
	api := testenv.StartAPI(t)
	c := api.Admin()
	ec := threeMembers()
	status := ec.Status
	if err := c.Create(t.Context(), ec); err != nil {
		t.Fatal(err)
	}
	ec.Status = status
	ec.Status.Conditions[0].Reason, ec.Status.Conditions[0].LastTransitionTime = "Running", metav1.Now()
	ec.Status.LastStart = &metav1.Duration{Duration: 1234 * time.Millisecond}
	if err := c.Status().Update(t.Context(), ec); err != nil {
		t.Fatal(err)
	}
	list, err := etcdcluster.ReadStatus(t.Context(), c, "")
	if err != nil {
		t.Fatal(err)
	}
	const want = `ETCD CLUSTER   PHASE     READY   LEADER   NODES      SNAPSHOT   LAST STOP   LAST START   AGE   MESSAGE
demo           Running   2/3     n2       n1,n2,n3   demo-1     -           1.23s        2m    Cluster is running
`
	if got := etcdClustersText(list, ec.CreationTimestamp.Add(2*time.Minute)); got != want {
		t.Errorf("it says\n%s\nwant\n%s", got, want)
	}
	if got := etcdClustersText(nil, time.Now()); got != "no etcd clusters\n" {
		t.Errorf("it says %q", got)
	}
}

func TestWhatEtcdctlWantsInItsEnvironment(t *testing.T) {
	api := testenv.StartAPI(t)
	e := etcdCommand{cluster: cluster{kubeconfig: api.Dir.Kubeconfig()}}
	where, err := e.endpoints(threeMembers(), true)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(string(api.Dir), "etcd-client", "kubeconfig")
	want := strings.ReplaceAll(`export ETCDCTL_API=3
export ETCDCTL_ENDPOINTS=https://127.0.0.1:2,https://127.0.0.1:3,https://127.0.0.1:1
export ETCDCTL_CACERT=DIR/ca.crt
export ETCDCTL_CERT=DIR/client.crt
export ETCDCTL_KEY=DIR/client.key
`, "DIR", dir)
	if got := where.shell(); got != want {
		t.Errorf("it prints\n%s\nwant\n%s", got, want)
	}
	for _, name := range []string{"ca.crt", "client.crt", "client.key"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != 0o600 || info.Size() == 0 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	plain := threeMembers()
	for i := range plain.Status.Members {
		plain.Status.Members[i].ClientURL = strings.Replace(plain.Status.Members[i].ClientURL, "https", "http", 1)
	}
	if where, err = e.endpoints(plain, true); err != nil || !strings.Contains(where.shell(), "unset ETCDCTL_CERT\n") {
		t.Errorf("without TLS: %v, %v", where, err)
	}
}

func TestWhatIsKeptOfEtcdClustersAsPeopleSeeIt(t *testing.T) {
	ec := &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "demo"}}
	ec.Status.Phase = v1alpha1.EtcdClusterPhaseStopped
	ec.Status.SetAside = []v1alpha1.EtcdSetAside{{Member: "demo-2", Node: "n2", Reason: "Restored from nothing; it may have newer keys"}}
	const aside = "set aside: data of member demo-2 on n2 (Restored from nothing; it may have newer keys); `ebb etcd discard demo demo-2` deletes it\n"
	if got := etcdMembersText(ec); !strings.HasSuffix(got, aside) {
		t.Errorf("it says %q", got)
	}
	ec.Namespace = "x"
	if got := etcdMembersText(ec); !strings.HasSuffix(got, "; `ebb etcd discard demo demo-2 -n x` deletes it\n") {
		t.Errorf("of a cluster in another namespace it says %q", got)
	}
	const want = "NODE   ORPHAN\nn1     member/u/demo-1@7\n\nRemove one with `ebb etcd orphans --remove NODE/ORPHAN`.\n"
	if got := etcdOrphansText([]etcdOrphan{{"n1", "member/u/demo-1@7"}}); got != want {
		t.Errorf("it says %q", got)
	}
	if got := etcdOrphansText(nil); got != "no orphans\n" {
		t.Errorf("it says %q", got)
	}
}

func TestTheCertificateOfANodeCoversTheAddressesOfItsName(t *testing.T) {
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	addresses, err := net.LookupHost(name)
	if err != nil {
		t.Skipf("this machine's name has no address: %v", err)
	}
	hosts := nodeFlags{peerListen: name + ":0", listen: "127.0.0.1:0"}.hosts()
	for _, want := range append(addresses, name, "127.0.0.1") {
		if !slices.Contains(hosts, want) {
			t.Errorf("%s is not among %v", want, hosts)
		}
	}
}
