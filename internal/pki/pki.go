// Package pki keeps the cluster's certificate authority and issues the certificates by which processes know each other.
//
// Every identity is a client certificate whose common name is the user name; nodes also serve with theirs.
package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/ebb-dev/ebb/internal/atomicfile"
)

const (
	caLife   = 20 * 365 * 24 * time.Hour
	leafLife = 2 * 365 * 24 * time.Hour
	// A clock that is a little behind must not make a new certificate invalid.
	skew = 10 * time.Minute
)

// Pair is a certificate and its key, PEM encoded.
type Pair struct {
	Cert []byte
	Key  []byte
}

// Authority signs certificates.
type Authority struct {
	// CertPEM is what everyone trusts.
	CertPEM []byte

	cert *x509.Certificate
	key  crypto.Signer
}

// Profile is what a certificate is for.
type Profile struct {
	// User is the common name: the user name of the API.
	User string
	// Groups are the organizations: the groups of the API.
	Groups []string
	// Hosts are the DNS names and IP addresses to serve as. Without any the certificate is for clients only.
	Hosts []string
}

// LoadOrCreate opens the authority kept in dir, or makes one there. The key never leaves dir and only its owner reads it.
func LoadOrCreate(dir string) (*Authority, error) {
	a, err := Load(dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return a, err
	}
	if _, err := os.Stat(certPath(dir)); err == nil {
		return nil, fmt.Errorf("certificate authority: %s is there but its key %s is not: bring the key back, or remove the certificate for a new authority that knows none of the old certificates", certPath(dir), keyPath(dir))
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	pair, err := selfSign()
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	// The key goes first: a crash in between leaves a key without a certificate, which is replaced at the next start. A
	// certificate without its key therefore means that the key was lost.
	if err := atomicfile.WriteSecret(keyPath(dir), pair.Key); err != nil {
		return nil, err
	}
	if err := atomicfile.Write(certPath(dir), pair.Cert, 0o644); err != nil {
		return nil, err
	}
	return Load(dir)
}

// Load opens the authority kept in dir; an fs.ErrNotExist error means that there is none.
func Load(dir string) (*Authority, error) {
	certPEM, err := os.ReadFile(certPath(dir))
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	keyPEM, err := os.ReadFile(keyPath(dir))
	if err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	cert, err := parseCert(certPEM)
	if err != nil {
		return nil, fmt.Errorf("certificate authority %s: %w", certPath(dir), err)
	}
	key, err := parseKey(keyPEM)
	if err != nil {
		return nil, fmt.Errorf("certificate authority %s: %w", keyPath(dir), err)
	}
	if !bytes.Equal(cert.RawSubjectPublicKeyInfo, publicKey(key)) {
		return nil, fmt.Errorf("certificate authority: %s is not the key of %s", keyPath(dir), certPath(dir))
	}
	return &Authority{CertPEM: certPEM, cert: cert, key: key}, nil
}

func certPath(dir string) string { return filepath.Join(dir, "ca.crt") }
func keyPath(dir string) string  { return filepath.Join(dir, "ca.key") }

func selfSign() (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, err
	}
	serial, err := serialNumber()
	if err != nil {
		return Pair{}, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: "ebb cluster CA"},
		NotBefore:             now.Add(-skew),
		NotAfter:              now.Add(caLife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	return sign(template, template, key, key)
}

// Issue makes a certificate for a profile.
func (a *Authority) Issue(p Profile) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, err
	}
	serial, err := serialNumber()
	if err != nil {
		return Pair{}, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: p.User, Organization: p.Groups},
		NotBefore:    now.Add(-skew),
		NotAfter:     now.Add(leafLife),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if len(p.Hosts) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	for _, host := range p.Hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	pair, err := sign(template, a.cert, key, a.key)
	if err != nil {
		return Pair{}, fmt.Errorf("issue a certificate for %s: %w", p.User, err)
	}
	return pair, nil
}

// Fits says whether a certificate is still good for a profile: signed by this authority, for the same user, groups and
// hosts, and with a third of its life left.
func (a *Authority) Fits(certPEM []byte, p Profile) bool {
	cert, err := parseCert(certPEM)
	if err != nil || cert.CheckSignatureFrom(a.cert) != nil || cert.Subject.CommonName != p.User {
		return false
	}
	if fmt.Sprint(cert.Subject.Organization) != fmt.Sprint(p.Groups) || time.Until(cert.NotAfter) < leafLife/3 {
		return false
	}
	for _, host := range p.Hosts {
		if cert.VerifyHostname(host) != nil {
			return false
		}
	}
	return true
}

// Matches says whether key is the key of a certificate.
func Matches(certPEM, keyPEM []byte) bool {
	cert, err := parseCert(certPEM)
	if err != nil {
		return false
	}
	key, err := parseKey(keyPEM)
	return err == nil && bytes.Equal(cert.RawSubjectPublicKeyInfo, publicKey(key))
}

// publicKey is how a certificate states a key; nothing for one that no certificate can state.
func publicKey(key crypto.Signer) []byte {
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil
	}
	return der
}

func serialNumber() (*big.Int, error) {
	return rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
}

func sign(template, parent *x509.Certificate, key *ecdsa.PrivateKey, signer crypto.Signer) (Pair, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		return Pair{}, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, err
	}
	return Pair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
	}, nil
}

func parseCert(data []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("no PEM certificate in it")
	}
	return x509.ParseCertificate(block.Bytes)
}

func parseKey(data []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("no PEM key in it")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("a key of type %T cannot sign", key)
	}
	return signer, nil
}
