package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/access"
	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/kind"
	"github.com/ebb-dev/ebb/internal/node"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// This file is a whole kind of work: a toy is on one node, and spins there. Nothing outside of it knows toys but the line that adds toyKind
// to the kinds.

// Spinner is the object, a toy.
type Spinner struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec struct {
		Node string `json:"node,omitempty"`
	} `json:"spec"`
	Status struct {
		NodeEpoch int64  `json:"nodeEpoch,omitempty"`
		SpinsOn   string `json:"spinsOn,omitempty"`
	} `json:"status"`
}

// DeepCopyObject implements runtime.Object.
func (t *Spinner) DeepCopyObject() runtime.Object {
	out := *t
	out.ObjectMeta = *t.ObjectMeta.DeepCopy()
	return &out
}

// SpinnerList is several.
type SpinnerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Spinner `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *SpinnerList) DeepCopyObject() runtime.Object {
	out := *l
	out.Items = nil
	for i := range l.Items {
		out.Items = append(out.Items, *l.Items[i].DeepCopyObject().(*Spinner))
	}
	return &out
}

func toyKind() kind.Kind {
	return kind.Kind{
		Name:      "toys",
		Objects:   []access.Object{{Resource: "spinners", Node: &access.NodeWrites{Runtime: "toys", Bindings: []access.Binding{{Node: "spec.node", Epoch: "status.nodeEpoch"}}}}},
		Tenants:   func(r client.Reader) []drain.Tenant { return []drain.Tenant{toyTenant{r}} },
		New:       func() kind.Part { return &toyPart{} },
		Samples:   func() []client.Object { return nil },
		Summaries: summarizeToys,
	}
}

func summarizeToys(ctx context.Context, r client.Reader, _ time.Time) ([]*kind.Summary, error) {
	var list SpinnerList
	if err := r.List(ctx, &list); err != nil {
		return nil, err
	}
	s := kind.NewSummary("toy", "toys", "")
	for _, t := range list.Items {
		state := kind.Running
		if t.Status.SpinsOn == "" || t.Status.SpinsOn != t.Spec.Node {
			state = kind.State{Name: "moving", Rank: kind.Busy}
		}
		s.Add(t.Name, state, "")
	}
	return []*kind.Summary{s}, nil
}

type toyTenant struct{ r client.Reader }

func (t toyTenant) Work() drain.Work {
	return drain.Work{Name: "toys", One: "spinning toy", Many: "spinning toys"}
}

func (t toyTenant) Remaining(ctx context.Context, node string) (drain.Remaining, error) {
	var list SpinnerList
	if err := t.r.List(ctx, &list); err != nil {
		return drain.Remaining{}, err
	}
	var left drain.Remaining
	for _, toy := range list.Items {
		if toy.Spec.Node == node || toy.Status.SpinsOn == node {
			left.Count++
			left.Blockers = append(left.Blockers, v1alpha1.Blocker{Kind: "Spinner", Name: toy.Name, Reason: "Spinning", Remedy: "it moves"})
		}
	}
	return left, nil
}

type toyPart struct {
	speed int
	gate  *node.Gate
	me    string

	mu    sync.Mutex
	spins map[string]*node.Pass
}

func (p *toyPart) AddFlags(fs *pflag.FlagSet) {
	fs.IntVar(&p.speed, "toy-speed", 1, "how fast toys spin")
}

func (p *toyPart) Validate() error {
	if p.speed < 0 {
		return fmt.Errorf("--toy-speed %d: give a positive one", p.speed)
	}
	return nil
}

func (p *toyPart) Host(env kind.Env) (kind.Hosted, error) {
	p.gate, p.me, p.spins = env.Gate, env.Node, map[string]*node.Pass{}
	return kind.Hosted{Runtimes: []node.Hosted{{Runtime: p, OnLeaseDoubt: node.StopOnDoubt}}}, nil
}

func (p *toyPart) Name() string { return "toys" }
func (p *toyPart) Held() int    { return p.gate.Count("toys") }

// Run spins the toys that are placed on this node.
func (p *toyPart) Run(ctx context.Context, e *node.Epoch) error {
	for backoff.Sleep(ctx, 20*time.Millisecond) == nil {
		var list SpinnerList
		if err := e.Client.List(ctx, &list); err != nil {
			continue
		}
		for i := range list.Items {
			p.spin(ctx, e, &list.Items[i])
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, pass := range p.spins {
		pass.Leave()
		delete(p.spins, name)
	}
	return nil
}

func (p *toyPart) spin(ctx context.Context, e *node.Epoch, t *Spinner) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pass := p.spins[t.Name]
	switch {
	case t.Spec.Node != p.me && pass != nil:
		pass.Leave()
		delete(p.spins, t.Name)
	case t.Spec.Node == p.me && pass == nil:
		entered, err := p.gate.Enter("toys")
		if err != nil {
			return
		}
		t.Status.NodeEpoch, t.Status.SpinsOn = e.Number, p.me
		if e.Client.Status().Update(ctx, t) != nil {
			entered.Leave()
			return
		}
		p.spins[t.Name] = entered
	}
}

// Setup places toys on schedulable nodes.
func (p *toyPart) Setup(t kind.Term) error {
	c, live := t.Manager.GetClient(), t.Manager.GetAPIReader()
	return t.Manager.Add(manager.RunnableFunc(func(ctx context.Context) error {
		for backoff.Sleep(ctx, 20*time.Millisecond) == nil {
			f, err := fleet.Read(ctx, live)
			var list SpinnerList
			if err != nil || live.List(ctx, &list) != nil || len(f.SchedulableNodes()) == 0 {
				continue
			}
			for i := range list.Items {
				if toy := &list.Items[i]; !f.Schedulable(toy.Spec.Node) {
					toy.Spec.Node = f.SchedulableNodes()[0]
					_ = c.Update(ctx, toy) // the next look tries again
				}
			}
		}
		return nil
	}))
}

func installToys(t *testing.T, api *testenv.API) {
	t.Helper()
	crds, err := crdclient.NewForConfig(api.Config(api.Dir.Kubeconfig()))
	if err != nil {
		t.Fatal(err)
	}
	any := apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: new(true)}
	_, err = crds.CustomResourceDefinitions().Create(t.Context(), &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "spinners." + v1alpha1.GroupVersion.Group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: v1alpha1.GroupVersion.Group, Scope: apiextensionsv1.NamespaceScoped, Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: "Spinner", Plural: "spinners"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1alpha1", Served: true, Storage: true, Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": any, "status": any},
				}},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// toyNode and toyDir are the environment variables that make the test's executable run a node with toys (see TestMain): its name and its
// data directory.
const toyNode, toyDir = "EBB_TEST_TOY_NODE", "EBB_TEST_TOY_DIR"

// runToyNode is `ebb node` with one kind more.
func runToyNode(name, dir string) error {
	addToys()
	cmd := newNode()
	cmd.SetArgs([]string{"--name", name, "--data-dir", dir, "--toy-speed", "2"})
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM) // until the process ends: it may have left when the test stops it
	return cmd.ExecuteContext(ctx)
}

// addToys is the one line that a new kind needs, and its API types.
func addToys() {
	v1alpha1.Register(&Spinner{}, &SpinnerList{})
	kinds = append(kinds[:len(kinds):len(kinds)], toyKind())
}

// registerToys adds toys for one test.
func registerToys(t *testing.T) {
	before := kinds
	addToys()
	t.Cleanup(func() { kinds = before })
}

func startToyNode(t *testing.T, api *testenv.API, name string) {
	t.Helper()
	api.Node(name)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), toyNode+"="+name, toyDir+"="+string(api.Dir))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have left
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Errorf("node %s: %v\n%s", name, err, out.String())
		}
	})
}

func TestAKindThatIsRegisteredIsPlacedCountedDrainedShownAndGuarded(t *testing.T) {
	registerToys(t)
	api := testenv.StartAPI(t, kinds.Objects()...)
	installToys(t, api)
	admin := api.Admin()
	for _, name := range []string{"n1", "n2", "n3"} {
		startToyNode(t, api, name)
	}
	key := types.NamespacedName{Namespace: "default", Name: "top"}
	toy := func() *Spinner {
		got := &Spinner{}
		_ = admin.Get(t.Context(), key, got) // empty if it is not there
		return got
	}
	untilHolds(t, "a toy", func() bool {
		err := admin.Create(t.Context(), &Spinner{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}})
		if err != nil {
			t.Log(err)
		}
		return err == nil
	})
	untilHolds(t, "the toy to spin where it is placed", func() bool { return toy().Status.SpinsOn != "" && toy().Status.SpinsOn == toy().Spec.Node })
	on := toy().Spec.Node

	status := func() (held, line string) {
		s, err := readStatus(t.Context(), admin, time.Now)
		if err != nil {
			return "", err.Error()
		}
		for _, n := range s.Nodes {
			if n.Name == on {
				held = kinds.Works().Listed(n.Held)
			}
		}
		for _, k := range s.Kinds {
			line += k.Line(true)
		}
		return held, line
	}
	untilHolds(t, "the toy to be counted and shown", func() bool {
		held, line := status()
		return held == "1 spinning toy" && line == "1 toy: as it should be"
	})

	for _, name := range []string{"n1", "n2", "n3"} {
		c := api.Client(api.Node(name).Kubeconfig())
		if err := c.Delete(t.Context(), toy()); !apierrors.IsForbidden(err) {
			t.Errorf("node %s deletes a toy: %v", name, err)
		}
		if err := c.Create(t.Context(), &Spinner{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "mine"}}); !apierrors.IsForbidden(err) {
			t.Errorf("node %s creates a toy: %v", name, err)
		}
		if err := c.Update(t.Context(), toy()); !apierrors.IsForbidden(err) {
			t.Errorf("node %s updates a toy: %v", name, err)
		}
		changed := toy()
		changed.Status.SpinsOn = name
		if err := c.Status().Update(t.Context(), changed); apierrors.IsForbidden(err) != (name != on) {
			t.Errorf("node %s writes the status of a toy on %s: %v", name, on, err)
		}
		changed = toy()
		changed.Status.NodeEpoch++
		if err := c.Status().Update(t.Context(), changed); !apierrors.IsForbidden(err) {
			t.Errorf("node %s writes for an epoch that has not begun: %v", name, err)
		}
	}

	leader := ""
	untilHolds(t, "a coordinator", func() bool {
		s, err := readStatus(t.Context(), admin, time.Now)
		if err == nil {
			leader = s.Coordinator
		}
		return leader != ""
	})
	if leader == on { // a coordinator is not drained: the toy is put elsewhere by hand
		other := map[string]string{"n1": "n2", "n2": "n3", "n3": "n1"}[on]
		untilHolds(t, "the toy to be moved by hand", func() bool {
			moved := toy()
			moved.Spec.Node = other
			return admin.Update(t.Context(), moved) == nil
		})
		untilHolds(t, "the toy to spin there", func() bool { return toy().Status.SpinsOn == other })
		on = other
	}
	d := &v1alpha1.Drain{ObjectMeta: metav1.ObjectMeta{Name: "toys"}, Spec: v1alpha1.DrainSpec{NodeName: on}}
	if err := admin.Create(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	untilHolds(t, "the node to be empty", func() bool {
		return admin.Get(t.Context(), types.NamespacedName{Name: "toys"}, d) == nil && d.Status.Phase == v1alpha1.DrainComplete
	})
	if d.Status.Initial["toys"] != 1 {
		t.Errorf("the drain began with %v", d.Status.Initial)
	}
	untilHolds(t, "the toy to spin on another node", func() bool { return toy().Spec.Node != on && toy().Status.SpinsOn == toy().Spec.Node })
}

func untilHolds(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testenv.Patience); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for %s", testenv.Patience, what)
		}
	}
}
