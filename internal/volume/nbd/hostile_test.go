package nbd

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"time"
)

// stillServes fails the test unless a well-behaved client gets its bytes.
func (s *served) stillServes(t testing.TB) {
	t.Helper()
	c := s.connect(t, true)
	c.request(header{command: cmdRead, cookie: 1, length: 4096}, nil)
	if r := c.reply(0); r.errno != 0 || len(r.payload) != 8+4096 {
		t.Errorf("reply %+v", r)
	}
	c.request(header{command: cmdDisconnect}, nil)
	c.expectClosed()
}

func TestClientsThatBreakTheProtocolLoseTheirConnection(t *testing.T) {
	s := serve(t, newMemoryDevice(1<<20), Options{})
	huge := be.AppendUint32(be.AppendUint32(be.AppendUint64(nil, magicOption), uint32(optGo)), 1<<32-1)
	for _, test := range []struct {
		name  string
		begin func(testing.TB) *testClient
		send  []byte
	}{
		{"an option of 4 GiB", s.greeted, huge},
		{"no option", s.greeted, []byte("GET / HTTP/1.1\r\n\r\n")},
		{"unknown flags", s.dialed, []byte{0xff, 0xff, 0xff, 0xff}},
		{"a write of 4 GiB", s.plain, requestBytes(header{command: cmdWrite, length: 1<<32 - 1})},
		{"a write of more than the maximum", s.plain, requestBytes(header{command: cmdWrite, length: maxPayload + 1})},
		{"no request", s.plain, bytes.Repeat([]byte("garbage."), 10)},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := test.begin(t)
			c.send(test.send)
			c.expectClosed()
			s.stillServes(t)
		})
	}
}

func (s *served) dialed(t testing.TB) *testClient {
	c := s.dial(t)
	c.read(18)
	return c
}

func (s *served) greeted(t testing.TB) *testClient {
	c := s.dial(t)
	c.hello()
	return c
}

func (s *served) plain(t testing.TB) *testClient { return s.connect(t, false) }

func TestHalfARequestDoesNothing(t *testing.T) {
	device := newMemoryDevice(1 << 20)
	device.before = func(_ context.Context, call string, _, _ int64) error {
		if call != "read" {
			t.Errorf("the device got a %s", call)
		}
		return nil
	}
	s := serve(t, device, Options{})
	whole := append(requestBytes(header{command: cmdWrite, length: 512 << 10}), make([]byte, 512<<10)...)
	for _, n := range []int{1, requestHeader - 1, requestHeader, requestHeader + 1, len(whole) - 1} {
		c := s.connect(t, false)
		c.send(whole[:n])
		if n%2 == 0 {
			_ = c.CloseWriteSide()
			c.expectClosed()
		}
		c.Close()
	}
	s.stillServes(t)
}

func TestHalfARequestDoesNotKeepAClientConnected(t *testing.T) {
	s := serve(t, newMemoryDevice(1<<20), Options{})
	whole := append(requestBytes(header{command: cmdWrite, length: 512 << 10}), make([]byte, 512<<10)...)
	for _, n := range []int{1, requestHeader, 300 << 10} {
		c := s.connect(t, false)
		c.send(whole[:n])
		eventually(t, "the client is listed", func() bool { return len(s.Clients()) == 1 })
		if err := s.Disconnect(context.Background()); err != nil {
			t.Error(err)
		}
		if got := s.Clients(); len(got) != 0 {
			t.Errorf("still connected: %v", got)
		}
	}
}

func TestThousandsOfOptionsEndTheHandshake(t *testing.T) {
	s := serve(t, newMemoryDevice(1<<20), Options{})
	c := s.greeted(t)
	go func() { _, _ = c.Write(bytes.Repeat(optionBytes(optList, nil), 10*maxOptions)) }()
	for range maxOptions {
		c.expectReply(optList, repServer)
		c.expectReply(optList, repAck)
	}
	c.expectClosed()
	s.stillServes(t)
}

func TestAClientThatNeverReadsRepliesStopsItselfOnly(t *testing.T) {
	opts := Options{MaxBuffered: 4 << 20}
	s := serve(t, newMemoryDevice(1<<20), opts)
	for _, length := range []uint32{4096, 1 << 20} {
		c := s.connect(t, true)
		_ = c.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
		var err error
		sent := 0
		for ; err == nil && sent < 100000; sent++ {
			_, err = c.Write(requestBytes(header{command: cmdRead, cookie: uint64(sent), length: length}))
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("after %d requests: %v", sent, err)
		}
		s.stillServes(t)
	}
	s.mu.Lock()
	for c := range s.conns {
		c.mu.Lock()
		if c.buffered > opts.MaxBuffered || c.inFlight > s.opts.MaxInFlight {
			t.Errorf("%d requests with %d bytes are held", c.inFlight, c.buffered)
		}
		c.mu.Unlock()
	}
	s.mu.Unlock()

	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := s.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown: %v", err)
	}
	if err := <-s.ended; !errors.Is(err, ErrShutdown) {
		t.Errorf("Serve: %v", err)
	}
}

func TestAClientThatSaysNothingIsDisconnected(t *testing.T) {
	s := serve(t, newMemoryDevice(1<<20), Options{HandshakeTimeout: 50 * time.Millisecond})
	silent, slow := s.dialed(t), s.greeted(t)
	slow.send(optionBytes(optGo, infoData("vol"))[:20])
	silent.expectClosed()
	slow.expectClosed()

	c := s.connect(t, true) // the deadline is for the handshake alone
	time.Sleep(100 * time.Millisecond)
	c.request(header{command: cmdFlush, cookie: 1}, nil)
	c.expectStatus(1, 0)
}

func TestConnectionsAreLimited(t *testing.T) {
	s := serve(t, newMemoryDevice(1<<20), Options{MaxConnections: 2})
	a, b := s.connect(t, true), s.connect(t, true)
	nc, err := net.Dial("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	(&testClient{t: t, Conn: nc}).expectClosed()
	nc.Close()
	a.Close()
	eventually(t, "one client is left", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.conns) == 1
	})
	s.stillServes(t)
	b.Close()
}
