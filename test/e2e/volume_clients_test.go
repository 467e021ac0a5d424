package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/testenv"
	"github.com/ebb-dev/ebb/internal/testenv/need"
)

// servedVolume is a volume that programs of other people use.
type servedVolume struct {
	*cluster
	name string
	size int64
	uri  string
}

// TestRealClientsUseVolumes has the usual NBD clients use a volume as it is, while a replica is built, and while a node is drained.
func TestRealClientsUseVolumes(t *testing.T) {
	beside(t, heavy)
	need.Programs(t, "nbdinfo", "nbdcopy", "qemu-img", "qemu-io", "fio")
	c := startNodes(t, newCluster(t, testenv.Ebb(t)), 4)
	for _, replicas := range []int{1, 3} {
		c.step(t, fmt.Sprintf("with %d replicas", replicas), func(t *testing.T) {
			v := c.serveVolume(fmt.Sprintf("plain-%d", replicas), 64<<20, replicas, "n1")
			v.describedByNbdinfo()
			v.copiedByNbdcopy()
			v.convertedByQemuImg()
			v.patternsByQemuIO()
			if err := v.verifiedByFio(filepath.Join(t.TempDir(), "fio.json"), 1); err != nil {
				t.Error(err)
			}
		})
	}
	c.step(t, "while a replica is built", func(*testing.T) { c.clientsDuringRebuild() })
	c.step(t, "while a node is drained", func(*testing.T) { c.clientsDuringDrain() })
}

// TestAFileSystemOutlivesADrain keeps a file system in a volume whose node is drained.
func TestAFileSystemOutlivesADrain(t *testing.T) {
	beside(t, light)
	need.Programs(t, "nbdcopy", "mke2fs", "e2fsck", "debugfs")
	c := startNodes(t, newCluster(t, testenv.Ebb(t)), 3)
	c.must("settings", "set", "nodeDrainPolicy=block-for-eviction")
	followers := others(trio, c.awaitLeader("")) // a coordinator is not drained
	v := c.serveVolume("files", 32<<20, 2, followers[0])
	files, image, after, out := t.TempDir(), filepath.Join(t.TempDir(), "image"), filepath.Join(t.TempDir(), "image"), t.TempDir()
	for i := range 20 {
		writeRandom(t, filepath.Join(files, fmt.Sprintf("file-%d", i)), 1000+i*30_000)
	}
	runProgram(t, "mke2fs", "-q", "-t", "ext4", "-d", files, image, strconv.FormatInt(v.size>>10, 10))
	runProgram(t, "nbdcopy", "--flush", image, v.uri)

	// Nobody is connected, so the volume is detached, and its replica, if the node has one, is built elsewhere.
	c.ask("away", followers[0])
	c.awaitEnd("away", v1alpha1.DrainComplete, v1alpha1.ReasonDrained)
	if s := v.status(); s.AttachedTo != "" || s.Robustness != v1alpha1.VolumeHealthy {
		t.Errorf("after the drain the volume is %s and attached to %q", s.Robustness, s.AttachedTo)
	}
	v.attachTo(followers[1])
	runProgram(t, "nbdcopy", v.uri, after)
	runProgram(t, "e2fsck", "-fn", after)
	runProgram(t, "debugfs", "-R", "rdump / "+out, after)
	entries, err := os.ReadDir(files)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		sameContent(t, filepath.Join(files, e.Name()), filepath.Join(out, e.Name()))
	}
	sameContent(t, image, after)
}

// tryProgram runs a program to its end.
func tryProgram(program string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", program, strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// runProgram runs a program that has to succeed.
func runProgram(t testing.TB, program string, args ...string) string {
	t.Helper()
	out, err := tryProgram(program, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func writeRandom(t testing.TB, path string, size int) {
	t.Helper()
	data := make([]byte, size)
	_, _ = rand.Read(data) // it never fails
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func sameContent(t testing.TB, a, b string) {
	t.Helper()
	one, err := os.ReadFile(a)
	if err != nil {
		t.Fatal(err)
	}
	two, err := os.ReadFile(b)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(one, two) {
		t.Errorf("%s (%d bytes) and %s (%d bytes) differ", a, len(one), b, len(two))
	}
}

// step runs a part of a test in the cluster.
func (c *cluster) step(t *testing.T, name string, do func(*testing.T)) {
	t.Run(name, func(t *testing.T) {
		c.t = t
		defer func() { c.t = c.whole }()
		do(t)
	})
}

// serveVolume creates a volume, attaches it to a node and waits until clients can connect. It is removed with the step.
func (c *cluster) serveVolume(name string, size int64, replicas int, node string) *servedVolume {
	c.t.Helper()
	v := &servedVolume{cluster: c, name: name, size: size}
	c.must("volume", "create", name, "--size", strconv.FormatInt(size, 10), "--replicas", strconv.Itoa(replicas), "--wait", patience.String())
	if b, ok := c.t.(interface{ Cleanup(func()) }); ok && c.t != c.whole {
		b.Cleanup(func() { c.run("volume", "rm", name, "--yes") })
	}
	v.attachTo(node)
	return v
}

func (v *servedVolume) attachTo(node string) {
	v.t.Helper()
	v.uri = strings.TrimSpace(v.must("volume", "attach", v.name, node, "--wait", patience.String()))
}

func (v *servedVolume) status() v1alpha1.VolumeStatus {
	v.t.Helper()
	o := &v1alpha1.Volume{}
	if err := v.client.Get(context.Background(), types.NamespacedName{Namespace: "default", Name: v.name}, o); err != nil {
		v.t.Fatal(err)
	}
	return o.Status
}

// awaitMembers waits until the volume has so many members and nothing is built.
func (v *servedVolume) awaitMembers(n int) {
	v.t.Helper()
	until(v.t, fmt.Sprintf("volume %s to have %d members", v.name, n), func() bool {
		s := v.status()
		// A replica on a node that is dead is tried again and again.
		return len(s.Members) == n && (s.Engine == nil || !slices.ContainsFunc(s.Engine.Rebuilds, func(r v1alpha1.VolumeRebuild) bool { return r.Error == "" }))
	})
}

// nodeOfReplica is a node with a replica and without the engine.
func (v *servedVolume) nodeOfReplica(not ...string) string {
	v.t.Helper()
	var list v1alpha1.ReplicaList
	if err := v.client.List(context.Background(), &list); err != nil {
		v.t.Fatal(err)
	}
	s := v.status()
	for _, r := range list.Items {
		if r.Spec.VolumeName == v.name && r.Spec.NodeName != s.AttachedTo && slices.Contains(s.Members, r.Name) && !slices.Contains(not, r.Spec.NodeName) {
			return r.Spec.NodeName
		}
	}
	v.t.Fatalf("volume %s has no replica away from its engine", v.name)
	return ""
}

func (v *servedVolume) describedByNbdinfo() {
	v.t.Helper()
	type export struct {
		Name     string   `json:"export-name"`
		Size     int64    `json:"export-size"`
		Contexts []string `json:"contexts"`
		Flush    bool     `json:"can_flush"`
		FUA      bool     `json:"can_fua"`
		Trim     bool     `json:"can_trim"`
		Zero     bool     `json:"can_zero"`
		Multi    bool     `json:"can_multi_conn"`
		ReadOnly bool     `json:"is_read_only"`
	}
	info := decode[struct{ Exports []export }](v.t, runProgram(v.t, "nbdinfo", "--json", v.uri))
	want := fmt.Sprintf("[{%s %d [base:allocation] true true true true true false}]", v.name, v.size)
	if got := fmt.Sprint(info.Exports); got != want {
		v.t.Errorf("nbdinfo says %s, want %s", got, want)
	}
	if got := strings.TrimSpace(runProgram(v.t, "nbdinfo", "--size", v.uri)); got != strconv.FormatInt(v.size, 10) {
		v.t.Errorf("nbdinfo --size says %s, want %d", got, v.size)
	}
}

// sparseImage makes a file of the volume's size: 1 MiB of data in every 4 MiB.
func (v *servedVolume) sparseImage() string {
	v.t.Helper()
	path := filepath.Join(v.t.TempDir(), "image")
	file, err := os.Create(path)
	if err != nil {
		v.t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(v.size); err != nil {
		v.t.Fatal(err)
	}
	data := make([]byte, 1<<20)
	for off := int64(0); off < v.size; off += 4 << 20 {
		_, _ = rand.Read(data) // it never fails
		if _, err := file.WriteAt(data, off); err != nil {
			v.t.Fatal(err)
		}
	}
	return path
}

func (v *servedVolume) copiedByNbdcopy() {
	v.t.Helper()
	in, out := v.sparseImage(), filepath.Join(v.t.TempDir(), "out")
	runProgram(v.t, "nbdcopy", "--flush", in, v.uri)
	runProgram(v.t, "nbdcopy", v.uri, out)
	sameContent(v.t, in, out)
	if got := runProgram(v.t, "nbdinfo", "--map", v.uri); !strings.Contains(got, "hole") || !strings.Contains(got, "data") {
		v.t.Errorf("nbdinfo --map says\n%s", got)
	}
}

func (v *servedVolume) convertedByQemuImg() {
	v.t.Helper()
	in, out := v.sparseImage(), filepath.Join(v.t.TempDir(), "out.qcow2")
	runProgram(v.t, "qemu-img", "convert", "-n", "-f", "raw", "-O", "raw", in, v.uri)
	runProgram(v.t, "qemu-img", "compare", "-f", "raw", "-F", "raw", in, v.uri)
	runProgram(v.t, "qemu-img", "convert", "-f", "raw", "-O", "qcow2", v.uri, out)
	runProgram(v.t, "qemu-img", "compare", "-f", "raw", "-F", "qcow2", v.uri, out)
	runProgram(v.t, "qemu-io", "-f", "raw", "-c", "write -P 0x5a 5M 4k", v.uri)
	if out, err := tryProgram("qemu-img", "compare", "-f", "raw", "-F", "raw", in, v.uri); err == nil {
		v.t.Errorf("qemu-img compare finds no difference where there is one:\n%s", out)
	}
}

func (v *servedVolume) patternsByQemuIO() {
	v.t.Helper()
	commands := []string{
		"write -P 0x11 0 1M", "write -P 0x22 512 512", "write -f -P 0x33 1000k 100k", "aio_write -P 0x44 2M 3M", "aio_write -P 0x55 8M 1M", "aio_flush", "flush",
		"read -P 0x11 0 512", "read -P 0x22 512 512", "read -P 0x11 1k 999k", "read -P 0x33 1000k 100k", "read -P 0x44 2M 3M", "read -P 0x55 8M 1M",
		"write -z 2M 1M", "discard 8M 1M", "flush", "read -P 0 2M 1M", "read -P 0x44 3M 2M",
	}
	var args []string
	for _, c := range commands {
		args = append(args, "-c", c)
	}
	if out := runProgram(v.t, "qemu-io", slices.Concat([]string{"-f", "raw"}, args, []string{v.uri})...); strings.Contains(out, "verification failed") {
		v.t.Errorf("qemu-io read something else than it wrote:\n%s", out)
	}
}

// fioReport is what fio says of one job, in JSON.
type fioReport struct {
	Jobs []struct {
		Error int `json:"error"`
		Read  fioSide
		Write fioSide
	}
}

type fioSide struct {
	Bytes int64   `json:"io_bytes"`
	IOs   int64   `json:"total_ios"`
	BW    float64 `json:"bw_bytes"`
}

// runFio runs fio against a URI and reads its report, which goes to a file because fio prints warnings among it otherwise.
func runFio(file, uri string, args ...string) (fioReport, error) {
	var r fioReport
	base := []string{"--verify_state_save=0", "--name=load", "--ioengine=nbd", "--uri=" + uri, "--output-format=json", "--output=" + file}
	if _, err := tryProgram("fio", append(base, args...)...); err != nil {
		return r, err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("%w in\n%s", err, text)
	}
	if len(r.Jobs) != 1 || r.Jobs[0].Error != 0 {
		return r, fmt.Errorf("fio reports\n%s", text)
	}
	return r, nil
}

// verifiedByFio writes half of the volume at random and reads everything back.
func (v *servedVolume) verifiedByFio(file string, round int) error {
	size := v.size / 2
	r, err := runFio(file, v.uri, "--rw=randwrite", "--bs=4k", "--iodepth=16", "--fsync=256", "--size="+strconv.FormatInt(size, 10), "--io_size=8M",
		"--verify=crc32c", "--verify_fatal=1", "--randseed="+strconv.Itoa(round))
	if err != nil {
		return err
	}
	if j := r.Jobs[0]; j.Write.Bytes < 8<<20 || j.Read.Bytes < 8<<20 {
		return fmt.Errorf("fio wrote %d and verified %d bytes, want 8 MiB of each", j.Write.Bytes, j.Read.Bytes)
	}
	return nil
}

// whileFioVerifies has fio write and verify again and again while something happens, and once more after it.
func (v *servedVolume) whileFioVerifies(something func()) {
	v.t.Helper()
	stop, done, file := make(chan struct{}), make(chan error, 1), filepath.Join(v.t.TempDir(), "fio.json")
	rounds := 0
	go func() {
		var err error
		for last := false; err == nil && !last; {
			select {
			case <-stop:
				last = true
			default:
			}
			rounds++
			err = v.verifiedByFio(file, rounds)
		}
		done <- err
	}()
	defer func() {
		close(stop)
		if err := <-done; err != nil {
			v.t.Error(err)
		}
		v.t.Logf("fio wrote and verified %d times", rounds)
	}()
	something()
	select {
	case err := <-done:
		done <- errors.Join(err, errors.New("fio ended before what it should outlive"))
	default:
	}
}

// clientsDuringRebuild kills a node with a replica and starts it again, so that the replica is built while clients write.
func (c *cluster) clientsDuringRebuild() {
	v := c.serveVolume("rebuilt", 64<<20, 3, "n1")
	runProgram(c.t, "nbdcopy", "--flush", v.sparseImage(), v.uri)
	node := v.nodeOfReplica()
	epoch := c.record(node).Epoch
	v.whileFioVerifies(func() {
		c.signal(node, syscall.SIGKILL)
		v.awaitMembers(2)
		c.startNode(node)
		c.awaitReady(node, epoch+1)
		v.awaitMembers(3)
	})
	v.patternsByQemuIO()
	v.sameOnEveryMember()
}

// clientsDuringDrain drains a node with a replica, which is built elsewhere while clients write.
func (c *cluster) clientsDuringDrain() {
	c.must("settings", "set", "nodeDrainPolicy=block-for-eviction")
	v := c.serveVolume("drained", 64<<20, 3, "n1")
	in, out := v.sparseImage(), filepath.Join(c.t.TempDir(), "out")
	runProgram(c.t, "nbdcopy", "--flush", in, v.uri)
	node := v.nodeOfReplica(c.awaitLeader("")) // a coordinator is not drained
	epoch := c.record(node).Epoch
	v.whileFioVerifies(func() {
		c.ask("away", node)
		c.awaitEnd("away", v1alpha1.DrainComplete, v1alpha1.ReasonDrained)
	})
	if s := v.status(); s.Robustness != v1alpha1.VolumeHealthy || len(s.Members) != 3 || s.AttachedTo != "n1" {
		c.t.Errorf("after the drain the volume is %s with members %v and attached to %q", s.Robustness, s.Members, s.AttachedTo)
	}
	// fio wrote to the first half only.
	runProgram(c.t, "nbdcopy", v.uri, out)
	sameRange(c.t, in, out, v.size/2, v.size)
	c.startNode(node)
	c.awaitReady(node, epoch+1)
}

// sameRange compares a part of two files.
func sameRange(t testing.TB, a, b string, from, to int64) {
	t.Helper()
	var parts [2][]byte
	for i, path := range []string{a, b} {
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		parts[i] = make([]byte, to-from)
		if _, err := file.ReadAt(parts[i], from); err != nil {
			t.Fatal(err)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(parts[0], parts[1]) {
		t.Errorf("%s and %s differ from byte %d to %d", a, b, from, to)
	}
}

// sameOnEveryMember detaches the volume and reads it with each of its replicas as the only one that the engine can be local to: an engine
// prefers the replica on its own node.
func (v *servedVolume) sameOnEveryMember() {
	v.t.Helper()
	dir := v.t.TempDir()
	var first string
	var list v1alpha1.ReplicaList
	if err := v.client.List(context.Background(), &list); err != nil {
		v.t.Fatal(err)
	}
	for _, r := range list.Items {
		if r.Spec.VolumeName != v.name {
			continue
		}
		v.attachTo(r.Spec.NodeName)
		copied := filepath.Join(dir, r.Name)
		runProgram(v.t, "nbdcopy", v.uri, copied)
		if first == "" {
			first = copied
		}
		sameContent(v.t, first, copied)
	}
}
