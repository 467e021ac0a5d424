package slurm_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/slurm"
)

func TestWhatIsDoneAboutARequest(t *testing.T) {
	const ours, older, theirs = "ebb drain default/r", "ebb drain default/before", "maintenance"
	drained := func(reason string) slurm.Node { return slurm.Node{Drain: true, State: "drained", Reason: reason} }
	draining := slurm.Node{Drain: true, Busy: true, State: "draining", Reason: ours}
	down := fmt.Errorf("%w: exit status 1", slurm.ErrUnreachable)
	unknown := fmt.Errorf("%w: s9", slurm.ErrUnknownNode)
	for _, tc := range []struct {
		what string
		r    slurm.Request
		want string // action, condition, reason
	}{
		{"a new request is held first", slurm.Request{}, "hold"},
		{"a new request drains", slurm.Request{Held: true, Node: slurm.Node{State: "idle"}}, "drain"},
		{"jobs hold it", slurm.Request{Held: true, Node: draining, Jobs: []string{"7"}}, "report DrainInProgress DrainStarted"},
		{"a completing job holds it", slurm.Request{Held: true, Node: draining}, "report DrainInProgress DrainStarted"},
		{"an idle node says that the drain has begun, too", slurm.Request{Held: true, Node: drained(ours)}, "report DrainInProgress DrainStarted"},
		{"no job is left", slurm.Request{Held: true, Started: true, Node: drained(ours)}, "report DrainComplete AllJobsCompleted"},
		{"jobs in a state that says drained", slurm.Request{Held: true, Node: drained(ours), Jobs: []string{"7"}}, "report DrainInProgress DrainStarted"},
		{"a person's drain is left alone", slurm.Request{Held: true, Node: drained(theirs)}, "report DrainInProgress DrainedByOthers"},
		{"a node whose name another one has fails", slurm.Request{Held: true, Namesake: "n2", Node: slurm.Node{State: "idle"}}, "report DrainFailed AmbiguousName"},
		{"it takes no drain over", slurm.Request{Held: true, Namesake: "n2", Node: drained(older)}, "report DrainFailed AmbiguousName"},
		{"its drain that has begun goes on", slurm.Request{Held: true, Started: true, Namesake: "n2", Node: drained(ours)}, "report DrainComplete AllJobsCompleted"},
		{"the drain of a request before is taken over", slurm.Request{Held: true, Node: drained(older)}, "drain"},
		{"slurmctld down completes nothing", slurm.Request{Held: true, Err: down}, "report DrainInProgress SlurmUnreachable"},
		{"any other failure completes nothing", slurm.Request{Held: true, Err: errors.New("x"), Node: drained(ours)}, "report DrainInProgress SlurmUnreachable"},
		{"an unknown node fails", slurm.Request{Held: true, Err: unknown}, "report DrainFailed UnknownNode"},
		{"a complete request rests", slurm.Request{Held: true, Done: true}, "nothing"},
		{"a failed request rests", slurm.Request{Held: true, Failed: true}, "nothing"},
		{"an unfinished request resumes what it drained", slurm.Request{Deleted: true, Held: true, Node: draining}, "resume"},
		{"one that is followed by another request leaves the node drained for it", slurm.Request{Deleted: true, Held: true, Followed: true, Node: draining}, "release"},
		{"a failed request resumes too", slurm.Request{Deleted: true, Held: true, Failed: true, Node: drained(ours)}, "resume"},
		{"it does not resume a person's drain", slurm.Request{Deleted: true, Held: true, Node: drained(theirs)}, "release"},
		{"nor the one of another request", slurm.Request{Deleted: true, Held: true, Node: drained(older)}, "release"},
		{"nor a node that is not drained", slurm.Request{Deleted: true, Held: true, Node: slurm.Node{State: "idle"}}, "release"},
		{"a complete request leaves its node drained", slurm.Request{Deleted: true, Held: true, Done: true, Node: drained(ours)}, "release"},
		{"a deleted request waits for slurmctld", slurm.Request{Deleted: true, Held: true, Err: down}, "report DrainInProgress SlurmUnreachable"},
		{"a complete one does not", slurm.Request{Deleted: true, Held: true, Done: true, Err: down}, "release"},
		{"a deleted request of an unknown node is released", slurm.Request{Deleted: true, Held: true, Err: unknown}, "release"},
		{"a released request is left alone", slurm.Request{Deleted: true, Node: drained(ours)}, "nothing"},
	} {
		tc.r.Key = "default/r"
		s := slurm.Next(tc.r)
		if got := strings.TrimSpace(fmt.Sprint(s.Action, " ", s.Type, " ", s.Reason)); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.what, got, tc.want)
		}
	}
}

func TestNamesOfNodes(t *testing.T) {
	table := filepath.Join(t.TempDir(), "table")
	if err := os.WriteFile(table, []byte("\ufeff# nodes\r\ngpu-1 s1\r\n\ngpu-2.example.com  s2 # by hand\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	names, err := slurm.NewNames(table, `(.*)\.example\.com=$1`)
	if err != nil {
		t.Fatal(err)
	}
	for node, want := range map[string]string{"gpu-1": "s1", "gpu-2.example.com": "s2", "gpu-3.example.com": "gpu-3", "other": "other", "a[1-9]": "", "a,b": "", "": ""} {
		if got, err := names.Slurm(node); got != want || (want == "") != errors.Is(err, slurm.ErrUnknownNode) {
			t.Errorf("%q is %q, %v; want %q", node, got, err, want)
		}
	}
	for rule, text := range map[string]string{"x": "", "(=a": "", "a=b": "one\n", "b=c": "a s1\na s2\n", "c=d": "a s[1-2]\n", "d=e": "a s1\nb s1\n", "e=f": "N_1 s1\n"} {
		if err := os.WriteFile(table, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := slurm.NewNames(table, rule); err == nil {
			t.Errorf("rule %q, table %q: accepted", rule, text)
		}
	}
}

func TestWhatScontrolShows(t *testing.T) {
	nodes, err := slurm.ParseNodes(`NodeName=s1 Arch=x86_64 CoresPerSocket=1 OS=Linux 6.1 State=MIXED+DRAIN ThreadsPerCore=1 Reason=ebb drain default/r1 [root@2026-11-16T12:00:00]
NodeName=s2 State=IDLE*+DRAIN Weight=1 Reason=a Reason= State=IDLE [x@y] [slurm(64030)@2026-11-16T12:00:00] Comment=c
NodeName=s3 State=IDLE ThreadsPerCore=1
`)
	want := map[string]slurm.Node{
		"s1": {Drain: true, Busy: true, State: "MIXED+DRAIN", Reason: "ebb drain default/r1"},
		"s2": {Drain: true, State: "IDLE*+DRAIN", Reason: "a Reason= State=IDLE [x@y]"},
		"s3": {State: "IDLE"},
	}
	if err != nil || !maps.Equal(nodes, want) {
		t.Errorf("%+v, %v; want %+v", nodes, err, want)
	}
	for what, out := range map[string]string{
		"without nodes":                   "slurm_load_node error: something\n",
		"with a node that is there twice": "NodeName=s1 State=IDLE Weight=1 Comment=x\nNodeName=s2 State=IDLE+DRAIN Weight=1\nNodeName=s2 State=IDLE Weight=1\n",
	} {
		if _, err := slurm.ParseNodes(out); err == nil {
			t.Errorf("an answer %s is accepted", what)
		}
	}
}

// A reason and a comment may have several lines. Slurm puts the first line of a reason before its end, and breaks the line at those of a comment.
func TestWhatScontrolShowsOfTextsWithSeveralLines(t *testing.T) {
	nodes, err := slurm.ParseNodes(`NodeName=s1 State=IDLE+DRAIN+NOT_RESPONDING Weight=1 Reason=two [root@2026-11-19T14:40:04]        lines
NodeName=s2 State=MIXED+DRAIN Weight=1 Reason=ebb drain default/r [root@2026-11-19T14:40:05] Comment=two
lines of [x@2026-11-16T12:00:00] State=IDLE Extra=more

 State=IDLE
NodeName=s3 State=IDLE Weight=1 Comment=ask somebody Reason=none
`)
	want := map[string]slurm.Node{
		"s1": {Drain: true, State: "IDLE+DRAIN+NOT_RESPONDING", Reason: "two"},
		"s2": {Drain: true, Busy: true, State: "MIXED+DRAIN", Reason: "ebb drain default/r"},
		"s3": {State: "IDLE"},
	}
	if err != nil || !maps.Equal(nodes, want) {
		t.Errorf("%+v, %v; want %+v", nodes, err, want)
	}
}

// A command that is missing, or fails, says nothing about a node.
func TestAFailedCommandIsNotAnUnknownNode(t *testing.T) {
	_, err := slurm.Commands{Dir: t.TempDir()}.Nodes(context.Background())
	if err == nil || errors.Is(err, slurm.ErrUnknownNode) || !errors.Is(err, slurm.ErrUnreachable) {
		t.Errorf("%v", err)
	}
}

func TestWhichNodesAreInServiceAgain(t *testing.T) {
	ebb := func(name string, cordoned bool, liveness v1alpha1.Liveness) v1alpha1.Node {
		n := v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.NodeSpec{Cordoned: cordoned}}
		n.Status = v1alpha1.NodeStatus{Liveness: liveness, Conditions: []metav1.Condition{{Type: v1alpha1.NodeReady, Status: metav1.ConditionTrue}}}
		return n
	}
	core := func(name string, cordoned bool, ready corev1.ConditionStatus) corev1.Node {
		n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{Unschedulable: cordoned}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
		return n
	}
	got := slurm.InService([]v1alpha1.Node{
		ebb("alive", false, v1alpha1.Alive), ebb("cordoned", true, v1alpha1.Alive), ebb("draining", false, v1alpha1.Draining),
	}, []corev1.Node{
		core("alive", false, corev1.ConditionTrue), core("draining", false, corev1.ConditionTrue), // Ebb runs there, and decides
		core("without", false, corev1.ConditionTrue), core("without-cordoned", true, corev1.ConditionTrue), core("without-sick", false, corev1.ConditionUnknown),
	})
	if want := []string{"alive", "without"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
