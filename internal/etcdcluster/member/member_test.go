package member_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ebb-dev/ebb/internal/etcdcluster/member"
	"github.com/ebb-dev/ebb/internal/etcdcluster/snapshot"
	"github.com/ebb-dev/ebb/internal/identity"
	"github.com/ebb-dev/ebb/internal/pki"
)

func TestAMemberServesClientsWithACertificateAndItsPrivateSocket(t *testing.T) {
	h := newHouse(t)
	h.issue("admin", pki.Profile{User: identity.Admin, Groups: []string{identity.AdminGroup}})
	h.issue("viewer", pki.Profile{User: identity.Viewer, Groups: []string{identity.ViewerGroup}})
	c := h.config("m1")
	child := h.start(c)
	r := await(t, child, "serving", state(member.Serving))
	if r.ID == "" || r.ClusterID == "" {
		t.Errorf("no identity in %+v", r)
	}
	_, err := h.client(c, "admin").Put(short(t), "a", "1")
	must(t, err)
	_, err = h.client(c, "admin").MemberList(short(t))
	must(t, err)
	if _, err := h.client(c, "admin").MemberAddAsLearner(short(t), []string{"https://127.0.0.1:1"}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("an admin who adds a member got %v", err)
	}
	got, err := private(t, c).Get(short(t), "a")
	must(t, err)
	if len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "1" {
		t.Errorf("on the private socket a is %v", got.Kvs)
	}
	if _, err := h.client(c, "viewer").Get(short(t), "a"); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a viewer got %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	stranger := newHouse(t)
	stranger.issue("admin", pki.Profile{User: identity.Admin, Groups: []string{identity.AdminGroup}})
	must(t, os.WriteFile(stranger.file("ca.crt"), h.ca.CertPEM, 0o600))
	stranger.ca = h.ca // trusts the member, and shows a certificate of its own authority
	if _, err := stranger.client(c, "admin").Get(ctx, "a"); err == nil {
		t.Error("a certificate of another authority was let in")
	}
	if err := syscall.Access(filepath.Join(c.Dir, member.DataName), 0); err != nil {
		t.Error(err)
	}
}

// hammer writes as fast as it can and remembers the newest revision that was acknowledged.
type hammer struct {
	newest, acked, refused atomic.Int64
	stop                   context.CancelFunc
	wait                   sync.WaitGroup
}

func hammerOn(t *testing.T, writers int, cli *clientv3.Client) *hammer {
	ctx, cancel := context.WithCancel(context.Background())
	m := &hammer{stop: cancel}
	for w := range writers {
		m.wait.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				r, err := cli.Put(ctx, number(w*1_000_000+i), "value")
				if err != nil {
					m.refused.Add(1)
					continue
				}
				m.acked.Add(1)
				for old := m.newest.Load(); r.Header.Revision > old && !m.newest.CompareAndSwap(old, r.Header.Revision); old = m.newest.Load() {
				}
			}
		})
	}
	t.Cleanup(func() { cancel(); m.wait.Wait() })
	return m
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for %s", patience, what)
		}
	}
}

func TestNoWriteIsAcknowledgedAfterTheSeal(t *testing.T) {
	h := newHouse(t)
	h.issue("admin", pki.Profile{User: identity.Admin, Groups: []string{identity.AdminGroup}})
	c := h.config("m1")
	child := h.start(c)
	await(t, child, "serving", state(member.Serving))
	own := private(t, c)
	m := hammerOn(t, 8, h.client(c, "admin"))
	for round := range 3 {
		before := m.acked.Load()
		eventually(t, "writes", func() bool { return m.acked.Load() > before+100 })
		obeyed(t, child, member.Seal)
		acked := m.acked.Load()
		sealed, err := own.Get(short(t), "any")
		must(t, err)
		refused := m.refused.Load()
		eventually(t, "refusals", func() bool { return m.refused.Load() > refused+100 })
		after, err := own.Get(short(t), "any")
		must(t, err)
		if newest := m.newest.Load(); newest > sealed.Header.Revision {
			t.Errorf("round %d: revision %d was acknowledged, and the seal was at %d", round, newest, sealed.Header.Revision)
		}
		if after.Header.Revision != sealed.Header.Revision {
			t.Errorf("round %d: the revision went from %d to %d under the seal", round, sealed.Header.Revision, after.Header.Revision)
		}
		if late := m.acked.Load() - acked; late > 8 {
			t.Errorf("round %d: %d writes were acknowledged under the seal", round, late)
		}
		obeyed(t, child, member.Unseal)
	}
	before := m.acked.Load()
	eventually(t, "writes after the last seal", func() bool { return m.acked.Load() > before })
}

func TestASealCutsWatchesAndThoseWhoWaitForALock(t *testing.T) {
	h := newHouse(t)
	h.issue("admin", pki.Profile{User: identity.Admin, Groups: []string{identity.AdminGroup}})
	c := h.config("m1")
	child := h.start(c)
	await(t, child, "serving", state(member.Serving))
	cli := h.client(c, "admin")
	watch := cli.Watch(t.Context(), "w", clientv3.WithCreatedNotify())
	<-watch
	lease, err := cli.Grant(short(t), 60)
	must(t, err)
	_, err = cli.KeepAlive(t.Context(), lease.ID)
	must(t, err)
	locks := v3lockpb.NewLockClient(cli.ActiveConnection())
	_, err = locks.Lock(short(t), &v3lockpb.LockRequest{Name: []byte("lock"), Lease: int64(lease.ID)})
	must(t, err)
	waiting := make(chan error, 1)
	other, err := cli.Grant(short(t), 60)
	must(t, err)
	go func() {
		_, err := locks.Lock(t.Context(), &v3lockpb.LockRequest{Name: []byte("lock"), Lease: int64(other.ID)})
		waiting <- err
	}()
	own := private(t, c)
	eventually(t, "somebody to wait for the lock", func() bool {
		r, err := own.Get(short(t), "lock/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		return err == nil && r.Count == 2
	})
	began := time.Now()
	obeyed(t, child, member.Seal)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the seal took %s", took)
	}
	if err := <-waiting; err == nil {
		t.Error("a lock was given under the seal")
	}
	_, err = own.Put(short(t), "w", "1")
	must(t, err)
	select {
	case r := <-watch:
		t.Errorf("under the seal a watcher got %+v", r)
	case <-time.After(300 * time.Millisecond): // there is nothing to wait for
	}
	obeyed(t, child, member.Unseal)
	if r := <-watch; len(r.Events) != 1 || string(r.Events[0].Kv.Value) != "1" {
		t.Errorf("after the seal a watcher got %+v", r)
	}
}

func TestASealedMemberAnswersTheCoordinatorAndWritesNothingForIt(t *testing.T) {
	h := newHouse(t)
	h.issue("coordinator", pki.Profile{User: identity.Coordinator("n1")})
	h.issue("admin", pki.Profile{User: identity.Admin, Groups: []string{identity.AdminGroup}})
	c := h.config("m1")
	c.Sealed = true
	child := h.start(c)
	await(t, child, "sealed", state(member.Sealed))
	cli := h.client(c, "coordinator")
	_, err := cli.Get(short(t), "a")
	must(t, err)
	_, err = cli.MemberList(short(t))
	must(t, err)
	_, err = cli.Status(short(t), c.ClientURL)
	must(t, err)
	_, err = cli.HashKV(short(t), c.ClientURL, 0)
	must(t, err)
	if _, err = cli.Put(short(t), "a", "1"); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "sealed") {
		t.Errorf("the coordinator's write got %v", err)
	}
	_, err = h.client(c, "admin").MemberList(short(t))
	if status.Code(err) != codes.Unavailable {
		t.Errorf("an admin got %v", err)
	}
	_, err = private(t, c).Put(short(t), "a", "1")
	must(t, err)
}

func TestWithoutTLSTheClusterUIDIsTheCoordinatorsWord(t *testing.T) {
	h := newHouse(t)
	c := h.config("m1")
	c.PeerURL, c.ClientURL = strings.Replace(c.PeerURL, "https", "http", 1), strings.Replace(c.ClientURL, "https", "http", 1)
	c.InitialCluster, c.Sealed = c.Name+"="+c.PeerURL, true
	child := h.start(c)
	await(t, child, "sealed", state(member.Sealed))
	cli := h.client(c, "")
	if _, err := cli.Get(short(t), "a"); status.Code(err) != codes.Unavailable {
		t.Errorf("anybody got %v", err)
	}
	_, err := cli.Get(withCluster(short(t), "uid"), "a")
	must(t, err)
	if _, err := cli.Put(withCluster(short(t), "uid"), "a", "1"); status.Code(err) != codes.Unavailable {
		t.Errorf("a write got %v", err)
	}
	obeyed(t, child, member.Unseal)
	_, err = cli.Put(short(t), "a", "1")
	must(t, err)
}

func TestAMemberEndsWhenItsNodeIsGone(t *testing.T) {
	h := newHouse(t)
	c := h.config("m1")
	child := h.start(c)
	await(t, child, "serving", state(member.Serving))
	began := time.Now()
	child.Orphan()
	select {
	case <-child.Done():
	case <-time.After(patience):
		t.Fatal("it runs on")
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("it took %s to end", took)
	}
	lock, err := member.TryLock(c.Dir)
	must(t, err)
	must(t, lock.Close())
}

func TestAMemberWaitsForTheOneBeforeIt(t *testing.T) {
	h := newHouse(t)
	c := h.config("m1")
	first := h.start(c)
	await(t, first, "serving", state(member.Serving))
	_, err := private(t, c).Put(short(t), "a", "1")
	must(t, err)
	second := h.start(c)
	if _, err := member.TryLock(c.Dir); !errors.Is(err, member.ErrLocked) {
		t.Fatalf("the directory of a running member: %v", err)
	}
	first.Stop(t.Context())
	await(t, second, "serving", state(member.Serving))
	got, err := private(t, c).Get(short(t), "a")
	must(t, err)
	if len(got.Kvs) != 1 {
		t.Error("the key is gone")
	}
}

func TestAMemberThatIsKilledSaysSoAndStartsAgainWithItsData(t *testing.T) {
	h := newHouse(t)
	c := h.config("m1")
	child := h.start(c)
	id := await(t, child, "serving", state(member.Serving)).ID
	_, err := private(t, c).Put(short(t), "a", "1")
	must(t, err)
	child.Kill()
	if child.Err() == nil || child.Removed() {
		t.Errorf("killed: %v, removed %v", child.Err(), child.Removed())
	}
	child = h.start(c)
	if again := await(t, child, "serving again", state(member.Serving)).ID; again != id {
		t.Errorf("member %s is now %s", id, again)
	}
	got, err := private(t, c).Get(short(t), "a")
	must(t, err)
	if len(got.Kvs) != 1 {
		t.Error("the key is gone")
	}
}

func TestAMemberThatWasRemovedSaysSo(t *testing.T) {
	h := newHouse(t)
	c := h.config("m1")
	child := h.start(c)
	await(t, child, "serving", state(member.Serving))
	cli := private(t, c)
	d := h.config("m2")
	added, err := cli.MemberAddAsLearner(short(t), []string{d.PeerURL})
	must(t, err)
	d.InitialCluster, d.Existing = c.InitialCluster+","+d.InitialCluster, true
	second := h.start(d)
	await(t, second, "the second to serve", state(member.Serving))
	eventually(t, "promotion", func() bool {
		_, err := cli.MemberPromote(short(t), added.Member.ID)
		return err == nil
	})
	_, err = cli.MemberRemove(short(t), added.Member.ID)
	must(t, err)
	<-second.Done()
	if !second.Removed() {
		t.Errorf("it ended with %v", second.Err())
	}
	second = h.start(d)
	<-second.Done()
	if !second.Removed() {
		t.Errorf("started again, it ended with %v", second.Err())
	}
}

func TestOnlyNodesArePeers(t *testing.T) {
	h := newHouse(t)
	h.issue("viewer", pki.Profile{User: identity.Viewer, Groups: []string{identity.ViewerGroup}})
	c := h.config("m1")
	child := h.start(c)
	await(t, child, "serving", state(member.Serving))
	if err := h.get(c.PeerURL+"/version", "node"); err != nil {
		t.Errorf("a node: %v", err)
	}
	if err := h.get(c.PeerURL+"/version", "viewer"); err == nil {
		t.Error("a viewer reached the peer port")
	}
}

func TestAMemberThatCannotStartSaysWhy(t *testing.T) {
	h := newHouse(t)
	c := h.config("m1")
	c.InitialCluster = "other=" + c.PeerURL
	child := h.start(c)
	<-child.Done()
	if err := child.Err(); err == nil || !strings.Contains(err.Error(), "m1") {
		t.Errorf("it said %v", err)
	}
}

func TestAMemberWithoutItsClusterStopsAtOnce(t *testing.T) {
	h := newHouse(t)
	c, other := h.config("m1"), h.config("m2")
	c.InitialCluster += "," + other.InitialCluster
	child := h.start(c)
	eventually(t, "its data", func() bool {
		files, _ := filepath.Glob(filepath.Join(c.Dir, member.DataName, "member", "wal", "*.wal"))
		return len(files) > 0
	})
	began := time.Now()
	child.Stop(t.Context())
	if took := time.Since(began); took > 3*time.Second || child.Err() != nil {
		t.Errorf("it took %s and ended with %v", took, child.Err())
	}
}

func TestAClusterThatIsSealedStopsAtOnce(t *testing.T) {
	h := newHouse(t)
	configs := []member.Config{h.config("m1"), h.config("m2"), h.config("m3")}
	var initial []string
	for _, c := range configs {
		initial = append(initial, c.InitialCluster)
	}
	var children []*member.Child
	for _, c := range configs {
		c.InitialCluster = strings.Join(initial, ",")
		children = append(children, h.start(c))
	}
	for _, c := range children {
		await(t, c, "serving", state(member.Serving))
	}
	for _, c := range children {
		obeyed(t, c, member.Seal)
	}
	began := time.Now()
	var stops sync.WaitGroup
	for _, c := range children {
		stops.Go(func() { c.Stop(t.Context()) })
	}
	stops.Wait()
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("it took %s", took)
	}
	for _, c := range children {
		if c.Err() != nil {
			t.Errorf("it ended with %v", c.Err())
		}
	}
}

// A restored member has no log from before, so that a new one gets its data as a whole, and what it says of itself meanwhile is often lost.
func TestALearnerOfARestoredClusterServesSoon(t *testing.T) {
	h := newHouse(t)
	c := h.config("m1")
	child := h.start(c)
	await(t, child, "serving", state(member.Serving))
	cli := private(t, c)
	for i := range 100 {
		_, err := cli.Put(short(t), number(i), "value")
		must(t, err)
	}
	path := h.file("snapshot.db")
	f, err := snapshot.Take(short(t), cli, path, 0, nil)
	must(t, err)
	child.Stop(t.Context())
	seed := h.config("m2")
	must(t, snapshot.Restore(path, f.Size, f.SHA256, snapshot.Target{Data: member.Data(seed.Dir), Name: "m2", PeerURL: seed.PeerURL, Token: "token-2", Exact: true}))
	await(t, h.start(seed), "the seed to serve", state(member.Serving))
	cli = private(t, seed)
	initial := seed.InitialCluster
	for _, name := range []string{"m3", "m4", "m5"} {
		d := h.config(name)
		added, err := cli.MemberAddAsLearner(short(t), []string{d.PeerURL})
		must(t, err)
		initial += "," + d.InitialCluster
		d.InitialCluster, d.Existing, d.Token = initial, true, "token-2"
		began := time.Now()
		for {
			child := h.start(d)
			r := await(t, child, "the learner to serve", func(r member.Report) bool { return r.State == member.Serving || r.State == member.Unheard })
			if r.State == member.Serving {
				break
			}
			<-child.Done()
			d.Unheard++ // it is started again, as a node does
		}
		if took := time.Since(began); took > 30*time.Second { // a busy machine is slow; a learner that nobody heard would wait for good
			t.Errorf("%s took %s, and %d starts", name, took, d.Unheard+1)
		}
		eventually(t, "promotion", func() bool {
			_, err := cli.MemberPromote(short(t), added.Member.ID)
			return err == nil
		})
		own := private(t, d)
		eventually(t, "the keys", func() bool {
			got, err := own.Get(short(t), number(99))
			return err == nil && len(got.Kvs) == 1
		})
	}
}
