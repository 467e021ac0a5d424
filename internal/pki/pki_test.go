package pki_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ebb-dev/ebb/internal/pki"
)

func authority(t *testing.T, dir string) *pki.Authority {
	t.Helper()
	ca, err := pki.LoadOrCreate(dir)
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func issue(t *testing.T, ca *pki.Authority, p pki.Profile) pki.Pair {
	t.Helper()
	pair, err := ca.Issue(p)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func parse(t *testing.T, certPEM []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(certPEM)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestAnAuthorityIsTheSameAtEveryStart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	first := authority(t, dir)
	pair := issue(t, first, pki.Profile{User: "u"})
	again := authority(t, dir)
	if !bytes.Equal(first.CertPEM, again.CertPEM) {
		t.Error("the second start made another certificate")
	}
	if !again.Fits(pair.Cert, pki.Profile{User: "u"}) {
		t.Error("the second start does not know what the first one issued")
	}
	for name, want := range map[string]fs.FileMode{"": 0o700, "ca.key": 0o600, "ca.crt": 0o644} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%q is %o, want %o", name, got, want)
		}
	}
	if _, err := pki.Load(filepath.Join(dir, "other")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an authority that is not there: %v, want fs.ErrNotExist", err)
	}
}

func TestAnAuthorityCutOffWhileItWasMadeIsMadeAnew(t *testing.T) {
	dir := t.TempDir()
	authority(t, dir)
	if err := os.Remove(filepath.Join(dir, "ca.crt")); err != nil {
		t.Fatal(err)
	}
	ca := authority(t, dir)
	if pair := issue(t, ca, pki.Profile{User: "u"}); !ca.Fits(pair.Cert, pki.Profile{User: "u"}) {
		t.Error("its certificates are not its own")
	}
}

func TestABrokenAuthorityIsNeverReplacedInSilence(t *testing.T) {
	for _, c := range []struct {
		what  string
		spoil func(t *testing.T, dir string)
		want  string
	}{
		{"the key is lost", func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, "ca.key")); err != nil {
				t.Fatal(err)
			}
		}, "certificate authority: DIR/ca.crt is there but its key DIR/ca.key is not: restore the key, or remove the certificate to create a new authority, which accepts none of the old certificates"},
		{"the key is another's", func(t *testing.T, dir string) {
			other := t.TempDir()
			authority(t, other)
			copyFile(t, filepath.Join(other, "ca.key"), filepath.Join(dir, "ca.key"))
		}, "certificate authority: DIR/ca.key is not the key of DIR/ca.crt"},
		{"the key is garbage", func(t *testing.T, dir string) { write(t, filepath.Join(dir, "ca.key"), "x") },
			"certificate authority DIR/ca.key: no PEM key in it"},
		{"the certificate is garbage", func(t *testing.T, dir string) { write(t, filepath.Join(dir, "ca.crt"), "x") },
			"certificate authority DIR/ca.crt: no PEM certificate in it"},
	} {
		t.Run(c.what, func(t *testing.T) {
			dir := t.TempDir()
			before := authority(t, dir).CertPEM
			c.spoil(t, dir)
			_, err := pki.LoadOrCreate(dir)
			if err == nil {
				t.Fatal("it was opened all the same")
			}
			if got := strings.ReplaceAll(err.Error(), dir, "DIR"); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			if now, err := os.ReadFile(filepath.Join(dir, "ca.crt")); err == nil && len(now) > 1 && !bytes.Equal(now, before) {
				t.Error("the certificate was replaced")
			}
		})
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	write(t, to, string(data))
}

func TestACertificateSaysWhoItIsForAndServesOnlyWithHosts(t *testing.T) {
	ca := authority(t, t.TempDir())
	client := parse(t, issue(t, ca, pki.Profile{User: "u", Groups: []string{"g", "h"}}).Cert)
	if client.Subject.CommonName != "u" || !slices.Equal(client.Subject.Organization, []string{"g", "h"}) {
		t.Errorf("subject is %s", client.Subject)
	}
	if client.IsCA || slices.Contains(client.ExtKeyUsage, x509.ExtKeyUsageServerAuth) {
		t.Error("a client's certificate serves or signs")
	}
	pair := issue(t, ca, pki.Profile{User: "u", Hosts: []string{"node.example.com", "127.0.0.1", "::1"}})
	server := parse(t, pair.Cert)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.CertPEM)
	for _, host := range []string{"node.example.com", "127.0.0.1", "::1"} {
		if _, err := server.Verify(x509.VerifyOptions{DNSName: host, Roots: roots}); err != nil {
			t.Errorf("as %s: %v", host, err)
		}
	}
	if _, err := server.Verify(x509.VerifyOptions{DNSName: "127.0.0.2", Roots: roots}); err == nil {
		t.Error("serves as an address that it was not issued for")
	}
	if _, err := tls.X509KeyPair(pair.Cert, pair.Key); err != nil {
		t.Error(err)
	}
}

func TestACertificateFitsOnlyWhatItWasIssuedFor(t *testing.T) {
	ca, other := authority(t, t.TempDir()), authority(t, t.TempDir())
	p := pki.Profile{User: "u", Groups: []string{"g"}, Hosts: []string{"127.0.0.1", "::1", "a.example.com"}}
	cert := issue(t, ca, p).Cert
	for _, c := range []struct {
		what    string
		ca      *pki.Authority
		cert    []byte
		profile pki.Profile
		want    bool
	}{
		{"the same", ca, cert, p, true},
		{"fewer hosts", ca, cert, pki.Profile{User: "u", Groups: p.Groups, Hosts: p.Hosts[:1]}, true},
		{"another host", ca, cert, pki.Profile{User: "u", Groups: p.Groups, Hosts: []string{"127.0.0.1", "127.0.0.2"}}, false},
		{"another name", ca, cert, pki.Profile{User: "u", Groups: p.Groups, Hosts: []string{"b.example.com"}}, false},
		{"another user", ca, cert, pki.Profile{User: "v", Groups: p.Groups, Hosts: p.Hosts}, false},
		{"another group", ca, cert, pki.Profile{User: "u", Groups: []string{"h"}, Hosts: p.Hosts}, false},
		{"no group", ca, cert, pki.Profile{User: "u", Hosts: p.Hosts}, false},
		{"another authority", other, cert, p, false},
		{"no certificate", ca, nil, p, false},
		{"the authority's own", ca, ca.CertPEM, p, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			if got := c.ca.Fits(c.cert, c.profile); got != c.want {
				t.Errorf("fits: %v, want %v", got, c.want)
			}
		})
	}
}

func TestACertificateMatchesOnlyItsKey(t *testing.T) {
	ca := authority(t, t.TempDir())
	a, b := issue(t, ca, pki.Profile{User: "u"}), issue(t, ca, pki.Profile{User: "u"})
	for what, c := range map[string]struct {
		cert, key []byte
		want      bool
	}{
		"its own": {a.Cert, a.Key, true}, "another's": {a.Cert, b.Key, false}, "none": {a.Cert, nil, false}, "nothing": {nil, a.Key, false},
	} {
		if got := pki.Matches(c.cert, c.key); got != c.want {
			t.Errorf("%s: %v, want %v", what, got, c.want)
		}
	}
}
