package events_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/events"
	"github.com/ebb-dev/ebb/internal/testenv"
)

func TestEvents(t *testing.T) {
	api := testenv.StartAPI(t)
	for name, test := range map[string]func(*testing.T, client.Client){
		"a transition is told once, another again":          toldOnce,
		"an event says who, what, where and to what":        saysAll,
		"a note that is too long is cut between characters": cutNotes,
		"an object with the longest name has events":        longNames,
	} {
		t.Run(name, func(t *testing.T) { test(t, api.Admin()) })
	}
}

func newNode(t *testing.T, c client.Client, name string) *v1alpha1.Node {
	t.Helper()
	n := &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := c.Create(context.Background(), n); err != nil {
		t.Fatal(err)
	}
	return n
}

func emit(t *testing.T, r events.Recorder, e events.Event) {
	t.Helper()
	if e.Type == "" {
		e.Type, e.Action = corev1.EventTypeNormal, "Test"
	}
	if err := r.Emit(context.Background(), e); err != nil {
		t.Fatal(err)
	}
}

// about lists the events about an object.
func about(t *testing.T, c client.Client, o client.Object) []eventsv1.Event {
	t.Helper()
	var list eventsv1.EventList
	if err := c.List(context.Background(), &list); err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(e eventsv1.Event) bool { return e.Regarding.UID != o.GetUID() })
}

func toldOnce(t *testing.T, c client.Client) {
	n := newNode(t, c, "once")
	one, two := events.Recorder{Client: c, Controller: "nodes", Instance: "n1"}, events.Recorder{Client: c, Controller: "nodes", Instance: "n2"}
	for _, step := range []struct {
		what  string
		by    events.Recorder
		event events.Event
		want  int
	}{
		{"the first", one, events.Event{Regarding: n, Reason: "NodeLost", Note: "a", Key: "1"}, 1},
		{"the same again", one, events.Event{Regarding: n, Reason: "NodeLost", Note: "a", Key: "1"}, 1},
		{"the same by another coordinator in other words", two, events.Event{Regarding: n, Reason: "NodeLost", Note: "b", Key: "1"}, 1},
		{"another key", two, events.Event{Regarding: n, Reason: "NodeLost", Note: "a", Key: "2"}, 2},
		{"another reason", one, events.Event{Regarding: n, Reason: "NodeBack", Note: "a", Key: "1"}, 3},
	} {
		emit(t, step.by, step.event)
		if got := len(about(t, c, n)); got != step.want {
			t.Errorf("%s: %d events, want %d", step.what, got, step.want)
		}
	}
	// The same name, and another object: the old one was deleted.
	if err := c.Delete(context.Background(), n); err != nil {
		t.Fatal(err)
	}
	again := newNode(t, c, "once")
	emit(t, one, events.Event{Regarding: again, Reason: "NodeLost", Note: "a", Key: "1"})
	if got := len(about(t, c, again)); got != 1 {
		t.Errorf("an object of the same name: %d events", got)
	}
}

func saysAll(t *testing.T, c client.Client) {
	n := newNode(t, c, "all")
	emit(t, events.Recorder{Client: c, Controller: "nodes", Instance: "n1"}, events.Event{
		Regarding: n, Type: corev1.EventTypeWarning, Reason: "NodeLost", Action: "Fence", Note: "It is gone.", Key: "1",
	})
	e := about(t, c, n)[0]
	if e.Namespace != "default" || e.Type != "Warning" || e.Reason != "NodeLost" || e.Action != "Fence" || e.Note != "It is gone." ||
		e.ReportingController != "ebb.dev/nodes" || e.ReportingInstance != "n1" || e.EventTime.IsZero() {
		t.Errorf("event: %+v", e)
	}
	want := corev1.ObjectReference{APIVersion: "ebb.dev/v1alpha1", Kind: "Node", Name: "all", UID: n.UID}
	if e.Regarding != want {
		t.Errorf("regarding %+v, want %+v", e.Regarding, want)
	}
}

func cutNotes(t *testing.T, c client.Client) {
	n := newNode(t, c, "wordy")
	r := events.Recorder{Client: c, Controller: "nodes", Instance: "n1"}
	for i, tc := range []struct{ note, want string }{
		{strings.Repeat("x", 1024), strings.Repeat("x", 1024)},
		{strings.Repeat("x", 1025), strings.Repeat("x", 1021) + "..."},
		{strings.Repeat("ä", 512), strings.Repeat("ä", 512)},
		{strings.Repeat("ä", 513), strings.Repeat("ä", 510) + "..."}, // 1021 bytes end in the middle of one
		{"x" + strings.Repeat("€", 400), "x" + strings.Repeat("€", 340) + "..."},
	} {
		emit(t, r, events.Event{Regarding: n, Reason: "Note", Note: tc.note, Key: fmt.Sprint(i)})
		found := slices.ContainsFunc(about(t, c, n), func(e eventsv1.Event) bool { return e.Note == tc.want })
		if !found || !utf8.ValidString(tc.want) {
			t.Errorf("case %d: no event with %d bytes of %q", i, len(tc.want), tc.note[:4])
		}
	}
}

func longNames(t *testing.T, c client.Client) {
	for i, name := range []string{strings.Repeat("d", 253), strings.Repeat("d", 235) + "-" + strings.Repeat("e", 17)} {
		d := &v1alpha1.Drain{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.DrainSpec{NodeName: "n1"}}
		if err := c.Create(context.Background(), d); err != nil {
			t.Fatal(err)
		}
		emit(t, events.Recorder{Client: c, Controller: "drains", Instance: "n1"}, events.Event{Regarding: d, Reason: "Accepted", Note: "a", Key: "1"})
		if got := len(about(t, c, d)); got != 1 {
			t.Errorf("case %d: %d events", i, got)
		}
	}
}
