package httpapi

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ebb-dev/ebb/internal/coordinator"
)

const resign = "/api/v2/owner/resign"

func TestOnlyTheRightTokenOpensTheAPI(t *testing.T) {
	ca, e := newAuthority(t), &election{leading: true}
	s := ca.serve(t, "n1", e)
	refusal := problem("ErrUnauthorized", "a valid bearer token is required: use the one in the file `token` of the data directory")
	for name, header := range map[string]string{
		"none":             "Authorization: ",
		"wrong":            "Authorization: Bearer 0123456789abcdee",
		"shorter":          "Authorization: Bearer 0123456789abcde",
		"longer":           "Authorization: Bearer 0123456789abcdef0",
		"empty":            "Authorization: Bearer ",
		"without a scheme": "Authorization: " + token,
		"basic":            "Authorization: Basic " + token,
	} {
		t.Run(name, func(t *testing.T) {
			for _, path := range []string{resign, "/api/v2/nothing", "/api/", "/api"} {
				a := ca.do(t, "POST", s, path, nil, header)
				want(t, a, http.StatusUnauthorized, refusal)
				if a.header.Get("WWW-Authenticate") != "Bearer" {
					t.Errorf("%s: WWW-Authenticate: %q", path, a.header.Get("WWW-Authenticate"))
				}
			}
		})
	}
	if n := e.resigned.Load(); n != 0 {
		t.Errorf("resigned %d times without the token", n)
	}
	want(t, ca.do(t, "POST", s, resign, nil), http.StatusOK, `{"resigned":"n1"}`+"\n")
}

func TestHealthReadinessAndMetricsNeedNoToken(t *testing.T) {
	ca := newAuthority(t)
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "ebb_test", Help: "Test."}))
	var why atomic.Value
	s := ca.serve(t, "n1", &election{}, func(o *Options) {
		o.Metrics = registry
		o.Ready = func() error {
			err, _ := why.Load().(error)
			return err
		}
	})
	none := "Authorization: "
	want(t, ca.do(t, "GET", s, "/healthz", nil, none), http.StatusOK, "ok")
	want(t, ca.do(t, "GET", s, "/readyz", nil, none), http.StatusOK, "ok")
	want(t, ca.do(t, "HEAD", s, "/readyz", nil, none), http.StatusOK, "")
	want(t, ca.do(t, "GET", s, "/readyz", nil), http.StatusOK, "ok")
	why.Store(errors.New("the lease is in doubt"))
	for _, nobody := range []string{none, "Authorization: Bearer wrong", "Authorization: " + token} {
		want(t, ca.do(t, "GET", s, "/readyz", nil, nobody), http.StatusServiceUnavailable, "not ok")
		want(t, ca.do(t, "GET", s, "/readyz?verbose", nil, nobody), http.StatusServiceUnavailable, "not ok")
		want(t, ca.do(t, "HEAD", s, "/readyz", nil, nobody), http.StatusServiceUnavailable, "")
	}
	want(t, ca.do(t, "GET", s, "/readyz", nil), http.StatusServiceUnavailable, "not ready: the lease is in doubt\n")
	want(t, ca.do(t, "GET", s, "/healthz", nil, none), http.StatusOK, "ok")
	want(t, ca.do(t, "GET", s, "/metrics", nil, none), http.StatusOK, "# HELP ebb_test Test.\n# TYPE ebb_test gauge\nebb_test 0\n")
}

func TestWhatIsNotThereIsAnsweredAlike(t *testing.T) {
	ca, e := newAuthority(t), &election{leading: true}
	s := ca.serve(t, "n1", e)
	for _, ask := range []struct{ method, path string }{
		{"POST", "/healthz"}, {"PUT", "/readyz"}, {"DELETE", "/metrics"}, {"GET", "/"}, {"GET", "/nothing"}, {"GET", "/healthz/x"}, {"GET", "/readyz/x"}, {"GET", "/livez"},
		{"GET", resign}, {"PUT", resign}, {"DELETE", resign}, {"POST", resign + "/"}, {"POST", "/api/v3/owner/resign"}, {"GET", "/api/"}, {"GET", "/api"},
	} {
		t.Run(ask.method+" "+ask.path, func(t *testing.T) {
			want(t, ca.do(t, ask.method, s, ask.path, nil), http.StatusNotFound, problem("ErrNotFound", "there is no "+ask.method+" "+ask.path))
		})
	}
	if n := e.resigned.Load(); n != 0 {
		t.Errorf("resigned %d times", n)
	}
}

func TestEveryEndOfAResignationHasAnAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		code int
		body string
	}{
		"resigned":            {nil, http.StatusOK, `{"resigned":"n1"}` + "\n"},
		"nobody to take over": {coordinator.ErrNoSuccessor, http.StatusConflict, problem("ErrNoSuccessor", "no other node can take over: none is Alive, Ready and not being drained")},
		"lost meanwhile":      {coordinator.ErrNotCoordinator, http.StatusServiceUnavailable, problem("ErrNoCoordinator", "this node is not the coordinator any more: try again")},
		"anything else":       {errors.New("the disk is on fire"), http.StatusInternalServerError, problem("ErrInternalServerError", "internal server error: the disk is on fire")},
	} {
		t.Run(name, func(t *testing.T) {
			ca := newAuthority(t)
			s := ca.serve(t, "n1", &election{leading: true, resign: func(context.Context) error { return c.err }})
			want(t, ca.do(t, "POST", s, resign, strings.NewReader("a body says nothing")), c.code, c.body)
		})
	}
}

func TestABodyThatIsTooLargeDoesNothing(t *testing.T) {
	ca, e := newAuthority(t), &election{leading: true}
	leader := ca.serve(t, "n1", e)
	follower := ca.serve(t, "n2", &election{}, at(leader))
	for _, s := range []served{leader, follower} {
		for name, body := range map[string]io.Reader{
			"with its length":    strings.NewReader(strings.Repeat("x", maxBody+1)),
			"without its length": io.MultiReader(strings.NewReader(strings.Repeat("x", maxBody+1))),
		} {
			t.Run(name, func(t *testing.T) {
				want(t, ca.do(t, "POST", s, resign, body), http.StatusRequestEntityTooLarge, problem("ErrBodyTooLarge", "the body is larger than 1048576 bytes"))
			})
		}
		if n := e.resigned.Swap(0); n != 0 {
			t.Errorf("resigned %d times", n)
		}
		want(t, ca.do(t, "POST", s, resign, strings.NewReader(strings.Repeat("x", maxBody))), http.StatusOK, `{"resigned":"n1"}`+"\n")
		e.resigned.Store(0)
	}
}

func TestTheCoordinatorAnswersForTheOthers(t *testing.T) {
	ca, e := newAuthority(t), &election{leading: true}
	leader := ca.serve(t, "n1", e)
	asked := 0
	follower := ca.serve(t, "n2", &election{}, func(o *Options) {
		o.Coordinator = func(context.Context) (*url.URL, error) {
			asked++
			return leader.url, nil
		}
	})
	want(t, ca.do(t, "POST", follower, resign, nil), http.StatusOK, `{"resigned":"n1"}`+"\n")
	if n := e.resigned.Load(); n != 1 || asked != 1 {
		t.Errorf("resigned %d times, looked for the coordinator %d times", n, asked)
	}
	e.resign = func(context.Context) error { return coordinator.ErrNoSuccessor }
	want(t, ca.do(t, "POST", follower, resign, nil), http.StatusConflict, problem("ErrNoSuccessor", coordinator.ErrNoSuccessor.Error()))
}

func TestARequestIsForwardedOnce(t *testing.T) {
	ca, e := newAuthority(t), &election{}
	former := ca.serve(t, "n1", e, func(o *Options) {
		o.Coordinator = func(context.Context) (*url.URL, error) {
			t.Error("a forwarded request was to be forwarded again")
			return nil, coordinator.ErrNone
		}
	})
	follower := ca.serve(t, "n2", &election{}, at(former))
	want(t, ca.do(t, "POST", follower, resign, nil), http.StatusServiceUnavailable,
		problem("ErrForwardingLoop", "node n2 forwarded this to node n1, which is not the coordinator any more: a new one is being elected, try again"))
	if n := e.resigned.Load(); n != 0 {
		t.Errorf("resigned %d times", n)
	}
}

func TestWithoutACoordinatorTheAnswerSaysSo(t *testing.T) {
	ca := newAuthority(t)
	t.Run("nobody leads", func(t *testing.T) {
		s := ca.serve(t, "n1", &election{})
		want(t, ca.do(t, "POST", s, resign, nil), http.StatusServiceUnavailable,
			problem("ErrNoCoordinator", "there is no coordinator: a new one is elected within the duration of a lease"))
	})
	t.Run("the coordinator is down", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		host := l.Addr().String()
		l.Close()
		s := ca.serve(t, "n1", &election{}, at(served{url: &url.URL{Scheme: "https", Host: host}}))
		want(t, ca.do(t, "POST", s, resign, nil), http.StatusServiceUnavailable,
			problem("ErrNoCoordinator", "the coordinator at "+host+" does not answer: dial tcp "+host+": connect: connection refused"))
	})
}

func TestTheTokenIsNotGivenToAStranger(t *testing.T) {
	stranger := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a stranger was asked") }))
	defer stranger.Close()
	u, err := url.Parse(stranger.URL)
	if err != nil {
		t.Fatal(err)
	}
	ca := newAuthority(t)
	s := ca.serve(t, "n1", &election{}, at(served{url: u}))
	want(t, ca.do(t, "POST", s, resign, nil), http.StatusServiceUnavailable,
		problem("ErrNoCoordinator", "the coordinator at "+u.Host+" does not answer: tls: failed to verify certificate: x509: certificate signed by unknown authority"))
}

func TestOnlyTLSIsServed(t *testing.T) {
	ca, e := newAuthority(t), &election{leading: true}
	s := ca.serve(t, "n1", e)
	conn, err := net.Dial("tcp", s.url.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "POST "+resign+" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+token+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusBadRequest || string(body) != "Client sent an HTTP request to an HTTPS server.\n" {
		t.Errorf("plain HTTP: %d %q", resp.StatusCode, body)
	}
	old := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}
	if c, err := tls.Dial("tcp", s.url.Host, old); err == nil {
		c.Close()
		t.Error("TLS 1.1 was served")
	}
	if n := e.resigned.Load(); n != 0 {
		t.Errorf("resigned %d times", n)
	}
}
