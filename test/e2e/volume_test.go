package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
)

// What the NBD client of these tests uses of the protocol.
const (
	nbdRead  = 0
	nbdWrite = 1
	nbdFlush = 3

	nbdNoSpace  = 28
	nbdShutdown = 108 // the volume is being detached

	nbdOptGo         = 7
	nbdReplyAck      = 1
	nbdRequestMagic  = 0x25609513
	nbdReplyMagic    = 0x67446698
	nbdOptReplyMagic = 0x0003e889045565a9
)

// nbdHandshakeLimit bounds a handshake: a frozen process takes connections and never answers.
const nbdHandshakeLimit = 5 * time.Second

// nbdError is an error that the server answered a request with.
type nbdError uint32

func (e nbdError) Error() string { return fmt.Sprintf("the server answered with error %d", uint32(e)) }

// nbdConn is a connection to a volume. Requests are made one after another.
type nbdConn struct {
	net.Conn
	cookie uint64
}

// dialNBD connects to a URI such as nbd+unix:///data?socket=/run/x.sock.
func dialNBD(uri string) (*nbdConn, error) {
	u, err := url.Parse(uri)
	if err != nil {
		return nil, err
	}
	if u.Scheme != "nbd+unix" || u.Query().Get("socket") == "" {
		return nil, fmt.Errorf("%q is not the URI of a Unix socket", uri)
	}
	conn, err := net.DialTimeout("unix", u.Query().Get("socket"), nbdHandshakeLimit)
	if err != nil {
		return nil, err
	}
	c := &nbdConn{Conn: conn}
	if err := c.handshake(strings.TrimPrefix(u.Path, "/")); err != nil {
		return nil, errors.Join(fmt.Errorf("handshake: %w", err), conn.Close())
	}
	return c, nil
}

// handshake enters transmission with NBD_OPT_GO and simple replies.
func (c *nbdConn) handshake(export string) error {
	if err := c.SetDeadline(time.Now().Add(nbdHandshakeLimit)); err != nil {
		return err
	}
	hello := make([]byte, 18)
	if _, err := io.ReadFull(c, hello); err != nil {
		return err
	}
	if !bytes.HasPrefix(hello, []byte("NBDMAGICIHAVEOPT")) {
		return fmt.Errorf("the server began with %x", hello)
	}
	be := binary.BigEndian
	ask := be.AppendUint32(nil, 3) // fixed newstyle, no zeroes
	ask = append(ask, "IHAVEOPT"...)
	ask = be.AppendUint32(ask, nbdOptGo)
	ask = be.AppendUint32(ask, uint32(4+len(export)+2))
	ask = be.AppendUint32(ask, uint32(len(export)))
	ask = append(ask, export...)
	ask = be.AppendUint16(ask, 0)
	if _, err := c.Write(ask); err != nil {
		return err
	}
	for {
		head := make([]byte, 20)
		if _, err := io.ReadFull(c, head); err != nil {
			return err
		}
		if be.Uint64(head) != nbdOptReplyMagic {
			return fmt.Errorf("an option was answered with %x", head)
		}
		data := make([]byte, be.Uint32(head[16:]))
		if _, err := io.ReadFull(c, data); err != nil {
			return err
		}
		switch kind := be.Uint32(head[12:]); {
		case kind == nbdReplyAck:
			return c.SetDeadline(time.Time{})
		case kind>>31 == 1:
			return fmt.Errorf("export %q was refused: %#x %s", export, kind, data)
		}
	}
}

// send sends a request and does not wait for the answer.
func (c *nbdConn) send(command uint16, off int64, length int, payload []byte) error {
	c.cookie++
	be := binary.BigEndian
	b := be.AppendUint32(nil, nbdRequestMagic)
	b = be.AppendUint16(b, 0)
	b = be.AppendUint16(b, command)
	b = be.AppendUint64(b, c.cookie)
	b = be.AppendUint64(b, uint64(off))
	b = be.AppendUint32(b, uint32(length))
	_, err := c.Conn.Write(append(b, payload...))
	return err
}

// answer reads the answer to the last request; into has what a read returns.
func (c *nbdConn) answer(into []byte) error {
	head := make([]byte, 16)
	if _, err := io.ReadFull(c, head); err != nil {
		return err
	}
	be := binary.BigEndian
	if be.Uint32(head) != nbdReplyMagic || be.Uint64(head[8:]) != c.cookie {
		return fmt.Errorf("request %d was answered with %x", c.cookie, head)
	}
	if code := be.Uint32(head[4:]); code != 0 {
		return nbdError(code)
	}
	_, err := io.ReadFull(c, into)
	return err
}

func (c *nbdConn) readAt(p []byte, off int64) error {
	if err := c.send(nbdRead, off, len(p), nil); err != nil {
		return err
	}
	return c.answer(p)
}

func (c *nbdConn) writeAt(p []byte, off int64) error {
	if err := c.send(nbdWrite, off, len(p), p); err != nil {
		return err
	}
	return c.answer(nil)
}

func (c *nbdConn) flush() error {
	if err := c.send(nbdFlush, 0, 0, nil); err != nil {
		return err
	}
	return c.answer(nil)
}

// testVolume is a volume of a test.
type testVolume struct {
	*cluster
	name string
}

const (
	volumeSize = 64 << 20
	// volumeFill is how much of the volume's end is filled once: something to copy when a replica is built.
	volumeFill = 16 << 20
)

// createVolume creates a volume and waits until its replicas are healthy.
func (c *cluster) createVolume(name string, replicas int) *testVolume {
	c.t.Helper()
	c.must("volume", "create", name, "--size", strconv.Itoa(volumeSize), "--replicas", strconv.Itoa(replicas), "--wait", patience.String())
	return &testVolume{cluster: c, name: name}
}

// remove deletes the volume, so that the next step has the disks to itself.
func (v *testVolume) remove() {
	v.t.Helper()
	v.must("volume", "rm", v.name, "--yes")
	until(v.t, "volume "+v.name+" to be gone", func() bool {
		err := v.client.Get(context.Background(), v.key(), &v1alpha1.Volume{})
		return client.IgnoreNotFound(err) == nil && err != nil
	})
}

func (v *testVolume) key() types.NamespacedName {
	return types.NamespacedName{Namespace: "default", Name: v.name}
}

func (v *testVolume) get() *v1alpha1.Volume {
	v.t.Helper()
	o := &v1alpha1.Volume{}
	v.read(v.key(), o)
	return o
}

// attach attaches the volume and waits until clients can connect.
func (v *testVolume) attach(node string) {
	v.t.Helper()
	v.must("volume", "attach", v.name, node, "--wait", patience.String())
}

// replicas of the volume, by node.
func (v *testVolume) replicas() map[string]*v1alpha1.Replica {
	v.t.Helper()
	var list v1alpha1.ReplicaList
	if err := v.client.List(context.Background(), &list, client.MatchingLabels{v1alpha1.VolumeLabel: v.name}); err != nil {
		v.t.Fatal(err)
	}
	found := map[string]*v1alpha1.Replica{}
	for i := range list.Items {
		r := &list.Items[i]
		if found[r.Spec.NodeName] != nil {
			v.t.Fatalf("volume %s has two replicas on node %s", v.name, r.Spec.NodeName)
		}
		found[r.Spec.NodeName] = r
	}
	return found
}

func (v *testVolume) nodes() []string {
	v.t.Helper()
	return slices.Sorted(maps.Keys(v.replicas()))
}

// settle waits until the volume is healthy, with as many members as it should have, none of which leaves.
func (v *testVolume) settle() *v1alpha1.Volume {
	v.t.Helper()
	o := &v1alpha1.Volume{}
	what := func() string {
		return fmt.Sprintf("volume %s to settle; it is %s with members %v, released %v, engine %+v", v.name, o.Status.Robustness, o.Status.Members, o.Status.Released, o.Status.Engine)
	}
	untilSo(v.t, what, func() bool {
		if err := v.client.Get(context.Background(), v.key(), o); err != nil {
			return false
		}
		if o.Status.Robustness != v1alpha1.VolumeHealthy || len(o.Status.Released) > 0 || len(o.Status.Members) != int(o.Spec.Replicas) {
			return false
		}
		members := 0
		for _, r := range v.replicas() {
			if r.Spec.EvictionRequested || r.DeletionTimestamp != nil {
				return false
			}
			if slices.Contains(o.Status.Members, r.Name) {
				members++
			}
		}
		return members == int(o.Spec.Replicas)
	})
	return o
}

// untilSo is until with a description of how things are at the end.
func untilSo(t testing.TB, what func() string, holds func() bool) {
	t.Helper()
	deadline, began := time.Now().Add(patience), time.Now()
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for %s", patience, what())
		}
		pollAgain(began)
	}
}

// sameCopies detaches the volume and compares the data of all members, as it is on disk.
func (v *testVolume) sameCopies() {
	v.t.Helper()
	v.must("volume", "detach", v.name, "--wait", patience.String())
	// The engine is closed in order after the volume is detached: until then members may differ.
	members := v.get().Status.Members
	var different string
	untilSo(v.t, func() string { return "the members to have the same data: " + different }, func() bool {
		different = v.compareCopies(members)
		return different == ""
	})
}

func (v *testVolume) compareCopies(members []string) string {
	v.t.Helper()
	var first []byte
	for node, r := range v.replicas() {
		if !slices.Contains(members, r.Name) {
			continue
		}
		path := filepath.Join(v.disk(node), "replicas", "default-"+v.name+"-"+r.Spec.VolumeUID[:8], r.Name, "data")
		data, err := os.ReadFile(path)
		if err != nil {
			v.t.Fatal(err)
		}
		if first == nil {
			first = data
		}
		if !bytes.Equal(first, data) {
			at := 0
			for at < min(len(first), len(data)) && first[at] == data[at] {
				at++
			}
			return fmt.Sprintf("%s differs from byte %d on", path, at)
		}
	}
	return ""
}

// disk is the directory of a node's only disk.
func (c *cluster) disk(node string) string {
	if path := c.node(node).Status.Disks[0].Path; path != "" {
		return path
	}
	c.t.Fatalf("node %s has published no disk", node)
	return ""
}

// volumeSettings changes the settings, with a merge patch of their spec.
func (c *cluster) volumeSettings(patch string) {
	c.t.Helper()
	settings := &v1alpha1.Settings{}
	settings.Name = v1alpha1.SettingsName
	if err := c.client.Patch(context.Background(), settings, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":%s}`, patch))); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) drainPolicy(p v1alpha1.NodeDrainPolicy) {
	c.t.Helper()
	c.must("settings", "set", "nodeDrainPolicy="+string(p))
}

// evictionEvents are the reasons of the events about the eviction of a replica, in the order in which they were emitted.
func (c *cluster) evictionEvents(replica *v1alpha1.Replica) []string {
	c.t.Helper()
	var list eventsv1.EventList
	if err := c.client.List(context.Background(), &list); err != nil {
		c.t.Fatal(err)
	}
	slices.SortFunc(list.Items, func(a, b eventsv1.Event) int {
		return cmp.Or(a.EventTime.Compare(b.EventTime.Time), cmp.Compare(a.ResourceVersion, b.ResourceVersion))
	})
	var reasons []string
	for _, e := range list.Items {
		if e.Regarding.Kind == "Replica" && e.Regarding.UID == replica.UID && strings.HasPrefix(e.Reason, "Eviction") {
			reasons = append(reasons, e.Reason)
		}
	}
	return reasons
}

// keepVolumeChronicle follows every version of the objects that volumes rest on until the test ends.
func keepVolumeChronicle(t testing.TB, c client.WithWatch) *chronicle {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	t.Cleanup(func() { cancel(); done.Wait() })
	h := &chronicle{editions: map[int64]edition{}, latest: map[string]client.Object{}}
	for _, list := range []client.ObjectList{&v1alpha1.VolumeList{}, &v1alpha1.ReplicaList{}, &v1alpha1.NodeList{}, &v1alpha1.DrainList{}} {
		done.Go(func() { h.follow(ctx, c, list) })
	}
	return h
}

// versions are the versions of one object after a revision, in order. The chronicle has them all up to now.
func versions[T client.Object](t testing.TB, h *chronicle, now T, after int64) []T {
	t.Helper()
	h.await(t, now)
	h.mu.Lock()
	gap := h.gap
	h.mu.Unlock()
	if gap != nil {
		t.Fatalf("versions may be missing: %v", gap)
	}
	var list []T
	for _, e := range h.sorted() {
		if o, ok := e.object.(T); ok && e.revision > after && o.GetName() == now.GetName() && !e.deleted {
			list = append(list, o)
		}
	}
	return list
}

// revision is where the store is now: every version from now on has a higher one.
func (c *cluster) revision() int64 {
	c.t.Helper()
	var list coordinationv1.LeaseList
	if err := c.client.List(context.Background(), &list); err != nil {
		c.t.Fatal(err)
	}
	n, err := strconv.ParseInt(list.ResourceVersion, 10, 64)
	if err != nil {
		c.t.Fatal(err)
	}
	return n
}

// degradedSince returns the versions of the volume after a revision in which it was not healthy, or had fewer members than it should.
func (v *testVolume) degradedSince(h *chronicle, after int64) []string {
	v.t.Helper()
	var found []string
	all := versions(v.t, h, v.get(), after)
	for _, o := range all {
		if o.Status.Robustness != v1alpha1.VolumeHealthy || len(o.Status.Members) < int(o.Spec.Replicas) {
			found = append(found, fmt.Sprintf("version %s: %s, members %v, attached to %q, engine %+v", o.ResourceVersion, o.Status.Robustness, o.Status.Members, o.Status.AttachedTo, o.Status.Engine))
		}
	}
	v.t.Logf("volume %s: %d versions looked at", v.name, len(all))
	return found
}

const (
	loadLanes  = 3
	loadSector = 512
	loadBlock  = 8 * loadSector
	loadBlocks = 150 // that one lane writes to, again and again
	// loadRest is between two requests: the load is to be there all the time, not to be all that the machine does.
	loadRest = 8 * time.Millisecond
)

// volumeLoad writes unique values to a volume through NBD all the time, reads them back and flushes, while nodes come, go and die. For every
// sector it knows which values a read may return: the value of the last write that was acknowledged, and those of writes after it whose fate
// is unknown. Processes are killed here, but the machine is not: what was acknowledged has to be there, flushed or not.
type volumeLoad struct {
	v      *testVolume
	client client.Client
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup
	lanes  []*volumeLane

	acked, reads, flushes, connects atomic.Int64

	mu     sync.Mutex
	wrong  []string
	last   time.Time // of the last acknowledgement
	pause  time.Duration
	errors map[string]int
}

// volumeLane is one connection. It owns its sectors and does one thing at a time.
type volumeLane struct {
	l       *volumeLoad
	n       int64
	rng     *rand.Rand
	next    uint64
	sectors map[int64][]uint64 // what a read of a sector may return; nothing for zero alone

	mu   sync.Mutex
	conn *nbdConn // nil while there is none
}

// load fills a part of the volume and begins to write.
func (v *testVolume) load() *volumeLoad {
	v.t.Helper()
	l := &volumeLoad{v: v, client: v.client, last: time.Now(), errors: map[string]int{}}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.fill()
	for n := range loadLanes {
		lane := &volumeLane{l: l, n: int64(n), rng: rand.New(rand.NewPCG(uint64(n), 7)), sectors: map[int64][]uint64{}}
		l.lanes = append(l.lanes, lane)
		l.work.Go(lane.run)
	}
	v.whole.Cleanup(l.end)
	l.goesOn()
	return l
}

// end ends the load; calls under way end with their connections.
func (l *volumeLoad) end() {
	l.cancel()
	l.disconnect()
	l.work.Wait()
}

// disconnect closes every connection. The lanes connect again, to where the Volume says then.
func (l *volumeLoad) disconnect() {
	for _, lane := range l.lanes {
		lane.mu.Lock()
		if lane.conn != nil {
			lane.conn.Close()
		}
		lane.mu.Unlock()
	}
}

// fillChunk is a part of the filled end of the volume, the same every time.
func fillChunk(off int64) []byte {
	b := make([]byte, 1<<18)
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], uint64(off)+uint64(i)+1)
	}
	return b
}

func (l *volumeLoad) fill() {
	l.v.t.Helper()
	conn := l.connectOnce()
	defer conn.Close()
	for off := int64(volumeSize - volumeFill); off < volumeSize; off += 1 << 18 {
		if err := conn.writeAt(fillChunk(off), off); err != nil {
			l.v.t.Fatal(err)
		}
	}
	if err := conn.flush(); err != nil {
		l.v.t.Fatal(err)
	}
}

// connectOnce connects beside the lanes.
func (l *volumeLoad) connectOnce() *nbdConn {
	l.v.t.Helper()
	var conn *nbdConn
	var err error
	untilSo(l.v.t, func() string { return fmt.Sprintf("a connection to volume %s: %v", l.v.name, err) }, func() bool {
		o := &v1alpha1.Volume{}
		if err = l.client.Get(context.Background(), l.v.key(), o); err == nil {
			conn, err = dialNBD(o.Status.NBDURI)
		}
		return err == nil
	})
	return conn
}

// fault notes something that may never be.
func (l *volumeLoad) fault(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.wrong) < 20 {
		l.wrong = append(l.wrong, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
	}
}

// acknowledged counts a write.
func (l *volumeLoad) acknowledged() {
	l.acked.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	l.pause, l.last = max(l.pause, now.Sub(l.last)), now
}

// longestPause is the longest time between two acknowledgements since it was last asked.
func (l *volumeLoad) longestPause() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := max(l.pause, time.Since(l.last))
	l.pause = 0
	return p
}

// goesOn waits until more is written, read and flushed.
func (l *volumeLoad) goesOn() {
	l.v.t.Helper()
	acked, reads, flushes := l.acked.Load(), l.reads.Load(), l.flushes.Load()
	what := func() string {
		o := l.v.get()
		l.mu.Lock()
		defer l.mu.Unlock()
		return fmt.Sprintf("I/O to go on: %d writes, %d reads and %d flushes since; errors so far %v; the volume is %s, attached to %q, members %v, engine %+v",
			l.acked.Load()-acked, l.reads.Load()-reads, l.flushes.Load()-flushes, l.errors, o.Status.Robustness, o.Status.AttachedTo, o.Status.Members, o.Status.Engine)
	}
	untilSo(l.v.t, what, func() bool {
		return l.acked.Load() > acked+30 && l.reads.Load() > reads+30 && l.flushes.Load() > flushes+3
	})
}

// run connects and uses the connection, over and over.
func (a *volumeLane) run() {
	for a.l.ctx.Err() == nil {
		conn, err := a.connect()
		if err != nil {
			select {
			case <-a.l.ctx.Done():
				return
			case <-time.After(100 * time.Millisecond): // it is asked again
			}
			continue
		}
		a.l.connects.Add(1)
		err = a.use(conn)
		a.mu.Lock()
		a.conn = nil
		a.mu.Unlock()
		conn.Close()
		if code := nbdError(0); errors.As(err, &code) && code != nbdShutdown {
			a.l.fault("lane %d: %v", a.n, err)
		}
		if a.l.ctx.Err() == nil && err != nil {
			a.l.mu.Lock()
			a.l.errors[err.Error()]++
			a.l.mu.Unlock()
		}
	}
}

// connect connects to where the Volume says.
func (a *volumeLane) connect() (*nbdConn, error) {
	ctx, cancel := context.WithTimeout(a.l.ctx, 5*time.Second)
	defer cancel()
	o := &v1alpha1.Volume{}
	if err := a.l.client.Get(ctx, a.l.v.key(), o); err != nil {
		return nil, err
	}
	conn, err := dialNBD(o.Status.NBDURI)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.l.ctx.Err() != nil {
		return nil, errors.Join(a.l.ctx.Err(), conn.Close())
	}
	a.conn = conn
	return conn, nil
}

// use reads, writes and flushes until the connection is lost or answers with an error.
func (a *volumeLane) use(conn *nbdConn) error {
	for a.l.ctx.Err() == nil {
		var err error
		switch k := a.rng.IntN(20); {
		case k < 10:
			err = a.write(conn)
		case k < 19:
			err = a.read(conn)
		default:
			if err = conn.flush(); err == nil {
				a.l.flushes.Add(1)
			}
		}
		if err != nil {
			return err
		}
		time.Sleep(loadRest)
	}
	return nil
}

// pick is a range of sectors in one of the lane's blocks, which are spread over the part of the volume that is not filled.
func (a *volumeLane) pick() (first, count int64) {
	blocks := int64(volumeSize-volumeFill) / loadBlock / loadLanes
	block := int64(a.rng.IntN(loadBlocks))*(blocks/loadBlocks)*loadLanes + a.n
	from := int64(a.rng.IntN(8))
	return block*8 + from, 1 + int64(a.rng.IntN(int(8-from)))
}

// may is what a read of a sector may return.
func (a *volumeLane) may(sector int64) []uint64 {
	if list := a.sectors[sector]; list != nil {
		return list
	}
	return []uint64{0}
}

func (a *volumeLane) write(conn *nbdConn) error {
	first, count := a.pick()
	data := make([]byte, 0, count*loadSector)
	values := make([]uint64, count)
	for i := range values {
		a.next++
		values[i] = a.next*loadLanes + uint64(a.n)
		data = append(data, sectorOf(values[i])...)
	}
	err := conn.writeAt(data, first*loadSector)
	for i, value := range values {
		sector := first + int64(i)
		if err != nil {
			a.sectors[sector] = append(slices.Clone(a.may(sector)), value)
		} else {
			a.sectors[sector] = []uint64{value}
		}
	}
	if err == nil {
		a.l.acknowledged()
	}
	return err
}

func (a *volumeLane) read(conn *nbdConn) error {
	first, count := a.pick()
	return a.readSectors(conn, first, count)
}

func (a *volumeLane) readSectors(conn *nbdConn, first, count int64) error {
	data := make([]byte, count*loadSector)
	if err := conn.readAt(data, first*loadSector); err != nil {
		return err
	}
	for i := range count {
		a.saw(first+i, data[i*loadSector:(i+1)*loadSector])
	}
	a.l.reads.Add(1)
	return nil
}

// saw compares what was read with what may be there. From then on only that may be there.
func (a *volumeLane) saw(sector int64, data []byte) {
	value := binary.LittleEndian.Uint64(data)
	switch {
	case !bytes.Equal(data, sectorOf(value)):
		a.l.fault("lane %d: sector %d is torn: %x", a.n, sector, data)
	case !slices.Contains(a.may(sector), value):
		a.l.fault("lane %d: sector %d has %d, and may have %v", a.n, sector, value, a.may(sector))
	default:
		a.sectors[sector] = []uint64{value}
	}
}

// sectorOf is a sector full of a value.
func sectorOf(value uint64) []byte {
	return bytes.Repeat(binary.LittleEndian.AppendUint64(nil, value), loadSector/8)
}

// check ends the load, reads back every sector that was ever written to, and what was filled before.
func (l *volumeLoad) check() {
	l.v.t.Helper()
	t := l.v.t
	l.goesOn()
	l.end()
	conn := l.connectOnce()
	defer conn.Close()
	for _, lane := range l.lanes {
		for sector := range lane.sectors {
			if err := lane.readSectors(conn, sector, 1); err != nil {
				t.Fatal(err)
			}
		}
	}
	for off := int64(volumeSize - volumeFill); off < volumeSize; off += 1 << 18 {
		got := make([]byte, 1<<18)
		if err := conn.readAt(got, off); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, fillChunk(off)) {
			t.Errorf("volume %s has other data at %d than was written once", l.v.name, off)
		}
	}
	if len(l.wrong) > 0 {
		t.Errorf("volume %s:\n%s", l.v.name, strings.Join(l.wrong, "\n"))
	}
	t.Logf("volume %s: %d writes acknowledged, %d reads, %d flushes, %d connections; connections ended with %v",
		l.v.name, l.acked.Load(), l.reads.Load(), l.flushes.Load(), l.connects.Load(), l.errors)
}
