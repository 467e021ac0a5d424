package coordinator

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/identity"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/node"
	"github.com/ebb-dev/ebb/internal/testenv"
)

// bound is a term-bound transport onto a server that answers as told.
func bound(t *testing.T, answer func(*http.Request) *http.Response) (*Term, http.RoundTripper) {
	t.Helper()
	term := newTerm(Options{Log: quiet}, &node.Epoch{}, "n1/1/x")
	rt, err := rest.TransportFor(term.bind(&rest.Config{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		return answer(r), nil
	})}))
	if err != nil {
		t.Fatal(err)
	}
	return term, rt
}

func ask(rt http.RoundTripper) (*http.Response, error) {
	r, err := http.NewRequest(http.MethodPut, "https://api/", http.NoBody)
	if err != nil {
		return nil, err
	}
	return rt.RoundTrip(r)
}

func TestEveryRequestOfATermNamesIt(t *testing.T) {
	var named string
	_, rt := bound(t, func(r *http.Request) *http.Response {
		named = r.Header.Get(identity.TermHeader)
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody}
	})
	if _, err := ask(rt); err != nil || named != "n1/1/x" {
		t.Errorf("named %q: %v", named, err)
	}
}

func TestOnlyTheServersWordThatATermIsOverEndsIt(t *testing.T) {
	for name, over := range map[string]bool{"forbidden for another reason": false, "the term is over": true} {
		t.Run(name, func(t *testing.T) {
			sent := 0
			term, rt := bound(t, func(*http.Request) *http.Response {
				sent++
				h := http.Header{}
				if over {
					h.Set(identity.TermOverHeader, "true")
				}
				return &http.Response{StatusCode: http.StatusForbidden, Header: h, Body: http.NoBody}
			})
			if resp, err := ask(rt); err != nil || resp.StatusCode != http.StatusForbidden {
				t.Fatalf("%v, %v", resp, err)
			}
			_, err := ask(rt)
			if over != (term.ctx.Err() != nil) || over != errors.Is(err, ErrTermOver) || over != (sent == 1) {
				t.Errorf("%d requests were sent, the last with %v; the term: %v", sent, err, context.Cause(term.ctx))
			}
		})
	}
}

// touch is a write that a coordinator may make.
func touch(c client.Client, name string) error {
	for {
		n := &v1alpha1.Node{}
		if err := c.Get(context.Background(), types.NamespacedName{Name: name}, n); err != nil {
			return err
		}
		n.Annotations = map[string]string{"touched": n.ResourceVersion}
		if err := c.Update(context.Background(), n); !apierrors.IsConflict(err) {
			return err // the node and the coordinator write to it too
		}
	}
}

// as is a client that claims a term, whatever has become of it.
func as(t *testing.T, api *testenv.API, name, term string) client.Client {
	t.Helper()
	cfg := api.Config(api.Node(name).CoordinatorKubeconfig())
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			r = r.Clone(r.Context())
			r.Header.Set(identity.TermHeader, term)
			return next.RoundTrip(r)
		})
	})
	c, err := kubeclient.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// aTermThatEndsAtItsBeginning: its manager waits for objects that nobody may read any more.
func aTermThatEndsAtItsBeginning(t *testing.T, api *testenv.API) {
	var first atomic.Bool
	c := newCluster(t, api, []string{"s1"}, func(campaign *Campaign, _ string) {
		setup := campaign.opts.Setup
		campaign.opts.Setup = func(term *Term) error {
			_, indexed := term.Manager.GetCache().GetInformer(context.Background(), &v1alpha1.Node{}) // as those that index objects do
			err := errors.Join(indexed, setup(term))
			if first.CompareAndSwap(false, true) {
				term.end(ErrTermOver)
			}
			return err
		}
	})
	c.leader()
	if got := c.ledBy(); len(got) < 2 {
		t.Errorf("terms of %v", got)
	}
	c.noOverlap()
}

func aTermThatIsOver(t *testing.T, api *testenv.API) {
	c := newCluster(t, api, []string{"h1", "h2"})
	before, term := c.leader()
	own, thaws := term.Manager.GetClient(), as(t, api, before.name, term.Identity)
	if err := touch(thaws, before.name); err != nil {
		t.Errorf("a write within the term: %v", err)
	}
	if err := before.campaign.Resign(context.Background()); err != nil {
		t.Fatal(err)
	}
	c.leader(before)
	if err := touch(own, before.name); !errors.Is(err, ErrTermOver) {
		t.Errorf("a client of the term after its end: %v", err)
	}
	err := touch(thaws, before.name)
	want := `nodes.ebb.dev "` + before.name + `" is forbidden: the coordinator's term "` + term.Identity + `" has ended`
	if !apierrors.IsForbidden(err) || err.Error() != want {
		t.Errorf("a write with the old term: %v\nwant %s", err, want)
	}
	// One that has not heard yet: the server's refusal ends it, also when the refusal is a conflict, after which nothing more is sent.
	frozen := newTerm(before.campaign.opts, term.Epoch, term.Identity)
	late, err := kubeclient.New(frozen.bind(before.campaign.opts.Config))
	if err != nil {
		t.Fatal(err)
	}
	if err := touch(late, before.name); !apierrors.IsForbidden(err) && !errors.Is(err, ErrTermOver) || !errors.Is(context.Cause(frozen.ctx), ErrTermOver) {
		t.Errorf("a write of a term that had not heard: %v; then %v", err, context.Cause(frozen.ctx))
	}
	if err := touch(late, before.name); !errors.Is(err, ErrTermOver) {
		t.Errorf("the next: %v", err)
	}
}

// aTermThatLost: somebody else holds the election, and the coordinator finds out by a write or by its elector.
func aTermThatLost(t *testing.T, api *testenv.API) {
	c := newCluster(t, api, []string{"i1"})
	m, term := c.leader()
	c.elect("thief/1/x")
	if err := term.CheckTerm(context.Background()); !errors.Is(err, ErrTermOver) {
		t.Errorf("the term stands: %v", err)
	}
	if err := touch(term.Manager.GetClient(), m.name); !apierrors.IsForbidden(err) && !errors.Is(err, ErrTermOver) {
		t.Errorf("a write after the election was lost: %v", err)
	}
	until(t, "the term to end", func() bool { return term.ctx.Err() != nil && !m.campaign.Leading() })
	if got := context.Cause(term.ctx); !errors.Is(got, ErrTermOver) {
		t.Errorf("cause: %v", got)
	}
	if got := c.holder(); got != "thief/1/x" {
		t.Errorf("the election of another was changed: %q", got)
	}
	c.elect("")
	if _, next := c.leader(); next.Identity == term.Identity {
		t.Error("the old term goes on")
	}
}

// theTermComesBack: on Kubernetes no node could write without the Term.
func theTermComesBack(t *testing.T, api *testenv.API) {
	c := newCluster(t, api, []string{"t1", "t2"})
	leader, term := c.leader()
	object := &v1alpha1.Term{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.TermName}}
	key := client.ObjectKeyFromObject(object)
	names := func() bool {
		return c.admin.Get(context.Background(), key, object) == nil && object.Spec.Node == leader.name && object.Spec.Identity == term.Identity
	}
	until(t, "the Term", names)
	if err := c.admin.Delete(context.Background(), object); err != nil {
		t.Fatal(err)
	}
	until(t, "the Term after it was deleted", names)
	object.Spec = v1alpha1.TermSpec{Node: "thief", Identity: "thief/1/x"}
	if err := c.admin.Update(context.Background(), object); err != nil {
		t.Fatal(err)
	}
	until(t, "the Term after it was changed", names)
	if term.ctx.Err() != nil {
		t.Error("the term has ended")
	}
}

// lostNodesAreMarked: one node fell silent, others renew with clocks that went mad; the silent one alone is lost.
func lostNodesAreMarked(t *testing.T, api *testenv.API) {
	c := newCluster(t, api, []string{"j1", "j2"})
	clocks := map[string]time.Time{
		"past": time.Unix(0, 0), "future": time.Now().AddDate(100, 0, 0), "silent": time.Now().AddDate(100, 0, 0),
	}
	for name, clock := range clocks {
		c.join(name, clock)
	}
	c.leader()
	until(t, "the silent node to be marked", func() bool {
		c.renew("past", clocks["past"])
		c.renew("future", clocks["future"])
		return c.record("silent").Fenced == 1
	})
	for _, name := range []string{"past", "future", "j1", "j2"} {
		if r := c.record(name); r.Fenced != 0 || !r.Held() {
			t.Errorf("%s was marked: %+v", name, r)
		}
	}
	until(t, "the silent node to be called Fenced", func() bool {
		n := &v1alpha1.Node{}
		if err := c.admin.Get(context.Background(), types.NamespacedName{Name: "silent"}, n); err != nil {
			t.Fatal(err)
		}
		ready := meta.FindStatusCondition(n.Status.Conditions, v1alpha1.NodeReady)
		return ready != nil && ready.Status == metav1.ConditionUnknown && ready.Reason == v1alpha1.ReasonFenced
	})
	until(t, "the event", func() bool {
		var list eventsv1.EventList
		if err := c.admin.List(context.Background(), &list); err != nil {
			t.Fatal(err)
		}
		return len(list.Items) == 1 && list.Items[0].Regarding.Name == "silent" && list.Items[0].Reason == "NodeLost" &&
			list.Items[0].Note == "Epoch 1 of node silent is fenced: its lease was not renewed for 8s."
	})
}

// join makes a node that exists on paper only: its Lease and what it reported of itself.
func (c *cluster) join(name string, clock time.Time) {
	c.t.Helper()
	l, _, err := lease.Take(nil, lease.Claimant{Node: name, Holder: name + "/x"}, fast(), clock)
	if err != nil {
		c.t.Fatal(err)
	}
	n := &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, err := range []error{c.admin.Create(context.Background(), l), c.admin.Create(context.Background(), n)} {
		if err != nil {
			c.t.Fatal(err)
		}
	}
	n.Status = v1alpha1.NodeStatus{Epoch: 1, Liveness: v1alpha1.Alive}
	if err := c.admin.Status().Update(context.Background(), n); err != nil && !apierrors.IsConflict(err) {
		c.t.Fatal(err)
	}
}

func (c *cluster) lease(name string) *coordinationv1.Lease {
	c.t.Helper()
	l := &coordinationv1.Lease{}
	if err := c.admin.Get(context.Background(), types.NamespacedName{Namespace: lease.Namespace, Name: lease.NameOf(name)}, l); err != nil {
		c.t.Fatal(err)
	}
	return l
}

func (c *cluster) record(name string) lease.Record {
	c.t.Helper()
	r, err := lease.Read(c.lease(name))
	if err != nil {
		c.t.Fatal(err)
	}
	return r
}

func (c *cluster) renew(name string, clock time.Time) {
	c.t.Helper()
	next, err := lease.Renew(c.lease(name), name+"/x", 1, fast(), clock)
	if err != nil {
		c.t.Errorf("%s: %v", name, err)
		return
	}
	// The clock stands still in a Lease that is written again and again: only the resourceVersion shows that it was.
	next.Annotations["renewal"] = next.ResourceVersion
	if err := c.admin.Update(context.Background(), next); err != nil {
		c.t.Fatal(err)
	}
}
