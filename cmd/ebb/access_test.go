package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/access"
	"github.com/ebb-dev/ebb/internal/identity"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// example is an object that is bound to a node in an epoch, and what that node writes about it.
type example struct {
	object func(name, node string) client.Object
	bind   func(o client.Object, node string, epoch int64)
	write  func(o client.Object, node string)
	// takes says that nodes may also update the object itself, to take it from each other.
	takes bool
	// anyEpoch says that the object is bound to the name of a node only.
	anyEpoch bool
}

// examples has one for every object that a kind declares.
var examples = map[string]example{
	"deployments": {
		object: func(name, node string) client.Object {
			return &v1alpha1.Deployment{ObjectMeta: named(name), Spec: v1alpha1.DeploymentSpec{Type: v1alpha1.TypeDeployment, Command: "/bin/true", Address: node}}
		},
		bind: func(o client.Object, node string, epoch int64) {
			o.(*v1alpha1.Deployment).Status.Nodes = []v1alpha1.DeploymentInstance{{Node: node, NodeEpoch: epoch, State: v1alpha1.InstanceRunning}}
		},
		write: func(o client.Object, node string) { o.(*v1alpha1.Deployment).Instance(node).PID++ },
		takes: true,
	},
	"changefeeds": {
		object: func(name, _ string) client.Object {
			return &v1alpha1.Changefeed{ObjectMeta: named(name), Spec: v1alpha1.ChangefeedSpec{Source: "datagen://?tables=1", Sink: "blackhole://"}}
		},
		bind: func(o client.Object, node string, epoch int64) {
			o.(*v1alpha1.Changefeed).Status.Placement = &v1alpha1.ChangefeedPlacement{Node: node, NodeEpoch: epoch, Epoch: 1, Phase: v1alpha1.PlacementRunning}
		},
		write: func(o client.Object, _ string) { o.(*v1alpha1.Changefeed).Status.Tables++ },
	},
	"healthevents": {
		object: func(name, node string) client.Object {
			return &v1alpha1.HealthEvent{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.HealthEventSpec{NodeName: node, CheckName: "check"}}
		},
		bind: func(client.Object, string, int64) {},
		write: func(o client.Object, _ string) {
			o.(*v1alpha1.HealthEvent).Status.NodeQuarantined = v1alpha1.Quarantined
		},
	},
	"etcdclusters": {
		object: func(name, _ string) client.Object { return &v1alpha1.EtcdCluster{ObjectMeta: named(name)} },
		bind:   func(client.Object, string, int64) {},
		write:  func(o client.Object, _ string) { o.(*v1alpha1.EtcdCluster).Status.ReadyReplicas++ },
	},
	"etcdmembers": {
		object: func(name, node string) client.Object {
			return &v1alpha1.EtcdMember{ObjectMeta: named(name), Spec: v1alpha1.EtcdMemberSpec{Cluster: "c", ClusterUID: "u", Node: node, Want: v1alpha1.EtcdMemberStop}}
		},
		bind:  func(o client.Object, _ string, epoch int64) { o.(*v1alpha1.EtcdMember).Status.NodeEpoch = epoch },
		write: func(o client.Object, _ string) { o.(*v1alpha1.EtcdMember).Status.DataBytes++ },
	},
	"etcdsnapshots": {
		object: func(name, node string) client.Object {
			return &v1alpha1.EtcdSnapshot{ObjectMeta: named(name), Spec: v1alpha1.EtcdSnapshotSpec{Cluster: "c", ClusterUID: "u", Member: "m", MemberNode: node, Nodes: []string{node}}}
		},
		bind: func(o client.Object, node string, _ int64) {
			o.(*v1alpha1.EtcdSnapshot).Status.Copies = []v1alpha1.EtcdSnapshotCopy{{Node: node}}
		},
		write: func(o client.Object, node string) {
			for i := range o.(*v1alpha1.EtcdSnapshot).Status.Copies {
				if c := &o.(*v1alpha1.EtcdSnapshot).Status.Copies[i]; c.Node == node {
					c.Error += "!"
				}
			}
		},
	},
	"volumes": {
		object: func(name, _ string) client.Object {
			return &v1alpha1.Volume{ObjectMeta: named(name), Spec: v1alpha1.VolumeSpec{Size: resource.MustParse("1Mi")}}
		},
		bind:     func(o client.Object, node string, _ int64) { o.(*v1alpha1.Volume).Status.AttachedTo = node },
		write:    func(o client.Object, _ string) { o.(*v1alpha1.Volume).Status.Generation++ },
		anyEpoch: true,
	},
	"replicas": {
		object: func(name, node string) client.Object {
			return &v1alpha1.Replica{ObjectMeta: named(name), Spec: v1alpha1.ReplicaSpec{VolumeName: "v", VolumeUID: "u", NodeName: node, Disk: "default", SizeBytes: 4096}}
		},
		bind:  func(o client.Object, _ string, epoch int64) { o.(*v1alpha1.Replica).Status.NodeEpoch = epoch },
		write: func(o client.Object, _ string) { o.(*v1alpha1.Replica).Status.Generation++ },
	},
}

func named(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "default", Name: name}
}

// caller is somebody who asks the API.
type caller struct {
	name string
	client.Client
	node        string // the node it writes for, if it is one
	coordinates bool   // it names a term that stands
}

// Every declared object, every identity that a node has, every verb, bound to the node or not, in an epoch that stands or not: what is allowed
// follows from the declaration.
func TestWhoMayWriteTheObjectsOfEveryKind(t *testing.T) {
	api := testenv.StartAPI(t, kinds.Objects()...)
	admin := api.Admin()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	held := map[string]int64{}
	for _, w := range kinds.Works() {
		held[w.Name] = 0
	}
	for _, name := range []string{"n1", "n2", "bare"} { // bare hosts nothing
		api.Node(name)
		must(admin.Create(t.Context(), &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}))
		must(admin.Create(t.Context(), leaseIn(name, 2, 0)))
		n := &v1alpha1.Node{}
		must(admin.Get(t.Context(), client.ObjectKey{Name: name}, n))
		n.Status.Epoch, n.Status.Liveness = 2, v1alpha1.Alive
		if name != "bare" {
			n.Status.Held = held
		}
		must(admin.Status().Update(t.Context(), n))
	}
	term := "n1/2/x.1"
	must(admin.Create(t.Context(), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: lease.Namespace, Name: lease.CoordinatorName}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &term},
	}))
	callers := []caller{
		{name: "viewer", Client: api.Client(api.Dir.ViewerKubeconfig())},
		{name: "node n1", Client: api.Client(api.Node("n1").Kubeconfig()), node: "n1"},
		{name: "node n2", Client: api.Client(api.Node("n2").Kubeconfig()), node: "n2"},
		{name: "node bare", Client: api.Client(api.Node("bare").Kubeconfig()), node: "bare"},
		{name: "coordinator", Client: inTerm(t, api, "n1", term), coordinates: true},
		{name: "coordinator of another node", Client: inTerm(t, api, "n2", term)},
		{name: "coordinator without a term", Client: inTerm(t, api, "n1", "")},
	}
	t.Run("what a snapshot is", func(t *testing.T) { onlyTheMembersNodeSaysWhatASnapshotIs(t, admin, callers) })
	i := 0
	for _, o := range kinds.Objects() {
		example, ok := examples[o.Resource]
		if !ok {
			t.Errorf("there is no example of %s: add one", o.Resource)
			continue
		}
		for _, who := range callers {
			for _, boundTo := range []string{"n1", "n2", "bare"} {
				for _, epoch := range []int64{2, 1} { // the lease is in epoch 2
					for _, verb := range []string{"create", "update", "status", "delete"} {
						i++
						object := example.object(fmt.Sprintf("o%d", i), boundTo)
						what := fmt.Sprintf("%s: %s %s bound to %s in epoch %d", who.name, verb, o.Resource, boundTo, epoch)
						if verb != "create" {
							must(admin.Create(t.Context(), object))
							example.bind(object, boundTo, epoch)
							must(admin.Status().Update(t.Context(), object))
						}
						var err error
						switch verb {
						case "create":
							err = who.Create(t.Context(), object)
						case "update":
							object.SetAnnotations(map[string]string{"touched": "yes"})
							err = who.Update(t.Context(), object)
						case "status":
							example.write(object, boundTo)
							err = who.Status().Update(t.Context(), object)
						case "delete":
							err = who.Delete(t.Context(), object)
						}
						if err != nil && !apierrors.IsForbidden(err) {
							t.Errorf("%s: %v", what, err)
						}
						if want := mayWrite(o, example, who, verb, boundTo, epoch); (err == nil) != want {
							t.Errorf("%s: allowed %t, want %t (%v)", what, err == nil, want, err)
						}
					}
				}
			}
		}
	}
}

// Every node that keeps a copy may write its entry, and n2 does. The facts, and why there are none, are n1's to write.
func onlyTheMembersNodeSaysWhatASnapshotIs(t *testing.T, admin client.Client, callers []caller) {
	for field, write := range map[string]func(*v1alpha1.EtcdSnapshotStatus){
		"facts": func(s *v1alpha1.EtcdSnapshotStatus) {
			s.Facts = &v1alpha1.EtcdSnapshotFacts{Revision: 7, At: metav1.NowMicro()}
		},
		"error": func(s *v1alpha1.EtcdSnapshotStatus) { s.Error = "no disk" },
	} {
		for _, who := range callers {
			s := examples["etcdsnapshots"].object(fmt.Sprintf("%s-%s", field, strings.ReplaceAll(who.name, " ", "-")), "n1").(*v1alpha1.EtcdSnapshot)
			if err := admin.Create(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			write(&s.Status)
			if who.node != "" {
				s.Status.Copies = []v1alpha1.EtcdSnapshotCopy{{Node: who.node}}
			}
			err := who.Status().Update(t.Context(), s)
			if err != nil && !apierrors.IsForbidden(err) {
				t.Errorf("%s writes %s: %v", who.name, field, err)
			}
			if want := who.node == "n1" || who.coordinates; (err == nil) != want {
				t.Errorf("%s writes %s: allowed %t, want %t (%v)", who.name, field, err == nil, want, err)
			}
		}
	}
}

// mayWrite is what a declaration means.
func mayWrite(o access.Object, x example, who caller, verb, boundTo string, epoch int64) bool {
	switch {
	case who.coordinates:
		return verb == "update" || verb == "status" || o.Coordinator == access.Both
	case who.node == "" || who.node == "bare" || o.Node == nil:
		return false
	case x.takes && verb == "update":
		return true // what a node may change there has tests of its own
	case verb != "status" || who.node != boundTo:
		return false
	case x.anyEpoch:
		return true
	case o.Node.Entries != "":
		return true // an entry has no epoch: the node holds its lease
	}
	return epoch == 2
}

func leaseIn(node string, epoch, fenced int) *coordinationv1.Lease {
	holder := "process of " + node
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: lease.Namespace, Name: lease.NameOf(node), Annotations: map[string]string{
			lease.EpochAnnotation: fmt.Sprint(epoch), lease.FencedAnnotation: fmt.Sprint(fenced),
		}},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder},
	}
}

// inTerm is the coordinator of a node, writing for a term.
func inTerm(t *testing.T, api *testenv.API, node, term string) client.Client {
	t.Helper()
	cfg := rest.CopyConfig(api.Config(api.Node(node).CoordinatorKubeconfig()))
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return termTripper{next, term} })
	c, err := kubeclient.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

type termTripper struct {
	next http.RoundTripper
	term string
}

// RoundTrip implements http.RoundTripper.
func (tt termTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	if tt.term != "" {
		r = r.Clone(r.Context())
		r.Header.Set(identity.TermHeader, tt.term)
	}
	return tt.next.RoundTrip(r)
}
