package shim

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/ebb-dev/ebb/internal/backoff"
)

const (
	callLimit  = 10 * time.Second
	retryPause = 100 * time.Millisecond
)

// A Handle controls one instance of a program. It holds no connection, only the directory, so that it does not depend on the socket and
// needs no goroutine. All methods may be called concurrently.
type Handle struct {
	dir      string
	root     *os.File
	instance string // empty until known, in Attach
}

func openHandle(dir string) (*Handle, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	root, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	return &Handle{dir: dir, root: root}, nil
}

// Instance names the instance that the handle controls; it is never a later one in the same directory.
func (h *Handle) Instance() string { return h.instance }

// Dir is the instance directory.
func (h *Handle) Dir() string { return h.dir }

// Close closes the handle. The program keeps running.
func (h *Handle) Close() error { return h.root.Close() }

// Extend moves the program's deadline forward. A deadline before the one the shim has changes nothing and is no
// error. ErrDeadlinePassed means that the program is already ending.
func (h *Handle) Extend(ctx context.Context, d Deadline) error {
	_, err := h.call(ctx, request{Op: opExtend, Deadline: &d}, callLimit)
	return err
}

// Stop sends SIGTERM, and SIGKILL after the grace: at once if it is zero, after the spec's grace if it is
// negative, and never later than the deadline. A second Stop can shorten the grace. Stop does not wait for the end;
// see Wait.
func (h *Handle) Stop(ctx context.Context, grace time.Duration) error {
	_, err := h.call(ctx, request{Op: opStop, Grace: &grace}, callLimit)
	return err
}

// Status returns the status of the program from the shim.
func (h *Handle) Status(ctx context.Context) (Status, error) {
	return h.call(ctx, request{Op: opStatus}, callLimit)
}

// Wait returns how the program ended, when no process of it is left and the directory is free for the next one. If the shim died first,
// Wait sweeps the processes it left. It keeps waiting while the shim runs but does not answer.
func (h *Handle) Wait(ctx context.Context) (Exit, error) {
	for {
		st, err := h.call(ctx, request{Op: opWait}, maxWait+callLimit)
		switch {
		case err == nil && st.Phase == Exited && st.Exit != nil:
			return *st.Exit, nil
		case err == nil:
			continue
		case ctx.Err() != nil:
			return Exit{}, err
		case errors.Is(err, os.ErrClosed):
			return Exit{}, err
		case errors.Is(err, ErrNotRunning):
			if exit, err := h.outcome(ctx); !errors.Is(err, ErrRunning) {
				return exit, err
			}
		}
		_ = backoff.Sleep(ctx, retryPause)
	}
}

// outcome reads how the instance ended when its shim is gone, or returns ErrRunning while someone else is sweeping.
func (h *Handle) outcome(ctx context.Context) (Exit, error) {
	_, sweepErr := Sweep(ctx, h.dir)
	st, err := ReadState(h.dir)
	switch {
	case err != nil:
		return Exit{}, fmt.Errorf("shim %s: %w", h.dir, err)
	case st.Instance != h.instance:
		return Exit{}, fmt.Errorf("shim %s: %w: instance %s has ended, and %s runs in its place", h.dir, ErrNotRunning, h.instance, st.Instance)
	case st.Phase == Exited && st.Exit != nil:
		return *st.Exit, nil
	}
	return Exit{}, orDefault(sweepErr, ErrRunning)
}

// call sends one request on a connection of its own.
func (h *Handle) call(ctx context.Context, req request, limit time.Duration) (Status, error) {
	req.Instance = h.instance
	callCtx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	resp, err := h.exchange(callCtx, req)
	if err != nil {
		return Status{}, h.diagnose(err)
	}
	st, err := resp.result()
	if err != nil {
		return st, fmt.Errorf("shim %s: %w", h.dir, err)
	}
	return st, nil
}

// dial reaches the socket through the open directory: a path to it may be longer than a socket address. It dials
// inside Control, so that a concurrent Close cannot give the descriptor's number to another file meanwhile.
func (h *Handle) dial(ctx context.Context) (conn net.Conn, err error) {
	raw, err := h.root.SyscallConn()
	if err != nil {
		return nil, os.ErrClosed
	}
	var d net.Dialer
	closed := raw.Control(func(fd uintptr) {
		conn, err = d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", fd, socketName))
	})
	if closed != nil {
		return nil, os.ErrClosed
	}
	return conn, err
}

func (h *Handle) exchange(ctx context.Context, req request) (response, error) {
	var resp response
	conn, err := h.dial(ctx)
	if err != nil {
		return resp, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if err := writeLine(conn, req); err != nil {
		return resp, errors.Join(ctx.Err(), err)
	}
	if err := readLine(conn, &resp); err != nil {
		return resp, errors.Join(ctx.Err(), err)
	}
	return resp, nil
}

// diagnose distinguishes, by the lock, a shim that has ended from one that does not answer.
func (h *Handle) diagnose(cause error) error {
	if errors.Is(cause, os.ErrClosed) {
		return fmt.Errorf("shim %s: the handle is closed: %w", h.dir, os.ErrClosed)
	}
	held, err := lockHeld(h.dir)
	switch {
	case err != nil:
		return fmt.Errorf("shim %s: %w", h.dir, errors.Join(cause, err))
	case held:
		return fmt.Errorf("shim %s: %w: %w", h.dir, ErrUnreachable, cause)
	}
	return fmt.Errorf("shim %s: %w", h.dir, ErrNotRunning)
}
