package apiserver

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	listers "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/ebb-dev/ebb/internal/backoff"
)

// retriesAnnotation counts, on a definition that is being deleted, how often its deletion was asked for again.
const retriesAnnotation = "ebb.dev/deletion-retries"

const (
	// deletionLook is how often the definitions that are being deleted are checked. The check reads memory only.
	deletionLook = 500 * time.Millisecond
	// workLimit is longer than the controller works on a definition without updating it: it waits a minute for objects to be deleted.
	// Changing the definition during that time would only make the controller start over.
	workLimit = 90 * time.Second
)

// deletionRetries are the delays before a failed deletion without progress is requested again: without end, because a deletion may
// wait for objects with finalizers for any time.
var deletionRetries = backoff.Policy{First: time.Second, Longest: 15 * time.Second}

// deletions retries the deletion of CustomResourceDefinitions.
//
// The Kubernetes controller that deletes a definition's objects can lose a retry. After a failure it records that in the definition's
// status and tries again 5 ms later. If its watch has not delivered its own write by then, the next write is a conflict. The controller
// then expects an event for the other change; but it ignores changes of nothing but that condition. The definition stays until the next
// resync, five minutes later. Also, its delays after failures grow to 17 minutes, even if the cause has gone.
//
// A change of anything else makes the controller try again at once. So a definition whose deletion failed and makes no progress gets an
// annotation.
type deletions struct {
	definitions crdclient.CustomResourceDefinitionInterface
	lister      listers.CustomResourceDefinitionLister
	seen        map[types.UID]*deletion
}

// deletion is one definition that is being deleted.
type deletion struct {
	version string          // as which it was seen last
	since   time.Time       // and since when
	pauses  backoff.Backoff // how long a failure is left alone
	asked   int
}

func newDeletions(cfg *rest.Config, lister listers.CustomResourceDefinitionLister) (*deletions, error) {
	c, err := crdclient.NewForConfig(cfg)
	if err != nil {
		return nil, err
	}
	return &deletions{definitions: c.CustomResourceDefinitions(), lister: lister}, nil
}

// start begins to look, until ctx ends or stop is called, which returns when it has ended.
func (d *deletions) start(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.run(ctx)
	}()
	return func() { cancel(); <-ended }
}

func (d *deletions) run(ctx context.Context) {
	ticker := time.NewTicker(deletionLook)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			d.look(ctx, now)
		}
	}
}

// look asks again for every deletion that is due.
func (d *deletions) look(ctx context.Context, now time.Time) {
	all, err := d.lister.List(labels.Everything())
	if err != nil {
		return // a lister reads memory; it has no errors of its own
	}
	for _, crd := range d.due(all, now) {
		// A definition that is gone needs no help, and one that could not be changed now is tried again.
		_, _ = d.definitions.Patch(ctx, crd.Name, types.MergePatchType, retryPatch(crd, d.seen[crd.UID].asked), metav1.PatchOptions{})
	}
}

// due returns the definitions whose deletion has to be requested again, and records that it is.
func (d *deletions) due(all []*apiextensionsv1.CustomResourceDefinition, now time.Time) []*apiextensionsv1.CustomResourceDefinition {
	seen := map[types.UID]*deletion{}
	var due []*apiextensionsv1.CustomResourceDefinition
	for _, crd := range all {
		if crd.DeletionTimestamp.IsZero() || !apihelpers.CRDHasFinalizer(crd, apiextensionsv1.CustomResourceCleanupFinalizer) {
			continue
		}
		state := d.seen[crd.UID]
		if state == nil {
			state = &deletion{pauses: backoff.New(deletionRetries)}
		}
		seen[crd.UID] = state
		limit := workLimit
		if failedToDelete(crd) {
			limit = state.pauses.Peek()
		}
		switch {
		case state.version != crd.ResourceVersion:
			state.version, state.since = crd.ResourceVersion, now
		case now.Sub(state.since) >= limit:
			state.asked++
			state.since = now
			state.pauses.Next()
			due = append(due, crd)
		}
	}
	d.seen = seen
	return due
}

// failedToDelete reports whether the controller recorded that it could not delete the definition's objects.
func failedToDelete(crd *apiextensionsv1.CustomResourceDefinition) bool {
	c := apihelpers.FindCRDCondition(crd, apiextensionsv1.Terminating)
	return c != nil && (c.Reason == "InstanceDeletionFailed" || c.Reason == "InstanceDeletionCheck")
}

// retryPatch changes this definition, however it is now, and no later one of the same name.
func retryPatch(crd *apiextensionsv1.CustomResourceDefinition, asked int) []byte {
	patch := metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		UID: crd.UID, Annotations: map[string]string{retriesAnnotation: strconv.Itoa(asked)},
	}}
	data, _ := json.Marshal(patch) // strings only: never fails
	return data
}
