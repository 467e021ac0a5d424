package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ebb-dev/ebb/internal/volume/block"
)

// operations are one call of every operation, by name.
func operations(c block.Replica) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"open":    func(ctx context.Context) error { _, err := c.Open(ctx, 3); return err },
		"commit":  func(ctx context.Context) error { return c.Commit(ctx, block.Membership{Generation: 3}) },
		"read":    func(ctx context.Context) error { return c.ReadAt(ctx, 3, make([]byte, 512), 0) },
		"write":   func(ctx context.Context) error { return c.WriteAt(ctx, 3, make([]byte, 512), 0, false) },
		"zero":    func(ctx context.Context) error { return c.Zero(ctx, 3, 0, 512, block.Zero{}) },
		"flush":   func(ctx context.Context) error { return c.Flush(ctx, 3) },
		"extents": func(ctx context.Context) error { _, err := c.Extents(ctx, 3, 0, 512); return err },
		"intent":  func(ctx context.Context) error { _, err := c.Intent(ctx, 3); return err },
		"missed":  func(ctx context.Context) error { _, _, err := c.Missed(ctx, 3, "r2", 0); return err },
		"clear":   func(ctx context.Context) error { return c.Clear(ctx, 3, block.NewBitmap(64)) },
		"ping":    func(ctx context.Context) error { return c.Ping(ctx, 3) },
	}
}

func TestEveryOperationReachesTheReplicaAndItsAnswerComesBack(t *testing.T) {
	overAll(t, 2<<20, func(t *testing.T, m *memory, c *Client) {
		ctx := within(t, 20*time.Second)
		m.state = block.State{Generation: 6, Members: []string{"r1", "r2"}, Away: []string{"r3"}, Syncing: true, MemberAt: 5, BootID: "a", CurrentBootID: "b", Clean: true}
		m.extents = []block.Extent{{Length: 512}, {Length: 1 << 20, Hole: true}, {Length: 3}}
		m.intent, m.missed, m.known = block.Bitmap{1, 1 << 63, 0}, block.Bitmap{5}, true
		state, err := c.Open(ctx, 7)
		if err != nil || !reflect.DeepEqual(state, m.state) {
			t.Errorf("opened %+v, %v", state, err)
		}
		members := block.Membership{Generation: 8, Members: []string{"r1"}, Away: []string{"r2"}, Syncing: true}
		if err := c.Commit(ctx, members); err != nil {
			t.Error(err)
		}
		want := pattern(make([]byte, 1<<20+5), 1)
		if err := c.WriteAt(ctx, 8, want, 4096, true); err != nil {
			t.Error(err)
		}
		got := make([]byte, len(want))
		if err := c.ReadAt(ctx, 8, got, 4096); err != nil || !bytes.Equal(got, want) {
			t.Errorf("read something else: %v", err)
		}
		if err := c.Zero(ctx, 8, 5, 1<<40, block.Zero{Hole: true}); err != nil {
			t.Error(err)
		}
		if err := c.Zero(ctx, 8, 6, 7, block.Zero{FUA: true}); err != nil {
			t.Error(err)
		}
		if err := c.Flush(ctx, 8); err != nil {
			t.Error(err)
		}
		if list, err := c.Extents(ctx, 8, 9, 1<<20+515); err != nil || !slices.Equal(list, m.extents) {
			t.Errorf("extents %v, %v", list, err)
		}
		if b, err := c.Intent(ctx, 8); err != nil || !slices.Equal(b, m.intent) {
			t.Errorf("intent %v, %v", b, err)
		}
		if b, ok, err := c.Missed(ctx, 8, "r2", 5); err != nil || !ok || !slices.Equal(b, m.missed) {
			t.Errorf("missed %v, %v, %v", b, ok, err)
		}
		m.known = false
		if _, ok, err := c.Missed(ctx, 8, "r9", 0); err != nil || ok {
			t.Errorf("missed is known: %v, %v", ok, err)
		}
		if err := c.Clear(ctx, 8, block.Bitmap{9, 0}); err != nil {
			t.Error(err)
		}
		if committed, cleared := m.written(); !reflect.DeepEqual(committed, members) || !slices.Equal(cleared, block.Bitmap{9, 0}) {
			t.Errorf("committed %+v, cleared %v", committed, cleared)
		}
		if err := c.Ping(ctx, 8); err != nil {
			t.Error(err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		calls := []string{
			"open 7", "commit 8", "write 8 4096+1048581 true", "read 8 4096+1048581", "zero 8 5+1099511627776 {true false}", "zero 8 6+7 {false true}",
			"flush 8", "extents 8 9+1049091", "intent 8", "missed 8 r2 of 5", "missed 8 r9 of 0", "clear 8", "ping 8",
		}
		if got := m.seen(); !slices.Equal(got, calls) {
			t.Errorf("asked\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(calls, "\n"))
		}
	})
}

func TestEveryErrorComesBackFromEveryOperation(t *testing.T) {
	overAll(t, 4096, func(t *testing.T, m *memory, c *Client) {
		all := []error{block.ErrStale, block.ErrNoSpace, block.ErrDamaged, block.ErrMissing, block.ErrForeign, block.ErrClosed}
		for _, sentinel := range append(all, errors.New("the disk caught fire")) {
			m.setErr(fmt.Errorf("sector 5: %w", sentinel))
			for name, call := range operations(c) {
				err := call(within(t, 20*time.Second))
				if err == nil || err.Error() != "replica "+testReplica+": sector 5: "+sentinel.Error() {
					t.Errorf("%s: %v, want %v", name, err, sentinel)
				}
				for _, e := range append(all, block.ErrUnreachable) {
					if errors.Is(err, e) != (e == sentinel) {
						t.Errorf("%s: %v is %v: %v", name, err, e, errors.Is(err, e))
					}
				}
			}
		}
		m.setErr(errors.New(strings.Repeat("ä", maxText)))
		if err := c.Flush(within(t, 20*time.Second), 1); err == nil || len(err.Error()) > maxText+100 || errors.Is(err, block.ErrUnreachable) {
			t.Errorf("a long message: %v", err)
		}
		m.setErr(nil)
		if err := c.Flush(within(t, 20*time.Second), 1); err != nil {
			t.Errorf("after errors: %v", err)
		}
	})
}

func TestWhoMayNotOpenAReplicaIsToldWhy(t *testing.T) {
	for name, refusal := range map[string]error{"missing": block.ErrMissing, "not allowed": errors.New("node n1 has no engine of this volume")} {
		t.Run(name, func(t *testing.T) {
			mine, theirs := net.Pipe()
			served := make(chan error, 1)
			go func() {
				served <- Serve(context.Background(), theirs, "n1", func(context.Context, string, string, string, string) (block.Replica, error) { return nil, refusal })
			}()
			_, err := NewClient(context.Background(), mine, testVolume, testUID, testReplica)
			if err == nil || err.Error() != "replica orders-r1: "+refusal.Error() || errors.Is(err, block.ErrMissing) != (refusal == block.ErrMissing) || errors.Is(err, block.ErrUnreachable) {
				t.Errorf("refused with %v", err)
			}
			if err := <-served; !errors.Is(err, refusal) {
				t.Errorf("served %v", err)
			}
		})
	}
}

func TestAnOpeningThatIsNotAnsweredEnds(t *testing.T) {
	t.Run("with its context", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			mine, theirs := net.Pipe()
			defer theirs.Close()
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_, err := NewClient(ctx, mine, testVolume, testUID, testReplica)
			if !errors.Is(err, block.ErrUnreachable) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v", err)
			}
		})
	})
	t.Run("after a while", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			mine, theirs := net.Pipe()
			defer theirs.Close()
			if _, err := NewClient(context.Background(), mine, testVolume, testUID, testReplica); !errors.Is(err, block.ErrUnreachable) {
				t.Errorf("%v", err)
			}
		})
	})
	t.Run("at the server", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			mine, theirs := net.Pipe()
			defer mine.Close()
			if err := Serve(context.Background(), theirs, "n1", openAs(newMemory(1))); err == nil {
				t.Error("no error")
			}
		})
	})
}

func TestAnswersComeInAnyOrder(t *testing.T) {
	const n = 64
	m := &held{memory: newMemory(n * 4096), gates: make([]chan struct{}, n)}
	pattern(m.data, 3)
	for i := range m.gates {
		m.gates[i] = make(chan struct{})
	}
	m.waiting.Add(n)
	c := newClient(t, overTLS(t, m)())
	var ended [n]chan error
	for i := range n {
		ended[i] = make(chan error, 1)
		go func() {
			p := make([]byte, 4096)
			err := c.ReadAt(context.Background(), 1, p, int64(i)*4096)
			if err == nil && !bytes.Equal(p, m.data[i*4096:(i+1)*4096]) {
				err = errors.New("read something else")
			}
			ended[i] <- err
		}()
	}
	m.waiting.Wait() // all are under way at once
	for _, i := range rand.Perm(n) {
		close(m.gates[i])
		if err := <-ended[i]; err != nil {
			t.Error(err)
		}
	}
}

// held holds reads up, each at its own gate.
type held struct {
	*memory
	gates   []chan struct{}
	waiting sync.WaitGroup
}

func (h *held) ReadAt(ctx context.Context, generation int64, p []byte, off int64) error {
	h.waiting.Done()
	<-h.gates[off/4096]
	return h.memory.ReadAt(ctx, generation, p, off)
}

// block makes every call but pings wait for the returned function.
func (m *memory) block() (release func()) {
	gate := make(chan struct{})
	m.hold = func(context.Context, string) { <-gate }
	return sync.OnceFunc(func() { close(gate) })
}

func TestAPingIsAnsweredWhileTheDiskHangsAndTheWindowIsFull(t *testing.T) {
	overAll(t, 64<<10, func(t *testing.T, m *memory, c *Client) {
		release := m.block()
		defer release()
		var all sync.WaitGroup
		for range 2 * window / requestCost {
			all.Go(func() {
				if err := c.WriteAt(context.Background(), 1, make([]byte, 4096), 0, false); err != nil {
					t.Error(err)
				}
			})
		}
		for i := range 50 {
			if err := c.Ping(within(t, 20*time.Second), int64(i)); err != nil {
				t.Fatal(err)
			}
		}
		release()
		all.Wait()
	})
}

func TestWritesThatWereStartedEndInAnyOrder(t *testing.T) {
	overAll(t, 1<<20, func(t *testing.T, m *memory, c *Client) {
		var all []block.Pending
		for i := range 64 {
			p := pattern(make([]byte, 8<<10), i)
			all = append(all, c.StartWriteAt(1, p, int64(i)*8<<10, false, block.Checksum(p)))
		}
		for i := len(all) - 1; i >= 0; i-- {
			if err := all[i].Wait(); err != nil {
				t.Fatal(err)
			}
		}
		got := make([]byte, 8<<10)
		for i := range 64 {
			if err := c.ReadAt(t.Context(), 1, got, int64(i)*8<<10); err != nil || !bytes.Equal(got, pattern(make([]byte, 8<<10), i)) {
				t.Fatalf("write %d: %v", i, err)
			}
		}
		m.setErr(block.ErrNoSpace)
		if err := c.StartWriteAt(1, got, 0, false, block.Checksum(got)).Wait(); !errors.Is(err, block.ErrNoSpace) {
			t.Error(err)
		}
		_ = c.Close() // its calls fail from now on
		if err := c.StartWriteAt(1, got, 0, false, block.Checksum(got)).Wait(); !errors.Is(err, block.ErrUnreachable) {
			t.Error(err)
		}
	})
}

// A server whose reader is stuck with a small write answers pings, and other writes.
func TestAReaderThatIsStuckIsReplaced(t *testing.T) {
	overAll(t, 64<<10, func(t *testing.T, m *memory, c *Client) {
		p := make([]byte, 512)
		if err := c.WriteAt(t.Context(), 1, p, 0, false); err != nil { // fast, so that the reader takes the next one itself
			t.Fatal(err)
		}
		release := m.block()
		defer release()
		stuck := c.StartWriteAt(1, p, 0, false, block.Checksum(p))
		for i := range 10 {
			if err := c.Ping(within(t, 20*time.Second), int64(i)); err != nil {
				t.Fatal(err)
			}
		}
		release()
		if err := stuck.Wait(); err != nil {
			t.Error(err)
		}
	})
}

func TestACallEndsWithItsContextAndTheConnectionGoesOn(t *testing.T) {
	overAll(t, 64<<10, func(t *testing.T, m *memory, c *Client) {
		release := m.block()
		defer release()
		for name, call := range operations(c) {
			if name == "ping" {
				continue
			}
			if err := call(within(t, 10*time.Millisecond)); !errors.Is(err, block.ErrUnreachable) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", name, err)
			}
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := c.Flush(ctx, 1); !errors.Is(err, block.ErrUnreachable) || !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled before: %v", err)
		}
		release()
		if err := c.Flush(within(t, 20*time.Second), 1); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
}

func TestTheBufferOfACallThatWasGivenUpIsNotUsedAnyMore(t *testing.T) {
	overAll(t, 1<<20, func(t *testing.T, m *memory, c *Client) {
		pattern(m.data, 1)
		var all sync.WaitGroup
		for i := range 8 {
			all.Go(func() {
				p := make([]byte, 128<<10)
				for j := range 30 {
					ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.IntN(1500))*time.Microsecond)
					var err error
					if (i+j)%2 == 0 {
						err = c.ReadAt(ctx, 1, p, 0)
					} else {
						err = c.WriteAt(ctx, 1, p, 512<<10, false)
					}
					cancel()
					if err != nil && !errors.Is(err, context.DeadlineExceeded) {
						t.Error(err)
					}
					pattern(p, j) // the race detector sees who else uses it
				}
			})
		}
		all.Wait()
		if err := c.Ping(within(t, 20*time.Second), 1); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
}

// stuck serves a hello and then reads nothing any more.
func stuck(t *testing.T) *Client {
	mine, theirs := net.Pipe()
	welcomed := make(chan error, 1)
	go func() {
		p := make([]byte, 4096)
		_, err := theirs.Read(p)
		if err == nil {
			err = writeFrame(theirs, header{op: opHello, flags: flagAnswer}, encodeJSON(welcome{Window: window}))
		}
		welcomed <- err
	}()
	c := newClient(t, mine)
	if err := <-welcomed; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = theirs.Close() })
	return c
}

func TestACallThatIsGivenUpHalfWrittenEndsTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := stuck(t)
		others := make(chan error, 1)
		go func() {
			synctest.Wait()
			others <- c.Flush(context.Background(), 1)
		}()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		began := time.Now()
		if err := c.WriteAt(ctx, 1, make([]byte, 1<<20), 0, false); !errors.Is(err, block.ErrUnreachable) {
			t.Error(err)
		}
		if took := time.Since(began); took != time.Second+cancelGrace {
			t.Errorf("took %v", took)
		}
		if err := <-others; !errors.Is(err, block.ErrUnreachable) {
			t.Error(err)
		}
	})
}

func TestARequestThatWasNotSentYetIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := stuck(t)
		go func() { _ = c.WriteAt(context.Background(), 1, make([]byte, 1<<20), 0, false) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		began := time.Now()
		if err := c.WriteAt(ctx, 1, make([]byte, 1<<20), 0, false); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.calls) != 1 || c.err != nil {
			t.Errorf("%d calls are left, %v", len(c.calls), c.err)
		}
	})
}

func TestAConnectionThatTakesNothingIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := stuck(t)
		began := time.Now()
		if err := c.Flush(context.Background(), 1); !errors.Is(err, block.ErrUnreachable) || time.Since(began) != writeTimeout {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

func TestALostConnectionFailsEveryCall(t *testing.T) {
	overAll(t, 4096, func(t *testing.T, m *memory, c *Client) {
		release := m.block()
		defer release()
		var all sync.WaitGroup
		for name, call := range operations(c) {
			if name == "ping" {
				continue
			}
			for range 2 * window / requestCost / 10 { // some wait for room in the window
				all.Go(func() {
					if err := call(context.Background()); !errors.Is(err, block.ErrUnreachable) {
						t.Errorf("%s: %v", name, err)
					}
				})
			}
		}
		for range 3 {
			if err := c.Ping(context.Background(), 1); err != nil {
				t.Error(err)
			}
		}
		abort(c.conn)
		all.Wait()
		for name, call := range operations(c) {
			if err := call(context.Background()); !errors.Is(err, block.ErrUnreachable) {
				t.Errorf("%s afterwards: %v", name, err)
			}
		}
		release()
	})
}

func TestCloseFailsEveryCallAndLeavesTheReplicaOpen(t *testing.T) {
	overAll(t, 4096, func(t *testing.T, m *memory, c *Client) {
		release := m.block()
		defer release()
		ended := make(chan error, 1)
		go func() { ended <- c.Flush(context.Background(), 1) }()
		if err := c.Ping(context.Background(), 1); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := <-ended; !errors.Is(err, block.ErrUnreachable) {
			t.Error(err)
		}
		release()
		if slices.Contains(m.seen(), "close") {
			t.Error("the replica was closed")
		}
	})
}

func TestTheServerEndsWithItsContextAndWaitsForRequests(t *testing.T) {
	m := newMemory(4096)
	began := make(chan struct{})
	var over atomic.Bool
	m.hold = func(ctx context.Context, _ string) {
		close(began)
		<-ctx.Done()
		time.Sleep(20 * time.Millisecond)
		over.Store(true)
	}
	mine, theirs := net.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, theirs, "n1", openAs(m)) }()
	c := newClient(t, mine)
	ended := make(chan error, 1)
	go func() { ended <- c.Flush(context.Background(), 1) }()
	<-began
	cancel()
	if err := <-served; err != nil || !over.Load() {
		t.Errorf("served %v, over %v", err, over.Load())
	}
	if err := <-ended; !errors.Is(err, block.ErrUnreachable) {
		t.Error(err)
	}
}

func TestAClientThatClosesEndsTheServerWithoutAnError(t *testing.T) {
	conn, served := pipe(t, newMemory(1))
	c := newClient(t, conn)
	_ = c.Close()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestZerosAreNotSent(t *testing.T) {
	m := newMemory(1 << 20)
	conn, _ := pipe(t, m)
	counting := &counter{Conn: conn}
	c := newClient(t, counting)
	before := counting.read.Load()
	p := pattern(make([]byte, 1<<20), 1)
	if err := c.ReadAt(context.Background(), 1, p, 0); err != nil || !zeros(p) {
		t.Errorf("read: %v, zeros: %v", err, zeros(p))
	}
	if n := counting.read.Load() - before; n > headerSize {
		t.Errorf("%d bytes were sent", n)
	}
	m.data[1<<20-1] = 1
	if err := c.ReadAt(context.Background(), 1, p, 0); err != nil || !bytes.Equal(p, m.data) {
		t.Errorf("the last byte got lost: %v", err)
	}
}

type counter struct {
	net.Conn
	read atomic.Int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.read.Add(int64(n))
	return n, err
}

func TestExtentsOfALargeVolumeAreAskedForInParts(t *testing.T) {
	m := newMemory(1)
	conn, _ := pipe(t, m)
	c := newClient(t, conn)
	list, err := c.Extents(context.Background(), 1, 512, 2*extentsRange+7)
	if err != nil || !slices.Equal(list, []block.Extent{{Length: 2*extentsRange + 7}}) {
		t.Errorf("%v, %v", list, err)
	}
	if want := []string{"extents 1 512+1073741824", "extents 1 1073742336+1073741824", "extents 1 2147484160+7"}; !slices.Equal(m.seen(), want) {
		t.Errorf("asked %q", m.seen())
	}
	for name, wrong := range map[string][]block.Extent{"short": {{Length: 6}}, "long": {{Length: 8}}, "empty": {{Length: 7}, {Length: 0}}} {
		m.extents = wrong
		if _, err := c.Extents(context.Background(), 1, 0, 7); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestALimitIsAnErrorOfTheCallAlone(t *testing.T) {
	m := newMemory(MaxData)
	conn, _ := pipe(t, m)
	c := newClient(t, conn)
	ctx := within(t, 30*time.Second)
	for name, call := range map[string]func() error{
		"read":   func() error { return c.ReadAt(ctx, 1, make([]byte, MaxData+1), 0) },
		"write":  func() error { return c.WriteAt(ctx, 1, make([]byte, MaxData+1), 0, false) },
		"clear":  func() error { return c.Clear(ctx, 1, make(block.Bitmap, MaxMetadata/8+1)) },
		"missed": func() error { _, _, err := c.Missed(ctx, 1, strings.Repeat("r", maxText+1), 0); return err },
		"intent": func() error { m.intent = make(block.Bitmap, MaxMetadata/8+1); _, err := c.Intent(ctx, 1); return err },
		"commit": func() error {
			return c.Commit(ctx, block.Membership{Members: []string{strings.Repeat("r", MaxMetadata)}})
		},
	} {
		if err := call(); err == nil || errors.Is(err, block.ErrUnreachable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	want, got := pattern(make([]byte, MaxData), 1), make([]byte, MaxData)
	if err := c.WriteAt(ctx, 1, want, 0, false); err != nil {
		t.Error(err)
	}
	if err := c.ReadAt(ctx, 1, got, 0); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the largest read: %v", err)
	}
	m.intent = make(block.Bitmap, MaxMetadata/8)
	if b, err := c.Intent(ctx, 1); err != nil || len(b) != len(m.intent) {
		t.Errorf("the largest bitmap: %v", err)
	}
	if _, err := NewClient(ctx, &net.TCPConn{}, strings.Repeat("v", maxText), "", ""); err == nil {
		t.Error("the longest name was sent")
	}
}

func TestManyClientsAndSizesReadWhatTheyWrote(t *testing.T) {
	const slots, slotSize = 16, 256 << 10
	m := newMemory(slots * slotSize)
	connect := overTLS(t, m)
	var all sync.WaitGroup
	for k := range 2 {
		c := newClient(t, connect())
		for i := range slots / 2 {
			all.Go(func() {
				base := int64(k*slots/2+i) * slotSize
				r := rand.New(rand.NewPCG(uint64(k), uint64(i)))
				for j := range 20 {
					n := []int{1, 512, 4096, copyLimit, copyLimit + 1, batchSize, 200000}[r.IntN(7)]
					off := base + int64(r.IntN(slotSize-n+1))
					want := pattern(make([]byte, n), j)
					if err := c.WriteAt(context.Background(), 1, want, off, false); err != nil {
						t.Error(err)
					}
					got := make([]byte, n)
					if err := c.ReadAt(context.Background(), 1, got, off); err != nil || !bytes.Equal(got, want) {
						t.Errorf("%d bytes at %d: %v", n, off, err)
					}
				}
			})
		}
	}
	all.Wait()
}

func TestAHostileClientIsBounded(t *testing.T) {
	m := newMemory(4096)
	var now, most atomic.Int64
	gate := make(chan struct{})
	m.hold = func(context.Context, string) {
		n := now.Add(1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		<-gate
		now.Add(-1)
	}
	conn, _ := pipe(t, m)
	writeHello(t, conn)
	const asked = 3 * window / requestCost
	go func() {
		for i := range uint64(asked) {
			if writeFrame(conn, header{op: opFlush, id: i}, nil) != nil {
				return
			}
		}
	}()
	for deadline := time.Now().Add(20 * time.Second); now.Load() < window/requestCost; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d requests are under way", now.Load())
		}
	}
	close(gate)
	if _, err := io.CopyN(io.Discard, conn, asked*headerSize); err != nil {
		t.Error(err)
	}
	if n := most.Load(); n > window/requestCost {
		t.Errorf("%d requests were under way at once", n)
	}
	_ = conn.Close()
}
