package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/etcdcluster/etcd"
)

const (
	// putLimit bounds one write: the next one may find another member.
	putLimit = time.Second
	// longestPause bounds the time without a write that is acknowledged: one election, and what a busy machine adds. A quorum that is lost is
	// missed for longer.
	longestPause = 20 * time.Second
	// putRest is between two writes: the load is to be there all the time, not to be all that the machine does.
	putRest = 20 * time.Millisecond
	// lookLimit is how long a look of the referee may take, and how long ago the last one may be: on a busy machine a look may span several
	// changes, one after the other.
	lookLimit = 500 * time.Millisecond
)

// etcdLoad writes to an etcd cluster and watches it, all the while its members come, go and die.
type etcdLoad struct {
	e      *etcdUnderTest
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup
	enough context.CancelFunc // ends the writing alone
	writer sync.WaitGroup
	urls   []string // where the members are; only follow uses it
	write  *clientv3.Client
	listen *clientv3.Client
	// restored: the cluster is stopped and started again meanwhile. A restore raises the revision and compacts what was before it, so a
	// watch that was away then misses changes.
	restored bool

	mu     sync.Mutex
	acked  []etcdWrite
	seen   []etcdWrite
	pauses []etcdPause
	wrong  []string
	looks  int // how often the list of members was looked at
	prompt int // and how often so soon after the last look that no two changes can lie between
}

// etcdWrite is a key with its value and the revision at which it was written.
type etcdWrite struct {
	key, value string
	revision   int64
}

// etcdPause is a time without an acknowledgement.
type etcdPause struct {
	from time.Time
	long time.Duration
	why  string
}

// load begins to write and to watch, and looks at the list of members meanwhile.
func (e *etcdUnderTest) load() *etcdLoad { return e.loadWith(false) }

// loadWith is load of a cluster that may be stopped and restored meanwhile.
func (e *etcdUnderTest) loadWith(restored bool) *etcdLoad {
	e.t.Helper()
	l := &etcdLoad{e: e, restored: restored, write: e.connectEtcd(), listen: e.connectEtcd()}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	// A client may be told of other endpoints once it has used its first ones: before, that is a data race of its library's.
	for _, c := range []*clientv3.Client{l.write, l.listen} {
		until(e.t, "the client to be answered", func() bool {
			ctx, cancel := context.WithTimeout(l.ctx, putLimit)
			defer cancel()
			_, err := c.Get(ctx, "load/")
			return err == nil
		})
	}
	for _, work := range []func(){l.watchOn, l.follow, l.referee} {
		l.work.Go(work)
	}
	writing, enough := context.WithCancel(l.ctx)
	l.enough = enough
	l.writer.Go(func() { l.writeOn(writing) })
	e.whole.Cleanup(l.end)
	return l
}

// end ends all of it.
func (l *etcdLoad) end() {
	l.cancel()
	l.writer.Wait()
	l.work.Wait()
	l.write.Close()
	l.listen.Close()
}

func (l *etcdLoad) fault(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if text := fmt.Sprintf(format, args...); len(l.wrong) < 20 && !slices.Contains(l.wrong, text) {
		l.wrong = append(l.wrong, text)
	}
}

func (l *etcdLoad) writeOn(writing context.Context) {
	last := time.Now()
	var why string
	for i := 0; writing.Err() == nil; i++ {
		w := etcdWrite{key: fmt.Sprintf("load/%07d", i), value: fmt.Sprint(time.Now().UnixNano())}
		ctx, cancel := context.WithTimeout(l.ctx, putLimit)
		r, err := l.write.Put(ctx, w.key, w.value)
		if err != nil {
			why = err.Error()
			if ctx.Err() == nil {
				// Refused at once: as a program would, it does not ask again in the same moment.
				select {
				case <-time.After(20 * time.Millisecond):
				case <-ctx.Done():
				}
			}
			cancel()
			continue
		}
		cancel()
		w.revision = r.Header.Revision
		l.mu.Lock()
		if n := len(l.acked); n > 0 && w.revision <= l.acked[n-1].revision {
			l.wrong = append(l.wrong, fmt.Sprintf("%+v was acknowledged after %+v: the revision went back", w, l.acked[n-1]))
		}
		l.acked = append(l.acked, w)
		l.pauses = append(l.pauses, etcdPause{from: last, long: time.Since(last), why: why})
		slices.SortFunc(l.pauses, func(a, b etcdPause) int { return int(b.long - a.long) })
		l.pauses = l.pauses[:min(5, len(l.pauses))]
		l.mu.Unlock()
		last, why = time.Now(), ""
		time.Sleep(putRest) // a rate, not a wait
	}
}

// watchOn records every change. A watch that ended begins again after the last change that was seen.
func (l *etcdLoad) watchOn() {
	next := int64(1)
	for l.ctx.Err() == nil {
		ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(l.ctx))
		for r := range l.listen.Watch(ctx, "load/", clientv3.WithPrefix(), clientv3.WithRev(next)) {
			if r.CompactRevision > 0 && !l.restored {
				l.fault("the watch was told that revisions up to %d are gone, and it was at %d", r.CompactRevision, next)
			}
			next = max(next, r.CompactRevision)
			for _, event := range r.Events {
				l.saw(event)
				next = event.Kv.ModRevision + 1
			}
		}
		cancel()
	}
}

func (l *etcdLoad) saw(event *clientv3.Event) {
	w := etcdWrite{key: string(event.Kv.Key), value: string(event.Kv.Value), revision: event.Kv.ModRevision}
	if event.Type != clientv3.EventTypePut || event.Kv.Version != 1 {
		l.fault("the watch saw %s of %s, version %d", event.Type, w.key, event.Kv.Version)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen = append(l.seen, w)
}

// follow tells both clients where the members are now.
func (l *etcdLoad) follow() {
	for l.ctx.Err() == nil {
		w, err := l.e.client.Watch(l.ctx, &v1alpha1.EtcdClusterList{}, client.InNamespace(l.e.key.Namespace))
		if err != nil {
			time.Sleep(100 * time.Millisecond) // the server is away
			continue
		}
		for event := range w.ResultChan() {
			if ec, ok := event.Object.(*v1alpha1.EtcdCluster); ok && ec.Name == l.e.key.Name {
				l.moved(ec)
			}
		}
		w.Stop()
	}
}

func (l *etcdLoad) moved(ec *v1alpha1.EtcdCluster) {
	var urls []string
	for _, m := range ec.Status.Members {
		if m.ClientURL != "" && m.Role != v1alpha1.EtcdLearner && m.Role != "" {
			urls = append(urls, m.ClientURL)
		}
	}
	if len(urls) > 0 && !slices.Equal(urls, l.urls) {
		l.urls = urls
		l.write.SetEndpoints(urls...)
		l.listen.SetEndpoints(urls...)
	}
}

// referee looks again and again at who is a member. One at a time may come or go.
func (l *etcdLoad) referee() {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	var before []string
	var incarnation uint64
	var looked time.Time // when the last look ended
	again := false       // the last look saw more than one member in change
	for {
		select {
		case <-l.ctx.Done():
			return
		case <-tick.C:
		}
		began := time.Now()
		var objects v1alpha1.EtcdMemberList
		if l.e.client.List(l.ctx, &objects, client.InNamespace(l.e.key.Namespace), client.MatchingLabels{v1alpha1.EtcdClusterLabel: l.e.key.Name}) != nil {
			continue
		}
		ctx, cancel := context.WithTimeout(l.ctx, putLimit)
		list, err := l.write.MemberList(ctx)
		cancel()
		if err != nil {
			continue
		}
		// A member keeps its ID when its node gets another address, and has none before it ran.
		var voters, learners, urls []string
		for _, m := range list.Members {
			if m.IsLearner {
				learners = append(learners, etcd.HexID(m.ID))
			} else {
				voters, urls = append(voters, etcd.HexID(m.ID)), append(urls, m.PeerURLs[0])
			}
		}
		var changing []string
		for _, m := range objects.Items {
			if m.Spec.Want != v1alpha1.EtcdMemberDelete && !slices.Contains(voters, m.Status.ID) && !slices.Contains(urls, m.Status.PeerURL) {
				changing = append(changing, m.Name)
			}
		}
		prompt := time.Since(began) < lookLimit && began.Sub(looked) < lookLimit
		if len(learners) > 1 || prompt && again && len(changing) > 1 { // the objects were read before the list
			l.fault("more than one member in change: learners %v, objects %v", learners, changing)
		}
		again = prompt && len(changing) > 1
		came, went := without(voters, before), without(before, voters)
		if incarnation == list.Header.ClusterId && prompt && (len(came) > 1 || len(went) > 1) {
			l.fault("voters %v came and %v went in one step", came, went)
		}
		before, incarnation, looked = voters, list.Header.ClusterId, time.Now()
		l.mu.Lock()
		l.looks++
		if prompt {
			l.prompt++
		}
		l.mu.Unlock()
	}
}

// without are those of a that are not in b.
func without(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(s string) bool { return slices.Contains(b, s) })
}

// count is how many writes were acknowledged.
func (l *etcdLoad) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acked)
}

// goesOn waits until something more is acknowledged.
func (l *etcdLoad) goesOn() {
	l.e.t.Helper()
	before := l.count()
	until(l.e.t, "writes to be acknowledged", func() bool { return l.count() > before+10 })
}

// pause forgets the pauses up to now, and says how long the longest was.
func (l *etcdLoad) pause() etcdPause {
	l.mu.Lock()
	defer l.mu.Unlock()
	var longest etcdPause
	if len(l.pauses) > 0 {
		longest = l.pauses[0]
	}
	l.pauses = nil
	return longest
}

// check ends the load and compares what was acknowledged with what is there and with what the watch saw.
func (l *etcdLoad) check() {
	l.e.t.Helper()
	t := l.e.t
	l.goesOn()
	l.enough()
	l.writer.Wait()
	there := l.read()
	last := there[len(there)-1]
	until(t, "the watch to see the last write", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.seen) > 0 && l.seen[len(l.seen)-1].revision >= last.revision
	})
	l.end()
	values := map[string]etcdWrite{}
	for _, w := range there {
		values[w.key] = w
	}
	lost := slices.DeleteFunc(slices.Clone(l.acked), func(w etcdWrite) bool { return values[w.key] == w })
	if len(lost) > 0 {
		t.Errorf("%d writes were acknowledged and are not there, from %+v to %+v", len(lost), lost[0], lost[len(lost)-1])
	}
	// What the watch saw is what is there, each once and in order: there is sorted by revision. A write that was given up may come later.
	l.seen = slices.DeleteFunc(l.seen, func(w etcdWrite) bool { return w.revision > last.revision })
	for i, w := range l.seen {
		if l.restored {
			if values[w.key] != w || i > 0 && w.revision <= l.seen[i-1].revision {
				t.Errorf("%d: the watch saw %+v after %+v; %+v is there", i, w, l.seen[max(i-1, 0)], values[w.key])
				break
			}
			continue
		}
		if i >= len(there) || w != there[i] {
			t.Errorf("%d: the watch saw %+v after %+v; there are %d writes up to %+v", i, w, l.seen[max(i-1, 0)], len(there), last)
			break
		}
	}
	if len(l.seen) != len(there) && !l.restored {
		t.Errorf("the watch saw %d writes of %d", len(l.seen), len(there))
	}
	if len(l.wrong) > 0 {
		t.Error(strings.Join(l.wrong, "\n"))
	}
	if l.looks == 0 {
		t.Error("the list of members was never looked at")
	}
	t.Logf("%d writes acknowledged, %d there up to revision %d, %d seen; %d looks at the members, %d of them prompt", len(l.acked), len(there), last.revision, len(l.seen), l.looks, l.prompt)
}

// read reads all keys, by their revision.
func (l *etcdLoad) read() []etcdWrite {
	l.e.t.Helper()
	var got *clientv3.GetResponse
	until(l.e.t, "the keys to be read", func() bool {
		ctx, cancel := context.WithTimeout(l.ctx, 5*time.Second)
		defer cancel()
		var err error
		got, err = l.write.Get(ctx, "load/", clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByModRevision, clientv3.SortAscend))
		return err == nil && len(got.Kvs) > 0
	})
	var list []etcdWrite
	for i, kv := range got.Kvs {
		if i > 0 && kv.ModRevision != got.Kvs[i-1].ModRevision+1 && !l.restored {
			l.e.t.Errorf("nothing was written from revision %d to %d", got.Kvs[i-1].ModRevision, kv.ModRevision)
		}
		list = append(list, etcdWrite{string(kv.Key), string(kv.Value), kv.ModRevision})
	}
	return list
}

func TestAnEtcdClusterUnderLoadLosesNoWriteAndNoQuorum(t *testing.T) {
	beside(t, heavy)
	c := startFleet(t, 4)
	e := c.createEtcd("load", 3)
	e.settle(3)
	l := e.load()
	l.goesOn()
	step := func(name string, do func()) {
		began := time.Now()
		l.pause()
		do()
		l.goesOn()
		p := l.pause()
		t.Logf("%-40s took %6.2f s, longest pause %6.3f s, %d writes so far", name, time.Since(began).Seconds(), p.long.Seconds(), l.count())
		if p.long > longestPause {
			t.Errorf("%s: no write was acknowledged for %s from %s on: %s", name, p.long, p.from.Format(time.StampMilli), p.why)
		}
	}
	quartet := []string{"n1", "n2", "n3", "n4"}
	leader := c.awaitLeader("")
	for _, name := range others(quartet, leader) {
		step("drain of "+name, func() {
			c.ask("load-"+name, name)
			c.awaitEnd("load-"+name, v1alpha1.DrainComplete, v1alpha1.ReasonDrained)
			if ec := e.get(); slices.Contains(ec.Status.Nodes, name) {
				t.Errorf("%s left and members are on %v", name, ec.Status.Nodes)
			}
			c.back(name)
		})
	}
	step("3 to 5", func() { e.scale(5) })
	step("5 to 3", func() { e.scale(3) })
	step("kill -9 of the leader's process", func() {
		m := e.leads()
		if err := syscall.Kill(int(m.Status.PID), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		until(t, "the member to be restarted", func() bool {
			again := &v1alpha1.EtcdMember{}
			return c.client.Get(context.Background(), client.ObjectKeyFromObject(m), again) == nil && again.Status.PID != m.Status.PID && again.Status.Phase == v1alpha1.EtcdMemberRunning
		})
		e.settle(3)
	})
	step("kill -9 of the node of the leader", func() {
		dead := e.leads().Spec.Node
		c.signal(dead, syscall.SIGKILL)
		until(t, "the member to be missed", func() bool { return e.get().Status.ReadyReplicas == 2 })
		l.goesOn()
		c.back(dead)
		e.settle(3)
	})
	step("kill -9 of the coordinator, 3 to 4", func() {
		c.arm("after-etcd-add-learner", "")
		c.kubectl("scale", "etcdcluster", e.key.Name, "--replicas=4")
		dead := c.awaitDeath(quartet)
		c.awaitLeader(dead)
		c.back(dead)
		e.settle(4)
	})
	step("4 to 3", func() { e.scale(3) })
	began := time.Now()
	c.blackOut(quartet)
	e.settle(3)
	l.goesOn()
	t.Logf("everything was killed at once: served again after %.2f s", time.Since(began).Seconds())
	l.check()
}

// blackOut kills every node and every member at once, and starts the nodes again.
func (c *cluster) blackOut(nodes []string) {
	c.t.Helper()
	var members v1alpha1.EtcdMemberList
	if err := c.client.List(context.Background(), &members); err != nil {
		c.t.Fatal(err)
	}
	before := map[string]int64{}
	for _, name := range nodes {
		before[name] = c.record(name).Epoch
		c.signal(name, syscall.SIGKILL)
	}
	for _, m := range members.Items {
		if m.Status.PID > 1 {
			_ = syscall.Kill(int(m.Status.PID), syscall.SIGKILL) // it may have ended with its node
		}
	}
	for _, name := range nodes {
		c.startNode(name)
	}
	for _, name := range nodes {
		until(c.t, "node "+name+" to be back", func() bool {
			n := c.node(name)
			return n.IsReady() && n.Status.Epoch > before[name]
		})
	}
}

// leads is the member that leads.
func (e *etcdUnderTest) leads() *v1alpha1.EtcdMember {
	e.t.Helper()
	m := &v1alpha1.EtcdMember{}
	until(e.t, "a leader", func() bool {
		for _, info := range e.get().Status.Members {
			key := client.ObjectKey{Namespace: e.key.Namespace, Name: info.Name}
			if info.Role == v1alpha1.EtcdLeader && e.client.Get(context.Background(), key, m) == nil && m.Status.PID > 0 {
				return true
			}
		}
		return false
	})
	return m
}
