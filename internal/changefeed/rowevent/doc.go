// Package rowevent handles events with rows of MariaDB's binary log without decoding values: it counts their rows, and builds the BINLOG
// statements that make another MariaDB execute them.
//
//	source: table map ─▶ Table      rows event ─▶ Table.Parse ─▶ Event
//	sink:   Groups of events ─▶ Statement: BINLOG 'format, (table map, rows …, rows with the end flag) for each table'
//
// A server ignores in silence rows whose table has no map in the statement, and the tables that are mapped after rows without the end flag.
// So [Statement] numbers the tables itself, and every table has one map, its rows, and the end flag on its last event.
//
// Nothing here does I/O.
package rowevent
