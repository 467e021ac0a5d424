package changefeed

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed/blackhole"
	"github.com/ebb-dev/ebb/internal/changefeed/datagen"
	"github.com/ebb-dev/ebb/internal/changefeed/dispatch"
	"github.com/ebb-dev/ebb/internal/changefeed/filesink"
	"github.com/ebb-dev/ebb/internal/changefeed/mariadb"
	"github.com/ebb-dev/ebb/internal/changefeed/sqlsink"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// Opener opens the sources and sinks that changefeeds name.
type Opener struct {
	// Credentials is the directory that password files are below; empty for none.
	Credentials string
	// Secret reads the data of a Secret, live; an error that apierrors.IsNotFound knows says that there is none.
	Secret func(ctx context.Context, namespace, name string) (map[string][]byte, error)
	// May says whether the node's lease is beyond doubt, for sinks that cannot tell an owner from another themselves; nil for always.
	May func() bool
	// Files is the directory that file sinks are below; empty for none.
	Files string
	// Log of the node.
	Log *slog.Logger
}

// Source opens a source.
func (o Opener) Source(c dispatch.Config) (stream.Source, error) {
	u, err := url.Parse(c.Source)
	if err != nil {
		return nil, fmt.Errorf("source: %w: %w", stream.ErrUnusable, err)
	}
	switch u.Scheme {
	case "datagen":
		s, err := datagen.Parse(u)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", stream.ErrUnusable, err)
		}
		return s, nil
	case "mysql":
		password, err := o.either(c.SourceSecret, c.SourcePassword, c.SourcePasswordFile)
		if err != nil {
			return nil, err
		}
		secure, err := o.tls(u)
		if err != nil {
			return nil, err
		}
		return mariadb.Open(mariadb.Options{Address: u.Host, User: u.User.Username(), Password: password, TLS: secure, Logger: o.Log})
	}
	return nil, fmt.Errorf("source %s://: %w: use mysql:// or datagen://", u.Scheme, stream.ErrUnusable)
}

// Sink opens a sink.
func (o Opener) Sink(key dispatch.FeedKey, c dispatch.Config) (stream.Sink, error) {
	u, err := url.Parse(c.Sink)
	if err != nil {
		return nil, fmt.Errorf("sink: %w: %w", stream.ErrUnusable, err)
	}
	switch u.Scheme {
	case "blackhole":
		return blackhole.New(), nil
	case "file":
		options, err := filesink.Parse(u)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", stream.ErrUnusable, err)
		}
		if err := o.below(options.Directory); err != nil {
			return nil, err
		}
		options.Changefeed, options.May = key.Namespace+"/"+key.Name+"/"+key.UID, o.May
		return filesink.Open(options), nil
	case "mysql":
		password, err := o.either(c.SinkSecret, c.SinkPassword, c.SinkPasswordFile)
		if err != nil {
			return nil, err
		}
		secure, err := o.tls(u)
		if err != nil {
			return nil, err
		}
		return sqlsink.Open(sqlsink.Options{
			Address: u.Host, User: u.User.Username(), Password: password, TLS: secure, Changefeed: key.Namespace + "/" + key.Name + "/" + key.UID,
			MaxConnections: c.Workers, Logger: o.Log,
		})
	}
	return nil, fmt.Errorf("sink %s://: %w: use mysql://, file:// or blackhole://", u.Scheme, stream.ErrUnusable)
}

// Validate says what is wrong with a changefeed before any node has tried it.
func Validate(spec *v1alpha1.ChangefeedSpec) error {
	for _, end := range []struct {
		what, text string
		schemes    []string
		file       string
		secret     *v1alpha1.PasswordSecretRef
	}{
		{"source", spec.Source, []string{"mysql", "datagen"}, spec.SourcePasswordFile, spec.SourcePasswordSecretRef},
		{"sink", spec.Sink, []string{"mysql", "file", "blackhole"}, spec.SinkPasswordFile, spec.SinkPasswordSecretRef},
	} {
		u, err := url.Parse(end.text)
		if err != nil {
			return fmt.Errorf("%s: %w", end.what, err)
		}
		if _, set := u.User.Password(); set {
			return fmt.Errorf("%s: leave the password out of the URL: everybody who may read the object would know it; name a Secret or a password file", end.what)
		}
		if end.secret != nil && end.file != "" {
			return fmt.Errorf("%s: give a password file or a Secret, not both", end.what)
		}
		if !slices.Contains(end.schemes, u.Scheme) {
			return fmt.Errorf("%s %q: use %s://", end.what, end.text, strings.Join(end.schemes, ":// or "))
		}
		switch u.Scheme {
		case "file":
			_, err = filesink.Parse(u)
		case "mysql":
			err = validServer(end.what, u)
		}
		if err != nil {
			return err
		}
	}
	if _, err := stream.ParsePosition(spec.StartPosition); err != nil {
		return err
	}
	_, err := stream.ParseFilter(spec.Filter)
	return err
}

// validServer says what is wrong with the address of a server.
func validServer(what string, u *url.URL) error {
	if _, port, err := net.SplitHostPort(u.Host); err != nil || port == "" || u.User.Username() == "" {
		return fmt.Errorf("%s %q: say whom to connect as and where: mysql://user@host:port", what, u)
	}
	if strings.Trim(u.Path, "/") != "" || u.Fragment != "" {
		return fmt.Errorf("%s %q: a server is named, not a schema: leave out %q and use the filter", what, u, u.Path)
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return fmt.Errorf("%s %q: %w", what, u, err)
	}
	for name, values := range query {
		switch {
		case name == "tls" && len(values) == 1 && values[0] == "true", name == "tls-ca" && len(values) == 1 && values[0] != "":
		default:
			return fmt.Errorf("%s %q: %s=%s is not known: there are tls=true and tls-ca=FILE", what, u, name, strings.Join(values, ","))
		}
	}
	return nil
}

// tls is how a server is connected to: in the clear, unless the URL says tls=true, or names the file of the authority that has
// signed the server's certificate.
func (o Opener) tls(u *url.URL) (*tls.Config, error) {
	query := u.Query()
	ca := query.Get("tls-ca")
	if query.Get("tls") != "true" && ca == "" {
		return nil, nil
	}
	c := &tls.Config{ServerName: u.Hostname(), MinVersion: tls.VersionTLS12}
	if ca != "" {
		text, err := o.credential("certificate file", ca)
		if err != nil {
			return nil, err
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM([]byte(text)) {
			return nil, fmt.Errorf("certificate file %q has no certificate: %w", ca, stream.ErrUnusable)
		}
	}
	return c, nil
}

// below refuses a directory that is not below the one that the node was told: whoever writes a changefeed must not choose
// where a node's user writes.
func (o Opener) below(dir string) error {
	rel, err := filepath.Rel(o.Files, filepath.Clean(dir))
	if o.Files == "" || err != nil || rel == ".." || strings.HasPrefix(rel, ".."+string(filepath.Separator)) {
		return fmt.Errorf("sink file://%s: %w: this node writes below its --file-sink-dir (%q) only", dir, stream.ErrUnusable, o.Files)
	}
	return nil
}

// password reads a password.
func (o Opener) password(name string) (string, error) {
	if name == "" {
		return "", nil
	}
	text, err := o.credential("password file", name)
	return trimNewlines(text), err
}

// trimNewlines takes away what editors put at the end of a file.
func trimNewlines(text string) string { return strings.TrimRight(text, "\r\n") }

// credential reads a file below the credentials directory. A name that leads anywhere else is refused: whoever writes a
// changefeed must not choose which files nodes send to a server.
func (o Opener) credential(what, name string) (string, error) {
	if o.Credentials == "" {
		return "", fmt.Errorf("a %s is named, and this node has no --credentials-dir", what)
	}
	if name != filepath.Base(name) || strings.HasPrefix(name, ".") {
		return "", fmt.Errorf("%s %q: name a file in the nodes' --credentials-dir, without a path", what, name)
	}
	root, err := os.OpenRoot(o.Credentials)
	if err != nil {
		return "", err
	}
	defer root.Close()
	data, err := root.ReadFile(name)
	if err != nil {
		return "", fmt.Errorf("%s %q: %w", what, name, err)
	}
	return string(data), nil
}
