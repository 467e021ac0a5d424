package filesink

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// ddlDirectory is the directory of DDL that does not concern exactly one table. The directories of tables have a dot in their names.
const ddlDirectory = "ddl"

// aboutSchema matches DDL of a schema. Other DDL that concerns no table is about users, triggers and the like. It may contain
// passwords, and is not written.
var aboutSchema = regexp.MustCompile(`(?is)^\s*(create|alter|drop)\s+(or\s+replace\s+)?(database|schema)\b`)

// ExecuteDDL writes DDL once: if the files have reached its position, it was written. DDL of one table is written by the table's owner
// among its changes; other DDL has a directory that the maintainer owns.
func (s *Sink) ExecuteDDL(_ context.Context, position stream.Position, ddl *stream.DDL, epoch stream.Epoch) error {
	if ddl.Kind == stream.OtherDDL && !aboutSchema.MatchString(ddl.Statement) {
		return nil
	}
	l := &line{
		Position: position, Schema: ddl.Schema, Kind: kindDDL, Change: 1, Changes: 1,
		DDL: ddl.Kind, Tables: ddl.Tables, Becomes: ddl.Becomes, Statement: ddl.Statement,
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
		if err := j.append(b.Bytes(), position); err != nil {
			return err
		}
	}
	return s.wrap(mark(j.root, ddl))
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

// mark records which tables exist. It is repeated with a DDL that is executed again: the DDL after that is executed again, too.
func mark(root *os.Root, ddl *stream.DDL) error {
	made := ddl.Becomes
	switch ddl.Kind {
	case stream.CreateTable:
		made = ddl.Tables
	case stream.DropTable, stream.RenameTable:
		for _, t := range ddl.Tables {
			if err := root.WriteFile(filepath.Join(directoryOf(t), goneFile), nil, fileMode); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	for _, t := range made {
		if err := root.Remove(filepath.Join(directoryOf(t), goneFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
