package shim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/ebb-dev/ebb/internal/backoff"
)

const (
	freezeRounds  = 8
	minKillPause  = time.Millisecond
	maxKillPause  = 100 * time.Millisecond
	maxNamedProcs = 8
)

// killPauses are the pauses between passes of killing.
var killPauses = backoff.Policy{First: minKillPause, Longest: maxKillPause}

// killAll freezes what find returns, again until it returns nothing new, and then kills it. Frozen processes cannot
// fork, so that a program which spawns faster than it is killed cannot get away. Processes born in the last round are
// for the caller's next pass.
func killAll(find func() []procInfo) {
	frozen := make(map[Process]bool)
	for range freezeRounds {
		fresh := false
		for _, p := range find() {
			if !frozen[p.Process] {
				p.signal(syscall.SIGSTOP)
				frozen[p.Process], fresh = true, true
			}
		}
		if !fresh {
			break
		}
	}
	for p := range frozen {
		p.signal(syscall.SIGKILL)
	}
}

// killUntilGone repeats killAll until find returns nothing.
func killUntilGone(ctx context.Context, find func() []procInfo) (killed int, err error) {
	seen := make(map[Process]bool)
	for pauses := backoff.New(killPauses); ; {
		left := find()
		for _, p := range left {
			seen[p.Process] = true
		}
		if len(left) == 0 {
			return len(seen), nil
		}
		killAll(find)
		select {
		case <-time.After(pauses.Next()):
		case <-ctx.Done():
			return len(seen), fmt.Errorf("%w: %s: %w", ErrLeftovers, describe(left), ctx.Err())
		}
	}
}

// describe names processes for a person, sorted, and not more than fit a line.
func describe(procs []procInfo) string {
	slices.SortFunc(procs, func(a, b procInfo) int { return a.PID - b.PID })
	var names []string
	for _, p := range procs[:min(len(procs), maxNamedProcs)] {
		names = append(names, p.String())
	}
	if more := len(procs) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}
