package shim

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/ebb-dev/ebb/internal/atomicfile"
)

// Phase is the phase of a program. It only moves forward, as the package comment shows.
type Phase string

// The phases.
const (
	Starting Phase = "Starting"
	Running  Phase = "Running"
	Stopping Phase = "Stopping"
	Exited   Phase = "Exited"
)

// Reason is why a program ended: the first cause, even if others followed while it was ending.
type Reason string

// The reasons.
const (
	// ReasonExited: the main process ended by itself.
	ReasonExited Reason = "Exited"
	// ReasonStopped: it was stopped, by its node or by a signal to the shim.
	ReasonStopped Reason = "Stopped"
	// ReasonDeadlinePassed: its deadline was not extended in time.
	ReasonDeadlinePassed Reason = "DeadlinePassed"
	// ReasonStartFailed: it never ran.
	ReasonStartFailed Reason = "StartFailed"
	// ReasonShimLost: the shim died before it recorded the exit; Start, Attach, Wait or Sweep found that out.
	ReasonShimLost Reason = "ShimLost"
)

// Exit is how a program ended.
type Exit struct {
	Reason Reason `json:"reason"`
	// Code is the main process's exit code, or -1 when it has none.
	Code int `json:"code"`
	// Signal is the signal that ended the main process, or zero.
	Signal syscall.Signal `json:"signal,omitempty"`
	// Message describes the exit for people.
	Message string `json:"message"`
}

// State is the content of state.json.
type State struct {
	Instance string `json:"instance"`
	Phase    Phase  `json:"phase"`
	// BootID tells process ids of this boot from those of another.
	BootID  string  `json:"bootID"`
	Shim    Process `json:"shim"`
	Program Process `json:"program,omitzero"`
	// Init is the first process of the program's PID namespace, if it has one.
	Init         Process   `json:"init,omitzero"`
	StartedBoot  BootTime  `json:"startedBoot,omitempty"`
	StartedAt    time.Time `json:"startedAt,omitzero"`
	FinishedBoot BootTime  `json:"finishedBoot,omitempty"`
	FinishedAt   time.Time `json:"finishedAt,omitzero"`
	// Exit is complete once Phase is Exited; in Stopping it already tells the reason. What it points to never changes,
	// for copies of the state are read by others.
	Exit *Exit `json:"exit,omitempty"`
	// LogDropped is how many bytes of output were dropped because they could not be written.
	LogDropped int64 `json:"logDropped,omitempty"`
}

// Process is a process id together with what tells it from a later process of the same id.
type Process struct {
	PID int `json:"pid"`
	// StartTicks is when it was started, in the kernel's clock ticks since boot.
	StartTicks uint64 `json:"startTicks"`
}

// ReadState reads the state of the last shim in dir. It returns fs.ErrNotExist if none ever ran there.
func ReadState(dir string) (State, error) {
	var st State
	path := filepath.Join(dir, stateName)
	data, err := os.ReadFile(path)
	if err != nil {
		return st, err
	}
	if err := json.Unmarshal(data, &st); err != nil {
		return st, fmt.Errorf("%s: %w", path, err)
	}
	return st, nil
}

func writeState(dir string, st State) error {
	data, err := json.MarshalIndent(st, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.WriteSecret(filepath.Join(dir, stateName), append(data, '\n'))
}

func bootID() string {
	data, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data))
}

// A journal writes states in order, off the supervisor's goroutine: a disk that hangs must not delay a kill.
type journal struct{ entries chan journalEntry }

type journalEntry struct {
	state State
	done  chan error
}

func newJournal(dir string) *journal {
	// A life has five states at most, so save never blocks.
	j := &journal{entries: make(chan journalEntry, 8)}
	go func() {
		for e := range j.entries {
			e.done <- writeState(dir, e.state)
		}
	}()
	return j
}

// save hands a state over and waits for it to be on disk, but no longer than the limit.
func (j *journal) save(st State, limit time.Duration) error {
	done := make(chan error, 1)
	j.entries <- journalEntry{state: st, done: done}
	if limit <= 0 {
		return nil
	}
	timeout := time.NewTimer(limit)
	defer timeout.Stop()
	select {
	case err := <-done:
		return err
	case <-timeout.C:
		return fmt.Errorf("%s was not written within %v", stateName, limit)
	}
}
