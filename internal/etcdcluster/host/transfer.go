package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
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
	// pieceSize is how much of a snapshot one message carries.
	pieceSize = 1 << 20
	// stallLimit is how long the receiver waits for the next piece.
	stallLimit = 30 * time.Second
	// aliveEvery is how often the sender sends an empty piece while it reads the whole file before it sends the first.
	aliveEvery = 5 * time.Second
	// receivedEvery is how often a snapshot that is taken, or a copy on its way, reports how far it is.
	receivedEvery = 5 * time.Second
	// reachLimit is how long a node has to answer another one in a trial. The answer to the coordinator is final.
	reachLimit = 10 * time.Second
	// sendsAtOnce bounds the copies that a node sends at a time.
	sendsAtOnce = 4
	// sendWait bounds how long the next one waits for its turn: those that are being sent may hang.
	sendWait = 2 * time.Minute
)

// copies serves the snapshots of this node to other nodes.
type copies struct {
	wire.UnimplementedSnapshotsServer
	host *Host
}

// Fetch implements wire.SnapshotsServer. The path of the file comes from the objects that this node knows, never from the request.
func (c *copies) Fetch(req *wire.FetchRequest, out grpc.ServerStreamingServer[wire.Piece]) error {
	h := c.host
	h.mu.Lock()
	s := h.snapshots[types.NamespacedName{Namespace: req.Namespace, Name: req.Name}]
	h.mu.Unlock()
	if s == nil || string(s.UID) != req.Uid || s.Status.Facts == nil {
		return status.Errorf(codes.NotFound, "node %s has no snapshot %s/%s", h.opts.Node, req.Namespace, req.Name)
	}
	if err := c.await(out); err != nil {
		return err
	}
	defer func() { <-h.sends }()
	file, err := c.open(s, out)
	if err != nil && out.Context().Err() != nil {
		return err
	}
	if err != nil {
		h.distrust(out.Context(), s, err)
		return status.Errorf(codes.DataLoss, "copy of node %s: %v", h.opts.Node, err)
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

// await waits for a place among the copies that are being sent, and lets the receiver know meanwhile that it goes on. A node that is busy is no reason to
// give a copy up: many clusters may stop at the same time of a schedule.
func (c *copies) await(out grpc.ServerStreamingServer[wire.Piece]) error {
	late := time.NewTimer(sendWait)
	defer late.Stop()
	alive := time.NewTicker(aliveEvery)
	defer alive.Stop()
	for {
		select {
		case <-late.C:
			return status.Errorf(codes.ResourceExhausted, "node %s has been sending %d other copies for %s", c.host.opts.Node, sendsAtOnce, sendWait)
		case c.host.sends <- struct{}{}:
			return nil
		case <-out.Context().Done():
			return status.FromContextError(out.Context().Err()).Err()
		case <-alive.C:
			if err := out.Send(&wire.Piece{}); err != nil {
				return err
			}
		}
	}
}

// open verifies the file, however long that takes, and lets the receiver know meanwhile that it goes on.
func (c *copies) open(s *v1alpha1.EtcdSnapshot, out grpc.ServerStreamingServer[wire.Piece]) (*os.File, error) {
	type opened struct {
		file *os.File
		err  error
	}
	done := make(chan opened, 1)
	go func() {
		file, err := c.host.store.Open(keyOfSnapshot(s), s.Status.Facts.Size, s.Status.Facts.SHA256)
		done <- opened{file, err}
	}()
	alive := time.NewTicker(aliveEvery)
	defer alive.Stop()
	for {
		select {
		case o := <-done:
			return o.file, o.err
		case <-alive.C:
			if err := out.Send(&wire.Piece{}); err != nil {
				go func() { // it still reads
					if o := <-done; o.file != nil {
						o.file.Close()
					}
				}()
				return nil, err
			}
		}
	}
}

// distrust reports that the copy of this node is bad.
func (h *Host) distrust(ctx context.Context, s *v1alpha1.EtcdSnapshot, bad error) {
	h.opts.Metrics.failed.WithLabelValues(stepVerify).Inc()
	h.opts.Log.Error("snapshot file differs from what was recorded", append(logged(s), "error", bad)...)
	r := h.current()
	if r == nil {
		return
	}
	if err := r.writeCopy(ctx, s, bad); err != nil {
		h.opts.Log.Warn("could not report a bad copy of a snapshot", append(logged(s), "error", err)...)
	}
}

// dial connects to another node.
func (r *epochRun) dial(ctx context.Context, name string) (*grpc.ClientConn, error) {
	n := &v1alpha1.Node{}
	if err := r.epoch.Cache.Get(ctx, types.NamespacedName{Name: name}, n); err != nil {
		return nil, err
	}
	if n.Status.Address == "" {
		return nil, errors.New("the node has not published its address")
	}
	return peer.Dial(r.opts.Files, n.Status.Address, name)
}

// reach finds out whether a copy could be fetched from a node. It asks for one that does not exist.
func (r *epochRun) reach(ctx context.Context, name string, s *v1alpha1.EtcdSnapshot) error {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(r.opts.ReachLimit, reachLimit))
	defer cancel()
	conn, err := r.dial(ctx, name)
	if err != nil {
		return err
	}
	defer conn.Close()
	in, err := wire.NewSnapshotsClient(conn).Fetch(ctx, &wire.FetchRequest{Namespace: s.Namespace, Name: s.Name, Uid: string(s.UID)})
	if err == nil {
		_, err = in.Recv()
	}
	if status.Code(err) == codes.NotFound {
		return nil
	}
	return err
}

// fetchFrom fetches a copy from one node and verifies it. Now and then it tells how much has arrived.
func (r *epochRun) fetchFrom(ctx context.Context, name string, s *v1alpha1.EtcdSnapshot, temp string, arrived func(bytes int64)) error {
	conn, err := r.dial(ctx, name)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stall := time.AfterFunc(stallLimit, func() { cancel(fmt.Errorf("no data arrived for %s", stallLimit)) })
	defer stall.Stop()
	in, err := wire.NewSnapshotsClient(conn).Fetch(ctx, &wire.FetchRequest{Namespace: s.Namespace, Name: s.Name, Uid: string(s.UID)})
	if err != nil {
		return err
	}
	file, err := snapshot.Receive(temp, s.Status.Facts.Size, s.Status.Facts.SHA256)
	if err != nil {
		return err
	}
	defer file.Close()
	reported, received := time.Now(), int64(0)
	for {
		piece, err := in.Recv()
		if errors.Is(err, io.EOF) {
			return file.Finish()
		}
		if err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		stall.Reset(stallLimit)
		if _, err := file.Write(piece.Data); err != nil {
			return err
		}
		received += int64(len(piece.Data))
		if received > 0 && time.Since(reported) >= cmp.Or(r.opts.ReceivedEvery, receivedEvery) {
			arrived(received)
			reported = time.Now()
			stall.Reset(stallLimit)
		}
	}
}
