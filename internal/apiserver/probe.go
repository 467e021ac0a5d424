package apiserver

import (
	"io"
	"net/http"
)

// probes are the health checks that need no credentials, for load balancers.
var probes = map[string]bool{"/healthz": true, "/livez": true, "/readyz": true}

// withProbes answers probes without credentials with ok or not ok and nothing else. Of the authenticated API they reach only the check
// of that name. All other requests, and probes with credentials or for details, go to next.
func withProbes(api, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isProbe(r) {
			next.ServeHTTP(w, r)
			return
		}
		check := &verdict{header: http.Header{}}
		api.ServeHTTP(check, r)
		text, code := "ok", http.StatusOK
		if check.code != 0 && check.code != http.StatusOK {
			text, code = "not ok", http.StatusServiceUnavailable
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(code)
		_, _ = io.WriteString(w, text) // a client that went away is nobody's concern
	})
}

// isProbe is true for a plain GET or HEAD of a probe without a certificate or a token.
func isProbe(r *http.Request) bool {
	return probes[r.URL.Path] && r.URL.RawQuery == "" && (r.Method == http.MethodGet || r.Method == http.MethodHead) &&
		(r.TLS == nil || len(r.TLS.PeerCertificates) == 0) && r.Header.Get("Authorization") == ""
}

// verdict records the status of an answer and drops its body.
type verdict struct {
	header http.Header
	code   int
}

// Header implements http.ResponseWriter.
func (v *verdict) Header() http.Header { return v.header }

// WriteHeader implements http.ResponseWriter.
func (v *verdict) WriteHeader(code int) { v.code = code }

// Write implements http.ResponseWriter.
func (v *verdict) Write(p []byte) (int, error) { return len(p), nil }
