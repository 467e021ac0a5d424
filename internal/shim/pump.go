package shim

import (
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	chunkBytes  = 16 << 10
	chunkCount  = 16
	stallLimit  = time.Second     // how long the program waits for a disk that hangs before output is dropped
	outputLimit = 2 * time.Second // how long the last output may take to reach the log
)

// A pump copies the program's output to its log. Reading and writing are separate, so that a disk that hangs delays the program a little
// and loses output beyond the buffers, but never blocks the program.
type pump struct {
	pipe    *os.File
	log     *logFile
	free    chan []byte
	full    chan []byte
	ended   chan struct{}
	dropped atomic.Int64
}

// newPump opens the log and returns with the pump the descriptor that the program writes to.
func newPump(spec LogSpec) (*pump, int, error) {
	var fds [2]int
	if err := syscall.Pipe2(fds[:], syscall.O_CLOEXEC); err != nil {
		return nil, 0, os.NewSyscallError("pipe2", err)
	}
	p := &pump{
		free:  make(chan []byte, chunkCount),
		full:  make(chan []byte, chunkCount),
		ended: make(chan struct{}),
	}
	log, err := openLog(spec, &p.dropped)
	if err != nil {
		syscall.Close(fds[0])
		syscall.Close(fds[1])
		return nil, 0, fmt.Errorf("log file %q: create its directory, free space or change log.path: %w", spec.Path, err)
	}
	// Only the reading end: the program gets a pipe that blocks, as programs expect.
	_ = syscall.SetNonblock(fds[0], true)
	p.pipe, p.log = os.NewFile(uintptr(fds[0]), "output"), log
	for range chunkCount {
		p.free <- nil // made when first needed
	}
	go p.read()
	go p.write()
	return p, fds[1], nil
}

func (p *pump) read() {
	defer close(p.full)
	buf := make([]byte, chunkBytes)
	stalled := false
	for {
		n, err := p.pipe.Read(buf)
		if n > 0 {
			stalled = !p.pass(buf[:n], stalled)
		}
		if err != nil {
			return
		}
	}
}

// pass hands a chunk to the writer. It waits for room only once: while the writer does not move, the rest is dropped.
func (p *pump) pass(data []byte, stalled bool) bool {
	var limit <-chan time.Time
	if len(p.free) == 0 {
		wait := stallLimit
		if stalled {
			wait = 0
		}
		limit = time.After(wait)
	}
	select {
	case chunk := <-p.free:
		p.full <- append(chunk[:0], data...)
		return true
	case <-limit:
		p.dropped.Add(int64(len(data)))
		return false
	}
}

func (p *pump) write() {
	defer close(p.ended)
	for chunk := range p.full {
		p.log.write(chunk)
		p.free <- chunk
	}
	p.log.close()
}

// close waits for the last output. All processes that could write more are dead, unless one passed the pipe to another program.
func (p *pump) close() {
	_ = p.pipe.SetReadDeadline(time.Now().Add(outputLimit))
	select {
	case <-p.ended:
	case <-time.After(2 * outputLimit):
	}
}
