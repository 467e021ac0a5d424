package deployment

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/events"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/kubeclient"
	"github.com/ebb-dev/ebb/internal/worker"
)

const (
	// A plan is made when nothing has changed for settle, and after settleLimit at the latest. Waiting makes it likely that all
	// nodes plan with the same objects.
	settle      = 100 * time.Millisecond
	settleLimit = 500 * time.Millisecond
	// claimsAtOnce bounds the concurrent claims of a node, and claimLimit the time of one claim. The limit is long: nothing waits
	// for a claim, and a claim that timed out may have been written.
	claimsAtOnce = 4
	claimLimit   = 30 * time.Second
	// replan is the delay after which a failed claim is planned again.
	replan = 250 * time.Millisecond
	// returnLimit is how long the deployments of a node that released its lease wait for the node to come back.
	returnLimit = 3 * time.Second
)

// Claimer claims one node's part of the assignment. It is one loop: wait for a change, plan, claim.
type Claimer struct {
	// Node that claims.
	Node string
	// Client writes the claims.
	Client client.Client
	// View returns the world and the deployments as the node's cache has them.
	View func(context.Context) (World, []*v1alpha1.Deployment, error)
	// May reports whether the node may write: it holds its lease.
	May func() bool
	// Claimed is called for every claim that was made, Conflict for every claim that another node made first, and Settled when
	// the plan has nothing for this node.
	Claimed  func(*v1alpha1.Deployment)
	Conflict func(d *v1alpha1.Deployment, message string)
	Settled  func()
	// Log of the node.
	Log *slog.Logger

	worker.Signal

	mu    sync.Mutex
	ahead map[types.UID]*v1alpha1.Deployment // our claims that View does not show yet
	left  map[string]time.Time               // when a node was first seen without a lease
}

// NewClaimer initializes a claimer whose exported fields are set.
func NewClaimer(c *Claimer) *Claimer {
	c.Signal = worker.NewSignal()
	c.ahead, c.left = map[types.UID]*v1alpha1.Deployment{}, map[string]time.Time{}
	return c
}

// Run claims until ctx ends.
func (c *Claimer) Run(ctx context.Context) {
	pause := time.Duration(0)
	for {
		if !c.await(ctx, pause) {
			return
		}
		soon, err := c.Round(ctx)
		if err != nil && ctx.Err() == nil {
			c.Log.Warn("could not plan claims; trying again", "error", err)
			soon = replan
		}
		pause = resync
		if soon > 0 {
			pause = soon
		}
	}
}

// await waits until something has changed and nothing changes any more, or until the pause has passed. It returns false when ctx ends.
func (c *Claimer) await(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	case <-c.Signal:
	}
	limit := time.NewTimer(settleLimit)
	defer limit.Stop()
	for {
		quiet := time.NewTimer(settle)
		select {
		case <-ctx.Done():
			quiet.Stop()
			return false
		case <-limit.C:
			quiet.Stop()
			return true
		case <-quiet.C:
			return true
		case <-c.Signal:
			quiet.Stop()
		}
	}
}

// Round plans once and claims this node's part. It returns when to plan again even if nothing changes; zero means never.
func (c *Claimer) Round(ctx context.Context) (again time.Duration, err error) {
	w, deployments, err := c.View(ctx)
	if err != nil {
		return 0, err
	}
	again = c.awaitReturns(&w)
	deployments = c.overlay(deployments)
	var mine []*v1alpha1.Deployment
	for d, node := range Assign(w, deployments) {
		if node == c.Node {
			mine = append(mine, d)
		}
	}
	if len(mine) == 0 {
		c.Settled()
	}
	if len(mine) == 0 || !c.May() {
		return again, nil
	}
	if mine, err = c.withoutReturned(ctx, w, mine); err != nil {
		return replan, err
	}
	if failed := c.claimAll(ctx, w, mine); failed > 0 {
		again = replan
	}
	return again, nil
}

// awaitReturns gives nodes that released their lease some time to come back.
func (c *Claimer) awaitReturns(w *World) (again time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	waited := map[string]bool{}
	for name, rec := range w.Leases {
		if rec.Held() || rec.Fenced >= rec.Epoch {
			delete(c.left, name)
			continue
		}
		if _, ok := c.left[name]; !ok {
			c.left[name] = now
		}
		if wait := returnLimit - now.Sub(c.left[name]); wait > 0 {
			again = max(again, wait)
		} else {
			waited[name] = true
		}
	}
	w.Waited = func(node string) bool { return waited[node] }
	return again
}

// overlay replaces deployments with our own newer claims that the view does not show yet.
func (c *Claimer) overlay(deployments []*v1alpha1.Deployment) []*v1alpha1.Deployment {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.ahead) == 0 {
		return deployments
	}
	list := make([]*v1alpha1.Deployment, len(deployments))
	ahead := map[types.UID]*v1alpha1.Deployment{}
	for i, d := range deployments {
		list[i] = d
		if ours := c.ahead[d.UID]; ours != nil && kubeclient.Older(d, ours) {
			list[i], ahead[d.UID] = ours, ours
		}
	}
	c.ahead = ahead
	return list
}

// withoutReturned reads the leases of lost addresses from the server, each once, and leaves out deployments whose node has come back.
func (c *Claimer) withoutReturned(ctx context.Context, w World, mine []*v1alpha1.Deployment) ([]*v1alpha1.Deployment, error) {
	back := map[string]bool{}
	var list []*v1alpha1.Deployment
	for _, d := range mine {
		address := d.Spec.Address
		if address != "" && !w.Live(address) {
			if _, known := back[address]; !known {
				rec, err := fleet.ReadLease(ctx, c.Client, address)
				if err != nil {
					return nil, err
				}
				back[address] = rec.Held()
			}
			if back[address] {
				continue
			}
		}
		list = append(list, d)
	}
	return list, nil
}

// claimAll claims a few deployments at a time and returns how many could not be claimed.
func (c *Claimer) claimAll(ctx context.Context, w World, mine []*v1alpha1.Deployment) (failed int) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	places := make(chan struct{}, claimsAtOnce)
	for _, d := range mine {
		if ctx.Err() != nil || !c.May() {
			break
		}
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			if err := c.claim(ctx, w, d); err != nil {
				mu.Lock()
				defer mu.Unlock()
				if failed++; failed == 1 && ctx.Err() == nil && !errors.Is(err, errLost) {
					c.Log.Warn("could not claim a deployment; trying again", "deployment", client.ObjectKeyFromObject(d), "error", err)
				}
			}
		})
	}
	wg.Wait()
	return failed
}

var errLost = errors.New("another node claimed the deployment first")

// claim sets the address by compare-and-swap. If the object has changed in another way, it is read again and claimed as it is now.
func (c *Claimer) claim(ctx context.Context, w World, d *v1alpha1.Deployment) error {
	ctx, cancel := context.WithTimeout(ctx, claimLimit)
	defer cancel()
	address, claimed := d.Spec.Address, d.DeepCopy()
	wanted := false
	err := kubeclient.Change(ctx, c.Client, claimed, func(d *v1alpha1.Deployment) (bool, error) {
		if a := d.Spec.Address; a != "" && a != c.Node && a != address {
			c.Conflict(d, fmt.Sprintf("Node %s claimed deployment %s/%s before this node could.", a, d.Namespace, d.Name))
			return false, errLost
		}
		if wanted = w.Claimable(d) && d.Spec.Address == address; wanted {
			d.Spec.Address = c.Node
			controllerutil.AddFinalizer(d, v1alpha1.DeploymentFinalizer)
		}
		return wanted, nil
	})
	if err != nil || !wanted {
		return client.IgnoreNotFound(err)
	}
	c.mu.Lock()
	c.ahead[claimed.UID] = claimed
	c.mu.Unlock()
	c.Claimed(claimed)
	return nil
}

// newClaimer makes the claimer of an epoch. It reads what the node watches.
func (r *run) newClaimer() *Claimer {
	return NewClaimer(&Claimer{
		Node: r.opts.Node, Client: r.e.Client, May: r.e.Holding, Log: r.opts.Log,
		View: func(ctx context.Context) (World, []*v1alpha1.Deployment, error) {
			w, _ := r.view()
			var list v1alpha1.DeploymentList
			// The objects belong to the cache: plans only read them.
			if err := r.e.Cache.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
				return w, nil, err
			}
			deployments := make([]*v1alpha1.Deployment, len(list.Items))
			for i := range list.Items {
				deployments[i] = &list.Items[i]
			}
			return w, deployments, nil
		},
		Claimed: func(d *v1alpha1.Deployment) {
			r.clearConflict(0)
			r.opts.Metrics.claimed()
			r.opts.Log.Info("claimed", "deployment", client.ObjectKeyFromObject(d).String())
			r.see(d)
		},
		Settled: func() { r.clearConflict(resync / 2) },
		Conflict: func(d *v1alpha1.Deployment, message string) {
			r.setConflict(message)
			r.reportCode(d, v1alpha1.ErrClaimConflict, message, d.ResourceVersion)
		},
	})
}

func (r *Runtime) setConflict(message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conflict, r.conflictAt = message, time.Now()
}

// clearConflict clears the reported conflict if it is at least so old: until then it stays in the status for people to see.
func (r *Runtime) clearConflict(after time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.conflictAt) >= after {
		r.conflict = ""
	}
}

// claim runs the claimer until the epoch ends, unless the node's claim policy is none.
func (r *run) claim(ctx context.Context) {
	if r.opts.Policy != v1alpha1.ClaimNone {
		r.claims.Wake()
		r.claims.Run(ctx)
		return
	}
	n := &v1alpha1.Node{}
	if err := r.e.Client.Get(ctx, types.NamespacedName{Name: r.opts.Node}, n); err != nil {
		r.opts.Log.Warn("could not report that the claim policy is none: the Node object cannot be read", "error", err)
		return
	}
	r.once.Do(func() { r.reportCode(n, v1alpha1.ErrPolicyDisabled, policyDisabled, "") })
}

// reportCode reports an error code as metric, log line and event. The condition is written by the owner of the object.
func (r *run) reportCode(about client.Object, code, message, key string) {
	r.opts.Metrics.code(code)
	r.opts.Log.Warn(message, "code", code, "object", client.ObjectKeyFromObject(about).String())
	ctx, cancel := context.WithTimeout(r.standing, writeLimit)
	defer cancel()
	record := events.Recorder{Client: r.e.Client, Controller: "deployments", Instance: r.opts.Node}
	err := record.Emit(ctx, events.Event{Regarding: about, Type: corev1.EventTypeWarning, Reason: code, Action: "Claim", Note: message, Key: key})
	if err != nil && r.standing.Err() == nil {
		r.opts.Log.Warn("could not write event", "code", code, "error", err)
	}
}
