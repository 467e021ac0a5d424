package filesink

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/fleet"
)

const (
	// defaultMaxBytes is the default of maxBytes, and leastMaxBytes its minimum.
	defaultMaxBytes = 64 << 20
	leastMaxBytes   = 1 << 10

	dirMode, fileMode = 0o750, 0o640
)

// Options of a sink.
type Options struct {
	// Directory is the same on every node, and used by this changefeed only.
	Directory string
	// MaxBytes is the size at which a new file is begun; 64 MiB if 0. A transaction is never split.
	MaxBytes int64
	// Changefeed is namespace/name/uid.
	Changefeed string
	// May reports whether the node's lease is held and not in doubt; nil for always.
	May func() bool
}

// Parse parses the URL of a sink: file:///directory?maxBytes=67108864.
func Parse(u *url.URL) (Options, error) {
	o := Options{Directory: filepath.Clean(u.Path), MaxBytes: defaultMaxBytes}
	if u.Host != "" || u.User != nil || u.Opaque != "" || u.Fragment != "" || !filepath.IsAbs(u.Path) || o.Directory == "/" {
		return o, fmt.Errorf("sink %q: use the absolute path of a directory, as in file:///directory", u.Redacted())
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return o, fmt.Errorf("sink %q: %w", u.Redacted(), err)
	}
	for key, values := range query {
		if key != "maxBytes" {
			return o, fmt.Errorf("sink %q: unknown parameter %q: the only one is maxBytes", u.Redacted(), key)
		}
		text := values[len(values)-1]
		if o.MaxBytes, err = strconv.ParseInt(text, 10, 64); err != nil || o.MaxBytes < leastMaxBytes {
			return o, fmt.Errorf("sink %q: maxBytes=%s must be a number of bytes, at least %d", u.Redacted(), text, leastMaxBytes)
		}
	}
	return o, nil
}

// Sink writes one directory for one changefeed. It implements stream.Sink.
type Sink struct {
	options Options

	mu   sync.Mutex
	root *os.Root // nil until the directory is created or found
}

var _ stream.Sink = (*Sink)(nil)

// Open makes a sink. It does not access the directory yet.
func Open(o Options) *Sink {
	if o.MaxBytes <= 0 {
		o.MaxBytes = defaultMaxBytes
	}
	return &Sink{options: o}
}

// Close implements stream.Sink.
func (s *Sink) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.root == nil {
		return nil
	}
	err := s.root.Close()
	s.root = nil
	return err
}

// Check implements stream.Sink.
func (s *Sink) Check(context.Context) error {
	_, err := s.directory()
	return err
}

// directory opens the directory, and creates it if it does not exist.
func (s *Sink) directory() (*os.Root, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.root != nil {
		return s.root, nil
	}
	if err := os.MkdirAll(s.options.Directory, dirMode); err != nil {
		return nil, s.wrap(err)
	}
	root, err := os.OpenRoot(s.options.Directory)
	if err != nil {
		return nil, s.wrap(err)
	}
	s.root = root
	return root, nil
}

// wrap adds the directory to an error. Missing permissions make the sink unusable.
func (s *Sink) wrap(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("sink %s: the user that the node runs as may not write to the directory; permit it: %w (%w)", s.options.Directory, stream.ErrUnusable, err)
	}
	return fmt.Errorf("sink %s: %w", s.options.Directory, err)
}

func (s *Sink) may() error {
	if s.options.May != nil && !s.options.May() {
		return fmt.Errorf("sink %s: %w: no files are written until it is renewed", s.options.Directory, fleet.ErrLeaseInDoubt)
	}
	return nil
}

// Acquire implements stream.Sink. It cannot wait for writes of an earlier owner; see the package comment.
func (s *Sink) Acquire(_ context.Context, table stream.Identity, epoch stream.Epoch, start stream.Position) (stream.Writer, stream.Position, error) {
	j, err := s.journal(directoryOf(table.Table), s.owner(table, epoch))
	if err != nil {
		return nil, 0, err
	}
	if !j.found {
		j.position = start
	}
	return &writer{journal: j, table: table.Table}, j.position, nil
}

func (s *Sink) owner(table stream.Identity, epoch stream.Epoch) owner {
	return owner{Changefeed: s.options.Changefeed, Table: table.Table, Since: table.Since, Epoch: epoch}
}

// Known are the tables that were written, and neither dropped nor renamed since.
func (s *Sink) Known(ctx context.Context) ([]stream.Table, error) {
	held, err := s.Holders(ctx)
	var list []stream.Table
	for t, h := range held {
		if !h.Over {
			list = append(list, t)
		}
	}
	slices.SortFunc(list, stream.CompareTables)
	return list, err
}

// Holders are which tables have the names that tables of this changefeed have had.
func (s *Sink) Holders(context.Context) (map[stream.Table]stream.Holder, error) {
	root, err := s.directory()
	if err != nil {
		return nil, err
	}
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil, s.wrap(err)
	}
	held := map[stream.Table]stream.Holder{}
	for _, e := range entries {
		if !e.IsDir() || e.Name() == ddlDirectory {
			continue
		}
		if err := s.hold(root, e.Name(), held); err != nil {
			return nil, err
		}
	}
	return held, nil
}

// HoldersOf are which tables have some names.
func (s *Sink) HoldersOf(_ context.Context, names []stream.Table) (map[stream.Table]stream.Holder, error) {
	root, err := s.directory()
	if err != nil {
		return nil, err
	}
	held := map[stream.Table]stream.Holder{}
	for _, t := range names {
		if err := s.hold(root, directoryOf(t), held); err != nil {
			return nil, err
		}
	}
	return held, nil
}

// hold adds which table has the name that a directory is of, if that belongs to this changefeed.
func (s *Sink) hold(root *os.Root, dir string, held map[stream.Table]stream.Holder) error {
	o, err := readOwner(root, dir)
	if err != nil || o == nil || o.Changefeed != s.options.Changefeed {
		return s.wrap(err)
	}
	held[o.Table], err = o.holder(root, dir)
	return s.wrap(err)
}
