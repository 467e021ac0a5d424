package store

import (
	"context"
	"fmt"

	"github.com/ebb-dev/ebb/internal/volume/block"
)

// connection is a replica as one connection of an engine sees it. Only the one that opened the replica last may use it: what is still under way on
// a connection that the engine gave up has the same generation as what it asks for on the next one, and must not have an effect after that.
type connection struct {
	*Store
}

var _ block.Replica = (*connection)(nil)

// Connect returns the replica for one connection of an engine.
func (s *Store) Connect() block.Replica { return &connection{s} }

// use lets a call in; the caller leaves through c.users.RUnlock.
func (c *connection) use(generation int64) error {
	c.users.RLock()
	err := c.mine(generation)
	if err != nil {
		c.users.RUnlock()
	}
	return err
}

// mine fails if another connection has opened the replica since.
func (c *connection) mine(generation int64) error {
	if c.user.Load() == c {
		return nil
	}
	if err := c.check(generation); err != nil {
		return err
	}
	return fmt.Errorf("replica %s: %w: this connection has not opened it, or another one has since", c.id.Replica, block.ErrUnreachable)
}

// Open implements block.Replica. It waits for calls of the connection before.
func (c *connection) Open(ctx context.Context, generation int64) (block.State, error) {
	c.users.Lock()
	defer c.users.Unlock()
	state, err := c.Store.Open(ctx, generation)
	if err == nil {
		c.user.Store(c)
	}
	return state, err
}

// Commit implements block.Replica.
func (c *connection) Commit(ctx context.Context, m block.Membership) error {
	if err := c.use(m.Generation); err != nil {
		return err
	}
	defer c.users.RUnlock()
	return c.Store.Commit(ctx, m)
}

// ReadAt implements block.Replica.
func (c *connection) ReadAt(ctx context.Context, generation int64, p []byte, off int64) error {
	if err := c.use(generation); err != nil {
		return err
	}
	defer c.users.RUnlock()
	return c.Store.ReadAt(ctx, generation, p, off)
}

// WriteAt implements block.Replica.
func (c *connection) WriteAt(ctx context.Context, generation int64, p []byte, off int64, fua bool) error {
	if err := c.use(generation); err != nil {
		return err
	}
	defer c.users.RUnlock()
	return c.Store.WriteAt(ctx, generation, p, off, fua)
}

// Zero implements block.Replica.
func (c *connection) Zero(ctx context.Context, generation int64, off, length int64, z block.Zero) error {
	if err := c.use(generation); err != nil {
		return err
	}
	defer c.users.RUnlock()
	return c.Store.Zero(ctx, generation, off, length, z)
}

// Flush implements block.Replica.
func (c *connection) Flush(ctx context.Context, generation int64) error {
	if err := c.use(generation); err != nil {
		return err
	}
	defer c.users.RUnlock()
	return c.Store.Flush(ctx, generation)
}

// Extents implements block.Replica.
func (c *connection) Extents(ctx context.Context, generation int64, off, length int64) ([]block.Extent, error) {
	if err := c.use(generation); err != nil {
		return nil, err
	}
	defer c.users.RUnlock()
	return c.Store.Extents(ctx, generation, off, length)
}

// Intent implements block.Replica.
func (c *connection) Intent(ctx context.Context, generation int64) (block.Bitmap, error) {
	if err := c.use(generation); err != nil {
		return nil, err
	}
	defer c.users.RUnlock()
	return c.Store.Intent(ctx, generation)
}

// Missed implements block.Replica.
func (c *connection) Missed(ctx context.Context, generation int64, replica string, memberAt int64) (block.Bitmap, bool, error) {
	if err := c.use(generation); err != nil {
		return nil, false, err
	}
	defer c.users.RUnlock()
	return c.Store.Missed(ctx, generation, replica, memberAt)
}

// Clear implements block.Replica.
func (c *connection) Clear(ctx context.Context, generation int64, chunks block.Bitmap) error {
	if err := c.use(generation); err != nil {
		return err
	}
	defer c.users.RUnlock()
	return c.Store.Clear(ctx, generation, chunks)
}

// Ping implements block.Replica. It never waits for the disk, nor for other calls.
func (c *connection) Ping(ctx context.Context, generation int64) error {
	if err := c.mine(generation); err != nil {
		return err
	}
	return c.Store.Ping(ctx, generation)
}

// Close implements block.Replica. The replica stays open.
func (c *connection) Close() error { return nil }
