package shim

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

const prSetNoNewPrivs = 38

// order is a program to execute.
type order struct {
	Path string   `json:"path"`
	Argv []string `json:"argv"`
	Env  []string `json:"env"`
	Dir  string   `json:"dir"`
	User *User    `json:"user,omitempty"`
	Home string   `json:"home,omitempty"` // an absolute path; empty without a home
}

// fork executes the program in a new process. The caller's thread is the one that the kernel knows as its parent.
func (o order) fork(files []uintptr, attr *syscall.SysProcAttr) (int, error) {
	dir, env := o.Dir, o.Env
	if o.Home != "" {
		env = withDefault(env, "HOME", o.Home)
	}
	if o.Home != "" && dir == "" {
		// Nothing on the way to the home has to be open to its user.
		home, err := os.Open(o.Home)
		if err != nil {
			return 0, err
		}
		defer home.Close()
		dir = fmt.Sprintf("/proc/self/fd/%d", home.Fd())
	}
	if o.User != nil {
		attr.Credential = &syscall.Credential{Uid: o.User.UID, Gid: o.User.GID, Groups: o.User.Groups}
		runtime.LockOSThread() // the attribute is of the thread and passed on to the child; both callers have locked it for good
		defer runtime.UnlockOSThread()
		if _, _, errno := syscall.RawSyscall6(syscall.SYS_PRCTL, prSetNoNewPrivs, 1, 0, 0, 0, 0); errno != 0 {
			return 0, os.NewSyscallError("prctl no_new_privs", errno)
		}
	}
	return syscall.ForkExec(o.Path, o.Argv, &syscall.ProcAttr{Dir: dir, Env: env, Files: files, Sys: attr})
}

// moveHome lets the program of this mount namespace find its home at HomePath. Where that cannot be had, it stays where it is.
func (o *order) moveHome() {
	if o.Home == "" || os.MkdirAll(HomePath, 0o755) != nil {
		return
	}
	if syscall.Mount(o.Home, HomePath, "", syscall.MS_BIND, "") == nil {
		o.Home = HomePath
	}
}

// makeHome makes the directory and gives it to the user. It returns its absolute path.
func makeHome(name string, u User) (string, error) {
	if err := os.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	info, err := os.Lstat(name)
	if err != nil {
		return "", err
	}
	if !info.IsDir() {
		return "", fmt.Errorf("%s is not a directory: remove it", name)
	}
	if err := os.Lchown(name, int(u.UID), int(u.GID)); err != nil {
		return "", err
	}
	return filepath.Abs(name)
}

// withDefault adds a variable unless it is there.
func withDefault(env []string, name, value string) []string {
	for _, kv := range env {
		if strings.HasPrefix(kv, name+"=") {
			return env
		}
	}
	return append(env, name+"="+value)
}

// stoppedAt is the first directory on a path, or the file at its end, that the modes keep the user from entering or executing; empty if
// they let it pass.
func (u User) stoppedAt(path string) string {
	if path == "" {
		return ""
	}
	at := "/"
	for _, name := range strings.Split(filepath.Clean(path), "/") {
		at = filepath.Join(at, name)
		info, err := os.Stat(at)
		if err != nil {
			return ""
		}
		owner, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return ""
		}
		bit := os.FileMode(0o001)
		switch {
		case owner.Uid == u.UID:
			bit = 0o100
		case owner.Gid == u.GID || slices.Contains(u.Groups, owner.Gid):
			bit = 0o010
		}
		if u.UID != 0 && info.Mode()&bit == 0 {
			return at
		}
	}
	return ""
}
