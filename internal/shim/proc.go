package shim

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"syscall"
)

// Numbers that package syscall lacks; the same on amd64 and arm64.
const (
	sysPidfdSendSignal = 424
	sysPidfdOpen       = 434
)

const maxEnvironBytes = 8 << 20

// A process as /proc/PID/stat shows it.
type procInfo struct {
	Process
	name    string
	state   byte
	ppid    int
	group   int
	threads int
}

// alive is false for a process that only waits to be reaped. A process whose main thread ended before the others looks like a zombie but
// is not.
func (p procInfo) alive() bool {
	dead := p.state == 'Z' || p.state == 'X' || p.state == 'x'
	return !dead || p.threads > 1
}

func (p procInfo) String() string { return fmt.Sprintf("%d (%s, state %c)", p.PID, p.name, p.state) }

var errStat = errors.New("unexpected format of /proc/PID/stat")

// readProc reads a file of /proc. It goes around os.File, whose poller and buffers are wasted on thousands of these.
func readProc(path string, buf []byte) ([]byte, error) {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer syscall.Close(fd)
	buf = buf[:0]
	for {
		if len(buf) == cap(buf) {
			buf = slices.Grow(buf, max(4096, cap(buf)))
		}
		n, err := syscall.Read(fd, buf[len(buf):cap(buf)])
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		buf = buf[:len(buf)+n]
		if n == 0 || len(buf) > maxEnvironBytes {
			return buf, nil
		}
	}
}

func procPath(pid int, file string) string { return "/proc/" + strconv.Itoa(pid) + "/" + file }

func inspect(pid int, buf []byte) (procInfo, error) {
	data, err := readProc(procPath(pid, "stat"), buf)
	if err != nil {
		return procInfo{}, err
	}
	return parseStat(data)
}

// parseStat reads "pid (name) state ppid pgrp …". The name may itself hold blanks and parentheses.
func parseStat(data []byte) (procInfo, error) {
	open, end := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')')
	if open < 1 || end < open {
		return procInfo{}, errStat
	}
	f := bytes.Fields(data[end+1:])
	if len(f) < 20 {
		return procInfo{}, errStat
	}
	number := func(b []byte) int { n, _ := strconv.Atoi(string(b)); return n }
	p := procInfo{
		name: string(data[open+1 : end]), state: f[0][0],
		ppid: number(f[1]), group: number(f[2]), threads: number(f[17]),
	}
	p.PID = number(data[:open-1])
	p.StartTicks, _ = strconv.ParseUint(string(f[19]), 10, 64)
	return p, nil
}

// processes lists every process that is alive.
func processes() []procInfo {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	buf := make([]byte, 0, 4096)
	all := make([]procInfo, 0, len(names))
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if p, err := inspect(pid, buf); err == nil && p.alive() {
			all = append(all, p)
		}
	}
	return all
}

// descendants are the roots' children, their children and so on, without the roots. A zombie in between hides
// nobody: what it leaves belongs to its subreaper at once.
func descendants(all []procInfo, roots ...int) []procInfo {
	children := make(map[int][]procInfo)
	for _, p := range all {
		children[p.ppid] = append(children[p.ppid], p)
	}
	var found []procInfo
	seen := make(map[int]bool)
	for queue := roots; len(queue) > 0; queue = queue[1:] {
		for _, p := range children[queue[0]] {
			if !seen[p.PID] {
				seen[p.PID] = true
				found = append(found, p)
				queue = append(queue, p.PID)
			}
		}
	}
	return found
}

// descendantsOf are the processes below root, as they are now. The kernel's own list of children is preferred, where
// it is built in: it is so much faster than all of /proc that a process which forks a successor and ends at once is
// caught in between.
func descendantsOf(root int) []procInfo {
	if _, err := childrenOf(root); err != nil {
		return descendants(processes(), root)
	}
	var found []procInfo
	buf := make([]byte, 0, 4096)
	seen := map[int]bool{root: true}
	for queue := []int{root}; len(queue) > 0; queue = queue[1:] {
		pids, _ := childrenOf(queue[0])
		for _, pid := range pids {
			if seen[pid] {
				continue
			}
			seen[pid] = true
			queue = append(queue, pid)
			if p, err := inspect(pid, buf); err == nil && p.alive() {
				found = append(found, p)
			}
		}
	}
	return found
}

// childrenOf lists the children of all threads of a process.
func childrenOf(pid int) ([]int, error) {
	tasks, err := os.ReadDir(procPath(pid, "task"))
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, task := range tasks {
		data, err := readProc(procPath(pid, "task/"+task.Name()+"/children"), nil)
		if errors.Is(err, syscall.ENOENT) && task.Name() == strconv.Itoa(pid) {
			return nil, err
		}
		for _, f := range bytes.Fields(data) {
			if child, err := strconv.Atoi(string(f)); err == nil {
				pids = append(pids, child)
			}
		}
	}
	return pids, nil
}

// marked picks the processes whose environment carries the instance's marker.
func marked(all []procInfo, instance string) []procInfo {
	entry := append([]byte(marker(instance)), 0)
	buf := make([]byte, 0, 16<<10)
	var found []procInfo
	for _, p := range all {
		env, err := readProc(procPath(p.PID, "environ"), buf)
		if err == nil && hasEntry(env, entry) {
			found = append(found, p)
		}
	}
	return found
}

// hasEntry looks for a whole NUL-ended entry in an environment block.
func hasEntry(env, entry []byte) bool {
	return bytes.HasPrefix(env, entry) || bytes.Contains(env, append([]byte{0}, entry...))
}

// Runs reports whether the process is still there.
func (p Process) Runs() bool { return p.same() }

// same reports whether the process is still the one that was recorded, and not a later one of the same id.
func (p Process) same() bool {
	if p.PID <= 0 {
		return false
	}
	now, err := inspect(p.PID, nil)
	return err == nil && now.alive() && now.StartTicks == p.StartTicks
}

// signal sends sig to exactly this process. Holding a pidfd while checking the start time makes the check and the
// signal one: if the process ends in between, the signal goes nowhere, and not to whoever got its id.
func (p Process) signal(sig syscall.Signal) {
	fd, _, errno := syscall.Syscall(sysPidfdOpen, uintptr(p.PID), 0, 0)
	if errno == syscall.ESRCH || errno == syscall.EINVAL || !p.same() {
		if errno == 0 {
			syscall.Close(int(fd))
		}
		return
	}
	if errno != 0 { // a kernel before 5.3, or a sandbox that forbids it
		_ = syscall.Kill(p.PID, sig)
		return
	}
	defer syscall.Close(int(fd))
	_, _, _ = syscall.Syscall6(sysPidfdSendSignal, fd, uintptr(sig), 0, 0, 0, 0)
}
