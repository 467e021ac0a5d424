package slurm_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/slurm"
	"github.com/ebb-dev/ebb/internal/testenv"
	"github.com/ebb-dev/ebb/internal/testenv/need"
)

// patience bounds every wait for something that should come, on a machine that may be busy.
const patience = 4 * time.Minute

// realSlurm is a slurmctld and two slurmd of Debian, on this machine.
type realSlurm struct {
	t    *testing.T
	dir  string
	conf string
	ctld *exec.Cmd
}

func startSlurm(t *testing.T) *realSlurm {
	t.Helper()
	need.Programs(t, "slurmctld", "slurmd", "scontrol", "sbatch")
	dir, err := os.MkdirTemp("", "slurm") // short: Slurm makes sockets in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	host, _, _ = strings.Cut(host, ".")
	ports := freePorts(t)
	s := &realSlurm{t: t, dir: dir, conf: filepath.Join(dir, "slurm.conf")}
	text := fmt.Sprintf(`ClusterName=test
SlurmctldHost=%[2]s(127.0.0.1)
SlurmctldPort=%[3]d
SlurmUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
StateSaveLocation=%[1]s/state
SlurmdSpoolDir=%[1]s/%%n
SlurmdPidFile=%[1]s/%%n.pid
SlurmctldPidFile=%[1]s/ctld.pid
ReturnToService=2
SlurmdTimeout=300
MessageTimeout=10
NodeName=s1 NodeHostname=%[2]s NodeAddr=127.0.0.1 Port=%[4]d CPUs=2
NodeName=s2 NodeHostname=%[2]s NodeAddr=127.0.0.1 Port=%[5]d CPUs=2
PartitionName=p Nodes=s1,s2 Default=YES State=UP
`, dir, host, ports[0], ports[1], ports[2])
	if err := os.WriteFile(s.conf, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, sub := range []string{"state", "s1", "s2"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s.startController()
	for _, n := range []string{"s1", "s2"} {
		s.start("slurmd", "-D", "-N", n, "-f", s.conf)
	}
	s.until("both nodes to be idle", func() bool {
		return strings.TrimRight(s.state("s1"), "*") == "idle" && strings.TrimRight(s.state("s2"), "*") == "idle"
	})
	return s
}

// freePorts are three ports that nobody listens on.
func freePorts(t *testing.T) (ports [3]int) {
	t.Helper()
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ports[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports
}

// start runs a daemon until the test ends.
func (s *realSlurm) start(name string, args ...string) *exec.Cmd {
	s.t.Helper()
	log, err := os.CreateTemp(s.dir, name)
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = log, log, &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
		if s.t.Failed() {
			text, _ := os.ReadFile(log.Name())
			s.t.Logf("%s:\n%s", name, text[max(0, len(text)-4000):])
		}
	})
	return cmd
}

func (s *realSlurm) startController() {
	s.t.Helper()
	s.ctld = s.start("slurmctld", "-D", "-f", s.conf)
	s.until("slurmctld to answer", func() bool { _, err := s.run("scontrol", "ping"); return err == nil })
}

func (s *realSlurm) run(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "SLURM_CONF="+s.conf)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func (s *realSlurm) must(name string, args ...string) string {
	s.t.Helper()
	out, err := s.run(name, args...)
	if err != nil {
		s.t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
	return out
}

// state of a node, and reason, as sinfo shows them.
func (s *realSlurm) state(node string) string {
	out, _ := s.run("sinfo", "-h", "-N", "-n", node, "-o", "%T")
	return out
}

func (s *realSlurm) reason(node string) string {
	out, _ := s.run("sinfo", "-h", "-N", "-n", node, "-o", "%E")
	return out
}

// job starts a job on a node that ends when a file appears.
func (s *realSlurm) job(node string) (end func()) {
	s.t.Helper()
	file := filepath.Join(s.dir, "end-"+node)
	id := s.must("sbatch", "--parsable", "-w", node, "-o", "/dev/null", "--chdir", s.dir, "--wrap", "while ! test -e "+file+"; do sleep 0.1; done")
	s.until("job "+id+" to run", func() bool { out, _ := s.run("squeue", "-h", "-j", id, "-o", "%T"); return out == "RUNNING" })
	return func() {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *realSlurm) until(what string, holds func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("waited %s for %s", patience, what)
		}
	}
}

// bridged is a Slurm with a bridge to an embedded API.
type bridged struct {
	*realSlurm
	requests dynamic.ResourceInterface
	objects  client.Client
}

func startBridge(t *testing.T) *bridged {
	t.Helper()
	s := startSlurm(t)
	api := testenv.StartAPI(t)
	cfg := api.Config(api.Dir.Kubeconfig())
	ctx, cancel := context.WithCancel(context.Background())
	if err := slurm.Install(ctx, cfg); err != nil {
		t.Fatal(err)
	}
	table := filepath.Join(s.dir, "table")
	if err := os.WriteFile(table, []byte("n1 s1\nn2 s2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	names, err := slurm.NewNames(table, "")
	if err != nil {
		t.Fatal(err)
	}
	b, err := slurm.New(slurm.Options{
		Config: cfg, Namespace: "default", Slurm: slurm.Commands{Conf: s.conf}, Names: names, Poll: slurm.DefaultPoll, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	objects, err := dynamic.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	made := &bridged{realSlurm: s, requests: objects.Resource(slurm.Resource).Namespace("default"), objects: api.Admin()}
	for _, name := range []string{"n1", "n2"} {
		if err := made.objects.Create(ctx, &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NodeSpec{Cordoned: true}}); err != nil {
			t.Fatal(err)
		}
	}
	return made
}

func (b *bridged) create(name, node string) {
	b.t.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "slurm.ebb.dev/v1alpha1", "kind": "SlurmDrainRequest", "metadata": map[string]any{"name": name}, "spec": map[string]any{"nodeName": node},
	}}
	if _, err := b.requests.Create(context.Background(), u, metav1.CreateOptions{}); err != nil {
		b.t.Fatal(err)
	}
}

// says waits until a request has a condition with a reason, and returns its message.
func (b *bridged) says(name, kind, reason string) (message string) {
	b.t.Helper()
	b.until(name+" to say "+kind+" "+reason, func() bool {
		u, err := b.requests.Get(context.Background(), name, metav1.GetOptions{})
		if err != nil {
			return false
		}
		list, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
		for _, c := range list {
			if m := c.(map[string]any); m["type"] == kind && m["status"] == "True" && m["reason"] == reason {
				message, _ = m["message"].(string)
				return true
			}
		}
		return false
	})
	return message
}

func (b *bridged) silent(name, kind string) {
	b.t.Helper()
	u, err := b.requests.Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	list, _, _ := unstructured.NestedSlice(u.Object, "status", "conditions")
	for _, c := range list {
		if m := c.(map[string]any); m["type"] == kind && m["status"] == "True" {
			b.t.Errorf("%s says %v", name, m)
		}
	}
}

func (b *bridged) remove(name string) {
	b.t.Helper()
	if err := b.requests.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
		b.t.Fatal(err)
	}
	b.until(name+" to be gone", func() bool {
		_, err := b.requests.Get(context.Background(), name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// serves lets Ebb have a node in service again.
func (b *bridged) serves(name string) {
	b.t.Helper()
	n := &v1alpha1.Node{}
	if err := b.objects.Get(context.Background(), client.ObjectKey{Name: name}, n); err != nil {
		b.t.Fatal(err)
	}
	n.Spec.Cordoned = false
	if err := b.objects.Update(context.Background(), n); err != nil {
		b.t.Fatal(err)
	}
	n.Status = v1alpha1.NodeStatus{Liveness: v1alpha1.Alive, Epoch: 1, Conditions: []metav1.Condition{
		{Type: v1alpha1.NodeReady, Status: metav1.ConditionTrue, Reason: "Serving", LastTransitionTime: metav1.Now()},
	}}
	if err := b.objects.Status().Update(context.Background(), n); err != nil {
		b.t.Fatal(err)
	}
}

func TestTheBridgeAndARealSlurm(t *testing.T) {
	b := startBridge(t)
	b.must("scontrol", "update", "nodename=s2", "comment=this breaks\nthe line that scontrol shows of a node")

	// A running job holds the drain, and its end completes it.
	end := b.job("s1")
	b.create("r1", "n1")
	if message := b.says("r1", slurm.InProgress, "DrainStarted"); !strings.HasPrefix(message, "Waiting for jobs: ") {
		t.Errorf("message %q", message)
	}
	if b.state("s1") != "draining" || b.reason("s1") != "ebb drain default/r1" {
		t.Errorf("s1 is %s: %s", b.state("s1"), b.reason("s1"))
	}
	b.silent("r1", slurm.Complete)

	// slurmctld down is a blocker, and not a completion.
	if err := b.ctld.Process.Signal(syscall.SIGTERM); err != nil { // it saves its state, which a kill might lose
		t.Fatal(err)
	}
	_ = b.ctld.Wait() // how it ended does not matter
	b.says("r1", slurm.InProgress, "SlurmUnreachable")
	b.silent("r1", slurm.Complete)
	b.silent("r1", slurm.Failed)
	b.startController()
	b.says("r1", slurm.InProgress, "DrainStarted")
	began := time.Now()
	end()
	b.until("Slurm to report the end of the job", func() bool {
		out, err := b.run("squeue", "-h", "-a", "-w", "s1", "-o", "%i")
		return err == nil && out == ""
	})
	ended := time.Now()
	b.says("r1", slurm.Complete, "AllJobsCompleted")
	took := time.Since(ended)
	t.Logf("complete %s after the end of the job, and %s after Slurm reported that", time.Since(began).Round(10*time.Millisecond), took.Round(10*time.Millisecond))
	if took > 30*time.Second { // a look takes a moment, and one follows another after a second
		t.Errorf("complete only %s after Slurm reported the end of the job", took)
	}

	// Ebb deletes a finished request: the node stays drained until it is in service again.
	b.remove("r1")
	b.create("probe", "n2") // a request after it, so that the bridge has looked
	b.says("probe", slurm.Complete, "AllJobsCompleted")
	b.says("probe", slurm.InProgress, "DrainStarted") // although the node was idle
	if b.state("s1") != "drained" || b.reason("s1") != "ebb drain default/r1" {
		t.Errorf("s1 is %s: %s", b.state("s1"), b.reason("s1"))
	}
	b.serves("n1")
	b.until("s1 to be resumed", func() bool { return strings.TrimRight(b.state("s1"), "*") == "idle" })
	if b.state("s2") != "drained" {
		t.Errorf("s2 is %s", b.state("s2"))
	}
	b.remove("probe")
	b.must("scontrol", "update", "nodename=s2", "state=resume")
	b.until("s2 to be idle", func() bool { return strings.TrimRight(b.state("s2"), "*") == "idle" })

	// Deleting an unfinished request resumes what it drained.
	end = b.job("s2")
	b.create("r2", "n2")
	b.says("r2", slurm.InProgress, "DrainStarted")
	b.remove("r2")
	b.until("s2 to be resumed", func() bool { state := b.state("s2"); return state != "draining" && state != "drained" })
	end()

	// A person's drain is neither overwritten nor resumed.
	b.must("scontrol", "update", "nodename=s2", "state=drain", "reason=by hand")
	b.create("r3", "n2")
	if message := b.says("r3", slurm.InProgress, "DrainedByOthers"); !strings.Contains(message, `"by hand"`) {
		t.Errorf("message %q", message)
	}
	b.remove("r3")
	b.serves("n2")
	b.create("r4", "n9") // Slurm has no such node
	b.says("r4", slurm.Failed, "UnknownNode")
	if b.reason("s2") != "by hand" {
		t.Errorf("the reason is %q", b.reason("s2"))
	}
}
