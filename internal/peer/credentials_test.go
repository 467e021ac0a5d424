package peer_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/ebb-dev/ebb/internal/identity"
	"github.com/ebb-dev/ebb/internal/peer"
	"github.com/ebb-dev/ebb/internal/pki"
)

func load(t *testing.T, f peer.Files) *peer.Credentials {
	t.Helper()
	c, err := peer.Load("node n1", f)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// handshake connects a client to a server, and returns the serial numbers that each side saw of the other.
func handshake(t *testing.T, server, client *tls.Config) (ofServer, ofClient string, err error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialed, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer dialed.Close()
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	s, c := tls.Server(accepted, server), tls.Client(dialed, client)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- c.HandshakeContext(ctx) }()
	if err := errors.Join(s.HandshakeContext(ctx), <-done); err != nil {
		return "", "", err
	}
	return serialOf(c), serialOf(s), nil
}

// serialOf returns the serial number of the certificate that the other side showed.
func serialOf(c *tls.Conn) string {
	return c.ConnectionState().PeerCertificates[0].SerialNumber.String()
}

func serial(c *peer.Credentials) string { return c.Certificate().Leaf.SerialNumber.String() }

func TestRenewedCertificatesAreShownByTheNextHandshake(t *testing.T) {
	c := newCluster(t)
	server, client := load(t, c.node("n2")), load(t, c.node("n1"))
	serverConfig, clientConfig := server.MutualServer(), client.Client()
	clientConfig.ServerName = "127.0.0.1"
	was := [2]string{serial(server), serial(client)}
	seen := func() (both [2]string) {
		t.Helper()
		var err error
		if both[0], both[1], err = handshake(t, serverConfig, clientConfig); err != nil {
			t.Fatal(err)
		}
		return both
	}
	if got := seen(); got != was {
		t.Errorf("saw %v, want %v", got, was)
	}
	c.node("n1")
	c.node("n2")
	now := [2]string{serial(server), serial(client)}
	if got := seen(); got != now || now[0] == was[0] || now[1] == was[1] {
		t.Errorf("saw %v, want %v, which were %v", got, now, was)
	}
}

func TestAHalfRenewedCertificateLeavesTheOldOneInForce(t *testing.T) {
	c := newCluster(t)
	f := c.node("n1")
	creds := load(t, f)
	was := serial(creds)
	pair, err := c.ca.Issue(pki.Profile{User: identity.Node("n1")})
	if err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(){
		"a new key": func() { c.write(filepath.Base(f.Key), pair.Key) },
		"no key":    func() { _ = os.Remove(f.Key) },
		"garbage":   func() { c.write(filepath.Base(f.Cert), []byte("garbage")) },
	} {
		if change(); serial(creds) != was {
			t.Errorf("%s changed the certificate", what)
		}
	}
	c.write(filepath.Base(f.Cert), pair.Cert)
	c.write(filepath.Base(f.Key), pair.Key)
	if serial(creds) == was {
		t.Error("the new pair is not shown")
	}
}

func TestANewAuthorityIsTrustedByTheNextHandshake(t *testing.T) {
	c, next := newCluster(t), newCluster(t)
	files := c.node("n2")
	server, stranger := load(t, files).MutualServer(), load(t, next.node("n1"))
	try := func() error {
		config := stranger.Client()
		config.ServerName, config.InsecureSkipVerify = "127.0.0.1", true
		_, _, err := handshake(t, server, config)
		return err
	}
	if try() == nil {
		t.Fatal("a certificate of another authority was accepted")
	}
	c.write("ca.crt", next.ca.CertPEM)
	if err := try(); err != nil {
		t.Errorf("the new authority is not trusted: %v", err)
	}
	c.write("ca.crt", nil)
	if err := try(); err != nil {
		t.Errorf("an empty file replaced the authority: %v", err)
	}
}

func TestAServerAndAConnectionOutliveTheRenewalOfTheWholeCluster(t *testing.T) {
	c := newCluster(t)
	served, mine := c.node("n2"), c.node("n1")
	address := serve(t, served)
	early := dial(t, mine, address, "n2") // it connects only when it is used
	ca, err := pki.LoadOrCreate(filepath.Join(c.dir, "next"))
	if err != nil {
		t.Fatal(err)
	}
	c.ca = ca
	c.write("ca.crt", ca.CertPEM)
	c.node("n1")
	c.node("n2")
	want(t, early, n1(), codes.OK, "")
	want(t, dial(t, mine, address, "n2"), n1(), codes.OK, "")
}
