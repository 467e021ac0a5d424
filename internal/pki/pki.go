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
		return nil, fmt.Errorf("certificate authority: %s is there but its key %s is not: restore the key, or remove the certificate to create a new authority, which accepts none of the old certificates", certPath(dir), keyPath(dir))
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("certificate authority: %w", err)
	}
	pair, err := NewAuthority()
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
	return parse(Pair{Cert: certPEM, Key: keyPEM}, certPath(dir), keyPath(dir))
}

// Parse opens the authority of a pair that is kept under a name.
func Parse(name string, pair Pair) (*Authority, error) {
	return parse(pair, "certificate of "+name, "key of "+name)
}

func parse(pair Pair, certName, keyName string) (*Authority, error) {
	cert, err := parseCert(pair.Cert)
	if err != nil {
		return nil, fmt.Errorf("certificate authority %s: %w", certName, err)
	}
	key, err := parseKey(pair.Key)
	if err != nil {
		return nil, fmt.Errorf("certificate authority %s: %w", keyName, err)
	}
	if !bytes.Equal(cert.RawSubjectPublicKeyInfo, publicKey(key)) {
		return nil, fmt.Errorf("certificate authority: %s is not the key of %s", keyName, certName)
	}
	return &Authority{CertPEM: pair.Cert, cert: cert, key: key}, nil
}

func certPath(dir string) string { return filepath.Join(dir, "ca.crt") }
func keyPath(dir string) string  { return filepath.Join(dir, "ca.key") }

// NewAuthority makes an authority that is kept nowhere yet.
func NewAuthority() (Pair, error) {
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
	template.DNSNames, template.IPAddresses = split(p.Hosts)
	pair, err := sign(template, a.cert, key, a.key)
	if err != nil {
		return Pair{}, fmt.Errorf("issue a certificate for %s: %w", p.User, err)
	}
	return pair, nil
}

// Sign makes a certificate for a request whose content has been checked: for its key, subject, names and addresses. Without names and addresses it is for
// clients only.
func (a *Authority) Sign(request *x509.CertificateRequest, life time.Duration) ([]byte, error) {
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: request.Subject.CommonName, Organization: request.Subject.Organization},
		// A short certificate must not look as if most of its life had passed.
		NotBefore:   now.Add(-min(skew, life/10)),
		NotAfter:    now.Add(life),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		DNSNames:    request.DNSNames,
		IPAddresses: request.IPAddresses,
	}
	if len(request.DNSNames)+len(request.IPAddresses) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, request.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign a certificate for %s: %w", request.Subject.CommonName, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// NewRequest makes a key and a request for a certificate of a profile, both PEM encoded.
func NewRequest(p Profile) (request, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: p.User, Organization: p.Groups}}
	template.DNSNames, template.IPAddresses = split(p.Hosts)
	der, err := x509.CreateCertificateRequest(rand.Reader, template, private)
	if err != nil {
		return nil, nil, fmt.Errorf("request a certificate for %s: %w", p.User, err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), nil
}

// split separates names from addresses.
func split(hosts []string) (names []string, addresses []net.IP) {
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			addresses = append(addresses, ip)
		} else {
			names = append(names, host)
		}
	}
	return names, addresses
}

// SignedBy says whether a certificate is signed by an authority, both PEM encoded, for the user, groups and hosts of a profile.
func SignedBy(certPEM, authorityPEM []byte, p Profile) bool {
	authority, err := parseCert(authorityPEM)
	if err != nil {
		return false
	}
	return (&Authority{cert: authority}).fits(certPEM, p)
}

// Life returns when a certificate becomes and stops being valid.
func Life(certPEM []byte) (from, until time.Time, err error) {
	cert, err := parseCert(certPEM)
	if err != nil {
		return from, until, err
	}
	return cert.NotBefore, cert.NotAfter, nil
}

// Serves returns an error if a certificate is not for a host name or address.
func Serves(certPEM []byte, host string) error {
	cert, err := parseCert(certPEM)
	if err != nil {
		return err
	}
	return cert.VerifyHostname(host)
}

// Renewable reports whether no more than a third of a certificate's life is left.
func Renewable(certPEM []byte, now time.Time) (until time.Time, due bool, err error) {
	_, until, err = Life(certPEM)
	return until, err == nil && until.Sub(now) < leafLife/3, err
}

// Fits says whether a certificate is still good for a profile: signed by this authority, for the same user, groups and
// hosts, and with a third of its life left.
func (a *Authority) Fits(certPEM []byte, p Profile) bool {
	_, due, err := Renewable(certPEM, time.Now())
	return err == nil && !due && a.fits(certPEM, p)
}

func (a *Authority) fits(certPEM []byte, p Profile) bool {
	cert, err := parseCert(certPEM)
	if err != nil || cert.CheckSignatureFrom(a.cert) != nil || cert.Subject.CommonName != p.User {
		return false
	}
	if fmt.Sprint(cert.Subject.Organization) != fmt.Sprint(p.Groups) {
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
