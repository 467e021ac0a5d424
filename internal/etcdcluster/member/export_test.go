package member

// Orphan lets the child believe that its node is gone.
func (c *Child) Orphan() { _ = c.stdin.Close() }
