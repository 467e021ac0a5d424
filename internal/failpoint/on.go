//go:build failpoints

package failpoint

import (
	"os"
	"path/filepath"
	"syscall"
)

// EnvDir names a directory: a file there named after a point kills the process when it reaches the point, once.
const EnvDir = "EBB_FAILPOINTS"

// At kills the process, as kill -9 would, if the point is armed. Arming is a file so that a test can arm a point while
// the process runs; taking the file away makes it fire once.
func At(point string) {
	dir := os.Getenv(EnvDir)
	if dir == "" || os.Remove(filepath.Join(dir, point)) != nil {
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}
