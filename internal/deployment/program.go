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
	seen     time.Time // when the node saw it started
	settled  bool      // it was still running a while after; of the worker's goroutine

	done chan struct{} // closed when nothing of it is left
	exit shim.Exit     // how it ended, once done
	err  error         // why that is not known
}

// pulse tells of every renewal of the node's lease: programs live until the deadline that it brings.
type pulse struct {
	mu       sync.Mutex
	deadline shim.Deadline
	changed  chan struct{}
}

func newPulse(h *lease.HeldEpoch) *pulse {
	return &pulse{deadline: deadlineOf(h), changed: make(chan struct{})}
}

// deadlineOf is the held epoch's deadline on the shim's clock, which is the same. What ignores SIGTERM is killed a little
// before it must be dead, so that the node sees it dead in time.
func deadlineOf(h *lease.HeldEpoch) shim.Deadline {
	fence, dead := h.Deadline()
	return shim.Deadline{TermAt: shim.BootTime(fence), KillAt: shim.BootTime(fence + (dead-fence)*3/4)}
}

// run looks for renewals until ctx ends, and calls fall when the lease is in doubt. It polls, because a lease is renewed
// seconds before a deadline.
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

// newProgram follows a program that runs: it is kept alive for as long as the lease is renewed and until it ends.
func newProgram(h *shim.Handle, p *pulse) *program {
	g := &program{handle: h, done: make(chan struct{}), seen: time.Now()}
	g.uid, g.revision = parseInstance(h.Instance())
	if st, err := shim.ReadState(h.Dir()); err == nil {
		g.pid, g.started = st.Program.PID, st.StartedAt
	}
	if g.started.IsZero() {
		g.started = time.Now()
	}
	go func() {
		g.exit, g.err = h.Wait(context.Background())
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
		err := g.handle.Extend(ctx, d) // one that fails is made good by the next, or the program ends at its deadline
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

// exited reports whether nothing of it is left.
func (g *program) exited() bool {
	select {
	case <-g.done:
		return true
	default:
		return false
	}
}

// settles says how long it takes until the program counts as running: it must have run for a while, and the shim must say that it
// still does. The news of its end may be late on a busy machine, and a rollout must not go on past a program that fails.
func (g *program) settles(after time.Duration) time.Duration {
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

// stop asks the program to end. It can be repeated.
func (g *program) stop(grace time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), extendLimit)
	defer cancel()
	return g.handle.Stop(ctx, grace)
}

// newInstance names one run of a program so that a restarted node knows what it finds running.
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

// environment of a program: what the spec says, and where and what it is. Nothing of the node's own.
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
