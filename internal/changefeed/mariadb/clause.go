package mariadb

import (
	"slices"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// divide tells a DDL of which clauses it consists. They stay unknown if it takes them from somewhere else.
func (s *statement) divide(d *stream.DDL) {
	switch {
	case s.form == formSequence:
		d.Clauses = []stream.Clause{}
	case s.form == formColumns:
		s.definitions(d)
	case s.form == formClauses:
		d.Clauses = []stream.Clause{}
		for _, r := range s.split(s.body, len(s.words)) {
			d.Clauses = append(d.Clauses, s.clause(r.from, r.to))
			s.order(d, r)
		}
	case s.form == formIndex:
		d.Clauses = []stream.Clause{s.indexClause()}
	}
}

// order tells a DDL what the effect of its last clause depends on the order of rows in: AUTO_INCREMENT numbers them, and IGNORE keeps the first
// of those that are equal in a unique key.
func (s *statement) order(d *stream.DDL, r wordRange) {
	clause, first := d.Clauses[len(d.Clauses)-1], s.words[r.from]
	numbers := slices.ContainsFunc(s.columnsOf(r.from, r.to), s.autoIncrements)
	switch {
	case numbers && first.is("ADD"), d.Ignores && (clause.Kind == stream.UniqueClause || clause.Constraint == keyConstraint):
		d.ByOrder = append(d.ByOrder, "")
	case numbers && first.is("MODIFY", "CHANGE"):
		d.ByOrder = append(d.ByOrder, clause.Column)
	}
}

// keyConstraint is the constraint of a column that is a key.
const keyConstraint = "a key"

// form is how a statement about one table is made up.
type form uint8

const (
	formOther form = iota
	// formColumns: definitions in brackets follow the name of the table. formSequence: it is a sequence.
	formColumns
	formSequence
	// formClauses: clauses follow the name of the table.
	formClauses
	// formIndex: it creates or drops an index.
	formIndex
)

// wordRange are words from one on, up to another and without it.
type wordRange struct{ from, to int }

// split splits words at the commas outside brackets.
func (s *statement) split(from, to int) (list []wordRange) {
	for to > from && s.words[to-1].is(";") {
		to--
	}
	depth, first := 0, from
	for i := from; i < to; i++ {
		switch t := s.words[i]; {
		case t.is("("):
			depth++
		case t.is(")"):
			depth--
		case depth == 0 && t.is(","):
			list, first = append(list, wordRange{first, i}), i+1
		}
	}
	if first < to {
		list = append(list, wordRange{first, to})
	}
	return list
}

// definitions are the clauses of CREATE TABLE. Columns that come from a query are not known.
func (s *statement) definitions(d *stream.DDL) {
	if s.body >= len(s.words) || !s.words[s.body].is("(") {
		return
	}
	at := s.at
	defer func() { s.at = at }()
	s.at = s.body + 1
	if !s.skipBracket() {
		return
	}
	end := s.at - 1
	for i := end; i < len(s.words); i++ {
		if s.words[i].is("SELECT") || s.words[i].is("VALUES") && i+1 < len(s.words) && s.words[i+1].is("(") { // VALUES of a partition has another word
			return
		}
	}
	clauses := []stream.Clause{}
	for _, r := range s.split(s.body+1, end) {
		clauses = append(clauses, s.definition(r.from, r.to))
	}
	d.Clauses, d.Rest = clauses, s.mentions(end+1, len(s.words))
}

// of is a clause of certain words.
func (s *statement) of(kind stream.ClauseKind, from, to int) stream.Clause {
	return stream.Clause{Kind: kind, From: s.words[from].from, To: s.words[to-1].to}
}

// other is a clause that is neither a column nor a key.
func (s *statement) other(from, to int) stream.Clause {
	p := s.of(stream.OtherClause, from, to)
	p.Mentions, p.Numbers = s.mentions(from, to), s.readsSequence(from, to) || slices.ContainsFunc(s.columnsOf(from, to), s.autoIncrements)
	return p
}

// readsSequence reports whether words have the value of a sequence. Each of these words may be the name of a column.
func (s *statement) readsSequence(from, to int) bool {
	for i := from; i < to; i++ {
		at := i
		switch t := s.words[i]; {
		case s.callsSequence(i):
			return true
		case t.is("NEXTVAL", "CURRVAL") && i > from && s.words[i-1].is("."): // with sql_mode=ORACLE
			return true
		case s.pass(&at, to, "NEXT", "VALUE", "FOR"), s.pass(&at, to, "PREVIOUS", "VALUE", "FOR"):
			return true
		}
	}
	return false
}

// autoIncrements reports whether the words that follow the name of a column number it. AUTO_INCREMENT and SERIAL may be names, too.
func (s *statement) autoIncrements(r wordRange) bool {
	depth := 0
	for i := r.from; i < r.to; i++ {
		at := i
		switch t := s.words[i]; {
		case t.is("("):
			depth++
		case t.is(")"):
			depth--
		case depth > 0, i > r.from && s.words[i-1].is("AFTER", "REFERENCES", "CONSTRAINT", "."):
		case t.is("AUTO_INCREMENT"), i == r.from && t.is("SERIAL"), s.pass(&at, r.to, "SERIAL", "DEFAULT", "VALUE"):
			return true
		}
	}
	return false
}

// columnsOf are the words that follow the name of each column that a clause of ALTER TABLE defines.
func (s *statement) columnsOf(from, to int) (list []wordRange) {
	at := from + 1
	switch first := s.words[from]; {
	case first.is("ADD"):
		named := s.pass(&at, to, "COLUMN")
		s.passIfExists(&at, to)
		if at < to && s.words[at].is("(") {
			for _, r := range s.split(at+1, s.closing(at, to)) {
				if !s.isKey(r.from, r.to) {
					list = append(list, wordRange{r.from + 1, r.to})
				}
			}
			return list
		}
		if at < to && !named && s.isKey(at, to) {
			return nil
		}
		return []wordRange{{min(at+1, to), to}}
	case first.is("MODIFY", "CHANGE"):
		s.pass(&at, to, "COLUMN")
		s.passIfExists(&at, to)
		if first.is("CHANGE") {
			at++
		}
		return []wordRange{{min(at+1, to), to}}
	}
	return nil
}

// pass passes words if they come at a place, in this order.
func (s *statement) pass(at *int, to int, words ...string) bool {
	for i, w := range words {
		if *at+i >= to || !s.words[*at+i].is(w) {
			return false
		}
	}
	*at += len(words)
	return true
}

// passIfExists passes IF EXISTS or IF NOT EXISTS.
func (s *statement) passIfExists(at *int, to int) bool {
	return s.pass(at, to, "IF", "EXISTS") || s.pass(at, to, "IF", "NOT", "EXISTS")
}

// definition is a column or a key that a table is created with.
func (s *statement) definition(from, to int) stream.Clause {
	if p, ok := s.key(from, from, to); ok {
		return p
	}
	return s.column(from, from, to)
}

// isKey reports whether words define a key or a constraint, and not a column.
func (s *statement) isKey(at, to int) bool {
	first := s.words[at]
	return first.is("CONSTRAINT", "UNIQUE", "PRIMARY", "KEY", "INDEX", "FULLTEXT", "SPATIAL", "FOREIGN", "CHECK") || first.is("PERIOD") && at+1 < to && s.words[at+1].is("FOR")
}

// key is a clause of words that define a key or a constraint, which begins at a word; ok is false if they define a column.
func (s *statement) key(from, at, to int) (p stream.Clause, ok bool) {
	if !s.isKey(at, to) {
		return p, false
	}
	switch first := s.words[at]; {
	case first.is("CONSTRAINT"):
		for ; at < to && !s.words[at].is("UNIQUE", "PRIMARY", "FOREIGN", "CHECK"); at++ {
		}
		if at == to || !s.words[at].is("UNIQUE", "PRIMARY") {
			return s.other(from, to), true
		}
		return s.keyOf(stream.UniqueClause, from, at, to), true
	case first.is("UNIQUE", "PRIMARY"):
		return s.keyOf(stream.UniqueClause, from, at, to), true
	case first.is("KEY", "INDEX", "FULLTEXT", "SPATIAL"):
		return s.keyOf(stream.KeyClause, from, at, to), true
	}
	return s.other(from, to), true
}

// keyOf reads the name of a key and its columns.
func (s *statement) keyOf(kind stream.ClauseKind, from, at, to int) stream.Clause {
	p := s.of(kind, from, to)
	for ; at < to && s.words[at].is("UNIQUE", "PRIMARY", "FULLTEXT", "SPATIAL", "KEY", "INDEX", "IF", "NOT", "EXISTS"); at++ {
	}
	if at < to && s.words[at].name && !s.words[at].is("USING", "TYPE") {
		p.Key = s.words[at].text
		at++
	}
	for ; at < to && !s.words[at].is("("); at++ {
	}
	p.Columns = s.keyColumns(at, to)
	return p
}

// keyColumns are the columns of a key, which are in the brackets that begin at a word.
func (s *statement) keyColumns(at, to int) (names []string) {
	end := s.closing(at, to)
	if end == 0 {
		return nil
	}
	for _, r := range s.split(at+1, end) {
		names = append(names, s.words[r.from].text)
	}
	return names
}

// closing is the bracket that closes the one at a word; 0 if there is none.
func (s *statement) closing(at, to int) int {
	depth := 0
	for i := at; i < to; i++ {
		switch t := s.words[i]; {
		case t.is("("):
			depth++
		case t.is(")"):
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return 0
}

// column is a clause of words that define a column, whose name is at a word.
func (s *statement) column(from, at, to int) stream.Clause {
	p := s.of(stream.ColumnClause, from, to)
	if at >= to {
		return s.other(from, to)
	}
	p.Column = s.words[at].text
	s.definesColumn(&p, at+1, to)
	return p
}

// definesColumn reads what follows the name of a column.
func (s *statement) definesColumn(p *stream.Clause, from, to int) {
	p.Mentions, p.Numbers = s.mentions(from, to), s.readsSequence(from, to) || s.autoIncrements(wordRange{from, to})
	depth := 0
	for i := from; i < to; i++ {
		switch t := s.words[i]; {
		case t.is("("):
			depth++
		case t.is(")"):
			depth--
		case depth > 0:
		case t.is("PRIMARY", "UNIQUE", "KEY"):
			p.Constraint = keyConstraint
		case t.is("REFERENCES"):
			p.Constraint = "a foreign key"
		case t.is("PARTITION", "REMOVE") && i > from && !s.words[i-1].is("."): // they follow the last clause without a comma
			p.Constraint = "a clause about partitions"
		}
	}
}

// mentions are the words that may be names of columns: those in brackets, those in quotes, and those after words that a column follows.
func (s *statement) mentions(from, to int) (names []string) {
	depth := 0
	for i := from; i < to; i++ {
		t := s.words[i]
		switch {
		case t.is("("):
			depth++
		case t.is(")"):
			depth--
		case !t.name || !t.quoted && isNumber(t.text):
		case depth > 0, t.quoted, i > from && s.words[i-1].is("AFTER", "DEFAULT", "BY", "COLUMN", "."):
			names = append(names, t.text)
		}
	}
	return names
}

// clause is a clause of ALTER TABLE.
func (s *statement) clause(from, to int) stream.Clause {
	at := from + 1
	accept := func(words ...string) bool { return s.pass(&at, to, words...) }
	ifExists := func() bool { return s.passIfExists(&at, to) }
	first := s.words[from]
	switch {
	case at >= to:
	case first.is("ADD"):
		named := accept("COLUMN")
		ifExists()
		if at >= to || s.words[at].is("(") || !named && (s.words[at].is("PARTITION") || s.words[at].is("SYSTEM") && at+1 < to && s.words[at+1].is("VERSIONING")) {
			break
		}
		if p, ok := s.key(from, at, to); ok && !named {
			return p
		}
		return s.column(from, at, to)
	case first.is("MODIFY"), first.is("ALTER") && !s.words[at].is("INDEX", "KEY", "CONSTRAINT"):
		accept("COLUMN")
		ifExists()
		return s.column(from, at, to)
	case first.is("CHANGE"), first.is("RENAME") && s.words[at].is("COLUMN"):
		accept("COLUMN")
		ifExists()
		return s.renamedColumn(from, at, to)
	case first.is("RENAME") && !s.words[at].is("INDEX", "KEY"):
		return s.of(stream.OtherClause, from, to) // it names a table
	case first.is("DROP") && accept("COLUMN"):
		ifExists()
		return s.column(from, at, to)
	case first.is("DROP") && (accept("INDEX") || accept("KEY")):
		return s.droppedKey(from, at, to, ifExists())
	case first.is("DROP") && !s.words[at].is("PRIMARY", "FOREIGN", "CONSTRAINT", "CHECK", "PARTITION") &&
		!(s.words[at].is("SYSTEM") && at+1 < to && s.words[at+1].is("VERSIONING")) && !(s.words[at].is("PERIOD") && at+1 < to && s.words[at+1].is("FOR")):
		ifExists()
		return s.column(from, at, to)
	case first.is("CONVERT"):
		p := s.other(from, to)
		p.Converts = true
		return p
	}
	return s.other(from, to)
}

// renamedColumn is CHANGE a b definition, or RENAME COLUMN a TO b.
func (s *statement) renamedColumn(from, at, to int) stream.Clause {
	p := s.of(stream.ColumnClause, from, to)
	next := at + 1
	if s.words[from].is("RENAME") && next < to && s.words[next].is("TO") {
		next++
	}
	if next >= to {
		return s.other(from, to)
	}
	p.Column, p.Becomes = s.words[at].text, s.words[next].text
	s.definesColumn(&p, next+1, to)
	return p
}

// droppedKey is DROP INDEX, in which IF EXISTS may be added before the name at a word.
func (s *statement) droppedKey(from, at, to int, ifExists bool) stream.Clause {
	p := s.of(stream.DropKeyClause, from, to)
	if at < to {
		p.Key = s.words[at].text
	}
	if at < to && !ifExists {
		p.IfExistsAt = s.words[at].from
	}
	return p
}

// indexClause is the only clause of CREATE INDEX and DROP INDEX.
func (s *statement) indexClause() stream.Clause {
	to := len(s.words)
	at := slices.IndexFunc(s.words, func(t token) bool { return t.is("INDEX") })
	on := slices.IndexFunc(s.words, func(t token) bool { return t.is("ON") })
	if at < 0 || on < at {
		return s.other(0, to)
	}
	if slices.ContainsFunc(s.words[:at], func(t token) bool { return t.is("DROP") }) {
		ifExists := at+2 < to && s.words[at+1].is("IF")
		name := at + 1
		if ifExists {
			name = at + 3
		}
		return s.droppedKey(0, name, to, ifExists)
	}
	kind := stream.KeyClause
	if slices.ContainsFunc(s.words[:at], func(t token) bool { return t.is("UNIQUE") }) {
		kind = stream.UniqueClause
	}
	p := s.keyOf(kind, 0, at, to)
	bracket := on
	for bracket < to && !s.words[bracket].is("(") {
		bracket++
	}
	p.Columns = s.keyColumns(bracket, to)
	return p
}
