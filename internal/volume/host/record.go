package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/volume/block"
	"github.com/ebb-dev/ebb/internal/volume/engine"
	"github.com/ebb-dev/ebb/internal/volume/nbd"
)

// errNotOurs: the volume is not for this node any more.
var errNotOurs = fmt.Errorf("%w: the volume is not attached to this node", block.ErrStale)

// change writes the status of the volume as long as this node may run its engine. do returns whether there is anything to write.
func (a *attachment) change(ctx context.Context, do func(*v1alpha1.Volume) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	v := &v1alpha1.Volume{ObjectMeta: metav1.ObjectMeta{Namespace: a.key.Namespace, Name: a.key.Name, UID: a.uid}}
	wrote := false
	err := kubeclient.ChangeStatus(ctx, a.h.opts.Objects, v, func(v *v1alpha1.Volume) (bool, error) {
		if v.EngineNode() != a.h.opts.Node {
			return false, errNotOurs
		}
		var err error
		wrote, err = do(v)
		return wrote, err
	})
	switch {
	case kubeclient.IsMissing(err):
		return errNotOurs
	case err == nil && wrote:
		a.h.seeVolume(v)
	}
	return err
}

// persist makes the record of an engine, if the volume still has the generation before. A member that leaves because it was released must still
// be released in the version that is written over: the coordinator may count on it again.
func (a *attachment) persist(ctx context.Context, r engine.Record) error {
	return a.change(ctx, func(v *v1alpha1.Volume) (bool, error) {
		switch {
		case v.Status.Generation == r.Generation && slices.Equal(v.Status.Members, r.Members):
			return false, nil // an earlier attempt whose answer was lost
		case v.Status.Generation != r.From:
			return false, fmt.Errorf("%w: it has generation %d, and not %d", block.ErrStale, v.Status.Generation, r.From)
		}
		for _, name := range r.Leaving {
			if slices.Contains(v.Status.Members, name) && v.ReleaseOf(name) == nil {
				return false, fmt.Errorf("%w: %s", engine.ErrNotReleased, name)
			}
		}
		a.mu.Lock()
		a.wrote = max(a.wrote, r.Generation)
		a.mu.Unlock()
		v.Status.Generation, v.Status.Members = r.Generation, r.Members
		return true, nil
	})
}

// report writes how the engine is.
func (a *attachment) report(ctx context.Context, e *v1alpha1.VolumeEngine, uri string) error {
	return a.change(ctx, func(v *v1alpha1.Volume) (bool, error) {
		if equality.Semantic.DeepEqual(v.Status.Engine, e) && v.Status.NBDURI == uri {
			return false, nil
		}
		v.Status.Engine, v.Status.NBDURI = e, uri
		return true, nil
	})
}

// described is how an engine is, as the Volume has it.
func (a *attachment) described() (*v1alpha1.VolumeEngine, string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := &v1alpha1.VolumeEngine{Node: a.h.opts.Node, WaitingFor: shortened(a.failure)}
	if a.engine == nil {
		return e, ""
	}
	s := a.engine.Status()
	e.Generation, e.Serving = s.Generation, s.Serving && a.failure == ""
	if s.WaitingFor != "" {
		e.WaitingFor = shortened(s.WaitingFor)
	}
	for _, r := range s.Rebuilds {
		e.Rebuilds = append(e.Rebuilds, describeRebuild(r))
	}
	uri := ""
	if a.nbd != nil {
		uri = a.uri()
		clients := a.nbd.Clients()
		all := nbd.ClientNames(clients)
		e.Clients, e.ClientNames = int32(len(clients)), all[:min(len(all), maxClientNames)]
	}
	return e, uri
}

// maxClientNames is how many clients the Volume names.
const maxClientNames = 8

func describeRebuild(r engine.Rebuild) v1alpha1.VolumeRebuild {
	return v1alpha1.VolumeRebuild{
		Replica: r.Replica, DoneBytes: r.Done, TotalBytes: r.Total, Delta: r.Delta, StartedAt: metav1.NewTime(r.StartedAt.Truncate(time.Second)), Error: shortened(r.Error),
	}
}

// reportLoop keeps the Volume up to date with the engine until ctx ends: changes at once, progress at most every progressEvery.
func (a *attachment) reportLoop(ctx context.Context) {
	var last *v1alpha1.VolumeEngine
	var lastURI string
	var at time.Time
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for {
		e, uri := a.described()
		decisive := uri != lastURI || !equality.Semantic.DeepEqual(withoutProgress(e), withoutProgress(last))
		if decisive || !equality.Semantic.DeepEqual(e, last) && time.Since(at) > progressEvery {
			switch err := a.report(ctx, e, uri); {
			case err == nil:
				last, lastURI, at = e, uri, time.Now()
			case errors.Is(err, block.ErrStale) || ctx.Err() != nil:
			case client.IgnoreNotFound(err) != nil:
				a.h.opts.Log.Debug("volume: status not written", "volume", a.key.String(), "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-a.changed:
		case <-tick.C:
		}
	}
}

const (
	// reportEvery is how often an attachment looks whether there is something to report.
	reportEvery = 200 * time.Millisecond
	// progressEvery is how often the progress of rebuilds alone is written.
	progressEvery = time.Second
)

func withoutProgress(e *v1alpha1.VolumeEngine) *v1alpha1.VolumeEngine {
	if e == nil {
		return nil
	}
	e = e.DeepCopy()
	for i := range e.Rebuilds {
		e.Rebuilds[i].DoneBytes = 0
	}
	return e
}
