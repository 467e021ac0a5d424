package rowevent

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"io"
	"strings"
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

// WriteStatement appends the statement that applies groups of different tables, one after the other. Groups without changes are left out; it
// appends nothing if all are. The statement begins with a description of the format: a session needs one before its first event, and another
// does no harm.
//
// It must be the last statement of its message, because its answer does not say that others follow. If it fails, the transaction stays
// open without it.
func WriteStatement(to *strings.Builder, groups []Group) {
	events, tables := io.WriteCloser(nil), uint64(0)
	var head []byte
	for _, g := range groups {
		if g.Changes() == 0 {
			continue
		}
		if tables++; tables == 1 {
			to.WriteString(prefix)
			events = base64.NewEncoder(base64.StdEncoding, to)
			_, _ = events.Write(format) // a builder accepts everything
		}
		head = g.write(events, tables, head)
	}
	if tables > 0 {
		_ = events.Close()
		to.WriteString(suffix)
	}
}

// Format is a statement that only describes the format. Whoever may execute it may execute others.
func Format() string {
	return prefix + base64.StdEncoding.EncodeToString(format) + suffix
}

// StatementLength bounds the length of the statement of groups.
func StatementLength(groups []Group) int {
	n := len(format)
	for _, g := range groups {
		n += headerLength + idLength + len(g.Table.description)
		for _, e := range g.Events {
			n += headerLength + idLength + flagsLength + len(e.body)
		}
	}
	return len(prefix) + base64.StdEncoding.EncodedLen(n) + len(suffix)
}

// write writes the map of the table under a number, and its rows, the last event with the flag that ends the statement. It makes what comes
// before rows in head, and returns that to be used again.
func (g Group) write(to io.Writer, number uint64, head []byte) []byte {
	at := uint32(g.At.Unix())
	head = beginEvent(head[:0], typeTableMap, at, idLength+len(g.Table.description))
	head = append(appendID(head, number), g.Table.description...)
	_, _ = to.Write(head)
	for rest := changing(g.Events); len(rest) > 0; {
		n, length := merged(rest)
		flags := uint16(noForeignKeyChecks | noConstraintChecks)
		next := changing(rest[n:])
		if len(next) == 0 {
			flags |= endOfStatement
		}
		first := &rest[0]
		head = beginEvent(head[:0], first.Type, at, idLength+flagsLength+length)
		head = binary.LittleEndian.AppendUint16(appendID(head, number), flags)
		_, _ = to.Write(append(head, first.body[:first.head]...))
		for i := range rest[:n] {
			if e := &rest[i]; e.Changes > 0 {
				_, _ = to.Write(e.body[e.head:])
			}
		}
		rest = next
	}
	return head
}

// changing are events from the first that has changes on.
func changing(events []Event) []Event {
	for len(events) > 0 && events[0].Changes == 0 {
		events = events[1:]
	}
	return events
}

// merged is how many events become one with the first, which costs the server less, and how long the body of that is: those of the same type
// that follow it. Those without changes are left out.
func merged(events []Event) (n, length int) {
	first := &events[0]
	length = first.head
	for n < len(events) {
		if e := &events[n]; e.Changes > 0 {
			rows := len(e.body) - e.head
			if n > 0 && (e.Type != first.Type || length+rows > mergedBytes || !bytes.Equal(e.body[:e.head], first.body[:first.head])) {
				break
			}
			length += rows
		}
		n++
	}
	return n, length
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

// format is the description of the format of all events.
var format = formatEvent()

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
