package nbd

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// errAborted: the client ended the handshake in order.
var errAborted = errors.New("the client ended the handshake")

// handshake is what client and server have agreed on so far.
type handshake struct {
	r      io.Reader
	w      io.Writer
	export string
	size   int64

	noZeroes   bool
	structured bool
	allocation bool // base:allocation is selected
}

// run negotiates until the client has chosen the export.
func (h *handshake) run() error {
	hello := be.AppendUint64(nil, magicServer)
	hello = be.AppendUint64(hello, magicOption)
	hello = be.AppendUint16(hello, flagFixedNewstyle|flagNoZeroes)
	if _, err := h.w.Write(hello); err != nil {
		return err
	}
	var answer [4]byte
	if _, err := io.ReadFull(h.r, answer[:]); err != nil {
		return err
	}
	flags := be.Uint32(answer[:])
	if unknown := flags &^ (flagFixedNewstyle | flagNoZeroes); unknown != 0 {
		return fmt.Errorf("unknown handshake flags %#x", unknown)
	}
	h.noZeroes = flags&flagNoZeroes != 0

	for range maxOptions {
		o, data, err := h.readOption()
		if err != nil {
			return err
		}
		if chosen, err := h.handle(o, data); chosen || err != nil {
			return err
		}
	}
	return fmt.Errorf("more than %d options", maxOptions)
}

func (h *handshake) readOption() (option, []byte, error) {
	var head [16]byte
	if _, err := io.ReadFull(h.r, head[:]); err != nil {
		return 0, nil, err
	}
	if magic := be.Uint64(head[:]); magic != magicOption {
		return 0, nil, fmt.Errorf("%#x where an option is expected", magic)
	}
	o, length := option(be.Uint32(head[8:])), be.Uint32(head[12:])
	if length > maxOptionData {
		return 0, nil, fmt.Errorf("option %d has %d bytes of data, more than %d", o, length, maxOptionData)
	}
	data := make([]byte, length)
	_, err := io.ReadFull(h.r, data)
	return o, data, err
}

// handle answers an option and reports whether it ends the handshake.
func (h *handshake) handle(o option, data []byte) (chosen bool, err error) {
	switch o {
	case optExportName:
		return true, h.handleExportName(data)
	case optAbort:
		return false, errors.Join(h.reply(o, repAck, nil), errAborted)
	case optList:
		return false, h.handleList(data)
	case optInfo, optGo:
		ok, err := h.handleInfo(o, data)
		return ok && o == optGo, err
	case optStructuredReply:
		if len(data) != 0 {
			return false, h.refuse(o, repErrInvalid, "the option takes no data")
		}
		h.structured = true
		return false, h.reply(o, repAck, nil)
	case optListMetaContext, optSetMetaContext:
		return false, h.handleMetaContext(o, data)
	}
	return false, h.refuse(o, repErrUnsupported, "the option is not supported")
}

// transmissionFlags are what the server can do, as negotiated so far.
func (h *handshake) transmissionFlags() uint16 {
	flags := uint16(flagHasFlags | flagFlush | flagFUA | flagTrim | flagWriteZeroes | flagCanMultiConn)
	if h.structured {
		flags |= flagDF
	}
	return flags
}

// isExport reports whether a name means the export: its own, or the empty one.
func (h *handshake) isExport(name string) bool { return name == h.export || name == "" }

// handleExportName chooses the export the old way, which knows no error but closing the connection.
func (h *handshake) handleExportName(data []byte) error {
	if !h.isExport(string(data)) {
		return errors.New("the client asked for an unknown export")
	}
	b := be.AppendUint64(nil, uint64(h.size))
	b = be.AppendUint16(b, h.transmissionFlags())
	if !h.noZeroes {
		b = append(b, make([]byte, 124)...)
	}
	_, err := h.w.Write(b)
	return err
}

func (h *handshake) handleList(data []byte) error {
	if len(data) != 0 {
		return h.refuse(optList, repErrInvalid, "the option takes no data")
	}
	entry := be.AppendUint32(nil, uint32(len(h.export)))
	entry = append(entry, h.export...)
	b := appendOptionReply(nil, optList, repServer, entry)
	b = appendOptionReply(b, optList, repAck, nil)
	_, err := h.w.Write(b)
	return err
}

// handleInfo answers INFO and GO, and reports whether the client named the export.
func (h *handshake) handleInfo(o option, data []byte) (ok bool, err error) {
	p := parser{data: data}
	name := p.string32()
	count := int(p.uint16())
	var wanted []uint16
	for range count {
		if p.failed {
			break
		}
		wanted = append(wanted, p.uint16())
	}
	switch {
	case !p.done():
		return false, h.refuse(o, repErrInvalid, "the data of the option is malformed")
	case !h.isExport(name):
		return false, h.refuse(o, repErrUnknown, "no such export")
	}

	info := be.AppendUint16(nil, infoExport)
	info = be.AppendUint64(info, uint64(h.size))
	info = be.AppendUint16(info, h.transmissionFlags())
	b := appendOptionReply(nil, o, repInfo, info)
	if slices.Contains(wanted, infoName) {
		info = be.AppendUint16(nil, infoName)
		b = appendOptionReply(b, o, repInfo, append(info, h.export...))
	}
	if slices.Contains(wanted, infoBlockSize) {
		info = be.AppendUint16(nil, infoBlockSize)
		info = be.AppendUint32(info, minBlock)
		info = be.AppendUint32(info, preferredBlock)
		info = be.AppendUint32(info, maxPayload)
		b = appendOptionReply(b, o, repInfo, info)
	}
	b = appendOptionReply(b, o, repAck, nil)
	_, err = h.w.Write(b)
	return err == nil, err
}

// handleMetaContext lists or selects metadata contexts. Selecting replaces what was selected before, even if it fails.
func (h *handshake) handleMetaContext(o option, data []byte) error {
	if o == optSetMetaContext {
		h.allocation = false
	}
	if !h.structured {
		return h.refuse(o, repErrInvalid, "structured replies must be negotiated first")
	}
	p := parser{data: data}
	name := p.string32()
	count := p.uint32()
	found := count == 0 && o == optListMetaContext
	for i := uint32(0); i < count && !p.failed; i++ {
		query := p.string32()
		found = found || query == contextAllocation || o == optListMetaContext && query == namespaceOf(contextAllocation)
	}
	switch {
	case !p.done():
		return h.refuse(o, repErrInvalid, "the data of the option is malformed")
	case !h.isExport(name):
		return h.refuse(o, repErrUnknown, "no such export")
	}

	var b []byte
	if found {
		context := be.AppendUint32(nil, contextAllocationID)
		b = appendOptionReply(b, o, repMetaContext, append(context, contextAllocation...))
		h.allocation = h.allocation || o == optSetMetaContext
	}
	b = appendOptionReply(b, o, repAck, nil)
	_, err := h.w.Write(b)
	return err
}

// namespaceOf returns the part of a context's name up to the colon, which asks for all contexts in it.
func namespaceOf(context string) string { return context[:strings.IndexByte(context, ':')+1] }

func (h *handshake) reply(o option, kind optionReply, data []byte) error {
	_, err := h.w.Write(appendOptionReply(nil, o, kind, data))
	return err
}

// refuse answers an option with an error and a message for people.
func (h *handshake) refuse(o option, kind optionReply, message string) error {
	return h.reply(o, kind, []byte(message))
}

// parser takes an option's data apart. After a failure it yields zero values.
type parser struct {
	data   []byte
	failed bool
}

func (p *parser) take(n int) []byte {
	if p.failed || n > len(p.data) {
		p.failed = true
		return make([]byte, min(n, 8))
	}
	b := p.data[:n]
	p.data = p.data[n:]
	return b
}

func (p *parser) uint16() uint16 { return be.Uint16(p.take(2)) }
func (p *parser) uint32() uint32 { return be.Uint32(p.take(4)) }

// string32 takes a string after its length.
func (p *parser) string32() string {
	n := p.uint32()
	if n > maxName {
		p.failed = true
	}
	if p.failed {
		return ""
	}
	return string(p.take(int(n)))
}

// done reports whether the data was well formed and nothing is left of it.
func (p *parser) done() bool { return !p.failed && len(p.data) == 0 }
