// Package snapshot takes snapshots of etcd members, verifies them without a server, keeps them as files, and restores them as the data
// of new members.
//
// A file is complete or does not exist: it is written under a temporary name, verified, and renamed. Before every use it is compared
// with the facts that were recorded when it was taken.
package snapshot

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Errors of snapshots.
var (
	// ErrTampered: the file differs from what was recorded.
	ErrTampered = errors.New("the snapshot is not what was recorded")
	// ErrRevision: the snapshot has another revision than was asked for.
	ErrRevision = errors.New("the snapshot is of another revision")
	// ErrHash: the keys in the snapshot are not those of its member.
	ErrHash = errors.New("the snapshot does not have the hash that its member has")
	// ErrDamaged: the file is not a complete snapshot of etcd.
	ErrDamaged = errors.New("the snapshot is damaged")
)

// Facts are the properties of a snapshot.
type Facts struct {
	// Revision of the newest key.
	Revision int64
	// Compacted is the revision up to which history was compacted.
	Compacted int64
	// Hash of all keys at Revision, as etcd's HashKV computes it.
	Hash uint32
	// TotalKeys in it, older versions included.
	TotalKeys int64
	// Size of the file, and its SHA256 in hexadecimal.
	Size   int64
	SHA256 string
	// At is when it was taken.
	At time.Time
}

// tries is how often a snapshot is taken again because etcd compacted its history meanwhile.
const tries = 3

// Take takes a snapshot of a member into a new file at path, and verifies it against the hash that the member reports. If revision is
// not 0 the snapshot must have that revision. A file that is not verified is removed. It takes as long as it takes, and tells how far it is.
func Take(ctx context.Context, member *clientv3.Client, path string, revision int64, tell Progress) (f Facts, err error) {
	for range tries {
		f, err = take(ctx, member, path, revision, tell)
		if !errors.Is(err, errCompacted) {
			break
		}
	}
	if err != nil {
		_ = os.Remove(path) // it may not be there
	}
	return f, err
}

// errCompacted: the member compacted its history after the snapshot, so that their hashes cannot be compared.
var errCompacted = errors.New("etcd compacted its history while the snapshot was taken")

func take(ctx context.Context, member *clientv3.Client, path string, revision int64, tell Progress) (Facts, error) {
	at := time.Now()
	if err := save(ctx, member, path, tell); err != nil {
		return Facts{}, err
	}
	f, err := Inspect(path, tell)
	if err != nil {
		return f, err
	}
	f.At = at
	if revision != 0 && f.Revision != revision {
		return f, fmt.Errorf("%w: %d, not %d", ErrRevision, f.Revision, revision)
	}
	NewMeter(tell, Comparing, f.Size)
	return f, compare(ctx, member, f)
}

// save writes what the member sends to a file that survives a crash.
func save(ctx context.Context, member *clientv3.Client, path string, tell Progress) error {
	is, err := member.Status(ctx, member.Endpoints()[0])
	if err != nil {
		return fmt.Errorf("take a snapshot: %w", err)
	}
	stream, err := member.Snapshot(ctx)
	if err != nil {
		return fmt.Errorf("take a snapshot: %w", err)
	}
	defer stream.Close()
	file, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("take a snapshot: %w", err)
	}
	defer file.Close()
	if _, err := io.CopyBuffer(io.MultiWriter(file, NewMeter(tell, Writing, is.DbSize)), stream, make([]byte, 1<<20)); err != nil {
		return fmt.Errorf("take a snapshot: %w", err)
	}
	if err := file.Sync(); err != nil {
		return fmt.Errorf("take a snapshot: %w", err)
	}
	return file.Close()
}

// compare asks the member for its hash at the snapshot's revision. It asks for the newest one first: for a revision up to which etcd compacted it
// remembers the hash from before.
func compare(ctx context.Context, member *clientv3.Client, f Facts) error {
	for _, revision := range []int64{0, f.Revision} {
		reply, err := member.HashKV(ctx, member.Endpoints()[0], revision)
		if err != nil {
			return fmt.Errorf("hash of the member at revision %d: %w", f.Revision, err)
		}
		if reply.HashRevision != f.Revision || max(0, reply.CompactRevision) != f.Compacted { // below zero where nothing was ever compacted
			continue
		}
		if reply.Hash != f.Hash {
			return fmt.Errorf("%w at revision %d: %d, not %d", ErrHash, f.Revision, f.Hash, reply.Hash)
		}
		return nil
	}
	return errCompacted
}

// Inspect reads a file as a whole: it must end with etcd's own checksum of what is before it, and the rest must be a database of
// etcd. It tells how far it is.
func Inspect(path string, tell Progress) (Facts, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Facts{}, err
	}
	m := NewMeter(tell, Hashing, (passesAlways+1)*info.Size())
	f, err := checksum(path, m)
	if err != nil {
		return f, err
	}
	return f, readKeys(path, &f, m)
}

// passesAlways is how often a file is read at least: for its checksum, to count its keys, and for their hash.
const passesAlways = 3

// checksum reads the file once and computes both etcd's checksum, which is at its end, and SHA256.
func checksum(path string, m *Meter) (Facts, error) {
	file, err := os.Open(path)
	if err != nil {
		return Facts{}, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return Facts{}, err
	}
	// etcd writes whole pages, and then the checksum.
	if info.Size()%512 != sha256.Size {
		return Facts{}, fmt.Errorf("%w: a file of %d bytes has no checksum at its end", ErrDamaged, info.Size())
	}
	h := sha256.New()
	if _, err := io.Copy(io.MultiWriter(h, m), io.LimitReader(file, info.Size()-sha256.Size)); err != nil {
		return Facts{}, err
	}
	var end [sha256.Size]byte
	if _, err := io.ReadFull(file, end[:]); err != nil {
		return Facts{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if [sha256.Size]byte(h.Sum(nil)) != end {
		return Facts{}, fmt.Errorf("%w: its checksum does not match", ErrDamaged)
	}
	h.Write(end[:])
	return Facts{Size: info.Size(), SHA256: hex.EncodeToString(h.Sum(nil))}, nil
}

// Verify compares a file with what was recorded of it. It is called before every use of a file.
func Verify(path string, size int64, sum string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	return verify(file, size, sum)
}

func verify(file *os.File, size int64, sum string) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if info.Size() != size {
		return fmt.Errorf("%w: it has %d bytes, not %d", ErrTampered, info.Size(), size)
	}
	h := sha256.New()
	if _, err := io.Copy(h, file); err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != sum {
		return fmt.Errorf("%w: its sha256 is %s, not %s", ErrTampered, got, sum)
	}
	return nil
}
