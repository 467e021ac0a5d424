package main

import (
	"strings"
	"testing"
	"time"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
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
