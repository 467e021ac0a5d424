package kubeclient_test

import (
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// Objects whose spec cannot be changed, as people write them: Go leaves some of it out when it writes the object, and the API refuses that.
func TestFinalizersAreWrittenWithoutARewrittenSpec(t *testing.T) {
	c := testenv.StartAPI(t).Admin()
	for name, tc := range map[string]struct {
		written map[string]any
		status  func(client.Object)
		read    client.Object
	}{
		"a health event with all that is false": {
			written: map[string]any{"kind": "HealthEvent", "metadata": map[string]any{"name": "e1"}, "spec": map[string]any{
				"nodeName": "n1", "checkName": "c", "isFatal": true, "isHealthy": false, "message": "", "version": int64(0), "errorCode": []any{}, "metadata": map[string]any{},
			}},
			read: &v1alpha1.HealthEvent{},
		},
		"a health event with nanoseconds": {
			written: map[string]any{"kind": "HealthEvent", "metadata": map[string]any{"name": "e2"}, "spec": map[string]any{
				"nodeName": "n1", "checkName": "c", "isFatal": true, "generatedTimestamp": "2026-05-04T12:00:00.123456789Z",
			}},
			read: &v1alpha1.HealthEvent{},
		},
		"a changefeed that has begun, with an empty list": {
			written: map[string]any{"kind": "Changefeed", "metadata": map[string]any{"name": "cf", "namespace": "default"}, "spec": map[string]any{
				"source": "mysql://a@127.0.0.1:1", "sink": "mysql://b@127.0.0.1:2", "routing": []any{}, "leaveOut": []any{},
			}},
			status: func(o client.Object) { o.(*v1alpha1.Changefeed).Status.StartPosition = new(int64(1)) },
			read:   &v1alpha1.Changefeed{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tc.written["apiVersion"] = v1alpha1.GroupVersion.String()
			u := &unstructured.Unstructured{Object: tc.written}
			if err := c.Create(t.Context(), u); err != nil {
				t.Fatal(err)
			}
			read := func() {
				t.Helper()
				if err := c.Get(t.Context(), client.ObjectKeyFromObject(u), tc.read); err != nil {
					t.Fatal(err)
				}
			}
			read()
			if tc.status != nil {
				tc.status(tc.read)
				if err := c.Status().Update(t.Context(), tc.read); err != nil {
					t.Fatal(err)
				}
			}
			whole := tc.read.DeepCopyObject().(client.Object)
			whole.SetFinalizers([]string{"ebb.dev/test"})
			if err := c.Update(t.Context(), whole); !apierrors.IsInvalid(err) {
				t.Errorf("written as a whole: %v", err) // else this test shows nothing
			}
			old := tc.read.DeepCopyObject().(client.Object)
			for _, finalizers := range [][]string{{"ebb.dev/test", "ebb.dev/other"}, {"ebb.dev/other"}, nil} {
				tc.read.SetFinalizers(finalizers)
				if err := kubeclient.WriteFinalizers(t.Context(), c, tc.read); err != nil {
					t.Fatal(err)
				}
				version := tc.read.GetResourceVersion()
				if read(); !slices.Equal(tc.read.GetFinalizers(), finalizers) || tc.read.GetResourceVersion() != version {
					t.Errorf("finalizers %q of version %s, want %q and %s", tc.read.GetFinalizers(), tc.read.GetResourceVersion(), finalizers, version)
				}
			}
			if err := kubeclient.WriteFinalizers(t.Context(), c, old); !apierrors.IsConflict(err) {
				t.Errorf("an old version: %v", err)
			}
		})
	}
}
