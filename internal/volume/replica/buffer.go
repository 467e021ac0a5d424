package replica

import (
	"math/bits"
	"sync"
)

// Sizes of pooled buffers are powers of two from minBuffer on.
const minBuffer = 4 << 10

var pools [14]sync.Pool // up to MaxData

// buffer is memory that is used again. Its content is whatever was in it.
type buffer struct {
	data []byte
	pool *sync.Pool
}

// newBuffer returns a buffer of n bytes, at most MaxData.
func newBuffer(n int) *buffer {
	class := 0
	if n > minBuffer {
		class = bits.Len(uint(n-1)) - bits.Len(uint(minBuffer-1))
	}
	b, ok := pools[class].Get().(*buffer)
	if !ok {
		b = &buffer{data: make([]byte, minBuffer<<class), pool: &pools[class]}
	}
	b.data = b.data[:n]
	return b
}

// free lets the buffer be used again. Nil is a buffer without memory.
func (b *buffer) free() {
	if b != nil {
		b.data = b.data[:cap(b.data)]
		b.pool.Put(b)
	}
}
