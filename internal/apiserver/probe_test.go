package apiserver

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// What a check says stays inside: only whether it passed goes out.
func TestAProbeThatFailsSaysNotOkAndNothingElse(t *testing.T) {
	reached := func(name string, code int) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Ebb-Reached", name)
			http.Error(w, "[-]etcd failed: 10.0.0.1 refused the connection", code)
		})
	}
	for _, c := range []struct {
		method, target string
		code           int
		body, reached  string
	}{
		{"GET", "/readyz", http.StatusServiceUnavailable, "not ok", ""},
		{"GET", "/livez", http.StatusServiceUnavailable, "not ok", ""},
		{"GET", "/healthz", http.StatusServiceUnavailable, "not ok", ""},
		{"GET", "/readyz?verbose", http.StatusTeapot, "[-]etcd failed: 10.0.0.1 refused the connection\n", "next"},
		{"POST", "/readyz", http.StatusTeapot, "[-]etcd failed: 10.0.0.1 refused the connection\n", "next"},
		{"GET", "/apis", http.StatusTeapot, "[-]etcd failed: 10.0.0.1 refused the connection\n", "next"},
	} {
		answer := httptest.NewRecorder()
		withProbes(reached("api", http.StatusInternalServerError), reached("next", http.StatusTeapot)).ServeHTTP(answer, httptest.NewRequest(c.method, c.target, nil))
		if answer.Code != c.code || answer.Body.String() != c.body || answer.Header().Get("Ebb-Reached") != c.reached {
			t.Errorf("%s %s: %d %q from %q, want %d %q from %q", c.method, c.target, answer.Code, answer.Body, answer.Header().Get("Ebb-Reached"), c.code, c.body, c.reached)
		}
	}
}
