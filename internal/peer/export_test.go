package peer

import "time"

// SetHandshakeTimeout changes how long clients may take for their handshake.
func (s *Server) SetHandshakeTimeout(d time.Duration) { s.handshakeTimeout = d }
