package testkube

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// store is an etcd in this process. It listens on one unix socket in the cluster's directory, and on nothing else.
type store struct {
	etcd     *embed.Etcd
	dir      *os.File // keeps the socket's directory open
	endpoint string
}

func startStore(ctx context.Context, dir string) (*store, error) {
	open, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	// The path of a socket must be short: through the open directory of this process it is, for its children too.
	socket := url.URL{Scheme: "unix", Path: fmt.Sprintf("/proc/%d/fd/%d/client.sock", os.Getpid(), open.Fd())}
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir = "kube", filepath.Join(dir, "data")
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls, cfg.ListenPeerUrls = []url.URL{socket}, []url.URL{socket}, nil
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:2380"} // a member must have one; nobody dials it
	cfg.AdvertisePeerUrls, cfg.InitialCluster = []url.URL{peer}, cfg.Name+"="+peer.String()
	cfg.UnsafeNoFsync = true // it is made for tests: a crash of the machine may lose it
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	s := &store{dir: open, endpoint: socket.String()}
	if s.etcd, err = embed.StartEtcd(cfg); err != nil {
		open.Close()
		return nil, fmt.Errorf("etcd in %s: %w", dir, err)
	}
	select {
	case <-s.etcd.Server.ReadyNotify():
		return s, nil
	case err := <-s.etcd.Err():
		s.stop()
		return nil, fmt.Errorf("etcd in %s: %w", dir, err)
	case <-ctx.Done():
		s.stop()
		return nil, fmt.Errorf("etcd in %s did not become ready: %w", dir, context.Cause(ctx))
	}
}

func (s *store) stop() {
	s.etcd.Close()
	s.dir.Close()
}
