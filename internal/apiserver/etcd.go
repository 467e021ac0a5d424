package apiserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// store is the embedded etcd. It listens on one unix socket in a directory that only its owner may enter, so that
// the objects cannot be reached without the API's checks, and on nothing else.
type store struct {
	etcd     *embed.Etcd
	log      zap.AtomicLevel
	dir      *os.File // keeps the socket's directory open: see socketURL
	endpoint string
}

// startStore opens the store kept in dir, creating it at the first start, and waits until it answers.
func startStore(ctx context.Context, dir string, log slog.Handler) (*store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("embedded etcd: %w", err)
	}
	open, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("embedded etcd: %w", err)
	}
	s := &store{dir: open, log: zap.NewAtomicLevelAt(zapcore.ErrorLevel)}
	if log.Enabled(ctx, slog.LevelInfo) {
		s.log.SetLevel(zapcore.InfoLevel)
	}
	socket := s.socketURL()
	s.endpoint = socket.String()
	if s.etcd, err = embed.StartEtcd(storeConfig(dir, socket, storeLogger(s.log, log))); err != nil {
		open.Close()
		return nil, fmt.Errorf("embedded etcd in %s: %w", dir, err)
	}
	select {
	case <-s.etcd.Server.ReadyNotify():
		return s, nil
	case err := <-s.etcd.Err():
		s.stop()
		return nil, fmt.Errorf("embedded etcd in %s: %w", dir, err)
	case <-ctx.Done():
		s.stop()
		return nil, fmt.Errorf("embedded etcd in %s did not become ready: %w", dir, context.Cause(ctx))
	}
}

// socketURL names the socket through the open directory, because a socket's path may have no more than 107 bytes and a
// data directory's may have many more. The name is good in this process only, and only this process needs it.
func (s *store) socketURL() url.URL {
	return url.URL{Scheme: "unix", Path: fmt.Sprintf("/proc/self/fd/%d/client.sock", s.dir.Fd())}
}

func storeConfig(dir string, socket url.URL, log *zap.Logger) *embed.Config {
	cfg := embed.NewConfig()
	cfg.Name = "ebb"
	cfg.Dir = filepath.Join(dir, "data")
	cfg.ListenClientUrls = []url.URL{socket}
	cfg.AdvertiseClientUrls = []url.URL{socket}
	cfg.ListenPeerUrls = nil
	// A single member needs a peer URL to be a member at all, but nobody ever dials it.
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:2380"}
	cfg.AdvertisePeerUrls = []url.URL{peer}
	cfg.InitialCluster = cfg.Name + "=" + peer.String()
	cfg.QuotaBackendBytes = 4 << 30
	// At its start a member waits up to an election timeout for a leader. There is no other member, and nodes wait for their leases.
	cfg.TickMs, cfg.ElectionMs = 20, 100
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(log)
	return cfg
}

// stop closes the store; everything acknowledged is already on disk.
func (s *store) stop() {
	if s.etcd != nil {
		// It calls the end of its own listeners errors.
		s.log.SetLevel(zapcore.FatalLevel)
		s.etcd.Close()
	}
	s.dir.Close()
}

// failed yields what ended the store on its own.
func (s *store) failed() <-chan error { return s.etcd.Err() }

// Why a server ends or never starts.
var (
	errStoreEnded    = errors.New("the embedded etcd stopped")
	errStoreSlow     = fmt.Errorf("it did not answer within %s; check whether the disk is overloaded", storeReadyTimeout)
	errBootstrapSlow = fmt.Errorf("it was not usable within %s; check whether the machine is overloaded", bootstrapTimeout)
)

const storeReadyTimeout = 30 * time.Second
