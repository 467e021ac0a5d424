package changefeed

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ebb-dev/ebb/internal/changefeed/dispatch"
	"github.com/ebb-dev/ebb/internal/changefeed/omission"
	"github.com/ebb-dev/ebb/internal/changefeed/route"
	"github.com/ebb-dev/ebb/internal/changefeed/stream"
	"github.com/ebb-dev/ebb/internal/changefeed/wire"
)

// server answers the requests of maintainers, on this node and on others, about this node's dispatchers.
type server struct {
	wire.UnimplementedNodeServer
	host *Host
}

// Bootstrap implements wire.NodeServer.
func (s *server) Bootstrap(ctx context.Context, req *wire.BootstrapRequest) (*wire.BootstrapReply, error) {
	key := req.Feed.Key()
	if err := s.host.engine.Accept(key, req.Feed.GetEpoch()); err != nil {
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	list := s.host.engine.Dispatchers(key)
	if req.Config != nil {
		renewed, err := s.host.engine.Renew(ctx, key, configOf(req.Config))
		if err != nil {
			return nil, status.Error(codes.Unavailable, err.Error())
		}
		if renewed { // but the maintainer has to know of what the sink may have lost
			s.host.opts.Log.Info("stopped the changefeed on this node, because its configuration has changed", "changefeed", key.String())
			list = slices.DeleteFunc(list, func(d dispatch.Status) bool { return d.State != dispatch.Lost })
		}
	}
	reply := &wire.BootstrapReply{NodeEpoch: s.host.nodeEpoch(), Layout: wire.Layout}
	for _, d := range list {
		begins := uint64(d.Begins)
		reply.Dispatchers = append(reply.Dispatchers, &wire.Dispatcher{
			Table: wire.TableName(d.Identity), Epoch: wire.NewEpoch(d.Epoch), State: int32(d.State), Checkpoint: uint64(d.Checkpoint), Members: wire.TableNames(d.Members), Watches: wire.Names(d.Watches), Begins: &begins,
		})
	}
	return reply, nil
}

// Order implements wire.NodeServer.
func (s *server) Order(ctx context.Context, req *wire.OrderRequest) (*wire.OrderReply, error) {
	key := req.Feed.Key()
	var orders []dispatch.Order
	for _, t := range req.Tables {
		table, ok := wire.ParseTable(t.Table)
		if !ok {
			return nil, status.Errorf(codes.InvalidArgument, "%q is not a table name", t.Table)
		}
		members, ok1 := wire.ParseTables(t.Members)
		watches, ok2 := wire.ParseNames(t.Watches)
		if !ok1 || !ok2 {
			return nil, status.Errorf(codes.InvalidArgument, "%q or %q are not names of tables", t.Members, t.Watches)
		}
		orders = append(orders, dispatch.Order{
			Table: table.Table, Since: table.Since, Members: members, Watches: watches, Epoch: wire.ParseEpoch(t.Epoch), Position: stream.Position(t.Position), Begins: stream.Position(t.Begins),
		})
	}
	if req.Do != wire.Do_DO_STOP && !s.host.wants(key) {
		return nil, status.Error(codes.FailedPrecondition, fmt.Sprintf("changefeed %s is paused or deleted", key))
	}
	epoch, config := req.Feed.GetEpoch(), configOf(req.Config)
	if req.Do != wire.Do_DO_STOP && !s.host.engine.Opened(key) {
		var err error
		if config, err = s.host.opts.Opener.Resolve(ctx, key.Namespace, config); err != nil {
			return nil, status.Error(codes.FailedPrecondition, err.Error())
		}
	}
	var positions map[stream.Table]stream.Position
	var failed map[stream.Table]error
	switch req.Do {
	case wire.Do_DO_PREPARE:
		failed = s.host.engine.Prepare(key, epoch, config, orders)
	case wire.Do_DO_START:
		failed = s.host.engine.Start(ctx, key, epoch, config, orders)
		positions = s.host.engine.Positions(key, orders)
	case wire.Do_DO_STOP:
		positions, failed = s.host.engine.Stop(ctx, key, epoch, orders)
	default:
		return nil, status.Errorf(codes.InvalidArgument, "unknown order %s", req.Do)
	}
	reply := &wire.OrderReply{NodeEpoch: s.host.nodeEpoch()}
	for _, o := range orders {
		r := &wire.TableResult{Table: wire.TableName(o.Identity())}
		if at, ok := positions[o.Table]; ok {
			r.Position, r.Found = uint64(at), true
		}
		if err := failed[o.Table]; err != nil {
			r.Error, r.Hopeless = err.Error(), dispatch.Hopeless(err)
			r.Lost = errors.Is(err, dispatch.ErrLost) || errors.Is(err, stream.ErrWentBack)
		}
		reply.Results = append(reply.Results, r)
	}
	return reply, nil
}

func configOf(c *wire.Config) dispatch.Config {
	return dispatch.Config{
		Source: c.GetSource(), Sink: c.GetSink(), SourcePasswordFile: c.GetSourcePasswordFile(), SinkPasswordFile: c.GetSinkPasswordFile(),
		SourceSecret: secretFromWire(c.GetSourceSecret()), SinkSecret: secretFromWire(c.GetSinkSecret()),
		Workers: int(c.GetWorkers()), BatchRows: int(c.GetBatchRows()), DDL: c.GetDdl(), SnapshotRate: int(c.GetSnapshotRate()),
		Forward: c.GetForward(), Routes: routesFromWire(c.GetRoutes()), Filter: c.GetFilter(), Skips: positionsFromWire(c.GetSkips()), LeaveOut: leaveOutFromWire(c.GetLeaveOut()),
	}
}

func positionsFromWire(list []uint64) []stream.Position {
	var positions []stream.Position
	for _, at := range list {
		positions = append(positions, stream.Position(at))
	}
	return positions
}

func routesFromWire(list []*wire.Route) []route.Rule {
	var rules []route.Rule
	for _, r := range list {
		rules = append(rules, route.Rule{Match: r.Match, Schema: r.Schema, Table: r.Table})
	}
	return rules
}

func leaveOutFromWire(list []*wire.LeaveOut) []omission.Rule {
	var rules []omission.Rule
	for _, r := range list {
		rules = append(rules, omission.Rule{Match: r.Match, Columns: r.Columns, Rows: r.Rows})
	}
	return rules
}

func secretFromWire(r *wire.SecretRef) dispatch.SecretRef {
	return dispatch.SecretRef{Name: r.GetName(), Key: r.GetKey()}
}

// Report implements wire.NodeServer.
func (s *server) Report(_ context.Context, req *wire.ReportRequest) (*wire.ReportReply, error) {
	reply := &wire.ReportReply{NodeEpoch: s.host.nodeEpoch()}
	for _, f := range req.Feeds {
		r := s.host.engine.Report(f.Key())
		out := &wire.FeedReport{
			Feed: f, Dispatchers: int64(r.Dispatchers), Running: int64(r.Running), Checkpoint: uint64(r.Checkpoint),
			CheckpointUnixMicro: r.CheckpointAt.UnixMicro(), Slowest: r.Slowest, Rows: r.Rows, Bytes: r.Bytes, Digest: &r.Digest,
		}
		for _, t := range r.Lost {
			out.Lost = append(out.Lost, wire.TableName(t))
		}
		for _, t := range r.Blocked {
			out.Blocked, out.BlockedAt = append(out.Blocked, wire.TableName(t.Identity)), append(out.BlockedAt, uint64(t.At))
		}
		if r.Err != nil {
			out.Error, out.Hopeless = r.Err.Error(), dispatch.Hopeless(r.Err)
		}
		reply.Feeds = append(reply.Feeds, out)
	}
	return reply, nil
}
