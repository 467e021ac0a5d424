package nbd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/volume/block"
)

// gate holds calls of a device until it is opened.
type gate struct {
	entered chan struct{} // gets a value for each call that is held
	open    chan struct{}
}

func newGate() *gate { return &gate{entered: make(chan struct{}, 1000), open: make(chan struct{})} }

// hold waits until the gate is open or the context ends.
func (g *gate) hold(ctx context.Context) error {
	g.entered <- struct{}{}
	select {
	case <-g.open:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

const slowOffset = 1 << 16

// slowAt is a device that holds reads at slowOffset.
func slowAt(g *gate) *memoryDevice {
	device := newMemoryDevice(1 << 20)
	device.before = func(ctx context.Context, call string, off, _ int64) error {
		if call == "read" && off == slowOffset {
			return g.hold(ctx)
		}
		return nil
	}
	return device
}

func TestARequestThatTakesLongHoldsUpNoOther(t *testing.T) {
	g := newGate()
	c := serve(t, slowAt(g), Options{}).connect(t, false)
	for i := range uint64(2 * aloneInARow) { // the server takes the client for one that waits for each reply
		c.request(header{command: cmdRead, cookie: i, length: 512}, nil)
		c.reply(512)
	}
	c.request(header{command: cmdRead, cookie: 100, offset: slowOffset, length: 512}, nil)
	<-g.entered
	for i := range uint64(10) {
		c.request(header{command: cmdRead, cookie: 200 + i, length: 512}, nil)
		if r := c.reply(512); r.cookie != 200+i {
			t.Fatalf("reply to %d, want %d", r.cookie, 200+i)
		}
	}
	close(g.open)
	if r := c.reply(512); r.cookie != 100 || r.errno != 0 {
		t.Errorf("reply %+v", r)
	}
}

func TestARequestThatTakesLongHoldsBackNoReply(t *testing.T) {
	for _, slow := range []uint32{512, 512 << 10} { // one that the reader would handle, and one for a worker
		t.Run(fmt.Sprint(slow), func(t *testing.T) {
			g := newGate()
			c := serve(t, slowAt(g), Options{}).connect(t, false)
			c.send(slices.Concat(
				requestBytes(header{command: cmdRead, cookie: 1, length: 512}),
				requestBytes(header{command: cmdRead, cookie: 2, offset: slowOffset, length: slow})))
			if r := c.reply(512); r.cookie != 1 {
				t.Fatalf("reply %+v", r)
			}
			<-g.entered
			close(g.open)
			if r := c.reply(int(slow)); r.cookie != 2 {
				t.Fatalf("reply %+v", r)
			}
		})
	}
}

func TestRequestsInFlightAreLimited(t *testing.T) {
	for _, test := range []struct {
		name   string
		opts   Options
		length uint32
		want   int
	}{
		{"by their number", Options{MaxInFlight: 8}, 512, 8},
		{"by their bytes", Options{MaxBuffered: 256 << 10}, 64 << 10, 4},
		{"but one always goes", Options{MaxBuffered: 4096}, 64 << 10, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := newGate()
			c := serve(t, slowAt(g), test.opts).connect(t, false)
			const requests = 20
			for i := range uint64(requests) {
				c.request(header{command: cmdRead, cookie: i, offset: slowOffset, length: test.length}, nil)
			}
			for range test.want {
				<-g.entered
			}
			select {
			case <-g.entered:
				t.Errorf("more than %d requests are in flight", test.want)
			case <-time.After(50 * time.Millisecond):
			}
			close(g.open)
			seen := map[uint64]bool{}
			for range requests {
				seen[c.reply(int(test.length)).cookie] = true
			}
			if len(seen) != requests {
				t.Errorf("%d of %d requests were answered", len(seen), requests)
			}
		})
	}
}

func TestASlowDeviceIsUsedInParallel(t *testing.T) {
	var now, most atomic.Int32
	device := newMemoryDevice(1 << 20)
	device.before = func(context.Context, string, int64, int64) error {
		n := now.Add(1)
		defer now.Add(-1)
		for was := most.Load(); n > was && !most.CompareAndSwap(was, n); was = most.Load() {
		}
		time.Sleep(200 * time.Microsecond)
		return nil
	}
	c := serve(t, device, Options{}).connect(t, false)
	const depth, requests = 32, 1000
	for i := range uint64(requests) {
		c.request(header{command: cmdRead, cookie: i, length: 512}, nil)
		if i >= depth {
			c.reply(512)
		}
	}
	for range depth {
		c.reply(512)
	}
	if most.Load() < depth/2 {
		t.Errorf("%d requests at once, the client had %d", most.Load(), depth)
	}
}

func TestErrorsOfTheDeviceReachTheClient(t *testing.T) {
	for _, test := range []struct {
		err  error
		want errno
	}{
		{block.ErrNoSpace, errnoNoSpace},
		{fmt.Errorf("replica a: %w", block.ErrNoSpace), errnoNoSpace},
		{block.ErrClosed, errnoShutdown},
		{block.ErrDamaged, errnoIO},
		{errors.New(strings.Repeat("long ", 10000)), errnoIO},
	} {
		for _, structured := range []bool{false, true} {
			device := newMemoryDevice(1 << 20)
			device.before = func(context.Context, string, int64, int64) error { return test.err }
			c := serve(t, device, Options{}).connect(t, structured)
			for i, h := range []header{
				{command: cmdRead, length: 512},
				{command: cmdRead, length: 128 << 10},
				{command: cmdWrite},
				{command: cmdWrite, length: 512},
				{command: cmdFlush},
				{command: cmdTrim, length: 512},
				{command: cmdWriteZeroes, length: 512},
			} {
				h.cookie = uint64(i)
				want := test.want
				if h.command == cmdWrite && h.length == 0 {
					want = 0
				}
				var payload []byte
				if h.command == cmdWrite {
					payload = make([]byte, h.length)
				}
				c.request(h, payload)
				c.expectStatus(h.cookie, want)
			}
			if structured {
				c.request(header{command: cmdBlockStatus, cookie: 99, length: 512}, nil)
				c.expectStatus(99, test.want)
			}
		}
	}
}

func TestRequestsThatTheProtocolForbidsAreRefused(t *testing.T) {
	const size = 1 << 20
	device := newMemoryDevice(size)
	device.before = func(_ context.Context, call string, off, length int64) error {
		t.Errorf("the device got a %s of %d bytes at %d", call, length, off)
		return nil
	}
	s := serve(t, device, Options{})
	for _, structured := range []bool{false, true} {
		c := s.connect(t, structured)
		for i, test := range []struct {
			header
			want errno
		}{
			{header{command: cmdRead, offset: size, length: 1}, errnoInvalid},
			{header{command: cmdRead, offset: 1<<64 - 1, length: 2}, errnoInvalid},
			{header{command: cmdRead, length: 1<<32 - 1}, errnoInvalid},
			{header{command: cmdRead, flags: cmdFlagNoHole, length: 1}, errnoInvalid},
			{header{command: cmdWrite, offset: size - 1, length: 2}, errnoNoSpace},
			{header{command: cmdWrite, offset: 1 << 63, length: 2}, errnoNoSpace},
			{header{command: cmdWrite, flags: cmdFlagDF, length: 2}, errnoInvalid},
			{header{command: cmdTrim, offset: size - 1, length: 2}, errnoInvalid},
			{header{command: cmdWriteZeroes, offset: size - 1, length: 2}, errnoNoSpace},
			{header{command: cmdWriteZeroes, flags: 1 << 4, length: 2}, errnoInvalid},
			{header{command: cmdFlush, offset: 1}, errnoInvalid},
			{header{command: cmdBlockStatus, offset: size - 1, length: 2}, errnoInvalid},
			{header{command: cmdBlockStatus}, errnoInvalid},
			{header{command: 5, length: 1}, errnoInvalid},
			{header{command: 0x1234}, errnoInvalid},
		} {
			test.cookie = uint64(i)
			var payload []byte
			if test.command == cmdWrite {
				payload = []byte("xx")
			}
			c.request(test.header, payload)
			c.expectStatus(test.cookie, test.want)
		}
	}
}

func TestAReadLongerThanTheMaximumIsRefused(t *testing.T) {
	s := serve(t, hugeDevice{newMemoryDevice(0)}, Options{})
	for structured, want := range map[bool]errno{false: errnoInvalid, true: errnoOverflow} {
		c := s.connect(t, structured)
		c.request(header{command: cmdRead, length: maxPayload + 1}, nil)
		c.expectStatus(0, want)
	}
}

// hugeDevice is a hole of 1 TiB.
type hugeDevice struct{ *memoryDevice }

func (hugeDevice) Size() int64 { return 1 << 40 }
func (hugeDevice) Extents(_ context.Context, _, length int64) ([]block.Extent, error) {
	return []block.Extent{{Length: length, Hole: true}}, nil
}

func TestAHoleIsReportedAsFarAsTheRequestGoes(t *testing.T) {
	c := serve(t, hugeDevice{newMemoryDevice(0)}, Options{}).connect(t, true)
	c.request(header{command: cmdBlockStatus, flags: cmdFlagReqOne, offset: 1 << 39, length: 1<<32 - 512}, nil)
	want := be.AppendUint32(be.AppendUint32(be.AppendUint32(nil, contextAllocationID), 1<<32-512), stateHole|stateZero)
	if r := c.reply(0); !bytes.Equal(r.payload, want) {
		t.Errorf("payload %x, want %x", r.payload, want)
	}
}

func TestCommandsReachTheDeviceWithTheirFlags(t *testing.T) {
	device := newMemoryDevice(1 << 20)
	var mu sync.Mutex
	var calls []string
	device.before = func(_ context.Context, call string, off, length int64) error {
		mu.Lock()
		defer mu.Unlock()
		calls = append(calls, fmt.Sprintf("%s %d+%d", call, off, length))
		return nil
	}
	c := serve(t, device, Options{}).connect(t, false)
	for i, h := range []header{
		{command: cmdRead, flags: cmdFlagFUA, offset: 1, length: 2},
		{command: cmdWrite, offset: 3, length: 4},
		{command: cmdWrite, flags: cmdFlagFUA, offset: 5, length: 6},
		{command: cmdTrim, offset: 7, length: 8},
		{command: cmdTrim, flags: cmdFlagFUA, offset: 9, length: 10},
		{command: cmdWriteZeroes, offset: 11, length: 12},
		{command: cmdWriteZeroes, flags: cmdFlagNoHole, offset: 13, length: 14},
		{command: cmdWriteZeroes, flags: cmdFlagNoHole | cmdFlagFUA, offset: 15, length: 16},
		{command: cmdFlush, flags: cmdFlagFUA},
	} {
		h.cookie = uint64(i)
		var payload []byte
		expect := 0
		switch h.command {
		case cmdWrite:
			payload = make([]byte, h.length)
		case cmdRead:
			expect = int(h.length)
		}
		c.request(h, payload)
		if r := c.reply(expect); r.cookie != h.cookie || r.errno != 0 {
			t.Fatalf("reply %+v", r)
		}
	}
	const want = "read 1+2, write 3+4, write fua 5+6, zero hole 7+8, zero hole fua 9+10, zero hole 11+12, zero 13+14, zero fua 15+16, flush 0+0"
	mu.Lock()
	defer mu.Unlock()
	if got := strings.Join(calls, ", "); got != want {
		t.Errorf("calls: %s\nwant:  %s", got, want)
	}
}

func TestDataSurvivesManyRequestsInFlightOnManyConnections(t *testing.T) {
	device := newMemoryDevice(4 << 20)
	s := serve(t, device, Options{MaxInFlight: 16})
	var clients sync.WaitGroup
	for n := range 4 {
		c := s.connect(t, n%2 == 0)
		clients.Go(func() {
			base := uint64(n) << 20
			const requests, length = 64, 16 << 10
			go func() {
				for i := range uint64(requests) {
					payload := bytes.Repeat([]byte{byte(n*requests) + byte(i)}, length)
					_, _ = c.Write(append(requestBytes(header{command: cmdWrite, cookie: i, offset: base + i*length, length: length}), payload...))
				}
			}()
			for range requests {
				if r := c.reply(0); r.errno != 0 {
					t.Errorf("write: %+v", r)
				}
			}
			go func() {
				for i := range uint64(requests) {
					_, _ = c.Write(requestBytes(header{command: cmdRead, cookie: i, offset: base + i*length, length: length}))
				}
			}()
			for range requests {
				r := c.reply(length)
				if data := r.payload[len(r.payload)-length:]; !bytes.Equal(data, bytes.Repeat([]byte{byte(n*requests) + byte(r.cookie)}, length)) {
					t.Errorf("client %d, request %d: wrong data", n, r.cookie)
				}
			}
		})
	}
	clients.Wait()
}

func TestClientsAreNamed(t *testing.T) {
	s := serve(t, newMemoryDevice(1<<20), Options{})
	if got := s.Clients(); len(got) != 0 {
		t.Errorf("clients before any came: %v", got)
	}
	s.dial(t).hello() // has not chosen the export
	a, b := s.connect(t, false), s.connect(t, true)
	eventually(t, "two clients are listed", func() bool { return len(s.Clients()) == 2 })
	comm, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("[%s (pid %d)]", strings.TrimSpace(string(comm)), os.Getpid())
	if got := fmt.Sprint(ClientNames(s.Clients())); got != want {
		t.Errorf("names %s, want %s", got, want)
	}
	a.Close()
	b.request(header{command: cmdDisconnect}, nil)
	b.expectClosed()
	eventually(t, "no client is listed", func() bool { return len(s.Clients()) == 0 })
}

func TestNamesOfProcessesArePrintable(t *testing.T) {
	if got := printable("a\nb\x1b[2Jc\xff"); got != "a?b?[2Jc\uFFFD" {
		t.Errorf("%q", got)
	}
}

func TestClientNamesForPeople(t *testing.T) {
	clients := []Client{{PID: 9, Command: "qemu-img"}, {}, {PID: 7}, {Address: "192.0.2.1:99"}, {PID: 9, Command: "qemu-img"}, {PID: 8, Command: "fio"}}
	const want = "192.0.2.1:99, an unknown process, pid 7, fio (pid 8), qemu-img (pid 9)"
	got := ClientNames(clients)
	slices.SortFunc(got[:2], strings.Compare)
	if strings.Join(got, ", ") != want {
		t.Errorf("names %s, want %s", strings.Join(got, ", "), want)
	}
}

func TestAClientThatLeftIsNotListedWhileItsRequestGoesOn(t *testing.T) {
	g := newGate()
	var cancelled atomic.Bool
	device := newMemoryDevice(1 << 20)
	finished := make(chan struct{})
	device.before = func(ctx context.Context, _ string, _, _ int64) error {
		err := g.hold(ctx)
		cancelled.Store(err != nil)
		close(finished)
		return err
	}
	s := serve(t, device, Options{})
	c := s.connect(t, false)
	c.request(header{command: cmdWrite, length: 4}, []byte("data"))
	<-g.entered
	c.Close()
	eventually(t, "no client is listed", func() bool { return len(s.Clients()) == 0 })
	close(g.open)
	<-finished
	if cancelled.Load() {
		t.Error("the request was cancelled")
	}
}

func TestDisconnectWaitsForRequestsInFlight(t *testing.T) {
	g := newGate()
	s := serve(t, slowAt(g), Options{})
	c, idle, silent := s.connect(t, false), s.connect(t, true), s.dial(t)
	silent.hello()
	c.request(header{command: cmdRead, cookie: 7, offset: slowOffset, length: 512}, nil)
	<-g.entered
	result := make(chan error)
	go func() { result <- s.Disconnect(context.Background()) }()
	idle.expectClosed()
	silent.expectClosed()
	select {
	case err := <-result:
		t.Fatalf("Disconnect did not wait: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	close(g.open)
	if r := c.reply(512); r.cookie != 7 || r.errno != 0 {
		t.Errorf("reply %+v", r)
	}
	c.expectClosed()
	if err := <-result; err != nil {
		t.Errorf("Disconnect: %v", err)
	}
	c = s.connect(t, false) // others may come
	c.request(header{command: cmdFlush, cookie: 8}, nil)
	c.expectStatus(8, 0)
}

func TestDisconnectCancelsWhatIsLeftWhenItsContextEnds(t *testing.T) {
	g := newGate()
	s := serve(t, slowAt(g), Options{})
	c := s.connect(t, false)
	c.request(header{command: cmdRead, offset: slowOffset, length: 512}, nil)
	<-g.entered
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := s.Disconnect(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Disconnect: %v", err)
	}
	c.expectClosed()
	eventually(t, "the connection is gone", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.conns) == 0
	})
}

func TestShutdownEndsServe(t *testing.T) {
	g := newGate()
	s := serve(t, slowAt(g), Options{})
	c := s.connect(t, false)
	c.request(header{command: cmdRead, cookie: 7, offset: slowOffset, length: 512}, nil)
	<-g.entered
	result := make(chan error)
	go func() { result <- s.Shutdown(context.Background()) }()
	eventually(t, "nobody listens", func() bool {
		nc, err := net.Dial("unix", s.socket)
		if err == nil {
			nc.Close()
		}
		return err != nil
	})
	close(g.open)
	if r := c.reply(512); r.cookie != 7 || r.errno != 0 {
		t.Errorf("reply %+v", r)
	}
	c.expectClosed()
	if err := <-result; err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if err := <-s.ended; !errors.Is(err, ErrShutdown) {
		t.Errorf("Serve: %v", err)
	}
	listener, err := net.Listen("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Serve(context.Background(), listener); !errors.Is(err, ErrShutdown) {
		t.Errorf("Serve after Shutdown: %v", err)
	}
}

func TestServeEndsWithItsContext(t *testing.T) {
	g := newGate()
	s := serve(t, slowAt(g), Options{})
	c := s.connect(t, false)
	c.request(header{command: cmdRead, offset: slowOffset, length: 512}, nil)
	<-g.entered
	s.cancel()
	c.expectClosed()
	if err := <-s.ended; err != nil {
		t.Errorf("Serve: %v", err)
	}
}
