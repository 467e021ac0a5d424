package httpapi

import (
	_ "embed"
	"net/http"
)

// openapi describes every operation below /api; a test holds it against what is served.
//
//go:embed openapi.json
var openapi []byte

func (s *Server) getOpenAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(openapi) // a client that went away is nobody's concern
}
