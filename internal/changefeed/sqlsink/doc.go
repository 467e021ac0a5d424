// Package sqlsink writes changes into a MariaDB server, each exactly once.
//
//	Acquire   BEGIN; SELECT progress … FOR UPDATE; UPDATE epoch; COMMIT      waits for a write of the old owner, then fences it
//	Write     BEGIN; UPDATE progress SET position = new
//	                 WHERE since = mine AND epoch = mine
//	                 AND position = previous;                               must match one row, or nothing is written
//	                 DELETE …; INSERT …; COMMIT                             rows and position together
//	ExecuteDDL   GET_LOCK; intent; the statement; done                      see [Sink.ExecuteDDL]
//
// The server stores, in a schema of the sink's own, the position and the owner of each table. That row is authoritative, not what a
// node remembers. The writes of an owner that was replaced match no row, and so it learns that it was replaced. So does the owner of a table that
// was dropped or renamed, whose name another one has: a table is its name, and since when it has it.
//
// A batch of many transactions becomes few statements. Changes of a table with a key are folded by key to what is left of
// each row in the end; then the rows as they were are deleted and the rows as they are inserted, in this order, so that
// values of other unique keys that moved from row to row are free before they are taken. Tables without a key are
// written change by change, matching whole rows.
//
// The key, the generated columns and the character sets of a table are read from the sink, where DDL is executed in step with the
// log, and not from the source, which may be ahead.
//
// Writes are atomic per table. Of a transaction of the source over several tables, the sink may show a part for a moment.
package sqlsink
