package volume

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/testenv"
	"github.com/ebb-dev/ebb/internal/testlength"
	"github.com/ebb-dev/ebb/internal/volume/host"
)

// patience bounds every wait for something that should come.
const patience = 3 * time.Minute

// They have a real embedded API one after the other.
func TestOnARealAPI(t *testing.T) {
	api := testenv.StartAPI(t, Objects()...)
	for _, c := range []struct {
		behaviour string
		test      func(*testing.T, *cluster)
	}{
		{"the schema of volumes", testVolumeSchema},
		{"the schema of replicas", testReplicaSchema},
		{"what nodes may write", testNodeWrites},
		{"a volume is made, attached, moved off a cordoned node and deleted", testLifeOfAVolume},
		{"a drain releases what the policy lets go, and detaches", testDrain},
		{"a failed replica is replaced, and the last healthy one is kept", testFailures},
		{"a replica of a volume that was deleted by force stays until somebody deletes it", testOrphans},
		{"a coordinator that crashes at any step is followed by one that goes on", testCrashAtEveryStep},
	} {
		t.Run(c.behaviour, func(t *testing.T) {
			api.Empty()
			c.test(t, &cluster{t: t, api: api, admin: api.Admin()})
		})
	}
}

func rawVolume(name string, size any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "Volume",
		"metadata": map[string]any{"namespace": "default", "name": name}, "spec": map[string]any{"size": size},
	}}
}

func testVolumeSchema(t *testing.T, c *cluster) {
	ctx := context.Background()
	for i, size := range []struct {
		size any
		want string // "" for accepted
	}{
		{"64Mi", ""}, {int64(67108864), ""}, {"4096", ""}, {"16Ti", ""}, {"5Gi", ""}, {"1e9", "multiple of 4096"},
		{int64(5000), "multiple of 4096"}, {"5000", "multiple of 4096"}, {int64(0), "from 4096 bytes to 16Ti"}, {"17Ti", "from 4096 bytes to 16Ti"},
		{"-4096", "from 4096 bytes to 16Ti"}, {"1500m", "from 4096 bytes to 16Ti"}, {"much", "should be a valid quantity"},
	} {
		err := c.admin.Create(ctx, rawVolume("v"+strconv.Itoa(i), size.size))
		switch {
		case size.want == "" && err != nil:
			t.Errorf("size %v: %v", size.size, err)
		case size.want != "" && (err == nil || !apierrors.IsInvalid(err)):
			t.Errorf("size %v: %v, want it refused", size.size, err)
		case size.want != "" && !strings.Contains(err.Error(), size.want) && size.want != "should be a valid quantity":
			t.Errorf("size %v: %v, want %q", size.size, err, size.want)
		}
	}
	if err := c.admin.Create(ctx, rawVolume("Upper.case", "64Mi")); !apierrors.IsInvalid(err) {
		t.Errorf("a name that is no label: %v", err)
	}
	v := c.volume("v0")
	if v.Spec.Replicas != 3 || v.Spec.NodeAntiAffinity != v1alpha1.HardAntiAffinity || v.Spec.DiskAntiAffinity != v1alpha1.SoftAntiAffinity {
		t.Errorf("defaults: %+v", v.Spec)
	}
	refused := func(err error, words string) {
		t.Helper()
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), words) {
			t.Errorf("got %v, want %q", err, words)
		}
	}
	same := v.DeepCopy()
	same.Spec.Size = resource.MustParse("67108864") // the same in other words
	same.Spec.AttachTo = "n1"
	c.must(c.admin.Update(ctx, same))
	other := same.DeepCopy()
	other.Spec.Size = resource.MustParse("128Mi")
	refused(c.admin.Update(ctx, other), "the size of a volume cannot be changed")
	six := same.DeepCopy()
	six.Spec.Replicas = 6
	if err := c.admin.Update(ctx, six); !apierrors.IsInvalid(err) {
		t.Errorf("six replicas: %v", err)
	}
	same.Status.Generation, same.Status.Members = 7, []string{"v0-r1"}
	same.Status.Released = []v1alpha1.ReleasedReplica{{Replica: "v0-r1", Reason: v1alpha1.ReleaseForDrain, NodeEpoch: 1, DrainUID: "u"}}
	c.must(c.admin.Status().Update(ctx, same))
	back := same.DeepCopy()
	back.Status.Generation = 6
	refused(c.admin.Status().Update(ctx, back), "never goes backwards")
	back.Status.Generation = 0
	refused(c.admin.Status().Update(ctx, back), "never goes backwards")
	same.Status.Generation = 8
	c.must(c.admin.Status().Update(ctx, same))
	same.Status.Released[0].Reason = "Whim"
	if err := c.admin.Status().Update(ctx, same); !apierrors.IsInvalid(err) {
		t.Errorf("an unknown reason: %v", err)
	}
}

func testReplicaSchema(t *testing.T, c *cluster) {
	ctx := context.Background()
	r := replicaOn("data-r1", "n1")
	c.must(c.admin.Create(ctx, r))
	r.Spec.EvictionRequested = true
	c.must(c.admin.Update(ctx, r))
	for what, change := range map[string]func(*v1alpha1.ReplicaSpec){
		"node":   func(s *v1alpha1.ReplicaSpec) { s.NodeName = "n2" },
		"disk":   func(s *v1alpha1.ReplicaSpec) { s.Disk = "other" },
		"volume": func(s *v1alpha1.ReplicaSpec) { s.VolumeUID = "x" },
		"size":   func(s *v1alpha1.ReplicaSpec) { s.SizeBytes *= 2 },
	} {
		moved := r.DeepCopy()
		change(&moved.Spec)
		if err := c.admin.Update(ctx, moved); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "a replica does not move") {
			t.Errorf("another %s: %v", what, err)
		}
	}
	r.Status.State = "Odd"
	if err := c.admin.Status().Update(ctx, r); !apierrors.IsInvalid(err) {
		t.Errorf("an unknown state: %v", err)
	}
}

func replicaOn(name, node string) *v1alpha1.Replica {
	return &v1alpha1.Replica{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{v1alpha1.VolumeLabel: "data"}, Finalizers: []string{v1alpha1.ReplicaFinalizer}},
		Spec:       v1alpha1.ReplicaSpec{VolumeName: "data", VolumeUID: "u", NodeName: node, Disk: "default", SizeBytes: 4096},
	}
}

func testNodeWrites(t *testing.T, c *cluster) {
	ctx := context.Background()
	c.with("n1", "n2")
	n1 := c.api.Client(c.api.Node("n1").Kubeconfig())
	refused := func(what string, err error, words string) {
		t.Helper()
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v, want %q", what, err, words)
		}
	}
	r := replicaOn("data-r1", "n1")
	c.must(c.admin.Create(ctx, r))
	r.Status = v1alpha1.ReplicaStatus{State: v1alpha1.ReplicaReady, NodeEpoch: 1, Created: true}
	c.must(n1.Status().Update(ctx, r))
	write := r.DeepCopy()
	now := metav1.NewTime(noon)
	write.Status.HealthyAt = &now
	refused("healthyAt", n1.Status().Update(ctx, write), "may not change status.healthyAt")
	write = r.DeepCopy()
	write.Status.NodeEpoch = 2
	refused("another epoch", n1.Status().Update(ctx, write), "may not write for epoch 2")
	write = r.DeepCopy()
	write.Spec.EvictionRequested = true
	if err := n1.Update(ctx, write); !apierrors.IsForbidden(err) {
		t.Errorf("the spec: %v", err)
	}
	if err := n1.Create(ctx, replicaOn("data-r9", "n1")); !apierrors.IsForbidden(err) {
		t.Errorf("a replica of its own: %v", err)
	}
	foreign := replicaOn("data-r2", "n2")
	c.must(c.admin.Create(ctx, foreign))
	foreign.Status = v1alpha1.ReplicaStatus{State: v1alpha1.ReplicaReady, NodeEpoch: 1}
	refused("the replica of another node", n1.Status().Update(ctx, foreign), "not bound to node n1")

	v := &v1alpha1.Volume{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data"}, Spec: v1alpha1.VolumeSpec{Size: resource.MustParse("64Mi")}}
	c.must(c.admin.Create(ctx, v))
	engine := func(v *v1alpha1.Volume) *v1alpha1.Volume {
		next := v.DeepCopy()
		next.Status.Generation, next.Status.Members, next.Status.NBDURI = 5, []string{"data-r1"}, "nbd+unix:///data"
		next.Status.Engine = &v1alpha1.VolumeEngine{Node: "n1", Generation: 5, Serving: true}
		return next
	}
	refused("a detached volume", n1.Status().Update(ctx, engine(v)), `the engine of the volume is on node "", not on node n1`)
	v.Status.AttachedTo, v.Status.Generation = "n2", 4
	c.must(c.admin.Status().Update(ctx, v))
	refused("a volume on another node", n1.Status().Update(ctx, engine(v)), `on node "n2", not on node n1`)
	take := engine(v)
	take.Status.AttachedTo = "n1"
	refused("a volume that it takes", n1.Status().Update(ctx, take), `on node "n2", not on node n1`)
	for _, by := range []string{"attachedTo", "rebuildOn"} {
		v = c.volume("data")
		v.Status.AttachedTo, v.Status.RebuildOn = "n1", ""
		if by == "rebuildOn" {
			v.Status.AttachedTo, v.Status.RebuildOn = "", "n1"
		}
		c.must(c.admin.Status().Update(ctx, v))
		c.must(n1.Status().Update(ctx, engine(v)))
	}
	v = c.volume("data")
	for what, change := range map[string]func(*v1alpha1.VolumeStatus){
		"status.attachedTo": func(s *v1alpha1.VolumeStatus) { s.AttachedTo = "n1" },
		"status.released": func(s *v1alpha1.VolumeStatus) {
			s.Released = []v1alpha1.ReleasedReplica{{Replica: "data-r1", Reason: v1alpha1.ReleaseToEvict}}
		},
		"status.robustness":  func(s *v1alpha1.VolumeStatus) { s.Robustness = v1alpha1.VolumeHealthy },
		"status.nextReplica": func(s *v1alpha1.VolumeStatus) { s.NextReplica = 9 },
	} {
		write := v.DeepCopy()
		change(&write.Status)
		refused(what, n1.Status().Update(ctx, write), "may not change "+what)
	}
	lower := v.DeepCopy()
	lower.Status.Generation = 1
	if err := n1.Status().Update(ctx, lower); err == nil {
		t.Error("a node lowered the generation")
	}
	stale := v.DeepCopy()
	c.must(n1.Status().Update(ctx, func() *v1alpha1.Volume { v.Status.Generation++; return v }()))
	stale.Status.Generation += 2
	if err := n1.Status().Update(ctx, stale); !apierrors.IsConflict(err) {
		t.Errorf("over an older version: %v", err)
	}
}

// cluster is an API with nodes that are simulated here.
type cluster struct {
	t     *testing.T
	api   *testenv.API
	admin client.WithWatch
	dead  map[string]bool
}

func (c *cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// with adds nodes, Alive in epoch 1.
func (c *cluster) with(nodes ...string) {
	c.t.Helper()
	c.dead = map[string]bool{}
	for _, name := range nodes {
		n := &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		c.must(c.admin.Create(context.Background(), n))
		n.Status = v1alpha1.NodeStatus{
			Epoch: 1, Liveness: v1alpha1.Alive, Held: map[string]int64{host.KindEngines: 0, host.KindReplicas: 0},
			Conditions: []metav1.Condition{{Type: v1alpha1.NodeReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonServing, LastTransitionTime: metav1.Now()}},
			Disks:      []v1alpha1.DiskStatus{{Name: DefaultDisk, Path: "/d", UUID: name, Ready: true, TotalBytes: 10 * gib, AvailableBytes: 10 * gib}},
		}
		c.must(c.admin.Status().Update(context.Background(), n))
		c.lease(name, "process of "+name, 0)
	}
}

func (c *cluster) lease(name, holder string, fenced int64) {
	c.t.Helper()
	ctx := context.Background()
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: lease.Namespace, Name: lease.NameOf(name)}}
	err := c.admin.Get(ctx, client.ObjectKeyFromObject(l), l)
	l.Annotations = map[string]string{lease.EpochAnnotation: "1", lease.FencedAnnotation: strconv.FormatInt(fenced, 10)}
	l.Spec.HolderIdentity = nil
	if holder != "" {
		l.Spec.HolderIdentity = &holder
	}
	if apierrors.IsNotFound(err) {
		c.must(c.admin.Create(ctx, l))
		return
	}
	c.must(err)
	c.must(c.admin.Update(ctx, l))
}

// lead runs the controller until the test ends.
func (c *cluster) lead() { c.leadUntil("") }

// leadUntil runs the controller until it reaches a point, where it crashes, or until the test ends. It returns what is closed at the crash.
func (c *cluster) leadUntil(point string) <-chan struct{} {
	c.t.Helper()
	mgr, err := ctrl.NewManager(c.api.Config(c.api.Dir.Kubeconfig()), ctrl.Options{
		Scheme:         kubeclient.NewScheme(),
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return kubeclient.NewMapper(), nil },
		Metrics:        metricsserver.Options{BindAddress: "0"},
		Controller:     config.Controller{SkipNameValidation: new(true)},
	})
	c.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	crashed := make(chan struct{})
	crash := sync.OnceFunc(func() { cancel(); close(crashed) })
	controller := &Controller{
		Leader: "n1", CheckTerm: func(context.Context) error { return ctx.Err() }, Metrics: NewMetrics(prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler),
		AtStep: func(at string) {
			if at == point {
				crash()
			}
			if ctx.Err() != nil {
				panic("crashed") // it does nothing any more
			}
		},
	}
	c.must(controller.SetupWithManager(mgr))
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	c.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			c.t.Errorf("the manager: %v", err)
		}
	})
	return crashed
}

func (c *cluster) volume(name string) *v1alpha1.Volume {
	c.t.Helper()
	v := &v1alpha1.Volume{}
	if err := c.admin.Get(context.Background(), types.NamespacedName{Namespace: "default", Name: name}, v); !apierrors.IsNotFound(err) {
		c.must(err)
	}
	return v
}

func (c *cluster) replicas() []*v1alpha1.Replica {
	c.t.Helper()
	var list v1alpha1.ReplicaList
	c.must(c.admin.List(context.Background(), &list))
	var all []*v1alpha1.Replica
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	sortReplicas(all)
	return all
}

func (c *cluster) replica(name string) *v1alpha1.Replica {
	for _, r := range c.replicas() {
		if r.Name == name {
			return r
		}
	}
	return nil
}

func (c *cluster) node(name string) *v1alpha1.Node {
	c.t.Helper()
	n := &v1alpha1.Node{}
	c.must(c.admin.Get(context.Background(), types.NamespacedName{Name: name}, n))
	return n
}

// change writes an object again and again until nobody wrote in between.
func change[T client.Object](c *cluster, read func() T, status bool, change func(T)) {
	c.t.Helper()
	for {
		o := read()
		change(o)
		var err error
		if status {
			err = c.admin.Status().Update(context.Background(), o)
		} else {
			err = c.admin.Update(context.Background(), o)
		}
		if !apierrors.IsConflict(err) {
			c.must(err)
			return
		}
	}
}

func (c *cluster) cordon(node string, cordoned bool) {
	change(c, func() *v1alpha1.Node { return c.node(node) }, false, func(n *v1alpha1.Node) { n.Spec.Cordoned = cordoned })
}

func (c *cluster) set(f func(*v1alpha1.SettingsSpec)) {
	change(c, c.settings, false, func(s *v1alpha1.Settings) { f(&s.Spec) })
}

func (c *cluster) settings() *v1alpha1.Settings {
	s := &v1alpha1.Settings{}
	c.must(c.admin.Get(context.Background(), types.NamespacedName{Name: v1alpha1.SettingsName}, s))
	return s
}

// turn lets the nodes and the engine do what objects ask of them, as far as the coordinator sees it. Conflicts are for the next turn.
func (c *cluster) turn() {
	ctx := context.Background()
	v := c.volume("data")
	for _, r := range c.replicas() {
		switch was := r.Status.State; {
		case c.dead[r.Spec.NodeName] || was == v1alpha1.ReplicaFailed:
			continue
		case deleting(r) && !slices.Contains(v.Status.Members, r.Name) && was != v1alpha1.ReplicaRemoved:
			r.Status.State = v1alpha1.ReplicaRemoved
		case !deleting(r) && was == "":
			r.Status.State, r.Status.Created = v1alpha1.ReplicaReady, true
		default:
			continue
		}
		r.Status.NodeEpoch = 1
		_ = c.admin.Status().Update(ctx, r)
	}
	at := v.EngineNode()
	if at == "" || c.dead[at] {
		return
	}
	s := &v.Status
	before := s.DeepCopy()
	if s.Engine == nil {
		s.Engine = &v1alpha1.VolumeEngine{Node: at, Serving: s.AttachedTo != ""}
		s.Generation++
	}
	for _, r := range c.replicas() {
		e, member := v.ReleaseOf(r.Name), slices.Contains(s.Members, r.Name)
		switch {
		case member && len(s.Members) > 1 && (e != nil && e.Reason != v1alpha1.ReleaseForDrain || c.dead[r.Spec.NodeName] || r.Status.State == v1alpha1.ReplicaFailed):
			s.Members = slices.DeleteFunc(s.Members, func(m string) bool { return m == r.Name })
		case !member && e == nil && r.Status.State == v1alpha1.ReplicaReady && !deleting(r) && !c.dead[r.Spec.NodeName]:
			s.Members = append(s.Members, r.Name)
			slices.Sort(s.Members)
		default:
			continue
		}
		s.Generation++
		break
	}
	if s.Generation != before.Generation {
		_ = c.admin.Status().Update(ctx, v)
	}
}

// until lets the nodes take turns until something is true.
func (c *cluster) until(what string, true_ func() bool) {
	c.t.Helper()
	limit := time.Now().Add(patience)
	for !true_() {
		if time.Now().After(limit) {
			c.t.Fatalf("%s did not come: %+v\n%+v", what, c.volume("data").Status, c.replicas())
		}
		c.turn()
		time.Sleep(10 * time.Millisecond)
	}
}

// told are the reasons of the events about a replica, in the order of their names.
func (c *cluster) told(replica string) []string {
	c.t.Helper()
	var list eventsv1.EventList
	c.must(c.admin.List(context.Background(), &list))
	slices.SortFunc(list.Items, func(a, b eventsv1.Event) int { return a.EventTime.Compare(b.EventTime.Time) })
	var reasons []string
	for _, e := range list.Items {
		if e.Regarding.Kind == "Replica" && e.Regarding.Name == replica {
			reasons = append(reasons, e.Reason)
		}
	}
	return reasons
}

func (c *cluster) create(replicas int32) {
	c.t.Helper()
	c.must(c.admin.Create(context.Background(), &v1alpha1.Volume{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data"}, Spec: v1alpha1.VolumeSpec{Size: resource.MustParse("64Mi"), Replicas: replicas},
	}))
}

func (c *cluster) attach(node string) {
	change(c, func() *v1alpha1.Volume { return c.volume("data") }, false, func(v *v1alpha1.Volume) { v.Spec.AttachTo = node })
}

func testLifeOfAVolume(t *testing.T, c *cluster) {
	c.with("n1", "n2", "n3")
	c.set(func(s *v1alpha1.SettingsSpec) { s.NodeDrainPolicy = v1alpha1.BlockForEviction })
	c.lead()
	c.create(2)
	c.until("a healthy volume", func() bool { return c.volume("data").Status.Robustness == v1alpha1.VolumeHealthy })
	if got := c.volume("data").Status; !slices.Equal(got.Members, []string{"data-r1", "data-r2"}) || got.Generation != 1 || got.NextReplica != 3 {
		t.Errorf("the first members: %+v", got)
	}
	c.attach("n3")
	c.until("an attached volume", func() bool {
		return meta.IsStatusConditionTrue(c.volume("data").Status.Conditions, v1alpha1.VolumeAttached) && c.replica("data-r1").Status.HealthyAt != nil
	})
	c.cordon("n1", true)
	c.until("autoEvicting", func() bool { return c.node("n1").Status.AutoEvicting && c.replica("data-r1").Spec.EvictionRequested })
	c.until("the replica to have moved", func() bool {
		return c.replica("data-r1") == nil && slices.Equal(c.volume("data").Status.Members, []string{"data-r2", "data-r3"})
	})
	if r := c.replica("data-r3"); r.Spec.NodeName != "n3" || r.Spec.Replaces != "data-r1" {
		t.Errorf("the replacement: %+v", r.Spec)
	}
	c.until("autoEvicting to end and the release to be forgotten", func() bool {
		return !c.node("n1").Status.AutoEvicting && len(c.volume("data").Status.Released) == 0
	})
	if told := c.told("data-r1"); !slices.Equal(told, []string{"EvictionAutomatic"}) {
		t.Errorf("events: %v", told)
	}
	// Now there is no room: the replica stays and says why, and an uncordon cancels.
	c.cordon("n2", true)
	c.until("the reason", func() bool {
		cond := meta.FindStatusCondition(c.replica("data-r2").Status.Conditions, v1alpha1.ReplicaEvicting)
		return cond != nil && cond.Reason == v1alpha1.ReasonNoReplacement &&
			strings.Contains(cond.Message, "node n1: cordoned; node n2: cordoned; node n3: has replica data-r3 of the volume")
	})
	c.cordon("n2", false)
	c.until("the cancellation", func() bool { return !c.replica("data-r2").Spec.EvictionRequested && !c.node("n2").Status.AutoEvicting })
	if told := c.told("data-r2"); !slices.Equal(told, []string{"EvictionAutomatic", "EvictionCanceled"}) {
		t.Errorf("events: %v", told)
	}
	c.must(c.admin.Delete(context.Background(), c.volume("data")))
	c.until("the volume to be gone", func() bool { return c.volume("data").Name == "" && len(c.replicas()) == 0 })
}

// drain writes what a drain controller would.
func (c *cluster) drain(node string) *v1alpha1.Drain {
	c.t.Helper()
	ctx := context.Background()
	d := &v1alpha1.Drain{ObjectMeta: metav1.ObjectMeta{Name: "d-" + node}, Spec: v1alpha1.DrainSpec{NodeName: node}}
	c.must(c.admin.Create(ctx, d))
	now := metav1.Now()
	d.Status = v1alpha1.DrainStatus{Phase: v1alpha1.DrainDraining, NodeEpoch: 1, StartedAt: &now}
	c.must(c.admin.Status().Update(ctx, d))
	change(c, c.settings, true, func(s *v1alpha1.Settings) {
		s.Status.ActiveDrain = &v1alpha1.ActiveDrain{Name: d.Name, UID: string(d.UID), Node: node, NodeEpoch: 1}
	})
	change(c, func() *v1alpha1.Node { return c.node(node) }, true, func(n *v1alpha1.Node) { n.Status.Liveness = v1alpha1.Draining })
	return d
}

func (c *cluster) left(node string) (engines, replicas int64, blockers []v1alpha1.Blocker) {
	c.t.Helper()
	for i, tenant := range Tenants(c.admin) {
		left, err := tenant.Remaining(context.Background(), node)
		c.must(err)
		if i == 0 {
			engines = left.Count
		} else {
			replicas = left.Count
		}
		blockers = append(blockers, left.Blockers...)
	}
	return engines, replicas, blockers
}

func testDrain(t *testing.T, c *cluster) {
	c.with("n1", "n2", "n3")
	c.lead()
	c.create(2)
	c.until("a healthy volume", func() bool { return c.volume("data").Status.Robustness == v1alpha1.VolumeHealthy })
	c.attach("n1")
	c.until("an engine", func() bool { return c.volume("data").Status.Engine != nil })
	change(c, func() *v1alpha1.Volume { return c.volume("data") }, true, func(v *v1alpha1.Volume) {
		v.Status.Engine.Clients, v.Status.Engine.ClientNames = 1, []string{"qemu-img (pid 7)"}
	})
	c.cordon("n2", true)
	c.drain("n1")
	engines, replicas, blockers := c.left("n1")
	if engines != 1 || replicas != 1 || len(blockers) != 2 || blockers[0].Reason != BlockedClient || !strings.Contains(blockers[0].Remedy, "1 client (qemu-img (pid 7)) connected to it on node n1") {
		t.Errorf("with a client: %d engines, %d replicas, %+v", engines, replicas, blockers)
	}
	change(c, func() *v1alpha1.Volume { return c.volume("data") }, true, func(v *v1alpha1.Volume) { v.Status.Engine.Clients = 0 })
	c.until("the volume to be detached", func() bool {
		return c.volume("data").Status.AttachedTo == "" && c.volume("data").Status.DetachedFor != ""
	})
	if e, r, b := c.left("n1"); e != 0 || r != 1 || b[0].Reason != BlockedLastCopy || !strings.Contains(b[0].Remedy, "uncordon node n2") {
		t.Errorf("with the peer cordoned: %d engines, %d replicas, %+v", e, r, b)
	}
	c.cordon("n2", false)
	c.until("the release", func() bool { _, r, _ := c.left("n1"); return r == 0 })
	if e := c.volume("data").ReleaseOf("data-r1"); e == nil || e.Reason != v1alpha1.ReleaseForDrain || e.NodeEpoch != 1 || e.DrainUID == "" {
		t.Errorf("released: %+v", e)
	}
	if held, staying := host.CountReplicas("n1", 1, byUID(c.volume("data")), c.replicas()); held != 0 || staying != 1 {
		t.Errorf("the node counts %d held, %d staying", held, staying)
	}
	c.cordon("n2", true)
	c.until("the release to be revoked", func() bool { return c.volume("data").ReleaseOf("data-r1") == nil })
	change(c, c.settings, true, func(s *v1alpha1.Settings) { s.Status.ActiveDrain = nil })
	change(c, func() *v1alpha1.Node { return c.node("n1") }, true, func(n *v1alpha1.Node) { n.Status.Epoch, n.Status.Liveness = 2, v1alpha1.Alive })
	change(c, func() *coordinationv1.Lease {
		l := &coordinationv1.Lease{}
		c.must(c.admin.Get(context.Background(), types.NamespacedName{Namespace: lease.Namespace, Name: lease.NameOf("n1")}, l))
		return l
	}, false, func(l *coordinationv1.Lease) { l.Annotations[lease.EpochAnnotation] = "2" })
	c.until("the volume to be attached again", func() bool {
		return c.volume("data").Status.AttachedTo == "n1" && c.volume("data").Status.DetachedFor == ""
	})
}

func testFailures(t *testing.T, c *cluster) {
	c.with("n1", "n2", "n3")
	c.set(func(s *v1alpha1.SettingsSpec) {
		s.Volumes.ReplicaReplenishmentWait = &metav1.Duration{Duration: time.Second}
	})
	c.lead()
	c.create(2)
	c.attach("n2")
	c.until("a healthy volume", func() bool { return c.volume("data").Status.Robustness == v1alpha1.VolumeHealthy })
	c.dead["n1"] = true
	c.lease("n1", "", 1)
	change(c, func() *v1alpha1.Node { return c.node("n1") }, true, func(n *v1alpha1.Node) {
		meta.SetStatusCondition(&n.Status.Conditions, metav1.Condition{Type: v1alpha1.NodeReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonFenced})
	})
	c.until("another replica, and the failed one to be forgotten", func() bool {
		s := c.volume("data").Status
		return slices.Equal(s.Members, []string{"data-r2", "data-r3"}) && s.Robustness == v1alpha1.VolumeHealthy && c.replica("data-r1") == nil
	})
	// A person deletes both: each goes once another one is healthy.
	for _, name := range []string{"data-r2", "data-r3"} {
		c.must(c.admin.Delete(context.Background(), c.replica(name)))
	}
	c.until("one of them to have been replaced", func() bool { return c.replica("data-r2") == nil || c.replica("data-r3") == nil })
	c.until("the volume to be healthy on new replicas", func() bool {
		s := c.volume("data").Status
		return s.Robustness == v1alpha1.VolumeHealthy && c.replica("data-r2") == nil && c.replica("data-r3") == nil
	})
}

func testOrphans(t *testing.T, c *cluster) {
	ctx := context.Background()
	c.with("n1", "n2")
	orphan := replicaOn("data-r1", "n1")
	c.must(c.admin.Create(ctx, orphan))
	c.lead()
	c.create(1)
	c.until("a healthy volume", func() bool { return c.volume("data").Status.Robustness == v1alpha1.VolumeHealthy })
	if got := c.volume("data").Status; !slices.Equal(got.Members, []string{"data-r2"}) || c.replica("data-r1") == nil {
		t.Errorf("members %v, and the orphan is %v", got.Members, c.replica("data-r1"))
	}
	c.must(c.admin.Delete(ctx, c.replica("data-r1")))
	c.until("the orphan to be forgotten", func() bool { return c.replica("data-r1") == nil })
}

// testCrashAtEveryStep: the coordinator crashes before or after each of its writes, and another one comes to the same end.
func testCrashAtEveryStep(t *testing.T, c *cluster) {
	often := []string{"after-volume-number", "before-volume-set-eviction", "after-volume-release", "before-volume-delete-replica", "before-volume-forget-replica"}
	all := append([]string{
		"before-volume-hold-volume", "after-volume-create-replica", "before-volume-members", "after-volume-attach", "after-volume-set-eviction",
		"before-volume-release", "after-volume-delete-replica", "after-volume-detach", "after-volume-forget-replica", "before-volume-forget-volume",
	}, often...)
	for _, point := range testlength.Pick(often, all) {
		t.Run(point, func(t *testing.T) {
			c := &cluster{t: t, api: c.api, admin: c.admin}
			c.api.Empty()
			c.with("n1", "n2", "n3")
			c.set(func(s *v1alpha1.SettingsSpec) { s.NodeDrainPolicy = v1alpha1.BlockForEviction })
			crashed := c.leadUntil(point)
			followed := false
			until := func(what string, true_ func() bool) {
				t.Helper()
				c.until(what, func() bool {
					select {
					case <-crashed:
						if !followed {
							followed = true
							c.lead()
						}
					default:
					}
					return true_()
				})
			}
			c.create(2)
			until("a healthy volume", func() bool { return c.volume("data").Status.Robustness == v1alpha1.VolumeHealthy })
			c.attach("n3")
			until("an engine", func() bool { return c.volume("data").Status.Engine != nil })
			first := c.volume("data").Status.Members[0] // a number that a crash lost is not used again
			c.cordon("n1", true)
			until("the replica to have moved", func() bool {
				s := c.volume("data").Status
				return c.replica(first) == nil && len(s.Members) == 2 && len(s.Released) == 0
			})
			if told := c.told(first); !slices.Equal(told, []string{"EvictionAutomatic"}) {
				t.Errorf("events: %v", told)
			}
			if n := len(c.replicas()); n != 2 {
				t.Errorf("%d replicas", n)
			}
			c.must(c.admin.Delete(context.Background(), c.volume("data")))
			until("the volume to be gone", func() bool { return c.volume("data").Name == "" && len(c.replicas()) == 0 })
			if !followed {
				t.Error("it never came there")
			}
		})
	}
}
