package deployment

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/logfile"
	"github.com/ebb-dev/ebb/internal/shim"
)

// ErrNoLog: this node has no output of the program.
var ErrNoLog = errors.New("no log")

// AllLines selects the whole log.
const AllLines = -1

const (
	// logPoll is how often a followed log is read.
	logPoll = 100 * time.Millisecond
	// logChunk is how much of a log is read at once.
	logChunk = 32 << 10
	// openAttempts bounds how often opening a log is repeated because it was rotated at the same time.
	openAttempts = 1000
)

// lostLines replaces output that was rotated away before a slow reader could read it.
const lostLines = "[ebb: lines are missing here: the log was rotated before they were read]\n"

// Logs are the logs of a node's programs, on its disk.
type Logs struct {
	// Dir is where the programs' directories are.
	Dir string
}

// Open opens the last lines of a program's log. The caller must have checked that the key is a valid object key.
func (l Logs) Open(key types.NamespacedName, lines int) (*Log, error) {
	log, err := openLog(filepath.Join(l.Dir, key.Namespace, key.Name, shim.DefaultLogPath), lines)
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", key, err)
	}
	return log, nil
}

// Log reads a program's log, in order and across rotations.
//
//	out.log ──rotate──▶ out.log.1 ──▶ out.log.2 ──▶ out.log.3 ──▶ (gone)
//
// Only out.log is ever written to, so a file with a number is complete. Files only move to a higher number. A reader that walks
// from out.log upwards therefore finds every file that still exists; it may find one that is renamed at the same time twice.
type Log struct {
	path    string
	files   []*os.File // to be read, oldest first; only the last may still grow
	offset  int64      // in the first of them
	end     int64      // of the last of them, when it was opened
	midLine bool       // the last output did not end with a newline
	buf     []byte
}

func openLog(path string, lines int) (*Log, error) {
	files, err := openFiles(path)
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, ErrNoLog
	}
	l := &Log{path: path, files: files, buf: make([]byte, logChunk)}
	if err := l.keepLast(lines); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// openFiles opens the log's files, oldest first. It starts over if the log was rotated at the same time, because it would miss a file
// that is newer than the first one it opened.
func openFiles(path string) ([]*os.File, error) {
	for range openAttempts {
		files, newest, err := walk(path)
		if err != nil {
			return nil, err
		}
		still, err := unmoved(path, files, newest)
		if err != nil {
			closeFiles(files)
			return nil, err
		}
		if still {
			slices.Reverse(files)
			return files, nil
		}
		closeFiles(files)
	}
	return nil, errors.New("the log is rotated faster than it can be opened")
}

// walk opens the log's files, newest first, and returns the number of the first one.
func walk(path string) (files []*os.File, newest int, err error) {
	for i := 0; i <= shim.DefaultLogMaxFiles; i++ {
		f, err := os.Open(logfile.Name(path, i))
		if errors.Is(err, fs.ErrNotExist) {
			continue // not there yet, or being renamed
		}
		if err != nil {
			closeFiles(files)
			return nil, 0, err
		}
		known, err := indexOf(files, f)
		if err != nil || known >= 0 { // known: it was renamed during the walk
			f.Close()
		}
		if err != nil {
			closeFiles(files)
			return nil, 0, err
		}
		if known < 0 {
			if files = append(files, f); len(files) == 1 {
				newest = i
			}
		}
	}
	return files, newest, nil
}

// unmoved reports whether no rotation has completed since a walk opened the newest file: it still has the same number, and there is no
// newer file.
func unmoved(path string, files []*os.File, newest int) (bool, error) {
	if len(files) == 0 {
		return true, nil
	}
	same, err := isAt(files[0], logfile.Name(path, newest))
	if err != nil || !same || newest == 0 {
		return same, err
	}
	_, err = os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return false, err
}

// isAt reports whether an open file is the file with this name.
func isAt(f *os.File, name string) (bool, error) {
	named, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	opened, err := f.Stat()
	if err != nil {
		return false, err
	}
	return os.SameFile(named, opened), nil
}

// indexOf returns the index of a file in a list, whatever its name is now, or -1.
func indexOf(files []*os.File, file *os.File) (int, error) {
	sought, err := file.Stat()
	if err != nil {
		return -1, err
	}
	for i, f := range files {
		info, err := f.Stat()
		if err != nil {
			return -1, err
		}
		if os.SameFile(info, sought) {
			return i, nil
		}
	}
	return -1, nil
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// Close closes the files.
func (l *Log) Close() {
	closeFiles(l.files)
	l.files = nil
}

// keepLast skips everything before the last lines. An unfinished line counts as a line.
func (l *Log) keepLast(lines int) error {
	info, err := l.files[len(l.files)-1].Stat()
	if err != nil {
		return err
	}
	l.end = info.Size()
	switch {
	case lines < 0:
		return nil
	case lines == 0:
		l.drop(len(l.files)-1, l.end)
		return nil
	}
	back := &backwards{left: lines, buf: l.buf}
	for i := len(l.files) - 1; i >= 0; i-- {
		size := l.end
		if i < len(l.files)-1 {
			if info, err = l.files[i].Stat(); err != nil {
				return err
			}
			size = info.Size()
		}
		at, err := back.search(l.files[i], size)
		if err != nil {
			return err
		}
		if at >= 0 {
			l.drop(i, at)
			return nil
		}
	}
	return nil
}

// drop skips the first files and the beginning of the next one.
func (l *Log) drop(files int, offset int64) {
	closeFiles(l.files[:files])
	l.files, l.offset = l.files[files:], offset
}

// backwards searches for the beginning of the last lines, from the end of the log.
type backwards struct {
	left  int // line ends still to find
	begun bool
	buf   []byte
}

// search goes backwards through one file and returns where the lines begin, or -1 if they begin in an older file.
func (b *backwards) search(f *os.File, end int64) (int64, error) {
	for end > 0 {
		chunk := b.buf[:min(end, int64(len(b.buf)))]
		begin := end - int64(len(chunk))
		if _, err := f.ReadAt(chunk, begin); err != nil {
			return -1, err
		}
		if !b.begun {
			b.begun = true
			if chunk[len(chunk)-1] == '\n' {
				b.left++ // it ends the last line itself
			}
		}
		for i := len(chunk); ; {
			if i = bytes.LastIndexByte(chunk[:i], '\n'); i < 0 {
				break
			}
			if b.left--; b.left == 0 {
				return begin + int64(i) + 1, nil
			}
		}
		end = begin
	}
	return -1, nil
}

// Copy writes the log as it was when it was opened.
func (l *Log) Copy(w io.Writer) error {
	for len(l.files) > 1 {
		if err := l.pass(context.Background(), w); err != nil {
			return err
		}
		l.drop(1, 0)
	}
	_, err := io.CopyBuffer(w, io.NewSectionReader(l.files[0], l.offset, l.end-l.offset), l.buf)
	return err
}

// Follow writes the log and what is appended to it, until ctx ends or the log is removed.
func (l *Log) Follow(ctx context.Context, w io.Writer) error {
	for {
		if err := l.pass(ctx, w); err != nil || ctx.Err() != nil {
			return err
		}
		if len(l.files) > 1 {
			l.drop(1, 0)
			continue
		}
		written, err := isAt(l.files[0], l.path)
		if err != nil {
			return err
		}
		if !written {
			moved, err := l.moveOn(ctx, w)
			if err != nil || len(l.files) == 0 {
				return err
			}
			if moved {
				continue
			}
		}
		if backoff.Sleep(ctx, logPoll) != nil {
			return nil
		}
	}
}

// pass writes the first file up to its present end.
func (l *Log) pass(ctx context.Context, w io.Writer) error {
	for ctx.Err() == nil {
		n, err := l.files[0].ReadAt(l.buf, l.offset)
		if n > 0 {
			if _, err := w.Write(l.buf[:n]); err != nil {
				return err
			}
			l.offset += int64(n)
			l.midLine = l.buf[n-1] != '\n'
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// moveOn goes from a rotated file to the newer ones, and reports whether there are any yet. If no file is left, the log was removed.
func (l *Log) moveOn(ctx context.Context, w io.Writer) (bool, error) {
	// It may have been written to after our last read and before it was rotated.
	if err := l.pass(ctx, w); err != nil {
		return false, err
	}
	files, err := openFiles(l.path)
	if err != nil {
		return false, err
	}
	at, err := indexOf(files, l.files[0])
	if err != nil {
		closeFiles(files)
		return false, err
	}
	if at >= 0 && at == len(files)-1 { // the next file does not exist yet
		closeFiles(files)
		return false, nil
	}
	closeFiles(files[:at+1])
	l.Close()
	l.files, l.offset = files[at+1:], 0
	if at < 0 && len(files) > 0 {
		return true, l.mentionLost(w)
	}
	return true, nil
}

func (l *Log) mentionLost(w io.Writer) error {
	note := lostLines
	if l.midLine {
		note = "\n" + note
	}
	_, err := io.WriteString(w, note)
	return err
}
