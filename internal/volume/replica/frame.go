// Package replica carries block.Replica over a connection between nodes: a client that implements it for an engine, and a server that passes
// requests on to the replica's store. Many requests are under way on one connection; answers come in any order.
//
// A connection begins with a hello that names the volume and the replica. Every frame is a header of fixed size and a payload, each with a
// CRC32C. A frame that is damaged or breaks a rule ends the connection: nothing after it can be trusted.
package replica

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/ebb-dev/ebb/internal/volume/block"
)

// Protocol is what the connections of this package are called in ALPN.
const Protocol = "ebb-block/1"

// Limits of a frame.
const (
	// MaxData is the most that one read or write may carry.
	MaxData = 32 << 20
	// MaxMetadata is the most that bitmaps, extents and memberships may take.
	MaxMetadata = 4 << 20
	// maxText bounds names and messages.
	maxText = 4 << 10
)

const (
	magic      = 0x45424231 // "EBB1"
	version    = 1
	headerSize = 56
)

// errProtocol: the other side broke a rule of the protocol, or bytes were damaged on their way.
var errProtocol = errors.New("protocol violation")

// operation is what a frame asks for, or what it answers.
type operation uint8

const (
	opHello operation = iota + 1
	opOpen
	opCommit
	opRead
	opWrite
	opZero
	opFlush
	opExtents
	opIntent
	opMissed
	opClear
	opPing
	opEnd // no operation
)

// Flags of a frame.
const (
	flagAnswer uint16 = 1 << iota
	flagFUA           // write, zero
	flagHole          // zero
	flagZeros         // answer to a read: all bytes are zero and are not sent
	flagKnown         // answer to missed: it is known what was missed
	flagEnd           // no flag
)

// header of a frame, in the order of its bytes:
//
//	magic 4, version 1, operation 1, flags 2, id 8, generation 8, offset 8, length 8, payload length 4, status 2, zero 2,
//	CRC32C of the payload 4, CRC32C of the bytes before 4
type header struct {
	op         operation
	status     status // of an answer
	flags      uint16
	id         uint64
	generation int64
	offset     int64 // of the range; in a request for what was missed, the generation in which the replica was last a member
	length     int64 // of the range; that of a read is in its request only
	payload    uint32
	sum        uint32 // of the payload
}

func checksum(p []byte) uint32 { return block.Checksum(p) }

// append appends the bytes of the header.
func (h header) append(b []byte) []byte {
	start := len(b)
	b = binary.BigEndian.AppendUint32(b, magic)
	b = append(b, version, byte(h.op))
	b = binary.BigEndian.AppendUint16(b, h.flags)
	b = binary.BigEndian.AppendUint64(b, h.id)
	b = binary.BigEndian.AppendUint64(b, uint64(h.generation))
	b = binary.BigEndian.AppendUint64(b, uint64(h.offset))
	b = binary.BigEndian.AppendUint64(b, uint64(h.length))
	b = binary.BigEndian.AppendUint32(b, h.payload)
	b = binary.BigEndian.AppendUint16(b, uint16(h.status))
	b = append(b, 0, 0)
	b = binary.BigEndian.AppendUint32(b, h.sum)
	return binary.BigEndian.AppendUint32(b, checksum(b[start:]))
}

// parseHeader reads a header from its bytes, of which there are headerSize.
func parseHeader(b []byte) (header, error) {
	switch sum := binary.BigEndian.Uint32(b[52:]); {
	case binary.BigEndian.Uint32(b) != magic:
		return header{}, fmt.Errorf("%w: not a frame", errProtocol)
	case b[4] != version:
		return header{}, fmt.Errorf("%w: version %d, want %d", errProtocol, b[4], version)
	case sum != checksum(b[:52]):
		return header{}, fmt.Errorf("%w: the checksum of a header is wrong", errProtocol)
	}
	h := header{
		op: operation(b[5]), flags: binary.BigEndian.Uint16(b[6:]), id: binary.BigEndian.Uint64(b[8:]),
		generation: int64(binary.BigEndian.Uint64(b[16:])), offset: int64(binary.BigEndian.Uint64(b[24:])), length: int64(binary.BigEndian.Uint64(b[32:])),
		payload: binary.BigEndian.Uint32(b[40:]), status: status(binary.BigEndian.Uint16(b[44:])), sum: binary.BigEndian.Uint32(b[48:]),
	}
	if h.op == 0 || h.op >= opEnd || h.flags >= flagEnd || h.status >= statusEnd || b[46] != 0 || b[47] != 0 {
		return header{}, fmt.Errorf("%w: operation %d, flags %#x, status %d", errProtocol, h.op, h.flags, h.status)
	}
	return h, nil
}

// readHeader reads the next header. It returns io.EOF if the other side closed the connection between two frames.
func readHeader(r *bufio.Reader) (header, error) {
	b, err := r.Peek(headerSize)
	if err != nil {
		if len(b) > 0 && errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return header{}, err
	}
	h, err := parseHeader(b)
	_, _ = r.Discard(headerSize)
	return h, err
}

// readPayload fills p with the payload of a frame.
func readPayload(r *bufio.Reader, h header, p []byte) error {
	if _, err := io.ReadFull(r, p); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	if checksum(p) != h.sum {
		return fmt.Errorf("%w: the checksum of a payload is wrong", errProtocol)
	}
	return nil
}

// checkRequest refuses a request that breaks a rule, before anything is allocated for it.
func (h header) checkRequest() error {
	ranged := h.offset >= 0 && h.length >= 0 && h.offset <= math.MaxInt64-h.length
	var flags uint16
	ok := h.status == statusOK
	switch h.op {
	case opHello, opMissed:
		ok = ok && h.payload <= maxText
	case opCommit, opClear:
		ok = ok && h.payload <= MaxMetadata
	case opRead:
		ok = ok && ranged && h.length <= MaxData && h.payload == 0
	case opWrite:
		ok = ok && ranged && h.length <= MaxData && int64(h.payload) == h.length
		flags = flagFUA
	case opZero:
		ok = ok && ranged && h.payload == 0
		flags = flagFUA | flagHole
	case opExtents:
		ok = ok && ranged && h.payload == 0
	default:
		ok = ok && h.payload == 0
	}
	if !ok || h.flags&^flags != 0 {
		return fmt.Errorf("%w: request %d with flags %#x, range %d+%d and %d bytes", errProtocol, h.op, h.flags, h.offset, h.length, h.payload)
	}
	return nil
}

// checkAnswer refuses an answer that breaks a rule. Length is how much the request asked to read.
func (h header) checkAnswer(op operation, length int64) error {
	flags := flagAnswer
	ok := h.op == op && h.flags&flagAnswer != 0
	switch {
	case h.status != statusOK:
		ok = ok && h.payload <= maxText
	case op == opRead:
		flags |= flagZeros
		if h.flags&flagZeros != 0 {
			length = 0
		}
		ok = ok && int64(h.payload) == length
	case op == opMissed:
		flags |= flagKnown
		ok = ok && h.payload <= MaxMetadata
	case op == opOpen, op == opExtents, op == opIntent, op == opHello:
		ok = ok && h.payload <= MaxMetadata
	default:
		ok = ok && h.payload == 0
	}
	if !ok || h.flags&^flags != 0 {
		return fmt.Errorf("%w: answer %d to %d with flags %#x, status %d and %d bytes", errProtocol, h.op, op, h.flags, h.status, h.payload)
	}
	return nil
}
