package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/testenv"
)

const (
	measuredSize = 256 << 20
	// measuredRounds is how often every server takes its turn. The best turn counts, so that whatever else the machine does matters less.
	measuredRounds = 3
)

// nbdServer is something that fio measures.
type nbdServer struct{ name, uri string }

// BenchmarkVolume measures fio against volumes with one and three replicas, all on one disk, and beside them qemu-nbd and nbdkit with a file
// that has the same content. Everyone keeps writes in the page cache until fio flushes, once at the end of a turn.
func BenchmarkVolume(b *testing.B) {
	needPrograms(b, "fio", "nbdcopy", "qemu-nbd", "nbdkit")
	c := startCluster(b, testenv.EbbPlain(b), 3)
	image := filepath.Join(b.TempDir(), "image")
	writeRandom(b, image, measuredSize)
	servers := []nbdServer{
		{"qemu-nbd", startNBDServer(b, image, func(socket, file string) *exec.Cmd {
			return exec.Command("qemu-nbd", "-k", socket, "-f", "raw", "-x", "vol", "-t", "-e", "16", "--discard=unmap", "--cache=writeback", file)
		})},
		{"nbdkit", startNBDServer(b, image, func(socket, file string) *exec.Cmd {
			return exec.Command("nbdkit", "-f", "-U", socket, "file", file)
		})},
	}
	for _, replicas := range []int{1, 3} {
		v := c.serveVolume(fmt.Sprintf("with-%d", replicas), measuredSize, replicas, "n1")
		if replicas == 1 {
			v.attachTo(v.nodeOfMember())
		}
		runProgram(b, "nbdcopy", "--flush", image, v.uri)
		servers = append(servers, nbdServer{fmt.Sprintf("ebb-%d", replicas), v.uri})
	}
	for _, load := range []struct{ name, args string }{
		{"4k-random-read-depth-1", "--rw=randread --bs=4k --iodepth=1"},
		{"4k-random-write-depth-1", "--rw=randwrite --bs=4k --iodepth=1 --end_fsync=1"},
		{"4k-random-read-depth-32", "--rw=randread --bs=4k --iodepth=32"},
		{"4k-random-write-depth-32", "--rw=randwrite --bs=4k --iodepth=32 --end_fsync=1"},
		{"1M-sequential-read", "--rw=read --bs=1M --iodepth=4"},
		{"1M-sequential-write", "--rw=write --bs=1M --iodepth=4 --end_fsync=1"},
	} {
		b.Run(load.name, func(b *testing.B) {
			best := map[string]float64{}
			for b.Loop() {
				for range measuredRounds {
					for _, s := range servers {
						best[s.name] = max(best[s.name], fioRate(b, s, load.args))
					}
				}
			}
			for name, rate := range best {
				b.ReportMetric(rate/1e6, name+"-MB/s")
			}
			b.ReportMetric(100*best["ebb-1"]/best["qemu-nbd"], "ebb-1-%-of-qemu-nbd")
			b.ReportMetric(100*best["ebb-3"]/best["qemu-nbd"], "ebb-3-%-of-qemu-nbd")
			b.Logf("load average %s", loadAverage())
		})
	}
}

// nodeOfMember is the node of the volume's first member.
func (v *servedVolume) nodeOfMember() string {
	v.t.Helper()
	r := &v1alpha1.Replica{}
	if err := v.client.Get(context.Background(), types.NamespacedName{Namespace: "default", Name: v.status().Members[0]}, r); err != nil {
		v.t.Fatal(err)
	}
	return r.Spec.NodeName
}

// startNBDServer runs an NBD server with a copy of a file, and returns its URI.
func startNBDServer(b *testing.B, image string, command func(socket, file string) *exec.Cmd) string {
	b.Helper()
	dir := b.TempDir()
	file, socket := filepath.Join(dir, "image"), filepath.Join(dir, "socket")
	runProgram(b, "cp", image, file)
	runProgram(b, "sync", file)
	cmd := command(socket, file)
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // how it ended does not matter
	})
	until(b, cmd.Path+" to listen", func() bool { _, err := os.Stat(socket); return err == nil })
	if strings.HasSuffix(cmd.Path, "nbdkit") {
		return "nbd+unix:///?socket=" + socket
	}
	return "nbd+unix:///vol?socket=" + socket
}

// fioRate is how many bytes a second fio moves.
func fioRate(b *testing.B, s nbdServer, args string) float64 {
	b.Helper()
	file := filepath.Join(b.TempDir(), "fio.json")
	r, err := runFio(file, s.uri, append(strings.Fields(args), "--size="+strconv.Itoa(measuredSize), "--time_based", "--runtime=2", "--randrepeat=0")...)
	if err != nil {
		b.Fatalf("%s: %v", s.name, err)
	}
	return max(r.Jobs[0].Read.BW, r.Jobs[0].Write.BW)
}

func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(text))[:3], " ")
}

// BenchmarkVolumeRebuild is how fast a replica is built, on the disk on which the other one is too: of random data, and of 4 KiB of data and
// a hole of 4 KiB in turn. The rate counts the whole volume, holes too.
func BenchmarkVolumeRebuild(b *testing.B) {
	needPrograms(b, "nbdcopy")
	for _, shape := range []struct {
		name string
		step int64
	}{{"dense", 4096}, {"every-other-4k", 8192}} {
		b.Run(shape.name, func(b *testing.B) {
			c := startCluster(b, testenv.EbbPlain(b), 2)
			v := c.serveVolume("data", measuredSize, 2, "n1")
			runProgram(b, "nbdcopy", "--flush", "--destination-is-zero", steppedImage(b, shape.step), v.uri)
			var took time.Duration
			n := 0
			for b.Loop() {
				n++
				took += v.rebuildTime()
			}
			b.ReportMetric(float64(n)*measuredSize/1e6/took.Seconds(), "MB/s")
			b.Logf("load average %s", loadAverage())
		})
	}
}

// steppedImage makes a file with 4 KiB of random data in every step, and holes between.
func steppedImage(b *testing.B, step int64) string {
	b.Helper()
	path, random := filepath.Join(b.TempDir(), "image"), filepath.Join(b.TempDir(), "random")
	writeRandom(b, random, measuredSize)
	data, err := os.ReadFile(random)
	if err != nil {
		b.Fatal(err)
	}
	file, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(measuredSize); err != nil {
		b.Fatal(err)
	}
	for off := int64(0); off < measuredSize; off += step {
		if _, err := file.WriteAt(data[off:off+4096], off); err != nil {
			b.Fatal(err)
		}
	}
	return path
}

// rebuildTime removes the replica that the engine is not beside, and returns how long it takes to build the one that follows it: from when
// the engine reports that it is at it until that is a member.
func (v *servedVolume) rebuildTime() time.Duration {
	v.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	w, err := v.client.Watch(ctx, &v1alpha1.VolumeList{}, client.InNamespace("default"))
	if err != nil {
		v.t.Fatal(err)
	}
	defer w.Stop()
	var list v1alpha1.ReplicaList
	if err := v.client.List(ctx, &list); err != nil {
		v.t.Fatal(err)
	}
	s := v.status()
	for _, r := range list.Items {
		if slices.Contains(s.Members, r.Name) && r.Spec.NodeName != s.AttachedTo {
			v.must("volume", "replica", "rm", r.Name, "--yes")
		}
	}
	var building string
	var began time.Time
	for event := range w.ResultChan() {
		o, ok := event.Object.(*v1alpha1.Volume)
		if !ok || o.Status.Engine == nil {
			continue
		}
		if building == "" && len(o.Status.Engine.Rebuilds) > 0 && o.Status.Engine.Rebuilds[0].Error == "" {
			building, began = o.Status.Engine.Rebuilds[0].Replica, time.Now()
		}
		if building != "" && slices.Contains(o.Status.Members, building) {
			return time.Since(began)
		}
	}
	v.t.Fatal("the replica was not built")
	return 0
}
