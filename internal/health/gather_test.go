package health

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/drainconfig"
	"github.com/ebb-dev/ebb/internal/kubeclient"
)

// slowEvents is a reader whose list of events takes long.
type slowEvents struct {
	client.Reader
	listed, early atomic.Bool // drains were listed before the events
}

// List implements client.Reader.
func (s *slowEvents) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	switch list.(type) {
	case *v1alpha1.HealthEventList:
		time.Sleep(50 * time.Millisecond)
		defer s.listed.Store(true)
	case *v1alpha1.DrainList:
		s.early.Store(!s.listed.Load())
	}
	return s.Reader.List(ctx, list, opts...)
}

// A Drain that is created between the two lists would be missing, although the event already has its UID.
func TestEventsAreListedBeforeDrains(t *testing.T) {
	settings := &v1alpha1.Settings{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SettingsName}}
	reader := &slowEvents{Reader: fake.NewClientBuilder().WithScheme(kubeclient.NewScheme()).WithObjects(settings).Build()}
	c := &Controller{cached: reader, live: reader, Config: drainconfig.Default()}
	if _, _, err := c.gather(t.Context(), true, nil, nil); err != nil || reader.early.Load() {
		t.Errorf("the drains were listed first: %t; %v", reader.early.Load(), err)
	}
}

// counting counts reads.
type counting struct {
	client.Reader
	mu          sync.Mutex
	gets, lists int
}

// Get implements client.Reader.
func (c *counting) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	c.mu.Lock()
	c.gets++
	c.mu.Unlock()
	return c.Reader.Get(ctx, key, o, opts...)
}

// List implements client.Reader.
func (c *counting) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	c.mu.Lock()
	c.lists++
	c.mu.Unlock()
	return c.Reader.List(ctx, list, opts...)
}

// The work on many nodes is counted with one read of what all of them share.
func TestWhatManyNodesShareIsReadOnce(t *testing.T) {
	settings := &v1alpha1.Settings{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SettingsName}, Status: v1alpha1.SettingsStatus{ActiveDrain: &v1alpha1.ActiveDrain{Name: "d"}}}
	api := &counting{Reader: fake.NewClientBuilder().WithScheme(kubeclient.NewScheme()).WithObjects(settings).Build()}
	once := newOnceReader(api)
	for range 3 {
		got, list := &v1alpha1.Settings{}, &v1alpha1.NodeList{}
		if err := once.Get(t.Context(), client.ObjectKeyFromObject(settings), got); err != nil || got.Status.ActiveDrain == nil || got.Status.ActiveDrain.Name != "d" {
			t.Fatalf("%+v, %v", got, err)
		}
		if err := once.List(t.Context(), list); err != nil {
			t.Fatal(err)
		}
		if err := once.Get(t.Context(), client.ObjectKey{Name: "other"}, got); err == nil {
			t.Fatal("found what is not there")
		}
	}
	if api.gets != 1+3 || api.lists != 1 {
		t.Errorf("%d objects and %d lists were read", api.gets, api.lists)
	}
}

// Of the events of a flood most only wait. Those whose nodes can be quarantined come first, and the others do not have to wait for them for ever.
func TestStepsWithAnEffectComeFirst(t *testing.T) {
	var steps []Step
	add := func(n int, a Action) {
		for range n {
			steps = append(steps, Step{Action: a})
		}
	}
	count := func(steps []Step) map[Action]int {
		by := map[Action]int{}
		for _, s := range steps {
			by[s.Action]++
		}
		return by
	}
	add(500, ActionWait)
	add(50, ActionQuarantine)
	add(500, ActionSkip)
	add(10, ActionAdmit)
	now, more := portion(steps)
	if got, want := count(now), (map[Action]int{ActionQuarantine: 50, ActionAdmit: 10, ActionWait: atOnce}); !maps.Equal(got, want) || !more || now[0].Action != ActionQuarantine {
		t.Errorf("first %v, %t", got, more)
	}
	steps = nil
	add(recordAtOnce+1, ActionWait)
	if now, more := portion(steps); len(now) != recordAtOnce || !more {
		t.Errorf("then %d, %t", len(now), more)
	}
	if now, more := portion(steps[:3]); len(now) != 3 || more {
		t.Errorf("at last %d, %t", len(now), more)
	}
}
