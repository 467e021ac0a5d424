package nbd

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ebb-dev/ebb/internal/volume/block"
)

// served is a server on a Unix socket.
type served struct {
	*Server
	socket string
	ended  chan error // what Serve returned
	cancel context.CancelFunc
}

// URI for clients.
func (s *served) URI() string { return "nbd+unix:///" + s.export + "?socket=" + s.socket }

// serve starts a server that ends with the test, and fails the test if it leaves anything behind.
func serve(t testing.TB, device block.Device, opts Options) *served {
	t.Helper()
	before := goleak.IgnoreCurrent()
	dir, err := os.MkdirTemp("", "nbd") // the test's own directory may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	s := &served{Server: New(device, "vol", opts), socket: filepath.Join(dir, "s"), ended: make(chan error, 1)}
	listener, err := net.Listen("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	go func() {
		s.ended <- s.Serve(ctx, listener)
		close(s.ended)
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case <-s.ended:
		case <-time.After(time.Minute):
			t.Error("the server does not end")
		}
		os.RemoveAll(dir)
		if err := goleak.Find(before); err != nil {
			t.Error(err)
		}
	})
	return s
}

// testClient speaks the protocol byte by byte.
type testClient struct {
	t testing.TB
	net.Conn
	structured bool
}

func (s *served) dial(t testing.TB) *testClient {
	t.Helper()
	nc, err := net.Dial("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(30 * time.Second))
	return &testClient{t: t, Conn: nc}
}

// connect dials and enters transmission, with structured replies and base:allocation if wanted.
func (s *served) connect(t testing.TB, structured bool) *testClient {
	t.Helper()
	c := s.dial(t)
	c.hello()
	if structured {
		c.structured = true
		c.option(optStructuredReply, nil)
		c.expectReply(optStructuredReply, repAck)
		c.option(optSetMetaContext, metaContextData("vol", contextAllocation))
		c.expectReply(optSetMetaContext, repMetaContext)
		c.expectReply(optSetMetaContext, repAck)
	}
	c.option(optGo, infoData("vol"))
	c.expectReply(optGo, repInfo)
	c.expectReply(optGo, repAck)
	return c
}

func (c *testClient) hello() {
	c.t.Helper()
	want := append([]byte("NBDMAGICIHAVEOPT"), 0, 3)
	if got := c.read(18); !bytes.Equal(got, want) {
		c.t.Fatalf("the server began with %x", got)
	}
	c.send(be.AppendUint32(nil, flagFixedNewstyle|flagNoZeroes))
}

func (c *testClient) send(b []byte) {
	c.t.Helper()
	if _, err := c.Write(b); err != nil {
		c.t.Fatalf("send: %v", err)
	}
}

func (c *testClient) read(n int) []byte {
	c.t.Helper()
	b := make([]byte, n)
	if _, err := io.ReadFull(c.Conn, b); err != nil {
		c.t.Fatalf("read: %v", err)
	}
	return b
}

// expectClosed fails the test unless the server has closed the connection.
func (c *testClient) expectClosed() {
	c.t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	rest, err := io.ReadAll(c.Conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatal("the connection is still open")
	}
	if len(rest) > 0 {
		c.t.Fatalf("%d bytes before the end: %x", len(rest), rest[:min(len(rest), 64)])
	}
}

func (c *testClient) option(o option, data []byte) {
	c.t.Helper()
	c.send(optionBytes(o, data))
}

func (c *testClient) expectReply(o option, kind optionReply) []byte {
	c.t.Helper()
	head := c.read(20)
	if be.Uint64(head) != magicOptionReply || option(be.Uint32(head[8:])) != o {
		c.t.Fatalf("no reply to option %d: %x", o, head)
	}
	data := c.read(int(be.Uint32(head[16:])))
	if got := optionReply(be.Uint32(head[12:])); got != kind {
		c.t.Fatalf("option %d: reply %#x %q, want %#x", o, uint32(got), data, uint32(kind))
	}
	return data
}

func (c *testClient) request(h header, payload []byte) {
	c.t.Helper()
	c.send(append(requestBytes(h), payload...))
}

// reply is one chunk of a structured reply, or a simple one.
type reply struct {
	structured bool
	cookie     uint64
	errno      errno
	flags      uint16
	kind       uint16
	payload    []byte
}

// reply reads the next one. A simple reply has as many bytes as the caller says, unless it is an error.
func (c *testClient) reply(length int) reply {
	c.t.Helper()
	switch magic := be.Uint32(c.read(4)); magic {
	case magicSimpleReply:
		rest := c.read(simpleHeader - 4)
		r := reply{errno: errno(be.Uint32(rest)), cookie: be.Uint64(rest[4:])}
		if r.errno == 0 {
			r.payload = c.read(length)
		}
		return r
	case magicStructuredReply:
		rest := c.read(structuredHeader - 4)
		r := reply{structured: true, flags: be.Uint16(rest), kind: be.Uint16(rest[2:]), cookie: be.Uint64(rest[4:])}
		r.payload = c.read(int(be.Uint32(rest[12:])))
		if r.kind == chunkError {
			r.errno = errno(be.Uint32(r.payload))
		}
		return r
	default:
		c.t.Fatalf("a reply that begins with %#x", magic)
		return reply{}
	}
}

// expectStatus reads the reply to a request without data.
func (c *testClient) expectStatus(cookie uint64, want errno) {
	c.t.Helper()
	if got := c.reply(0); got.cookie != cookie || got.errno != want {
		c.t.Fatalf("reply %+v, want cookie %d with error %d", got, cookie, want)
	}
}

func optionBytes(o option, data []byte) []byte {
	b := be.AppendUint64(nil, magicOption)
	b = be.AppendUint32(b, uint32(o))
	b = be.AppendUint32(b, uint32(len(data)))
	return append(b, data...)
}

func infoData(name string, wanted ...uint16) []byte {
	b := be.AppendUint32(nil, uint32(len(name)))
	b = append(b, name...)
	b = be.AppendUint16(b, uint16(len(wanted)))
	for _, w := range wanted {
		b = be.AppendUint16(b, w)
	}
	return b
}

func metaContextData(name string, queries ...string) []byte {
	b := be.AppendUint32(nil, uint32(len(name)))
	b = append(b, name...)
	b = be.AppendUint32(b, uint32(len(queries)))
	for _, q := range queries {
		b = be.AppendUint32(b, uint32(len(q)))
		b = append(b, q...)
	}
	return b
}

func requestBytes(h header) []byte {
	b := be.AppendUint32(nil, magicRequest)
	b = be.AppendUint16(b, h.flags)
	b = be.AppendUint16(b, uint16(h.command))
	b = be.AppendUint64(b, h.cookie)
	b = be.AppendUint64(b, h.offset)
	return be.AppendUint32(b, h.length)
}

// CloseWriteSide tells the server that nothing more comes.
func (c *testClient) CloseWriteSide() error { return c.Conn.(*net.UnixConn).CloseWrite() }
