package apiserver_test

import (
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/apiserver"
	"github.com/ebb-dev/ebb/internal/datadir"
)

func TestWrongOptionsSayWhatWouldBeRight(t *testing.T) {
	const etcd = "https://10.0.0.1:2379"
	for _, c := range []struct {
		what   string
		change func(*apiserver.Options)
		want   string
	}{
		{"nothing is wrong", func(*apiserver.Options) {}, ""},
		{"no data directory", func(o *apiserver.Options) { o.Dir = "" }, "no data directory: set --data-dir"},
		{"no address", func(o *apiserver.Options) { o.Listen = "" }, `--listen "" is not host:port: missing port in address`},
		{"no port", func(o *apiserver.Options) { o.Listen = "127.0.0.1" }, `--listen "127.0.0.1" is not host:port: address 127.0.0.1: missing port in address`},
		{"every address", func(o *apiserver.Options) { o.Listen = "0.0.0.0:6443" }, "--listen 0.0.0.0:6443 listens on every address: set --advertise to the one under which clients reach it"},
		{"every address of IPv6", func(o *apiserver.Options) { o.Listen = "[::]:6443" }, "--listen [::]:6443 listens on every address: set --advertise to the one under which clients reach it"},
		{"no host", func(o *apiserver.Options) { o.Listen = ":6443" }, "--listen :6443 listens on every address: set --advertise to the one under which clients reach it"},
		{"every address, advertised", func(o *apiserver.Options) { o.Listen = ":6443"; o.Advertise = []string{"ebb.example.com"} }, ""},
		{"a certificate without its key", func(o *apiserver.Options) { o.EtcdServers = []string{etcd}; o.EtcdCertFile = "c" }, "--etcd-certfile and --etcd-keyfile must be set together"},
		{"a key without its certificate", func(o *apiserver.Options) { o.EtcdServers = []string{etcd}; o.EtcdKeyFile = "k" }, "--etcd-certfile and --etcd-keyfile must be set together"},
		{"a CA for nothing", func(o *apiserver.Options) { o.EtcdCAFile = "ca" }, "TLS files for etcd are set but --etcd-servers is not"},
		{"a certificate for nothing", func(o *apiserver.Options) { o.EtcdCertFile, o.EtcdKeyFile = "c", "k" }, "TLS files for etcd are set but --etcd-servers is not"},
		{"etcd without a scheme", func(o *apiserver.Options) { o.EtcdServers = []string{etcd, "10.0.0.2:2379"} }, `--etcd-servers "10.0.0.2:2379" is not a URL like https://10.0.0.1:2379`},
		{"etcd without a host", func(o *apiserver.Options) { o.EtcdServers = []string{"https://"} }, `--etcd-servers "https://" is not a URL like https://10.0.0.1:2379`},
		{"TLS files without TLS", func(o *apiserver.Options) { o.EtcdServers = []string{"http://10.0.0.1:2379"}; o.EtcdCAFile = "ca" }, "TLS files for etcd are set but --etcd-servers http://10.0.0.1:2379 does not use TLS"},
		{"events that are not kept", func(o *apiserver.Options) { o.EventTTL = time.Millisecond }, "--event-ttl must be at least a second"},
		{"etcd with TLS", func(o *apiserver.Options) {
			o.EtcdServers, o.EtcdCAFile, o.EtcdCertFile, o.EtcdKeyFile = []string{etcd}, "ca", "c", "k"
		}, ""},
	} {
		t.Run(c.what, func(t *testing.T) {
			o := options("data")
			c.change(&o)
			got := ""
			if err := o.Validate(); err != nil {
				got = err.Error()
			}
			equal(t, got, c.want)
		})
	}
}

// What fails at the start must leave nothing behind: neither the lock nor the port.
func TestAServerThatCannotStartSaysWhyAndLetsGoOfItsDirectory(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dir := t.TempDir()
	for what, c := range map[string]struct {
		change func(*apiserver.Options)
		want   string
	}{
		"the port is taken": {
			func(o *apiserver.Options) { o.Listen = taken.Addr().String() },
			"listen: listen tcp " + taken.Addr().String() + ": bind: address already in use",
		},
		"TLS files are missing": {
			func(o *apiserver.Options) {
				o.EtcdServers, o.EtcdCAFile = []string{"https://127.0.0.1:1"}, "/nonexistent"
			},
			"embedded API on etcd at https://127.0.0.1:1: open /nonexistent: no such file or directory",
		},
	} {
		t.Run(what, func(t *testing.T) {
			o := options(dir)
			c.change(&o)
			_, err := apiserver.New(t.Context(), o)
			if err == nil || err.Error() != c.want {
				t.Errorf("got %v, want %s", err, c.want)
			}
			unlock, err := datadir.Lock(filepath.Join(o.Dir.APIServer(), "lock"))
			if err != nil {
				t.Fatalf("the directory is still locked: %v", err)
			}
			unlock()
		})
	}
}

func TestADirectoryServesOneServerAtATime(t *testing.T) {
	s := api(t)
	_, err := apiserver.New(t.Context(), options(string(s.dir)))
	if !errors.Is(err, datadir.ErrLocked) {
		t.Fatalf("a second server: %v, want ErrLocked", err)
	}
	equal(t, strings.ReplaceAll(err.Error(), string(s.dir), "DIR"),
		"data directory DIR: another process holds the lock: stop the API server that uses it, or set another directory with --data-dir")
	s.admin(t).must(t, "GET", nodes, nil)
}
