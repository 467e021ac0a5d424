package replica

import (
	"bufio"
	"fmt"
	"net"
	"runtime"
	"sync"
	"time"
)

const (
	// batchSize is how much is collected from small frames before it is written: a few TLS records.
	batchSize = 64 << 10
	// copyLimit is the largest payload that is copied into a batch rather than written by itself.
	copyLimit = 16 << 10
	// readBuffer of a connection.
	readBuffer = 64 << 10
	// pieceSize is how much of a payload must be written within writeTimeout.
	pieceSize    = 1 << 20
	writeTimeout = 30 * time.Second
)

// outgoing is a frame to be sent.
type outgoing interface {
	// begin returns the frame, or false if it is not to be sent any more.
	begin() (header, []byte, bool)
	// sent: the payload is not used any more. The frame itself may still be on its way.
	sent()
}

// sender writes frames to a connection, one at a time: urgent ones first, and small ones in batches.
type sender struct {
	conn  net.Conn
	batch []byte

	mu     sync.Mutex
	filled sync.Cond // there is a frame, or the sender is closed
	urgent queue
	frames queue
	closed bool
}

func newSender(conn net.Conn) *sender {
	s := &sender{conn: conn, batch: make([]byte, 0, batchSize+headerSize+copyLimit)}
	s.filled.L = &s.mu
	return s
}

// push queues a frame. After close it is dropped.
func (s *sender) push(f outgoing, urgent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if urgent {
		s.urgent.push(f)
	} else {
		s.frames.push(f)
	}
	s.filled.Signal()
}

// close ends run. Frames in the queue are not sent.
func (s *sender) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.filled.Signal()
}

// pop returns the next frame, if there is one.
func (s *sender) pop() (f outgoing, closed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.next(), s.closed
}

// wait returns the next frame as soon as there is one.
func (s *sender) wait() (f outgoing, closed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if f := s.next(); f != nil || s.closed {
			return f, s.closed
		}
		s.filled.Wait()
	}
}

func (s *sender) next() outgoing {
	if f := s.urgent.pop(); f != nil {
		return f
	}
	return s.frames.pop()
}

// run sends until close, or until the connection fails.
func (s *sender) run() error {
	for {
		f, closed := s.wait()
		yielded := false
		for !closed && (f != nil || !yielded) {
			if f == nil {
				// Whoever is about to queue a frame gets the chance to join the batch.
				yielded = true
				runtime.Gosched()
			} else if err := s.send(f); err != nil {
				return err
			}
			f, closed = s.pop()
		}
		if closed {
			return nil
		}
		if err := s.flush(); err != nil {
			return err
		}
	}
}

// send adds a frame to the batch, or writes it if it is large.
func (s *sender) send(f outgoing) error {
	h, payload, ok := f.begin()
	if !ok {
		return nil
	}
	h.payload = uint32(len(payload))
	s.batch = h.append(s.batch)
	if len(payload) <= copyLimit {
		s.batch = append(s.batch, payload...)
		f.sent()
		if len(s.batch) >= batchSize {
			return s.flush()
		}
		return nil
	}
	// The beginning of the payload fills up the batch.
	n := min(len(payload), max(0, batchSize-len(s.batch)))
	s.batch = append(s.batch, payload[:n]...)
	if err := s.flush(); err != nil {
		return err
	}
	for rest := payload[n:]; len(rest) > 0; {
		n := min(len(rest), pieceSize)
		if err := s.write(rest[:n]); err != nil {
			return err
		}
		rest = rest[n:]
	}
	f.sent()
	return nil
}

func (s *sender) flush() error {
	if len(s.batch) == 0 {
		return nil
	}
	err := s.write(s.batch)
	s.batch = s.batch[:0]
	return err
}

func (s *sender) write(p []byte) error {
	_ = s.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	_, err := s.conn.Write(p)
	return err
}

// queue is first in, first out.
type queue struct {
	list []outgoing
	head int
}

func (q *queue) push(f outgoing) {
	if len(q.list) == cap(q.list) && q.head > len(q.list)/2 {
		n := copy(q.list, q.list[q.head:])
		clear(q.list[n:])
		q.list, q.head = q.list[:n], 0
	}
	q.list = append(q.list, f)
}

func (q *queue) pop() outgoing {
	if q.head == len(q.list) {
		q.list, q.head = q.list[:0], 0
		return nil
	}
	f := q.list[q.head]
	q.list[q.head] = nil
	q.head++
	return f
}

// writeFrame writes one frame before a connection has a sender.
func writeFrame(conn net.Conn, h header, payload []byte) error {
	h.payload, h.sum = uint32(len(payload)), checksum(payload)
	_, err := conn.Write(append(h.append(nil), payload...))
	return err
}

// readFrame reads one frame, which check accepts, while there is nothing else to do.
func readFrame(r *bufio.Reader, check func(header) error) (header, []byte, error) {
	h, err := readHeader(r)
	if err == nil {
		err = check(h)
	}
	if err != nil {
		return h, nil, err
	}
	payload := make([]byte, h.payload)
	return h, payload, readPayload(r, h, payload)
}

// abort closes a connection without a word that could wait for the other side.
func abort(conn net.Conn) {
	if c, ok := conn.(interface{ NetConn() net.Conn }); ok {
		conn = c.NetConn()
	}
	_ = conn.Close()
}

// How much may be under way on a connection, as cost counts it. A request costs something even if it carries nothing, so that this bounds
// their number too: 512 small ones, or 56 of 1 MiB.
const (
	window      = 64 << 20
	requestCost = 128 << 10
	// answerCost is for answers whose size is not known before.
	answerCost = 1 << 20
)

// cost of a request. Pings cost nothing, so that they never wait.
func (h header) cost(payload int) int64 {
	switch h.op {
	case opPing:
		return 0
	case opRead:
		return requestCost + h.length
	case opExtents, opIntent, opMissed:
		return requestCost + answerCost
	default:
		return requestCost + int64(payload)
	}
}

var errTooLong = fmt.Errorf("more than %d bytes in one request", MaxData)
