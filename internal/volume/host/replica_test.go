package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/volume/block"
	"github.com/ebb-dev/ebb/internal/volume/store"
	"github.com/ebb-dev/ebb/internal/worker"
)

// made is the worker of a replica that has a directory, with the disk and the directory.
func made(t *testing.T) (*replicaWorker, *v1alpha1.Replica, *disk, string) {
	t.Helper()
	object := &v1alpha1.Replica{}
	object.Namespace, object.Name = "default", "data-r1"
	object.Spec = v1alpha1.ReplicaSpec{VolumeName: "data", VolumeUID: "0a1b2c3d-e", NodeName: "n1", Disk: DefaultDisk, SizeBytes: 8 << 20}
	object.Status = v1alpha1.ReplicaStatus{State: v1alpha1.ReplicaReady, Created: true, DiskUUID: "u1"}
	h := testHost(t.TempDir())
	h.opts.FS, h.opts.BootID = store.OS{}, "boot-1"
	w := &replicaWorker{Worker: worker.New[*v1alpha1.Replica](), h: h}
	d := &disk{v1alpha1.DiskStatus{Name: DefaultDisk, Path: h.opts.Dir, UUID: "u1", Ready: true}}
	path := dir(d.Path, object)
	if err := store.Create(h.opts.FS, path, identity(object), "boot-1"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.close() })
	return w, object, d, path
}

func TestAReplicaWhoseFilesWereRemovedWhileItIsOpenIsFailed(t *testing.T) {
	for _, name := range []string{"", "data", "meta"} {
		w, object, d, path := made(t)
		next := object.Status
		if err := w.ensure(t.Context(), nil, object, d, &next); err != nil || next.State != v1alpha1.ReplicaReady {
			t.Fatalf("%+v, %v", next, err)
		}
		if err := os.RemoveAll(filepath.Join(path, name)); err != nil {
			t.Fatal(err)
		}
		if err := w.ensure(t.Context(), nil, object, d, &next); err != nil || next.State != v1alpha1.ReplicaFailed || !strings.HasPrefix(next.Message, block.ErrMissing.Error()) {
			t.Errorf("without %q: %+v, %v", name, next, err)
		}
		if w.opened() == nil {
			t.Errorf("without %q it is closed: what it had is lost", name)
		}
	}
}

func TestANodeReportsThatAReplicaWasNeverBuiltCompletely(t *testing.T) {
	w, object, d, path := made(t)
	for generation, syncing := range []bool{true, false} {
		s, err := w.open(path, object)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Commit(t.Context(), block.Membership{Generation: int64(generation) + 1, Members: []string{"data-r2"}, Syncing: syncing}); err != nil {
			t.Fatal(err)
		}
		next := object.Status
		if err := w.ensure(t.Context(), nil, object, d, &next); err != nil || next.Incomplete != syncing || next.Generation != int64(generation)+1 {
			t.Errorf("%+v, %v", next, err)
		}
	}
}

func TestWhenTheDataOfAReplicaIsRemoved(t *testing.T) {
	at := metav1.Now()
	for _, tc := range []struct {
		name   string
		change func(*v1alpha1.Volume)
		want   string
	}{
		{"the volume does not count on it", func(*v1alpha1.Volume) {}, ""},
		{"it is a member", func(v *v1alpha1.Volume) { v.Status.Members = []string{"data-r1"} }, "volume default/data still has replica data-r1 as a member"},
		{
			"the store was restored from a backup", func(v *v1alpha1.Volume) { v.Status.Generation = 6 },
			"replica data-r1 has generation 7, and volume default/data only generation 6: the store is older than the data, so the replica is not removed",
		},
		{"the whole volume is deleted", func(v *v1alpha1.Volume) { v.Status.Generation, v.DeletionTimestamp = 6, &at }, ""},
		{"it belongs to a former volume", func(v *v1alpha1.Volume) {
			v.UID, v.Status.Generation, v.Status.Members = "uid-later", 6, []string{"data-r1"}
		}, ""},
	} {
		v := &v1alpha1.Volume{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data", UID: "uid-data"}, Status: v1alpha1.VolumeStatus{Generation: 7, Members: []string{"data-r2"}}}
		tc.change(v)
		err := mayRemove(v, testReplica("data-r1", "n1", "uid-data"), 7)
		if err == nil && tc.want != "" || err != nil && err.Error() != tc.want {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.want)
		}
	}
	if err := mayRemove(nil, testReplica("data-r1", "n1", "uid-data"), 7); err != nil {
		t.Errorf("without a volume: %v", err)
	}
}
