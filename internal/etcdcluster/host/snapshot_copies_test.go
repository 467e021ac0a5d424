package host

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster/snapshot"
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
