package nbd

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ebb-dev/ebb/internal/volume/block"
)

// fileDevice is a device in a sparse file.
type fileDevice struct {
	file *os.File
	size int64
}

func newFileDevice(t testing.TB, size int64) *fileDevice {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "device"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	if err := file.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return &fileDevice{file: file, size: size}
}

func (d *fileDevice) Size() int64 { return d.size }

func (d *fileDevice) ReadAt(_ context.Context, p []byte, off int64) error {
	_, err := d.file.ReadAt(p, off)
	return err
}

func (d *fileDevice) WriteAt(ctx context.Context, p []byte, off int64, fua bool) error {
	if _, err := d.file.WriteAt(p, off); err != nil || !fua {
		return err
	}
	return d.Flush(ctx)
}

func (d *fileDevice) Zero(ctx context.Context, off, length int64, z block.Zero) error {
	mode := uint32(unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE)
	if !z.Hole {
		mode = unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE
	}
	err := unix.Fallocate(int(d.file.Fd()), mode, off, length)
	if errors.Is(err, unix.EOPNOTSUPP) { // a file system in memory knows holes alone
		_, err = d.file.WriteAt(make([]byte, length), off)
	}
	if err != nil || !z.FUA {
		return err
	}
	return d.Flush(ctx)
}

func (d *fileDevice) Flush(context.Context) error { return unix.Fdatasync(int(d.file.Fd())) }

func (d *fileDevice) Extents(_ context.Context, off, length int64) ([]block.Extent, error) {
	var extents []block.Extent
	for end := off + length; off < end; {
		data, err := unix.Seek(int(d.file.Fd()), off, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			data = end
		} else if err != nil {
			return nil, err
		}
		if data > off {
			data = min(data, end)
			extents = append(extents, block.Extent{Length: data - off, Hole: true})
			off = data
			continue
		}
		hole, err := unix.Seek(int(d.file.Fd()), off, unix.SEEK_HOLE)
		if err != nil {
			return nil, err
		}
		hole = min(hole, end)
		extents = append(extents, block.Extent{Length: hole - off})
		off = hole
	}
	return extents, nil
}

// memoryDevice is a device in memory whose calls a test can watch, hold and fail.
type memoryDevice struct {
	mu    sync.RWMutex
	bytes []byte
	holes []block.Extent // what Extents returns, if set

	// before is called ahead of each call, with what it is and where; an error fails the call.
	before func(ctx context.Context, call string, off, length int64) error
}

func newMemoryDevice(size int) *memoryDevice { return &memoryDevice{bytes: make([]byte, size)} }

func (d *memoryDevice) ask(ctx context.Context, call string, off, length int64) error {
	if d.before == nil {
		return nil
	}
	return d.before(ctx, call, off, length)
}

func (d *memoryDevice) Size() int64 { return int64(len(d.bytes)) }

func (d *memoryDevice) ReadAt(ctx context.Context, p []byte, off int64) error {
	if err := d.ask(ctx, "read", off, int64(len(p))); err != nil {
		return err
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	if copy(p, d.bytes[off:]) != len(p) {
		return io.ErrUnexpectedEOF
	}
	return nil
}

func (d *memoryDevice) WriteAt(ctx context.Context, p []byte, off int64, fua bool) error {
	call := "write"
	if fua {
		call = "write fua"
	}
	if err := d.ask(ctx, call, off, int64(len(p))); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if copy(d.bytes[off:], p) != len(p) {
		return io.ErrUnexpectedEOF
	}
	return nil
}

func (d *memoryDevice) Zero(ctx context.Context, off, length int64, z block.Zero) error {
	call := "zero"
	if z.Hole {
		call += " hole"
	}
	if z.FUA {
		call += " fua"
	}
	if err := d.ask(ctx, call, off, length); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	clear(d.bytes[off : off+length])
	return nil
}

func (d *memoryDevice) Flush(ctx context.Context) error { return d.ask(ctx, "flush", 0, 0) }

func (d *memoryDevice) Extents(ctx context.Context, off, length int64) ([]block.Extent, error) {
	if err := d.ask(ctx, "extents", off, length); err != nil {
		return nil, err
	}
	if d.holes == nil {
		return []block.Extent{{Length: length}}, nil
	}
	var extents []block.Extent
	at := int64(0)
	for _, e := range d.holes {
		from, to := max(at, off), min(at+e.Length, off+length)
		if from < to {
			extents = append(extents, block.Extent{Length: to - from, Hole: e.Hole})
		}
		at += e.Length
	}
	return extents, nil
}

// allocated is how many bytes a file occupies on its disk.
func allocated(t testing.TB, path string) int64 {
	t.Helper()
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		t.Fatal(err)
	}
	return stat.Blocks * 512
}
