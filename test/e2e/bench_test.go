package e2e

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// BenchmarkUp is the time from `ebb up` to its line `ready`, and what the processes then weigh.
func BenchmarkUp(b *testing.B) {
	exe := testenv.EbbPlain(b)
	for b.Loop() {
		c := startCluster(b, exe, 3)
		b.StopTimer()
		b.ReportMetric(c.resident(b, "apiserver"), "apiserver-MiB")
		leader := c.awaitLeader("")
		b.ReportMetric(c.resident(b, leader), "coordinator-MiB")
		b.ReportMetric(c.resident(b, others(trio, leader)[0]), "idle-node-MiB")
		c.up.stop()
		b.StartTimer()
	}
}

// resident is a process's memory that is its own, in MiB: the program itself is shared by all of them.
func (c *cluster) resident(b *testing.B, name string) float64 {
	b.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.pid(name)))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "VmRSS:" {
			kib, err := strconv.ParseFloat(fields[1], 64)
			if err != nil {
				b.Fatal(err)
			}
			return kib / 1024
		}
	}
	b.Fatalf("no VmRSS of %s", name)
	return 0
}

// BenchmarkHandOver is the time from the request to resign until another node's term has begun and said so.
func BenchmarkHandOver(b *testing.B) {
	c := startCluster(b, testenv.EbbPlain(b), 3)
	leader := c.awaitLeader("")
	for b.Loop() {
		c.must("resign")
		leader = c.awaitLeader(leader)
	}
}

// BenchmarkTakeOver is the time from kill -9 of the coordinator until another node's term has begun and said so.
func BenchmarkTakeOver(b *testing.B) {
	c := startCluster(b, testenv.EbbPlain(b), 3)
	for b.Loop() {
		leader := c.awaitLeader("")
		epoch := c.record(leader).Epoch
		c.signal(leader, syscall.SIGKILL)
		c.awaitLeader(leader)
		b.StopTimer()
		c.startNode(leader)
		c.awaitReady(leader, epoch+1)
		b.StartTimer()
	}
}

// BenchmarkDrainIdle is the time from the request until an idle node is told to stop; with it, until its drain is
// complete.
func BenchmarkDrainIdle(b *testing.B) {
	c := startCluster(b, testenv.EbbPlain(b), 3)
	leader := c.awaitLeader("")
	target := others(trio, leader)[0]
	var complete time.Duration
	n := 0
	for b.Loop() {
		n++
		asked := time.Now()
		d := c.ask(fmt.Sprintf("bench-%d", n), target)
		until(b, "Stopping", func() bool {
			return c.client.Get(context.Background(), types.NamespacedName{Name: d.Name}, d) == nil && d.Status.Phase != "" && d.Status.Phase != v1alpha1.DrainDraining
		})
		b.StopTimer()
		c.awaitEnd(d.Name, v1alpha1.DrainComplete, v1alpha1.ReasonDrained)
		complete += time.Since(asked)
		epoch := c.record(target).Epoch
		c.startNode(target)
		c.awaitReady(target, epoch+1)
		b.StartTimer()
	}
	b.ReportMetric(complete.Seconds()/float64(n), "s-to-complete")
}
