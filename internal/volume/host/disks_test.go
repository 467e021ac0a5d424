package host

import (
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// markedDir is a directory with a marker of some content; without one if it is empty.
func markedDir(t *testing.T, content string) string {
	t.Helper()
	dir := t.TempDir()
	if content != "" {
		if err := os.WriteFile(filepath.Join(dir, markerName), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestADiskIsOnlyUsedWithItsMarker(t *testing.T) {
	for _, tc := range []struct {
		name, marker, known string
		uuid                string // "new" for one that was made
		message             string // with DIR for the directory; empty if the disk is ready
	}{
		{"a directory that was never a disk is marked", "", "", "new", ""},
		{"a disk that comes from another node is adopted", `{"uuid":"u1"}`, "", "u1", ""},
		{"a disk that is known is ready", `{"uuid":"u1"}`, "u1", "u1", ""},
		{"the mount point of a disk that is missing is not taken for it", "", "u1", "u1", "DIR has no ebb-disk.json: is its file system mounted?"},
		{"another disk in its place is not used", `{"uuid":"u2"}`, "u1", "u1", "DIR is another disk: its UUID is u2, and that of disk d is u1"},
		{"a marker that cannot be read is not replaced", `{"uuid":`, "", "", "DIR/ebb-disk.json cannot be read"},
		{"a marker without a UUID is not replaced", `{}`, "u1", "u1", "DIR/ebb-disk.json cannot be read"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := markedDir(t, tc.marker)
			got := lookAtDisk(v1alpha1.Disk{Name: "d", Path: dir}, tc.known)
			if want := strings.ReplaceAll(tc.message, "DIR", dir); got.Message != want || got.Ready != (want == "") {
				t.Errorf("ready %v, message %q; want %q", got.Ready, got.Message, want)
			}
			if got.Ready && (got.TotalBytes <= 0 || got.AvailableBytes <= 0) {
				t.Errorf("a ready disk has %d of %d bytes", got.AvailableBytes, got.TotalBytes)
			}
			if tc.uuid == "new" {
				stored, err := readMarker(dir)
				if err != nil || stored == "" || stored != got.UUID {
					t.Errorf("UUID %q is reported and %q stored (%v)", got.UUID, stored, err)
				}
				return
			}
			if got.UUID != tc.uuid {
				t.Errorf("UUID %q, want %q", got.UUID, tc.uuid)
			}
			if b, _ := os.ReadFile(filepath.Join(dir, markerName)); string(b) != tc.marker {
				t.Errorf("the marker %q became %q", tc.marker, b)
			}
		})
	}
}

func TestADiskWhoseDirectoryIsMissingIsNotMade(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	got := lookAtDisk(v1alpha1.Disk{Name: "d", Path: dir}, "")
	if got.Ready || got.UUID != "" || got.Message != "stat "+dir+": no such file or directory" {
		t.Errorf("it is reported as %+v", got)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the directory was made")
	}
}

func testHost(dir string) *Host {
	return &Host{opts: Options{Node: "n1", Dir: dir, Log: slog.New(slog.DiscardHandler)}, disks: map[string]*disk{}}
}

func TestANodeWithoutDeclaredDisksHasTheDefaultOne(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	h, n := testHost(dir), &v1alpha1.Node{}
	h.lookAtDisks(n)
	if d := h.disk(DefaultDisk); d == nil || !d.Ready || d.Path != dir {
		t.Fatalf("the default disk is %+v", d)
	}
	n.Spec.Disks = []v1alpha1.Disk{{Name: "ssd", Path: other}}
	h.lookAtDisks(n)
	if h.disk(DefaultDisk) != nil || h.disk("ssd") == nil || !h.disk("ssd").Ready {
		t.Errorf("with a declared disk the node has %v", h.disks)
	}
}

func TestTheUUIDOfADiskOutlivesItsMount(t *testing.T) {
	dir := t.TempDir()
	h, n := testHost(dir), &v1alpha1.Node{}
	h.lookAtDisks(n)
	id := h.disk(DefaultDisk).UUID
	n.Status.Disks = []v1alpha1.DiskStatus{h.disk(DefaultDisk).DiskStatus} // as the node has reported it
	if err := os.Remove(filepath.Join(dir, markerName)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		h.lookAtDisks(n)
		if d := h.disk(DefaultDisk); d.Ready || d.UUID != id {
			t.Errorf("without its mount the disk is %+v, want UUID %s", d, id)
		}
	}
}

// A disk whose file system became read-only keeps what it has and takes no new replicas.
func TestADiskThatCannotBeWrittenHasNoRoom(t *testing.T) {
	dir := markedDir(t, `{"uuid":"u1"}`)
	if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	got := make(chan v1alpha1.DiskStatus)
	go func() {
		runtime.LockOSThread() // and ends with it, so that nobody else has its capabilities
		none := [2]unix.CapUserData{}
		if err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0]); err != nil {
			t.Error(err)
		}
		got <- lookAtDisk(v1alpha1.Disk{Name: "d", Path: dir}, "u1")
	}()
	d := <-got
	if want := dir + " cannot be written: permission denied"; !d.Ready || d.AvailableBytes != 0 || d.TotalBytes <= 0 || d.Message != want {
		t.Errorf("%+v, want %s", d, want)
	}
}

func TestFreeSpaceIsReportedWhenItChangedByAHundredth(t *testing.T) {
	before := []v1alpha1.DiskStatus{{Name: "d", Ready: true, TotalBytes: 1000, AvailableBytes: 500}}
	for now, want := range map[int64]int64{509: 500, 491: 500, 510: 510, 490: 490} {
		if got := coarse(v1alpha1.DiskStatus{Name: "d", Ready: true, TotalBytes: 1000, AvailableBytes: now}, before); got.AvailableBytes != want {
			t.Errorf("%d free bytes are reported as %d, want %d", now, got.AvailableBytes, want)
		}
	}
	if got := coarse(v1alpha1.DiskStatus{Name: "d", TotalBytes: 1000, AvailableBytes: 1}, before); got.AvailableBytes != 1 {
		t.Errorf("a disk that is not ready any more keeps %d free bytes", got.AvailableBytes)
	}
}
