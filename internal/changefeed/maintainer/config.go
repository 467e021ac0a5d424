package maintainer

import (
	"context"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/changefeed/dispatch"
	"github.com/ebb-dev/ebb/internal/changefeed/omission"
	"github.com/ebb-dev/ebb/internal/changefeed/route"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/changefeed/wire"
)

// order is a request to a node about tables.
func (m *Maintainer) order(do wire.Do, tables []*wire.TableOrder) *wire.OrderRequest {
	return &wire.OrderRequest{Caller: m.caller(), Feed: m.feed(), Do: do, Tables: tables, Config: m.configOnWire()}
}

// configOnWire is what nodes open. It names passwords, and does not contain them.
func (m *Maintainer) configOnWire() *wire.Config {
	spec := m.spec
	return &wire.Config{
		Source: spec.Source, Sink: spec.Sink, SourcePasswordFile: spec.SourcePasswordFile, SinkPasswordFile: spec.SinkPasswordFile,
		SourceSecret: secretOnWire(spec.SourcePasswordSecretRef), SinkSecret: secretOnWire(spec.SinkPasswordSecretRef),
		Workers: spec.Workers, BatchRows: spec.BatchRows, Ddl: spec.DDL == nil || *spec.DDL, SnapshotRate: snapshotRate(&spec),
		Forward: spec.Forward == v1alpha1.ForwardAuto, Routes: routesOnWire(spec.Routing), Filter: m.filter, Skips: m.skipsOnWire(), LeaveOut: leaveOutOnWire(spec.LeaveOut),
	}
}

func (m *Maintainer) caller() *wire.Caller {
	return &wire.Caller{Node: m.opts.Epoch.Node, NodeEpoch: m.opts.Epoch.Number}
}

func (m *Maintainer) feed() *wire.Feed { return wire.NewFeed(m.key, m.Placement()) }

// config is what this node opens, with the passwords read again each time.
func (m *Maintainer) config(ctx context.Context) (dispatch.Config, error) {
	spec := m.spec
	return m.opts.Opener.Resolve(ctx, m.key.Namespace, dispatch.Config{
		Source: spec.Source, Sink: spec.Sink, SourcePasswordFile: spec.SourcePasswordFile, SinkPasswordFile: spec.SinkPasswordFile,
		SourceSecret: secretRef(spec.SourcePasswordSecretRef), SinkSecret: secretRef(spec.SinkPasswordSecretRef),
		Workers: int(spec.Workers), BatchRows: int(spec.BatchRows), DDL: spec.DDL == nil || *spec.DDL, SnapshotRate: int(snapshotRate(&spec)),
		Forward: spec.Forward == v1alpha1.ForwardAuto, Routes: Routes(spec.Routing), Filter: m.filter, Skips: m.skipPositions(), LeaveOut: LeaveOut(spec.LeaveOut),
	})
}

// openSource opens the source. It also returns the configuration that it was opened with.
func (m *Maintainer) openSource(ctx context.Context) (stream.Source, dispatch.Config, error) {
	config, err := m.config(ctx)
	if err != nil {
		return nil, config, err
	}
	source, err := m.opts.Opener.Source(config)
	return source, config, err
}

// Routes are the routes of a changefeed.
func Routes(list []v1alpha1.ChangefeedRoute) []route.Rule {
	var rules []route.Rule
	for _, r := range list {
		rules = append(rules, route.Rule{Match: r.Match, Schema: r.Schema, Table: r.Table})
	}
	return rules
}

func routesOnWire(list []v1alpha1.ChangefeedRoute) []*wire.Route {
	var routes []*wire.Route
	for _, r := range list {
		routes = append(routes, &wire.Route{Match: r.Match, Schema: r.Schema, Table: r.Table})
	}
	return routes
}

// LeaveOut is what a changefeed leaves out.
func LeaveOut(list []v1alpha1.ChangefeedLeaveOut) []omission.Rule {
	var rules []omission.Rule
	for _, r := range list {
		rules = append(rules, omission.Rule{Match: r.Match, Columns: r.Columns, Rows: r.Rows})
	}
	return rules
}

func leaveOutOnWire(list []v1alpha1.ChangefeedLeaveOut) []*wire.LeaveOut {
	var rules []*wire.LeaveOut
	for _, r := range list {
		rules = append(rules, &wire.LeaveOut{Match: r.Match, Columns: r.Columns, Rows: r.Rows})
	}
	return rules
}

func snapshotRate(spec *v1alpha1.ChangefeedSpec) int64 {
	if spec.Snapshot == nil {
		return 0
	}
	return spec.Snapshot.RowsPerSecond
}

// secretRef is a reference with its key, which has a default.
func secretRef(r *v1alpha1.PasswordSecretRef) dispatch.SecretRef {
	if r == nil {
		return dispatch.SecretRef{}
	}
	if r.Key == "" {
		return dispatch.SecretRef{Name: r.Name, Key: v1alpha1.DefaultPasswordKey}
	}
	return dispatch.SecretRef{Name: r.Name, Key: r.Key}
}

func secretOnWire(r *v1alpha1.PasswordSecretRef) *wire.SecretRef {
	if r == nil {
		return nil
	}
	ref := secretRef(r)
	return &wire.SecretRef{Name: ref.Name, Key: ref.Key}
}
