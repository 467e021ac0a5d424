package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// changeTimeout bounds one change of the list of members.
const changeTimeout = 5 * time.Second

// Errors of changes to etcd's list of members.
var (
	// ErrQuorum: the change would leave the cluster without a quorum of healthy voters.
	ErrQuorum = errors.New("quorum would be lost")
	// ErrNoAnswer: no member confirmed the list of members.
	ErrNoAnswer = errors.New("no quorum of the members answers")
	// ErrNotInSync: the learner has not caught up yet.
	ErrNotInSync = errors.New("the learner is not in sync yet")
)

// listing is what a change of the members is based on, read just before it.
type listing struct {
	peers  []Peer
	health map[string]Health
	via    *endpoint
	ends   []*endpoint
}

func (c *Client) list(ctx context.Context, of Target) (listing, error) {
	v, err := c.Look(ctx, of, false)
	if err != nil {
		return listing{}, err
	}
	if !v.Listed {
		return listing{}, ErrNoAnswer
	}
	now := listing{peers: v.Peers, health: v.Health}
	now.ends, err = c.endpoints(of.key(), of.current())
	for _, e := range now.ends {
		if e.name == v.Via {
			now.via = e
		}
	}
	if err == nil && now.via == nil {
		err = ErrNoAnswer
	}
	return now, err
}

// Has asks etcd whether a member is in its list.
func (c *Client) Has(ctx context.Context, of Target, m *v1alpha1.EtcdMember) (bool, error) {
	now, err := c.list(ctx, of)
	if err != nil {
		return false, err
	}
	_, there := PeerOf(now.peers, m)
	return there, nil
}

// UpdateURL changes the peer URL of a member in etcd's list. Its ID, its vote and its data stay.
func (c *Client) UpdateURL(ctx context.Context, of Target, peer Peer) error {
	now, err := c.list(ctx, of)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(now.peers, func(p Peer) bool { return p.ID == peer.ID })
	if i < 0 || now.peers[i].PeerURL == peer.PeerURL {
		return nil
	}
	ctx, cancel := now.via.call(ctx, changeTimeout)
	defer cancel()
	_, err = pb.NewClusterClient(now.via.conn).MemberUpdate(ctx, &pb.MemberUpdateRequest{ID: peer.ID, PeerURLs: []string{peer.PeerURL}})
	return wrapped(err, peer.Name)
}

func (l listing) find(peerURL string) (Peer, bool) {
	i := slices.IndexFunc(l.peers, func(p Peer) bool { return p.PeerURL == peerURL })
	if i < 0 {
		return Peer{}, false
	}
	return l.peers[i], true
}

// healthyWithout counts voters, and those of them that are healthy, apart from one.
func (l listing) healthyWithout(id uint64) (healthy, voters int) {
	for _, p := range l.peers {
		if p.Learner || p.ID == id {
			continue
		}
		voters++
		for _, h := range l.health {
			if h.OK() && h.ID == p.ID {
				healthy++
			}
		}
	}
	return healthy, voters
}

// AddLearner adds a member to etcd's list as a learner, unless its peer URL is there.
func (c *Client) AddLearner(ctx context.Context, of Target, m *v1alpha1.EtcdMember) error {
	now, err := c.list(ctx, of)
	if err != nil {
		return err
	}
	if _, there := now.find(m.Status.PeerURL); there {
		return nil
	}
	if slices.ContainsFunc(now.peers, func(p Peer) bool { return p.Learner }) {
		return fmt.Errorf("member %s: another learner is in the list", m.Name)
	}
	if healthy, voters := now.healthyWithout(0); healthy < Quorum(voters) {
		return fmt.Errorf("member %s: %w: %d of %d voters healthy", m.Name, ErrQuorum, healthy, voters)
	}
	ctx, cancel := now.via.call(ctx, changeTimeout)
	defer cancel()
	_, err = pb.NewClusterClient(now.via.conn).MemberAdd(ctx, &pb.MemberAddRequest{PeerURLs: []string{m.Status.PeerURL}, IsLearner: true})
	if errors.Is(rpctypes.Error(err), rpctypes.ErrPeerURLExist) {
		return nil
	}
	return wrapped(err, m.Name)
}

// Promote makes a learner a voter. It fails with ErrNotInSync until the learner has caught up.
func (c *Client) Promote(ctx context.Context, of Target, m *v1alpha1.EtcdMember) error {
	now, err := c.list(ctx, of)
	if err != nil {
		return err
	}
	p, there := PeerOf(now.peers, m)
	if !there || !p.Learner {
		return nil
	}
	if healthy, voters := now.healthyWithout(0); healthy+1 < Quorum(voters+1) {
		return fmt.Errorf("member %s: %w: %d of %d voters healthy", m.Name, ErrQuorum, healthy, voters)
	}
	ctx, cancel := now.via.call(ctx, changeTimeout)
	defer cancel()
	_, err = pb.NewClusterClient(now.via.conn).MemberPromote(ctx, &pb.MemberPromoteRequest{ID: p.ID})
	switch {
	case errors.Is(rpctypes.Error(err), rpctypes.ErrMemberLearnerNotReady):
		return fmt.Errorf("member %s: %w", m.Name, ErrNotInSync)
	case errors.Is(rpctypes.Error(err), rpctypes.ErrMemberNotLearner):
		return nil
	}
	return wrapped(err, m.Name)
}

// Remove removes a member from etcd's list. A voter is removed only if a quorum of the voters that stay is healthy.
func (c *Client) Remove(ctx context.Context, of Target, peer Peer) error {
	now, err := c.list(ctx, of)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(now.peers, func(p Peer) bool { return p.ID == peer.ID })
	if i < 0 {
		return nil
	}
	p := now.peers[i]
	if healthy, voters := now.healthyWithout(p.ID); !p.Learner && healthy < Quorum(voters) {
		return fmt.Errorf("member %s: %w: %d of the other %d voters are healthy", peer.Name, ErrQuorum, healthy, voters)
	}
	if !peer.Learner && p.Learner || peer.Learner && !p.Learner {
		return fmt.Errorf("member %s: its role has changed since it was read", peer.Name)
	}
	via := now.via
	if h := now.health[via.name]; h.ID == p.ID {
		// Not through the member that is removed, if possible: its process may end before it answers.
		for _, e := range listers(now.ends, now.health) {
			if now.health[e.name].ID != p.ID {
				via = e
			}
		}
	}
	ctx, cancel := via.call(ctx, changeTimeout)
	defer cancel()
	_, err = pb.NewClusterClient(via.conn).MemberRemove(ctx, &pb.MemberRemoveRequest{ID: p.ID})
	if errors.Is(rpctypes.Error(err), rpctypes.ErrMemberNotFound) {
		return nil
	}
	return wrapped(err, peer.Name)
}

// MoveLeader transfers leadership to a voter.
func (c *Client) MoveLeader(ctx context.Context, of Target, to Peer) error {
	now, err := c.list(ctx, of)
	if err != nil {
		return err
	}
	for _, e := range now.ends {
		h := now.health[e.name]
		if !h.OK() || h.ID != h.Leader {
			continue
		}
		if h.ID == to.ID {
			return nil
		}
		ctx, cancel := e.call(ctx, changeTimeout)
		defer cancel()
		_, err := pb.NewMaintenanceClient(e.conn).MoveLeader(ctx, &pb.MoveLeaderRequest{TargetID: to.ID})
		return wrapped(err, to.Name)
	}
	return fmt.Errorf("member %s: %w", to.Name, ErrNoAnswer)
}

// DisarmNoSpace ends the alarm of a member that its database reached its quota.
func (c *Client) DisarmNoSpace(ctx context.Context, of Target, member uint64) error {
	now, err := c.list(ctx, of)
	if err != nil {
		return err
	}
	ctx, cancel := now.via.call(ctx, changeTimeout)
	defer cancel()
	_, err = pb.NewMaintenanceClient(now.via.conn).Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_DEACTIVATE, MemberID: member, Alarm: pb.AlarmType_NOSPACE})
	return wrapped(err, HexID(member))
}

func wrapped(err error, member string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("member %s: %w", member, rpctypes.Error(err))
}
