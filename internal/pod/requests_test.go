package pod

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	fakekube "k8s.io/client-go/kubernetes/fake"
	kubetesting "k8s.io/client-go/testing"
	toolscache "k8s.io/client-go/tools/cache"
)

// Several nodes drain, each with more pods than may be evicted at once.
func TestEvictionsStayWithinTheirLimits(t *testing.T) {
	c := newController(drainOf("n1"))
	arrived, release := make(chan string, 100), make(chan struct{})
	c.serve(t, func(_ http.ResponseWriter, r *http.Request) {
		arrived <- r.URL.Path
		<-release
	})
	c.Limits = Limits{Parallel: 4}
	c.places = make(chan struct{}, c.Limits.Parallel)
	var workers []*nodeWorker
	for node := range 3 {
		w, plan := newNodeWorker(c, read(t, c)), Plan{}
		for i := range 10 {
			name := fmt.Sprintf("p%d-%d", node, i)
			plan.Actions = append(plan.Actions, Action{Verb: Evict, Pod: &Pod{Namespace: "default", Name: name, UID: types.UID(name)}})
		}
		if err := w.evict(t.Context(), plan); err != nil {
			t.Fatal(err)
		}
		workers = append(workers, w)
	}
	for range c.Limits.Parallel {
		<-arrived
	}
	select {
	case path := <-arrived:
		t.Errorf("more than %d evictions are under way: %s", c.Limits.Parallel, path)
	case <-time.After(50 * time.Millisecond):
	}
	close(release)
	c.running.Wait()
	for i, w := range workers {
		if len(w.sent) != c.Limits.Parallel/2 {
			t.Errorf("%d evictions of node %d were sent at once, half of %d are its own", len(w.sent), i, c.Limits.Parallel)
		}
	}
}

func TestLimitsThatMakeNoSenseAreRefused(t *testing.T) {
	good := DefaultLimits()
	if err := good.Validate(); err != nil || good.perNode() > good.Parallel || (Limits{Parallel: 1}).perNode() != 1 {
		t.Errorf("the default is refused: %v", err)
	}
	for want, change := range map[string]func(*Limits){
		"--evictions-parallel: use 1 to 1000":                                         func(l *Limits) { l.Parallel = 0 },
		"--evictions-parallel: use 1 to 1000\n--evictions-per-second: use 1 to 10000": func(l *Limits) { l.Parallel, l.PerSecond = 1001, 10001 },
		"--terminating-pods-after: must be a positive duration, such as 5m":           func(l *Limits) { l.TerminatingFor = 0 },
	} {
		l := good
		change(&l)
		if err := l.Validate(); err == nil || err.Error() != want {
			t.Errorf("%+v: %v, want %s", l, err, want)
		}
	}
}

// There may be a hundred thousand pods in the cluster: only those of the node are asked for.
func TestADrainAsksForThePodsOfItsNodeOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		kube := fakekube.NewClientset(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}, Spec: corev1.PodSpec{NodeName: "n1"}})
		w := watchPods(ctx, kube, "n1", func() {})
		synctest.Wait()
		if pods, _, ok := w.see(); !ok || len(pods) != 1 {
			t.Errorf("it sees %d pods, complete: %t", len(pods), ok)
		}
		if _, err := listPods(ctx, kube, "n1"); err != nil {
			t.Fatal(err)
		}
		verbs := ""
		for _, action := range kube.Actions() {
			fields := ""
			switch a := action.(type) {
			case kubetesting.ListAction:
				fields = a.GetListRestrictions().Fields.String()
			case kubetesting.WatchAction:
				fields = a.GetWatchRestrictions().Fields.String()
			}
			if verbs += action.GetVerb() + " "; fields != "spec.nodeName=n1" {
				t.Errorf("%s of %s asks for %q", action.GetVerb(), action.GetResource().Resource, fields)
			}
		}
		if !strings.Contains(verbs, "list ") || !strings.Contains(verbs, "watch ") {
			t.Errorf("it asks for %q", verbs)
		}
		cancel()
		synctest.Wait()
	})
}

// A pod of a StatefulSet is deleted and made again, with the same name, while the watch is broken: the list after that shows a change of one pod.
func TestAPodThatWasReplacedUnseenHasArrived(t *testing.T) {
	w := &podWatch{arrived: map[types.UID]bool{}}
	of := func(uid types.UID) *Pod { return &Pod{Namespace: "default", Name: "db-0", UID: uid} }
	handler := w.handler(func() {})
	handler.OnAdd(of("first"), true)
	handler.OnUpdate(of("first"), of("first"))
	if len(w.arrived) > 0 {
		t.Errorf("%v have arrived", w.arrived)
	}
	handler.OnUpdate(of("first"), of("second"))
	if len(w.arrived) != 1 || !w.arrived["second"] {
		t.Errorf("%v have arrived, want the second", w.arrived)
	}
	handler.OnUpdate(of("second"), of("third"))
	handler.OnAdd(of("fourth"), false)
	handler.OnDelete(toolscache.DeletedFinalStateUnknown{Key: "default/db-0", Obj: of("fourth")})
	if len(w.arrived) != 1 || !w.arrived["third"] {
		t.Errorf("%v have arrived, want the third", w.arrived)
	}
}
