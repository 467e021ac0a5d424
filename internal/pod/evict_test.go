package pod

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// A pod of a StatefulSet that was replaced has the same name: only the UID tells it apart.
func TestRequestsNameThePodThatWasSeen(t *testing.T) {
	type sent struct {
		request string
		options metav1.DeleteOptions
	}
	var got []sent
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s := sent{request: r.Method + " " + r.URL.Path}
		var err error
		if r.Method == http.MethodPost {
			var e policyv1.Eviction
			if err = json.NewDecoder(r.Body).Decode(&e); err == nil && e.DeleteOptions != nil {
				s.options = *e.DeleteOptions
			}
		} else {
			err = json.NewDecoder(r.Body).Decode(&s.options)
		}
		if err != nil {
			t.Error(err)
		}
		got = append(got, s)
		w.Header().Set("Retry-After", "1") // nobody waits and tries again
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer server.Close()
	kube, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	p := &Pod{Namespace: "db", Name: "db-0", UID: "seen"}
	if send(t.Context(), kube, Action{Verb: Evict, Pod: p}) == nil || send(t.Context(), kube, Action{Verb: Delete, Pod: p, Grace: 45}) == nil {
		t.Error("the refusal is not an error")
	}
	if len(got) != 2 || got[0].request != "POST /api/v1/namespaces/db/pods/db-0/eviction" || got[1].request != "DELETE /api/v1/namespaces/db/pods/db-0" {
		t.Fatalf("sent %+v", got)
	}
	for _, s := range got {
		if s.options.Preconditions == nil || s.options.Preconditions.UID == nil || *s.options.Preconditions.UID != types.UID("seen") {
			t.Errorf("%s has no precondition of the UID: %+v", s.request, s.options)
		}
	}
	if g := got[0].options.GracePeriodSeconds; g != nil {
		t.Errorf("an eviction has a grace period of %d s", *g)
	}
	if g := got[1].options.GracePeriodSeconds; g == nil || *g != 45 {
		t.Errorf("the deletion has the grace %v", g)
	}
}
