package replica

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/ebb-dev/ebb/internal/volume/block"
)

const (
	// maxPings is how many pings of a connection may be under way.
	maxPings = 16
	// fastReplica: a replica that recently took less for a small write is fast.
	fastReplica = 50 * time.Microsecond
	// A reader that is busy with a request for longer than this, and at most twice as long, is replaced.
	readerPatience = time.Millisecond
)

// OpenFunc decides whether a node may use a replica of a volume (namespace/name), and returns it. The replica is shared: the server does not
// close it.
type OpenFunc func(ctx context.Context, node, volume, volumeUID, replica string) (block.Replica, error)

// Serve serves one replica to a node over a connection, which it owns. It returns when the connection has ended and every request of it too:
// nil if the client closed it or ctx ended, otherwise why.
func Serve(ctx context.Context, conn net.Conn, node string, open OpenFunc) error {
	defer abort(conn)
	stop := context.AfterFunc(ctx, func() { abort(conn) })
	defer stop()
	r := bufio.NewReaderSize(conn, readBuffer)
	err := serve(ctx, conn, r, node, open)
	if errors.Is(err, io.EOF) || ctx.Err() != nil {
		return nil
	}
	return err
}

func serve(ctx context.Context, conn net.Conn, r *bufio.Reader, node string, open OpenFunc) error {
	replica, err := accept(ctx, conn, r, node, open)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := &server{replica: replica, conn: conn, send: newSender(conn), input: r, window: semaphore.NewWeighted(window), pings: semaphore.NewWeighted(maxPings), ended: make(chan error, 1)}
	s.watchdog = time.AfterFunc(time.Hour, func() { s.watch(ctx) })
	s.watchdog.Stop()
	var sending sync.WaitGroup
	var sendErr error
	sending.Go(func() {
		sendErr = s.send.run()
		abort(conn) // ends the reader
		cancel()    // which may be waiting for room in the window
	})
	s.requests.Go(func() { s.receive(ctx) })
	err = <-s.ended
	cancel()
	s.send.close()
	abort(conn)
	s.requests.Wait()
	s.watchdog.Stop()
	sending.Wait()
	if sendErr != nil {
		return sendErr
	}
	return err
}

// accept answers the hello of a client.
func accept(ctx context.Context, conn net.Conn, r *bufio.Reader, node string, open OpenFunc) (block.Replica, error) {
	_ = conn.SetDeadline(time.Now().Add(helloTimeout))
	h, payload, err := readFrame(r, header.checkRequest)
	if err != nil {
		return nil, err
	}
	var asked hello
	if h.op != opHello || json.Unmarshal(payload, &asked) != nil {
		return nil, fmt.Errorf("%w: no hello", errProtocol)
	}
	replica, err := open(ctx, node, asked.Volume, asked.VolumeUID, asked.Replica)
	answer := header{op: opHello, flags: flagAnswer, id: h.id}
	answer.status, payload = statusOf(err)
	if err == nil {
		payload = encodeJSON(welcome{Window: window})
	}
	_ = conn.SetDeadline(time.Now().Add(helloTimeout))
	if sendErr := writeFrame(conn, answer, payload); err != nil || sendErr != nil {
		return nil, errors.Join(err, sendErr)
	}
	_ = conn.SetDeadline(time.Time{})
	return replica, nil
}

// server serves one connection.
//
// One goroutine at a time is the reader. It handles small writes and pings itself while the replica is fast: that saves waking another
// goroutine, which takes longer than a small write. Other requests have a goroutine each. A reader that gets stuck with a request is replaced by the
// watchdog, so that pings are answered: it loses the role, goes on with its request, and ends.
type server struct {
	replica  block.Replica
	conn     net.Conn
	send     *sender
	window   *semaphore.Weighted
	pings    *semaphore.Weighted
	requests sync.WaitGroup // and the reader
	ended    chan error     // why nothing is read any more

	// Only the reader uses these.
	input  *bufio.Reader
	number uint64 // of the last request that a reader handled itself

	// busy is the number of the request that the reader handles itself, or 0. Whoever sets it back to 0 is the reader.
	busy     atomic.Uint64
	watched  atomic.Uint64 // busy, when the watchdog last looked
	watching atomic.Bool   // the watchdog is set
	watchdog *time.Timer

	latency atomic.Int64 // ns that the replica took for small writes, averaged
}

// receive is the reader: it takes requests until the connection fails. It waits while the client has more under way than it was allowed.
func (s *server) receive(ctx context.Context) {
	for {
		q, err := s.next(ctx)
		if err != nil {
			s.ended <- err
			return
		}
		if !q.small() || s.latency.Load() > int64(fastReplica) {
			s.send.wake()
			s.requests.Go(func() { s.send.push(s.handle(ctx, q), q.header.op == opPing) })
			continue
		}
		if !s.handleInline(ctx, q) {
			return
		}
	}
}

// inbound is a request with its payload, and the room that it takes.
type inbound struct {
	header  header
	payload *buffer
	room    *semaphore.Weighted
	cost    int64
}

// small reports whether a request is short work for a replica that is fast.
func (q inbound) small() bool {
	return q.header.op == opPing || q.header.op == opWrite && q.header.flags&flagFUA == 0 && len(q.payload.data) <= copyLimit
}

// next reads a request.
func (s *server) next(ctx context.Context) (inbound, error) {
	h, err := readHeader(s.input)
	if err == nil {
		err = h.checkRequest()
	}
	if err != nil {
		return inbound{}, err
	}
	q := inbound{header: h, room: s.window, cost: h.cost(int(h.payload))}
	if h.op == opPing {
		q.room, q.cost = s.pings, 1
	}
	if !q.room.TryAcquire(q.cost) {
		s.send.wake() // answers that are held make room
		if err := q.room.Acquire(ctx, q.cost); err != nil {
			return inbound{}, err
		}
	}
	q.payload = newBuffer(int(h.payload))
	return q, readPayload(s.input, h, q.payload.data)
}

// handleInline is the reader handling a request itself. It reports whether the caller is still the reader. The answer is held if the next
// request is there already, so that their answers are written together.
func (s *server) handleInline(ctx context.Context, q inbound) bool {
	more := s.nextIsBuffered()
	s.number++
	number := s.number
	s.busy.Store(number)
	s.setWatchdog()
	a := s.handle(ctx, q)
	reader := s.busy.CompareAndSwap(number, 0)
	if urgent := q.header.op == opPing; reader && more {
		s.send.hold(a, urgent)
	} else {
		s.send.now(a, urgent, false)
	}
	return reader
}

// nextIsBuffered reports whether the next request can be read without waiting for the client.
func (s *server) nextIsBuffered() bool {
	if s.input.Buffered() < headerSize {
		return false
	}
	head, _ := s.input.Peek(headerSize)
	h, err := parseHeader(head)
	return err == nil && s.input.Buffered()-headerSize >= int(h.payload)
}

// setWatchdog sets the watchdog unless it is set.
func (s *server) setWatchdog() {
	if !s.watching.Load() && s.watching.CompareAndSwap(false, true) {
		s.watchdog.Reset(readerPatience)
	}
}

// watch is the watchdog. It looks at a busy reader twice: if it is at the same request the second time, there is a new reader. It rests while
// the reader is not busy.
func (s *server) watch(ctx context.Context) {
	number := s.busy.Load()
	if number == 0 {
		s.watching.Store(false)
		if s.busy.Load() != 0 { // the reader may have seen a watchdog that was about to rest
			s.setWatchdog()
		}
		return
	}
	if s.watched.Swap(number) == number && s.busy.CompareAndSwap(number, 0) {
		// The old reader may be done by now, but the role is not given back, so that serve has not ended.
		s.latency.Store(int64(time.Millisecond))
		s.requests.Go(func() {
			s.send.wake()
			s.receive(ctx)
		})
	}
	s.watchdog.Reset(readerPatience)
}

// answer is an answer on its way to the client.
type answer struct {
	header  header
	payload []byte
	buffer  *buffer // that the payload is in, if it is pooled
	room    *semaphore.Weighted
	cost    int64
}

// begin implements outgoing.
func (a *answer) begin() (header, []byte, bool) { return a.header, a.payload, true }

// sent implements outgoing.
func (a *answer) sent() {
	a.buffer.free()
	a.room.Release(a.cost)
}

// handle does what a request asks for.
func (s *server) handle(ctx context.Context, q inbound) *answer {
	h := q.header
	a := &answer{header: header{op: h.op, flags: flagAnswer, id: h.id}, room: q.room, cost: q.cost}
	var err error
	switch {
	case h.op == opRead:
		err = s.read(ctx, h, a)
	case h.op == opWrite && q.small():
		err = s.writeSmall(ctx, h, q.payload.data)
	default:
		a.payload, err = s.do(ctx, h, q.payload.data, &a.header)
	}
	q.payload.free()
	if err == nil && h.op != opRead && len(a.payload) > MaxMetadata {
		err = fmt.Errorf("an answer of %d bytes, more than %d", len(a.payload), MaxMetadata)
	}
	if errors.Is(err, block.ErrUnreachable) {
		abort(s.conn) // the replica was closed here; whoever connects again gets it as it is then
	}
	if err != nil {
		a.header.status, a.payload = statusOf(err)
		a.header.flags = flagAnswer
	}
	a.header.sum = checksum(a.payload)
	return a
}

// writeSmall does a small write and notes how long the replica took.
func (s *server) writeSmall(ctx context.Context, h header, payload []byte) error {
	began := time.Now()
	err := s.replica.WriteAt(ctx, h.generation, payload, h.offset, false)
	took := min(time.Since(began), time.Millisecond)
	average := s.latency.Load()
	s.latency.Store(average + (int64(took)-average)/8)
	return err
}

// read answers with bytes, or with a flag if all are zero.
func (s *server) read(ctx context.Context, h header, a *answer) error {
	a.buffer = newBuffer(int(h.length))
	p := a.buffer.data
	if err := s.replica.ReadAt(ctx, h.generation, p, h.offset); err != nil {
		return err
	}
	if zeros(p) {
		a.header.flags |= flagZeros
		return nil
	}
	a.payload = p
	return nil
}

// do does any other request, and returns the payload of its answer.
func (s *server) do(ctx context.Context, h header, payload []byte, a *header) ([]byte, error) {
	switch h.op {
	case opOpen:
		state, err := s.replica.Open(ctx, h.generation)
		return encodeState(state), err
	case opCommit:
		m, err := decodeMembership(payload)
		if err != nil {
			return nil, err
		}
		return nil, s.replica.Commit(ctx, m)
	case opWrite:
		return nil, s.replica.WriteAt(ctx, h.generation, payload, h.offset, h.flags&flagFUA != 0)
	case opZero:
		return nil, s.replica.Zero(ctx, h.generation, h.offset, h.length, block.Zero{Hole: h.flags&flagHole != 0, FUA: h.flags&flagFUA != 0})
	case opFlush:
		return nil, s.replica.Flush(ctx, h.generation)
	case opExtents:
		list, err := s.replica.Extents(ctx, h.generation, h.offset, h.length)
		return encodeExtents(list), err
	case opIntent:
		b, err := s.replica.Intent(ctx, h.generation)
		return encodeBitmap(b), err
	case opMissed:
		b, known, err := s.replica.Missed(ctx, h.generation, string(payload), h.offset)
		if known {
			a.flags |= flagKnown
		}
		return encodeBitmap(b), err
	case opClear:
		b, err := decodeBitmap(payload)
		if err != nil {
			return nil, err
		}
		return nil, s.replica.Clear(ctx, h.generation, b)
	case opPing:
		return nil, s.replica.Ping(ctx, h.generation)
	default:
		return nil, errors.New("the replica is open already") // opHello
	}
}
