package host

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/etcdcluster/member"
	"github.com/ebb-dev/ebb/internal/node"
	"github.com/ebb-dev/ebb/internal/worker"
)

const (
	// steady is how long a process has to run for its earlier failures not to count any more.
	steady = 30 * time.Second
	// retryInterval is when a worker observes its member again at the latest.
	retryInterval = time.Second
)

var (
	// restarts is the delay before a process that ended by itself is started again.
	restarts = backoff.Policy{First: 100 * time.Millisecond, Longest: 5 * time.Second}
	// publishRetries is the delay before a status that could not be written is tried again.
	publishRetries = backoff.Policy{First: 200 * time.Millisecond, Longest: 200 * time.Millisecond}
)

// memberWorker does on this node what one EtcdMember asks for: it observes the member, takes the step that Next returns, and
// observes again. It outlives epochs, and so does the member's process.
type memberWorker struct {
	*worker.Worker[*v1alpha1.EtcdMember]
	host      *Host
	uid       types.UID
	publishes worker.Signal // of publish

	mu       sync.Mutex
	finished bool // the worker has nothing left to do
	status   v1alpha1.EtcdMemberStatus

	// Only run uses what follows.
	dir       string
	mark      *marker
	hold      *portHold
	pass      *node.Pass
	child     *member.Child
	started   time.Time // of the child
	quota     int64     // of the child
	sealed    bool      // the child's last order was to seal
	order     int64     // the number of that order
	ordered   time.Time // when it was given
	restore   *member.Restore
	discard   func()    // deletes what was fetched for restore
	unheard   int       // how often in a row the child ended to be started again
	removed   bool      // etcd removed the member from its cluster
	ranBefore bool      // under an earlier process of the node
	failures  int64     // starts that failed in a row
	notBefore time.Time // of the next start
}

func newMemberWorker(h *Host, m *v1alpha1.EtcdMember) *memberWorker {
	w := &memberWorker{Worker: worker.New[*v1alpha1.EtcdMember](), host: h, uid: m.UID, publishes: worker.NewSignal(), status: m.Status}
	w.See(m)
	w.status.PID, w.status.Restarts = 0, 0
	switch m.Status.Phase {
	case v1alpha1.EtcdMemberStarting, v1alpha1.EtcdMemberRunning, v1alpha1.EtcdMemberSealed:
		w.ranBefore = true
	}
	return w
}

func (w *memberWorker) isFinished() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.finished
}

// reported returns the status as it was or will be written.
func (w *memberWorker) reported() v1alpha1.EtcdMemberStatus {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status
}

// retains returns whether the member's data here is all that there is of the member, so that it must not be left behind.
func (w *memberWorker) retains() bool {
	m, gone := w.Newest()
	if gone {
		return false
	}
	status := w.reported()
	// Until the process of a member that is started again exists, there is still only data.
	resumes := runs(m) && status.Data && status.Phase == v1alpha1.EtcdMemberStopped
	return resumes || Retained(&v1alpha1.EtcdMember{Spec: m.Spec, Status: status}, w.host.opts.Node)
}

// runs returns whether the member should have a process.
func runs(m *v1alpha1.EtcdMember) bool {
	return m.Spec.Want == v1alpha1.EtcdMemberRun || m.Spec.Want == v1alpha1.EtcdMemberSeal
}

// run works until ctx ends or nothing is left to do. The member's process ends with it.
func (w *memberWorker) run(ctx context.Context) {
	publishing, stopPublishing := context.WithCancel(ctx)
	var publisher sync.WaitGroup
	publisher.Go(func() { w.publish(publishing) })
	defer publisher.Wait()
	defer stopPublishing()
	defer w.leave()
	w.Run(ctx, backoff.Policy{}, func() worker.Next { return w.look(ctx) })
}

func (w *memberWorker) look(ctx context.Context) worker.Next {
	next := worker.Next{In: retryInterval}
	if w.child != nil {
		_, next.On[0] = w.child.Report()
	}
	if w.advance(ctx) {
		w.mu.Lock()
		w.finished = true
		w.mu.Unlock()
		return worker.Next{Done: true}
	}
	if wait := time.Until(w.notBefore); wait > 0 {
		next.In = min(wait, retryInterval)
	}
	if w.child != nil {
		if next.On[0] == nil {
			return worker.Next{} // it has just been started, and its first report must not be missed
		}
		next.On[1] = w.child.Done()
	}
	return next
}

// leave lets go of everything but the data.
func (w *memberWorker) leave() {
	w.stopProcess()
	w.hold.release()
	w.hold = nil
}

// advance takes steps until there is one that something else has to follow, and returns whether the worker is finished.
func (w *memberWorker) advance(ctx context.Context) (finished bool) {
	for {
		m, gone := w.Newest()
		epoch := w.host.current()
		if w.dir == "" && !gone && epoch != nil {
			dir, err := memberDir(w.host.opts.Dir, m)
			if err != nil {
				w.report(m, epoch, func(s *v1alpha1.EtcdMemberStatus) { s.Phase, s.Error = v1alpha1.EtcdMemberFailed, err.Error() })
				return false
			}
			w.dir = dir
		}
		o, err := w.observe(m, gone, epoch)
		step := Step{Do: Fail, Err: err}
		if err == nil {
			step = Next(o, time.Now())
		}
		if step.Do == Leave {
			w.leaveData(m)
			return true
		}
		more, err := w.take(ctx, epoch, m, step)
		if err != nil && epoch != nil && w.host.current() == epoch { // otherwise the next epoch tries it anew
			w.reportFailure(epoch, m, err)
		}
		if err != nil || !more || ctx.Err() != nil {
			return false
		}
	}
}

// observe collects what Next decides on. Files are read only where there is no process that has them.
func (w *memberWorker) observe(m *v1alpha1.EtcdMember, gone bool, epoch *epochRun) (Observed, error) {
	status := w.reported()
	o := Observed{
		Gone: gone, Certain: epoch != nil, Spec: m.Spec, Generation: m.Generation, ID: m.Status.ID, Sealed: w.sealed, Removed: w.removed,
		Admitted: w.pass != nil, NotBefore: w.notBefore, Dir: w.dir, Fetched: w.restore != nil, Phase: status.Phase, PhaseObserved: status.ObservedGeneration,
	}
	if w.child != nil {
		r, _ := w.child.Report()
		o.Process, o.State, o.Acked, o.Ordered, o.Quota = Live, r.State, r.Number >= w.order, w.ordered, w.quota
		select {
		case <-w.child.Done():
			o.Process = Exited
		default:
		}
		return o, nil
	}
	if gone || w.dir == "" || !runs(m) {
		return o, nil
	}
	o.Data = hasData(w.dir)
	if epoch == nil {
		return o, nil
	}
	mark, err := readMarker(w.dir)
	if err != nil {
		return o, err
	}
	o.Foreign, o.Moved = mark.check(m, w.dir), w.moved(m)
	o.Begun = mark != nil && mark.Begun
	return o, nil
}

// take takes one step, and returns whether another one follows from it at once.
func (w *memberWorker) take(ctx context.Context, epoch *epochRun, m *v1alpha1.EtcdMember, step Step) (more bool, err error) {
	switch step.Do {
	case RecordExit:
		w.recordExit(m)
		return true, nil
	case Reserve:
		w.stopProcess()
		if err := w.reserve(m); err != nil {
			return false, err
		}
		w.report(m, epoch, func(s *v1alpha1.EtcdMemberStatus) { s.Phase, s.Error = v1alpha1.EtcdMemberReserved, "" })
	case Admit:
		return true, w.admit(m)
	case Fetch:
		return true, w.fetch(ctx, epoch, m)
	case Start:
		return false, w.startReserved(epoch, m)
	case Restart:
		if err := w.start(m); err != nil {
			w.postpone(err)
		}
	case Delay:
		w.report(m, epoch, func(s *v1alpha1.EtcdMemberStatus) { s.Phase, s.PID = v1alpha1.EtcdMemberStarting, 0 })
	case Seal:
		return true, w.command(member.Seal)
	case Unseal:
		return true, w.command(member.Unseal)
	case Renew:
		if step.Err != nil {
			w.recordHang(m, step.Err)
		}
		w.child.Stop(ctx) // the gate counts the member on
		w.child = nil
		return true, nil
	case Publish:
		return false, w.publishState(epoch, m, step.Phase)
	case Retire:
		w.stopProcess()
		w.report(m, epoch, func(s *v1alpha1.EtcdMemberStatus) {
			s.Phase, s.PID, s.Data, s.Error = v1alpha1.EtcdMemberStopped, 0, hasData(w.dir), "the member was removed from its cluster"
		})
	case Stop:
		return false, w.stop(epoch, m)
	case Erase:
		return false, w.erase(epoch, m)
	case Fail:
		if errors.Is(step.Err, errDataMissing) || errors.Is(step.Err, errMoved) {
			w.stopProcess() // so that the gate does not count it
		}
		return false, step.Err
	}
	return false, nil
}

// command orders the process to refuse or to serve clients.
func (w *memberWorker) command(order member.Order) error {
	number, err := w.child.Order(order)
	if err != nil {
		return err
	}
	w.sealed, w.order, w.ordered = order == member.Seal, number, time.Now()
	return nil
}

// postpone delays the next start.
func (w *memberWorker) postpone(err error) {
	w.failures++
	w.notBefore = time.Now().Add(restarts.After(w.failures))
	w.mu.Lock()
	w.status.Error = short(err.Error(), 4096)
	w.mu.Unlock()
}

func short(text string, limit int) string {
	if len(text) > limit {
		return text[:limit]
	}
	return text
}
