package httpapi

import (
	_ "embed"
	"net/http"
)

// openapi describes every operation below /api; a test compares it with the routes.
//
//go:embed openapi.json
var openapi []byte

func (s *Server) getOpenAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(openapi) // the client may have disconnected
}
