package nbd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// scripted is a connection of a client that sends bytes, reads whatever comes, and closes.
type scripted struct {
	io.Reader
	written int
}

func (s *scripted) Write(b []byte) (int, error)      { s.written += len(b); return len(b), nil }
func (s *scripted) Close() error                     { return nil }
func (s *scripted) LocalAddr() net.Addr              { return &net.UnixAddr{} }
func (s *scripted) RemoteAddr() net.Addr             { return &net.UnixAddr{} }
func (s *scripted) SetDeadline(time.Time) error      { return nil }
func (s *scripted) SetReadDeadline(time.Time) error  { return nil }
func (s *scripted) SetWriteDeadline(time.Time) error { return nil }

func FuzzHandshake(f *testing.F) {
	f.Add([]byte{0, 0, 0, 3})
	f.Add([]byte{0, 0, 0, 0xff})
	options := [][]byte{
		optionBytes(optExportName, []byte("vol")),
		optionBytes(optAbort, nil),
		optionBytes(optList, nil),
		optionBytes(optInfo, infoData("vol", infoName, infoBlockSize)),
		optionBytes(optGo, infoData("vol")),
		optionBytes(optGo, infoData("other")),
		optionBytes(optStructuredReply, nil),
		optionBytes(optListMetaContext, metaContextData("vol")),
		optionBytes(optSetMetaContext, metaContextData("vol", "base:", contextAllocation)),
		optionBytes(5, nil),
		optionBytes(optGo, []byte{0xff, 0xff, 0xff, 0xff, 0, 0}),
		optionBytes(optGo, []byte{0, 0, 0, 0, 0xff, 0xff}),
		optionBytes(optSetMetaContext, []byte{0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff}),
		be.AppendUint32(be.AppendUint32(be.AppendUint64(nil, magicOption), uint32(optGo)), 0xffffffff),
	}
	all := []byte{0, 0, 0, 3}
	for _, o := range options {
		f.Add(append([]byte{0, 0, 0, 3}, o...))
		all = append(all, o...)
	}
	f.Add(all)
	f.Add(append([]byte{0, 0, 0, 3}, bytes.Repeat(optionBytes(optList, nil), 2*maxOptions)...))
	f.Fuzz(func(t *testing.T, input []byte) {
		conn := &scripted{Reader: bytes.NewReader(input)}
		h := handshake{r: conn, w: conn, export: "vol", size: 1 << 20}
		err := h.run()
		if h.allocation && !h.structured {
			t.Error("a metadata context without structured replies")
		}
		if err != nil && errors.Is(err, io.ErrShortWrite) {
			t.Error(err)
		}
		if limit := 64 + maxOptions*256 + 2*len(input); conn.written > limit {
			t.Errorf("%d bytes are answered by %d", len(input), conn.written)
		}
	})
}

func FuzzTransmission(f *testing.F) {
	var all []byte
	for _, h := range []header{
		{command: cmdRead, length: 4096},
		{command: cmdRead, offset: 1<<20 - 1, length: 2},
		{command: cmdRead, offset: 1<<64 - 1, length: 1<<32 - 1},
		{command: cmdRead, flags: cmdFlagDF, length: 128 << 10},
		{command: cmdWrite, length: 16},
		{command: cmdWrite, flags: cmdFlagFUA, length: 16},
		{command: cmdWrite, flags: 0xffff, length: 16},
		{command: cmdWrite, offset: 1 << 63, length: 16},
		{command: cmdWrite, length: 1<<32 - 1},
		{command: cmdFlush},
		{command: cmdFlush, offset: 1},
		{command: cmdTrim, length: 1 << 20},
		{command: cmdTrim, length: 1<<20 + 1},
		{command: cmdWriteZeroes, flags: cmdFlagNoHole | cmdFlagFUA, length: 1 << 20},
		{command: cmdBlockStatus, length: 1 << 20},
		{command: cmdBlockStatus, flags: cmdFlagReqOne, length: 1},
		{command: 5, length: 16},
		{command: 0xffff},
		{command: cmdDisconnect},
	} {
		h.cookie = uint64(len(all))
		b := requestBytes(h)
		if h.command == cmdWrite {
			b = append(b, "sixteen bytes ..."[:16]...)
		}
		f.Add(true, b)
		f.Add(false, b)
		f.Add(true, b[:len(b)-1])
		all = append(all, b...)
	}
	f.Add(true, all)
	f.Add(true, bytes.Repeat(requestBytes(header{command: cmdRead, length: 4096}), 300))
	f.Fuzz(func(t *testing.T, structured bool, input []byte) {
		device := newMemoryDevice(1 << 20)
		device.before = func(_ context.Context, call string, off, length int64) error {
			if off < 0 || length < 0 || off+length > device.Size() {
				t.Errorf("%s of %d bytes at %d", call, length, off)
			}
			return nil
		}
		server := New(device, "vol", Options{})
		start := []byte{0, 0, 0, 3}
		if structured {
			start = append(start, optionBytes(optStructuredReply, nil)...)
			start = append(start, optionBytes(optSetMetaContext, metaContextData("vol", contextAllocation))...)
		}
		start = append(start, optionBytes(optGo, infoData("vol"))...)
		c := newConn(context.Background(), server, &scripted{Reader: io.MultiReader(bytes.NewReader(start), bytes.NewReader(input))})
		c.serve()
		if c.inFlight != 0 || c.buffered != 0 || len(c.replies) != 0 {
			t.Errorf("%d requests with %d bytes and %d replies are left", c.inFlight, c.buffered, len(c.replies))
		}
	})
}
