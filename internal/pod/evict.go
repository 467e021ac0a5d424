package pod

import (
	"context"
	"errors"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/ebb-dev/ebb/internal/backoff"
)

// retries are the delays after failures that are no budget's: a budget's refusal has no delay, its status decides.
var retries = backoff.Policy{First: time.Second, Longest: 30 * time.Second}

// unseen is how long an accepted eviction may take to show in the watch, before it is sent again.
const unseen = time.Minute

// Limits bound the requests of evictions.
type Limits struct {
	// Parallel is how many evictions are under way at once, on all nodes.
	Parallel int
	// PerSecond is how many requests are sent a second, on all nodes.
	PerSecond int
	// TerminatingFor is how long after its grace a pod that does not end is waited for.
	TerminatingFor time.Duration
}

// DefaultLimits are a quarter of the mutating requests that an API server serves at once by default.
func DefaultLimits() Limits {
	return Limits{Parallel: 50, PerSecond: 500, TerminatingFor: 5 * time.Minute}
}

// perNode bounds the evictions of one node, so that a node with many pods does not keep others waiting.
func (l Limits) perNode() int { return max(1, l.Parallel/2) }

// Validate refuses limits that make no sense.
func (l Limits) Validate() error {
	var all []error
	if l.Parallel < 1 || l.Parallel > 1000 {
		all = append(all, errors.New("--evictions-parallel: use 1 to 1000"))
	}
	if l.PerSecond < 1 || l.PerSecond > 10000 {
		all = append(all, errors.New("--evictions-per-second: use 1 to 10000"))
	}
	if l.TerminatingFor <= 0 {
		all = append(all, errors.New("--terminating-pods-after: must be a positive duration, such as 5m"))
	}
	return errors.Join(all...)
}

// send sends one eviction or deletion, of exactly the pod that was seen. It never waits and tries again by itself.
func send(ctx context.Context, kube kubernetes.Interface, a Action) error {
	exactly := &metav1.Preconditions{UID: &a.Pod.UID}
	request := kube.CoreV1().RESTClient().Post().Namespace(a.Pod.Namespace).Resource("pods").Name(a.Pod.Name).SubResource("eviction").
		Body(&policyv1.Eviction{
			ObjectMeta: metav1.ObjectMeta{Name: a.Pod.Name, Namespace: a.Pod.Namespace}, DeleteOptions: &metav1.DeleteOptions{Preconditions: exactly},
		})
	if a.Verb == Delete {
		request = kube.CoreV1().RESTClient().Delete().Namespace(a.Pod.Namespace).Resource("pods").Name(a.Pod.Name).
			Body(&metav1.DeleteOptions{Preconditions: exactly, GracePeriodSeconds: &a.Grace})
	}
	return request.MaxRetries(0).Do(ctx).Error()
}

// Results of attempts, in metrics.
const (
	resultAccepted = "accepted"
	resultGone     = "gone"
	resultRefused  = "refused"
	resultFailed   = "failed"
)

// judge says what an answer of the API means. failures is how often this pod has failed in a row before.
func judge(err error, a Action, failures int64, now time.Time) (Attempt, string) {
	version := ""
	if a.Budget != nil {
		version = a.Budget.Version
	}
	switch {
	case err == nil:
		return Attempt{Accepted: true, Budget: version, Again: now.Add(unseen)}, resultAccepted
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		// It is gone, or another pod has its name: the watch will show it.
		return Attempt{Failed: err.Error(), Again: now.Add(retries.First)}, resultGone
	case apierrors.IsTooManyRequests(err) && apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause) && a.Budget != nil:
		return Attempt{Refused: true, Budget: version, Again: now.Add(retries.First)}, resultRefused
	}
	delay := retries.After(failures + 1)
	if seconds, ok := apierrors.SuggestsClientDelay(err); ok && seconds > 0 {
		delay = max(delay, time.Duration(seconds)*time.Second)
	}
	return Attempt{Failed: err.Error(), Again: now.Add(delay)}, resultFailed
}
