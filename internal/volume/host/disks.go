package host

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/atomicfile"
)

// markerName is the file that makes a directory a disk. A mount that is missing lacks it, and its empty mount point is not taken for the disk.
const markerName = "ebb-disk.json"

// marker is the content of that file.
type marker struct {
	UUID string `json:"uuid"`
}

// disk is one of the node's disks as last looked at.
type disk struct{ v1alpha1.DiskStatus }

// declared returns the disks of a node.
func (h *Host) declared(n *v1alpha1.Node) []v1alpha1.Disk {
	if n == nil || len(n.Spec.Disks) == 0 {
		return []v1alpha1.Disk{{Name: DefaultDisk, Path: h.opts.Dir}}
	}
	return n.Spec.Disks
}

// lookAtDisks looks at every disk, and marks those that were never used. known are the UUIDs that the node reported before, by name.
func (h *Host) lookAtDisks(n *v1alpha1.Node) {
	known := map[string]string{}
	for _, d := range n.Status.Disks {
		known[d.Name] = d.UUID
	}
	found := map[string]*disk{}
	for _, d := range h.declared(n) {
		found[d.Name] = &disk{lookAtDisk(d, known[d.Name])}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, d := range h.disks {
		if f := found[name]; f != nil {
			f.UUID, f.Orphans = cmp.Or(f.UUID, d.UUID), d.Orphans // once known the UUID stays, though the disk is not there
		}
	}
	h.disks = found
}

func lookAtDisk(d v1alpha1.Disk, known string) v1alpha1.DiskStatus {
	status := v1alpha1.DiskStatus{Name: d.Name, Path: d.Path, UUID: known}
	id, err := readMarker(d.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && known == "":
		id, err = makeMarker(d.Path)
	case errors.Is(err, fs.ErrNotExist):
		err = fmt.Errorf("%s has no %s: is its file system mounted?", d.Path, markerName)
	case err == nil && known != "" && id != known:
		err = fmt.Errorf("%s is another disk: its UUID is %s, and that of disk %s is %s", d.Path, id, d.Name, known)
	}
	var space unix.Statfs_t
	if err == nil {
		status.UUID = id
		err = unix.Statfs(d.Path, &space)
	}
	if err != nil {
		status.Message = shortened(err.Error())
		return status
	}
	status.Ready = true
	status.TotalBytes, status.AvailableBytes = int64(space.Blocks)*space.Bsize, int64(space.Bavail)*space.Bsize
	if err := unix.Faccessat(unix.AT_FDCWD, d.Path, unix.W_OK, unix.AT_EACCESS); err != nil { // what is there can still be read
		status.AvailableBytes, status.Message = 0, shortened(fmt.Sprintf("%s cannot be written: %v", d.Path, err))
	}
	return status
}

func readMarker(path string) (string, error) {
	b, err := os.ReadFile(filepath.Join(path, markerName))
	if err != nil {
		return "", err
	}
	var m marker
	if err := json.Unmarshal(b, &m); err != nil || m.UUID == "" {
		return "", fmt.Errorf("%s cannot be read", filepath.Join(path, markerName))
	}
	return m.UUID, nil
}

// makeMarker makes a directory that exists a disk.
func makeMarker(path string) (string, error) {
	if _, err := os.Stat(path); err != nil {
		return "", err
	}
	m := marker{UUID: uuid.NewString()}
	b, err := json.Marshal(m)
	if err != nil {
		return "", err
	}
	return m.UUID, atomicfile.Write(filepath.Join(path, markerName), append(b, '\n'), 0o600)
}

// Report implements node.Reporter.
func (r replicas) Report(status *v1alpha1.NodeStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.epoch == nil {
		return
	}
	list := []v1alpha1.DiskStatus{}
	for _, d := range r.disks {
		list = append(list, coarse(d.DiskStatus, status.Disks))
	}
	slices.SortFunc(list, func(a, b v1alpha1.DiskStatus) int { return strings.Compare(a.Name, b.Name) })
	status.Disks = list
}

// coarse leaves the free space as it was reported, unless it changed by more than a hundredth of the disk: others watch Nodes.
func coarse(d v1alpha1.DiskStatus, before []v1alpha1.DiskStatus) v1alpha1.DiskStatus {
	for _, b := range before {
		change := d.AvailableBytes - b.AvailableBytes
		if b.Name == d.Name && b.Ready && d.Ready && max(change, -change) < d.TotalBytes/100 {
			d.AvailableBytes = b.AvailableBytes
		}
	}
	return d
}

// shortened cuts a message to what the API takes.
func shortened(text string) string {
	const most = 1000
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
