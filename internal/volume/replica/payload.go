package replica

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"

	"github.com/ebb-dev/ebb/internal/volume/block"
)

// hello names what a connection is for.
type hello struct {
	Volume    string `json:"volume"` // namespace/name
	VolumeUID string `json:"volumeUID"`
	Replica   string `json:"replica"`
}

// welcome answers a hello.
type welcome struct {
	// Window is how much the client may have under way, as cost counts it. More would let its pings wait for the disk.
	Window int64 `json:"window"`
}

// state and membership are the types of block as they are sent.
type state struct {
	Generation    int64    `json:"generation"`
	Members       []string `json:"members,omitempty"`
	Away          []string `json:"away,omitempty"`
	Syncing       bool     `json:"syncing,omitempty"`
	MemberAt      int64    `json:"memberAt,omitempty"`
	BootID        string   `json:"bootID,omitempty"`
	CurrentBootID string   `json:"currentBootID,omitempty"`
	Clean         bool     `json:"clean,omitempty"`
}

type membership struct {
	Generation int64    `json:"generation"`
	Members    []string `json:"members,omitempty"`
	Away       []string `json:"away,omitempty"`
	Syncing    bool     `json:"syncing,omitempty"`
}

func encodeState(s block.State) []byte { return encodeJSON(state(s)) }

func decodeState(p []byte) (block.State, error) {
	var s state
	err := json.Unmarshal(p, &s)
	return block.State(s), err
}

func encodeMembership(m block.Membership) []byte { return encodeJSON(membership(m)) }

func decodeMembership(p []byte) (block.Membership, error) {
	var m membership
	err := json.Unmarshal(p, &m)
	return block.Membership(m), err
}

// encodeJSON encodes a value that always can be.
func encodeJSON(v any) []byte {
	p, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return p
}

// encodeBitmap keeps the length of the bitmap.
func encodeBitmap(b block.Bitmap) []byte {
	p := make([]byte, 0, 8*len(b))
	for _, word := range b {
		p = binary.BigEndian.AppendUint64(p, word)
	}
	return p
}

func decodeBitmap(p []byte) (block.Bitmap, error) {
	if len(p)%8 != 0 {
		return nil, fmt.Errorf("a bitmap of %d bytes", len(p))
	}
	b := make(block.Bitmap, len(p)/8)
	for i := range b {
		b[i] = binary.BigEndian.Uint64(p[8*i:])
	}
	return b, nil
}

// encodeExtents encodes each as a variable-length number: twice the length, plus one for a hole.
func encodeExtents(list []block.Extent) []byte {
	p := make([]byte, 0, 4*len(list))
	for _, e := range list {
		n := uint64(e.Length) << 1
		if e.Hole {
			n |= 1
		}
		p = binary.AppendUvarint(p, n)
	}
	return p
}

// decodeExtents appends to a list and merges the first with the last that is there. The sum must be a length.
func decodeExtents(list []block.Extent, p []byte, length int64) ([]block.Extent, error) {
	left := length
	for len(p) > 0 {
		n, used := binary.Uvarint(p)
		e := block.Extent{Length: int64(n >> 1), Hole: n&1 == 1}
		if used <= 0 || e.Length == 0 || e.Length > left {
			return nil, fmt.Errorf("extents do not fit a range of %d bytes", length)
		}
		p, left = p[used:], left-e.Length
		if last := len(list) - 1; last >= 0 && list[last].Hole == e.Hole {
			list[last].Length += e.Length
		} else {
			list = append(list, e)
		}
	}
	if left > 0 {
		return nil, fmt.Errorf("extents do not cover a range of %d bytes", length)
	}
	return list, nil
}

// zeros reports whether all bytes are zero.
func zeros(p []byte) bool { return len(p) == 0 || p[0] == 0 && bytes.Equal(p[1:], p[:len(p)-1]) }
