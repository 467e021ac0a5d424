package etcdcluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"go.etcd.io/etcd/server/v3/storage/wal"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/atomicfile"
	"github.com/ebb-dev/ebb/internal/etcdcluster/member"
)

const markerName = "marker.json"

var (
	// errForeign: data that is not the member's own.
	errForeign = errors.New("the data here is not this member's")
	// errDataMissing: the member had data, and it is gone.
	errDataMissing = errors.New("data is missing")
)

// marker says whose a member's directory is. It is written before anything else is there and goes last.
type marker struct {
	Namespace   string `json:"namespace"`
	Cluster     string `json:"cluster"`
	ClusterUID  string `json:"clusterUID"`
	Incarnation int64  `json:"incarnation"`
	Member      string `json:"member"`
	// Ports that were picked for it.
	PeerPort   int `json:"peerPort"`
	ClientPort int `json:"clientPort"`
	// Begun: the member was once part of its cluster, and so must never begin anew.
	Begun bool `json:"begun,omitempty"`
}

// memberDir is where a member keeps what it has. What comes from an object must not lead anywhere else.
func memberDir(root string, m *v1alpha1.EtcdMember) (string, error) {
	for _, part := range []string{m.Spec.ClusterUID, m.Name} {
		if part == "" || strings.HasPrefix(part, ".") || filepath.Base(part) != part {
			return "", fmt.Errorf("%q is no name of a directory", part)
		}
	}
	if d := m.Spec.Dir; d != "" && (strings.HasPrefix(d, ".") || filepath.Base(d) != d) {
		return "", fmt.Errorf("%q is no name of a directory", d)
	}
	return filepath.Join(root, m.Spec.Dir, m.Spec.ClusterUID, m.Name), nil
}

// readMarker finds the marker in a directory; without one it is nil.
func readMarker(dir string) (*marker, error) {
	data, err := os.ReadFile(filepath.Join(dir, markerName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	k := &marker{}
	if err := json.Unmarshal(data, k); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, markerName), err)
	}
	return k, nil
}

func (k *marker) write(dir string) error {
	data, err := json.Marshal(k)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return atomicfile.WriteSecret(filepath.Join(dir, markerName), append(data, '\n'))
}

// check compares a directory's marker with the member. There may be none where there is no data.
func (k *marker) check(m *v1alpha1.EtcdMember, dir string) error {
	if k == nil {
		if hasData(dir) {
			return fmt.Errorf("%w: %s has no marker", errForeign, dir)
		}
		return nil
	}
	if k.ClusterUID != m.Spec.ClusterUID || k.Incarnation != m.Spec.Incarnation || k.Member != m.Name {
		return fmt.Errorf("%w: %s is of member %s of cluster %s, incarnation %d", errForeign, dir, k.Member, k.ClusterUID, k.Incarnation)
	}
	return nil
}

// hasData says whether an etcd server has begun in a member's directory.
func hasData(dir string) bool {
	return wal.Exist(filepath.Join(member.Data(dir), "member", "wal"))
}

// dataBytes is how much a member's data takes.
func dataBytes(dir string) (total int64) {
	_ = filepath.WalkDir(member.Data(dir), func(_ string, d fs.DirEntry, err error) error { // what goes meanwhile does not count
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				total += info.Size()
			}
		}
		return nil
	})
	return total
}

// removeMember deletes a member's directory, the marker last, so that a crash leaves nothing that seems foreign. Directories above it go when
// they are empty.
func removeMember(root, dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == markerName {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	root = filepath.Clean(root)
	for up := filepath.Dir(dir); up != root && os.Remove(up) == nil; {
		up = filepath.Dir(up)
	}
	return nil
}

// usedPorts are those of all members that have a directory below root.
func usedPorts(root string) (map[int]bool, error) {
	used := map[int]bool{}
	for _, pattern := range []string{"*/*/" + markerName, "*/*/*/" + markerName} {
		list, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil, err
		}
		for _, path := range list {
			k, err := readMarker(filepath.Dir(path))
			if err != nil {
				return nil, err
			}
			if k != nil {
				used[k.PeerPort], used[k.ClientPort] = true, true
			}
		}
	}
	return used, nil
}
