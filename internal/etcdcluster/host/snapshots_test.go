package host_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster/host"
	"github.com/ebb-dev/ebb/internal/etcdcluster/member"
	"github.com/ebb-dev/ebb/internal/etcdcluster/wire"
	"github.com/ebb-dev/ebb/internal/peer"
)

// move changes the nodes that should keep a snapshot.
func (y *yard) move(s *v1alpha1.EtcdSnapshot, on ...*machine) {
	y.t.Helper()
	until(y.t, s.Name+" to be moved", func() bool {
		got := &v1alpha1.EtcdSnapshot{}
		y.must(y.admin.Get(context.Background(), client.ObjectKeyFromObject(s), got))
		got.Spec.Nodes = nil
		for _, m := range on {
			got.Spec.Nodes = append(got.Spec.Nodes, m.name)
		}
		err := y.admin.Update(context.Background(), got)
		if err != nil && !apierrors.IsConflict(err) {
			y.t.Fatal(err)
		}
		return err == nil
	})
}

// tamper changes one byte of a file, whose size and times stay as they are.
func tamper(t *testing.T, path string) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := errors.Join(os.WriteFile(path, data, 0o600), os.Chtimes(path, info.ModTime(), info.ModTime())); err != nil {
		t.Fatal(err)
	}
}

// filled is a running member with keys.
func (y *yard) filled(name string, on *machine) *v1alpha1.EtcdMember {
	y.t.Helper()
	m := y.running(name, on)
	cli := y.client(m)
	for i := range 30 {
		_, err := cli.Put(soon(y.t), fmt.Sprintf("key-%d", i), strings.Repeat("value", 100))
		y.must(err)
	}
	return m
}

func badCopy(on *machine, why string) func(*v1alpha1.EtcdSnapshot) bool {
	return func(s *v1alpha1.EtcdSnapshot) bool {
		c, verified := s.Copy(on.name)
		return !verified && strings.Contains(c.Error, why)
	}
}

func TestASnapshotIsCopiedAndHandedOn(t *testing.T) {
	y := newYard(t)
	n1, n2 := y.machine("n1"), y.machine("n2")
	y.filled("c-1", n1)
	s := y.snapshot("s-1", "c-1", 0, n1, n2)
	y.awaitSnapshot(s, "kept by both", kept(n1, n2))
	until(t, "nobody to have the only copy", func() bool { return n1.held(host.KindData) == 0 && n2.held(host.KindData) == 0 })
	a, err := os.ReadFile(n1.snapshotFile("s-1"))
	y.must(err)
	b, err := os.ReadFile(n2.snapshotFile("s-1"))
	y.must(err)
	if string(a) != string(b) {
		t.Error("the copies differ")
	}
	y.move(s, n2)
	y.awaitSnapshot(s, "kept by n2 alone", kept(n2))
	until(t, "the file to go", func() bool { return !exists(n1.snapshotFile("s-1")) })
	until(t, "n2 to have the only copy", func() bool { return n1.held(host.KindData) == 0 && n2.held(host.KindData) == 1 })
	y.must(y.admin.Delete(context.Background(), s))
	y.awaitSnapshot(s, "no copies", func(s *v1alpha1.EtcdSnapshot) bool { return len(s.Status.Copies) == 0 })
	if exists(n2.snapshotFile("s-1")) {
		t.Error("its file is still there")
	}
}

func TestASnapshotThatCannotBeDeletedSaysWhy(t *testing.T) {
	y := newYard(t)
	n1 := y.machine("n1")
	y.filled("c-1", n1)
	s := y.snapshot("s-1", "c-1", 0, n1)
	y.awaitSnapshot(s, "kept", kept(n1))
	file := n1.snapshotFile("s-1")
	y.must(os.Remove(file))
	y.must(os.MkdirAll(filepath.Join(file, "in the way"), 0o700)) // as on a disk that fails
	y.must(y.admin.Delete(context.Background(), s))
	y.awaitSnapshot(s, "not deleted", badCopy(n1, "directory not empty"))
	y.must(os.RemoveAll(file))
	y.awaitSnapshot(s, "deleted", func(s *v1alpha1.EtcdSnapshot) bool { return len(s.Status.Copies) == 0 })
}

// sluice lets so many bytes out of each connection, and the rest once it is opened.
type sluice struct {
	net.Listener
	bytes int
	open  chan struct{}
}

func (s sluice) Accept() (net.Conn, error) {
	conn, err := s.Listener.Accept()
	return &sluiceConn{Conn: conn, of: s}, err
}

type sluiceConn struct {
	net.Conn
	of   sluice
	sent int // TLS writes one record at a time
}

func (c *sluiceConn) Write(p []byte) (int, error) {
	if c.sent += len(p); c.sent > c.of.bytes {
		<-c.of.open
	}
	return c.Conn.Write(p)
}

// heldBack are two nodes, the first with a large member, of whose snapshots only a part reaches the second until release is called.
func (y *yard) heldBack(member string) (n1, n2 *machine, release func()) {
	y.t.Helper()
	open := make(chan struct{})
	release = sync.OnceFunc(func() { close(open) })
	n1 = y.machine("n1", func(m *machine) {
		m.listen = func(l net.Listener) net.Listener { return sluice{Listener: l, bytes: 8 << 20, open: open} }
	})
	n2 = y.machine("n2", func(m *machine) { m.etcds.ReceivedEvery = time.Nanosecond })
	y.t.Cleanup(release) // before n1 ends, which waits for what it sends
	cli := y.client(y.filled(member, n1))
	for i := range 48 {
		_, err := cli.Put(soon(y.t), fmt.Sprintf("large-%d", i), strings.Repeat("v", 1<<20))
		y.must(err)
	}
	return n1, n2, release
}

// onItsWay says that a part of a copy has arrived on a node.
func onItsWay(to *machine) func(*v1alpha1.EtcdSnapshot) bool {
	return func(s *v1alpha1.EtcdSnapshot) bool {
		c, verified := s.Copy(to.name)
		return !verified && c.Received > 0 && c.Received < s.Status.Facts.Size && c.Error == ""
	}
}

func TestACopyOnItsWayTellsHowMuchHasArrived(t *testing.T) {
	y := newYard(t)
	n1, n2, release := y.heldBack("c-1")
	s := y.snapshot("s-1", "c-1", 0, n1, n2)
	y.awaitSnapshot(s, "on its way", onItsWay(n2))
	release()
	if c, _ := y.awaitSnapshot(s, "kept by both", kept(n1, n2)).Copy(n2.name); c.Received != 0 {
		t.Errorf("a whole copy is %+v", c)
	}
}

// A snapshot of a running member, and one of the data of a stopped one, tell step by step how far they are.
func TestASnapshotThatIsTakenTellsHowFarItIs(t *testing.T) {
	for _, c := range []struct {
		name    string
		stopped bool
		steps   []string
	}{
		{"of a running member", false, []string{"Writing", "Hashing", "Comparing"}},
		{"of the data of a stopped member", true, []string{"Copying", "Writing", "Hashing", "Comparing"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			y := newYard(t)
			n1 := y.machine("n1", func(m *machine) { m.etcds.ReceivedEvery = time.Nanosecond })
			m := y.filled("c-1", n1)
			if c.stopped {
				y.awaitPhase(y.want(m, v1alpha1.EtcdMemberStop), v1alpha1.EtcdMemberStopped)
			}
			watch, err := y.admin.Watch(soon(t), &v1alpha1.EtcdSnapshotList{}, client.InNamespace(y.namespace))
			y.must(err)
			defer watch.Stop()
			s := y.snapshot("s-1", "c-1", 0, n1)
			var steps []string
			for event := range watch.ResultChan() {
				is, ok := event.Object.(*v1alpha1.EtcdSnapshot)
				if !ok || is.Status.Error != "" {
					t.Fatalf("%+v", event)
				}
				if p := is.Status.Taking; p != nil {
					if p.Done < 0 || p.Done > p.Total || p.Total == 0 {
						t.Errorf("%+v", p)
					}
					steps = append(steps, p.Step)
				}
				if is.Status.Facts != nil {
					break
				}
			}
			steps = slices.Compact(steps)
			// The process that reads the data of a stopped member may end a step before its node has looked.
			inOrder := slices.IsSortedFunc(steps, func(a, b string) int { return slices.Index(c.steps, a) - slices.Index(c.steps, b) })
			if !slices.Equal(steps, c.steps) && !(c.stopped && inOrder && len(steps) > 0) {
				t.Errorf("the steps are %v, want %v", steps, c.steps)
			}
			if got := y.awaitSnapshot(s, "kept", kept(n1)).Status.Taking; got != nil {
				t.Errorf("a snapshot that was taken is %+v", got)
			}
		})
	}
}

func TestTheLastCopyStaysUntilAnotherIsVerified(t *testing.T) {
	y := newYard(t)
	n1, n2 := y.machine("n1"), y.machine("n2")
	y.filled("c-1", n1)
	s := y.snapshot("s-1", "c-1", 0, n1)
	y.awaitSnapshot(s, "kept by n1", kept(n1))
	n2.stop()
	y.move(s, n2)
	n1.stop()
	n1.start()
	y.awaitSnapshot(s, "kept by n1", kept(n1))
	if !exists(n1.snapshotFile("s-1")) {
		t.Fatal("the only copy was deleted")
	}
	n2.start()
	y.awaitSnapshot(s, "kept by n2 alone", kept(n2))
	until(t, "the file of n1 to go", func() bool { return !exists(n1.snapshotFile("s-1")) })
}

func TestACopyStaysWhileTheNodeThatShouldKeepItIsAway(t *testing.T) {
	y := newYard(t)
	n1, n2 := y.machine("n1"), y.machine("n2")
	y.filled("c-1", n1)
	s := y.snapshot("s-1", "c-1", 0, n1, n2)
	y.awaitSnapshot(s, "kept by both", kept(n1, n2))
	n2.stop()
	y.move(s, n2)
	n1.stop()
	n1.start()
	y.awaitSnapshot(y.snapshot("s-2", "c-1", 0, n1), "kept by n1, which looks after both", kept(n1))
	if !exists(n1.snapshotFile("s-1")) {
		t.Fatal("the only copy on a node that is there was deleted")
	}
	n2.start()
	y.awaitSnapshot(s, "kept by n2 alone", kept(n2))
}

func TestACopyThatWasTamperedWithIsRefusedAndReplaced(t *testing.T) {
	y := newYard(t)
	n1, n2, n3 := y.machine("n1"), y.machine("n2"), y.machine("n3")
	m := y.filled("c-1", n1)
	s := y.snapshot("s-1", "c-1", 0, n1)
	y.awaitSnapshot(s, "kept by n1", kept(n1))
	y.awaitPhase(y.want(m, v1alpha1.EtcdMemberDelete), v1alpha1.EtcdMemberDeleted)
	good, err := os.ReadFile(n1.snapshotFile("s-1"))
	y.must(err)
	tamper(t, n1.snapshotFile("s-1"))
	y.move(s, n1, n2)
	y.awaitSnapshot(s, "n1 to distrust its copy", badCopy(n1, "not what was recorded"))
	y.awaitSnapshot(s, "nobody to have a copy", kept())
	if exists(n2.snapshotFile("s-1")) {
		t.Error("a bad copy was kept")
	}

	seed := y.reserve("c-2", n1, func(m *v1alpha1.EtcdMember) { m.Spec.Incarnation = 2 })
	y.want(seed, v1alpha1.EtcdMemberRun, func(m *v1alpha1.EtcdMember) {
		begins(m)
		m.Spec.Begin.Snapshot = s.Name
	})
	until(t, "the restore to be refused", func() bool {
		return strings.Contains(y.awaitPhase(seed, v1alpha1.EtcdMemberStarting).Status.Error, "not what was recorded")
	})

	y.must(os.MkdirAll(filepath.Dir(n2.snapshotFile("s-1")), 0o700))
	y.must(os.WriteFile(n2.snapshotFile("s-1"), good, 0o600))
	y.awaitSnapshot(s, "both to have a good copy", kept(n1, n2))
	y.awaitPhase(seed, v1alpha1.EtcdMemberRunning)
	y.move(s, n1, n2, n3)
	y.awaitSnapshot(s, "n3 to have one too", kept(n1, n2, n3))
}

func TestASnapshotOfAnotherRevisionIsRefused(t *testing.T) {
	y := newYard(t)
	n1 := y.machine("n1")
	y.filled("c-1", n1)
	s := y.snapshot("s-1", "c-1", 5, n1)
	got := y.awaitSnapshot(s, "an error", func(s *v1alpha1.EtcdSnapshot) bool { return s.Status.Error != "" })
	if !strings.Contains(got.Status.Error, "another revision: 31, not 5") || got.Status.Facts != nil {
		t.Errorf("status %+v", got.Status)
	}
	files, err := filepath.Glob(filepath.Join(filepath.Dir(n1.snapshotFile("x")), "*"))
	y.must(err)
	hidden, err := filepath.Glob(filepath.Join(filepath.Dir(n1.snapshotFile("x")), ".*"))
	y.must(err)
	if len(files)+len(hidden) > 0 {
		t.Errorf("left behind: %v %v", files, hidden)
	}
	until(t, "nothing to be counted", func() bool { return n1.held(host.KindData) == 0 })
}

func TestASnapshotStoreThatFailsIsTold(t *testing.T) {
	y := newYard(t)
	n1 := y.machine("n1")
	y.filled("c-1", n1)
	y.must(os.WriteFile(filepath.Join(n1.etcds.Snapshots, y.uid), nil, 0o600)) // where a directory should be
	s := y.snapshot("s-1", "c-1", 0, n1)
	got := y.awaitSnapshot(s, "an error", func(s *v1alpha1.EtcdSnapshot) bool { return s.Status.Error != "" })
	if !strings.Contains(got.Status.Error, "snapshot store") {
		t.Errorf("status %+v", got.Status)
	}
}

// A trial takes no snapshot and leaves nothing behind: each node says whether it has room for a copy and reaches the node that would take it.
func TestANodeSaysWhetherItHasRoomForACopy(t *testing.T) {
	y := newYard(t)
	n1, n2, n3 := y.machine("n1"), y.machine("n2"), y.machine("n3")
	y.must(os.WriteFile(filepath.Join(n3.etcds.Snapshots, y.uid), nil, 0o600)) // where a directory should be
	y.filled("c-1", n1)
	trial := func(name string, bytes int64, memberNode string) *v1alpha1.EtcdSnapshot {
		s := &v1alpha1.EtcdSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: y.namespace, Name: name}}
		s.Spec = v1alpha1.EtcdSnapshotSpec{Cluster: "c", ClusterUID: y.uid, MemberNode: memberNode, TrialBytes: bytes, Nodes: []string{n1.name, n2.name, n3.name}}
		y.must(y.admin.Create(soon(t), s))
		return y.awaitSnapshot(s, "answered by all", func(s *v1alpha1.EtcdSnapshot) bool { return len(s.Status.Copies) == 3 })
	}
	answer := func(s *v1alpha1.EtcdSnapshot, m *machine) (room bool, why string) {
		c, verified := s.Copy(m.name)
		if verified || s.Status.Facts != nil {
			t.Errorf("%s: a trial counts as a copy: %+v", m.name, s.Status)
		}
		return c.Room != nil, c.Error
	}
	s := trial("t-1", 1<<20, n1.name)
	for _, m := range []*machine{n1, n2} {
		if room, why := answer(s, m); !room || why != "" {
			t.Errorf("%s has room: %t, %s", m.name, room, why)
		}
		if left, err := filepath.Glob(filepath.Join(m.etcds.Snapshots, y.uid, "*")); err != nil || len(left) > 0 {
			t.Errorf("%s: left behind: %v, %v", m.name, left, err)
		}
	}
	if room, why := answer(s, n3); room || why == "" {
		t.Errorf("a node whose directory is a file has room: %t, %s", room, why)
	}
	if room, why := answer(trial("t-2", 1<<60, n1.name), n2); room || !strings.Contains(why, "1099511627776 MiB for the copy") {
		t.Errorf("a node has room for 1 EiB: %t, %s", room, why)
	}
	if room, why := answer(trial("t-3", 1<<20, "absent"), n2); room || !strings.Contains(why, "node absent does not answer") {
		t.Errorf("a node that cannot reach the source can keep a copy: %t, %s", room, why)
	}
}

func TestARestoreOfAnOlderSnapshotMovesTheRevisionAhead(t *testing.T) {
	y := newYard(t)
	n1, n2 := y.machine("n1"), y.machine("n2")
	m := y.filled("c-1", n1)
	s := y.snapshot("s-1", "c-1", 0, n1)
	y.awaitSnapshot(s, "kept by n1", kept(n1))
	late, err := y.client(m).Put(soon(t), "late", "1")
	y.must(err)
	y.awaitPhase(y.want(m, v1alpha1.EtcdMemberDelete), v1alpha1.EtcdMemberDeleted)
	seed := y.reserve("c-2", n2, func(m *v1alpha1.EtcdMember) { m.Spec.Incarnation = 2 })
	seed = y.awaitPhase(y.want(seed, v1alpha1.EtcdMemberRun, func(m *v1alpha1.EtcdMember) {
		begins(m)
		m.Spec.Begin.Snapshot = s.Name
	}), v1alpha1.EtcdMemberRunning)
	cli := y.client(seed)
	got, err := cli.Get(soon(t), "", clientv3.WithPrefix())
	y.must(err)
	if got.Header.Revision <= late.Header.Revision || got.Count != 30 {
		t.Errorf("revision %d with %d keys, and there was revision %d", got.Header.Revision, got.Count, late.Header.Revision)
	}
	w := <-cli.Watch(soon(t), "late", clientv3.WithRev(late.Header.Revision+1))
	if !errors.Is(w.Err(), rpctypes.ErrCompacted) {
		t.Errorf("a watcher that goes on got %+v", w)
	}
	if files, _ := filepath.Glob(filepath.Join(n2.etcds.Snapshots, "*")); len(files) > 0 {
		t.Errorf("what was fetched for the restore is left: %v", files)
	}
	s2 := y.snapshot("s-2", "c-2", 0, n2)
	y.awaitSnapshot(s2, "taken of a restored member", kept(n2))
}

// orphansOf waits until a node lists as many orphans.
func (y *yard) orphansOf(m *machine, count int) []string {
	y.t.Helper()
	until(y.t, fmt.Sprintf("node %s to list %d orphans", m.name, count), func() bool { return len(m.object().Status.EtcdOrphans) == count })
	return m.object().Status.EtcdOrphans
}

func TestDataThatNoObjectKnowsIsKeptListedAndRemovedByName(t *testing.T) {
	y := newYard(t)
	n1 := y.machine("n1")
	m := y.filled("c-1", n1)
	s := y.snapshot("s-1", "c-1", 0, n1)
	y.awaitSnapshot(s, "taken", kept(n1))
	// The API forgets both, as one that was restored from a backup does: nobody asked for their deletion.
	n1.stop()
	for _, o := range []client.Object{m, s} {
		y.must(y.admin.Get(t.Context(), client.ObjectKeyFromObject(o), o))
		o.SetFinalizers(nil)
		y.must(y.admin.Update(t.Context(), o))
		y.must(y.admin.Delete(t.Context(), o))
	}
	old := time.Now().Add(-2 * time.Hour)
	half := filepath.Join(filepath.Dir(n1.snapshotFile("x")), ".half.db.123")
	y.must(os.WriteFile(half, []byte("x"), 0o600))
	y.must(os.Chtimes(n1.snapshotFile("s-1"), old, old))
	n1.start()
	list := y.orphansOf(n1, 2)
	if !strings.HasPrefix(list[0], "member/") || !strings.Contains(list[0], "/c-1@") || !strings.HasPrefix(list[1], "snapshot/") || !strings.Contains(list[1], "/s-1@") {
		t.Fatalf("listed are %v", list)
	}
	if !exists(n1.snapshotFile("s-1")) || !exists(filepath.Join(n1.memberDir("c-1"), member.DataName)) || exists(half) {
		t.Error("what nobody knows was deleted, or what was half written was not")
	}
	for _, name := range list {
		n1.update(func(n *v1alpha1.Node) {
			metav1.SetMetaDataAnnotation(&n.ObjectMeta, v1alpha1.RemoveEtcdOrphansAnnotation, strings.Trim(n.Annotations[v1alpha1.RemoveEtcdOrphansAnnotation]+","+name, ","))
		})
	}
	y.orphansOf(n1, 0)
	if exists(n1.snapshotFile("s-1")) || exists(n1.memberDir("c-1")) {
		t.Error("what was named is still there")
	}
}

func TestOnlyNodesFetchSnapshotsAndOnlyByObject(t *testing.T) {
	y := newYard(t)
	n1 := y.machine("n1")
	y.filled("c-1", n1)
	s := y.snapshot("s-1", "c-1", 0, n1)
	s = y.awaitSnapshot(s, "kept", kept(n1))
	fetch := func(f peer.Files, uid string) error {
		conn, err := peer.Dial(f, n1.opts.Address, n1.name)
		y.must(err)
		defer conn.Close()
		in, err := wire.NewSnapshotsClient(conn).Fetch(soon(t), &wire.FetchRequest{Namespace: s.Namespace, Name: s.Name, Uid: uid})
		y.must(err)
		_, err = in.Recv()
		return err
	}
	until(t, "a node to fetch it", func() bool { return fetch(n1.etcds.Files, string(s.UID)) == nil }) // the server's watch may be late
	if err := fetch(n1.etcds.Files, "another"); status.Code(err) != codes.NotFound {
		t.Errorf("another object of that name: %v", err)
	}
	cfg := y.api.Config(y.api.Dir.Kubeconfig())
	dir := t.TempDir()
	admin := peer.Files{Cert: filepath.Join(dir, "crt"), Key: filepath.Join(dir, "key"), CA: n1.etcds.Files.CA}
	y.must(os.WriteFile(admin.Cert, cfg.CertData, 0o600))
	y.must(os.WriteFile(admin.Key, cfg.KeyData, 0o600))
	if err := fetch(admin, string(s.UID)); status.Code(err) != codes.PermissionDenied {
		t.Errorf("an admin: %v", err)
	}
}
