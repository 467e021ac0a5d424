// Package httpapi is the HTTPS server of a node: health, metrics, and an API for clients that do not use the Kubernetes API. A request
// that only the coordinator can answer is forwarded to it, once.
package httpapi

import (
	"bytes"
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/ebb-dev/ebb/internal/coordinator"
	"github.com/ebb-dev/ebb/internal/deployment"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/peer"
)

const (
	maxBody        = 1 << 20
	requestTimeout = 30 * time.Second
	// forwardTimeout is longer than the coordinator takes: one that forwards a request must not say that the coordinator does not answer.
	forwardTimeout = requestTimeout + drain.WithdrawTime + 5*time.Second
	lookupTimeout  = 5 * time.Second
	stopTimeout    = 3 * time.Second

	// forwardedBy names the node that forwarded a request; such a request is not forwarded again.
	forwardedBy = "Ebb-Forwarded-By"

	// healthEventsPath is what the token of health events is for.
	healthEventsPath = "/api/v2/healthevents"
)

// Codes of errors in answers.
const (
	CodeUnauthorized   = "ErrUnauthorized"
	CodeNotFound       = "ErrNotFound"
	CodeBodyTooLarge   = "ErrBodyTooLarge"
	CodeNoCoordinator  = "ErrNoCoordinator"
	CodeForwardingLoop = "ErrForwardingLoop"
	CodeNoSuccessor    = "ErrNoSuccessor"
	CodeInternal       = "ErrInternalServerError"
)

// Election is the server's view of the election.
type Election interface {
	// Leading reports whether this node is the coordinator.
	Leading() bool
	// Resign lets another node win the election.
	Resign(context.Context) error
}

// Options make a server.
type Options struct {
	// Node is the name of the node.
	Node string
	// Token that requests below /api must bear. HealthToken may only send health events; empty for none.
	Token, HealthToken string
	// CertFile and KeyFile are the server's certificate; CAFile is the CA that it trusts when it forwards.
	CertFile, KeyFile, CAFile string
	// Ready is nil while the node is.
	Ready func() error
	// Metrics to serve.
	Metrics prometheus.Gatherer
	// Election in which the node takes part.
	Election Election
	// Drains of the term that runs here, or nil.
	Drains func() Drains
	// HealthEvents of the term that runs here, or nil.
	HealthEvents func() HealthEvents
	// Works are the kinds of work that drains count.
	Works drain.Works
	// Captures lists the nodes with a live lease.
	Captures func(context.Context) ([]Capture, error)
	// Logs of the programs that ran on the node.
	Logs deployment.Logs
	// Version of the program.
	Version string
	// Coordinator finds the URL of the coordinator's server.
	Coordinator func(context.Context) (*url.URL, error)
	// Log of the server.
	Log *slog.Logger
}

// Server answers HTTPS requests.
type Server struct {
	opts  Options
	http  *http.Server
	proxy *http.Transport
	// stopping ends when the server begins to stop, and with it the answers that have no end of their own.
	stopping context.Context
}

// New prepares a server.
func New(o Options) (*Server, error) {
	creds, err := peer.Load("node "+o.Node, peer.Files{Cert: o.CertFile, Key: o.KeyFile, CA: o.CAFile})
	if err != nil {
		return nil, err
	}
	s := &Server{opts: o}
	s.proxy = &http.Transport{
		TLSClientConfig:       creds.Client(),
		DialContext:           (&net.Dialer{Timeout: 3 * time.Second}).DialContext,
		ResponseHeaderTimeout: forwardTimeout,
		IdleConnTimeout:       30 * time.Second,
	}
	s.http = &http.Server{
		Handler:           s.handler(),
		TLSConfig:         creds.Server(),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       requestTimeout,
		WriteTimeout:      2 * requestTimeout,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
	}
	stopping, stop := context.WithCancel(context.Background())
	s.stopping = stopping
	s.http.RegisterOnShutdown(stop)
	return s, nil
}

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	ended := make(chan error, 1)
	go func() { ended <- s.http.ServeTLS(l, "", "") }()
	select {
	case err := <-ended:
		return fmt.Errorf("HTTP server: %w", err)
	case <-ctx.Done():
	}
	bounded, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if s.http.Shutdown(bounded) != nil {
		s.http.Close()
	}
	s.proxy.CloseIdleConnections()
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("HTTP server: %w", err)
	}
	return nil
}

// route is one operation of the API.
type route struct {
	method, path string
	handler      http.HandlerFunc
	coordinator  bool // only the coordinator can answer
}

func (s *Server) routes() []route {
	return []route{
		{"GET", "/api/v2/captures", s.getCaptures, false},
		{"PUT", "/api/v2/captures/{id}/drain", s.putDrain, true},
		{"GET", "/api/v2/captures/{id}/drain", s.getDrain, true},
		{"DELETE", "/api/v2/captures/{id}/drain", s.deleteDrain, true},
		{"POST", "/api/v2/owner/resign", s.resign, true},
		{"POST", healthEventsPath, s.postHealthEvents, true},
		{"GET", "/api/v2/deployments/{namespace}/{name}/logs", s.getLogs, false},
		{"GET", "/api/v2/openapi.json", s.getOpenAPI, false},
		// For clients of TiCDC's older API.
		{"PUT", "/api/v1/captures/drain", s.putDrainV1, true},
		{"GET", "/api/v1/captures", s.getCapturesV1, false},
		{"GET", "/api/v1/status", s.getStatusV1, false},
		{"POST", "/api/v1/owner/resign", s.resignV1, true},
	}
}

func (s *Server) handler() http.Handler {
	api := http.NewServeMux()
	for _, r := range s.routes() {
		handler := r.handler
		if r.coordinator {
			handler = s.onCoordinator(handler)
		}
		api.HandleFunc(r.method+" "+r.path, handler)
	}
	api.HandleFunc("/", s.unknown)

	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { writeProbe(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.opts.Metrics, promhttp.HandlerOpts{}))
	mux.Handle("/api/", s.authenticated(bounded(api)))
	mux.Handle("/api", s.authenticated(bounded(api)))
	mux.HandleFunc("/", s.unknown)
	return mux
}

// readyz reports whether the node is ready. Only a request with the token gets the reason; load balancers ask without one.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	err := s.opts.Ready()
	switch {
	case err == nil:
		writeProbe(w, http.StatusOK, "ok")
	case s.hasToken(r):
		writeProbe(w, http.StatusServiceUnavailable, fmt.Sprintf("not ready: %v\n", err))
	default:
		writeProbe(w, http.StatusServiceUnavailable, "not ok")
	}
}

func writeProbe(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, text) // the client may have disconnected
}

func (s *Server) unknown(w http.ResponseWriter, r *http.Request) {
	writeError(w, http.StatusNotFound, CodeNotFound, fmt.Sprintf("there is no %s %s", r.Method, r.URL.Path))
}

// hasToken reports whether a request has the bearer token of the API.
func (s *Server) hasToken(r *http.Request) bool {
	return bears(r, s.opts.Token)
}

func bears(r *http.Request, want string) bool {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return ok && want != "" && subtle.ConstantTimeCompare([]byte(token), []byte(want)) == 1
}

// sendsEvents reports whether a request sends health events, with the token that may do only that.
func (s *Server) sendsEvents(r *http.Request) bool {
	return r.Method == http.MethodPost && r.URL.Path == healthEventsPath && bears(r, s.opts.HealthToken)
}

func (s *Server) authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.hasToken(r) && !s.sendsEvents(r) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			writeError(w, http.StatusUnauthorized, CodeUnauthorized, "a valid bearer token is required: use the one in the file `token` of the data directory")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// bounded reads the whole body before the request is handled, so that a request that is too large has no effect, here or on the
// coordinator.
func bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
			writeError(w, http.StatusRequestEntityTooLarge, CodeBodyTooLarge, fmt.Sprintf("the body is larger than %d bytes", tooLarge.Limit))
			return
		}
		if err != nil {
			writeError(w, http.StatusBadRequest, CodeBadRequest, fmt.Sprintf("could not read the body: %v", err))
			return
		}
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		next.ServeHTTP(w, r)
	})
}

// onCoordinator answers here if this node is the coordinator, and otherwise lets the coordinator answer.
func (s *Server) onCoordinator(here http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if s.opts.Election.Leading() {
			here(w, r)
			return
		}
		if by := r.Header.Get(forwardedBy); by != "" {
			writeError(w, http.StatusServiceUnavailable, CodeForwardingLoop,
				fmt.Sprintf("node %s forwarded this to node %s, which is not the coordinator any more: a new one is being elected, try again", by, s.opts.Node))
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), lookupTimeout)
		target, err := s.opts.Coordinator(ctx)
		cancel()
		if err != nil {
			writeError(w, http.StatusServiceUnavailable, CodeNoCoordinator, err.Error())
			return
		}
		s.forward(w, r, target)
	}
}

func (s *Server) forward(w http.ResponseWriter, r *http.Request, target *url.URL) {
	proxy := &httputil.ReverseProxy{
		Transport: s.proxy,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(target)
			p.Out.Header.Set(forwardedBy, s.opts.Node)
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			writeError(w, http.StatusServiceUnavailable, CodeNoCoordinator, fmt.Sprintf("the coordinator at %s does not answer: %v", target.Host, err))
		},
		ErrorLog: slog.NewLogLogger(s.opts.Log.Handler(), slog.LevelDebug),
	}
	proxy.ServeHTTP(w, r)
}

func (s *Server) resign(w http.ResponseWriter, r *http.Request) { s.resignAs(http.StatusOK, w, r) }

func (s *Server) resignV1(w http.ResponseWriter, r *http.Request) {
	s.resignAs(http.StatusAccepted, w, r)
}

func (s *Server) resignAs(success int, w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	err := s.opts.Election.Resign(ctx)
	switch {
	case err == nil:
		writeJSON(w, success, map[string]string{"resigned": s.opts.Node})
	case errors.Is(err, coordinator.ErrNoSuccessor):
		writeError(w, http.StatusConflict, CodeNoSuccessor, err.Error())
	case errors.Is(err, coordinator.ErrNotCoordinator):
		writeError(w, http.StatusServiceUnavailable, CodeNoCoordinator, err.Error()+" any more: try again")
	default:
		writeError(w, http.StatusInternalServerError, CodeInternal, "internal server error: "+err.Error())
	}
}

// Error is the body of every answer that is not a success.
type Error struct {
	Code    string `json:"error_code"`
	Message string `json:"error_msg"`
}

// Error implements error.
func (e *Error) Error() string { return e.Message + " (" + e.Code + ")" }

func writeError(w http.ResponseWriter, status int, code, message string) {
	writeJSON(w, status, Error{Code: code, Message: message})
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// The status line is sent already; the client may have disconnected.
	_ = json.NewEncoder(w).Encode(body)
}
