package main

import (
	"strings"
	"testing"
	"time"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// What detectors send reaches no terminal as an escape sequence.
func TestEventsArePrintedWithoutControlCharacters(t *testing.T) {
	const evil = "a\x1b[2Jb\x07\u009bc\u202ed\re"
	e := v1alpha1.HealthEvent{
		ObjectMeta: metav1.ObjectMeta{Name: "e1"}, Spec: v1alpha1.HealthEventSpec{NodeName: "n1", CheckName: evil, Message: evil},
		Status: v1alpha1.HealthEventStatus{
			UserPodsEvictionStatus: &v1alpha1.EvictionStatus{Status: v1alpha1.EvictionFailed, Message: evil},
			CustomResource:         &v1alpha1.CustomResource{Kind: "K", Name: "r", Attempt: 1, Outcome: v1alpha1.ResourceFailed, Message: evil},
			Conditions:             []metav1.Condition{{Type: v1alpha1.HealthEventHandled, Status: metav1.ConditionTrue, Reason: "R", Message: evil}},
		},
	}
	for _, text := range []string{describeEvent(&e, time.Now()), eventTable([]v1alpha1.HealthEvent{e}, time.Now())} {
		if at := strings.IndexFunc(text, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); at >= 0 {
			t.Errorf("%q has a control character at %d", text, at)
		}
		if !strings.Contains(text, "a\ufffd[2Jb\ufffd\ufffdc\ufffdd e") {
			t.Errorf("%q", text)
		}
	}
}

// An event that a detector wrote with what is false can be retried as any other: only the annotation is written.
func TestADrainIsRetriedHoweverItsEventIsWritten(t *testing.T) {
	c := testenv.StartAPI(t).Admin()
	written := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "HealthEvent", "metadata": map[string]any{"name": "e1"},
		"spec": map[string]any{"nodeName": "n1", "checkName": "c", "isFatal": true, "isHealthy": false},
	}}
	if err := c.Create(t.Context(), written); err != nil {
		t.Fatal(err)
	}
	e, err := readEvent(t.Context(), c, "e1")
	if err != nil {
		t.Fatal(err)
	}
	e.Status.UserPodsEvictionStatus = &v1alpha1.EvictionStatus{Status: v1alpha1.EvictionFailed}
	e.Status.CustomResource = &v1alpha1.CustomResource{APIVersion: "a/v1", Kind: "K", Name: "r", Attempt: 1, Outcome: v1alpha1.ResourceFailed, Removed: true}
	if err := c.Status().Update(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	if _, attempt, err := retryEvent(t.Context(), c, "e1"); err != nil || attempt != 2 {
		t.Fatalf("attempt %d, %v", attempt, err)
	}
	if e, err = readEvent(t.Context(), c, "e1"); err != nil || e.Annotations[v1alpha1.RetryAnnotation] != "2" {
		t.Errorf("annotations %v, %v", e.Annotations, err)
	}
}
