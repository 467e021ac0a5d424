package filesink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// ddlDirectory is the directory of DDL that does not concern exactly one table. The directories of tables have a dot in their names.
const ddlDirectory = "ddl"

// ExecuteDDL writes DDL once: if the files have reached its position, it was written. DDL of one table is written by the table's owner
// among its changes; other DDL has a directory that the maintainer owns.
func (s *Sink) ExecuteDDL(ctx context.Context, position stream.Position, ddl *stream.DDL, epoch stream.Epoch) error {
	kind := ddl.Kind
	switch kind {
	case stream.OtherDDL: // it may contain passwords
		return nil
	case stream.UnknownDDL, stream.UnreadableRows:
		return fmt.Errorf("sink %s: the statement at position %d cannot be executed: %w", s.options.Directory, position, stream.ErrUnusable)
	case stream.SetSchema, stream.DropSchema:
		kind = stream.OtherDDL
	}
	l := &line{
		Position: position, Schema: ddl.Schema, Kind: kindDDL, Change: 1, Changes: 1,
		DDL: kind, Tables: slices.Concat(ddl.Tables, ddl.Makes, ddl.Removes), Becomes: ddl.Becomes, Statement: ddl.Statement,
	}
	dir, o := ddlDirectory, s.owner(stream.Identity{}, epoch)
	if ddl.Alone() {
		table := ddl.Tables[0]
		dir, o = directoryOf(table), s.owner(table.Since(stream.AnySince), epoch) // its dispatcher is the owner already
		l.Schema, l.Table = table.Schema, table.Name
	}
	j, err := s.journal(dir, o)
	if err != nil {
		return err
	}
	if !j.found || j.position < position {
		var b bytes.Buffer
		if err := l.encode(&b); err != nil {
			return err
		}
		if err := j.append(b.Bytes(), position, 0); err != nil {
			return err
		}
	}
	gone, err := s.dropped(ctx, ddl)
	if err != nil {
		return err
	}
	return s.wrap(s.mark(j.root, position, ddl, gone, epoch))
}

// DDLExecuted reports whether the DDL at a position, of those in the directory ddl, was written.
func (s *Sink) DDLExecuted(_ context.Context, position stream.Position) (bool, error) {
	root, err := s.directory()
	if err != nil {
		return false, err
	}
	j := &journal{root: root, dir: ddlDirectory}
	err = j.find(look)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, s.wrap(err)
	}
	return j.found && j.position >= position, nil
}

// dropped are the tables that a DROP DATABASE drops.
func (s *Sink) dropped(ctx context.Context, ddl *stream.DDL) ([]stream.Table, error) {
	if ddl.Kind != stream.DropSchema {
		return nil, nil
	}
	known, err := s.Known(ctx)
	return slices.DeleteFunc(known, func(t stream.Table) bool { return t.Schema != ddl.Schema || !ddl.Filter.Allows(t) }), err
}

// mark records which tables have their names, as of a DDL. It is repeated with a DDL that is executed again, and leaves alone what a later one has
// done to a name.
func (s *Sink) mark(root *os.Root, position stream.Position, ddl *stream.DDL, gone []stream.Table, epoch stream.Epoch) error {
	after := ddl.After()
	for _, t := range slices.Concat(ddl.Names(), gone) {
		if slices.Contains(after, t) || slices.Contains(ddl.Becomes, t) || slices.Contains(ddl.References, t) {
			continue
		}
		if err := s.end(root, directoryOf(t), position); err != nil {
			return err
		}
	}
	gives := ddl.Gives()
	for _, t := range after {
		if err := s.begin(root, directoryOf(t), position, slices.Contains(gives, t), t, epoch); err != nil {
			return err
		}
	}
	return nil
}

// end records that the table of a directory does not have its name any more, unless a later one has it.
func (s *Sink) end(root *os.Root, dir string, position stream.Position) error {
	o, err := readOwner(root, dir)
	if err != nil || o != nil && o.Since >= position {
		return err
	}
	err = root.WriteFile(filepath.Join(dir, goneFile), strconv.AppendUint(nil, uint64(position), 10), fileMode)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// begin records that a table has the name of a directory, and since when if a DDL gives it the name. Without a directory there was none of
// the name before.
func (s *Sink) begin(root *os.Root, dir string, position stream.Position, gives bool, t stream.Table, epoch stream.Epoch) error {
	o, err := readOwner(root, dir)
	if err != nil || o == nil || o.Changefeed != s.options.Changefeed {
		return err
	}
	if held, err := o.holder(root, dir); err != nil || held.Since > position {
		return err
	}
	if gives && o.Since < position {
		if err := writeOwner(root, dir, s.owner(t.Since(position), stream.Epoch{Placement: epoch.Placement})); err != nil {
			return err
		}
	}
	if err := root.Remove(filepath.Join(dir, goneFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
