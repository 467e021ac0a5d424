package changefeed_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ebb-dev/ebb/internal/changefeed"
	"github.com/ebb-dev/ebb/internal/changefeed/dispatch"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/pki"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// A user with REQUIRE SSL can read and write through the URL of a changefeed, if the certificate of the server is valid.
func TestServersAreReachedOverTLS(t *testing.T) {
	dir, credentials := t.TempDir(), t.TempDir()
	authority, err := pki.LoadOrCreate(filepath.Join(dir, "ca"))
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := pki.LoadOrCreate(filepath.Join(dir, "stranger"))
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.Issue(pki.Profile{User: "db", Hosts: []string{"127.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	cert, key := filepath.Join(dir, "db.crt"), filepath.Join(dir, "db.key")
	for path, data := range map[string][]byte{
		cert: pair.Cert, key: pair.Key, filepath.Join(credentials, "password"): []byte("secret\n"),
		filepath.Join(credentials, "ca.crt"): authority.CertPEM, filepath.Join(credentials, "stranger.crt"): stranger.CertPEM, filepath.Join(credentials, "empty.crt"): nil,
	} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m := testenv.StartMariaDB(t, "--ssl-cert="+cert, "--ssl-key="+key)
	m.Exec("CREATE USER careful@'%' IDENTIFIED BY 'secret' REQUIRE SSL", "GRANT ALL ON *.* TO careful@'%'", "CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY)", "INSERT INTO d.t VALUES (1)")
	o := changefeed.Opener{Credentials: credentials}
	open := func(query string) (stream.Source, stream.Sink, error) {
		server := "mysql://careful@" + m.Address + query
		c := dispatch.Config{Source: server, Sink: server, SourcePasswordFile: "password", SinkPasswordFile: "password", Workers: 1}
		source, err := o.Source(c)
		if err != nil {
			return nil, nil, err
		}
		t.Cleanup(func() { source.Close() })
		sink, err := o.Sink(dispatch.FeedKey{Namespace: "default", Name: "f", UID: "1"}, c)
		if err == nil {
			t.Cleanup(func() { sink.Close() })
		}
		return source, sink, err
	}
	for query, want := range map[string]string{"": "denied", "?tls=true": "certificate", "?tls-ca=stranger.crt": "certificate"} {
		source, sink, err := open(query)
		if err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{source.Check(t.Context()), sink.Check(t.Context())} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v, want something of %q", query, err, want)
			}
		}
	}
	if _, _, err := open("?tls-ca=empty.crt"); !errors.Is(err, stream.ErrUnusable) {
		t.Errorf("a file without a certificate: %v", err)
	}

	source, sink, err := open("?tls-ca=ca.crt")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(source.Check(t.Context()), sink.Check(t.Context())); err != nil {
		t.Fatal(err)
	}
	found := errors.New("found")
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	err = source.Read(ctx, 0, func(tx *stream.Transaction) error {
		if len(tx.Rows) > 0 {
			return found
		}
		return nil
	})
	if !errors.Is(err, found) {
		t.Error(err)
	}
}
