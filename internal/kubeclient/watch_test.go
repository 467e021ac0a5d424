package kubeclient_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	framework "k8s.io/client-go/tools/cache/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

// informers are those of the kinds that a test has, in place of a cache.
type informers struct {
	cache.Informers
	nodes, drains toolscache.SharedIndexInformer
}

func (i informers) GetInformer(_ context.Context, o client.Object, _ ...cache.InformerGetOption) (cache.Informer, error) {
	switch o.(type) {
	case *v1alpha1.Node:
		return i.nodes, nil
	case *v1alpha1.Drain:
		return i.drains, nil
	}
	return nil, errors.New("no such kind")
}

func named(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }

// start runs an informer until the test ends.
func start(t *testing.T, i toolscache.SharedIndexInformer) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		i.RunWithContext(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

func TestFollowSeesEveryObjectOfAKindBeforeTheNextKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes, drains := framework.NewFakeControllerSource(), framework.NewFakeControllerSource()
		i := informers{nodes: toolscache.NewSharedIndexInformer(nodes, &v1alpha1.Node{}, 0, nil), drains: toolscache.NewSharedIndexInformer(drains, &v1alpha1.Drain{}, 0, nil)}
		t.Cleanup(nodes.Shutdown)
		t.Cleanup(drains.Shutdown)
		nodes.Add(&v1alpha1.Node{ObjectMeta: named("n1")})
		nodes.Add(&v1alpha1.Node{ObjectMeta: named("n2")})
		drains.Add(&v1alpha1.Drain{ObjectMeta: named("d1")})
		start(t, i.drains)
		time.AfterFunc(time.Minute, func() { start(t, i.nodes) })
		var seen []string
		err := kubeclient.Follow(t.Context(), i,
			kubeclient.On(func(n *v1alpha1.Node) { seen = append(seen, n.Name) }, nil),
			kubeclient.On(func(d *v1alpha1.Drain) { seen = append(seen, d.Name) }, nil))
		if err != nil {
			t.Fatal(err)
		}
		if len(seen) != 3 || seen[2] != "d1" {
			t.Errorf("saw %v, want both nodes, then the drain", seen)
		}
	})
}

func TestAWatchBringsWhatIsNewChangedAndGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := framework.NewFakeControllerSource()
		t.Cleanup(nodes.Shutdown)
		i := informers{nodes: toolscache.NewSharedIndexInformer(nodes, &v1alpha1.Node{}, 0, nil)}
		start(t, i.nodes)
		var seen []string
		note := func(what string) func(*v1alpha1.Node) {
			return func(n *v1alpha1.Node) { seen = append(seen, what+" "+n.Name) }
		}
		if err := kubeclient.Subscribe(t.Context(), i, kubeclient.On(note("see"), note("gone"))); err != nil {
			t.Fatal(err)
		}
		for _, change := range []func(){
			func() { nodes.Add(&v1alpha1.Node{ObjectMeta: named("n1")}) },
			func() { nodes.Modify(&v1alpha1.Node{ObjectMeta: named("n1")}) },
			func() { nodes.Delete(&v1alpha1.Node{ObjectMeta: named("n1")}) },
		} {
			change()
			time.Sleep(time.Second)
			synctest.Wait()
		}
		if got := strings.Join(seen, ", "); got != "see n1, see n1, gone n1" {
			t.Errorf("saw %s", got)
		}
	})
}

// Nobody was watching when an object was deleted and another one got its name: the next list shows only the other one.
func TestAnObjectThatWasReplacedIsGoneBeforeTheOtherIsSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := framework.NewFakeControllerSource()
		t.Cleanup(nodes.Shutdown)
		i := informers{nodes: toolscache.NewSharedIndexInformer(nodes, &v1alpha1.Node{}, 0, nil)}
		start(t, i.nodes)
		var seen []string
		note := func(what string) func(*v1alpha1.Node) {
			return func(n *v1alpha1.Node) { seen = append(seen, what+" "+string(n.UID)) }
		}
		if err := kubeclient.Subscribe(t.Context(), i, kubeclient.On(note("see"), note("gone"))); err != nil {
			t.Fatal(err)
		}
		node := func(uid string) *v1alpha1.Node {
			return &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: types.UID(uid)}}
		}
		nodes.Add(node("first"))
		time.Sleep(time.Second)
		synctest.Wait()
		nodes.Modify(node("second"))
		time.Sleep(time.Second)
		synctest.Wait()
		if got := strings.Join(seen, ", "); got != "see first, gone first, see second" {
			t.Errorf("saw %s", got)
		}
	})
}

func TestFollowEndsWithItsContextAndNamesTheKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := framework.NewFakeControllerSource()
		t.Cleanup(nodes.Shutdown)
		i := informers{nodes: toolscache.NewSharedIndexInformer(nodes, &v1alpha1.Node{}, 0, nil)}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		ignore := kubeclient.On(func(*v1alpha1.Node) {}, nil)
		if err := kubeclient.Follow(ctx, i, ignore); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("informers that never start: %v", err)
		}
		for _, begin := range []func(context.Context, cache.Informers, ...kubeclient.Watch) error{kubeclient.Follow, kubeclient.Subscribe} {
			err := begin(t.Context(), i, kubeclient.On(func(*v1alpha1.Settings) {}, nil))
			if err == nil || err.Error() != "watch *v1alpha1.Settings: no such kind" {
				t.Errorf("a kind that cannot be watched: %v", err)
			}
		}
	})
}
