package shim

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/ebb-dev/ebb/internal/atomicfile"
)

// MarkerEnv is the environment variable that identifies the processes of an instance.
const MarkerEnv = "EBB_SHIM_INSTANCE"

// Defaults of a spec.
const (
	DefaultGrace       = 10 * time.Second
	DefaultLogPath     = "out.log"
	DefaultLogMaxBytes = 10 << 20
	DefaultLogMaxFiles = 3
	DefaultPath        = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// The files of an instance directory.
const (
	specName    = "spec.json"
	stateName   = "state.json"
	lockName    = "lock"
	socketName  = "sock"
	shimLogName = "shim.log"
)

const (
	minLogBytes  = 4 << 10
	maxSpecBytes = 4 << 20
)

var instancePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// Spec is a program to run.
type Spec struct {
	// Instance names this run of the program. It must be unique on the machine, for processes are found and killed
	// by it; Start generates one if it is empty.
	Instance string `json:"instance"`
	// Command is a path, or a name that is looked up in the PATH of Env. A relative path begins at WorkingDir, or at "/" if that is empty.
	Command string   `json:"command"`
	Args    []string `json:"args,omitempty"`
	// Env is the whole environment of the program, as KEY=value; nothing of the node's is added but MarkerEnv.
	Env []string `json:"env,omitempty"`
	// WorkingDir defaults to Home, or to "/" without one.
	WorkingDir string  `json:"workingDir,omitempty"`
	Log        LogSpec `json:"log"`
	// Grace is how long the program has after SIGTERM when it is stopped without a grace of its own, and how long
	// processes have that it leaves behind when it ends. Zero is DefaultGrace.
	Grace time.Duration `json:"grace,omitempty"`
	// Namespace gives the program a PID namespace of its own, so that all its processes end with the shim. See ProbeNamespaces.
	Namespace bool `json:"namespace,omitempty"`
	// User is who the program runs as; nil is the shim's own user. The program then gains no privileges by executing files
	// (no_new_privs), and the executable and the working directory must be accessible to that user.
	User *User `json:"user,omitempty"`
	// Home is a directory, relative to the instance directory, that is made for User, who alone may read it. The program's
	// HOME names it, and it is the default of WorkingDir. With Namespace the program finds it at HomePath.
	Home string `json:"home,omitempty"`
	// ShimLogFormat is how the shim itself writes to its log: json, or text.
	ShimLogFormat string `json:"shimLogFormat,omitempty"`
	// Deadline is the first one. A program whose TermAt has passed is not started.
	Deadline Deadline `json:"deadline"`
}

// User is a user of the machine by numbers.
type User struct {
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"`
}

// HomePath is where a program with a namespace and a home finds its home, so that the path is the same on every node, and nothing
// on the way to it has to be open to the program's user.
const HomePath = "/run/ebb/home"

// LogSpec is where the program's standard output and error go, together and in order.
type LogSpec struct {
	// Path defaults to DefaultLogPath; a relative one begins at the instance directory. Older files are Path.1, …
	Path string `json:"path,omitempty"`
	// MaxBytes is the size at which a file is rotated.
	MaxBytes int64 `json:"maxBytes,omitempty"`
	// MaxFiles is how many older files are kept.
	MaxFiles int `json:"maxFiles,omitempty"`
}

// withDefaults fills in what was left out.
func (s Spec) withDefaults() Spec {
	if s.Instance == "" {
		s.Instance = newInstance()
	}
	if s.Home == "" {
		s.WorkingDir = orDefault(s.WorkingDir, "/")
	}
	s.Grace = orDefault(s.Grace, DefaultGrace)
	s.Log.Path = orDefault(s.Log.Path, DefaultLogPath)
	s.Log.MaxBytes = orDefault(s.Log.MaxBytes, DefaultLogMaxBytes)
	s.Log.MaxFiles = orDefault(s.Log.MaxFiles, DefaultLogMaxFiles)
	return s
}

func orDefault[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

func newInstance() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// Validate checks the spec as far as possible without the machine it runs on.
func (s Spec) Validate() error {
	s = s.withDefaults()
	switch {
	case strings.TrimSpace(s.Command) == "":
		return invalid("command is empty: set the program to run")
	case !instancePattern.MatchString(s.Instance):
		return invalid("instance %q: use up to 128 letters, digits, '.', '_' and '-'", s.Instance)
	case s.Grace < 0:
		return invalid("grace %v is negative: omit it for the default of %v", s.Grace, DefaultGrace)
	case s.Home != "" && (!filepath.IsLocal(s.Home) || s.User == nil):
		return invalid("home %q: use a path below the instance directory, and set a user", s.Home)
	case s.WorkingDir != "" && !filepath.IsAbs(s.WorkingDir):
		return invalid("workingDir %q is relative: use an absolute path", s.WorkingDir)
	case s.Log.MaxBytes < minLogBytes:
		return invalid("log.maxBytes %d: use at least %d", s.Log.MaxBytes, minLogBytes)
	case s.Log.MaxFiles < 1:
		return invalid("log.maxFiles %d: use at least 1", s.Log.MaxFiles)
	case !s.Deadline.Valid():
		return invalid("deadline %+v: set termAt, and killAt not before it", s.Deadline)
	}
	return s.validateStrings()
}

func (s Spec) validateStrings() error {
	for _, v := range append([]string{s.Command, s.WorkingDir, s.Log.Path, s.Home}, s.Args...) {
		if strings.ContainsRune(v, 0) {
			return invalid("%q contains a NUL byte: remove it", v)
		}
	}
	for i, kv := range s.Env {
		// The value may be a secret, so only the place is named.
		if strings.IndexByte(kv, '=') < 1 || strings.ContainsRune(kv, 0) {
			return invalid("env entry %d must be KEY=value and contain no NUL byte", i)
		}
	}
	return nil
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalidSpec}, args...)...)
}

// marker is the environment entry that all processes of the instance carry.
func marker(instance string) string { return MarkerEnv + "=" + instance }

// environ is the program's whole environment. A marker that came with Env is that of a shim further out; this
// program's processes remain its descendants, so it can go.
func (s Spec) environ() []string {
	env := []string{marker(s.Instance)}
	for _, kv := range s.Env {
		if !strings.HasPrefix(kv, MarkerEnv+"=") {
			env = append(env, kv)
		}
	}
	return env
}

// path is the PATH of the program, not of the shim.
func (s Spec) path() string {
	path := DefaultPath
	for _, kv := range s.Env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = v
		}
	}
	return path
}

// resolve returns the executable's path, or an error that says what to do.
func (s Spec) resolve() (string, error) {
	if s.WorkingDir != "" {
		if info, err := os.Stat(s.WorkingDir); err != nil || !info.IsDir() {
			return "", fmt.Errorf("workingDir %q is not a directory on this node: create it or change workingDir", s.WorkingDir)
		}
	}
	if strings.ContainsRune(s.Command, '/') {
		path := s.Command
		if !filepath.IsAbs(path) {
			path = filepath.Join("/", s.WorkingDir, path)
		}
		return path, executable(path)
	}
	return s.lookPath()
}

func (s Spec) lookPath() (string, error) {
	var denied error
	for _, dir := range filepath.SplitList(s.path()) {
		path := filepath.Join(orDefault(dir, "."), s.Command)
		if !filepath.IsAbs(path) {
			path = filepath.Join("/", s.WorkingDir, path)
		}
		err := executable(path)
		if err == nil {
			return path, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			denied = err
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", fmt.Errorf("command %q not found in PATH %q: install it on this node or give its full path: %w",
		s.Command, s.path(), fs.ErrNotExist)
}

func executable(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("command %q not found: install it on this node or correct the path: %w", path, fs.ErrNotExist)
	case err != nil:
		return fmt.Errorf("command %q: %w", path, err)
	case info.IsDir():
		return fmt.Errorf("command %q is a directory: name an executable file in it", path)
	case info.Mode()&0o111 == 0:
		return fmt.Errorf("command %q is not executable: chmod +x it", path)
	}
	return nil
}

// explainExec returns what to do about an exec that failed although the file is there.
func (s Spec) explainExec(path string, err error) error {
	switch {
	case errors.Is(err, syscall.EACCES) && s.User != nil:
		const remedy = `open it to that user, or let another one run the program: user "@node" is the node's own`
		if at := s.User.stoppedAt(s.WorkingDir); at != "" {
			return fmt.Errorf("workingDir %q: user %d may not enter %q: %s: %w", s.WorkingDir, s.User.UID, at, remedy, err)
		}
		if at := s.User.stoppedAt(path); at != "" {
			return fmt.Errorf("command %q: user %d may not enter or execute %q: %s: %w", path, s.User.UID, at, remedy, err)
		}
		return fmt.Errorf("command %q may not be executed by user %d: check modes and mount options: %w", path, s.User.UID, err)
	case errors.Is(err, syscall.ENOEXEC):
		return fmt.Errorf("command %q is neither a binary of this machine nor a script with a #! line: %w", path, err)
	case errors.Is(err, syscall.ENOENT):
		return fmt.Errorf("command %q needs an interpreter or loader that is missing: check its #! line: %w", path, err)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("command %q may not be executed by this user: check modes and mount options: %w", path, err)
	case errors.Is(err, syscall.EAGAIN):
		return fmt.Errorf("command %q: this user has too many processes: raise the limit or stop some: %w", path, err)
	}
	return fmt.Errorf("command %q: %w", path, err)
}

func readSpec(dir string) (Spec, error) {
	var s Spec
	f, err := os.Open(filepath.Join(dir, specName))
	if err != nil {
		return s, err
	}
	defer f.Close()
	if err := json.NewDecoder(io.LimitReader(f, maxSpecBytes)).Decode(&s); err != nil {
		return s, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return s.withDefaults(), s.Validate()
}

func writeSpec(dir string, s Spec) error {
	data, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if len(data) > maxSpecBytes {
		return invalid("%d bytes are more than %d: shorten args or env", len(data), maxSpecBytes)
	}
	return atomicfile.WriteSecret(filepath.Join(dir, specName), data)
}
