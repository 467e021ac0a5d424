package changefeed

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// Status is one changefeed as people and programs see it.
type Status struct {
	Namespace   string                       `json:"namespace"`
	Name        string                       `json:"name"`
	State       v1alpha1.ChangefeedState     `json:"state"`
	Maintainer  string                       `json:"maintainer"`
	Placement   int64                        `json:"placement"`
	Tables      int64                        `json:"tables"`
	Checkpoint  int64                        `json:"checkpoint"`
	LagSeconds  *float64                     `json:"lagSeconds,omitempty"`
	Dispatchers map[string]int64             `json:"dispatchers"`
	Slowest     string                       `json:"slowest,omitempty"`
	Error       string                       `json:"error,omitempty"`
	Source      string                       `json:"source"`
	Sink        string                       `json:"sink"`
	Created     metav1.Time                  `json:"created"`
	placement   v1alpha1.ChangefeedPlacement // for the note
	// FilterPending: the filter has changed, and applies when the changefeed is paused and resumed.
	FilterPending bool `json:"filterPending,omitempty"`
	// Snapshot is how far the initial copy is.
	Snapshot *v1alpha1.ChangefeedSnapshotStatus `json:"snapshot,omitempty"`
}

// ReadStatus reads the changefeeds of a namespace, of all if it is empty, sorted by name.
func ReadStatus(ctx context.Context, c client.Client, namespace string, now time.Time) ([]Status, error) {
	var feeds v1alpha1.ChangefeedList
	if err := c.List(ctx, &feeds, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	list := []Status{}
	for i := range feeds.Items {
		cf := &feeds.Items[i]
		p := cf.Placement()
		s := Status{
			Namespace: cf.Namespace, Name: cf.Name, State: cf.Status.State, Maintainer: p.Node, Placement: p.Epoch, Tables: cf.Status.Tables,
			Checkpoint: cf.Status.Checkpoint, Dispatchers: map[string]int64{}, Slowest: cf.Status.Slowest, Error: cf.Status.Error, Source: cf.Spec.Source, Sink: cf.Spec.Sink,
			Created: cf.CreationTimestamp, placement: p, FilterPending: cf.Status.Filter != nil && cf.Status.Filter.Pending,
			Snapshot: cf.Status.Snapshot,
		}
		if s.State == "" {
			s.State = v1alpha1.ChangefeedPending
		}
		if at := cf.Status.CheckpointTime; at != nil {
			lag := now.Sub(at.Time).Seconds()
			s.LagSeconds = &lag
		}
		for _, n := range cf.Status.Nodes {
			s.Dispatchers[n.Node] = n.Dispatchers
		}
		list = append(list, s)
	}
	slices.SortFunc(list, func(a, b Status) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return list, nil
}

// Note is what matters most about a changefeed: what is wrong, that it moves, or what it waits for if it is late.
func (s Status) Note() string {
	from := s.placement.From
	switch {
	case s.Error != "":
		return s.Error
	case from != nil:
		return "moving from " + from.Node
	case s.Snapshot != nil && s.Snapshot.FinishedAt == nil:
		return snapshotNote(s.Snapshot)
	case s.LagSeconds != nil && *s.LagSeconds > ExplainAfter.Seconds():
		return s.Slowest
	case s.FilterPending:
		return "the filter has changed; pause and resume to apply it"
	}
	return ""
}

// snapshotNote says how far an initial copy is.
func snapshotNote(s *v1alpha1.ChangefeedSnapshotStatus) string {
	text := fmt.Sprintf("copying: %d of %d tables, %d of about %d rows", s.TablesDone, s.Tables, s.Rows, s.EstimatedRows)
	if s.EstimatedSeconds != nil {
		text += ", about " + duration.HumanDuration(time.Duration(*s.EstimatedSeconds)*time.Second) + " left"
	}
	return text
}

// SetState changes the desired state of a changefeed. If a failed one is resumed, its error is cleared.
func SetState(ctx context.Context, c client.Client, key types.NamespacedName, state v1alpha1.ChangefeedWish) (*v1alpha1.Changefeed, error) {
	for {
		cf := &v1alpha1.Changefeed{}
		if err := c.Get(ctx, key, cf); err != nil {
			return nil, err
		}
		cf.Spec.State = state
		err := c.Update(ctx, cf)
		if err == nil && state == v1alpha1.ChangefeedRun && cf.Status.State == v1alpha1.ChangefeedFailed {
			cf.Status.State, cf.Status.Error = v1alpha1.ChangefeedPending, ""
			err = c.Status().Update(ctx, cf)
		}
		if !apierrors.IsConflict(err) {
			return cf, err
		}
	}
}
