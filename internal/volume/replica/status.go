package replica

import (
	"errors"
	"strings"

	"github.com/ebb-dev/ebb/internal/volume/block"
)

// status is how a request ended.
type status uint16

const (
	statusOK status = iota
	statusFailed
	statusStale
	statusNoSpace
	statusDamaged
	statusMissing
	statusForeign
	statusClosed
	statusEnd // no status
)

// sentinels are the errors that keep their identity on the way, in the order in which they are looked for.
var sentinels = []struct {
	status status
	err    error
}{
	{statusStale, block.ErrStale},
	{statusNoSpace, block.ErrNoSpace},
	{statusDamaged, block.ErrDamaged},
	{statusMissing, block.ErrMissing},
	{statusForeign, block.ErrForeign},
	{statusClosed, block.ErrClosed},
}

// statusOf returns the status of an error, and the text to send with it.
func statusOf(err error) (status, []byte) {
	if err == nil {
		return statusOK, nil
	}
	text := err.Error()
	if len(text) > maxText {
		text = strings.ToValidUTF8(text[:maxText], "")
	}
	for _, s := range sentinels {
		if errors.Is(err, s.err) {
			return s.status, []byte(text)
		}
	}
	return statusFailed, []byte(text)
}

// errorOf is the error of an answer.
func errorOf(s status, text []byte) error {
	if s == statusOK {
		return nil
	}
	for _, known := range sentinels {
		if known.status == s {
			return &remoteError{text: string(text), is: known.err}
		}
	}
	return &remoteError{text: string(text)}
}

// remoteError is an error of the replica's node.
type remoteError struct {
	text string
	is   error // nil for an I/O error
}

// Error implements error.
func (e *remoteError) Error() string { return e.text }

// Unwrap returns the sentinel error of block.
func (e *remoteError) Unwrap() error { return e.is }
