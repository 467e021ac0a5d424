package host_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster/host"
	"github.com/ebb-dev/ebb/internal/etcdcluster/member"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/node"
)

func TestAMemberFromReserveToRestore(t *testing.T) {
	y := newYard(t)
	n1 := y.machine("n1")
	m := y.reserve("c-1", n1)
	if m.Status.PeerURL == "" || m.Status.ClientURL == "" {
		t.Fatalf("no URLs: %+v", m.Status)
	}
	m = y.awaitPhase(y.want(m, v1alpha1.EtcdMemberRun, begins), v1alpha1.EtcdMemberRunning)
	if m.Status.ID == "" || m.Status.ClusterID == "" || m.Status.PID == 0 || !m.Status.Data {
		t.Errorf("running: %+v", m.Status)
	}
	until(t, "the member to be counted", func() bool { return n1.held(host.KindMembers) == 1 })
	cli := y.client(m)
	for i := range 50 {
		_, err := cli.Put(soon(t), fmt.Sprintf("key-%d", i%20), fmt.Sprint(i))
		y.must(err)
	}
	y.awaitPhase(y.want(m, v1alpha1.EtcdMemberSeal), v1alpha1.EtcdMemberSealed)
	if _, err := cli.Put(soon(t), "late", "1"); err == nil {
		t.Error("a write was acknowledged under the seal")
	}
	own := n1.private("c-1")
	at, err := own.Get(soon(t), "key")
	y.must(err)
	revision := at.Header.Revision
	s := y.snapshot("c-uid-1-1", "c-1", revision, n1)
	s = y.awaitSnapshot(s, "kept", kept(n1))
	hash, err := own.HashKV(soon(t), own.Endpoints()[0], revision)
	y.must(err)
	if f := s.Status.Facts; f.Revision != revision || f.Hash != int64(hash.Hash) || f.TotalKeys != 50 {
		t.Errorf("facts %+v, and revision %d with hash %d", f, revision, hash.Hash)
	}
	until(t, "the only copy to be counted", func() bool { return n1.held(host.KindData) == 1 })
	m = y.awaitPhase(y.want(m, v1alpha1.EtcdMemberStop), v1alpha1.EtcdMemberStopped)
	if !m.Status.Data || m.Status.DataBytes == 0 || m.Status.PID != 0 {
		t.Errorf("stopped: %+v", m.Status)
	}
	until(t, "the stopped member to be counted as data", func() bool {
		return n1.held(host.KindMembers) == 0 && n1.held(host.KindData) == 2
	})
	m = y.awaitPhase(y.want(m, v1alpha1.EtcdMemberDelete), v1alpha1.EtcdMemberDeleted)
	if m.Status.Data || exists(n1.memberDir("c-1")) {
		t.Error("deleted, and its data is there")
	}

	seed := y.reserve("c-2", n1, func(m *v1alpha1.EtcdMember) { m.Spec.Incarnation = 2 })
	seed = y.awaitPhase(y.want(seed, v1alpha1.EtcdMemberRun, func(m *v1alpha1.EtcdMember) {
		begins(m)
		m.Spec.Begin.Snapshot, m.Spec.Begin.Exact, m.Spec.Begin.Token = s.Name, true, "token-2"
	}), v1alpha1.EtcdMemberRunning)
	own = n1.private("c-2")
	again, err := own.HashKV(soon(t), own.Endpoints()[0], revision)
	y.must(err)
	if again.Hash != hash.Hash {
		t.Errorf("hash %d before the stop, %d after the restore", hash.Hash, again.Hash)
	}
	put, err := y.client(seed).Put(soon(t), "new", "1")
	y.must(err)
	if put.Header.Revision != revision+1 {
		t.Errorf("the first write after the restore has revision %d, and the stop was at %d", put.Header.Revision, revision)
	}
	y.must(y.admin.Delete(context.Background(), s))
	y.awaitSnapshot(s, "no copies", func(s *v1alpha1.EtcdSnapshot) bool { return len(s.Status.Copies) == 0 })
	if exists(n1.snapshotFile(s.Name)) {
		t.Error("deleted, and its file is there")
	}
}

func TestNoWriteIsAcknowledgedOnceAMemberIsSealed(t *testing.T) {
	y := newYard(t)
	n1 := y.machine("n1")
	m := y.running("c-1", n1)
	cli, own := y.client(m), n1.private("c-1")
	ctx, cancel := context.WithCancel(context.Background())
	var writers sync.WaitGroup
	defer writers.Wait()
	defer cancel()
	var acked, refused, newest atomic.Int64
	for w := range 4 {
		writers.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				r, err := cli.Put(ctx, fmt.Sprintf("%d-%d", w, i), "value")
				if err != nil {
					refused.Add(1)
					continue
				}
				acked.Add(1)
				for old := newest.Load(); r.Header.Revision > old && !newest.CompareAndSwap(old, r.Header.Revision); old = newest.Load() {
				}
			}
		})
	}
	for range 2 {
		before := acked.Load()
		until(t, "writes", func() bool { return acked.Load() > before+50 })
		y.awaitPhase(y.want(m, v1alpha1.EtcdMemberSeal), v1alpha1.EtcdMemberSealed)
		at, err := own.Get(soon(t), "any")
		y.must(err)
		late := refused.Load()
		until(t, "refusals", func() bool { return refused.Load() > late+50 })
		after, err := own.Get(soon(t), "any")
		y.must(err)
		if newest.Load() > at.Header.Revision || after.Header.Revision != at.Header.Revision {
			t.Errorf("revision %d when it was sealed, %d later, %d acknowledged", at.Header.Revision, after.Header.Revision, newest.Load())
		}
		y.awaitPhase(y.want(m, v1alpha1.EtcdMemberRun), v1alpha1.EtcdMemberRunning)
	}
	before := acked.Load()
	until(t, "writes after the last seal", func() bool { return acked.Load() > before })
}

func TestAMemberThatCrashesIsStartedAgainInPlace(t *testing.T) {
	y := newYard(t)
	n1 := y.machine("n1")
	m := y.running("c-1", n1)
	_, err := y.client(m).Put(soon(t), "a", "1")
	y.must(err)
	y.awaitPhase(y.want(m, v1alpha1.EtcdMemberSeal), v1alpha1.EtcdMemberSealed)
	y.must(syscall.Kill(int(m.Status.PID), syscall.SIGKILL))
	var again *v1alpha1.EtcdMember
	until(t, "another process", func() bool {
		again = y.awaitPhase(m, v1alpha1.EtcdMemberSealed)
		return again.Status.PID != m.Status.PID
	})
	if again.Status.Restarts != 1 || again.Status.ID != m.Status.ID || again.Status.ClientURL != m.Status.ClientURL {
		t.Errorf("before %+v, after %+v", m.Status, again.Status)
	}
	if _, err := y.client(m).Put(soon(t), "a", "2"); err == nil {
		t.Error("a restart broke the seal")
	}
	got, err := n1.private("c-1").Get(soon(t), "a")
	y.must(err)
	if len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "1" {
		t.Errorf("a is %v", got.Kvs)
	}
}

func TestAMemberOutlivesAnEpochAndNotItsNode(t *testing.T) {
	y := newYard(t)
	n1 := y.machine("n1")
	m := y.running("c-1", n1)
	y.fence(n1)
	after := y.awaitPhase(m, v1alpha1.EtcdMemberRunning)
	until(t, "the new epoch in the member's status", func() bool {
		after = y.awaitPhase(m, v1alpha1.EtcdMemberRunning)
		return after.Status.NodeEpoch > m.Status.NodeEpoch
	})
	if after.Status.PID != m.Status.PID {
		t.Errorf("process %d before the epoch ended, %d after", m.Status.PID, after.Status.PID)
	}
	_, err := y.client(m).Put(soon(t), "a", "1")
	y.must(err)
	n1.stop()
	if err := syscall.Kill(int(m.Status.PID), 0); err == nil {
		t.Error("the node left and the member runs")
	}
	n1.start()
	until(t, "the member to run in the next process of the node", func() bool {
		after = y.awaitPhase(m, v1alpha1.EtcdMemberRunning)
		return after.Status.NodeEpoch == n1.object().Status.Epoch
	})
	if after.Status.PID == m.Status.PID || after.Status.ID != m.Status.ID || after.Status.PeerURL != m.Status.PeerURL {
		t.Errorf("before %+v, after %+v", m.Status, after.Status)
	}
	got, err := y.client(m).Get(soon(t), "a")
	y.must(err)
	if len(got.Kvs) != 1 {
		t.Error("the key is gone")
	}
}

func TestDataThatIsMissingIsNeverMadeAnew(t *testing.T) {
	y := newYard(t)
	n1 := y.machine("n1")
	m := y.running("c-1", n1)
	y.awaitPhase(y.want(m, v1alpha1.EtcdMemberStop), v1alpha1.EtcdMemberStopped)
	y.must(os.RemoveAll(filepath.Join(n1.memberDir("c-1"), member.DataName)))
	until(t, "the missing data to be told", func() bool { return !y.awaitPhase(m, v1alpha1.EtcdMemberStopped).Status.Data })
	for name, lose := range map[string]func(){
		"its data": func() {},
		"its directory": func() {
			y.awaitPhase(y.want(m, v1alpha1.EtcdMemberStop), v1alpha1.EtcdMemberStopped)
			y.must(os.RemoveAll(n1.memberDir("c-1")))
		},
	} {
		lose()
		failed := y.awaitPhase(y.want(m, v1alpha1.EtcdMemberRun), v1alpha1.EtcdMemberFailed)
		if !strings.Contains(failed.Status.Error, "data is missing") {
			t.Errorf("without %s: %q", name, failed.Status.Error)
		}
	}
	fresh := y.reserve("c-2", n1, func(m *v1alpha1.EtcdMember) { m.Spec.DataRequired = true })
	y.awaitPhase(y.want(fresh, v1alpha1.EtcdMemberRun, begins), v1alpha1.EtcdMemberFailed)
	until(t, "nothing to be counted", func() bool { return n1.held(host.KindMembers) == 0 })
	y.awaitPhase(y.want(m, v1alpha1.EtcdMemberDelete), v1alpha1.EtcdMemberDeleted)
}

func TestDataOfAnotherIsNeitherStartedNorDeleted(t *testing.T) {
	y := newYard(t)
	n1 := y.machine("n1")
	m := y.running("c-1", n1)
	y.awaitPhase(y.want(m, v1alpha1.EtcdMemberStop), v1alpha1.EtcdMemberStopped)
	path := filepath.Join(n1.memberDir("c-1"), "marker.json")
	own, err := os.ReadFile(path)
	y.must(err)
	y.must(os.WriteFile(path, []byte(strings.Replace(string(own), `"incarnation":1`, `"incarnation":7`, 1)), 0o600))
	failed := y.awaitPhase(y.want(m, v1alpha1.EtcdMemberRun), v1alpha1.EtcdMemberFailed)
	if !strings.Contains(failed.Status.Error, "not this member's") {
		t.Errorf("run: %q", failed.Status.Error)
	}
	// Nothing of this member is there, so that it is deleted, and what belongs to another stays.
	y.awaitPhase(y.want(m, v1alpha1.EtcdMemberDelete), v1alpha1.EtcdMemberDeleted)
	if !exists(filepath.Join(n1.memberDir("c-1"), member.DataName, "member")) {
		t.Error("the data of another was deleted")
	}
}

// A marker that is lost or damaged does not keep its member from being deleted, nor the node from getting new ones. The data stays, and is listed.
func TestDataWithoutAMarkerStaysWhenItsMemberIsDeleted(t *testing.T) {
	y := newYard(t)
	n1 := y.machine("n1")
	for name, damage := range map[string]func(string) error{
		"c-1": os.Remove,
		"c-2": func(path string) error { return os.WriteFile(path, nil, 0o600) },
	} {
		m := y.running(name, n1)
		y.must(damage(filepath.Join(n1.memberDir(name), "marker.json")))
		failed := y.awaitPhase(y.want(m, v1alpha1.EtcdMemberStop), v1alpha1.EtcdMemberFailed)
		if !strings.Contains(failed.Status.Error, "not this member's") || failed.Status.PID != 0 {
			t.Errorf("%s: %+v", name, failed.Status)
		}
		m = y.awaitPhase(y.want(m, v1alpha1.EtcdMemberDelete), v1alpha1.EtcdMemberDeleted)
		if !exists(filepath.Join(n1.memberDir(name), member.DataName, "member")) {
			t.Errorf("%s: nobody knows whose the data is, and it was deleted", name)
		}
		y.must(y.admin.Delete(context.Background(), m))
	}
	y.reserve("c-3", n1)
	list := y.orphansOf(n1, 2)
	if !strings.Contains(list[0], "/c-1@") || !strings.Contains(list[1], "/c-2@") {
		t.Fatalf("listed are %v", list)
	}
	n1.update(func(n *v1alpha1.Node) {
		metav1.SetMetaDataAnnotation(&n.ObjectMeta, v1alpha1.RemoveEtcdOrphansAnnotation, strings.Join(list, ","))
	})
	y.orphansOf(n1, 0)
	if exists(n1.memberDir("c-1")) || exists(n1.memberDir("c-2")) {
		t.Error("what was named is still there")
	}
}

func TestAnObjectThatIsGoneStopsItsMemberAndKeepsTheData(t *testing.T) {
	y := newYard(t)
	n1 := y.machine("n1")
	m := y.running("c-1", n1)
	y.must(y.admin.Delete(context.Background(), m))
	until(t, "the process to end", func() bool { return n1.held(host.KindMembers) == 0 })
	if err := syscall.Kill(int(m.Status.PID), 0); err == nil {
		t.Error("it runs")
	}
	if !exists(filepath.Join(n1.memberDir("c-1"), member.DataName, "member")) {
		t.Error("nobody asked for its data to be deleted")
	}
}

// The coordinator goes on with other members when it knows that no process is left.
func TestAMemberWhoseDataCannotBeDeletedHasNoProcess(t *testing.T) {
	y := newYard(t)
	n1 := y.machine("n1")
	m := y.running("c-1", n1)
	marker := filepath.Join(n1.memberDir("c-1"), "marker.json")
	kept, err := os.ReadFile(marker)
	y.must(err)
	y.must(os.Remove(marker))
	y.must(os.Mkdir(marker, 0o700)) // it cannot be read, as on a disk that fails
	m = y.want(m, v1alpha1.EtcdMemberDelete)
	until(t, "the error to be reported", func() bool {
		y.must(y.admin.Get(context.Background(), client.ObjectKeyFromObject(m), m))
		return m.Status.ObservedGeneration == m.Generation && m.Status.PID == 0 && strings.Contains(m.Status.Error, "is a directory")
	})
	if m.Status.Phase != v1alpha1.EtcdMemberStopped {
		t.Errorf("it is %s", m.Status.Phase)
	}
	until(t, "the node to hold no member", func() bool { return n1.held(host.KindMembers) == 0 })
	y.must(os.Remove(marker))
	y.must(os.WriteFile(marker, kept, 0o600))
	y.awaitPhase(m, v1alpha1.EtcdMemberDeleted)
}

func TestADrainingNodeTakesNoNewMemberAndRunsOnWhatItHas(t *testing.T) {
	y := newYard(t)
	n1 := y.machine("n1")
	old := y.running("c-1", n1)
	fresh := y.reserve("c-2", n1)
	n1.update(func(n *v1alpha1.Node) {
		n.Spec.Desired = &v1alpha1.DesiredLiveness{Liveness: v1alpha1.Draining, Epoch: n.Status.Epoch, DrainUID: "drain"}
	})
	until(t, "the node to drain", func() bool { return n1.object().Status.Liveness == v1alpha1.Draining })
	y.want(fresh, v1alpha1.EtcdMemberRun, begins)
	refused := &v1alpha1.EtcdMember{}
	until(t, "the new member to be refused", func() bool {
		refused = y.awaitPhase(fresh, v1alpha1.EtcdMemberReserved)
		return strings.Contains(refused.Status.Error, "NodeDraining")
	})
	y.must(syscall.Kill(int(old.Status.PID), syscall.SIGKILL))
	until(t, "the old member to be started again", func() bool { return y.awaitPhase(old, v1alpha1.EtcdMemberRunning).Status.PID != old.Status.PID })
	if n := n1.held(host.KindMembers); n != 1 {
		t.Errorf("the node holds %d members", n)
	}
	y.awaitPhase(y.want(old, v1alpha1.EtcdMemberDelete), v1alpha1.EtcdMemberDeleted)
	until(t, "the node to hold nothing", func() bool { return n1.held(host.KindMembers) == 0 && n1.held(host.KindData) == 0 })
}

func TestThreeMembersGrowByLearnersAndOneThatIsRemovedStops(t *testing.T) {
	y := newYard(t)
	n1, n2 := y.machine("n1"), y.machine("n2")
	seed := y.running("c-1", n1)
	own := n1.private("c-1")
	initial := seed.Name + "=" + seed.Status.PeerURL
	var last *v1alpha1.EtcdMember
	for i, on := range []*machine{n2, n2} {
		m := y.reserve(fmt.Sprintf("c-%d", i+2), on)
		added, err := own.MemberAddAsLearner(soon(t), []string{m.Status.PeerURL})
		y.must(err)
		initial += "," + m.Name + "=" + m.Status.PeerURL
		last = y.awaitPhase(y.want(m, v1alpha1.EtcdMemberRun, func(m *v1alpha1.EtcdMember) {
			m.Spec.Begin = &v1alpha1.EtcdBegin{InitialCluster: initial, Existing: true, Token: "token"}
		}), v1alpha1.EtcdMemberRunning)
		until(t, "promotion", func() bool { _, err := own.MemberPromote(soon(t), added.Member.ID); return err == nil })
	}
	list, err := y.client(last).MemberList(soon(t))
	y.must(err)
	if len(list.Members) != 3 {
		t.Errorf("members: %v", list.Members)
	}
	id, err := strconv.ParseUint(last.Status.ID, 16, 64)
	y.must(err)
	_, err = own.MemberRemove(soon(t), id)
	y.must(err)
	stopped := y.awaitPhase(last, v1alpha1.EtcdMemberStopped)
	if !strings.Contains(stopped.Status.Error, "removed") || stopped.Status.PID != 0 {
		t.Errorf("removed: %+v", stopped.Status)
	}
	until(t, "it not to be counted", func() bool { return n2.held(host.KindMembers) == 1 })
}

func TestAMemberGoesOnAndIsStartedAgainWhileTheLeaseIsInDoubt(t *testing.T) {
	y := newYardAlone(t)
	n1 := y.machine("n1", func(m *machine) {
		m.opts.Timing = lease.Timing{Renew: time.Second, Timeout: time.Second, Fence: 3 * time.Second, Dead: 5 * time.Second, Lost: 7 * time.Second}
	})
	m := y.running("c-1", n1)
	cli := y.client(m)
	_, err := cli.Put(soon(t), "a", "1")
	y.must(err)
	y.api.Stop()
	until(t, "the lease to be in doubt", func() bool { return n1.node.Epoch() == nil })
	_, err = cli.Put(soon(t), "a", "2")
	y.must(err)
	y.must(syscall.Kill(int(m.Status.PID), syscall.SIGKILL))
	until(t, "the member to serve again", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		got, err := cli.Get(ctx, "a")
		return err == nil && len(got.Kvs) == 1 && string(got.Kvs[0].Value) == "2"
	})
	if n := n1.opts.Gate.Count(host.KindMembers); n != 1 {
		t.Errorf("the node counts %d members", n)
	}
	y.api.Start()
	until(t, "the next epoch to tell of it", func() bool {
		got := &v1alpha1.EtcdMember{}
		err := y.admin.Get(context.Background(), client.ObjectKeyFromObject(m), got)
		return err == nil && got.Status.NodeEpoch > m.Status.NodeEpoch && got.Status.Phase == v1alpha1.EtcdMemberRunning && got.Status.PID != m.Status.PID && got.Status.Restarts == 1
	})
}

func TestANodeThatIsRestartedWhileItDrainsTakesUpWhatItRan(t *testing.T) {
	y := newYardAlone(t)
	n1 := y.machine("n1")
	ran, stopped := y.running("c-1", n1), y.running("c-2", n1)
	y.awaitPhase(y.want(stopped, v1alpha1.EtcdMemberStop), v1alpha1.EtcdMemberStopped)
	n1.stop()
	d := &v1alpha1.Drain{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: v1alpha1.DrainSpec{NodeName: n1.name}}
	y.must(y.admin.Create(context.Background(), d))
	until(t, "the slot to be set", func() bool {
		s := &v1alpha1.Settings{}
		y.must(y.admin.Get(context.Background(), types.NamespacedName{Name: v1alpha1.SettingsName}, s))
		s.Status.ActiveDrain = &v1alpha1.ActiveDrain{Name: "d", UID: string(d.UID), Node: n1.name, NodeEpoch: n1.object().Status.Epoch}
		return y.admin.Status().Update(context.Background(), s) == nil
	})
	y.want(stopped, v1alpha1.EtcdMemberRun)
	n1.start()
	if n1.opts.Gate.Closed() != node.RefusedDraining {
		t.Fatalf("the gate is closed for %q", n1.opts.Gate.Closed())
	}
	until(t, "the member to run again", func() bool {
		return y.awaitPhase(ran, v1alpha1.EtcdMemberRunning).Status.NodeEpoch == n1.object().Status.Epoch
	})
	until(t, "the other to be refused", func() bool {
		got := &v1alpha1.EtcdMember{}
		y.must(y.admin.Get(context.Background(), client.ObjectKeyFromObject(stopped), got))
		return strings.Contains(got.Status.Error, "NodeDraining")
	})
	if n := n1.opts.Gate.Count(host.KindMembers); n != 1 {
		t.Errorf("the node counts %d members", n)
	}
	y.awaitPhase(y.want(stopped, v1alpha1.EtcdMemberSeal), v1alpha1.EtcdMemberSealed)
	until(t, "the member that was woken to be counted", func() bool { return n1.held(host.KindMembers) == 2 })
}

func TestAMemberOfANodeThatGotAnotherAddressWaitsForEtcdsList(t *testing.T) {
	y := newYard(t)
	n1 := y.machine("n1")
	m := y.filled("c-1", n1)
	id := m.Status.ID
	n1.stop()
	n1.etcds.Address = "127.0.0.2"
	n1.start()
	until(t, "the member to report where it would listen", func() bool {
		y.must(y.admin.Get(context.Background(), client.ObjectKeyFromObject(m), m))
		return m.Status.Moved != nil && m.Status.Phase == v1alpha1.EtcdMemberFailed
	})
	moved := *m.Status.Moved
	if !strings.HasPrefix(moved.PeerURL, "https://127.0.0.2:") || !strings.HasPrefix(moved.ClientURL, "https://127.0.0.2:") {
		t.Errorf("it would listen at %+v", moved)
	}
	// The list has another address than the node: it goes on waiting.
	m = y.want(m, v1alpha1.EtcdMemberRun, func(m *v1alpha1.EtcdMember) { m.Spec.PeerURL = "https://127.0.0.3:1" })
	m = y.awaitPhase(m, v1alpha1.EtcdMemberFailed)
	m = y.want(m, v1alpha1.EtcdMemberRun, func(m *v1alpha1.EtcdMember) { m.Spec.PeerURL = moved.PeerURL })
	m = y.awaitPhase(m, v1alpha1.EtcdMemberRunning)
	if m.Status.PeerURL != moved.PeerURL || m.Status.ClientURL != moved.ClientURL || m.Status.Moved != nil || m.Status.ID != id {
		t.Errorf("it runs as %+v", m.Status)
	}
}

func TestAMemberOfANodeThatGotAnotherAddressFailsAndItsDataCanBeRead(t *testing.T) {
	y := newYard(t)
	n1 := y.machine("n1")
	m := y.filled("c-1", n1)
	n1.stop()
	n1.etcds.Address = "127.0.0.2"
	n1.start()
	m = y.awaitPhase(m, v1alpha1.EtcdMemberFailed)
	if !strings.Contains(m.Status.Error, "it was https://127.0.0.1:") || !m.Status.Data || n1.held(host.KindMembers) != 0 {
		t.Errorf("it says %q, data %t, and the gate counts %d", m.Status.Error, m.Status.Data, n1.held(host.KindMembers))
	}
	// As for a restore from its data: it reports its log, and a snapshot is made of it.
	m = y.want(m, v1alpha1.EtcdMemberStop, func(m *v1alpha1.EtcdMember) { m.Spec.ReportLog = true })
	if m = y.awaitPhase(m, v1alpha1.EtcdMemberStopped); m.Status.Log == nil || m.Status.Log.Index == 0 {
		t.Fatalf("its log is %+v", m.Status.Log)
	}
	s := y.snapshot("s-1", "c-1", 0, n1)
	s = y.awaitSnapshot(s, "made of the data", func(s *v1alpha1.EtcdSnapshot) bool { return s.Status.Facts != nil })
	if s.Status.Facts.TotalKeys == 0 {
		t.Errorf("facts %+v", s.Status.Facts)
	}
}
