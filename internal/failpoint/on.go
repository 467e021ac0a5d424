//go:build failpoints

package failpoint

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// EnvDir names a directory. A file there named after a point fires when a process reaches the point, once: an empty one
// kills the process as kill -9 would; one that says "hold" is renamed to <point>.held and keeps the process there until
// that file is taken away. Files let a test arm a point while the process runs.
const EnvDir = "EBB_FAILPOINTS"

// At fires the point if it is armed.
func At(point string) {
	dir := os.Getenv(EnvDir)
	if dir == "" {
		return
	}
	path := filepath.Join(dir, point)
	data, err := os.ReadFile(path)
	if err != nil {
		return
	}
	if strings.TrimSpace(string(data)) == "hold" {
		hold(path)
		return
	}
	if os.Remove(path) == nil {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

func hold(path string) {
	if os.Rename(path, path+".held") != nil {
		return // another process was faster
	}
	for {
		if _, err := os.Stat(path + ".held"); err != nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}
