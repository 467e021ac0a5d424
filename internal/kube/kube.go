// Package kube joins Ebb to the nodes of a Kubernetes cluster: their cordons, and what happens when they are deleted. It runs only where
// the API has core Nodes; the embedded API has none.
//
// Core spec.unschedulable is the only truth about a cordon there. Ebb's spec.cordoned and the owners in its annotation are a projection,
// which everything else in Ebb reads. A cordon that Ebb did not make begins a drain that parks the node:
//
//	kubectl cordon ──▶ Drain (Queue, park) ──▶ work moves ──▶ node parked
//	kubectl uncordon ──▶ Drain cancelled, or node unparked
package kube

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

// HasNodes asks the API whether it has core Nodes.
func HasNodes(cfg *rest.Config) (bool, error) {
	d, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return false, fmt.Errorf("discover core Nodes: %w", err)
	}
	list, err := d.ServerResourcesForGroupVersion(corev1.SchemeGroupVersion.String())
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("discover core Nodes: %w", err)
	}
	return slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == "nodes" }), nil
}

// ReadNodes reads the core Nodes by name.
func ReadNodes(ctx context.Context, r client.Reader) (map[string]*corev1.Node, error) {
	var list corev1.NodeList
	if err := r.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list core Nodes: %w", err)
	}
	nodes := map[string]*corev1.Node{}
	for i := range list.Items {
		nodes[list.Items[i].Name] = &list.Items[i]
	}
	return nodes, nil
}

// CordonOf reads the object that has the cordon of one of Ebb's nodes: its core Node if there is one, or Ebb's Node.
func CordonOf(ctx context.Context, r client.Reader, cfg *rest.Config, node *v1alpha1.Node) (client.Object, error) {
	has, err := HasNodes(cfg)
	if err != nil || !has {
		return node, err
	}
	return CoreCordonOf(ctx, r, node)
}

// CoreCordonOf is CordonOf for who knows that the API has core Nodes.
func CoreCordonOf(ctx context.Context, r client.Reader, node *v1alpha1.Node) (client.Object, error) {
	core := &corev1.Node{}
	err := r.Get(ctx, client.ObjectKey{Name: node.Name}, core)
	if kubeclient.IsMissing(err) {
		return node, nil
	}
	return core, err
}
