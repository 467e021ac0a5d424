package shim

import "errors"

var (
	// ErrRunning: a shim holds the directory, or another caller is starting or sweeping one there. Attach to it.
	ErrRunning = errors.New("a shim is already running")
	// ErrNotRunning: no shim holds the directory, or it now runs another instance. ReadState returns how the last one ended.
	ErrNotRunning = errors.New("no shim is running")
	// ErrUnreachable: a shim holds the directory but does not answer, so its program may run until its deadline.
	ErrUnreachable = errors.New("the shim is running but does not answer")
	// ErrDeadlinePassed: the program's deadline has passed and cannot be extended any more.
	ErrDeadlinePassed = errors.New("the deadline has passed")
	// ErrStartFailed: the program could not be started; the message says why and what to do.
	ErrStartFailed = errors.New("the program could not be started")
	// ErrNotSpawned: no shim was started, because the machine could not do what comes before, such as writing to a full disk.
	ErrNotSpawned = errors.New("no shim could be started")
	// ErrInvalidSpec: the spec is invalid on every machine.
	ErrInvalidSpec = errors.New("invalid program spec")
	// ErrLeftovers: processes of a dead shim could not be killed, so nothing new may start in their place.
	ErrLeftovers = errors.New("processes of the last instance are still alive")

	// errAbandoned: a Start gave up waiting, so that a shim may or may not have its lock.
	errAbandoned = errors.New("gave up waiting for the shim to start")
)

// Codes identify, across the socket and the ready pipe, the errors that callers handle.
const (
	codeDeadlinePassed = "DeadlinePassed"
	codeNotRunning     = "NotRunning"
	codeRunning        = "Running"
	codeStartFailed    = "StartFailed"
)

var sentinels = map[string]error{
	codeDeadlinePassed: ErrDeadlinePassed,
	codeNotRunning:     ErrNotRunning,
	codeRunning:        ErrRunning,
	codeStartFailed:    ErrStartFailed,
}
