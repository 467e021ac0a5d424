package nbd

import "encoding/binary"

// Magic numbers.
const (
	magicServer          = 0x4e42444d41474943 // "NBDMAGIC"
	magicOption          = 0x49484156454f5054 // "IHAVEOPT"
	magicOptionReply     = 0x0003e889045565a9
	magicRequest         = 0x25609513
	magicSimpleReply     = 0x67446698
	magicStructuredReply = 0x668e33ef
)

// Flags of the handshake: the server offers them, and the client answers with those that it wants.
const (
	flagFixedNewstyle = 1 << 0
	flagNoZeroes      = 1 << 1
)

// Transmission flags.
const (
	flagHasFlags     = 1 << 0
	flagFlush        = 1 << 2
	flagFUA          = 1 << 3
	flagTrim         = 1 << 5
	flagWriteZeroes  = 1 << 6
	flagDF           = 1 << 7
	flagCanMultiConn = 1 << 8
)

// option is what a client asks for during the handshake.
type option uint32

const (
	optExportName      option = 1
	optAbort           option = 2
	optList            option = 3
	optInfo            option = 6
	optGo              option = 7
	optStructuredReply option = 8
	optListMetaContext option = 9
	optSetMetaContext  option = 10
)

// optionReply is the type of an answer to an option.
type optionReply uint32

const (
	repAck         optionReply = 1
	repServer      optionReply = 2
	repInfo        optionReply = 3
	repMetaContext optionReply = 4

	repErrUnsupported optionReply = 1<<31 + 1
	repErrInvalid     optionReply = 1<<31 + 3
	repErrUnknown     optionReply = 1<<31 + 6
)

// Kinds of information in a reply of type repInfo.
const (
	infoExport    = 0
	infoName      = 1
	infoBlockSize = 3
)

// command is the type of a request.
type command uint16

const (
	cmdRead        command = 0
	cmdWrite       command = 1
	cmdDisconnect  command = 2
	cmdFlush       command = 3
	cmdTrim        command = 4
	cmdWriteZeroes command = 6
	cmdBlockStatus command = 7
)

func (c command) String() string {
	switch c {
	case cmdRead:
		return "read"
	case cmdWrite:
		return "write"
	case cmdDisconnect:
		return "disconnect"
	case cmdFlush:
		return "flush"
	case cmdTrim:
		return "trim"
	case cmdWriteZeroes:
		return "write zeroes"
	case cmdBlockStatus:
		return "block status"
	}
	return "unknown"
}

// Flags of requests.
const (
	cmdFlagFUA    = 1 << 0
	cmdFlagNoHole = 1 << 1
	cmdFlagDF     = 1 << 2
	cmdFlagReqOne = 1 << 3
)

// allowedFlags are the flags that a command may carry; known is false for commands that the server does not have. FUA is allowed on all,
// even where nothing is written.
func (c command) allowedFlags() (flags uint16, known bool) {
	switch c {
	case cmdRead:
		return cmdFlagFUA | cmdFlagDF, true
	case cmdWrite, cmdFlush, cmdTrim:
		return cmdFlagFUA, true
	case cmdWriteZeroes:
		return cmdFlagFUA | cmdFlagNoHole, true
	case cmdBlockStatus:
		return cmdFlagFUA | cmdFlagReqOne, true
	}
	return 0, false
}

// errno is an error as the protocol transmits it.
type errno uint32

const (
	errnoIO       errno = 5
	errnoInvalid  errno = 22
	errnoNoSpace  errno = 28
	errnoOverflow errno = 75
	errnoShutdown errno = 108
)

// Types of chunks in a structured reply.
const (
	chunkNone        = 0
	chunkData        = 1
	chunkHole        = 2
	chunkBlockStatus = 5
	chunkError       = 1<<15 + 1

	chunkFlagDone = 1
)

// The only metadata context, its number on the wire, and the states it knows.
const (
	contextAllocation   = "base:allocation"
	contextAllocationID = 1

	stateHole = 1 << 0
	stateZero = 1 << 1
)

// Limits on what a client may send.
const (
	maxName       = 4096     // bytes of an export name or a query
	maxOptionData = 32 << 10 // bytes of an option's data
	maxOptions    = 256      // options in one handshake
	maxPayload    = 32 << 20 // bytes that one request reads or writes
	maxMessage    = 1024     // bytes of an error message that the server sends

	minBlock       = 1
	preferredBlock = 4096
)

// Lengths on the wire.
const (
	requestHeader    = 28
	simpleHeader     = 16
	structuredHeader = 20
)

var be = binary.BigEndian

// header of a request.
type header struct {
	flags   uint16
	command command
	cookie  uint64
	offset  uint64
	length  uint32
}

// parseHeader reads a request's header; ok is false if it is none.
func parseHeader(b []byte) (h header, ok bool) {
	return header{
		flags:   be.Uint16(b[4:]),
		command: command(be.Uint16(b[6:])),
		cookie:  be.Uint64(b[8:]),
		offset:  be.Uint64(b[16:]),
		length:  be.Uint32(b[24:]),
	}, be.Uint32(b) == magicRequest
}

func appendSimple(b []byte, cookie uint64, e errno) []byte {
	b = be.AppendUint32(b, magicSimpleReply)
	b = be.AppendUint32(b, uint32(e))
	return be.AppendUint64(b, cookie)
}

// appendChunk appends the header of a chunk whose payload has a length.
func appendChunk(b []byte, cookie uint64, flags, kind uint16, length int) []byte {
	b = be.AppendUint32(b, magicStructuredReply)
	b = be.AppendUint16(b, flags)
	b = be.AppendUint16(b, kind)
	b = be.AppendUint64(b, cookie)
	return be.AppendUint32(b, uint32(length))
}

// appendErrorChunk appends the chunk that ends a reply with an error.
func appendErrorChunk(b []byte, cookie uint64, e errno, message string) []byte {
	message = message[:min(len(message), maxMessage)]
	b = appendChunk(b, cookie, chunkFlagDone, chunkError, 6+len(message))
	b = be.AppendUint32(b, uint32(e))
	b = be.AppendUint16(b, uint16(len(message)))
	return append(b, message...)
}

func appendOptionReply(b []byte, o option, kind optionReply, data []byte) []byte {
	b = be.AppendUint64(b, magicOptionReply)
	b = be.AppendUint32(b, uint32(o))
	b = be.AppendUint32(b, uint32(kind))
	b = be.AppendUint32(b, uint32(len(data)))
	return append(b, data...)
}
