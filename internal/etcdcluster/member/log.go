package member

import (
	"os"
	"sync"
	"syscall"

	"github.com/ebb-dev/ebb/internal/logfile"
)

// logLimit bounds one file of a member's log; there are two.
const logLimit = 4 << 20

// logFile is a member's log. Output of the process itself, such as a panic, goes there too.
type logFile struct {
	mu   sync.Mutex
	file *logfile.File
}

// openLog opens a log. The descriptor also is the log too.
func openLog(path string, also int) (*logFile, error) {
	file, err := logfile.Open(path, 1, func(f *os.File) error {
		return os.NewSyscallError("dup3", syscall.Dup3(int(f.Fd()), also, 0))
	})
	return &logFile{file: file}, err
}

// Write implements io.Writer. A log that cannot be written must not end the member.
func (l *logFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if size := l.file.Size(); size > 0 && size+int64(len(p)) > logLimit {
		_ = l.file.Rotate() // where it cannot be moved it is written on
	}
	return l.file.Write(p)
}

// Sync implements zapcore.WriteSyncer.
func (l *logFile) Sync() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.Sync()
}
