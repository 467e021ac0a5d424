package render

import (
	"fmt"
	"reflect"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// Data is what a template gets.
type Data struct {
	// HealthEvent is the event.
	HealthEvent HealthEvent
	// PodsToDrain are the names of pods by namespace, without system namespaces, as they were right after the node was cordoned.
	PodsToDrain map[string]Texts
}

// HealthEvent is an event as templates see it.
type HealthEvent struct {
	Version             int64
	Agent               Text
	ComponentClass      Text
	CheckName           Text
	IsFatal             bool
	IsHealthy           bool
	Message             Text
	RecommendedAction   Text
	ErrorCode           Texts
	EntitiesImpacted    []Entity
	Metadata            map[string]Text
	GeneratedTimestamp  Text
	NodeName            Text
	QuarantineOverrides v1alpha1.Overrides
	DrainOverrides      v1alpha1.Overrides
	ID                  Text
	// Id is the same as ID.
	Id Text // the name that templates of others use
}

// Entity is a part of a node that is affected.
type Entity struct{ EntityType, EntityValue Text }

// NewData is what a template gets for an event.
func NewData(e *v1alpha1.HealthEvent, pods *v1alpha1.PodsSnapshot) Data {
	s := &e.Spec
	d := Data{PodsToDrain: map[string]Texts{}, HealthEvent: HealthEvent{
		Version: s.Version, Agent: Text(s.Agent), ComponentClass: Text(s.ComponentClass), CheckName: Text(s.CheckName), IsFatal: s.IsFatal,
		IsHealthy: s.IsHealthy, Message: Text(s.Message), RecommendedAction: Text(s.RecommendedAction), NodeName: Text(s.NodeName),
		Metadata: map[string]Text{}, ID: Text(e.EventID()), Id: Text(e.EventID()),
	}}
	if s.GeneratedTimestamp != nil {
		d.HealthEvent.GeneratedTimestamp = Text(s.GeneratedTimestamp.UTC().Format(time.RFC3339Nano))
	}
	if s.QuarantineOverrides != nil {
		d.HealthEvent.QuarantineOverrides = *s.QuarantineOverrides
	}
	if s.DrainOverrides != nil {
		d.HealthEvent.DrainOverrides = *s.DrainOverrides
	}
	d.HealthEvent.ErrorCode = texts(s.ErrorCode)
	for _, entity := range s.EntitiesImpacted {
		d.HealthEvent.EntitiesImpacted = append(d.HealthEvent.EntitiesImpacted, Entity{Text(entity.EntityType), Text(entity.EntityValue)})
	}
	for key, value := range s.Metadata {
		d.HealthEvent.Metadata[key] = Text(value)
	}
	if pods != nil {
		for _, n := range pods.Namespaces {
			d.PodsToDrain[n.Namespace] = texts(n.Names)
		}
	}
	return d
}

func texts(list []string) Texts {
	var out Texts
	for _, s := range list {
		out = append(out, Text(s))
	}
	return out
}

// samples are events that show whether a template works: one with everything, one with next to nothing.
func samples() []Data {
	nasty := "quote\" 'single' newline\n colon: {{ .braces }} # comment \u00fc \\ - [a] {b} %"
	full := &v1alpha1.HealthEvent{
		ObjectMeta: metav1.ObjectMeta{Name: "sample"},
		Spec: v1alpha1.HealthEventSpec{
			Version: 1, Agent: nasty, ComponentClass: nasty, CheckName: nasty, IsFatal: true, Message: nasty, RecommendedAction: "RESTART_BM",
			ErrorCode: []string{nasty, "79"}, EntitiesImpacted: []v1alpha1.Entity{{EntityType: nasty, EntityValue: nasty}, {EntityType: "GPU", EntityValue: "0"}},
			Metadata: map[string]string{nasty: nasty, "key": "value"}, GeneratedTimestamp: v1alpha1.NewTimestamp(time.Unix(1, 0)), NodeName: "node", ID: "sample",
		},
	}
	pods := &v1alpha1.PodsSnapshot{Namespaces: []v1alpha1.PodsOfNamespace{{Namespace: "default", Names: []string{"a", "b"}}}}
	bare := &v1alpha1.HealthEvent{ObjectMeta: metav1.ObjectMeta{Name: "sample"}, Spec: v1alpha1.HealthEventSpec{CheckName: "check", NodeName: "node"}}
	return []Data{NewData(full, pods), NewData(bare, nil)}
}

// index is index of text/template, for maps that are looked up by strings of events.
func index(from any, keys ...any) (any, error) {
	value := reflect.ValueOf(from)
	for _, key := range keys {
		if t, ok := key.(Text); ok {
			key = string(t)
		}
		k := reflect.ValueOf(key)
		switch value.Kind() {
		case reflect.Map:
			if !k.IsValid() || !k.Type().AssignableTo(value.Type().Key()) {
				return nil, fmt.Errorf("index: %v is not a key of %s", key, value.Type())
			}
			found := value.MapIndex(k)
			if !found.IsValid() {
				found = reflect.Zero(value.Type().Elem())
			}
			value = found
		case reflect.Slice, reflect.Array:
			if !k.IsValid() || !k.CanInt() || k.Int() < 0 || k.Int() >= int64(value.Len()) {
				return nil, fmt.Errorf("index: there is no entry %v: the list has %d", key, value.Len())
			}
			value = value.Index(int(k.Int()))
		default:
			return nil, fmt.Errorf("index: %v has no entries", from)
		}
	}
	return value.Interface(), nil
}

// slice is slice of text/template. A part of a string of an event, or of a key, is one too.
func slice(from any, bounds ...int) (any, error) {
	value := reflect.ValueOf(from)
	if s, ok := from.(string); ok {
		value = reflect.ValueOf(Text(s))
	}
	if value.Kind() != reflect.String && value.Kind() != reflect.Slice {
		return nil, fmt.Errorf("slice: %v is neither a string nor a list", from)
	}
	low, high := 0, value.Len()
	if len(bounds) > 0 {
		low = bounds[0]
	}
	if len(bounds) > 1 {
		high = bounds[1]
	}
	if len(bounds) > 2 || low < 0 || low > high || high > value.Len() {
		return nil, fmt.Errorf("slice: %v is not a range of %d", bounds, value.Len())
	}
	return value.Slice(low, high).Interface(), nil
}
