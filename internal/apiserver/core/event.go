package core

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	maxNote = 1024
	maxWord = 128
)

func events(ttl time.Duration) kind {
	return kind{
		plural: "events", singular: "event", short: []string{"ev"}, namespaced: true,
		empty:    func() runtime.Object { return &corev1.Event{} },
		list:     func() runtime.Object { return &corev1.EventList{} },
		prepare:  func(runtime.Object, runtime.Object) {},
		validate: func(next, _ runtime.Object) field.ErrorList { return validateEvent(next.(*corev1.Event)) },
		fields:   func(o runtime.Object) fields.Set { return eventFields(o.(*corev1.Event)) },
		columns:  eventColumns(),
		ttl:      uint64(ttl.Seconds()),
	}
}

// addEvents makes events.k8s.io another form of the core Events: both show the same objects.
func addEvents(s *runtime.Scheme) {
	s.AddKnownTypes(eventsv1.SchemeGroupVersion, &eventsv1.Event{}, &eventsv1.EventList{})
	s.AddKnownTypes(schema.GroupVersion{Group: eventsv1.GroupName, Version: runtime.APIVersionInternal}, &corev1.Event{}, &corev1.EventList{})
	mustSucceed(s.AddConversionFunc((*eventsv1.Event)(nil), (*corev1.Event)(nil), func(a, b any, _ conversion.Scope) error {
		toCore(a.(*eventsv1.Event), b.(*corev1.Event))
		return nil
	}))
	mustSucceed(s.AddConversionFunc((*corev1.Event)(nil), (*eventsv1.Event)(nil), func(a, b any, _ conversion.Scope) error {
		fromCore(a.(*corev1.Event), b.(*eventsv1.Event))
		return nil
	}))
	mustSucceed(s.AddConversionFunc((*eventsv1.EventList)(nil), (*corev1.EventList)(nil), func(a, b any, _ conversion.Scope) error {
		from, to := a.(*eventsv1.EventList), b.(*corev1.EventList)
		to.ListMeta, to.Items = from.ListMeta, make([]corev1.Event, len(from.Items))
		for i := range from.Items {
			toCore(&from.Items[i], &to.Items[i])
		}
		return nil
	}))
	mustSucceed(s.AddConversionFunc((*corev1.EventList)(nil), (*eventsv1.EventList)(nil), func(a, b any, _ conversion.Scope) error {
		from, to := a.(*corev1.EventList), b.(*eventsv1.EventList)
		to.ListMeta, to.Items = from.ListMeta, make([]eventsv1.Event, len(from.Items))
		for i := range from.Items {
			fromCore(&from.Items[i], &to.Items[i])
		}
		return nil
	}))
	core, other := map[string]string{}, map[string]string{}
	for name := range eventFields(&corev1.Event{}) {
		core[name] = name
		other[cmp.Or(renamed[name], strings.Replace(name, "involvedObject.", "regarding.", 1))] = name
	}
	addFields(s, corev1.SchemeGroupVersion.WithKind("Event"), core)
	addFields(s, eventsv1.SchemeGroupVersion.WithKind("Event"), other)
}

// renamed are the fields that have another name in events.k8s.io.
var renamed = map[string]string{"reportingComponent": "reportingController", "source": "deprecatedSource"}

func toCore(from *eventsv1.Event, to *corev1.Event) {
	*to = corev1.Event{
		ObjectMeta: from.ObjectMeta, InvolvedObject: from.Regarding, Reason: from.Reason, Message: from.Note, Source: from.DeprecatedSource,
		FirstTimestamp: from.DeprecatedFirstTimestamp, LastTimestamp: from.DeprecatedLastTimestamp, Count: from.DeprecatedCount,
		Type: from.Type, EventTime: from.EventTime, Action: from.Action, Related: from.Related,
		ReportingController: from.ReportingController, ReportingInstance: from.ReportingInstance,
	}
	if from.Series != nil {
		to.Series = &corev1.EventSeries{Count: from.Series.Count, LastObservedTime: from.Series.LastObservedTime}
	}
}

func fromCore(from *corev1.Event, to *eventsv1.Event) {
	*to = eventsv1.Event{
		ObjectMeta: from.ObjectMeta, Regarding: from.InvolvedObject, Reason: from.Reason, Note: from.Message, DeprecatedSource: from.Source,
		DeprecatedFirstTimestamp: from.FirstTimestamp, DeprecatedLastTimestamp: from.LastTimestamp, DeprecatedCount: from.Count,
		Type: from.Type, EventTime: from.EventTime, Action: from.Action, Related: from.Related,
		ReportingController: from.ReportingController, ReportingInstance: from.ReportingInstance,
	}
	if from.Series != nil {
		to.Series = &eventsv1.EventSeries{Count: from.Series.Count, LastObservedTime: from.Series.LastObservedTime}
	}
}

func eventFields(e *corev1.Event) fields.Set {
	o := e.InvolvedObject
	return fields.Set{
		"involvedObject.kind": o.Kind, "involvedObject.namespace": o.Namespace, "involvedObject.name": o.Name,
		"involvedObject.uid": string(o.UID), "involvedObject.apiVersion": o.APIVersion,
		"involvedObject.resourceVersion": o.ResourceVersion, "involvedObject.fieldPath": o.FieldPath,
		"reason": e.Reason, "reportingComponent": e.ReportingController, "source": cmp.Or(e.Source.Component, e.ReportingController), "type": e.Type,
	}
}

// validateEvent: an event is in the namespace of its object, or in default if the object has none. An event with an eventTime must have
// the other fields of the newer API too.
func validateEvent(e *corev1.Event) field.ErrorList {
	errs := validateName(e.Name, e.GenerateName)
	about := field.NewPath("involvedObject", "namespace")
	switch {
	case e.InvolvedObject.Namespace == "" && e.Namespace != metav1.NamespaceDefault && e.Namespace != metav1.NamespaceSystem:
		errs = append(errs, field.Invalid(about, e.InvolvedObject.Namespace, "does not match event.namespace: events about objects without a namespace are in default"))
	case e.InvolvedObject.Namespace != "" && e.InvolvedObject.Namespace != e.Namespace:
		errs = append(errs, field.Invalid(about, e.InvolvedObject.Namespace, "does not match event.namespace "+e.Namespace))
	}
	if len(e.Message) > maxNote {
		errs = append(errs, field.TooLong(field.NewPath("message"), "", maxNote))
	}
	for _, word := range []struct{ name, text string }{{"reportingInstance", e.ReportingInstance}, {"action", e.Action}, {"reason", e.Reason}} {
		at := field.NewPath(word.name)
		if len(word.text) > maxWord {
			errs = append(errs, field.TooLong(at, "", maxWord))
		}
		if word.text == "" && !e.EventTime.IsZero() {
			errs = append(errs, field.Required(at, "an event with an eventTime must have it"))
		}
	}
	if e.EventTime.IsZero() {
		return errs
	}
	if e.ReportingController == "" {
		errs = append(errs, field.Required(field.NewPath("reportingComponent"), "an event with an eventTime must have it"))
	}
	if e.Type != corev1.EventTypeNormal && e.Type != corev1.EventTypeWarning {
		errs = append(errs, field.NotSupported(field.NewPath("type"), e.Type, []string{corev1.EventTypeNormal, corev1.EventTypeWarning}))
	}
	return errs
}

func eventColumns() columns {
	text := func(name string, wide bool, cell func(*corev1.Event) string) column {
		return column{name: name, wide: wide, cell: func(o runtime.Object) any { return cell(o.(*corev1.Event)) }}
	}
	return columns{
		text("Last Seen", false, func(e *corev1.Event) string { return since(lastSeen(e)) }),
		text("Type", false, func(e *corev1.Event) string { return e.Type }),
		text("Reason", false, func(e *corev1.Event) string { return e.Reason }),
		text("Object", false, func(e *corev1.Event) string {
			return strings.ToLower(e.InvolvedObject.Kind) + "/" + e.InvolvedObject.Name
		}),
		text("Subobject", true, func(e *corev1.Event) string { return e.InvolvedObject.FieldPath }),
		text("Source", true, func(e *corev1.Event) string {
			return cmp.Or(e.Source.Component, e.ReportingController) + ", " + cmp.Or(e.Source.Host, e.ReportingInstance)
		}),
		text("Message", false, func(e *corev1.Event) string { return strings.TrimSpace(e.Message) }),
		text("First Seen", true, func(e *corev1.Event) string { return since(firstSeen(e)) }),
		text("Count", true, func(e *corev1.Event) string { return fmt.Sprint(times(e)) }),
		text("Name", true, func(e *corev1.Event) string { return e.Name }),
	}
}

func firstSeen(e *corev1.Event) time.Time {
	if !e.FirstTimestamp.IsZero() {
		return e.FirstTimestamp.Time
	}
	return e.EventTime.Time
}

func lastSeen(e *corev1.Event) time.Time {
	switch {
	case e.Series != nil:
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	}
	return firstSeen(e)
}

func times(e *corev1.Event) int32 {
	if e.Series != nil {
		return e.Series.Count
	}
	return max(e.Count, 1)
}
