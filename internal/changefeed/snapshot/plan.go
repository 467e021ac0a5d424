package snapshot

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// Definition is a table as it was at the position of a plan.
type Definition struct {
	Table stream.Table
	// Create is the statement that makes it, and Parsed what it names; nil if that was not found out.
	Create string
	Parsed *stream.DDL
	// Layout is how it is read; nil if that was not found out.
	Layout *Layout
	// Keyed: it has a key by which it is copied in chunks.
	Keyed, Sequence bool
	// Engine, and whether it has system versioning.
	Engine    string
	Versioned bool
	// Cascade is a foreign key that changes rows by cascade; empty if there is none.
	Cascade string
	// Rows and Bytes are estimates.
	Rows, Bytes int64
}

// Schema is a database.
type Schema struct{ Name, Charset, Collation string }

// Plan is what is copied: the tables that there were at a position.
type Plan struct {
	Position stream.Position
	Schemas  []Schema
	Tables   []Definition
	// NotCopied are views, triggers, routines and events that are not copied, each with what it is.
	NotCopied []string
}

// Check returns ErrUnusable for tables that cannot be copied, with what to do about it. keyless is how many bytes a table without a key
// may have.
func (p *Plan) Check(keyless int64) error {
	for i := range p.Tables {
		d := &p.Tables[i]
		switch {
		case d.Versioned:
			return refuse(d, "it has system versioning, and the history of its rows cannot be written", "ALTER TABLE … DROP SYSTEM VERSIONING at the source")
		case d.Engine != "" && d.Engine != "InnoDB":
			return refuse(d, "its engine is "+d.Engine+", which has no consistent snapshot", "ALTER TABLE … ENGINE=InnoDB at the source")
		case d.Cascade != "":
			return refuse(d, "foreign key "+d.Cascade+" changes rows by cascade, and these changes are not in the log of the source", "drop the key or make it RESTRICT at the source")
		case !d.Keyed && !d.Sequence && d.Bytes > keyless:
			return refuse(d, fmt.Sprintf("it has no primary key, and no unique key of whole columns that are not NULL, so that its %d bytes would be copied in one transaction, which is allowed up to %d", d.Bytes, keyless),
				"give it a primary key at the source, or increase spec.snapshot.maxKeylessBytes")
		}
	}
	return nil
}

func refuse(d *Definition, why, remedy string) error {
	return fmt.Errorf("table %s cannot be copied: %s; %s, or exclude the table by the filter: %w", d.Table, why, remedy, stream.ErrUnusable)
}

// Errors after which a table is read in another snapshot.
var (
	// ErrChanged: the table was altered since the snapshot was taken.
	ErrChanged = errors.New("the table was changed by DDL while a snapshot of it was taken")
	// ErrBehind: the table has changes at the sink that came after the snapshot.
	ErrBehind = errors.New("the table is after the position of the snapshot")
)

// Source is a source whose tables can be copied.
type Source interface {
	// PlanSnapshot returns what there is inside a filter, at a position.
	PlanSnapshot(ctx context.Context, f stream.Filter) (*Plan, error)
	// OpenSnapshot takes a snapshot.
	OpenSnapshot(ctx context.Context) (Session, error)
}

// Session is a transaction of the source with a snapshot. It is used by one goroutine at a time.
type Session interface {
	// Position of the snapshot.
	Position() stream.Position
	// Describe describes a table, which cannot be altered from then on until the session is closed. DDL of the table after the position
	// of the snapshot and up to head makes the snapshot useless. It returns ErrChanged if that is known already.
	Describe(ctx context.Context, t stream.Table) (l *Layout, head stream.Position, err error)
	// Read reads a chunk of at most about so many rows and bytes. Without a key, visit is called for parts of the table, of which the
	// last has Last set; with one, once.
	Read(ctx context.Context, l *Layout, after *Cursor, rows, bytes int, visit func(*Chunk) error) error
	// Close ends the transaction.
	Close()
}

// Sink is a sink that tables can be copied to.
type Sink interface {
	// SnapshotPosition is the position of the plan that was saved; ok is false if there is none.
	SnapshotPosition(ctx context.Context) (at stream.Position, ok bool, err error)
	// SaveSnapshotPlan saves a plan. It returns ErrUnusable if a table of it has rows at the sink, or differs.
	SaveSnapshotPlan(ctx context.Context, p *Plan) error
	// MakeSnapshotTables makes the tables of the plan that are not made yet. Those outside a filter, which may have changed since the plan
	// was made, are not part of the plan any more.
	MakeSnapshotTables(ctx context.Context, f stream.Filter) error
	// SnapshotProgress is how much of the plan is copied.
	SnapshotProgress(ctx context.Context) (Progress, error)
}

// Progress is how much of a plan is copied.
type Progress struct {
	Tables, TablesDone int64
	// Rows that were copied, and about how many there are.
	Rows, Estimate int64
}

// Writer writes a table that may be being copied.
type Writer interface {
	// Snapshot is how far the table is copied; nil if it is not, or not any more.
	Snapshot() *State
	// Copies is what is copied of a table that is laid out like this.
	Copies(l *Layout) (*Layout, error)
	// WriteChunk writes the parts of a chunk, the cursor and the position that the table is at then, in one transaction. After an error the
	// table must be acquired again.
	WriteChunk(ctx context.Context, parts iter.Seq2[*Chunk, error], to stream.Position) error
}
