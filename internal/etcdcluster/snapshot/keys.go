package snapshot

import (
	"fmt"
	"hash/crc32"
	"hash/maphash"
	"runtime/debug"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"google.golang.org/protobuf/encoding/protowire"
)

// firstRevision is the revision of an etcd without writes.
const firstRevision = 1

// readKeys reads the keys in a database: how many there are, the newest revision, and their hash.
func readKeys(path string, f *Facts, m *Meter) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // a damaged file may point outside of the mapped memory
	defer func() {                                           // etcd's code panics on damaged revisions
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, r)
		}
	}()
	db, err := bolt.Open(path, 0o400, &bolt.Options{ReadOnly: true})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	defer db.Close()
	return db.View(func(tx *bolt.Tx) error {
		meta, keys := tx.Bucket(schema.Meta.Name()), tx.Bucket(schema.Key.Name())
		if meta == nil || keys == nil {
			return fmt.Errorf("%w: it is not a database of etcd", ErrDamaged)
		}
		f.Compacted = max(0, compacted(meta, schema.ScheduledCompactKeyName), compacted(meta, schema.FinishedCompactKeyName))
		return hashKeys(keys, f, m)
	})
}

func compacted(meta *bolt.Bucket, name []byte) int64 {
	value := meta.Get(name)
	if value == nil {
		return 0
	}
	return mvcc.BytesToRev(value).Main
}

// keysPerPass bounds the keys that are held in memory at a time; a larger database is read several times. It is about 100 MB.
var keysPerPass = 1 << 20

// hashKeys computes what etcd's HashKV does at the newest revision: over all versions of all keys but those that a compaction takes
// away. Those at or before it stay only where they are their key's newest and no deletion. Take has etcd confirm every result.
func hashKeys(keys *bolt.Bucket, f *Facts, m *Meter) error {
	f.Revision = max(firstRevision, f.Compacted)
	compacted := 0 // versions at or before the compaction; they come first
	m.finish(f.Size)
	err := keys.ForEach(func(k, v []byte) error {
		m.add(int64(len(k) + len(v)))
		revision := mvcc.BytesToRev(k)
		f.Revision = max(f.Revision, revision.Main)
		f.TotalKeys++
		if revision.Main <= f.Compacted {
			compacted++
		}
		return nil
	})
	if err != nil {
		return err
	}
	gone, live, err := superseded(keys, f, compacted, m)
	if err != nil {
		return err
	}
	m.finish(m.total - f.Size)
	h := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	h.Write(schema.Key.Name())
	at := -1
	err = keys.ForEach(func(k, v []byte) error {
		m.add(int64(len(k) + len(v)))
		at++
		if at < compacted && live && gone.has(at) {
			return nil
		}
		if mvcc.BytesToRev(k).Main == f.Compacted && mvcc.IsTombstone(k) {
			return nil
		}
		h.Write(k)
		h.Write(v)
		return nil
	})
	f.Hash = h.Sum32()
	m.finish(m.total)
	return err
}

// bits is a set of small numbers.
type bits []uint64

func (b bits) set(i int)      { b[i/64] |= 1 << (i % 64) }
func (b bits) has(i int) bool { return b[i/64]&(1<<(i%64)) != 0 }

// digest stands for a key. If two had the same, the hash would differ from etcd's and the snapshot would be refused.
type digest [2]uint64

// superseded returns which of the first versions, those that a compaction may take away, are not the newest of a key that is there, and whether
// any key is there. It reads the database as often as it must to hold no more than keysPerPass keys at a time.
func superseded(keys *bolt.Bucket, f *Facts, compacted int, m *Meter) (gone bits, live bool, err error) {
	gone = make(bits, compacted/64+1)
	if compacted == 0 {
		m.total = passesAlways * f.Size
		return gone, true, nil
	}
	seeds := [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}
	passes := uint64((f.TotalKeys + int64(keysPerPass) - 1) / int64(keysPerPass))
	m.total = (passesAlways + int64(passes)) * f.Size
	for pass := range passes {
		m.finish((2 + int64(pass)) * f.Size) // after the checksum and the count
		newest := map[digest]int{}           // of the keys of this pass that are there, the newest version; -1 for one after the compaction
		at := -1
		err := keys.ForEach(func(k, v []byte) error {
			m.add(int64(len(k) + len(v)))
			at++
			key, err := keyOf(v)
			if err != nil {
				return fmt.Errorf("%w: the key at revision %d: %w", ErrDamaged, mvcc.BytesToRev(k).Main, err)
			}
			d := digest{maphash.Bytes(seeds[0], key), maphash.Bytes(seeds[1], key)}
			if d[0]%passes != pass {
				return nil
			}
			if before, ok := newest[d]; ok && before >= 0 {
				gone.set(before)
			}
			version := at
			if at >= compacted {
				version = -1
			}
			if !mvcc.IsTombstone(k) {
				newest[d] = version
				return nil
			}
			delete(newest, d)
			if version >= 0 {
				gone.set(version)
			}
			return nil
		})
		if err != nil {
			return nil, false, err
		}
		live = live || len(newest) > 0
	}
	return gone, live, nil
}

// keyOf finds the key in a stored version, without copying anything of it. There is none where a restore moved the revision ahead, which counts as
// one to etcd too.
func keyOf(v []byte) (key []byte, err error) {
	for len(v) > 0 {
		number, kind, n := protowire.ConsumeTag(v)
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		v = v[n:]
		if n = protowire.ConsumeFieldValue(number, kind, v); n < 0 {
			return nil, protowire.ParseError(n)
		}
		if number == keyField && kind == protowire.BytesType {
			key, _ = protowire.ConsumeBytes(v)
		}
		v = v[n:]
	}
	return key, nil
}

// keyField is the number of the field key in mvccpb.KeyValue.
const keyField = 1
