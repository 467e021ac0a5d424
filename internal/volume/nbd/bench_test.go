package nbd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/testenv/need"
)

// BenchmarkBesideOtherServers measures fio against this server, qemu-nbd and nbdkit, with the same file in the page cache, and prints the
// ratio to qemu-nbd, and the CPU time that each server took for a request. Servers take turns, so that whatever else the machine does hits
// all of them; the best of the rounds counts. Run it by hand, with -benchtime=1x; NBD_BENCH_SECONDS and NBD_BENCH_ROUNDS change how long it takes.
func BenchmarkBesideOtherServers(b *testing.B) {
	need.Programs(b, "fio", "qemu-nbd", "nbdkit")
	seconds, rounds := envOr("NBD_BENCH_SECONDS", "2"), 3
	if _, err := fmt.Sscan(envOr("NBD_BENCH_ROUNDS", "3"), &rounds); err != nil {
		b.Fatal(err)
	}
	device := newFileDevice(b, 512<<20)
	fill(b, device)
	s := serve(b, device, Options{})
	servers := []peer{
		{"ebb", s.URI(), os.Getpid()},
		startPeer(b, "qemu-nbd", func(socket string) *exec.Cmd {
			return exec.Command("qemu-nbd", "-k", socket, "-f", "raw", "-x", "vol", "-t", "-e", "16", "--discard=unmap", "--cache=writeback", device.file.Name())
		}),
		startPeer(b, "nbdkit", func(socket string) *exec.Cmd {
			return exec.Command("nbdkit", "-f", "-U", socket, "file", device.file.Name())
		}),
	}
	for _, load := range []struct {
		name string
		args string
	}{
		{"4k random read, depth 1", "--rw=randread --bs=4k --iodepth=1"},
		{"4k random write, depth 1", "--rw=randwrite --bs=4k --iodepth=1"},
		{"4k random read, depth 32", "--rw=randread --bs=4k --iodepth=32"},
		{"4k random write, depth 32", "--rw=randwrite --bs=4k --iodepth=32"},
		{"1 MiB sequential read, depth 4", "--rw=read --bs=1M --iodepth=4"},
		{"1 MiB sequential write, depth 4", "--rw=write --bs=1M --iodepth=4"},
	} {
		if only := os.Getenv("NBD_BENCH_ONLY"); !strings.Contains(load.name, only) {
			continue
		}
		best := map[string]result{}
		for range rounds {
			for _, server := range servers {
				r := measure(b, server, seconds, strings.Fields(load.args))
				if was := best[server.name]; was.bytes > 0 {
					r = result{bytes: max(r.bytes, was.bytes), cpu: min(r.cpu, was.cpu)}
				}
				best[server.name] = r
			}
		}
		ours, theirs := best["ebb"], best["qemu-nbd"]
		b.Logf("%-32s ebb %s  qemu-nbd %s  nbdkit %s  ebb/qemu-nbd %.2f", load.name, ours, theirs, best["nbdkit"], ours.bytes/theirs.bytes)
	}
}

// peer is a server to measure.
type peer struct {
	name, uri string
	pid       int
}

// result of a measurement: bytes per second, and CPU time for each request.
type result struct {
	bytes float64
	cpu   time.Duration
}

func (r result) String() string {
	return fmt.Sprintf("%7.1f MB/s %6.1f µs", r.bytes/1e6, float64(r.cpu)/1e3)
}

// cpuTime is what a process has used so far.
func cpuTime(b *testing.B, pid int) time.Duration {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	var user, system int64
	if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		b.Fatal(err)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}

func envOr(name, value string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return value
}

// fill writes the whole device, so that no server is faster because of holes.
func fill(b *testing.B, device *fileDevice) {
	b.Helper()
	block := bytes.Repeat([]byte("ebb "), 256<<10)
	for off := int64(0); off < device.size; off += int64(len(block)) {
		if _, err := device.file.WriteAt(block, off); err != nil {
			b.Fatal(err)
		}
	}
	if err := device.file.Sync(); err != nil {
		b.Fatal(err)
	}
}

// startPeer starts another server on a socket.
func startPeer(b *testing.B, name string, command func(socket string) *exec.Cmd) peer {
	b.Helper()
	dir, err := os.MkdirTemp("", "nbd")
	if err != nil {
		b.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	cmd := command(socket)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		os.RemoveAll(dir)
	})
	for range 100 {
		if _, err := os.Stat(socket); err == nil {
			return peer{name, "nbd+unix:///vol?socket=" + socket, cmd.Process.Pid}
		}
		time.Sleep(50 * time.Millisecond)
	}
	b.Fatalf("%s does not listen", cmd.Path)
	return peer{}
}

// measure runs fio against a server.
func measure(b *testing.B, server peer, seconds string, args []string) result {
	b.Helper()
	report := filepath.Join(b.TempDir(), "fio.json")
	before := cpuTime(b, server.pid)
	run(b, "fio", append([]string{"--name=bench", "--ioengine=nbd", "--uri=" + server.uri, "--size=512M", "--time_based", "--runtime=" + seconds,
		"--output-format=json", "--output=" + report}, args...)...)
	cpu := cpuTime(b, server.pid) - before
	text, err := os.ReadFile(report)
	if err != nil {
		b.Fatal(err)
	}
	type direction struct {
		Bytes    float64 `json:"io_bytes"`
		Runtime  float64 `json:"runtime"` // ms
		Requests float64 `json:"total_ios"`
	}
	var output struct {
		Jobs []struct{ Read, Write direction }
	}
	if err := json.Unmarshal(text[bytes.IndexByte(text, '{'):], &output); err != nil {
		b.Fatal(err)
	}
	job := output.Jobs[0]
	return result{
		bytes: (job.Read.Bytes + job.Write.Bytes) / max(job.Read.Runtime, job.Write.Runtime, 1) * 1000,
		cpu:   time.Duration(float64(cpu) / max(job.Read.Requests+job.Write.Requests, 1)),
	}
}
