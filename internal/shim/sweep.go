package shim

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/ebb-dev/ebb/internal/backoff"
)

const (
	sweepLimit = 30 * time.Second
	endLimit   = 2 * time.Second
)

// Sweep kills what a shim that died without ending its program left behind, records that in state.json, and says how
// many processes it killed. It does nothing if the last instance ended in order, and returns ErrRunning if one runs.
func Sweep(ctx context.Context, dir string) (killed int, err error) {
	lock, err := acquireLock(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("shim %s: %w", dir, err)
	}
	defer releaseLock(lock)
	killed, err = sweep(ctx, dir)
	if err != nil {
		err = fmt.Errorf("shim %s: %w", dir, err)
	}
	return killed, err
}

// sweep is Sweep for a caller that holds the lock.
func sweep(ctx context.Context, dir string) (killed int, err error) {
	st, err := ReadState(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, nil
	case err != nil:
		return 0, err
	case st.Phase == Exited:
		return 0, nil
	case st.BootID != bootID():
		return 0, recordLost(dir, st, "the machine was restarted while the program ran")
	case !st.Shim.endsWithin(ctx, endLimit):
		return 0, fmt.Errorf("%w: process %d still runs but its lock file is gone: kill it before starting another", ErrRunning, st.Shim.PID)
	}
	ctx, cancel := context.WithTimeout(ctx, sweepLimit)
	defer cancel()
	killed, err = killUntilGone(ctx, func() []procInfo { return leftovers(st) })
	if err != nil {
		return killed, err
	}
	return killed, recordLost(dir, st, fmt.Sprintf("the shim died while the program ran; %d leftover processes were killed", killed))
}

// endsWithin reports whether a process ends within a limit. One that is ending gives its locks back before it has ended.
func (p Process) endsWithin(ctx context.Context, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for p.same() {
		if backoff.Sleep(ctx, minKillPause) != nil {
			return false
		}
	}
	return true
}

// leftovers are the processes known to belong to a lost instance: those that carry its marker, its main process if
// the id still means that one, and all their descendants.
func leftovers(st State) []procInfo {
	all := processes()
	found := marked(all, st.Instance)
	for _, p := range all {
		if p.Process == st.Program || p.Process == st.Init {
			found = append(found, p)
		}
	}
	var roots []int
	for _, p := range found {
		roots = append(roots, p.PID)
	}
	return distinct(append(found, descendants(all, roots...)...))
}

// distinct drops duplicates, and the caller itself.
func distinct(procs []procInfo) []procInfo {
	seen := map[int]bool{os.Getpid(): true}
	var out []procInfo
	for _, p := range procs {
		if !seen[p.PID] {
			seen[p.PID] = true
			out = append(out, p)
		}
	}
	return out
}

func recordLost(dir string, st State, message string) error {
	st.Phase = Exited
	st.Exit = &Exit{Reason: ReasonShimLost, Code: -1, Message: message}
	st.FinishedBoot, st.FinishedAt = Now(), time.Now().UTC()
	return writeState(dir, st)
}
