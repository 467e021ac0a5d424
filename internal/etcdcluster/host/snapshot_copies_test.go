package host

import (
	"context"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster/snapshot"
)

// As many copies as a node makes at a time may take long. The coordinator does not wait that long for an answer.
func TestATrialDoesNotWaitForCopiesOnTheirWay(t *testing.T) {
	run := &epochRun{Host: &Host{opts: Options{Node: "n1"}, store: snapshot.Store{Root: t.TempDir()}}, heavy: make(chan struct{}, heavyAtOnce)}
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
