package sqlsink

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/ebb-dev/ebb/internal/changefeed/stream"
)

// fate is the effect of a batch on the row with one key.
type fate struct {
	// before is the row before the batch; nil if there was none.
	before []any
	// after is the row after the batch; nil if there is none.
	after []any
}

// fold computes the fate of every key that changes touch, in the order in which keys first appear. The changes can be applied one by
// one, since two rows never had the same key at the same time: a swap of keys goes through a third.
//
// Keys are compared byte by byte. The server may consider two of them equal ("a" and "A"): then at most one has a row in the end, and
// each has a fate of its own.
func fold(batch []*stream.Rows, key []int) ([]*fate, error) {
	most := 0
	for _, rows := range batch {
		most += len(rows.Changes)
	}
	f := folder{key: key, byKey: make(map[string]*fate, most)}
	for _, rows := range batch {
		for i := range rows.Changes {
			if err := f.take(&rows.Changes[i]); err != nil {
				return nil, err
			}
		}
	}
	return f.order, nil
}

// errNotUnique: two rows have the same key at the same time, so that it is not a key at the source.
var errNotUnique = fmt.Errorf("two rows of the source have the same values in the columns that are its key at the sink, where only one of them has room; "+
	"give the table the primary and unique keys that it has at the source: %w", stream.ErrUnusable)

type folder struct {
	key   []int
	byKey map[string]*fate
	order []*fate
	free  []fate // that are not used yet
	text  []byte
}

// fatesAtOnce is how many fates are made at once.
const fatesAtOnce = 64

func (f *folder) take(c *stream.Change) error {
	if c.Before != nil {
		gone, err := f.fate(c.Before, true)
		if err != nil {
			return err
		}
		gone.after = nil
	}
	if c.After != nil {
		here, err := f.fate(c.After, false)
		if err != nil {
			return err
		}
		if here.after != nil {
			return errNotUnique
		}
		here.after = c.After
	}
	return nil
}

// fate of the key of a row. If the key is new to the batch, there is whether the row existed before it.
func (f *folder) fate(row []any, there bool) (*fate, error) {
	var err error
	f.text = f.text[:0]
	for _, i := range f.key {
		if f.text, err = appendKey(f.text, row[i]); err != nil {
			return nil, err
		}
	}
	if known := f.byKey[string(f.text)]; known != nil {
		return known, nil
	}
	if len(f.free) == 0 {
		f.free = make([]fate, fatesAtOnce)
	}
	fresh := &f.free[0]
	f.free = f.free[1:]
	if there {
		fresh.before = row
	}
	f.byKey[string(f.text)] = fresh
	f.order = append(f.order, fresh)
	return fresh, nil
}

// appendKey appends a value so that different values have different texts.
func appendKey(to []byte, value any) ([]byte, error) {
	switch v := value.(type) {
	case int64:
		return binary.BigEndian.AppendUint64(append(to, 'i'), uint64(v)), nil
	case uint64:
		return binary.BigEndian.AppendUint64(append(to, 'u'), v), nil
	case int:
		return binary.BigEndian.AppendUint64(append(to, 'i'), uint64(int64(v))), nil
	case float32:
		return binary.BigEndian.AppendUint64(append(to, 'f'), math.Float64bits(float64(v))), nil
	case float64:
		return binary.BigEndian.AppendUint64(append(to, 'f'), math.Float64bits(v)), nil
	case string:
		return append(binary.BigEndian.AppendUint32(append(to, 's'), uint32(len(v))), v...), nil
	case []byte:
		return append(binary.BigEndian.AppendUint32(append(to, 's'), uint32(len(v))), v...), nil
	case nil:
		return nil, fmt.Errorf("a column of the key is NULL")
	}
	return nil, fmt.Errorf("a value of type %T cannot be in a key", value)
}
