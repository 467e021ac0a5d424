package host

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
	// errForeign: the directory belongs to another member, cluster or incarnation.
	errForeign = errors.New("the data here is not this member's")
	// errDataMissing: the member had data, and it is not there any more.
	errDataMissing = errors.New("data is missing")
	// errMoved: the member's URLs have another address than the node has now. Its certificate does not cover them, and they may be another machine's.
	errMoved = errors.New("the node has another address than the member")
)

// marker names the owner of a member's directory. It is the first file that is written there and the last that is deleted.
type marker struct {
	Namespace   string `json:"namespace"`
	Cluster     string `json:"cluster"`
	ClusterUID  string `json:"clusterUID"`
	Incarnation int64  `json:"incarnation"`
	Member      string `json:"member"`
	// UID of the member's object. The API may have been restored from a backup and number members anew.
	UID string `json:"uid,omitempty"`
	// PeerPort and ClientPort were picked for the member.
	PeerPort   int `json:"peerPort"`
	ClientPort int `json:"clientPort"`
	// Begun: the member was once part of its cluster, so it must never start without its data.
	Begun bool `json:"begun,omitempty"`
}

// memberDir returns the directory of a member. Names from an object must not lead out of root.
func memberDir(root string, m *v1alpha1.EtcdMember) (string, error) {
	for _, part := range []string{m.Spec.ClusterUID, m.Name} {
		if part == "" || strings.HasPrefix(part, ".") || filepath.Base(part) != part {
			return "", fmt.Errorf("%q is not a directory name", part)
		}
	}
	if d := m.Spec.Dir; d != "" && (strings.HasPrefix(d, ".") || filepath.Base(d) != d) {
		return "", fmt.Errorf("%q is not a directory name", d)
	}
	return filepath.Join(root, m.Spec.Dir, m.Spec.ClusterUID, m.Name), nil
}

// readMarker reads the marker in a directory; nil if there is none. What can be read and is no marker does not say whose the directory is.
func readMarker(dir string) (*marker, error) {
	k, err := atomicfile.ReadJSON[marker](os.ReadFile, filepath.Join(dir, markerName))
	var unread *fs.PathError
	if err != nil && !errors.As(err, &unread) {
		return nil, fmt.Errorf("%w: %w", errForeign, err)
	}
	return k, err
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

// check fails if a directory's marker is not the member's. A directory without data needs no marker.
func (k *marker) check(m *v1alpha1.EtcdMember, dir string) error {
	if k == nil {
		if hasData(dir) {
			return fmt.Errorf("%w: %s has no marker", errForeign, dir)
		}
		return nil
	}
	if k.ClusterUID != m.Spec.ClusterUID || k.Incarnation != m.Spec.Incarnation || k.Member != m.Name || k.uidOf(m) != string(m.UID) {
		return fmt.Errorf("%w: %s is of member %s of cluster %s, incarnation %d", errForeign, dir, k.Member, k.ClusterUID, k.Incarnation)
	}
	return nil
}

// hasData returns whether an etcd server has written to a member's directory.
func hasData(dir string) bool {
	return wal.Exist(filepath.Join(member.Data(dir), "member", "wal"))
}

// removeMember deletes a member's directory, the marker last, so that after a crash the rest is still known to be the member's. Empty
// directories above it are deleted too.
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

// usedPorts returns the ports of all members that have a directory below root. One whose marker is damaged does not keep others from getting ports.
func usedPorts(root string) (map[int]bool, error) {
	used := map[int]bool{}
	for _, pattern := range []string{"*/*/" + markerName, "*/*/*/" + markerName} {
		list, err := fs.Glob(os.DirFS(root), pattern)
		if err != nil {
			return nil, err
		}
		for _, name := range list {
			k, err := readMarker(filepath.Join(root, filepath.Dir(name)))
			if err != nil && !errors.Is(err, errForeign) {
				return nil, err
			}
			if k != nil {
				used[k.PeerPort], used[k.ClientPort] = true, true
			}
		}
	}
	return used, nil
}
