package replica

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/volume/block"
)

// frame is the bytes of a frame.
func frame(h header, payload []byte) []byte {
	h.payload, h.sum = uint32(len(payload)), checksum(payload)
	return append(h.append(nil), payload...)
}

func helloFrame() []byte {
	return frame(header{op: opHello}, encodeJSON(hello{Volume: testVolume, VolumeUID: testUID, Replica: testReplica}))
}

func welcomeFrame() []byte {
	return frame(header{op: opHello, flags: flagAnswer}, encodeJSON(welcome{Window: window}))
}

// writeHello opens the replica of the tests without a client.
func writeHello(t testing.TB, conn net.Conn) {
	t.Helper()
	if _, err := conn.Write(helloFrame()); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(welcomeFrame()))
	if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, welcomeFrame()) {
		t.Fatalf("welcomed with %q, %v", got, err)
	}
}

// bytesConn is a connection on which the other side has sent everything that it ever will, and takes what it is sent.
type bytesConn struct {
	net.Conn
	in  io.Reader
	out bytes.Buffer
}

func (c *bytesConn) Read(p []byte) (int, error)       { return c.in.Read(p) }
func (c *bytesConn) Write(p []byte) (int, error)      { return c.out.Write(p) }
func (c *bytesConn) Close() error                     { return nil }
func (c *bytesConn) SetDeadline(time.Time) error      { return nil }
func (c *bytesConn) SetWriteDeadline(time.Time) error { return nil }

// serveBytes serves what a client has sent.
func serveBytes(m *memory, sent []byte) error {
	return Serve(context.Background(), &bytesConn{in: bytes.NewReader(sent)}, "n1", openAs(m))
}

func TestAHeaderIsReadAsItWasWritten(t *testing.T) {
	want := header{
		op: opClear, status: statusClosed, flags: flagAnswer | flagKnown, id: math.MaxUint64 - 1, generation: math.MinInt64, offset: -3, length: math.MaxInt64, payload: math.MaxUint32, sum: 77,
	}
	b := want.append(nil)
	if len(b) != headerSize {
		t.Fatalf("%d bytes", len(b))
	}
	if got, err := parseHeader(b); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
}

// A stream that ends anywhere but between two frames is an error, and nothing is done of a request that did not arrive whole.
func TestAConnectionCutAnywhereDoesNothingOfTheRestAtTheServer(t *testing.T) {
	write := frame(header{op: opWrite, offset: 5, length: 100}, pattern(make([]byte, 100), 1))
	stream := slices.Concat(helloFrame(), write, write)
	ends := []int{0, len(helloFrame()), len(helloFrame()) + len(write), len(stream)}
	for n := range len(stream) + 1 {
		m := newMemory(4096)
		err := serveBytes(m, stream[:n])
		if whole := slices.Contains(ends, n); whole != (err == nil) || !whole && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("after %d bytes: %v", n, err)
		}
		if got, want := len(m.seen()), max(0, n-len(helloFrame()))/len(write); got != want {
			t.Fatalf("after %d bytes: %d requests, want %d", n, got, want)
		}
	}
}

func TestADamagedByteAnywhereEndsTheConnectionAtTheServer(t *testing.T) {
	write := frame(header{op: opWrite, offset: 5, length: 100}, pattern(make([]byte, 100), 1))
	stream := slices.Concat(helloFrame(), write)
	for i := range stream {
		for _, flip := range []byte{1, 0x80, 0xff} {
			damaged := slices.Clone(stream)
			damaged[i] ^= flip
			m := newMemory(4096)
			if err := serveBytes(m, damaged); !errors.Is(err, errProtocol) {
				t.Fatalf("byte %d: %v", i, err)
			}
			if calls := m.seen(); len(calls) > 0 {
				t.Fatalf("byte %d: %q", i, calls)
			}
		}
	}
}

// answering answers a client with bytes, whatever it asks, and then closes the connection.
func answering(t *testing.T, answers []byte) (*Client, error) {
	t.Helper()
	mine, theirs := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer theirs.Close()
		r := bufio.NewReader(theirs)
		for n := len(welcomeFrame()); len(answers) > 0; n = len(answers) {
			n = min(n, len(answers))
			h, err := readHeader(r)
			if err != nil {
				return
			}
			_, _ = r.Discard(int(h.payload))
			if _, err := theirs.Write(answers[:n]); err != nil {
				return
			}
			answers = answers[n:]
		}
	}()
	t.Cleanup(func() {
		_ = mine.Close()
		<-done
	})
	c, err := NewClient(context.Background(), mine, testVolume, testUID, testReplica)
	if err == nil {
		t.Cleanup(func() { _ = c.Close() })
	}
	return c, err
}

// readAnswered reads 100 bytes from a server that answers with bytes.
func readAnswered(t *testing.T, answers []byte) ([]byte, error) {
	t.Helper()
	c, err := answering(t, answers)
	if err != nil {
		return nil, err
	}
	p := make([]byte, 100)
	return p, c.ReadAt(context.Background(), 1, p, 0)
}

func TestAConnectionCutOrDamagedAnywhereIsUnreachableForTheClient(t *testing.T) {
	want := pattern(make([]byte, 100), 1)
	stream := slices.Concat(welcomeFrame(), frame(header{op: opRead, flags: flagAnswer, id: 1}, want))
	if p, err := readAnswered(t, stream); err != nil || !bytes.Equal(p, want) {
		t.Fatalf("whole: %v", err)
	}
	for i := range stream {
		if _, err := readAnswered(t, stream[:i]); !errors.Is(err, block.ErrUnreachable) {
			t.Fatalf("cut after %d bytes: %v", i, err)
		}
		damaged := slices.Clone(stream)
		damaged[i] ^= 0x11
		if _, err := readAnswered(t, damaged); !errors.Is(err, block.ErrUnreachable) {
			t.Fatalf("byte %d damaged: %v", i, err)
		}
	}
}

func TestAnswersThatBreakARuleEndTheClient(t *testing.T) {
	bytes100 := make([]byte, 100)
	for name, answer := range map[string][]byte{
		"to another request":     frame(header{op: opRead, flags: flagAnswer, id: 2}, bytes100),
		"to another operation":   frame(header{op: opWrite, flags: flagAnswer, id: 1}, nil),
		"a request":              frame(header{op: opRead, id: 1}, bytes100),
		"too short":              frame(header{op: opRead, flags: flagAnswer, id: 1}, bytes100[:99]),
		"too long":               frame(header{op: opRead, flags: flagAnswer, id: 1}, make([]byte, 101)),
		"zeros with bytes":       frame(header{op: opRead, flags: flagAnswer | flagZeros, id: 1}, bytes100),
		"a flag of another":      frame(header{op: opRead, flags: flagAnswer | flagKnown, id: 1}, bytes100),
		"an endless message":     frame(header{op: opRead, status: statusFailed, flags: flagAnswer, id: 1}, make([]byte, maxText+1)),
		"a huge promised length": header{op: opRead, flags: flagAnswer, id: 1, payload: math.MaxUint32}.append(nil),
		"an unknown status":      frame(header{op: opRead, status: statusEnd, flags: flagAnswer, id: 1}, nil),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := readAnswered(t, slices.Concat(welcomeFrame(), answer)); !errors.Is(err, block.ErrUnreachable) || !errors.Is(err, errProtocol) {
				t.Error(err)
			}
		})
	}
	t.Run("twice", func(t *testing.T) {
		zeros := frame(header{op: opRead, flags: flagAnswer | flagZeros, id: 1}, nil)
		c, err := answering(t, slices.Concat(welcomeFrame(), zeros, zeros))
		if err != nil {
			t.Fatal(err)
		}
		_ = c.ReadAt(context.Background(), 1, bytes100, 0)
		<-c.gone
		if !errors.Is(c.err, errProtocol) {
			t.Error(c.err)
		}
	})
	for name, greeting := range map[string]string{"no window": `{}`, "a small window": `{"window":4096}`, "no JSON": `welcome`} {
		t.Run(name, func(t *testing.T) {
			if _, err := readAnswered(t, frame(header{op: opHello, flags: flagAnswer}, []byte(greeting))); !errors.Is(err, errProtocol) {
				t.Error(err)
			}
		})
	}
	t.Run("the largest metadata is not what a hello is answered with", func(t *testing.T) {
		if _, err := readAnswered(t, header{op: opHello, flags: flagAnswer, payload: MaxMetadata + 1}.append(nil)); !errors.Is(err, errProtocol) {
			t.Error(err)
		}
	})
}

func TestRequestsThatBreakARuleEndTheServer(t *testing.T) {
	for name, h := range map[string]header{
		"a huge write":               {op: opWrite, length: MaxData + 1, payload: MaxData + 1},
		"a write of another length":  {op: opWrite, length: 4, payload: 5},
		"a write without its bytes":  {op: opWrite, length: 4},
		"a write to nowhere":         {op: opWrite, offset: -4, length: 4, payload: 4},
		"a write beyond everything":  {op: opWrite, offset: math.MaxInt64, length: 4, payload: 4},
		"a huge read":                {op: opRead, length: MaxData + 1},
		"a negative read":            {op: opRead, length: -1},
		"a read with bytes":          {op: opRead, length: 4, payload: 4},
		"a read with FUA":            {op: opRead, length: 4, flags: flagFUA},
		"a negative zero":            {op: opZero, length: -1},
		"extents beyond everything":  {op: opExtents, offset: math.MaxInt64 - 3, length: 4},
		"a huge commit":              {op: opCommit, payload: MaxMetadata + 1},
		"a huge clear":               {op: opClear, payload: math.MaxUint32},
		"a huge name":                {op: opMissed, payload: maxText + 1},
		"a flush with bytes":         {op: opFlush, payload: 1},
		"a ping with bytes":          {op: opPing, payload: 1},
		"a huge hello":               {op: opHello, payload: maxText + 1},
		"an answer":                  {op: opFlush, flags: flagAnswer},
		"a status":                   {op: opFlush, status: statusFailed},
		"an operation that is none":  {op: opEnd},
		"operation zero":             {},
		"a flag that nobody defined": {op: opFlush, flags: flagEnd},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMemory(1)
			if err := serveBytes(m, append(helloFrame(), h.append(nil)...)); !errors.Is(err, errProtocol) {
				t.Error(err)
			}
			if calls := m.seen(); len(calls) > 0 {
				t.Errorf("%q", calls)
			}
			if err := serveBytes(m, h.append(nil)); !errors.Is(err, errProtocol) {
				t.Errorf("as the first frame: %v", err)
			}
		})
	}
	t.Run("no hello", func(t *testing.T) {
		if err := serveBytes(newMemory(1), frame(header{op: opFlush}, nil)); !errors.Is(err, errProtocol) {
			t.Error(err)
		}
	})
	t.Run("a hello that is no JSON", func(t *testing.T) {
		if err := serveBytes(newMemory(1), frame(header{op: opHello}, []byte("hello"))); !errors.Is(err, errProtocol) {
			t.Error(err)
		}
	})
	t.Run("another version", func(t *testing.T) {
		b := frame(header{op: opHello}, nil)
		b[4]++
		binary.BigEndian.PutUint32(b[52:], checksum(b[:52]))
		if err := serveBytes(newMemory(1), b); !errors.Is(err, errProtocol) || !strings.Contains(err.Error(), "version 2, want 1") {
			t.Error(err)
		}
	})
}

func TestMetadataThatCannotBeReadIsAnErrorOfTheRequestAlone(t *testing.T) {
	conn, _ := pipe(t, newMemory(1))
	writeHello(t, conn)
	r := bufio.NewReader(conn)
	for _, request := range [][]byte{frame(header{op: opClear}, make([]byte, 7)), frame(header{op: opCommit}, []byte("{")), helloFrame()} {
		if _, err := conn.Write(request); err != nil {
			t.Fatal(err)
		}
		h, text, err := readFrame(r, func(header) error { return nil })
		if err != nil || h.status != statusFailed || len(text) == 0 {
			t.Errorf("answered %+v, %q, %v", h, text, err)
		}
	}
	_ = conn.Close()
}

// FuzzServer sends bytes to a server: as they are, and as frames with right checksums.
func FuzzServer(f *testing.F) {
	f.Add(helloFrame(), uint8(opWrite), flagFUA, int64(1), int64(2), int64(4), []byte("data"))
	f.Add([]byte{}, uint8(opRead), uint16(0), int64(1), int64(0), int64(100), []byte{})
	f.Add([]byte{}, uint8(opCommit), uint16(0), int64(1), int64(0), int64(0), []byte(`{"generation":1}`))
	f.Add([]byte{}, uint8(opClear), uint16(0), int64(1), int64(0), int64(0), make([]byte, 8))
	f.Fuzz(func(t *testing.T, raw []byte, op uint8, flags uint16, generation, offset, length int64, payload []byte) {
		_ = serveBytes(newMemory(4096), raw)
		h := header{op: operation(op), flags: flags, id: 9, generation: generation, offset: offset, length: length}
		m := newMemory(4096)
		_ = serveBytes(m, slices.Concat(helloFrame(), frame(h, payload), raw))
		if _, err := parseHeader(h.append(nil)); err != nil && len(m.seen()) > 0 {
			t.Errorf("%+v was served", h)
		}
	})
}

// FuzzClient answers a client's requests with bytes: as they are, and as frames with right checksums.
func FuzzClient(f *testing.F) {
	f.Add(welcomeFrame(), uint8(opRead), flagAnswer|flagZeros, uint16(0), []byte{})
	f.Add([]byte{}, uint8(opRead), flagAnswer, uint16(statusStale), []byte("old"))
	f.Add([]byte{}, uint8(opExtents), flagAnswer, uint16(0), []byte{200, 1})
	f.Add([]byte{}, uint8(opIntent), flagAnswer, uint16(0), make([]byte, 16))
	f.Add([]byte{}, uint8(opMissed), flagAnswer|flagKnown, uint16(0), make([]byte, 16))
	f.Add([]byte{}, uint8(opOpen), flagAnswer, uint16(0), []byte(`{"generation":2}`))
	f.Fuzz(func(t *testing.T, raw []byte, op uint8, flags, status16 uint16, payload []byte) {
		r := bufio.NewReader(bytes.NewReader(raw))
		_, _ = exchange(&bytesConn{}, r, hello{})
		h := header{op: operation(op), flags: flags, status: status(status16), id: 1}
		stream := append(frame(h, payload), raw...)
		for _, asked := range []operation{opOpen, opRead, opExtents, opIntent, opMissed, opFlush} {
			c := &Client{calls: map[uint64]*call{}}
			p := make([]byte, 100)
			k := &call{client: c, request: header{op: asked, id: 1, length: 100}, into: p, state: sent, done: make(chan struct{})}
			c.calls[1] = k
			_ = c.receive(bufio.NewReader(bytes.NewReader(stream)))
			if k.state != ended || k.answer.status != statusOK {
				continue
			}
			_, _ = decodeState(k.body)
			_, _ = decodeBitmap(k.body)
			list, err := decodeExtents(nil, k.body, 100)
			var sum int64
			for _, e := range list {
				sum += e.Length
			}
			if err == nil && sum != 100 {
				t.Errorf("extents %v", list)
			}
		}
	})
}
