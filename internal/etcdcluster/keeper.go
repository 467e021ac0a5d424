package etcdcluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/etcdcluster/member"
	"github.com/ebb-dev/ebb/internal/node"
)

const (
	// steady is how long a member has to run for its earlier failures not to count any more.
	steady = 30 * time.Second
	// lookAgain is when a keeper that cannot do what it should tries again.
	lookAgain = time.Second
	// tellAgain is when a status that could not be written is tried again.
	tellAgain = 200 * time.Millisecond
)

// restarts is how long a member that ended by itself stays down.
var restarts = backoff.Policy{First: 100 * time.Millisecond, Longest: 5 * time.Second}

// keeper does on this node what one EtcdMember asks for. It lives across epochs, with the member's process.
//
//	Reserve ──▶ Reserved          ports are picked, recorded and held
//	Run ──▶ Starting ──▶ Running  and again after every end that nobody asked for
//	Seal ──▶ Sealed               no client is served
//	Stop ──▶ Stopped              the process has ended, or etcd removed the member
//	Delete ──▶ Deleted            and its directory is gone
//	any ──▶ Failed                a person or the coordinator has to look
type keeper struct {
	host *Host
	uid  types.UID

	mu     sync.Mutex
	object *v1alpha1.EtcdMember // as last seen
	gone   bool                 // and it is no more
	ended  bool                 // the keeper has nothing left to do
	status v1alpha1.EtcdMemberStatus
	wakeup chan struct{} // of live
	told   chan struct{} // of tell

	// Only live uses what follows.
	dir     string
	mark    *marker
	hold    *portHold
	pass    *node.Pass
	child   *member.Child
	began   time.Time // of the child
	sealed  bool      // what the child was last told
	order   int64     // and when
	restore *member.Restore
	discard func()    // what was fetched for it
	unheard int       // how often in a row the child ended to be started again
	removed bool      // etcd says that it is no member any more
	was     bool      // it ran when this process began, under an earlier one
	failed  int64     // starts in a row
	notYet  time.Time // the child is not started before
}

func newKeeper(h *Host, m *v1alpha1.EtcdMember) *keeper {
	k := &keeper{host: h, uid: m.UID, object: m, status: m.Status, wakeup: make(chan struct{}, 1), told: make(chan struct{}, 1)}
	k.status.PID, k.status.Restarts = 0, 0
	switch m.Status.Phase {
	case v1alpha1.EtcdMemberStarting, v1alpha1.EtcdMemberRunning, v1alpha1.EtcdMemberSealed:
		k.was = true
	}
	return k
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// see takes note of what is wanted now.
func (k *keeper) see(m *v1alpha1.EtcdMember) {
	k.mu.Lock()
	k.object = m
	k.mu.Unlock()
	poke(k.wakeup)
	poke(k.told)
}

// forget: the object is gone. What it did not ask to be deleted stays.
func (k *keeper) forget() {
	k.mu.Lock()
	k.gone = true
	k.mu.Unlock()
	poke(k.wakeup)
}

func (k *keeper) latest() (*v1alpha1.EtcdMember, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.object, k.gone
}

func (k *keeper) over() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ended
}

func (k *keeper) phase() v1alpha1.EtcdMemberPhase {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.status.Phase
}

// retains says whether data is here that has to stay somewhere.
func (k *keeper) retains() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.gone {
		return false
	}
	// Between a wish to run and the process there is still only data.
	resumes := runs(k.object) && k.status.Data && k.status.Phase == v1alpha1.EtcdMemberStopped
	return resumes || Retained(&v1alpha1.EtcdMember{Spec: k.object.Spec, Status: k.status}, k.host.opts.Node)
}

// live works until ctx ends or nothing is left to do. With it ends the member's process.
func (k *keeper) live(ctx context.Context) {
	telling, quiet := context.WithCancel(ctx)
	var teller sync.WaitGroup
	teller.Go(func() { k.tell(telling) })
	defer teller.Wait()
	defer quiet()
	defer k.leave()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var said <-chan struct{}
		if k.child != nil {
			_, said = k.child.Report()
		}
		again, over := k.step(ctx)
		if over {
			k.mu.Lock()
			k.ended = true
			k.mu.Unlock()
			return
		}
		if k.child != nil && said == nil {
			continue // it has just been started: what it says must not be missed
		}
		timer.Reset(again)
		select {
		case <-ctx.Done():
			return
		case <-k.wakeup:
		case <-said:
		case <-ended(k.child):
		case <-timer.C:
		}
	}
}

func ended(c *member.Child) <-chan struct{} {
	if c == nil {
		return nil
	}
	return c.Done()
}

// leave lets go of everything but the data.
func (k *keeper) leave() {
	k.stopChild()
	k.hold.release()
	k.hold = nil
}

func (k *keeper) stopChild() {
	if k.child != nil {
		k.child.Stop(context.Background())
		k.child = nil
	}
	k.restored()
	if k.pass != nil {
		k.pass.Leave()
		k.pass = nil
	}
}

// step brings the member nearer to what is wanted, and says when to look again at the latest, or that nothing is left to do.
func (k *keeper) step(ctx context.Context) (again time.Duration, over bool) {
	m, gone := k.latest()
	if gone {
		k.stopChild()
		if k.dir != "" && hasData(k.dir) {
			k.host.opts.Log.Warn("etcd member's object is gone and its data is still here", "member", m.Namespace+"/"+m.Name, "dir", k.dir)
		}
		return 0, true
	}
	a := k.host.current()
	if a == nil {
		k.stepInDoubt(m)
		return k.again(), false
	}
	var err error
	if k.dir == "" {
		if k.dir, err = memberDir(k.host.opts.Dir, m); err != nil {
			k.say(m, a, func(s *v1alpha1.EtcdMemberStatus) { s.Phase, s.Error = v1alpha1.EtcdMemberFailed, err.Error() })
			k.dir = ""
			return lookAgain, false
		}
	}
	switch m.Spec.Want {
	case v1alpha1.EtcdMemberReserve:
		k.stopChild()
		if err = k.reserve(m); err == nil {
			k.say(m, a, func(s *v1alpha1.EtcdMemberStatus) { s.Phase, s.Error = v1alpha1.EtcdMemberReserved, "" })
		}
	case v1alpha1.EtcdMemberRun, v1alpha1.EtcdMemberSeal:
		err = k.serve(ctx, a, m)
	case v1alpha1.EtcdMemberStop:
		err = k.stop(a, m)
	case v1alpha1.EtcdMemberDelete:
		err = k.remove(a, m)
	}
	if err != nil && k.host.current() == a { // otherwise the next epoch tries it anew
		k.fail(a, m, err)
	}
	return k.again(), false
}

// again is when to look again.
func (k *keeper) again() time.Duration {
	if wait := time.Until(k.notYet); wait > 0 {
		return min(wait, lookAgain)
	}
	return lookAgain
}

// stepInDoubt only keeps running what runs.
func (k *keeper) stepInDoubt(m *v1alpha1.EtcdMember) {
	if k.pass == nil {
		return
	}
	k.bury()
	if k.child == nil && runs(m) && !k.removed && hasData(k.dir) && !time.Now().Before(k.notYet) {
		if err := k.start(m); err != nil {
			k.later(err)
		}
	}
}

// fail says what is wrong. Some of it does not get better by trying again, and the phase says so.
func (k *keeper) fail(a *era, m *v1alpha1.EtcdMember, err error) {
	final := errors.Is(err, errForeign) || errors.Is(err, errDataMissing)
	k.say(m, a, func(s *v1alpha1.EtcdMemberStatus) {
		s.Error = short(err.Error(), 4096)
		switch {
		case final:
			s.Phase, s.PID = v1alpha1.EtcdMemberFailed, 0
			s.Data = hasData(k.dir)
		case s.Phase == "":
			s.Phase = v1alpha1.EtcdMemberPending
		case runs(m) && s.Phase != v1alpha1.EtcdMemberPending && s.Phase != v1alpha1.EtcdMemberReserved && k.child == nil:
			s.Phase, s.PID = v1alpha1.EtcdMemberStarting, 0
		}
	})
}

// runs says whether the member should have a process.
func runs(m *v1alpha1.EtcdMember) bool {
	return m.Spec.Want == v1alpha1.EtcdMemberRun || m.Spec.Want == v1alpha1.EtcdMemberSeal
}

func short(text string, limit int) string {
	if len(text) > limit {
		return text[:limit]
	}
	return text
}

// later puts the next start off.
func (k *keeper) later(err error) {
	k.failed++
	k.notYet = time.Now().Add(restarts.After(k.failed))
	k.mu.Lock()
	k.status.Error = short(err.Error(), 4096)
	k.mu.Unlock()
}

// reserve picks the member's ports, once, and holds them while nobody listens on them.
func (k *keeper) reserve(m *v1alpha1.EtcdMember) error {
	mark, err := readMarker(k.dir)
	if err != nil {
		return err
	}
	if err := mark.check(m, k.dir); err != nil {
		return err
	}
	if mark == nil {
		if mark, err = k.pick(m); err != nil {
			return err
		}
	}
	k.mark = mark
	if k.hold == nil && k.child == nil {
		k.hold, _ = holdPorts(k.host.opts.Address, mark.PeerPort, mark.ClientPort) // connections that linger keep them too; again later
	}
	k.setURLs(m)
	return nil
}

// pick finds ports for a member that has none on the disk. It had some before if its object says so.
func (k *keeper) pick(m *v1alpha1.EtcdMember) (*marker, error) {
	k.host.picking.Lock()
	defer k.host.picking.Unlock()
	mark := &marker{
		Namespace: m.Namespace, Cluster: m.Spec.Cluster, ClusterUID: m.Spec.ClusterUID, Incarnation: m.Spec.Incarnation, Member: m.Name,
		Begun: m.Status.ID != "",
	}
	var err error
	if m.Status.PeerURL != "" {
		mark.PeerPort, mark.ClientPort = portOf(m.Status.PeerURL), portOf(m.Status.ClientURL)
	} else {
		used, err := usedPorts(k.host.opts.Dir)
		if err != nil {
			return nil, err
		}
		if mark.PeerPort, mark.ClientPort, k.hold, err = k.host.opts.Ports.pick(k.host.opts.Address, string(m.UID), used); err != nil {
			return nil, err
		}
	}
	if err = mark.write(k.dir); err != nil {
		k.hold.release()
		k.hold = nil
	}
	return mark, err
}

func portOf(address string) int {
	u, err := url.Parse(address)
	if err != nil {
		return 0
	}
	port, _ := strconv.Atoi(u.Port())
	return port
}

// setURLs makes the URLs of the ports. They never change once they are told.
func (k *keeper) setURLs(m *v1alpha1.EtcdMember) {
	peer, client := m.Status.PeerURL, m.Status.ClientURL
	if peer == "" {
		peer, client = k.urlOf(m.Spec.PeerTLS, k.mark.PeerPort), k.urlOf(m.Spec.ClientTLS, k.mark.ClientPort)
	}
	k.mu.Lock()
	k.status.PeerURL, k.status.ClientURL = peer, client
	k.mu.Unlock()
}

func (k *keeper) urlOf(tls bool, port int) string {
	scheme := "http"
	if tls {
		scheme = "https"
	}
	return (&url.URL{Scheme: scheme, Host: net.JoinHostPort(k.host.opts.Address, strconv.Itoa(port))}).String()
}

// bury takes note of a child that has ended by itself.
func (k *keeper) bury() {
	if k.child == nil {
		return
	}
	select {
	case <-k.child.Done():
	default:
		return
	}
	child := k.child
	k.child, k.order = nil, 0
	k.restored()
	if child.Removed() {
		k.removed = true
		return
	}
	if child.Unheard() {
		k.unheard++
		return
	}
	err := child.Err()
	if err == nil {
		err = errors.New("the member's process ended")
	}
	if time.Since(k.began) > steady {
		k.failed = 0
	}
	k.later(err)
	k.host.opts.Metrics.restarts.Inc()
	m, _ := k.latest()
	k.host.opts.Log.Warn("etcd member ended and is started again", "member", m.Namespace+"/"+m.Name, "error", err, "delay", restarts.After(k.failed))
	k.mu.Lock()
	k.status.Restarts++
	k.mu.Unlock()
}

// serve lets the member run, sealed or not.
func (k *keeper) serve(ctx context.Context, a *era, m *v1alpha1.EtcdMember) error {
	k.bury()
	switch {
	case k.removed:
		k.stopChild()
		k.say(m, a, func(s *v1alpha1.EtcdMemberStatus) {
			s.Phase, s.PID, s.Data, s.Error = v1alpha1.EtcdMemberStopped, 0, hasData(k.dir), "the member was removed from its cluster"
		})
		return nil
	case k.child != nil:
		return k.lead(a, m)
	case m.Spec.Begin == nil:
		return errors.New("it is not said how the member begins")
	case time.Now().Before(k.notYet):
		k.say(m, a, func(s *v1alpha1.EtcdMemberStatus) { s.Phase, s.PID = v1alpha1.EtcdMemberStarting, 0 })
		return nil
	}
	if err := k.reserve(m); err != nil {
		return err
	}
	if err := k.enter(m); err != nil {
		return err
	}
	if err := k.prepare(ctx, a, m); err != nil {
		if final := errors.Is(err, errDataMissing); final {
			k.stopChild() // its pass
		} else {
			k.later(err)
		}
		return err
	}
	if k.host.current() != a { // it took its time
		return errNodeInDoubt
	}
	if err := k.start(m); err != nil {
		k.later(err)
		return err
	}
	k.say(m, a, func(s *v1alpha1.EtcdMemberStatus) {
		s.Phase, s.PID, s.Data = v1alpha1.EtcdMemberStarting, int64(k.child.PID()), hasData(k.dir)
	})
	return nil
}

// enter goes through the node's gate. A node that is being emptied takes up again what it ran before it was restarted, or the cluster might lose its
// quorum, and it wakes data that is at rest under a seal: a snapshot of that is what lets the data go.
func (k *keeper) enter(m *v1alpha1.EtcdMember) error {
	if k.pass != nil {
		return nil
	}
	pass, err := k.host.opts.Gate.Enter(KindMembers)
	wakes := k.was || m.Spec.Want == v1alpha1.EtcdMemberSeal
	if err != nil && wakes && hasData(k.dir) && k.host.opts.Gate.Closed() == node.RefusedDraining {
		pass, err = k.host.opts.Gate.Adopt(KindMembers), nil
	}
	k.pass = pass
	return err
}

// prepare makes sure that the data is as the member's beginning asks for.
func (k *keeper) prepare(ctx context.Context, a *era, m *v1alpha1.EtcdMember) error {
	if hasData(k.dir) {
		return nil
	}
	if m.Spec.DataRequired || k.mark.Begun || m.Status.ID != "" {
		return fmt.Errorf("%w in %s", errDataMissing, k.dir)
	}
	if m.Spec.Begin.Snapshot == "" {
		return nil
	}
	k.say(m, a, func(s *v1alpha1.EtcdMemberStatus) { s.Phase = v1alpha1.EtcdMemberStarting })
	var err error
	k.restore, k.discard, err = a.source(ctx, m)
	return err
}

// restored: the snapshot from which the child began is not needed any more.
func (k *keeper) restored() {
	if k.discard != nil {
		k.discard()
	}
	k.restore, k.discard = nil, nil
}

type memberURLs struct{ peer, client string }

func (k *keeper) urls() memberURLs {
	k.mu.Lock()
	defer k.mu.Unlock()
	return memberURLs{k.status.PeerURL, k.status.ClientURL}
}

// start starts the process.
func (k *keeper) start(m *v1alpha1.EtcdMember) error {
	k.hold.release()
	k.hold = nil
	urls, sealed := k.urls(), m.Spec.Want == v1alpha1.EtcdMemberSeal
	f := k.host.opts.Files
	child, err := member.Start(k.host.opts.Exe, member.Config{
		Dir: k.dir, Name: m.Name, ClusterUID: m.Spec.ClusterUID, PeerURL: urls.peer, ClientURL: urls.client,
		InitialCluster: m.Spec.Begin.InitialCluster, Existing: m.Spec.Begin.Existing, Token: m.Spec.Begin.Token,
		TLS: member.TLS{Cert: f.Cert, Key: f.Key, CA: f.CA}, QuotaBytes: m.Spec.QuotaBytes,
		HeartbeatMilliseconds: m.Spec.Options.HeartbeatMilliseconds, ElectionMilliseconds: m.Spec.Options.ElectionMilliseconds,
		AutoCompactionMode: m.Spec.Options.AutoCompactionMode, AutoCompactionRetention: m.Spec.Options.AutoCompactionRetention, Sealed: sealed,
		Unheard: k.unheard, Restore: k.restore, LogLevel: k.host.opts.MemberLogLevel,
	}, k.host.opts.MemberArgs...)
	if err != nil {
		return err
	}
	k.child, k.began, k.sealed, k.order = child, time.Now(), sealed, 0
	return nil
}

// lead tells a running child to seal or unseal, and takes note of how it is.
func (k *keeper) lead(a *era, m *v1alpha1.EtcdMember) error {
	if seal := m.Spec.Want == v1alpha1.EtcdMemberSeal; seal != k.sealed {
		order := member.Unseal
		if seal {
			order = member.Seal
		}
		number, err := k.child.Order(order)
		if err != nil {
			return err
		}
		k.sealed, k.order = seal, number
	}
	r, _ := k.child.Report()
	if r.Number < k.order {
		return nil // it has not been carried out yet
	}
	var phase v1alpha1.EtcdMemberPhase
	switch r.State {
	case member.Starting:
		phase = v1alpha1.EtcdMemberStarting
	case member.Serving:
		phase = v1alpha1.EtcdMemberRunning
	case member.Sealed:
		phase = v1alpha1.EtcdMemberSealed
	default:
		return nil // it ends
	}
	if phase != v1alpha1.EtcdMemberStarting {
		k.unheard = 0
		k.restored()
	}
	if phase != v1alpha1.EtcdMemberStarting && !k.mark.Begun {
		k.mark.Begun = true
		if err := k.mark.write(k.dir); err != nil {
			k.mark.Begun = false
			return err
		}
	}
	k.say(m, a, func(s *v1alpha1.EtcdMemberStatus) {
		s.Phase, s.PID, s.Data = phase, int64(k.child.PID()), hasData(k.dir)
		if phase != v1alpha1.EtcdMemberStarting {
			s.ID, s.ClusterID, s.Error = r.ID, r.ClusterID, ""
		}
	})
	return nil
}
