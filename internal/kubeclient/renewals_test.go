package kubeclient_test

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

// A server that starts answers 503 and asks to come back after 5 s, which is more than a renewal of a lease has. A client for renewals
// learns of it at once and keeps its own schedule.
func TestARenewalDoesNotSleepUntilAStartingServerIsUp(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		w.Header().Set("Retry-After", "5")
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer server.Close()
	c, err := kubeclient.New(kubeclient.ForRenewals(kubeclient.Tune(&rest.Config{Host: server.URL})))
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	err = c.Get(t.Context(), types.NamespacedName{Name: "n1"}, &v1alpha1.Node{})
	if !apierrors.IsServiceUnavailable(err) {
		t.Errorf("the answer was %v", err)
	}
	if took, n := time.Since(begun), asked.Load(); took > 4*time.Second || n != 1 {
		t.Errorf("it took %s and %d requests", took, n)
	}
}
