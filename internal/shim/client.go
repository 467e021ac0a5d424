package shim

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/ebb-dev/ebb/internal/backoff"
)

const (
	startLimit     = 30 * time.Second
	attachLimit    = 2 * time.Second // for a shim that is just starting or just ending
	attachPause    = 20 * time.Millisecond
	shimLogExcerpt = 2 << 10
)

// Start runs a program under a new shim in dir, which it creates if needed, and returns when the program runs. The shim is exe, called as
// "exe shim DIR"; it is nobody's child and outlives the caller. Start first sweeps the processes that a dead shim left in dir.
//
// Start returns ErrRunning if a shim has dir, ErrDeadlinePassed if the spec's deadline has come, ErrInvalidSpec, ErrNotSpawned or
// ErrStartFailed if the program cannot be run. If ctx ends while Start waits, the program may still start and run until its deadline;
// Attach finds out.
func Start(ctx context.Context, exe, dir string, spec Spec) (*Handle, error) {
	h, err := start(ctx, exe, dir, spec)
	if err != nil {
		return nil, fmt.Errorf("shim %s: %w", dir, err)
	}
	return h, nil
}

func start(ctx context.Context, exe, dir string, spec Spec) (*Handle, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	spec = spec.withDefaults()
	dir, err := instanceDir(dir)
	if err != nil {
		return nil, notSpawned(err)
	}
	lock, err := acquireLock(dir)
	if err != nil {
		return nil, notSpawned(err)
	}
	status, err := startLocked(ctx, exe, dir, spec, lock)
	if err != nil {
		return nil, err
	}
	h, err := openHandle(dir)
	if err != nil {
		return nil, err
	}
	h.instance = status.Instance
	return h, nil
}

// startLocked sweeps, writes the spec and spawns the shim, which takes over the lock. If no shim can have the lock, startLocked unlocks it
// explicitly, because a process that the node forks at this moment may hold a copy of the descriptor for an instant.
func startLocked(ctx context.Context, exe, dir string, spec Spec, lock *os.File) (_ Status, err error) {
	defer func() {
		if err == nil || errors.Is(err, errAbandoned) {
			lock.Close()
		} else {
			releaseLock(lock)
		}
	}()
	switch _, err := sweep(ctx, dir); {
	case err == nil:
	case errors.Is(err, ErrRunning) || errors.Is(err, ErrLeftovers) || ctx.Err() != nil:
		return Status{}, err
	default: // the state of the last instance cannot be read, or not be written
		return Status{}, fmt.Errorf("%w: %w", ErrStartFailed, err)
	}
	if Now() >= spec.Deadline.TermAt {
		return Status{}, fmt.Errorf("%w: the program was not started", ErrDeadlinePassed)
	}
	if err := writeSpec(dir, spec); err != nil {
		return Status{}, notSpawned(err)
	}
	return spawn(ctx, exe, dir, spec.ShimLogFormat, lock)
}

// notSpawned adds ErrNotSpawned to an error of the machine. It leaves the errors that callers handle as they are.
func notSpawned(err error) error {
	if errors.Is(err, ErrRunning) || errors.Is(err, ErrInvalidSpec) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrNotSpawned, err)
}

// instanceDir creates dir for its owner only, because it contains the program's environment.
func instanceDir(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o700)
}

// spawn starts the detached shim, which inherits only the lock, and reads from its standard output whether the program started.
func spawn(ctx context.Context, exe, dir, logFormat string, lock *os.File) (Status, error) {
	log, err := os.OpenFile(filepath.Join(dir, shimLogName), os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		return Status{}, notSpawned(err)
	}
	defer log.Close()
	ready, out, err := os.Pipe()
	if err != nil {
		return Status{}, notSpawned(err)
	}
	defer ready.Close()
	cmd := exec.Command(exe, "shim", detachFlag, dir)
	// The shim needs two threads for Go code: one may wait in exec while the other keeps the deadline.
	cmd.Env = []string{"GOMAXPROCS=2"}
	if logFormat != "" && logFormat != "text" {
		cmd.Env = append(cmd.Env, logFormatEnv+"="+logFormat)
	}
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = out, log
	cmd.ExtraFiles = []*os.File{lock}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	out.Close()
	if err != nil {
		return Status{}, fmt.Errorf("%w: the shim %q: %w", ErrStartFailed, exe, err)
	}
	status, err := awaitReady(ctx, ready, dir)
	if err != nil {
		_ = cmd.Process.Kill() // the first process; only needed if it hangs
	}
	_ = cmd.Wait()
	return status, err
}

func awaitReady(ctx context.Context, ready *os.File, dir string) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = ready.SetReadDeadline(time.Unix(1, 0)) })()
	var resp response
	err := readLine(ready, &resp)
	switch {
	case err == nil:
		return resp.result()
	case ctx.Err() != nil:
		return Status{}, fmt.Errorf("%w: %w", errAbandoned, ctx.Err())
	}
	return Status{}, fmt.Errorf("%w: the shim died: %s", ErrStartFailed, shimComplaint(dir))
}

// shimComplaint returns the beginning of the shim's log.
func shimComplaint(dir string) string {
	data, _ := os.ReadFile(filepath.Join(dir, shimLogName))
	text := strings.TrimSpace(string(data[:min(len(data), shimLogExcerpt)]))
	return orDefault(text, "it wrote no message")
}

// Attach finds the shim that runs in dir. If none runs, it sweeps the processes that a dead one left and returns ErrNotRunning; ReadState
// then returns how the last instance ended. ErrUnreachable means that a shim runs but does not answer: the program may run until its
// deadline, and nothing may be started in its place before.
func Attach(ctx context.Context, dir string) (*Handle, error) {
	h, err := openHandle(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("shim %s: %w", dir, ErrNotRunning)
	}
	if err != nil {
		return nil, fmt.Errorf("shim %s: %w", dir, err)
	}
	if err := h.attach(ctx); err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

func (h *Handle) attach(ctx context.Context) error {
	for end := time.Now().Add(attachLimit); ; {
		st, err := h.Status(ctx)
		if err == nil {
			h.instance = st.Instance
			return nil
		}
		if errors.Is(err, ErrNotRunning) {
			if _, sweepErr := Sweep(ctx, h.dir); !errors.Is(sweepErr, ErrRunning) {
				return errors.Join(err, sweepErr)
			}
		}
		if time.Now().After(end) || backoff.Sleep(ctx, attachPause) != nil {
			return err
		}
	}
}
