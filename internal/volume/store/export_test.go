package store

// Where the parts of the metadata are, for tests that damage them.
const (
	StateSize = stateSize
)

// MetaSize is the length of the metadata.
func MetaSize(size int64) int64 { return metaSize(size) }

// StateAt is where the state with a sequence number is.
func StateAt(seq uint64) int64 { return stateAt(seq) }

// Seq is the sequence number of the newest state.
func (s *Store) Seq() uint64 { return s.seq }
