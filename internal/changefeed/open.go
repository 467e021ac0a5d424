package changefeed

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
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
	"github.com/ebb-dev/ebb/internal/changefeed/maintainer"
	"github.com/ebb-dev/ebb/internal/changefeed/mariadb"
	"github.com/ebb-dev/ebb/internal/changefeed/omission"
	"github.com/ebb-dev/ebb/internal/changefeed/route"
	"github.com/ebb-dev/ebb/internal/changefeed/sqlsink"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// Opener opens the sources and sinks that changefeeds name.
type Opener struct {
	// Credentials is the directory with password and certificate files; empty for none.
	Credentials string
	// Secret reads the data of a Secret from the API server. If there is none, the error satisfies apierrors.IsNotFound.
	Secret func(ctx context.Context, namespace, name string) (map[string][]byte, error)
	// May reports whether the node's lease is held and not in doubt, for sinks that cannot fence earlier owners; nil for always.
	May func() bool
	// Files is the directory that file sinks must be in; empty for none.
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
		return mariadb.Open(mariadb.Options{Address: u.Host, User: u.User.Username(), Password: password, TLS: secure, Raw: c.Forward, Logger: o.Log})
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
		sink, err := sqlsink.Open(sqlsink.Options{
			Address: u.Host, User: u.User.Username(), Password: password, TLS: secure, Changefeed: key.Namespace + "/" + key.Name + "/" + key.UID,
			MaxConnections: c.Workers, Forward: c.Forward, Logger: o.Log,
		})
		if err != nil || len(c.Routes) == 0 && len(c.LeaveOut) == 0 {
			return sink, err
		}
		routes, err := route.Parse(c.Routes)
		omits, failed := omission.Parse(c.LeaveOut)
		if err = errors.Join(err, failed); err != nil {
			return nil, errors.Join(fmt.Errorf("%w: %w", stream.ErrUnusable, err), sink.Close())
		}
		return sqlsink.Route(sink, routes, omits, c.Filter), nil
	}
	return nil, fmt.Errorf("sink %s://: %w: use mysql://, file:// or blackhole://", u.Scheme, stream.ErrUnusable)
}

// Validate checks a changefeed without connecting to anything.
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
			return fmt.Errorf("%s: remove the password from the URL, where everybody who may read the changefeed sees it; name a Secret or a password file instead", end.what)
		}
		if end.secret != nil && end.file != "" {
			return fmt.Errorf("%s: set a password file or a Secret, not both", end.what)
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
	if err := validSnapshot(spec); err != nil {
		return err
	}
	if err := validForward(spec); err != nil {
		return err
	}
	if err := validRouting(spec); err != nil {
		return err
	}
	if err := validSkips(spec); err != nil {
		return err
	}
	_, err := stream.ParseFilter(spec.Filter)
	return err
}

// validSkips checks the transactions that are not to be replicated, and the one to resume after.
func validSkips(spec *v1alpha1.ChangefeedSpec) error {
	if len(spec.Skip) > 0 && (!strings.HasPrefix(spec.Source, "mysql://") || !strings.HasPrefix(spec.Sink, "mysql://")) {
		return fmt.Errorf("skip: the source and the sink must be MariaDB (mysql://)")
	}
	if spec.ResumeFrom != "" && strings.Count(spec.ResumeFrom, "-") != 2 {
		return fmt.Errorf("resume: %q is not a GTID such as 0-1-100", spec.ResumeFrom)
	}
	for _, gtid := range spec.Skip {
		if strings.Count(gtid, "-") != 2 {
			return fmt.Errorf("skip: %q is not a GTID such as 0-1-100", gtid)
		}
		if _, err := stream.ParsePosition(gtid); err != nil {
			return fmt.Errorf("skip: %w", err)
		}
	}
	return nil
}

// validRouting checks whether tables can have other names at the sink, and whether something can be left out of them.
func validRouting(spec *v1alpha1.ChangefeedSpec) error {
	servers := strings.HasPrefix(spec.Source, "mysql://") && strings.HasPrefix(spec.Sink, "mysql://")
	switch {
	case len(spec.Routing) > 0 && !servers:
		return fmt.Errorf("routing: the source and the sink must be MariaDB (mysql://)")
	case len(spec.LeaveOut) > 0 && !servers:
		return fmt.Errorf("leave out: the source and the sink must be MariaDB (mysql://)")
	}
	if _, err := route.Parse(maintainer.Routes(spec.Routing)); err != nil {
		return err
	}
	_, err := omission.Parse(maintainer.LeaveOut(spec.LeaveOut))
	return err
}

// validSnapshot checks whether what the source has can be copied.
func validSnapshot(spec *v1alpha1.ChangefeedSpec) error {
	switch {
	case spec.Snapshot == nil:
	case !strings.HasPrefix(spec.Source, "mysql://") || !strings.HasPrefix(spec.Sink, "mysql://"):
		return fmt.Errorf("snapshot: the source and the sink must be MariaDB (mysql://); other sinks get changes only")
	case spec.StartPosition != "":
		return fmt.Errorf("snapshot: remove the start position: a snapshot has a position of its own")
	case spec.DDL != nil && !*spec.DDL:
		return fmt.Errorf("snapshot: replicate DDL (ddl: true), because tables may be altered while they are copied")
	}
	return nil
}

// validForward checks whether rows can be forwarded as they were logged.
func validForward(spec *v1alpha1.ChangefeedSpec) error {
	switch {
	case spec.Forward != v1alpha1.ForwardAuto:
	case !strings.HasPrefix(spec.Source, "mysql://") || !strings.HasPrefix(spec.Sink, "mysql://"):
		return fmt.Errorf("forward: the source and the sink must be MariaDB (mysql://)")
	case spec.DDL != nil && !*spec.DDL:
		return fmt.Errorf("forward: replicate DDL (ddl: true), because a table that is altered at the sink alone would get values of other columns")
	}
	return nil
}

// validServer checks the URL of a server.
func validServer(what string, u *url.URL) error {
	if _, port, err := net.SplitHostPort(u.Host); err != nil || port == "" || u.User.Username() == "" {
		return fmt.Errorf("%s %q: the user, host or port is missing: use mysql://user@host:port", what, u)
	}
	if strings.Trim(u.Path, "/") != "" || u.Fragment != "" {
		return fmt.Errorf("%s %q: remove %q: schemas are selected by the filter, not by the URL", what, u, u.Path)
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return fmt.Errorf("%s %q: %w", what, u, err)
	}
	for name, values := range query {
		switch {
		case name == "tls" && len(values) == 1 && values[0] == "true", name == "tls-ca" && len(values) == 1 && values[0] != "":
		default:
			return fmt.Errorf("%s %q: %s=%s is not supported: use tls=true or tls-ca=FILE", what, u, name, strings.Join(values, ","))
		}
	}
	return nil
}

// tls returns the TLS configuration for a server: nil, unless the URL has tls=true or names the file of the authority that signed the
// server's certificate.
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
			return nil, fmt.Errorf("certificate file %q contains no PEM certificate: %w", ca, stream.ErrUnusable)
		}
	}
	return c, nil
}

// below refuses a directory outside of the one that the node is configured with: who creates a changefeed must not be able to choose
// where nodes write files.
func (o Opener) below(dir string) error {
	rel, err := filepath.Rel(o.Files, filepath.Clean(dir))
	if o.Files == "" || err != nil || rel == ".." || strings.HasPrefix(rel, ".."+string(filepath.Separator)) {
		return fmt.Errorf("sink file://%s: %w: the directory must be below the --file-sink-dir of the node, which is %q", dir, stream.ErrUnusable, o.Files)
	}
	return nil
}

// password reads a password file.
func (o Opener) password(name string) (string, error) {
	if name == "" {
		return "", nil
	}
	text, err := o.credential("password file", name)
	return trimNewlines(text), err
}

// trimNewlines removes the newline that editors put at the end of a file.
func trimNewlines(text string) string { return strings.TrimRight(text, "\r\n") }

// credential reads a file in the credentials directory. A name that leads anywhere else is refused: who creates a changefeed must not
// be able to choose which files nodes send to a server.
func (o Opener) credential(what, name string) (string, error) {
	if o.Credentials == "" {
		return "", fmt.Errorf("%s %q: this node has no directory for it: start the node with --credentials-dir", what, name)
	}
	if name != filepath.Base(name) || strings.HasPrefix(name, ".") {
		return "", fmt.Errorf("%s %q: use the name of a file in the --credentials-dir of the nodes, without a path", what, name)
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
