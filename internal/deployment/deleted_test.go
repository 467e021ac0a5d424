package deployment_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/deployment"
)

// doomed is a program that is deleted at some moment of its life, whatever that happens to be.
type doomed struct {
	name    string
	change  change
	after   time.Duration // from its making to what comes before its deletion
	before  func(*v1alpha1.Deployment)
	pause   time.Duration // from there to its deletion
	instant bool          // without waiting for it to be gone, it is made again once it can be
}

func newDoomed(r *rand.Rand, i int, nodes []string) doomed {
	d := doomed{
		name: fmt.Sprintf("d%02d", i), after: time.Duration(r.IntN(2500)) * time.Millisecond, pause: time.Duration(r.IntN(1200)) * time.Millisecond,
		change: []change{daemon, none, addressed(nodes[r.IntN(len(nodes))])}[r.IntN(3)], instant: r.IntN(4) == 0,
	}
	d.before = []change{none, none, disabled, revised, addressed(nodes[r.IntN(len(nodes))])}[r.IntN(5)]
	return d
}

func none(*v1alpha1.Deployment) {}

// live makes the program, changes it, and deletes it. What is refused because others write too is tried again by nobody: then the
// program is deleted as it is.
func (d doomed) live(s *site) error {
	ctx := context.Background()
	for range 2 {
		w := s.deploy(d.name, d.change, runs(slow, s.file(d.name)))
		time.Sleep(d.after)
		if o, err := w.read(); err == nil {
			d.before(o)
			_ = s.admin.Update(ctx, o) // a conflict leaves it as it is
		}
		time.Sleep(d.pause)
		o, err := w.read()
		if err == nil {
			err = s.admin.Delete(ctx, o)
		}
		if err != nil || !d.instant {
			return err
		}
		deadline := time.Now().Add(patience)
		for ; err == nil; _, err = w.read() {
			if time.Now().After(deadline) {
				return fmt.Errorf("%s is still there after %s", w.key, patience)
			}
			time.Sleep(glance)
		}
		if !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// left are the directories of a site's programs on its nodes.
func (s *site) left(hosts ...*host) (dirs []string) {
	s.t.Helper()
	for _, m := range hosts {
		names, err := os.ReadDir(filepath.Join(m.programs.Dir, s.home))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.t.Fatal(err)
		}
		for _, name := range names {
			dirs = append(dirs, m.name+"/"+name.Name())
		}
	}
	return dirs
}

// TestTheDirectoryOfADeletedProgramIsRemovedThoughSomethingStillWritesThere: a shim whose disk is slow records the end of its
// program a little late.
func TestTheDirectoryOfADeletedProgramIsRemovedThoughSomethingStillWritesThere(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.host("n")
	stays := func() bool { return m.log.said("could not remove the files of deleted programs") > 0 }
	for i := 0; i < 20 && !stays(); i++ {
		w := s.deploy(fmt.Sprintf("w%d", i), addressed(m.name))
		w.runsOn(m.name)
		var writers sync.WaitGroup
		for n := range 4 {
			dir, err := os.OpenRoot(filepath.Join(m.programs.Dir, s.home, w.key.Name))
			s.must(err)
			writers.Go(func() {
				defer dir.Close()
				for k := 0; !stays(); k++ {
					// It fails when the directory was removed all the same, between two files.
					if dir.WriteFile(fmt.Sprintf("late.%d.%d", n, k%4), nil, 0o600) != nil {
						return
					}
				}
			})
		}
		w.delete()
		writers.Wait()
	}
	if !stays() {
		t.Fatal("every directory could be removed at once: this shows nothing")
	}
	until(t, "the directories to be removed", func() bool {
		trash, err := os.ReadDir(m.programs.Dir + "-trash")
		return err == nil && len(trash) == 0 && len(s.left(m)) == 0
	})
}

// TestNothingOfADeletedProgramStaysWheneverItWasDeleted deletes programs while they are claimed, start, run, restart, move and
// stop, on a node that is called lost meanwhile, and on one that leaves and comes back. The program that nobody deleted keeps its
// directory.
func TestNothingOfADeletedProgramStaysWheneverItWasDeleted(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 5))
	s := newSite(t)
	a, b := s.host("a"), s.host("b")
	kept := s.deploy("kept", daemon)
	for _, m := range []*host{a, b} {
		kept.runsOn(m.name)
	}
	var wg sync.WaitGroup
	for i := range 10 {
		d := newDoomed(r, i, []string{a.name, b.name})
		wg.Go(func() {
			if err := d.live(s); err != nil && !apierrors.IsNotFound(err) {
				t.Errorf("%s: %v", d.name, err)
			}
		})
	}
	time.Sleep(time.Duration(r.IntN(2000)) * time.Millisecond)
	a.fenced()
	b.leave()
	wg.Wait()
	b.start()

	var objects v1alpha1.DeploymentList
	until(t, "all but one to be gone", func() bool {
		return s.admin.List(context.Background(), &objects, client.InNamespace(s.home)) == nil && len(objects.Items) == 1
	})
	want := []string{a.name + "/kept", b.name + "/kept"}
	until(t, "nothing of them to be left", func() bool { return slices.Equal(s.left(a, b), want) })
	for _, m := range []*host{a, b} {
		until(t, "nothing to be counted", func() bool {
			st := m.object().Status
			return st.Held[deployment.Name] == 0 && st.Staying[deployment.Name] == 1
		})
	}
}

// A node was down when a program was deleted and another one got its name.
func TestNothingOfAnEarlierProgramOfTheSameNameIsLeft(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.host("n")
	says := func(text string) change { return runs("echo " + text + "; exec sleep 100000") }
	log := filepath.Join(m.programs.Dir, s.home, "w", "out.log")
	has := func(text string) bool {
		data, err := os.ReadFile(log)
		return err == nil && strings.Contains(string(data), text)
	}
	w := s.deploy("w", addressed(m.name), says("former"))
	w.runsOn(m.name)
	until(t, "its log", func() bool { return has("former") })
	m.awaitSettled()
	m.leave()
	w.delete()
	w.awaitGone()
	w = s.deploy("w", addressed(m.name), says("latter"))
	m.start()
	w.runsOn(m.name)
	until(t, "the log of the other", func() bool { return has("latter") })
	if has("former") {
		t.Error("the log of the former program is there")
	}
	if _, err := os.Stat(m.programs.Dir + "-kept"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something was kept: %v", err)
	}
}

// The process of a node died when it had just spawned a shim, which has the lock of its directory and has written no state yet.
func TestAShimThatHasOnlyBegunToStartCountsAndKeepsItsDirectory(t *testing.T) {
	t.Parallel()
	const setLock = 37 // F_OFD_SETLK
	s := newSite(t)
	m := s.newHost("n")
	dir := filepath.Join(m.programs.Dir, s.home, "w")
	s.must(os.MkdirAll(dir, 0o700))
	lock, err := os.Create(filepath.Join(dir, "lock"))
	s.must(err)
	defer lock.Close()
	s.must(syscall.FcntlFlock(lock.Fd(), setLock, &syscall.Flock_t{Type: syscall.F_WRLCK}))
	m.start()
	until(t, "it to be counted", func() bool { return m.object().Status.Held[deployment.Name] == 1 })
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("its directory is gone: %v", err)
	}
	s.must(lock.Close())
	until(t, "nothing to be left of it", func() bool {
		return m.object().Status.Held[deployment.Name] == 0 && len(s.left(m)) == 0
	})
}
