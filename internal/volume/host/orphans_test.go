package host

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/node"
)

func testReplica(name, node, volumeUID string) *v1alpha1.Replica {
	return &v1alpha1.Replica{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec:       v1alpha1.ReplicaSpec{VolumeName: "data", VolumeUID: volumeUID, NodeName: node, Disk: DefaultDisk},
	}
}

func TestADirectoryThatNoReplicaKnowsIsAnOrphan(t *testing.T) {
	const uid = "0a1b2c3d-0000-0000-0000-000000000000"
	for _, tc := range []struct {
		name string
		dirs []string
		seen []*v1alpha1.Replica // by the node, so far
		live []*v1alpha1.Replica // in the API
		want []string
	}{
		{name: "a disk without replicas has none"},
		{
			name: "a replica that the node has seen is known", dirs: []string{"default-data-0a1b2c3d/data-r1"},
			seen: []*v1alpha1.Replica{testReplica("data-r1", "n1", uid)},
		},
		{
			name: "a replica that the node has not seen yet is known", dirs: []string{"default-data-0a1b2c3d/data-r1"},
			live: []*v1alpha1.Replica{testReplica("data-r1", "n1", uid)},
		},
		{
			name: "a replica of that name on another node does not count", dirs: []string{"default-data-0a1b2c3d/data-r1"},
			live: []*v1alpha1.Replica{testReplica("data-r1", "n2", uid)}, want: []string{"default-data-0a1b2c3d/data-r1"},
		},
		{
			name: "a replica of another volume of that name does not count", dirs: []string{"default-data-0a1b2c3d/data-r1"},
			live: []*v1alpha1.Replica{testReplica("data-r1", "n1", "ffffffff-0000")}, want: []string{"default-data-0a1b2c3d/data-r1"},
		},
		{
			name: "what has no object is listed in order", dirs: []string{"default-data-0a1b2c3d/data-r2", "a-b-11111111/b-r1", "default-data-0a1b2c3d/data-r1"},
			live: []*v1alpha1.Replica{testReplica("data-r2", "n1", uid)}, want: []string{"a-b-11111111/b-r1", "default-data-0a1b2c3d/data-r1"},
		},
		{name: "what an interrupted creation or removal left is none", dirs: []string{"a-b-11111111/.b-r1.creating", "a-b-11111111/.b-r2.removed"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := testHost(t.TempDir())
			h.others = map[types.UID]*v1alpha1.Replica{}
			for _, name := range tc.dirs {
				if err := os.MkdirAll(filepath.Join(h.opts.Dir, replicasDir, name), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			for _, r := range tc.seen {
				h.others[r.UID] = r
			}
			api := fake.NewClientBuilder().WithScheme(kubeclient.NewScheme())
			for _, r := range slices.Concat(tc.seen, tc.live) {
				api.WithObjects(r)
			}
			run := &epochRun{Host: h, epoch: &node.Epoch{Client: api.Build()}}
			d := &disk{v1alpha1.DiskStatus{Name: DefaultDisk, Path: h.opts.Dir, Ready: true}}
			if got, err := run.orphans(t.Context(), d); err != nil || !slices.Equal(got, tc.want) {
				t.Errorf("orphans are %v (%v), want %v", got, err, tc.want)
			}
		})
	}
}

func TestOrphansAreListedAndKeptWhileNobodyNamesThem(t *testing.T) {
	h := testHost(t.TempDir())
	h.lookAtDisks(&v1alpha1.Node{})
	for i := range maxOrphans + 3 {
		if err := os.MkdirAll(filepath.Join(h.opts.Dir, replicasDir, "default-data-0a1b2c3d", fmt.Sprintf("data-r%03d", i)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	run := &epochRun{Host: h, epoch: &node.Epoch{Client: fake.NewClientBuilder().WithScheme(kubeclient.NewScheme()).Build()}}
	own := &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.RemoveOrphansAnnotation: "other/default-data-0a1b2c3d/data-r001,default/x/y"}}}
	if err := run.lookForOrphans(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	if got := h.disk(DefaultDisk).Orphans; len(got) != maxOrphans || got[0] != "default-data-0a1b2c3d/data-r000" {
		t.Errorf("%d orphans are listed, the first is %s", len(got), got[0])
	}
	if left, err := replicaDirs(h.opts.Dir); err != nil || len(left) != maxOrphans+3 {
		t.Errorf("%d directories are left (%v)", len(left), err)
	}
}

func TestOnlyOrphansThatAPersonNamedAreUnwanted(t *testing.T) {
	kept, unwanted := split([]string{"v/r1", "v/r2", "v/r3"}, "ssd", []string{"ssd/v/r1", "ssd/v/r2", "hdd/v/r3", "ssd/v/r9", ""})
	if !slices.Equal(kept, []string{"v/r3"}) || !slices.Equal(unwanted, []string{"v/r1", "v/r2"}) {
		t.Errorf("kept %v, unwanted %v", kept, unwanted)
	}
}
