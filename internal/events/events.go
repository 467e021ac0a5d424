// Package events writes Kubernetes Events: one for each transition.
package events

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

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

// Event is one event to write.
type Event struct {
	// Regarding is the object it happened to.
	Regarding client.Object
	// Type is corev1.EventTypeNormal or corev1.EventTypeWarning.
	Type string
	// Reason is one word, Action what was being done, Note a sentence.
	Reason, Action, Note string
	// Key distinguishes this transition from others of the same object and reason. The event of a transition is written once, however
	// often and by whichever node it is reported.
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

// name is the same for the same transition: a hash identifies it. The object's name in it is for people.
func (e Event) name(kind string) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{kind, string(e.Regarding.GetUID()), e.Reason, e.Key}, "\x00")))
	suffix, name := "."+hex.EncodeToString(sum[:8]), e.Regarding.GetName()
	if len(name) > maxName-len(suffix) {
		name = strings.TrimRight(name[:maxName-len(suffix)], "-.")
	}
	return name + suffix
}
