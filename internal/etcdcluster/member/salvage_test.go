package member_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/ebb-dev/ebb/internal/etcdcluster/member"
	"github.com/ebb-dev/ebb/internal/etcdcluster/snapshot"
	"github.com/ebb-dev/ebb/internal/identity"
	"github.com/ebb-dev/ebb/internal/pki"
)

// three starts a cluster of three members, of which the first leads.
func (h *house) three() (configs []member.Config, children []*member.Child) {
	h.t.Helper()
	configs = []member.Config{h.config("m1"), h.config("m2"), h.config("m3")}
	var initial []string
	for _, c := range configs {
		initial = append(initial, c.InitialCluster)
	}
	for i := range configs {
		configs[i].InitialCluster = strings.Join(initial, ",")
		configs[i].ElectionMilliseconds = 3000 // a leader without followers takes writes for that long
		children = append(children, h.start(configs[i]))
	}
	for _, c := range children {
		await(h.t, c, "serving", state(member.Serving))
	}
	first := private(h.t, configs[0])
	eventually(h.t, "the first to lead", func() bool {
		s, err := first.Status(short(h.t), first.Endpoints()[0])
		if err != nil {
			return false
		}
		for i, c := range configs {
			if other, err := private(h.t, c).Status(short(h.t), first.Endpoints()[0]); err == nil && other.Header.MemberId == s.Leader {
				if i == 0 {
					return true
				}
				_, _ = private(h.t, c).MoveLeader(short(h.t), s.Header.MemberId)
			}
		}
		return false
	})
	return configs, children
}

// A salvage that was killed leaves a copy of all data behind. The member, if it runs again, deletes it.
func TestAMemberDeletesWhatAnUnfinishedSalvageLeft(t *testing.T) {
	h := newHouse(t)
	c := h.config("m1")
	left := filepath.Join(c.Dir, member.SalvageName)
	must(t, os.MkdirAll(member.Data(left), 0o700))
	must(t, os.WriteFile(filepath.Join(member.Data(left), "db"), make([]byte, 1<<10), 0o600))
	await(t, h.start(c), "serving", state(member.Serving))
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("it is still there: %v", err)
	}
}

// The leader of a cluster that lost its quorum has an entry that it never knew to be committed. It may have been acknowledged all the same.
func TestASnapshotOfALostMembersDataHasItsLastEntry(t *testing.T) {
	h := newHouse(t)
	configs, children := h.three()
	cli := private(t, configs[0])
	_, err := cli.Put(short(t), "known", "1")
	must(t, err)
	enableAuth(t, cli)
	for _, c := range children[1:] {
		c.Kill()
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := cli.Put(ctx, "last", "2"); err == nil {
		t.Fatal("one of three acknowledged a write")
	}
	children[0].Stop(t.Context())
	end, err := member.ReadLogEnd(configs[0].Dir)
	must(t, err)
	if end.Index <= end.Commit || end.Term == 0 {
		t.Fatalf("the log ends at %+v: there is no entry to be lost", end)
	}
	other, err := member.ReadLogEnd(configs[1].Dir)
	must(t, err)
	if other.Index > end.Index {
		t.Errorf("a follower's log ends at %+v, the leader's at %+v", other, end)
	}
	job := member.Config{Dir: configs[0].Dir, Name: "m1", ClusterUID: "uid", Salvage: &member.Salvage{Work: h.file("work"), Output: h.file("salvaged.db")}}
	child := h.start(job)
	r := await(t, child, "the snapshot", state(member.Salvaged))
	<-child.Done()
	if _, err := os.Stat(h.file("work")); !os.IsNotExist(err) {
		t.Errorf("the copy is still there: %v", err)
	}
	if after, err := member.ReadLogEnd(configs[0].Dir); err != nil || after != end {
		t.Errorf("the member's own log ends at %+v, %v", after, err)
	}
	seed := h.config("m4")
	must(t, snapshot.Restore(h.file("salvaged.db"), r.Facts.Size, r.Facts.SHA256, snapshot.Target{Data: member.Data(seed.Dir), Name: "m4", PeerURL: seed.PeerURL, Token: "token-2"}))
	await(t, h.start(seed), "the restored cluster", state(member.Serving))
	restored := private(t, seed)
	for _, key := range []string{"known", "last"} {
		got, err := restored.Get(short(t), key)
		must(t, err)
		if len(got.Kvs) != 1 || got.Header.Revision <= r.Facts.Revision {
			t.Errorf("%s: %v at revision %d, the snapshot's was %d", key, got.Kvs, got.Header.Revision, r.Facts.Revision)
		}
	}
}

func enableAuth(t *testing.T, cli *clientv3.Client) {
	t.Helper()
	_, err := cli.UserAdd(short(t), "root", "secret")
	must(t, err)
	_, err = cli.UserGrantRole(short(t), "root", "root")
	must(t, err)
	_, err = cli.AuthEnable(short(t))
	must(t, err)
}

func TestWithAuthEnabledEbbItselfIsRootAndNobodyElse(t *testing.T) {
	h := newHouse(t)
	h.issue("client", pki.Profile{User: identity.Client})
	h.issue("coordinator", pki.Profile{User: identity.Coordinator("n1")})
	c := h.config("m1")
	await(t, h.start(c), "serving", state(member.Serving))
	enableAuth(t, private(t, c))
	for who, allowed := range map[string]bool{"node": true, "coordinator": true, "client": false} {
		cli := h.client(c, who)
		ctx := withCluster(short(t), "uid") // a header opens nothing
		_, listed := cli.MemberList(ctx)
		_, hashed := cli.HashKV(ctx, c.ClientURL, 0)
		_, put := cli.Put(ctx, "key", "value")
		if (hashed == nil) != allowed || (put == nil) != allowed || allowed && listed != nil {
			t.Errorf("%s: list %v, hash %v, put %v", who, listed, hashed, put)
		}
	}
	if _, err := snapshot.Take(short(t), private(t, c), h.file("auth.db"), 0, nil); err != nil {
		t.Errorf("a snapshot through the private socket: %v", err)
	}
	// A cluster that requires no certificates knows nobody.
	plain := h.config("m2")
	plain.ClientURL = strings.Replace(plain.ClientURL, "https", "http", 1)
	await(t, h.start(plain), "serving", state(member.Serving))
	enableAuth(t, private(t, plain))
	if _, err := h.client(plain, "").Put(withCluster(short(t), "uid"), "key", "value"); err == nil {
		t.Error("the cluster's UID in a header is root")
	}
}
