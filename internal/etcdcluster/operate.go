package etcdcluster

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kind"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

// DescribePhase says in a sentence how far a cluster is, and how a stopped one is started.
func DescribePhase(ec *v1alpha1.EtcdCluster) string {
	switch ec.Status.Phase {
	case "":
		return "not created yet"
	case v1alpha1.EtcdClusterPhaseStopped:
		return fmt.Sprintf("stopped; `%s` starts it", startCommand(ec))
	}
	return strings.ToLower(string(ec.Status.Phase))
}

// Endpoints returns the client URLs of the voters, the healthy ones first.
func Endpoints(ec *v1alpha1.EtcdCluster) ([]string, error) {
	var healthy, others []string
	for _, m := range ec.Status.Members {
		switch {
		case m.ClientURL == "" || m.Role != v1alpha1.EtcdLeader && m.Role != v1alpha1.EtcdVoter:
		case m.Healthy:
			healthy = append(healthy, m.ClientURL)
		default:
			others = append(others, m.ClientURL)
		}
	}
	if urls := append(healthy, others...); len(urls) > 0 {
		return urls, nil
	}
	return nil, fmt.Errorf("etcd cluster %s has no endpoints: it is %s", kind.NameIn(ec.Namespace, ec.Name), DescribePhase(ec))
}

// snapshotSource is a healthy member, if possible not the leader; nil if there is none.
func snapshotSource(ec *v1alpha1.EtcdCluster) (from *v1alpha1.EtcdMemberInfo) {
	for i := range ec.Status.Members {
		m := &ec.Status.Members[i]
		if m.Healthy && (m.Role == v1alpha1.EtcdVoter || m.Role == v1alpha1.EtcdLeader && from == nil) {
			from = m
		}
	}
	return from
}

// TakeSnapshot asks for a snapshot of a healthy member, if possible not the leader, and waits until it is verified.
func TakeSnapshot(ctx context.Context, c client.Client, ec *v1alpha1.EtcdCluster, timeout time.Duration) (*v1alpha1.EtcdSnapshot, error) {
	from := snapshotSource(ec)
	if from == nil {
		return nil, fmt.Errorf("etcd cluster %s has no healthy member: it is %s", kind.NameIn(ec.Namespace, ec.Name), DescribePhase(ec))
	}
	s := &v1alpha1.EtcdSnapshot{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: ec.Namespace, Name: SnapshotName(ec, "m"+strconv.FormatInt(time.Now().UnixMilli(), 36)),
			Labels: map[string]string{v1alpha1.EtcdClusterLabel: ec.Name}, Finalizers: []string{v1alpha1.EtcdSnapshotFinalizer},
		},
		Spec: v1alpha1.EtcdSnapshotSpec{
			Cluster: ec.Name, ClusterUID: string(ec.UID), Incarnation: ec.Status.Incarnation, Generation: ec.Generation, Member: from.Name, MemberNode: from.Node,
			Nodes: []string{from.Node}, Dir: ec.Spec.Snapshot.Dir, FormerMembers: ec.Status.Members,
		},
	}
	if err := c.Create(ctx, s); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		if err := c.Get(ctx, client.ObjectKeyFromObject(s), s); err != nil {
			return nil, err
		}
		switch {
		case s.Status.Error != "":
			return nil, fmt.Errorf("snapshot %s: %s", s.Name, s.Status.Error)
		case s.Status.Facts != nil && len(s.Verified()) > 0:
			return s, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("snapshot %s was not verified within %s; `kubectl get etcdsnapshot %s` shows its progress", s.Name, timeout, s.Name)
		case <-tick.C:
		}
	}
}

// Restore asks the coordinator to restore a cluster from a snapshot: the named one, the newest verified one if snapshot is empty, or
// none to start empty. It refuses a cluster that serves clients unless it is forced. It returns the snapshot, and what happens next.
func Restore(ctx context.Context, c client.Client, ec *v1alpha1.EtcdCluster, snapshot string, force bool) (from, text string, err error) {
	if snapshot == "" {
		if snapshot = ec.Status.Snapshot; snapshot == "" {
			return "", "", fmt.Errorf("etcd cluster %s has no verified snapshot; to start empty use --snapshot none", kind.NameIn(ec.Namespace, ec.Name))
		}
	}
	if meta.IsStatusConditionTrue(ec.Status.Conditions, v1alpha1.EtcdReady) && !force {
		return "", "", fmt.Errorf("etcd cluster %s serves clients; a restore loses every key written after snapshot %s; use --force to restore anyway", kind.NameIn(ec.Namespace, ec.Name), snapshot)
	}
	text, err = askRestore(ctx, c, ec, snapshot)
	return snapshot, text, err
}

// askRestore writes the request into the object.
func askRestore(ctx context.Context, c client.Client, ec *v1alpha1.EtcdCluster, snapshot string) (string, error) {
	if snapshot != "none" {
		s := &v1alpha1.EtcdSnapshot{}
		if err := c.Get(ctx, types.NamespacedName{Namespace: ec.Namespace, Name: snapshot}, s); err != nil {
			return "", err
		}
		if s.Spec.ClusterUID != string(ec.UID) || s.Status.Facts == nil || len(s.Verified()) == 0 {
			return "", fmt.Errorf("snapshot %s is not a verified snapshot of etcd cluster %s", snapshot, kind.NameIn(ec.Namespace, ec.Name))
		}
	}
	from := "from snapshot " + snapshot
	if snapshot == "none" {
		from = "to an empty cluster"
	}
	text := ""
	err := kubeclient.Change(ctx, c, ec, func(ec *v1alpha1.EtcdCluster) (bool, error) {
		if ec.Size() == 0 {
			ec.Spec.RestoreFrom = snapshot
			text = fmt.Sprintf("etcd cluster %s is restored %s when it is started: `%s`\n", ec.Name, from, startCommand(ec))
		} else {
			metav1.SetMetaDataAnnotation(&ec.ObjectMeta, v1alpha1.EtcdRestoreAnnotation, snapshot+"/"+time.Now().UTC().Format(time.RFC3339Nano))
			text = fmt.Sprintf("restoring etcd cluster %s %s; `ebb etcd members %s` shows its progress\n", ec.Name, from, ec.Name)
		}
		return true, nil
	})
	return text, err
}

// startCommand is how a person starts a stopped cluster.
func startCommand(ec *v1alpha1.EtcdCluster) string {
	if ec.IsSuspended() {
		return "ebb etcd resume " + ec.Name
	}
	return fmt.Sprintf("kubectl scale etcdcluster %s --replicas=N", ec.Name)
}

// Resume starts a cluster that its schedule has stopped, until the schedule stops it again.
func Resume(ctx context.Context, c client.Client, ec *v1alpha1.EtcdCluster) error {
	return kubeclient.ChangeStatus(ctx, c, ec, func(ec *v1alpha1.EtcdCluster) (bool, error) {
		if !ec.IsSuspended() {
			return false, fmt.Errorf("etcd cluster %s was not stopped by its schedule: its size is %d", kind.NameIn(ec.Namespace, ec.Name), ec.SpecSize())
		}
		ec.Status.Suspended = nil
		return true, nil
	})
}

// ClusterStatus is one etcd cluster as `ebb status etcdclusters` prints it.
type ClusterStatus struct {
	Namespace  string                    `json:"namespace"`
	Name       string                    `json:"name"`
	Phase      v1alpha1.EtcdClusterPhase `json:"phase"`
	Size       int                       `json:"size"`
	Ready      int32                     `json:"ready"`
	Leader     string                    `json:"leader,omitempty"`
	Nodes      []string                  `json:"nodes"`
	Snapshot   string                    `json:"snapshot,omitempty"`
	LastStop   string                    `json:"lastStop,omitempty"`
	LastStart  string                    `json:"lastStart,omitempty"`
	Message    string                    `json:"message,omitempty"`
	AbsentData []v1alpha1.EtcdAbsentData `json:"absentData,omitempty"`
	Created    metav1.Time               `json:"created"`
	Members    []v1alpha1.EtcdMemberInfo `json:"members"`
	Conditions []metav1.Condition        `json:"conditions"`
}

// ReadStatus reads the etcd clusters of a namespace, of all if it is empty, sorted by name.
func ReadStatus(ctx context.Context, c client.Client, namespace string) ([]ClusterStatus, error) {
	var clusters v1alpha1.EtcdClusterList
	if err := c.List(ctx, &clusters, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	list := []ClusterStatus{}
	for i := range clusters.Items {
		ec := &clusters.Items[i]
		s := ClusterStatus{
			Namespace: ec.Namespace, Name: ec.Name, Phase: ec.Status.Phase, Size: ec.Size(), Ready: ec.Status.ReadyReplicas, Nodes: ec.Status.Nodes, Snapshot: ec.Status.Snapshot,
			AbsentData: ec.Status.AbsentData, Created: ec.CreationTimestamp, Members: ec.Status.Members, Conditions: ec.Status.Conditions,
		}
		if d := ec.Status.LastStop; d != nil {
			s.LastStop = d.Duration.Round(10 * time.Millisecond).String()
		}
		if d := ec.Status.LastStart; d != nil {
			s.LastStart = d.Duration.Round(10 * time.Millisecond).String()
		}
		for _, m := range ec.Status.Members {
			if m.Role == v1alpha1.EtcdLeader {
				s.Leader = m.Node
			}
		}
		s.Message = Message(ec)
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b ClusterStatus) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return list, nil
}
