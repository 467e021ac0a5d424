package host

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster/snapshot"
	"github.com/ebb-dev/ebb/internal/etcdcluster/wire"
)

// As many copies as a node makes at a time may take long. The coordinator does not wait that long for an answer.
func TestATrialDoesNotWaitForCopiesOnTheirWay(t *testing.T) {
	run := &epochRun{Host: &Host{opts: Options{Node: "n1"}, store: snapshot.Store{Root: t.TempDir()}}, heavy: make(chan struct{}, heavyAtOnce), trials: make(chan struct{}, 1)}
	for range heavyAtOnce {
		run.heavy <- struct{}{}
	}
	w := &snapshotWorker{epochRun: run, key: snapshot.Key{ClusterUID: "u", Name: "t"}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := w.canKeep(ctx, &v1alpha1.EtcdSnapshot{Spec: v1alpha1.EtcdSnapshotSpec{TrialBytes: 1 << 20, MemberNode: "n1"}}); err != nil {
		t.Errorf("it has no room: %v", err)
	}
}

// pieces is a receiver that counts what it gets.
type pieces struct {
	grpc.ServerStreamingServer[wire.Piece]
	ctx context.Context
	got int
}

func (p *pieces) Context() context.Context { return p.ctx }

func (p *pieces) Send(piece *wire.Piece) error {
	p.got += len(piece.Data)
	return nil
}

// Many clusters may stop at the same time of a schedule. That a node sends as many copies as it can is no reason to say that the next one failed.
func TestACopyWaitsForItsTurnAtTheSender(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h := &Host{opts: Options{Node: "n1"}, store: snapshot.Store{Root: dir}, sends: make(chan struct{}, sendsAtOnce), snapshots: map[types.NamespacedName]*v1alpha1.EtcdSnapshot{}}
		s := &v1alpha1.EtcdSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s", UID: "1"}, Spec: v1alpha1.EtcdSnapshotSpec{ClusterUID: "u"}}
		data := []byte("keys")
		s.Status.Facts = &v1alpha1.EtcdSnapshotFacts{Size: int64(len(data)), SHA256: fmt.Sprintf("%x", sha256.Sum256(data))}
		h.snapshots[client.ObjectKeyFromObject(s)] = s
		temp, err := h.store.Temp(keyOfSnapshot(s))
		if err == nil {
			err = errors.Join(os.WriteFile(temp, data, 0o600), h.store.Keep(keyOfSnapshot(s), temp))
		}
		if err != nil {
			t.Fatal(err)
		}
		for range sendsAtOnce {
			h.sends <- struct{}{}
		}
		fetch := func(ctx context.Context) (*pieces, chan error) {
			out, done := &pieces{ctx: ctx}, make(chan error, 1)
			go func() {
				done <- (&copies{host: h}).Fetch(&wire.FetchRequest{Namespace: "default", Name: "s", Uid: "1"}, out)
			}()
			synctest.Wait()
			return out, done
		}
		out, done := fetch(t.Context())
		if len(done) > 0 {
			t.Fatalf("it does not wait: %v", <-done)
		}
		<-h.sends
		if err := <-done; err != nil || out.got != len(data) {
			t.Errorf("%d bytes arrived: %v", out.got, err)
		}
		h.sends <- struct{}{}
		ctx, cancel := context.WithCancel(t.Context())
		_, done = fetch(ctx)
		if cancel(); status.Code(<-done) != codes.Canceled {
			t.Error("it waits for its turn, and the receiver is gone")
		}
		_, done = fetch(t.Context())
		if err := <-done; status.Code(err) != codes.ResourceExhausted {
			t.Errorf("others that hang are waited for: %v", err)
		}
		if len(h.sends) != sendsAtOnce {
			t.Errorf("%d copies are being sent", len(h.sends))
		}
	})
}

// Several clusters may stop at the same time. What their trials reserve together could be the last of the disk, on which members write.
func TestTrialsReserveRoomOneAfterAnother(t *testing.T) {
	run := &epochRun{Host: &Host{opts: Options{Node: "n1"}, store: snapshot.Store{Root: t.TempDir()}}, trials: make(chan struct{}, 1)}
	w := &snapshotWorker{epochRun: run, key: snapshot.Key{ClusterUID: "u", Name: "t"}}
	s := &v1alpha1.EtcdSnapshot{Spec: v1alpha1.EtcdSnapshotSpec{TrialBytes: 1 << 20, MemberNode: "n1"}}
	run.trials <- struct{}{} // another one reserves
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.canKeep(ctx, s); !errors.Is(err, context.Canceled) {
		t.Errorf("a trial did not wait for another one: %v", err)
	}
	<-run.trials
	if err := w.canKeep(t.Context(), s); err != nil || len(run.trials) != 0 {
		t.Errorf("it has no room: %v; %d trials reserve", err, len(run.trials))
	}
}
