package drain_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drain"
)

// indexed counts pieces of work held in memory, as a kind with a cache does: by node, and split by what they belong to.
type indexed struct {
	byNode map[string][]string // what each piece belongs to
}

func newIndexed(pieces int) indexed {
	x := indexed{byNode: map[string][]string{}}
	for i := range pieces {
		x.byNode["n2"] = append(x.byNode["n2"], fmt.Sprintf("changefeed-%d", i%100))
	}
	return x
}

func (indexed) Work() drain.Work { return feedWorks[1] }

func (x indexed) Remaining(_ context.Context, node string) (drain.Remaining, error) {
	left := drain.Remaining{By: map[string]int64{}}
	for _, owner := range x.byNode[node] {
		left.By[owner]++
		left.Count++
	}
	return left, nil
}

// BenchmarkRecount is one look of the coordinator at a cluster that drains, by how much work is on the draining node.
func BenchmarkRecount(b *testing.B) {
	for _, pieces := range []int{100, 10_000, 100_000} {
		b.Run(fmt.Sprintf("pieces=%d", pieces), func(b *testing.B) {
			s := newScene(b)
			s.begun("d", "n2")
			tenants := []drain.Tenant{newIndexed(pieces)}
			look := func() *drain.Step {
				w, err := drain.Gather(context.Background(), s.store, "n1", tenants, s.now)
				if err != nil {
					b.Fatal(err)
				}
				return drain.Next(w)
			}
			for step := look(); step != nil; step = look() {
				if err := s.write(step); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				look()
			}
		})
	}
}

// BenchmarkNext is the decision alone, in a large cluster with a long history.
func BenchmarkNext(b *testing.B) {
	for _, running := range []bool{false, true} {
		b.Run(fmt.Sprintf("nodes=1000,drains=1000,running=%t", running), func(b *testing.B) {
			s := newScene(b)
			for i := range 1000 {
				s.join(fmt.Sprintf("m%d", i), 1, v1alpha1.Alive, "")
				name := fmt.Sprintf("old%d", i)
				s.drains[name] = oldDrain(name, fmt.Sprintf("m%d", i))
			}
			if running {
				s.begun("d", "n2")
				s.places("n2", "volumes", 1)
				s.steps()
			}
			w := s.world()
			b.ReportAllocs()
			for b.Loop() {
				if step := drain.Next(w); step != nil {
					b.Fatalf("there is a step %s", step.Name)
				}
			}
		})
	}
}

func oldDrain(name, node string) *v1alpha1.Drain {
	at := metav1.NewTime(start.Add(-time.Hour))
	return &v1alpha1.Drain{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), CreationTimestamp: at, Finalizers: []string{v1alpha1.DrainFinalizer}},
		Spec:       v1alpha1.DrainSpec{NodeName: node},
		Status:     v1alpha1.DrainStatus{Phase: v1alpha1.DrainComplete, StartedAt: &at, FinishedAt: &at},
	}
}
