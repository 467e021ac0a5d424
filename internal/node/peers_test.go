package node

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/identity"
	"github.com/ebb-dev/ebb/internal/peer"
	"github.com/ebb-dev/ebb/internal/pki"
)

func TestANodeOffersTheProtocolsOfItsKindsEveryTimeItServes(t *testing.T) {
	dir := t.TempDir()
	ca, err := pki.LoadOrCreate(filepath.Join(dir, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	files := func(name string) peer.Files {
		pair, err := ca.Issue(pki.Profile{User: identity.Node(name), Hosts: []string{"127.0.0.1"}})
		if err != nil {
			t.Fatal(err)
		}
		f := peer.Files{Cert: filepath.Join(dir, name+".crt"), Key: filepath.Join(dir, name+".key"), CA: filepath.Join(dir, "ca.crt")}
		for path, data := range map[string][]byte{f.Cert: pair.Cert, f.Key: pair.Key, f.CA: ca.CertPEM} {
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return f
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &peerServer{Peers: Peers{Listener: l, Files: files("n2"), Protocols: []peer.Protocol{{
		Name: "name/1", Serve: func(_ context.Context, conn net.Conn, node string) { _, _ = io.WriteString(conn, node) },
	}}}}
	mine := files("n1")
	for range 2 {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- p.run(ctx) }()
		var conn net.Conn
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) { // the second time it has to listen first
			if conn, err = peer.DialProtocol(ctx, mine, l.Addr().String(), "n2", "name/1"); err == nil {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
		got, _ := io.ReadAll(conn)
		if string(got) != "n1" {
			t.Errorf("answered %q", got)
		}
		_ = conn.Close()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
