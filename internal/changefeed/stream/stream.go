// Package stream is what flows from a source to a sink: transactions in the order of their positions, split by table.
//
//	Source ──transactions──▶ reader of a node ──rows of a table──▶ dispatcher ──batches──▶ Writer of a Sink
//
// Order and atomicity hold within a table. A source transaction over several tables may be seen in part at the sink.
package stream

import (
	"context"
	"errors"
	"time"
)

// Position orders what a source says: the sequence number of a transaction. Who is at p has everything up to and including p.
type Position uint64

// Table is the name of a table.
type Table struct {
	Schema string `json:"schema"`
	Name   string `json:"name"`
}

// String is schema.name.
func (t Table) String() string { return t.Schema + "." + t.Name }

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
	// DDL is set instead of changes where the table's definition changes, so that it keeps its place among them.
	DDL *DDL
}

// DDLKind is what a definition does to tables.
type DDLKind string

// The kinds of definitions.
const (
	CreateTable   DDLKind = "create"
	DropTable     DDLKind = "drop"
	RenameTable   DDLKind = "rename"
	TruncateTable DDLKind = "truncate"
	AlterTable    DDLKind = "alter"
	// OtherDDL concerns no table: schemas, views, grants.
	OtherDDL DDLKind = "other"
)

// DDL is a statement that changes the definition of tables. It is a transaction of its own.
type DDL struct {
	Kind DDLKind
	// Schema in which unqualified names are meant.
	Schema    string
	Statement string
	// Tables that it concerns, by the names they have before it; Becomes is what a rename calls each.
	Tables, Becomes []Table
}

// Alone says whether a definition concerns one table that is there before and after, so that whoever carries the table can
// execute it between two changes. Others need everybody that they concern to stand still.
func (d *DDL) Alone() bool {
	return len(d.Tables) == 1 && len(d.Becomes) == 0 && (d.Kind == AlterTable || d.Kind == TruncateTable)
}

// Transaction is the unit in which a source speaks: rows or a definition.
type Transaction struct {
	Position Position
	At       time.Time
	Rows     []*Rows
	DDL      *DDL
	// Skipped are tables that have rows in it which nobody wanted when they were read.
	Skipped []Table
}

// Source is where changes come from. All methods may be called concurrently; every Read has a connection of its own.
type Source interface {
	// Check says what about the source would keep it from being read, in words that a person can act on.
	Check(ctx context.Context) error
	// Tables are the tables there are, and a position at which they were these.
	Tables(ctx context.Context) ([]Table, Position, error)
	// Head is the newest position.
	Head(ctx context.Context) (Position, error)
	// Read calls visit for every transaction after a position, in order, until ctx ends or visit returns an error, which
	// Read returns. ErrPurged says that the source no longer has what comes after the position. Lost connections are
	// resumed at the last transaction that was visited.
	Read(ctx context.Context, after Position, visit func(*Transaction) error) error
	// Close gives everything back.
	Close() error
}

// Selective is a source that need not work out the rows of tables that nobody wants.
type Selective interface {
	// ReadOf is Read, but for rows of tables that are not wanted when they come. Those are told in Skipped.
	ReadOf(ctx context.Context, after Position, wants func(Table) bool, visit func(*Transaction) error) error
}

// ReadOf reads what is wanted, and from a source that cannot tell everything.
func ReadOf(ctx context.Context, s Source, after Position, wants func(Table) bool, visit func(*Transaction) error) error {
	if of, ok := s.(Selective); ok {
		return of.ReadOf(ctx, after, wants, visit)
	}
	return s.Read(ctx, after, visit)
}

// NoTable is wanted by those who read for definitions only.
func NoTable(Table) bool { return false }

// Epoch is an owner of a table at a sink: the epoch of the changefeed's placement, and a counter within it.
type Epoch struct {
	Placement int64 `json:"placement"`
	Counter   int64 `json:"counter"`
}

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
	// Check says what about the sink would keep it from being written, in words that a person can act on.
	Check(ctx context.Context) error
	// Acquire makes an epoch the owner of a table and returns the position up to which the table is there: the one that the
	// sink has, or start if it has never seen the table. It waits out what an earlier owner has under way; afterwards
	// nothing of that owner reaches the sink. ErrNotOwner says that a newer epoch owns the table already.
	Acquire(ctx context.Context, table Table, epoch Epoch, start Position) (Writer, Position, error)
	// ExecuteDDL executes a definition once, however often it is asked to, for as long as the epoch is not outdone.
	ExecuteDDL(ctx context.Context, position Position, ddl *DDL, epoch Epoch) error
	// Close gives everything back.
	Close() error
}

// Writer writes one table for one owner. It is used by one goroutine at a time.
type Writer interface {
	// Write makes rows and the position they bring the table to durable, all or nothing. Rows are in order and not empty
	// only if something changed; to is at least the position of the last. ErrNotOwner says that another epoch owns the
	// table; nothing was written.
	Write(ctx context.Context, rows []*Rows, to Position) error
	// Close gives the table up without changing its owner.
	Close() error
}

// Errors that callers act on.
var (
	// ErrPurged: the source no longer has the log at that position.
	ErrPurged = errors.New("the source no longer has the log at this position")
	// ErrNotOwner: another epoch owns the table at the sink.
	ErrNotOwner = errors.New("another owner has the table at the sink")
	// ErrUnusable: the source or the sink is set up in a way that cannot work; trying again is no use.
	ErrUnusable = errors.New("unusable as it is set up")
)
