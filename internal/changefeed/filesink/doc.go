// Package filesink writes changes to files, as JSON lines.
//
//	DIRECTORY/<schema>.<table>/000001.jsonl   changes of a table and the definitions that it alone goes through
//	DIRECTORY/<schema>.<table>/owner.json     who may write: the changefeed and the epoch
//	DIRECTORY/<schema>.<table>/gone           the table was dropped or renamed
//	DIRECTORY/ddl/000001.jsonl                other definitions, in order
//
// Lines are in the order of their positions. The changes of one transaction are numbered, from "change":1 to the number in "changes";
// with the last of them the transaction is complete. An owner appends to no file but those it made itself. A new owner reads how far
// the last file goes, and cuts off what is not a complete transaction.
//
// Changes arrive at least once. Nobody but the writer itself checks whether it still owns a table: it reads the owner before every
// write, and does not write while its node's lease is in doubt. What was under way in a process that froze between that look and
// the write can still come, to a file of its own. A line whose position and number were there before is such a duplicate: who reads
// the files in order skips what is not after the last complete transaction.
package filesink
