package changefeed

import (
	"errors"
	"fmt"
	"log/slog"
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
		password, err := o.password(c.SourcePasswordFile)
		if err != nil {
			return nil, err
		}
		return mariadb.Open(mariadb.Options{Address: u.Host, User: u.User.Username(), Password: password, Logger: o.Log})
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
		password, err := o.password(c.SinkPasswordFile)
		if err != nil {
			return nil, err
		}
		return sqlsink.Open(sqlsink.Options{
			Address: u.Host, User: u.User.Username(), Password: password, Changefeed: key.Namespace + "/" + key.Name + "/" + key.UID,
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
	}{{"source", spec.Source, []string{"mysql", "datagen"}}, {"sink", spec.Sink, []string{"mysql", "file", "blackhole"}}} {
		u, err := url.Parse(end.text)
		if err != nil {
			return fmt.Errorf("%s: %w", end.what, err)
		}
		if _, set := u.User.Password(); set {
			return fmt.Errorf("%s: leave the password out of the URL: everybody who may read the object would know it; use a password file", end.what)
		}
		if !slices.Contains(end.schemes, u.Scheme) {
			return fmt.Errorf("%s %q: use %s://", end.what, end.text, strings.Join(end.schemes, ":// or "))
		}
		if u.Scheme == "file" {
			if _, err := filesink.Parse(u); err != nil {
				return err
			}
		}
	}
	if _, err := ParsePosition(spec.StartPosition); err != nil {
		return err
	}
	_, err := ParseFilter(spec.Filter)
	return err
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

// password reads a file below the credentials directory. A name that leads anywhere else is refused: whoever writes a
// changefeed must not choose which files nodes send to a server.
func (o Opener) password(name string) (string, error) {
	if name == "" {
		return "", nil
	}
	if o.Credentials == "" {
		return "", errors.New("a password file is named, and this node has no --credentials-dir")
	}
	if name != filepath.Base(name) || strings.HasPrefix(name, ".") {
		return "", fmt.Errorf("password file %q: name a file in the nodes' --credentials-dir, without a path", name)
	}
	root, err := os.OpenRoot(o.Credentials)
	if err != nil {
		return "", err
	}
	defer root.Close()
	data, err := root.ReadFile(name)
	if err != nil {
		return "", fmt.Errorf("password file %q: %w", name, err)
	}
	return strings.TrimRight(string(data), "\r\n"), nil
}
