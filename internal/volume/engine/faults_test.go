package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/volume/block"
	"github.com/ebb-dev/ebb/internal/volume/engine"
)

// Faults between two steps of which one would be right without the other.

// crash ends an engine as a kill of its process does: nothing that it asks for arrives any more.
func (b *bench) crash(stop func() error) {
	for _, m := range b.machines {
		m.set(func(m *machine) { m.cut = true })
	}
	_ = stop() // it cannot close the members
	for _, m := range b.machines {
		m.set(func(m *machine) { m.cut = false })
	}
}

// The machine of a member lost unflushed writes. While the others give them back, the engine dies. The next one must not take the member for one that
// has everything.
func TestAMemberWhoseMachineWasRestartedIsNoSourceAfterAResyncThatWasCutOff(t *testing.T) {
	b := newPoweredBench(t, "a", "b")
	e, stop := b.engine()
	for c := range int64(size / block.ChunkSize) {
		b.write(e, c*block.ChunkSize, 1, 64<<10)
	}
	b.crash(stop)
	b.losesPower(b.machines["a"]) // b's goes on
	var writes atomic.Int64
	b.machines["a"].set(func(m *machine) {
		m.on = func(o op) error {
			if (o.what == "write" || o.what == "zero") && writes.Add(1) > 1 {
				return fmt.Errorf("%w: cut", block.ErrUnreachable)
			}
			return nil
		}
	})
	e, stop = b.engine()
	e.SetWant(engine.Want{Build: []string{"a", "b"}})
	until(t, "the resync to be cut off", func() bool { return b.ended() || writes.Load() > 1 })
	b.crash(stop)
	b.machines["a"].set(func(m *machine) { m.on = nil })
	e, _ = b.engine()
	e.SetWant(engine.Want{Build: []string{"a", "b"}})
	until(t, "both to be members", func() bool { s := e.Status(); return s.Serving && len(s.Members) == 2 })
	for c := range int64(size / block.ChunkSize) {
		b.reads(e, c*block.ChunkSize, 1, 64<<10)
	}
	b.equal("a", "b")
}

// The last member loses unflushed writes with the memory of its machine. A replica that is being built has got them.
func TestAReplicaThatIsBuiltDoesNotKeepWhatTheLastMemberLost(t *testing.T) {
	b := newPoweredBench(t, "a", "b")
	e, _ := b.engine()
	b.write(e, 0, 1, 4096)
	b.machines["b"].set(func(m *machine) { m.cut = true })
	b.write(e, block.ChunkSize, 1, 4096)
	if err := e.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	copying, goOn := make(chan struct{}, 100), make(chan struct{})
	b.machines["b"].set(func(m *machine) {
		m.cut = false
		m.on = func(o op) error {
			if o.off == block.ChunkSize && o.what == "write" { // it has read it
				copying <- struct{}{}
				<-goOn
			}
			return nil
		}
	})
	e.SetWant(engine.Want{Build: []string{"a", "b"}})
	<-copying
	b.write(e, 4*block.ChunkSize, 2, 256<<10) // which b gets at once
	b.losesPower(b.machines["a"])
	until(t, "the engine to notice", func() bool {
		_ = e.ReadAt(t.Context(), make([]byte, 512), 0)
		return e.Status().Serving
	})
	close(goOn)
	until(t, "b to be a member", func() bool { return len(e.Status().Members) == 2 })
	if err := e.Flush(t.Context()); err == nil {
		t.Error("a flush does not say that writes were lost")
	}
	b.equal("a", "b")
}

// A write that fails on every member is done on a replica that is being built.
func TestAReplicaThatIsBuiltDoesNotKeepAWriteThatFailed(t *testing.T) {
	b := newBench(t, "a")
	e, stop := b.engine()
	b.write(e, 0, 1, 4096)
	b.write(e, 5*block.ChunkSize, 1, 4096)
	b.add("n")
	m := b.machines["n"]
	m.set(func(m *machine) {
		m.on = func(o op) error {
			if o.what == "write" && o.off == 5*block.ChunkSize {
				m.set(func(m *machine) { m.on = nil })
				until(t, "the first chunk to be copied", func() bool {
					p := make([]byte, 1)
					return m.store.ReadAt(t.Context(), m.store.State().Generation, p, 0) == nil && p[0] == 1
				})
				full := b.machines["a"]
				full.set(func(m *machine) { m.fail = block.ErrNoSpace })
				defer full.set(func(m *machine) { m.fail = nil })
				if err := e.WriteAt(context.Background(), fill(2, 4096), 0, false); !errors.Is(err, block.ErrNoSpace) {
					return fmt.Errorf("on a full disk: %w", err)
				}
			}
			return nil
		}
	})
	e.SetWant(engine.Want{Build: []string{"a", "n"}})
	until(t, "n to be a member", func() bool { return len(e.Status().Members) == 2 })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	b.equal("a", "n")
}

// A write that failed leaves chunks in which members may differ. The next engine makes them equal, also if this one closes in order.
func TestChunksOfAWriteThatFailedStayMarkedWhenTheEngineCloses(t *testing.T) {
	b := newBench(t, "a", "b")
	e, stop := b.engine()
	b.write(e, 0, 1, 8192)
	for name, m := range b.machines {
		m.set(func(m *machine) {
			m.on = func(o op) error {
				if o.what != "write" {
					return nil
				}
				if name == "a" { // a part of it got through
					if err := m.store.WriteAt(t.Context(), m.store.State().Generation, fill(2, 4096), 0, false); err != nil {
						return err
					}
				}
				return block.ErrNoSpace
			}
		})
	}
	if err := e.WriteAt(t.Context(), fill(2, 8192), 0, false); !errors.Is(err, block.ErrNoSpace) {
		t.Fatal(err)
	}
	for _, m := range b.machines {
		m.set(func(m *machine) { m.on = nil })
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	e, _ = b.engine()
	until(t, "the engine to serve", func() bool { return e.Status().Serving })
	b.equal("a", "b")
}

// A write that was acknowledged after the flush that precedes the clearing of marks keeps its mark, even while the coarse clock stands still.
func TestTheMarkOfAWriteThatWasNotFlushedStays(t *testing.T) {
	b := newBench(t, "a", "b")
	b.timing.ClearAfter = 2 * time.Millisecond // less than the coarse clock tells
	e, _ := b.engine()
	flushing, goOn := make(chan struct{}), make(chan struct{})
	var flushes atomic.Int64
	b.machines["b"].set(func(m *machine) {
		m.on = func(o op) error {
			if o.what == "flush" && flushes.Add(1) == 1 {
				flushing <- struct{}{}
				<-goOn
			}
			return nil
		}
	})
	b.write(e, 0, 1, 4096)
	<-flushing
	b.machines["b"].set(func(m *machine) { // what comes after this one is not flushed
		m.on = func(o op) error {
			if o.what == "flush" {
				return errors.New("no flush for now")
			}
			return nil
		}
	})
	b.write(e, 0, 2, 4096)
	a := b.machines["a"].store
	close(goOn)
	for range 100 {
		marked, err := a.Intent(t.Context(), a.State().Generation)
		if err != nil {
			t.Fatal(err)
		}
		if !marked.Has(0) {
			t.Fatal("the mark is gone")
		}
		time.Sleep(time.Millisecond)
	}
}

// A replica that gets writes while it is built must not hold them up when it cannot be reached any more.
func TestAReplicaThatIsBuiltAndDoesNotAnswerIsGivenUp(t *testing.T) {
	b := newBench(t, "a")
	b.timing.Stuck = time.Hour
	e, _ := b.engine()
	b.write(e, 0, 1, 4096)
	b.add("n")
	hangs := make(chan struct{})
	t.Cleanup(func() { close(hangs) })
	b.machines["n"].set(func(m *machine) { m.hangs = hangs })
	e.SetWant(engine.Want{Build: []string{"a", "n"}})
	until(t, "the rebuild", func() bool { s := e.Status(); return len(s.Rebuilds) == 1 && s.Rebuilds[0].Total > 0 })
	written := make(chan error, 1)
	go func() { written <- e.WriteAt(context.Background(), fill(2, 4096), block.ChunkSize, false) }()
	b.machines["n"].set(func(m *machine) { m.cut = true })
	select {
	case err := <-written:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(patience):
		t.Fatal("the write waits for a replica that does not answer")
	}
}

// A replica that is being built cannot be read from a member with a bad sector, but from another one.
func TestARebuildReadsFromAnotherMemberIfOneCannotBeRead(t *testing.T) {
	b := newBench(t, "a", "b")
	e, stop := b.engine()
	b.write(e, 0, 1, 4096)
	b.add("n")
	b.machines["a"].set(func(m *machine) {
		m.on = func(o op) error {
			if o.what == "read" {
				return errors.New("bad sector")
			}
			return nil
		}
	})
	e.SetWant(engine.Want{Build: []string{"n"}})
	until(t, "n to be a member", func() bool { return slices.Equal(e.Status().Members, []string{"b", "n"}) })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	b.equal("b", "n")
}

// A replica does not record that it is a member now: it is none, and its building has failed.
func TestAReplicaThatCannotRecordThatItIsAMemberIsBuiltAgain(t *testing.T) {
	b := newBench(t, "a")
	e, stop := b.engine()
	b.write(e, 0, 1, 4096)
	b.add("n")
	var commits atomic.Int64
	b.machines["n"].set(func(m *machine) {
		m.on = func(o op) error {
			if o.what == "commit" && commits.Add(1) == 3 { // the first two say that it is being built, and that it is complete
				return errors.New("an I/O error")
			}
			return nil
		}
	})
	e.SetWant(engine.Want{Build: []string{"a", "n"}})
	until(t, "the building to fail", func() bool {
		s := e.Status()
		return commits.Load() >= 3 && (len(s.Rebuilds) == 1 && s.Rebuilds[0].Error != "" || len(s.Members) == 2)
	})
	if s := e.Status(); len(s.Members) == 2 {
		t.Fatal("it was built again at once")
	}
	until(t, "n to be a member", func() bool { return len(e.Status().Members) == 2 })
	b.write(e, 0, 2, 4096)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	b.equal("a", "n")
}

// A released member stays while the one that should stay does not answer: it is the last good copy that can be reached.
func TestAReleasedMemberStaysWhileTheOthersDoNotAnswer(t *testing.T) {
	b := newBench(t, "a", "b")
	b.timing.Heartbeat, b.timing.Unanswered = time.Hour, 2*time.Hour // the engine does not notice by itself
	b.volume.released = map[string]bool{"a": true}
	e, _ := b.engine()
	b.write(e, 0, 1, 4096)
	b.machines["b"].set(func(m *machine) { m.cut = true })
	e.SetWant(engine.Want{Leave: map[string]bool{"a": false}})
	until(t, "a member to leave", func() bool { _, members := b.volume.now(); return len(members) == 1 })
	if _, members := b.volume.now(); !slices.Equal(members, []string{"a"}) {
		t.Fatalf("members are %v", members)
	}
	b.reads(e, 0, 1, 4096)
}

// A replica was closed and opened again by its node, as after a sync that failed.
func TestTheLastMemberIsReachedAgainWhenItsReplicaWasOpenedAnew(t *testing.T) {
	for _, local := range []bool{false, true} {
		b := newPoweredBench(t, "a")
		b.machines["a"].set(func(m *machine) { m.local = local })
		e, _ := b.engine()
		b.write(e, 0, 1, 4096)
		b.machines["a"].set(func(m *machine) {
			if err := m.store.Close(); err != nil {
				t.Fatal(err)
			}
			b.open(m)
		})
		b.reads(e, 0, 1, 4096)
		b.write(e, 0, 2, 4096)
	}
}

// A member does late what it was asked for over a connection that the engine has given up since.
func TestAWriteOfAConnectionThatWasGivenUpComesTooLate(t *testing.T) {
	b := newBench(t, "a")
	e, stop := b.engine()
	b.write(e, 0, 1, 4096)
	late, goOn, did := make(chan struct{}), make(chan struct{}), make(chan struct{})
	a := b.machines["a"]
	a.set(func(m *machine) {
		m.late = func(do func() error) error {
			m.set(func(m *machine) { m.late = nil })
			go func() {
				<-goOn
				_ = do()
				close(did)
			}()
			close(late)
			return fmt.Errorf("%w: the connection was lost", block.ErrUnreachable)
		}
	})
	b.write(e, 0, 2, 4096)
	<-late
	b.write(e, 0, 3, 4096)
	close(goOn)
	<-did
	b.reads(e, 0, 3, 4096)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}

// The engine dies while it makes a member equal to another one. What was flushed long ago is still on both, in the same chunks too.
func TestAResyncThatIsCutOffDestroysNothing(t *testing.T) {
	b := newBench(t, "a", "b")
	e, stop := b.engine()
	b.write(e, 0, 1, 64<<10)
	if err := e.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.write(e, 512<<10, 2, 4096)
	b.crash(stop)
	var changes atomic.Int64
	b.machines["b"].set(func(m *machine) {
		m.on = func(o op) error {
			if (o.what == "write" || o.what == "zero") && changes.Add(1) > 1 {
				b.volume.setAway(true) // the engine is dead
				for _, m := range b.machines {
					m.set(func(m *machine) { m.cut = true })
				}
				return fmt.Errorf("%w: cut", block.ErrUnreachable)
			}
			return nil
		}
	})
	_, stop = b.engine()
	until(t, "the resync", func() bool { return changes.Load() > 1 })
	_ = stop()
	b.volume.setAway(false)
	b.machines["b"].set(func(m *machine) { m.on, m.cut = nil, false })
	e, _ = b.engine() // which cannot reach a
	b.reads(e, 0, 1, 64<<10)
}

// A member whose disk is full cannot be made equal to the others: the volume opens without it.
func TestAVolumeIsOpenedWithoutAMemberThatCannotBeMadeEqual(t *testing.T) {
	for _, full := range []string{"a", "b"} {
		b := newBench(t, "a", "b")
		e, stop := b.engine()
		b.write(e, 0, 1, 4096)
		b.crash(stop)
		b.machines[full].set(func(m *machine) {
			m.on = func(o op) error {
				if full == "b" && o.what == "write" || full == "a" && o.what == "read" { // a is what is copied from
					return block.ErrNoSpace
				}
				return nil
			}
		})
		e, _ = b.engine()
		b.reads(e, 0, 1, 4096)
		if got := e.Status().Members; len(got) != 1 || got[0] == full {
			t.Errorf("%s cannot be used, members are %v", full, got)
		}
	}
}

// salvages makes one replica the only member, as a person does when no member can be reached any more.
func (b *bench) salvages(name string) {
	b.volume.mu.Lock()
	defer b.volume.mu.Unlock()
	for _, m := range b.machines {
		b.volume.generation = max(b.volume.generation, m.store.State().Generation)
	}
	b.volume.generation, b.volume.members = b.volume.generation+1, []string{name}
}

// A replica that left is salvaged. Another one, of which it knows what it had missed until then, went on without it since: in chunks that neither of
// them has marked.
func TestAReplicaThatWentOnWithoutTheSalvagedOneIsBuiltAnew(t *testing.T) {
	all := engine.Want{Build: []string{"a", "b", "c"}}
	const off = 5 * block.ChunkSize
	cut := func(b *bench, name string, cut bool) { b.machines[name].set(func(m *machine) { m.cut = cut }) }
	for name, goOn := range map[string]func(t *testing.T, b *bench, e *engine.Engine, stop func() error){
		"it came back while the salvaged one was away": func(t *testing.T, b *bench, e *engine.Engine, stop func() error) {
			cut(b, "a", true)
			b.write(e, 2*block.ChunkSize, 1, 4096)
			cut(b, "c", false)
			e.SetWant(engine.Want{Build: []string{"b", "c"}})
			until(t, "c to be a member", func() bool { return slices.Equal(e.Status().Members, []string{"b", "c"}) })
			b.write(e, off, 2, 4096)
			if err := stop(); err != nil {
				t.Fatal(err)
			}
		},
		"it was salvaged itself before": func(t *testing.T, b *bench, _ *engine.Engine, stop func() error) {
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			cut(b, "c", false)
			b.salvages("c")
			again, stopAgain := b.engine()
			b.write(again, off, 2, 4096)
			if err := stopAgain(); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "a", "b", "c")
			e, stop := b.engine()
			b.write(e, 0, 1, 4096)
			cut(b, "c", true)
			b.write(e, block.ChunkSize, 1, 4096)
			until(t, "c to leave", func() bool { return slices.Equal(e.Status().Members, []string{"a", "b"}) })
			goOn(t, b, e, stop)
			b.salvages("a")
			cut(b, "a", false)
			e, stop = b.engine()
			b.reads(e, off, 0, 4096)
			e.SetWant(all)
			until(t, "all to be members", func() bool { return len(e.Status().Members) == 3 })
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			b.equal("a", "b", "c")
		})
	}
}

// Over the life of an engine many replicas are lost for good, each of which is replaced by another one.
func TestAnEngineOutlivesAnyNumberOfReplicas(t *testing.T) {
	b := newBench(t, "a")
	const many = 40
	name := func(i int) string { return fmt.Sprintf("n%d", i) }
	for i := range many {
		b.add(name(i))
	}
	e, stop := b.engine()
	b.write(e, 0, 1, 4096)
	for i := range many {
		name := name(i)
		m := b.machines[name]
		e.SetWant(engine.Want{Build: []string{"a", name}})
		until(t, name+" to be a member", func() bool { return len(e.Status().Members) == 2 })
		m.set(func(m *machine) { m.cut = true })
		b.write(e, int64(i%8)*block.ChunkSize, byte(i), 4096)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}
