package replica

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/ebb-dev/ebb/internal/volume/block"
)

const (
	// helloTimeout bounds the first exchange on a connection.
	helloTimeout = 10 * time.Second
	// cancelGrace is how long a cancelled call waits for a transfer to or from its buffer to end, before it gives up the connection.
	cancelGrace = time.Second
	// extentsRange is how much one request asks for, so that its answer fits even if every sector is an extent.
	extentsRange = 1 << 30
)

// errClientClosed is why calls fail after Close.
var errClientClosed = errors.New("the connection was closed")

// Client is a replica on another node. After the first error of its connection every call fails with block.ErrUnreachable. A call whose
// context ends returns block.ErrUnreachable and the context's error; the replica may still do what it asked for, and other calls go on.
type Client struct {
	replica string
	conn    net.Conn
	send    *sender
	window  *semaphore.Weighted
	workers sync.WaitGroup // those that use the connection
	gone    chan struct{}  // closed when the connection and all calls have ended

	mu     sync.Mutex
	err    error // why the connection ended
	lastID uint64
	calls  map[uint64]*call
}

var (
	_ block.Replica = (*Client)(nil)
	_ block.Starter = (*Client)(nil)
)

// NewClient opens a replica of a volume (namespace/name) over a connection, which it owns from now on, also if it fails. An error of the
// replica's node, such as block.ErrMissing, is as that node reported it; any other is block.ErrUnreachable.
func NewClient(ctx context.Context, conn net.Conn, volume, volumeUID, replica string) (*Client, error) {
	c := &Client{replica: replica, conn: conn, send: newSender(conn), gone: make(chan struct{}), calls: map[uint64]*call{}}
	r := bufio.NewReaderSize(conn, readBuffer)
	w, err := greet(ctx, conn, r, hello{Volume: volume, VolumeUID: volumeUID, Replica: replica})
	if err != nil {
		abort(conn)
		return nil, c.wrap(err)
	}
	c.window = semaphore.NewWeighted(w.Window)
	c.workers.Go(func() { c.fail(c.send.run()) })
	c.workers.Go(func() { c.fail(c.receive(r)) })
	go c.failCalls()
	return c, nil
}

// greet sends a hello and waits for its answer.
func greet(ctx context.Context, conn net.Conn, r *bufio.Reader, h hello) (welcome, error) {
	_ = conn.SetDeadline(time.Now().Add(helloTimeout))
	stop := context.AfterFunc(ctx, func() { abort(conn) })
	defer stop()
	w, err := exchange(conn, r, h)
	if err == nil && !stop() || err != nil && ctx.Err() != nil {
		return w, fmt.Errorf("%w: %w", block.ErrUnreachable, context.Cause(ctx))
	}
	_ = conn.SetDeadline(time.Time{})
	return w, err
}

func exchange(conn net.Conn, r *bufio.Reader, h hello) (welcome, error) {
	payload := encodeJSON(h)
	if len(payload) > maxText {
		return welcome{}, errors.New("the names of the volume and the replica are too long")
	}
	if err := writeFrame(conn, header{op: opHello}, payload); err != nil {
		return welcome{}, fmt.Errorf("%w: %w", block.ErrUnreachable, err)
	}
	answer, payload, err := readFrame(r, func(h header) error { return h.checkAnswer(opHello, 0) })
	if err != nil {
		return welcome{}, fmt.Errorf("%w: %w", block.ErrUnreachable, err)
	}
	if err := errorOf(answer.status, payload); err != nil {
		return welcome{}, err
	}
	var w welcome
	if err := json.Unmarshal(payload, &w); err != nil || w.Window < requestCost+MaxData {
		return welcome{}, fmt.Errorf("%w: %w: welcome %q", block.ErrUnreachable, errProtocol, payload)
	}
	return w, nil
}

func (c *Client) wrap(err error) error { return fmt.Errorf("replica %s: %w", c.replica, err) }

// fail ends the connection. Calls end once nothing uses their buffers any more.
func (c *Client) fail(err error) {
	if err == nil {
		err = errClientClosed
	}
	c.mu.Lock()
	if c.err == nil {
		c.err = err
	}
	c.mu.Unlock()
	abort(c.conn)
	c.send.close()
}

// failCalls fails what is left when the connection has ended.
func (c *Client) failCalls() {
	c.workers.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.calls {
		k.err = fmt.Errorf("%w: %w", block.ErrUnreachable, c.err)
		c.end(k)
	}
	close(c.gone)
}

// Close ends the connection and all calls.
func (c *Client) Close() error {
	c.fail(errClientClosed)
	<-c.gone
	return nil
}

// call is a request under way. Fields below the channel are guarded by the client's lock.
//
//	queued -> writing -> sent -> receiving -> ended
type call struct {
	client  *Client
	request header
	payload []byte // of the request
	cost    int64
	done    chan struct{} // closed when the call ended; then answer, body and err do not change

	state callState
	// into is where the bytes of a read go. Nil if the caller has left.
	into []byte
	// left is closed for a caller that waits to leave, as soon as nothing uses its buffer.
	left chan struct{}

	answer header
	body   []byte
	err    error
}

type callState int

const (
	queued    callState = iota
	writing             // the sender uses the payload
	answered            // as writing, and the answer is there already
	sent                // the answer is awaited
	receiving           // the bytes of a read are being received
	ended
)

// begin implements outgoing.
func (k *call) begin() (header, []byte, bool) {
	k.client.mu.Lock()
	defer k.client.mu.Unlock()
	if k.state != queued {
		return header{}, nil, false
	}
	k.state = writing
	return k.request, k.payload, true
}

// sent implements outgoing.
func (k *call) sent() {
	k.client.mu.Lock()
	defer k.client.mu.Unlock()
	k.payload = nil
	if k.state == answered {
		k.client.end(k)
		return
	}
	k.state = sent
	if k.left != nil {
		k.into = nil
		close(k.left)
	}
}

// end ends a call. The lock is held.
func (c *Client) end(k *call) {
	k.state = ended
	delete(c.calls, k.request.id)
	if k.cost > 0 {
		c.window.Release(k.cost)
	}
	close(k.done)
}

// call sends a request and waits for its answer. The bytes of a read go into p.
func (c *Client) call(ctx context.Context, request header, payload, p []byte) (header, []byte, error) {
	if len(payload) > MaxData || len(p) > MaxData {
		return header{}, nil, c.wrap(errTooLong)
	}
	request.sum = checksum(payload)
	k := &call{client: c, request: request, payload: payload, into: p, cost: request.cost(len(payload)), done: make(chan struct{})}
	if err := c.start(ctx, k); err != nil {
		return header{}, nil, c.wrap(fmt.Errorf("%w: %w", block.ErrUnreachable, err))
	}
	return c.wait(ctx, k)
}

// wait waits for the answer to a request that was started.
func (c *Client) wait(ctx context.Context, k *call) (header, []byte, error) {
	select {
	case <-k.done:
	case <-ctx.Done():
		if !c.leave(k) {
			return header{}, nil, c.wrap(fmt.Errorf("%w: %w", block.ErrUnreachable, context.Cause(ctx)))
		}
	}
	err := k.err
	if err == nil {
		err = errorOf(k.answer.status, k.body)
	}
	if err != nil {
		return header{}, nil, c.wrap(err)
	}
	return k.answer, k.body, nil
}

// start sends a request once the window has room for it. A small one is written here, unless the caller could not wait for that because its
// context may end.
func (c *Client) start(ctx context.Context, k *call) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if k.cost > 0 {
		if err := c.window.Acquire(ctx, k.cost); err != nil {
			return context.Cause(ctx)
		}
	}
	others, err := c.register(k)
	switch {
	case err != nil:
		return err
	case ctx.Done() == nil && len(k.payload) <= copyLimit:
		c.send.now(k, false, others)
	default:
		c.send.push(k, k.request.op == opPing)
	}
	return nil
}

// register gives a call its number, and returns whether others are under way.
func (c *Client) register(k *call) (others bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		if k.cost > 0 {
			c.window.Release(k.cost)
		}
		return false, c.err
	}
	c.lastID++
	k.request.id = c.lastID
	c.calls[k.request.id] = k
	return len(c.calls) > 1, nil
}

// leave gives a call up. It returns true if the call ended meanwhile. A request that was sent keeps its room in the window until its answer
// comes, because the replica is busy with it.
func (c *Client) leave(k *call) bool {
	c.mu.Lock()
	switch k.state {
	case queued:
		c.end(k)
		c.mu.Unlock()
		return false
	case sent:
		k.into = nil
		c.mu.Unlock()
		return false
	}
	k.left = make(chan struct{})
	c.mu.Unlock()
	grace := time.NewTimer(cancelGrace)
	defer grace.Stop()
	select {
	case <-k.left:
		return false
	case <-k.done:
		return true
	case <-grace.C:
		c.fail(errors.New("a cancelled request could not be sent or received to its end"))
	}
	select {
	case <-k.left:
		return false
	case <-k.done:
		return true
	}
}

// receive takes answers until the connection fails.
func (c *Client) receive(r *bufio.Reader) error {
	for {
		h, err := readHeader(r)
		if err != nil {
			return err
		}
		k, p, err := c.expect(h)
		if err != nil {
			return err
		}
		var scratch *buffer
		switch {
		case h.status == statusOK && h.op == opRead && p == nil: // the caller has left
			scratch = newBuffer(int(h.payload))
			p = scratch.data
		case h.status != statusOK || h.op != opRead:
			p = make([]byte, h.payload)
		}
		if h.flags&flagZeros != 0 {
			clear(p)
		} else if err := readPayload(r, h, p); err != nil {
			return err
		}
		scratch.free()
		c.finish(k, h, p)
	}
}

// expect returns the call that a frame answers, and where the bytes of a read go.
func (c *Client) expect(h header) (*call, []byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.calls[h.id]
	if k == nil || k.state == queued || k.state == answered {
		return nil, nil, fmt.Errorf("%w: an answer to nothing that was asked", errProtocol)
	}
	if err := h.checkAnswer(k.request.op, k.request.length); err != nil {
		return nil, nil, err
	}
	if k.state == sent {
		k.state = receiving
	}
	return k, k.into, nil
}

// finish ends a call with its answer.
func (c *Client) finish(k *call, h header, body []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k.answer, k.body = h, body
	if k.state == writing {
		k.state = answered
		return
	}
	c.end(k)
}

// do sends a request whose answer says nothing more.
func (c *Client) do(ctx context.Context, request header, payload []byte) error {
	_, _, err := c.call(ctx, request, payload, nil)
	return err
}

// Open implements block.Replica.
func (c *Client) Open(ctx context.Context, generation int64) (block.State, error) {
	_, body, err := c.call(ctx, header{op: opOpen, generation: generation}, nil, nil)
	if err != nil {
		return block.State{}, err
	}
	s, err := decodeState(body)
	if err != nil {
		return block.State{}, c.wrap(err)
	}
	return s, nil
}

// Commit implements block.Replica.
func (c *Client) Commit(ctx context.Context, m block.Membership) error {
	return c.metadata(ctx, header{op: opCommit, generation: m.Generation}, encodeMembership(m))
}

// ReadAt implements block.Replica.
func (c *Client) ReadAt(ctx context.Context, generation int64, p []byte, off int64) error {
	_, _, err := c.call(ctx, header{op: opRead, generation: generation, offset: off, length: int64(len(p))}, nil, p)
	return err
}

// WriteAt implements block.Replica.
func (c *Client) WriteAt(ctx context.Context, generation int64, p []byte, off int64, fua bool) error {
	return c.do(ctx, writeOf(generation, p, off, fua), p)
}

func writeOf(generation int64, p []byte, off int64, fua bool) header {
	h := header{op: opWrite, generation: generation, offset: off, length: int64(len(p))}
	if fua {
		h.flags |= flagFUA
	}
	return h
}

// StartWriteAt implements block.Starter.
func (c *Client) StartWriteAt(generation int64, p []byte, off int64, fua bool, sum uint32) block.Pending {
	k := &call{client: c, request: writeOf(generation, p, off, fua), payload: p, done: make(chan struct{})}
	k.request.sum, k.cost = sum, k.request.cost(len(p))
	if len(p) > MaxData {
		return failedCall{c.wrap(errTooLong)}
	}
	if err := c.start(context.Background(), k); err != nil {
		return failedCall{c.wrap(fmt.Errorf("%w: %w", block.ErrUnreachable, err))}
	}
	return k
}

// Wait implements block.Pending.
func (k *call) Wait() error {
	_, _, err := k.client.wait(context.Background(), k)
	return err
}

// failedCall is a call that was never started.
type failedCall struct{ err error }

// Wait implements block.Pending.
func (f failedCall) Wait() error { return f.err }

// Zero implements block.Replica.
func (c *Client) Zero(ctx context.Context, generation int64, off, length int64, z block.Zero) error {
	h := header{op: opZero, generation: generation, offset: off, length: length}
	if z.FUA {
		h.flags |= flagFUA
	}
	if z.Hole {
		h.flags |= flagHole
	}
	return c.do(ctx, h, nil)
}

// Flush implements block.Replica.
func (c *Client) Flush(ctx context.Context, generation int64) error {
	return c.do(ctx, header{op: opFlush, generation: generation}, nil)
}

// Extents implements block.Replica.
func (c *Client) Extents(ctx context.Context, generation int64, off, length int64) ([]block.Extent, error) {
	var list []block.Extent
	for {
		n := min(length, extentsRange)
		_, body, err := c.call(ctx, header{op: opExtents, generation: generation, offset: off, length: n}, nil, nil)
		if err != nil {
			return nil, err
		}
		if list, err = decodeExtents(list, body, n); err != nil {
			return nil, c.wrap(err)
		}
		if off, length = off+n, length-n; length <= 0 {
			return list, nil
		}
	}
}

// Intent implements block.Replica.
func (c *Client) Intent(ctx context.Context, generation int64) (block.Bitmap, error) {
	_, b, err := c.bitmap(ctx, header{op: opIntent, generation: generation}, nil)
	return b, err
}

// Missed implements block.Replica.
func (c *Client) Missed(ctx context.Context, generation int64, replica string, memberAt int64) (block.Bitmap, bool, error) {
	if len(replica) > maxText {
		return nil, false, c.wrap(errors.New("the name of a replica is too long"))
	}
	answer, b, err := c.bitmap(ctx, header{op: opMissed, generation: generation, offset: memberAt}, []byte(replica))
	return b, err == nil && answer.flags&flagKnown != 0, err
}

// Clear implements block.Replica.
func (c *Client) Clear(ctx context.Context, generation int64, chunks block.Bitmap) error {
	return c.metadata(ctx, header{op: opClear, generation: generation}, encodeBitmap(chunks))
}

// Ping implements block.Replica. It overtakes other requests.
func (c *Client) Ping(ctx context.Context, generation int64) error {
	return c.do(ctx, header{op: opPing, generation: generation}, nil)
}

func (c *Client) metadata(ctx context.Context, request header, payload []byte) error {
	if len(payload) > MaxMetadata {
		return c.wrap(fmt.Errorf("%d bytes of metadata in one request, more than %d", len(payload), MaxMetadata))
	}
	return c.do(ctx, request, payload)
}

// bitmap sends a request that is answered with a bitmap.
func (c *Client) bitmap(ctx context.Context, request header, payload []byte) (header, block.Bitmap, error) {
	answer, body, err := c.call(ctx, request, payload, nil)
	if err != nil {
		return answer, nil, err
	}
	b, err := decodeBitmap(body)
	if err != nil {
		return answer, nil, c.wrap(err)
	}
	return answer, b, nil
}
