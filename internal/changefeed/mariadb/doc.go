// Package mariadb reads the changes of a MariaDB server from its binary log.
//
//	binary log ──packets──▶ binlog ──events──▶ assembler ──stream.Transaction──▶ visit
//	                                              ▲
//	information_schema ──what the log lacks───────┘
//
// A position is the sequence number of a GTID. The server may have one replication domain only. With binlog_row_metadata=FULL the log
// has the names, types, signedness, enum members and the primary key of a table as they were when a row was written. It lacks three
// things: which columns are generated, which binary columns are inet4, inet6 or uuid, and the unique keys of a table without a primary
// key. These are read from information_schema of the live server, where the table may have been altered since; where that matters, a
// sink uses its own table, whose DDL is executed in step with the log.
//
// Values are exactly as the server stores them:
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
// A read fails when it comes to something that cannot be replicated exactly: a statement that was logged instead of rows, an XA
// transaction that is prepared first and committed later, or an incident after which the log lacks changes. Changes that a foreign
// key makes by cascade are never in the binary log; [Source.PartlyLogged] returns the tables that have such keys.
package mariadb
