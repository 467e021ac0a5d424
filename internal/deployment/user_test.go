package deployment_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/deployment"
	"github.com/ebb-dev/ebb/internal/testenv/need"
)

// An object from before runs on as the node's user, without a restart, and says so; when a person takes that away it gets its own.
func TestObjectsFromBeforeKeepTheNodesUser(t *testing.T) {
	c := newCluster("n1")
	fresh := program("fresh", addressed("n1"))
	if fresh.RunsAs() != "" {
		t.Errorf("a new object runs as %q", fresh.RunsAs())
	}
	observe := func(d *v1alpha1.Deployment) { d.Status, _ = deployment.Observe(c.World, d, time.Now()) }
	observe(fresh)
	if fresh.RunsAs() != "" || !fresh.Status.Isolated {
		t.Errorf("once seen, it runs as %q", fresh.RunsAs())
	}
	old := fresh.DeepCopy()
	old.Status.Isolated = false
	if old.RunsAs() != v1alpha1.NodeUser {
		t.Errorf("an object from before runs as %q", old.RunsAs())
	}
	before := deployment.Revision(old)
	old.Spec.User = v1alpha1.NodeUser // as the coordinator writes it
	if deployment.Revision(old) != before {
		t.Error("it would be restarted when that is written down")
	}
	observe(old)
	old.Spec.User = ""
	if old.RunsAs() != "" || deployment.Revision(old) == before {
		t.Errorf("without spec.user it runs as %q", old.RunsAs())
	}
}

func TestUsersAndRangesAreChecked(t *testing.T) {
	for _, text := range []string{"", "1", "5-", "-5", "0-10", "999-2000", "3000-2000", "1000-2147483647", "1000-4294967296", "a-b"} {
		if u, err := deployment.ParseUIDs(text); err == nil {
			t.Errorf("uids %q give %+v", text, u)
		}
	}
	for _, text := range []string{deployment.DefaultUIDs, "1000-1000", "none"} {
		if _, err := deployment.ParseUIDs(text); err != nil {
			t.Error(err)
		}
	}
	for _, c := range []struct {
		users, user string
		want        bool
	}{
		{"", "", true}, {"", "@node", true}, {"", "root", false}, {"none", "", true}, {"none", "@node", false}, {"none", "none", false},
		{"@node,postgres", "postgres", true}, {"@node, postgres", "postgres", true}, {"postgres", "@node", false}, {"postgres", "0", false}, {"*", "root", true}, {"*", "@node", true},
	} {
		u, err := deployment.ParseUsers(c.users)
		if err != nil {
			t.Fatal(err)
		}
		if got := u.Allow(c.user); got != c.want {
			t.Errorf("%q allows %q: %t", c.users, c.user, got)
		}
	}
	for _, text := range []string{",", "a,,b", "none,a"} {
		if _, err := deployment.ParseUsers(text); err == nil {
			t.Errorf("users %q are accepted", text)
		}
	}
}

// uidOf is the user of a process.
func uidOf(t *testing.T, pid int) uint32 {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(fmt.Sprintf("/proc/%d", pid), &st); err != nil {
		t.Fatal(err)
	}
	return st.Uid
}

func TestProgramsRunAsUsersOfTheirOwn(t *testing.T) {
	t.Parallel()
	need.Root(t, "run programs as other users")
	s := newSite(t)
	uids, err := deployment.ParseUIDs("2000000000-2000000003")
	s.must(err)
	nobody, err := user.Lookup("nobody")
	s.must(err)
	m := s.host("n", func(m *host) {
		m.programs.UIDs = uids
		users, err := deployment.ParseUsers("@node,nobody")
		s.must(err)
		m.programs.Trust = m.programs.Trust.As(users)
	})
	script := func(d *v1alpha1.Deployment) {
		d.Spec.Command, d.Spec.Args, d.Spec.WorkingDir = "/bin/sh", []string{"-c", "echo $HOME > where; exec sleep 100000"}, ""
	}
	as := func(name string) func(*v1alpha1.Deployment) {
		return func(d *v1alpha1.Deployment) { d.Spec.User = name }
	}
	a, b, named, nodes := s.deploy("a", script), s.deploy("b", daemon, script), s.deploy("named", script, as("nobody")), s.deploy("nodes", script, as(v1alpha1.NodeUser), func(d *v1alpha1.Deployment) { d.Spec.WorkingDir = s.dir })
	first := uidOf(t, a.runsOn(m.name))
	for name, c := range map[string]struct {
		pid  int
		good func(uint32) bool
	}{
		"b":     {b.runsOn(m.name), func(uid uint32) bool { return uid >= uids.First && uid <= uids.Last && uid != first }},
		"named": {named.runsOn(m.name), func(uid uint32) bool { return fmt.Sprint(uid) == nobody.Uid }},
		"nodes": {nodes.runsOn(m.name), func(uid uint32) bool { return uid == 0 }},
	} {
		if uid := uidOf(t, c.pid); !c.good(uid) {
			t.Errorf("%s runs as %d, a as %d", name, uid, first)
		}
	}
	dir := filepath.Join(m.programs.Dir, s.home, "a")
	where := filepath.Join(dir, fmt.Sprintf("home-%d", first), "where")
	until(t, "a to write into its home", func() bool {
		data, err := os.ReadFile(where)
		return err == nil && strings.HasPrefix(string(data), "/")
	})
	// Whatever the node keeps, nobody else can read.
	s.must(filepath.WalkDir(m.programs.Dir, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return nil // gone
		}
		if st := info.Sys().(*syscall.Stat_t); st.Uid == 0 && info.Mode().Perm()&0o077 != 0 && info.Mode()&os.ModeSymlink == 0 {
			t.Errorf("%s is open to others: %v", path, info.Mode())
		}
		return nil
	}))
	// A user that the node does not allow runs nothing, and the object says why.
	refused := s.deploy("refused", script, as("daemon"))
	refused.until("it to say why", func(d *v1alpha1.Deployment) bool {
		return reason(d, v1alpha1.DeploymentRunning) == v1alpha1.ReasonNoEligibleNode
	})
	// A restart keeps the user; a new object of the same name gets nothing of the old one.
	a.update(func(d *v1alpha1.Deployment) { d.Spec.Args = []string{"-c", "exec sleep 100001"} })
	a.until("it to restart", func(d *v1alpha1.Deployment) bool {
		i := d.Instance(m.name)
		return i != nil && i.State == v1alpha1.InstanceRunning && i.Revision == deployment.Revision(d)
	})
	if uid := uidOf(t, a.runsOn(m.name)); uid != first {
		t.Errorf("after a restart it runs as %d and not as %d", uid, first)
	}
	if _, err := os.Stat(where); err != nil {
		t.Errorf("a restart took its files: %v", err)
	}
	a.delete()
	until(t, "the object to be gone", func() bool { _, err := a.read(); return apierrors.IsNotFound(err) })
	again := s.deploy("a", script)
	if uid := uidOf(t, again.runsOn(m.name)); uid == 0 {
		t.Errorf("it runs as %d", uid)
	}
	homes, err := filepath.Glob(filepath.Join(dir, "home-*"))
	s.must(err)
	if len(homes) != 1 {
		t.Errorf("homes of a: %v", homes)
	}
}

// A store that was made anew may have the same names with other objects: what the homes of the former have is kept, whatever is in them.
func TestTheHomeOfAProgramOfAnotherStoreIsKept(t *testing.T) {
	need.Root(t, "run programs as other users")
	t.Parallel()
	s := newSite(t)
	uids, err := deployment.ParseUIDs("2000000010-2000000013")
	s.must(err)
	m := s.host("n", func(m *host) { m.programs.UIDs = uids })
	script := func(d *v1alpha1.Deployment) {
		d.Spec.Command, d.Spec.Args, d.Spec.WorkingDir = "/bin/sleep", []string{"100000"}, ""
	}
	w := s.deploy("w", addressed(m.name), script)
	w.runsOn(m.name)
	homes, err := filepath.Glob(filepath.Join(m.programs.Dir, s.home, "w", "home-*"))
	if err != nil || len(homes) != 1 {
		t.Fatalf("homes: %v, %v", homes, err)
	}
	s.must(os.WriteFile(filepath.Join(homes[0], "data"), []byte("rows"), 0o600))
	s.must(os.WriteFile(filepath.Join(homes[0], "user.json"), []byte("{}"), 0o600))
	m.stop()
	w.released()
	w.delete()
	until(t, "the object to be gone", func() bool { _, err := w.read(); return apierrors.IsNotFound(err) })
	w = s.deploy("w", addressed(m.name), script)
	s.must(os.WriteFile(m.programs.Dir+"-seen.json", []byte(`{"id": "another", "version": 1}`), 0o600))
	m.start()
	m.awaitReady()
	w.runsOn(m.name)
	kept, err := filepath.Glob(filepath.Join(m.programs.Dir+"-kept", s.home, "w-*", filepath.Base(homes[0]), "data"))
	if err != nil || len(kept) != 1 {
		t.Errorf("kept: %v, %v", kept, err)
	}
	s.deploy("v", addressed(m.name), script).runsOn(m.name) // what is kept keeps no program from starting
}

// Whether the home of an earlier program of the same name is removed or kept is known when the store has been asked. That it does not answer is
// no failure of the program, and no reason to take the store for another one.
func TestAProgramStartsLaterWhenTheStoreCannotBeAsked(t *testing.T) {
	need.Root(t, "run programs as other users")
	t.Parallel()
	s := newSite(t)
	uids, err := deployment.ParseUIDs("2000000020-2000000023")
	s.must(err)
	var armed, silent atomic.Bool
	m := s.host("n", func(m *host) {
		m.programs.UIDs = uids
		m.opts.Config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				own := strings.HasSuffix(r.URL.Path, "/nodes/"+m.name)
				if own && r.Method == http.MethodGet && silent.Load() {
					return nil, errors.New("the store does not answer")
				}
				resp, err := next.RoundTrip(r)
				if own && r.Method == http.MethodPut && armed.Load() {
					silent.Store(true) // the object is covered
				}
				return resp, err
			})
		})
	})
	script := func(d *v1alpha1.Deployment) {
		d.Spec.Command, d.Spec.Args, d.Spec.WorkingDir = "/bin/sleep", []string{"100000"}, ""
	}
	w := s.deploy("w", addressed(m.name), script)
	w.runsOn(m.name)
	m.awaitSettled()
	m.leave()
	w.delete()
	w.awaitGone()
	w = s.deploy("w", addressed(m.name), script, disabled)
	m.start()
	armed.Store(true)
	w.update(enabled)
	until(t, "the store to be asked in vain", func() bool { return m.log.said("could not take the step") > 0 })
	armed.Store(false)
	silent.Store(false)
	w.runsOn(m.name)
	d, err := w.read()
	s.must(err)
	if i := d.Instance(m.name); i.Restarts != 0 || i.LastExit != nil {
		t.Errorf("the program counts as failed: %+v", i)
	}
	kept, err := filepath.Glob(filepath.Join(m.programs.Dir+"-kept", s.home, "*"))
	if err != nil || len(kept) > 0 {
		t.Errorf("kept of a program that was deleted: %v, %v", kept, err)
	}
}
