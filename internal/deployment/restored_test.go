package deployment_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/atomicfile"
)

// backup copies the store of a site. restore puts the copy in the place of the store, as people restore a backup: nobody tells the nodes.
func (s *site) backup() (restore func()) {
	s.t.Helper()
	store := filepath.Join(s.api.Dir.APIServer(), "etcd", "data")
	saved := filepath.Join(s.t.TempDir(), "data")
	s.offline(func() { s.run("cp", "-a", store, saved) })
	return func() {
		s.t.Helper()
		s.offline(func() {
			s.run("rm", "-r", store)
			s.run("cp", "-a", saved, store)
		})
	}
}

func (s *site) offline(do func()) {
	s.t.Helper()
	s.api.Stop()
	defer s.api.Start()
	do()
}

func (s *site) run(name string, args ...string) {
	s.t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		s.t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

// version is that of the store.
func (s *site) version() uint64 {
	s.t.Helper()
	var list v1alpha1.DeploymentList
	s.must(s.admin.List(context.Background(), &list, client.Limit(1)))
	v, err := strconv.ParseUint(list.ResourceVersion, 10, 64)
	s.must(err)
	return v
}

// growPast writes until the store has a newer version.
func (s *site) growPast(version uint64) {
	s.t.Helper()
	ctx := context.Background()
	c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: s.home, Name: "growth"}}
	s.must(s.admin.Create(ctx, c))
	for n := 0; s.version() <= version; n++ {
		for range 50 {
			n++
			c.Data = map[string]string{"n": strconv.Itoa(n)}
			s.must(s.admin.Update(ctx, c))
		}
	}
}

// files are those of a program of a site: in its directory, and kept.
func (m *host) files(name string) (here, kept []string) {
	m.t.Helper()
	for pattern, list := range map[string]*[]string{
		filepath.Join(m.programs.Dir, m.site.home, name, "out.log"):              &here,
		filepath.Join(m.programs.Dir+"-kept", m.site.home, name+"-*", "out.log"): &kept,
	} {
		found, err := filepath.Glob(pattern)
		m.site.must(err)
		*list = found
	}
	return here, kept
}

func (w *work) awaitGone() {
	w.site.t.Helper()
	until(w.site.t, w.key.Name+" to be gone", func() bool { _, err := w.read(); return apierrors.IsNotFound(err) })
}

// A store that was restored from a backup grows past the version that a node saw last. What was made after the backup is not known to it, and was
// deleted by nobody.
func TestFilesThatARestoredStoreDoesNotKnowAreKeptThoughItHasGrown(t *testing.T) {
	t.Parallel()
	s := newSiteAlone(t)
	m := s.host("n")
	older, deleted := s.deploy("older", addressed(m.name)), s.deploy("deleted", addressed(m.name))
	older.runsOn(m.name)
	deleted.runsOn(m.name)
	m.leave()
	deleted.delete()
	deleted.awaitGone()
	m.start()
	until(t, "the files of a program that was deleted to be removed", func() bool { here, _ := m.files("deleted"); return len(here) == 0 })
	if _, kept := m.files("deleted"); len(kept) > 0 {
		t.Errorf("the files of a program that was deleted while its node was down were kept: %v", kept)
	}
	m.leave()
	restore := s.backup()

	m.start()
	newer := s.deploy("newer", addressed(m.name))
	newer.runsOn(m.name)
	m.leave()
	seen := s.version()
	restore()
	s.growPast(seen)

	m.start()
	older.runsOn(m.name)
	until(t, "the files of the newer program to be moved", func() bool { here, _ := m.files("newer"); return len(here) == 0 })
	if _, kept := m.files("newer"); len(kept) != 1 {
		t.Fatalf("kept of a program that was made after the backup: %v", kept)
	}
	until(t, "the node to list what it keeps", func() bool {
		c := meta.FindStatusCondition(m.object().Status.Conditions, v1alpha1.NodeProgramFilesKept)
		return c != nil && c.Status == metav1.ConditionTrue && strings.Contains(c.Message, s.home+"/newer-")
	})

	// From here on the node has seen what the restored store has.
	m.leave()
	older.delete()
	older.awaitGone()
	m.start()
	until(t, "the files of the older program to be removed", func() bool { here, _ := m.files("older"); return len(here) == 0 })
	if _, kept := m.files("older"); len(kept) > 0 {
		t.Errorf("the files of a program that was deleted were kept: %v", kept)
	}
}

// The same while the node runs: to its watch, what the restored store does not have looks as if it was deleted. A program that is started
// before the node has looked writes a mark, which does not hide that the store went back.
func TestFilesAreKeptWhenTheStoreIsRestoredUnderARunningNode(t *testing.T) {
	t.Parallel()
	s := newSiteAlone(t)
	m := s.host("n")
	restore := s.backup()
	w := s.deploy("w", addressed(m.name))
	w.runsOn(m.name)
	restore()
	early := s.deploy("early", addressed(m.name))
	early.runsOn(m.name)
	until(t, "the files to be moved", func() bool { here, _ := m.files("w"); return len(here) == 0 })
	if _, kept := m.files("w"); len(kept) != 1 {
		t.Fatalf("kept of a program that was made after the backup: %v", kept)
	}

	// The node begins an epoch that knows what the restored store has. What is deleted there was deleted.
	until(t, "an epoch in the generation of the restored store", func() bool {
		e := m.node.Epoch()
		return e != nil && e.Generation == e.History.Generation()
	})
	m.awaitSettled()
	early.runsOn(m.name)
	early.delete()
	early.awaitGone()
	until(t, "the files of a deleted program to be removed", func() bool { here, _ := m.files("early"); return len(here) == 0 })
	if _, kept := m.files("early"); len(kept) > 0 {
		t.Errorf("the files of a program that was deleted were kept: %v", kept)
	}
}

// awaitSettled waits until the node has moved aside what the store does not know.
func (m *host) awaitSettled() {
	m.t.Helper()
	type remembered struct{ Generation int64 }
	read := func(path string) int64 {
		r, err := atomicfile.ReadJSON[remembered](os.ReadFile, path)
		m.site.must(err)
		if r == nil {
			return 0
		}
		return r.Generation
	}
	until(m.t, "the node to trust the store", func() bool {
		now := read(m.opts.Dir.Store())
		return now != 0 && now == read(m.programs.Dir+"-seen.json")
	})
}

// A person removes the file if it cannot be read, as the node's error says. The node does not know then what the store should have.
func TestFilesAreKeptWhenTheNodeForgotTheStore(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.host("n")
	w := s.deploy("w", addressed(m.name))
	w.runsOn(m.name)
	m.awaitSettled()
	m.leave()
	s.must(os.Remove(m.opts.Dir.Store()))
	w.delete()
	w.awaitGone()
	m.start()
	until(t, "the files to be moved", func() bool { here, _ := m.files("w"); return len(here) == 0 })
	if _, kept := m.files("w"); len(kept) != 1 {
		t.Errorf("kept of a program that may be newer than the store: %v", kept)
	}
}

// Whose home is in a directory is not known if its user.json cannot be read. That is in doubt until the directory is kept, and holds up no other.
func TestOneDirectoryThatCannotBeReadKeepsNoOthersInDoubt(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.host("n")
	w, other := s.deploy("w", addressed(m.name)), s.deploy("other", addressed(m.name))
	w.runsOn(m.name)
	other.runsOn(m.name)
	m.awaitSettled()
	m.leave()
	s.must(os.Remove(m.opts.Dir.Store()))
	dir := filepath.Join(m.programs.Dir, s.home, "w")
	s.must(os.WriteFile(filepath.Join(dir, "user.json"), []byte("{"), 0o600))
	m.start()
	m.awaitSettled()
	if n := m.log.said("could not look for what earlier programs of the same names left"); n != 1 {
		t.Errorf("the node said %d times that it could not read a file", n)
	}
	m.leave()
	for _, x := range []*work{w, other} {
		x.delete()
		x.awaitGone()
	}
	m.start()
	for name, want := range map[string]int{"w": 1, "other": 0} {
		until(t, "the files to be moved", func() bool { here, _ := m.files(name); return len(here) == 0 })
		if _, kept := m.files(name); len(kept) != want {
			t.Errorf("kept of %s: %v", name, kept)
		}
	}
}
