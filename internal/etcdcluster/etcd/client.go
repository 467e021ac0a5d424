// Package etcd is the coordinator's client of the etcd clusters that Ebb runs. It asks members for their health and for the
// list of members, and it changes that list. A change reads the list and the members' health again just before it is made.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
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
	// probeTimeout bounds one request to one member.
	probeTimeout = time.Second
	// hashTimeout bounds the computing of a hash of all keys, with hashRate bytes of the database in a second besides.
	hashTimeout = 30 * time.Second
	hashRate    = 16 << 20
)

// Client asks members and changes their clusters. It keeps one connection to each member for as long as the member exists.
type Client struct {
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

// New makes a client that authenticates with the certificate in files.
func New(files peer.Files) *Client {
	return &Client{files: files, conns: map[types.UID]*endpoint{}}
}

// Close closes all connections.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for uid, e := range c.conns {
		e.conn.Close()
		delete(c.conns, uid)
	}
}

// Forget closes the connections to the members of a cluster.
func (c *Client) Forget(cluster types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closeExcept(cluster, nil)
}

// closeExcept closes the connections to the members of a cluster that are not kept. The caller holds the lock.
func (c *Client) closeExcept(cluster types.NamespacedName, kept map[types.UID]bool) {
	for uid, e := range c.conns {
		if e.cluster == cluster && !kept[uid] {
			e.conn.Close()
			delete(c.conns, uid)
		}
	}
}

// endpoints returns the connections to those members that may answer, and closes those to members of the cluster that are gone.
func (c *Client) endpoints(cluster types.NamespacedName, members []*v1alpha1.EtcdMember) ([]*endpoint, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []*endpoint
	kept := map[types.UID]bool{}
	for _, m := range members {
		if m.Status.ClientURL == "" || m.Spec.Begin == nil || m.Spec.Want != v1alpha1.EtcdMemberRun && m.Spec.Want != v1alpha1.EtcdMemberSeal {
			continue
		}
		e := c.conns[m.UID]
		if e == nil || e.url != m.Status.ClientURL {
			conn, err := c.dial(m.Status.ClientURL)
			if err != nil {
				return nil, fmt.Errorf("member %s: %w", m.Name, err)
			}
			if e != nil {
				e.conn.Close()
			}
			e = &endpoint{name: m.Name, cluster: cluster, url: m.Status.ClientURL, conn: conn, header: m.Spec.ClusterUID}
			c.conns[m.UID] = e
		}
		kept[m.UID] = true
		list = append(list, e)
	}
	c.closeExcept(cluster, kept)
	return list, nil
}

func (c *Client) dial(address string) (*grpc.ClientConn, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	creds := insecure.NewCredentials()
	if u.Scheme == "https" {
		shown, err := peer.Load("the node", c.files)
		if err != nil {
			return nil, err
		}
		creds = credentials.NewTLS(shown.Client())
	}
	// Connections are tried again quickly, so that a member that was down counts as soon as it answers.
	retry := backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond}
	return grpc.NewClient("passthrough:///"+u.Host,
		grpc.WithTransportCredentials(creds),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: probeTimeout}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 2 * time.Second}),
	)
}

// call bounds a request, and names the cluster that it is meant for.
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
		Quota: r.DbSizeQuota, Alarmed: r.Leader != 0 && len(r.Errors) > 0,
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

// plain returns the message of an error without gRPC's prefix.
func plain(err error) string {
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

// Look asks all members of the current incarnation at once for their health, and one of them for the list of members that a quorum
// confirms. With hash it also asks for the hash of all keys.
func (c *Client) Look(ctx context.Context, of Target, hash bool) (View, error) {
	v := View{Health: map[string]Health{}}
	ends, err := c.endpoints(of.key(), of.current())
	if err != nil || len(ends) == 0 {
		return v, err
	}
	v.Health = healthOf(ctx, of.ClusterID, ends)
	for _, e := range listers(ends, v.Health) {
		peers, err := e.list(ctx)
		if err != nil {
			v.Error = err.Error()
			continue
		}
		// After the list was confirmed this member has applied all that was acknowledged before.
		after := e.status(ctx)
		if !after.OK() {
			continue
		}
		v.Listed, v.Peers, v.Via, v.Revision = true, peers, e.name, after.Revision
		v.Health[e.name] = after
		if after.Alarmed {
			if v.Alarms, err = e.alarms(ctx); err != nil {
				v.AlarmsUnknown, v.Error = true, err.Error()
			}
		}
		if hash {
			v.Hash, err = e.hash(ctx, v.Revision, after.DBSize)
			if v.Listed = err == nil; err != nil {
				v.Error = fmt.Sprintf("member %s: hash of all keys: %v", e.name, err)
			}
		}
		break
	}
	return v, nil
}

// alarms asks for the alarms. The request goes through etcd's log, so it is made only while a member knows of one.
func (e *endpoint) alarms(ctx context.Context) ([]Alarm, error) {
	ctx, cancel := e.call(ctx, 2*probeTimeout)
	defer cancel()
	r, err := pb.NewMaintenanceClient(e.conn).Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_GET})
	if err != nil {
		return nil, fmt.Errorf("member %s: alarms: %s", e.name, plain(err))
	}
	var list []Alarm
	for _, a := range r.Alarms {
		list = append(list, Alarm{Member: a.MemberID, NoSpace: a.Alarm == pb.AlarmType_NOSPACE, Corrupt: a.Alarm == pb.AlarmType_CORRUPT})
	}
	return list, nil
}

// healthOf asks members at once for their health. One that answers for another cluster is not healthy.
func healthOf(ctx context.Context, clusterID string, ends []*endpoint) map[string]Health {
	found := make([]Health, len(ends))
	var wg sync.WaitGroup
	for i, e := range ends {
		wg.Go(func() { found[i] = e.status(ctx) })
	}
	wg.Wait()
	health := map[string]Health{}
	for i, e := range ends {
		h := found[i]
		if clusterID != "" && h.Answered && HexID(h.ClusterID) != clusterID {
			h = Health{Error: "answers for another cluster, " + HexID(h.ClusterID)}
		}
		health[e.name] = h
	}
	return health
}

// listers returns the members that can confirm the list, the leader first.
func listers(ends []*endpoint, health map[string]Health) []*endpoint {
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

// hash returns the hash of all keys at the newest revision, which must be the expected one. It does not ask for a revision: for one
// that was compacted, etcd returns a hash that it remembered.
func (e *endpoint) hash(ctx context.Context, revision, size int64) (int64, error) {
	ctx, cancel := e.call(ctx, hashTimeout+time.Duration(size/hashRate)*time.Second)
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
