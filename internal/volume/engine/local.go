package engine

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/ebb-dev/ebb/internal/volume/block"
)

// localReplica is a replica in this process. A disk may never answer: calls that write or sync end with their context, or when the engine closes
// the replica, as those to another node do. What was asked for may still happen; the store lets nobody open the replica anew before that
// is over. Only reads of clients wait for the disk, because their buffers belong to the clients.
type localReplica struct {
	block.Replica
	name   string
	hung   *atomic.Int64 // calls that were given up and have not returned
	closed chan struct{}
	once   sync.Once
}

var _ block.Starter = (*localReplica)(nil)

// outcome is what a call returned.
type outcome[T any] struct {
	value T
	err   error
}

// started is a call of a local replica that was begun.
type started[T any] struct {
	replica *localReplica
	done    chan outcome[T]
}

// start begins a call.
func start[T any](l *localReplica, do func() (T, error)) started[T] {
	s := started[T]{l, make(chan outcome[T], 1)}
	go func() {
		value, err := do()
		s.done <- outcome[T]{value, err}
	}()
	return s
}

// await waits until the call ended, or gives it up.
func (s started[T]) await(ctx context.Context) (T, error) {
	select {
	case o := <-s.done:
		return o.value, o.err
	case <-ctx.Done():
	case <-s.replica.closed:
	}
	select {
	case o := <-s.done: // it ended at the same moment
		return o.value, o.err
	default:
	}
	s.replica.hung.Add(1)
	go func() {
		<-s.done
		s.replica.hung.Add(-1)
	}()
	var none T
	return none, fmt.Errorf("replica %s: %w: its disk has not answered", s.replica.name, block.ErrUnreachable)
}

// Wait implements block.Pending.
func (s started[T]) Wait() error {
	_, err := s.await(context.Background())
	return err
}

// do makes a call that returns nothing else.
func (l *localReplica) do(ctx context.Context, call func() error) error {
	_, err := start(l, func() (struct{}, error) { return struct{}{}, call() }).await(ctx)
	return err
}

// copies of what is being written, which a call that was given up keeps.
var copies sync.Pool

func copyOf(p []byte) *[]byte {
	if b, ok := copies.Get().(*[]byte); ok && cap(*b) >= len(p) {
		*b = append((*b)[:0], p...)
		return b
	}
	b := append([]byte(nil), p...)
	return &b
}

// StartWriteAt implements block.Starter.
func (l *localReplica) StartWriteAt(generation int64, p []byte, off int64, fua bool, _ uint32) block.Pending {
	return l.startWrite(context.Background(), generation, p, off, fua)
}

func (l *localReplica) startWrite(ctx context.Context, generation int64, p []byte, off int64, fua bool) started[struct{}] {
	own := copyOf(p)
	return start(l, func() (struct{}, error) {
		err := l.Replica.WriteAt(ctx, generation, *own, off, fua)
		copies.Put(own)
		return struct{}{}, err
	})
}

// WriteAt implements block.Replica.
func (l *localReplica) WriteAt(ctx context.Context, generation int64, p []byte, off int64, fua bool) error {
	_, err := l.startWrite(ctx, generation, p, off, fua).await(ctx)
	return err
}

// Zero implements block.Replica.
func (l *localReplica) Zero(ctx context.Context, generation int64, off, length int64, z block.Zero) error {
	return l.do(ctx, func() error { return l.Replica.Zero(ctx, generation, off, length, z) })
}

// Extents implements block.Replica.
func (l *localReplica) Extents(ctx context.Context, generation int64, off, length int64) ([]block.Extent, error) {
	return start(l, func() ([]block.Extent, error) { return l.Replica.Extents(ctx, generation, off, length) }).await(ctx)
}

// Intent implements block.Replica.
func (l *localReplica) Intent(ctx context.Context, generation int64) (block.Bitmap, error) {
	return start(l, func() (block.Bitmap, error) { return l.Replica.Intent(ctx, generation) }).await(ctx)
}

// readAside is ReadAt for who gives it up like a write. That costs a copy.
func (l *localReplica) readAside(ctx context.Context, generation int64, p []byte, off int64) error {
	own := copyOf(p)
	read := start(l, func() (bool, error) { return true, l.Replica.ReadAt(ctx, generation, *own, off) })
	ended, err := read.await(ctx)
	if ended { // otherwise the buffer is still used
		copy(p, *own)
		copies.Put(own)
	}
	return err
}

// Flush implements block.Replica.
func (l *localReplica) Flush(ctx context.Context, generation int64) error {
	return l.do(ctx, func() error { return l.Replica.Flush(ctx, generation) })
}

// Open implements block.Replica.
func (l *localReplica) Open(ctx context.Context, generation int64) (block.State, error) {
	if n := l.hung.Load(); n > 0 {
		return block.State{}, fmt.Errorf("replica %s: %w: its disk has not answered %d earlier calls", l.name, block.ErrUnreachable, n)
	}
	return start(l, func() (block.State, error) { return l.Replica.Open(ctx, generation) }).await(ctx)
}

// Commit implements block.Replica.
func (l *localReplica) Commit(ctx context.Context, m block.Membership) error {
	return l.do(ctx, func() error { return l.Replica.Commit(ctx, m) })
}

// Clear implements block.Replica.
func (l *localReplica) Clear(ctx context.Context, generation int64, chunks block.Bitmap) error {
	return l.do(ctx, func() error { return l.Replica.Clear(ctx, generation, chunks) })
}

// Close implements block.Replica.
func (l *localReplica) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Replica.Close()
}

// dial reaches a replica.
func (e *Engine) dial(ctx context.Context, name string) (block.Replica, bool, error) {
	r, local, err := e.opts.Dial(ctx, name)
	if err != nil || !local {
		return r, local, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.hung[name] == nil {
		e.hung[name] = &atomic.Int64{}
	}
	return &localReplica{Replica: r, name: name, hung: e.hung[name], closed: make(chan struct{})}, true, nil
}
