package deployment

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/ebb-dev/ebb/api/v1alpha1"
	"github.com/ebb-dev/ebb/internal/atomicfile"
	"github.com/ebb-dev/ebb/internal/shim"
)

// DefaultUIDs is the default range of the users of programs: numbers that Linux distributions do not use.
const DefaultUIDs = "2000000000-2000065535"

// nobodyAtAll is the text of no users and of no range.
const nobodyAtAll = "none"

const (
	firstUID = 1000        // the users of the system are below
	lastUID  = 1<<31 - 2   // some programs take larger ones for negative
	userName = "user.json" // in the directory of a program
)

// UIDs is a range of user ids. The zero value is none.
type UIDs struct{ First, Last uint32 }

// ParseUIDs parses FIRST-LAST, or none.
func ParseUIDs(text string) (UIDs, error) {
	if text == nobodyAtAll {
		return UIDs{}, nil
	}
	first, last, found := strings.Cut(text, "-")
	from, err1 := strconv.ParseUint(first, 10, 32)
	to, err2 := strconv.ParseUint(last, 10, 32)
	if !found || err1 != nil || err2 != nil || from < firstUID || to > lastUID || from > to {
		return UIDs{}, fmt.Errorf("program uids %q: use FIRST-LAST with numbers from %d to %d, such as %s, or %s", text, firstUID, lastUID, DefaultUIDs, nobodyAtAll)
	}
	return UIDs{uint32(from), uint32(to)}, nil
}

func (u UIDs) none() bool { return u == UIDs{} }

func (u UIDs) has(uid uint32) bool { return !u.none() && u.First <= uid && uid <= u.Last }

// pick returns a free id for an object: the same one for the same object, if nobody else has it, so that ids are reused late.
func (u UIDs) pick(object types.UID, taken map[uint32]bool) (uint32, error) {
	h := fnv.New64a()
	_, _ = h.Write([]byte(object))
	size := uint64(u.Last-u.First) + 1
	start := h.Sum64() % size
	for i := range size {
		if id := u.First + uint32((start+i)%size); !taken[id] {
			return id, nil
		}
	}
	return 0, fmt.Errorf("all %d user ids from %d to %d are taken: enlarge --program-uids", size, u.First, u.Last)
}

// Users are the users of the machine that programs may name. The zero Users are the node's own.
type Users struct {
	text  string
	names []string
}

// ParseUsers parses a list of users, separated by commas.
func ParseUsers(text string) (Users, error) {
	u := Users{text: text}
	if text == "" {
		text = v1alpha1.NodeUser
	}
	if text == nobodyAtAll {
		return u, nil
	}
	for name := range strings.SplitSeq(text, ",") {
		name = strings.TrimSpace(name)
		if name == "" || name == nobodyAtAll {
			return Users{}, fmt.Errorf("program users %q: separate names by commas, or use %s alone", text, nobodyAtAll)
		}
		u.names = append(u.names, name)
	}
	return u, nil
}

// Allow reports whether a program may run as a user. One of its own is always allowed.
func (u Users) Allow(name string) bool {
	if u.text == "" && name == v1alpha1.NodeUser {
		return true
	}
	return name == "" || slices.Contains(u.names, name) || slices.Contains(u.names, "*")
}

// String is the list as it was given.
func (u Users) String() string { return u.text }

// isolation decides as whom programs run on a node.
type isolation struct {
	uids UIDs
	root bool
}

// newIsolation finds out whether this process can run programs as other users, and why not if it cannot.
func newIsolation(uids UIDs) (isolation, error) {
	i := isolation{root: os.Geteuid() == 0}
	switch {
	case uids.none():
		return i, errors.New("it is turned off by --program-uids " + nobodyAtAll)
	case !i.root:
		return i, errors.New("the node does not run as root")
	}
	for _, path := range []string{"/proc/self/uid_map", "/proc/self/gid_map"} {
		if ok, err := mapped(path, uids); err != nil {
			return i, err
		} else if !ok {
			return i, fmt.Errorf("the node runs in a user namespace that does not have the ids %d to %d (%s)", uids.First, uids.Last, path)
		}
	}
	i.uids = uids
	return i, nil
}

// mapped reports whether the ids exist in the user namespace of this process.
func mapped(path string, u UIDs) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var inside, outside, size uint64
		if _, err := fmt.Sscan(lines.Text(), &inside, &outside, &size); err == nil && inside <= uint64(u.First) && uint64(u.Last) < inside+size {
			return true, nil
		}
	}
	return false, nil
}

// ownUser is the record of a program's user on the disk.
type ownUser struct {
	Object types.UID `json:"object"`
	UID    uint32    `json:"uid"`
}

// readOwnUser reads the user of a program; nil if it has none. One that cannot be read is an error: the program's files are that user's.
func readOwnUser(dir string) (*ownUser, error) {
	o, err := atomicfile.ReadJSON[ownUser](os.ReadFile, filepath.Join(dir, userName))
	if err == nil && o != nil && o.UID == 0 {
		err = fmt.Errorf("%s names no user", filepath.Join(dir, userName))
	}
	if err != nil {
		return nil, fmt.Errorf("the user of a program is not known: %w: write the owner of its directory home-… into the file, or remove both", err)
	}
	return o, nil
}

// runAs returns the user that a program runs as and the name of its home; nil for the node's own user.
func (r *Runtime) runAs(ctx context.Context, d *v1alpha1.Deployment, dir string) (*shim.User, string, error) {
	switch name := d.RunsAs(); {
	case name == v1alpha1.NodeUser || name == "" && r.isolation.uids.none():
		return nil, "", nil
	case name != "":
		u, err := lookup(name)
		if err != nil {
			return nil, "", err
		}
		if !r.isolation.root {
			if int(u.UID) == os.Geteuid() {
				return nil, "", nil
			}
			return nil, "", fmt.Errorf("user %q: only a node that runs as root can run programs as other users", name)
		}
		return u, home(u.UID), nil
	}
	uid, err := r.own(ctx, client.ObjectKeyFromObject(d), d.UID, dir)
	return &shim.User{UID: uid, GID: uid}, home(uid), err
}

// home is the name of the home of a user. Each has one of its own, so that no file ever changes hands.
func home[T uint32 | string](uid T) string { return fmt.Sprintf("home-%v", uid) }

// own returns the id of a program's own user. It is on the disk before anything runs as that user, and belongs to the program until its
// directory is removed.
func (r *Runtime) own(ctx context.Context, key types.NamespacedName, object types.UID, dir string) (uint32, error) {
	r.ownMu.Lock()
	defer r.ownMu.Unlock()
	mine, err := readOwnUser(dir)
	if err != nil {
		return 0, err
	}
	if mine != nil && mine.Object == object && r.isolation.uids.has(mine.UID) {
		r.ownsHome(key)
		return mine.UID, nil
	}
	if mine != nil && mine.Object != object { // an object of this name from before: nobody gets what it left
		if err := r.takeAway(ctx, key, filepath.Join(dir, home(mine.UID)), r.keepHome); err != nil {
			return 0, fmt.Errorf("remove what an earlier program of this name left: %w", err)
		}
	}
	taken := map[uint32]bool{}
	if err := r.keptUsers(taken); err != nil {
		return 0, err
	}
	err = r.eachDir(func(_ types.NamespacedName, other string) error {
		if other == dir {
			return nil
		}
		homes, err := fs.Glob(os.DirFS(other), home("*"))
		for _, name := range homes {
			if info, err := os.Lstat(filepath.Join(other, name)); err == nil { // or it was removed meanwhile
				if owner, ok := info.Sys().(*syscall.Stat_t); ok {
					taken[owner.Uid] = true
				}
			}
		}
		// One that cannot be read is an error of its own program only: it has a home, or has never run.
		if o, _ := readOwnUser(other); o != nil {
			taken[o.UID] = true
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	uid, err := r.isolation.uids.pick(object, taken)
	if err != nil {
		return 0, err
	}
	data, err := json.Marshal(ownUser{Object: object, UID: uid})
	if err != nil {
		return 0, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, err
	}
	return uid, atomicfile.WriteSecret(filepath.Join(dir, userName), data)
}

// clearFormer removes the directory of a program that an earlier object of the same name left, with its log and the homes of all users: nobody gets
// what it left. It is called when nothing runs there.
func (r *Runtime) clearFormer(ctx context.Context, key types.NamespacedName, object types.UID, dir string) error {
	st, err := shim.ReadState(dir)
	if err != nil || mayRun(dir) {
		return nil // no program has run there, or nobody can tell which; or it has to end first
	}
	if former, _ := parseInstance(st.Instance); former == "" || former == object {
		return nil
	}
	if err := r.takeAway(ctx, key, dir, r.keep); err != nil {
		return fmt.Errorf("remove what an earlier program of this name left: %w", err)
	}
	return nil
}

// takeAway removes a directory, or keeps it if the store is in doubt.
func (r *Runtime) takeAway(ctx context.Context, key types.NamespacedName, dir string, keep func(types.NamespacedName, string) error) error {
	doubted, err := r.inDoubt(ctx)
	if err != nil {
		return err
	}
	r.mu.Lock()
	doubted = doubted || r.isDoubtful(key)
	r.mu.Unlock()
	if !doubted {
		return r.throwAway(ctx, dir)
	}
	if err := keep(key, dir); err != nil {
		return err
	}
	r.ownsHome(key)
	return nil
}

// ownsHome records that no home of another program is left in the directory of a program. If that fails, more is kept than is needed.
func (r *Runtime) ownsHome(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.clearDoubt(key); err != nil {
		r.opts.Log.Warn("could not record that nothing is left of an earlier program of this name", "deployment", key.String(), "error", err)
	}
}

// lookup finds a user of the machine by name or number, with its groups.
func lookup(name string) (*shim.User, error) {
	u, err := user.Lookup(name)
	if number, e := strconv.ParseUint(name, 10, 32); e == nil {
		if u, err = user.LookupId(name); err != nil { // a number needs no entry
			return &shim.User{UID: uint32(number), GID: uint32(number)}, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("user %q does not exist on this node: create it or change spec.user", name)
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("user %q: %w", name, err)
	}
	found := &shim.User{UID: uint32(uid), GID: uint32(gid)}
	groups, err := u.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("groups of user %q: %w", name, err)
	}
	for _, g := range groups {
		if id, err := strconv.ParseUint(g, 10, 32); err == nil {
			found.Groups = append(found.Groups, uint32(id))
		}
	}
	return found, nil
}
