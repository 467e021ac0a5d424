package httpapi

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/drain"
)

// blocking is an election in which a resignation lasts until it is let go or its request is gone.
func blocking() (e *election, begun, let chan struct{}) {
	begun, let = make(chan struct{}), make(chan struct{})
	e = &election{leading: true, resign: func(ctx context.Context) error {
		close(begun)
		select {
		case <-let:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}}
	return e, begun, let
}

// stopped waits until a server takes no connections any more.
func stopped(t *testing.T, s served) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		conn, err := net.Dial("tcp", s.url.Host)
		if err != nil {
			return
		}
		conn.Close()
		if time.Now().After(deadline) {
			t.Fatal("a server that was stopped still takes connections")
		}
		time.Sleep(time.Millisecond)
	}
}

func TestARequestUnderWayIsAnsweredBeforeTheServerStops(t *testing.T) {
	ca := newAuthority(t)
	e, begun, let := blocking()
	s := ca.serve(t, "n1", e)
	answers := make(chan answer, 1)
	go func() { answers <- ca.do(t, "POST", s, resign, nil) }()
	<-begun
	s.stop()
	stopped(t, s)
	select {
	case err := <-s.ended:
		t.Fatalf("stopped with a request under way: %v", err)
	default:
	}
	close(let)
	want(t, <-answers, http.StatusOK, `{"resigned":"n1"}`+"\n")
}

func TestARequestThatDoesNotEndDoesNotKeepTheServer(t *testing.T) {
	ca := newAuthority(t)
	e, begun, _ := blocking()
	s := ca.serve(t, "n1", e)
	failed := make(chan error, 1)
	go func() {
		r, err := http.NewRequest(http.MethodPost, s.url.String()+resign, nil)
		if err != nil {
			failed <- err
			return
		}
		r.Header.Set("Authorization", "Bearer "+token)
		resp, err := ca.client(t).Do(r)
		if err == nil {
			resp.Body.Close()
		}
		failed <- err
	}()
	<-begun
	began := time.Now()
	s.stop()
	err := <-s.ended
	s.ended <- err
	if took := time.Since(began); took < stopTimeout || err != nil {
		t.Errorf("stopped after %s: %v", took, err)
	}
	if err := <-failed; err == nil {
		t.Error("the request was answered")
	}
}

func TestAServerThatStoppedKeepsNoConnectionToTheCoordinator(t *testing.T) {
	ca, closed := newAuthority(t), make(chan struct{})
	leader := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	leader.TLS = &tls.Config{Certificates: []tls.Certificate{ca.certificate(t)}}
	leader.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateClosed {
			close(closed)
		}
	}
	leader.StartTLS()
	defer leader.Close()
	u, err := url.Parse(leader.URL)
	if err != nil {
		t.Fatal(err)
	}
	s := ca.serve(t, "n1", &election{}, at(served{url: u}))
	want(t, ca.do(t, "POST", s, resign, nil), http.StatusOK, "")
	select {
	case <-closed:
		t.Fatal("the connection was not kept for the next request")
	default:
	}
	s.stop()
	select {
	case <-closed:
	case <-time.After(20 * time.Second): // sooner than an idle connection ends by itself
		t.Error("the connection is still open")
	}
}

func TestAServerWithoutItsFilesSaysWhichIsMissing(t *testing.T) {
	_, err := New(Options{Node: "n2", CertFile: "nowhere"})
	if want := "certificate of node n2: open nowhere: no such file or directory"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// A coordinator that does not decide about a drain within the time of a request withdraws it, and only then answers.
func TestARequestIsForwardedForLongerThanTheCoordinatorTakes(t *testing.T) {
	newAuthority(t).serveWith(t, "n1", &election{}, func(s *Server) {
		longest := requestTimeout + drain.WithdrawTime
		if s.proxy.ResponseHeaderTimeout <= longest || s.http.WriteTimeout <= s.proxy.ResponseHeaderTimeout {
			t.Errorf("the coordinator takes up to %s, which is waited for for %s, and the answer may be sent for %s", longest, s.proxy.ResponseHeaderTimeout, s.http.WriteTimeout)
		}
	})
}
