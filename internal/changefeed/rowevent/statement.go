package rowevent

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"time"
)

// Group are events of one table, in order.
type Group struct {
	Table  *Table
	Events []Event
	// At is when the source committed the first of them.
	At time.Time
}

// Changes is how many rows the events change.
func (g Group) Changes() (n int) {
	for _, e := range g.Events {
		n += e.Changes
	}
	return n
}

// Sizes and types of events.
const (
	headerLength   = 19
	idLength       = 6
	flagsLength    = 2
	typeFormat     = 15
	typeTableMap   = 19
	highestType    = 171
	checksumLength = 4
)

// Flags of events with rows. Foreign keys and CHECK constraints were checked at the source; what a key changed by cascade is written by its own changes.
const (
	endOfStatement     = 1
	noForeignKeyChecks = 2
	noConstraintChecks = 1 << 7
)

const (
	prefix, suffix = "BINLOG '", "'"
	// mergedBytes bounds the events that are merged into one.
	mergedBytes = 256 << 10
)

// Statement is the statement that applies groups of different tables, one after the other. Groups without events are left out; it is
// empty if all are. It begins with a description of the format: a session needs one before its first event, and another does no harm.
//
// It must be the last statement of its message, because its answer does not say that others follow. If it fails, the transaction stays
// open without it.
func Statement(groups []Group) string {
	events, tables := formatEvent(), uint64(0)
	for _, g := range groups {
		if g.Changes() == 0 {
			continue
		}
		tables++
		events = g.append(events, tables)
	}
	if tables == 0 {
		return ""
	}
	text := make([]byte, 0, len(prefix)+base64.StdEncoding.EncodedLen(len(events))+len(suffix))
	text = base64.StdEncoding.AppendEncode(append(text, prefix...), events)
	return string(append(text, suffix...))
}

// Format is a statement that only describes the format. Whoever may execute it may execute others.
func Format() string {
	return prefix + base64.StdEncoding.EncodeToString(formatEvent()) + suffix
}

// StatementLength bounds the length of the statement of groups.
func StatementLength(groups []Group) int {
	n := len(formatEvent())
	for _, g := range groups {
		n += headerLength + idLength + len(g.Table.description)
		for _, e := range g.Events {
			n += headerLength + idLength + flagsLength + len(e.body)
		}
	}
	return len(prefix) + base64.StdEncoding.EncodedLen(n) + len(suffix)
}

// append appends the map of the table under a number, and its rows, the last event with the flag that ends the statement.
func (g Group) append(to []byte, number uint64) []byte {
	at := uint32(g.At.Unix())
	to = beginEvent(to, typeTableMap, at, idLength+len(g.Table.description))
	to = append(appendID(to, number), g.Table.description...)
	merged := merge(g.Events)
	for i, m := range merged {
		flags := uint16(noForeignKeyChecks | noConstraintChecks)
		if i == len(merged)-1 {
			flags |= endOfStatement
		}
		to = beginEvent(to, m.typ, at, idLength+flagsLength+m.length)
		to = binary.LittleEndian.AppendUint16(appendID(to, number), flags)
		to = append(to, m.head...)
		for _, rows := range m.rows {
			to = append(to, rows...)
		}
	}
	return to
}

// mergedEvent are the rows of consecutive events that do the same.
type mergedEvent struct {
	typ    byte
	head   []byte
	rows   [][]byte
	length int
}

// merge puts consecutive events of the same type into one, which costs the server less. The order of rows stays.
func merge(events []Event) (list []*mergedEvent) {
	for _, e := range events {
		if e.Changes == 0 {
			continue
		}
		head, rows := e.body[:e.head], e.body[e.head:]
		if n := len(list); n > 0 && list[n-1].typ == e.Type && bytes.Equal(list[n-1].head, head) && list[n-1].length+len(rows) <= mergedBytes {
			list[n-1].rows, list[n-1].length = append(list[n-1].rows, rows), list[n-1].length+len(rows)
			continue
		}
		list = append(list, &mergedEvent{typ: e.Type, head: head, rows: [][]byte{rows}, length: len(e.body)})
	}
	return list
}

// beginEvent appends the header of an event. It has no place in a log: a position of 0 says so.
func beginEvent(to []byte, typ byte, at uint32, body int) []byte {
	to = append(binary.LittleEndian.AppendUint32(to, at), typ)
	to = binary.LittleEndian.AppendUint32(to, serverID)
	to = binary.LittleEndian.AppendUint32(to, uint32(headerLength+body))
	return append(to, 0, 0, 0, 0, 0, 0) // position, flags
}

// serverID is in the header of events, where it has no effect: what the server logs itself has its own.
const serverID = 1

func appendID(to []byte, number uint64) []byte {
	return append(to, byte(number), byte(number>>8), byte(number>>16), byte(number>>24), byte(number>>32), byte(number>>40))
}

// formatEvent describes the events of a statement: version 4, without checksums. Created at no time and without a position, it does not
// end the transaction in which it is executed.
func formatEvent() []byte {
	const version, created, lengths, algorithm = 2, 4, highestType, 1
	e := beginEvent(nil, typeFormat, 0, version+50+created+1+lengths+algorithm+checksumLength)
	e = append(e, 4, 0)
	server := [50]byte{}
	copy(server[:], "10.6.0-MariaDB")
	e = append(append(e, server[:]...), 0, 0, 0, 0, headerLength)
	var post [highestType]byte
	post[typeFormat-1] = version + 50 + created + 1 + highestType
	for _, typ := range []int{typeTableMap, WriteRows, UpdateRows, DeleteRows} {
		post[typ-1] = idLength + flagsLength
	}
	e = append(append(e, post[:]...), 0) // no checksums, but the one of this event
	return binary.LittleEndian.AppendUint32(e, crc32.ChecksumIEEE(e))
}
