// Package snapshot is the initial copy of tables: what a source has already when a changefeed begins.
//
//	plan ──▶ definitions at a position, saved at the sink ──▶ tables are made ──▶ dispatchers start at that position, and copy
//
// A table is copied in chunks, in the order of its key. Each chunk is read in a transaction whose snapshot has a known position. The
// dispatcher of the table stops at that position, writes the chunk, the cursor and the position in one transaction, and goes on.
//
// Why that is exact: at every position, the rows that the sink has are rows that the source had at that position. Before the first chunk
// the table is empty, and its changes are dropped. A chunk adds rows of its position. A change deletes the row that was before and
// writes the row that is after, whether the first was there or not. And the sink has all rows up to the cursor, which a change does not
// alter either. So after the last chunk it has all rows.
package snapshot
