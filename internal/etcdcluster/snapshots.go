package etcdcluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/etcdcluster/member"
	"github.com/ebb-dev/ebb/internal/etcdcluster/snapshot"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

const (
	// takeLimit bounds one snapshot, and memberLimit how long a member that should be there may not run.
	takeLimit   = 10 * time.Minute
	memberLimit = 15 * time.Second
	// strayAge is how old a file that belongs to nothing must be to be deleted: its object may be about to be seen.
	strayAge = time.Hour
)

// curator does on this node what one EtcdSnapshot asks for, in one epoch.
type curator struct {
	*era
	key    snapshot.Key
	wakeup chan struct{}

	mu     sync.Mutex
	object *v1alpha1.EtcdSnapshot // as last seen
	gone   bool

	// Only live uses what follows.
	checked bool      // the file was compared with the facts in this epoch
	waits   time.Time // since when the member is not there
}

func keyOfSnapshot(s *v1alpha1.EtcdSnapshot) snapshot.Key {
	return snapshot.Key{Dir: s.Spec.Dir, ClusterUID: s.Spec.ClusterUID, Name: s.Name}
}

func (a *era) seeSnapshot(s *v1alpha1.EtcdSnapshot) {
	a.Host.mu.Lock()
	current := a.Host.era == a
	if current {
		a.snapshots[client.ObjectKeyFromObject(s)] = s
	}
	a.Host.mu.Unlock()
	if !current {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return
	}
	c := a.curators[s.UID]
	if c == nil {
		c = &curator{era: a, key: keyOfSnapshot(s), wakeup: make(chan struct{}, 1), object: s}
		a.curators[s.UID] = c
		a.live.Go(func() { c.live(a.ctx) })
	}
	c.mu.Lock()
	c.object = s
	c.mu.Unlock()
	poke(c.wakeup)
}

// forgetSnapshot: the object was seen deleted, so that its file belongs to nothing.
func (a *era) forgetSnapshot(s *v1alpha1.EtcdSnapshot) {
	a.Host.mu.Lock()
	if old := a.snapshots[client.ObjectKeyFromObject(s)]; old != nil && old.UID == s.UID {
		delete(a.snapshots, client.ObjectKeyFromObject(s))
	}
	a.Host.mu.Unlock()
	a.mu.Lock()
	c := a.curators[s.UID]
	delete(a.curators, s.UID)
	a.mu.Unlock()
	if c != nil {
		c.mu.Lock()
		c.gone = true
		c.mu.Unlock()
		poke(c.wakeup)
	}
}

func (c *curator) latest() (*v1alpha1.EtcdSnapshot, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.object, c.gone
}

func (c *curator) live(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	delays := backoff.New(backoff.Policy{First: 500 * time.Millisecond, Longest: 30 * time.Second}) // before a copy that failed is tried again
	first, _ := c.latest()
	defer c.setWorking(first.UID, false)
	for {
		s, gone := c.latest()
		if gone {
			if err := c.drop(s); err != nil && ctx.Err() == nil {
				c.opts.Log.Warn("snapshot is still here", "snapshot", s.Namespace+"/"+s.Name, "error", err)
			}
			return
		}
		var again <-chan time.Time
		if err := c.step(ctx, s); err != nil && ctx.Err() == nil {
			timer.Reset(delays.Next())
			again = timer.C
		} else {
			delays.Reset()
		}
		select {
		case <-ctx.Done():
			return
		case <-c.wakeup:
		case <-again:
		}
	}
}

// step brings this node nearer to what the object asks of it. An error is tried again.
func (c *curator) step(ctx context.Context, s *v1alpha1.EtcdSnapshot) error {
	switch {
	case s.DeletionTimestamp != nil:
		return c.delete(ctx, s)
	case s.Status.Facts == nil:
		return c.takeIfMine(ctx, s)
	case slices.Contains(s.Spec.Nodes, c.opts.Node):
		return c.keep(ctx, s)
	}
	return c.handOn(ctx, s)
}

// write changes the object's status.
func (a *era) writeSnapshot(ctx context.Context, s *v1alpha1.EtcdSnapshot, change func(*v1alpha1.EtcdSnapshot) bool) error {
	err := update(ctx, a, s.DeepCopy(), func() *v1alpha1.EtcdSnapshot { return &v1alpha1.EtcdSnapshot{} }, change)
	if kubeclient.IsMissing(err) {
		return nil // the watch will say so
	}
	return err
}

// writeCopy writes this node's own entry: that the file is good, or why it is not.
func (a *era) writeCopy(ctx context.Context, s *v1alpha1.EtcdSnapshot, bad error) error {
	entry := v1alpha1.EtcdSnapshotCopy{Node: a.opts.Node}
	if bad == nil {
		now := metav1.NowMicro()
		entry.Verified = &now
	} else {
		entry.Error = short(bad.Error(), 1024)
	}
	return a.writeSnapshot(ctx, s, func(o *v1alpha1.EtcdSnapshot) bool { return setCopy(o, entry) })
}

func setCopy(o *v1alpha1.EtcdSnapshot, entry v1alpha1.EtcdSnapshotCopy) bool {
	for i, c := range o.Status.Copies {
		if c.Node == entry.Node {
			if c.Error == entry.Error && (c.Verified == nil) == (entry.Verified == nil) && entry.Verified == nil {
				return false
			}
			o.Status.Copies[i] = entry
			return true
		}
	}
	o.Status.Copies = append(o.Status.Copies, entry)
	return true
}

// dropCopy takes this node's entry away.
func (a *era) dropCopy(ctx context.Context, s *v1alpha1.EtcdSnapshot) error {
	return a.writeSnapshot(ctx, s, func(o *v1alpha1.EtcdSnapshot) bool {
		before := len(o.Status.Copies)
		o.Status.Copies = slices.DeleteFunc(o.Status.Copies, func(c v1alpha1.EtcdSnapshotCopy) bool { return c.Node == a.opts.Node })
		return len(o.Status.Copies) != before
	})
}

// delete: somebody asked for the snapshot to go.
func (c *curator) delete(ctx context.Context, s *v1alpha1.EtcdSnapshot) error {
	c.setWorking(s.UID, false)
	if err := c.drop(s); err != nil {
		return err
	}
	return c.dropCopy(ctx, s)
}

// drop deletes the file of an object that is being deleted or is gone.
func (c *curator) drop(*v1alpha1.EtcdSnapshot) error {
	if !c.e.Holding() {
		return errNodeInDoubt
	}
	return c.store.Delete(c.key)
}

// slot waits for one of the few places for work that reads or writes whole files.
func (a *era) slot(ctx context.Context) (release func(), err error) {
	select {
	case a.heavy <- struct{}{}:
		return func() { <-a.heavy }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// heavily does such work beside the caller, who does not wait for it once ctx ends: a slow disk must not hold up a node whose lease is in doubt.
// What is left of the work then only touches a temporary file that is gone already.
func (a *era) heavily(ctx context.Context, work func() error) error {
	release, err := a.slot(ctx)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		defer release()
		done <- work()
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// errNotHere: the member of which a snapshot should be taken does not run here just now.
var errNotHere = errors.New("the member does not run")

// takeIfMine takes the snapshot if its member is here. What does not succeed is told, and not tried again: the coordinator asks anew.
func (c *curator) takeIfMine(ctx context.Context, s *v1alpha1.EtcdSnapshot) error {
	if s.Status.Error != "" {
		return nil
	}
	m := &v1alpha1.EtcdMember{}
	if err := c.e.Cache.Get(ctx, types.NamespacedName{Namespace: s.Namespace, Name: s.Spec.Member}, m); err != nil {
		if kubeclient.IsMissing(err) {
			return nil // another node's business, if anybody's; news of the snapshot follows
		}
		return err
	}
	if m.Spec.Node != c.opts.Node || m.Spec.ClusterUID != s.Spec.ClusterUID {
		return nil
	}
	// What was last seen may be older than what this node wrote, and a file must never be replaced once its facts are told.
	live := &v1alpha1.EtcdSnapshot{}
	if err := c.e.Client.Get(ctx, client.ObjectKeyFromObject(s), live); err != nil {
		return client.IgnoreNotFound(err)
	}
	if live.UID != s.UID || live.Status.Facts != nil || live.Status.Error != "" || live.DeletionTimestamp != nil {
		return nil // news follows
	}
	s = live
	c.setWorking(s.UID, true)
	facts, err := c.take(ctx, s, m)
	if ctx.Err() != nil {
		c.setWorking(s.UID, false)
		return ctx.Err()
	}
	if errors.Is(err, errNotHere) {
		if c.waits.IsZero() {
			c.waits = time.Now()
		}
		if time.Since(c.waits) < memberLimit {
			return err
		}
	}
	if err != nil {
		c.opts.Metrics.failed.WithLabelValues(stepTake).Inc()
		c.opts.Log.Warn("snapshot not taken", "snapshot", s.Namespace+"/"+s.Name, "member", s.Spec.Member, "error", err)
		defer c.settle(ctx, s.UID)
		return c.writeSnapshot(ctx, s, func(o *v1alpha1.EtcdSnapshot) bool {
			if o.Status.Facts != nil || o.Status.Error != "" {
				return false
			}
			o.Status.Error = short(err.Error(), 1024)
			return true
		})
	}
	c.checked = true
	now := metav1.NowMicro()
	err = c.writeSnapshot(ctx, s, func(o *v1alpha1.EtcdSnapshot) bool {
		if o.Status.Facts != nil || o.DeletionTimestamp != nil {
			return false
		}
		o.Status.Facts, o.Status.Error = facts, ""
		setCopy(o, v1alpha1.EtcdSnapshotCopy{Node: c.opts.Node, Verified: &now})
		return true
	})
	if err != nil {
		return err // it is taken anew
	}
	c.opts.Log.Info("snapshot taken", "snapshot", s.Namespace+"/"+s.Name, "member", s.Spec.Member, "revision", facts.Revision, "bytes", facts.Size)
	c.settle(ctx, s.UID)
	return nil
}

// settle waits until the watch has brought what was just written, so that the count does not miss the only copy in between.
func (c *curator) settle(ctx context.Context, uid types.UID) {
	deadline := time.After(nodeWriteLimit)
	for {
		s, gone := c.latest()
		if gone || s.Status.Facts != nil || s.Status.Error != "" || s.DeletionTimestamp != nil {
			break
		}
		select {
		case <-c.wakeup:
			continue
		case <-ctx.Done():
		case <-deadline:
		}
		break
	}
	c.setWorking(uid, false)
	poke(c.wakeup)
}

func (h *Host) setWorking(uid types.UID, on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if on {
		h.working[uid] = true
	} else {
		delete(h.working, uid)
	}
}

// take takes the snapshot from the member's private socket, verifies it and gives it its name.
func (c *curator) take(ctx context.Context, s *v1alpha1.EtcdSnapshot, m *v1alpha1.EtcdMember) (*v1alpha1.EtcdSnapshotFacts, error) {
	began := time.Now()
	dir, err := memberDir(c.opts.Dir, m)
	if err != nil {
		return nil, err
	}
	if !c.answers(m.UID) {
		return nil, errNotHere
	}
	etcd, err := member.Dial(dir)
	if err != nil {
		return nil, err
	}
	defer etcd.Close()
	temp, err := c.store.Temp(c.key)
	if err != nil {
		return nil, fmt.Errorf("the snapshot store: %w", err)
	}
	defer c.store.Discard(temp)
	ctx, cancel := context.WithTimeout(ctx, takeLimit)
	defer cancel()
	facts := make(chan snapshot.Facts, 1)
	err = c.heavily(ctx, func() error {
		f, err := snapshot.Take(ctx, etcd, temp, s.Spec.Revision)
		facts <- f
		return err
	})
	if err != nil {
		return nil, err
	}
	f := <-facts
	if err := c.store.Keep(c.key, temp); err != nil {
		return nil, fmt.Errorf("the snapshot store: %w", err)
	}
	since(c.opts.Metrics.taken, began)
	return &v1alpha1.EtcdSnapshotFacts{
		Revision: f.Revision, Hash: int64(f.Hash), TotalKeys: f.TotalKeys, Size: f.Size, SHA256: f.SHA256, At: metav1.NewMicroTime(f.At),
	}, nil
}

// answers says whether a member runs here and is part of its cluster.
func (h *Host) answers(uid types.UID) bool {
	h.mu.Lock()
	k := h.keepers[uid]
	h.mu.Unlock()
	if k == nil {
		return false
	}
	phase := k.phase()
	return phase == v1alpha1.EtcdMemberRunning || phase == v1alpha1.EtcdMemberSealed
}

// keep makes sure that a verified copy is here.
func (c *curator) keep(ctx context.Context, s *v1alpha1.EtcdSnapshot) error {
	there, err := c.store.Has(c.key)
	if err != nil {
		return err
	}
	if _, verified := s.Copy(c.opts.Node); there && verified && c.checked {
		return nil
	}
	if there {
		if err = c.verify(ctx, s); err == nil {
			c.checked = true
			return c.writeCopy(ctx, s, nil)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := c.writeCopy(ctx, s, err); err != nil {
			return err
		}
	} else if copy, verified := s.Copy(c.opts.Node); verified || copy.Node == "" && len(s.Verified()) == 0 {
		err = errors.New("the file is not here any more")
		if werr := c.writeCopy(ctx, s, err); werr != nil {
			return werr
		}
	}
	return c.bring(ctx, s, err)
}

// verify compares the file here with the facts.
func (a *era) verify(ctx context.Context, s *v1alpha1.EtcdSnapshot) error {
	path, err := a.store.Path(keyOfSnapshot(s))
	if err != nil {
		return err
	}
	err = a.heavily(ctx, func() error { return snapshot.Verify(path, s.Status.Facts.Size, s.Status.Facts.SHA256) })
	if errors.Is(err, snapshot.ErrTampered) {
		a.opts.Metrics.failed.WithLabelValues(stepVerify).Inc()
		a.opts.Log.Error("snapshot is not what was recorded", "snapshot", s.Namespace+"/"+s.Name, "error", err)
	}
	return err
}

// errNoCopy: no other node has a verified copy.
var errNoCopy = errors.New("no other node has a verified copy")

// bring fetches a copy from another node. One that is here and not good is replaced only by one that is.
func (c *curator) bring(ctx context.Context, s *v1alpha1.EtcdSnapshot, bad error) error {
	began := time.Now()
	temp, err := c.store.Temp(c.key)
	if err == nil {
		defer c.store.Discard(temp)
		err = c.heavily(ctx, func() error { return c.fetch(ctx, s, temp) })
	}
	if err == nil {
		err = c.store.Keep(c.key, temp)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		c.opts.Metrics.failed.WithLabelValues(stepCopy).Inc()
		return errors.Join(err, c.writeCopy(ctx, s, errors.Join(bad, err)))
	}
	since(c.opts.Metrics.copied, began)
	c.checked = true
	c.opts.Log.Info("snapshot copied", "snapshot", s.Namespace+"/"+s.Name, "bytes", s.Status.Facts.Size)
	return c.writeCopy(ctx, s, nil)
}

// fetch brings a copy from any node that has a verified one, in an order of chance.
func (a *era) fetch(ctx context.Context, s *v1alpha1.EtcdSnapshot, temp string) error {
	from := slices.DeleteFunc(s.Verified(), func(n string) bool { return n == a.opts.Node })
	rand.Shuffle(len(from), func(i, j int) { from[i], from[j] = from[j], from[i] })
	err := errNoCopy
	for i, name := range from {
		if i == 0 {
			err = nil
		}
		one := a.fetchFrom(ctx, name, s, temp)
		if one == nil {
			return nil
		}
		err = errors.Join(err, fmt.Errorf("from node %s: %w", name, one))
	}
	return err
}

// handOn lets go of a copy that should not be here any more, once a node that should keep one has it.
func (c *curator) handOn(ctx context.Context, s *v1alpha1.EtcdSnapshot) error {
	there, err := c.store.Has(c.key)
	if err != nil {
		return err
	}
	if !there {
		return c.dropCopy(ctx, s)
	}
	live := &v1alpha1.EtcdSnapshot{}
	ask, cancel := context.WithTimeout(ctx, nodeWriteLimit)
	defer cancel()
	if err := c.e.Client.Get(ask, client.ObjectKeyFromObject(s), live); err != nil {
		if kubeclient.IsMissing(err) {
			return nil // the watch will say so
		}
		return err
	}
	kept := slices.ContainsFunc(live.Verified(), func(n string) bool { return n != c.opts.Node && slices.Contains(live.Spec.Nodes, n) })
	if live.UID != s.UID || slices.Contains(live.Spec.Nodes, c.opts.Node) || !kept {
		return nil // news of the copies follows
	}
	if !c.e.Holding() {
		return errNodeInDoubt
	}
	if err := c.store.Delete(c.key); err != nil {
		return err
	}
	return c.dropCopy(ctx, live)
}

// sweep deletes files of which no object exists: their deletion was not seen because this node was not there. A young one may be of an object that
// is about to be seen.
func (a *era) sweep(ctx context.Context) error {
	found, err := a.store.List()
	if err != nil || len(found) == 0 {
		return err
	}
	var list v1alpha1.EtcdSnapshotList
	if err := a.e.Client.List(ctx, &list); err != nil {
		return err
	}
	there := map[snapshot.Key]bool{}
	for i := range list.Items {
		there[keyOfSnapshot(&list.Items[i])] = true
	}
	for _, f := range found {
		if f.Temp || there[f.Key] || time.Since(f.Written) < strayAge {
			continue
		}
		if !a.e.Holding() {
			return errNodeInDoubt
		}
		a.opts.Log.Info("snapshot that belongs to nothing is deleted", "file", f.Path)
		err = errors.Join(err, a.store.Delete(f.Key))
	}
	return err
}

// source finds the snapshot that a member begins with: the copy here, or one that is fetched for it, which goes after use.
func (a *era) source(ctx context.Context, m *v1alpha1.EtcdMember) (r *member.Restore, discard func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(a.ctx, cancel)()
	s := &v1alpha1.EtcdSnapshot{}
	if err := a.e.Client.Get(ctx, types.NamespacedName{Namespace: m.Namespace, Name: m.Spec.Begin.Snapshot}, s); err != nil {
		return nil, nil, fmt.Errorf("snapshot %s: %w", m.Spec.Begin.Snapshot, err)
	}
	if s.Spec.ClusterUID != m.Spec.ClusterUID {
		return nil, nil, fmt.Errorf("snapshot %s is of another cluster", s.Name)
	}
	if s.Status.Facts == nil {
		return nil, nil, fmt.Errorf("snapshot %s has not been taken", s.Name)
	}
	path, discard, err := a.goodCopy(ctx, s)
	if err != nil {
		return nil, nil, fmt.Errorf("snapshot %s: %w", s.Name, err)
	}
	return &member.Restore{Path: path, Size: s.Status.Facts.Size, SHA256: s.Status.Facts.SHA256, Exact: m.Spec.Begin.Exact}, discard, nil
}

// goodCopy is a file that is what was recorded.
func (a *era) goodCopy(ctx context.Context, s *v1alpha1.EtcdSnapshot) (path string, discard func(), err error) {
	key := keyOfSnapshot(s)
	if path, err = a.store.Path(key); err != nil {
		return "", nil, err
	}
	bad := a.verify(ctx, s)
	switch {
	case bad == nil:
		return path, func() {}, nil
	case errors.Is(bad, snapshot.ErrTampered):
		if err := a.writeCopy(ctx, s, bad); err != nil {
			return "", nil, err
		}
	case errors.Is(bad, fs.ErrNotExist):
		bad = nil
	default:
		return "", nil, bad
	}
	if path, err = a.store.Temp(key); err != nil {
		return "", nil, err
	}
	if err := a.heavily(ctx, func() error { return a.fetch(ctx, s, path) }); err != nil {
		a.store.Discard(path)
		return "", nil, errors.Join(bad, err)
	}
	return path, func() { a.store.Discard(path) }, nil
}
