package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/identity"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/manifests"
	"github.com/ebb-dev/ebb/internal/pki"
	"github.com/ebb-dev/ebb/internal/signer"
)

// actors are those whose requests are tried.
type actors struct {
	k                       *installation
	follower, other, leader string // nodes
}

// as is a client with a token. Every write is a dry run, which passes all checks and changes nothing.
func (a actors) as(token string) (client.Client, kubernetes.Interface) {
	a.k.t.Helper()
	cfg := kubeclient.Tune(&rest.Config{Host: a.k.kube.Config().Host, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAData: a.k.kube.Config().CAData}})
	c, err := kubeclient.New(cfg)
	if err != nil {
		a.k.t.Fatal(err)
	}
	typed, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		a.k.t.Fatal(err)
	}
	return client.NewDryRunClient(c), typed
}

// attempt is one write.
type attempt func(ctx context.Context, c client.Client) error

// update reads an object as an administrator, changes it, and writes it as somebody. Nodes write all the time: what changed meanwhile is read again.
func update[T client.Object](a actors, o T, change func(T), write func(context.Context, client.Client, client.Object) error) attempt {
	return func(ctx context.Context, c client.Client) error {
		for {
			if err := a.k.client.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
				return fmt.Errorf("as an administrator: %w", err)
			}
			change(o)
			if err := write(ctx, c, o); !apierrors.IsConflict(err) {
				return err
			}
		}
	}
}

func whole(ctx context.Context, c client.Client, o client.Object) error { return c.Update(ctx, o) }
func ofStatus(ctx context.Context, c client.Client, o client.Object) error {
	return c.Status().Update(ctx, o)
}
func same[T client.Object](T) {}

// kubeAccess is the table of who may write what, by real requests: of a node's token, of the coordinator's, and of one that is bound to no pod.
func kubeAccess(t *testing.T, k *installation) {
	leader := k.awaitLeader("")
	a := actors{k: k, leader: leader, follower: others(kubeNodes, leader)[0], other: others(kubeNodes, leader)[1]}
	until(t, "the Term to name the coordinator", func() bool {
		term := &v1alpha1.Term{}
		return k.client.Get(context.Background(), client.ObjectKey{Name: v1alpha1.TermName}, term) == nil && term.Spec.Node == leader
	})
	tokens := map[string]string{
		"node": k.token(manifests.NodeAccount, k.pod("node", a.follower)), "coordinator": k.token(manifests.NodeAccount, k.pod("node", leader)),
		"unbound": k.token(manifests.NodeAccount, nil),
	}
	for _, row := range a.table() {
		for who, token := range tokens {
			c, _ := a.as(token)
			allowed := slices.Contains(row.allowed, who)
			// The policies see the Term through a cache: what the coordinator may do is eventual.
			var err error
			try := func() bool {
				err = row.try(context.Background(), c)
				return (err == nil) == allowed
			}
			if allowed {
				untilSo(t, func() string { return fmt.Sprintf("%s to be allowed to %s: %v", who, row.what, err) }, try)
			} else if !try() {
				t.Errorf("%s may %s", who, row.what)
			} else if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
				t.Errorf("%s may not %s, because: %v", who, row.what, err)
			} else if who == "unbound" && len(row.allowed) > 0 && !strings.Contains(err.Error(), signer.NodeClaim) {
				t.Errorf("%s may not %s, without the reason: %v", who, row.what, err)
			}
		}
	}
	a.secrets(t, tokens)
	a.requests(t, tokens)
}

type accessRow struct {
	what    string
	try     attempt
	allowed []string
}

func (a actors) table() []accessRow {
	none, node, coordinator, both := []string(nil), []string{"node"}, []string{"coordinator"}, []string{"node", "coordinator"}
	nodeOf := func(name string) *v1alpha1.Node { return &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	leaseOf := func(name string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: lease.Namespace, Name: name}}
	}
	settings := &v1alpha1.Settings{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SettingsName}}
	term := &v1alpha1.Term{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.TermName}}
	cordon := func(n *v1alpha1.Node) { n.Spec.Cordoned = !n.Spec.Cordoned }
	hold := func(node string) func(*coordinationv1.Lease) {
		return func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new(node + "/1/somebody") }
	}
	rows := []accessRow{
		{"write the status of its own Node", update(a, nodeOf(a.follower), same, ofStatus), both},
		{"write the status of another Node", update(a, nodeOf(a.other), same, ofStatus), coordinator},
		{"cordon its own Node", update(a, nodeOf(a.follower), cordon, whole), coordinator},
		{"cordon another Node", update(a, nodeOf(a.other), cordon, whole), coordinator},
		{"create the Node of a stranger", func(ctx context.Context, c client.Client) error { return c.Create(ctx, nodeOf("stranger")) }, none},
		// It does so when the core Node was deleted.
		{"delete a Node that has a core Node", func(ctx context.Context, c client.Client) error { return c.Delete(ctx, nodeOf(a.follower)) }, coordinator},
		{"renew its own Lease", update(a, leaseOf(lease.NameOf(a.follower)), same, whole), both},
		{"renew the Lease of another node", update(a, leaseOf(lease.NameOf(a.other)), same, whole), coordinator},
		{"fence its own epoch", update(a, leaseOf(lease.NameOf(a.follower)), func(l *coordinationv1.Lease) {
			l.Annotations[lease.FencedAnnotation] = l.Annotations[lease.EpochAnnotation]
		}, whole), coordinator},
		{"lower an epoch", update(a, leaseOf(lease.NameOf(a.follower)), func(l *coordinationv1.Lease) { l.Annotations[lease.EpochAnnotation] = "0" }, whole), none},
		{"delete its Lease", func(ctx context.Context, c client.Client) error {
			return c.Delete(ctx, leaseOf(lease.NameOf(a.follower)))
		}, none},
		{"elect the first node", update(a, leaseOf(lease.CoordinatorName), hold(a.follower), whole), node},
		{"elect the coordinator", update(a, leaseOf(lease.CoordinatorName), hold(a.leader), whole), coordinator},
		{"create a Lease elsewhere", func(ctx context.Context, c client.Client) error {
			return c.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: lease.NameOf(a.follower)}})
		}, none},
		{"name the first node in the Term", update(a, term, func(t *v1alpha1.Term) { t.Spec.Node = a.follower }, whole), node},
		{"name the coordinator in the Term", update(a, term, func(t *v1alpha1.Term) { t.Spec.Node = a.leader }, whole), coordinator},
		{"create a Drain", func(ctx context.Context, c client.Client) error {
			return c.Create(ctx, &v1alpha1.Drain{ObjectMeta: metav1.ObjectMeta{Name: "access"}, Spec: v1alpha1.DrainSpec{NodeName: a.follower}})
		}, coordinator},
		{"write the drain slot", update(a, settings, same, ofStatus), coordinator},
		{"change the Settings", update(a, settings, same, whole), none},
		{"delete the Settings", func(ctx context.Context, c client.Client) error { return c.Delete(ctx, settings) }, none},
		{"create a deployment", func(ctx context.Context, c client.Client) error {
			return c.Create(ctx, &v1alpha1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "access"}, Spec: v1alpha1.DeploymentSpec{Command: "/bin/true"}})
		}, none},
	}
	return append(rows, a.work(both, coordinator)...)
}

// work are the rows about objects of work, as the steps before left them.
func (a actors) work(both, coordinator []string) []accessRow {
	var members v1alpha1.EtcdMemberList
	if err := a.k.client.List(context.Background(), &members); err != nil {
		a.k.t.Fatal(err)
	}
	var replicas v1alpha1.ReplicaList
	if err := a.k.client.List(context.Background(), &replicas); err != nil {
		a.k.t.Fatal(err)
	}
	var rows []accessRow
	for i := range members.Items {
		m := &members.Items[i]
		allowed := coordinator
		if m.Spec.Node == a.follower {
			allowed = both
		}
		rows = append(rows, accessRow{"write the status of the etcd member on " + m.Spec.Node, update(a, m, same, ofStatus), allowed},
			accessRow{"change the etcd member on " + m.Spec.Node, update(a, m.DeepCopy(), same, whole), coordinator},
			accessRow{"delete the etcd member on " + m.Spec.Node, func(ctx context.Context, c client.Client) error { return c.Delete(ctx, m.DeepCopy()) }, coordinator})
	}
	for i := range replicas.Items {
		r := &replicas.Items[i]
		allowed := coordinator
		if r.Spec.NodeName == a.follower {
			allowed = both
		}
		rows = append(rows, accessRow{"write the status of the replica on " + r.Spec.NodeName, update(a, r, same, ofStatus), allowed})
	}
	if len(members.Items) < 3 || len(replicas.Items) < 2 {
		a.k.t.Fatalf("%d etcd members and %d replicas are too few", len(members.Items), len(replicas.Items))
	}
	feed := &v1alpha1.Changefeed{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "cf"}}
	return append(rows,
		accessRow{"make itself the maintainer of a changefeed", update(a, feed, func(f *v1alpha1.Changefeed) { f.Status.Placement.Node = a.follower; f.Status.Placement.Epoch++ }, ofStatus), coordinator},
		accessRow{"resize an etcd cluster", update(a, &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "keys"}}, same, whole), coordinator},
		accessRow{"write the status of a volume whose engine is elsewhere", update(a, &v1alpha1.Volume{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "disk"}}, same, ofStatus), coordinator},
	)
}

// secrets: nodes read the bearer token of /api/v2 and no other Secret, and least of all the authority's key.
func (a actors) secrets(t *testing.T, tokens map[string]string) {
	ctx := context.Background()
	for who, token := range tokens {
		_, typed := a.as(token)
		if _, err := typed.CoreV1().Secrets(manifests.Namespace).Get(ctx, signer.AuthorityName, metav1.GetOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("%s gets the key of the authority: %v", who, err)
		}
		if _, err := typed.CoreV1().Secrets(metav1.NamespaceDefault).Get(ctx, "any", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("%s gets a Secret: %v", who, err)
		}
		if _, err := typed.CoreV1().Secrets(manifests.Namespace).List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("%s lists Secrets: %v", who, err)
		}
	}
}

// requests: the signer signs for a node what its token names, and nothing else.
func (a actors) requests(t *testing.T, tokens map[string]string) {
	for _, c := range []struct {
		what, token, node string
		hosts             []string
		denied            string
	}{
		{"its own certificate", tokens["node"], a.follower, []string{"127.0.0.1"}, ""},
		{"a certificate of another node", tokens["node"], a.other, nil, "may not have a certificate of"},
		{"a certificate for another address", tokens["node"], a.follower, []string{"192.0.2.1"}, "is not an address of its pod"},
		{"a certificate without a bound token", tokens["unbound"], a.follower, nil, "has no claim " + signer.NodeClaim},
	} {
		_, typed := a.as(c.token)
		request, _, err := pki.NewRequest(pki.Profile{User: identity.Node(c.node), Groups: []string{identity.NodeGroup}, Hosts: c.hosts})
		if err != nil {
			t.Fatal(err)
		}
		csr, err := typed.CertificatesV1().CertificateSigningRequests().Create(context.Background(), &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "access-"},
			Spec:       certificatesv1.CertificateSigningRequestSpec{Request: request, SignerName: signer.SignerName, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		denial := ""
		until(t, "the request for "+c.what+" to be settled", func() bool {
			if csr, err = typed.CertificatesV1().CertificateSigningRequests().Get(context.Background(), csr.Name, metav1.GetOptions{}); err != nil {
				return false
			}
			for _, condition := range csr.Status.Conditions {
				if condition.Type == certificatesv1.CertificateDenied && condition.Status == corev1.ConditionTrue {
					denial = condition.Message
				}
			}
			return denial != "" || len(csr.Status.Certificate) > 0
		})
		if (c.denied == "") != (denial == "") || !strings.Contains(denial, c.denied) {
			t.Errorf("%s: denied with %q, want %q", c.what, denial, c.denied)
		}
	}
}
