package replica

import (
	"bufio"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// plain is a frame to be sent.
type plain struct {
	id      uint64
	payload []byte
	off     bool // it is not to be sent any more
	done    atomic.Bool
}

func (p *plain) begin() (header, []byte, bool) {
	return header{op: opFlush, id: p.id, sum: checksum(p.payload)}, p.payload, !p.off
}

func (p *plain) sent() { p.done.Store(true) }

// writes counts the writes to a connection.
type writes struct {
	net.Conn
	n atomic.Int64
}

func (w *writes) Write(p []byte) (int, error) {
	w.n.Add(1)
	return w.Conn.Write(p)
}

// sending starts a sender whose other side reads only when the test does.
func sending(t *testing.T) (*sender, *writes, *bufio.Reader) {
	mine, theirs := net.Pipe()
	w := &writes{Conn: mine}
	s := newSender(w)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.run()
	}()
	t.Cleanup(func() {
		s.close()
		_ = theirs.Close()
		<-done
		_ = mine.Close()
	})
	return s, w, bufio.NewReader(theirs)
}

// ids reads frames and returns their ids.
func ids(t *testing.T, r *bufio.Reader, n int) (list []uint64) {
	t.Helper()
	for range n {
		h, _, err := readFrame(r, func(header) error { return nil })
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, h.id)
	}
	return list
}

func TestUrgentFramesOvertakeAndFramesThatAreTakenBackAreNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _, r := sending(t)
		large := &plain{id: 1, payload: make([]byte, 3*pieceSize/2)}
		s.push(large, false)
		synctest.Wait() // it is being written
		s.push(&plain{id: 2}, false)
		s.push(&plain{id: 3, off: true}, false)
		s.push(&plain{id: 4}, true)
		s.push(&plain{id: 5}, false)
		if large.done.Load() {
			t.Error("the payload is said to be free while it is written")
		}
		if got := ids(t, r, 4); !slices.Equal(got, []uint64{1, 4, 2, 5}) {
			t.Errorf("sent %v", got)
		}
		if !large.done.Load() {
			t.Error("the payload is not free")
		}
	})
}

func TestSmallFramesAreWrittenTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w, r := sending(t)
		s.push(&plain{id: 0}, false)
		synctest.Wait()
		const n = 500
		var want []uint64
		for i := range uint64(n) {
			s.push(&plain{id: i + 1, payload: make([]byte, 100)}, false)
			want = append(want, i+1)
		}
		if got := ids(t, r, n+1); !slices.Equal(got[1:], want) {
			t.Errorf("sent %v", got)
		}
		if got := w.n.Load(); got > 1+n*(headerSize+100)/batchSize+1 {
			t.Errorf("%d writes", got)
		}
	})
}

func TestAFrameIsWrittenByItsCallerUnlessSomebodyIsWriting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w, r := sending(t)
		returned := make(chan struct{})
		go func() {
			defer close(returned)
			s.now(&plain{id: 1}, false, false)
		}()
		synctest.Wait()
		select {
		case <-returned:
			t.Error("the caller did not write the frame itself")
		default:
		}
		s.hold(&plain{id: 2}, false)
		s.now(&plain{id: 3}, false, false) // returns though nobody reads: the first caller is writing
		if got := ids(t, r, 1); !slices.Equal(got, []uint64{1}) {
			t.Errorf("sent %v", got)
		}
		<-returned
		if got := ids(t, r, 2); !slices.Equal(got, []uint64{2, 3}) {
			t.Errorf("sent %v", got)
		}
		if got := w.n.Load(); got != 2 {
			t.Errorf("%d writes", got)
		}
	})
}

func TestWhatIsHeldIsWrittenByWhoeverComesNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, w, r := sending(t)
		synctest.Wait() // run waits
		s.hold(&plain{id: 1}, false)
		synctest.Wait()
		if got := w.n.Load(); got != 0 {
			t.Errorf("%d writes of a frame that is held", got)
		}
		s.wake()
		if got := ids(t, r, 1); !slices.Equal(got, []uint64{1}) {
			t.Errorf("sent %v", got)
		}
	})
}

func TestAQueueThatIsNeverEmptyDoesNotGrow(t *testing.T) {
	var q queue
	q.push(&plain{id: 0})
	for i := range uint64(10000) {
		q.push(&plain{id: i + 1})
		if got := q.pop().(*plain).id; got != i {
			t.Fatalf("%d came instead of %d", got, i)
		}
	}
	if cap(q.list) > 16 {
		t.Errorf("it has room for %d", cap(q.list))
	}
	if q.pop() == nil || q.pop() != nil {
		t.Error("one was left")
	}
}

func TestBuffersHaveTheSizeThatIsAskedFor(t *testing.T) {
	for _, n := range []int{0, 1, minBuffer, minBuffer + 1, 100 << 10, MaxData - 1, MaxData} {
		b := newBuffer(n)
		if len(b.data) != n || n > minBuffer && cap(b.data) >= 2*n {
			t.Errorf("%d bytes: %d of %d", n, len(b.data), cap(b.data))
		}
		b.free()
	}
}
