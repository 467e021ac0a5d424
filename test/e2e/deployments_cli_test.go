package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/testenv"
)

func TestDeploymentsOnTheCommandLine(t *testing.T) {
	beside(t, light)
	c := startSamples(t, 2)
	for _, step := range []struct {
		name string
		run  func(*testing.T, *cluster)
	}{
		{"the samples run", samplesRun},
		{"logs", logsCommand},
		{"logs -f goes on until Ctrl-C", logsFollow},
		{"logs across rotations", logsRotated},
		{"logs of what runs nowhere", logsNowhere},
		{"status deployments", statusDeployments},
		{"a daemon that is missing", daemonMissing},
		{"logs -f of what moves", logsMoved},
		{"logs -f of what is deleted", logsDeleted},
	} {
		t.Run(step.name, func(t *testing.T) {
			c.t = t
			step.run(t, c)
		})
	}
	c.t = t
}

// startSamples is a cluster with the samples.
func startSamples(t *testing.T, nodes int) *cluster {
	t.Helper()
	c := newCluster(t, testenv.Ebb(t)).calm()
	c.runUp(nodes, "--samples")
	for _, name := range []string{"hello", "heartbeat"} { // whoever has read "ready" finds them
		if err := c.client.Get(context.Background(), types.NamespacedName{Namespace: "default", Name: name}, &v1alpha1.Deployment{}); err != nil {
			t.Error(err)
		}
	}
	until(t, "ebb up to say what to try next", func() bool { return strings.Contains(c.up.out.String(), "Ctrl-C in this terminal stops the cluster") })
	return c
}

// programStatus is one entry of `ebb status deployments -o json`.
type programStatus struct {
	Namespace, Name, Type, State, Address string
	Wanted, Running, Restarts             int32
	Everywhere                            *bool
	Healthy                               bool
	Notes                                 []string
	Nodes                                 []struct {
		Node, State, Message string
		PID                  int32
		Absent               bool
	}
}

func (c *cluster) programs(args ...string) []programStatus {
	c.t.Helper()
	out := c.must(append([]string{"status", "deployments", "-o", "json"}, args...)...)
	return decode[struct{ Deployments []programStatus }](c.t, out).Deployments
}

func (c *cluster) awaitProgram(name, what string, holds func(programStatus) bool) programStatus {
	c.t.Helper()
	var last programStatus
	until(c.t, name+" "+what, func() bool {
		last = c.programs(name)[0]
		return holds(last)
	})
	return last
}

func isHealthy(p programStatus) bool { return p.Healthy }

func (c *cluster) apply(manifests string) {
	c.t.Helper()
	if out, errs, code := c.runWith(strings.NewReader(manifests), "apply", "-f", "-"); code != 0 {
		c.t.Fatalf("apply: exit %d\n%s%s", code, out, errs)
	}
}

func manifest(name, spec string) string {
	return "apiVersion: ebb.dev/v1alpha1\nkind: Deployment\nmetadata: {name: " + name + "}\nspec: " + spec + "\n"
}

// awaitLine waits until a program has written a line.
func (c *cluster) awaitLine(name, line string) {
	c.t.Helper()
	until(c.t, name+" to write "+line, func() bool {
		out, _, _ := c.run("logs", name)
		return hasLine(out, line)
	})
}

func samplesRun(t *testing.T, c *cluster) {
	hello := c.awaitProgram("hello", "to run", isHealthy)
	beat := c.awaitProgram("heartbeat", "to run", isHealthy)
	if hello.Type != "deployment" || hello.State != "ASSIGNED" || hello.Running != 1 || hello.Wanted != 1 || hello.Everywhere != nil {
		t.Errorf("hello: %+v", hello)
	}
	if beat.Type != "daemon" || beat.State != "ENABLED" || beat.Running != 2 || beat.Wanted != 2 || beat.Everywhere == nil || !*beat.Everywhere {
		t.Errorf("heartbeat: %+v", beat)
	}
	for _, want := range []string{" status deployments\n", " logs hello -f\n", " drain n2 --wait\n"} {
		if !strings.Contains(c.up.out.String(), want) {
			t.Errorf("what to try next lacks %q:\n%s", want, c.up.out)
		}
	}
	if got := c.must("status"); !strings.Contains(got, "\n1 deployment: as it should be\n1 daemon: as it should be\n") {
		t.Errorf("status:\n%s", got)
	}
}

func logsCommand(t *testing.T, c *cluster) {
	node := c.programs("hello")[0].Address
	other := others([]string{"n1", "n2"}, node)[0]
	line := "hello from " + node
	c.awaitLine("hello", line)
	until(t, "both heartbeats to be written", func() bool { return len(strings.Fields(c.must("logs", "heartbeat", "--tail", "1"))) == 8 })
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"hello", "--tail", "1"}, line + "\n"},
		{[]string{"hello", "--tail", "0"}, ""},
		{[]string{"hello", "--tail", "1", "--node", node, "-n", "default"}, line + "\n"},
		{[]string{"hello", "--tail", "1", "-o", "json"}, `{"node":"` + node + `","line":"` + line + `"}` + "\n"},
		{[]string{"heartbeat", "--tail", "1"}, "n1: n1 is up\nn2: n2 is up\n"},
		{[]string{"heartbeat", "--tail", "1", "--node", "n2"}, "n2 is up\n"},
	} {
		if got := c.must(append([]string{"logs"}, tc.args...)...); got != tc.want {
			t.Errorf("ebb logs %s: %q, want %q", strings.Join(tc.args, " "), got, tc.want)
		}
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"hello", "--node", other}, "ebb: node " + other + " has no log of default/hello: `ebb status deployments` shows where it runs (ErrLogNotFound)\n"},
		{[]string{"hello", "--node", "n9"}, "ebb: there is no node \"n9\": `ebb status` lists the nodes\n"},
		{[]string{"nothing"}, "ebb: there is no deployment or daemon \"nothing\" in namespace \"default\": `ebb status deployments` lists all\n"},
		{[]string{"hello", "-n", "ops"}, "ebb: there is no deployment or daemon \"hello\" in namespace \"ops\": `ebb status deployments` lists all\n"},
		{[]string{"hello", "--tail", "-2"}, "ebb: --tail -2: use a number of lines, 0 or more; omit it for the whole log\n"},
	} {
		if _, errs, code := c.run(append([]string{"logs"}, tc.args...)...); code != 1 || errs != tc.want {
			t.Errorf("ebb logs %s: exit %d\n got %q\nwant %q", strings.Join(tc.args, " "), code, errs, tc.want)
		}
	}
}

// follow runs `ebb logs -f` beside the test.
func (c *cluster) follow(args ...string) *process {
	c.t.Helper()
	return c.start(append([]string{"logs", "-f", "--kubeconfig", c.dir.Kubeconfig()}, args...)...)
}

func logsFollow(t *testing.T, c *cluster) {
	lines := func(p *process) int { return strings.Count(p.out.String(), "\n") }
	hello, beats := c.follow("hello", "--tail", "1"), c.follow("heartbeat", "--tail", "1")
	until(t, "lines to come", func() bool { return lines(hello) >= 3 && lines(beats) >= 4 })
	for _, p := range []*process{hello, beats} {
		if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		if code := p.awaitExit(t); code != 0 {
			t.Errorf("%s: exit %d\n%s", p.cmd, code, p.out)
		}
	}
	if got := beats.out.String(); !strings.Contains(got, "n1: n1 is up\n") || !strings.Contains(got, "n2: n2 is up\n") {
		t.Errorf("heartbeats:\n%s", got)
	}
}

// The program counter writes so many lines. They are long enough to fill several files with few of them.
const countedLines = 130000

var countedPad = strings.Repeat(".", 170)

// logsRotated has a program write more than two files while it is followed.
func logsRotated(t *testing.T, c *cluster) {
	const last = countedLines
	pad := countedPad
	starter := filepath.Join(t.TempDir(), "go")
	script := fmt.Sprintf("echo 0%s; until [ -e %s ]; do sleep 0.1; done; seq -f %%.0f%s 1 %d; sleep 100000", pad, starter, pad, last)
	c.apply(manifest("counter", fmt.Sprintf(`{command: /bin/sh, user: "@node", args: ["-c", %q]}`, script)))
	c.awaitLine("counter", "0"+pad)
	p := c.follow("counter")
	until(t, "the follower to begin", func() bool { return p.out.String() == "0"+pad+"\n" })
	if err := os.WriteFile(starter, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	end := fmt.Sprintf("%d%s\n", last, pad)
	until(t, "the follower to get to the end", func() bool { return p.out.endsWith("\n" + end) })
	p.stop()
	for name, got := range map[string]string{"followed": p.out.String(), "copied": c.must("logs", "counter")} {
		if wrong := notCounting(got, pad, last); wrong != "" {
			t.Errorf("%s: %s", name, wrong)
		}
	}
	if got := c.must("logs", "counter", "--tail", "100000"); !strings.HasPrefix(got, fmt.Sprintf("%d%s\n", last-100000+1, pad)) || !strings.HasSuffix(got, end) {
		t.Errorf("the last lines begin %q", got[:min(20, len(got))])
	}
	older, err := filepath.Glob(filepath.Join(string(c.dir), "nodes", "*", "programs", "default", "counter", "out.log.*"))
	if err != nil || len(older) < 2 {
		t.Errorf("rotated files: %v, %v", older, err)
	}
}

// endsWith looks at the end only: the whole may be large.
func (o *output) endsWith(suffix string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return bytes.HasSuffix(o.text.Bytes(), []byte(suffix))
}

// notCounting says where a text is not the numbers from 0 up to one, each followed by the same text, a line each.
func notCounting(text, pad string, last int) string {
	rest := []byte(text)
	for i := 0; i <= last; i++ {
		line, after, _ := bytes.Cut(rest, []byte("\n"))
		if string(line) != fmt.Sprint(i)+pad {
			return fmt.Sprintf("%q where %d should be", line, i)
		}
		rest = after
	}
	if len(rest) > 0 {
		return fmt.Sprintf("%q after the end", rest[:min(20, len(rest))])
	}
	return ""
}

func logsNowhere(t *testing.T, c *cluster) {
	c.apply(manifest("nowhere", "{command: /bin/true, selector: {matchLabels: {disk: ssd}}}"))
	c.awaitProgram("nowhere", "to be looked at", func(p programStatus) bool {
		return len(p.Notes) == 1 && strings.HasPrefix(p.Notes[0], "NoEligibleNode: ")
	})
	_, errs, code := c.run("logs", "nowhere")
	want := "ebb: deployment nowhere runs on no node (NoEligibleNode: No node may claim it (/bin/true with the selector disk=ssd): " +
		"n1: labels do not match, n2: labels do not match): `ebb logs nowhere --node NODE` shows the output that an earlier node has kept\n"
	if code != 1 || errs != want {
		t.Errorf("exit %d\n got %q\nwant %q", code, errs, want)
	}
	// What an earlier node kept is there after the program was disabled.
	c.awaitLine("counter", "0"+countedPad)
	node := c.programs("counter")[0].Address
	c.apply(manifest("counter", "{command: /bin/sh, enabled: false}"))
	c.awaitProgram("counter", "to stop", func(p programStatus) bool { return p.State == "DISABLED" && len(p.Nodes) == 0 && p.Healthy })
	if _, errs, code = c.run("logs", "counter"); code != 1 || !strings.HasPrefix(errs, "ebb: deployment counter runs on no node (Disabled: spec.enabled is false): ") {
		t.Errorf("exit %d: %s", code, errs)
	}
	if got := c.must("logs", "counter", "--node", node, "--tail", "1"); got != fmt.Sprintf("%d%s\n", countedLines, countedPad) {
		t.Errorf("kept: %q", got)
	}
}

func statusDeployments(t *testing.T, c *cluster) {
	ages := regexp.MustCompile(`\b\d+(ms|s|m|m\d+s)\b`)
	text := c.must("status", "deployments", "hello")
	lines := strings.Split(ages.ReplaceAllString(text, "TIME"), "\n")
	for i := range lines {
		lines[i] = strings.Join(strings.Fields(lines[i]), " ")
	}
	node := c.programs("hello")[0].Address
	pid := c.programs("hello")[0].Nodes[0].PID
	want := []string{
		"NAME TYPE STATE ADDRESS RUNNING RESTARTS SINCE NOTE",
		"hello deployment ASSIGNED " + node + " 1/1 0 TIME",
		"",
		"hello on each node:",
		"NODE STATE PID RESTARTS SINCE LAST EXIT PAUSE MESSAGE",
		fmt.Sprintf("%s Running %d 0 TIME - -", node, pid),
		"",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	all := c.must("status", "deployments")
	for _, want := range []string{"\nhello ", "\nheartbeat ", "\nnowhere runs on no node\n"} {
		if !strings.Contains(all, want) {
			t.Errorf("status deployments lacks %q:\n%s", want, all)
		}
	}
	if strings.Contains(all, "hello on each node") {
		t.Errorf("what is healthy is shown on each node:\n%s", all)
	}
	if got := c.must("status", "deployments", "-n", "ops"); got != "no deployments and no daemons\n" {
		t.Errorf("another namespace: %q", got)
	}
	if _, errs, code := c.run("status", "deployments", "hallo"); code != 1 || errs != "ebb: there is no deployment or daemon \"hallo\" in any namespace: `ebb status deployments` lists all\n" {
		t.Errorf("exit %d: %s", code, errs)
	}
	if got := c.must("status"); !strings.Contains(got, "\n3 deployments: 1 running, 1 disabled, 1 not running where it should (nowhere: No node may claim it ") {
		t.Errorf("status:\n%s", got)
	}
}

func daemonMissing(t *testing.T, c *cluster) {
	c.apply(manifest("broken", `{type: daemon, command: /bin/sh, args: ["-c", "exit 7"], restart: {backoff: 10m, maxBackoff: 10m}}`))
	p := c.awaitProgram("broken", "to be missing", func(p programStatus) bool {
		return len(p.Notes) == 1 && strings.HasPrefix(p.Notes[0], v1alpha1.ErrDaemonMissing+": It does not run on n1 (Backoff")
	})
	if p.Everywhere == nil || *p.Everywhere || p.Healthy || p.Running != 0 || p.Wanted != 2 || len(p.Nodes) != 2 {
		t.Errorf("%+v", p)
	}
	text := c.must("status", "deployments")
	if !strings.Contains(text, "\nbroken on each node:\n") || !strings.Contains(text, "exited with code 7 (") {
		t.Errorf("status deployments:\n%s", text)
	}
}

func logsMoved(t *testing.T, c *cluster) {
	from := c.programs("hello")[0].Address
	to := others([]string{"n1", "n2"}, from)[0]
	p := c.follow("hello", "--tail", "1")
	until(t, "the follower to begin", func() bool { return p.out.String() != "" })
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"address":"`+to+`"}}`))
	d := &v1alpha1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "hello"}}
	if err := c.client.Patch(context.Background(), d, patch); err != nil {
		t.Fatal(err)
	}
	want := "ebb: hello has moved to " + to + ": follow it there with `ebb logs hello --node " + to + " -f`\n"
	until(t, "the follower to say that hello has moved", func() bool { return strings.Contains(p.out.String(), want) })
	p.stop()
	c.awaitLine("hello", "hello from "+to)
	if got := c.must("logs", "hello", "--node", from, "--tail", "1"); got != "hello from "+from+"\n" {
		t.Errorf("the node that it left kept %q", got)
	}
}

func logsDeleted(t *testing.T, c *cluster) {
	p := c.follow("hello", "--tail", "1")
	until(t, "the follower to begin", func() bool { return p.out.String() != "" })
	d := &v1alpha1.Deployment{}
	if err := c.client.Get(context.Background(), types.NamespacedName{Namespace: "default", Name: "hello"}, d); err != nil {
		t.Fatal(err)
	}
	if err := c.client.Delete(context.Background(), d); err != nil {
		t.Fatal(err)
	}
	node := d.Spec.Address
	want := "ebb: node " + node + " stopped sending the log: the node stopped or default/hello was deleted\n"
	if code := p.awaitExit(t); code != 1 || !strings.HasSuffix(p.out.String(), want) {
		t.Errorf("exit %d:\n%s", code, p.out)
	}
}
