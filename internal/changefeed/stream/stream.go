// Package stream defines what is replicated from a source to a sink: transactions in the order of their positions, split by table.
//
//	Source ──transactions──▶ reader of a node ──rows of a table──▶ dispatcher ──batches──▶ Writer of a Sink
//
// Order and atomicity are preserved within a table. Of a source transaction over several tables, the sink may show a part for a moment.
package stream

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"
)

// Position is the sequence number of a transaction of a source. To be at p means to have everything up to and including p.
type Position uint64

// Table is the name of a table.
type Table struct {
	Schema string `json:"schema"`
	Name   string `json:"name"`
}

// String is schema.name.
func (t Table) String() string { return t.Schema + "." + t.Name }

// Since is the table that was given the name at a position.
func (t Table) Since(at Position) Identity { return Identity{Table: t, Since: at} }

// Identity is a table: its name, and since when it has it. A table that is dropped and created again, or whose name another one takes, is
// another table to a changefeed.
type Identity struct {
	Table
	// Since is the position of the DDL that gave the table its name; 0 if it had it before the changefeed began.
	Since Position
}

// Digest is a number that hardly any other table or epoch has, the same on all nodes. Digests of several tables can be combined by exclusive or.
func (i Identity) Digest(e Epoch) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211 // FNV-1a
	sum := uint64(offset)
	for _, text := range []string{i.Schema, i.Name} {
		for j := range len(text) {
			sum = (sum ^ uint64(text[j])) * prime
		}
		sum *= prime // as if NUL followed, which no name contains
	}
	for _, n := range []uint64{uint64(i.Since), uint64(e.Placement), uint64(e.Counter)} {
		for range 8 {
			sum = (sum ^ n&0xff) * prime
			n >>= 8
		}
	}
	return sum
}

// AnySince stands for whichever table has a name when it is acquired. Maintainers of earlier versions know names only.
const AnySince = Position(math.MaxUint64)

// Holder is which table has a name at a sink.
type Holder struct {
	// Since is the position of the DDL that gave the table the name, or of the one that took it away.
	Since Position
	// Over: no table has the name, as far as the sink knows: the last one was dropped or renamed. One that gets it unnoticed has it since then.
	Over bool
}

// Past reports whether a table that was given the name at a position does not have it any more.
func (h Holder) Past(since Position) bool { return since < h.Since }

// Kind is what happened to a row.
type Kind uint8

// The kinds.
const (
	Insert Kind = iota + 1
	Update
	Delete
)

// Column describes one column of a table at a position.
type Column struct {
	Name string
	// Type as the source names it, in lower case, for instance "bigint", "decimal", "datetime", "json".
	Type     string
	Unsigned bool
	// Collation of text; empty for anything else, or if it is not known.
	Collation string
	// Digits of a decimal after its point, or of a second in a time.
	Digits int
	// Generated columns are not written at the sink.
	Generated bool
}

// Schema describes a table at a position. It does not change; a changed table has another Schema.
type Schema struct {
	Columns []Column
	// Key are the indexes of the columns that identify a row; empty if nothing does.
	Key []int
}

// Change is what happened to one row. Before is nil for an Insert, After for a Delete. Values are in the order of the
// columns; nil is NULL.
type Change struct {
	Kind          Kind
	Before, After []any
}

// Rows are what one transaction changed in one table.
type Rows struct {
	Position Position
	// At is when the source committed, by its own clock.
	At      time.Time
	Table   Table
	Schema  *Schema
	Changes []Change
	// Bytes is about how much memory they take.
	Bytes int
	// DDL is set instead of changes where DDL concerns the table, so that it keeps its place among the changes.
	DDL *DDL
	// A large transaction comes in parts. Before is how many of its changes of the table were in earlier parts, Total how many there are
	// in all parts, and More is set in all parts but the last. Total is 0 if the transaction comes at once.
	Before, Total int
	More          bool
	// Runs are which changes follow each other directly, in order; none if all do. Merged rows have changes of several tables, and
	// every run says of which.
	Runs []Run
	// Raw is how the source logged the changes, whose values are not decoded before Decode is called; nil if they are.
	Raw Raw
}

// Raw are changes in the form of the log of their source.
type Raw interface {
	// Decode sets the values of changes, once: later calls return what the first did. It may be called concurrently.
	Decode(into []Change) error
}

// Decode makes sure that the values of the changes are there. Who reads values calls it first; how many changes there are and of which
// kind is known without it.
func (r *Rows) Decode() error {
	if r.Raw == nil {
		return nil
	}
	return r.Raw.Decode(r.Changes)
}

// To is the position that a table is at once rows were written, of which these are the last: just before their transaction if more of
// it follows.
func (r *Rows) To() Position {
	if r.More {
		return r.Position - 1
	}
	return r.Position
}

// Unwritten is what of rows is not written yet, where everything up to a position is, and of the transaction after that so many changes.
// It returns an error if the rows do not follow on from there.
func Unwritten(rows []*Rows, at Position, part int) ([]*Rows, error) {
	var left []*Rows
	for _, r := range rows {
		if r.Position <= at {
			continue
		}
		have := 0
		if r.Position == at+1 {
			have = part
		}
		if n := len(left); n > 0 && left[n-1].Position == r.Position {
			have = left[n-1].Before + len(left[n-1].Changes)
		}
		switch end := r.Before + len(r.Changes); {
		case r.Before > have:
			return nil, fmt.Errorf("table %s: the changes of the transaction at position %d begin with number %d, but only %d are written", r.Table, r.Position, r.Before+1, have)
		case r.Before < have && end <= have:
			continue
		case r.Before < have:
			if err := r.Decode(); err != nil {
				return nil, err
			}
			rest := *r
			rest.Before, rest.Changes, rest.Raw = have, r.Changes[have-r.Before:], nil
			r = &rest
		}
		left = append(left, r)
	}
	return left, nil
}

// Transaction is what a source commits at once: rows, or a DDL.
type Transaction struct {
	Position Position
	At       time.Time
	Rows     []*Rows
	DDL      *DDL
	// Idle: it is none. The source has nothing after the position at the time At, by the clock of the reader.
	Idle bool
	// More is set if it is a part of a large transaction, and another follows.
	More bool
	// Earlier is how many changes of each table were in earlier parts of a large transaction.
	Earlier map[Table]int
	// ID is the full identity of the transaction, if the source has one: its GTID.
	ID string
	// Skipped are tables whose rows were left out because nobody wanted them when they were read.
	Skipped []Table
}

// Source is where changes come from. All methods may be called concurrently; every Read has a connection of its own.
type Source interface {
	// Check returns an error that says why the source cannot be read and what to do about it.
	Check(ctx context.Context) error
	// Tables returns the tables that exist, and a position at which they did.
	Tables(ctx context.Context) ([]Table, Position, error)
	// Head is the newest position.
	Head(ctx context.Context) (Position, error)
	// Read calls visit for every transaction after a position, in order, and now and then while there is none, until ctx ends
	// or visit returns an error, which Read returns. It returns ErrPurged if the source no longer has what comes after the position. After a lost connection
	// it resumes at the last transaction that was visited.
	Read(ctx context.Context, after Position, visit func(*Transaction) error) error
	// Close releases everything.
	Close() error
}

// Selective is a source that can skip the decoding of rows of tables that nobody wants.
type Selective interface {
	// ReadOf is Read without the rows of tables that are not wanted when they are read. Such tables are in Skipped.
	ReadOf(ctx context.Context, after Position, wants func(Table) bool, visit func(*Transaction) error) error
}

// ReadOf reads what is wanted, or everything if the source is not Selective.
func ReadOf(ctx context.Context, s Source, after Position, wants func(Table) bool, visit func(*Transaction) error) error {
	if of, ok := s.(Selective); ok {
		return of.ReadOf(ctx, after, wants, visit)
	}
	return s.Read(ctx, after, visit)
}

// NoTable wants no table, to read DDL only.
func NoTable(Table) bool { return false }

// Epoch is an owner of a table at a sink: the epoch of the changefeed's placement, and a counter within it.
type Epoch struct {
	Placement int64 `json:"placement"`
	Counter   int64 `json:"counter"`
}

// String is placement.counter.
func (e Epoch) String() string { return fmt.Sprintf("%d.%d", e.Placement, e.Counter) }

// Compare orders epochs: by placement, then by counter.
func (e Epoch) Compare(o Epoch) int {
	switch {
	case e == o:
		return 0
	case e.Placement < o.Placement || e.Placement == o.Placement && e.Counter < o.Counter:
		return -1
	}
	return 1
}

// Sink is where changes go. All methods may be called concurrently.
type Sink interface {
	// Check returns an error that says why the sink cannot be written and what to do about it.
	Check(ctx context.Context) error
	// Acquire makes an epoch the owner of a table and returns the position that the table is at: the one that the sink has
	// recorded, or start if it has none. It waits for writes of an earlier owner to end; afterwards the sink refuses that
	// owner's writes. It returns ErrNotOwner if a newer epoch owns the table, or if the table does not have the name any more, and
	// ErrWentBack if the sink may have lost what an earlier owner wrote.
	Acquire(ctx context.Context, table Identity, epoch Epoch, start Position) (Writer, Position, error)
	// ExecuteDDL executes the DDL at a position exactly once, however often it is called. It returns ErrNotOwner if a newer
	// epoch has executed DDL, and ErrWentBack if the sink may have lost changes before it.
	ExecuteDDL(ctx context.Context, position Position, ddl *DDL, epoch Epoch) error
	// Close releases everything.
	Close() error
}

// Writer writes one table for one owner. It is used by one goroutine at a time.
type Writer interface {
	// Write writes rows and the position that the table is at then, atomically and durably. Rows are in order, and empty if
	// nothing changed; to is at least To of the last. What was written before is skipped. If another epoch owns the table, or the sink
	// has lost what was written, it writes nothing and returns ErrNotOwner; without rows it finds that out even if to is where the table is.
	Write(ctx context.Context, rows []*Rows, to Position) error
	// Close releases the writer. The owner of the table stays the same.
	Close() error
}

// AheadWriter is a Writer that can prepare a write while an earlier one is under way.
type AheadWriter interface {
	// Prepare does what a later Write of the same rows can do without the sink. It may be called while Write runs, but not concurrently
	// with itself. What it cannot do, Write does.
	Prepare(rows []*Rows)
	// Forget frees the memory of what is prepared. It may be called at any time.
	Forget()
}

// Part is what is written of one table when several are written together.
type Part struct {
	Writer Writer
	Rows   []*Rows
	To     Position
	// Done is called once, with what Write would return.
	Done func(error)
}

// Together is a sink that can write several tables in one transaction, which costs it less than one for each.
type Together interface {
	// WriteTogether writes parts of different tables, each as its Writer would. A part that cannot be written keeps no other from
	// being written. It returns when every part is done.
	WriteTogether(ctx context.Context, parts []Part)
}

// GroupSink is a sink that executes the foreign keys of its tables.
type GroupSink interface {
	// ForeignKeys are those that the tables at the sink have now.
	ForeignKeys(ctx context.Context) ([]ForeignKey, error)
	// AcquireGroup is Acquire of several tables at once, whose Writer takes merged rows. It returns the lowest position among them.
	// Tables that do not exist are left out.
	AcquireGroup(ctx context.Context, tables []Identity, epoch Epoch, start Position) (Writer, Position, error)
}

// Checkpoint is a position up to which everything of a changefeed is at its sink.
type Checkpoint struct {
	Position Position
	// Transaction is the full identity of a transaction of the source at the position or before it; empty if none is known. A source
	// without it has another history.
	Transaction string
	// Incarnation of the sink: a number that changes when the sink may have lost writes.
	Incarnation int64
}

// Errors that callers act on.
var (
	// ErrPurged: the source no longer has the log at that position.
	ErrPurged = errors.New("the source has purged its log at this position")
	// ErrNotOwner: another epoch owns the table at the sink.
	ErrNotOwner = errors.New("the table has another owner at the sink")
	// ErrWentBack: the sink does not have a checkpoint that it had before.
	ErrWentBack = errors.New("the sink went back, and its tables are read again from the checkpoint that it has")
	// ErrUnusable: the source, the sink or the changefeed is misconfigured.
	ErrUnusable = errors.New("misconfigured; retrying will not help")
)
