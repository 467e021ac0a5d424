// Package events tells people what happened, as Kubernetes does: an Event object for each transition, once.
package events

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

const (
	// namespace of events about objects that have none.
	namespace = "default"
	// reporter begins the name of every controller of ours.
	reporter = "ebb.dev/"
	// kept is how long events are kept.
	kept = time.Hour
	// pruneEvery is how often old ones are looked for.
	pruneEvery = 5 * time.Minute

	maxNote = 1024
	maxName = 253
)

// Recorder writes events on behalf of one controller on one node.
type Recorder struct {
	// Client writes them.
	Client client.Client
	// Controller that reports.
	Controller string
	// Instance is the node it runs on.
	Instance string
}

// Event is one thing that happened.
type Event struct {
	// Regarding is the object it happened to.
	Regarding client.Object
	// Type is corev1.EventTypeNormal or corev1.EventTypeWarning.
	Type string
	// Reason is one word, Action what was being done, Note a sentence.
	Reason, Action, Note string
	// Key tells this transition from others of the same object and reason; the same transition is told once, however
	// often and by whomever it is reported.
	Key string
}

// Emit writes an event, unless it was written before.
func (r Recorder) Emit(ctx context.Context, e Event) error {
	gvk, err := apiutil.GVKForObject(e.Regarding, r.Client.Scheme())
	if err != nil {
		return fmt.Errorf("event %s: %w", e.Reason, err)
	}
	ns := e.Regarding.GetNamespace()
	if ns == "" {
		ns = namespace
	}
	note := e.Note
	if len(note) > maxNote {
		note = strings.ToValidUTF8(note[:maxNote-3], "") + "..."
	}
	err = r.Client.Create(ctx, &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: ns, Name: e.name(gvk.Kind)},
		EventTime:           metav1.NowMicro(),
		ReportingController: reporter + r.Controller,
		ReportingInstance:   r.Instance,
		Action:              e.Action,
		Reason:              e.Reason,
		Note:                note,
		Type:                e.Type,
		Regarding: corev1.ObjectReference{
			APIVersion: gvk.GroupVersion().String(), Kind: gvk.Kind,
			Namespace: e.Regarding.GetNamespace(), Name: e.Regarding.GetName(), UID: e.Regarding.GetUID(),
		},
	})
	if client.IgnoreAlreadyExists(err) != nil {
		return fmt.Errorf("event %s of %s %s: %w", e.Reason, gvk.Kind, e.Regarding.GetName(), err)
	}
	return nil
}

// name is the same for the same transition. What makes it so is in the hash; the object's name is there to be read.
func (e Event) name(kind string) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{kind, string(e.Regarding.GetUID()), e.Reason, e.Key}, "\x00")))
	suffix, name := "."+hex.EncodeToString(sum[:8]), e.Regarding.GetName()
	if len(name) > maxName-len(suffix) {
		name = strings.TrimRight(name[:maxName-len(suffix)], "-.")
	}
	return name + suffix
}

// Pruner removes our events when they are old: the embedded API has nothing else that would.
type Pruner struct {
	Client client.Client
	Reader client.Reader
	Log    *slog.Logger
}

// Start prunes until ctx ends. It is a Runnable of the coordinator's manager.
func (p Pruner) Start(ctx context.Context) error {
	ticker := time.NewTicker(pruneEvery)
	defer ticker.Stop()
	for {
		if err := p.Prune(ctx, time.Now()); err != nil && ctx.Err() == nil {
			p.Log.Warn("old events stay for now", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Prune removes our events that were old at now.
func (p Pruner) Prune(ctx context.Context, now time.Time) error {
	var list eventsv1.EventList
	if err := p.Reader.List(ctx, &list); err != nil {
		return fmt.Errorf("list events: %w", err)
	}
	for i := range list.Items {
		e := &list.Items[i]
		if !strings.HasPrefix(e.ReportingController, reporter) || now.Sub(e.CreationTimestamp.Time) < kept {
			continue
		}
		if err := p.Client.Delete(ctx, e); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete event %s: %w", e.Name, err)
		}
	}
	return nil
}
