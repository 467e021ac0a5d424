package etcdcluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kind"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

// DescribePhase returns the phase of a cluster in words, and how a stopped one is started.
func DescribePhase(ec *v1alpha1.EtcdCluster) string {
	switch ec.Status.Phase {
	case "":
		return "not created yet"
	case v1alpha1.EtcdClusterPhaseStopped:
		if from := ec.Spec.RestoreFrom; from != "" && from != ec.Status.ObservedRestoreFrom {
			return fmt.Sprintf("stopped; `%s` starts it from %s, as spec.restoreFrom says", startCommand(ec), describeSource(from))
		}
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
		if err := c.Get(ctx, client.ObjectKeyFromObject(s), s); kubeclient.IsMissing(err) {
			// The coordinator deletes a snapshot that failed.
			return nil, fmt.Errorf("snapshot %s of etcd cluster %s was deleted before it was verified; if it could not be taken, the log of node %s says why", s.Name, kind.NameIn(ec.Namespace, ec.Name), from.Node)
		} else if err != nil {
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
			return nil, fmt.Errorf("snapshot %s was not verified within %s; `kubectl get etcdsnapshot %s` shows its progress", s.Name, timeout, commandName(s.Namespace, s.Name))
		case <-tick.C:
		}
	}
}

// DefaultRestoreExpiry is how long a restore order may wait before it expires.
const DefaultRestoreExpiry = time.Hour

// RestoreOptions are what a person requests of a restore.
type RestoreOptions struct {
	// Snapshot to restore from: an EtcdSnapshot, none to start empty, or empty for the newest verified one.
	Snapshot string
	// FromMember is a node, or a member, from whose data the cluster is restored.
	FromMember string
	// Gone are nodes that are confirmed to be gone for good.
	Gone []string
	// Force: restore although the cluster serves clients.
	Force bool
	// Expires is how long the order may wait; 0 for DefaultRestoreExpiry.
	Expires time.Duration
}

// Restore orders a restore of a cluster. It refuses a cluster that serves clients unless it is forced. It returns what the cluster is restored
// from, and what happens next.
func Restore(ctx context.Context, c client.Client, ec *v1alpha1.EtcdCluster, o RestoreOptions) (from, text string, err error) {
	name, serving := kind.NameIn(ec.Namespace, ec.Name), servingVoters(ec)
	order := &v1alpha1.EtcdRestoreOrder{
		ID: strconv.FormatInt(time.Now().UnixMilli(), 36), Gone: o.Gone, Force: o.Force, Expires: metav1.NewTime(time.Now().Add(cmp.Or(o.Expires, DefaultRestoreExpiry))),
	}
	switch {
	case o.Expires < 0:
		return "", "", errors.New("--expires must not be negative")
	case o.FromMember != "" && o.Snapshot != "":
		return "", "", errors.New("--snapshot and --from-member cannot be combined")
	case o.FromMember != "" && serving > 0 && !o.Force: // the coordinator refuses it, also with --force
		return "", "", fmt.Errorf("etcd cluster %s serves clients: %d of its voters are healthy; nothing needs to be restored from a member", name, serving)
	case o.FromMember != "":
		order.Member, err = memberOn(ctx, c, ec, o.FromMember)
		from = "from the data of member " + order.Member
	case len(o.Gone) > 0:
		return "", "", errors.New("--gone can only be combined with --from-member")
	default:
		order.Snapshot = cmp.Or(o.Snapshot, ec.Status.Snapshot)
		if order.Snapshot == "" {
			return "", "", fmt.Errorf("etcd cluster %s has no verified snapshot; to continue from the data of a member set --from-member, to start empty set --snapshot none", name)
		}
		from = "from snapshot " + order.Snapshot
		if order.Snapshot == v1alpha1.EtcdFromNothing {
			from = "to an empty cluster"
		}
		err = checkRestorable(ctx, c, ec, order.Snapshot)
	}
	if err != nil {
		return "", "", err
	}
	if serving > 0 && !o.Force {
		return "", "", fmt.Errorf("etcd cluster %s serves clients: %d of its voters are healthy; a restore %s would lose keys that were written since; set --force to restore anyway", name, serving, from)
	}
	if text, err = orderRestore(ctx, c, ec, order, from); err == nil {
		err = obeyAgain(ctx, c, ec)
	}
	return cmp.Or(order.Snapshot, order.Member), text, err
}

// servingVoters returns how many voters are healthy. A voter is healthy only with a leader, and there is a leader only with a quorum: so if there
// is one, the cluster serves clients, however many members are desired.
func servingVoters(ec *v1alpha1.EtcdCluster) (n int) {
	for _, m := range ec.Status.Members {
		if m.Healthy && (m.Role == v1alpha1.EtcdVoter || m.Role == v1alpha1.EtcdLeader) {
			n++
		}
	}
	return n
}

// memberOn finds the present member on a node, or of a name.
func memberOn(ctx context.Context, c client.Client, ec *v1alpha1.EtcdCluster, where string) (string, error) {
	var list v1alpha1.EtcdMemberList
	if err := c.List(ctx, &list, client.InNamespace(ec.Namespace), client.MatchingLabels{v1alpha1.EtcdClusterLabel: ec.Name}); err != nil {
		return "", err
	}
	var names, on []string
	for _, m := range list.Items {
		if m.Spec.ClusterUID != string(ec.UID) || m.Spec.Incarnation != ec.Status.Incarnation || m.Spec.Begin == nil || m.Spec.Want == v1alpha1.EtcdMemberDelete {
			continue
		}
		if m.Name == where {
			return m.Name, nil
		}
		on = append(on, m.Spec.Node)
		if m.Spec.Node == where {
			names = append(names, m.Name)
		}
	}
	slices.Sort(on)
	switch len(names) {
	case 0:
		return "", fmt.Errorf("etcd cluster %s has no member on node %s; it has members on %s", kind.NameIn(ec.Namespace, ec.Name), where, cmp.Or(strings.Join(slices.Compact(on), ", "), "no node"))
	case 1:
		return names[0], nil
	}
	return "", fmt.Errorf("node %s has several members of etcd cluster %s; give --from-member one of %s", where, kind.NameIn(ec.Namespace, ec.Name), strings.Join(names, ", "))
}

// checkRestorable fails unless a cluster can begin with a snapshot.
func checkRestorable(ctx context.Context, c client.Client, ec *v1alpha1.EtcdCluster, snapshot string) error {
	if snapshot == v1alpha1.EtcdFromNothing {
		return nil
	}
	s := &v1alpha1.EtcdSnapshot{}
	if err := c.Get(ctx, types.NamespacedName{Namespace: ec.Namespace, Name: snapshot}, s); err != nil {
		return err
	}
	if s.Spec.ClusterUID != string(ec.UID) || s.Status.Facts == nil || len(s.Verified()) == 0 {
		return fmt.Errorf("snapshot %s is not a verified snapshot of etcd cluster %s", snapshot, kind.NameIn(ec.Namespace, ec.Name))
	}
	return nil
}

// orderRestore writes the order into the object.
func orderRestore(ctx context.Context, c client.Client, ec *v1alpha1.EtcdCluster, order *v1alpha1.EtcdRestoreOrder, from string) (text string, err error) {
	err = kubeclient.Change(ctx, c, ec, func(ec *v1alpha1.EtcdCluster) (bool, error) {
		switch {
		case ec.Size() > 0:
			ec.Spec.Restore = order
			text = fmt.Sprintf("restoring etcd cluster %s %s (order %s); `ebb status etcdclusters` shows its progress\n", ec.Name, from, order.ID)
		case order.Member != "" || StageOf(ec) == StageReleasing:
			return false, fmt.Errorf("etcd cluster %s is stopped or being stopped; set its size first: `%s`", kind.NameIn(ec.Namespace, ec.Name), startCommand(ec))
		default:
			ec.Spec.RestoreFrom = order.Snapshot
			text = fmt.Sprintf("etcd cluster %s is restored %s when it is started: `%s`\n", ec.Name, from, startCommand(ec))
		}
		return true, nil
	})
	return text, err
}

// obeyAgain lets the next start of a stopped cluster obey spec.restoreFrom, also if an earlier start has obeyed the same value.
func obeyAgain(ctx context.Context, c client.Client, ec *v1alpha1.EtcdCluster) error {
	return kubeclient.ChangeStatus(ctx, c, ec, func(ec *v1alpha1.EtcdCluster) (bool, error) {
		from := ec.Spec.RestoreFrom
		if ec.Size() > 0 || from == "" || from != ec.Status.ObservedRestoreFrom {
			return false, nil
		}
		ec.Status.ObservedRestoreFrom = ""
		return true, nil
	})
}

// CancelRestore withdraws a restore order that has not begun, and what the next start of a stopped cluster was to begin with.
func CancelRestore(ctx context.Context, c client.Client, ec *v1alpha1.EtcdCluster) error {
	return kubeclient.Change(ctx, c, ec, func(ec *v1alpha1.EtcdCluster) (bool, error) {
		order, state := ec.Spec.Restore, ec.Status.Restore
		waits := order != nil && (state == nil || state.ID != order.ID || !state.Phase.Final())
		switch {
		case waits && state != nil && state.ID == order.ID && state.Phase == v1alpha1.EtcdRestoreStarting:
			return false, fmt.Errorf("restore %s of etcd cluster %s has begun and cannot be canceled", order.ID, kind.NameIn(ec.Namespace, ec.Name))
		case !waits && (ec.Spec.RestoreFrom == "" || ec.Spec.RestoreFrom == ec.Status.ObservedRestoreFrom):
			return false, fmt.Errorf("etcd cluster %s has no restore order that waits", kind.NameIn(ec.Namespace, ec.Name))
		}
		ec.Spec.Restore, ec.Spec.RestoreFrom = nil, ""
		return true, nil
	})
}

// Discard orders the deletion of the data of a former member that was set aside.
func Discard(ctx context.Context, c client.Client, ec *v1alpha1.EtcdCluster, member string) error {
	var names []string
	for _, a := range ec.Status.SetAside {
		names = append(names, a.Member)
	}
	if !slices.Contains(names, member) {
		return fmt.Errorf("no data of %s is set aside for etcd cluster %s; set aside: %s", member, kind.NameIn(ec.Namespace, ec.Name), cmp.Or(strings.Join(names, ", "), "nothing"))
	}
	m := &v1alpha1.EtcdMember{}
	if err := c.Get(ctx, types.NamespacedName{Namespace: ec.Namespace, Name: member}, m); err != nil {
		return err
	}
	return kubeclient.Change(ctx, c, m, func(m *v1alpha1.EtcdMember) (bool, error) {
		if m.Spec.ClusterUID != string(ec.UID) || m.Spec.Want != v1alpha1.EtcdMemberStop && m.Spec.Want != v1alpha1.EtcdMemberDelete {
			return false, fmt.Errorf("member %s is in use", member)
		}
		m.Spec.Want, m.Spec.ReportLog = v1alpha1.EtcdMemberDelete, false
		return true, nil
	})
}

// startCommand is how a person starts a stopped cluster.
func startCommand(ec *v1alpha1.EtcdCluster) string {
	if ec.IsSuspended() {
		return "ebb etcd resume " + commandName(ec.Namespace, ec.Name)
	}
	return inNamespace(fmt.Sprintf("kubectl scale etcdcluster %s --replicas=N", ec.Name), ec.Namespace)
}

// DiscardCommand is how a person deletes the data of a former member that was set aside.
func DiscardCommand(ec *v1alpha1.EtcdCluster, member string) string {
	return inNamespace(fmt.Sprintf("ebb etcd discard %s %s", ec.Name, member), ec.Namespace)
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
	// SetAside is data of former members that is kept until somebody discards it, Restore the last restore order.
	SetAside   []v1alpha1.EtcdSetAside    `json:"setAside,omitempty"`
	Restore    *v1alpha1.EtcdRestoreState `json:"restore,omitempty"`
	Created    metav1.Time                `json:"created"`
	Members    []v1alpha1.EtcdMemberInfo  `json:"members"`
	Conditions []metav1.Condition         `json:"conditions"`
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
			AbsentData: ec.Status.AbsentData, SetAside: ec.Status.SetAside, Restore: ec.Status.Restore, Created: ec.CreationTimestamp, Members: ec.Status.Members, Conditions: ec.Status.Conditions,
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
