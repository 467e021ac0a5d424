// Package mariadb reads the changes of a MariaDB server from its binary log.
//
//	binary log ──packets──▶ binlog ──events──▶ assembler ──stream.Transaction──▶ visit
//	                                              ▲
//	information_schema ──what the log leaves out───┘
//
// A position is the sequence number of a GTID in the one replication domain that the server may have. The log itself
// says names, types, signedness, members of enums and the primary key of a table (binlog_row_metadata=FULL), as they were
// when the row was written. Three facts it leaves out: which columns are generated, which binary columns are really
// inet4, inet6 or uuid, and the unique keys of a table without a primary key. These are asked of the live server, which
// may know the table in a later shape than the log tells of; where that matters, a sink trusts its own definition of
// the table, which moves in step with the log.
//
// Values arrive exactly as they are stored:
//
//	tinyint … bigint, year     int64, or uint64 if unsigned
//	bit                        uint64
//	decimal                    string of digits
//	float, double              float32, float64
//	date, time, datetime       string as the server prints it; a timestamp is in UTC
//	text in UTF-8, enum, set   string; int64 0 for an enum that is none of its members
//	text in other charsets     []byte, the bytes as stored
//	binary, blob, geometry     []byte as stored; a geometry is its SRID and its WKB
//	inet4, inet6, uuid         string as the server prints it
//
// What cannot be carried over faithfully ends a read with an error that says so: statements that were logged instead
// of rows, XA transactions in two phases, and what an incident made the log lose. What a foreign key changes by cascade is
// in no binary log; [Source.Unfaithful] names the tables that have such keys.
package mariadb
