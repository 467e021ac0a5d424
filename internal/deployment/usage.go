package deployment

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/procfs"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/backoff"
)

const (
	// sampleEvery is how often the load is measured.
	sampleEvery = 5 * time.Second
	// notable is by how many percentage points a share must differ to be published: publishing is a write.
	notable = 3
)

// Weights say how much CPU and memory count in a node's score. They are relative to each other.
type Weights struct {
	CPU, Memory float64
}

// DefaultWeights weigh CPU and memory equally.
func DefaultWeights() Weights { return Weights{CPU: 1, Memory: 1} }

// Validate refuses weights that give no meaningful score.
func (w Weights) Validate() error {
	if !(w.CPU >= 0) || !(w.Memory >= 0) || w.CPU+w.Memory <= 0 {
		return fmt.Errorf("claim weights: cpu (%g) and memory (%g) must not be negative, and not both zero", w.CPU, w.Memory)
	}
	return nil
}

// Score weighs shares of CPU and memory, in thousandths.
func (w Weights) Score(cpu, memory float64) int32 {
	return int32((w.CPU*cpu + w.Memory*memory) / (w.CPU + w.Memory) * 10)
}

// load is what the programs of one type use.
type load struct{ cores, bytes float64 }

// sampler measures the load of the machine and of the node's programs.
type sampler struct {
	runtime *Runtime
	weights Weights

	mu     sync.Mutex
	latest *v1alpha1.NodeUsage
	loads  map[v1alpha1.DeploymentType]load

	cpu  procfs.CPUStat  // at the last sample
	used map[int]float64 // CPU seconds of each process at the last sample
	at   time.Time
}

func newSampler(r *Runtime, w Weights) *sampler { return &sampler{runtime: r, weights: w} }

// usage returns the published load of the machine; nil while it is unknown.
func (s *sampler) usage() *v1alpha1.NodeUsage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.latest.DeepCopy()
}

// programs returns the load of the programs, by type.
func (s *sampler) programs() map[v1alpha1.DeploymentType]load {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loads
}

// run samples until ctx ends. The first two samples are taken quickly: the share of CPU needs two.
func (s *sampler) run(ctx context.Context) {
	var last string
	for pause := time.Duration(0); backoff.Sleep(ctx, pause) == nil; {
		if err := s.sample(); err != nil {
			s.set(nil)
			if err.Error() != last {
				last = err.Error()
				s.runtime.opts.Log.Warn("could not measure the load of this machine", "error", err)
			}
		}
		if pause == 0 {
			pause = time.Second
		} else {
			pause = sampleEvery
		}
	}
	s.set(nil)
}

func (s *sampler) sample() error {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return err
	}
	stat, err := proc.Stat()
	if err != nil {
		return err
	}
	memory, err := proc.Meminfo()
	if err != nil {
		return err
	}
	s.samplePrograms(proc)
	before := s.cpu
	s.cpu = stat.CPUTotal
	busy, total := busyTime(stat.CPUTotal)-busyTime(before), allTime(stat.CPUTotal)-allTime(before)
	if before == (procfs.CPUStat{}) || total <= 0 {
		return nil
	}
	if memory.MemTotal == nil || memory.MemAvailable == nil || *memory.MemTotal == 0 {
		return fmt.Errorf("/proc/meminfo does not contain MemTotal and MemAvailable")
	}
	cpu := 100 * busy / total
	used := 100 * (1 - float64(*memory.MemAvailable)/float64(*memory.MemTotal))
	s.set(&v1alpha1.NodeUsage{
		CPU: percent(cpu), Memory: percent(used), Score: s.weights.Score(cpu, used), Deployments: int32(s.runtime.Held()),
	})
	return nil
}

func percent(x float64) int32 { return int32(min(max(x, 0), 100)) }

func allTime(c procfs.CPUStat) float64 {
	return c.User + c.Nice + c.System + c.Idle + c.Iowait + c.IRQ + c.SoftIRQ + c.Steal
}

func busyTime(c procfs.CPUStat) float64 { return allTime(c) - c.Idle - c.Iowait }

// set publishes a sample that differs notably from the last published one, or has another number of deployments.
func (s *sampler) set(u *v1alpha1.NodeUsage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.latest; old != nil && u != nil && old.Deployments == u.Deployments &&
		abs(old.CPU-u.CPU) < notable && abs(old.Memory-u.Memory) < notable {
		return
	}
	s.latest = u
}

func abs(x int32) int32 { return max(x, -x) }

// samplePrograms adds up the usage of the programs and their descendant processes.
func (s *sampler) samplePrograms(proc procfs.FS) {
	now := time.Now()
	roots := s.runtime.pids()
	loads := map[v1alpha1.DeploymentType]load{v1alpha1.TypeDeployment: {}, v1alpha1.TypeDaemon: {}}
	used := map[int]float64{}
	if len(roots) > 0 {
		all, err := proc.AllProcs()
		if err != nil {
			return // the next sample tries again
		}
		parents, stats := map[int]int{}, map[int]procfs.ProcStat{}
		for _, p := range all {
			if st, err := p.Stat(); err == nil {
				parents[p.PID], stats[p.PID] = st.PPID, st
			}
		}
		for pid, st := range stats {
			kind, ok := owner(pid, parents, roots)
			if !ok {
				continue
			}
			l := loads[kind]
			l.bytes += float64(st.ResidentMemory())
			used[pid] = st.CPUTime()
			if before, ok := s.used[pid]; ok && used[pid] >= before {
				l.cores += (used[pid] - before) / now.Sub(s.at).Seconds()
			}
			loads[kind] = l
		}
	}
	s.used, s.at = used, now
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loads = loads
}

// owner is the type of the program that a process belongs to.
func owner(pid int, parents map[int]int, roots map[int]v1alpha1.DeploymentType) (v1alpha1.DeploymentType, bool) {
	for range len(parents) {
		if kind, ok := roots[pid]; ok {
			return kind, true
		}
		parent, ok := parents[pid]
		if !ok || parent <= 1 {
			break
		}
		pid = parent
	}
	return "", false
}

// pids are the main processes of the programs that run here.
func (r *Runtime) pids() map[int]v1alpha1.DeploymentType {
	pids := map[int]v1alpha1.DeploymentType{}
	for _, pw := range r.all() {
		if d, _ := pw.Newest(); d != nil {
			if p := pw.running(); p != nil {
				pids[p.pid] = d.Spec.Type
			}
		}
	}
	return pids
}

// all returns the workers of all objects.
func (r *Runtime) all() []*programWorker {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]*programWorker, 0, len(r.workers))
	for _, pw := range r.workers {
		list = append(list, pw)
	}
	return list
}
