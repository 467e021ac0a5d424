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

// definitions is the directory of definitions that more than one table, or none, goes through. No table's has this name: theirs have a dot.
const definitions = "ddl"

// aboutSchema is a statement about a schema. Others that concern no table are about users, triggers and the like; they may hold
// passwords, and are not written.
var aboutSchema = regexp.MustCompile(`(?is)^\s*(create|alter|drop)\s+(or\s+replace\s+)?(database|schema)\b`)

// ExecuteDDL writes a definition once: where its position has been passed, it is there. Those of one table have their place among the
// table's changes, and its owner writes them; the others have a directory that belongs to the maintainer.
func (s *Sink) ExecuteDDL(_ context.Context, position stream.Position, ddl *stream.DDL, epoch stream.Epoch) error {
	if ddl.Kind == stream.OtherDDL && !aboutSchema.MatchString(ddl.Statement) {
		return nil
	}
	l := &line{
		Position: position, Schema: ddl.Schema, Kind: kindDefinition, Change: 1, Changes: 1,
		Definition: ddl.Kind, Tables: ddl.Tables, Becomes: ddl.Becomes, Statement: ddl.Statement,
	}
	dir, o := definitions, s.owner(stream.Table{}, epoch)
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

// DDLExecuted says whether a definition that more than one table, or none, goes through was written.
func (s *Sink) DDLExecuted(_ context.Context, position stream.Position) (bool, error) {
	root, err := s.directory()
	if err != nil {
		return false, err
	}
	j := &journal{root: root, dir: definitions}
	err = j.find(look)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, s.wrap(err)
	}
	return j.found && j.position >= position, nil
}

// mark keeps account of which tables are there. A definition that is seen to again does it again: those after it are, too.
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
