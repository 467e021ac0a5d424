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
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/ebb-dev/ebb/internal/volume/block"
)

// maxPings is how many pings of a connection may be under way.
const maxPings = 16

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
	s := &server{replica: replica, send: newSender(conn), window: semaphore.NewWeighted(window), pings: semaphore.NewWeighted(maxPings)}
	var sending sync.WaitGroup
	var sendErr error
	sending.Go(func() {
		sendErr = s.send.run()
		abort(conn) // ends receive
		cancel()    // which may be waiting for room in the window
	})
	err = s.receive(ctx, r)
	cancel()
	s.send.close()
	abort(conn)
	s.requests.Wait()
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
type server struct {
	replica  block.Replica
	send     *sender
	window   *semaphore.Weighted
	pings    *semaphore.Weighted
	requests sync.WaitGroup
}

// receive takes requests until the connection fails. It waits while the client has more under way than it was allowed.
func (s *server) receive(ctx context.Context, r *bufio.Reader) error {
	for {
		h, err := readHeader(r)
		if err == nil {
			err = h.checkRequest()
		}
		if err != nil {
			return err
		}
		room, n := s.window, h.cost(int(h.payload))
		if h.op == opPing {
			room, n = s.pings, 1
		}
		if err := room.Acquire(ctx, n); err != nil {
			return err
		}
		payload := newBuffer(int(h.payload))
		if err := readPayload(r, h, payload.data); err != nil {
			return err
		}
		s.requests.Go(func() {
			a := s.handle(ctx, h, payload)
			a.room, a.cost = room, n
			s.send.push(a, h.op == opPing)
		})
	}
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
func (s *server) handle(ctx context.Context, h header, payload *buffer) *answer {
	a := &answer{header: header{op: h.op, flags: flagAnswer, id: h.id}}
	var err error
	if h.op == opRead {
		err = s.read(ctx, h, a)
	} else {
		a.payload, err = s.do(ctx, h, payload.data, &a.header)
	}
	payload.free()
	if err == nil && h.op != opRead && len(a.payload) > MaxMetadata {
		err = fmt.Errorf("an answer of %d bytes, more than %d", len(a.payload), MaxMetadata)
	}
	if err != nil {
		a.header.status, a.payload = statusOf(err)
		a.header.flags = flagAnswer
	}
	a.header.sum = checksum(a.payload)
	return a
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
		b, known, err := s.replica.Missed(ctx, h.generation, string(payload))
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
