package apiserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/internal/testenv"
)

// goneWithin is the longest that the deletion of a definition may take once nothing holds its objects any more. The server looks
// for objects that were held every five seconds; the rest is for a busy machine. A retry that was lost takes five minutes.
const goneWithin = 45 * time.Second

// history is one definition of somebody's own, made and deleted again and again under the same name.
type history struct {
	plural  string
	lives   int
	objects int  // of each life
	held    bool // one object has a finalizer, which its owner takes away a moment after the deletion
	used    bool // somebody lists the objects before the deletion
}

func newHistory(r *rand.Rand, plural string) history {
	return history{plural: plural, lives: 1 + r.IntN(2), objects: r.IntN(2) * r.IntN(4), held: r.IntN(6) == 0, used: r.IntN(2) == 0}
}

func (h history) String() string {
	return fmt.Sprintf("%s: %d lives, %d objects each, held %t, used %t", h.plural, h.lives, h.objects, h.held, h.used)
}

func (h history) crd() string { return crds + "/" + h.plural + ".deleted.test" }
func (h history) objectsAt() string {
	return "/apis/deleted.test/v1alpha1/namespaces/default/" + h.plural
}

// TestADeletedDefinitionIsGonePromptly deletes many definitions at once, most of them a moment after they were made, while the
// machine is busy. Such a definition is first listed by its own deletion, while the server still fills the cache for it.
func TestADeletedDefinitionIsGonePromptly(t *testing.T) {
	s := api(t)
	burn(t)
	r := rand.New(rand.NewPCG(uint64(count.Load()), 11))
	var wg sync.WaitGroup
	for i := range 12 {
		h := newHistory(r, fmt.Sprintf("t%dx%d", count.Add(1), i))
		wg.Go(func() { h.live(t, s.admin(t)) })
	}
	wg.Wait()
}

// TestTheFirstListOfAKindIsAnswered: the cache of a kind is filled when the first question is asked.
func TestTheFirstListOfAKindIsAnswered(t *testing.T) {
	admin := api(t).admin(t)
	for range 5 {
		h := history{plural: fmt.Sprintf("first%d", count.Add(1))}
		admin.must(t, http.MethodPost, crds, definition("deleted.test", h.plural, "K"+h.plural))
		eventually(t, h.plural+" to be established", func() bool { ok, err := established(t.Context(), admin, h.crd()); return ok && err == nil })
		if a := admin.do(t, http.MethodGet, h.objectsAt(), nil); a.code != http.StatusOK {
			t.Errorf("the first list of %s: %s", h.plural, a)
		}
		admin.must(t, http.MethodDelete, h.crd(), nil)
	}
}

// TestTheDeletionOfAnUnusedDefinitionNeverFails: its objects are listed for the first time by its deletion. After a failure the
// deletion may take minutes.
func TestTheDeletionOfAnUnusedDefinitionNeverFails(t *testing.T) {
	admin := api(t).admin(t)
	for range 5 {
		h := history{plural: fmt.Sprintf("unused%d", count.Add(1))}
		admin.must(t, http.MethodPost, crds, definition("deleted.test", h.plural, "K"+h.plural))
		eventually(t, h.plural+" to be established", func() bool { ok, err := established(t.Context(), admin, h.crd()); return ok && err == nil })
		for _, state := range admin.lastStates(t, h.crd()) {
			if slices.ContainsFunc(state.Status.Conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
				return c.Reason == "InstanceDeletionFailed"
			}) {
				t.Errorf("%s: %+v", h.plural, state.Status.Conditions)
			}
		}
	}
}

// TestADeletionThatFailedIsAskedForAgain: whoever recorded the failure, the server tries again and the deletion ends.
func TestADeletionThatFailedIsAskedForAgain(t *testing.T) {
	admin := api(t).admin(t)
	h := history{plural: fmt.Sprintf("failed%d", count.Add(1)), held: true}
	admin.must(t, http.MethodPost, crds, definition("deleted.test", h.plural, "K"+h.plural))
	eventually(t, h.plural+" to be served", func() bool { return admin.do(t, http.MethodGet, h.objectsAt(), nil).code == http.StatusOK })
	admin.must(t, http.MethodPost, h.objectsAt(), h.object(0))
	admin.must(t, http.MethodDelete, h.crd(), nil)
	eventually(t, "its object to be deleted", func() bool { return leaving(admin.must(t, http.MethodGet, h.objectsAt()+"/o0", nil)) })
	failed := object{"type": "Terminating", "status": "True", "reason": "InstanceDeletionFailed", "message": "by the test", "lastTransitionTime": "2026-01-02T03:04:05Z"}
	eventually(t, "the failure to be recorded, and the deletion to be asked for again", func() bool {
		crd := admin.must(t, http.MethodGet, h.crd(), nil).object(t)
		if notes, _ := crd["metadata"].(map[string]any)["annotations"].(map[string]any); notes["ebb.dev/deletion-retries"] != nil {
			return true
		}
		if status := crd["status"].(map[string]any); !strings.Contains(fmt.Sprint(status["conditions"]), "by the test") {
			status["conditions"] = append(slices.DeleteFunc(status["conditions"].([]any), func(c any) bool {
				return c.(map[string]any)["type"] == "Terminating"
			}), failed)
			admin.do(t, http.MethodPut, h.crd()+"/status", crd) // a conflict is tried again
		}
		return false
	})
	admin.must(t, http.MethodPatch, h.objectsAt()+"/o0", object{"metadata": object{"finalizers": nil}})
	if err := h.awaitGone(t.Context(), admin); err != nil {
		t.Error(err)
	}
}

// lastStates deletes a definition and returns every state in which it was seen from then on.
func (c caller) lastStates(t *testing.T, path string) (states []apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	have := c.must(t, http.MethodGet, path, nil).object(t)["metadata"].(map[string]any)
	ctx, cancel := context.WithTimeout(t.Context(), goneWithin)
	defer cancel()
	watch := fmt.Sprintf("%s%s?watch=1&resourceVersion=%s&fieldSelector=metadata.name=%s", c.url, crds, have["resourceVersion"], have["name"])
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, watch, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	c.must(t, http.MethodDelete, path, nil)
	for lines := json.NewDecoder(resp.Body); ; {
		var e struct {
			Type   string
			Object apiextensionsv1.CustomResourceDefinition
		}
		if err := lines.Decode(&e); err != nil {
			t.Fatalf("%s was not seen to go: %v", path, err)
		}
		states = append(states, e.Object)
		if e.Type == "DELETED" {
			return states
		}
	}
}

// burn keeps every processor busy until the test ends.
func burn(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for ctx.Err() == nil {
			}
		})
	}
	t.Cleanup(func() { stop(); wg.Wait() })
}

// live runs the history. It only calls t.Errorf, since it has a goroutine of its own.
func (h history) live(t *testing.T, admin caller) {
	for life := range h.lives {
		if err := h.once(t.Context(), admin, life); err != nil {
			t.Errorf("%s, life %d: %v", h, life+1, err)
			return
		}
	}
}

func (h history) once(ctx context.Context, admin caller, life int) error {
	if err := h.expect(ctx, admin, http.MethodPost, crds, definition("deleted.test", h.plural, "K"+h.plural), http.StatusCreated); err != nil {
		return err
	}
	if err := h.await(ctx, "the definition to be established", func() (bool, error) { return established(ctx, admin, h.crd()) }); err != nil {
		return err
	}
	if h.used || h.objects > 0 {
		err := h.await(ctx, "the objects to be served", func() (bool, error) {
			a, err := admin.try(ctx, http.MethodGet, h.objectsAt(), nil)
			return a.code == http.StatusOK, err
		})
		if err != nil {
			return err
		}
	}
	for i := range h.objects {
		if err := h.expect(ctx, admin, http.MethodPost, h.objectsAt(), h.object(i), http.StatusCreated); err != nil {
			return err
		}
	}
	if err := h.expect(ctx, admin, http.MethodDelete, h.crd(), nil, http.StatusOK); err != nil {
		return err
	}
	if h.held && h.objects > 0 {
		if err := h.letGo(ctx, admin); err != nil {
			return err
		}
	}
	return h.awaitGone(ctx, admin)
}

func (h history) object(i int) object {
	meta := object{"name": fmt.Sprintf("o%d", i)}
	if h.held && i == 0 {
		meta["finalizers"] = []string{"deleted.test/held"}
	}
	return object{"apiVersion": "deleted.test/v1alpha1", "kind": "K" + h.plural, "metadata": meta}
}

// letGo waits until the held object is being deleted, sees that it keeps its definition, and takes its finalizer away.
func (h history) letGo(ctx context.Context, admin caller) error {
	err := h.await(ctx, "the held object to be deleted", func() (bool, error) {
		a, err := admin.try(ctx, http.MethodGet, h.objectsAt()+"/o0", nil)
		if err != nil || a.code != http.StatusOK {
			return false, errors.Join(fmt.Errorf("the held object: %s", a), err)
		}
		return leaving(a), nil
	})
	if err != nil {
		return err
	}
	time.Sleep(time.Second)
	if a, err := admin.try(ctx, http.MethodGet, h.crd(), nil); err != nil || a.code != http.StatusOK {
		return errors.Join(fmt.Errorf("the definition went while an object was held: %s", a), err)
	}
	return h.expect(ctx, admin, http.MethodPatch, h.objectsAt()+"/o0", object{"metadata": object{"finalizers": nil}}, http.StatusOK)
}

func (h history) awaitGone(ctx context.Context, admin caller) error {
	begun := time.Now()
	var a answer
	for time.Since(begun) < goneWithin {
		var err error
		if a, err = admin.try(ctx, http.MethodGet, h.crd(), nil); err != nil {
			return err
		}
		if a.code == http.StatusNotFound {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("still there %s after its deletion: %s", goneWithin, a.body)
}

func (h history) expect(ctx context.Context, admin caller, method, path string, body any, code int) error {
	a, err := admin.try(ctx, method, path, body)
	if err == nil && a.code != code {
		err = fmt.Errorf("%s %s: %s", method, path, a)
	}
	return err
}

func (h history) await(ctx context.Context, what string, done func() (bool, error)) error {
	deadline := time.Now().Add(testenv.Patience)
	for time.Now().Before(deadline) {
		if ok, err := done(); ok || err != nil {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
	return fmt.Errorf("waited %s for %s", testenv.Patience, what)
}

// established says whether a definition is served.
func established(ctx context.Context, admin caller, path string) (bool, error) {
	a, err := admin.try(ctx, http.MethodGet, path, nil)
	if err != nil || a.code != http.StatusOK {
		return false, errors.Join(fmt.Errorf("the definition: %s", a), err)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := json.Unmarshal(a.body, &crd); err != nil {
		return false, err
	}
	return slices.ContainsFunc(crd.Status.Conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
		return c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue
	}), nil
}

// leaving says whether an object is being deleted.
func leaving(a answer) bool {
	var o metav1.PartialObjectMetadata
	return json.Unmarshal(a.body, &o) == nil && o.DeletionTimestamp != nil
}
