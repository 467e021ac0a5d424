package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster/snapshot"
	"github.com/ebb-dev/ebb/internal/etcdcluster/wire"
	"github.com/ebb-dev/ebb/internal/peer"
)

const (
	// pieceSize is how much of a snapshot goes in one message.
	pieceSize = 1 << 20
	// stallLimit is how long nothing may come before a copy is given up. Before the first piece the sender reads the whole file.
	stallLimit = 30 * time.Second
	// sendsAtOnce bounds the copies that a node sends.
	sendsAtOnce = 4
)

// copies lets other nodes fetch the snapshots of this one.
type copies struct {
	wire.UnimplementedSnapshotsServer
	host *Host
}

// Fetch implements wire.SnapshotsServer. Which file it is comes from the objects that this node knows, not from whoever asks.
func (c *copies) Fetch(req *wire.FetchRequest, out grpc.ServerStreamingServer[wire.Piece]) error {
	h := c.host
	h.mu.Lock()
	s := h.snapshots[types.NamespacedName{Namespace: req.Namespace, Name: req.Name}]
	h.mu.Unlock()
	if s == nil || string(s.UID) != req.Uid || s.Status.Facts == nil {
		return status.Errorf(codes.NotFound, "node %s knows of no snapshot %s/%s", h.opts.Node, req.Namespace, req.Name)
	}
	select {
	case h.sends <- struct{}{}:
		defer func() { <-h.sends }()
	default:
		return status.Errorf(codes.ResourceExhausted, "node %s sends %d copies already", h.opts.Node, sendsAtOnce)
	}
	file, err := h.store.Open(keyOfSnapshot(s), s.Status.Facts.Size, s.Status.Facts.SHA256)
	if err != nil {
		h.distrust(out.Context(), s, err)
		return status.Errorf(codes.DataLoss, "the copy of node %s: %v", h.opts.Node, err)
	}
	defer file.Close()
	piece := make([]byte, pieceSize)
	for {
		n, err := io.ReadFull(file, piece)
		if n > 0 {
			if err := out.Send(&wire.Piece{Data: piece[:n]}); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return status.Error(codes.Internal, err.Error())
		}
	}
}

// distrust tells that the copy of this node is not good.
func (h *Host) distrust(ctx context.Context, s *v1alpha1.EtcdSnapshot, bad error) {
	h.opts.Metrics.failed.WithLabelValues(stepVerify).Inc()
	h.opts.Log.Error("snapshot is not what was recorded", "snapshot", s.Namespace+"/"+s.Name, "error", bad)
	a := h.current()
	if a == nil {
		return
	}
	if err := a.writeCopy(ctx, s, bad); err != nil {
		h.opts.Log.Warn("a bad snapshot was not told of", "snapshot", s.Namespace+"/"+s.Name, "error", err)
	}
}

// fetchFrom brings a copy from one node and compares it with the facts.
func (a *era) fetchFrom(ctx context.Context, name string, s *v1alpha1.EtcdSnapshot, temp string) error {
	n := &v1alpha1.Node{}
	if err := a.e.Cache.Get(ctx, types.NamespacedName{Name: name}, n); err != nil {
		return err
	}
	if n.Status.Address == "" {
		return fmt.Errorf("it has not told its address")
	}
	conn, err := peer.Dial(a.opts.Files, n.Status.Address, name)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := time.AfterFunc(stallLimit, func() { cancel(fmt.Errorf("nothing came for %s", stallLimit)) })
	defer stall.Stop()
	in, err := wire.NewSnapshotsClient(conn).Fetch(ctx, &wire.FetchRequest{Namespace: s.Namespace, Name: s.Name, Uid: string(s.UID)})
	if err != nil {
		return err
	}
	r, err := snapshot.Receive(temp, s.Status.Facts.Size, s.Status.Facts.SHA256)
	if err != nil {
		return err
	}
	defer r.Close()
	for {
		piece, err := in.Recv()
		if errors.Is(err, io.EOF) {
			return r.Finish()
		}
		if err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		stall.Reset(stallLimit)
		if _, err := r.Write(piece.Data); err != nil {
			return err
		}
	}
}
