package e2e

import (
	"context"
	"fmt"
	"net/http"
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
	"github.com/ebb-dev/ebb/internal/testenv"
)

// actors are those whose requests are tried. There is one table of what they may do, for both homes. On Kubernetes a machine has one identity,
// the token of its pod. On the embedded API it has two, one for its work and one for the election and the controllers: what one of them may do,
// the machine may do.
type actors struct {
	admin                   client.Client
	follower, other, leader string // nodes
	// identities are clients by actor: "node" is the machine of follower, "coordinator" that of leader, "stranger" is neither.
	identities map[string][]client.Client
	// embedded says which home it is.
	embedded bool
	// unnamed is what a refusal of a stranger says.
	unnamed string
}

// dry is a client whose every write is a dry run, which passes all checks and changes nothing.
func dry(t testing.TB, cfg *rest.Config) client.Client {
	t.Helper()
	c, err := kubeclient.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return client.NewDryRunClient(c)
}

// with is the configuration of somebody with a token.
func (k *installation) with(token string) *rest.Config {
	return kubeclient.Tune(&rest.Config{Host: k.kube.Config().Host, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{CAData: k.kube.Config().CAData}})
}

// typedAs is a client with a token.
func (k *installation) typedAs(token string) kubernetes.Interface {
	k.t.Helper()
	typed, err := kubernetes.NewForConfig(k.with(token))
	if err != nil {
		k.t.Fatal(err)
	}
	return typed
}

// actors of an installation: a node's token, the coordinator's, and one that is bound to no pod.
func (k *installation) actors() actors {
	k.t.Helper()
	leader := k.awaitLeader("")
	a := actors{admin: k.client, leader: leader, follower: others(kubeNodes, leader)[0], other: others(kubeNodes, leader)[1], identities: map[string][]client.Client{}, unnamed: signer.NodeClaim}
	until(k.t, "the Term to name the coordinator", func() bool {
		term := &v1alpha1.Term{}
		return k.client.Get(context.Background(), client.ObjectKey{Name: v1alpha1.TermName}, term) == nil && term.Spec.Node == leader
	})
	for who, token := range k.tokens(a) {
		a.identities[who] = []client.Client{dry(k.t, k.with(token))}
	}
	return a
}

func (k *installation) tokens(a actors) map[string]string {
	k.t.Helper()
	return map[string]string{
		"node": k.token(manifests.NodeAccount, k.pod("node", a.follower)), "coordinator": k.token(manifests.NodeAccount, k.pod("node", a.leader)),
		"stranger": k.token(manifests.NodeAccount, nil),
	}
}

// actors of an embedded cluster: the two identities of a node, those of the coordinator with its term, and nobody.
func (c *cluster) actors(nodes []string) actors {
	c.t.Helper()
	leader := c.awaitLeader("")
	a := actors{admin: c.client, embedded: true, leader: leader, follower: others(nodes, leader)[0], other: others(nodes, leader)[1], unnamed: "Unauthorized"}
	load := func(path, term string) client.Client {
		c.t.Helper()
		cfg, err := kubeclient.Load(path)
		if err != nil {
			c.t.Fatal(err)
		}
		if term != "" {
			cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return named{next, term} })
		}
		return dry(c.t, cfg)
	}
	term := &v1alpha1.Term{}
	until(c.t, "the Term to name the coordinator", func() bool {
		return c.client.Get(context.Background(), client.ObjectKey{Name: v1alpha1.TermName}, term) == nil && term.Spec.Node == leader
	})
	cfg, err := kubeclient.Load(c.dir.Kubeconfig())
	if err != nil {
		c.t.Fatal(err)
	}
	stranger := rest.AnonymousClientConfig(cfg)
	stranger.ContentType, stranger.AcceptContentTypes = cfg.ContentType, cfg.AcceptContentTypes
	a.identities = map[string][]client.Client{
		"node":        {load(c.dir.Node(a.follower).Kubeconfig(), ""), load(c.dir.Node(a.follower).CoordinatorKubeconfig(), a.follower+"/1/somebody")},
		"coordinator": {load(c.dir.Node(leader).Kubeconfig(), ""), load(c.dir.Node(leader).CoordinatorKubeconfig(), term.Spec.Identity)},
		"stranger":    {dry(c.t, stranger)},
	}
	return a
}

// named adds the term to every request, as a coordinator does.
type named struct {
	next http.RoundTripper
	term string
}

func (n named) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(identity.TermHeader, n.term)
	return n.next.RoundTrip(r)
}

// try tries every row as everybody.
func (a actors) try(t *testing.T, rows []accessRow) {
	t.Helper()
	for _, row := range rows {
		may := row.allowed
		if a.embedded && row.embedded != nil {
			may = row.embedded
		}
		for who, clients := range a.identities {
			a.tryOne(t, row, who, clients, slices.Contains(may, who))
		}
	}
}

func (a actors) tryOne(t *testing.T, row accessRow, who string, clients []client.Client, allowed bool) {
	t.Helper()
	var refusals []error
	try := func() bool {
		refusals = nil
		for _, c := range clients {
			err := row.try(context.Background(), c)
			if err == nil {
				return true
			}
			refusals = append(refusals, err)
		}
		return false
	}
	switch {
	case allowed:
		// What rests on a term or an epoch is eventual: policies see the Term through a cache, and nodes write all the time.
		untilSo(t, func() string { return fmt.Sprintf("%s to be allowed to %s: %v", who, row.what, refusals) }, try)
	case try():
		t.Errorf("%s may %s", who, row.what)
	}
	if allowed {
		return
	}
	for _, err := range refusals {
		if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) && !apierrors.IsUnauthorized(err) {
			t.Errorf("%s may not %s, because: %v", who, row.what, err)
		} else if who == "stranger" && (a.embedded || len(row.allowed) > 0) && !strings.Contains(err.Error(), a.unnamed) {
			t.Errorf("%s may not %s, without the reason: %v", who, row.what, err)
		}
	}
}

// attempt is one write.
type attempt func(ctx context.Context, c client.Client) error

// update reads an object as an administrator, changes it, and writes it as somebody. Nodes write all the time: what changed meanwhile is read again.
func update[T client.Object](a actors, o T, change func(T), write func(context.Context, client.Client, client.Object) error) attempt {
	return func(ctx context.Context, c client.Client) error {
		for {
			if err := a.admin.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
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

// kubeAccess: who may write what on Kubernetes.
func kubeAccess(t *testing.T, k *installation) {
	a := k.actors()
	a.try(t, a.table(t))
	tokens := k.tokens(a)
	k.readsSecrets(t, tokens)
	k.signsFor(t, a, tokens)
}

// Who may write what on the embedded API, by the same table.
func TestTheTableOfAccessHoldsOnTheEmbeddedAPI(t *testing.T) {
	beside(t, light)
	c := newCluster(t, testenv.Ebb(t))
	c.runUp(3)
	c.createEtcd("keys", 3).settle(3)
	c.createVolume("disk", 2)
	c.must("changefeed", "create", "cf", "--source", "datagen://?tables=2&rate=10", "--sink", "blackhole://")
	until(t, "the changefeed to be placed", func() bool {
		feed := &v1alpha1.Changefeed{}
		return c.client.Get(context.Background(), client.ObjectKey{Namespace: "default", Name: "cf"}, feed) == nil && feed.Status.Placement != nil && feed.Status.Placement.Node != ""
	})
	a := c.actors(trio)
	a.try(t, a.table(t))
}

// accessRow is one write, and who may do it.
type accessRow struct {
	what    string
	try     attempt
	allowed []string
	// embedded is who may do it on the embedded API, where that differs.
	embedded []string
}

func may(what string, try attempt, allowed []string) accessRow {
	return accessRow{what: what, try: try, allowed: allowed}
}

// onEmbedded says who may do it on the embedded API.
func (r accessRow) onEmbedded(allowed ...string) accessRow {
	r.embedded = append([]string{}, allowed...)
	return r
}

func (a actors) table(t testing.TB) []accessRow {
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
		may("write the status of its own Node", update(a, nodeOf(a.follower), same, ofStatus), both),
		may("write the status of another Node", update(a, nodeOf(a.other), same, ofStatus), coordinator),
		may("cordon its own Node", update(a, nodeOf(a.follower), cordon, whole), coordinator),
		may("cordon another Node", update(a, nodeOf(a.other), cordon, whole), coordinator),
		may("create the Node of a stranger", func(ctx context.Context, c client.Client) error { return c.Create(ctx, nodeOf("stranger")) }, none),
		// It does so when the core Node was deleted.
		may("delete a Node that has a core Node", func(ctx context.Context, c client.Client) error { return c.Delete(ctx, nodeOf(a.follower)) }, coordinator).onEmbedded(),
		may("renew its own Lease", update(a, leaseOf(lease.NameOf(a.follower)), same, whole), both),
		may("renew the Lease of another node", update(a, leaseOf(lease.NameOf(a.other)), same, whole), coordinator),
		may("fence its own epoch", update(a, leaseOf(lease.NameOf(a.follower)), func(l *coordinationv1.Lease) {
			l.Annotations[lease.FencedAnnotation] = l.Annotations[lease.EpochAnnotation] // and it is still held, which a policy cannot see
		}, whole), coordinator).onEmbedded(),
		may("lower an epoch", update(a, leaseOf(lease.NameOf(a.follower)), func(l *coordinationv1.Lease) { l.Annotations[lease.EpochAnnotation] = "0" }, whole), none),
		may("delete its Lease", func(ctx context.Context, c client.Client) error {
			return c.Delete(ctx, leaseOf(lease.NameOf(a.follower)))
		}, none),
		may("elect the first node", update(a, leaseOf(lease.CoordinatorName), hold(a.follower), whole), node),
		may("elect the coordinator", update(a, leaseOf(lease.CoordinatorName), hold(a.leader), whole), coordinator),
		may("create a Lease elsewhere", func(ctx context.Context, c client.Client) error {
			return c.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: lease.NameOf(a.follower)}})
		}, none).onEmbedded(coordinator...),
		may("name the first node in the Term", update(a, term, func(t *v1alpha1.Term) { t.Spec.Node = a.follower }, whole), node).onEmbedded(coordinator...),
		may("name the coordinator in the Term", update(a, term, func(t *v1alpha1.Term) { t.Spec.Node = a.leader }, whole), coordinator),
		may("create a Drain", func(ctx context.Context, c client.Client) error {
			return c.Create(ctx, &v1alpha1.Drain{ObjectMeta: metav1.ObjectMeta{Name: "access"}, Spec: v1alpha1.DrainSpec{NodeName: a.follower}})
		}, coordinator),
		may("write the drain slot", update(a, settings, same, ofStatus), coordinator),
		may("change the Settings", update(a, settings, same, whole), none),
		may("delete the Settings", func(ctx context.Context, c client.Client) error { return c.Delete(ctx, settings) }, none),
		may("create a deployment", func(ctx context.Context, c client.Client) error {
			return c.Create(ctx, &v1alpha1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "access"}, Spec: v1alpha1.DeploymentSpec{Command: "/bin/true"}})
		}, none),
	}
	return append(rows, a.work(t, both, coordinator)...)
}

// work are the rows about objects of work, as the steps before left them.
func (a actors) work(t testing.TB, both, coordinator []string) []accessRow {
	var members v1alpha1.EtcdMemberList
	if err := a.admin.List(context.Background(), &members); err != nil {
		t.Fatal(err)
	}
	var replicas v1alpha1.ReplicaList
	if err := a.admin.List(context.Background(), &replicas); err != nil {
		t.Fatal(err)
	}
	var rows []accessRow
	for i := range members.Items {
		m := &members.Items[i]
		allowed := coordinator
		if m.Spec.Node == a.follower {
			allowed = both
		}
		rows = append(rows, may("write the status of the etcd member on "+m.Spec.Node, update(a, m, same, ofStatus), allowed),
			may("change the etcd member on "+m.Spec.Node, update(a, m.DeepCopy(), same, whole), coordinator),
			may("delete the etcd member on "+m.Spec.Node, func(ctx context.Context, c client.Client) error { return c.Delete(ctx, m.DeepCopy()) }, coordinator))
	}
	for i := range replicas.Items {
		r := &replicas.Items[i]
		allowed := coordinator
		if r.Spec.NodeName == a.follower {
			allowed = both
		}
		rows = append(rows, may("write the status of the replica on "+r.Spec.NodeName, update(a, r, same, ofStatus), allowed))
	}
	if len(members.Items) < 3 || len(replicas.Items) < 2 {
		t.Fatalf("%d etcd members and %d replicas are too few", len(members.Items), len(replicas.Items))
	}
	feed := &v1alpha1.Changefeed{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "cf"}}
	return append(rows,
		may("make itself the maintainer of a changefeed", update(a, feed, func(f *v1alpha1.Changefeed) { f.Status.Placement.Node = a.follower; f.Status.Placement.Epoch++ }, ofStatus), coordinator),
		may("resize an etcd cluster", update(a, &v1alpha1.EtcdCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "keys"}}, same, whole), coordinator),
		may("write the status of a volume whose engine is elsewhere", update(a, &v1alpha1.Volume{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "disk"}}, same, ofStatus), coordinator),
	)
}

// readsSecrets: nodes read the bearer token of /api/v2 and no other Secret, and least of all the authority's key.
func (k *installation) readsSecrets(t *testing.T, tokens map[string]string) {
	ctx := context.Background()
	for who, token := range tokens {
		typed := k.typedAs(token)
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

// signsFor: the signer signs for a node what its token names, and nothing else.
func (k *installation) signsFor(t *testing.T, a actors, tokens map[string]string) {
	for _, c := range []struct {
		what, token, node string
		hosts             []string
		denied            string
	}{
		{"its own certificate", tokens["node"], a.follower, []string{"127.0.0.1"}, ""},
		{"a certificate of another node", tokens["node"], a.other, nil, "may not have a certificate of"},
		{"a certificate for another address", tokens["node"], a.follower, []string{"192.0.2.1"}, "is not an address of its pod"},
		{"a certificate without a bound token", tokens["stranger"], a.follower, nil, "has no claim " + signer.NodeClaim},
	} {
		typed := k.typedAs(c.token)
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
