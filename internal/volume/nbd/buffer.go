package nbd

import (
	"math/bits"
	"sync"
)

// Payloads are kept in buffers of a power of two, from 4 KiB to the longest payload, and used again.
const (
	minBufferBits = 12
	maxBufferBits = 25 // maxPayload
)

var bufferPools [maxBufferBits - minBufferBits + 1]sync.Pool

// buffer is the payload of a request or a reply.
type buffer struct {
	bytes []byte
	class int
}

// newBuffer returns a buffer of a length up to maxPayload. Its content is undefined.
func newBuffer(length int) *buffer {
	class := max(bits.Len(uint(max(length, 1)-1)), minBufferBits) - minBufferBits
	b, ok := bufferPools[class].Get().(*buffer)
	if !ok {
		b = &buffer{bytes: make([]byte, 1<<(class+minBufferBits)), class: class}
	}
	b.bytes = b.bytes[:length]
	return b
}

// release gives the buffer back. Nobody may use its bytes afterwards.
func (b *buffer) release() {
	b.bytes = b.bytes[:cap(b.bytes)]
	bufferPools[b.class].Put(b)
}
