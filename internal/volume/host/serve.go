package host

import (
	"context"
	"fmt"
	"net"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/peer"
	"github.com/ebb-dev/ebb/internal/volume/block"
	"github.com/ebb-dev/ebb/internal/volume/replica"
	"github.com/ebb-dev/ebb/internal/volume/store"
)

// Protocol takes the connections of engines on other nodes.
func (h *Host) Protocol() peer.Protocol {
	return peer.Protocol{Name: replica.Protocol, Serve: func(ctx context.Context, conn net.Conn, from string) {
		if err := replica.Serve(ctx, conn, from, h.openFor); err != nil && ctx.Err() == nil {
			h.opts.Log.Debug("volume: connection of an engine ended", "node", from, "error", err)
		}
	}}
}

// openFor opens a replica for an engine on a node: only for the one on which the volume may have an engine now.
func (h *Host) openFor(ctx context.Context, from, volume, volumeUID, name string) (block.Replica, error) {
	s, namespace, err := h.local(volumeUID, name)
	if err != nil {
		return nil, err
	}
	v := &v1alpha1.Volume{}
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	if err := h.opts.Objects.Get(ctx, types.NamespacedName{Namespace: namespace, Name: volumeName(volume)}, v); err != nil {
		return nil, fmt.Errorf("whether node %s may open volume %s is not known: %w", from, volume, err)
	}
	if string(v.UID) != volumeUID || v.EngineNode() != from {
		return nil, fmt.Errorf("node %s may not open volume %s: it is attached to %q", from, volume, v.EngineNode())
	}
	return s.Connect(), nil
}

func volumeName(key string) string {
	for i := range key {
		if key[i] == '/' {
			return key[i+1:]
		}
	}
	return key
}

// local returns the store of a replica on this node. One on which a sync failed is opened anew first.
func (h *Host) local(volumeUID, name string) (*store.Store, string, error) {
	h.mu.Lock()
	var found *replicaWorker
	for _, w := range h.replicas {
		if o := w.newest(); o.Name == name && o.Spec.VolumeUID == volumeUID {
			found = w
		}
	}
	h.mu.Unlock()
	if found == nil {
		return nil, "", fmt.Errorf("%w: %s", ErrNotHere, name)
	}
	object := found.newest()
	s := found.opened()
	if s == nil {
		return nil, "", fmt.Errorf("%w: %s", ErrNotHere, name)
	}
	if s.Failure() != nil {
		d := h.disk(object.Spec.Disk)
		if d == nil || !d.Ready {
			return nil, "", fmt.Errorf("%w: disk %s is not ready", ErrNotHere, object.Spec.Disk)
		}
		var err error
		if s, err = found.open(dir(d.Path, object), object); err != nil {
			return nil, "", err
		}
	}
	return s, object.Namespace, nil
}

// dial reaches a replica of a volume, in this process or on another node.
func (h *Host) dial(ctx context.Context, v *v1alpha1.Volume, name string) (block.Replica, bool, error) {
	r := h.replicaOf(v, name)
	if r == nil {
		return nil, false, fmt.Errorf("%w: there is no Replica %s", block.ErrUnreachable, name)
	}
	if r.Status.State == v1alpha1.ReplicaFailed {
		return nil, false, fmt.Errorf("%w: %s", block.ErrMissing, r.Status.Message)
	}
	if r.Spec.NodeName == h.opts.Node {
		s, _, err := h.local(string(v.UID), name)
		if err != nil {
			return nil, true, err
		}
		return s.Connect(), true, nil
	}
	address := h.addressOf(r.Spec.NodeName)
	if address == "" {
		return nil, false, fmt.Errorf("%w: node %s has not published its address", block.ErrUnreachable, r.Spec.NodeName)
	}
	conn, err := peer.DialProtocol(ctx, h.opts.Files, address, r.Spec.NodeName, replica.Protocol)
	if err != nil {
		return nil, false, fmt.Errorf("%w: node %s: %w", block.ErrUnreachable, r.Spec.NodeName, err)
	}
	c, err := replica.NewClient(ctx, conn, key(v), string(v.UID), name)
	if err != nil {
		return nil, false, err
	}
	return c, false, nil
}

func (h *Host) addressOf(node string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := h.nodes[node]; n != nil {
		return n.Status.Address
	}
	return ""
}

// replicaOf is a replica of a volume as last seen, or nil.
func (h *Host) replicaOf(v *v1alpha1.Volume, name string) *v1alpha1.Replica {
	for _, r := range h.replicasOf(v) {
		if r.Name == name {
			return r
		}
	}
	return nil
}

// replicasOf are the replicas of a volume as last seen.
func (h *Host) replicasOf(v client.Object) []*v1alpha1.Replica {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []*v1alpha1.Replica
	for _, r := range h.others {
		if r.Spec.VolumeUID == string(v.GetUID()) {
			list = append(list, r)
		}
	}
	return list
}
