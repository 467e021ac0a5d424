package stream

import (
	"fmt"
	"slices"
	"strings"
)

// DDLKind is what DDL does to tables.
type DDLKind string

// The kinds of DDL.
const (
	CreateTable   DDLKind = "create"
	DropTable     DDLKind = "drop"
	RenameTable   DDLKind = "rename"
	TruncateTable DDLKind = "truncate"
	AlterTable    DDLKind = "alter"
	// SetSchema creates or alters a schema, and DropSchema drops one with its tables.
	SetSchema  DDLKind = "schema"
	DropSchema DDLKind = "drop schema"
	// ReplaceSchema drops a schema with its tables and creates it again, in one statement.
	ReplaceSchema DDLKind = "replace schema"
	// OtherDDL is known to carry no data: views, grants.
	OtherDDL DDLKind = "other"
	// UnknownDDL is a statement that the source cannot parse with certainty. It may concern any table.
	UnknownDDL DDLKind = "unknown"
	// UnreadableRows are not DDL but changes of rows of Tables, or of any tables if there are none, that cannot be replicated. Statement
	// says why and what to do.
	UnreadableRows DDLKind = "unreadable"
)

// DDL is a statement that creates, alters or drops tables. It is a transaction of its own.
type DDL struct {
	Kind DDLKind
	// Schema that unqualified names are in, or that the statement is about.
	Schema    string
	Statement string
	// Tables that it concerns, by the names they have before it; Becomes is what a rename calls each.
	Tables, Becomes []Table
	// Reads are tables that it only reads: CREATE TABLE ... LIKE. Those of a DROP are tables that it names and that stay.
	Reads []Table
	// Makes and Removes are tables that an ALTER makes out of a partition, or makes a partition of.
	Makes, Removes []Table
	// References are tables that foreign keys refer to which it adds, and Cascades those among them whose changes cascade.
	References, Cascades []Table
	// Through are names that a RENAME of tables that may be missing gives to one table and takes for the next step: if the first is missing
	// and there is another of that name, that one is renamed.
	Through []Table
	// OfSchema: an ALTER takes the default character set or collation of the schema, which other DDL changes.
	OfSchema bool
	// DropsKey: it may drop a foreign key. Alters: a rename also alters the table.
	DropsKey, Alters bool
	// ByOrder are what its effect on rows depends on the order of, where no key gives the rows an order: the rows with 0 or NULL in a column,
	// which get numbers, or all rows if it is empty.
	ByOrder []string
	// Replaces: it may replace a table (OR REPLACE). IfExists: tables may be missing.
	Replaces, IfExists bool
	// Sequences: it drops sequences. With IF EXISTS a table of such a name stays.
	Sequences bool
	// Differs is why it may leave other rows at a sink than at the source; empty if it cannot.
	Differs string

	// Releases are tables that a rename takes out of the filter: they stay at the sink, and are no longer replicated.
	Releases []Table
	// Waits are other tables that have reached it, because they are written together with tables that it concerns.
	Waits []Table
	// Filter of the changefeed, where a schema is dropped. Tables outside stay.
	Filter Filter

	// Spots are where the statement names tables and schemas, in order; none if it was not written by the source.
	Spots []Spot
	// Doubt is why it is not certain that these are all names which depend on those of tables; empty if it is.
	Doubt string
	// Clauses are what a CREATE or ALTER of a table consists of, in order; nil if they are not known. Rest are names in the
	// rest of it that may be columns: what it is partitioned by.
	Clauses []Clause
	Rest    []string
	// Ignores: rows that cannot be kept are removed (ALTER IGNORE).
	Ignores bool
	// KeyIfExists: it drops a constraint, if there is one with that name.
	KeyIfExists bool
	// Drops is what a DropSchema drops where tables have other names at the sink than at the source; nil where they have the same.
	Drops *Drops
}

// Spot is where a statement names a table, or a schema if the table has no name.
type Spot struct {
	// From and To are the first byte in the statement and the one after the last, with quotes.
	From, To int
	Table    Table
	// Qualified: the schema is part of the name.
	Qualified bool
}

// ClauseKind is what a clause is about.
type ClauseKind string

// The kinds of clauses.
const (
	// ColumnClause makes, changes, renames or drops a column.
	ColumnClause ClauseKind = "column"
	// KeyClause makes a key that is not unique, and UniqueClause one that is.
	KeyClause    ClauseKind = "key"
	UniqueClause ClauseKind = "unique key"
	// DropKeyClause drops a key by its name.
	DropKeyClause ClauseKind = "drop key"
	OtherClause   ClauseKind = "other"
)

// Clause is a part of CREATE TABLE or ALTER TABLE: the definition of a column or a key, or a clause that changes something.
type Clause struct {
	Kind ClauseKind
	// From and To are its first byte in the statement and the one after the last.
	From, To int
	// Column that it is about, and what a rename calls it.
	Column, Becomes string
	// Constraint is what the definition of a column has besides the column; empty for nothing.
	Constraint string
	// Key is the name of a key, empty for none, and Columns are its columns.
	Key     string
	Columns []string
	// Mentions are other names in it that may be columns.
	Mentions []string
	// Converts: it converts all text of the table. Numbers: what it does to a row may depend on how many others there are.
	Converts, Numbers bool
	// IfExistsAt is where IF EXISTS can be added; 0 if it cannot, or is there.
	IfExistsAt int
}

// move moves a clause in the statement.
func (c *Clause) move(by int) {
	c.From, c.To = c.From+by, c.To+by
	if c.IfExistsAt > 0 {
		c.IfExistsAt += by
	}
}

// Drops is what a dropped schema has at the sink, where tables have other names there.
type Drops struct {
	// Schemas at the sink that may have its tables.
	Schemas []string
	// Owns reports whether a table at the sink is one of its tables inside the filter, and Whole whether a schema at the sink may only have
	// such tables.
	Owns  func(Table) bool
	Whole func(schema string) bool
}

// DropSchemas are the schemas at the sink whose tables a DropSchema drops.
func (d *DDL) DropSchemas() []string {
	if d.Drops == nil {
		return []string{d.Schema}
	}
	return d.Drops.Schemas
}

// DropsTable reports whether a DropSchema drops a table at the sink, which is in one of these schemas.
func (d *DDL) DropsTable(t Table) bool {
	if d.Drops == nil {
		return d.Filter.Allows(t)
	}
	return d.Drops.Owns(t)
}

// DropsWhole reports whether a DropSchema drops a schema at the sink once it is empty.
func (d *DDL) DropsWhole(schema string) bool {
	if d.Drops == nil {
		return d.Filter.AllowsSchema(schema)
	}
	return d.Drops.Whole(schema)
}

// Prefix sets the statement to a text that a comment comes before.
func (d *DDL) Prefix(comment, text string) {
	d.Statement = comment + text
	for i := range d.Spots {
		d.Spots[i].From += len(comment)
		d.Spots[i].To += len(comment)
	}
	for i := range d.Clauses {
		d.Clauses[i].move(len(comment))
	}
}

// Names are all tables that it names.
func (d *DDL) Names() []Table {
	return slices.Concat(d.Tables, d.Becomes, d.Reads, d.Makes, d.Removes, d.Releases, d.References)
}

// Concerns reports whether a table must have reached the DDL before it is executed: whether the DDL reads, makes, changes or removes it.
func (d *DDL) Concerns(t Table) bool {
	switch d.Kind {
	case OtherDDL, SetSchema:
		return false
	case UnknownDDL:
		return true
	case UnreadableRows:
		return len(d.Tables) == 0 || slices.Contains(d.Tables, t)
	case DropSchema, ReplaceSchema:
		return t.Schema == d.Schema
	}
	return slices.Contains(d.Names(), t)
}

// Gives are the names that it gives to tables: to those that it makes, and to those that it calls something else.
func (d *DDL) Gives() []Table {
	switch d.Kind {
	case CreateTable:
		return d.Tables
	case RenameTable:
		return d.Becomes
	case AlterTable:
		return d.Makes
	}
	return nil
}

// Takes are the names that it takes from tables, which it drops, calls something else or makes a part of others. Other tables may have them
// afterwards.
func (d *DDL) Takes() []Table {
	switch d.Kind {
	case DropTable, RenameTable:
		return d.Tables
	case AlterTable:
		return d.Removes
	}
	return nil
}

// After are the tables among those that it concerns that exist after it.
func (d *DDL) After() []Table {
	switch d.Kind {
	case CreateTable:
		return slices.Concat(d.Tables, d.Reads)
	case RenameTable:
		return d.Becomes
	case AlterTable, TruncateTable:
		return slices.Concat(d.Tables, d.Makes)
	case DropTable:
		return d.Reads
	}
	return nil
}

// DropText is the statement that drops some of the tables, or sequences, that it drops.
func (d *DDL) DropText(tables []Table, ifExists bool) string {
	text := "DROP TABLE "
	if d.Sequences {
		text = "DROP SEQUENCE "
	}
	if ifExists {
		text += "IF EXISTS "
	}
	return text + QuotedNames(tables)
}

// Ends reports whether a table that it concerns does not exist after it under the same name.
func (d *DDL) Ends(t Table) bool {
	refers := slices.Contains(d.References, t) && !slices.Contains(d.Tables, t)
	return d.Concerns(t) && !slices.Contains(d.After(), t) && !refers
}

// Alone reports whether a DDL concerns one table that exists before and after it, so that the table's dispatcher can execute it
// between two changes. For all others the dispatchers of all tables concerned have to wait, also for one that stops the changefeed.
func (d *DDL) Alone() bool {
	return len(d.Names()) == 1 && len(d.Tables) == 1 && !d.DropsKey && !d.OfSchema && d.Differs == "" && (d.Kind == AlterTable || d.Kind == TruncateTable)
}

// NamesExisting reports whether it changes or reads tables that exist before it. One that is dropped does not count: sources log a table
// that only a session has apart from others then.
func (d *DDL) NamesExisting() bool {
	return d.Kind == AlterTable || d.Kind == TruncateTable || d.Kind == RenameTable || len(d.Reads) > 0
}

// Unexecutable reports whether nothing can be executed at a sink: it is not known what the statement does, or rows cannot be read.
func (d *DDL) Unexecutable() bool { return d.Kind == UnknownDDL || d.Kind == UnreadableRows }

// Without is the DDL without its statement: positions move, and nothing is executed.
func (d *DDL) Without() *DDL {
	empty := *d
	empty.Rewrite("")
	return &empty
}

// Failed makes it what a statement has done that failed at the source and is in the log all the same, and returns the text for that: OR
// REPLACE has dropped a table, and DROP those that there were. What any other has done to its tables is not known.
func (d *DDL) Failed() string {
	switch {
	case d.Kind == DropTable, d.Kind == CreateTable && d.Replaces:
		*d = DDL{Kind: DropTable, Schema: d.Schema, Tables: d.Tables, IfExists: true, Sequences: d.Sequences}
		d.Statement = d.DropText(d.Tables, true)
	default:
		d.Differs = "it failed at the source and is in the log all the same, so that it is not known what it has done"
	}
	return d.Statement
}

// Plan is what a changefeed with a filter executes of a DDL: all of it, a part, or nothing, which is nil. It returns ErrUnusable if the
// changefeed must stop: the DDL is unknown, it may leave other rows at the sink, or it brings a table in from outside the filter, whose rows
// the sink does not have.
func (f Filter) Plan(d *DDL) (*DDL, error) {
	plan, err := f.planAll(d)
	if err == nil && plan != nil && d.Differs != "" {
		return nil, d.Stops(d.Differs)
	}
	return plan, err
}

// planAll is Plan of a DDL that leaves the same rows everywhere.
func (f Filter) planAll(d *DDL) (*DDL, error) {
	if err := f.refuseReferences(d); err != nil {
		return nil, err
	}
	switch d.Kind {
	case OtherDDL:
		return nil, nil
	case UnknownDDL:
		return nil, d.Stops("it is not known what this statement does to tables")
	case UnreadableRows:
		if len(d.Tables) == 0 || slices.ContainsFunc(d.Tables, f.Allows) {
			return nil, fmt.Errorf("%s: %w", d.Statement, ErrUnusable)
		}
		return nil, nil
	case SetSchema:
		if !f.TouchesSchema(d.Schema) {
			return nil, nil
		}
		return d, nil
	case DropSchema:
		if !f.TouchesSchema(d.Schema) {
			return nil, nil
		}
		part := *d
		part.Filter = f
		return &part, nil
	case ReplaceSchema:
		if !f.TouchesSchema(d.Schema) {
			return nil, nil
		}
		return nil, d.Stops("it drops the schema and creates it again, which is not executed at the sink; use DROP DATABASE and CREATE DATABASE")
	case DropTable:
		return f.planEach(d)
	case RenameTable:
		return f.planRename(d)
	}
	switch in, out := split(f, slices.Concat(d.Tables, d.Becomes, d.Reads, d.Makes, d.Removes)); {
	case len(in) == 0:
		return nil, nil
	case d.Kind == CreateTable && !slices.ContainsFunc(d.Tables, f.Allows):
		return nil, nil // it only reads what is inside
	case len(out) > 0:
		return nil, d.Stops(fmt.Sprintf("table %s is outside the filter and table %s inside", out[0], in[0]))
	}
	return d, nil
}

// refuseReferences returns ErrUnusable if a DDL adds a cascading foreign key between tables inside and outside the filter.
func (f Filter) refuseReferences(d *DDL) error {
	for _, parent := range d.Cascades {
		for _, child := range d.Tables {
			if f.Allows(child) != f.Allows(parent) {
				return d.Stops(fmt.Sprintf("a foreign key changes rows by cascade, and of table %s and table %s one is outside the filter; include both or none", child, parent))
			}
		}
	}
	return nil
}

// Stops is the error of a DDL that stops the changefeed.
func (d *DDL) Stops(why string) error {
	text := strings.Join(strings.Fields(d.Text()), " ")
	if len(text) > shownStatement {
		text = text[:shownStatement] + "…"
	}
	return fmt.Errorf("statement %q: %s; start again with a new changefeed, from a copy taken after it: %w", text, why, ErrUnusable)
}

// shownStatement is how much of a statement is shown in an error.
const shownStatement = 300

// split separates tables inside and outside the filter.
func split(f Filter, tables []Table) (in, out []Table) {
	for _, t := range tables {
		if f.Allows(t) {
			in = append(in, t)
		} else {
			out = append(out, t)
		}
	}
	return in, out
}

// planEach is the plan of a statement that does the same to each of its tables.
func (f Filter) planEach(d *DDL) (*DDL, error) {
	in, out := split(f, d.Tables)
	switch {
	case len(in) == 0:
		return nil, nil
	case len(out) == 0:
		return d, nil
	}
	part := *d
	part.Tables = in
	part.Rewrite(d.DropText(in, d.IfExists)) // DROP TABLE drops sequences, too
	return &part, nil
}

// planRename is the plan of a rename. A table that leaves the filter is released; one that comes in from outside stops the changefeed.
func (f Filter) planRename(d *DDL) (*DDL, error) {
	part := *d
	part.Tables, part.Becomes = nil, nil
	outside := false
	for i, from := range d.Tables {
		to := d.Becomes[i]
		switch was, is := f.Allows(from), f.Allows(to); {
		case was && is:
			part.Tables, part.Becomes = append(part.Tables, from), append(part.Becomes, to)
		case is:
			return nil, d.Stops(fmt.Sprintf("table %s is outside the filter and becomes %s, which is inside", from, to))
		case was:
			part.Releases = append(part.Releases, from)
		default:
			outside = true
		}
	}
	switch {
	case len(part.Tables) == 0 && len(part.Releases) == 0:
		return nil, nil
	case len(part.Releases) == 0 && !outside:
		return d, nil
	case len(part.Tables) == 0:
		part.Rewrite("")
		return &part, nil
	case slices.ContainsFunc(part.Becomes, func(t Table) bool { return slices.Contains(part.Releases, t) }):
		return nil, d.Stops("a table takes the name of one that leaves the filter, which stays at the sink")
	}
	text, ok := RenameText(part.Tables, part.Becomes, d.IfExists)
	if !ok {
		return nil, d.Stops("it renames tables in a circle, and others outside the filter")
	}
	part.Rewrite(text)
	return &part, nil
}

// RenameText renames tables, each after the one that has its new name.
func RenameText(from, to []Table, ifExists bool) (string, bool) {
	var steps []string
	from, to = slices.Clone(from), slices.Clone(to)
	for len(from) > 0 {
		i := slices.IndexFunc(to, func(t Table) bool { return !slices.Contains(from, t) })
		if i < 0 {
			return "", false
		}
		steps = append(steps, QuotedNames(from[i:i+1])+" TO "+QuotedNames(to[i:i+1]))
		from, to = slices.Delete(from, i, i+1), slices.Delete(to, i, i+1)
	}
	text := "RENAME TABLE "
	if ifExists {
		text += "IF EXISTS "
	}
	return text + strings.Join(steps, ", "), true
}

// TouchesSchema reports whether a schema may have tables inside the filter.
func (f Filter) TouchesSchema(schema string) bool {
	touches := f.allowsByDefault()
	for _, p := range f {
		text, out := strings.CutPrefix(p, "!")
		pattern, table, _ := strings.Cut(text, ".")
		switch {
		case !Glob(pattern, schema):
		case !out:
			touches = true
		case table == "*":
			touches = false
		}
	}
	return touches
}

// AllowsSchema reports whether every table that a schema may have is inside the filter.
func (f Filter) AllowsSchema(schema string) bool {
	whole := f.allowsByDefault()
	for _, p := range f {
		text, out := strings.CutPrefix(p, "!")
		pattern, table, _ := strings.Cut(text, ".")
		switch {
		case !Glob(pattern, schema):
		case out:
			whole = false
		case table == "*":
			whole = true
		}
	}
	return whole
}

// QuotedNames are the names of tables in a statement.
func QuotedNames(tables []Table) string {
	names := make([]string, len(tables))
	for i, t := range tables {
		names[i] = quotedName(t.Schema) + "." + quotedName(t.Name)
	}
	return strings.Join(names, ", ")
}

func quotedName(name string) string { return "`" + strings.ReplaceAll(name, "`", "``") + "`" }

// SessionMark begins the comment before the statement of a DDL. It has assignments of session variables, separated by commas, with
// which the statement has the same meaning at a sink as at the source: think of a column without a character set, a default that is
// a time, a quoted word.
const SessionMark = "/*ebb "

// ZoneDigest begins an assignment in that comment that is none of a variable: the digest of the time zone of the source's machine, where the
// statement depends on it. A sink must have the same.
const ZoneDigest = "system_zone="

// Text is the statement without that comment, and without others before its first word.
func (d *DDL) Text() string {
	text := d.Statement
	for {
		text = strings.TrimSpace(text)
		if !strings.HasPrefix(text, "/*") || strings.HasPrefix(text, "/*!") || strings.HasPrefix(text, "/*M!") {
			return text
		}
		_, after, found := strings.Cut(text, "*/")
		if !found {
			return text
		}
		text = after
	}
}

// Rewrite replaces the text and keeps the session settings.
func (d *DDL) Rewrite(text string) {
	session := ""
	if strings.HasPrefix(d.Statement, SessionMark) {
		inside, _, _ := strings.Cut(d.Statement, "*/")
		session = inside + "*/ "
	}
	d.Statement, d.Spots, d.Doubt, d.KeyIfExists, d.Clauses, d.Rest = session+text, nil, "", false, nil, nil
}
