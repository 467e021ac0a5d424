package shim

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync/atomic"
)

// longLine is how far a file may grow past its size for the sake of a line; longer ones are cut.
const longLine = 64 << 10

// A logFile is written by one goroutine. It rotates between lines, and drops and counts what it cannot write: the
// program must outlive a full disk, and the log must not outgrow its bounds.
type logFile struct {
	spec    LogSpec
	file    *os.File // nil while it cannot be opened
	size    int64
	midLine bool
	dropped *atomic.Int64
	told    int64 // dropped bytes that the log already mentions
}

func openLog(spec LogSpec, dropped *atomic.Int64) (*logFile, error) {
	l := &logFile{spec: spec, dropped: dropped}
	return l, l.open()
}

func (l *logFile) open() error {
	f, err := os.OpenFile(l.spec.Path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return err
	}
	l.file, l.size, l.midLine = f, info.Size(), false
	var last [1]byte
	if _, err := f.ReadAt(last[:], l.size-1); l.size > 0 && err == nil && last[0] != '\n' {
		l.put([]byte{'\n'}) // the last program died in the middle of a line
	}
	return nil
}

func (l *logFile) close() {
	if l.file != nil {
		l.file.Close()
	}
}

// write appends output, rotating where a file is full.
func (l *logFile) write(p []byte) {
	for len(p) > 0 {
		if err := l.makeRoom(p); err != nil {
			l.dropped.Add(int64(len(p)))
			return
		}
		l.mentionDropped()
		n := max(1, l.fitting(p)) // the note above may have taken the room
		l.put(p[:n])
		p = p[n:]
	}
}

// makeRoom opens the file if that failed before, and rotates it if nothing of p fits.
func (l *logFile) makeRoom(p []byte) error {
	if l.file == nil {
		if err := l.open(); err != nil {
			return err
		}
	}
	if l.fitting(p) > 0 {
		return nil
	}
	return l.rotate()
}

// fitting is how much of p goes into the current file: all of it, else the lines that do, else, within a line that
// has begun or is alone too long for any file, its end.
func (l *logFile) fitting(p []byte) int {
	room := l.spec.MaxBytes - l.size
	if int64(len(p)) <= room {
		return len(p)
	}
	if room > 0 {
		if n := bytes.LastIndexByte(p[:room], '\n') + 1; n > 0 {
			return n
		}
	}
	if !l.midLine && l.size > 0 {
		return 0
	}
	n := bytes.IndexByte(p, '\n') + 1
	if n == 0 {
		n = len(p)
	}
	return int(max(0, min(int64(n), room+longLine)))
}

// put writes to the current file and counts what did not get there.
func (l *logFile) put(p []byte) {
	n, err := l.file.Write(p)
	l.size += int64(n)
	if n > 0 {
		l.midLine = p[n-1] != '\n'
	}
	if err != nil {
		l.dropped.Add(int64(len(p) - n))
	}
}

// mentionDropped leaves a line in the log where output is missing, once there is room for one again.
func (l *logFile) mentionDropped() {
	missing := l.dropped.Load() - l.told
	if missing == 0 {
		return
	}
	note := fmt.Appendf(nil, "[ebb shim: %d bytes of output dropped here: the log could not be written]\n", missing)
	if l.midLine {
		note = append([]byte{'\n'}, note...)
	}
	n, _ := l.file.Write(note)
	l.size += int64(n)
	if n == len(note) {
		l.told, l.midLine = l.told+missing, false
	}
}

// rotate renames Path.1 to Path.2 and so on, Path to Path.1, and opens a new file. If the files cannot be moved, the
// current one stays full and output is dropped.
func (l *logFile) rotate() error {
	for i := l.spec.MaxFiles; i > 1; i-- {
		_ = os.Rename(l.older(i-1), l.older(i)) // often not there yet
	}
	if err := os.Rename(l.spec.Path, l.older(1)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	l.file.Close()
	l.file = nil
	return l.open()
}

func (l *logFile) older(i int) string { return fmt.Sprintf("%s.%d", l.spec.Path, i) }
