package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/volume/block"
	"github.com/ebb-dev/ebb/internal/volume/engine"
)

func TestWhatIsWrittenIsOnEveryMemberAndReadBack(t *testing.T) {
	b := newBench(t, "a", "b", "c")
	e, stop := b.engine()
	b.write(e, 4096, 7, 10000)
	b.reads(e, 4096, 7, 10000)
	if err := e.Zero(t.Context(), 5000, 100, block.Zero{Hole: true}); err != nil {
		t.Fatal(err)
	}
	b.reads(e, 5000, 0, 100)
	if err := e.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	b.equal("a", "b", "c")
	if _, err := e.Extents(t.Context(), 0, 4096); !errors.Is(err, block.ErrClosed) {
		t.Errorf("an engine that ended answers %v", err)
	}
}

// A client may zero gigabytes with one request. A disk on which zeros have to be written takes long for that, and hangs no more than one that
// is sent as much in writes.
func TestALongZeroReachesTheDisksInPieces(t *testing.T) {
	const piece, whole = 64 << 20, 200 << 20
	b := newBenchOf(t, whole, "a", "b")
	b.timing.Stuck, b.timing.Unanswered = time.Minute, time.Minute // a slow disk writes hundreds of MiB
	e, stop := b.engine()
	b.write(e, whole-512, 7, 512)
	for _, z := range []block.Zero{{Hole: true}, {FUA: true}} {
		b.write(e, 100<<20, 7, 512)
		for _, m := range b.machines {
			m.set(func(m *machine) { m.zeros = nil })
		}
		if err := e.Zero(t.Context(), 4096, whole-8192, z); err != nil {
			t.Fatal(err)
		}
		b.reads(e, 100<<20, 0, 512)
		for _, m := range b.machines {
			sum := int64(0)
			for _, n := range m.zeros {
				if sum += n; n > piece {
					t.Errorf("%+v: %d bytes were zeroed at once on %s", z, n, m.name)
				}
			}
			if sum != whole-8192 {
				t.Errorf("%+v: %d bytes were zeroed on %s, want %d", z, sum, m.name, whole-8192)
			}
		}
	}
	b.reads(e, whole-512, 7, 512)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}

func TestAMemberThatFailsIsGivenUpAndComesBackWithADelta(t *testing.T) {
	b := newBench(t, "a", "b", "c")
	e, stop := b.engine()
	b.write(e, 0, 1, 4096)
	b.machines["c"].set(func(m *machine) { m.cut = true })
	b.write(e, block.ChunkSize, 2, 4096)
	if _, members := b.volume.now(); !slices.Equal(members, []string{"a", "b"}) {
		t.Fatalf("a write was acknowledged with members %v recorded", members)
	}
	b.machines["c"].set(func(m *machine) { m.cut = false })
	e.SetWant(engine.Want{Build: []string{"a", "b", "c"}})
	total := int64(0)
	until(t, "c to be a member", func() bool {
		s := e.Status()
		for _, r := range s.Rebuilds {
			total = max(total, r.Total)
			if !r.Delta && r.Total > 0 {
				t.Fatal("everything is copied")
			}
		}
		return slices.Equal(s.Members, []string{"a", "b", "c"})
	})
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	b.equal("a", "b", "c")
}

// A member is given up while a write is under way and another replica is being built, which knows the next generation when the write reaches it.
func TestAReplicaThatIsBuiltGetsAWriteDuringWhichAMemberIsGivenUp(t *testing.T) {
	const off = 5 * block.ChunkSize // not among what c missed before
	b := newBench(t, "a", "b", "c")
	b.timing.Stuck = time.Minute
	e, stop := b.engine()
	b.write(e, 0, 1, 4096)
	b.machines["c"].set(func(m *machine) { m.cut = true })
	b.write(e, 0, 2, 4096)
	hangs := make(chan struct{})
	b.machines["c"].set(func(m *machine) { m.cut, m.hangs = false, hangs })
	e.SetWant(engine.Want{Build: []string{"a", "b", "c"}})
	until(t, "c to be built", func() bool {
		s := e.Status()
		return len(s.Rebuilds) == 1 && s.Rebuilds[0].Total > 0
	})
	b.machines["b"].set(func(m *machine) { m.hangs = hangs })
	written := make(chan error, 1)
	go func() { written <- e.WriteAt(context.Background(), fill(3, 4096), off, false) }()
	until(t, "the write to be under way", func() bool {
		a, p := b.machines["a"].store, make([]byte, 4096)
		return a.ReadAt(t.Context(), a.State().Generation, p, off) == nil && p[0] == 3
	})
	b.machines["b"].set(func(m *machine) { m.cut = true })
	until(t, "b to be given up", func() bool { return slices.Equal(e.Status().Members, []string{"a"}) })
	close(hangs)
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	until(t, "c to be a member", func() bool { return slices.Equal(e.Status().Members, []string{"a", "c"}) })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	b.equal("a", "c")
}

func TestANewReplicaIsBuiltWhileWritesGoOn(t *testing.T) {
	b := newBench(t, "a")
	e, stop := b.engine()
	for off := int64(0); off < size; off += 3 * 4096 {
		b.write(e, off, byte(off/4096), 4096)
	}
	b.add("n")
	e.SetWant(engine.Want{Build: []string{"a", "n"}})
	for i := 0; len(e.Status().Members) < 2 || i < 200; i++ {
		b.write(e, int64(i*7919*512)%(size-8192), byte(i), 5000)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	b.equal("a", "n")
	if got, err := b.machines["n"].store.Extents(t.Context(), 100, 0, size); err == nil && len(got) == 0 {
		t.Error("no extents")
	}
}

func TestWhileTheAPIIsAwayNothingIsAcknowledgedWithoutAMember(t *testing.T) {
	b := newBench(t, "a", "b")
	e, _ := b.engine()
	b.write(e, 0, 1, 512)
	b.volume.setAway(true)
	b.machines["b"].set(func(m *machine) { m.cut = true })
	done := make(chan error, 1)
	go func() { done <- e.WriteAt(context.Background(), fill(2, 512), 0, false) }()
	until(t, "I/O to wait", func() bool { return e.Status().WaitingFor != "" })
	select {
	case err := <-done:
		t.Fatalf("a write ended with %v while the API was away", err)
	case <-time.After(2 * quick().Unanswered):
	}
	b.volume.setAway(false)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if _, members := b.volume.now(); !slices.Equal(members, []string{"a"}) {
		t.Errorf("members are %v", members)
	}
}

func TestAnEngineThatWasReplacedReadsAndWritesNothing(t *testing.T) {
	b := newBench(t, "a", "b")
	old, _ := b.engine()
	b.write(old, 0, 1, 512)
	next, _ := b.engine()
	b.write(next, 0, 2, 512)
	if err := old.WriteAt(t.Context(), fill(3, 512), 0, false); !errors.Is(err, block.ErrClosed) {
		t.Errorf("the old engine writes: %v", err)
	}
	if err := old.ReadAt(t.Context(), make([]byte, 512), 0); !errors.Is(err, block.ErrClosed) {
		t.Errorf("the old engine reads: %v", err)
	}
	b.reads(next, 0, 2, 512)
}

func TestADiskThatIsFullIsGivenUpUnlessAllAre(t *testing.T) {
	b := newBench(t, "a", "b")
	e, _ := b.engine()
	b.write(e, 0, 1, 512)
	for _, m := range b.machines {
		m.set(func(m *machine) { m.fail = block.ErrNoSpace })
	}
	if err := e.WriteAt(t.Context(), fill(2, 512), 0, false); !errors.Is(err, block.ErrNoSpace) {
		t.Fatalf("with all disks full: %v", err)
	}
	if got := e.Status().Members; len(got) != 2 {
		t.Fatalf("members are %v", got)
	}
	b.machines["a"].set(func(m *machine) { m.fail = nil })
	b.write(e, 0, 3, 512)
	if got := e.Status().Members; !slices.Equal(got, []string{"a"}) {
		t.Errorf("members are %v", got)
	}
}

func TestALocalDiskThatHangsIsGivenUp(t *testing.T) {
	for name, do := range map[string]func(e *engine.Engine) error{
		"write": func(e *engine.Engine) error { return e.WriteAt(context.Background(), fill(2, 4096), 0, false) },
		"flush": func(e *engine.Engine) error { return e.Flush(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "a", "b")
			local := b.machines["a"]
			local.set(func(m *machine) { m.local = true })
			e, _ := b.engine()
			b.write(e, 0, 1, 4096)
			hangs := make(chan struct{})
			local.set(func(m *machine) { m.hangs = hangs })
			ended := make(chan error, 1)
			go func() { ended <- do(e) }()
			select {
			case err := <-ended:
				if err != nil {
					t.Fatal(err)
				}
			case <-time.After(patience):
				close(hangs)
				t.Fatal("the call waits for the disk")
			}
			if _, members := b.volume.now(); !slices.Equal(members, []string{"b"}) {
				t.Fatalf("members are %v", members)
			}
			b.write(e, block.ChunkSize, 3, 4096)
			b.reads(e, block.ChunkSize, 3, 4096)
			local.set(func(m *machine) { m.hangs = nil })
			close(hangs)
			e.SetWant(engine.Want{Build: []string{"a", "b"}})
			until(t, "a to be a member again", func() bool { return len(e.Status().Members) == 2 })
			b.equal("a", "b")
		})
	}
}

func TestALastDiskThatHangsIsWaitedFor(t *testing.T) {
	for _, members := range [][]string{{"a"}, {"a", "b"}} {
		t.Run(fmt.Sprint(len(members)), func(t *testing.T) {
			b := newBench(t, members...)
			b.machines["a"].set(func(m *machine) { m.local = true })
			e, _ := b.engine()
			b.write(e, 0, 1, 4096)
			hangs := make(chan struct{})
			for _, m := range b.machines {
				m.set(func(m *machine) { m.hangs = hangs })
			}
			ended := make(chan error, 1)
			go func() { ended <- e.WriteAt(context.Background(), fill(2, 4096), 0, false) }()
			select {
			case err := <-ended:
				t.Errorf("the write ended with %v", err)
			case <-time.After(2 * quick().Stuck):
			}
			for _, m := range b.machines {
				m.set(func(m *machine) { m.hangs = nil })
			}
			close(hangs)
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if got := e.Status().Members; !slices.Equal(got, members) {
				t.Errorf("members are %v", got)
			}
		})
	}
}

func TestAReplicaThatIsBuiltOnADiskThatHangsIsGivenUp(t *testing.T) {
	b := newBench(t, "a")
	e, _ := b.engine()
	b.write(e, 0, 1, 4096)
	b.add("n")
	hangs := make(chan struct{})
	b.machines["n"].set(func(m *machine) { m.hangs, m.local = hangs, true })
	t.Cleanup(func() { close(hangs) })
	e.SetWant(engine.Want{Build: []string{"a", "n"}})
	until(t, "the rebuild", func() bool { return len(e.Status().Rebuilds) > 0 })
	b.write(e, block.ChunkSize, 2, 4096)
	b.reads(e, block.ChunkSize, 2, 4096)
}

func TestTheLastMemberIsWaitedFor(t *testing.T) {
	b := newBench(t, "a")
	e, _ := b.engine()
	b.write(e, 0, 1, 512)
	b.machines["a"].set(func(m *machine) { m.cut = true })
	done := make(chan error, 1)
	go func() { done <- e.WriteAt(context.Background(), fill(2, 512), 0, false) }()
	until(t, "I/O to wait", func() bool { return e.Status().WaitingFor != "" })
	b.machines["a"].set(func(m *machine) { m.cut = false })
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	b.reads(e, 0, 2, 512)
}

func TestAVolumeIsNotOpenedIfAReplicaKnowsANewerGeneration(t *testing.T) {
	b := newBench(t, "a", "b")
	if err := b.machines["b"].store.Commit(t.Context(), block.Membership{Generation: 7, Members: []string{"b"}}); err != nil {
		t.Fatal(err)
	}
	for range 10 { // however often it is tried
		_, stop := b.engine()
		until(t, "the engine to end", func() bool { return b.ended() })
		if err := stop(); !errors.Is(err, engine.ErrStoreIsOlder) {
			t.Fatalf("the engine ended with %v", err)
		}
	}
	if generation, _ := b.volume.now(); generation != 1 {
		t.Errorf("the generation was raised to %d", generation)
	}
}

func TestAMemberLeavesOnlyWhileItIsReleased(t *testing.T) {
	b := newBench(t, "a", "b")
	e, _ := b.engine()
	b.write(e, 0, 1, 512)
	e.SetWant(engine.Want{Leave: map[string]bool{"b": false}}) // as seen a while ago: it was revoked since
	for i := range 20 {
		b.write(e, 0, byte(i), 512)
	}
	if got := e.Status().Members; len(got) != 2 {
		t.Fatalf("members are %v", got)
	}
	b.volume.mu.Lock()
	b.volume.released = map[string]bool{"b": true}
	b.volume.mu.Unlock()
	e.SetWant(engine.Want{Leave: map[string]bool{"b": false}})
	until(t, "b to leave", func() bool { return slices.Equal(e.Status().Members, []string{"a"}) })
	b.write(e, 0, 9, 512)
	b.reads(e, 0, 9, 512)
}

// A ping of the generation before is refused while the engine itself raises the generation; the engine learns of it afterwards.
func TestAPingThatItsOwnEngineOvertookEndsNothing(t *testing.T) {
	b := newBench(t, "a", "b", "c")
	b.timing.Unanswered = time.Minute
	pings := make(chan chan struct{})
	b.machines["a"].set(func(m *machine) { m.pings = pings })
	e, stop := b.engine()
	ping := <-pings // under way, with the first generation
	b.machines["c"].set(func(m *machine) { m.fail = errors.New("the disk is broken") })
	b.write(e, 0, 1, 512)
	until(t, "c to be given up", func() bool { return slices.Equal(e.Status().Members, []string{"a", "b"}) })
	ping <- struct{}{}
	ping = <-pings // refused, which the engine does not know yet
	ping <- struct{}{}
	until(t, "the next ping", func() bool {
		select {
		case ping = <-pings:
			return true
		default:
			return b.ended()
		}
	})
	if b.ended() {
		t.Fatalf("the engine ended though nobody replaced it: %v", stop())
	}
	b.machines["a"].set(func(m *machine) { m.pings = nil })
	ping <- struct{}{}
	(<-pings) <- struct{}{}
	b.write(e, 0, 2, 512)
	b.reads(e, 0, 2, 512)
}

// A disk hangs while data is copied to or from it. Clients that write to what is being copied wait until that is noticed, and no longer.
func TestACopyThatADiskHoldsUpHoldsUpNoWrite(t *testing.T) {
	for _, c := range []struct {
		name  string
		on    string // the replica whose disk hangs
		what  string // in which call
		local bool
		left  []string // the members then
	}{
		{"the replica that is built is on another node", "n", "write", false, []string{"a", "b"}},
		{"the replica that is built is on this node", "n", "write", true, []string{"a", "b"}},
		{"holes are made in the replica that is built", "n", "zero", false, []string{"a", "b"}},
		{"what is copied is on another node", "a", "read", false, []string{"b"}},
		{"what is copied is on this node", "a", "read", true, []string{"b"}},
		{"what is copied is looked for on this node", "a", "extents", true, []string{"b"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "a", "b")
			b.onlyDisksHang()
			b.add("n")
			b.machines[c.on].set(func(m *machine) { m.local = c.local })
			e, _ := b.engine()
			b.write(e, 0, 1, 4096)
			b.hangsIn(c.on, c.what)
			e.SetWant(engine.Want{Build: []string{"n"}})
			b.awaitHang(c.on)
			ended := make(chan error, 1)
			go func() {
				for chunk := range int64(size / block.ChunkSize) {
					if err := e.WriteAt(context.Background(), fill(2, 4096), chunk*block.ChunkSize, false); err != nil {
						ended <- err
						return
					}
				}
				ended <- nil
			}()
			select {
			case err := <-ended:
				if err != nil {
					t.Fatal(err)
				}
			case <-time.After(patience):
				t.Fatal("a write waits for the disk")
			}
			until(t, "the members to be recorded", func() bool {
				_, members := b.volume.now()
				return len(without(c.left, members)) == 0
			})
		})
	}
}

// without returns what is in all and not in some.
func without(all, some []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(some, s) })
}

// A read waits for a disk that hangs, and others do not wait for the read.
func TestAReadThatADiskHoldsUpHoldsUpNothingElse(t *testing.T) {
	for _, local := range []bool{true, false} {
		t.Run(fmt.Sprint("local=", local), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "a", "b", "c")
			b.onlyDisksHang()
			b.machines["a"].set(func(m *machine) { m.local = local })
			e, _ := b.engine()
			b.write(e, 0, 1, 4096)
			b.hangsIn("a", "read")
			read := make(chan error, 1)
			go func() { read <- e.ReadAt(context.Background(), make([]byte, 4096), 0) }()
			b.awaitHang("a")
			until(t, "a to be given up", func() bool { return slices.Equal(e.Status().Members, []string{"b", "c"}) })
			cleared := func() bool {
				s := b.machines["b"].store
				marked, err := s.Intent(t.Context(), s.State().Generation)
				return err == nil && !marked.Has(0)
			}
			until(t, "the mark to be cleared", cleared)
			b.write(e, 0, 2, 4096)
			b.reads(e, 0, 2, 4096)
			if err := e.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !local { // who waits for a connection learns that it is gone
				if err := <-read; err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// The disk hangs while a mark is cleared, when no client may write.
func TestADiskThatHangsWhileMarksAreClearedIsGivenUp(t *testing.T) {
	for _, local := range []bool{true, false} {
		t.Run(fmt.Sprint("local=", local), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, "a", "b")
			b.onlyDisksHang()
			b.machines["a"].set(func(m *machine) { m.local = local })
			e, _ := b.engine()
			b.hangsIn("a", "clear")
			b.write(e, 0, 1, 4096)
			b.awaitHang("a")
			b.write(e, 0, 2, 4096)
			if got := e.Status().Members; !slices.Equal(got, []string{"b"}) {
				t.Errorf("members are %v", got)
			}
		})
	}
}

// A member stops answering, or its disk does, while the volume is opened after a crash.
func TestAVolumeIsOpenedWithoutAMemberThatDoesNotAnswer(t *testing.T) {
	for _, what := range []string{"intent", "read", "extents", "write", "flush", "clear"} {
		for _, frozen := range []bool{false, true} {
			for _, local := range []bool{false, true} {
				if local && (frozen || what == "write") {
					continue
				}
				t.Run(fmt.Sprintf("%s frozen=%t local=%t", what, frozen, local), func(t *testing.T) {
					t.Parallel()
					b := newBench(t, "a", "b")
					b.machines["a"].set(func(m *machine) { m.local = local })
					if frozen {
						b.timing.Stuck = time.Hour
					}
					e, stop := b.engine()
					b.write(e, 0, 1, 4096)
					b.crash(stop)
					on := "a" // what is copied from
					if what == "write" {
						on = "b"
					}
					b.hangsIn(on, what)
					e, stop = b.engine()
					b.awaitHang(on)
					if frozen {
						b.machines[on].set(func(m *machine) { m.cut = true })
					}
					for !e.Status().Serving {
						if b.ended() { // its node opens the volume again
							_ = stop()
							e, stop = b.engine()
						}
						time.Sleep(time.Millisecond)
					}
					b.write(e, 0, 2, 4096)
					b.reads(e, 0, 2, 4096)
				})
			}
		}
	}
}
