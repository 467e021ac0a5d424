package member

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/server/v3/auth"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/ebb-dev/ebb/internal/identity"
)

// ClusterHeader carries the UID of the EtcdCluster on requests of the coordinator. Members that ask for no certificates answer such
// requests while they are sealed. It is not a secret and protects against nobody.
const ClusterHeader = "ebb-etcd-cluster"

// admittedLimit is how long a request that was admitted before a seal may take. etcd itself gives up most of them sooner.
const admittedLimit = 10 * time.Second

var (
	errSealed = status.Error(codes.Unavailable, "etcd member is sealed: its cluster is being stopped and serves no clients")
	errOwn    = status.Error(codes.PermissionDenied, "only Ebb may change the list of members: change spec.size of the EtcdCluster")
	errViewer = status.Error(codes.PermissionDenied, "viewers do not reach the data of etcd clusters")
)

// harmless are the requests that change no key, no lease and no permission. The coordinator needs them while it stops a cluster.
var harmless = []string{
	"/etcdserverpb.Cluster/",
	"/etcdserverpb.KV/Range",
	"/etcdserverpb.Maintenance/Status",
	"/etcdserverpb.Maintenance/HashKV",
	"/etcdserverpb.Maintenance/MoveLeader",
	"/etcdserverpb.Maintenance/Alarm",
}

// reserved are the requests that change the list of members. Only the coordinator and nodes may send them.
var reserved = []string{
	"/etcdserverpb.Cluster/MemberAdd",
	"/etcdserverpb.Cluster/MemberRemove",
	"/etcdserverpb.Cluster/MemberUpdate",
	"/etcdserverpb.Cluster/MemberPromote",
}

// patient are the requests that may wait for hours, until other clients release a lock.
var patient = []string{"/v3lockpb.Lock/Lock", "/v3electionpb.Election/Campaign"}

// seal admits requests and counts them under one lock. Once it is closed the count can only fall. At zero, no write will be
// acknowledged any more.
type seal struct {
	clusterUID string
	tls        bool
	auth       atomic.Pointer[auth.AuthStore] // of etcd, once that runs

	mu     sync.Mutex
	shut   bool
	next   int64
	inside map[int64]visit
	moved  chan struct{} // closed and replaced when a request ends
}

// visit is one request that was admitted.
type visit struct {
	private bool
	// endless: it does not end by itself.
	endless bool
	cancel  context.CancelFunc
}

func newSeal(c Config) *seal {
	return &seal{clusterUID: c.ClusterUID, tls: c.clientTLS(), shut: c.Sealed, inside: map[int64]visit{}, moved: make(chan struct{})}
}

// options install the seal before etcd's own handlers.
func (s *seal) options() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(s.unary), grpc.ChainStreamInterceptor(s.stream)}
}

// enter admits a request, or returns why it does not.
func (s *seal) enter(ctx context.Context, method string, stream bool) (context.Context, func(), error) {
	who := callerOf(ctx)
	if who.viewer {
		return nil, nil, errViewer
	}
	trusted := who.private || s.trusts(ctx, who)
	if !trusted && hasPrefix(reserved, method) {
		return nil, nil, errOwn
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shut && !who.private && (stream || !trusted || !hasPrefix(harmless, method)) {
		return nil, nil, errSealed
	}
	if who.private || s.tls && who.own {
		ctx = s.withRoot(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	s.next++
	number := s.next
	s.inside[number] = visit{private: who.private, endless: stream || hasPrefix(patient, method), cancel: cancel}
	return ctx, func() {
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.inside, number)
		close(s.moved)
		s.moved = make(chan struct{})
	}, nil
}

// withRoot gives a request of Ebb itself the rights of etcd's root where auth is enabled: the node has the data anyway, and the coordinator needs
// the list of members. It rests on the private socket or on a certificate that was verified, never on a header: whatever token the
// request carries is replaced.
func (s *seal) withRoot(ctx context.Context) context.Context {
	store := s.auth.Load()
	if store == nil || !(*store).IsAuthEnabled() {
		return ctx
	}
	granted, ok := metadata.FromIncomingContext((*store).WithRoot(context.Background()))
	if !ok {
		return ctx
	}
	md, _ := metadata.FromIncomingContext(ctx)
	md = md.Copy()
	if md == nil {
		md = metadata.MD{}
	}
	delete(md, rpctypes.TokenFieldNameSwagger)
	md[rpctypes.TokenFieldNameGRPC] = granted[rpctypes.TokenFieldNameGRPC]
	return metadata.NewIncomingContext(ctx, md)
}

func hasPrefix(list []string, method string) bool {
	return slices.ContainsFunc(list, func(p string) bool { return strings.HasPrefix(method, p) })
}

// trusts returns whether a request comes from Ebb itself.
func (s *seal) trusts(ctx context.Context, who caller) bool {
	if s.tls {
		return who.own
	}
	md, _ := metadata.FromIncomingContext(ctx)
	return slices.Contains(md.Get(ClusterHeader), s.clusterUID)
}

// close admits no more requests, cancels those that would not end by themselves, and waits for the others to end; with everyone, for
// those of the private socket too. A request that takes longer than the limit is canceled as well, so that its client is never told
// that it succeeded.
func (s *seal) close(ctx context.Context, limit time.Duration, everyone bool) error {
	patience := time.NewTimer(limit)
	defer patience.Stop()
	cutAll := false
	for {
		s.mu.Lock()
		s.shut = true
		left := 0
		for _, v := range s.inside {
			if v.private && !everyone {
				continue
			}
			left++
			if v.endless || cutAll {
				v.cancel()
			}
		}
		moved := s.moved
		s.mu.Unlock()
		if left == 0 {
			return nil
		}
		select {
		case <-moved:
		case <-patience.C:
			cutAll = true
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (s *seal) open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shut = false
}

func (s *seal) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	ctx, leave, err := s.enter(ctx, info.FullMethod, false)
	if err != nil {
		return nil, err
	}
	defer leave()
	return next(ctx, req)
}

func (s *seal) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	ctx, leave, err := s.enter(stream.Context(), info.FullMethod, true)
	if err != nil {
		return err
	}
	defer leave()
	err = next(srv, &cutStream{ServerStream: stream, ctx: ctx})
	if ctx.Err() != nil && stream.Context().Err() == nil {
		return errSealed
	}
	return err
}

// cutStream is a stream that ends when it is canceled.
type cutStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (c *cutStream) Context() context.Context { return c.ctx }

func (c *cutStream) SendMsg(m any) error {
	if c.ctx.Err() != nil {
		return errSealed
	}
	return c.ServerStream.SendMsg(m)
}

func (c *cutStream) RecvMsg(m any) error {
	if err := c.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	if c.ctx.Err() != nil {
		return errSealed
	}
	return nil
}

// caller is who sent a request.
type caller struct {
	// private: on the private socket.
	private bool
	// own: the coordinator or a node.
	own    bool
	viewer bool
}

func callerOf(ctx context.Context) caller {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return caller{}
	}
	if p.Addr != nil && p.Addr.Network() == "unix" {
		return caller{private: true}
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok || len(info.State.PeerCertificates) == 0 {
		return caller{}
	}
	subject := info.State.PeerCertificates[0].Subject
	_, node := identity.NodeName(subject.CommonName)
	_, coordinator := identity.CoordinatorName(subject.CommonName)
	return caller{own: (node || coordinator) && len(info.State.VerifiedChains) > 0, viewer: slices.Contains(subject.Organization, identity.ViewerGroup)}
}
