package main

import (
	"context"
	"slices"
	"sync/atomic"

	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/ebb-dev/ebb/internal/coordinator"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/failpoint"
	"github.com/ebb-dev/ebb/internal/health"
	"github.com/ebb-dev/ebb/internal/httpapi"
	"github.com/ebb-dev/ebb/internal/kind"
	"github.com/ebb-dev/ebb/internal/kube"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/node"
	"github.com/ebb-dev/ebb/internal/pod"
)

// controllers are the coordinator's controllers, set up again for every term.
type controllers struct {
	timing       lease.Timing
	drainMetrics *drain.Metrics
	parts        kind.Parts
	guardImage   string // empty for no guards
	// resign ends the term without waiting for its end; it is set before the first term.
	resign func(context.Context) error

	api    atomic.Pointer[drain.API]
	health atomic.Pointer[health.API]
}

// setup adds the cluster's controllers to a term.
func (c *controllers) setup(t *coordinator.Term) error {
	mgr := t.Manager
	nodes := &node.Controller{Epoch: t.Epoch, CheckTerm: t.CheckTerm, Interval: c.timing.Renew / 4, Log: t.Log}
	if err := nodes.SetupWithManager(mgr); err != nil {
		return err
	}
	drains := &drain.Controller{
		Leader: t.Epoch.Node, CheckTerm: t.CheckTerm, Tenants: kinds.Tenants, Metrics: c.drainMetrics, Log: t.Log, AtStep: failpoint.At,
	}
	onKubernetes, err := kube.HasNodes(mgr.GetConfig())
	if err != nil {
		return err
	}
	if onKubernetes {
		drains.Core = kube.ReadNodes
		cordons := &kube.Controller{Leader: t.Epoch.Node, CheckTerm: t.CheckTerm, Resign: c.resign, Log: t.Log, AtStep: failpoint.At}
		if err := cordons.SetupWithManager(mgr); err != nil {
			return err
		}
	}
	if onKubernetes && c.guardImage != "" {
		guards := &kube.Guards{
			Leader: t.Epoch.Node, Image: c.guardImage, CheckTerm: t.CheckTerm, Tenants: kinds.Tenants, Works: kinds.Works(), Log: t.Log, AtStep: failpoint.At,
		}
		if err := guards.SetupWithManager(mgr); err != nil {
			return err
		}
	}
	term := kind.Term{Leader: t.Epoch.Node, Manager: mgr, CheckTerm: t.CheckTerm, Resign: c.resign, Drains: c.parts.Drains(), Tenants: kinds.Tenants, Log: t.Log, AtStep: failpoint.At}
	if err := c.parts.Setup(term); err != nil {
		return err
	}
	drains.Pods = slices.ContainsFunc(kinds.Tenants(mgr.GetClient()), func(t drain.Tenant) bool { return t.Work().Name == pod.Name })
	if err := drains.SetupWithManager(mgr); err != nil {
		return err
	}
	api := &drain.API{Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), Leader: t.Epoch.Node, Tenants: kinds.Tenants}
	events := &health.API{Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), Cache: mgr.GetClient(), Metrics: health.MetricsOf(c.parts)}
	serve := manager.RunnableFunc(func(ctx context.Context) error {
		c.api.Store(api)
		c.health.Store(events)
		<-ctx.Done()
		c.api.CompareAndSwap(api, nil)
		c.health.CompareAndSwap(events, nil)
		return nil
	})
	return mgr.Add(serve)
}

// drains serves the HTTP API while a term runs here.
func (c *controllers) drains() httpapi.Drains {
	if api := c.api.Load(); api != nil {
		return api
	}
	return nil
}

// healthEvents receives reports while a term runs here.
func (c *controllers) healthEvents() httpapi.HealthEvents {
	if api := c.health.Load(); api != nil {
		return api
	}
	return nil
}
