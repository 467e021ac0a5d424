package shim

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// The protocol is one JSON line each way on a connection. A node attaches to shims of the version before it, so
// fields are only ever added, and unknown ones ignored.

const maxLine = 64 << 10

const (
	opStatus = "status"
	opExtend = "extend"
	opStop   = "stop"
	opWait   = "wait" // answers when the program has ended, or after maxWait with what is true then
)

type request struct {
	Op string `json:"op"`
	// Instance keeps the handle of an earlier instance from controlling a later one in the same directory.
	Instance string         `json:"instance,omitempty"`
	Deadline *Deadline      `json:"deadline,omitempty"`
	Grace    *time.Duration `json:"grace,omitempty"`
}

type response struct {
	Code   string  `json:"code,omitempty"`
	Error  string  `json:"error,omitempty"`
	Status *Status `json:"status,omitempty"`
}

// Status is a shim's report about its program.
type Status struct {
	State
	Deadline Deadline `json:"deadline"`
	// Waiting names, while the program is ending, the processes that are left.
	Waiting string `json:"waiting,omitempty"`
}

// refusal is the response for an error, with a code when it is one that callers decide on.
func refusal(err error) response {
	r := response{Error: err.Error()}
	for code, sentinel := range sentinels {
		if errors.Is(err, sentinel) {
			r.Code = code
		}
	}
	return r
}

// remoteError is an error with the shim's message that matches the sentinel it had there.
type remoteError struct {
	text string
	kind error
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.kind }

// result turns a response back into what the shim's side returned.
func (r response) result() (Status, error) {
	switch {
	case r.Error != "":
		return Status{}, &remoteError{text: r.Error, kind: sentinels[r.Code]}
	case r.Status == nil:
		return Status{}, errors.New("the shim's answer has no status")
	}
	return *r.Status, nil
}

func writeLine(w io.Writer, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(data) >= maxLine {
		return fmt.Errorf("message of %d bytes is longer than %d", len(data), maxLine)
	}
	_, err = w.Write(append(data, '\n'))
	return err
}

func readLine(r io.Reader, v any) error {
	line, err := bufio.NewReaderSize(io.LimitReader(r, maxLine), 4096).ReadBytes('\n')
	if err != nil {
		return err
	}
	return json.Unmarshal(line, v)
}
