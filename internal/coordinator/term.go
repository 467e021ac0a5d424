package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/backoff"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/identity"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/node"
)

// ErrTermOver: the election went to another term; nothing may be written for this one.
var ErrTermOver = errors.New("the coordinator's term has ended")

// Term is one node's term as coordinator: a manager with the cluster's controllers, and what they share.
type Term struct {
	// Identity names the term; it is the holder of the election's Lease while the term lasts.
	Identity string
	// Epoch is the epoch of the node that leads.
	Epoch *node.Epoch
	// Manager runs the controllers.
	Manager ctrl.Manager
	// Log of the term.
	Log *slog.Logger

	opts Options
	ctx  context.Context
	end  context.CancelCauseFunc
}

func newTerm(o Options, e *node.Epoch, id string) *Term {
	ctx, end := context.WithCancelCause(context.Background())
	return &Term{Identity: id, Epoch: e, Log: o.Log.With("term", id), opts: o, ctx: ctx, end: end}
}

// run builds a fresh manager and returns when everything in it has stopped.
func (t *Term) run() error {
	defer t.end(ErrTermOver)
	stopTimeout := t.opts.Timing.Dead - t.opts.Timing.Fence
	mgr, err := ctrl.NewManager(t.bind(t.opts.Config), ctrl.Options{
		Scheme:                  kubeclient.NewScheme(),
		MapperProvider:          func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return kubeclient.NewMapper(), nil },
		Metrics:                 metricsserver.Options{BindAddress: "0"},
		LeaderElection:          false,
		GracefulShutdownTimeout: &stopTimeout,
		Controller:              config.Controller{SkipNameValidation: new(true)},
		Cache: cache.Options{ByObject: map[client.Object]cache.ByObject{
			&coordinationv1.Lease{}:         {Namespaces: map[string]cache.Config{lease.Namespace: {}}},
			&corev1.Pod{}:                   {Namespaces: map[string]cache.Config{lease.Namespace: {}}}, // guards
			&policyv1.PodDisruptionBudget{}: {Namespaces: map[string]cache.Config{lease.Namespace: {}}},
		}},
		NewCache: func(cfg *rest.Config, o cache.Options) (cache.Cache, error) {
			c, err := cache.New(cfg, o)
			return termCache{c, t.ctx}, err
		},
	})
	if err != nil {
		return fmt.Errorf("term %s: %w", t.Identity, err)
	}
	t.Manager = mgr
	cl, err := kubeclient.New(t.bind(t.opts.Config))
	if err != nil {
		return fmt.Errorf("term %s: %w", t.Identity, err)
	}
	if err := t.begin(t.ctx, cl); err != nil {
		return fmt.Errorf("term %s: %w", t.Identity, err)
	}
	if err := t.opts.Setup(t); err != nil {
		return fmt.Errorf("term %s: %w", t.Identity, err)
	}
	if err := mgr.Add(manager.RunnableFunc(func(ctx context.Context) error { t.republish(ctx, cl); return nil })); err != nil {
		return fmt.Errorf("term %s: %w", t.Identity, err)
	}
	return mgr.Start(t.ctx)
}

// termCache is a cache that nobody waits for after the end of its term. A manager that is asked to end waits until its caches are filled, which never
// happens then: a term that ended right after it began would never be over, and its node could neither stop nor lead again.
type termCache struct {
	cache.Cache
	term context.Context
}

// WaitForCacheSync implements cache.Informers.
func (c termCache) WaitForCacheSync(ctx context.Context) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.term, cancel)()
	return c.Cache.WaitForCacheSync(ctx) || c.term.Err() != nil
}

// republish writes the Term again when it was deleted or changed, until ctx ends. On Kubernetes no node could renew its lease without it.
func (t *Term) republish(ctx context.Context, cl client.Client) {
	for backoff.Sleep(ctx, t.opts.Timing.Renew) == nil {
		current := &v1alpha1.Term{}
		err := cl.Get(ctx, client.ObjectKey{Name: v1alpha1.TermName}, current)
		if err == nil && current.Spec.Identity == t.Identity || err != nil && !kubeclient.IsMissing(err) {
			continue
		}
		t.Log.Warn("the Term does not name this coordinator; writing it again", "found", current.Spec.Identity)
		if err := t.publish(ctx, cl); err != nil && ctx.Err() == nil {
			t.Log.Warn("could not write the Term; trying again", "error", err)
		}
	}
}

// begin records in the Term object which node leads, since on Kubernetes the admission policies compare the writer with it, and then creates the
// Settings of a new cluster.
func (t *Term) begin(ctx context.Context, cl client.Client) error {
	ctx, cancel := context.WithTimeout(ctx, t.opts.Timing.Fence)
	defer cancel()
	if err := t.publish(ctx, cl); err != nil {
		return fmt.Errorf("write Term %s: %w", v1alpha1.TermName, err)
	}
	settings := &v1alpha1.Settings{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SettingsName}}
	err := cl.Get(ctx, client.ObjectKeyFromObject(settings), settings)
	if !kubeclient.IsMissing(err) {
		return err
	}
	for {
		if err = client.IgnoreAlreadyExists(cl.Create(ctx, settings)); err == nil {
			break
		}
		// On Kubernetes the policies may not have seen the Term yet.
		if backoff.Sleep(ctx, t.opts.Timing.Renew/4) != nil {
			return fmt.Errorf("create Settings %s: %w", v1alpha1.SettingsName, err)
		}
	}
	t.Log.Info("created the Settings of a new cluster", "settings", v1alpha1.SettingsName)
	return nil
}

// publish writes the Term. The election is read after the Term: a coordinator that was frozen in between cannot replace what its successor wrote.
func (t *Term) publish(ctx context.Context, cl client.Client) error {
	for {
		current := &v1alpha1.Term{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.TermName}}
		err := cl.Get(ctx, client.ObjectKeyFromObject(current), current)
		if err != nil && !kubeclient.IsMissing(err) {
			return err
		}
		if err := t.checkTerm(ctx, cl); err != nil {
			return err
		}
		current.Spec = v1alpha1.TermSpec{Node: t.Epoch.Node, Identity: t.Identity}
		if err != nil {
			err = cl.Create(ctx, current)
		} else {
			err = cl.Update(ctx, current)
		}
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
}

// bind returns a client configuration whose requests all name the term. Once the term has ended it sends nothing, and a controller that
// still runs gets an error.
func (t *Term) bind(cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if t.ctx.Err() != nil {
				return nil, ErrTermOver
			}
			r = r.Clone(r.Context())
			r.Header.Set(identity.TermHeader, t.Identity)
			resp, err := next.RoundTrip(r)
			if err == nil && resp.Header.Get(identity.TermOverHeader) != "" {
				t.end(ErrTermOver)
			}
			return resp, err
		})
	})
	return cfg
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// CheckTerm reads the election's Lease live and fails unless it still names this term. Irreversible steps ask it last.
func (t *Term) CheckTerm(ctx context.Context) error {
	return t.checkTerm(ctx, t.Manager.GetAPIReader())
}

func (t *Term) checkTerm(ctx context.Context, live client.Reader) error {
	if !t.Epoch.Holding() {
		return fmt.Errorf("%w: node %s: %w", ErrTermOver, t.Epoch.Node, fleet.ErrLeaseInDoubt)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	l := &coordinationv1.Lease{}
	if err := live.Get(ctx, types.NamespacedName{Namespace: lease.Namespace, Name: lease.CoordinatorName}, l); err != nil {
		return fmt.Errorf("read the election's lease: %w", err)
	}
	if l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity != t.Identity {
		return ErrTermOver
	}
	return nil
}
