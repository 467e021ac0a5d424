package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/testenv"
	"github.com/ebb-dev/ebb/internal/testenv/need"
)

const (
	measuredSize = 256 << 20
	// measuredRounds is how often every server takes its turn, after another one each time. The best turn counts, so that whatever else the
	// machine does matters less.
	measuredRounds = 4
)

// nbdServer is something that fio measures, with the processes that it consists of.
type nbdServer struct {
	name, uri string
	pids      []int
}

// turn is what fio measured of one server: bytes a second, and the CPU time of the server's processes for each request.
type turn struct {
	rate float64
	cpu  time.Duration
}

// BenchmarkVolume measures fio against volumes with one and three replicas, all on one disk, and beside them qemu-nbd and nbdkit with a file
// that has the same content. Everyone keeps writes in the page cache until fio flushes, once at the end of a turn. The rates mean little on a
// machine that does something else; the log has the rates of all turns and the load. The CPU time for a request suffers less.
func BenchmarkVolume(b *testing.B) {
	need.Programs(b, "fio", "nbdcopy", "qemu-nbd", "nbdkit")
	c := startCluster(b, testenv.EbbPlain(b), 3)
	image := filepath.Join(b.TempDir(), "image")
	writeRandom(b, image, measuredSize)
	servers := []nbdServer{
		startNBDServer(b, "qemu-nbd", image, func(socket, file string) *exec.Cmd {
			return exec.Command("qemu-nbd", "-k", socket, "-f", "raw", "-x", "vol", "-t", "-e", "16", "--discard=unmap", "--cache=writeback", file)
		}),
		startNBDServer(b, "nbdkit", image, func(socket, file string) *exec.Cmd {
			return exec.Command("nbdkit", "-f", "-U", socket, "file", file)
		}),
	}
	var nodes []int
	for _, name := range trio {
		nodes = append(nodes, c.pid(name))
	}
	for _, replicas := range []int{1, 3} {
		v := c.serveVolume(fmt.Sprintf("with-%d", replicas), measuredSize, replicas, "n1")
		if replicas == 1 {
			v.attachTo(v.nodeOfMember())
		}
		runProgram(b, "nbdcopy", "--flush", image, v.uri)
		servers = append(servers, nbdServer{fmt.Sprintf("ebb-%d", replicas), v.uri, nodes})
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
			turns := map[string][]turn{}
			for b.Loop() {
				for round := range measuredRounds {
					for i := range servers {
						s := servers[(i*(1+2*(round%2))+round)%len(servers)] // what one leaves to be written back is not always in the way of the same other
						turns[s.name] = append(turns[s.name], measureTurn(b, s, load.args))
					}
				}
			}
			best := map[string]turn{}
			for _, s := range servers {
				best[s.name] = bestOf(turns[s.name])
				b.ReportMetric(best[s.name].rate/1e6, s.name+"-MB/s")
				b.ReportMetric(float64(best[s.name].cpu.Nanoseconds())/1e3, s.name+"-cpu-us")
				b.Logf("%s: %s", s.name, ratesOf(turns[s.name]))
			}
			b.ReportMetric(100*best["ebb-1"].rate/best["qemu-nbd"].rate, "ebb-1-%-of-qemu-nbd")
			b.ReportMetric(100*best["ebb-3"].rate/best["qemu-nbd"].rate, "ebb-3-%-of-qemu-nbd")
			b.ReportMetric(100*best["ebb-1"].rate/best["nbdkit"].rate, "ebb-1-%-of-nbdkit")
			b.Logf("load average %s on %d processors", loadAverage(), runtime.NumCPU())
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

// bestOf is the highest rate of all turns, and the lowest CPU time.
func bestOf(turns []turn) turn {
	best := turns[0]
	for _, t := range turns[1:] {
		best = turn{rate: max(best.rate, t.rate), cpu: min(best.cpu, t.cpu)}
	}
	return best
}

func ratesOf(turns []turn) string {
	var rates []string
	for _, t := range turns {
		rates = append(rates, fmt.Sprintf("%.0f", t.rate/1e6))
	}
	return strings.Join(rates, ", ") + " MB/s"
}

// startNBDServer runs an NBD server with a copy of a file.
func startNBDServer(b *testing.B, name, image string, command func(socket, file string) *exec.Cmd) nbdServer {
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
	export := "vol"
	if name == "nbdkit" {
		export = "" // it has one without a name
	}
	return nbdServer{name, "nbd+unix:///" + export + "?socket=" + socket, []int{cmd.Process.Pid}}
}

// measureTurn lets fio use a server for two seconds.
func measureTurn(b *testing.B, s nbdServer, args string) turn {
	b.Helper()
	before := cpuTime(b, s.pids)
	file := filepath.Join(b.TempDir(), "fio.json")
	r, err := runFio(file, s.uri, append(strings.Fields(args), "--size="+strconv.Itoa(measuredSize), "--time_based", "--runtime=2", "--randrepeat=0")...)
	if err != nil {
		b.Fatalf("%s: %v", s.name, err)
	}
	used, side := cpuTime(b, s.pids)-before, r.Jobs[0].Read
	if r.Jobs[0].Write.IOs > 0 {
		side = r.Jobs[0].Write
	}
	return turn{rate: side.BW, cpu: used / time.Duration(max(side.IOs, 1))}
}

// cpuTime is what processes have used of the processors so far.
func cpuTime(b *testing.B, pids []int) time.Duration {
	b.Helper()
	const tick = time.Second / 100 // USER_HZ
	var sum time.Duration
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			b.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), ") ") // the name before may have spaces
		for _, field := range strings.Fields(rest)[11:13] {
			n, err := strconv.ParseInt(field, 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			sum += time.Duration(n) * tick
		}
	}
	return sum
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
	need.Programs(b, "nbdcopy")
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
