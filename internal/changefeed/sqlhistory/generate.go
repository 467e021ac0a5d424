package sqlhistory

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// Generator draws the statements of one history from a seed. It keeps a model of the schema, so that most statements succeed. The
// executor reports which of them did, before it asks for the next.
type Generator struct {
	r           *rand.Rand
	types       []columnType
	productions []production
	// known are all forms, off those that the history does not have, and often those that it features.
	known, off, often map[Form]bool
	// used are the forms of the statement that is being made, and queue are statements that are made and not handed out.
	used  []Form
	queue []Statement
	// bearer is the statement in the queue that bears the form of its production.
	bearer int

	tables []*table
	// objects besides tables, by their full names.
	views, sequences, triggers []string
	// left are the full names of tables that were renamed out of the filter. They stay at the sink, so that nothing may take these names.
	left map[string]bool
	// second: the second schema exists.
	second bool
	// in is the schema that unqualified names are in, open that a transaction is, and resets what sets the session back.
	in     string
	open   bool
	resets []string
	number int
	// leavesOut: some columns are left out.
	leavesOut bool
}

// table is what the model knows of a table.
type table struct {
	schema, name string
	columns      []*column
	// key are the columns of the primary key, and indexes the names of others.
	key, indexes, checks, foreign []string
	partitions                    *partitions
	versioned                     bool
	engine                        string
	// parent is the table that a foreign key refers to.
	parent *table
	gone   bool
}

type column struct {
	name      string
	is        columnType
	null      bool
	generated bool
	// small: values are drawn from few numbers, as in keys.
	small, auto bool
	// refers: values are keys of the parent.
	refers bool
	// keyed: it is the primary key. unique: it has a unique key of its own.
	keyed, unique bool
}

// partitions of a table by ranges, or by a number.
type partitions struct {
	kind  string
	names []string
	// next is the least value that no range includes.
	next int
}

const (
	// featured is how many forms each history has far more often than others.
	featured = 16
	// rareOneIn: one history in so many features a rare form.
	rareOneIn = 6
)

// New is a generator of the history of a seed, without some forms. Every history has a selection of forms of its own, and features a
// few: rare combinations become likely in the histories that have little else.
func New(seed uint64, without map[Form]bool) *Generator {
	g := &Generator{r: rand.New(rand.NewPCG(seed, 16)), types: columnTypes(), productions: allProductions(), known: allForms(), off: map[Form]bool{}, often: map[Form]bool{}, left: map[string]bool{}}
	forms, share := Forms(), 2+g.r.IntN(3)
	common := slices.DeleteFunc(slices.Clone(forms), func(f Form) bool { return Rare[f] })
	for range featured {
		g.feature(pick(g.r, common))
	}
	if g.r.IntN(rareOneIn) == 0 {
		g.feature(pick(g.r, slices.DeleteFunc(slices.Clone(forms), func(f Form) bool { return !Rare[f] })))
	}
	for _, f := range forms {
		likely := g.r.IntN(4) < share && !Rare[f] || g.often[f] || essential[f]
		if without[f] || !likely {
			g.off[f] = true
		}
	}
	return g
}

// feature makes a form frequent in the history.
func (g *Generator) feature(f Form) {
	g.often[f] = true
	if carrier := carriers[f]; carrier != "" {
		g.often[carrier] = true
	}
}

// carriers are the forms of statements in which a rare form occurs: a history that features the one features the other.
var carriers = map[Form]Form{
	"create: if not exists as select": "create: as select", "create: or replace as select": "create: as select", "create: like after alter": "create: like", "create: or replace like": "create: like",
	"alter: drop column if exists": "alter: drop column", "alter: add column if not exists": "alter: add column",
	"index: unique hash": "alter: add index", "index: prefix": "alter: add index", "index: fulltext": "alter: add index", "index: wait": "index: create",
	"rename: wait": "rename", "rename: if exists": "rename", "rename: other schema": "rename",
	"drop: several": "drop", "drop: wait": "drop", "drop: if exists": "drop", "drop: restrict or cascade": "drop",
	"truncate: wait": "truncate", "truncate: without TABLE": "truncate", "update: order and limit": "update", "delete: limit": "delete", "delete: returning": "delete",
	"foreign key: on delete cascade": "create: foreign key", "foreign key: on delete set null": "create: foreign key", "foreign key: restrict": "create: foreign key",
	"foreign key: on update cascade": "create: foreign key", "foreign key: on update set null": "create: foreign key", "foreign key: of the table itself": "create: foreign key",
	"alter: move column": "alter: modify column", "index: unique alone": "update: unique values",
	"partition: subpartitions": "create: table", "partition: by key": "create: table", "partition: by range columns": "create: table",
	"transaction: savepoint": "transaction", "temporary: hides a table": "temporary", "view: rename": "view", "database: written otherwise": "database: create or alter",
}

// essential forms are in every history: without them there is nothing to change.
var essential = map[Form]bool{"create: table": true, "insert": true, "key: primary": true}

// Has says whether the history may have a form.
func (g *Generator) Has(f Form) bool { return !g.off[f] }

// Rare are forms that changefeeds refuse, or that end them. Few histories feature one of them, and the others have none: a history
// that is refused shows nothing about the other forms in it.
var Rare = map[Form]bool{
	"xa: prepared": true, "session: statement format": true, "session: row image": true,
	"engine: MyISAM": true, "engine: Aria": true, "engine: MEMORY": true, "alter: engine other": true,
	"versioned: create": true, "alter: versioning": true, "delete: history": true,
	"trigger: at the sink": true, "rename: into the filter": true, "create: like outside": true,
	"database: or replace": true, "alter: add primary key": true, "column: generated of a timestamp": true, "column: generated of a time": true,
}

// Length is how many statements a history has.
func (g *Generator) Length() int { return 12 + g.r.IntN(40) }

// use says whether the history has a form, and records it.
func (g *Generator) use(f Form) bool {
	if !g.known[f] {
		panic("form " + string(f) + " is not declared")
	}
	if g.off[f] {
		return false
	}
	g.used = append(g.used, f)
	return true
}

// maybe uses a form once in n times.
func (g *Generator) maybe(n int, f Form) bool {
	chosen := g.r.IntN(n) == 0
	if g.often[f] {
		chosen = g.r.IntN(4) > 0
	}
	return chosen && g.use(f)
}

// say queues a statement; apply changes the model once it has succeeded.
func (g *Generator) say(sql string, apply func()) {
	g.queue = append(g.queue, Statement{SQL: sql, Forms: g.used, apply: apply})
	g.used = nil
}

// ddl queues a statement in one of the ways in which a statement can be written.
func (g *Generator) ddl(sql string, apply func()) {
	switch g.r.IntN(14) {
	case 0:
		if g.use("written: SET STATEMENT") {
			sql = pick(g.r, []string{"SET STATEMENT max_statement_time=0 FOR ", "set statement lock_wait_timeout=50, sort_buffer_size=100000 for "}) + sql
		}
	case 1:
		if g.use("written: comment before") {
			sql = pick(g.r, []string{"/* a ; 'comment */ ", "-- a comment\n", "# a `comment\n", "/**/"}) + sql
		}
	case 2:
		if words := strings.SplitN(sql, " ", 3); len(words) == 3 && g.use("written: comment inside") {
			sql = words[0] + pick(g.r, []string{" /* TABLE */ ", "\n\t", " -- x\n", "/**/"}) + words[1] + " " + words[2]
		}
	case 3:
		if g.use("written: executable comment") {
			open := pick(g.r, []string{"/*!50000 ", "/*M!100100 ", "/*! "})
			sql = open + sql + " */"
		}
	case 4:
		if words := strings.SplitN(sql, " ", 2); len(words) == 2 && g.use("written: lower case") {
			sql = strings.ToLower(words[0]) + "  " + words[1]
		}
	case 5:
		if g.use("written: semicolon") {
			sql += " ;"
		}
	}
	g.say(sql, func() {
		g.open = false // DDL commits
		if apply != nil {
			apply()
		}
	})
}

// Next draws the next statement.
func (g *Generator) Next() Statement {
	for len(g.queue) == 0 {
		if len(g.resets) > 0 && g.r.IntN(4) == 0 {
			g.say(g.resets[0], nil)
			g.resets = g.resets[1:]
			break
		}
		p := g.choose()
		g.used = nil
		g.bearer = -1
		p.make(g)
		if g.bearer < 0 {
			g.mark()
		}
		if g.bearer >= 0 {
			g.queue[g.bearer].Forms = append(g.queue[g.bearer].Forms, p.form)
		}
	}
	s := g.queue[0]
	g.queue = g.queue[1:]
	return s
}

// mark makes the last statement in the queue the one that bears the form of its production.
func (g *Generator) mark() { g.bearer = len(g.queue) - 1 }

// choose draws a production by weight.
func (g *Generator) choose() production {
	if len(g.live()) == 0 {
		return g.productions[0]
	}
	total := 0
	for _, p := range g.productions {
		total += g.weight(p)
	}
	at := g.r.IntN(total)
	for _, p := range g.productions {
		if at -= g.weight(p); at < 0 {
			return p
		}
	}
	panic("no production")
}

func (g *Generator) weight(p production) int {
	switch {
	case g.off[p.form]:
		return 0
	case g.often[p.form]:
		return max(p.weight, 40)
	}
	return p.weight
}

// Done records that the source has executed a statement. A statement that it refused changes nothing.
func (g *Generator) Done(s Statement) {
	if s.apply != nil {
		s.apply()
	}
}

// Whole is the history of a seed as if the source had refused nothing.
func Whole(seed uint64, without map[Form]bool) []Statement {
	g := New(seed, without)
	var list []Statement
	for range g.Length() {
		s := g.Next()
		g.Done(s)
		list = append(list, s)
	}
	return list
}

// next is a number that the history has not used.
func (g *Generator) next() int {
	g.number++
	return g.number
}

// names of tables are few, so that they are used again. Some need quotes.
var tableNames = []string{"t1", "t2", "t3", "log", "T1"}
var oddNames = []string{"a table", "select", "tick`s", "dot.ted", "tür", "semi;colon", "-- x", "per%cent"}

// newName is the name of a table that does not exist, or that may.
func (g *Generator) newName() (schema, name string) {
	schema = First
	if g.second && g.r.IntN(2) == 0 {
		schema = Second
	}
	for range 8 {
		name = pick(g.r, tableNames)
		if g.maybe(5, "name: quoted") {
			name = pick(g.r, oddNames)
		}
		if g.find(schema, name) == nil && !g.left[schema+"."+name] {
			return schema, name
		}
	}
	return schema, fmt.Sprintf("n%d", g.next())
}

// nameBeside is a new name that is not that of another table either, which the history may be about to make: MariaDB 10.11 executes
// CONVERT PARTITION … TO TABLE with the name of the table itself, and then leaves a failed RENAME of it half done.
func (g *Generator) nameBeside(t *table) (schema, name string) {
	if schema, name = g.newName(); schema == t.schema && strings.EqualFold(name, t.name) {
		name = fmt.Sprintf("n%d", g.next())
	}
	return schema, name
}

func (g *Generator) find(schema, name string) *table {
	for _, t := range g.tables {
		if !t.gone && t.schema == schema && t.name == name {
			return t
		}
	}
	return nil
}

// live are the replicated tables that exist.
func (g *Generator) live() []*table {
	return g.having(func(t *table) bool { return true })
}

// having are the replicated tables that pass a test.
func (g *Generator) having(fits func(*table) bool) []*table {
	var list []*table
	for _, t := range g.tables {
		if !t.gone && t.schema != Outside && !strings.HasPrefix(t.name, Skipped) && fits(t) {
			list = append(list, t)
		}
	}
	return list
}

// one is a replicated table that passes a test, or nil.
func (g *Generator) one(fits func(*table) bool) *table {
	list := g.having(fits)
	if len(list) == 0 {
		return nil
	}
	return pick(g.r, list)
}

func anyTable(*table) bool { return true }

func plain(t *table) bool { return t.partitions == nil && !t.versioned }

// unrelated tables can be dropped and renamed without a look at others.
func (g *Generator) unrelated(t *table) bool {
	return t.parent == nil && !slices.ContainsFunc(g.live(), func(c *table) bool { return c.parent == t })
}

// ref writes the name of a table.
func (g *Generator) ref(t *table) string { return g.refTo(t.schema, t.name) }

func (g *Generator) refTo(schema, name string) string {
	written := quoteName(name)
	if strings.Trim(name, "abcdefghijklmnopqrstuvwxyzT0123456789_") == "" && name != "select" && g.r.IntN(2) == 0 {
		written = name
	}
	if schema == g.in && g.maybe(2, "name: unqualified") {
		return written
	}
	return schema + "." + written
}

func (t *table) columnsThat(fits func(*column) bool) []*column {
	var list []*column
	for _, c := range t.columns {
		if fits(c) {
			list = append(list, c)
		}
	}
	return list
}

// free columns are in no key and nothing depends on them.
func (t *table) free() []*column {
	return t.columnsThat(func(c *column) bool {
		return !slices.Contains(t.key, c.name) && !c.small && !c.auto && !c.refers && !c.unique
	})
}

// copy is the table again, under another name.
func (t *table) copy(schema, name string) *table {
	c := *t
	c.schema, c.name, c.parent, c.foreign = schema, name, nil, nil
	c.columns = nil
	for _, col := range t.columns {
		again := *col
		c.columns = append(c.columns, &again)
	}
	c.key, c.indexes, c.checks = slices.Clone(t.key), slices.Clone(t.indexes), slices.Clone(t.checks)
	if t.partitions != nil {
		p := *t.partitions
		p.names = slices.Clone(p.names)
		c.partitions = &p
	}
	return &c
}

func (g *Generator) add(t *table) func() {
	return func() {
		if old := g.find(t.schema, t.name); old != nil {
			old.gone = true
		}
		g.tables = append(g.tables, t)
	}
}
