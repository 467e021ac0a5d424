package mariadb

import (
	"slices"
	"strings"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// statement reads the words of a statement one by one.
type statement struct {
	words []token
	at    int
	// schema that unqualified names are in.
	schema string
	// fold makes names lower case, as a server with lower_case_table_names=1 does.
	fold bool
}

func newStatement(text, schema string, c sessionContext, fold bool) *statement {
	l := &lexer{text: text, ansiQuotes: c.sqlMode&modeANSIQuotes != 0, noEscapes: c.sqlMode&modeNoBackslashEscapes != 0}
	s := &statement{schema: schema, fold: fold}
	for {
		t, ok := l.next()
		if !ok {
			return s
		}
		s.words = append(s.words, t)
	}
}

func (s *statement) peek() token {
	if s.at < len(s.words) {
		return s.words[s.at]
	}
	return token{}
}

// accept passes words if they come next, in this order.
func (s *statement) accept(words ...string) bool {
	for i, w := range words {
		if s.at+i >= len(s.words) || !s.words[s.at+i].is(w) {
			return false
		}
	}
	s.at += len(words)
	return true
}

// acceptAny passes one of several words.
func (s *statement) acceptAny(words ...string) bool {
	if s.at < len(s.words) && s.words[s.at].is(words...) {
		s.at++
		return true
	}
	return false
}

// name reads the name of a table, with its schema or without.
func (s *statement) name() (stream.Table, bool) {
	first, ok := s.identifier()
	if !ok {
		return stream.Table{}, false
	}
	if !s.accept(".") {
		return stream.Table{Schema: s.schema, Name: first}, true
	}
	second, ok := s.identifier()
	return stream.Table{Schema: first, Name: second}, ok
}

func (s *statement) identifier() (string, bool) {
	t := s.peek()
	if !t.name {
		return "", false
	}
	s.at++
	if s.fold {
		return strings.ToLower(t.text), true
	}
	return t.text, true
}

// names reads a list of names.
func (s *statement) names() []stream.Table {
	var tables []stream.Table
	for {
		t, ok := s.name()
		if !ok {
			return tables
		}
		tables = append(tables, t)
		if !s.accept(",") {
			return tables
		}
	}
}

// skipTo passes everything up to and including a word outside brackets; false if it does not come.
func (s *statement) skipTo(words ...string) bool {
	depth := 0
	for ; s.at < len(s.words); s.at++ {
		switch t := s.words[s.at]; {
		case t.is("("):
			depth++
		case t.is(")"):
			depth--
		case depth == 0 && t.is(words...):
			s.at++
			return true
		}
	}
	return false
}

// dml are the first words of statements that change rows. With binlog_format=ROW they are not logged.
var dml = []string{"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "CALL", "WITH", "DO"}

func (s *statement) isDML() bool { return s.peek().is(dml...) }

// empty reports whether there is nothing but comments.
func (s *statement) empty() bool { return len(s.words) == 0 }

// parseDDL finds out what a statement does to tables. It parses no more than it has to: the server at the sink executes the statement.
func parseDDL(text string, s *statement) *stream.DDL {
	d := &stream.DDL{Kind: stream.OtherDDL, Schema: s.schema, Statement: text}
	switch {
	case s.accept("CREATE"):
		s.create(d)
	case s.accept("DROP"):
		s.drop(d)
	case s.accept("RENAME"):
		s.rename(d)
	case s.accept("TRUNCATE"):
		s.accept("TABLE")
		s.concerns(d, stream.TruncateTable)
	case s.accept("ALTER"):
		s.alter(d)
	}
	return d
}

// concerns sets the one table whose name comes next.
func (s *statement) concerns(d *stream.DDL, kind stream.DDLKind) {
	if t, ok := s.name(); ok {
		d.Kind, d.Tables = kind, []stream.Table{t}
	}
}

func (s *statement) create(d *stream.DDL) {
	s.accept("OR", "REPLACE")
	switch {
	case s.accept("TABLE"):
		s.accept("IF", "NOT", "EXISTS")
		s.concerns(d, stream.CreateTable)
	case s.acceptAny("DATABASE", "SCHEMA"):
		s.accept("IF", "NOT", "EXISTS")
		s.database(d)
	default:
		s.index(d)
	}
}

// index reads CREATE and DROP INDEX, which alter the table after ON.
func (s *statement) index(d *stream.DDL) {
	s.acceptAny("ONLINE", "OFFLINE")
	s.acceptAny("UNIQUE", "FULLTEXT", "SPATIAL")
	if s.accept("INDEX") && s.skipTo("ON") {
		s.concerns(d, stream.AlterTable)
	}
}

func (s *statement) drop(d *stream.DDL) {
	switch {
	case s.acceptAny("TABLE", "TABLES"):
		s.accept("IF", "EXISTS")
		if tables := s.names(); len(tables) > 0 {
			d.Kind, d.Tables = stream.DropTable, tables
		}
	case s.acceptAny("DATABASE", "SCHEMA"):
		s.accept("IF", "EXISTS")
		s.database(d)
	default:
		s.index(d)
	}
}

// database sets the schema that a statement creates, alters or drops.
func (s *statement) database(d *stream.DDL) {
	if name, ok := s.identifier(); ok {
		d.Schema = name
	}
}

func (s *statement) rename(d *stream.DDL) {
	if !s.acceptAny("TABLE", "TABLES") {
		return
	}
	s.accept("IF", "EXISTS")
	var r renames
	for {
		from, ok := s.name()
		if !ok {
			break
		}
		if s.acceptAny("WAIT") {
			s.at++
		}
		s.accept("NOWAIT")
		if !s.accept("TO") {
			break
		}
		to, ok := s.name()
		if !ok {
			break
		}
		r.add(from, to)
		if !s.accept(",") {
			break
		}
	}
	r.into(d)
}

// renames combines the steps of one statement, which are done from left to right, into the new name of each table.
type renames struct{ from, to []stream.Table }

func (r *renames) add(from, to stream.Table) {
	if i := slices.Index(r.to, from); i >= 0 {
		r.to[i] = to
		return
	}
	r.from, r.to = append(r.from, from), append(r.to, to)
}

func (r *renames) into(d *stream.DDL) {
	for i := range r.from {
		if r.from[i] != r.to[i] {
			d.Tables, d.Becomes = append(d.Tables, r.from[i]), append(d.Becomes, r.to[i])
		}
	}
	if len(d.Tables) > 0 {
		d.Kind = stream.RenameTable
	}
}

func (s *statement) alter(d *stream.DDL) {
	s.acceptAny("ONLINE", "OFFLINE")
	s.accept("IGNORE")
	switch {
	case s.acceptAny("DATABASE", "SCHEMA"):
		s.database(d)
	case s.accept("TABLE"):
		s.accept("IF", "EXISTS")
		s.concerns(d, stream.AlterTable)
		if len(d.Tables) == 1 {
			s.clauses(d)
		}
	}
}

// clauses looks for clauses that concern other tables: RENAME, and partitions that are exchanged or converted.
func (s *statement) clauses(d *stream.DDL) {
	table := d.Tables[0]
	for first := true; first || s.skipTo(","); first = false {
		switch {
		case s.accept("RENAME"):
			if s.peek().is("COLUMN", "INDEX", "KEY") {
				continue
			}
			s.acceptAny("TO", "AS", "=")
			if to, ok := s.name(); ok && to != table {
				d.Kind, d.Becomes = stream.RenameTable, []stream.Table{to}
			}
		case s.accept("EXCHANGE", "PARTITION"):
			if s.skipTo("TABLE") {
				s.also(d)
			}
		case s.accept("CONVERT", "PARTITION"):
			if s.skipTo("TABLE") {
				s.also(d)
			}
		case s.accept("CONVERT", "TABLE"):
			s.also(d)
		}
	}
}

func (s *statement) also(d *stream.DDL) {
	if t, ok := s.name(); ok {
		d.Tables = append(d.Tables, t)
	}
}
