package shim

import (
	"bytes"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/ebb-dev/ebb/internal/logfile"
)

// longLine is how far a file may grow past its size for the sake of a line; longer ones are cut.
const longLine = 64 << 10

// A logFile is written by one goroutine. It rotates between lines, and drops and counts output that it cannot write: the program must
// survive a full disk, and the log must not exceed its limit.
type logFile struct {
	file    *logfile.File
	max     int64 // bytes of one file
	midLine bool
	dropped *atomic.Int64
	told    int64 // dropped bytes that the log already mentions
}

func openLog(spec LogSpec, dropped *atomic.Int64) (l *logFile, err error) {
	l = &logFile{max: spec.MaxBytes, dropped: dropped}
	l.file, err = logfile.Open(spec.Path, spec.MaxFiles, l.opened)
	return l, err
}

// opened ends the unfinished line of the last program.
func (l *logFile) opened(f *os.File) error {
	l.midLine = false
	info, err := f.Stat()
	if err != nil {
		return err
	}
	var last [1]byte
	if _, err := f.ReadAt(last[:], info.Size()-1); info.Size() > 0 && err == nil && last[0] != '\n' {
		if _, err := f.Write([]byte{'\n'}); err != nil {
			l.dropped.Add(1)
		}
	}
	return nil
}

func (l *logFile) close() { _ = l.file.Close() }

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

// makeRoom opens the file if that failed before, and rotates it if nothing of p fits. If the files cannot be moved, the current one
// stays full and output is dropped.
func (l *logFile) makeRoom(p []byte) error {
	if err := l.file.Ensure(); err != nil {
		return err
	}
	if l.fitting(p) > 0 {
		return nil
	}
	return l.file.Rotate()
}

// fitting is how much of p goes into the current file: all of it, else the lines that do, else, within a line that
// has begun or is alone too long for any file, its end.
func (l *logFile) fitting(p []byte) int {
	room := l.max - l.file.Size()
	if int64(len(p)) <= room {
		return len(p)
	}
	if room > 0 {
		if n := bytes.LastIndexByte(p[:room], '\n') + 1; n > 0 {
			return n
		}
	}
	if !l.midLine && l.file.Size() > 0 {
		return 0
	}
	n := bytes.IndexByte(p, '\n') + 1
	if n == 0 {
		n = len(p)
	}
	return int(max(0, min(int64(n), room+longLine)))
}

// put writes to the current file and counts the bytes that could not be written.
func (l *logFile) put(p []byte) {
	n, err := l.file.Write(p)
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
	if n == len(note) {
		l.told, l.midLine = l.told+missing, false
	}
}
