package apiserver_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/ebb-dev/ebb/internal/apiserver"
	"github.com/ebb-dev/ebb/internal/pki"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// foreign is an etcd of someone else, which wants certificates of its own authority.
type foreign struct {
	etcd          *embed.Etcd
	url           string
	ca, cert, key string // for clients
}

func startForeignEtcd(t *testing.T) foreign {
	t.Helper()
	dir := t.TempDir()
	ca, err := pki.LoadOrCreate(filepath.Join(dir, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	file := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	issue := func(p pki.Profile) (cert, key string) {
		pair, err := ca.Issue(p)
		if err != nil {
			t.Fatal(err)
		}
		return file(p.User+".crt", pair.Cert), file(p.User+".key", pair.Key)
	}
	f := foreign{ca: file("ca.crt", ca.CertPEM)}
	f.cert, f.key = issue(pki.Profile{User: "client"})
	serverCert, serverKey := issue(pki.Profile{User: "etcd", Hosts: []string{"127.0.0.1"}})

	cfg := embed.NewConfig()
	cfg.Dir = filepath.Join(dir, "data")
	cfg.LogLevel = "fatal"
	cfg.ListenPeerUrls = nil
	cfg.ListenClientUrls = []url.URL{{Scheme: "https", Host: "127.0.0.1:0"}}
	cfg.AdvertiseClientUrls = cfg.ListenClientUrls
	cfg.ClientTLSInfo = transport.TLSInfo{CertFile: serverCert, KeyFile: serverKey, TrustedCAFile: f.ca, ClientCertAuth: true}
	if f.etcd, err = embed.StartEtcd(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.etcd.Close)
	select {
	case <-f.etcd.Server.ReadyNotify():
	case <-time.After(testenv.Patience):
		t.Fatal("etcd is not ready within " + testenv.Patience.String())
	}
	f.url = "https://" + f.etcd.Clients[0].Addr().String()
	return f
}

func (f foreign) options(dir string) apiserver.Options {
	o := options(dir)
	o.EtcdServers, o.EtcdPrefix = []string{f.url}, "/our/prefix"
	o.EtcdCAFile, o.EtcdCertFile, o.EtcdKeyFile = f.ca, f.cert, f.key
	return o
}

func TestAnExistingEtcdWithTLSKeepsTheObjects(t *testing.T) {
	t.Parallel()
	f := startForeignEtcd(t)
	dir := t.TempDir()
	s := start(t, f.options(dir))
	s.admin(t).must(t, http.MethodPost, nodes, nodeObject("kept"))
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	again := start(t, f.options(dir))
	again.viewer(t).must(t, http.MethodGet, nodes+"/kept", nil)
	if _, err := os.Stat(filepath.Join(again.dir.APIServer(), "etcd")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an embedded etcd was made besides: %v", err)
	}
	kvs, err := f.etcd.Server.Range(t.Context(), &etcdserverpb.RangeRequest{Key: []byte{0}, RangeEnd: []byte{0}, KeysOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(kvs.Kvs) == 0 {
		t.Error("nothing is kept there")
	}
	for _, kv := range kvs.Kvs {
		if !strings.HasPrefix(string(kv.Key), "/our/prefix/") && !strings.HasPrefix(string(kv.Key), "compact_rev_key") {
			t.Errorf("key %s is outside of the prefix", kv.Key)
		}
	}
}

// In a process of its own: the client of etcd tries for 20 s, and holds a lock that every server in its process needs.
func TestAnEtcdThatDoesNotKnowUsIsNamed(t *testing.T) {
	t.Parallel()
	f := startForeignEtcd(t)
	out, err := exec.CommandContext(t.Context(), testenv.Ebb(t), "apiserver", "--data-dir", t.TempDir(),
		"--etcd-servers", f.url, "--etcd-cafile", f.ca).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("started without a certificate for etcd: %v", err)
	}
	const want = "ebb: embedded API on etcd at %s: etcd grpc connection not ready: context deadline exceeded; check that it is reachable and that the TLS files are correct\n"
	if !strings.HasSuffix(string(out), fmt.Sprintf(want, f.url)) {
		t.Errorf("it says %s", out)
	}
}
