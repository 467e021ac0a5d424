package snapshot

import (
	"fmt"
	"hash/crc32"
	"runtime/debug"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"google.golang.org/protobuf/proto"
)

// firstRevision is the revision of an etcd without writes.
const firstRevision = 1

// readKeys reads the keys in a database: how many there are, the newest revision, and their hash.
func readKeys(path string, f *Facts) (err error) {
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
		return hashKeys(keys, f)
	})
}

func compacted(meta *bolt.Bucket, name []byte) int64 {
	value := meta.Get(name)
	if value == nil {
		return 0
	}
	return mvcc.BytesToRev(value).Main
}

// hashKeys computes what etcd's HashKV does at the newest revision: over all versions of all keys but those that a compaction takes
// away. Those at or before it stay only where they are their key's newest and no deletion. Take has etcd confirm every result.
func hashKeys(keys *bolt.Bucket, f *Facts) error {
	newest := map[string]mvcc.Revision{} // of the keys that there are
	f.Revision = max(firstRevision, f.Compacted)
	err := keys.ForEach(func(k, v []byte) error {
		revision := mvcc.BytesToRev(k)
		f.Revision = max(f.Revision, revision.Main)
		f.TotalKeys++
		var kv mvccpb.KeyValue // without a key where a restore moved the revision ahead, which counts as one to etcd too
		if err := proto.Unmarshal(v, &kv); err != nil {
			return fmt.Errorf("%w: the key at revision %d: %w", ErrDamaged, revision.Main, err)
		}
		if mvcc.IsTombstone(k) {
			delete(newest, string(kv.Key))
		} else {
			newest[string(kv.Key)] = revision
		}
		return nil
	})
	if err != nil {
		return err
	}
	kept := make(map[mvcc.Revision]bool, len(newest))
	for _, revision := range newest {
		kept[revision] = true
	}
	h := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	h.Write(schema.Key.Name())
	err = keys.ForEach(func(k, v []byte) error {
		revision := mvcc.BytesToRev(k)
		if revision.Main <= f.Compacted && len(kept) > 0 && !kept[revision] {
			return nil
		}
		if revision.Main == f.Compacted && mvcc.IsTombstone(k) {
			return nil
		}
		h.Write(k)
		h.Write(v)
		return nil
	})
	f.Hash = h.Sum32()
	return err
}
