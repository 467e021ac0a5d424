package member

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/ebb-dev/ebb/internal/etcdcluster/snapshot"
)

// stopGrace is how long requests may go on when a member stops.
const stopGrace = 500 * time.Millisecond

// errOrphan: the node is gone.
var errOrphan = errors.New("the node is gone")

// Main runs a member: its configuration and orders come from in, its reports go to out. It returns when the member has ended,
// in order or not, and ends the process if that takes too long once the node is gone.
func Main(ctx context.Context, in io.Reader, out io.Writer) error {
	lines := bufio.NewReader(in)
	s := &server{out: json.NewEncoder(out)}
	config, err := readConfig(lines)
	if err != nil {
		return s.fail(err)
	}
	s.config = config
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	orders := make(chan request, 16)
	go func() {
		end(readOrders(ctx, lines, orders))
		time.AfterFunc(orphanLimit, func() { os.Exit(1) })
	}()
	run := func() error { return s.run(ctx, orders) }
	if config.Salvage != nil {
		run = func() error { return s.salvage(ctx) }
	}
	if err := run(); err != nil {
		return s.fail(err)
	}
	return nil
}

func readConfig(in *bufio.Reader) (Config, error) {
	var c Config
	line, err := in.ReadBytes('\n')
	if err != nil {
		return c, fmt.Errorf("read the configuration: %w", err)
	}
	if err := json.Unmarshal(line, &c); err != nil {
		return c, fmt.Errorf("read the configuration: %w", err)
	}
	return c, c.validate()
}

// readOrders passes orders on until there are no more.
func readOrders(ctx context.Context, in *bufio.Reader, orders chan<- request) error {
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return errOrphan
		}
		var r request
		if err := json.Unmarshal(line, &r); err != nil {
			return fmt.Errorf("read an order: %w", err)
		}
		select {
		case orders <- r:
		case <-ctx.Done():
		}
	}
}

// server is the child's side of a member.
type server struct {
	config Config
	seal   *seal
	lock   *os.File // of the directory, for as long as the process lives
	dir    *os.File // keeps the directory open: see socketURL
	etcd   *embed.Etcd

	mu    sync.Mutex
	out   *json.Encoder
	state Report
}

// report reports the member's state to the node.
func (s *server) report(change func(*Report)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.state)
	_ = s.out.Encode(s.state) // without a reader the input ends too
}

func (s *server) fail(err error) error {
	s.report(func(r *Report) {
		if r.State != Removed && r.State != Unheard {
			r.State, r.Error = Failed, err.Error()
		}
	})
	return err
}

func (s *server) run(ctx context.Context, orders <-chan request) error {
	var err error
	if s.lock, err = takeLock(ctx, s.config.Dir); err != nil {
		return err
	}
	if s.dir, err = os.Open(s.config.Dir); err != nil {
		return err
	}
	defer s.dir.Close()
	log, err := openLog(filepath.Join(s.config.Dir, LogName), syscall.Stderr)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(s.config.Dir, SalvageName)); err != nil {
		return fmt.Errorf("delete what an unfinished salvage left: %w", err)
	}
	s.seal = newSeal(s.config)
	cfg, err := s.etcdConfig(logger(log, s.config.LogLevel))
	if err != nil {
		return err
	}
	s.report(func(r *Report) { r.State = Starting })
	if err := s.restore(); err != nil {
		return err
	}
	if s.etcd, err = embed.StartEtcd(cfg); err != nil {
		return err
	}
	s.trustOwn()
	err = s.serve(ctx, orders)
	if errors.Is(err, errUnheard) {
		s.report(func(r *Report) { r.State = Unheard })
		return err // nobody was served, and to close etcd in order may take a second
	}
	s.stop()
	return err
}

// trustOwn lets requests of Ebb itself pass etcd's auth, if that is enabled.
func (s *server) trustOwn() {
	store := s.etcd.Server.AuthStore()
	s.seal.auth.Store(&store)
}

// restore writes the data from a snapshot. The child does it, not the node, because etcd's code ends the process when it cannot write.
func (s *server) restore() error {
	r, data := s.config.Restore, Data(s.config.Dir)
	if r == nil || wal.Exist(filepath.Join(data, "member", "wal")) {
		return nil
	}
	return snapshot.Restore(r.Path, r.Size, r.SHA256, snapshot.Target{Data: data, Name: s.config.Name, PeerURL: s.config.PeerURL, Token: s.config.Token, Exact: r.Exact})
}

// patiences are how long a member that is up to date with its leader may wait until its cluster has heard of it, at one start after the
// other. Before a member serves clients it publishes its URLs through raft, and waits to see that in its own log. If its data came as a
// snapshot from the leader, that often contains the entry already, so that it never appears in the log; etcd publishes again only after
// seven seconds. A server that is restarted from the same data publishes at once.
var patiences = []time.Duration{250 * time.Millisecond, time.Second, math.MaxInt64}

// errUnheard: the member has waited long enough and is restarted.
var errUnheard = errors.New("the cluster has not heard of the member")

// heardEvery is how often a member checks whether it is up to date.
const heardEvery = 25 * time.Millisecond

// takeLock waits for the directory's lock, which the predecessor of this process may still have for an instant.
func takeLock(ctx context.Context, dir string) (*os.File, error) {
	for {
		f, err := TryLock(dir)
		if !errors.Is(err, ErrLocked) {
			return f, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", err, context.Cause(ctx))
		case <-time.After(lockEvery):
		}
	}
}

// ErrLocked: another process has locked the member's directory.
var ErrLocked = errors.New("another process has the member's directory")

// TryLock takes the lock of a member's directory, which the member's process holds for as long as it lives. Closing the file releases
// it.
func TryLock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, LockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, ErrLocked
		}
		return nil, os.NewSyscallError("flock", err)
	}
	return f, nil
}

// socketURL names a socket through the open directory, because a socket's path may have no more than 107 bytes and a
// member's directory may have many more. The name is good in this process only; the node has its own way (Dial).
func (s *server) socketURL(name string) url.URL {
	return url.URL{Scheme: "unix", Path: fmt.Sprintf("/proc/self/fd/%d/%s", s.dir.Fd(), name)}
}

func (s *server) etcdConfig(log *zap.Logger) (*embed.Config, error) {
	c := s.config
	peer, err := url.Parse(c.PeerURL)
	if err != nil {
		return nil, err
	}
	client, err := url.Parse(c.ClientURL)
	if err != nil {
		return nil, err
	}
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir = c.Name, Data(c.Dir)
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{*client, s.socketURL(socketName)}, []url.URL{*client}
	// HTTP has a socket of its own: on one port with gRPC and TLS, many reads would starve watches.
	cfg.ListenClientHttpUrls = []url.URL{s.socketURL(httpName)}
	cfg.InitialCluster, cfg.InitialClusterToken, cfg.ClusterState = c.InitialCluster, c.Token, embed.ClusterStateFlagNew
	if c.Existing {
		cfg.ClusterState = embed.ClusterStateFlagExisting
	}
	tls := transport.TLSInfo{CertFile: c.TLS.Cert, KeyFile: c.TLS.Key, TrustedCAFile: c.TLS.CA, ClientCertAuth: true}
	if c.clientTLS() {
		cfg.ClientTLSInfo = tls
	}
	if c.peerTLS() {
		// Only certificates of nodes are valid for serving, so only nodes can be peers. They may connect from any of their addresses.
		tls.AllowedHostnames, tls.SkipClientSANVerify = []string{anyNode}, true
		cfg.PeerTLSInfo = tls
	}
	cfg.QuotaBackendBytes = 2 << 30
	if c.QuotaBytes > 0 {
		cfg.QuotaBackendBytes = c.QuotaBytes
	}
	if c.HeartbeatMilliseconds > 0 {
		cfg.TickMs = uint(c.HeartbeatMilliseconds)
	}
	if c.ElectionMilliseconds > 0 {
		cfg.ElectionMs = uint(c.ElectionMilliseconds)
	}
	if c.AutoCompactionMode != "" {
		cfg.AutoCompactionMode = c.AutoCompactionMode
	}
	if c.AutoCompactionRetention != "" {
		cfg.AutoCompactionRetention = c.AutoCompactionRetention
	}
	// etcd's own check requires every peer to have been connected for five seconds before each change. The coordinator checks quorums
	// itself, and nobody else may change members (seal.go).
	cfg.StrictReconfigCheck = false
	cfg.EnableGRPCGateway = false // it would reach the private socket
	cfg.GRPCAdditionalServerOptions = s.seal.options()
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(log)
	return cfg, nil
}

// anyNode is an address that the certificate of every node is good for.
const anyNode = "127.0.0.1"

// serve carries out orders until the member ends.
func (s *server) serve(ctx context.Context, orders <-chan request) error {
	patience := patiences[min(s.config.Unheard, len(patiences)-1)]
	ready := s.etcd.Server.ReadyNotify()
	look := time.NewTicker(heardEvery)
	defer look.Stop()
	var since time.Time
	for {
		select {
		case now := <-look.C:
			if upToDate := s.etcd.Server.Leader() != 0 && s.etcd.Server.CommittedIndex() > 0; !upToDate {
				since = time.Time{}
			} else if since.IsZero() {
				since = now
			} else if now.Sub(since) > patience {
				select {
				case <-ready:
				default:
					return errUnheard
				}
			}
		case <-ready:
			ready = nil
			look.Stop()
			s.report(func(r *Report) {
				r.ID, r.ClusterID = s.etcd.Server.MemberID().String(), s.etcd.Server.Cluster().ID().String()
				r.State = s.servingState()
			})
		case r := <-orders:
			if r.Order == Stop {
				return nil
			}
			if err := s.obey(ctx, r); err != nil {
				return err
			}
		case <-s.etcd.Server.StoppingNotify():
			return s.removed()
		case err := <-s.etcd.Err():
			select {
			case <-s.etcd.Server.StoppingNotify(): // the error is a consequence
				return s.removed()
			default:
				return fmt.Errorf("etcd ended: %w", err)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// removed reports that the member was removed: the only reason for which etcd's server ends by itself.
func (s *server) removed() error {
	s.report(func(r *Report) { r.State = Removed })
	return errors.New("the member was removed from its cluster")
}

func (s *server) obey(ctx context.Context, r request) error {
	switch r.Order {
	case Seal:
		if err := s.seal.close(ctx, admittedLimit, false); err != nil {
			return nil // it stops
		}
	case Unseal:
		s.seal.open()
	default:
		return fmt.Errorf("unknown order %q", r.Order)
	}
	s.report(func(rep *Report) {
		rep.Number = r.Number
		if rep.State != Starting {
			rep.State = s.servingState()
		}
	})
	return nil
}

func (s *server) servingState() State {
	s.seal.mu.Lock()
	defer s.seal.mu.Unlock()
	if s.seal.shut {
		return Sealed
	}
	return Serving
}

// stop ends etcd, and avoids what would delay that for seconds: clients that watch; a leader that looks for a successor, which is
// pointless when the whole cluster stops; and a server that waits to become part of its cluster.
func (s *server) stop() {
	s.mu.Lock()
	serving := s.state.State == Serving
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 2*stopGrace)
	defer cancel()
	_ = s.seal.close(ctx, stopGrace, true) // etcd cuts what is left
	if !serving {
		s.etcd.Server.HardStop()
	}
	s.etcd.Close()
}

// logger writes etcd's log to the member's log.
func logger(w zapcore.WriteSyncer, level string) *zap.Logger {
	least := zapcore.WarnLevel
	if level != "" {
		if l, err := zapcore.ParseLevel(level); err == nil {
			least = l
		}
	}
	encoder := zap.NewProductionEncoderConfig()
	encoder.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	return zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(encoder), w, least))
}
