package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/ebb-dev/ebb/internal/testenv"
)

// page runs the commands of a page as a reader does: one terminal for each block that says so, and one for all others.
type page struct {
	*cluster
	replace *strings.Replacer
	env     []string
}

// blockLimit is longer than every limit that the page itself sets.
const blockLimit = 15 * time.Minute

var shellBlock = regexp.MustCompile("(?ms)^```sh( terminal)?\n(.*?)^```$")

// Every command of docs/kubernetes.md runs, from the first to the last, and nothing is left in the end.
func TestTheKubernetesPageWorks(t *testing.T) {
	beside(t, light)
	testenv.KubePrograms(t) // as the page says, the first build takes its time
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "kubernetes.md"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	p := &page{
		cluster: newCluster(t, testenv.Ebb(t)),
		replace: strings.NewReplacer("/tmp/kube", filepath.Join(dir, "kube"), "/tmp/ebb", filepath.Join(dir, "ebb")),
		env:     append(testenv.PlainBuild(), "PATH="+filepath.Dir(testenv.Kubectl(t))+":"+os.Getenv("PATH"), "KUBECONFIG=", "EBB_DATA_DIR="),
	}
	// A link may take its time on a busy machine. The terminals below find everything built.
	p.shell("make build\ngo build -o bin/test/kubeup ./test/kubeup\n")
	var terminals []*process
	ran := 0
	for _, block := range shellBlock.FindAllStringSubmatch(string(text), -1) {
		script := p.replace.Replace(block[2])
		if block[1] != "" {
			terminals = append(terminals, p.terminal(script))
			continue
		}
		p.shell(script)
		ran++
	}
	if len(terminals) != 2 || ran < 6 {
		t.Fatalf("the page has %d terminals and %d other blocks", len(terminals), ran)
	}
	p.nothingLeft(filepath.Join(dir, "kube", "kubeconfig"))
	for i := len(terminals) - 1; i >= 0; i-- { // Ctrl-C reaches the whole group
		_ = syscall.Kill(-terminals[i].cmd.Process.Pid, syscall.SIGINT)
		<-terminals[i].done
	}
	left := ""
	untilSo(t, func() string { return "the last processes to end:\n" + left }, func() bool {
		left = processesOf(t, dir)
		return left == ""
	})
}

// terminal starts a block and waits for its line `ready`.
func (p *page) terminal(script string) *process {
	p.t.Helper()
	terminal := p.launchAt(filepath.Join("..", ".."), p.env, "bash", "-euo", "pipefail", "-c", script)
	began := time.Now()
	for !hasLine(terminal.out.String(), "ready") {
		select {
		case <-terminal.done:
			p.t.Fatalf("%s ended:\n%s", script, terminal.out)
		default:
		}
		if time.Since(began) > blockLimit {
			p.t.Fatalf("no line ready after %s:\n%s\nof\n%s", blockLimit, terminal.out, script)
		}
		pollAgain(began)
	}
	return terminal
}

// shell runs a block to its end. What it exports stays for the blocks after it.
func (p *page) shell(script string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), blockLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir, cmd.Env, cmd.WaitDelay = filepath.Join("..", ".."), p.env, time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		p.t.Fatalf("%v\n%s\nof\n%s", err, out, script)
	}
	for line := range strings.Lines(script) {
		if assignment, ok := strings.CutPrefix(strings.TrimSpace(line), "export "); ok {
			p.env = append(p.env, assignment)
		}
	}
}

// nothingLeft waits until nothing of Ebb is in the Kubernetes.
func (p *page) nothingLeft(kubeconfig string) {
	p.t.Helper()
	kubectl := func(args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		out, err := exec.CommandContext(ctx, testenv.Kubectl(p.t), append([]string{"--kubeconfig", kubeconfig}, args...)...).CombinedOutput()
		return string(out), err
	}
	// KWOK's pods would use the whole of their grace period.
	if out, err := kubectl("-n", "ebb-system", "delete", "pods", "--all", "--grace-period=1", "--wait=false"); err != nil {
		p.t.Fatalf("delete pods: %v\n%s", err, out)
	}
	left := ""
	untilSo(p.t, func() string { return "nothing of Ebb to be left: " + left }, func() bool {
		out, err := kubectl("get", "crd,ns,clusterrole,clusterrolebinding,validatingadmissionpolicy,validatingadmissionpolicybinding,csr", "-o", "name")
		if err != nil {
			left = fmt.Sprintf("%v: %s", err, out)
			return false
		}
		found := sets.New[string]()
		for line := range strings.Lines(out) {
			if strings.Contains(line, "ebb") {
				found.Insert(strings.TrimSpace(line))
			}
		}
		nodes, err := kubectl("get", "nodes", "-o", "json")
		if err != nil || strings.Contains(nodes, "ebb.dev/") || strings.Contains(nodes, `"unschedulable": true`) {
			found.Insert("what Ebb wrote to core Nodes")
		}
		left = strings.Join(sets.List(found), ", ")
		return left == ""
	})
}

// processesOf are the processes whose command line has a path.
func processesOf(t *testing.T, path string) string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found strings.Builder
	for _, file := range files {
		if data, err := os.ReadFile(file); err == nil && strings.Contains(string(data), path) {
			fmt.Fprintln(&found, strings.ReplaceAll(string(data), "\x00", " "))
		}
	}
	return found.String()
}
