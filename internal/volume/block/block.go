// Package block has the words that the parts of a volume share: a device as clients see it, and a replica as an engine reaches it, in the same
// process or on another node.
package block

import (
	"context"
	"errors"
	"hash/crc32"
)

// Errors on which callers decide. Any other error is an I/O error.
var (
	// ErrNoSpace: the disk is full.
	ErrNoSpace = errors.New("no space left on the disk")
	// ErrStale: the replica has seen a newer generation. Whoever gets it must not read or write any more.
	ErrStale = errors.New("a newer generation of the volume exists")
	// ErrClosed: the device is being detached.
	ErrClosed = errors.New("the volume is detached")
	// ErrMissing: the directory or a file of the replica is not there.
	ErrMissing = errors.New("the replica is missing on its disk")
	// ErrForeign: the directory belongs to another replica or another volume.
	ErrForeign = errors.New("the directory belongs to another replica")
	// ErrDamaged: the metadata of the replica cannot be read, or a sync failed.
	ErrDamaged = errors.New("the replica is damaged")
	// ErrUnreachable: the replica did not answer, or its connection was lost. What happened to the request is unknown.
	ErrUnreachable = errors.New("the replica does not answer")
)

// Device is a volume as clients see it. Methods may be called from many goroutines at once. Ranges are checked by the caller.
type Device interface {
	// Size in bytes.
	Size() int64
	// ReadAt fills p.
	ReadAt(ctx context.Context, p []byte, off int64) error
	// WriteAt writes p; with fua it is durable when the call returns.
	WriteAt(ctx context.Context, p []byte, off int64, fua bool) error
	// Zero makes a range read as zeros.
	Zero(ctx context.Context, off, length int64, z Zero) error
	// Flush makes every write durable that was acknowledged before the call, whoever wrote it.
	Flush(ctx context.Context) error
	// Extents lists which parts of a range hold data and which are holes, in order and without gaps.
	Extents(ctx context.Context, off, length int64) ([]Extent, error)
}

// Zero says how a range is zeroed.
type Zero struct {
	// Hole lets the disk space go. Otherwise it stays allocated.
	Hole bool
	// FUA: durable when the call returns.
	FUA bool
}

// Extent is a part of a range.
type Extent struct {
	// Length in bytes.
	Length int64
	// Hole says that no disk space is used, and that it reads as zeros.
	Hole bool
}

// ChunkSize is the unit in which replicas remember what may differ between them.
const ChunkSize = 1 << 20

// Chunks is how many chunks a volume has.
func Chunks(size int64) int64 { return (size + ChunkSize - 1) / ChunkSize }

// Replica is one copy of a volume, as its engine reaches it. Every call carries the engine's generation; a replica that knows a newer one
// refuses with ErrStale, reads included. Calls may be made from many goroutines at once; a buffer belongs to the caller again when its
// call returns.
type Replica interface {
	// Open makes the generation the newest that the replica knows, durably, and returns what the replica knew before. No call of an older
	// generation is under way or has an effect after it.
	Open(ctx context.Context, generation int64) (State, error)
	// Commit persists who the members are, from a generation on.
	Commit(ctx context.Context, m Membership) error

	// ReadAt, WriteAt, Zero, Flush and Extents are as for a Device. Before the first write to a chunk the replica durably marks it, as
	// Membership says.
	ReadAt(ctx context.Context, generation int64, p []byte, off int64) error
	WriteAt(ctx context.Context, generation int64, p []byte, off int64, fua bool) error
	Zero(ctx context.Context, generation int64, off, length int64, z Zero) error
	Flush(ctx context.Context, generation int64) error
	Extents(ctx context.Context, generation int64, off, length int64) ([]Extent, error)

	// Intent returns the chunks in which members may differ: they were written, and not cleared since.
	Intent(ctx context.Context, generation int64) (Bitmap, error)
	// Missed returns the chunks that a replica that is away may lack, which was last a member in the generation memberAt, as its State says. ok is
	// false if that is not known, and everything must be copied. It is not known of one that was a member after it left: the volume went on
	// with it and without the replica that is asked, which a person salvaged since.
	Missed(ctx context.Context, generation int64, replica string, memberAt int64) (missed Bitmap, ok bool, err error)
	// Clear clears the intent of chunks: all members have the same there, durably.
	Clear(ctx context.Context, generation int64, chunks Bitmap) error
	// Ping answers while the replica can be reached and knows no newer generation.
	Ping(ctx context.Context, generation int64) error
	// Close lets the connection go. The replica stays as it is.
	Close() error
}

// Starter is a Replica that begins a write without waiting for its end, so that one goroutine can write to several replicas at once.
type Starter interface {
	// StartWriteAt begins what WriteAt does. The buffer belongs to the caller again when Wait returns, which must be called once. The sum
	// is the Checksum of p.
	StartWriteAt(generation int64, p []byte, off int64, fua bool, sum uint32) Pending
}

// Pending is a call that was begun.
type Pending interface {
	// Wait waits until the call ended, and returns its error.
	Wait() error
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum is the CRC32C of some bytes.
func Checksum(p []byte) uint32 { return crc32.Checksum(p, castagnoli) }

// Membership is who has every acknowledged write.
type Membership struct {
	// Generation from which this holds.
	Generation int64
	// Members by name of their Replica.
	Members []string
	// Away are replicas that left and may come back: what they miss is marked from now on. A replica that is added to Away here starts with
	// the chunks of the intent bitmap. One that is left out is forgotten.
	Away []string
	// Syncing says that the replica it is sent to is being built: it has not got everything yet.
	Syncing bool
}

// State is what a replica knows of itself.
type State struct {
	// Generation and Members as they were last committed or opened.
	Generation int64
	Members    []string
	// Away are the replicas for which it marks chunks.
	Away []string
	// Syncing says that the replica never became whole.
	Syncing bool
	// MemberAt is the generation in which it was last told that it is a member, or became whole; 0 if that is not known.
	MemberAt int64
	// BootID of the machine while the replica was last open. After another boot, acknowledged writes that were not flushed may be gone.
	BootID string
	// CurrentBootID of its machine now.
	CurrentBootID string
	// Clean says that everything that was acknowledged is durable: the replica was closed in order.
	Clean bool
}

// Bitmap is a set of chunks. The zero value is empty.
type Bitmap []uint64

// NewBitmap makes an empty set for n chunks.
func NewBitmap(n int64) Bitmap { return make(Bitmap, (n+63)/64) }

// Has reports whether chunk i is in the set.
func (b Bitmap) Has(i int64) bool { return int(i/64) < len(b) && b[i/64]&(1<<(i%64)) != 0 }

// Set adds chunk i, which must be within the size of the set.
func (b Bitmap) Set(i int64) { b[i/64] |= 1 << (i % 64) }

// Unset removes chunk i.
func (b Bitmap) Unset(i int64) {
	if int(i/64) < len(b) {
		b[i/64] &^= 1 << (i % 64)
	}
}

// Add adds every chunk of another set, which must not be larger.
func (b Bitmap) Add(other Bitmap) {
	for i, word := range other {
		b[i] |= word
	}
}
