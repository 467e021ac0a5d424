package volume

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/fleet"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/simtest"
	"github.com/ebb-dev/ebb/internal/volume/host"
)

// simNode is a machine.
type simNode struct {
	name             string
	up, cordoned     bool
	asked            bool // a person asked that replicas leave it
	broken           bool // it can create no replica, though its disk is ready
	epoch            int64
	liveness         v1alpha1.Liveness
	toldToStop       bool
	downAt           time.Time
	released, waited bool // its lease was released rather than fenced; it has waited for the engine
}

// simCopy is a directory: how many of the acknowledged writes it has.
type simCopy struct {
	node string
	has  int
}

// simEngine is the engine process that runs, as it knows itself.
type simEngine struct {
	node       string
	generation int64
	building   map[string]int
}

// sim is a cluster around the real planner: everything happens in one goroutine, in an order that chance decides.
type sim struct {
	rand    *rand.Rand
	seed    uint64
	plan    string
	now     time.Time
	version int

	volume   *v1alpha1.Volume
	replicas map[string]*v1alpha1.Replica
	nodes    []*simNode
	slot     *v1alpha1.ActiveDrain
	drain    *v1alpha1.Drain
	drains   int
	policy   v1alpha1.NodeDrainPolicy

	copies   map[string]*simCopy
	engine   *simEngine
	acked    int
	trouble  bool // crashes and losses happen
	chaos    bool // anything happens
	deciding bool // the coordinator has read and not written yet
	unseen   bool // something broke since the coordinator last looked

	wasHealthy bool
	heard      []string
	broken     []string
	mutants    mutants
	bound      *simtest.Play
}

// mutants are rules broken on purpose, to show that the referee would see it.
type mutants struct {
	decision func(World, *Decision) // the planner decides otherwise
	noCAS    bool                   // the status is written over whatever is there
}

func newSim(seed uint64, policy v1alpha1.NodeDrainPolicy, replicas int32, nodes int) *sim {
	s := &sim{
		rand: rand.New(rand.NewPCG(seed, 12)), seed: seed, plan: fmt.Sprintf("%s %d %d", policy, replicas, seed), now: noon, policy: policy, chaos: true, trouble: true,
		replicas: map[string]*v1alpha1.Replica{}, copies: map[string]*simCopy{},
	}
	for i := range nodes {
		s.nodes = append(s.nodes, &simNode{name: fmt.Sprintf("n%d", i+1), up: true, epoch: 1, liveness: v1alpha1.Alive})
	}
	s.volume = &v1alpha1.Volume{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "data", UID: "uid-data", Finalizers: []string{v1alpha1.VolumeFinalizer}},
		Spec:       v1alpha1.VolumeSpec{Size: *resource.NewQuantity(gib, resource.BinarySI), Replicas: replicas},
	}
	s.touch(s.volume)
	return s
}

func (s *sim) touch(o metav1.Object) {
	s.version++
	o.SetResourceVersion(strconv.Itoa(s.version))
}

func (s *sim) log(format string, args ...any) {
	s.heard = append(s.heard, s.now.Format("15:04:05 ")+fmt.Sprintf(format, args...))
}

func (s *sim) breach(format string, args ...any) {
	s.log("BREACH "+format, args...)
	s.broken = append(s.broken, fmt.Sprintf(format, args...))
}

func (s *sim) chance(n int) bool { return s.rand.IntN(n) == 0 }

func (s *sim) node(name string) *simNode {
	for _, n := range s.nodes {
		if n.name == name {
			return n
		}
	}
	return &simNode{name: name}
}

func (s *sim) names() []string { return slices.Sorted(maps.Keys(s.replicas)) }

// cluster is what the coordinator reads.
func (s *sim) cluster() Cluster {
	c := Cluster{Now: s.now, Fleet: fleet.New(), Volumes: []*v1alpha1.Volume{s.volume.DeepCopy()}}
	wait := metav1.Duration{Duration: 2 * time.Minute}
	c.Settings = v1alpha1.SettingsSpec{NodeDrainPolicy: s.policy, Volumes: v1alpha1.VolumeSettings{ReplicaReplenishmentWait: &wait}}
	if s.slot != nil {
		slot := *s.slot
		c.Slot, c.Drain = &slot, s.drain.DeepCopy()
	}
	for _, n := range s.nodes {
		o := &v1alpha1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name}}
		o.Spec.Cordoned, o.Spec.EvictionRequested = n.cordoned, n.asked
		o.Status.Epoch, o.Status.Liveness = n.epoch, n.liveness
		if n.toldToStop {
			o.Spec.Desired = &v1alpha1.DesiredLiveness{Liveness: v1alpha1.Stopping, Epoch: n.epoch, DrainUID: s.slot.UID}
		}
		o.Status.Disks = []v1alpha1.DiskStatus{{Name: "default", Path: "/d", Ready: true, TotalBytes: 100 * gib, AvailableBytes: 50 * gib}}
		rec, ready := lease.Record{Node: n.name, Holder: n.name, Epoch: n.epoch}, metav1.ConditionTrue
		if !n.up {
			rec.Holder, ready = "", metav1.ConditionFalse
			if !n.released {
				rec.Fenced = n.epoch
			}
		}
		o.Status.Conditions = []metav1.Condition{{Type: v1alpha1.NodeReady, Status: ready, LastTransitionTime: metav1.NewTime(n.downAt)}}
		c.Nodes[n.name], c.Leases[n.name] = o, rec
	}
	for _, name := range s.names() {
		c.Replicas = append(c.Replicas, s.replicas[name].DeepCopy())
	}
	return c
}

// coordinate lets the coordinator take one look and do what follows, and returns whether there was anything. It may die at any point, and the
// world goes on meanwhile.
func (s *sim) coordinate() bool {
	c := s.cluster()
	s.unseen = false
	w := c.World(c.Volumes[0])
	before := w.Volume.DeepCopy()
	d := Plan(w)
	if !equality.Semantic.DeepEqual(before, w.Volume) {
		s.breach("the planner changed the world")
	}
	if s.mutants.decision != nil {
		s.mutants.decision(w, &d)
	}
	if s.chaos && s.chance(4) {
		s.deciding = true
		s.event() // between reading and writing
		s.deciding = false
	}
	if s.chaos && (s.mutants.noCAS || s.chance(3)) {
		s.runEngine()
	}
	if w.Volume.ResourceVersion != s.volume.ResourceVersion && !s.mutants.noCAS {
		return true
	}
	did := len(d.Actions) > 0
	if !equality.Semantic.DeepEqual(s.volume.Status, d.Status) {
		s.refereeStatus(w, d.Status)
		if d.Status.Generation < s.volume.Status.Generation {
			s.breach("the generation goes back from %d to %d: what the engine wrote is lost", s.volume.Status.Generation, d.Status.Generation)
		}
		was := s.volume.Status
		s.volume.Status = *d.Status.DeepCopy()
		s.touch(s.volume)
		s.logStatus(was, d.Status)
		did = true
	}
	for _, a := range d.Actions {
		if s.chaos && s.chance(20) {
			return true // it died
		}
		s.execute(a)
	}
	return did
}

func (s *sim) logStatus(was, is v1alpha1.VolumeStatus) {
	if was.Generation != is.Generation || !equality.Semantic.DeepEqual(was.Released, is.Released) {
		s.log("coordinator: generation %d, attached %q, rebuild %q, members %v, released %v", is.Generation, is.AttachedTo, is.RebuildOn, is.Members, is.Released)
	}
}

func (s *sim) execute(a Action) {
	switch a.Do {
	case CreateReplica:
		if s.replicas[a.Replica.Name] != nil {
			return
		}
		r := a.Replica.DeepCopy()
		r.UID, r.Generation, r.CreationTimestamp = types.UID(r.Name), 1, metav1.NewTime(s.now)
		s.touch(r)
		s.replicas[r.Name] = r
		s.log("create %s on %s for %q", r.Name, r.Spec.NodeName, r.Spec.Replaces)
		return
	}
	r := s.replicas[a.Replica.Name]
	if r == nil {
		return
	}
	switch a.Do {
	case SetEviction:
		if r.Spec.EvictionRequested == a.Eviction.Requested {
			s.breach("%s is written as it is", r.Name)
		}
		r.Spec.EvictionRequested = a.Eviction.Requested
		s.log("%s %s", a.Eviction.Event, r.Name)
	case RecordReplica:
		r.Status.HealthyAt, r.Status.FailedAt, r.Status.Conditions = a.Replica.Status.HealthyAt, a.Replica.Status.FailedAt, a.Replica.Status.Conditions
	case DeleteReplica:
		s.refereeDelete(r)
		at := metav1.NewTime(s.now)
		r.DeletionTimestamp = &at
		s.log("delete %s", r.Name)
	case ForgetReplica:
		s.refereeDelete(r)
		delete(s.replicas, r.Name)
		s.log("forget %s", r.Name)
		return
	}
	s.touch(r)
}

// machine lets a node look after its replicas.
func (s *sim) machine(n *simNode) {
	if !n.up {
		return
	}
	for _, name := range s.names() {
		r := s.replicas[name]
		if r.Spec.NodeName != n.name {
			continue
		}
		member := slices.Contains(s.volume.Status.Members, name)
		switch c := s.copies[name]; {
		case deleting(r) && !member && r.Status.State != v1alpha1.ReplicaRemoved:
			s.erase(name)
			r.Status.State = v1alpha1.ReplicaRemoved
		case deleting(r):
			continue
		case c == nil && r.Status.Created:
			r.Status.State = v1alpha1.ReplicaFailed
		case c == nil && n.broken:
			r.Status.State, r.Status.Message = v1alpha1.ReplicaPending, "it cannot be created"
		case c == nil && n.liveness == v1alpha1.Alive:
			s.copies[name] = &simCopy{node: n.name}
			r.Status.State, r.Status.Created, r.Status.Message = v1alpha1.ReplicaReady, true, ""
		default:
			continue
		}
		r.Status.NodeEpoch = n.epoch
		s.touch(r)
	}
}

// serves says whether an engine reaches a copy.
func (s *sim) serves(name string) bool {
	r := s.replicas[name]
	return r != nil && r.Status.State == v1alpha1.ReplicaReady && s.copies[name] != nil && s.node(r.Spec.NodeName).up
}

// runEngine lets the engine take one step, as VOLUME.md has it.
func (s *sim) runEngine() {
	v := &s.volume.Status
	at := s.volume.EngineNode()
	if s.engine != nil && (s.engine.node != at || !s.node(at).up || s.engine.generation != v.Generation || v.Engine == nil) {
		s.engine = nil // it was detached, if only for a moment
	}
	if at == "" || !s.node(at).up {
		return
	}
	if s.engine == nil {
		s.open(at)
		return
	}
	if s.drop() {
		return
	}
	if s.chaos && v.AttachedTo != "" && s.chance(5) {
		v.Engine.Clients = int32(s.rand.IntN(2))
		s.touch(s.volume)
	}
	s.build()
	if v.AttachedTo != "" && !slices.ContainsFunc(v.Members, func(m string) bool { return !s.serves(m) }) {
		s.acked++
		for _, m := range v.Members {
			if c := s.copies[m]; c.has == s.acked-1 { // a copy that missed a write never has all of them again by itself
				c.has = s.acked
			}
		}
	}
}

func (s *sim) open(at string) {
	v := &s.volume.Status
	reached := slices.DeleteFunc(slices.Clone(v.Members), func(m string) bool { return !s.serves(m) })
	if len(reached) == 0 {
		v.Engine = &v1alpha1.VolumeEngine{Node: at, WaitingFor: "no member answers"}
		return
	}
	v.Members = reached
	v.Generation++
	v.Engine = &v1alpha1.VolumeEngine{Node: at, Generation: v.Generation, Serving: v.AttachedTo != ""}
	s.engine = &simEngine{node: at, generation: v.Generation, building: map[string]int{}}
	s.touch(s.volume)
	s.log("engine on %s: generation %d, members %v", at, v.Generation, v.Members)
}

// drop takes members out that cannot be reached, or that were released, but never the last.
func (s *sim) drop() bool {
	v := &s.volume.Status
	for _, m := range v.Members {
		r, e := s.replicas[m], s.volume.ReleaseOf(m)
		gone := !s.serves(m)
		let := e != nil && (e.Reason != v1alpha1.ReleaseForDrain || r != nil && s.node(r.Spec.NodeName).liveness == v1alpha1.Stopping)
		others := slices.ContainsFunc(v.Members, func(o string) bool { return o != m && s.serves(o) })
		if (gone || let) && others {
			v.Members = slices.DeleteFunc(slices.Clone(v.Members), func(o string) bool { return o == m })
			v.Generation++
			s.engine.generation = v.Generation
			s.touch(s.volume)
			s.log("engine drops %s: generation %d, members %v", m, v.Generation, v.Members)
			return true
		}
	}
	return false
}

// build goes on with every replica that is no member.
func (s *sim) build() {
	v := &s.volume.Status
	if !slices.ContainsFunc(v.Members, s.serves) {
		return
	}
	for _, name := range s.names() {
		if slices.Contains(v.Members, name) || deleting(s.replicas[name]) || s.volume.ReleaseOf(name) != nil || !s.serves(name) {
			delete(s.engine.building, name)
			continue
		}
		s.engine.building[name]++
		if s.engine.building[name] < 3 {
			continue
		}
		delete(s.engine.building, name)
		s.copies[name].has = s.acked
		v.Members = append(slices.Clone(v.Members), name)
		slices.Sort(v.Members)
		v.Generation++
		s.engine.generation = v.Generation
		s.touch(s.volume)
		s.log("engine built %s: generation %d, members %v", name, v.Generation, v.Members)
		return
	}
}

// left counts what is left of engines and replicas on a node, as objects and the node itself have it.
func (s *sim) left(n *simNode) int64 {
	c := s.cluster()
	left := c.enginesOn(n.name).Count + c.replicasOn(n.name).Count
	if n.up {
		held, _ := host.CountReplicas(n.name, n.epoch, byUID(c.Volumes...), c.Replicas)
		left = max(left, int64(held))
		if s.engine != nil && s.engine.node == n.name {
			left++
		}
	}
	return left
}

// drainStep goes on with the drain, as package drain does.
func (s *sim) drainStep() {
	if s.slot == nil {
		return
	}
	n := s.node(s.slot.Node)
	switch {
	case s.drain.Status.Phase == v1alpha1.DrainCancelled:
		if n.up {
			n.epoch++
			n.liveness, n.toldToStop = v1alpha1.Alive, false
		}
		s.slot = nil
	case !n.up:
		if s.left(n) == 0 {
			s.log("drain of %s: the node is gone", n.name)
			s.slot = nil
		}
	case n.epoch > s.slot.NodeEpoch:
		s.slot.NodeEpoch, n.liveness = n.epoch, v1alpha1.Draining
	case s.drain.Status.Phase == v1alpha1.DrainDraining:
		n.liveness = v1alpha1.Draining
		if s.left(n) == 0 {
			s.drain.Status.Phase = v1alpha1.DrainStopping
			s.log("drain of %s: empty", n.name)
		}
	case !n.toldToStop && n.liveness != v1alpha1.Stopping:
		// The node is told in a write of its own. What it was let go with may have been taken back since.
		if s.left(n) == 0 {
			s.refereeLeave(n)
			n.toldToStop = true
			s.log("drain of %s: told to stop", n.name)
		}
	default:
		n.liveness = v1alpha1.Stopping
		if !n.waited && !s.chance(3) {
			return // for the engine to drop its replicas
		}
		n.up, n.released, n.downAt, n.toldToStop, n.waited = false, true, s.now, false, false
		s.slot = nil
		s.log("%s left", n.name)
	}
}

func (s *sim) startDrain(n *simNode) {
	if s.slot != nil || !n.up || n.liveness != v1alpha1.Alive {
		return
	}
	s.drains++
	uid := fmt.Sprintf("uid-d%d", s.drains)
	began := metav1.NewTime(s.now)
	s.slot = &v1alpha1.ActiveDrain{Name: uid, UID: uid, Node: n.name, NodeEpoch: n.epoch}
	s.drain = &v1alpha1.Drain{ObjectMeta: metav1.ObjectMeta{Name: uid, UID: types.UID(uid)}, Spec: v1alpha1.DrainSpec{NodeName: n.name}}
	s.drain.Status.Phase, s.drain.Status.StartedAt = v1alpha1.DrainDraining, &began
	s.log("drain %s", n.name)
}

func (s *sim) crash(n *simNode, released bool) {
	if !n.up || slices.IndexFunc(s.nodes, func(o *simNode) bool { return o != n && o.up }) < 0 {
		return
	}
	n.up, n.downAt, n.released, n.toldToStop, s.unseen = false, s.now, released, false, true
	s.log("%s is down", n.name)
}

func (s *sim) rejoin(n *simNode) {
	if !n.up {
		n.up, n.liveness, n.released = true, v1alpha1.Alive, false
		n.epoch++
		s.log("%s is back", n.name)
	}
}

// erase removes a directory.
func (s *sim) erase(name string) {
	s.refereeErase(name)
	delete(s.copies, name)
}

// event is one thing that people or chance do.
func (s *sim) event() {
	n := s.nodes[s.rand.IntN(len(s.nodes))]
	other := s.nodes[s.rand.IntN(len(s.nodes))]
	switch s.rand.IntN(24) {
	case 0, 1:
		n.cordoned, other.cordoned = true, other.cordoned || s.chance(2) // two at once
		s.log("cordon %s (%s: %v)", n.name, other.name, other.cordoned)
	case 2, 3, 4:
		n.cordoned = false
		s.log("uncordon %s", n.name)
	case 5, 6:
		s.startDrain(n)
	case 7:
		if s.slot != nil && s.drain.Status.Phase == v1alpha1.DrainDraining {
			s.drain.Status.Phase = v1alpha1.DrainCancelled
			s.log("drain cancelled")
		}
	case 8:
		if s.trouble {
			s.crash(n, s.chance(2))
		}
	case 9, 10, 11, 12:
		s.rejoin(n)
	case 13:
		// A directory is lost, and its node reports it. One that nobody knows of is a second failure, from which nothing protects.
		if names := s.names(); s.trouble && !s.deciding && len(names) > 0 {
			name := names[s.rand.IntN(len(names))]
			if r := s.replicas[name]; s.copies[name] != nil && s.node(r.Spec.NodeName).up && s.othersCounted(name) > 0 {
				delete(s.copies, name)
				s.unseen = true
				r.Status.State = v1alpha1.ReplicaFailed
				s.touch(r)
				s.log("the directory of %s is lost", name)
			}
		}
	case 14:
		if s.trouble {
			s.policy, s.unseen = policies[s.rand.IntN(len(policies))], true
			s.log("policy %s", s.policy)
		}
	case 15, 16:
		s.volume.Spec.AttachTo = n.name
		s.touch(s.volume)
	case 17:
		s.volume.Spec.AttachTo = ""
		s.touch(s.volume)
	case 18:
		n.asked = s.chance(3)
	case 19:
		if names := s.names(); s.trouble && len(names) > 0 && s.chance(3) { // a person removes a replica
			r := s.replicas[names[s.rand.IntN(len(names))]]
			if !deleting(r) {
				at := metav1.NewTime(s.now)
				r.DeletionTimestamp = &at
				s.touch(r)
				s.log("a person deletes %s", r.Name)
			}
		}
	case 20:
		n.broken = s.chance(2)
	}
}

// current counts the copies with every acknowledged write besides one, wherever they are.
func (s *sim) current(besides string) int {
	n := 0
	for name, c := range s.copies {
		if name != besides && c.has == s.acked && slices.Contains(s.volume.Status.Members, name) {
			n++
		}
	}
	return n
}

// othersCounted counts the current copies besides one that nobody lets go.
func (s *sim) othersCounted(besides string) int {
	n := 0
	for name, c := range s.copies {
		r := s.replicas[name]
		if name != besides && c.has == s.acked && slices.Contains(s.volume.Status.Members, name) && !deleting(r) && s.volume.ReleaseOf(name) == nil {
			n++
		}
	}
	return n
}

// step lets everybody take a turn.
func (s *sim) step() {
	if s.bound != nil {
		s.bound.Step()
	}
	s.now = s.now.Add(time.Duration(s.rand.IntN(10)) * time.Second)
	for _, n := range s.nodes {
		if !s.chaos || !s.chance(3) {
			s.machine(n)
		}
	}
	s.runEngine()
	s.drainStep()
	s.referee()
}

// calm brings everything back and lets it settle.
func (s *sim) calm() {
	s.chaos = false
	for _, n := range s.nodes {
		s.rejoin(n)
		n.cordoned, n.asked = false, false
		n.broken = n.broken && n == s.nodes[0] // which may stay so
	}
	if s.slot != nil && s.drain.Status.Phase == v1alpha1.DrainDraining {
		s.drain.Status.Phase = v1alpha1.DrainCancelled
	}
	s.settle(200, func() bool { return s.slot == nil && s.healthy() })
	for _, n := range s.nodes {
		s.rejoin(n)
	}
}

func (s *sim) settle(rounds int, done func() bool) bool {
	for range rounds {
		s.step()
		did := s.coordinate()
		if len(s.broken) > 0 {
			return false
		}
		if !did && done() {
			return true
		}
	}
	return false
}

func (s *sim) healthy() bool { return s.volume.Status.Robustness == v1alpha1.VolumeHealthy }

// tail is how a history ended: the replicas, the nodes, and the last things that happened.
func (s *sim) tail() string { return s.dump() + strings.Join(s.heard[max(0, len(s.heard)-80):], "\n") }

func (s *sim) dump() string {
	out := ""
	for _, name := range s.names() {
		r := s.replicas[name]
		out += fmt.Sprintf("%s on %s: state %q deleting %v evicting %v healthyAt %v failedAt %v replaces %q\n", name, r.Spec.NodeName, r.Status.State, deleting(r), r.Spec.EvictionRequested, r.Status.HealthyAt, r.Status.FailedAt, r.Spec.Replaces)
	}
	for _, n := range s.nodes {
		out += fmt.Sprintf("%+v\n", *n)
	}
	return out
}
