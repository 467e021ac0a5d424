// Package sqlsink writes changes into a MariaDB or MySQL server, each exactly once.
//
//	Acquire   BEGIN; SELECT progress … FOR UPDATE; UPDATE epoch; COMMIT      waits an old owner out, then fences it
//	Write     BEGIN; UPDATE progress SET position = new
//	                 WHERE epoch = mine AND position = previous;            must match one row, or nothing is written
//	                 DELETE …; INSERT …; COMMIT                             rows and position together
//	Define    GET_LOCK; intent; the statement; done                         see [Sink.Define]
//
// The server itself holds, in a schema of its own, how far each table is and who may write it. That row is the position;
// nothing that a node remembers counts. An owner that was replaced matches no row and learns that it is one no more.
//
// A batch of many transactions becomes few statements. Changes of a table with a key are folded by key to what is left of
// each row in the end; then the rows as they were are deleted and the rows as they are inserted, in this order, so that
// values of other unique keys that moved from row to row are free before they are taken. Tables without a key are
// written change by change, matching whole rows.
//
// What is true of a table (its key, its generated columns, its character sets) is taken from the sink's own definition
// of it: definitions are executed here in step with the log, while the source may be ahead.
//
// Rows are atomic per table. A transaction of the source over several tables may be seen in part.
package sqlsink
