package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"time"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster/member"
	"github.com/ebb-dev/ebb/internal/node"
)

// reserve picks the member's ports, once, and holds them while no process listens on them.
func (w *memberWorker) reserve(m *v1alpha1.EtcdMember) error {
	mark, err := readMarker(w.dir)
	if err != nil {
		return err
	}
	if err := mark.check(m, w.dir); err != nil {
		return err
	}
	if mark == nil {
		if mark, err = w.pickPorts(m); err != nil {
			return err
		}
	}
	w.mark = mark
	if w.hold == nil && w.child == nil {
		w.hold, _ = holdPorts(w.host.opts.Address, mark.PeerPort, mark.ClientPort) // lingering connections keep them too; tried again later
	}
	w.setURLs(m)
	return nil
}

// pickPorts finds ports for a member that has none on the disk, and writes them to its marker. If its object has URLs, the member had
// ports before and keeps them.
func (w *memberWorker) pickPorts(m *v1alpha1.EtcdMember) (*marker, error) {
	w.host.picking.Lock()
	defer w.host.picking.Unlock()
	mark := &marker{
		Namespace: m.Namespace, Cluster: m.Spec.Cluster, ClusterUID: m.Spec.ClusterUID, Incarnation: m.Spec.Incarnation, Member: m.Name, UID: string(m.UID),
		Begun: m.Status.ID != "",
	}
	var err error
	if m.Status.PeerURL != "" {
		mark.PeerPort, mark.ClientPort = portOf(m.Status.PeerURL), portOf(m.Status.ClientURL)
	} else {
		used, err := usedPorts(w.host.opts.Dir)
		if err != nil {
			return nil, err
		}
		if mark.PeerPort, mark.ClientPort, w.hold, err = w.host.opts.Ports.pick(w.host.opts.Address, string(m.UID), used); err != nil {
			return nil, err
		}
	}
	if err = mark.write(w.dir); err != nil {
		w.hold.release()
		w.hold = nil
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

// movedTo returns where the member would listen at the node's address of now; nil if that is where it listens anyway.
func (w *memberWorker) movedTo(m *v1alpha1.EtcdMember) *v1alpha1.EtcdMemberURLs {
	u, err := url.Parse(m.Status.PeerURL)
	if err != nil || m.Status.PeerURL == "" || u.Hostname() == w.host.opts.Address {
		return nil
	}
	return &v1alpha1.EtcdMemberURLs{PeerURL: w.urlOf(m.Spec.PeerTLS, portOf(m.Status.PeerURL)), ClientURL: w.urlOf(m.Spec.ClientTLS, portOf(m.Status.ClientURL))}
}

// moved fails if the member's URLs have another address than the node has now, and etcd's list has not followed yet.
func (w *memberWorker) moved(m *v1alpha1.EtcdMember) error {
	to := w.movedTo(m)
	if to == nil || to.PeerURL == m.Spec.PeerURL {
		return nil
	}
	return fmt.Errorf("%w: it was %s and is %s; waiting until a quorum of the others has changed the address in etcd's list", errMoved, m.Status.PeerURL, to.PeerURL)
}

// setURLs derives the member's URLs from its ports. Once they were published they change only with the node's address, after etcd's list has.
func (w *memberWorker) setURLs(m *v1alpha1.EtcdMember) {
	peer, client := m.Status.PeerURL, m.Status.ClientURL
	if peer == "" {
		peer, client = w.urlOf(m.Spec.PeerTLS, w.mark.PeerPort), w.urlOf(m.Spec.ClientTLS, w.mark.ClientPort)
	} else if to := w.movedTo(m); to != nil && to.PeerURL == m.Spec.PeerURL {
		peer, client = to.PeerURL, to.ClientURL
	}
	w.mu.Lock()
	w.status.PeerURL, w.status.ClientURL, w.status.Moved = peer, client, nil
	w.mu.Unlock()
}

func (w *memberWorker) urlOf(tls bool, port int) string {
	scheme := "http"
	if tls {
		scheme = "https"
	}
	return (&url.URL{Scheme: scheme, Host: net.JoinHostPort(w.host.opts.Address, strconv.Itoa(port))}).String()
}

// admit reserves the ports and enters the node's gate. A draining node admits two kinds of members that have data here. One that it
// ran before the node was restarted, or the cluster might lose its quorum. And one that is started sealed: a snapshot of its data has
// to be taken before the data can leave the node.
func (w *memberWorker) admit(m *v1alpha1.EtcdMember) error {
	if err := w.reserve(m); err != nil {
		return err
	}
	pass, err := w.host.opts.Gate.Enter(KindMembers)
	excepted := w.ranBefore || m.Spec.Want == v1alpha1.EtcdMemberSeal
	if err != nil && excepted && hasData(w.dir) && w.host.opts.Gate.Closed() == node.RefusedDraining {
		pass, err = w.host.opts.Gate.Adopt(KindMembers), nil
	}
	w.pass = pass
	return err
}

// fetch finds the snapshot that the member begins with.
func (w *memberWorker) fetch(ctx context.Context, epoch *epochRun, m *v1alpha1.EtcdMember) (err error) {
	w.report(m, epoch, func(s *v1alpha1.EtcdMemberStatus) { s.Phase = v1alpha1.EtcdMemberStarting })
	if w.restore, w.discard, err = epoch.restoreSource(ctx, m, func(bytes int64) {
		w.report(m, epoch, func(s *v1alpha1.EtcdMemberStatus) { s.DataBytes = bytes })
	}); err != nil {
		w.postpone(err)
	}
	return err
}

// discardRestore deletes what was fetched for a restore.
func (w *memberWorker) discardRestore() {
	if w.discard != nil {
		w.discard()
	}
	w.restore, w.discard = nil, nil
}

// startReserved starts the process after it has made sure that the directory and the ports are the member's.
func (w *memberWorker) startReserved(epoch *epochRun, m *v1alpha1.EtcdMember) error {
	if err := w.reserve(m); err != nil {
		return err
	}
	if err := w.start(m); err != nil {
		w.postpone(err)
		return err
	}
	w.report(m, epoch, func(s *v1alpha1.EtcdMemberStatus) {
		s.Phase, s.PID, s.Data = v1alpha1.EtcdMemberStarting, int64(w.child.PID()), hasData(w.dir)
	})
	return nil
}

// start starts the process.
func (w *memberWorker) start(m *v1alpha1.EtcdMember) error {
	w.hold.release()
	w.hold = nil
	status, sealed := w.reported(), m.Spec.Want == v1alpha1.EtcdMemberSeal
	f := w.host.opts.Files
	child, err := member.Start(w.host.opts.Exe, member.Config{
		Dir: w.dir, Name: m.Name, ClusterUID: m.Spec.ClusterUID, PeerURL: status.PeerURL, ClientURL: status.ClientURL,
		InitialCluster: m.Spec.Begin.InitialCluster, Existing: m.Spec.Begin.Existing, Token: m.Spec.Begin.Token,
		TLS: member.TLS{Cert: f.Cert, Key: f.Key, CA: f.CA}, QuotaBytes: m.Spec.QuotaBytes,
		HeartbeatMilliseconds: m.Spec.Options.HeartbeatMilliseconds, ElectionMilliseconds: m.Spec.Options.ElectionMilliseconds,
		AutoCompactionMode: m.Spec.Options.AutoCompactionMode, AutoCompactionRetention: m.Spec.Options.AutoCompactionRetention, Sealed: sealed,
		Unheard: w.unheard, Restore: w.restore, LogLevel: w.host.opts.MemberLogLevel,
	}, w.host.opts.MemberArgs...)
	if err != nil {
		return err
	}
	w.child, w.started, w.sealed, w.order, w.quota = child, time.Now(), sealed, 0, m.Spec.QuotaBytes
	return nil
}

// recordExit records that the process ended by itself, and why.
func (w *memberWorker) recordExit(m *v1alpha1.EtcdMember) {
	child := w.child
	w.child, w.order = nil, 0
	w.discardRestore()
	if child.Removed() {
		w.removed = true
		return
	}
	if child.Unheard() {
		w.unheard++
		return
	}
	err := child.Err()
	if err == nil {
		err = errors.New("the member's process ended")
	}
	if time.Since(w.started) > steady {
		w.failures = 0
	}
	w.postpone(err)
	w.host.opts.Metrics.restarts.Inc()
	w.host.opts.Log.Warn("etcd member's process ended; restarting it", "etcdcluster", clusterOf(m), "member", m.Name, "delay", restarts.After(w.failures), "error", err)
	w.mu.Lock()
	w.status.Restarts++
	w.mu.Unlock()
}

// recordHang records that the process is restarted because it hangs, and why.
func (w *memberWorker) recordHang(m *v1alpha1.EtcdMember, why error) {
	w.host.opts.Metrics.restarts.Inc()
	w.host.opts.Log.Warn("etcd member's process hangs; restarting it", "etcdcluster", clusterOf(m), "member", m.Name, "error", why)
	w.mu.Lock()
	w.status.Restarts++
	w.status.Error = why.Error()
	w.mu.Unlock()
	w.publishes.Wake() // a process that waits for a disk cannot be killed either
}

// clusterOf names the cluster of a member in logs.
func clusterOf(m *v1alpha1.EtcdMember) string { return m.Namespace + "/" + m.Spec.Cluster }
