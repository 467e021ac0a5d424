package host

import (
	"context"
	"time"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

// say changes what is told of the member, for an object in an epoch.
func (k *keeper) say(m *v1alpha1.EtcdMember, a *era, change func(*v1alpha1.EtcdMemberStatus)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change(&k.status)
	k.status.ObservedGeneration, k.status.NodeEpoch = m.Generation, a.e.Number
	poke(k.told)
}

// tell writes the status whenever it is not what the object says.
func (k *keeper) tell(ctx context.Context) {
	for {
		var again <-chan time.Time
		if err := k.write(ctx); err != nil {
			again = time.After(tellAgain)
		}
		select {
		case <-ctx.Done():
			return
		case <-k.told:
		case <-again:
		}
	}
}

func (k *keeper) write(ctx context.Context) error {
	m, gone := k.latest()
	a := k.host.current()
	if gone || a == nil {
		return nil
	}
	err := update(ctx, a, m.DeepCopy(), func() *v1alpha1.EtcdMember { return &v1alpha1.EtcdMember{} }, func(o *v1alpha1.EtcdMember) bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.status.ObservedGeneration == 0 || k.status.NodeEpoch != a.e.Number {
			return false // nothing has been looked at in this epoch
		}
		next := k.status
		if o.Status.PeerURL != "" {
			next.PeerURL, next.ClientURL = o.Status.PeerURL, o.Status.ClientURL
		}
		if o.Status == next {
			return false
		}
		o.Status = next
		return true
	})
	if kubeclient.IsMissing(err) {
		return nil // the watch will say so
	}
	return err
}
