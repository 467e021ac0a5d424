package apiserver

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"time"

	"github.com/ebb-dev/ebb/internal/access"
	"github.com/ebb-dev/ebb/internal/datadir"
)

// DefaultEventTTL is how long events are kept unless told otherwise, as in a full Kubernetes.
const DefaultEventTTL = time.Hour

// Options configure the embedded API.
type Options struct {
	// Dir keeps the certificate authority, the credentials and, unless EtcdServers are given, the data.
	Dir datadir.Dir
	// Listen is host:port. Port 0 means a free one, kept for the next start.
	Listen string
	// Advertise are further host names and addresses under which clients reach this server; the first one is written
	// into the kubeconfig files. Without any it is Listen's host.
	Advertise []string

	// Objects are those of the kinds of work, with who may write them.
	Objects []access.Object

	// LibraryLog gets what the embedded etcd logs: errors, or more if it takes infos. Without one they go to standard error as text.
	LibraryLog slog.Handler

	// EventTTL is how long events are kept; 0 means DefaultEventTTL.
	EventTTL time.Duration

	// EtcdServers use an existing etcd cluster in place of the embedded etcd.
	EtcdServers []string
	// EtcdPrefix is where in that cluster the objects are kept.
	EtcdPrefix string
	// EtcdCAFile, EtcdCertFile and EtcdKeyFile are the TLS files for that cluster.
	EtcdCAFile, EtcdCertFile, EtcdKeyFile string
}

func (o Options) libraryLog() slog.Handler {
	if o.LibraryLog == nil {
		return slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})
	}
	return o.LibraryLog
}

// Validate returns an error for invalid options, with what to do.
func (o Options) Validate() error {
	if o.Dir == "" {
		return errors.New("no data directory: set --data-dir")
	}
	if _, _, err := net.SplitHostPort(o.Listen); err != nil {
		return fmt.Errorf("--listen %q is not host:port: %w", o.Listen, err)
	}
	if (o.EtcdCertFile == "") != (o.EtcdKeyFile == "") {
		return errors.New("--etcd-certfile and --etcd-keyfile must be set together")
	}
	if len(o.EtcdServers) == 0 && (o.EtcdCAFile != "" || o.EtcdCertFile != "") {
		return errors.New("TLS files for etcd are set but --etcd-servers is not")
	}
	if o.EventTTL != 0 && o.EventTTL < time.Second {
		return errors.New("--event-ttl must be at least a second")
	}
	for _, server := range o.EtcdServers {
		if err := o.validateEtcdServer(server); err != nil {
			return err
		}
	}
	if host, _, _ := net.SplitHostPort(o.Listen); len(o.Advertise) == 0 {
		if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
			return fmt.Errorf("--listen %s listens on every address: set --advertise to the one under which clients reach it", o.Listen)
		}
	}
	return nil
}

func (o Options) validateEtcdServer(server string) error {
	u, err := url.Parse(server)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("--etcd-servers %q is not a URL like https://10.0.0.1:2379", server)
	case u.Scheme == "http" && (o.EtcdCAFile != "" || o.EtcdCertFile != ""):
		return fmt.Errorf("TLS files for etcd are set but --etcd-servers %s does not use TLS", server)
	}
	return nil
}
