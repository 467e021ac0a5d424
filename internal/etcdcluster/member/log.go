package member

import (
	"os"
	"sync"
	"syscall"
)

// logLimit bounds one file of a member's log; there are two.
const logLimit = 4 << 20

// logFile is a member's log. Output of the process itself, such as a panic, goes there too.
type logFile struct {
	path string
	// also is a descriptor that is the log too.
	also int

	mu   sync.Mutex
	file *os.File
	size int64
}

func openLog(path string, also int) (*logFile, error) {
	l := &logFile{path: path, also: also}
	return l, l.open()
}

func (l *logFile) open() error {
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return err
	}
	if l.file != nil {
		l.file.Close()
	}
	l.file, l.size = f, info.Size()
	return os.NewSyscallError("dup3", syscall.Dup3(int(f.Fd()), l.also, 0))
}

// Write implements io.Writer. A log that cannot be written must not end the member.
func (l *logFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size+int64(len(p)) > logLimit && l.size > 0 {
		if os.Rename(l.path, l.path+".1") == nil {
			_ = l.open() // on failure the old file is used further
		}
	}
	n, err := l.file.Write(p)
	l.size += int64(n)
	return n, err
}

// Sync implements zapcore.WriteSyncer.
func (l *logFile) Sync() error { return l.file.Sync() }
