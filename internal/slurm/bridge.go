package slurm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/config"
	"github.com/ebb-dev/ebb/internal/cordon"
	"github.com/ebb-dev/ebb/internal/kube"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

// Finalizer keeps a request until its node is resumed, if that is needed.
const Finalizer = "slurm.ebb.dev/drain"

// DefaultPoll is how often a bridge asks Slurm about its nodes.
const DefaultPoll = time.Second

// coreEvery is how often it is looked whether core Nodes on which Ebb does not run are in service again.
const coreEvery = 15 * time.Second

// Resource is the type of the requests.
var Resource = schema.GroupVersionResource{Group: "slurm.ebb.dev", Version: "v1alpha1", Resource: "slurmdrainrequests"}

// Options make a bridge.
type Options struct {
	// Config of the API.
	Config *rest.Config
	// Namespace of the requests.
	Namespace string
	// Slurm is how it talks to Slurm.
	Slurm Commands
	// Names maps nodes.
	Names *Names
	// Poll is how often the bridge asks Slurm about its nodes: it has no watch.
	Poll time.Duration
	// Log of the bridge.
	Log *slog.Logger
}

// Bridge serves SlurmDrainRequests.
type Bridge struct {
	Options
	requests dynamic.ResourceInterface
	objects  dynamic.Interface
	ebb      client.Client
	said     map[string]string // the last problem of each request that was logged
	coreRead time.Time         // when core Nodes were read

	names []string // of all nodes in Ebb and in requests, once they are needed in a look

	active map[string]bool // nodes of requests that have not ended and are not deleted, as of the last look
	// nodes of Slurm, or why they could not be read, as of the last look.
	nodes   map[string]Node
	nodeErr error
}

// New makes a bridge.
func New(o Options) (*Bridge, error) {
	objects, err := dynamic.NewForConfig(o.Config)
	if err != nil {
		return nil, err
	}
	ebb, err := kubeclient.New(o.Config)
	if err != nil {
		return nil, err
	}
	return &Bridge{Options: o, objects: objects, ebb: ebb, requests: objects.Resource(Resource).Namespace(o.Namespace), said: map[string]string{}, active: map[string]bool{}}, nil
}

// Install creates the definition of the requests, unless it is there.
func Install(ctx context.Context, cfg *rest.Config) error {
	crds, err := config.SlurmCRDs()
	if err != nil {
		return err
	}
	c, err := crdclient.NewForConfig(cfg)
	if err != nil {
		return err
	}
	for _, crd := range crds {
		if _, err := c.CustomResourceDefinitions().Create(ctx, crd, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create CustomResourceDefinition %s: %w", crd.Name, err)
		}
		err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			now, err := c.CustomResourceDefinitions().Get(ctx, crd.Name, metav1.GetOptions{})
			return err == nil && slices.ContainsFunc(now.Status.Conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
				return c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
			}), nil
		})
		if err != nil {
			return fmt.Errorf("CustomResourceDefinition %s is not served: %w", crd.Name, err)
		}
	}
	return nil
}

// Run serves requests until ctx ends. It looks at all of them when one changes, and again after each Poll.
func (b *Bridge) Run(ctx context.Context) error {
	changed := make(chan struct{}, 1)
	wake := func(any) {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	informer := dynamicinformer.NewFilteredDynamicInformer(b.objects, Resource, b.Namespace, 0, cache.Indexers{}, nil).Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: wake, UpdateFunc: func(_, o any) { wake(o) }, DeleteFunc: wake}); err != nil {
		return err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	go informer.RunWithContext(running)
	ticks := time.NewTicker(b.Poll)
	defer ticks.Stop()
	for {
		if err := b.Look(ctx); err != nil && ctx.Err() == nil {
			b.problem("", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-ticks.C:
		}
	}
}

// problem logs what is wrong with a request, once.
func (b *Bridge) problem(key string, err error) {
	if b.said[key] != err.Error() {
		b.said[key] = err.Error()
		b.Log.Warn("trying again", "request", key, "error", err)
	}
}

// Look takes every request one step further, and resumes nodes that are in service again.
func (b *Bridge) Look(ctx context.Context) error {
	list, err := b.requests.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	b.readNodes(ctx)
	b.names = nil
	wanted := map[string]bool{} // nodes of requests
	clear(b.active)
	for i := range list.Items {
		r := &list.Items[i]
		if name, err := b.Names.Slurm(nodeOf(r)); err == nil {
			wanted[name] = true
			if r.GetDeletionTimestamp() == nil && !hasEnded(r) {
				b.active[name] = true
			}
		}
	}
	for i := range list.Items {
		r := &list.Items[i]
		key := r.GetNamespace() + "/" + r.GetName()
		switch err := b.advance(ctx, key, r); {
		case err == nil || apierrors.IsConflict(err) || apierrors.IsNotFound(err):
			delete(b.said, key)
		default:
			b.problem(key, err)
		}
	}
	return b.resumeReturned(ctx, wanted)
}

// readNodes asks Slurm about all nodes with one command.
func (b *Bridge) readNodes(ctx context.Context) { b.nodes, b.nodeErr = b.Slurm.Nodes(ctx) }

// reread asks Slurm about one node.
func (b *Bridge) reread(ctx context.Context, name string) (Node, error) {
	n, err := b.Slurm.Node(ctx, name)
	switch {
	case errors.Is(err, ErrUnknownNode):
		delete(b.nodes, name)
	case err != nil:
		b.nodeErr = err // the next look asks about all of them
	default:
		b.nodes[name] = n
	}
	return n, err
}

// node is what Slurm said of a node.
func (b *Bridge) node(name string) (Node, error) {
	if b.nodeErr != nil {
		return Node{}, b.nodeErr
	}
	n, ok := b.nodes[name]
	if !ok {
		return Node{}, fmt.Errorf("%w: %s", ErrUnknownNode, name)
	}
	return n, nil
}

// advance takes steps about a request until it waits for something.
func (b *Bridge) advance(ctx context.Context, key string, r *unstructured.Unstructured) error {
	for range 5 {
		step, err := b.decide(ctx, key, r)
		if err != nil {
			return err
		}
		again, err := b.take(ctx, key, r, step)
		if err != nil || !again {
			return err
		}
		if step.Action == Drain {
			b.readNodes(ctx)
		}
		if r, err = b.requests.Get(ctx, r.GetName(), metav1.GetOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// decide decides about a request. Somebody may change a node in Slurm at any time, and Slurm has no change that depends on the state before it. So a
// node is read again directly before it is drained or resumed, and decided about again.
func (b *Bridge) decide(ctx context.Context, key string, r *unstructured.Unstructured) (Step, error) {
	var step Step
	for range 5 {
		seen := b.see(ctx, key, r)
		step = Next(seen)
		if step.Action == Drain {
			var err error
			if seen.Namesake, err = b.namesake(ctx, r); err != nil {
				return report(InProgress, "True", "NodesUnknown", "Waiting for the names of all nodes, to see whether another one has the same name in Slurm: %v", err), ctx.Err()
			}
			step = Next(seen)
		}
		if step.Action != Drain && step.Action != Resume {
			return step, nil
		}
		name, _ := b.Names.Slurm(nodeOf(r))
		seen.Node, seen.Err = b.reread(ctx, name)
		if Next(seen) == step {
			return step, nil
		}
		// Otherwise all of it is decided again: the jobs were not read if the node was not drained.
	}
	return Step{Action: Nothing}, nil
}

// namesake is another node, in Ebb or in a request, that has the same name in Slurm as that of a request.
func (b *Bridge) namesake(ctx context.Context, r *unstructured.Unstructured) (string, error) {
	mine := nodeOf(r)
	name, err := b.Names.Slurm(mine)
	if err != nil {
		return "", err
	}
	return b.otherOf(ctx, mine, name)
}

// otherOf is a node other than one that has a name in Slurm.
func (b *Bridge) otherOf(ctx context.Context, node, name string) (string, error) {
	if b.names == nil {
		var err error
		if b.names, err = b.allNames(ctx); err != nil {
			return "", err
		}
	}
	for _, other := range b.names {
		if its, err := b.Names.Slurm(other); other != node && err == nil && its == name {
			return other, nil
		}
	}
	return "", nil
}

// allNames are the names of all nodes in Ebb and in requests, sorted.
func (b *Bridge) allNames(ctx context.Context) ([]string, error) {
	names := []string{}
	list, err := b.requests.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		names = append(names, nodeOf(&list.Items[i]))
	}
	var nodes v1alpha1.NodeList
	if err := b.ebb.List(ctx, &nodes); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	for i := range nodes.Items {
		names = append(names, nodes.Items[i].Name)
	}
	has, err := kube.HasNodes(b.Config)
	if err != nil {
		return nil, err
	}
	if has {
		core := metav1.PartialObjectMetadataList{}
		core.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
		if err := b.ebb.List(ctx, &core); err != nil {
			return nil, fmt.Errorf("list core Nodes: %w", err)
		}
		for i := range core.Items {
			names = append(names, core.Items[i].Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

func nodeOf(r *unstructured.Unstructured) string {
	name, _, _ := unstructured.NestedString(r.Object, "spec", "nodeName")
	return name
}

// hasEnded reports whether a request is complete or has failed.
func hasEnded(r *unstructured.Unstructured) bool {
	return conditionOf(r, Complete)["status"] == "True" || conditionOf(r, Failed)["status"] == "True"
}

// see reads what Slurm says about a request.
func (b *Bridge) see(ctx context.Context, key string, r *unstructured.Unstructured) Request {
	seen := Request{
		Key: key, Deleted: r.GetDeletionTimestamp() != nil, Held: slices.Contains(r.GetFinalizers(), Finalizer),
		Done: conditionOf(r, Complete)["status"] == "True", Failed: conditionOf(r, Failed)["status"] == "True",
		Started: conditionOf(r, InProgress)["status"] == "True" && conditionOf(r, InProgress)["reason"] == Started,
	}
	if !seen.Deleted && (seen.Done || seen.Failed) {
		return seen
	}
	var name string
	if name, seen.Err = b.Names.Slurm(nodeOf(r)); seen.Err != nil {
		return seen
	}
	seen.Followed = seen.Deleted && b.active[name]
	// A node that is drained gets no new jobs, so that jobs are read after the state, and only then.
	if seen.Node, seen.Err = b.node(name); seen.Err == nil && seen.Node.Drain {
		seen.Jobs, seen.Err = b.Slurm.Jobs(ctx, name)
	}
	return seen
}

// take does what a step says, and returns whether there may be another one at once.
func (b *Bridge) take(ctx context.Context, key string, r *unstructured.Unstructured, s Step) (again bool, err error) {
	name, _ := b.Names.Slurm(nodeOf(r))
	switch s.Action {
	case Hold:
		r.SetFinalizers(append(r.GetFinalizers(), Finalizer))
		_, err := b.requests.Update(ctx, r, metav1.UpdateOptions{})
		return true, err
	case Drain:
		b.Log.Info("draining a node", "request", key, "node", nodeOf(r), "slurm", name)
		return true, b.Slurm.Drain(ctx, name, ReasonOf(key))
	case Resume:
		b.Log.Info("resuming a node: its request was deleted before it was complete", "request", key, "node", nodeOf(r), "slurm", name)
		if err := b.Slurm.Resume(ctx, name); err != nil {
			return false, err
		}
		return false, b.release(ctx, r)
	case Release:
		return false, b.release(ctx, r)
	case Report:
		changed, err := b.report(ctx, key, r, name, s)
		return changed && s.Reason == Started, err
	}
	return false, nil
}

func (b *Bridge) release(ctx context.Context, r *unstructured.Unstructured) error {
	r.SetFinalizers(slices.DeleteFunc(r.GetFinalizers(), func(f string) bool { return f == Finalizer }))
	_, err := b.requests.Update(ctx, r, metav1.UpdateOptions{})
	return err
}

// report writes a condition, if it says something new.
func (b *Bridge) report(ctx context.Context, key string, r *unstructured.Unstructured, node string, s Step) (changed bool, err error) {
	old := conditionOf(r, s.Type)
	if old["status"] == s.Status && old["reason"] == s.Reason && old["message"] == s.Message {
		return false, nil
	}
	list, _, _ := unstructured.NestedSlice(r.Object, "status", "conditions")
	next := []any{map[string]any{"type": s.Type, "status": s.Status, "reason": s.Reason, "message": s.Message, "lastTransitionTime": time.Now().UTC().Format(time.RFC3339)}}
	for _, c := range list {
		if m, ok := c.(map[string]any); ok && m["type"] != s.Type {
			next = append(next, c)
		}
	}
	if err := errors.Join(unstructured.SetNestedSlice(r.Object, next, "status", "conditions"), unstructured.SetNestedField(r.Object, node, "status", "slurmNode")); err != nil {
		return false, err
	}
	_, err = b.requests.UpdateStatus(ctx, r, metav1.UpdateOptions{})
	if err == nil && (old["reason"] != s.Reason || s.Type != InProgress) {
		b.Log.Info("reported", "request", key, "condition", s.Type, "reason", s.Reason, "message", s.Message)
	}
	return err == nil, err
}

func conditionOf(r *unstructured.Unstructured, kind string) map[string]any {
	list, _, _ := unstructured.NestedSlice(r.Object, "status", "conditions")
	for _, c := range list {
		if m, ok := c.(map[string]any); ok && m["type"] == kind {
			return m
		}
	}
	return nil
}

// resumeReturned resumes nodes that finished requests drained, when they are in service again.
func (b *Bridge) resumeReturned(ctx context.Context, wanted map[string]bool) error {
	if b.nodeErr != nil {
		return b.nodeErr
	}
	left := false // a node that a finished request drained
	for name, n := range b.nodes {
		left = left || Returned(n) && !wanted[name]
	}
	if !left {
		return nil
	}
	names, err := b.inService(ctx)
	if err != nil {
		return err
	}
	for _, node := range names {
		name, err := b.Names.Slurm(node)
		if err != nil || wanted[name] {
			continue
		}
		state, err := b.node(name)
		if errors.Is(err, ErrUnknownNode) {
			continue // not a node of Slurm
		}
		if err != nil {
			return err
		}
		if !Returned(state) {
			continue
		}
		if other, err := b.otherOf(ctx, node, name); err != nil || other != "" {
			if err == nil {
				b.problem(node, fmt.Errorf("node %s is not resumed in Slurm: nodes %s and %s have that name there; correct --node-table or --node-rule", name, node, other))
				continue
			}
			return err
		}
		if state, err = b.reread(ctx, name); err != nil {
			return err
		}
		if Returned(state) {
			b.Log.Info("resuming a node that is in service again", "node", node, "slurm", name, "reason", state.Reason)
			if err := b.Slurm.Resume(ctx, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// inService reads which nodes are in service.
func (b *Bridge) inService(ctx context.Context) ([]string, error) {
	var nodes v1alpha1.NodeList
	if err := b.ebb.List(ctx, &nodes); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	core, err := b.readCore(ctx)
	if err != nil {
		return nil, err
	}
	return InService(nodes.Items, core), nil
}

// readCore reads the core Nodes where the API has them. There may be thousands, so that it does so only now and then.
func (b *Bridge) readCore(ctx context.Context) ([]corev1.Node, error) {
	if time.Since(b.coreRead) < coreEvery {
		return nil, nil
	}
	has, err := kube.HasNodes(b.Config)
	if err != nil {
		return nil, err
	}
	var core corev1.NodeList
	if has {
		if err := b.ebb.List(ctx, &core); err != nil {
			return nil, fmt.Errorf("list core Nodes: %w", err)
		}
	}
	b.coreRead = time.Now()
	return core.Items, nil
}

// InService are the names of the nodes that are in service, sorted: those that are Alive, Ready and not cordoned, and of the core Nodes on which
// Ebb does not run those that are Ready and not cordoned.
func InService(nodes []v1alpha1.Node, core []corev1.Node) []string {
	known, names := map[string]bool{}, []string(nil)
	for i := range nodes {
		n := &nodes[i]
		known[n.Name] = true
		if n.Schedulable() {
			names = append(names, n.Name)
		}
	}
	for i := range core {
		n := &core[i]
		ready := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
		if !known[n.Name] && ready && !cordon.Is(n) {
			names = append(names, n.Name)
		}
	}
	slices.Sort(names)
	return names
}
