package mariadb

import (
	"cmp"
	"slices"
	"strings"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// statement reads the words of a statement one by one.
type statement struct {
	text  string
	words []token
	at    int
	// spots are where it names tables, each place once.
	spots []stream.Spot
	// doubt is why a name cannot be replaced for certain.
	doubt string
	// schema that unqualified names are in.
	schema string
	// fold makes names lower case, as a server with lower_case_table_names=1 does.
	fold bool
	// unsure: it cannot be split into words with certainty.
	unsure bool
	// ifExists: RENAME, ALTER and DROP have IF EXISTS, written or not.
	ifExists bool
	// form is how it is made up, and body the word that follows the name of its table.
	form form
	body int
}

func newStatement(text, schema string, c sessionContext, fold bool) *statement {
	l := &lexer{text: text, ansiQuotes: c.sqlMode&modeANSIQuotes != 0, noEscapes: c.sqlMode&modeNoBackslashEscapes != 0}
	s := &statement{text: text, schema: schema, fold: fold, ifExists: c.ifExists}
	for {
		t, ok := l.next()
		if !ok {
			s.unsure = l.unsure || l.executable
			return s
		}
		if c.converted && !t.quoted && strings.Contains(t.text, noBreakSpace) {
			s.unsure = true // in some character sets it is white space, and in UTF-8 a part of a name
			return s
		}
		s.words = append(s.words, t)
	}
}

const noBreakSpace = "\u00a0"

func (s *statement) peek() token { return s.peekAt(0) }

// peekAt is the word so many after the next one.
func (s *statement) peekAt(n int) token {
	if s.at+n < len(s.words) {
		return s.words[s.at+n]
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

// acceptIfExists passes IF EXISTS, and reports whether the statement has it.
func (s *statement) acceptIfExists() bool { return s.accept("IF", "EXISTS") || s.ifExists }

// comes reports whether words come next.
func (s *statement) comes(words ...string) bool {
	from := s.at
	defer func() { s.at = from }()
	return s.accept(words...)
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
	from := s.at
	first, ok := s.identifier()
	if !ok {
		return stream.Table{}, false
	}
	if !s.accept(".") {
		t := stream.Table{Schema: s.schema, Name: first}
		s.spot(from, t)
		return t, true
	}
	second, ok := s.identifier()
	t := stream.Table{Schema: first, Name: second}
	if ok {
		s.spot(from, t)
	}
	return t, ok
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

// names reads a list of names. It returns nil if a name is missing.
func (s *statement) names() []stream.Table {
	var tables []stream.Table
	for {
		t, ok := s.name()
		if !ok {
			return nil
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

// balanced reports whether the brackets in the rest match.
func (s *statement) balanced() bool {
	depth := 0
	for _, t := range s.words[min(s.at, len(s.words)):] {
		switch {
		case t.is("("):
			depth++
		case t.is(")"):
			depth--
		}
		if depth < 0 {
			return false
		}
	}
	return depth == 0
}

// ended reports whether nothing is left but the end of the statement.
func (s *statement) ended() bool {
	s.accept(";")
	return s.at >= len(s.words)
}

// wait passes WAIT n or NOWAIT.
func (s *statement) wait() {
	if s.accept("WAIT") {
		s.at++
		return
	}
	s.accept("NOWAIT")
}

// dml are the first words of statements that change rows. With binlog_format=ROW they are not logged.
var dml = []string{"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "CALL", "WITH", "DO"}

func (s *statement) isDML() bool {
	from := s.at
	defer func() { s.at = from }()
	s.setStatement()
	return s.peek().is(dml...)
}

// empty reports whether there is nothing but comments.
func (s *statement) empty() bool { return len(s.words) == 0 && !s.unsure }

// parseDDL finds out what a statement does to tables. The server at the sink executes the statement, so only what names tables is
// parsed; but a statement that has anything that might name a table and is not known is of the kind UnknownDDL.
func parseDDL(text string, s *statement) *stream.DDL {
	d := &stream.DDL{Kind: stream.UnknownDDL, Schema: s.schema, Statement: text}
	known := !s.unsure && s.balanced() && s.setStatement() && s.parse(d)
	if !known {
		return &stream.DDL{Kind: stream.UnknownDDL, Schema: s.schema, Statement: text}
	}
	s.locate(d)
	s.divide(d)
	return d
}

// temporary is the temporary table that the statement makes.
func (s *statement) temporary() (t stream.Table, ok bool) {
	at, spots, doubt := s.at, s.spots, s.doubt
	defer func() { s.at, s.spots, s.doubt = at, spots, doubt }()
	s.setStatement()
	if !s.accept("CREATE") {
		return t, false
	}
	s.accept("OR", "REPLACE")
	if !s.accept("TEMPORARY", "TABLE") {
		return t, false
	}
	s.accept("IF", "NOT", "EXISTS")
	return s.name()
}

// dropsTemporary are the temporary tables that the statement drops.
func (s *statement) dropsTemporary() []stream.Table {
	at, spots, doubt := s.at, s.spots, s.doubt
	defer func() { s.at, s.spots, s.doubt = at, spots, doubt }()
	s.setStatement()
	if !s.accept("DROP", "TEMPORARY") || !s.acceptAny("TABLE", "TABLES") {
		return nil
	}
	s.accept("IF", "EXISTS")
	return s.names()
}

// setStatement passes SET STATEMENT variables FOR. It returns false if the variables change how the rest is read.
func (s *statement) setStatement() bool {
	for s.accept("SET", "STATEMENT") {
		from := s.at
		if !s.skipTo("FOR") {
			return false
		}
		for _, t := range s.words[from:s.at] {
			if strings.EqualFold(t.text, "sql_mode") || strings.HasPrefix(strings.ToLower(t.text), "character_set") || strings.HasPrefix(strings.ToLower(t.text), "collation") {
				return false
			}
		}
	}
	return true
}

// parse reads a whole statement. It returns false if it does not know all of it.
func (s *statement) parse(d *stream.DDL) bool {
	switch {
	case s.carriesNoData():
		d.Kind = stream.OtherDDL
		return true
	case s.accept("CREATE"):
		return s.create(d)
	case s.accept("DROP"):
		return s.drop(d)
	case s.accept("RENAME"):
		return s.rename(d)
	case s.accept("TRUNCATE"):
		s.accept("TABLE")
		if !s.concerns(d, stream.TruncateTable) {
			return false
		}
		s.wait()
		if s.acceptAny("DROP", "REUSE") && !s.accept("STORAGE") { // with sql_mode=ORACLE
			return false
		}
		return s.ended()
	case s.accept("ALTER"):
		return s.alter(d)
	}
	return false
}

// concerns sets the one table whose name comes next.
func (s *statement) concerns(d *stream.DDL, kind stream.DDLKind) bool {
	t, ok := s.name()
	if ok {
		d.Kind, d.Tables = kind, []stream.Table{t}
	}
	return ok
}

func (s *statement) create(d *stream.DDL) bool {
	d.Replaces = s.accept("OR", "REPLACE")
	switch {
	case s.accept("TABLE"):
		s.accept("IF", "NOT", "EXISTS")
		return s.concerns(d, stream.CreateTable) && s.content(d)
	case s.accept("TEMPORARY"):
		d.Kind = stream.OtherDDL // a table or sequence that only its session has
		return true
	case s.acceptAny("DATABASE", "SCHEMA"):
		s.accept("IF", "NOT", "EXISTS")
		if d.Replaces {
			return s.database(d, stream.ReplaceSchema)
		}
		return s.database(d, stream.SetSchema)
	case s.accept("SEQUENCE"):
		s.accept("IF", "NOT", "EXISTS")
		s.form = formSequence
		return s.concerns(d, stream.CreateTable) // a sequence is a table with one row
	case s.peek().is(slices.Concat(objects, []string{"ALGORITHM", "DEFINER", "SQL", "AGGREGATE"})...):
		return s.object(d)
	}
	return s.index(d)
}

// content reads what comes after the name of a table that is created: another table that it is made like, or columns and options.
func (s *statement) content(d *stream.DDL) bool {
	from := s.at
	bracket := s.accept("(")
	s.form, s.body = formColumns, from
	if s.accept("LIKE") {
		s.form = formOther
		like, ok := s.name()
		if ok {
			d.Reads = []stream.Table{like}
		}
		return ok && (!bracket || s.accept(")")) && s.ended()
	}
	s.at = from
	if s.selects(from) { // of rows, the log has the definition without it
		d.Differs = "it was logged as a statement, and the rows that it selects at the sink may be others; set binlog_format=ROW in every session"
	}
	return from < len(s.words) && !s.merges() && s.references(d, d.Tables[0].Schema)
}

// selects reports whether a table is created with rows, by a query or VALUES. In definitions of partitions VALUES has another word after it.
func (s *statement) selects(from int) bool {
	for i := from; i < len(s.words); i++ {
		if s.words[i].is("SELECT") || s.words[i].is("VALUES") && i+1 < len(s.words) && s.words[i+1].is("(") {
			return true
		}
	}
	return false
}

// references reads the tables that foreign keys in the rest refer to. REFERENCES is a reserved word, so that nothing else has it. A name
// without a schema is in that of the table.
func (s *statement) references(d *stream.DDL, in string) bool {
	from, schema := s.at, s.schema
	defer func() { s.at, s.schema = from, schema }()
	s.schema = in
	for s.at < len(s.words) {
		if !s.accept("REFERENCES") {
			s.at++
			continue
		}
		parent, ok := s.name()
		if !ok {
			return false
		}
		if !slices.Contains(d.References, parent) {
			d.References = append(d.References, parent)
		}
		if s.cascades() && !slices.Contains(d.Cascades, parent) {
			d.Cascades = append(d.Cascades, parent)
		}
	}
	return true
}

// cascades reads the columns and actions of a foreign key, and reports whether one of them changes rows.
func (s *statement) cascades() (found bool) {
	if s.accept("(") && !s.skipBracket() {
		return false
	}
	for {
		switch {
		case s.accept("MATCH"):
			s.at++
		case s.accept("ON", "DELETE"), s.accept("ON", "UPDATE"):
			found = found || s.peek().is("CASCADE", "SET")
			if s.accept("SET") || s.accept("NO") {
				s.at++
			} else {
				s.acceptAny("CASCADE", "RESTRICT")
			}
		default:
			return found
		}
	}
}

// skipBracket passes everything up to and including the bracket that closes an open one.
func (s *statement) skipBracket() bool {
	for depth := 1; s.at < len(s.words); s.at++ {
		switch t := s.words[s.at]; {
		case t.is("("):
			depth++
		case t.is(")"):
			if depth--; depth == 0 {
				s.at++
				return true
			}
		}
	}
	return false
}

// merges reports whether the rest has the option UNION=(tables): a MERGE table has no rows of its own.
func (s *statement) merges() bool {
	for i := s.at; i < len(s.words); i++ {
		at := i
		if s.pass(&at, len(s.words), "UNION", "(") || s.pass(&at, len(s.words), "UNION", "=", "(") {
			return true
		}
	}
	return false
}

// index reads CREATE and DROP INDEX, which alter the table after ON.
func (s *statement) index(d *stream.DDL) bool {
	s.acceptAny("ONLINE", "OFFLINE")
	s.acceptAny("UNIQUE", "FULLTEXT", "SPATIAL")
	s.acceptAny("ONLINE", "OFFLINE")
	s.form = formIndex
	return s.accept("INDEX") && s.skipTo("ON") && s.concerns(d, stream.AlterTable)
}

func (s *statement) drop(d *stream.DDL) bool {
	switch {
	case s.acceptAny("TABLE", "TABLES"):
		return s.each(d, stream.DropTable)
	case s.accept("SEQUENCE"):
		d.Sequences = true
		return s.each(d, stream.DropTable)
	case s.accept("TEMPORARY"):
		d.Kind = stream.OtherDDL
		return true
	case s.acceptAny("DATABASE", "SCHEMA"):
		d.IfExists = s.acceptIfExists()
		return s.database(d, stream.DropSchema) && s.ended()
	case s.peek().is(objects...):
		return s.object(d)
	case s.acceptAny("PREPARE"):
		d.Kind = stream.OtherDDL
		return true
	}
	return s.index(d)
}

// each reads the tables that are dropped.
func (s *statement) each(d *stream.DDL, kind stream.DDLKind) bool {
	d.IfExists = s.acceptIfExists()
	d.Kind, d.Tables = kind, s.names()
	s.wait()
	s.acceptAny("RESTRICT", "CASCADE")
	return len(d.Tables) > 0 && s.ended()
}

// database sets the schema that a statement creates, alters or drops.
func (s *statement) database(d *stream.DDL, kind stream.DDLKind) bool {
	from := s.at
	name, ok := s.identifier()
	d.Kind, d.Schema = kind, name
	if ok {
		s.spot(from, stream.Table{Schema: name})
	}
	return ok
}

func (s *statement) rename(d *stream.DDL) bool {
	if s.acceptAny("USER") {
		d.Kind = stream.OtherDDL
		return true
	}
	if !s.acceptAny("TABLE", "TABLES") {
		return false
	}
	d.IfExists = s.acceptIfExists()
	var r renames
	for {
		from, ok := s.name()
		if !ok {
			return false
		}
		s.wait()
		if !s.accept("TO") {
			return false
		}
		to, ok := s.name()
		if !ok {
			return false
		}
		r.add(from, to)
		if !s.accept(",") {
			break
		}
	}
	r.into(d)
	return s.ended()
}

// renames combines the steps of one statement, which are done from left to right, into the new name of each table. through are names that a
// table has only between two steps.
type renames struct{ from, to, through []stream.Table }

func (r *renames) add(from, to stream.Table) {
	if i := slices.Index(r.to, from); i >= 0 {
		r.to[i], r.through = to, append(r.through, from)
		return
	}
	r.from, r.to = append(r.from, from), append(r.to, to)
}

func (r *renames) into(d *stream.DDL) {
	d.Kind = stream.OtherDDL
	for i := range r.from {
		if r.from[i] != r.to[i] {
			d.Tables, d.Becomes = append(d.Tables, r.from[i]), append(d.Becomes, r.to[i])
		}
	}
	if d.IfExists {
		d.Through = r.through
	}
	if len(d.Tables) > 0 || len(d.Through) > 0 {
		d.Kind = stream.RenameTable
	}
}

func (s *statement) alter(d *stream.DDL) bool {
	s.acceptAny("ONLINE", "OFFLINE")
	d.Ignores = s.accept("IGNORE")
	switch {
	case s.acceptAny("DATABASE", "SCHEMA"):
		d.Kind = stream.SetSchema
		if s.peek().is("DEFAULT", "CHARACTER", "CHARSET", "COLLATE", "COMMENT") {
			return d.Schema != "" // it is about the schema of the session
		}
		return s.database(d, stream.SetSchema) && !s.accept("UPGRADE")
	case s.accept("SEQUENCE"):
		d.IfExists, s.form = s.acceptIfExists(), formSequence
		return s.concerns(d, stream.AlterTable)
	case s.accept("TABLE"):
		d.IfExists = s.acceptIfExists()
		if !s.concerns(d, stream.AlterTable) {
			return false
		}
		s.wait()
		if s.peek().is("ANALYZE", "CHECK", "OPTIMIZE", "REPAIR") && s.peekAt(1).is("PARTITION") {
			d.Kind = stream.OtherDDL // as of a table; it is logged even if there is no such table
			return true
		}
		known := s.clauses(d)
		d.Alters = d.Alters && d.Kind == stream.RenameTable
		return known
	}
	return s.object(d)
}

// alterations are the first words of the clauses of ALTER TABLE that concern only the table itself.
var alterations = []string{
	"ALTER", "DROP", "ORDER", "DISABLE", "ENABLE", "FORCE", "LOCK", "ALGORITHM",
	"COALESCE", "REORGANIZE", "TRUNCATE", "ANALYZE", "CHECK", "OPTIMIZE", "REBUILD", "REPAIR", "REMOVE", "PARTITION",
	"ENGINE", "TYPE", "STORAGE", "AUTO_INCREMENT", "AVG_ROW_LENGTH", "DEFAULT", "CHARACTER", "CHAR", "CHARSET", "COLLATE", "CHECKSUM", "TABLE_CHECKSUM", "COMMENT", "CONNECTION",
	"DELAY_KEY_WRITE", "ENCRYPTED", "ENCRYPTION_KEY_ID", "KEY_BLOCK_SIZE", "MAX_ROWS", "MIN_ROWS", "PACK_KEYS", "PAGE_CHECKSUM", "PAGE_COMPRESSED",
	"PAGE_COMPRESSION_LEVEL", "ROW_FORMAT", "STATS_AUTO_RECALC", "STATS_PERSISTENT", "STATS_SAMPLE_PAGES", "TRANSACTIONAL", "DATA", "INDEX", "PASSWORD", "TABLESPACE", "IETF_QUOTES",
}

// clauses reads the clauses of ALTER TABLE: those that concern the table, a RENAME, and partitions that are exchanged with tables or
// converted.
func (s *statement) clauses(d *stream.DDL) bool {
	table, from := d.Tables[0], s.at
	s.form, s.body = formClauses, from
	if s.merges() || !s.references(d, table.Schema) {
		return false
	}
	d.OfSchema = s.ofSchema()
	if s.ended() {
		return true
	}
	for {
		d.DropsKey = d.DropsKey || s.comes("DROP", "FOREIGN") || s.comes("DROP", "CONSTRAINT")
		switch {
		case s.accept("RENAME"):
			if s.acceptAny("COLUMN", "INDEX", "KEY") {
				d.Alters = true
				break
			}
			if !s.acceptAny("TO", "AS") {
				s.accept("=")
			}
			to, ok := s.name()
			if !ok {
				return false
			}
			if at := s.at; to.Schema != table.Schema { // names without a schema may be in the new one
				s.at = from
				s.references(d, to.Schema)
				s.at = at
			}
			d.Kind, d.Becomes = stream.RenameTable, []stream.Table{to} // the last one counts
			if to == table {
				d.Kind, d.Becomes = stream.AlterTable, nil
			}
			if s.ended() {
				return true
			}
			if !s.accept(",") {
				return false
			}
			continue
		case s.accept("EXCHANGE", "PARTITION"):
			if !s.skipTo("WITH") || !s.accept("TABLE") {
				return false
			}
			return s.also(&d.Tables) && s.validates()
		case s.accept("CONVERT", "PARTITION"):
			if !s.skipTo("TO") || !s.accept("TABLE") {
				return false
			}
			return s.also(&d.Makes) && s.validates()
		case s.accept("CONVERT", "TABLE"):
			return s.also(&d.Removes) && s.validates()
		case s.peek().is(partitionWork...) && s.peekAt(1).is("PARTITION"):
			d.Alters = true
			return true // names of partitions, and nothing after them
		case s.accept("ORDER", "BY"):
			d.Alters = true
			s.orderBy()
		case s.comes("ADD"):
			d.Alters, d.Differs = true, cmp.Or(d.Differs, s.unsureValues(true))
		case s.comes("MODIFY"), s.comes("CHANGE"):
			d.Alters, d.Differs = true, cmp.Or(d.Differs, s.unsureValues(false))
		case s.accept("CONVERT", "TO"), s.accept("WITH", "SYSTEM", "VERSIONING"), s.acceptAny(alterations...), s.option():
			d.Alters = true
		default:
			return false
		}
		if !s.skipTo(",") {
			return true
		}
	}
}

// option passes the name of an option that is known to the engine alone. SHOW CREATE TABLE writes such names in quotes. Of all options only
// UNION names tables.
func (s *statement) option() bool {
	if name := s.peek(); !name.name || name.is("UNION") || !s.peekAt(1).is("=") {
		return false
	}
	s.at += 2
	return true
}

// partitionWork are the words before PARTITION and a list of partitions. Such a clause stands alone in its statement.
var partitionWork = []string{"ADD", "DROP", "TRUNCATE", "REORGANIZE", "REBUILD", "ANALYZE", "CHECK", "OPTIMIZE", "REPAIR", "COALESCE"}

// orderBy passes the columns by which a table is ordered. Words that begin a clause about other tables are reserved, so that no column has
// such a name.
func (s *statement) orderBy() {
	for s.skipName() && s.comes(",") && s.peekAt(1).name && !s.peekAt(1).is("RENAME", "CONVERT", "EXCHANGE") {
		s.at++
	}
}

// skipName passes the name of a column, with ASC or DESC.
func (s *statement) skipName() bool {
	if _, ok := s.identifier(); !ok {
		return false
	}
	for s.accept(".") {
		s.identifier()
	}
	s.acceptAny("ASC", "DESC")
	return true
}

func (s *statement) also(tables *[]stream.Table) bool {
	t, ok := s.name()
	*tables = append(*tables, t)
	return ok
}

// validates reports whether rows are not moved between a table and a partition without a look at them: a row in a partition that it does not
// belong to is not found there.
func (s *statement) validates() bool {
	return !slices.ContainsFunc(s.words[s.at:], func(t token) bool { return t.is("WITHOUT") })
}

// ofSchema reports whether the rest has a character set or collation that is the default of the schema.
func (s *statement) ofSchema() bool {
	for i := s.at; i < len(s.words); i++ {
		if !s.words[i].is("DEFAULT") {
			continue
		}
		last := i - 1
		if s.words[last].is("=") {
			last--
		}
		if s.words[last].is("CHARSET", "COLLATE") || s.words[last].is("SET") && s.words[last-1].is("CHARACTER", "CHAR") {
			return true
		}
	}
	return false
}
