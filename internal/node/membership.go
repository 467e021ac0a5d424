package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
)

// membership takes, renews and releases this node's Lease. Its client has a connection of its own, so that no other
// request and no stalled connection delays a renewal.
type membership struct {
	node    string
	client  client.Client
	timing  lease.Timing
	clock   Clock
	ahead   func() time.Duration // see WallAhead
	log     *slog.Logger
	dirLock *dirLock
	waits   func(error) // gets why the node has not joined yet
}

// held is the Lease as this process last wrote or read it.
type held struct {
	epoch *lease.HeldEpoch
	pause *pauseDetector
	lease *coordinationv1.Lease
}

func (m *membership) key() types.NamespacedName {
	return types.NamespacedName{Namespace: lease.Namespace, Name: lease.NameOf(m.node)}
}

// join begins the next epoch. While another process may be running in the current one it waits: until the Lease is released
// or fenced, or until it has itself seen the Lease unchanged for its whole duration, so that a whole cluster can
// start again after a power failure, without a coordinator that fences epochs. It returns errParked if the node is parked.
func (m *membership) join(ctx context.Context) (*held, error) {
	detector := lease.NewLossDetector(m.timing, m.clock())
	var repeats repeatFilter
	for {
		h, err := m.tryJoin(ctx, detector)
		switch {
		case err == nil:
			return h, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, errParked):
			return nil, err
		case errors.Is(err, lease.ErrHeld):
			m.waits(err)
			repeats.warn(m.log, "waiting for the lease of the node's last epoch to expire; it was taken on another machine or before a reboot", err)
		default:
			m.waits(err)
			detector.Failed(m.clock())
			repeats.warn(m.log, "could not join; trying again", err)
		}
		if err := backoff.Sleep(ctx, m.timing.Renew/4); err != nil {
			return nil, err
		}
	}
}

// tryJoin makes one attempt: it reads everything live, records the epoch in the node's directory, and then takes the Lease with one
// write that the resourceVersion guards.
func (m *membership) tryJoin(ctx context.Context, detector *lease.LossDetector) (*held, error) {
	ctx, cancel := context.WithTimeout(ctx, m.timing.Timeout)
	defer cancel()
	sentAt := m.clock()
	current, err := m.read(ctx)
	if err != nil {
		return nil, err
	}
	detector.Renewed(sentAt)
	claimant := lease.Claimant{Node: m.node, Holder: m.dirLock.holder, Dead: m.dirLock.dead}
	if current != nil {
		rec, err := lease.Read(current)
		if err != nil {
			return nil, err
		}
		detector.Saw(rec, m.clock())
		if lost := detector.Lost(m.clock()); len(lost) > 0 {
			claimant.Dead = append(claimant.Dead[:len(claimant.Dead):len(claimant.Dead)], rec.Holder)
		}
	}
	if claimant.Floor, err = m.floor(ctx); err != nil {
		return nil, err
	}
	next, epoch, err := lease.Take(current, claimant, m.timing, time.Now())
	if err != nil {
		return nil, err
	}
	if err := m.dirLock.reserve(epoch); err != nil {
		return nil, fmt.Errorf("epoch %d of node %s: %w", epoch, m.node, err)
	}
	pause := newPauseDetector(m.ahead, m.timing)
	sentAt = m.clock()
	if err := m.write(ctx, next); err != nil {
		return nil, fmt.Errorf("take epoch %d: %w", epoch, err)
	}
	if err := m.dirLock.took(epoch); err != nil {
		m.log.Warn("could not remove earlier lease holders from the node's directory", "epoch", epoch, "error", err)
	}
	return &held{epoch: lease.NewHeldEpoch(epoch, m.timing, sentAt), pause: pause, lease: next}, nil
}

// floor returns the newest epoch of this node that is recorded outside its Lease: in its directory, its Node object and the drain slot.
// Epochs never start over, even if the Lease was lost. A parked node takes no epoch.
func (m *membership) floor(ctx context.Context) (int64, error) {
	node, settings := &v1alpha1.Node{}, &v1alpha1.Settings{}
	if err := m.client.Get(ctx, types.NamespacedName{Name: m.node}, node); err != nil && !kubeclient.IsMissing(err) {
		return 0, err
	}
	if parked, err := isParked(ctx, m.client, node); err != nil {
		return 0, err
	} else if parked {
		return 0, errParked
	}
	if err := m.client.Get(ctx, types.NamespacedName{Name: v1alpha1.SettingsName}, settings); err != nil && !kubeclient.IsMissing(err) {
		return 0, err
	}
	floor := max(m.dirLock.epoch, node.Status.Epoch)
	if slot := settings.Status.ActiveDrain; slot != nil && slot.Node == m.node {
		floor = max(floor, slot.NodeEpoch)
	}
	return floor, nil
}

func (m *membership) read(ctx context.Context) (*coordinationv1.Lease, error) {
	l := &coordinationv1.Lease{}
	err := m.client.Get(ctx, m.key(), l)
	if kubeclient.IsMissing(err) {
		return nil, nil
	}
	return l, err
}

func (m *membership) write(ctx context.Context, l *coordinationv1.Lease) error {
	if l.ResourceVersion == "" {
		return m.client.Create(ctx, l)
	}
	return m.client.Update(ctx, l)
}

// renew keeps the epoch until ctx ends or the epoch does. It returns nil when ctx ended first.
func (m *membership) renew(ctx context.Context, h *held, detector *lease.LossDetector) error {
	next := m.timing.NextRenewal(h.epoch.SentAt(), m.clock(), true)
	var repeats repeatFilter
	for {
		if err := backoff.Sleep(ctx, next.Sub(m.clock())); err != nil {
			return nil
		}
		if h.epoch.StandingAt(m.clock()) != lease.Holding {
			return errDeadline
		}
		sentAt := m.clock()
		err := m.renewOnce(ctx, h, detector)
		switch {
		case err == nil:
			repeats = repeatFilter{}
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, lease.ErrNotOurs):
			h.epoch.Revoke(m.clock())
			return err
		default:
			detector.Failed(m.clock())
			repeats.warn(m.log, "could not renew the lease; trying again", err)
		}
		next = m.timing.NextRenewal(sentAt, m.clock(), err == nil)
	}
}

var (
	errDeadline = errors.New("the lease was not renewed in time")
	errPaused   = errors.New("the wall clock jumped ahead: this machine may have been paused, and its lease may have expired meanwhile")
)

func (m *membership) renewOnce(ctx context.Context, h *held, detector *lease.LossDetector) error {
	ctx, cancel := context.WithTimeout(ctx, m.timing.Timeout)
	defer cancel()
	ahead, sentAt := m.ahead(), m.clock()
	next, err := lease.Renew(h.lease, m.dirLock.holder, h.epoch.Number(), m.timing, time.Now())
	if err != nil {
		return err
	}
	err = m.client.Update(ctx, next)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		// The Lease was changed: a person set a label, the coordinator fenced the epoch, or an earlier request of ours arrived after
		// its timeout.
		ahead = m.ahead()
		if next, err = m.rewrite(ctx, h, &sentAt); err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	h.lease = next
	if h.pause.paused() {
		return errPaused
	}
	if !h.epoch.Renewed(sentAt, m.clock()) {
		return errDeadline
	}
	h.pause.renewed(ahead)
	detector.Renewed(sentAt)
	return nil
}

func (m *membership) rewrite(ctx context.Context, h *held, sentAt *lease.Instant) (*coordinationv1.Lease, error) {
	current, err := m.read(ctx)
	if err != nil {
		return nil, err
	}
	if current == nil {
		return nil, fmt.Errorf("node %s: %w: it was deleted", m.node, lease.ErrNotOurs)
	}
	next, err := lease.Renew(current, m.dirLock.holder, h.epoch.Number(), m.timing, time.Now())
	if err != nil {
		return nil, err
	}
	*sentAt = m.clock()
	return next, m.client.Update(ctx, next)
}

// release releases the Lease. Everything that the epoch started has stopped by then.
func (m *membership) release(ctx context.Context, h *held) error {
	for {
		current, err := m.read(ctx)
		if err != nil {
			return fmt.Errorf("release the lease: %w", err)
		}
		if current == nil {
			return nil
		}
		next, err := lease.Release(current, m.dirLock.holder, h.epoch.Number())
		if errors.Is(err, lease.ErrNotOurs) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("release the lease: %w", err)
		}
		if err = m.client.Update(ctx, next); !apierrors.IsConflict(err) {
			return err
		}
	}
}

// repeatFilter keeps a loop from logging the same error at every turn.
type repeatFilter struct{ last string }

// warn logs an error unless it is the one logged last.
func (r *repeatFilter) warn(log *slog.Logger, what string, err error) {
	if text := what + err.Error(); text != r.last {
		r.last = text
		log.Warn(what, "error", err)
	}
}
