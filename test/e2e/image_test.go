package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ebb-dev/ebb/internal/testenv/need"
)

// ociImage is an image in a directory in the OCI layout, as far as a test needs it.
type ociImage struct {
	dir    string
	config struct {
		OS           string `json:"os"`
		Architecture string `json:"architecture"`
		Config       struct {
			User       string
			Entrypoint []string
			WorkingDir string
		} `json:"config"`
	}
	layers []string // digests
}

// blob reads what a digest stands for.
func (i ociImage) blob(t *testing.T, digest string) []byte {
	t.Helper()
	algorithm, sum, _ := strings.Cut(digest, ":")
	data, err := os.ReadFile(filepath.Join(i.dir, "blobs", algorithm, sum))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func readImage(t *testing.T, dir string) ociImage {
	t.Helper()
	type descriptor struct{ MediaType, Digest string }
	read := func(data []byte, into any) {
		t.Helper()
		if err := json.Unmarshal(data, into); err != nil {
			t.Fatal(err)
		}
	}
	image := ociImage{dir: dir}
	index, err := os.ReadFile(filepath.Join(dir, "index.json"))
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Manifests []descriptor }
	read(index, &list)
	if len(list.Manifests) != 1 {
		t.Fatalf("the index has %d images", len(list.Manifests))
	}
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	read(image.blob(t, list.Manifests[0].Digest), &manifest)
	read(image.blob(t, manifest.Config.Digest), &image.config)
	for _, layer := range manifest.Layers {
		image.layers = append(image.layers, layer.Digest)
	}
	return image
}

// unpack writes the files of all layers below a directory, as a container engine does.
func (i ociImage) unpack(t *testing.T, root string) {
	t.Helper()
	for _, digest := range i.layers {
		var r io.Reader = bytes.NewReader(i.blob(t, digest))
		if z, err := gzip.NewReader(r); err == nil {
			r = z
		} else {
			r = bytes.NewReader(i.blob(t, digest))
		}
		for files := tar.NewReader(r); ; {
			h, err := files.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(root, filepath.Clean("/"+h.Name))
			switch h.Typeflag {
			case tar.TypeDir:
				err = os.MkdirAll(path, h.FileInfo().Mode().Perm())
			case tar.TypeReg:
				var data []byte
				if data, err = io.ReadAll(files); err == nil {
					err = errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, data, h.FileInfo().Mode().Perm()), os.Chown(path, h.Uid, h.Gid))
				}
			default:
				err = fmt.Errorf("%s is of type %c", h.Name, h.Typeflag)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

// container is the root file system of the image with what a kubelet adds: /proc, /dev, and the data directory. The root cannot be written.
type container struct {
	root string
	user uint32
}

func (i ociImage) container(t *testing.T) container {
	t.Helper()
	root := t.TempDir()
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	i.unpack(t, root)
	mount := func(source, target string, flags ...uintptr) {
		t.Helper()
		for n, flag := range flags {
			if err := unix.Mount(source, target, "", flag, ""); err != nil {
				t.Fatalf("mount %s: %v", target, err)
			}
			if n == 0 {
				t.Cleanup(func() {
					if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
						t.Errorf("unmount %s: %v", target, err)
					}
				})
			}
		}
	}
	data := filepath.Join(t.TempDir(), "data")
	for _, dir := range []string{data, filepath.Join(root, "proc"), filepath.Join(root, "dev"), filepath.Join(root, "var", "lib", "ebb")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	mount(root, root, unix.MS_BIND, unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY)
	mount("/proc", filepath.Join(root, "proc"), unix.MS_BIND)
	mount("/dev", filepath.Join(root, "dev"), unix.MS_BIND)
	mount(data, filepath.Join(root, "var", "lib", "ebb"), unix.MS_BIND)
	name, _, _ := strings.Cut(i.config.Config.User, ":")
	user, err := strconv.ParseUint(name, 10, 32)
	if err != nil {
		t.Fatalf("the user of the image is %q", i.config.Config.User)
	}
	return container{root: root, user: uint32(user)}
}

// command is the entrypoint with arguments, run as a user.
func (c container) command(user uint32, entrypoint string, args ...string) *exec.Cmd {
	cmd := exec.Command(entrypoint, args...)
	cmd.Path, cmd.Dir, cmd.Env = entrypoint, "/", []string{}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: c.root, Credential: &syscall.Credential{Uid: user, Gid: user, NoSetGroups: user == 0}, Setpgid: true}
	return cmd
}

// The image of `make image` runs: its entrypoint is there, for the user and the read-only root of the manifests, and needs nothing else.
func TestTheImageRuns(t *testing.T) {
	beside(t, light)
	need.Root(t, "run the image in a root directory of its own")
	dir := t.TempDir()
	program, out := filepath.Join(dir, "ebb"), filepath.Join(dir, "image")
	for _, step := range []struct {
		dir  string
		args []string
	}{
		{filepath.Join("..", ".."), []string{"build", "-trimpath", "-ldflags", "-s -w -X main.version=v0-test", "-o", program, "./cmd/ebb"}},
		{filepath.Join("..", "tools"), []string{"run", "./image", "--program", program, "--out", out, "--version", "v0-test", "--arch", runtime.GOARCH}},
	} {
		cmd := exec.Command("go", step.args...)
		cmd.Dir, cmd.Env = step.dir, append(os.Environ(), "CGO_ENABLED=0")
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(step.args, " "), err, text)
		}
	}
	image := readImage(t, out)
	if c := image.config; c.OS != "linux" || c.Architecture != runtime.GOARCH || c.Config.User != "65532:65532" || len(c.Config.Entrypoint) != 1 || len(image.layers) != 1 {
		t.Fatalf("the image is %+v", image)
	}
	entrypoint := image.config.Config.Entrypoint[0]
	c := image.container(t)
	run := func(user uint32, args ...string) string {
		t.Helper()
		text, err := c.command(user, entrypoint, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", entrypoint, strings.Join(args, " "), err, text)
		}
		return string(text)
	}
	if got := run(c.user, "version"); !strings.Contains(got, "v0-test") {
		t.Errorf("version: %s", got)
	}
	if got := run(c.user, "node", "--help"); !strings.Contains(got, "--kubernetes") {
		t.Errorf("node --help: %s", got)
	}
	// As the init container and then the node do.
	run(0, "prepare", "--data-dir=/var/lib/ebb", "--uid=65532")
	up := c.command(c.user, entrypoint, "up", "--nodes", "2", "--data-dir", "/var/lib/ebb")
	printed := &output{}
	up.Stdout, up.Stderr = printed, printed
	if err := up.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- up.Wait() }()
	ended := false
	t.Cleanup(func() {
		if !ended {
			_ = syscall.Kill(-up.Process.Pid, syscall.SIGKILL)
			<-done
		}
	})
	untilSo(t, func() string { return "two nodes to be ready:\n" + printed.String() }, func() bool { return hasLine(printed.String(), "ready") })
	status := run(c.user, "status", "--kubeconfig", "/var/lib/ebb/kubeconfig")
	if !strings.Contains(status, "2 nodes") {
		t.Errorf("status: %s", status)
	}
	_ = up.Process.Signal(syscall.SIGTERM)
	if err := <-done; err != nil {
		t.Errorf("ebb up: %v\n%s", err, printed)
	}
	ended = true
	if left, err := os.ReadDir(c.root); err != nil || len(left) != 4 {
		t.Errorf("the root has %d entries: %v", len(left), err)
	}
}
