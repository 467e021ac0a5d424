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
	dir, o := ddlDirectory, s.owner(stream.Table{}, epoch)
	if ddl.Alone() {
		table := ddl.Tables[0]
		dir, o = directoryOf(table), s.owner(table, epoch)
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
	return s.wrap(mark(j.root, ddl, gone))
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

// mark records which tables exist. It is repeated with a DDL that is executed again: the DDL after that is executed again, too.
func mark(root *os.Root, ddl *stream.DDL, gone []stream.Table) error {
	after := ddl.After()
	for _, t := range slices.Concat(ddl.Names(), gone) {
		if slices.Contains(after, t) || slices.Contains(ddl.Becomes, t) || slices.Contains(ddl.References, t) {
			continue
		}
		if err := root.WriteFile(filepath.Join(directoryOf(t), goneFile), nil, fileMode); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	made := after
	for _, t := range made {
		if err := root.Remove(filepath.Join(directoryOf(t), goneFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
