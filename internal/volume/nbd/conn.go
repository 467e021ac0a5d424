package nbd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

const (
	readBuffer   = 64 << 10 // of the socket's input
	socketBuffer = 1 << 20  // what the kernel may hold of replies, if the system allows so much
	maxBatch     = 8        // replies that are held back while requests wait in the input

	// A read or write up to smallRequest is short work for a device that recently took less than fastDevice for one.
	smallRequest = 64 << 10
	fastDevice   = 30 * time.Microsecond
	// After so many requests in a row that came alone, the client is taken for one that sends the next request after the reply.
	aloneInARow = 16
	// A reader that is busy with a request for longer than this, and at most twice as long, is replaced.
	readerPatience = time.Millisecond
)

// Why a connection ends in order.
var (
	errDisconnected = errors.New("the client disconnected")
	errFinished     = errors.New("disconnected by the server")
)

// conn is a connection of a client.
//
// One goroutine at a time is the reader. It handles a request itself when that costs nobody anything: when the device answers quickly, or
// when the client has nothing else under way. This saves waking another goroutine, which takes longer than a small read. Other requests
// go to workers. A reader that gets stuck with a request is replaced by the watchdog: it loses the role, goes on with its request, and
// ends.
type conn struct {
	server *Server
	nc     net.Conn
	client Client
	ctx    context.Context // of the requests
	cancel context.CancelFunc
	done   chan struct{} // closed at the end

	// serving is true from the end of the handshake until the client is gone.
	serving atomic.Bool
	export  export

	// Only the reader uses these.
	input  *bufio.Reader
	alone  int    // requests in a row that came alone
	number uint64 // of the last request that a reader handled itself

	// running has the role of the reader, until nothing more is read, and all goroutines that handle requests.
	running sync.WaitGroup
	work    chan *request
	idle    atomic.Int32 // workers that wait and are not promised a request

	// busy is the number of the request that the reader handles itself, or 0. Whoever sets it back to 0 is the reader.
	busy     atomic.Uint64
	watched  atomic.Uint64 // busy, when the watchdog last looked
	watching atomic.Bool   // the watchdog is set
	watchdog *time.Timer

	latency atomic.Int64 // ns that the device took for small requests, averaged

	mu       sync.Mutex
	room     sync.Cond // a request was answered, or the connection ends
	closing  bool      // no request is read any more
	inFlight int
	buffered int        // sum of the costs of the requests in flight
	replies  []*request // to be written
	spare    []*request // the slice that replies takes turns with
	writing  bool       // somebody writes replies
	endErr   error
	reported bool // an error of the device was logged

	vectors  net.Buffers // of the one who writes
	vectored net.Buffers // what WriteTo may change
}

func newConn(ctx context.Context, s *Server, nc net.Conn) *conn {
	c := &conn{
		server: s,
		nc:     nc,
		client: peerOf(nc),
		done:   make(chan struct{}),
		input:  bufio.NewReaderSize(nc, readBuffer),
		work:   make(chan *request, s.opts.MaxInFlight),
	}
	c.room.L = &c.mu
	c.ctx, c.cancel = context.WithCancel(context.WithoutCancel(ctx)) // abort cancels it, in its own order
	c.watchdog = time.AfterFunc(time.Hour, c.watch)
	c.watchdog.Stop()
	if unix, ok := nc.(*net.UnixConn); ok {
		_ = unix.SetWriteBuffer(socketBuffer)
	}
	return c
}

// serve runs the connection from the handshake to the end.
func (c *conn) serve() {
	defer close(c.done)
	defer c.cancel()
	defer c.nc.Close()
	log := c.server.opts.Log.With("export", c.server.export, "client", c.client.String())
	if err := c.handshake(); err != nil {
		if !errors.Is(err, errAborted) && !errors.Is(err, io.EOF) {
			log.Warn("NBD handshake failed", "error", err)
		}
		return
	}
	c.serving.Store(true)
	log.Info("NBD client connected")
	c.running.Add(1) // the role
	c.running.Go(c.read)
	c.running.Wait()
	c.watchdog.Stop()
	log.Info("NBD client disconnected", "reason", c.reason())
}

func (c *conn) handshake() error {
	c.setDeadline(time.Now().Add(c.server.opts.HandshakeTimeout))
	h := handshake{r: c.input, w: c.nc, export: c.server.export, size: c.server.device.Size()}
	if err := h.run(); err != nil {
		return err
	}
	c.export = export{device: c.server.device, size: h.size, structured: h.structured, allocation: h.allocation}
	c.setDeadline(time.Time{})
	return nil
}

// setDeadline limits reading and writing, unless finish has ended reading already.
func (c *conn) setDeadline(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closing {
		_ = c.nc.SetDeadline(at)
	}
}

// finish lets the connection end when the requests in flight are answered.
func (c *conn) finish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closing = true
	_ = c.nc.SetReadDeadline(time.Unix(1, 0))
	c.room.Broadcast()
}

// abort closes the connection and cancels its requests. It is closed first, so that no client takes a cancelled request for a failed one.
func (c *conn) abort() {
	c.mu.Lock()
	c.closing = true
	c.room.Broadcast()
	c.mu.Unlock()
	c.nc.Close()
	c.cancel()
}

// end records why the connection ends, once.
func (c *conn) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.endErr == nil {
		c.endErr = err
	}
}

func (c *conn) reason() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return errFinished
	}
	return c.endErr
}

// read is the reader.
func (c *conn) read() {
	for {
		r, others, err := c.next()
		if err != nil {
			c.end(err)
			c.serving.Store(false)
			c.flush()
			close(c.work)
			c.running.Done() // the role
			return
		}
		if !c.inline(r, others) {
			c.dispatch(r)
			continue
		}
		if !c.handle(r) {
			return
		}
	}
}

// next reads a request with its payload and counts it as in flight; others are the requests that were so before. After an error the
// connection cannot go on.
func (c *conn) next() (r *request, others int, err error) {
	head, err := c.input.Peek(requestHeader)
	if err != nil {
		if errors.Is(err, io.EOF) && len(head) > 0 {
			err = io.ErrUnexpectedEOF
		}
		return nil, 0, err
	}
	h, ok := parseHeader(head)
	if !ok {
		return nil, 0, fmt.Errorf("%#x where a request is expected", be.Uint32(head))
	}
	_, _ = c.input.Discard(requestHeader)
	switch {
	case h.command == cmdDisconnect:
		return nil, 0, errDisconnected
	case h.command == cmdWrite && h.length > maxPayload:
		return nil, 0, fmt.Errorf("a write of %d bytes, more than %d", h.length, maxPayload)
	}

	r = newRequest(h)
	r.refused = c.export.check(h)
	if r.refused.errno == 0 && (h.command == cmdRead || h.command == cmdWrite) {
		r.cost = int(h.length)
	}
	others, err = c.acquire(r.cost)
	if err != nil {
		r.release()
		return nil, 0, err
	}
	if err := c.readPayload(r); err != nil {
		c.forget(r)
		return nil, 0, err
	}
	return r, others, nil
}

// readPayload reads what a write brings. The payload of a refused request is skipped.
func (c *conn) readPayload(r *request) error {
	if r.command != cmdWrite {
		return nil
	}
	if r.refused.errno != 0 {
		_, err := c.input.Discard(int(r.length))
		return err
	}
	r.payload = newBuffer(int(r.length))
	_, err := io.ReadFull(c.input, r.payload.bytes)
	return err
}

// acquire counts a request as in flight when there is room for it, and returns how many there were.
func (c *conn) acquire(cost int) (others int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.closing && (c.inFlight >= c.server.opts.MaxInFlight || c.buffered > 0 && c.buffered+cost > c.server.opts.MaxBuffered) {
		if len(c.replies) > 0 && !c.writing {
			c.mu.Unlock()
			c.flush()
			c.mu.Lock()
			continue
		}
		c.room.Wait()
	}
	if c.closing {
		return 0, errFinished
	}
	c.inFlight++
	c.buffered += cost
	return c.inFlight - 1, nil
}

// forget takes back a request that could not be read.
func (c *conn) forget(r *request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inFlight--
	c.buffered -= r.cost
	r.release()
}

// inline decides whether the reader handles a request itself.
func (c *conn) inline(r *request, others int) bool {
	if others == 0 && c.input.Buffered() == 0 {
		c.alone++
	} else {
		c.alone = 0
	}
	return c.alone > aloneInARow || r.refused.errno != 0 || r.small() && c.latency.Load() < int64(fastDevice)
}

// small reports whether a request is short work for a device that is fast.
func (r *request) small() bool {
	return r.length <= smallRequest && (r.command == cmdRead || r.command == cmdWrite && r.flags&cmdFlagFUA == 0)
}

// handle is the reader handling a request itself. It reports whether the caller is still the reader.
func (c *conn) handle(r *request) bool {
	more := c.nextIsBuffered()
	c.number++
	number := c.number
	c.busy.Store(number)
	c.setWatchdog()

	c.execute(r)
	if c.queue(r) >= maxBatch || !more {
		c.flush()
	}
	if c.busy.CompareAndSwap(number, 0) {
		return true
	}
	c.flush()
	return false
}

// nextIsBuffered reports whether the next request can be read without waiting for the client.
func (c *conn) nextIsBuffered() bool {
	if c.input.Buffered() < requestHeader {
		return false
	}
	head, _ := c.input.Peek(requestHeader)
	h, _ := parseHeader(head)
	return h.command != cmdWrite || c.input.Buffered()-requestHeader >= int(h.length)
}

// setWatchdog sets the watchdog unless it is set.
func (c *conn) setWatchdog() {
	if !c.watching.Load() && c.watching.CompareAndSwap(false, true) {
		c.watchdog.Reset(readerPatience)
	}
}

// watch is the watchdog. It looks at a busy reader twice: if it is at the same request the second time, there is a new reader. It rests
// while the reader is not busy.
func (c *conn) watch() {
	number := c.busy.Load()
	if number == 0 {
		c.watching.Store(false)
		if c.busy.Load() != 0 { // the reader may have seen a watchdog that was about to rest
			c.setWatchdog()
		}
		return
	}
	if c.watched.Swap(number) == number && c.busy.CompareAndSwap(number, 0) {
		// The old reader may be done by now, but the role is counted, so the connection has not ended.
		c.running.Go(func() {
			c.flush()
			c.read()
		})
	}
	c.watchdog.Reset(readerPatience)
}

// dispatch gives a request to a worker. There are never more workers than requests in flight, and the one who writes replies.
func (c *conn) dispatch(r *request) {
	if c.idle.Load() > 0 {
		c.idle.Add(-1)
		c.work <- r
		return
	}
	c.running.Go(func() { c.workOn(r) })
}

// workOn is a worker.
func (c *conn) workOn(r *request) {
	for ok := true; ok; r, ok = <-c.work {
		c.flush() // the reader may have held back replies, and this request may take long
		c.execute(r)
		c.queue(r)
		c.flush()
		c.idle.Add(1)
	}
}

// execute handles a request up to its reply.
func (c *conn) execute(r *request) {
	if !r.small() {
		c.report(r, c.export.execute(c.ctx, r))
		return
	}
	began := time.Now()
	c.report(r, c.export.execute(c.ctx, r))
	took := min(time.Since(began), time.Millisecond)
	average := c.latency.Load()
	c.latency.Store(average + (int64(took)-average)/8)
}

// report logs the first error that the device returned to this client.
func (c *conn) report(r *request, err error) {
	if err == nil {
		return
	}
	c.mu.Lock()
	first := !c.reported
	c.reported = true
	c.mu.Unlock()
	if first {
		c.server.opts.Log.Warn("an NBD request failed; later ones of this client are not logged", "export", c.server.export,
			"client", c.client.String(), "request", r.command.String(), "offset", r.offset, "length", r.length, "error", err)
	}
}

// queue adds a reply to those to be written, and returns how many there are.
func (c *conn) queue(r *request) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.replies = append(c.replies, r)
	return len(c.replies)
}

// flush sees to it that the queued replies are written: by the caller, or by whoever is writing.
func (c *conn) flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.writing {
		return
	}
	c.writing = true
	for len(c.replies) > 0 {
		batch := c.replies
		c.replies = c.spare[:0]
		c.mu.Unlock()
		err := c.write(batch)
		if err != nil {
			c.nc.Close() // the reader ends, and later replies fail at once
		}
		c.mu.Lock()
		if err != nil && c.endErr == nil {
			c.endErr = err
		}
		for _, r := range batch {
			c.inFlight--
			c.buffered -= r.cost
			r.release()
		}
		clear(batch)
		c.spare = batch[:0]
		c.room.Signal()
	}
	c.writing = false
}

// write sends replies in one go.
func (c *conn) write(batch []*request) error {
	c.vectors = c.vectors[:0]
	for _, r := range batch {
		c.vectors = append(c.vectors, r.reply...)
	}
	c.vectored = c.vectors
	_, err := c.vectored.WriteTo(c.nc)
	clear(c.vectors)
	return err
}
