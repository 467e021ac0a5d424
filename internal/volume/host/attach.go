package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/node"
	"github.com/ebb-dev/ebb/internal/volume/block"
	"github.com/ebb-dev/ebb/internal/volume/engine"
	"github.com/ebb-dev/ebb/internal/volume/nbd"
	"github.com/ebb-dev/ebb/internal/worker"
)

// attachment is a volume that this node may run the engine of.
type attachment struct {
	h       *Host
	key     types.NamespacedName
	uid     types.UID
	pass    *node.Pass
	cancel  context.CancelFunc
	changed worker.Signal // something about the engine may have changed

	mu      sync.Mutex
	engine  *engine.Engine // nil while there is none
	nbd     *nbd.Server    // nil while clients cannot connect
	failure string         // why there is no engine, or why clients cannot connect to it; empty if neither is so
	wrote   int64          // the newest generation that this node opened or tried to write
	stop    func()         // ends the engine
}

// guardRetry is the delay before a volume is attached again on a node whose guard did not run yet.
const guardRetry = 500 * time.Millisecond

// attach starts the engine of a volume, if the node takes new work. The caller holds the host's lock.
func (h *Host) attach(v *v1alpha1.Volume) {
	run := h.engines
	if run == nil || h.attached[v.UID] != nil {
		return
	}
	pass, err := h.opts.Gate.Enter(KindEngines)
	if err != nil {
		if errors.Is(err, node.ErrNoGuard) {
			h.attachLater(run, v.UID)
			return
		}
		h.opts.Log.Info("volume: not attached", "volume", key(v), "error", err)
		return
	}
	ctx, cancel := context.WithCancel(run.ctx)
	a := &attachment{h: h, key: types.NamespacedName{Namespace: v.Namespace, Name: v.Name}, uid: v.UID, pass: pass, cancel: cancel, changed: worker.NewSignal()}
	h.attached[v.UID] = a
	run.tasks.Go(func() {
		defer pass.Leave()
		a.run(ctx)
		h.mu.Lock()
		delete(h.attached, v.UID)
		again := h.volumes[v.UID]
		if again != nil && again.EngineNode() == h.opts.Node && run.ctx.Err() == nil {
			h.attach(again)
		}
		h.mu.Unlock()
	})
}

// attachLater tries again in a moment: the guard of the node is made when the first work asks for it. The caller holds the host's lock.
func (h *Host) attachLater(run *enginesRun, uid types.UID) {
	if run.ctx.Err() != nil || h.unguarded[uid] {
		return
	}
	if h.unguarded == nil {
		h.unguarded = map[types.UID]bool{}
	}
	h.unguarded[uid] = true
	run.tasks.Go(func() {
		_ = backoff.Sleep(run.ctx, guardRetry) // what ended is seen below
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.unguarded, uid)
		if v := h.volumes[uid]; v != nil && v.EngineNode() == h.opts.Node && run.ctx.Err() == nil {
			h.attach(v)
		}
	})
}

// follow starts or ends what the node runs of a volume. The caller holds the host's lock.
func (h *Host) follow(v *v1alpha1.Volume) {
	a := h.attached[v.UID]
	switch ours := v.EngineNode() == h.opts.Node; {
	case ours && a == nil:
		h.attach(v)
	case !ours && a != nil:
		a.cancel()
	case a != nil && a.replaced(v):
		a.restart()
	case a != nil:
		a.setWant(v)
	}
}

// replaced reports whether somebody else raised the generation since: the volume was detached and attached again while this node did not look.
func (a *attachment) replaced(v *v1alpha1.Volume) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.engine != nil && v.Status.Generation > a.wrote
}

// restart ends the engine, so that another one opens the volume as it is now.
func (a *attachment) restart() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stop != nil {
		a.stop()
	}
}

// setWant passes on what the objects ask of the replicas. The caller holds the host's lock.
func (a *attachment) setWant(v *v1alpha1.Volume) {
	a.mu.Lock()
	e := a.engine
	a.mu.Unlock()
	if e == nil {
		return
	}
	var list []*v1alpha1.Replica
	for _, r := range a.h.others {
		if r.Spec.VolumeUID == string(v.UID) {
			list = append(list, r)
		}
	}
	e.SetWant(Want(v, list, func(name string) bool {
		n := a.h.nodes[name]
		return n != nil && n.Status.Liveness == v1alpha1.Stopping
	}))
}

// run opens the volume, again and again if it cannot be opened, and serves it until ctx ends.
func (a *attachment) run(ctx context.Context) {
	log := a.h.opts.Log
	log.Info("volume: attaching", "volume", a.key.String())
	reporting, stop := context.WithCancel(context.WithoutCancel(ctx))
	var reports sync.WaitGroup
	reports.Go(func() { a.reportLoop(reporting) })
	wait := backoff.New(backoff.Policy{First: 100 * time.Millisecond, Longest: 5 * time.Second})
	for ctx.Err() == nil {
		began := time.Now()
		err := a.open(ctx)
		if ctx.Err() != nil {
			break
		}
		if errors.Is(err, errNotOurs) {
			log.Info("volume: it is no longer attached to this node", "volume", a.key.String())
		} else {
			log.Warn("volume: engine ended", "volume", a.key.String(), "error", err)
		}
		if time.Since(began) > time.Minute {
			wait.Reset()
		}
		if backoff.Sleep(ctx, wait.Next()) != nil {
			break
		}
	}
	stop()
	reports.Wait()
	log.Info("volume: detached", "volume", a.key.String())
}

// open runs one engine to its end.
func (a *attachment) open(ctx context.Context) error {
	var v *v1alpha1.Volume
	err := a.change(ctx, func(live *v1alpha1.Volume) (bool, error) { v = live; return false, nil })
	if err != nil {
		a.setFailure(err)
		return err
	}
	if len(v.Status.Members) == 0 {
		err := fmt.Errorf("volume %s has no member yet", a.key)
		a.setFailure(err)
		return err
	}
	if v.Status.AttachedTo == a.h.opts.Node {
		if err := checkSocket(socketPath(a.h.opts.Sockets, a.uid)); err != nil {
			a.setFailure(err)
			return err
		}
	}
	e := engine.New(engine.Options{
		Volume: a.key.String(), Size: v.Spec.Size.Value(), Generation: v.Status.Generation, Members: v.Status.Members,
		Dial:    func(ctx context.Context, name string) (block.Replica, bool, error) { return a.h.dial(ctx, v, name) },
		Persist: a.persist, Limit: a.h.limit, Clock: a.h.opts.Clock, Timing: a.h.opts.Timing, OnChange: a.changed.Wake, Log: a.h.opts.Log,
	})
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	a.begin(e, stop, v.Status.Generation)
	a.h.mu.Lock()
	if seen := a.h.volumes[a.uid]; seen != nil {
		a.setWant(seen)
	}
	a.h.mu.Unlock()
	serving := make(chan struct{})
	go func() {
		defer close(serving)
		if v.Status.AttachedTo == a.h.opts.Node {
			a.serve(ctx, running, e)
		} else {
			select {
			case <-ctx.Done():
			case <-running.Done():
			}
		}
		cancel() // the engine ends when no client is connected any more
	}()
	err = e.Run(running)
	stop()
	<-serving
	a.mu.Lock()
	a.engine, a.stop = nil, nil
	a.mu.Unlock()
	a.setFailure(err)
	return err
}

// begin notes that an engine opens a generation, which stop ends. Why there was none before does not matter any more.
func (a *attachment) begin(e *engine.Engine, stop func(), generation int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.engine, a.stop, a.wrote, a.failure = e, stop, max(a.wrote, generation), ""
}

// serve lets clients connect once the engine serves, until ctx or the engine ends. Then it lets their requests finish and disconnects them.
func (a *attachment) serve(ctx, running context.Context, e *engine.Engine) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(running, cancel)
	defer stop()
	for !e.Status().Serving {
		if backoff.Sleep(ctx, 5*time.Millisecond) != nil {
			return
		}
	}
	path := socketPath(a.h.opts.Sockets, a.uid)
	listener := a.awaitListener(ctx, path)
	if listener == nil {
		return
	}
	server := nbd.New(e, a.export(), nbd.Options{Log: a.h.opts.Log.With("volume", a.key.String())})
	a.mu.Lock()
	a.nbd = server
	a.mu.Unlock()
	a.changed.Wake()
	served := make(chan error, 1)
	go func() { served <- server.Serve(context.WithoutCancel(ctx), listener) }()
	select {
	case <-ctx.Done():
	case err := <-served:
		a.h.opts.Log.Error("volume: the NBD server ended", "volume", a.key.String(), "error", err)
	}
	ending, done := context.WithTimeout(context.WithoutCancel(ctx), disconnectLimit)
	defer done()
	if err := server.Shutdown(ending); err != nil {
		a.h.opts.Log.Warn("volume: clients were cut off", "volume", a.key.String(), "error", err)
	}
	a.mu.Lock()
	a.nbd = nil
	a.mu.Unlock()
	_ = os.Remove(path) // the listener removes it as a rule
}

// awaitListener makes the socket, again and again while it cannot be made, and says so. It returns nil if ctx ends before. The engine stays open
// meanwhile: each time it is opened the generation rises.
func (a *attachment) awaitListener(ctx context.Context, path string) net.Listener {
	wait := backoff.New(backoff.Policy{First: 100 * time.Millisecond, Longest: 5 * time.Second})
	said := ""
	for {
		listener, err := listen(path)
		if err == nil {
			a.setFailure(nil)
			return listener
		}
		err = fmt.Errorf("clients cannot connect: %w", err)
		a.setFailure(err)
		if text := err.Error(); text != said {
			a.h.opts.Log.Error("volume: the socket cannot be made; trying again", "volume", a.key.String(), "error", err)
			said = text
		}
		if backoff.Sleep(ctx, wait.Next()) != nil {
			return nil
		}
	}
}

// disconnectLimit bounds how long requests of clients may take to finish when a volume is detached.
const disconnectLimit = 10 * time.Second

// listen makes a socket that only the owner of this process can use. One that a process before left is replaced, and its directory is made again
// if something has cleaned it away.
func listen(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// export is the name of the volume for NBD clients.
func (a *attachment) export() string { return a.key.Name }

// uri is where clients connect.
func (a *attachment) uri() string { return nbdURI(a.export(), socketPath(a.h.opts.Sockets, a.uid)) }

// nbdURI names an export on a socket. Clients split the query at & and ; and decode only %, so that everything but slashes is encoded, and a space as %20.
func nbdURI(export, socket string) string {
	query := strings.NewReplacer("+", "%20", "%2F", "/").Replace(url.QueryEscape(socket))
	u := url.URL{Scheme: "nbd+unix", Path: "/" + export, RawQuery: "socket=" + query, OmitHost: false}
	return u.String()
}

func (a *attachment) setFailure(err error) {
	a.mu.Lock()
	a.failure = ""
	if err != nil {
		a.failure = err.Error()
	}
	a.mu.Unlock()
	a.changed.Wake()
}

// limit is the rate at which replicas are built, or nil for none.
func (h *Host) limit() *rate.Limiter {
	ctx, cancel := context.WithTimeout(context.Background(), writeLimit)
	defer cancel()
	settings := &v1alpha1.Settings{}
	if err := h.opts.Objects.Get(ctx, types.NamespacedName{Name: v1alpha1.SettingsName}, settings); err != nil {
		return nil
	}
	q := settings.Spec.Volumes.RebuildBytesPerSecond
	if q == nil || q.Value() <= 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(q.Value()), int(max(q.Value(), block.ChunkSize)))
}
