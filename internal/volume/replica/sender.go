package replica

import (
	"bufio"
	"fmt"
	"math"
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
	// deadlineEvery is how old the deadline of a write may be, because setting one takes time too.
	deadlineEvery = time.Second
	// maxInline is how many frames of others somebody writes who has something else to do.
	maxInline = 64
)

// outgoing is a frame to be sent.
type outgoing interface {
	// begin returns the frame, or false if it is not to be sent any more.
	begin() (header, []byte, bool)
	// sent: the payload is not used any more. The frame itself may still be on its way.
	sent()
}

// sender writes frames to a connection, one at a time: urgent ones first, and small ones in batches. Whoever queues a frame with now writes
// it, if nobody is writing: that saves waking another goroutine. The rest is left to run.
type sender struct {
	conn    net.Conn
	batch   []byte    // of the one who writes
	limited time.Time // when the deadline for writing was last set, by the one who writes

	mu      sync.Mutex
	changed sync.Cond // there is a frame for run, nobody writes any more, or the sender is closed
	urgent  queue
	frames  queue
	writing bool
	closed  bool
	err     error // why nothing can be written any more
}

func newSender(conn net.Conn) *sender {
	s := &sender{conn: conn, batch: make([]byte, 0, batchSize+headerSize+copyLimit)}
	s.changed.L = &s.mu
	return s
}

// push queues a frame for run. After close it is dropped.
func (s *sender) push(f outgoing, urgent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(f, urgent)
	s.changed.Signal()
}

// hold queues a frame for whoever writes next. The caller sees to it that somebody does.
func (s *sender) hold(f outgoing, urgent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(f, urgent)
}

// wake lets run write what is held.
func (s *sender) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.empty() {
		s.changed.Signal()
	}
}

// now queues a frame and writes it with what is queued before it, unless somebody is writing, who then does. If others are likely to queue
// frames at this moment, they get the chance to join the batch.
func (s *sender) now(f outgoing, urgent, others bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(f, urgent)
	if s.writing || s.closed {
		return
	}
	s.writing = true
	s.mu.Unlock()
	if others {
		runtime.Gosched()
	}
	err := s.drain(maxInline)
	s.mu.Lock()
	s.stopWriting(err)
	if !s.empty() {
		s.changed.Signal()
	}
}

func (s *sender) add(f outgoing, urgent bool) {
	if urgent {
		s.urgent.push(f)
	} else {
		s.frames.push(f)
	}
}

func (s *sender) empty() bool { return s.urgent.empty() && s.frames.empty() }

// stopWriting lets others write. After an error nobody may. The lock is held.
func (s *sender) stopWriting(err error) {
	s.writing = false
	if err != nil && s.err == nil {
		s.err, s.closed = err, true
	}
	if s.closed {
		s.changed.Broadcast()
	}
}

// close ends run. Frames in the queue are not sent.
func (s *sender) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.changed.Broadcast()
}

// pop returns the next frame, or nil.
func (s *sender) pop() outgoing {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	if f := s.urgent.pop(); f != nil {
		return f
	}
	return s.frames.pop()
}

// run writes what others leave to it until close, or until the connection fails. Nobody writes when it has returned.
func (s *sender) run() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.writing:
			s.changed.Wait()
		case s.closed:
			return s.err
		case s.empty():
			s.changed.Wait()
		default:
			s.writing = true
			s.mu.Unlock()
			err := s.drain(math.MaxInt)
			s.mu.Lock()
			s.stopWriting(err)
		}
	}
}

// drain writes queued frames, of which there may be more at the end if it has written so many or a large one.
func (s *sender) drain(most int) error {
	yielded := most < math.MaxInt
	for n := 0; n < most; {
		f := s.pop()
		if f == nil && yielded {
			break
		}
		if f == nil { // whoever is about to queue a frame gets the chance to join the batch
			yielded = true
			runtime.Gosched()
			continue
		}
		size, err := s.send(f)
		if err != nil {
			return err
		}
		n++
		if size > copyLimit && most < math.MaxInt {
			break
		}
	}
	return s.flush()
}

// send adds a frame to the batch, or writes it if it is large.
func (s *sender) send(f outgoing) (size int, err error) {
	h, payload, ok := f.begin()
	if !ok {
		return 0, nil
	}
	h.payload = uint32(len(payload))
	s.batch = h.append(s.batch)
	if len(payload) <= copyLimit {
		s.batch = append(s.batch, payload...)
		f.sent()
		if len(s.batch) >= batchSize {
			err = s.flush()
		}
		return len(payload), err
	}
	// The beginning of the payload fills up the batch.
	n := min(len(payload), max(0, batchSize-len(s.batch)))
	s.batch = append(s.batch, payload[:n]...)
	if err := s.flush(); err != nil {
		return 0, err
	}
	for rest := payload[n:]; len(rest) > 0; {
		n := min(len(rest), pieceSize)
		if err := s.write(rest[:n]); err != nil {
			return 0, err
		}
		rest = rest[n:]
	}
	f.sent()
	return len(payload), nil
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
	if now := time.Now(); now.Sub(s.limited) > deadlineEvery {
		s.limited = now
		_ = s.conn.SetWriteDeadline(now.Add(writeTimeout))
	}
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

func (q *queue) empty() bool { return q.head == len(q.list) }

func (q *queue) pop() outgoing {
	if q.empty() {
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
