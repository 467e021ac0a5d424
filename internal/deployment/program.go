package deployment

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/node"
	"github.com/ebb-dev/ebb/internal/shim"
)

// extendLimit bounds one extension of a deadline: a shim that does not answer must not keep the next one from being sent.
const extendLimit = time.Second

// program is one run of a program under a shim.
type program struct {
	handle   *shim.Handle
	uid      types.UID
	revision string
	pid      int
	started  time.Time
	seen     time.Time // when the node learned that it had started
	free     bool      // it has no deadline; used by the worker's goroutine only
	// mayBeFree: its shim was asked to take the deadline, and may have done it without an answer; used by the worker's goroutine only.
	mayBeFree bool
	settled   bool // it was still running some time later; used by the worker's goroutine only

	done   chan struct{} // closed when no process of it is left, or nobody wants to know any more
	detach func()        // stops to follow it
	exit   shim.Exit     // how it ended, once done is closed
	err    error         // why exit is not known
}

// pulse publishes every renewal of the node's lease. A renewal extends the deadline of all programs.
type pulse struct {
	mu       sync.Mutex
	deadline shim.Deadline
	changed  chan struct{}
}

func newPulse(h *lease.HeldEpoch) *pulse {
	return &pulse{deadline: deadlineOf(h), changed: make(chan struct{})}
}

// deadlineOf is the deadline of the held epoch; the shim uses the same clock. A program that ignores SIGTERM is killed a little before
// it must be dead, so that the node learns of its end in time.
func deadlineOf(h *lease.HeldEpoch) shim.Deadline {
	fence, dead := h.Deadline()
	return shim.Deadline{TermAt: shim.BootTime(fence), KillAt: shim.BootTime(fence + (dead-fence)*3/4)}
}

// run checks for renewals until ctx ends, and calls fall when the lease is in doubt. Polling is enough, because a lease is renewed
// seconds before its deadline.
func (p *pulse) run(ctx context.Context, e *node.Epoch, fall func()) {
	for backoff.Sleep(ctx, pulseEvery) == nil {
		if !e.Holding() {
			fall()
			continue
		}
		p.set(deadlineOf(e.Held))
	}
}

func (p *pulse) set(d shim.Deadline) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if d != p.deadline {
		p.deadline = d
		close(p.changed)
		p.changed = make(chan struct{})
	}
}

func (p *pulse) current() (shim.Deadline, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.deadline, p.changed
}

// newProgram follows a running program until it ends, and extends its deadline whenever the lease is renewed.
func newProgram(h *shim.Handle, p *pulse) *program {
	g := &program{handle: h, done: make(chan struct{}), seen: time.Now()}
	g.uid, g.revision = parseInstance(h.Instance())
	if st, err := shim.ReadState(h.Dir()); err == nil {
		g.pid, g.started = st.Program.PID, st.StartedAt
	}
	if g.started.IsZero() {
		g.started = time.Now()
	}
	ctx, cancel := context.WithCancel(context.Background())
	g.detach = cancel
	go func() {
		defer cancel()
		g.exit, g.err = h.Wait(ctx)
		close(g.done)
		h.Close()
	}()
	go g.keep(p)
	return g
}

// keep passes every renewal on to the shim.
func (g *program) keep(p *pulse) {
	for {
		d, changed := p.current()
		ctx, cancel := context.WithTimeout(context.Background(), extendLimit)
		err := g.handle.Extend(ctx, d) // if it fails, the next renewal extends the deadline, or the program is killed at it
		cancel()
		if err != nil {
			changed = nil
		}
		retry := time.NewTimer(extendLimit / 4)
		if err == nil {
			retry.Stop()
		}
		select {
		case <-g.done:
			retry.Stop()
			return
		case <-changed:
		case <-retry.C:
		}
		retry.Stop()
	}
}

// setFree takes the deadline from the program. Renewals do not bring it back, because a shim keeps the latest one.
func (g *program) setFree() error {
	ctx, cancel := context.WithTimeout(context.Background(), extendLimit)
	defer cancel()
	g.mayBeFree = true
	err := g.handle.Extend(ctx, shim.Never)
	g.free = err == nil
	return err
}

// exited reports whether nothing of it is left.
func (g *program) exited() bool {
	select {
	case <-g.done:
		return true
	default:
		return false
	}
}

// untilSettled returns the time until the program counts as running: it must have run for some time, and the shim must report that it
// still runs. On a busy machine the report of its end may be late, and a rollout must not continue past a program that fails.
func (g *program) untilSettled(after time.Duration) time.Duration {
	if g.settled {
		return 0
	}
	if left := after - time.Since(g.seen); left > 0 {
		return left
	}
	ctx, cancel := context.WithTimeout(context.Background(), extendLimit)
	defer cancel()
	if st, err := g.handle.Status(ctx); err != nil || st.Phase != shim.Running {
		return again
	}
	g.settled = true
	return 0
}

// untilAged returns the time until the program has been seen for so long. One that was found running is old enough.
func (g *program) untilAged(enough time.Duration) time.Duration {
	if g.seen.IsZero() {
		return 0
	}
	return max(enough-time.Since(g.seen), 0)
}

// stop asks the program to end. It can be repeated.
func (g *program) stop(grace time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), extendLimit)
	defer cancel()
	return g.handle.Stop(ctx, grace)
}

// newInstance names one run of a program, so that a restarted node can identify a program that it finds running.
func newInstance(uid types.UID, revision string) string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return string(uid) + "." + revision + "." + hex.EncodeToString(b[:])
}

func parseInstance(name string) (uid types.UID, revision string) {
	parts := strings.Split(name, ".")
	if len(parts) != 3 {
		return "", ""
	}
	return types.UID(parts[0]), parts[1]
}

// environment returns the variables of a program: those of the spec, its node and its own name. It inherits none from the node.
func environment(d *v1alpha1.Deployment, node string) []string {
	env := []string{envNode + "=" + node, envDeployment + "=" + d.Name}
	path := "PATH=" + shim.DefaultPath
	for _, v := range d.Spec.Env {
		switch v.Name {
		case envNode, envDeployment:
		case "PATH":
			path = "PATH=" + v.Value
		default:
			env = append(env, v.Name+"="+v.Value)
		}
	}
	return append(env, path)
}
