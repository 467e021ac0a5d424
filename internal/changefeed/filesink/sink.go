package filesink

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/fleet"
)

const (
	// defaultMaxBytes is when a file is followed by the next, and leastMaxBytes the least that can be asked for.
	defaultMaxBytes = 64 << 20
	leastMaxBytes   = 1 << 10

	dirMode, fileMode = 0o750, 0o640
)

// Options say where to write and for whom.
type Options struct {
	// Directory is the same on every node, and the changefeed's own.
	Directory string
	// MaxBytes is when a file is followed by the next; 64 MiB if 0. A transaction is never split.
	MaxBytes int64
	// Changefeed is whose files they are: namespace/name/uid.
	Changefeed string
	// May says whether the node's lease is beyond doubt; nil for always.
	May func() bool
}

// Parse reads the URL of a sink: file:///directory?maxBytes=67108864.
func Parse(u *url.URL) (Options, error) {
	o := Options{Directory: filepath.Clean(u.Path), MaxBytes: defaultMaxBytes}
	if u.Host != "" || u.User != nil || u.Opaque != "" || u.Fragment != "" || !filepath.IsAbs(u.Path) || o.Directory == "/" {
		return o, fmt.Errorf("sink %q: name a directory by its whole path, as file:///directory", u.Redacted())
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return o, fmt.Errorf("sink %q: %w", u.Redacted(), err)
	}
	for key, values := range query {
		if key != "maxBytes" {
			return o, fmt.Errorf("sink %q: there is no parameter %q: use maxBytes", u.Redacted(), key)
		}
		text := values[len(values)-1]
		if o.MaxBytes, err = strconv.ParseInt(text, 10, 64); err != nil || o.MaxBytes < leastMaxBytes {
			return o, fmt.Errorf("sink %q: maxBytes=%s is not a number of bytes from %d on", u.Redacted(), text, leastMaxBytes)
		}
	}
	return o, nil
}

// Sink writes one directory for one changefeed. It implements stream.Sink.
type Sink struct {
	options Options

	mu   sync.Mutex
	root *os.Root // once the directory is there; nothing outside of it is touched
}

var _ stream.Sink = (*Sink)(nil)

// Open prepares to write. It touches nothing yet.
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

// directory makes the directory if it is not there.
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

// wrap names the directory. What a person has to permit does not get better by trying again.
func (s *Sink) wrap(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("sink %s: let the node's user write there: %w (%w)", s.options.Directory, stream.ErrUnusable, err)
	}
	return fmt.Errorf("sink %s: %w", s.options.Directory, err)
}

func (s *Sink) may() error {
	if s.options.May != nil && !s.options.May() {
		return fmt.Errorf("sink %s: %w: another node may own the table", s.options.Directory, fleet.ErrLeaseInDoubt)
	}
	return nil
}

// Acquire implements stream.Sink. What an earlier owner has under way it cannot wait out; see the package.
func (s *Sink) Acquire(_ context.Context, table stream.Table, epoch stream.Epoch, start stream.Position) (stream.Writer, stream.Position, error) {
	j, err := s.journal(directoryOf(table), s.owner(table, epoch))
	if err != nil {
		return nil, 0, err
	}
	if !j.found {
		j.position = start
	}
	return &writer{journal: j, table: table}, j.position, nil
}

func (s *Sink) owner(table stream.Table, epoch stream.Epoch) owner {
	return owner{Changefeed: s.options.Changefeed, Table: table, Epoch: epoch}
}

// Known are the tables that were written and have been neither dropped nor renamed.
func (s *Sink) Known(context.Context) ([]stream.Table, error) {
	root, err := s.directory()
	if err != nil {
		return nil, err
	}
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil, s.wrap(err)
	}
	var list []stream.Table
	for _, e := range entries {
		if !e.IsDir() || e.Name() == definitions {
			continue
		}
		o, err := readOwner(root, e.Name())
		if err != nil {
			return nil, s.wrap(err)
		}
		if _, err := root.Stat(filepath.Join(e.Name(), goneFile)); o == nil || o.Changefeed != s.options.Changefeed || err == nil {
			continue
		}
		list = append(list, o.Table)
	}
	return list, nil
}
