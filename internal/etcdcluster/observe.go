package etcdcluster

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster/member"
	"github.com/ebb-dev/ebb/internal/peer"
)

const (
	// probeTimeout bounds one question to one member.
	probeTimeout = time.Second
	// changeTimeout bounds a change of the members.
	changeTimeout = 5 * time.Second
	// hashTimeout bounds the computing of a hash of all keys.
	hashTimeout = 30 * time.Second
)

// Errors of changes to etcd's list of members.
var (
	// ErrQuorum: the change would leave the cluster without a quorum of healthy voters.
	ErrQuorum = errors.New("quorum would be lost")
	// ErrNoAnswer: no member confirmed the list of members.
	ErrNoAnswer = errors.New("no quorum of the members answers")
	// ErrNotInSync: the learner has not caught up yet.
	ErrNotInSync = errors.New("the learner is not in sync yet")
)

// observer asks members. It keeps one connection to each while the member is there.
type observer struct {
	files peer.Files

	mu    sync.Mutex
	conns map[types.UID]*endpoint
}

// endpoint is a connection to one member.
type endpoint struct {
	name    string
	cluster types.NamespacedName
	url     string
	conn    *grpc.ClientConn
	header  string // the cluster's UID
}

func newObserver(files peer.Files) *observer {
	return &observer{files: files, conns: map[types.UID]*endpoint{}}
}

// close ends all connections.
func (o *observer) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for uid, e := range o.conns {
		e.conn.Close()
		delete(o.conns, uid)
	}
}

// endpoints are the connections to those members that may answer, and those to members of the cluster that are gone are closed.
func (o *observer) endpoints(cluster types.NamespacedName, members []*v1alpha1.EtcdMember) ([]*endpoint, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	var list []*endpoint
	kept := map[types.UID]bool{}
	for _, m := range members {
		if m.Status.ClientURL == "" || m.Spec.Begin == nil || m.Spec.Want != v1alpha1.EtcdMemberRun && m.Spec.Want != v1alpha1.EtcdMemberSeal {
			continue
		}
		e := o.conns[m.UID]
		if e == nil || e.url != m.Status.ClientURL {
			conn, err := o.dial(m.Status.ClientURL)
			if err != nil {
				return nil, fmt.Errorf("member %s: %w", m.Name, err)
			}
			if e != nil {
				e.conn.Close()
			}
			e = &endpoint{name: m.Name, cluster: cluster, url: m.Status.ClientURL, conn: conn, header: m.Spec.ClusterUID}
			o.conns[m.UID] = e
		}
		kept[m.UID] = true
		list = append(list, e)
	}
	for uid, e := range o.conns {
		if e.cluster == cluster && !kept[uid] {
			e.conn.Close()
			delete(o.conns, uid)
		}
	}
	return list, nil
}

func (o *observer) dial(address string) (*grpc.ClientConn, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	creds := insecure.NewCredentials()
	if u.Scheme == "https" {
		shown, err := peer.Load("the node", o.files)
		if err != nil {
			return nil, err
		}
		creds = credentials.NewTLS(shown.Client())
	}
	// A member that was down is back as soon as it answers: connections are tried again quickly.
	retry := backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond}
	return grpc.NewClient("passthrough:///"+u.Host,
		grpc.WithTransportCredentials(creds),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: probeTimeout}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 2 * time.Second}),
	)
}

// call bounds a question and says on whose behalf it is asked.
func (e *endpoint) call(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	return metadata.AppendToOutgoingContext(ctx, member.ClusterHeader, e.header), cancel
}

func (e *endpoint) status(ctx context.Context) Health {
	ctx, cancel := e.call(ctx, probeTimeout)
	defer cancel()
	r, err := pb.NewMaintenanceClient(e.conn).Status(ctx, &pb.StatusRequest{})
	if err != nil {
		return Health{Error: plain(err)}
	}
	return Health{
		Answered: true, ID: r.Header.MemberId, ClusterID: r.Header.ClusterId, Leader: r.Leader, Learner: r.IsLearner, Revision: r.Header.Revision, DBSize: r.DbSize,
	}
}

// list asks for the list of members, confirmed by a quorum.
func (e *endpoint) list(ctx context.Context) ([]Peer, error) {
	ctx, cancel := e.call(ctx, 2*probeTimeout)
	defer cancel()
	r, err := pb.NewClusterClient(e.conn).MemberList(ctx, &pb.MemberListRequest{Linearizable: true})
	if err != nil {
		return nil, fmt.Errorf("member %s: %s", e.name, plain(err))
	}
	var peers []Peer
	for _, m := range r.Members {
		p := Peer{ID: m.ID, Name: m.Name, Learner: m.IsLearner}
		if len(m.PeerURLs) > 0 {
			p.PeerURL = m.PeerURLs[0]
		}
		peers = append(peers, p)
	}
	slices.SortFunc(peers, func(a, b Peer) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	return peers, nil
}

// plain is an error without the dressing of gRPC.
func plain(err error) string {
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

// look asks all members at once how they are, and one of them for the list that a quorum confirms. Hash asks for the hash of all
// keys too.
func (o *observer) look(ctx context.Context, cluster *v1alpha1.EtcdCluster, members []*v1alpha1.EtcdMember, hash bool) (View, error) {
	v := View{Health: map[string]Health{}}
	var asked []*v1alpha1.EtcdMember
	for _, m := range members {
		if m.Spec.Incarnation == cluster.Status.Incarnation {
			asked = append(asked, m)
		}
	}
	ends, err := o.endpoints(types.NamespacedName{Namespace: cluster.Namespace, Name: cluster.Name}, asked)
	if err != nil || len(ends) == 0 {
		return v, err
	}
	v.Health = healthOf(ctx, cluster, ends)
	for _, e := range byPromise(ends, v.Health) {
		peers, err := e.list(ctx)
		if err != nil {
			continue
		}
		// After the list was confirmed this member has applied all that was acknowledged before.
		after := e.status(ctx)
		if !after.OK() {
			continue
		}
		v.Listed, v.Peers, v.Via, v.Revision = true, peers, e.name, after.Revision
		v.Health[e.name] = after
		if hash {
			v.Hash, err = e.hash(ctx, v.Revision)
			v.Listed = err == nil
		}
		break
	}
	return v, nil
}

func healthOf(ctx context.Context, cluster *v1alpha1.EtcdCluster, ends []*endpoint) map[string]Health {
	found := make([]Health, len(ends))
	var wg sync.WaitGroup
	for i, e := range ends {
		wg.Go(func() { found[i] = e.status(ctx) })
	}
	wg.Wait()
	health := map[string]Health{}
	for i, e := range ends {
		h := found[i]
		if known := cluster.Status.ClusterID; known != "" && cluster.Status.Rest == nil && h.Answered && hexID(h.ClusterID) != known {
			h = Health{Error: "answers for another cluster, " + hexID(h.ClusterID)}
		}
		health[e.name] = h
	}
	return health
}

// byPromise are the members that may confirm the list, the leader first.
func byPromise(ends []*endpoint, health map[string]Health) []*endpoint {
	fit := slices.DeleteFunc(slices.Clone(ends), func(e *endpoint) bool { return !health[e.name].OK() || health[e.name].Learner })
	slices.SortStableFunc(fit, func(a, b *endpoint) int {
		leads := func(e *endpoint) int {
			if h := health[e.name]; h.ID == h.Leader {
				return 0
			}
			return 1
		}
		return leads(a) - leads(b)
	})
	return fit
}

// hash of all keys at the newest revision, which must be the one that is known: asked for a revision that was compacted, etcd tells
// what it remembers.
func (e *endpoint) hash(ctx context.Context, revision int64) (int64, error) {
	ctx, cancel := e.call(ctx, hashTimeout)
	defer cancel()
	r, err := pb.NewMaintenanceClient(e.conn).HashKV(ctx, &pb.HashKVRequest{})
	if err != nil {
		return 0, errors.New(plain(err))
	}
	if r.HashRevision != revision {
		return 0, fmt.Errorf("member %s is at revision %d, not %d", e.name, r.HashRevision, revision)
	}
	return int64(r.Hash), nil
}

// current is what a change of the members rests on, read just before it.
type current struct {
	peers  []Peer
	health map[string]Health
	via    *endpoint
	ends   []*endpoint
}

func (o *observer) current(ctx context.Context, w World) (current, error) {
	v, err := o.look(ctx, w.Cluster, w.Members, false)
	if err != nil {
		return current{}, err
	}
	if !v.Listed {
		return current{}, ErrNoAnswer
	}
	now := current{peers: v.Peers, health: v.Health}
	now.ends, err = o.endpoints(types.NamespacedName{Namespace: w.Cluster.Namespace, Name: w.Cluster.Name}, currentOnly(w))
	for _, e := range now.ends {
		if e.name == v.Via {
			now.via = e
		}
	}
	if err == nil && now.via == nil {
		err = ErrNoAnswer
	}
	return now, err
}

func currentOnly(w World) []*v1alpha1.EtcdMember {
	return slices.DeleteFunc(slices.Clone(w.Members), func(m *v1alpha1.EtcdMember) bool { return m.Spec.Incarnation != w.Cluster.Status.Incarnation })
}

func (c current) find(peerURL string) (Peer, bool) {
	i := slices.IndexFunc(c.peers, func(p Peer) bool { return p.PeerURL == peerURL })
	if i < 0 {
		return Peer{}, false
	}
	return c.peers[i], true
}

// healthyWithout counts voters, and those of them that are healthy, apart from one.
func (c current) healthyWithout(id uint64) (healthy, voters int) {
	for _, p := range c.peers {
		if p.Learner || p.ID == id {
			continue
		}
		voters++
		for _, h := range c.health {
			if h.OK() && h.ID == p.ID {
				healthy++
			}
		}
	}
	return healthy, voters
}

// addLearner adds a member to etcd's list unless it is there: it is known by its peer URL.
func (o *observer) addLearner(ctx context.Context, w World, m *v1alpha1.EtcdMember) error {
	now, err := o.current(ctx, w)
	if err != nil {
		return err
	}
	if _, there := now.find(m.Status.PeerURL); there {
		return nil
	}
	if slices.ContainsFunc(now.peers, func(p Peer) bool { return p.Learner }) {
		return fmt.Errorf("member %s: another learner is in the list", m.Name)
	}
	if healthy, voters := now.healthyWithout(0); healthy < quorum(voters) {
		return fmt.Errorf("member %s: %w: %d of %d voters healthy", m.Name, ErrQuorum, healthy, voters)
	}
	ctx, cancel := now.via.call(ctx, changeTimeout)
	defer cancel()
	_, err = pb.NewClusterClient(now.via.conn).MemberAdd(ctx, &pb.MemberAddRequest{PeerURLs: []string{m.Status.PeerURL}, IsLearner: true})
	if errors.Is(rpctypes.Error(err), rpctypes.ErrPeerURLExist) {
		return nil
	}
	return wrapped(err, m.Name)
}

// promote makes a learner a voter, when it is in sync.
func (o *observer) promote(ctx context.Context, w World, m *v1alpha1.EtcdMember) error {
	now, err := o.current(ctx, w)
	if err != nil {
		return err
	}
	p, there := now.find(m.Status.PeerURL)
	if !there || !p.Learner {
		return nil
	}
	if healthy, voters := now.healthyWithout(0); healthy+1 < quorum(voters+1) {
		return fmt.Errorf("member %s: %w: %d of %d voters healthy", m.Name, ErrQuorum, healthy, voters)
	}
	ctx, cancel := now.via.call(ctx, changeTimeout)
	defer cancel()
	_, err = pb.NewClusterClient(now.via.conn).MemberPromote(ctx, &pb.MemberPromoteRequest{ID: p.ID})
	switch {
	case errors.Is(rpctypes.Error(err), rpctypes.ErrMemberLearnerNotReady):
		return fmt.Errorf("member %s: %w", m.Name, ErrNotInSync)
	case errors.Is(rpctypes.Error(err), rpctypes.ErrMemberNotLearner):
		return nil
	}
	return wrapped(err, m.Name)
}

// remove takes a member out of etcd's list. Of a voter, only if those that stay have a quorum of healthy ones.
func (o *observer) remove(ctx context.Context, w World, peer Peer) error {
	now, err := o.current(ctx, w)
	if err != nil {
		return err
	}
	p, there := now.find(peer.PeerURL)
	if !there || p.ID != peer.ID {
		return nil
	}
	if healthy, voters := now.healthyWithout(p.ID); !p.Learner && healthy < quorum(voters) {
		return fmt.Errorf("member %s: %w: %d of the other %d voters are healthy", peer.Name, ErrQuorum, healthy, voters)
	}
	if !peer.Learner && p.Learner || peer.Learner && !p.Learner {
		return fmt.Errorf("member %s: it is not what it was", peer.Name)
	}
	via := now.via
	if h := now.health[via.name]; h.ID == p.ID {
		// Rather not through the one that goes: it may not live to answer.
		for _, e := range byPromise(now.ends, now.health) {
			if now.health[e.name].ID != p.ID {
				via = e
			}
		}
	}
	ctx, cancel := via.call(ctx, changeTimeout)
	defer cancel()
	_, err = pb.NewClusterClient(via.conn).MemberRemove(ctx, &pb.MemberRemoveRequest{ID: p.ID})
	if errors.Is(rpctypes.Error(err), rpctypes.ErrMemberNotFound) {
		return nil
	}
	return wrapped(err, peer.Name)
}

// moveLeader hands leadership to a voter.
func (o *observer) moveLeader(ctx context.Context, w World, to Peer) error {
	now, err := o.current(ctx, w)
	if err != nil {
		return err
	}
	for _, e := range now.ends {
		h := now.health[e.name]
		if !h.OK() || h.ID != h.Leader {
			continue
		}
		if h.ID == to.ID {
			return nil
		}
		ctx, cancel := e.call(ctx, changeTimeout)
		defer cancel()
		_, err := pb.NewMaintenanceClient(e.conn).MoveLeader(ctx, &pb.MoveLeaderRequest{TargetID: to.ID})
		return wrapped(err, to.Name)
	}
	return fmt.Errorf("member %s: %w", to.Name, ErrNoAnswer)
}

func wrapped(err error, member string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("member %s: %w", member, rpctypes.Error(err))
}
