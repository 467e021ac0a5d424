package store

import (
	"encoding/binary"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/ebb-dev/ebb/internal/volume/block"
)

// bits are the bitmaps of a replica: in slot 0 the intent, in the others what replicas that are away miss. They are changed by whoever has
// the turn of the group.
type bits struct {
	meta File
	size int64
	// sync makes the metadata durable.
	sync func() error

	group group
	// waiting are the chunks that the next batch marks.
	waitingMu sync.Mutex
	waiting   []chunkRange

	mu sync.RWMutex
	// maps by slot; nil if nobody uses it.
	maps [1 + maxAway]block.Bitmap
	// slots of the replicas that are away; changed only while there is no I/O.
	slots []int
	// marked are the chunks that are durably in the intent bitmap and in those of all that are away.
	marked []atomic.Uint64
}

// chunkRange are the chunks from first to last.
type chunkRange struct{ first, last int64 }

const wordsPerSector = sectorSize / 8

// chunksOf are the chunks that a range of bytes touches.
func chunksOf(off, length int64) chunkRange {
	return chunkRange{first: off / block.ChunkSize, last: (off + length - 1) / block.ChunkSize}
}

// words calls a function for every word of a bitmap that the chunks are in, with their bits.
func (r chunkRange) words(f func(i int64, mask uint64)) {
	for i := r.first / 64; i <= r.last/64; i++ {
		mask := ^uint64(0)
		if i == r.first/64 {
			mask &= ^uint64(0) << (r.first % 64)
		}
		if i == r.last/64 {
			mask &= ^uint64(0) >> (63 - r.last%64)
		}
		f(i, mask)
	}
}

// load reads the bitmaps of the replicas that are away, and the intent bitmap.
func (b *bits) load(away []int) error {
	for _, slot := range append([]int{0}, away...) {
		buf := make([]byte, bitmapSize(b.size))
		if _, err := b.meta.ReadAt(buf, bitmapAt(b.size, slot)); err != nil {
			return err
		}
		m := block.NewBitmap(block.Chunks(b.size))
		for i := range m {
			m[i] = binary.LittleEndian.Uint64(buf[8*i:])
		}
		b.maps[slot] = m
	}
	b.marked = make([]atomic.Uint64, len(b.maps[0]))
	return nil
}

// setAway says which bitmaps count. There is no I/O meanwhile.
func (b *bits) setAway(slots []int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.slots = slots
	for slot := 1; slot <= maxAway; slot++ {
		if !slices.Contains(slots, slot) {
			b.maps[slot] = nil
		}
	}
	for i := range b.marked {
		word := b.maps[0][i]
		for _, slot := range slots {
			word &= b.maps[slot][i]
		}
		b.marked[i].Store(word)
	}
}

// areMarked reports whether all of the chunks are marked durably.
func (b *bits) areMarked(r chunkRange) bool {
	for i := r.first; i <= r.last; i++ {
		if b.marked[i/64].Load()&(1<<(i%64)) == 0 {
			return false
		}
	}
	return true
}

// mark marks chunks durably. Concurrent calls share a sync.
func (b *bits) mark(r chunkRange) error {
	b.waitingMu.Lock()
	b.waiting = append(b.waiting, r)
	b.waitingMu.Unlock()
	return b.group.do(b.markWaiting)
}

func (b *bits) markWaiting() error {
	b.waitingMu.Lock()
	ranges := b.waiting
	b.waiting = nil
	b.waitingMu.Unlock()

	for _, slot := range append([]int{0}, b.slots...) {
		if err := b.set(slot, ranges); err != nil {
			return err
		}
	}
	if err := b.sync(); err != nil {
		return err
	}
	for _, r := range ranges {
		r.words(func(i int64, mask uint64) { b.marked[i].Or(mask) })
	}
	return nil
}

// set adds chunks to a bitmap and writes the sectors that it changes.
func (b *bits) set(slot int, ranges []chunkRange) error {
	changed := map[int64]bool{}
	b.mu.Lock()
	m := b.maps[slot]
	for _, r := range ranges {
		r.words(func(i int64, mask uint64) {
			if m[i]&mask != mask {
				m[i] |= mask
				changed[i/wordsPerSector] = true
			}
		})
	}
	b.mu.Unlock()
	return b.write(slot, changed)
}

// clear clears the intent of chunks durably.
func (b *bits) clear(chunks block.Bitmap) error {
	return b.group.alone(func() error {
		for i := range b.marked {
			if i < len(chunks) && chunks[i] != 0 {
				b.marked[i].And(^chunks[i])
			}
		}
		changed := map[int64]bool{}
		b.mu.Lock()
		m := b.maps[0]
		for i := range min(len(m), len(chunks)) {
			if m[i]&chunks[i] != 0 {
				m[i] &^= chunks[i]
				changed[int64(i)/wordsPerSector] = true
			}
		}
		b.mu.Unlock()
		if len(changed) == 0 {
			return nil
		}
		if err := b.write(0, changed); err != nil {
			return err
		}
		return b.sync()
	})
}

// start makes a bitmap a copy of the intent bitmap; the caller syncs it.
func (b *bits) start(slot int) error {
	b.mu.Lock()
	b.maps[slot] = slices.Clone(b.maps[0])
	b.mu.Unlock()
	return b.writeAll(slot)
}

// writeAll writes a whole bitmap.
func (b *bits) writeAll(slot int) error {
	all := map[int64]bool{}
	for i := range bitmapSize(b.size) / sectorSize {
		all[i] = true
	}
	return b.write(slot, all)
}

// get copies a bitmap.
func (b *bits) get(slot int) block.Bitmap {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return slices.Clone(b.maps[slot])
}

// write writes sectors of a bitmap, those that follow each other at once.
func (b *bits) write(slot int, sectors map[int64]bool) error {
	sorted := slices.Sorted(maps.Keys(sectors))
	for len(sorted) > 0 {
		n := 1
		for n < len(sorted) && sorted[n] == sorted[0]+int64(n) {
			n++
		}
		off := sorted[0] * sectorSize
		if _, err := b.meta.WriteAt(b.image(slot, off, int64(n)*sectorSize), bitmapAt(b.size, slot)+off); err != nil {
			return err
		}
		sorted = sorted[n:]
	}
	return nil
}

// image is a part of a bitmap as it is in the file.
func (b *bits) image(slot int, off, length int64) []byte {
	buf := make([]byte, length)
	b.mu.RLock()
	defer b.mu.RUnlock()
	m := b.maps[slot]
	for i := range length / 8 {
		if word := off/8 + i; word < int64(len(m)) {
			binary.LittleEndian.PutUint64(buf[8*i:], m[word])
		}
	}
	return buf
}
