package apiserver_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/pki"
)

// The table of access: who may do what to what. One letter is one verb that the identity may use:
//
//	g get   l list   w watch   c create   u update   p patch   U update status   P patch status   d delete   D delete collection
//
// "-" is a verb that is forbidden (403) and "." one that the kind does not have (404, 405): the term, leases, events, secrets and config
// maps have no status, and namespaces are deleted one by one.
// The node is n1; termOver is a coordinator that names a term which is not the current one.
var accessTable = []struct{ kind, admin, viewer, node, coordinator, termOver string }{
	{"node n1", "glwcupUPdD", "glw-------", "glwcupUP--", "glw-upUP--", "glw-------"},
	{"node n2", "glwcupUPdD", "glw-------", "glw-------", "glw-upUP--", "glw-------"},
	{"drain", "glwcupUPdD", "glw-------", "glw-------", "glwcupUPd-", "glw-------"},
	{"settings", "glwcupUP--", "glw-------", "glw-------", "glw---UP--", "glw-------"},
	{"term", "glwcup..dD", "glw-------", "glw-------", "glwcu-----", "glw-------"},
	{"lease of n1", "glwcup..--", "glw-------", "glwcup..--", "glwcup..--", "glw---..--"},
	{"lease of n2", "glwcup..--", "glw-------", "glw-------", "glwcup..--", "glw---..--"},
	{"lease of the election", "glwcup..dD", "glw-------", "glw-------", "glwcup..--", "glwcup..--"},
	{"lease elsewhere", "glwcup..dD", "glw-------", "glw-------", "glwcup..--", "glw---..--"},
	{"event", "glwcup..dD", "glw-------", "glwc-p-.--", "glwcup..d-", "glw---..--"},
	{"core event", "glwcup..dD", "glw-------", "glwc-p-.--", "glwcup..d-", "glw---..--"},
	{"secret", "glwcup..dD", "----------", "g---------", "----------", "----------"},
	{"config map", "glwcup..dD", "glw-------", "----------", "----------", "----------"},
	{"namespace", "glwcupUPd.", "glw-------", "----------", "----------", "----------"},
	{"definition", "glwcupUPdD", "glw-------", "----------", "----------", "----------"},
	{"work of n1", "glwcupUPdD", "glw-------", "glw---UP--", "glwcupUPd-", "glw-------"},
	{"work of n2", "glwcupUPdD", "glw-------", "glw-------", "glwcupUPd-", "glw-------"},
}

const verbs = "glwcupUPdD"

// subject is what a row of the table is tried on.
type subject struct {
	collection string
	name       string
	make       func(name string) object
	// fixed: the name is part of the case, so an object to be created must be gone first.
	fixed bool
	// before prepares what else the verb depends on.
	before func(t *testing.T, admin caller, verb byte)
}

func subjects() map[string]subject {
	leaseOf := func(string) object { return nodeLease("n1", "", 1, 0) }
	return map[string]subject{
		"node n1":               {nodes, "n1", nodeObject, true, standWhereStatusIsWritten},
		"node n2":               {nodes, "n2", nodeObject, true, nil},
		"drain":                 {drains, "access", drainObject, false, nil},
		"settings":              {settings, "cluster", func(name string) object { return ebb("Settings", name) }, true, nil},
		"term":                  {terms, "cluster", func(name string) object { return ebb("Term", name) }, true, nil},
		"lease of n1":           {leases, lease.NameOf("n1"), leaseOf, true, nil},
		"lease of n2":           {leases, lease.NameOf("n2"), func(string) object { return nodeLease("n2", "", 1, 0) }, true, nil},
		"lease of the election": {leases, lease.CoordinatorName, func(name string) object { return leaseObject(name, "n1/1/a.1") }, true, nil},
		"lease elsewhere":       {otherLeases, lease.NameOf("n1"), leaseOf, true, nil},
		"event":                 {events, "access", eventObject, false, nil},
		"core event":            {coreEvents, "access-core", coreEventObject, false, nil},
		"secret":                {secrets, "access", secretObject, false, nil},
		"config map":            {configMaps, "access", func(name string) object { return core("ConfigMap", name) }, false, nil},
		"namespace":             {namespaces, "access", func(name string) object { return core("Namespace", name) }, false, nil},
		"definition": {crds, "widgets.test.ebb.dev", func(name string) object {
			plural, group, _ := strings.Cut(name, ".")
			return definition(group, plural, strings.ToUpper(plural[:1])+plural[1:])
		}, false, nil},
		"work of n1": {crates, "access-1", func(name string) object {
			return ebb("Crate", name).with("spec", object{"replicas": 1, "node": "n1"})
		}, false, bindTo(crates + "/access-1")},
		"work of n2": {crates, "access-2", func(name string) object {
			return ebb("Crate", name).with("spec", object{"replicas": 1, "node": "n2"})
		}, false, bindTo(crates + "/access-2")},
	}
}

func TestEveryIdentityMayDoWhatTheTableSaysAndNoMore(t *testing.T) {
	s := api(t)
	admin := s.admin(t)
	installCrates(t, admin)
	elect(t, admin, "n1/1/a.1")
	all := subjects()
	viewer, node, unknown := s.viewer(t), s.node(t, "n1"), s.as(t, "mallory")
	coordinator, termOver := s.coordinator(t, "n1/1/a.1"), s.coordinator(t, "n1/1/a.0")
	for _, row := range accessTable {
		for _, who := range []struct {
			name string
			caller
			may string
		}{
			{"admin", admin, row.admin},
			{"viewer", viewer, row.viewer},
			{"node n1", node, row.node},
			{"coordinator", coordinator, row.coordinator},
			{"coordinator whose term is over", termOver, row.termOver},
			{"unknown user", unknown, "----------"},
		} {
			t.Run(row.kind+"/"+who.name, func(t *testing.T) {
				for i := range verbs {
					a := all[row.kind].try(t, admin, who.caller, verbs[i])
					if got, want := letter(verbs[i], a), who.may[i]; got != want {
						t.Errorf("%c: got %c, want %c: %s", verbs[i], got, want, a)
					}
				}
			})
		}
	}
}

func TestWithoutACertificateOfTheClusterEverythingIsUnauthorized(t *testing.T) {
	s := api(t)
	installCrates(t, s.admin(t))
	foreign, err := pki.LoadOrCreate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for who, stranger := range map[string]caller{
		"no credentials":              s.with(t, noCertificate),
		"a token":                     s.with(t, noCertificate).saying("Authorization", "Bearer admin"),
		"a name in a header":          s.with(t, noCertificate).saying("X-Remote-User", "ebb:admin").saying("X-Remote-Group", "ebb:admins"),
		"a certificate of another CA": s.signedBy(t, foreign, "ebb:admin", "ebb:admins"),
	} {
		t.Run(who, func(t *testing.T) {
			for kind, subject := range subjects() {
				for i := range verbs {
					if a := subject.request(t, stranger, verbs[i], subject.make(subject.name)); a.code != http.StatusUnauthorized {
						t.Errorf("%c of %s: %s, want 401", verbs[i], kind, a)
					}
				}
			}
			for _, path := range []string{"/", "/api", "/apis", "/version", "/openapi/v3", "/metrics",
				"/healthz/ping", "/readyz/etcd", "/livez/", "//readyz", "/readyz?verbose", "/readyz?verbose=1", "/livez?exclude=etcd", "/healthz?x"} {
				if a := stranger.do(t, http.MethodGet, path, nil); a.code != http.StatusUnauthorized {
					t.Errorf("GET %s: %s, want 401", path, a)
				}
			}
			for path := range map[string]bool{"/healthz": true, "/livez": true, "/readyz": true} {
				for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions} {
					if a := stranger.do(t, method, path, nil); a.code != http.StatusUnauthorized {
						t.Errorf("%s %s: %s, want 401", method, path, a)
					}
				}
			}
		})
	}
}

// A load balancer has no credentials; whoever shows wrong ones is told so.
func TestWithoutCredentialsProbesSayOkAndNothingElse(t *testing.T) {
	s := api(t)
	foreign, err := pki.LoadOrCreate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	anybody := s.with(t, noCertificate)
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		for method, want := range map[string]string{http.MethodGet: "ok", http.MethodHead: ""} {
			for name, who := range map[string]caller{"anybody": anybody, "a name in a header": anybody.saying("X-Remote-User", "ebb:admin")} {
				a := who.do(t, method, path, nil)
				if a.code != http.StatusOK || string(a.body) != want {
					t.Errorf("%s: %s %s: %d %q, want 200 %q", name, method, path, a.code, a.body, want)
				}
				for key := range a.header {
					if !slices.Contains([]string{"Cache-Control", "Content-Length", "Content-Type", "Date", "X-Content-Type-Options"}, key) {
						t.Errorf("%s %s has the header %s", method, path, key)
					}
				}
			}
		}
		for name, who := range map[string]caller{"a token": anybody.saying("Authorization", "Bearer admin"), "a certificate of another CA": s.signedBy(t, foreign, "ebb:admin", "ebb:admins")} {
			if a := who.do(t, http.MethodGet, path, nil); a.code != http.StatusUnauthorized {
				t.Errorf("%s: GET %s: %s, want 401", name, path, a)
			}
		}
		if a := s.viewer(t).do(t, http.MethodGet, path+"?verbose", nil); a.code != http.StatusOK || !strings.Contains(string(a.body), "[+]etcd ok\n") {
			t.Errorf("with credentials GET %s?verbose: %d %s", path, a.code, a.body)
		}
	}
}

// try does one verb as who, on an object that admin put there before, or took away where it is to be created.
func (s subject) try(t *testing.T, admin, who caller, verb byte) answer {
	t.Helper()
	if s.before != nil {
		s.present(t, admin)
		s.before(t, admin, verb)
	}
	if verb == 'c' {
		return s.request(t, who, verb, s.make(s.absent(t, admin)))
	}
	return s.request(t, who, verb, s.present(t, admin))
}

func (s subject) request(t *testing.T, who caller, verb byte, o object) answer {
	t.Helper()
	path := s.collection + "/" + s.name
	patch := object{"metadata": object{"annotations": object{"touched": fresh("by")}}}
	switch verb {
	case 'g':
		return who.do(t, http.MethodGet, path, nil)
	case 'l':
		return who.do(t, http.MethodGet, s.collection, nil)
	case 'w':
		return who.do(t, http.MethodGet, s.collection+"?watch=1", nil)
	case 'c':
		return who.do(t, http.MethodPost, s.collection, o)
	case 'u':
		return who.do(t, http.MethodPut, path, o)
	case 'p':
		return who.do(t, http.MethodPatch, path, patch)
	case 'U':
		return who.do(t, http.MethodPut, path+"/status", o)
	case 'P':
		return who.do(t, http.MethodPatch, path+"/status", patch)
	case 'd':
		return who.do(t, http.MethodDelete, path, nil)
	default:
		return who.do(t, http.MethodDelete, s.collection+"?fieldSelector=metadata.name="+s.name, nil)
	}
}

// standWhereStatusIsWritten: a node writes its status only in the epoch of its lease, and goes only without one.
func standWhereStatusIsWritten(t *testing.T, admin caller, verb byte) {
	t.Helper()
	release(t, admin, "n1")
	if verb == 'U' || verb == 'P' {
		admin.must(t, http.MethodPatch, nodes+"/n1/status", object{"status": object{"epoch": hold(t, admin, "n1", "p1")}})
	}
}

// bindTo lets n1 host the work, and the object name the epoch of n1's lease.
func bindTo(path string) func(t *testing.T, admin caller, verb byte) {
	return func(t *testing.T, admin caller, verb byte) {
		t.Helper()
		admin.do(t, http.MethodPost, nodes, nodeObject("n1"))
		epoch := hold(t, admin, "n1", "p1")
		admin.must(t, http.MethodPatch, nodes+"/n1/status", object{"status": object{"epoch": epoch, "held": object{"replicas": 0}}})
		admin.must(t, http.MethodPatch, path+"/status", object{"status": object{"nodeEpoch": epoch}})
	}
}

// present is the object as it is, made first if it is not there.
func (s subject) present(t *testing.T, admin caller) object {
	t.Helper()
	var have answer
	eventually(t, s.name+" is there", func() bool {
		if have = admin.do(t, http.MethodGet, s.collection+"/"+s.name, nil); have.code == http.StatusOK {
			_, leaving := have.object(t)["metadata"].(map[string]any)["deletionTimestamp"]
			return !leaving
		}
		admin.do(t, http.MethodPost, s.collection, s.make(s.name))
		return false
	})
	return have.object(t)
}

// absent is a name that can be created.
func (s subject) absent(t *testing.T, admin caller) string {
	t.Helper()
	if !s.fixed {
		first, rest, _ := strings.Cut(s.name, ".")
		return strings.TrimSuffix(strings.ReplaceAll(fresh(first), "-", "x")+"."+rest, ".")
	}
	admin.do(t, http.MethodDelete, s.collection+"/"+s.name, nil)
	return s.name
}

// letter is the table's sign for an answer. Settings are always there, so that they exist already is the answer to
// whoever may create them.
func letter(verb byte, a answer) byte {
	switch {
	case a.code/100 == 2, a.code == http.StatusConflict && verb == 'c':
		return verb
	case a.code == http.StatusForbidden:
		return '-'
	case a.code == http.StatusNotFound, a.code == http.StatusMethodNotAllowed:
		return '.'
	}
	return '?'
}
