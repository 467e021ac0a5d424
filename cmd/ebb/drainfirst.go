package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/coordinator"
	"github.com/ebb-dev/ebb/internal/datadir"
	"github.com/ebb-dev/ebb/internal/httpapi"
	"github.com/ebb-dev/ebb/internal/node"
)

// askAgain is the delay before a node whose drain was refused requests it again.
const askAgain = time.Second

// drainFirst returns a context for the node that does not end with the signal: the node is drained first. The context ends when the drain
// is impossible, when the timeout has passed, or at a second signal; then the node leaves without a drain.
func (f nodeFlags) drainFirst(signalled context.Context, dir datadir.NodeDir, campaign *coordinator.Campaign, n *node.Node, log *slog.Logger) context.Context {
	living, leave := context.WithCancel(context.Background())
	d := &ownDrain{node: n, name: f.name, dir: dir, campaign: campaign, log: log.With("node", f.name)}
	go func() {
		defer leave()
		<-signalled.Done()
		again := make(chan os.Signal, 1)
		signal.Notify(again, syscall.SIGINT, syscall.SIGTERM)
		defer signal.Stop(again)
		bounded, cancel := context.WithTimeout(context.Background(), f.drainTimeout)
		defer cancel()
		asked := make(chan error, 1)
		go func() { asked <- d.ask(bounded) }()
		select {
		case err := <-asked:
			if err != nil {
				d.log.Warn("leaving without a drain", "reason", err)
				return
			}
		case <-again:
			d.log.Warn("leaving without a drain", "reason", "received a second signal")
			return
		}
		d.log.Info("draining before leaving", "timeout", f.drainTimeout)
		if why := d.watch(bounded, again); why != "" {
			d.log.Warn("leaving before the drain is complete", "reason", why)
			return
		}
		d.log.Info("drained and parked; leaving")
	}()
	return living
}

// drainedNode is the node of a process that is drained before it leaves.
type drainedNode interface {
	// Epoch returns the current epoch, or nil.
	Epoch() *node.Epoch
	// Parked reports whether the node was drained and waits to be uncordoned.
	Parked() bool
	// Client reads and writes live, as the node.
	Client() client.Client
}

// ownDrain requests the drain of this node from the coordinator.
type ownDrain struct {
	node     drainedNode
	name     string
	dir      datadir.NodeDir
	campaign *coordinator.Campaign
	log      *slog.Logger
	epoch    int64 // in which it requested the drain
}

// watch returns the reason not to wait for the drain any longer, or nothing if the node is parked: its drain has succeeded. A drain that
// succeeds and does not park the node ends the process.
func (d *ownDrain) watch(ctx context.Context, again <-chan os.Signal) string {
	for {
		select {
		case <-ctx.Done():
			return "the drain timeout has passed"
		case <-again:
			return "received a second signal"
		case <-time.After(askAgain):
		}
		if d.node.Parked() {
			return ""
		}
		if e := d.node.Epoch(); e != nil {
			if liveness, _ := e.Liveness(); liveness == v1alpha1.Alive && e.Number > d.epoch {
				return "the drain was cancelled"
			}
		}
	}
}

var (
	errNotIn  = errors.New("the node is not in service")
	errAlone  = errors.New("no other node can take over")
	errTimeUp = errors.New("the drain was refused until the drain timeout passed")
)

// ask returns nil once the drain has begun.
func (d *ownDrain) ask(ctx context.Context) error {
	said := ""
	for {
		e := d.node.Epoch()
		if e == nil {
			return errNotIn // it runs no work
		}
		d.epoch = e.Number
		if liveness, _ := e.Liveness(); liveness == v1alpha1.Draining {
			return nil // the node is already being drained
		}
		err := d.askOnce(ctx)
		switch code := httpapi.CodeOf(err); {
		case err == nil:
			return nil
		case errors.Is(err, coordinator.ErrNoSuccessor) || code == httpapi.CodeSingleNode:
			return errAlone
		}
		if text := err.Error(); text != said {
			d.log.Info("the drain cannot begin yet; trying again", "reason", err)
			said = text
		}
		select {
		case <-ctx.Done():
			return errTimeUp
		case <-time.After(askAgain):
		}
	}
}

func (d *ownDrain) askOnce(ctx context.Context) error {
	if d.campaign.Leading() {
		if err := d.campaign.Resign(ctx); err != nil && !errors.Is(err, coordinator.ErrNotCoordinator) {
			return err
		}
	}
	url, err := coordinator.URL(ctx, d.node.Client())
	if err != nil {
		return err
	}
	ca, err := os.ReadFile(d.dir.CA())
	if err != nil {
		return err
	}
	token, err := datadir.ReadToken(d.dir.Token())
	if err != nil {
		return err
	}
	api, err := httpapi.NewClient(ca, token)
	if err != nil {
		return err
	}
	var accepted httpapi.DrainAccepted
	return api.Do(ctx, http.MethodPut, url, "/api/v2/captures/"+d.name+"/drain", &accepted)
}
