package httpapi

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ebb-dev/ebb/internal/deployment"
)

const helloLogs = "/api/v2/deployments/default/hello/logs"

// disk is where the programs of a test's node wrote.
type disk struct{ dir string }

func newDisk(t *testing.T) disk { return disk{t.TempDir()} }

func (d disk) options(o *Options) { o.Logs = deployment.Logs{Dir: d.dir} }

// write appends to a file of the log of default/hello.
func (d disk) write(t *testing.T, file, text string) {
	t.Helper()
	dir := filepath.Join(d.dir, "default", "hello")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

func TestANodeAnswersWithTheLogOnItsOwnDisk(t *testing.T) {
	ca, d := newAuthority(t), newDisk(t)
	s := ca.serve(t, "n1", &election{}, d.options)
	d.write(t, "out.log.1", "1\n2\n")
	d.write(t, "out.log", "3\n4\n")
	// What must not be reached from the programs' directory.
	if err := os.WriteFile(filepath.Join(d.dir, "out.log"), []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const label = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character " +
		"(e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
	const subdomain = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character " +
		"(e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
	bad := func(message string) string { return problem(CodeBadRequest, message) }
	for _, c := range []struct {
		path string
		code int
		body string
	}{
		{helloLogs, 200, "1\n2\n3\n4\n"},
		{helloLogs + "?follow=false", 200, "1\n2\n3\n4\n"},
		{helloLogs + "?tail=3", 200, "2\n3\n4\n"},
		{helloLogs + "?tail=0", 200, ""},
		{"/api/v2/deployments/default/other/logs", 404, problem(CodeLogNotFound, "node n1 has no log of default/other: `ebb status deployments` shows where it runs")},
		{helloLogs + "?tail=-1", 400, bad(`tail \"-1\": use a number of lines, 0 or more; without it the whole log is sent`)},
		{helloLogs + "?tail=", 400, bad(`tail \"\": use a number of lines, 0 or more; without it the whole log is sent`)},
		{helloLogs + "?tail=1e3", 400, bad(`tail \"1e3\": use a number of lines, 0 or more; without it the whole log is sent`)},
		{helloLogs + "?follow=maybe", 400, bad(`follow \"maybe\": use true or false`)},
		{"/api/v2/deployments/Default/hello/logs", 400, bad(`namespace \"Default\": ` + label)},
		{"/api/v2/deployments/default/..%2F..%2Fx/logs", 400, bad(`name \"../../x\": ` + subdomain)},
		{"/api/v2/deployments/%2E%2E/hello/logs", 400, bad(`namespace \"..\": ` + label)},
		{"/api/v2/deployments/default/%2E%2E/logs", 400, bad(`name \"..\": ` + subdomain)},
		{"/api/v2/deployments/default/hello%00/logs", 400, bad(`name \"hello\\x00\": ` + subdomain)},
	} {
		got := ca.do(t, "GET", s, c.path, nil)
		if c.code == 200 && got.header.Get("Content-Type") != "text/plain; charset=utf-8" {
			t.Errorf("GET %s: content type %q", c.path, got.header.Get("Content-Type"))
		}
		if got.code != c.code || got.body != c.body {
			t.Errorf("GET %s:\n got %d %q\nwant %d %q", c.path, got.code, got.body, c.code, c.body)
		}
	}
	want(t, ca.do(t, "GET", s, helloLogs, nil, "Authorization: Bearer wrong"), http.StatusUnauthorized,
		problem(CodeUnauthorized, "a valid bearer token is required: use the one in the file `token` of the data directory"))
	want(t, ca.do(t, "HEAD", s, helloLogs+"?follow=true", nil), http.StatusOK, "")
}

// follower reads a log as it comes.
type follower struct {
	t      *testing.T
	body   io.ReadCloser
	lines  *bufio.Reader
	cancel context.CancelFunc
	proto  string
}

func (a authority) follow(t *testing.T, to served, version2 bool) *follower {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, to.url.String()+helloLogs+"?follow=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	client := a.client(t)
	transport := client.Transport.(*http.Transport)
	transport.ForceAttemptHTTP2, transport.DisableKeepAlives = version2, false
	t.Cleanup(transport.CloseIdleConnections)
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	return &follower{t: t, body: resp.Body, lines: bufio.NewReader(resp.Body), cancel: cancel, proto: resp.Proto}
}

func (f *follower) wants(line string) {
	f.t.Helper()
	if got, err := f.lines.ReadString('\n'); err != nil || got != line {
		f.t.Fatalf("got %q, %v; want %q", got, err, line)
	}
}

// A server whose limits for short answers are long past goes on, whether there was anything to say meanwhile or not.
func TestAFollowedLogOutlivesTheServersLimits(t *testing.T) {
	for proto, version2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2.0": true} {
		t.Run(proto, func(t *testing.T) {
			ca, d := newAuthority(t), newDisk(t)
			const limit = 500 * time.Millisecond
			s := ca.serveWith(t, "n1", &election{}, func(s *Server) {
				s.http.ReadTimeout, s.http.WriteTimeout = limit, limit
			}, d.options)
			d.write(t, "out.log", "1\n")
			f := ca.follow(t, s, version2)
			if f.proto != proto {
				t.Fatalf("spoken: %s", f.proto)
			}
			f.wants("1\n")
			for range 3 {
				time.Sleep(2 * limit) // not to synchronise: the limits have to pass
				d.write(t, "out.log", "more\n")
				f.wants("more\n")
			}
		})
	}
}

func TestAFollowedLogEndsWhenTheServerStops(t *testing.T) {
	ca, d := newAuthority(t), newDisk(t)
	s := ca.serve(t, "n1", &election{}, d.options)
	d.write(t, "out.log", "1\n")
	f := ca.follow(t, s, false)
	f.wants("1\n")
	began := time.Now()
	s.stop()
	if rest, err := io.ReadAll(f.lines); err != nil || len(rest) > 0 {
		t.Errorf("got %q, %v", rest, err)
	}
	f.body.Close()
	err := <-s.ended
	s.ended <- err
	if took := time.Since(began); took >= stopTimeout || err != nil {
		t.Errorf("stopped after %s: %v", took, err)
	}
}

// The goroutines that are counted at the end tell whether it ended.
func TestAFollowedLogEndsWhenTheClientGoes(t *testing.T) {
	ca, d := newAuthority(t), newDisk(t)
	ended := make(chan struct{})
	s := ca.serveWith(t, "n1", &election{}, func(s *Server) {
		next := s.http.Handler
		s.http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer close(ended)
			next.ServeHTTP(w, r)
		})
	}, d.options)
	d.write(t, "out.log", "1\n")
	f := ca.follow(t, s, false)
	f.wants("1\n")
	f.cancel()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("it is still followed")
	}
}

func TestAClientStreams(t *testing.T) {
	ca, d := newAuthority(t), newDisk(t)
	s := ca.serve(t, "n1", &election{}, d.options)
	d.write(t, "out.log", "1\n2\n")
	client, err := NewClient(ca.CertPEM, token)
	if err != nil {
		t.Fatal(err)
	}
	body, err := client.Stream(t.Context(), s.url, helloLogs, url.Values{"tail": {"1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if text, err := io.ReadAll(body); err != nil || string(text) != "2\n" {
		t.Errorf("got %q, %v", text, err)
	}
	_, err = client.Stream(t.Context(), s.url, strings.Replace(helloLogs, "hello", "other", 1), nil)
	if CodeOf(err) != CodeLogNotFound {
		t.Errorf("got %v", err)
	}
	var problem *Error
	if _, err = client.Stream(t.Context(), s.url, "/healthz/x", nil); !errors.As(err, &problem) || problem.Code != CodeNotFound {
		t.Errorf("got %v", err)
	}
}
