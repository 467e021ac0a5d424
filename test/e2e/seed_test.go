package e2e

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/lease"
)

// edition is one version of an object.
type edition struct {
	revision int64
	seen     time.Time
	object   client.Object
	deleted  bool
}

// chronicle is every version of every object that changefeeds and drains rest on. Revisions of the store count over all kinds,
// so that versions of different objects have an order too.
type chronicle struct {
	mu       sync.Mutex
	editions map[int64]edition
	latest   map[string]client.Object // by kind and name
	gap      error                    // a version may be missing
}

// keepChronicle follows the objects until the test ends.
func keepChronicle(t testing.TB, c client.WithWatch) *chronicle {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	t.Cleanup(func() { cancel(); done.Wait() })
	h := &chronicle{editions: map[int64]edition{}, latest: map[string]client.Object{}}
	for _, list := range []client.ObjectList{&v1alpha1.ChangefeedList{}, &v1alpha1.NodeList{}, &v1alpha1.DrainList{}, &v1alpha1.SettingsList{}, &coordinationv1.LeaseList{}} {
		done.Go(func() { h.follow(ctx, c, list) })
	}
	return h
}

// follow goes on after a watch that ended exactly where that one was.
func (h *chronicle) follow(ctx context.Context, c client.WithWatch, list client.ObjectList) {
	at := ""
	for ctx.Err() == nil {
		w, err := c.Watch(ctx, list, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: at}})
		if err != nil {
			time.Sleep(20 * time.Millisecond) // it is asked again
			continue
		}
		for event := range w.ResultChan() {
			o, ok := event.Object.(client.Object)
			if !ok {
				h.mu.Lock()
				h.gap = fmt.Errorf("the watch of %T ended at %q: %+v", list, at, event.Object)
				h.mu.Unlock()
				return
			}
			at = o.GetResourceVersion()
			h.add(o, event.Type == "DELETED")
		}
	}
}

func (h *chronicle) add(o client.Object, deleted bool) {
	revision, err := strconv.ParseInt(o.GetResourceVersion(), 10, 64)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.gap = err
		return
	}
	if _, known := h.editions[revision]; known {
		return
	}
	h.editions[revision] = edition{revision: revision, seen: time.Now(), object: o, deleted: deleted}
	key := fmt.Sprintf("%T %s", o, o.GetName())
	h.latest[key] = o
	if deleted {
		delete(h.latest, key)
	}
}

// latest are the objects of a kind as they are, by name. What waits looks here rather than ask the server over and over.
func latest[T client.Object](h *chronicle) []T {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []T
	for _, key := range slices.Sorted(maps.Keys(h.latest)) {
		if o, ok := h.latest[key].(T); ok {
			list = append(list, o)
		}
	}
	return list
}

// sorted is the chronicle in the order of the store.
func (h *chronicle) sorted() []edition {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.SortedFunc(maps.Values(h.editions), func(a, b edition) int { return cmp.Compare(a.revision, b.revision) })
}

// String is an edition in one line.
func (e edition) String() string {
	text := fmt.Sprintf("%d %s %T %s", e.revision, e.seen.Format("15:04:05.000"), e.object, e.object.GetName())
	switch o := e.object.(type) {
	case *v1alpha1.Changefeed:
		text += fmt.Sprintf(" %s %+v checkpoint %d, drain %q in epoch %d, %d tables on %+v", o.Status.State, o.Placement(), o.Status.Checkpoint, o.Status.ObservedDrain, o.Status.ObservedEpoch, o.Status.Tables, o.Status.Nodes)
		if from := o.Placement().From; from != nil {
			text += fmt.Sprintf(" from %+v", *from)
		}
	case *v1alpha1.Node:
		text += fmt.Sprintf(" %s in epoch %d, ready %t, cordoned %t, coordinator %t, drain %q, holds %v, desired %+v", o.Status.Liveness, o.Status.Epoch, o.IsReady(), o.Spec.Cordoned, o.Status.Coordinator, o.Status.ObservedDrain, o.Status.Held, o.Spec.Desired)
	case *v1alpha1.Drain:
		text += fmt.Sprintf(" %s %s %v %+v", o.Status.Phase, o.Status.Stage, o.Status.Remaining, o.Status.Blockers)
	case *v1alpha1.Settings:
		text += fmt.Sprintf(" %+v", o.Status.ActiveDrain)
	case *coordinationv1.Lease:
		if o.Spec.HolderIdentity != nil {
			text += " " + *o.Spec.HolderIdentity
		}
	}
	return text
}

// await waits until the chronicle has a version.
func (h *chronicle) await(t testing.TB, o client.Object) {
	t.Helper()
	revision, _ := strconv.ParseInt(o.GetResourceVersion(), 10, 64)
	until(t, "the chronicle to have revision "+o.GetResourceVersion(), func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		_, ok := h.editions[revision]
		return ok || h.gap != nil
	})
}

// story is what the chronicle tells of one drain.
type story struct {
	node     string
	epoch    int64
	liveness []v1alpha1.Liveness
	stages   []string
	began    time.Time
	// departed are the changefeeds whose maintainers left the node, destinations where they were sent.
	departed     map[string]bool
	destinations map[string]int
	// inFlight is how many were on their way at most, and gone how many dispatchers of tables were seen to leave.
	inFlight int
	gone     int64
	// from and to are the checkpoints at its beginning and at its end.
	from, to map[string]int64
}

// referee goes through a chronicle and looks for what may never be.
type referee struct {
	shifting    map[string]bool // changefeeds whose tables are created and dropped by DDL
	feeds       map[string]*v1alpha1.Changefeed
	nodes       map[string]*v1alpha1.Node
	drains      map[string]*v1alpha1.Drain
	leases      map[string]lease.Record
	settings    *v1alpha1.Settings
	schedulable map[string]time.Time // since when
	stories     map[string]*story    // by the drain's name
	breaches    []string
	at          edition
}

// steady is for how long a node must have been schedulable to count as one that a scheduler knows of.
const steady = 3 * time.Second

// judge goes through the chronicle.
func (h *chronicle) judge(shifting ...string) *referee {
	r := &referee{
		feeds: map[string]*v1alpha1.Changefeed{}, nodes: map[string]*v1alpha1.Node{}, drains: map[string]*v1alpha1.Drain{}, leases: map[string]lease.Record{},
		settings: &v1alpha1.Settings{}, schedulable: map[string]time.Time{}, stories: map[string]*story{}, shifting: map[string]bool{},
	}
	for _, name := range shifting {
		r.shifting[name] = true
	}
	for _, e := range h.sorted() {
		r.at = e
		switch o := e.object.(type) {
		case *v1alpha1.Changefeed:
			r.seeFeed(o)
		case *v1alpha1.Node:
			r.seeNode(o)
		case *v1alpha1.Drain:
			r.seeDrain(o)
		case *v1alpha1.Settings:
			r.seeSettings(o)
		case *coordinationv1.Lease:
			r.seeLease(o)
		}
		r.always()
	}
	if h.gap != nil {
		r.breach("chronicle", "%v", h.gap)
	}
	return r
}

func (r *referee) breach(property, format string, args ...any) {
	r.breaches = append(r.breaches, fmt.Sprintf("%s at revision %d (%s): %s", property, r.at.revision, r.at.seen.Format("15:04:05.000"), fmt.Sprintf(format, args...)))
}

// slot is the drain that runs, and its story; both are nil without one.
func (r *referee) slot() (*v1alpha1.ActiveDrain, *story) {
	slot := r.settings.Status.ActiveDrain
	if slot == nil {
		return nil, nil
	}
	return slot, r.stories[slot.Name]
}

func (r *referee) over(node string, epoch int64) bool {
	rec := r.leases[node]
	return rec.Epoch == 0 || rec.Over(epoch)
}

func dispatchersOn(cf *v1alpha1.Changefeed, node string) int64 {
	for _, on := range cf.Status.Nodes {
		if on.Node == node {
			return on.Dispatchers
		}
	}
	return 0
}

func (r *referee) seeFeed(cf *v1alpha1.Changefeed) {
	if r.at.deleted {
		delete(r.feeds, cf.Name)
		return
	}
	old := r.feeds[cf.Name]
	if old == nil {
		old = &v1alpha1.Changefeed{}
	}
	was, is := old.Placement(), cf.Placement()
	if is.Epoch < was.Epoch || cf.Status.Checkpoint < old.Status.Checkpoint {
		r.breach("only forward", "%s went from %+v to %+v, checkpoint from %d to %d", cf.Name, was, is, old.Status.Checkpoint, cf.Status.Checkpoint)
	}
	if is.Epoch > was.Epoch {
		r.seePlacement(cf.Name, was, is)
	}
	if is.Phase == v1alpha1.PlacementRunning && (was.Phase != is.Phase || was.Epoch != is.Epoch) {
		r.seeBegun(cf.Name, was, is)
	}
	r.feeds[cf.Name] = cf
	r.seeDispatchers(old, cf)
}

// seePlacement looks at where a maintainer is sent: property 1, 5, 8 and 11.
func (r *referee) seePlacement(name string, was, is v1alpha1.ChangefeedPlacement) {
	if was.Node != "" && !r.over(was.Node, was.NodeEpoch) && is.From == nil {
		r.breach("property 11", "%s is sent to %s though nobody has to see that epoch %d on %s stops", name, is.Node, was.Epoch, was.Node)
	}
	slot, tale := r.slot()
	if slot == nil {
		return
	}
	if is.Node == slot.Node {
		r.breach("property 1", "the maintainer of %s is placed on %s, which drains", name, is.Node)
	}
	if is.Phase != v1alpha1.PlacementPlacing {
		return
	}
	r.wantLeastLoaded(name, was, is)
	if is.From == nil || is.From.Node != slot.Node {
		return
	}
	inFlight := 1
	for other, cf := range r.feeds {
		p := cf.Placement()
		if other != name && p.From != nil && p.From.Node == slot.Node && p.Node != slot.Node && p.Phase == v1alpha1.PlacementPlacing {
			inFlight++
		}
	}
	batch := 1
	if n := r.settings.Spec.Drain.MaintainerBatchSize; n != nil {
		batch = max(batch, int(*n))
	}
	if inFlight > batch {
		r.breach("property 5", "%d maintainers are on their way off %s, %d may be", inFlight, slot.Node, batch)
	}
	if tale != nil {
		tale.inFlight = max(tale.inFlight, inFlight)
		tale.destinations[is.Node]++
	}
}

// wantLeastLoaded is property 8, among the nodes that were there when it was decided.
func (r *referee) wantLeastLoaded(name string, was, is v1alpha1.ChangefeedPlacement) {
	loads := map[string]int{}
	for _, cf := range r.feeds {
		if p := cf.Placement(); !r.over(p.Node, p.NodeEpoch) {
			loads[p.Node]++
		}
	}
	for node, since := range r.schedulable {
		if node != was.Node && is.Since != nil && is.Since.Sub(since) > steady && loads[node] < loads[is.Node] {
			r.breach("property 8", "the maintainer of %s goes to %s: %v", name, is.Node, loads)
		}
	}
}

// seeBegun looks at a maintainer that has begun: nothing of the one before may run, property 11.
func (r *referee) seeBegun(name string, was, is v1alpha1.ChangefeedPlacement) {
	if was.Epoch != is.Epoch || was.From != nil && !was.From.Stopped {
		r.breach("property 11", "the maintainer of %s begins on %s, and before was %+v", name, is.Node, was)
	}
	if slot, tale := r.slot(); slot != nil && tale != nil && !tale.departed[name] && is.Node != slot.Node {
		tale.departed[name] = true
	}
}

// seeDispatchers looks at where the dispatchers are: property 1, 3 and the order in which a node is emptied.
func (r *referee) seeDispatchers(old, cf *v1alpha1.Changefeed) {
	p := cf.Placement()
	runs := p.Phase == v1alpha1.PlacementRunning && cf.Status.ObservedEpoch == p.Epoch
	if runs {
		total := int64(0)
		for _, on := range cf.Status.Nodes {
			total += on.Dispatchers
		}
		if dispatchersOn(cf, p.Node) < 1 || total > cf.Status.Tables+1 {
			r.breach("property 3", "%s is maintained on %s and has %d tables, with dispatchers on %+v", cf.Name, p.Node, cf.Status.Tables, cf.Status.Nodes)
		}
	}
	slot, tale := r.slot()
	if slot == nil || tale == nil || r.over(slot.Node, slot.NodeEpoch) {
		return
	}
	had, has := dispatchersOn(old, slot.Node), dispatchersOn(cf, slot.Node)
	if old.Status.ObservedDrain != slot.UID {
		return // it was counted before the drain began
	}
	if has > had && old.Status.ObservedEpoch == p.Epoch {
		r.breach("property 1", "%s has %d dispatchers on %s, which drains, and had %d when its maintainer knew", cf.Name, has, slot.Node, had)
	}
	if has >= had || r.shifting[cf.Name] {
		return
	}
	if !runs || p.Node == slot.Node {
		r.breach("maintainers first", "%s had %d dispatchers on %s and has %d, while its maintainer is %+v", cf.Name, had, slot.Node, has, p)
	}
	tale.gone += had - has
}

// seeNode is property 4 and 9, and what the gate promises: once it has closed, counts only fall.
func (r *referee) seeNode(n *v1alpha1.Node) {
	old := r.nodes[n.Name]
	if old == nil {
		old = &v1alpha1.Node{}
	}
	was, is := old.Status, n.Status
	if is.Epoch < was.Epoch || is.Epoch == was.Epoch && is.Liveness.Rank() < was.Liveness.Rank() {
		r.breach("property 4", "%s went from %s in epoch %d to %s in epoch %d", n.Name, was.Liveness, was.Epoch, is.Liveness, is.Epoch)
	}
	if is.ObservedDrain != "" && is.ObservedDrain == was.ObservedDrain && is.Epoch == was.Epoch {
		for kind, count := range is.Held {
			if count > was.Held[kind] {
				r.breach("property 1", "%s drains and holds %d %s, and held %d before", n.Name, count, kind, was.Held[kind])
			}
		}
	}
	slot, tale := r.slot()
	// It may win the election, but then sees that it is named by the slot; only the last node leads then, in its next epoch.
	if is.Coordinator && (is.Liveness == v1alpha1.Draining || !was.Coordinator && tale != nil && slot.Node == n.Name && is.Epoch == tale.epoch) {
		r.breach("property 9", "%s drains and coordinates", n.Name)
	}
	if tale != nil && slot.Node == n.Name && is.Epoch == tale.epoch && is.Liveness != v1alpha1.Alive && !slices.Contains(tale.liveness, is.Liveness) {
		tale.liveness = append(tale.liveness, is.Liveness)
	}
	r.nodes[n.Name] = n
	if r.at.deleted {
		delete(r.nodes, n.Name)
	}
}

func (r *referee) seeDrain(d *v1alpha1.Drain) {
	if r.at.deleted {
		delete(r.drains, d.Name)
		return
	}
	was, is := v1alpha1.DrainPhase(""), d.Status.Phase
	if old := r.drains[d.Name]; old != nil {
		was = old.Status.Phase
	}
	r.drains[d.Name] = d
	tale := r.stories[d.Name]
	if tale == nil {
		return // it never got the slot
	}
	if stage := d.Status.Stage; stage != "" && !slices.Contains(tale.stages, stage) {
		tale.stages = append(tale.stages, stage)
	}
	if is == was {
		return
	}
	end := meta.FindStatusCondition(d.Status.Conditions, v1alpha1.DrainFinished)
	switch {
	case is == v1alpha1.DrainStopping:
		r.wantEmpty(d, true)
	case is == v1alpha1.DrainComplete:
		tale.to = r.checkpoints()
		r.wantEmpty(d, false)
		if want := []v1alpha1.Liveness{v1alpha1.Draining, v1alpha1.Stopping}; end.Reason == v1alpha1.ReasonDrained && !slices.Equal(tale.liveness, want) {
			r.breach("property 4", "%s was drained and went through %v", tale.node, tale.liveness)
		}
	}
}

// wantEmpty is property 6 and 7: nothing is left on the node, and every maintainer has said so of its own since the drain began.
func (r *referee) wantEmpty(d *v1alpha1.Drain, there bool) {
	for kind, count := range d.Status.Remaining {
		if count != 0 {
			r.breach("property 6", "drain %s is %s with %d %s left", d.Name, d.Status.Phase, count, kind)
		}
	}
	node := d.Spec.NodeName
	if held := r.nodes[node].Status; there {
		if held.ObservedDrain != string(d.UID) || held.Epoch != d.Status.NodeEpoch {
			r.breach("property 6", "drain %s is %s and the node has counted for %q in epoch %d", d.Name, d.Status.Phase, held.ObservedDrain, held.Epoch)
		}
		for kind, count := range held.Held {
			if count != 0 {
				r.breach("property 6", "drain %s is %s and the node holds %d %s", d.Name, d.Status.Phase, count, kind)
			}
		}
	}
	for name, cf := range r.feeds {
		p := cf.Placement()
		if p.Node == node || p.From != nil && p.From.Node == node && !p.From.Stopped && !r.over(node, p.From.NodeEpoch) || there && dispatchersOn(cf, node) != 0 {
			r.breach("property 6", "drain %s is %s, and %s is %+v with dispatchers on %+v", d.Name, d.Status.Phase, name, p, cf.Status.Nodes)
		}
		if cf.Status.ObservedDrain != string(d.UID) || cf.Status.ObservedEpoch != p.Epoch || p.Phase != v1alpha1.PlacementRunning {
			r.breach("property 7", "drain %s is %s, and %s knows of drain %q in epoch %d of %+v", d.Name, d.Status.Phase, name, cf.Status.ObservedDrain, cf.Status.ObservedEpoch, p)
		}
	}
}

func (r *referee) checkpoints() map[string]int64 {
	list := map[string]int64{}
	for name, cf := range r.feeds {
		list[name] = cf.Status.Checkpoint
	}
	return list
}

// seeSettings is property 2: the slot passes from one drain to another only through nobody.
func (r *referee) seeSettings(s *v1alpha1.Settings) {
	was, is := r.settings.Status.ActiveDrain, s.Status.ActiveDrain
	if was != nil && is != nil && was.UID != is.UID {
		r.breach("property 2", "the slot went from %+v to %+v", *was, *is)
	}
	r.settings = s
	if is == nil {
		return
	}
	if r.stories[is.Name] == nil {
		r.stories[is.Name] = &story{node: is.Node, began: r.at.seen, departed: map[string]bool{}, destinations: map[string]int{}, from: r.checkpoints()}
	}
	r.stories[is.Name].epoch = is.NodeEpoch
}

func (r *referee) seeLease(l *coordinationv1.Lease) {
	if rec, err := lease.Read(l); err == nil {
		r.leases[rec.Node] = rec
	}
}

// always looks at what holds at every moment: property 2.
func (r *referee) always() {
	slot, _ := r.slot()
	running, draining := 0, 0
	for _, d := range r.drains {
		if d.Status.Phase == v1alpha1.DrainDraining || d.Status.Phase == v1alpha1.DrainStopping {
			running++
		}
	}
	for name, n := range r.nodes {
		rec := r.leases[name]
		there := rec.Held() && rec.Epoch == n.Status.Epoch
		if there && n.Status.Liveness == v1alpha1.Draining {
			draining++
		}
		if !there || !n.Schedulable() || slot != nil && slot.Node == name {
			delete(r.schedulable, name)
		} else if r.schedulable[name].IsZero() {
			r.schedulable[name] = r.at.seen
		}
	}
	if running > 1 || draining > 1 {
		r.breach("property 2", "%d drains run and %d nodes drain", running, draining)
	}
}

// scene is a drain of n1 by the rules, version by version: the maintainer of ones is on n1, that of twos on n2.
type scene struct {
	names  []string // of the versions
	object map[string]client.Object
}

func (s *scene) add(name string, o client.Object) *scene {
	if s.object == nil {
		s.object = map[string]client.Object{}
	}
	s.names, s.object[name] = append(s.names, name), o
	return s
}

// chronicle has the versions ten seconds apart.
func (s *scene) chronicle(began time.Time) *chronicle {
	h := &chronicle{editions: map[int64]edition{}}
	for i, name := range s.names {
		if o := s.object[name]; o != nil {
			h.editions[int64(i)] = edition{revision: int64(i), seen: began.Add(time.Duration(i) * 10 * time.Second), object: o}
		}
	}
	return h
}

func byTheRules(began time.Time) *scene {
	s := &scene{}
	settings := func(slot *v1alpha1.ActiveDrain) *v1alpha1.Settings {
		return &v1alpha1.Settings{Status: v1alpha1.SettingsStatus{ActiveDrain: slot}}
	}
	holds := func(node, holder string) *coordinationv1.Lease {
		return &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: lease.NameOf(node), Annotations: map[string]string{lease.EpochAnnotation: "1"}},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder},
		}
	}
	node := func(name string, liveness v1alpha1.Liveness, drain string, held int64) *v1alpha1.Node {
		n := &v1alpha1.Node{Status: v1alpha1.NodeStatus{Epoch: 1, Liveness: liveness, ObservedDrain: drain, Held: map[string]int64{"maintainers": held}}}
		n.Name = name
		meta.SetStatusCondition(&n.Status.Conditions, metav1.Condition{Type: v1alpha1.NodeReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonServing})
		return n
	}
	feed := func(name string, p v1alpha1.ChangefeedPlacement, drain string, epoch, n1, n2, n3 int64) *v1alpha1.Changefeed {
		cf := &v1alpha1.Changefeed{Status: v1alpha1.ChangefeedStatus{Placement: &p, ObservedDrain: drain, ObservedEpoch: epoch, Tables: n1 + n2 + n3 - 1}}
		cf.Name, p.NodeEpoch = name, 1
		for on, count := range map[string]int64{"n1": n1, "n2": n2, "n3": n3} {
			if count > 0 {
				cf.Status.Nodes = append(cf.Status.Nodes, v1alpha1.ChangefeedNode{Node: on, Dispatchers: count})
			}
		}
		return cf
	}
	drains := func(phase v1alpha1.DrainPhase, left int64) *v1alpha1.Drain {
		d := &v1alpha1.Drain{Spec: v1alpha1.DrainSpec{NodeName: "n1"}, Status: v1alpha1.DrainStatus{Phase: phase, NodeEpoch: 1, Remaining: map[string]int64{"maintainers": left}}}
		d.Name, d.UID = "drain", "uid"
		meta.SetStatusCondition(&d.Status.Conditions, metav1.Condition{Type: v1alpha1.DrainFinished, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonDrained})
		return d
	}
	later := metav1.NewMicroTime(began.Add(time.Minute))
	one := v1alpha1.ChangefeedPlacement{Node: "n1", Epoch: 1, Phase: v1alpha1.PlacementRunning}
	two := v1alpha1.ChangefeedPlacement{Node: "n2", Epoch: 1, Phase: v1alpha1.PlacementRunning}
	placing := v1alpha1.ChangefeedPlacement{Node: "n3", Epoch: 2, Phase: v1alpha1.PlacementPlacing, Since: &later, From: &v1alpha1.PlacementOrigin{Node: "n1", NodeEpoch: 1, Epoch: 1}}
	stopped := placing
	stopped.From = &v1alpha1.PlacementOrigin{Node: "n1", NodeEpoch: 1, Epoch: 1, Stopped: true}
	running := v1alpha1.ChangefeedPlacement{Node: "n3", Epoch: 2, Phase: v1alpha1.PlacementRunning}
	for _, name := range trio {
		s.add("lease of "+name, holds(name, name)).add(name, node(name, v1alpha1.Alive, "", 0))
	}
	s.add("ones", feed("ones", v1alpha1.ChangefeedPlacement{Node: "n1", Epoch: 1, Phase: v1alpha1.PlacementPlacing}, "", 0, 0, 0, 1))
	s.add("ones runs", feed("ones", one, "", 1, 3, 1, 0))
	s.add("twos", feed("twos", v1alpha1.ChangefeedPlacement{Node: "n2", Epoch: 1, Phase: v1alpha1.PlacementPlacing}, "", 0, 0, 0, 1))
	s.add("twos runs", feed("twos", two, "", 1, 1, 1, 0))
	s.add("slot", settings(&v1alpha1.ActiveDrain{Name: "drain", UID: "uid", Node: "n1", NodeEpoch: 1}))
	s.add("another slot", nil)
	s.add("drain", drains(v1alpha1.DrainDraining, 1))
	s.add("n1 drains", node("n1", v1alpha1.Draining, "uid", 1))
	s.add("n1 afterwards", nil)
	s.add("ones knows", feed("ones", one, "uid", 1, 3, 1, 0))
	s.add("twos knows", feed("twos", two, "uid", 1, 1, 1, 0))
	s.add("ones too early", nil)
	s.add("twos moves", feed("twos", two, "uid", 1, 0, 1, 1))
	s.add("ones is sent", feed("ones", placing, "uid", 1, 3, 1, 0))
	s.add("threes is sent", nil)
	s.add("ones has stopped", feed("ones", stopped, "uid", 1, 3, 1, 0))
	s.add("ones has begun", feed("ones", running, "uid", 1, 3, 1, 0))
	s.add("ones counts", feed("ones", running, "uid", 2, 2, 1, 1))
	s.add("ones moves", feed("ones", running, "uid", 2, 0, 2, 2))
	s.add("n1 is empty", node("n1", v1alpha1.Draining, "uid", 0))
	s.add("drain stops", drains(v1alpha1.DrainStopping, 0))
	s.add("n1 stops", node("n1", v1alpha1.Stopping, "uid", 0))
	s.add("n1 has left", holds("n1", ""))
	s.add("drain is complete", drains(v1alpha1.DrainComplete, 0))
	s.add("no slot", settings(nil))
	return s
}

// A referee that sees nothing proves nothing.
func TestSeedRefereeSeesBrokenRules(t *testing.T) {
	began := time.Now()
	if r := byTheRules(began).chronicle(began).judge(); len(r.breaches) > 0 || !r.stories["drain"].departed["ones"] {
		t.Fatalf("by the rules: %q", r.breaches)
	}
	placed := func(s *scene, name string) *v1alpha1.ChangefeedPlacement {
		return s.object[name].(*v1alpha1.Changefeed).Status.Placement
	}
	for name, tc := range map[string]struct {
		want   string
		breaks func(*scene)
	}{
		"a maintainer is placed on the draining node": {"property 1", func(s *scene) { placed(s, "ones is sent").Node = "n1" }},
		"a draining node takes more": {"property 1", func(s *scene) {
			n := s.object["n1 drains"].(*v1alpha1.Node).DeepCopy()
			n.Status.Held["maintainers"]++
			s.object["n1 afterwards"] = n
		}},
		"two slots": {"property 2", func(s *scene) {
			other := s.object["slot"].(*v1alpha1.Settings).DeepCopy()
			other.Status.ActiveDrain.UID = "other"
			s.object["another slot"] = other
		}},
		"a table trigger elsewhere": {"property 3", func(s *scene) { placed(s, "ones counts").Node = "n4" }},
		"a node goes back":          {"property 4", func(s *scene) { s.object["n1 afterwards"] = s.object["n1"] }},
		"two at once": {"property 5", func(s *scene) {
			other := s.object["ones is sent"].(*v1alpha1.Changefeed).DeepCopy()
			other.Name = "threes"
			s.object["threes is sent"] = other
		}},
		"complete with dispatchers left":      {"property 6", func(s *scene) { s.object["ones moves"] = nil }},
		"complete while the node holds some":  {"property 6", func(s *scene) { s.object["n1 is empty"] = nil }},
		"complete before a maintainer knows":  {"property 7", func(s *scene) { s.object["twos knows"], s.object["twos moves"] = nil, nil }},
		"sent to where more are":              {"property 8", func(s *scene) { placed(s, "ones is sent").Node = "n2" }},
		"a draining node coordinates":         {"property 9", func(s *scene) { s.object["n1 drains"].(*v1alpha1.Node).Status.Coordinator = true }},
		"begun before the origin has stopped": {"property 11", func(s *scene) { s.object["ones has stopped"] = nil }},
		"sent without an origin":              {"property 11", func(s *scene) { placed(s, "ones is sent").From = nil }},
		"dispatchers leave before a maintainer": {"maintainers first", func(s *scene) {
			early := s.object["ones knows"].(*v1alpha1.Changefeed).DeepCopy()
			early.Status.Nodes = []v1alpha1.ChangefeedNode{{Node: "n1", Dispatchers: 1}, {Node: "n2", Dispatchers: 3}}
			s.object["ones too early"] = early
		}},
	} {
		s := byTheRules(began)
		tc.breaks(s)
		seen := s.chronicle(began).judge().breaches
		if !slices.ContainsFunc(seen, func(text string) bool { return strings.HasPrefix(text, tc.want+" ") }) {
			t.Errorf("%s: %q, want %s", name, seen, tc.want)
		}
	}
}
