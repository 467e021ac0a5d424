package host

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster/member"
)

func aMember(uid, name, dir string) *v1alpha1.EtcdMember {
	return &v1alpha1.EtcdMember{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.EtcdMemberSpec{ClusterUID: uid, Incarnation: 2, Dir: dir}}
}

func TestNamesOfMembersDoNotLeadElsewhere(t *testing.T) {
	for _, m := range []*v1alpha1.EtcdMember{
		aMember("..", "m", ""), aMember("u", "..", ""), aMember("u", "m", ".."), aMember("u/v", "m", ""), aMember("u", "m", "/etc"), aMember("", "m", ""), aMember("u", "", ""), aMember(".u", "m", ""),
	} {
		if dir, err := memberDir("/root", m); err == nil {
			t.Errorf("%q, %q, %q is %s", m.Spec.Dir, m.Spec.ClusterUID, m.Name, dir)
		}
	}
	if dir, err := memberDir("/root", aMember("u", "m", "d")); err != nil || dir != "/root/d/u/m" {
		t.Errorf("%s, %v", dir, err)
	}
}

func TestAMarkerSaysWhoseADirectoryIs(t *testing.T) {
	root := t.TempDir()
	m := aMember("u", "m", "d")
	dir, err := memberDir(root, m)
	if err != nil {
		t.Fatal(err)
	}
	var none *marker
	if err := none.check(m, dir); err != nil {
		t.Errorf("nothing there: %v", err)
	}
	k := &marker{ClusterUID: "u", Incarnation: 2, Member: "m", PeerPort: 10, ClientPort: 11}
	if err := k.write(dir); err != nil {
		t.Fatal(err)
	}
	read, err := readMarker(dir)
	if err != nil || *read != *k {
		t.Errorf("read %+v, %v", read, err)
	}
	if err := read.check(m, dir); err != nil {
		t.Error(err)
	}
	for name, other := range map[string]marker{
		"cluster": {ClusterUID: "v", Incarnation: 2, Member: "m"}, "incarnation": {ClusterUID: "u", Incarnation: 1, Member: "m"}, "member": {ClusterUID: "u", Incarnation: 2, Member: "n"},
		"object": {ClusterUID: "u", Incarnation: 2, Member: "m", UID: "another"},
	} {
		if err := other.check(m, dir); !errors.Is(err, errForeign) {
			t.Errorf("another %s: %v", name, err)
		}
	}
	if used, err := usedPorts(root); err != nil || len(used) != 2 || !used[10] || !used[11] {
		t.Errorf("ports in use: %v, %v", used, err)
	}
	if err := os.MkdirAll(filepath.Join(member.Data(dir), "member", "wal"), 0o700); err != nil {
		t.Fatal(err)
	}
	if hasData(dir) {
		t.Error("a directory without a log is data")
	}
	if err := os.WriteFile(filepath.Join(member.Data(dir), "member", "wal", "0000000000000000-0000000000000000.wal"), []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !hasData(dir) || member.DataBytes(dir) != 5 {
		t.Errorf("data: %v, %d bytes", hasData(dir), member.DataBytes(dir))
	}
	if err := none.check(m, dir); !errors.Is(err, errForeign) {
		t.Errorf("data without a marker: %v", err)
	}
	if err := removeMember(root, dir); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(root); err != nil || len(entries) > 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
	if err := removeMember(root, dir); err != nil {
		t.Errorf("twice: %v", err)
	}
}

// A disk that was full, or lost power, may leave half a file.
func TestADamagedMarkerSaysNothingAndKeepsNobodyFromGettingPorts(t *testing.T) {
	root := t.TempDir()
	if err := (&marker{PeerPort: 7, ClientPort: 8}).write(filepath.Join(root, "u", "good")); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "u", "bad")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, half := range []string{"", `{"cluster":`, `[]`} {
		if err := os.WriteFile(filepath.Join(dir, markerName), []byte(half), 0o600); err != nil {
			t.Fatal(err)
		}
		if k, err := readMarker(dir); k != nil || !errors.Is(err, errForeign) {
			t.Errorf("%q is %+v, %v", half, k, err)
		}
		if used, err := usedPorts(root); err != nil || len(used) != 2 || !used[7] || !used[8] {
			t.Errorf("beside %q: %v, %v", half, used, err)
		}
	}
}

func TestPortsAreKnownToBeTakenWhateverTheDirectoryIsCalled(t *testing.T) {
	root := filepath.Join(t.TempDir(), "data [1]*")
	if err := (&marker{PeerPort: 7, ClientPort: 8}).write(filepath.Join(root, "u", "m")); err != nil {
		t.Fatal(err)
	}
	if used, err := usedPorts(root); err != nil || !used[7] || !used[8] {
		t.Errorf("%v, %v", used, err)
	}
}
