package peer

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"sync"
)

// Files are what a node shows, and whom it trusts. They may be renewed while the node runs.
type Files struct{ Cert, Key, CA string }

// Credentials are the content of Files. Every handshake uses the newest content; one that cannot be used, as while a
// key is renewed and its certificate is not yet, leaves the content before it in force.
type Credentials struct {
	owner string
	files Files

	mu            sync.Mutex
	cert, key, ca []byte // as parsed
	pair          *tls.Certificate
	pool          *x509.CertPool
}

// Load reads the files. The owner of the certificate is named in errors.
func Load(owner string, f Files) (*Credentials, error) {
	c := &Credentials{owner: owner, files: f}
	if err := c.readPair(); err != nil {
		return nil, err
	}
	if err := c.readPool(); err != nil {
		return nil, err
	}
	return c, nil
}

// Certificate returns what to show now.
func (c *Credentials) Certificate() *tls.Certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.readPair() // the pair before stays
	return c.pair
}

// Authorities returns whom to trust now.
func (c *Credentials) Authorities() *x509.CertPool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.readPool() // the pool before stays
	return c.pool
}

// Server configures a server that shows the certificate to anybody.
func (c *Credentials) Server() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.Certificate(), nil },
	}
}

// MutualServer configures a server for those who show a certificate of the authorities. The protocols that it offers, such as
// "h2", are named here: what others add to the configuration later does not reach the one made for each client.
func (c *Credentials) MutualServer(protocols ...string) *tls.Config {
	config := c.Server()
	config.MinVersion, config.NextProtos, config.ClientAuth = tls.VersionTLS13, protocols, tls.RequireAndVerifyClientCert
	config.DynamicRecordSizingDisabled = true // nodes are near each other: small records cost more than they save
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		current := config.Clone()
		current.ClientCAs, current.GetConfigForClient = c.Authorities(), nil
		return current, nil
	}
	return config
}

// Client configures a client. It trusts the authorities of this moment, and shows the newest certificate.
func (c *Credentials) Client() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: c.Authorities(),
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return c.Certificate(), nil },
	}
}

func (c *Credentials) readPair() error {
	cert, err := os.ReadFile(c.files.Cert)
	if err != nil {
		return fmt.Errorf("certificate of %s: %w", c.owner, err)
	}
	key, err := os.ReadFile(c.files.Key)
	if err != nil {
		return fmt.Errorf("certificate of %s: %w", c.owner, err)
	}
	if c.pair != nil && bytes.Equal(cert, c.cert) && bytes.Equal(key, c.key) {
		return nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("certificate of %s: %w", c.owner, err)
	}
	c.cert, c.key, c.pair = cert, key, &pair
	return nil
}

func (c *Credentials) readPool() error {
	ca, err := os.ReadFile(c.files.CA)
	if err != nil {
		return fmt.Errorf("certificate authority: %w", err)
	}
	if c.pool != nil && bytes.Equal(ca, c.ca) {
		return nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return fmt.Errorf("certificate authority: no certificate in %s", c.files.CA)
	}
	c.ca, c.pool = ca, pool
	return nil
}
