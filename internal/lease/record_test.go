package lease_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ebb-dev/ebb/internal/lease"
)

func TestNodesStayOutOfTheWayOfTheElection(t *testing.T) {
	if got := lease.NameOf("n1"); got != "node-n1" {
		t.Errorf("the Lease of n1 is called %s", got)
	}
	if node, ok := lease.NodeOf(&metav1.ObjectMeta{Name: "node-n1"}); !ok || node != "n1" {
		t.Errorf("node-n1 belongs to %q, %t", node, ok)
	}
	if _, ok := lease.NodeOf(&metav1.ObjectMeta{Name: lease.CoordinatorName}); ok {
		t.Error("the election's Lease is taken for a node's")
	}
}

func TestTheLeaseOfANodeWithALongNameNamesIt(t *testing.T) {
	for _, length := range []int{3, 63, 248, 249, 253} {
		node := strings.Repeat("a", length)
		l, _, err := lease.Take(nil, lease.Claimant{Node: node, Holder: "p"}, lease.DefaultTiming(), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := lease.NodeOf(l); !ok || got != node || len(l.Name) > 253 {
			t.Errorf("%d characters: the Lease %s belongs to %q, %t", length, l.Name, got, ok)
		}
		if r, err := lease.Read(l); err != nil || r.Node != node {
			t.Errorf("%d characters: %+v, %v", length, r, err)
		}
	}
	forged := &metav1.ObjectMeta{Name: "node-n1", Annotations: map[string]string{lease.NodeAnnotation: "n2"}}
	if node, ok := lease.NodeOf(forged); ok {
		t.Errorf("node-n1 is taken for the Lease of %s", node)
	}
}

func TestALeaseIsRead(t *testing.T) {
	cases := []struct {
		name string
		from object
		want lease.Record
	}{
		{"held", leaseOf("n1").held("p1", 7).fenced(5),
			lease.Record{Node: "n1", Version: "41", Holder: "p1", Epoch: 7, Fenced: 5, Duration: 10 * time.Second}},
		{"released", leaseOf("n1").released(7),
			lease.Record{Node: "n1", Version: "41", Epoch: 7, Duration: 10 * time.Second}},
		{"bare", leaseOf("n1"), lease.Record{Node: "n1", Version: "41"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := lease.Read(c.from.Lease)
			if err != nil || got != c.want {
				t.Errorf("%+v, %v\nwant %+v", got, err, c.want)
			}
			if got.Held() != (c.name == "held") {
				t.Errorf("held: %t", got.Held())
			}
		})
	}
}

// unreadable are Leases that nobody may decide on.
var unreadable = []struct {
	name string
	from object
	want string
}{
	{"the election's", rename(leaseOf("x").held("p1", 7), lease.CoordinatorName),
		"lease ebb-system/coordinator is not the lease of a node"},
	{"an epoch that is no number", leaseOf("n1").held("p1", 7).annotate(lease.EpochAnnotation, "seven"),
		`lease ebb-system/node-n1: annotation ebb.dev/epoch is "seven", not an epoch`},
	{"a negative mark", leaseOf("n1").held("p1", 7).annotate(lease.FencedAnnotation, "-1"),
		`lease ebb-system/node-n1: annotation ebb.dev/fenced-epoch is "-1", not an epoch`},
	{"an empty epoch", leaseOf("n1").held("p1", 7).annotate(lease.EpochAnnotation, ""),
		`lease ebb-system/node-n1: annotation ebb.dev/epoch is "", not an epoch`},
}

func rename(o object, name string) object {
	o.Name = name
	return o
}

func TestNoStepDecidesOnALeaseThatCannotBeRead(t *testing.T) {
	for _, c := range unreadable {
		steps := map[string]func(*coordinationv1.Lease) (*coordinationv1.Lease, error){
			"read": func(l *coordinationv1.Lease) (*coordinationv1.Lease, error) { _, err := lease.Read(l); return nil, err },
			"take": func(l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
				next, _, err := lease.Take(l, claimant("p1"), timing, wall)
				return next, err
			},
			"renew": func(l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
				return lease.Renew(l, "p1", 7, timing, wall)
			},
			"release": func(l *coordinationv1.Lease) (*coordinationv1.Lease, error) { return lease.Release(l, "p1", 7) },
			"fence":   func(l *coordinationv1.Lease) (*coordinationv1.Lease, error) { return lease.Fence(l, seen("n1", "41")) },
		}
		for step, do := range steps {
			t.Run(step+" "+c.name, func(t *testing.T) {
				next, err := do(c.from.Lease)
				if message(err) != c.want || next != nil {
					t.Errorf("%v, %v\nwant %s", next, err, c.want)
				}
			})
		}
	}
}

func TestAnEpochIsOverWhenItIsReleasedFencedOrFollowed(t *testing.T) {
	cases := []struct {
		name   string
		record lease.Record
		want   bool
	}{
		{"held in it", lease.Record{Holder: "p", Epoch: 7, Fenced: 6}, false},
		{"released", lease.Record{Epoch: 7}, true},
		{"fenced", lease.Record{Epoch: 7, Fenced: 7}, true},
		{"fenced, though a holder is named", lease.Record{Holder: "p", Epoch: 7, Fenced: 7}, true},
		{"followed", lease.Record{Holder: "p", Epoch: 8}, true},
		{"followed by one that was released", lease.Record{Epoch: 8}, true},
		{"not begun", lease.Record{Holder: "p", Epoch: 6}, false},
		{"not begun, nobody holds", lease.Record{Epoch: 6}, false},
	}
	for _, c := range cases {
		if got := c.record.Over(7); got != c.want {
			t.Errorf("%s: over is %t, want %t", c.name, got, c.want)
		}
	}
}

func claimant(holder string, dead ...string) lease.Claimant {
	return lease.Claimant{Node: "n1", Holder: holder, Dead: dead}
}

func TestTakingBeginsTheNextEpoch(t *testing.T) {
	cases := []struct {
		name     string
		current  object
		claimant lease.Claimant
		want     int64
	}{
		{"the first", object{}, claimant("p2"), 1},
		{"the first, but the Node remembers more", object{}, lease.Claimant{Node: "n1", Holder: "p2", Floor: 9}, 10},
		{"after a release", leaseOf("n1").released(7), claimant("p2"), 8},
		{"after a release, but the Node remembers more", leaseOf("n1").released(7), lease.Claimant{Node: "n1", Holder: "p2", Floor: 9}, 10},
		{"after a release, and the Node remembers less", leaseOf("n1").released(7), lease.Claimant{Node: "n1", Holder: "p2", Floor: 3}, 8},
		{"after a mark", leaseOf("n1").released(7).fenced(7), claimant("p2"), 8},
		{"above a mark that is above the epoch", leaseOf("n1").released(7).fenced(9), claimant("p2"), 10},
		{"from the dead", leaseOf("n1").held("p1", 7), claimant("p2", "p0", "p1"), 8},
		{"from ourselves", leaseOf("n1").held("p2", 7), claimant("p2"), 8},
		{"of a bare Lease", leaseOf("n1"), claimant("p2"), 1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			next, epoch, err := lease.Take(c.current.Lease, c.claimant, timing, wall)
			if err != nil {
				t.Fatal(err)
			}
			r, err := lease.Read(next)
			if err != nil {
				t.Fatal(err)
			}
			if epoch != c.want || r.Epoch != c.want || r.Holder != "p2" || r.Duration != timing.Lost || r.Over(epoch) {
				t.Errorf("epoch %d, record %+v, want epoch %d of p2", epoch, r, c.want)
			}
			wantVersion(t, c.current.Lease, next)
			if !next.Spec.AcquireTime.Time.Equal(wall) || !next.Spec.RenewTime.Time.Equal(wall) {
				t.Errorf("acquired %s, renewed %s", next.Spec.AcquireTime, next.Spec.RenewTime)
			}
		})
	}
}

func TestANewLeaseIsCreatedWhereLeasesLive(t *testing.T) {
	next, _, err := lease.Take(nil, claimant("p2"), timing, wall)
	if err != nil {
		t.Fatal(err)
	}
	if next.Namespace != "ebb-system" || next.Name != "node-n1" || next.ResourceVersion != "" {
		t.Errorf("%s/%s at version %q", next.Namespace, next.Name, next.ResourceVersion)
	}
}

func TestNobodyTakesALeaseFromAProcessThatMayLive(t *testing.T) {
	for _, c := range []lease.Claimant{claimant("p2"), claimant("p2", "p0"), claimant("p", "p")} {
		next, epoch, err := lease.Take(leaseOf("n1").held("p1", 7).Lease, c, timing, wall)
		if !errors.Is(err, lease.ErrHeld) || next != nil || epoch != 0 {
			t.Errorf("%+v took it: %v, %d, %v", c, next, epoch, err)
		}
		if want := "node n1: another process holds the lease: epoch 7 of p1"; message(err) != want {
			t.Errorf("got  %q\nwant %q", message(err), want)
		}
	}
}

func TestNobodyTakesALeaseWithoutAnIdentity(t *testing.T) {
	for _, current := range []object{{}, leaseOf("n1"), leaseOf("n1").released(7), leaseOf("n1").held("p1", 7), leaseOf("n2")} {
		wantRefused(t, current, claimant("", "", "p1"), "node n1: a lease cannot be taken without an identity")
	}
}

func TestNobodyTakesTheLeaseOfAnotherNode(t *testing.T) {
	for _, current := range []object{leaseOf("n2"), leaseOf("n2").released(7), leaseOf("n2").held("p1", 7), leaseOf("n2").held("p2", 7)} {
		wantRefused(t, current, claimant("p2", "p1"), "node n1 cannot take the lease of node n2")
	}
}

func wantRefused(t *testing.T, current object, c lease.Claimant, want string) {
	t.Helper()
	next, epoch, err := lease.Take(current.Lease, c, timing, wall)
	if next != nil || epoch != 0 || message(err) != want {
		t.Errorf("%+v: %v, %d\ngot  %q\nwant %q", current.Lease, next, epoch, message(err), want)
	}
	if errors.Is(err, lease.ErrHeld) {
		t.Error("it says that waiting would help")
	}
}

func TestRenewingChangesTheRenewTimeOnly(t *testing.T) {
	current := leaseOf("n1").held("p1", 7).fenced(6).renewedAt(wall).Lease
	later := wall.Add(2 * time.Second)
	next, err := lease.Renew(current, "p1", 7, timing, later)
	if err != nil {
		t.Fatal(err)
	}
	want := current.DeepCopy()
	micro := metav1.NewMicroTime(later)
	want.Spec.RenewTime = &micro
	if !reflect.DeepEqual(next, want) {
		t.Errorf("got  %+v\nwant %+v", next, want)
	}
}

// Others wait for as long as the Lease says, and its holder stops its work by its own timing.
func TestARenewalRestoresTheDurationThatItsHolderLivesBy(t *testing.T) {
	for _, seconds := range []int32{1, 3600} {
		next, err := lease.Renew(leaseOf("n1").held("p1", 7).duration(seconds).Lease, "p1", 7, timing, wall)
		if err != nil || *next.Spec.LeaseDurationSeconds != 10 {
			t.Errorf("somebody wrote %d s: %+v, %v", seconds, next.Spec, err)
		}
	}
}

func TestReleasingLeavesTheEpochAndNoHolder(t *testing.T) {
	current := leaseOf("n1").held("p1", 7).fenced(6).renewedAt(wall).Lease
	next, err := lease.Release(current, "p1", 7)
	if err != nil {
		t.Fatal(err)
	}
	want := current.DeepCopy()
	want.Spec.HolderIdentity = nil
	if !reflect.DeepEqual(next, want) {
		t.Errorf("got  %+v\nwant %+v", next, want)
	}
	if r, _ := lease.Read(next); !r.Over(7) || r.Fenced != 6 {
		t.Errorf("released, but %+v", r)
	}
}

func TestAnEpochThatIsNoLongerOursIsNeitherRenewedNorReleased(t *testing.T) {
	cases := []struct {
		name    string
		current object
		want    string
	}{
		{"another holder", leaseOf("n1").held("p2", 7),
			`node n1 epoch 7: the lease no longer belongs to this epoch: its holder is "p2", its epoch 7, its fenced epoch 0`},
		{"our own next epoch", leaseOf("n1").held("p1", 8),
			`node n1 epoch 7: the lease no longer belongs to this epoch: its holder is "p1", its epoch 8, its fenced epoch 0`},
		{"an earlier epoch", leaseOf("n1").held("p1", 6),
			`node n1 epoch 7: the lease no longer belongs to this epoch: its holder is "p1", its epoch 6, its fenced epoch 0`},
		{"released", leaseOf("n1").released(7),
			`node n1 epoch 7: the lease no longer belongs to this epoch: its holder is "", its epoch 7, its fenced epoch 0`},
		{"marked", leaseOf("n1").released(7).fenced(7),
			`node n1 epoch 7: the lease no longer belongs to this epoch: its holder is "", its epoch 7, its fenced epoch 7`},
		{"marked, though we are named", leaseOf("n1").held("p1", 7).fenced(7),
			`node n1 epoch 7: the lease no longer belongs to this epoch: its holder is "p1", its epoch 7, its fenced epoch 7`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			renewed, err := lease.Renew(c.current.Lease, "p1", 7, timing, wall)
			if renewed != nil || !errors.Is(err, lease.ErrNotOurs) || message(err) != c.want {
				t.Errorf("renewed: %v, %v\nwant %s", renewed, err, c.want)
			}
			released, err := lease.Release(c.current.Lease, "p1", 7)
			if released != nil || !errors.Is(err, lease.ErrNotOurs) || message(err) != c.want {
				t.Errorf("released: %v, %v\nwant %s", released, err, c.want)
			}
		})
	}
}
