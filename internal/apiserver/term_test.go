package apiserver_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/ebb-dev/ebb/internal/identity"
	"github.com/ebb-dev/ebb/internal/lease"
	"github.com/ebb-dev/ebb/internal/pki"
)

func TestACoordinatorWritesOnlyInItsTerm(t *testing.T) {
	s := api(t)
	admin := s.admin(t)
	name := fresh("n")
	admin.must(t, http.MethodPost, nodes, nodeObject(name))
	admin.must(t, http.MethodPost, leases, nodeLease(name, "p", 1, 0))
	elect(t, admin, "n1/1/a.2")
	touch := object{"metadata": object{"annotations": object{"touched": "yes"}}}
	for what, c := range map[string]struct{ term, want string }{
		"the current term": {"n1/1/a.2", ""},
		"a term before":    {"n1/1/a.1", `the coordinator's term "n1/1/a.1" has ended`},
		"a term to come":   {"n1/1/a.3", `the coordinator's term "n1/1/a.3" has ended`},
		"no term":          {"", `the coordinator's term "" has ended`},
	} {
		t.Run(what, func(t *testing.T) {
			coordinator, drain := s.coordinator(t, c.term), fresh("d")
			for _, w := range []struct {
				method, path, what string
				body               any
			}{
				{http.MethodPatch, nodes + "/" + name, `nodes.ebb.dev "` + name + `"`, touch},
				{http.MethodPatch, nodes + "/" + name + "/status", `nodes.ebb.dev "` + name + `"`, touch},
				{http.MethodPatch, leases + "/" + lease.NameOf(name), `leases.coordination.k8s.io "node-` + name + `"`, touch},
				{http.MethodPost, drains, `drains.ebb.dev "` + drain + `"`, drainObject(drain)},
				{http.MethodPatch, settings + "/cluster/status", `settings.ebb.dev "cluster"`, touch},
			} {
				a := coordinator.do(t, w.method, w.path, w.body)
				if told, want := a.header.Get(identity.TermOverHeader) != "", c.want != "" && c.term != ""; told != want {
					t.Errorf("%s %s: told that the term is over: %v, want %v", w.method, w.path, told, want)
				}
				if c.want != "" {
					refused(t, a, w.what+" is forbidden: "+c.want)
				} else if a.code/100 != 2 {
					t.Errorf("%s %s: %s", w.method, w.path, a)
				}
			}
			if a := coordinator.do(t, http.MethodGet, nodes, nil); a.code != http.StatusOK {
				t.Errorf("reading: %s", a)
			}
		})
	}
}

func TestNobodyHoldsATermWithoutTheElection(t *testing.T) {
	s := api(t)
	admin := s.admin(t)
	for what, prepare := range map[string]func(){
		"no lease of the election": func() { admin.do(t, http.MethodDelete, leases+"/coordinator", nil) },
		"nobody holds it":          func() { elect(t, admin, "") },
	} {
		t.Run(what, func(t *testing.T) {
			prepare()
			name := fresh("d")
			for _, term := range []string{"n1/1/a.1", ""} {
				a := s.coordinator(t, term).do(t, http.MethodPost, drains, drainObject(name))
				refused(t, a, fmt.Sprintf(`drains.ebb.dev %q is forbidden: the coordinator's term %q has ended`, name, term))
			}
		})
	}
}

func TestTheElectionItselfNeedsNoTerm(t *testing.T) {
	s := api(t)
	admin, candidate := s.admin(t), s.coordinator(t, "")
	admin.do(t, http.MethodDelete, leases+"/coordinator", nil)
	have := candidate.must(t, http.MethodPost, leases, leaseObject(lease.CoordinatorName, "n1/1/a.1")).object(t)
	have["spec"].(map[string]any)["holderIdentity"] = "n1/1/a.2"
	candidate.must(t, http.MethodPut, leases+"/coordinator", have)
	if a := candidate.do(t, http.MethodPut, leases+"/coordinator", have); a.code != http.StatusConflict {
		t.Errorf("with a resourceVersion that is past: %s, want 409", a)
	}
	t.Run("but is for its own node only", func(t *testing.T) {
		other := s.coordinator(t, "n2/1/a.1")
		held := admin.must(t, http.MethodGet, leases+"/coordinator", nil).object(t)
		for holder, want := range map[string]string{
			"n3/1/a.1": `the coordinator on node n2 may not set the holder of the election to "n3/1/a.1"; it was "n1/1/a.2"`,
			"":         `the coordinator on node n2 may not set the holder of the election to ""; it was "n1/1/a.2"`,
		} {
			held["spec"].(map[string]any)["holderIdentity"] = holder
			refused(t, other.do(t, http.MethodPut, leases+"/coordinator", held), `leases.coordination.k8s.io "coordinator" is forbidden: `+want)
		}
		held["spec"].(map[string]any)["holderIdentity"] = "n2/1/a.1"
		other.must(t, http.MethodPut, leases+"/coordinator", held)
		// A term of another node is not one to write for, also while it stands.
		thief := s.as(t, identity.Coordinator("n1")).saying(identity.TermHeader, "n2/1/a.1")
		name := fresh("d")
		refused(t, thief.do(t, http.MethodPost, drains, drainObject(name)),
			`drains.ebb.dev "`+name+`" is forbidden: the coordinator on node n1 may not write in the term "n2/1/a.1" of another node`)
	})
	t.Run("and only the election", func(t *testing.T) {
		name := fresh("n")
		refused(t, candidate.do(t, http.MethodPost, leases, nodeLease(name, "p", 1, 0)),
			`leases.coordination.k8s.io "node-`+name+`" is forbidden: the coordinator's term "" has ended`)
		refused(t, candidate.do(t, http.MethodPost, otherLeases, leaseObject(lease.CoordinatorName, "n1/1/a.1")),
			`leases.coordination.k8s.io "coordinator" is forbidden: the coordinator's term "" has ended`)
	})
}

// A coordinator may be frozen in the middle of a request: its headers are out, another is elected, then the rest follows.
func TestARequestThatArrivesInPiecesIsJudgedByTheTermAtItsEnd(t *testing.T) {
	s := api(t)
	admin := s.admin(t)
	elect(t, admin, "n1/1/a.1")
	name := fresh("d")
	body, err := json.Marshal(drainObject(name))
	if err != nil {
		t.Fatal(err)
	}
	conn := dial(t, s, identity.Coordinator("n1"))
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: ebb\r\n%s: n1/1/a.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		drains, identity.TermHeader, len(body), body[:10])
	elect(t, admin, "n2/1/a.1")
	if _, err := conn.Write(body[10:]); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	refused(t, answer{code: resp.StatusCode, body: said}, `drains.ebb.dev "`+name+`" is forbidden: the coordinator's term "n1/1/a.1" has ended`)
}

// dial opens a bare connection, to send a request by hand.
func dial(t *testing.T, s *running, user string) *tls.Conn {
	t.Helper()
	ca, err := pki.Load(s.dir.PKI())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.Issue(pki.Profile{User: user})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	trusted, err := os.ReadFile(s.dir.CA())
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(trusted)
	conn, err := tls.Dial("tcp", strings.TrimPrefix(s.url, "https://"), &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{cert}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}
