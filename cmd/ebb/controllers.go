package main

import (
	"context"
	"sync/atomic"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/ebb-dev/ebb/internal/changefeed"
	"github.com/ebb-dev/ebb/internal/coordinator"
	"github.com/ebb-dev/ebb/internal/deployment"
	"github.com/ebb-dev/ebb/internal/drain"
	"github.com/ebb-dev/ebb/internal/etcdcluster"
	"github.com/ebb-dev/ebb/internal/failpoint"
	"github.com/ebb-dev/ebb/internal/httpapi"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/node"
	"github.com/ebb-dev/ebb/internal/peer"
)

// controllers are what the coordinator runs, set up anew for every term.
type controllers struct {
	timing         lease.Timing
	drainMetrics   *drain.Metrics
	programMetrics *deployment.Metrics
	etcdMetrics    *etcdcluster.Metrics
	files          peer.Files // what the node shows to members of etcd clusters

	api atomic.Pointer[drain.API]
}

// setup adds the cluster's controllers to a term.
func (c *controllers) setup(t *coordinator.Term) error {
	mgr := t.Manager
	nodes := &node.Controller{Epoch: t.Epoch, Stands: t.Stands, Interval: c.timing.Renew / 4, Log: t.Log}
	if err := nodes.SetupWithManager(mgr); err != nil {
		return err
	}
	drains := &drain.Controller{
		Leader: t.Epoch.Node, Stands: t.Stands, Tenants: tenants, Metrics: c.drainMetrics, Log: t.Log, AtStep: failpoint.At,
	}
	if err := drains.SetupWithManager(mgr); err != nil {
		return err
	}
	deployments := &deployment.Controller{Leader: t.Epoch.Node, Metrics: c.programMetrics, Log: t.Log}
	if err := deployments.SetupWithManager(mgr); err != nil {
		return err
	}
	feeds := &changefeed.Controller{Leader: t.Epoch.Node, Log: t.Log}
	if err := feeds.SetupWithManager(mgr); err != nil {
		return err
	}
	etcds := &etcdcluster.Controller{
		Leader: t.Epoch.Node, CheckTerm: t.Stands, Files: c.files, Metrics: c.etcdMetrics, Log: t.Log, AtStep: failpoint.At,
	}
	if err := etcds.SetupWithManager(mgr); err != nil {
		return err
	}
	api := &drain.API{Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), Leader: t.Epoch.Node, Tenants: tenants}
	serve := manager.RunnableFunc(func(ctx context.Context) error {
		c.api.Store(api)
		<-ctx.Done()
		c.api.CompareAndSwap(api, nil)
		return nil
	})
	return mgr.Add(serve)
}

// tenants are the kinds of work that a drain counts, for one count.
func tenants(r client.Reader) []drain.Tenant {
	return append(append(changefeed.Tenants(r), etcdcluster.Tenants(r)...), deployment.Tenant{Reader: r})
}

// drains serves the HTTP API while a term runs here.
func (c *controllers) drains() httpapi.Drains {
	if api := c.api.Load(); api != nil {
		return api
	}
	return nil
}
