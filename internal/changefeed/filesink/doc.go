// Package filesink writes changes to files, as JSON lines.
//
//	DIRECTORY/<schema>.<table>/000001.jsonl   changes of a table, and DDL that concerns it alone (ALTER, TRUNCATE)
//	DIRECTORY/<schema>.<table>/owner.json     who may write: the changefeed, the epoch, and since when the table has its name
//	DIRECTORY/<schema>.<table>/gone           the table was dropped or renamed, at this position
//	DIRECTORY/ddl/000001.jsonl                other DDL, in order
//
// Lines are in the order of their positions. The changes of one transaction are numbered, from "change":1 to the number in "changes";
// with the last of them the transaction is complete. An owner appends only to files that it created itself. A new owner reads the last
// complete transaction from the last file, and cuts off what comes after it.
//
// Changes are written at least once. Only the writer itself checks whether it still owns a table: it reads the owner before every
// write, and does not write while its node's lease is in doubt. A process that froze between that check and the write may still write
// later, to a file of its own. Its lines are duplicates: who reads the files in order has to skip every transaction whose position is
// not after that of the last complete one.
package filesink
