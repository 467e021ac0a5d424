package store

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/ebb-dev/ebb/internal/volume/block"
)

// The file "meta", in bytes. It has its full size from the beginning, and every block of it is allocated.
//
//	0       header: who the replica is and where things are. Written once.
//	4096    reserved, zero: checksums, snapshots
//	65536   state, slot 0
//	98304   state, slot 1
//	131072  bitmaps, each padded to 4096: intent, then one for each of maxAway replicas that are away
//
// Numbers are little endian. A record (the header and each state) is: magic (8), sequence number (8), length of the JSON that follows (4),
// the JSON, CRC32C of all that (4). States alternate between the slots: the one with the higher number counts, and a torn one does not.
const (
	headerOffset = 0
	headerSize   = 4096
	stateOffset  = 64 << 10
	stateSize    = 32 << 10
	bitmapOffset = 128 << 10
	bitmapAlign  = 4096
	sectorSize   = 512

	// maxAway is for how many replicas that are away the missed chunks are kept.
	maxAway = 8
	// maxNames is how many members a volume may have, and how many replicas may be away.
	maxNames = 32

	version = 1
)

var (
	headerMagic = []byte("ebbrepl\x00")
	stateMagic  = []byte("ebbstat\x00")
	castagnoli  = crc32.MakeTable(crc32.Castagnoli)
)

// Identity is which replica of which volume a directory holds.
type Identity struct {
	// Volume is the namespace and the name of the volume.
	Volume string `json:"volume"`
	// VolumeUID is the UID of the Volume.
	VolumeUID string `json:"volumeUID"`
	// Replica is the name of the Replica.
	Replica string `json:"replica"`
	// Size of the volume in bytes.
	Size int64 `json:"size"`
}

// header is the JSON of the header.
type header struct {
	// Version of the layout.
	Version int `json:"version"`
	// Requires names what a reader must understand to open the replica. None is defined yet.
	Requires  []string `json:"requires,omitempty"`
	Identity  Identity `json:"identity"`
	ChunkSize int64    `json:"chunkSize"`
	// Created is the boot ID of the machine that made the replica.
	Created string `json:"created"`
}

// record is the JSON of a state.
type record struct {
	Generation int64        `json:"generation"`
	Members    []string     `json:"members,omitempty"`
	Away       []awayRecord `json:"away,omitempty"` // the oldest first
	// Unknown are replicas that are away of which it is not known what they miss.
	Unknown []string `json:"unknown,omitempty"`
	// Written says that anything was ever written here.
	Written  bool   `json:"written,omitempty"`
	Syncing  bool   `json:"syncing,omitempty"`
	MemberAt int64  `json:"memberAt,omitempty"` // see block.State; 0 in a record of a program that did not write it
	BootID   string `json:"bootID,omitempty"`
	Clean    bool   `json:"clean,omitempty"`
}

// awayRecord says which bitmap has what a replica misses.
type awayRecord struct {
	Replica string `json:"replica"`
	Slot    int    `json:"slot"` // from 1; 0 is the intent bitmap
	// Since is the generation in which the bitmap begins; 0 in a record of a program that did not write it.
	Since int64 `json:"since,omitempty"`
}

// bitmapSize is the length of one bitmap in the file.
func bitmapSize(size int64) int64 {
	bytes := (block.Chunks(size) + 7) / 8
	return (bytes + bitmapAlign - 1) / bitmapAlign * bitmapAlign
}

// bitmapAt is where a bitmap begins.
func bitmapAt(size int64, slot int) int64 { return bitmapOffset + int64(slot)*bitmapSize(size) }

// metaSize is the length of the file.
func metaSize(size int64) int64 { return bitmapAt(size, 1+maxAway) }

func stateAt(seq uint64) int64 { return stateOffset + int64(seq%2)*stateSize }

// seal makes a record.
func seal(magic []byte, seq uint64, v any, limit int) ([]byte, error) {
	payload, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	if len(payload)+24 > limit {
		return nil, fmt.Errorf("%d bytes of metadata do not fit into %d", len(payload)+24, limit)
	}
	b := slices.Clone(magic)
	b = binary.LittleEndian.AppendUint64(b, seq)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(payload)))
	b = append(b, payload...)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)), nil
}

var errTorn = errors.New("bad checksum")

// unseal reads a record.
func unseal(magic, b []byte, v any) (seq uint64, err error) {
	if len(b) < 24 || !bytes.Equal(b[:8], magic) {
		return 0, errTorn
	}
	length := int64(binary.LittleEndian.Uint32(b[16:]))
	if length > int64(len(b)-24) {
		return 0, errTorn
	}
	sum := binary.LittleEndian.Uint32(b[20+length:])
	if crc32.Checksum(b[:20+length], castagnoli) != sum {
		return 0, errTorn
	}
	return binary.LittleEndian.Uint64(b[8:]), json.Unmarshal(b[20:20+length], v)
}

// readHeader reads the identity.
func readHeader(meta File) (header, error) {
	var h header
	b := make([]byte, headerSize)
	if _, err := meta.ReadAt(b, headerOffset); err != nil {
		return h, fmt.Errorf("%w: read the header: %w", block.ErrDamaged, err)
	}
	if _, err := unseal(headerMagic, b, &h); err != nil {
		return h, fmt.Errorf("%w: the header: %w", block.ErrDamaged, err)
	}
	if h.Version != version || len(h.Requires) > 0 {
		return h, fmt.Errorf("%w: layout version %d, requires %q: written by a newer program", block.ErrDamaged, h.Version, h.Requires)
	}
	if h.ChunkSize != block.ChunkSize || h.Identity.Size <= 0 {
		return h, fmt.Errorf("%w: volume of %d bytes in chunks of %d bytes", block.ErrDamaged, h.Identity.Size, h.ChunkSize)
	}
	return h, nil
}

// readState reads the newest state that is whole.
func readState(meta File) (best record, seq uint64, err error) {
	for slot := range uint64(2) {
		b := make([]byte, stateSize)
		if _, err := meta.ReadAt(b, stateAt(slot)); err != nil {
			return best, 0, fmt.Errorf("%w: read the state: %w", block.ErrDamaged, err)
		}
		var r record
		n, err := unseal(stateMagic, b, &r)
		if err == nil && n%2 == slot && n > seq && r.valid() {
			best, seq = r, n
		}
	}
	if seq == 0 {
		return best, 0, fmt.Errorf("%w: no state: %w", block.ErrDamaged, errTorn)
	}
	return best, seq, nil
}

// valid reports whether the bitmaps that the record names exist, once each.
func (r record) valid() bool {
	var used [1 + maxAway]bool
	for _, a := range r.Away {
		if a.Slot < 1 || a.Slot > maxAway || used[a.Slot] {
			return false
		}
		used[a.Slot] = true
	}
	return r.Generation >= 0
}

func (r record) away() []string {
	var names []string
	for _, a := range r.Away {
		names = append(names, a.Replica)
	}
	return names
}

// state is what others see of it.
func (r record) state(boot string) block.State {
	return block.State{
		Generation: r.Generation, Members: slices.Clone(r.Members), Away: r.away(), Syncing: r.Syncing, MemberAt: r.MemberAt,
		BootID: r.BootID, CurrentBootID: boot, Clean: r.Clean,
	}
}

// slots are the bitmaps of the replicas that are away.
func (r record) slots() []int {
	var slots []int
	for _, a := range r.Away {
		slots = append(slots, a.Slot)
	}
	return slots
}

// isAway reports whether the missed chunks of a replica are kept.
func (r record) isAway(replica string) bool {
	return slices.ContainsFunc(r.Away, func(a awayRecord) bool { return a.Replica == replica })
}

// marks reports whether a replica marks chunks before they are written: somebody else has a copy, or had one and may come back. One that is being
// built from nothing need not, since it would be built from nothing again.
func (r record) marks(replica string) bool {
	alone := len(r.Members) == 1 && (r.Members[0] == replica || r.Syncing)
	return !alone || len(r.Away) > 0
}
