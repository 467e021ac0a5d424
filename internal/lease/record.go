package lease

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/internal/shortname"
)

// Where leases live and what is written on them.
const (
	// Namespace of every Lease.
	Namespace = "ebb-system"
	// CoordinatorName is the Lease of the election.
	CoordinatorName = "coordinator"
	// EpochAnnotation on a node's Lease is the epoch it was last taken for.
	EpochAnnotation = "ebb.dev/epoch"
	// FencedAnnotation on a node's Lease is the newest epoch that was fenced.
	FencedAnnotation = "ebb.dev/fenced-epoch"

	// NodeAnnotation on a Lease is the name of its node, if the Lease's own name is too short for it.
	NodeAnnotation = "ebb.dev/node"

	nodePrefix = "node-"
	maxName    = 253
)

// Errors of the steps below.
var (
	// ErrHeld: the Lease belongs to another process that may still be running.
	ErrHeld = errors.New("another process holds the lease")
	// ErrNotOurs: the Lease no longer belongs to the epoch that wanted to change it.
	ErrNotOurs = errors.New("the lease no longer belongs to this epoch")
	// ErrChanged: the Lease is not what it was when the decision was made.
	ErrChanged = errors.New("the lease has changed since it was read")
)

// NameOf returns the name of a node's Lease. The prefix separates it from the election's Lease.
func NameOf(node string) string { return shortname.Fit(nodePrefix+node, maxName) }

// IsNodes reports whether a Lease of that name is a node's.
func IsNodes(name string) bool { return strings.HasPrefix(name, nodePrefix) }

// NodeOf is the node that a Lease belongs to, and false for a Lease that is not a node's.
func NodeOf(l metav1.Object) (string, bool) {
	if node, ok := l.GetAnnotations()[NodeAnnotation]; ok {
		return node, NameOf(node) == l.GetName()
	}
	return strings.CutPrefix(l.GetName(), nodePrefix)
}

// TermOf reports whether a holder of the election is a term of a node.
func TermOf(term, node string) bool { return strings.HasPrefix(term, node+"/") }

// Record is the decoded Lease of a node.
type Record struct {
	Node     string
	Version  string // resourceVersion
	Holder   string // one process of one machine; empty when released or fenced
	Epoch    int64
	Fenced   int64
	Duration time.Duration
}

// Held reports whether a process may still be running in the record's epoch.
func (r Record) Held() bool { return r.Holder != "" }

// Over reports whether an epoch of the node was released, fenced or superseded by a newer one.
func (r Record) Over(epoch int64) bool {
	return r.Fenced >= epoch || r.Epoch > epoch || (r.Epoch == epoch && r.Holder == "")
}

// Read decodes a node's Lease.
func Read(l *coordinationv1.Lease) (Record, error) {
	node, ok := NodeOf(l)
	if !ok {
		return Record{}, fmt.Errorf("lease %s/%s is not the lease of a node", l.Namespace, l.Name)
	}
	r := Record{Node: node, Version: l.ResourceVersion}
	var err error
	if r.Epoch, err = number(l, EpochAnnotation); err != nil {
		return Record{}, err
	}
	if r.Fenced, err = number(l, FencedAnnotation); err != nil {
		return Record{}, err
	}
	if l.Spec.HolderIdentity != nil {
		r.Holder = *l.Spec.HolderIdentity
	}
	if l.Spec.LeaseDurationSeconds != nil {
		r.Duration = time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second
	}
	return r, nil
}

func number(l *coordinationv1.Lease, annotation string) (int64, error) {
	text, ok := l.Annotations[annotation]
	if !ok {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("lease %s/%s: annotation %s is %q, not an epoch", l.Namespace, l.Name, annotation, text)
	}
	return n, nil
}

// Claimant is a process that wants to hold a node's Lease.
type Claimant struct {
	Node string
	// Holder is this process's identity, never used by another.
	Holder string
	// Dead are identities known to be dead (processes of this boot that held the lock on our data directory) or our own.
	Dead []string
	// Floor is the newest epoch known from elsewhere (the Node's status): the next epoch is above it, even if the Lease
	// was lost.
	Floor int64
}

// Take returns the Lease as it must be written to begin the next epoch, and that epoch. current is nil when there is
// none yet. It fails with ErrHeld while another process may be running in the current epoch.
func Take(current *coordinationv1.Lease, c Claimant, t Timing, wall time.Time) (*coordinationv1.Lease, int64, error) {
	if c.Holder == "" {
		return nil, 0, fmt.Errorf("node %s: a lease cannot be taken without an identity", c.Node)
	}
	next := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: NameOf(c.Node)}}
	if next.Name != nodePrefix+c.Node {
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, NodeAnnotation, c.Node)
	}
	var r Record
	if current != nil {
		var err error
		if r, err = Read(current); err != nil {
			return nil, 0, err
		}
		if r.Node != c.Node {
			return nil, 0, fmt.Errorf("node %s cannot take the lease of node %s", c.Node, r.Node)
		}
		next = current.DeepCopy()
	}
	if r.Held() && r.Holder != c.Holder && !slices.Contains(c.Dead, r.Holder) {
		return nil, 0, fmt.Errorf("node %s: %w: epoch %d of %s", c.Node, ErrHeld, r.Epoch, r.Holder)
	}
	epoch := max(r.Epoch, r.Fenced, c.Floor) + 1
	write(next, EpochAnnotation, epoch)
	now := metav1.NewMicroTime(wall)
	next.Spec.HolderIdentity = &c.Holder
	next.Spec.LeaseDurationSeconds = t.seconds()
	next.Spec.AcquireTime = &now
	next.Spec.RenewTime = &now
	return next, epoch, nil
}

// Renew returns the Lease as it must be written to continue an epoch, or ErrNotOurs. The duration is that which its holder lives by, whatever
// somebody else has written.
func Renew(current *coordinationv1.Lease, holder string, epoch int64, t Timing, wall time.Time) (*coordinationv1.Lease, error) {
	if err := ours(current, holder, epoch); err != nil {
		return nil, err
	}
	next := current.DeepCopy()
	now := metav1.NewMicroTime(wall)
	next.Spec.RenewTime = &now
	next.Spec.LeaseDurationSeconds = t.seconds()
	return next, nil
}

// Release returns the Lease as it must be written when its holder gives it up, or ErrNotOurs.
func Release(current *coordinationv1.Lease, holder string, epoch int64) (*coordinationv1.Lease, error) {
	if err := ours(current, holder, epoch); err != nil {
		return nil, err
	}
	next := current.DeepCopy()
	next.Spec.HolderIdentity = nil
	return next, nil
}

func ours(l *coordinationv1.Lease, holder string, epoch int64) error {
	r, err := Read(l)
	if err != nil {
		return err
	}
	if r.Holder != holder || r.Epoch != epoch || r.Over(epoch) {
		return fmt.Errorf("node %s epoch %d: %w: its holder is %q, its epoch %d, its fenced epoch %d", r.Node, epoch, ErrNotOurs, r.Holder, r.Epoch, r.Fenced)
	}
	return nil
}

// Fence returns the Lease as it must be written to fence its epoch: without a holder, and with the fenced epoch set. It fails with
// ErrChanged if the Lease is not the one that was watched.
func Fence(current *coordinationv1.Lease, watched Record) (*coordinationv1.Lease, error) {
	r, err := Read(current)
	if err != nil {
		return nil, err
	}
	if r != watched || !r.Held() {
		return nil, fmt.Errorf("node %s: %w", watched.Node, ErrChanged)
	}
	next := current.DeepCopy()
	next.Spec.HolderIdentity = nil
	write(next, FencedAnnotation, max(r.Epoch, r.Fenced))
	return next, nil
}

func write(l *coordinationv1.Lease, annotation string, n int64) {
	if l.Annotations == nil {
		l.Annotations = map[string]string{}
	}
	l.Annotations[annotation] = strconv.FormatInt(n, 10)
}
